/* The loops of a level, included once for each by core.c, which defines LEVEL, TARGET and the kind of instructions.
 * There are functions that load a line, count differing bits per byte and compare, and others that weigh bytes; the
 * loops are made from them. */
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define OWN(name) JOIN(name, LEVEL)
#define INNER TARGET INLINE

/* A `bytes` is one number of 8 bits for each of 64 codes, a `shorts` one of 16 bits. A `sums` is 16 numbers of 32 bits,
 * made from 16 bytes: the channels of four pixels. `n_at` is how many codes of a block are at a distance, up to a lane. `four` has each of four weights for all channels of a pixel, and
 * `folded` adds up the pixels of each of four sums. */
#if defined(AVX512)

typedef __m512i OWN(bytes);
typedef struct { __m512i low, high; } OWN(shorts);

TARGET static void OWN(spread)(const uint8_t *query, int n_bytes, uint8_t *out) {
    for (int i = 0; i < n_bytes; i++) _mm512_store_si512(out + i * LANES, _mm512_set1_epi8((char)query[i]));
}
INNER OWN(bytes) OWN(none)(void) { return _mm512_setzero_si512(); }
INNER OWN(bytes) OWN(differing)(OWN(bytes) sum, const uint8_t *line, const uint8_t *spread) {
    __m512i bits = _mm512_xor_si512(_mm512_loadu_si512(line), _mm512_load_si512(spread));
    return _mm512_add_epi8(sum, _mm512_popcnt_epi8(bits));
}
INNER OWN(bytes) OWN(shared)(OWN(bytes) sum, const uint8_t *value, const uint8_t *mask, uint8_t query) {
    __m512i bits = _mm512_xor_si512(_mm512_loadu_si512(value), _mm512_set1_epi8((char)query));
    return _mm512_add_epi8(sum, _mm512_popcnt_epi8(_mm512_and_si512(bits, _mm512_loadu_si512(mask))));
}
INNER OWN(shorts) OWN(widen)(OWN(bytes) sum) {
    return (OWN(shorts)){
        _mm512_cvtepu8_epi16(_mm512_castsi512_si256(sum)), _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(sum, 1))};
}
INNER OWN(shorts) OWN(add)(OWN(shorts) a, OWN(shorts) b) {
    return (OWN(shorts)){_mm512_add_epi16(a.low, b.low), _mm512_add_epi16(a.high, b.high)};
}
INNER uint64_t OWN(bytes_below)(OWN(bytes) sum, int limit) {
    return _mm512_cmplt_epu8_mask(sum, _mm512_set1_epi8((char)limit));
}
INNER uint64_t OWN(shorts_below)(OWN(shorts) sum, int limit) {
    __m512i most = _mm512_set1_epi16((short)limit);
    return (uint64_t)_mm512_cmplt_epu16_mask(sum.low, most) | (uint64_t)_mm512_cmplt_epu16_mask(sum.high, most) << 32;
}
INNER void OWN(store)(OWN(shorts) sum, uint16_t *out) {
    _mm512_storeu_si512(out, sum.low);
    _mm512_storeu_si512(out + 32, sum.high);
}

INNER int OWN(n_at)(const uint16_t *distances, int distance, int lane) {
    __m512i wanted = _mm512_set1_epi16((short)distance);
    uint64_t low = _mm512_cmpeq_epu16_mask(_mm512_loadu_si512(distances), wanted);
    uint64_t high = _mm512_cmpeq_epu16_mask(_mm512_loadu_si512(distances + 32), wanted);
    return __builtin_popcountll((low | high << 32) << (63 - lane));
}

typedef __m512i OWN(sums);

INNER OWN(sums) OWN(all)(int32_t value) { return _mm512_set1_epi32(value); }
INNER OWN(sums) OWN(four)(const int32_t *values) {
    __m512i places = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_epi32(places, _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)values)));
}
INNER OWN(sums) OWN(weighed)(OWN(sums) sum, const uint8_t *bytes, OWN(sums) weights) {
    __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)bytes));
    return _mm512_add_epi32(sum, _mm512_mullo_epi32(wide, weights));
}
INNER OWN(sums) OWN(folded)(OWN(sums) a, OWN(sums) b, OWN(sums) c, OWN(sums) d) {
    __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xEE));
    __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xEE));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xDD));
}
INNER void OWN(put)(OWN(sums) sum, uint8_t *out) {
    sum = _mm512_max_epi32(_mm512_srai_epi32(sum, PRECISION), _mm512_setzero_si512());
    _mm_storeu_si128((__m128i *)out, _mm512_cvtusepi32_epi8(sum));
}

#elif defined(AVX2)

typedef struct { __m256i low, high; } OWN(bytes);
typedef struct { __m256i part[4]; } OWN(shorts);

/* For each byte of the query two tables: in how many bits its low and its high nibble differ from each nibble. */
TARGET static void OWN(spread)(const uint8_t *query, int n_bytes, uint8_t *out) {
    for (int i = 0; i < n_bytes; i++)
        for (int j = 0; j < LANES; j++) {
            int nibble = j < 32 ? query[i] & 15 : query[i] >> 4;
            out[i * LANES + j] = (uint8_t)__builtin_popcount((unsigned)(nibble ^ (j & 15)));
        }
}
INNER OWN(bytes) OWN(none)(void) { return (OWN(bytes)){_mm256_setzero_si256(), _mm256_setzero_si256()}; }
INNER __m256i OWN(look_up)(__m256i bytes, __m256i low, __m256i high) {
    __m256i nibble = _mm256_set1_epi8(15);
    return _mm256_add_epi8(
        _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, nibble)),
        _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble)));
}
INNER OWN(bytes) OWN(differing)(OWN(bytes) sum, const uint8_t *line, const uint8_t *spread) {
    __m256i low = _mm256_load_si256((const __m256i *)spread), high = _mm256_load_si256((const __m256i *)(spread + 32));
    __m256i a = _mm256_loadu_si256((const __m256i *)line), b = _mm256_loadu_si256((const __m256i *)(line + 32));
    return (OWN(bytes)){
        _mm256_add_epi8(sum.low, OWN(look_up)(a, low, high)), _mm256_add_epi8(sum.high, OWN(look_up)(b, low, high))};
}
INNER __m256i OWN(half_shared)(const uint8_t *value, const uint8_t *mask, uint8_t query) {
    __m256i n_ones = _mm256_setr_epi8(
        0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    __m256i bits = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)value), _mm256_set1_epi8((char)query));
    return OWN(look_up)(_mm256_and_si256(bits, _mm256_loadu_si256((const __m256i *)mask)), n_ones, n_ones);
}
INNER OWN(bytes) OWN(shared)(OWN(bytes) sum, const uint8_t *value, const uint8_t *mask, uint8_t query) {
    return (OWN(bytes)){
        _mm256_add_epi8(sum.low, OWN(half_shared)(value, mask, query)),
        _mm256_add_epi8(sum.high, OWN(half_shared)(value + 32, mask + 32, query))};
}
INNER OWN(shorts) OWN(widen)(OWN(bytes) sum) {
    return (OWN(shorts)){
        {_mm256_cvtepu8_epi16(_mm256_castsi256_si128(sum.low)),
         _mm256_cvtepu8_epi16(_mm256_extracti128_si256(sum.low, 1)),
         _mm256_cvtepu8_epi16(_mm256_castsi256_si128(sum.high)),
         _mm256_cvtepu8_epi16(_mm256_extracti128_si256(sum.high, 1))}};
}
INNER OWN(shorts) OWN(add)(OWN(shorts) a, OWN(shorts) b) {
    for (int i = 0; i < 4; i++) a.part[i] = _mm256_add_epi16(a.part[i], b.part[i]);
    return a;
}
INNER uint64_t OWN(bytes_below)(OWN(bytes) sum, int limit) { /* limit >= 1 */
    __m256i most = _mm256_set1_epi8((char)(limit - 1));
    __m256i low = _mm256_cmpeq_epi8(_mm256_min_epu8(sum.low, most), sum.low);
    __m256i high = _mm256_cmpeq_epi8(_mm256_min_epu8(sum.high, most), sum.high);
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}
INNER uint64_t OWN(shorts_below)(OWN(shorts) sum, int limit) {
    __m256i most = _mm256_set1_epi16((short)(limit - 1)), near[4];
    for (int i = 0; i < 4; i++) near[i] = _mm256_cmpeq_epi16(_mm256_min_epu16(sum.part[i], most), sum.part[i]);
    __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi16(near[0], near[1]), 0xD8);
    __m256i high = _mm256_permute4x64_epi64(_mm256_packs_epi16(near[2], near[3]), 0xD8);
    return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}
INNER void OWN(store)(OWN(shorts) sum, uint16_t *out) {
    for (int i = 0; i < 4; i++) _mm256_storeu_si256((__m256i *)(out + 16 * i), sum.part[i]);
}

INNER int OWN(n_at)(const uint16_t *distances, int distance, int lane) {
    __m256i wanted = _mm256_set1_epi16((short)distance), at[4];
    for (int i = 0; i < 4; i++)
        at[i] = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *)(distances + 16 * i)), wanted);
    __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi16(at[0], at[1]), 0xD8);
    __m256i high = _mm256_permute4x64_epi64(_mm256_packs_epi16(at[2], at[3]), 0xD8);
    uint64_t mask = (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
    return __builtin_popcountll(mask << (63 - lane));
}

typedef struct { __m256i low, high; } OWN(sums);

INNER OWN(sums) OWN(all)(int32_t value) { return (OWN(sums)){_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
INNER OWN(sums) OWN(four)(const int32_t *values) {
    __m256i four = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)values));
    return (OWN(sums)){
        _mm256_permutevar8x32_epi32(four, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)),
        _mm256_permutevar8x32_epi32(four, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3))};
}
INNER OWN(sums) OWN(weighed)(OWN(sums) sum, const uint8_t *bytes, OWN(sums) weights) {
    __m256i low = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
    __m256i high = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(bytes + 8)));
    return (OWN(sums)){
        _mm256_add_epi32(sum.low, _mm256_mullo_epi32(low, weights.low)),
        _mm256_add_epi32(sum.high, _mm256_mullo_epi32(high, weights.high))};
}
INNER __m256i OWN(half_folded)(OWN(sums) a, OWN(sums) b) {
    __m256i one = _mm256_add_epi32(a.low, a.high), other = _mm256_add_epi32(b.low, b.high);
    return _mm256_add_epi32(_mm256_permute2x128_si256(one, other, 0x20), _mm256_permute2x128_si256(one, other, 0x31));
}
INNER OWN(sums) OWN(folded)(OWN(sums) a, OWN(sums) b, OWN(sums) c, OWN(sums) d) {
    return (OWN(sums)){OWN(half_folded)(a, b), OWN(half_folded)(c, d)};
}
INNER void OWN(put)(OWN(sums) sum, uint8_t *out) {
    __m256i low = _mm256_srai_epi32(sum.low, PRECISION), high = _mm256_srai_epi32(sum.high, PRECISION);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)out, bytes);
}

#else /* arrays that compilers turn into vectors; NEON counts bits itself */

typedef struct { uint64_t part[8]; } OWN(bytes);
typedef struct { uint16_t each[LANES]; } OWN(shorts);

static void OWN(spread)(const uint8_t *query, int n_bytes, uint8_t *out) {
    for (int i = 0; i < n_bytes; i++) memset(out + i * LANES, query[i], LANES);
}
INNER OWN(bytes) OWN(none)(void) { return (OWN(bytes)){{0}}; }
INNER void OWN(add_ones)(OWN(bytes) *sum, const uint64_t *bits) {
#if defined(NEON)
    for (int i = 0; i < 8; i += 2) {
        uint8x16_t ones = vcntq_u8(vreinterpretq_u8_u64(vld1q_u64(bits + i)));
        vst1q_u64(sum->part + i, vreinterpretq_u64_u8(vaddq_u8(vreinterpretq_u8_u64(vld1q_u64(sum->part + i)), ones)));
    }
#else
    for (int i = 0; i < 8; i++) {
        uint64_t x = bits[i] - (bits[i] >> 1 & 0x5555555555555555ULL);
        x = (x & 0x3333333333333333ULL) + (x >> 2 & 0x3333333333333333ULL);
        sum->part[i] += (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0FULL;
    }
#endif
}
INNER OWN(bytes) OWN(differing)(OWN(bytes) sum, const uint8_t *line, const uint8_t *spread) {
    uint64_t codes[8], query[8];
    memcpy(codes, line, LANES), memcpy(query, spread, LANES);
    for (int i = 0; i < 8; i++) codes[i] ^= query[i];
    OWN(add_ones)(&sum, codes);
    return sum;
}
INNER OWN(bytes) OWN(shared)(OWN(bytes) sum, const uint8_t *value, const uint8_t *mask, uint8_t query) {
    uint64_t values[8], masks[8];
    memcpy(values, value, LANES), memcpy(masks, mask, LANES);
    for (int i = 0; i < 8; i++) values[i] = (values[i] ^ query * 0x0101010101010101ULL) & masks[i];
    OWN(add_ones)(&sum, values);
    return sum;
}
INNER OWN(shorts) OWN(widen)(OWN(bytes) sum) {
    uint8_t each[LANES];
    OWN(shorts) wide;
    memcpy(each, sum.part, LANES);
    for (int i = 0; i < LANES; i++) wide.each[i] = each[i];
    return wide;
}
INNER OWN(shorts) OWN(add)(OWN(shorts) a, OWN(shorts) b) {
    for (int i = 0; i < LANES; i++) a.each[i] += b.each[i];
    return a;
}
INNER uint64_t OWN(shorts_below)(OWN(shorts) sum, int limit) {
    uint64_t mask = 0;
    int any = 0;
    for (int i = 0; i < LANES; i++) any |= sum.each[i] < limit;
    for (int i = 0; any && i < LANES; i++) mask |= (uint64_t)(sum.each[i] < limit) << i;
    return mask;
}
INNER uint64_t OWN(bytes_below)(OWN(bytes) sum, int limit) {
    uint8_t each[LANES], most = (uint8_t)limit;
    uint64_t mask = 0;
    uint8_t any = 0;
    memcpy(each, sum.part, LANES);
    for (int i = 0; i < LANES; i++) any |= each[i] < most;
    for (int i = 0; any && i < LANES; i++) mask |= (uint64_t)(each[i] < most) << i;
    return mask;
}
INNER void OWN(store)(OWN(shorts) sum, uint16_t *out) { memcpy(out, sum.each, sizeof sum.each); }

INNER int OWN(n_at)(const uint16_t *distances, int distance, int lane) {
    uint16_t n = 0;
    for (int i = 0; i <= lane; i++) n += distances[i] == distance;
    return n;
}

typedef struct { int32_t each[16]; } OWN(sums);

INNER OWN(sums) OWN(all)(int32_t value) {
    OWN(sums) all;
    for (int i = 0; i < 16; i++) all.each[i] = value;
    return all;
}
INNER OWN(sums) OWN(four)(const int32_t *values) {
    OWN(sums) four;
    for (int i = 0; i < 16; i++) four.each[i] = values[i / 4];
    return four;
}
INNER OWN(sums) OWN(weighed)(OWN(sums) sum, const uint8_t *bytes, OWN(sums) weights) {
    for (int i = 0; i < 16; i++) sum.each[i] += bytes[i] * weights.each[i];
    return sum;
}
INNER OWN(sums) OWN(folded)(OWN(sums) a, OWN(sums) b, OWN(sums) c, OWN(sums) d) {
    const OWN(sums) *four[] = {&a, &b, &c, &d};
    OWN(sums) sum;
    for (int i = 0; i < 16; i++) {
        const int32_t *from = four[i / 4]->each + i % 4;
        sum.each[i] = from[0] + from[4] + from[8] + from[12];
    }
    return sum;
}
INNER void OWN(put)(OWN(sums) sum, uint8_t *out) {
    for (int i = 0; i < 16; i++) {
        int32_t value = sum.each[i] >> PRECISION;
        out[i] = (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
    }
}

#endif

INNER OWN(bytes) OWN(sum_of)(const uint8_t *block, const uint8_t *spread, int n_bytes) {
    OWN(bytes) sum = OWN(none)();
    for (int i = 0; i < n_bytes; i++) sum = OWN(differing)(sum, block + i * LANES, spread + i * LANES);
    return sum;
}

/* For codes short enough for bytes. There is no prefetching: line after line, processors do that better themselves. */
INNER int64_t OWN(read_narrow)(
    const uint8_t *blocks, int64_t block, int64_t end, const uint8_t *spread, int n_bytes, int limit,
    uint16_t *distances, uint64_t *mask) {
    for (; block < end; block++) {
        const uint8_t *at = blocks + block * n_bytes * LANES;
        OWN(bytes) sum = OWN(sum_of)(at, spread, n_bytes);
        uint64_t near = OWN(bytes_below)(sum, limit);
        if (__builtin_expect(near != 0, 0)) {
            OWN(store)(OWN(widen)(sum), distances);
            *mask = near;
            break;
        }
    }
    return block;
}

INNER int64_t OWN(read_wide)(
    const uint8_t *blocks, int64_t block, int64_t end, const uint8_t *spread, int n_bytes, int limit,
    uint16_t *distances, uint64_t *mask) {
    for (; block < end; block++) {
        const uint8_t *at = blocks + block * n_bytes * LANES;
        OWN(shorts) sum = OWN(widen)(OWN(sum_of)(at, spread, NARROW));
        for (int i = NARROW; i < n_bytes; i += NARROW) {
            int n = n_bytes - i < NARROW ? n_bytes - i : NARROW;
            sum = OWN(add)(sum, OWN(widen)(OWN(sum_of)(at + i * LANES, spread + i * LANES, n)));
        }
        uint64_t near = OWN(shorts_below)(sum, limit);
        if (__builtin_expect(near != 0, 0)) {
            OWN(store)(sum, distances);
            *mask = near;
            break;
        }
    }
    return block;
}

/* The first block that has a code nearer than `limit`, its distances, and a bit for each such code; or `end`. */
TARGET static int64_t OWN(next_near)(
    const uint8_t *blocks, int64_t block, int64_t end, const uint8_t *spread, int n_bytes, int limit,
    uint16_t *distances, uint64_t *mask) {
    if (limit <= 0) return end;
#define CASE(n) \
    case n: return OWN(read_narrow)(blocks, block, end, spread, n, limit, distances, mask);
    switch (n_bytes) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(12) CASE(16)
        case 32: return OWN(read_wide)(blocks, block, end, spread, 32, limit, distances, mask);
    }
#undef CASE
    return n_bytes <= NARROW ? OWN(read_narrow)(blocks, block, end, spread, n_bytes, limit, distances, mask)
                             : OWN(read_wide)(blocks, block, end, spread, n_bytes, limit, distances, mask);
}

/* How far the query is at least from the codes behind each of 64 values: only bits of the mask are shared by them.
 * Returns a bit for each that is at most `limit`. */
TARGET static uint64_t OWN(bounds)(
    const uint8_t *values, const uint8_t *masks, const uint8_t *query, int n_bytes, int limit, uint16_t *out) {
    OWN(shorts) total = OWN(widen)(OWN(none)());
    for (int i = 0; i < n_bytes; i += NARROW) {
        OWN(bytes) sum = OWN(none)();
        for (int j = i; j < n_bytes && j < i + NARROW; j++)
            sum = OWN(shared)(sum, values + j * LANES, masks + j * LANES, query[j]);
        total = OWN(add)(total, OWN(widen)(sum));
    }
    OWN(store)(total, out);
    return OWN(shorts_below)(total, limit + 1);
}

INNER void OWN(measure_narrow)(
    const uint8_t *blocks, int64_t n_blocks, const uint8_t *spread, int n_bytes, uint16_t *distances) {
    for (int64_t block = 0; block < n_blocks; block++)
        OWN(store)(OWN(widen)(OWN(sum_of)(blocks + block * n_bytes * LANES, spread, n_bytes)), distances + block * LANES);
}

/* The distances of a few blocks. */
TARGET static void OWN(measure)(
    const uint8_t *blocks, int64_t n_blocks, const uint8_t *spread, int n_bytes, uint16_t *distances) {
#define CASE(n) \
    case n: OWN(measure_narrow)(blocks, n_blocks, spread, n, distances); return;
    switch (n_bytes) { CASE(2) CASE(3) CASE(4) CASE(6) CASE(8) CASE(16) }
#undef CASE
    uint64_t mask;
    for (int64_t block = 0; block < n_blocks; block++)
        OWN(next_near)(blocks, block, block + 1, spread, n_bytes, 8 * n_bytes + 1, distances + block * LANES, &mask);
}

/* Counts codes by distance in `counts`, (2, n_bits + 1): neighbours in different rows, for they would wait for each
 * other at one distance. Of those in `relevant`, a bit for each, it notes the distance and how many codes (low half) and
 * relevant ones (high half) are at it up to this one; `hits` counts these, in the high half. */
TARGET static void OWN(tally)(
    const uint8_t *blocks, int64_t n, const uint8_t *spread, int n_bytes, int n_bits, const uint64_t *relevant,
    int64_t n_relevant, uint32_t *counts, uint64_t *hits, uint64_t *noted, uint16_t *at) {
    int64_t n_noted = 0, n_blocks = (n + LANES - 1) / LANES;
    uint32_t *others = counts + n_bits + 1;
    int many = DENSE * n_relevant > n; /* then each code is counted in `hits`, and what is not relevant overwritten */
    uint16_t distances[MEASURED * LANES];
    for (int64_t block = 0; block < n_blocks; block++) {
        const uint16_t *own = distances + block % MEASURED * LANES;
        int last = n - block * LANES < LANES ? (int)(n - block * LANES) : LANES;
        uint64_t mask = relevant[block];
        if (block % MEASURED == 0)
            OWN(measure)(
                blocks + block * n_bytes * LANES, n_blocks - block < MEASURED ? n_blocks - block : MEASURED, spread,
                n_bytes, distances);
        if (many) {
            for (int lane = 0; lane < last; lane++, mask >>= 1) {
                uint64_t one = mask & 1;
                noted[n_noted] = hits[own[lane]] += 1 + (one << 32);
                at[n_noted] = own[lane];
                n_noted += (int64_t)one;
            }
            continue;
        }
        for (; mask; mask &= mask - 1) {
            int lane = __builtin_ctzll(mask), distance = own[lane];
            uint32_t so_far = counts[distance] + others[distance] + (uint32_t)OWN(n_at)(own, distance, lane);
            at[n_noted] = (uint16_t)distance;
            noted[n_noted++] = (hits[distance] += 1ULL << 32) | so_far;
        }
        if (last == LANES)
            for (int lane = 0; lane < LANES; lane += 4) {
                uint64_t four; /* are read at once */
                memcpy(&four, own + lane, 8);
                counts[four & 0xFFFF]++, others[four >> 16 & 0xFFFF]++;
                counts[four >> 32 & 0xFFFF]++, others[four >> 48]++;
            }
        else
            for (int lane = 0; lane < last; lane++) counts[own[lane]]++;
    }
}

/* The sum of relevant / all codes up to each that was noted and is among the first `topk`, in the order of notes. Places
 * gets where these are in the ranking, from 1, in its order; offsets has what is at lower distances. */
TARGET static double OWN(add_up)(
    const uint64_t *noted, const uint16_t *at, int64_t n_noted, const uint64_t *offsets, int32_t topk,
    int32_t *places) {
    double total = 0, precisions[LANES];
    int32_t items[LANES], hits[LANES];
    for (int64_t begin = 0; begin < n_noted; begin += LANES) {
        int n = n_noted - begin < LANES ? (int)(n_noted - begin) : LANES;
        for (int i = 0; i < n; i++) {
            uint64_t both = noted[begin + i] + offsets[at[begin + i]];
            items[i] = (int32_t)both, hits[i] = (int32_t)(both >> 32);
            places[hits[i] - 1] = items[i];
            __asm__("" ::: "memory"); /* one by one: gathering and scattering take longer */
        }
        for (int i = n; i < LANES; i++) items[i] = 1, hits[i] = 0;
        for (int i = 0; i < LANES; i++) hits[i] &= -(items[i] <= topk);
        for (int i = 0; i < LANES; i++) precisions[i] = (double)hits[i] / (double)items[i]; /* several at once */
        for (int i = 0; i < LANES; i++) total += precisions[i];
    }
    return total;
}

/* Rows of pixels, four bytes each, to rows of `size` pixels: pixel x is the weighted sum of n_taps pixels from first[x]
 * on, a multiple of 4. Four rows at a time share what is read of the weights. */
TARGET static void OWN(across)(
    const uint8_t *pixels, int64_t n_rows, int64_t width, const int32_t *first, const int32_t *weights, int64_t n_taps,
    int64_t size, uint8_t *out, int64_t out_width) {
    for (int64_t row = 0; row < n_rows; row += 4) {
        const uint8_t *from[4];
        uint8_t *to[4], found[16];
        for (int i = 0; i < 4; i++) { /* after the last row, that one again */
            int64_t own = row + i < n_rows ? row + i : n_rows - 1;
            from[i] = pixels + 4 * own * width, to[i] = out + 4 * own * out_width;
        }
        for (int64_t x = 0; x < size; x++) {
            const int32_t *own = weights + n_taps * x;
            int64_t at = 4 * first[x];
            OWN(sums) a = OWN(all)(1 << (PRECISION - 3)), b = a, c = a, d = a; /* a half, after folding */
            for (int64_t tap = 0; tap < n_taps; tap += 4) {
                OWN(sums) four = OWN(four)(own + tap);
                a = OWN(weighed)(a, from[0] + at + 4 * tap, four);
                b = OWN(weighed)(b, from[1] + at + 4 * tap, four);
                c = OWN(weighed)(c, from[2] + at + 4 * tap, four);
                d = OWN(weighed)(d, from[3] + at + 4 * tap, four);
            }
            OWN(put)(OWN(folded)(a, b, c, d), found);
            for (int i = 0; i < 4; i++) memcpy(to[i] + 4 * x, found + 4 * i, 4);
        }
    }
}

/* Row y of `size` is the weighted sum of n_taps rows from first[y] on; n_bytes, a multiple of 16, are in a row. Of each
 * pixel three bytes are written. */
TARGET static void OWN(down)(
    const uint8_t *rows, int64_t n_bytes, const int32_t *first, const int32_t *weights, int64_t n_taps, int64_t size,
    uint8_t *row, uint8_t *out) {
    for (int64_t y = 0; y < size; y++) {
        const uint8_t *from = rows + first[y] * n_bytes;
        for (int64_t i = 0; i < n_bytes; i += 16) {
            OWN(sums) sum = OWN(all)(1 << (PRECISION - 1));
            for (int64_t tap = 0; tap < n_taps; tap++)
                sum = OWN(weighed)(sum, from + tap * n_bytes + i, OWN(all)(weights[y * n_taps + tap]));
            OWN(put)(sum, row + i);
        }
        for (int64_t x = 0; x < size; x++) memcpy(out + 3 * (y * size + x), row + 4 * x, 3);
    }
}

#undef JOIN_
#undef JOIN
#undef OWN
#undef INNER
#undef LEVEL
#undef TARGET
#undef PLAIN
#undef AVX2
#undef AVX512
#undef NEON
