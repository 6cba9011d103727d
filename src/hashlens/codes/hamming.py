"""Codes in, Hamming distances out, or what every score of a ranking is computed from: counts by distance.

Codes are laid out word by word, (n_words, n), so that the innermost loop runs along the database and the compiler turns
it into vector instructions for any code length. The loops release the GIL; threads take blocks of queries.
"""

import numpy as np
from numba import njit

from hashlens.codes import Codes
from hashlens.errors import MismatchError, UsageError
from hashlens.machine import blocks, in_threads

BLOCK = 64  # queries a thread takes at once
MAX_BITS = 2**15 - 1  # twice a distance, plus one, must fit in uint16


def distances(a: Codes, b: Codes) -> np.ndarray:
    """(len(a), len(b)) uint16 Hamming distances between a few codes and others."""
    require_same_bits(a, b)
    return np.bitwise_count(a.words()[:, None] ^ b.words()).sum(axis=2, dtype=np.uint16)


def count_by_distance(
    query: Codes,
    database: Codes,
    query_labels: np.ndarray,  # (q, label_words) uint64
    database_labels: np.ndarray,  # (label_words, n) uint64
    label_sets: bool,
    cutoffs: np.ndarray,  # (c,) ascending
    topk: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What a ranking of the database is worth to each query, without sorting and without a (q, n) matrix.

    Labels are relevant if equal or, with `label_sets`, if they have a bit in common.

    Returns
    -------
    items, hits : (q, n_bits + 1) int64, database items at each distance and the relevant ones among them
    found : (q, c) int64, relevant items among the first `cutoffs`, ties in database order
    precision_sum : (q,) float64, sum of P(i) rel_i over the first `topk`, ties in database order
    """
    require_same_bits(query, database)
    items = np.zeros((len(query), query.n_bits + 1), np.int64)
    hits = np.zeros_like(items)
    found = np.zeros((len(query), len(cutoffs) + 1), np.int64)
    precision_sum = np.zeros(len(query))
    # slot[position] is the first cutoff that includes it; the last slot takes what no cutoff includes
    slot = np.searchsorted(cutoffs, np.arange(len(database)), side="right").astype(np.int32)
    query_words, database_words = query.words(), np.ascontiguousarray(database.words().T)

    def work(rows: slice) -> None:
        _count(
            query_words[rows], database_words, query_labels[rows], database_labels, label_sets,
            slot, topk, items[rows], hits[rows], found[rows], precision_sum[rows],
        )  # fmt: skip

    in_threads(work, blocks(len(query), BLOCK))
    return items, hits, found.cumsum(axis=1)[:, :-1], precision_sum


def require_same_bits(a: Codes, b: Codes) -> None:
    if a.n_bits != b.n_bits:
        raise MismatchError(f"codes of {a.n_bits} and of {b.n_bits} bits have no distance; encode both with one model")
    if a.n_bits > MAX_BITS:
        raise UsageError(f"codes have {a.n_bits} bits; distances are counted for at most {MAX_BITS}")


@njit(inline="always")
def popcount(word: np.uint64) -> np.uint64:
    # LLVM knows this form and emits its bit count, vectorised; measured against the intrinsic: no difference
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@njit(nogil=True, cache=True)
def _distances_to(query: np.ndarray, database: np.ndarray, out: np.ndarray) -> None:
    word = query[0]
    for j in range(database.shape[1]):
        out[j] = popcount(word ^ database[0, j])
    for w in range(1, len(query)):
        word = query[w]
        for j in range(database.shape[1]):
            out[j] += popcount(word ^ database[w, j])


@njit(nogil=True, cache=True)
def _append_relevance(query: np.ndarray, database: np.ndarray, label_sets: bool, key: np.ndarray) -> None:
    """key becomes 2 * key + relevant."""
    if not label_sets:
        for j in range(database.shape[1]):
            key[j] = 2 * key[j] + (query[0] == database[0, j])
        return
    for j in range(database.shape[1]):
        key[j] = 2 * key[j] + ((query[0] & database[0, j]) != 0)
    for w in range(1, len(query)):
        for j in range(database.shape[1]):
            key[j] |= (query[w] & database[w, j]) != 0


@njit(nogil=True, cache=True)
def _count(
    query: np.ndarray,
    database: np.ndarray,
    query_labels: np.ndarray,
    database_labels: np.ndarray,
    label_sets: bool,
    slot: np.ndarray,
    topk: int,
    items: np.ndarray,
    hits: np.ndarray,
    found: np.ndarray,
    precision_sum: np.ndarray,
) -> None:
    n = database.shape[1]
    n_levels = items.shape[1]
    key = np.empty(n, np.uint16)  # 2 * distance + relevant
    histogram = np.empty(2 * n_levels, np.int64)
    # two counts in one word, so that an item costs one load and one store: items (low half) and relevant items (high
    # half) that stand before the next item at this distance
    before = np.empty(n_levels, np.uint64)
    relevant = np.empty(n + 1, np.uint64)  # the same two counts, with itself, for each relevant item
    one, half, low = np.uint64(1), np.uint64(32), np.uint64(0xFFFFFFFF)
    for i in range(len(query)):
        _distances_to(query[i], database, key)
        _append_relevance(query_labels[i], database_labels, label_sets, key)

        histogram[:] = 0
        for j in range(n):
            histogram[key[j]] += 1
        so_far = np.uint64(0)
        for level in range(n_levels):
            items[i, level] = histogram[2 * level] + histogram[2 * level + 1]
            hits[i, level] = histogram[2 * level + 1]
            before[level] = so_far
            so_far += np.uint64(items[i, level]) + (np.uint64(hits[i, level]) << half)

        # the stable order: each item takes the next place of its distance
        n_relevant = np.uint64(0)
        for j in range(n):
            is_relevant = np.uint64(key[j]) & one
            d = np.uint64(key[j]) >> one
            counts = before[d] + one + (is_relevant << half)
            before[d] = counts
            relevant[n_relevant] = counts  # without a branch: an item that is not relevant is overwritten by the next
            n_relevant += is_relevant
        total = 0.0
        for r in range(np.int64(n_relevant)):
            place = np.int64(relevant[r] & low)  # from 1
            found[i, slot[place - 1]] += 1
            if place <= topk:
                total += np.int64(relevant[r] >> half) / place
        precision_sum[i] = total
