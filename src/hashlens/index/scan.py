"""Exact search: query codes and a database in, its nearest codes out, ordered by (distance, place); the compiled loops.

A database is an array (n_words, n) of uint64, as `hamming.by_word` makes it, or a memory map of such an array. It is
read once, in order and in small runs. For most runs all that is found out is that no code in it is near enough, which
takes a few vector instructions for four codes (words.py where the machine has them, else numba's); only the others are
looked at code by code. For many queries, where the machine can (nibbles.py), tiles of the database are first turned so
that a few instructions do for 32 codes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hashlens.hamming import _popcount
from hashlens.index import nibbles, words
from hashlens.index.nibbles import RUN

TILE = 16_384  # codes that stay in the cache while all queries of a block pass over them
NOTHING = np.empty(0, np.bool_)  # as `alive`: everything is
MANY = 16  # queries from which on it pays to turn a tile into nibbles


@njit(nogil=True, cache=True)
def _any_below(query: np.ndarray, database: np.ndarray, start: int, stop: int, limit: int) -> bool:
    """Whether a code of database[:, start:stop] is nearer than `limit`: the sign bit of (distance - limit), or-ed."""
    found, first, second = np.int64(0), np.uint64(0), np.uint64(1)  # an index without a sign cannot be negative
    if len(query) == 1:
        word = query[0]
        for j in range(start, stop):
            found |= np.int64(_popcount(word ^ database[first, np.uint64(j)])) - limit
    elif len(query) == 2:
        word, more = query[0], query[1]
        for j in range(start, stop):
            place = np.uint64(j)
            found |= (
                np.int64(_popcount(word ^ database[first, place]) + _popcount(more ^ database[second, place])) - limit
            )
    else:
        for j in range(start, stop):
            found |= _distance(query, database, j) - limit
    return bool(found < 0)


@njit(nogil=True, cache=True, inline="always")
def _near(query: np.ndarray, database: np.ndarray, start: int, stop: int, limit: int) -> bool:
    """The same, in the quickest way."""
    if words.AVAILABLE and stop - start == RUN and len(query) <= words.LONGEST:
        near = words.smallest(database, start, query) < limit
    else:
        near = _any_below(query, database, start, stop, limit)
    return near


@njit(nogil=True, cache=True, inline="always")
def _distance(query: np.ndarray, database: np.ndarray, j: int) -> int:
    distance, place = np.uint64(0), np.uint64(j)
    for w in range(len(query)):
        distance += _popcount(query[w] ^ database[np.uint64(w), place])
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
    turned = nibbles.AVAILABLE and len(queries) >= MANY and n_bits <= nibbles.LONGEST
    n_nibbles = 2 * ((n_bits + 7) // 8)
    planes = np.empty((TILE // RUN if turned else 0, n_nibbles, RUN), np.uint8)
    tables = np.empty((len(queries) if turned else 0, n_nibbles, 16), np.uint8)
    nibbles.look_ups(queries, tables)
    for tile in range(begin, end, TILE):
        tile_end = min(tile + TILE, end)
        if turned:
            nibbles.turn(database, tile, planes[: (tile_end - tile) // RUN])
        for i in range(len(queries)):
            query = queries[i]
            for start in range(tile, tile_end, RUN):
                stop = min(start + RUN, tile_end)
                if turned and stop - start == RUN:
                    near = nibbles.any_below(planes, (start - tile) // RUN, tables, i, limits[i])
                else:
                    near = _near(query, database, start, stop, limits[i])
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
        if _near(query, database, start, stop, radius + 1):
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
        if _near(query, database, start, stop, radius + 1):
            for j in range(start, stop):
                distance = _distance(query, database, j)
                if distance <= radius and (len(alive) == 0 or alive[j]):
                    distances[found] = distance
                    places[found] = j
                    found += 1
