"""One code and an index in, the number of codes at each distance from it out: one compiled pass over all codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hashlens.codes import Codes
from hashlens.errors import MismatchError
from hashlens.index import HammingIndex
from hashlens.index.pieces import distances_of
from hashlens.index.scan import NOTHING
from hashlens.threads import in_threads, shares

TILE = 4_096  # distances that stay in the cache between being computed and being counted
LANES = 4  # counters for each distance: neighbours seldom wait for each other's count


def count_distances(index: HammingIndex, code: Codes, *, among: Any = None) -> np.ndarray:
    """(n_bits + 1,) int64: how many codes of the index, or `among` these ids, are 0, 1, … bits from the one code."""
    if code.n_bits != index.n_bits or len(code) != 1:
        raise MismatchError(f"one code of {index.n_bits} bits is counted from, not {len(code)} of {code.n_bits}")
    query = code.pieces()[0]
    ids = None if among is None else np.unique(np.asarray(among, np.int64).ravel())
    tasks = []
    for part in index.parts:
        pieces, alive = part.pieces, part.alive
        if ids is not None:
            pieces, alive = np.ascontiguousarray(pieces[:, part.places(ids)]), NOTHING
        tasks += [(pieces, alive, rows) for rows in shares(pieces.shape[1])]
    counts = np.zeros((len(tasks), index.n_bits + 1), np.int64)

    def work(number: int) -> None:
        pieces, alive, rows = tasks[number]
        _count(query, pieces, rows.start, rows.stop, alive, counts[number])

    in_threads(work, range(len(tasks)))
    return counts.sum(axis=0)


@njit(nogil=True, cache=True)
def _count(
    query: np.ndarray, database: np.ndarray, begin: int, end: int, alive: np.ndarray, counts: np.ndarray
) -> None:
    lanes = np.zeros((LANES, len(counts)), np.int64)
    distances = np.empty(TILE, np.uint16)
    for start in range(begin, end, TILE):
        stop = min(start + TILE, end)
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
