"""Multi-index hashing: codes in, tables out that find everything within a small radius without reading all codes.

M. Norouzi, A. Punjani, D. Fleet, "Fast Search in Hamming Space with Multi-Index Hashing", CVPR 2012. Codes are cut into
m pieces of 16 bits, each with a table from its value to the codes that have it. If two codes are at most r bits apart,
then one of the first (r mod m) + 1 pieces is at most r // m bits apart, or one of the others at most r // m - 1.
"""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np
from numba import njit

from hashlens.codes.hamming import popcount
from hashlens.index.kernels import PIECE

# measured at 48 and 128 bits, in codes that a scan reads in the same time
LOOK_UP = 200  # of one code
START = 60_000  # of a query
_NONE = np.empty(0, np.int64)


class Tables(NamedTuple):
    """For each piece, the places of all codes in the order of their values there."""

    starts: np.ndarray  # (n_pieces, 65,537) uint32: where the places of each value start
    places: np.ndarray  # (n_pieces, n) uint32

    @classmethod
    def build(cls, pieces: np.ndarray) -> Tables:
        n_pieces, n = pieces.shape
        starts, places = np.zeros((n_pieces, (1 << PIECE) + 1), np.uint32), np.empty((n_pieces, n), np.uint32)
        for piece in range(n_pieces):
            _sort_by_value(pieces[piece], starts[piece], places[piece])
        return cls(starts, places)

    def within(
        self, query: np.ndarray, pieces: np.ndarray, alive: np.ndarray, radius: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances and places of the codes at most `radius` away, by place."""
        radii = _radii(len(pieces), radius)
        masks, ends = _masks(int(radii.max()))
        given = query, pieces, alive, radius, radii, masks, ends, self.starts, self.places
        n = _look_up(*given, _NONE, _NONE)
        distances, places = np.empty(n, np.int64), np.empty(n, np.int64)
        _look_up(*given, distances, places)
        order = np.argsort(places)
        return distances[order].astype(np.int32), places[order]


def table_bytes(n: int, n_bits: int) -> int:
    return -(-n_bits // PIECE) * 4 * (n + (1 << PIECE) + 1)


def is_cheaper(n: int, n_pieces: int, radius: int) -> bool:
    """Whether tables answer sooner than reading all n codes, if values are evenly spread."""
    n_values = sum(comb(PIECE, bits) for r in _radii(n_pieces, radius) for bits in range(r + 1))
    return START + LOOK_UP * n_values * (1 + n / (1 << PIECE)) < n


def _radii(n_pieces: int, radius: int) -> np.ndarray:
    """How far each piece is looked around; -1 where it need not be."""
    whole, rest = divmod(radius, n_pieces)
    return np.array([whole if piece <= rest else whole - 1 for piece in range(n_pieces)])


def _masks(most: int) -> tuple[np.ndarray, np.ndarray]:
    """All values of a piece with at most `most` bits, fewer bits first, and how many have at most 0, 1, … bits."""
    masks = [sum(1 << bit for bit in bits) for n in range(most + 1) for bits in combinations(range(PIECE), n)]
    return np.array(masks, np.int64), np.cumsum([comb(PIECE, n) for n in range(most + 1)])


@njit(nogil=True, cache=True)
def _sort_by_value(values: np.ndarray, starts: np.ndarray, places: np.ndarray) -> None:
    for value in values:
        starts[np.int64(value) + 1] += 1
    for value in range(1, len(starts)):
        starts[value] += starts[value - 1]
    following = starts.copy()
    for j in range(len(values)):
        places[following[values[j]]] = j
        following[values[j]] += 1


@njit(nogil=True, cache=True)
def _look_up(
    query: np.ndarray,  # (n_pieces,) uint16
    pieces: np.ndarray,  # (n_pieces, n) uint16
    alive: np.ndarray,  # (n,) bool, or empty: all
    radius: int,
    radii: np.ndarray,  # (n_pieces,) of each piece, -1: not looked up
    masks: np.ndarray,  # values to combine with a piece of the query, fewer bits first
    ends: np.ndarray,  # how many masks have at most 0, 1, … bits
    starts: np.ndarray,
    places: np.ndarray,
    out_distances: np.ndarray,
    out_places: np.ndarray,
) -> int:
    """Count the codes within the radius and, where there is room, write down their distances and places."""
    n = 0
    for piece in range(len(radii)):
        if radii[piece] < 0:
            continue
        for mask in masks[: ends[radii[piece]]]:
            value = np.int64(query[piece]) ^ mask
            for place in places[piece, starts[piece, value] : starts[piece, value + 1]]:
                distance, found_before = np.int64(0), False  # by the table of an earlier piece
                for other in range(len(query)):
                    differing = np.int64(popcount(np.uint64(query[other] ^ pieces[other, place])))
                    distance += differing
                    found_before |= other < piece and differing <= radii[other]
                if distance > radius or found_before or (len(alive) > 0 and not alive[place]):
                    continue
                if len(out_places) > 0:
                    out_distances[n] = distance
                    out_places[n] = place
                n += 1
    return n
