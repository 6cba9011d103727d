"""Multi-index hashing: codes in, tables out that find everything within a small radius without reading all codes.

M. Norouzi, A. Punjani, D. Fleet, "Fast Search in Hamming Space with Multi-Index Hashing", CVPR 2012. Codes are cut into
m pieces of 16 bits, each with a table from its value to the codes that have it. If two codes are at most r bits apart,
then one of the first (r mod m) + 1 pieces is at most r // m bits apart, or one of the others at most r // m - 1.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numba import njit

from hashlens.hamming import _popcount
from hashlens.index.pieces import PIECE  # bits; a table has 65,536 entries


class Tables:
    """For each piece, the places of all codes in the order of their values there."""

    def __init__(self, pieces: np.ndarray):
        self.n_pieces, n = pieces.shape
        self.starts = np.zeros((self.n_pieces, (1 << PIECE) + 1), np.int64)
        self.places = np.empty((self.n_pieces, n), np.uint32)
        for piece in range(self.n_pieces):
            _sort_by_value(pieces[piece], self.starts[piece], self.places[piece])

    def radii(self, radius: int) -> np.ndarray:
        """How far each piece is looked around; -1 where it need not be."""
        whole, rest = divmod(radius, self.n_pieces)
        return np.array([whole if piece <= rest else whole - 1 for piece in range(self.n_pieces)])

    def cost(self, radius: int) -> float:
        """About how many codes are looked at, if values are evenly spread."""
        n_values = sum(comb(PIECE, bits) for r in self.radii(radius) for bits in range(r + 1))
        return n_values * (1 + self.places.shape[1] / (1 << PIECE))

    def within(
        self, query: np.ndarray, pieces: np.ndarray, alive: np.ndarray, radius: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances and places of the codes at most `radius` away, by place."""
        radii = self.radii(radius)
        masks, ends = _masks(int(radii.max()))
        n = _look_up(query, pieces, alive, radius, radii, masks, ends, self.starts, self.places, _NONE, _NONE)
        distances, places = np.empty(n, np.int64), np.empty(n, np.int64)
        _look_up(query, pieces, alive, radius, radii, masks, ends, self.starts, self.places, distances, places)
        order = np.argsort(places)
        return distances[order].astype(np.int32), places[order]


_NONE = np.empty(0, np.int64)


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
    query: np.ndarray,
    pieces: np.ndarray,
    alive: np.ndarray,
    radius: int,
    radii: np.ndarray,
    masks: np.ndarray,
    ends: np.ndarray,
    starts: np.ndarray,
    places: np.ndarray,
    out_distances: np.ndarray,
    out_places: np.ndarray,
) -> int:
    """Count what is found and, where there is room for it, write it down."""
    n = 0
    for piece in range(len(radii)):
        if radii[piece] < 0:
            continue
        own = np.int64(query[piece])
        for mask in masks[: ends[radii[piece]]]:
            value = own ^ mask
            for place in places[piece, starts[piece, value] : starts[piece, value + 1]]:
                distance = _distance(query, pieces, place)
                if distance > radius or (len(alive) > 0 and not alive[place]):
                    continue
                if _found_before(query, pieces, place, piece, radii):
                    continue
                if len(out_places) > 0:
                    out_distances[n] = distance
                    out_places[n] = place
                n += 1
    return n


@njit(nogil=True, cache=True, inline="always")
def _distance(query: np.ndarray, pieces: np.ndarray, place: int) -> int:
    distance = 0
    for piece in range(len(query)):
        distance += _differing(query, pieces, place, piece)
    return distance


@njit(nogil=True, cache=True, inline="always")
def _differing(query: np.ndarray, pieces: np.ndarray, place: int, piece: int) -> int:
    return np.int64(_popcount(np.uint64(query[piece] ^ pieces[piece, place])))  # type: ignore[return-value]  # compiled


@njit(nogil=True, cache=True)
def _found_before(query: np.ndarray, pieces: np.ndarray, place: int, piece: int, radii: np.ndarray) -> bool:
    """Whether an earlier piece has led to this code already."""
    found = False
    for earlier in range(piece):
        found |= _differing(query, pieces, place, earlier) <= radii[earlier]
    return found
