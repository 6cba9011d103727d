"""FastH, fast supervised hashing: features and labels in, boosted trees that predict bits found by graph cuts out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from hashlens.data.labels import Labels, relevant
from hashlens.hashers.shallow.base import ShallowHasher
from hashlens.hashers.shallow.boosted_trees import N_BINS, Trees, bin_edges, boost, to_bytes, votes
from hashlens.machine import blocks, in_threads
from hashlens.settings import setting

LARGEST_FLOW = 2**29  # scipy's capacities are int32, and a residual capacity may be twice as large
TOLERANCE = 1e-12  # minimum decrease of the energy, relative to the sum of all weights
BLOCK = 512  # rows per task of a thread; their bytes fit in the cache


class FastH(ShallowHasher):
    """Fast supervised hashing with decision trees.

    G. Lin, C. Shen, Q. Shi, A. van den Hengel, D. Suter, "Fast Supervised Hashing with Decision Trees for
    High-Dimensional Data", CVPR 2014.

    Minimises, bit r after bit r - 1, the sum over pairs of (d / r)^2 where they share a label and of
    max(0, 1/2 - d / r)^2 where they do not; d is their Hamming distance over r bits. Given the earlier bits this is
    sum a_ij z_i z_j over signs z, lowered by graph cuts, one class after another; then trees learn z by AdaBoost, and
    their prediction is bit r.

    Differences from the paper: z starts with one sign for half of the classes and the other for the rest, drawn anew
    for each bit, not with one sign for all, so that a bit is useful even if the earlier ones have already separated all
    pairs; the bytes of a feature are its quantiles; nodes split by Gini impurity; 500 trees
    per bit, where `published` has the paper's 200.
    """

    n_partners: int = setting(100, "pairs drawn per row, of each kind; released code: 100", low=1)
    n_sweeps: int = setting(2, "passes of graph cuts over all classes per bit; released code: 2", low=0)
    n_trees: int = setting(500, "trees per bit; paper: 200", published=200, low=1, search=(50, 500))
    depth: int = setting(4, "depth of a tree, which has 2^depth leaves; paper: 4", low=1, high=8, search=(2, 6))
    n_candidates: int = setting(200, "random features each tree node chooses from; released code: 200", low=1)

    def _fit(self, X: np.ndarray, labels: Labels) -> None:
        rng = np.random.default_rng(self.random_state)
        self.edges_ = bin_edges(X)
        columns = to_bytes(X, self.edges_)
        groups = groups_alike(labels)
        pairs, similar = draw_pairs(labels, self.n_partners, rng)
        distance = np.zeros(len(pairs))
        learned = []
        for r in range(1, self.n_bits + 1):
            A = symmetric(pairs, pair_weights(distance, similar, r), len(X))
            z = infer_bit(A, groups, self.n_sweeps, rng)
            trees = boost(
                columns, z, np.abs(A).sum(axis=1),
                n_trees=self.n_trees, depth=self.depth, n_candidates=self.n_candidates, rng=rng,
            )  # fmt: skip
            learned.append(trees)
            bit = votes(columns, trees) > 0
            distance += bit[pairs[:, 0]] != bit[pairs[:, 1]]
        self.feature_, self.threshold_, self.leaf_, self.vote_ = map(np.stack, zip(*learned, strict=True))

    def _require_codes(self) -> None:
        """Check array indices, because the compiled loops do not."""
        shape = (self.n_bits, self.n_trees, 2**self.depth - 1)
        for name, expected, kind in (
            ("edges", (self.n_features_in_, N_BINS - 1), np.float64),
            ("feature", shape, np.int32),
            ("threshold", shape, np.uint8),
            ("leaf", (*shape[:2], shape[2] + 1), np.int8),
            ("vote", shape[:2], np.float64),
        ):
            found = getattr(self, f"{name}_")
            if found.shape != expected or found.dtype != kind:
                raise ValueError(f"{name} is {found.dtype} {found.shape}, not {np.dtype(kind)} {expected}")
        if self.feature_.min() < 0 or self.feature_.max() >= self.n_features_in_:
            raise ValueError("a tree asks for a feature that does not exist")
        super()._require_codes()

    def _project(self, X: np.ndarray) -> np.ndarray:
        result = np.empty((len(X), len(self.vote_)))

        def work(rows: slice) -> None:
            columns = to_bytes(X[rows], self.edges_)
            for bit, trees in enumerate(zip(self.feature_, self.threshold_, self.leaf_, self.vote_, strict=True)):
                result[rows, bit] = votes(columns, Trees(*trees))

        in_threads(work, blocks(len(X), BLOCK))
        return result


def draw_pairs(labels: Labels, n_partners: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(p, 2) rows i < j and (p,) whether they are similar: per row, `n_partners` of either kind, or all there are.

    A pair drawn for both of its rows is kept once.
    """
    n = len(labels)
    drawn: dict[bool, list[np.ndarray]] = {True: [], False: []}
    for rows in blocks(n, 1000):  # (1000, n) at once
        for i, alike in enumerate(relevant(labels[rows], labels), rows.start):
            for kind, partners in ((True, np.flatnonzero(alike)), (False, np.flatnonzero(~alike))):
                partners = partners[partners != i]
                chosen = rng.choice(partners, min(n_partners, len(partners)), replace=False)
                drawn[kind].append(np.minimum(chosen, i) * n + np.maximum(chosen, i))
    similar, different = (np.unique(np.concatenate(drawn[kind])) for kind in (True, False))
    pairs = np.stack(np.divmod(np.concatenate([similar, different]), n), axis=1)
    return pairs, np.arange(len(pairs)) < len(similar)


def groups_alike(labels: Labels) -> list[np.ndarray]:
    """The rows of each class; groups overlap for rows with several labels; a row without labels is its own group."""
    classes = labels.matrix()
    groups = [np.flatnonzero(rows) for rows in classes.T if rows.any()]
    return groups + [np.array([row]) for row in np.flatnonzero(~classes.any(axis=1))]


def hinge(distance: np.ndarray, similar: np.ndarray, r: int) -> np.ndarray:
    """The loss of pairs at a distance over r bits: similar pairs should be at 0, others at half the bits or more."""
    return np.square(np.where(similar, distance / r, np.maximum(0, 0.5 - distance / r)))


def pair_weights(distance: np.ndarray, similar: np.ndarray, r: int) -> np.ndarray:
    """a_ij: what bit r saves by separating the pair, given its distance over r - 1 bits."""
    return hinge(distance, similar, r) - hinge(distance + 1, similar, r)


def symmetric(pairs: np.ndarray, weights: np.ndarray, n: int) -> sparse.csr_array:
    """(n, n) with the weight of each pair in both places."""
    i, j = pairs.T
    both = np.concatenate([i, j]), np.concatenate([j, i])
    return sparse.csr_array((np.concatenate([weights, weights]), both), shape=(n, n))


def infer_bit(A: sparse.csr_array, groups: list[np.ndarray], n_sweeps: int, rng: np.random.Generator) -> np.ndarray:
    """(n,) signs z with a low sum a_ij z_i z_j."""
    z = np.ones(A.shape[0])
    for group in rng.permutation(len(groups))[: len(groups) // 2]:
        z[groups[group]] = -1
    for _ in range(n_sweeps):
        sweep(A, z, [groups[group] for group in rng.permutation(len(groups))])
    return z


def sweep(A: Any, z: np.ndarray, blocks: Sequence[np.ndarray]) -> None:
    """Lower sum over pairs i < j of a_ij z_i z_j over one block of z after another, in place; the sum never rises.

    A is sparse, symmetric, (n, n), and no a_ij within a block is positive.
    """
    for block in blocks:
        rows = A[block]
        inside, old = rows[:, block], z[block]
        unary = rows @ z - inside @ old
        new = best_signs(inside, unary)
        all_weights = np.abs(unary).sum() + np.abs(inside.data).sum()
        if energy(inside, unary, new) < energy(inside, unary, old) - TOLERANCE * all_weights:  # else keep the old bits
            z[block] = new


def energy(A: Any, unary: np.ndarray, z: np.ndarray) -> float:
    """sum_i unary_i z_i + sum over pairs i < j of a_ij z_i z_j."""
    return float(unary @ z + z @ (A @ z) / 2)


def best_signs(A: Any, unary: np.ndarray) -> np.ndarray:
    """The signs of least energy, if no a_ij is positive: a minimum cut, +1 on the side of the source.

    A point with unary < 0 is connected to the source and one with unary > 0 to the sink, with capacity |unary|; i and
    j with |a_ij|. Capacities are rounded to integers, 2^29 in total.
    """
    n = len(unary)
    if (unary <= 0).all() or (unary >= 0).all():
        return np.full(n, 1.0 if unary.sum() <= 0 else -1.0)
    A = A.tocoo()
    source, sink = n, n + 1
    to_source, to_sink = np.flatnonzero(unary < 0), np.flatnonzero(unary > 0)
    total = np.abs(unary).sum()
    strength = np.concatenate([-unary[to_source], unary[to_sink], np.minimum(-A.data, total)])  # no flow can be larger
    starts = np.concatenate([np.full(len(to_source), source), to_sink, A.row])
    ends = np.concatenate([to_source, np.full(len(to_sink), sink), A.col])
    capacity = np.rint(strength * (LARGEST_FLOW / total)).astype(np.int32)
    graph = sparse.csr_array((capacity, (starts, ends)), shape=(n + 2, n + 2))
    rest = graph - csgraph.maximum_flow(graph, source, sink).flow  # stores no zeros, which would count as edges
    reached = csgraph.breadth_first_order(rest, source, return_predecessors=False)
    signs = np.full(n + 2, -1.0)
    signs[reached] = 1
    return signs[:n]
