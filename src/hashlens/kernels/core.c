/* Codes in blocks in; nearest codes, codes within a radius and counts by distance out. Pixels in; scaled images out.
 *
 * A block holds 64 codes, byte by byte: row i has byte i of each of them, one line of memory and one vector register.
 * Everything here rests on two loops: `next_near` reads blocks until one has a code nearer than a limit, and `bounds`
 * gives lower bounds for 64 blocks of a tree. Each level (plain C, AVX2, AVX-512, NEON) has its own (loops.h); the rest
 * runs once per hit and is the same for all. Nothing is written to the codes, so any number of threads may call.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 64
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define NARROW 31   /* bytes of a code whose distance always fits in a byte */
#define TILE 16384  /* bytes of codes that stay in the first cache while all queries pass over them */
#define QUERIES 256 /* that pass over a tile together */
#define MEASURED 8  /* blocks whose distances are kept */
#define DENSE 4     /* if more than a quarter of all codes are relevant, they are counted otherwise */
#define PRECISION 22 /* bits after the point of a weight, as in Pillow */
#define MEMORY (64 << 20) /* bytes for what these keep, as far as possible */

/* ---- the levels */

#define LEVEL plain
#define TARGET
#define PLAIN
#include "loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define LEVEL avx2
#define TARGET __attribute__((target("avx2,bmi,bmi2,popcnt,lzcnt")))
#define AVX2
#include "loops.h"
#define LEVEL avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512bitalg,bmi,bmi2,popcnt,lzcnt")))
#define AVX512
#include "loops.h"
#elif defined(__aarch64__)
#include <arm_neon.h>
#define LEVEL neon
#define TARGET
#define NEON
#include "loops.h"
#endif

typedef struct {
    const char *name;
    void (*spread)(const uint8_t *query, int n_bytes, uint8_t *out); /* out: n_bytes lines, what next_near needs */
    int64_t (*next_near)(
        const uint8_t *blocks, int64_t block, int64_t end, const uint8_t *spread, int n_bytes, int limit,
        uint16_t *distances, uint64_t *mask);
    uint64_t (*bounds)(
        const uint8_t *values, const uint8_t *masks, const uint8_t *query, int n_bytes, int limit, uint16_t *out);
    void (*tally)(
        const uint8_t *blocks, int64_t n, const uint8_t *spread, int n_bytes, int n_bits, const uint64_t *relevant,
        int64_t n_relevant, uint32_t *counts, uint64_t *hits, uint64_t *noted, uint16_t *at);
    double (*add_up)(
        const uint64_t *noted, const uint16_t *at, int64_t n_noted, const uint64_t *offsets, int32_t topk,
        int32_t *places);
    void (*across)(
        const uint8_t *pixels, int64_t n_rows, int64_t width, const int32_t *first, const int32_t *weights,
        int64_t n_taps, int64_t size, uint8_t *out, int64_t out_width);
    void (*down)(
        const uint8_t *rows, int64_t n_bytes, const int32_t *first, const int32_t *weights, int64_t n_taps,
        int64_t size, uint8_t *row, uint8_t *out);
} level;

static const level LEVELS[] = {
    {"plain", spread_plain, next_near_plain, bounds_plain, tally_plain, add_up_plain, across_plain,
     down_plain},
#if defined(__x86_64__)
    {"avx2", spread_avx2, next_near_avx2, bounds_avx2, tally_avx2, add_up_avx2, across_avx2,
     down_avx2},
    {"avx512", spread_avx512, next_near_avx512, bounds_avx512, tally_avx512, add_up_avx512, across_avx512,
     down_avx512},
#elif defined(__aarch64__)
    {"neon", spread_neon, next_near_neon, bounds_neon, tally_neon, add_up_neon, across_neon,
     down_neon},
#endif
};
#define N_LEVELS ((int)(sizeof(LEVELS) / sizeof(LEVELS[0])))

EXPORT const char *hashlens_level(int number) { return number < N_LEVELS ? LEVELS[number].name : NULL; }

/* Whether this processor has what a level needs. */
EXPORT int hashlens_runs(int number) {
    if (number < 0 || number >= N_LEVELS) return 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (number == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
    if (number == 2)
        return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bitalg") && __builtin_cpu_supports("bmi2");
#endif
    return 1;
}

/* ---- the codes of an index */

typedef struct { /* see Tree in tree.py */
    const uint8_t *blocks;                  /* distinct codes, those that share many bits side by side */
    const uint8_t *values, *masks;          /* per block: the bits that all its codes share, and which these are */
    const uint8_t *top_values, *top_masks;  /* per 64 blocks: the same */
    const uint32_t *starts, *places;        /* code c is at places[starts[c]] ... places[starts[c + 1] - 1], ascending */
    const uint32_t *weights;                /* how many of them were not removed; NULL: all */
    int64_t n_distinct;
} tree;

typedef struct {
    const uint8_t *blocks;
    const uint64_t *alive; /* a bit per code; NULL: none was removed */
    const int64_t *ids;    /* ascending; NULL: first, first + 1, ... */
    int64_t first, n;
    const tree *tree;      /* NULL: read all codes */
    const uint8_t *second; /* blocks of a second code of the same items; NULL: there is none */
} part;

INLINE int64_t blocks_of(int64_t n) { return (n + LANES - 1) / LANES; }
INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t id_at(const part *p, int64_t place) { return p->ids ? p->ids[place] : p->first + place; }
INLINE int is_alive(const part *p, int64_t place) { return !p->alive || (p->alive[place / LANES] >> (place % LANES) & 1); }

/* The bits of a block whose codes exist and were not removed. */
INLINE uint64_t there(const uint64_t *alive, int64_t n, int64_t block) {
    uint64_t mask = alive ? alive[block] : ~0ULL;
    int64_t left = n - block * LANES;
    return left < LANES ? mask & ((1ULL << left) - 1) : mask;
}

/* ---- what is kept for a query

 * Codes nearer than `limit` are kept; `below` of the kept are nearer, fewer than k. Places are read in ascending order,
 * so a code as far as the limit is not better than those kept at that distance.
 *
 * With a second code, a distance is that of the first times `width`, which is more than any of the second, plus that of
 * the second: their order. The second code of a block is read only if the first of one of its codes is near enough. */
typedef struct {
    int64_t k, room, n, below;
    int limit, width;
    int64_t *counts;     /* (levels + 1) kept at each distance */
    int64_t *ids;        /* (room) */
    uint16_t *distances; /* (room) */
    uint8_t *spread;     /* of the query */
    uint8_t *second;     /* the same of its second code, if the width is not 1 */
} nearest;

INLINE void count(nearest *s, int distance, int64_t weight) {
    s->counts[distance] += weight;
    if (distance >= s->limit) return;
    s->below += weight;
    while (s->below >= s->k) s->below -= s->counts[--s->limit];
}

/* Forget what is no longer among the nearest k. Without a branch: half of them are, which nobody could predict. */
static void sort_out(nearest *s) {
    int64_t n = 0, room = s->k - s->below;
    for (int64_t i = 0; i < s->n; i++) {
        int distance = s->distances[i], last = distance == s->limit;
        s->distances[n] = (uint16_t)distance;
        s->ids[n] = s->ids[i];
        n += (distance < s->limit) | (last & (room > 0));
        room -= last;
    }
    s->n = n;
}

static void scan(
    const level *l, const part *p, int64_t begin, int64_t end, int n_bytes, int second_bytes, nearest *s) {
    uint16_t distances[LANES], seconds[LANES];
    uint64_t mask, all;
    int64_t block = begin;
    int width = s->width, limit;
    for (;; block++) {
        limit = width == 1 ? s->limit : (s->limit + width - 1) / width;
        block = l->next_near(p->blocks, block, end, s->spread, n_bytes, limit, distances, &mask);
        if (block >= end) return;
        if (width > 1) {
            l->next_near(p->second, block, block + 1, s->second, second_bytes, width, seconds, &all);
            for (int lane = 0; lane < LANES; lane++)
                distances[lane] = (uint16_t)(distances[lane] * width + seconds[lane]);
        }
        if (s->n + LANES > s->room) sort_out(s);
        for (mask &= there(p->alive, p->n, block); mask; mask &= mask - 1) {
            int lane = __builtin_ctzll(mask), distance = distances[lane];
            if (distance >= s->limit) continue; /* which has become lower */
            s->distances[s->n] = (uint16_t)distance;
            s->ids[s->n++] = id_at(p, block * LANES + lane);
            count(s, distance, 1);
        }
    }
}

/* In the order of (distance, id); the places after the last are -1. */
static void write_out(nearest *s, int levels, int32_t *distances, int64_t *ids) {
    int64_t *starts = s->counts, farthest = smaller(s->limit, levels - 1); /* the counts have done their work */
    sort_out(s);
    memset(starts, 0, 8 * (farthest + 2));
    for (int64_t i = 0; i < s->n; i++) starts[s->distances[i] + 1]++;
    for (int64_t d = 1; d <= farthest; d++) starts[d] += starts[d - 1];
    for (int64_t i = 0; i < s->n; i++) {
        int64_t place = starts[s->distances[i]]++;
        distances[place] = s->distances[i];
        ids[place] = s->ids[i];
    }
    for (int64_t i = s->n; i < s->k; i++) distances[i] = -1, ids[i] = -1;
}

/* ---- the tree */

typedef struct { /* room for a search, reused by all queries of a call */
    int64_t n, room;
    uint64_t *found; /* distance << 32 | code, then distance << 32 | place */
    uint64_t *spare;
    uint16_t *bounds; /* of the groups of 64 blocks */
    uint32_t *order;  /* of these groups, lowest bound first */
    int64_t n_read;   /* blocks */
} room;

static int need(room *r, int64_t n) {
    if (n <= r->room) return 1;
    int64_t wanted = 2 * n + 1024;
    uint64_t *found = realloc(r->found, 8 * wanted), *spare = found ? realloc(r->spare, 8 * wanted) : NULL;
    if (found) r->found = found;
    if (spare) r->spare = spare;
    if (!found || !spare) return 0;
    r->room = wanted;
    return 1;
}

INLINE int64_t weight_of(const tree *t, int64_t code) {
    return t->weights ? t->weights[code] : t->starts[code + 1] - t->starts[code];
}

/* Sort by the lowest 48 bits: by distance, then by place. */
static void sort_found(room *r) {
    uint64_t *from = r->found, *to = r->spare;
    if (r->n <= 32) {
        for (int64_t i = 1; i < r->n; i++) {
            uint64_t own = from[i];
            int64_t j = i;
            for (; j > 0 && from[j - 1] > own; j--) from[j] = from[j - 1];
            from[j] = own;
        }
        return;
    }
    uint64_t all = 0;
    for (int64_t i = 0; i < r->n; i++) all |= from[i];
    for (int shift = 0; shift < 48; shift += 12) {
        if (!(all >> shift & 4095)) continue;
        uint32_t starts[4097] = {0};
        for (int64_t i = 0; i < r->n; i++) starts[(from[i] >> shift & 4095) + 1]++;
        for (int i = 1; i < 4096; i++) starts[i] += starts[i - 1];
        for (int64_t i = 0; i < r->n; i++) to[starts[from[i] >> shift & 4095]++] = from[i];
        uint64_t *other = from;
        from = to, to = other;
    }
    r->found = from, r->spare = to;
}

/* Blocks and groups of blocks whose bound is beyond the limit are not read; the most promising groups come first. */
static int climb(const level *l, const part *p, const uint8_t *query, int n_bytes, int n_bits, nearest *s, room *r) {
    const tree *t = p->tree;
    int64_t n_blocks = blocks_of(t->n_distinct), n_groups = blocks_of(n_blocks), size = (int64_t)n_bytes * LANES;
    int64_t starts[n_bits + 2];
    uint16_t bounds[LANES], distances[LANES];
    uint64_t mask;
    memset(starts, 0, sizeof starts);
    for (int64_t top = 0; top < blocks_of(n_groups); top++)
        l->bounds(t->top_values + top * size, t->top_masks + top * size, query, n_bytes, 0, r->bounds + top * LANES);
    for (int64_t g = 0; g < n_groups; g++) starts[r->bounds[g] + 1]++;
    for (int d = 1; d <= n_bits + 1; d++) starts[d] += starts[d - 1];
    for (int64_t g = 0; g < n_groups; g++) r->order[starts[r->bounds[g]]++] = (uint32_t)g;
    sort_out(s);
    r->n = 0;
    for (int64_t i = 0; i < n_groups; i++) {
        int64_t group = r->order[i];
        if (r->bounds[group] > s->limit) break;
        uint64_t near = l->bounds(t->values + group * size, t->masks + group * size, query, n_bytes, s->limit, bounds);
        near &= there(NULL, n_blocks, group);
        for (uint64_t left = near; left; left &= left - 1) {
            const uint8_t *at = t->blocks + (group * LANES + __builtin_ctzll(left)) * size;
            for (int64_t line = 0; line < size; line += 64) __builtin_prefetch(at + line, 0, 3);
        }
        for (; near; near &= near - 1) {
            int lane = __builtin_ctzll(near);
            int64_t block = group * LANES + lane;
            if (bounds[lane] > s->limit) continue;
            r->n_read++;
            if (l->next_near(t->blocks, block, block + 1, s->spread, n_bytes, s->limit + 1, distances, &mask) > block)
                continue;
            if (!need(r, r->n + LANES)) return 0;
            for (mask &= there(NULL, t->n_distinct, block); mask; mask &= mask - 1) {
                int at = __builtin_ctzll(mask), distance = distances[at];
                int64_t code = block * LANES + at, weight = weight_of(t, code);
                if (distance > s->limit || !weight) continue;
                r->found[r->n++] = (uint64_t)distance << 32 | (uint64_t)code;
                count(s, distance, weight);
            }
        }
    }
    sort_out(s); /* the limit is lower now: parts before this one keep what they need */
    int64_t missing = s->k - s->n, n_codes = 0, n_places = 0;
    for (int64_t i = 0; i < r->n; i++) {
        int distance = (int)(r->found[i] >> 32);
        if (distance > s->limit) continue;
        n_places += smaller(weight_of(t, r->found[i] & 0xFFFFFFFF), missing);
        r->found[n_codes++] = r->found[i];
    }
    if (!need(r, n_places > n_codes ? n_places : n_codes)) return 0;
    uint64_t *codes = r->found;
    r->n = 0;
    for (int64_t i = 0; i < n_codes; i++) {
        uint64_t distance = codes[i] >> 32, code = codes[i] & 0xFFFFFFFF;
        int64_t left = missing;
        for (uint32_t j = t->starts[code]; j < t->starts[code + 1] && left > 0; j++) {
            uint32_t place = t->places[j];
            if (!is_alive(p, place)) continue;
            r->spare[r->n++] = distance << 32 | place;
            left--;
        }
    }
    r->found = r->spare, r->spare = codes;
    sort_found(r);
    /* nearer ones all fit; of those as far as the limit, the lowest places */
    for (int64_t i = 0; i < r->n && s->n < s->room; i++) {
        if (i >= missing) break;
        s->distances[s->n] = (uint16_t)(r->found[i] >> 32);
        s->ids[s->n++] = id_at(p, r->found[i] & 0xFFFFFFFF);
    }
    return 1;
}

/* ---- what Python calls; all give -1 if there is no memory */

/* The nearest k of each query among one of `n_shares` shares of all parts, whose ids ascend from part to part:
 * distances (n_queries, k) and ids (n_queries, k), -1 where there are fewer. With second codes of the queries, which all
 * parts must have too and trees do not, distances are those of both (see above). Returns how many blocks of trees were
 * read. */
EXPORT int64_t hashlens_nearest(
    int number, const part *parts, int64_t n_parts, const uint8_t *queries, int64_t n_queries, int n_bytes, int n_bits,
    const uint8_t *seconds, int second_bytes, int second_bits, int64_t k, int64_t share, int64_t n_shares,
    int32_t *distances, int64_t *ids) {
    const level *l = LEVELS + number;
    int width = seconds ? second_bits + 1 : 1, levels = (n_bits + 1) * width;
    int64_t n_codes = 0, n_groups = 0, n_read = -1;
    for (int64_t i = 0; i < n_parts; i++) {
        n_codes += parts[i].n;
        int64_t groups = parts[i].tree ? blocks_of(blocks_of(parts[i].tree->n_distinct)) : 0;
        if (groups > n_groups) n_groups = groups;
    }
    int64_t space = smaller(2 * k + 256, n_codes + LANES); /* sorting out leaves at most k */
    int64_t line = (10 * space + 8 * (levels + 1) + LANES * (n_bytes + second_bytes) + 64) / 64 * 64;
    int64_t most = smaller(n_queries, smaller(QUERIES, MEMORY / line + 1));
    nearest *states = malloc(most * sizeof(nearest));
    uint8_t *memory = aligned_alloc(64, most * line + 64);
    room r = {0};
    int64_t whole = blocks_of(n_groups) * LANES;
    if (whole) r.bounds = malloc(2 * whole), r.order = malloc(4 * whole);
    if (!states || !memory || (whole && (!r.bounds || !r.order))) goto end;
    for (int64_t first = 0; first < n_queries; first += most) {
        int64_t n = smaller(most, n_queries - first);
        for (int64_t q = 0; q < n; q++) {
            uint8_t *at = memory + q * line;
            nearest *s = states + q;
            *s = (nearest){.k = k, .room = space, .limit = levels, .width = width, .spread = at};
            s->second = at + LANES * n_bytes;
            s->counts = (int64_t *)(s->second + LANES * second_bytes);
            s->ids = s->counts + levels + 1;
            s->distances = (uint16_t *)(s->ids + space);
            memset(s->counts, 0, 8 * (levels + 1));
            l->spread(queries + (first + q) * n_bytes, n_bytes, s->spread);
            if (seconds) l->spread(seconds + (first + q) * second_bytes, second_bytes, s->second);
        }
        for (const part *p = parts; p < parts + n_parts; p++) {
            if (p->tree) {
                for (int64_t q = 0; q < n && !share; q++)
                    if (!climb(l, p, queries + (first + q) * n_bytes, n_bytes, n_bits, states + q, &r)) goto end;
                continue;
            }
            int64_t n_blocks = blocks_of(p->n), end = n_blocks * (share + 1) / n_shares;
            int64_t tile = n == 1 ? n_blocks + 1 : TILE / (LANES * n_bytes) + 1;
            for (int64_t begin = n_blocks * share / n_shares; begin < end; begin += tile)
                for (int64_t q = 0; q < n; q++)
                    scan(l, p, begin, smaller(begin + tile, end), n_bytes, second_bytes, states + q);
        }
        for (int64_t q = 0; q < n; q++)
            write_out(states + q, levels, distances + (first + q) * k, ids + (first + q) * k);
    }
    n_read = r.n_read;
end:
    free(states), free(memory), free(r.found), free(r.spare), free(r.bounds), free(r.order);
    return n_read;
}

/* How many codes of a part are at most `radius` away; as far as there is room, their distances and ids, in any order. */
EXPORT int64_t hashlens_within(
    int number, const part *p, const uint8_t *query, int n_bytes, int radius, int64_t capacity, uint16_t *distances,
    int64_t *ids) {
    const level *l = LEVELS + number;
    int64_t n = 0, size = (int64_t)n_bytes * LANES, block = 0;
    uint16_t far[LANES], bounds[LANES], tops[LANES];
    uint64_t mask;
    uint8_t *spread = aligned_alloc(64, size);
    if (!spread) return -1;
    l->spread(query, n_bytes, spread);
    if (!p->tree) {
        int64_t end = blocks_of(p->n);
        while ((block = l->next_near(p->blocks, block, end, spread, n_bytes, radius + 1, far, &mask)) < end) {
            mask &= there(p->alive, p->n, block);
            if (n + LANES > capacity) {
                n += __builtin_popcountll(mask);
            } else {
                for (; mask; mask &= mask - 1) {
                    int lane = __builtin_ctzll(mask);
                    distances[n] = far[lane];
                    ids[n++] = id_at(p, block * LANES + lane);
                }
            }
            block++;
        }
        free(spread);
        return n;
    }
    const tree *t = p->tree;
    int64_t n_blocks = blocks_of(t->n_distinct), n_groups = blocks_of(n_blocks);
    for (int64_t group = 0; group < n_groups; group++) {
        int64_t top = group / LANES;
        if (group % LANES == 0)
            l->bounds(t->top_values + top * size, t->top_masks + top * size, query, n_bytes, radius, tops);
        if (tops[group % LANES] > radius) continue;
        uint64_t near = l->bounds(t->values + group * size, t->masks + group * size, query, n_bytes, radius, bounds);
        for (near &= there(NULL, n_blocks, group); near; near &= near - 1) {
            block = group * LANES + __builtin_ctzll(near);
            if (l->next_near(t->blocks, block, block + 1, spread, n_bytes, radius + 1, far, &mask) > block) continue;
            for (mask &= there(NULL, t->n_distinct, block); mask; mask &= mask - 1) {
                int lane = __builtin_ctzll(mask);
                int64_t code = block * LANES + lane, weight = weight_of(t, code);
                if (n + weight > capacity) {
                    n += weight;
                    continue;
                }
                for (uint32_t j = t->starts[code]; j < t->starts[code + 1]; j++) {
                    if (!is_alive(p, t->places[j])) continue;
                    distances[n] = far[lane];
                    ids[n++] = id_at(p, t->places[j]);
                }
            }
        }
    }
    free(spread);
    return n;
}

/* How many codes of these blocks of a part are at each distance, added to counts (n_bits + 1). */
EXPORT int64_t hashlens_histogram(
    int number, const part *p, int64_t block, int64_t end, const uint8_t *query, int n_bytes, int n_bits,
    int64_t *counts) {
    const level *l = LEVELS + number;
    uint16_t distances[LANES];
    uint64_t mask;
    uint8_t *spread = aligned_alloc(64, (size_t)n_bytes * LANES);
    int64_t *lanes = calloc(4 * (n_bits + 2), 8); /* so that neighbours seldom wait for each other's count */
    if (spread && lanes) {
        l->spread(query, n_bytes, spread);
        for (; block < end; block++) {
            l->next_near(p->blocks, block, block + 1, spread, n_bytes, n_bits + 1, distances, &mask);
            mask = there(p->alive, p->n, block);
            if (mask == ~0ULL)
                for (int lane = 0; lane < LANES; lane++) lanes[4 * distances[lane] + lane % 4]++;
            else
                for (; mask; mask &= mask - 1) lanes[4 * distances[__builtin_ctzll(mask)]]++;
        }
        for (int d = 0; d <= n_bits; d++)
            counts[d] += lanes[4 * d] + lanes[4 * d + 1] + lanes[4 * d + 2] + lanes[4 * d + 3];
    }
    int64_t done = spread && lanes ? 0 : -1;
    free(spread), free(lanes);
    return done;
}

/* A bit for each code that shares a label with a query; labels are (words, blocks * 64). Returns how many do. */
static int64_t share_label(
    const uint64_t *own, const uint64_t *labels, int label_words, int label_sets, int64_t n, uint64_t *relevant) {
    int64_t padded = blocks_of(n) * LANES, n_relevant = 0;
    for (int64_t block = 0; block * LANES < n; block++) {
        const uint64_t *theirs = labels + block * LANES;
        uint64_t mask = 0;
        for (int lane = 0; lane < LANES; lane++) {
            uint64_t common = label_sets ? 0 : theirs[lane] == own[0];
            for (int w = 0; w < (label_sets ? label_words : 0); w++) common |= theirs[w * padded + lane] & own[w];
            mask |= (uint64_t)(common != 0) << lane;
        }
        relevant[block] = mask & there(NULL, n, block);
        n_relevant += __builtin_popcountll(relevant[block]);
    }
    return n_relevant;
}

/* What a ranking of n codes by (distance, place) is worth to each query; see count_by_distance in codes/hamming.py.
 * One pass over the codes: of an item that is relevant it is noted how many items, and how many relevant ones, are at its
 * distance up to it. Its place in the ranking is that, after the items at lower distances. Neighbouring queries with the
 * same labels are faster. */
EXPORT int64_t hashlens_rank(
    int number, const uint8_t *blocks, int64_t n, const uint8_t *queries, int64_t n_queries, int n_bytes, int n_bits,
    const uint64_t *query_labels, const uint64_t *labels, /* (n_queries, words) and (words, blocks * 64) */
    int64_t label_words, int label_sets, const int64_t *cutoffs, int64_t n_cutoffs, int64_t topk, int64_t *items,
    int64_t *hits, int64_t *found, double *precision_sum) {
    const level *l = LEVELS + number;
    int64_t n_levels = n_bits + 1, n_relevant = 0, done = -1;
    uint8_t *spread = aligned_alloc(64, (size_t)n_bytes * LANES);
    uint32_t *counts = malloc(4 * 2 * n_levels);
    uint64_t *relevant = malloc(8 * blocks_of(n) + 8), *noted = malloc(8 * n + 8);
    uint64_t *offsets = malloc(8 * n_levels), *hit = malloc(8 * n_levels);
    uint16_t *at = malloc(2 * n + 2);
    int32_t *places = malloc(4 * n + 4);
    if (!spread || !counts || !relevant || !noted || !offsets || !hit || !at || !places) goto end;
    for (int64_t q = 0; q < n_queries; q++) {
        const uint64_t *own = query_labels + q * label_words;
        if (!q || memcmp(own, own - label_words, 8 * label_words))
            n_relevant = share_label(own, labels, (int)label_words, label_sets, n, relevant);
        l->spread(queries + q * n_bytes, n_bytes, spread);
        memset(counts, 0, 4 * 2 * n_levels), memset(hit, 0, 8 * n_levels);
        l->tally(blocks, n, spread, n_bytes, n_bits, relevant, n_relevant, counts, hit, noted, at);
        uint64_t before = 0; /* at lower distances: items (low half) and relevant items (high half) */
        for (int64_t d = 0; d < n_levels; d++) {
            hit[d] += counts[d] + counts[n_levels + d];
            items[q * n_levels + d] = (int64_t)(hit[d] & 0xFFFFFFFF);
            hits[q * n_levels + d] = (int64_t)(hit[d] >> 32);
            offsets[d] = before;
            before += hit[d];
        }
        precision_sum[q] = l->add_up(noted, at, n_relevant, offsets, (int32_t)smaller(topk, n), places);
        for (int64_t c = 0, low = 0; c < n_cutoffs; c++) {
            for (int64_t high = n_relevant; low < high;) {
                int64_t middle = (low + high) / 2;
                if (places[middle] <= cutoffs[c]) low = middle + 1;
                else high = middle;
            }
            found[q * n_cutoffs + c] = low;
        }
    }
    done = 0;
end:
    free(spread), free(counts), free(relevant), free(noted), free(offsets), free(hit), free(at), free(places);
    return done;
}

/* Multi-index hashing (radius.py): how many codes are found within the radius and, as far as there is room, their
 * distances and places. A piece is 16 bits, two bytes of a code. */
EXPORT int64_t hashlens_look_up(
    const part *p, const uint8_t *query, int n_bytes, int radius, const int32_t *radii, int n_pieces,
    const uint16_t *masks, const int64_t *ends, const uint32_t *starts, const uint32_t *places, int64_t capacity,
    uint16_t *distances, int64_t *ids) {
    int64_t n = 0, size = (int64_t)n_bytes * LANES;
    for (int piece = 0; piece < n_pieces; piece++) {
        if (radii[piece] < 0) continue;
        uint16_t own = (uint16_t)(query[2 * piece] | (2 * piece + 1 < n_bytes ? query[2 * piece + 1] << 8 : 0));
        const uint32_t *from = starts + (int64_t)piece * 65537, *there_are = places + piece * p->n;
        for (int64_t m = 0; m < ends[radii[piece]]; m++) {
            uint16_t value = own ^ masks[m];
            for (uint32_t j = from[value]; j < from[value + 1]; j++) {
                int64_t place = there_are[j];
                const uint8_t *code = p->blocks + place / LANES * size + place % LANES;
                int distance = 0, found_before = 0; /* by the table of an earlier piece */
                for (int other = 0; other < n_pieces; other++) {
                    int differing = __builtin_popcount((unsigned)(query[2 * other] ^ code[2 * other * LANES]));
                    if (2 * other + 1 < n_bytes)
                        differing +=
                            __builtin_popcount((unsigned)(query[2 * other + 1] ^ code[(2 * other + 1) * LANES]));
                    distance += differing;
                    found_before |= other < piece && differing <= radii[other];
                }
                if (distance > radius || found_before || !is_alive(p, place)) continue;
                if (n < capacity) {
                    distances[n] = (uint16_t)distance;
                    ids[n] = id_at(p, place);
                }
                n++;
            }
        }
    }
    return n;
}

/* ---- building a tree */

/* groups[j] becomes the number of code j (rows of n_words words) among the distinct ones, firsts[g] where group g has
 * its first code; returns how many there are. */
EXPORT int64_t hashlens_group(const uint64_t *codes, int64_t n, int64_t n_words, uint32_t *groups, uint32_t *firsts) {
    int64_t size = 1024, n_groups = 0;
    while (size < 2 * n) size *= 2;
    uint32_t *table = malloc(4 * size); /* of groups, by open addressing */
    if (!table) return -1;
    memset(table, 255, 4 * size);
    for (int64_t j = 0; j < n; j++) {
        const uint64_t *own = codes + j * n_words;
        uint64_t hash = 0;
        for (int64_t w = 0; w < n_words; w++) hash = (hash ^ own[w]) * 0x9E3779B97F4A7C15ULL, hash ^= hash >> 32;
        int64_t slot = (int64_t)(hash & (uint64_t)(size - 1));
        while (table[slot] != UINT32_MAX && memcmp(codes + firsts[table[slot]] * n_words, own, 8 * n_words))
            slot = (slot + 1) & (size - 1);
        if (table[slot] == UINT32_MAX) {
            firsts[n_groups] = (uint32_t)j;
            table[slot] = (uint32_t)n_groups++;
        }
        groups[j] = table[slot];
    }
    free(table);
    return n_groups;
}

#define SAMPLE 512 /* codes that say which bit is balanced best */

/* Put codes that share bits side by side: split by the most balanced bit until a block is left. `order` moves along. */
static void split(uint64_t *codes, int64_t n_words, uint32_t *order, int64_t n, uint32_t *ones) {
    while (n > LANES) {
        int64_t step = n > SAMPLE ? n / SAMPLE : 1, n_read = 0, best = -1, balance = 0;
        memset(ones, 0, 4 * 64 * n_words);
        for (int64_t i = 0; i < n; i += step, n_read++)
            for (int64_t w = 0; w < n_words; w++)
                for (uint64_t left = codes[i * n_words + w]; left; left &= left - 1)
                    ones[64 * w + __builtin_ctzll(left)]++;
        for (int64_t bit = 0; bit < 64 * n_words; bit++) {
            int64_t fewer = smaller(ones[bit], n_read - ones[bit]);
            if (fewer > balance) balance = fewer, best = bit;
        }
        if (best < 0) return; /* the sample has one code only, and codes are distinct: rare, and only less tidy */
        int64_t low = 0, high = n - 1;
        while (low <= high) {
            if (!(codes[low * n_words + best / 64] >> (best % 64) & 1)) {
                low++;
                continue;
            }
            for (int64_t w = 0; w < n_words; w++) {
                uint64_t other = codes[low * n_words + w];
                codes[low * n_words + w] = codes[high * n_words + w];
                codes[high * n_words + w] = other;
            }
            uint32_t other = order[low];
            order[low] = order[high];
            order[high--] = other;
        }
        split(codes, n_words, order, low, ones);
        codes += low * n_words, order += low, n -= low;
    }
}

EXPORT int64_t hashlens_arrange(uint64_t *codes, int64_t n, int64_t n_words, uint32_t *order) {
    uint32_t *ones = malloc(4 * 64 * n_words);
    if (!ones) return -1;
    split(codes, n_words, order, n, ones);
    free(ones);
    return 0;
}

/* ---- images

 * Rows of pixels of four bytes (red, green, blue, anything), scaled as Pillow does it: first across, rounded to bytes,
 * then down. The weights are Pillow's own, in its fixed point, so that every byte is the same. */
EXPORT int64_t hashlens_across(
    int number, const uint8_t *pixels, int64_t n_rows, int64_t width, const int32_t *first, const int32_t *weights,
    int64_t n_taps, int64_t size, uint8_t *out, int64_t out_width) {
    LEVELS[number].across(pixels, n_rows, width, first, weights, n_taps, size, out, out_width);
    return 0;
}

EXPORT int64_t hashlens_down(
    int number, const uint8_t *rows, int64_t n_bytes, const int32_t *first, const int32_t *weights, int64_t n_taps,
    int64_t size, uint8_t *out) {
    uint8_t *row = malloc((size_t)n_bytes);
    if (!row) return -1;
    LEVELS[number].down(rows, n_bytes, first, weights, n_taps, size, row, out);
    free(row);
    return 0;
}
