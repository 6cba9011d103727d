"""Hamming: codes in, distances out, or the counts by distance from which all scores of a ranking are computed.

The kernels release the GIL; threads take blocks of queries.
"""

import numpy as np

from hashlens.codes import Codes
from hashlens.errors import MismatchError, UsageError
from hashlens.kernels import LANES, kernels, to_blocks
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
    """Count the items and hits of each query's ranking, without sorting and without a (q, n) matrix.

    Items are relevant if their labels are equal or, with `label_sets`, have a bit in common.

    Returns
    -------
    items, hits : (q, n_bits + 1) int64, database items at each distance and the relevant ones among them
    found : (q, c) int64, relevant items among the first `cutoffs`, ties in database order
    precision_sum : (q,) float64, sum of P(i) rel_i over the first `topk`, ties in database order
    """
    require_same_bits(query, database)
    items = np.zeros((len(query), query.n_bits + 1), np.int64)
    hits = np.zeros_like(items)
    found = np.zeros((len(query), len(cutoffs)), np.int64)
    precision_sum = np.zeros(len(query))
    cutoffs = np.ascontiguousarray(cutoffs, np.int64)
    queries, blocks_ = np.ascontiguousarray(query.packed), to_blocks(database.packed)
    labels = np.pad(database_labels, ((0, 0), (0, -len(database) % LANES)))
    order = np.lexsort(query_labels.T)  # relevance is computed once for queries with the same labels
    queries, query_labels = queries[order], query_labels[order]

    def work(rows: slice) -> None:
        kernels().rank(
            blocks_, len(database), queries[rows], query_labels[rows], labels, label_sets,
            cutoffs, topk, items[rows], hits[rows], found[rows], precision_sum[rows],
        )  # fmt: skip

    in_threads(work, blocks(len(query), BLOCK))
    back = np.argsort(order)
    return items[back], hits[back], found[back], precision_sum[back]


def require_same_bits(a: Codes, b: Codes) -> None:
    if a.n_bits != b.n_bits:
        raise MismatchError(f"codes of {a.n_bits} and of {b.n_bits} bits have no distance; encode both with one model")
    if a.n_bits > MAX_BITS:
        raise UsageError(f"codes have {a.n_bits} bits; distances are counted for at most {MAX_BITS}")
