"""BRE, binary reconstructive embedding: features in, projections whose Hamming distances match the features' out."""

import numpy as np
from numba import njit

from hashlens.hashers.shallow.base import LinearHasher, draw_rows
from hashlens.settings import setting

PARTNERS = 0.05  # fraction of the sample that each row is compared with, as in the released code
TOLERANCE = 2e-5  # minimum decrease of the error per sweep; in the released code, 1 for a sum over 50,000 pairs
ROUNDING = 1e-6  # costs nearer than this are equal, such as the costs below and above all turning points


class BRE(LinearHasher):
    """Binary reconstructive embedding, unsupervised.

    B. Kulis, T. Darrell, "Learning to Hash with Binary Reconstructive Embeddings", NIPS 2009.

    Minimises the sum over pairs of (d(x, y) - hamming(x, y) / n_bits)^2, where d is half the squared distance of
    centred features of unit length, scaled so that the largest is 1. Bit p is sgn(sum_q W_pq k(a_pq, x)) with its own
    anchors a_p from the sample and the linear kernel k. One weight after another is set where the error is least: as it
    grows, every row's bit flips once, so one pass over the sorted flipping points covers all cases.

    Differences from the paper: d is scaled, because for centred features it may exceed 1. The pairs are as in the
    released code, each row of the sample with 5% of the others. As the kernel is linear, a bit is the sign of one
    projection, and only that is kept. With fewer rows than anchors, all rows are anchors.
    """

    supervised = False

    n_sample: int = setting(1000, "training rows to learn from, drawn at random; paper: 1,000", low=2)
    n_anchors: int = setting(50, "anchors per bit; paper: 50", low=1)
    n_sweeps: int = setting(50, "maximum number of passes over all weights; our choice", low=0)

    def _learn_projection(self, X: np.ndarray, labels: None) -> np.ndarray:
        rng = np.random.default_rng(self.random_state)
        sample = of_unit_length(draw_rows(X, self.n_sample, self.random_state))
        n_anchors = min(self.n_anchors, len(sample))
        anchors = np.stack([rng.choice(len(sample), n_anchors, replace=False) for _ in range(self.n_bits)])
        weights = 0.001 * rng.standard_normal(anchors.shape)
        descent = Descent(sample @ sample.T, draw_pairs(len(sample), rng), anchors, weights)
        before = descent.error()
        for _ in range(self.n_sweeps):
            for bit in range(self.n_bits):
                descent.improve(bit, rng.permutation(n_anchors))
            after = descent.error()
            if before - after < TOLERANCE:
                break
            before = after
        return np.einsum("bq,bqd->db", descent.weights, sample[anchors])


def of_unit_length(X: np.ndarray) -> np.ndarray:
    """Rows divided by their length; rows of zeros stay zero."""
    length = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(length > 0, length, 1.0)


def draw_pairs(n: int, rng: np.random.Generator) -> np.ndarray:
    """(2, pairs): rows i < j, each pair once; every row is paired with at least the fraction PARTNERS of the others."""
    n_partners = max(1, round(PARTNERS * n))
    first = np.repeat(np.arange(n), n_partners)
    step = np.concatenate([1 + rng.choice(n - 1, n_partners, replace=False) for _ in range(n)])
    second = (first + step) % n  # a step of 1 to n - 1, so never the row itself
    return np.unique(np.sort([first, second], axis=0), axis=1)


class Descent:
    """Weights and the sample's codes; `improve` sets the weights of one bit, one after another."""

    def __init__(self, kernel: np.ndarray, pairs: np.ndarray, anchors: np.ndarray, weights: np.ndarray):
        self.kernel = kernel  # (n, n)
        self.pairs = pairs
        self.anchors, self.weights = anchors, weights  # (n_bits, n_anchors)
        self.values = np.stack([w @ kernel[a] for w, a in zip(weights, anchors, strict=True)])  # (n_bits, n)
        lengths = np.diag(kernel)
        distances = (lengths[pairs[0]] + lengths[pairs[1]]) / 2 - kernel[pairs[0], pairs[1]]
        self.distances = np.maximum(distances, 0) / (distances.max() or 1.0)
        # pairs listed from both ends: the partners of row i are partner[start[i]:start[i + 1]]
        ends, others = np.concatenate([pairs, pairs[::-1]], axis=1)
        by_end = np.argsort(ends, kind="stable")
        self.partner, self.pair = others[by_end], np.tile(np.arange(pairs.shape[1]), 2)[by_end]
        self.start = np.searchsorted(ends[by_end], np.arange(len(kernel) + 1))
        self.hamming = np.sum([self.differing(values) for values in self.values], axis=0)  # (pairs,)

    def differing(self, values: np.ndarray) -> np.ndarray:
        """(pairs,): whether the two rows differ in the bit with these values (n,)."""
        bits = values > 0
        return bits[self.pairs[0]] != bits[self.pairs[1]]

    def error(self) -> float:
        """Mean over pairs of (d - hamming / n_bits)^2."""
        return float(np.square(self.distances - self.hamming / len(self.values)).mean())

    def improve(self, bit: int, order: np.ndarray) -> None:
        """Set the weights `order` of one bit, each to its best value while the others stay."""
        anchors, weights = self.anchors[bit], self.weights[bit]
        others = self.hamming - self.differing(self.values[bit])
        # with r = n_bits d - others: cost (r - 1)^2 of a pair if this bit differs, minus cost r^2 if not
        cost = 1 - 2 * (len(self.values) * self.distances - others)
        values = weights @ self.kernel[anchors]  # recomputed, because small steps accumulate rounding errors
        _set_weights(self.kernel, anchors, weights, values, order, self.start, self.partner, cost[self.pair])
        self.values[bit] = values
        self.hamming = others + self.differing(values)


@njit(nogil=True, cache=True)
def _set_weights(kernel, anchors, weights, values, order, start, partner, cost):  # type: ignore[no-untyped-def]
    for q in order:
        column = kernel[anchors[q]]
        weight = best_weight(weights[q], column, values, start, partner, cost)
        values += (weight - weights[q]) * column
        weights[q] = weight


@njit(nogil=True, cache=True)
def best_weight(weight, column, values, start, partner, cost):  # type: ignore[no-untyped-def]
    """The w with the lowest cost of pairs that differ in the bit values + (w - weight) column > 0.

    `cost` is the cost of a row and its partner differing, in the layout of `partner`. w is the middle between two
    turning points, or the old weight if nothing costs less.
    """
    turns = np.flatnonzero(column)  # a row with similarity 0 to the anchor never flips
    if len(turns) == 0:
        return weight
    points = weight - values[turns] / column[turns]
    by_point = np.argsort(points)
    points, turns = points[by_point], turns[by_point]
    now = values > 0
    bits = np.where(column == 0, now, column < 0)  # for w far below all turning points
    total = 0.0  # cost of `bits` minus cost of `now`
    for i in range(len(values)):
        for e in range(start[i], start[i + 1]):
            j = partner[e]
            total += (int(bits[i] != bits[j]) - int(now[i] != now[j])) * cost[e]
    total /= 2  # every pair was counted from both ends

    outside = (points[-1] - points[0]) / len(points)
    if outside == 0.0:
        outside = 1.0 + abs(points[0])
    best, least = weight, 0.0
    if total < least - ROUNDING:
        best, least = points[0] - outside, total
    for k in range(len(turns)):
        i = turns[k]
        for e in range(start[i], start[i + 1]):
            total += cost[e] if bits[i] == bits[partner[e]] else -cost[e]
        bits[i] = not bits[i]
        if total >= least - ROUNDING:
            continue
        if k == len(turns) - 1:
            best, least = points[k] + outside, total
        # in narrower gaps, rounding would decide on which side of its turning point a row is
        elif points[k + 1] - points[k] > 1e-12 * (abs(weight) + abs(points[k]) + abs(points[k + 1])):
            best, least = (points[k] + points[k + 1]) / 2, total
    return best
