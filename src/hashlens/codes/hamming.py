"""Codes in, Hamming distances out: the bit count and the loop that all exact distances between few codes come from.

Codes are laid out word by word, (n_words, n), so that the innermost loop runs along the database and the compiler turns
it into vector instructions for any code length. The loops hold no lock; threads take blocks of queries.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hashlens.codes import Codes
from hashlens.errors import MismatchError, UsageError
from hashlens.machine import blocks, in_threads

BLOCK = 64  # queries a thread takes at once
MAX_BITS = 2**15 - 1  # twice a distance, plus one, must fit in uint16


def distances(a: Codes, b: Codes) -> np.ndarray:
    """(len(a), len(b)) uint16 Hamming distances."""
    require_same_bits(a, b)
    result = np.empty((len(a), len(b)), np.uint16)
    query, database = a.words(), by_word(b)
    in_threads(lambda rows: _distances(query[rows], database, result[rows]), blocks(len(a), BLOCK))
    return result


def require_same_bits(a: Codes, b: Codes) -> None:
    if a.n_bits != b.n_bits:
        raise MismatchError(f"codes of {a.n_bits} and of {b.n_bits} bits have no distance; encode both with one model")
    if a.n_bits > MAX_BITS:
        raise UsageError(f"codes have {a.n_bits} bits; distances are counted for at most {MAX_BITS}")


def by_word(codes: Codes) -> np.ndarray:
    """(n_words, n) uint64: the layout the loops read."""
    return np.ascontiguousarray(codes.words().T)


@njit(inline="always")
def popcount(word: np.uint64) -> np.uint64:
    # LLVM knows this form and emits its bit count, vectorised; measured against the intrinsic: no difference
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@njit(nogil=True, cache=True)
def distances_to(query: np.ndarray, database: np.ndarray, out: np.ndarray) -> None:
    word = query[0]
    for j in range(database.shape[1]):
        out[j] = popcount(word ^ database[0, j])
    for w in range(1, len(query)):
        word = query[w]
        for j in range(database.shape[1]):
            out[j] += popcount(word ^ database[w, j])


@njit(nogil=True, cache=True)
def _distances(query: np.ndarray, database: np.ndarray, result: np.ndarray) -> None:
    for i in range(len(query)):
        distances_to(query[i], database, result[i])
