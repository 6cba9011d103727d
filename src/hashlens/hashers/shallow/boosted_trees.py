"""Boosted trees: features as bytes and signs to predict in, weighted votes of small decision trees out.

A tree is complete and laid out as a heap: node k has the children 2k + 1 (left) and 2k + 2 (right, where the byte of
its feature is above its threshold), and the leaves follow the nodes. A node that does not split sends all rows left.
Features are stored by column, (d, n), so that all inner loops run over rows.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

N_BINS = 256  # one per value of a byte
NO_SPLIT = N_BINS - 1  # no byte exceeds it
TRIMMED = 0.01  # share of the total weight; the lightest rows, which hold it, are not used for a tree
LEAST_ERROR = 1e-16  # assumed for a tree without errors, whose vote would be infinite
LEAST_WEIGHT = 1e-12  # of a row, relative to the heaviest
GRID = 2.0**52  # weights are multiples of 1 / GRID, so sums are exact in any order of rows


class Trees(NamedTuple):
    """The t trees that vote on one bit."""

    feature: np.ndarray  # (t, nodes) int32
    threshold: np.ndarray  # (t, nodes) uint8
    leaf: np.ndarray  # (t, nodes + 1) int8, -1 or 1
    vote: np.ndarray  # (t,) float64


def bin_edges(X: np.ndarray) -> np.ndarray:
    """(d, 255): the edges between 256 bins of each feature, with equally many rows of X unless values are equal."""
    n = len(X)
    ordered = np.sort(X, axis=0)
    above = np.clip(np.arange(1, N_BINS) * n // N_BINS, 1, n - 1)  # each edge lies just below this row
    # halfway between two rows, so that rounding to float32 moves neither to another bin
    return np.ascontiguousarray((ordered[above - 1] / 2 + ordered[above] / 2).T)


def boost(
    columns: np.ndarray,
    signs: np.ndarray,
    weights: np.ndarray,
    *,
    n_trees: int,
    depth: int,
    n_candidates: int,
    rng: np.random.Generator,
) -> Trees:
    """AdaBoost: trees that vote for the signs of the rows, each learned where the earlier ones are wrong.

    `weights` (n,), not negative, are the initial cost of a mistake in each row; each node chooses from `n_candidates`
    features, drawn for it at random.
    """
    d, n = columns.shape
    features = np.tile(np.arange(d, dtype=np.int32), (2**depth - 1, 1))
    signs = signs.astype(np.int8)
    weights = np.maximum(weights / max(weights.max(), np.finfo(float).tiny), LEAST_WEIGHT)
    margin = np.zeros(n)
    learned = []
    for _ in range(n_trees):
        current = weights * np.exp(margin.min() - margin)
        current /= current.sum()
        candidates = rng.permuted(features, axis=1)[:, :n_candidates] if n_candidates < d else features
        tree = grow(columns, signs, current, np.ascontiguousarray(candidates))
        right = _follow(columns, *tree) == signs
        vote = weight_of_vote(current[~right].sum())
        margin += np.where(right, vote, -vote)
        learned.append((*tree, vote))
    return Trees(*map(np.array, zip(*learned, strict=True)))


def weight_of_vote(error: float) -> float:
    """The vote that lowers the exponential loss most, log(right / wrong) / 2; 0 for a tree that is mostly wrong."""
    error = max(error, LEAST_ERROR)
    return 0.5 * math.log((1 - error) / error) if error < 0.5 else 0.0


def grow(
    columns: np.ndarray, signs: np.ndarray, weights: np.ndarray, candidates: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Feature, threshold and leaf of one tree; weights sum to 1, candidates (nodes, k) are features for each node."""
    rows = heaviest(weights)
    exact = np.floor(weights[rows] * GRID) / GRID
    return _grow(columns, rows.astype(np.uint32), signs[rows], exact, candidates)


def heaviest(weights: np.ndarray) -> np.ndarray:
    """The rows left after trimming the lightest ones, which hold a hundredth of the weight."""
    ascending = np.sort(weights)
    least = np.searchsorted(np.cumsum(ascending), TRIMMED * weights.sum(), side="right")
    return np.flatnonzero(weights >= ascending[least])


@njit(nogil=True, cache=True)
def to_bytes(X, edges):  # type: ignore[no-untyped-def]
    """(d, n) uint8: for each value of X (n, d) the number of edges of its feature that lie below it."""
    n, d = X.shape
    columns = np.empty((d, n), np.uint8)
    one = np.uint64(1)
    for start in range(0, d, 8):  # eight neighbours in a row of X share a cache line
        for i in range(n):
            for j in range(start, min(start + 8, d)):
                value, own = X[i, j], edges[j]
                below, step = np.uint64(0), np.uint64(N_BINS // 2)
                while step > 0:  # binary search: 255 edges make eight levels
                    below += step if own[below + step - one] < value else np.uint64(0)
                    step >>= one
                columns[j, i] = below
    return columns


@njit(nogil=True, cache=True)
def _grow(columns, rows, signs, weights, candidates):  # type: ignore[no-untyped-def]
    """As `grow`; sorts rows, signs and weights into the nodes on the way."""
    n_nodes = len(candidates)
    feature, threshold = candidates[:, 0].copy(), np.full(n_nodes, NO_SPLIT, np.uint8)
    sign = np.empty(2 * n_nodes + 1, np.int8)  # the majority's, in each node and leaf
    bounds = np.zeros((2 * n_nodes + 1, 2), np.int64)  # of each node's rows
    bounds[0, 1] = len(rows)
    half = np.where(signs > 0, np.uint16(N_BINS), np.uint16(0))  # of the histogram that counts a row
    histogram = np.empty(2 * N_BINS)
    for node in range(2 * n_nodes + 1):
        first, last = bounds[node]
        total, balance = 0.0, 0.0
        for i in range(first, last):
            total += weights[i]
            balance += weights[i] if half[i] > 0 else -weights[i]
        if balance != 0:
            sign[node] = 1 if balance > 0 else -1
        else:  # a tie: as in its parent; at the root, -1
            sign[node] = sign[(node - 1) // 2] if node > 0 else -1
        if node >= n_nodes:
            continue
        if abs(balance) < total:
            inside = rows[first:last], half[first:last], weights[first:last]
            found = _best_split(columns, *inside, total, balance, candidates[node], histogram)
            if found[0] >= 0:
                feature[node], threshold[node] = found
        middle = _part(columns[feature[node]], threshold[node], first, last, rows, half, weights)
        bounds[2 * node + 1] = first, middle
        bounds[2 * node + 2] = middle, last
    return feature, threshold, sign[n_nodes:]


@njit(nogil=True, cache=True)
def _best_split(columns, rows, half, weights, total, balance, candidates, histogram):  # type: ignore[no-untyped-def]
    """Feature and threshold of the split with the least Gini impurity; -1 if none is purer than the node.

    With weights s and signed weights b of the parts, the impurity is least where the sum of b^2 / s is largest; two
    such sums are compared as fractions, without division.
    """
    best, best_below = balance * balance, total
    feature, threshold = -1, 0
    for candidate in candidates:
        column = columns[candidate]
        histogram[:] = 0
        for i in range(len(rows)):
            histogram[column[rows[i]] + half[i]] += weights[i]
        left, left_balance, last = 0.0, 0.0, 0
        for b in range(N_BINS):
            weight = histogram[b] + histogram[b + N_BINS]
            if weight == 0:
                continue
            if left > 0:
                right, right_balance = total - left, balance - left_balance
                above = left_balance * left_balance * right + right_balance * right_balance * left
                below = left * right
                if above * best_below > best * below * (1 + 1e-12):  # by more than rounding
                    best, best_below = above, below
                    feature, threshold = candidate, (last + b) // 2  # no value lies between the two
            left += weight
            left_balance += histogram[b + N_BINS] - histogram[b]
            last = b
    return feature, threshold


@njit(nogil=True, cache=True)
def _part(column, threshold, first, last, rows, half, weights):  # type: ignore[no-untyped-def]
    """Move the rows of first..last that go to the right child behind the others; returns where they begin."""
    middle = last
    i = first
    while i < middle:
        if column[rows[i]] > threshold:
            middle -= 1
            rows[i], rows[middle] = rows[middle], rows[i]
            half[i], half[middle] = half[middle], half[i]
            weights[i], weights[middle] = weights[middle], weights[i]
        else:
            i += 1
    return middle


@njit(nogil=True, cache=True)
def _follow(columns, feature, threshold, leaf):  # type: ignore[no-untyped-def]
    """(n,) int8: the vote of a tree on each row.

    From the leaves up, every row chooses between the two children of every node: these loops over bytes compile to
    vector instructions and are faster than walking down the tree for each row.
    """
    n_nodes = len(feature)
    found = np.empty((n_nodes, columns.shape[1]), np.int8)
    for node in range(n_nodes - 1, -1, -1):
        column, limit = columns[feature[node]], threshold[node]
        child = 2 * node + 1
        if child >= n_nodes:
            _choose_leaf(column, limit, leaf[child - n_nodes], leaf[child + 1 - n_nodes], found[node])
        else:
            _choose(column, limit, found[child], found[child + 1], found[node])
    return found[0]


@njit(nogil=True, cache=True)
def _choose(column, limit, left, right, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        low, high = left[i], right[i]
        out[i] = high if column[i] > limit else low


@njit(nogil=True, cache=True)
def _choose_leaf(column, limit, low, high, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        out[i] = high if column[i] > limit else low


@njit(nogil=True, cache=True)
def votes(columns, trees):  # type: ignore[no-untyped-def]
    """(n,) float64: the sum of all trees' votes on rows given as bytes, (d, n)."""
    total = np.zeros(columns.shape[1])
    for tree in range(len(trees.vote)):
        signs = _follow(columns, trees.feature[tree], trees.threshold[tree], trees.leaf[tree])
        for i in range(len(total)):
            total[i] += trees.vote[tree] * signs[i]
    return total
