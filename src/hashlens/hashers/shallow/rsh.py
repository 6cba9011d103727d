"""RSH, ranking-based supervised hashing: features and rankings of rows in, projections that preserve the order out."""

import numpy as np

from hashlens.data.labels import Labels
from hashlens.hashers.shallow.base import LinearHasher
from hashlens.hashers.shallow.ksh import label_groups
from hashlens.hashers.shallow.spectral import eigenvectors, random_rotation
from hashlens.settings import setting

TINY = 1e-6


class RSH(LinearHasher):
    """Ranking-based supervised hashing.

    J. Wang, W. Liu, A. X. Sun, Y.-G. Jiang, "Learning Hash Codes with Listwise Supervision", ICCV 2013.

    Minimises -tr(W^T A W) + (lambda / 2) ||W^T W - I||^2, where A = sum_q p_q q^T / pairs_q over queries q and
    p_q = sum of x_i - x_j over the pairs of rows where i ranks above j for q: products of the projections W^T q and W^T
    x should be larger for rows that rank higher. Rows are ranked by the number of labels they share with the query.

    Differences from the paper: each training row is a query, whose list is all rows, itself included, and queries count
    equally, whatever their number of pairs. The paper descends from a random start; here the minimum is written down:
    W = U sqrt(I + D / lambda) V, where U are the leading eigenvectors of (A + A^T) / 2 and D their eigenvalues. Any
    rotation V is equally good; a random one spreads the few directions in which classes differ over all bits. Where A
    is zero, any direction is equally good, and those are taken along which rows vary least. Where there are fewer
    features than bits, which the paper does not treat, there are as many directions as features. lambda is our choice;
    `published` has 1.
    """

    lambda_: float = setting(
        100.0, "weight of orthogonality relative to the largest eigenvalue; our choice", published=1.0, above=0
    )

    def _learn_projection(self, X: np.ndarray, labels: Labels) -> np.ndarray:
        A = ranking_matrix(X, labels)
        A = (A + A.T) / 2
        scatter = X.T @ X
        A -= TINY * np.abs(A.trace()) / scatter.trace() * scatter  # breaks ties between equally good directions
        values, vectors = eigenvectors(A, self.n_bits)
        if values[0] > 0:
            values = values / values[0]
        lengths = np.sqrt(np.maximum(1 + values / self.lambda_, 0))
        rotation = random_rotation(self.n_bits, np.random.default_rng(self.random_state))
        return vectors * lengths @ rotation[: len(values)]


def ranking_matrix(X: np.ndarray, labels: Labels) -> np.ndarray:
    """A (d, d) for centred rows X, each of which is a query."""
    members, different = label_groups(labels)
    sums = members @ X  # (u, d)
    Y = different.matrix()
    return (preferences(Y @ Y.T, members.sum(1)) @ sums).T @ sums


def preferences(scores: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """(u, u): rows that rank below a row of a group minus rows that rank above, over the number of ordered pairs.

    `scores` (u, u) has the score of each group's rows, along the second axis, for a query; `sizes` (u,) are the groups'
    sizes.
    """
    found = np.zeros_like(scores)
    below = np.zeros(len(scores))  # rows with lower scores, for each query
    pairs = np.zeros(len(scores))
    for score in np.unique(scores):
        equal = scores == score
        count = equal @ sizes
        above = sizes.sum() - below - count
        found += equal * (below - above)[:, None]
        pairs += count * below
        below += count
    return found / np.maximum(pairs, 1)[:, None]
