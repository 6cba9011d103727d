/* The two loops of a level, included once for each by core.c, which defines LEVEL, TARGET and the kind of instructions.
 * There are functions that load a line, count differing bits per byte and compare; the loops are made from them. */
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define OWN(name) JOIN(name, LEVEL)
#define INNER TARGET INLINE

/* A `bytes` is one number of 8 bits for each of 64 codes, a `shorts` one of 16 bits. */
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
