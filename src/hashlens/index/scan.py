"""Exact search: query codes and a database in, its nearest codes out, ordered by (distance, place); the compiled loops.

A database is an array (n_words, n) of uint64, as `hamming.by_word` makes it, or a memory map of such an array. It is
read once, in order and in small runs. For most runs all that is found out is that no code in it is near enough, which
takes a few vector instructions for four codes; only the others are looked at code by code. For many queries, tiles of
the database are first turned so that the bytes of a code stand apart: then a vector instruction counts the bits of 32
codes, and none is spent on the unused bits of a word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hashlens.hamming import _popcount

# codes looked at together: with more, each near one costs much; with fewer, the loop itself does
RUN = 128
TILE = 16_384  # codes that stay in the cache while all queries of a block pass over them
NOTHING = np.empty(0, np.bool_)  # as `alive`: everything is
MANY = 16  # queries from which on turning a tile pays
TURNED_BITS = 127  # of the longest code that is turned: a distance less a limit must fit in a signed byte


def _count_differing_bits(typing: Any, a: Any, b: Any) -> Any:
    """How many bits of two bytes differ. Numba's own count is one of 64 bits, with vectors of an eighth as many."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = ir.IntType(8)
        count = builder.module.declare_intrinsic("llvm.ctpop", [byte])
        return builder.call(count, [builder.xor(*arguments)])

    return types.uint8(types.uint8, types.uint8), generate


_differing_bits: Any = intrinsic(_count_differing_bits)


@njit(nogil=True, cache=True)
def _turn(database: np.ndarray, start: int, stop: int, planes: np.ndarray) -> None:
    """planes[b, j] becomes byte b of code start + j."""
    for b in range(len(planes)):
        words, shift, plane = database[b // 8][start:stop], np.uint64(8 * (b % 8)), planes[b]
        for j in range(len(words)):
            plane[j] = np.uint8(words[j] >> shift)


@njit(nogil=True, cache=True)
def _any_below_turned(
    query: np.ndarray, planes: np.ndarray, start: int, stop: int, limit: int, far: np.ndarray
) -> bool:
    """As `_any_below`, for planes (n_bytes, n) and the bytes of a query; `far` is room for a run."""
    far = far[: stop - start]
    first, byte = planes[0][start:stop], query[0]
    for j in range(len(far)):
        far[j] = _differing_bits(first[j], byte)
    for b in range(1, len(query) - 1, 2):
        one, two, byte, second = planes[b][start:stop], planes[b + 1][start:stop], query[b], query[b + 1]
        for j in range(len(far)):
            far[j] += _differing_bits(one[j], byte) + _differing_bits(two[j], second)
    if len(query) % 2 == 0:
        last, byte = planes[len(query) - 1][start:stop], query[len(query) - 1]
        for j in range(len(far)):
            far[j] += _differing_bits(last[j], byte)
    found, less = np.uint8(0), np.uint8(limit)
    for j in range(len(far)):
        found |= far[j] - less
    return bool(found & np.uint8(128))


@njit(nogil=True, cache=True)
def _any_below(query: np.ndarray, database: np.ndarray, start: int, stop: int, limit: int) -> bool:
    """Whether a code of database[:, start:stop] is nearer than `limit`: the sign bit of (distance - limit), or-ed."""
    found = np.int64(0)
    if len(query) == 1:
        word, codes = query[0], database[0][start:stop]  # a slice, so that no index can be negative
        for j in range(len(codes)):
            found |= np.int64(_popcount(word ^ codes[j])) - limit
    elif len(query) == 2:
        word, second, codes, more = query[0], query[1], database[0][start:stop], database[1][start:stop]
        for j in range(len(codes)):
            found |= np.int64(_popcount(word ^ codes[j]) + _popcount(second ^ more[j])) - limit
    else:
        for j in range(start, stop):
            found |= _distance(query, database, j) - limit
    return bool(found < 0)


@njit(nogil=True, cache=True, inline="always")
def _distance(query: np.ndarray, database: np.ndarray, j: int) -> int:
    distance = np.uint64(0)
    for w in range(len(query)):
        distance += _popcount(query[w] ^ database[w, j])
    return np.int64(distance)  # type: ignore[return-value]  # compiled


@njit(nogil=True, cache=True)
def nearest(
    queries: np.ndarray,  # (q, n_words) uint64
    database: np.ndarray,  # (n_words, n) uint64
    begin: int,
    end: int,  # only database[:, begin:end] is searched
    alive: np.ndarray,  # (end - begin,) bool, or empty: all
    first: int,  # the place of database[:, begin]; what was kept before has lower places
    k: int,
    counts: np.ndarray,  # (q, n_bits + 1) int64: how many of the kept are at each distance; zeros at the start
    kept: np.ndarray,  # (q, room, 2) int64: distance and place of codes that may be among the nearest k; room > k
    n_kept: np.ndarray,  # (q,) int64
) -> None:
    """Bring what is kept for each query up to date with one more part of the database.

    A code as far as the k-th nearest so far is not better, since its place is higher.
    """
    limits = np.empty(len(queries), np.int64)  # nearer than this is good enough
    for i in range(len(queries)):
        limits[i] = _kth(counts[i], k)
    n_bits = counts.shape[1] - 1
    turned = len(queries) >= MANY and n_bits <= TURNED_BITS
    query_bytes = np.empty((len(queries), (n_bits + 7) // 8), np.uint8)
    for b in range(query_bytes.shape[1]):
        for i in range(len(queries)):
            query_bytes[i, b] = np.uint8(queries[i, b // 8] >> np.uint64(8 * (b % 8)))
    planes = np.empty((query_bytes.shape[1], TILE if turned else 0), np.uint8)
    far = np.empty(RUN, np.uint8)
    for tile in range(begin, end, TILE):
        tile_end = min(tile + TILE, end)
        if turned:
            _turn(database, tile, tile_end, planes)
        for i in range(len(queries)):
            query = queries[i]
            for start in range(tile, tile_end, RUN):
                stop = min(start + RUN, tile_end)
                if turned:
                    near = _any_below_turned(query_bytes[i], planes, start - tile, stop - tile, limits[i], far)
                else:
                    near = _any_below(query, database, start, stop, limits[i])
                if not near:
                    continue
                for j in range(start, stop):
                    distance = _distance(query, database, j)
                    if distance >= limits[i] or (len(alive) > 0 and not alive[j - begin]):
                        continue
                    if n_kept[i] == kept.shape[1]:
                        n_kept[i] = keep_nearest(kept[i], counts[i], k)
                    kept[i, n_kept[i], 0] = distance
                    kept[i, n_kept[i], 1] = first + j - begin
                    n_kept[i] += 1
                    counts[i, distance] += 1
                    limits[i] = _kth(counts[i], k)


@njit(nogil=True, cache=True)
def _kth(counts: np.ndarray, k: int) -> int:
    """The distance of the k-th nearest of the kept, or more than any distance while there are fewer than k."""
    so_far = 0
    for distance in range(len(counts)):
        so_far += counts[distance]
        if so_far >= k:
            return distance
    return len(counts)


@njit(nogil=True, cache=True)
def keep_nearest(kept: np.ndarray, counts: np.ndarray, k: int) -> int:
    """Move the nearest k of the kept to the front, in the order of their places, and forget the others."""
    worst = _kth(counts, k)
    room = k  # for those at the worst distance
    for distance in range(min(worst, len(counts))):
        room -= counts[distance]
    n = 0
    for i in range(counts.sum()):
        distance = kept[i, 0]
        if distance < worst or (distance == worst and room > 0):
            room -= distance == worst
            kept[n, 0] = distance
            kept[n, 1] = kept[i, 1]
            n += 1
    counts[worst:] = 0
    for i in range(n):
        if kept[i, 0] == worst:
            counts[worst] += 1
    return n


@njit(nogil=True, cache=True)
def count_within(query: np.ndarray, database: np.ndarray, alive: np.ndarray, radius: int) -> int:
    """How many codes are at most `radius` away; `query` is (n_words,)."""
    found = 0
    for start in range(0, database.shape[1], RUN):
        stop = min(start + RUN, database.shape[1])
        if _any_below(query, database, start, stop, radius + 1):
            for j in range(start, stop):
                found += _distance(query, database, j) <= radius and (len(alive) == 0 or alive[j])
    return found


@njit(nogil=True, cache=True)
def fill_within(
    query: np.ndarray, database: np.ndarray, alive: np.ndarray, radius: int, distances: np.ndarray, places: np.ndarray
) -> None:
    """Distances and places, in the order of places, of as many codes as `count_within` counted."""
    found = 0
    for start in range(0, database.shape[1], RUN):
        stop = min(start + RUN, database.shape[1])
        if _any_below(query, database, start, stop, radius + 1):
            for j in range(start, stop):
                distance = _distance(query, database, j)
                if distance <= radius and (len(alive) == 0 or alive[j]):
                    distances[found] = distance
                    places[found] = j
                    found += 1
