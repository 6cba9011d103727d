"""Exact search: query codes and a database in, its nearest codes out, ordered by (distance, place).

A database is an array (n_pieces, n) of uint16, piece by piece of `Codes.pieces`, or a memory map of one. It is read
once, in order and in short runs. Most runs have no code near enough, which a few vector instructions per 16 codes show
(pieces.py where the machine has them, else numba's); only the others are examined code by code. For many queries, where
the machine can (nibbles.py), tiles of the database are first transposed, so that a few instructions serve 32 codes.
"""

import numpy as np
from numba import njit

from hashlens.index.kernels import nibbles
from hashlens.index.kernels.nibbles import RUN
from hashlens.index.kernels.pieces import distances_of, smallest

TILE = 16_384  # codes that stay in the cache while all queries of a block pass over them
NOTHING = np.empty(0, np.bool_)  # as `alive`: all of them
MANY = 16  # queries for which transposing a tile into nibbles pays off
COUNTED = 4_096  # distances that stay in the cache between being computed and being counted
LANES = 4  # counters per distance, so that neighbours seldom wait for each other's count
SHIFT = 48  # of the distance in what is kept: one number, ordered by (distance, place)


@njit(nogil=True, cache=True)
def _next_near(query: np.ndarray, database: np.ndarray, start: int, end: int, limit: int) -> int:
    """Where the next run begins that has a code nearer than `limit` or is incomplete; `end` if there is none."""
    while start + RUN <= end and smallest(database, start, query) >= limit:
        start += RUN
    return start


@njit(nogil=True, cache=True)
def nearest(
    queries: np.ndarray,  # (q, n_pieces) uint16
    database: np.ndarray,  # (n_pieces, n) uint16
    begin: int,
    end: int,  # only database[:, begin:end] is searched
    alive: np.ndarray,  # (end - begin,) bool, or empty: all
    first: int,  # the place of database[:, begin]; what was kept before has lower places
    k: int,
    counts: np.ndarray,  # (q, n_bits + 1) int64: how many of the kept are at each distance; zeros at the start
    kept: np.ndarray,  # (q, room) int64: distance << SHIFT | place of codes that may be among the nearest k; room > k
    n_kept: np.ndarray,  # (q,) int64
) -> None:
    """Update what is kept for each query with one more part of the database.

    A code as far as the k-th nearest so far is not better, since its place is higher.
    """
    limits = np.empty(len(queries), np.int64)  # nearer than this is good enough
    for i in range(len(queries)):
        limits[i] = _kth(counts[i], k)
    n_bits = counts.shape[1] - 1
    transposed = nibbles.AVAILABLE and len(queries) >= MANY and n_bits <= nibbles.LONGEST
    n_nibbles = 2 * ((n_bits + 7) // 8)
    planes = np.empty((TILE // RUN if transposed else 0, n_nibbles, RUN), np.uint8)
    tables = np.empty((len(queries) if transposed else 0, n_nibbles, 16), np.uint8)
    nibbles.look_ups(queries, tables)
    distances = np.empty(RUN, np.uint16)
    for tile in range(begin, end, TILE):
        tile_end = min(tile + TILE, end)
        if transposed:
            nibbles.transpose(database, tile, planes[: (tile_end - tile) // RUN])
        for i in range(len(queries)):
            query = queries[i]
            start = tile
            while True:
                if transposed:
                    while start + RUN <= tile_end and not nibbles.any_below(
                        planes, (start - tile) // RUN, tables, i, limits[i]
                    ):
                        start += RUN
                else:
                    start = _next_near(query, database, start, tile_end, limits[i])
                if start >= tile_end:
                    break
                stop = min(start + RUN, tile_end)
                distances_of(query, database, start, stop, distances)
                for j in range(start, stop):
                    distance = np.int64(distances[j - start])
                    if distance >= limits[i] or (len(alive) > 0 and not alive[j - begin]):
                        continue
                    if n_kept[i] == kept.shape[1]:
                        n_kept[i] = _keep_nearest(kept[i], counts[i], k)
                    kept[i, n_kept[i]] = distance << SHIFT | (first + j - begin)
                    n_kept[i] += 1
                    counts[i, distance] += 1
                    limits[i] = _kth(counts[i], k)
                start = stop


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
def _keep_nearest(kept: np.ndarray, counts: np.ndarray, k: int) -> int:
    """Move the nearest k of the kept, which are in the order of their places, to the front and forget the others."""
    worst = _kth(counts, k)
    room = k  # for those at the worst distance
    for distance in range(min(worst, len(counts))):
        room -= counts[distance]
    n = 0
    counts[worst:] = 0
    for i in range(len(kept)):
        distance = kept[i] >> SHIFT
        if distance < worst or (distance == worst and room > 0):
            if distance == worst:
                room -= 1
                counts[worst] += 1
            kept[n] = kept[i]
            n += 1
    return n


@njit(nogil=True, cache=True)
def within(
    query: np.ndarray,  # (n_pieces,) uint16
    database: np.ndarray,
    alive: np.ndarray,
    radius: int,
    found_distances: np.ndarray,
    found_places: np.ndarray,
) -> int:
    """How many codes are at most `radius` away; where there is room, their distances and places, by place."""
    n, end, distances = 0, database.shape[1], np.empty(RUN, np.uint16)
    start = _next_near(query, database, 0, end, radius + 1)
    while start < end:
        stop = min(start + RUN, end)
        distances_of(query, database, start, stop, distances)
        for j in range(stop - start):
            if distances[j] <= radius and (len(alive) == 0 or alive[start + j]):
                if len(found_places) > 0:
                    found_distances[n] = distances[j]
                    found_places[n] = start + j
                n += 1
        start = _next_near(query, database, stop, end, radius + 1)
    return n


@njit(nogil=True, cache=True)
def histogram(
    query: np.ndarray,  # (n_pieces,) uint16
    database: np.ndarray,  # (n_pieces, n) uint16
    begin: int,
    end: int,  # only database[:, begin:end] is counted
    alive: np.ndarray,  # (n,) bool, or empty: all
    counts: np.ndarray,  # (n_bits + 1,) int64, added to
) -> None:
    """How many codes are at each distance."""
    lanes = np.zeros((LANES, len(counts)), np.int64)
    distances = np.empty(COUNTED, np.uint16)
    for start in range(begin, end, COUNTED):
        stop = min(start + COUNTED, end)
        distances_of(query, database, start, stop, distances)
        if len(alive) > 0:
            for j in range(stop - start):
                lanes[j % LANES, distances[j]] += alive[start + j]
        else:
            for j in range(stop - start):
                lanes[j % LANES, distances[j]] += 1
    for lane in range(LANES):
        for distance in range(len(counts)):
            counts[distance] += lanes[lane, distance]
