"""Multi-index hashing: codes in, tables out that find everything within a small radius without reading all codes.

M. Norouzi, A. Punjani, D. Fleet, "Fast Search in Hamming Space with Multi-Index Hashing", CVPR 2012. Codes are cut into
m pieces of 16 bits, each with a table from its value to the codes that have it. If two codes are at most r bits apart,
then one of the first (r mod m) + 1 pieces is at most r // m bits apart, or one of the others at most r // m - 1.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from hashlens.kernels import Rows, kernels

PIECE = 16  # bits: two bytes of a code
N_VALUES = 1 << PIECE
# costs, measured at 48 and 128 bits, in codes that a scan reads in the same time
LOOK_UP = 200  # per code looked up
START = 60_000  # per query


class Tables(NamedTuple):
    """For each piece, the positions of all codes, sorted by the value of that piece."""

    starts: np.ndarray  # (n_pieces, 65,537) uint32: where the positions of each value start
    places: np.ndarray  # (n_pieces, n) uint32

    @classmethod
    def build(cls, rows: Rows) -> Tables:
        pieces = n_pieces(rows.blocks.shape[1])
        starts, places = np.zeros((pieces, N_VALUES + 1), np.uint32), np.empty((pieces, len(rows)), np.uint32)
        for piece in range(pieces):
            values = rows.blocks[:, 2 * piece].astype(np.uint16)
            if 2 * piece + 1 < rows.blocks.shape[1]:
                values |= rows.blocks[:, 2 * piece + 1].astype(np.uint16) << 8
            values = values.ravel()[: len(rows)]
            np.cumsum(np.bincount(values, minlength=N_VALUES), out=starts[piece, 1:])
            places[piece] = np.argsort(values, kind="stable")
        return cls(starts, places)

    def within(self, query: np.ndarray, rows: Rows, radius: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances and ids of the codes at most `radius` away."""
        radii = _radii(n_pieces(len(query)), radius)
        return kernels().look_up(rows, query, radius, radii, *_masks(int(radii.max())), self.starts, self.places)


def n_pieces(n_bytes: int) -> int:
    return -(-n_bytes // 2)


def table_bytes(n: int, n_bits: int) -> int:
    return -(-n_bits // PIECE) * 4 * (n + N_VALUES + 1)


def is_cheaper(n: int, n_bytes: int, radius: int) -> bool:
    """Whether tables are faster than reading all n codes, if values are evenly spread."""
    n_values = sum(comb(PIECE, bits) for r in _radii(n_pieces(n_bytes), radius) for bits in range(r + 1))
    return START + LOOK_UP * n_values * (1 + n / N_VALUES) < n


def _radii(pieces: int, radius: int) -> np.ndarray:
    """The search radius in each piece; -1 if the piece can be skipped."""
    whole, rest = divmod(radius, pieces)
    return np.array([whole if piece <= rest else whole - 1 for piece in range(pieces)], np.int32)


@cache
def _masks(most: int) -> tuple[np.ndarray, np.ndarray]:
    """All values of a piece with at most `most` bits, fewer bits first, and how many have at most 0, 1, … bits."""
    masks = [sum(1 << bit for bit in bits) for n in range(most + 1) for bits in combinations(range(PIECE), n)]
    return np.array(masks, np.uint16), np.cumsum([comb(PIECE, n) for n in range(most + 1)])
