"""Exact search: query codes and a database in, its nearest codes out, ordered by (distance, place); the compiled loops.

A database is an array (n_pieces, n) of uint16, piece by piece of `Codes.pieces`, or a memory map of such an array. It
is read once, in order and in small runs. For most runs all that is found out is that no code in it is near enough,
which takes a few vector instructions for 16 codes (pieces.py where the machine has them, else numba's); only the others
are looked at code by code. For many queries, where the machine can (nibbles.py), tiles of the database are first turned
so that a few instructions do for 32 codes.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hashlens.index import nibbles
from hashlens.index.nibbles import RUN
from hashlens.index.pieces import distances_of, smallest

TILE = 16_384  # codes that stay in the cache while all queries of a block pass over them
NOTHING = np.empty(0, np.bool_)  # as `alive`: everything is
MANY = 16  # queries from which on it pays to turn a tile into nibbles


@njit(nogil=True, cache=True)
def _next_near(query: np.ndarray, database: np.ndarray, start: int, end: int, limit: int) -> int:
    """Where the next run begins that has a code nearer than `limit`, or that is not whole; `end` if there is none."""
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
    distances = np.empty(RUN, np.uint16)
    for tile in range(begin, end, TILE):
        tile_end = min(tile + TILE, end)
        if turned:
            nibbles.turn(database, tile, planes[: (tile_end - tile) // RUN])
        for i in range(len(queries)):
            query = queries[i]
            start = tile
            while True:
                if turned:
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
                        n_kept[i] = keep_nearest(kept[i], counts[i], k)
                    kept[i, n_kept[i], 0] = distance
                    kept[i, n_kept[i], 1] = first + j - begin
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
