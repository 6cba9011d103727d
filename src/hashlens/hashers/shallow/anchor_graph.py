"""Anchor graph: features in, their sparse memberships Z in a few anchors and the eigenvectors of the graph out.

Two rows are similar if they share anchors: A = Z diag(Z^T 1)^-1 Z^T, (n, n), every row of which sums to 1. A is never
formed: everything needed follows from Z (n, m), which has a few entries per row.
"""

import warnings

import numpy as np
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from hashlens.errors import DataError
from hashlens.hashers.shallow.base import ShallowHasher, squared_distances
from hashlens.hashers.shallow.spectral import eigenvectors, random_rotation
from hashlens.machine import blocks
from hashlens.settings import setting

TURNS = 10  # k-means iterations; anchors need not be the best centres, only close to all rows
BLOCK = 4096  # rows per block of distances to all anchors
EMPTY = 1e-9  # an anchor with a smaller total membership is unused
NOISE = 1e-9  # smaller values are zeros with rounding errors; typical values are about 1


class AnchorGraphHasher(ShallowHasher):
    """A method whose codes are sgn(z(x) W), where z(x) are the memberships of x in its `n_nearest` nearest anchors.

    Memberships are exp(-|x - anchor|^2 / width), scaled to sum to 1; zero for all other anchors. Anchors are
    `n_anchors` centres of k-means, but at most half as many as training rows, because an anchor with a single row
    connects nothing. `width` is the square of the mean distance of a training row to the last of its nearest anchors,
    as in the released code of AGH. Anchors with no training row nearby are dropped.
    """

    n_anchors: int = setting(800, "maximum number of anchors; paper: 300", published=300, low=2)
    n_nearest: int = setting(3, "anchors each row belongs to; paper: 3", low=1)

    def _fit(self, X: np.ndarray, labels: None) -> None:
        self.anchors_ = find_anchors(X, self.n_anchors, self.random_state)
        squared, ids = nearest_anchors(X, self.anchors_, self.n_nearest)
        self.width_ = np.array(np.sqrt(squared.max(1)).mean() ** 2 or 1.0)  # 0 if every row lies on its only anchor
        Z = memberships(squared, ids, self.width_, len(self.anchors_))
        while not (used := Z.sum(0) > EMPTY).all():  # their rows move to other anchors, which may empty another one
            self.anchors_ = self.anchors_[used]
            Z = self._memberships(X)
        self.projection_ = np.ascontiguousarray(self._learn_projection(Z))

    def _learn_projection(self, Z: sparse.csr_array) -> np.ndarray:
        """W (m, columns) from the memberships of the training rows."""
        raise NotImplementedError

    def _memberships(self, X: np.ndarray) -> sparse.csr_array:
        squared, ids = nearest_anchors(X, self.anchors_, self.n_nearest)
        return memberships(squared, ids, self.width_, len(self.anchors_))

    def _project(self, X: np.ndarray) -> np.ndarray:
        return without_noise(self._memberships(X) @ self.projection_)


def find_anchors(X: np.ndarray, n: int, random_state: int) -> np.ndarray:
    """At most n distinct centres of X from a few k-means iterations: at least two, at most half the number of rows."""
    n = max(2, min(n, len(X) // 2))
    means = KMeans(n, init="random", n_init=1, max_iter=TURNS, random_state=random_state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # raised for fewer distinct rows than n
        means.fit(X)
    return np.unique(means.cluster_centers_, axis=0)


def nearest_anchors(X: np.ndarray, anchors: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Squared distances and ids, both (rows, n), of the n nearest anchors of each row, in no order; all where m < n."""
    n = min(n, len(anchors))
    squared, ids = np.empty((len(X), n)), np.empty((len(X), n), np.int64)
    for rows in blocks(len(X), BLOCK):
        all_squared = squared_distances(X[rows], anchors)
        ids[rows] = np.argpartition(all_squared, n - 1, axis=1)[:, :n]
        squared[rows] = np.take_along_axis(all_squared, ids[rows], axis=1)
    return squared, ids


def memberships(squared: np.ndarray, ids: np.ndarray, width: np.ndarray, n_anchors: int) -> sparse.csr_array:
    """Z (n, n_anchors): exp(-squared / width) at the ids of the nearest anchors, every row scaled to sum to 1."""
    n, n_nearest = ids.shape
    # relative to the nearest, which scaling cancels: else every exp would be 0 far from all anchors
    weights = np.exp((squared.min(1, keepdims=True) - squared) / width)
    weights /= weights.sum(1, keepdims=True)
    Z = sparse.csr_array((weights.ravel(), ids.ravel(), np.arange(n + 1) * n_nearest), shape=(n, n_anchors))
    Z.sort_indices()  # fixes the order of additions in a row
    return Z


def graph_eigenvectors(Z: sparse.csr_array, n_vectors: int) -> tuple[np.ndarray, np.ndarray]:
    """W (m, r) and eigenvalues (r,), the largest first: Y = Z W are eigenvectors of A with 1^T Y = 0, Y^T Y = n I.

    The constant eigenvector, whose eigenvalue is 1, is left out. r is `n_vectors` or, if that is less, the number of
    others with an eigenvalue above 0. In a graph of several separate components, further eigenvalues are 1; their
    eigenvectors distinguish the components.
    """
    n, mass = Z.shape[0], Z.sum(0)
    scale = 1 / np.sqrt(mass)
    M = scale[:, None] * (Z.T @ Z).toarray() * scale
    constant = np.sqrt(mass / n)
    values, vectors = eigenvectors(M - np.outer(constant, constant))  # the constant eigenvector's value becomes 0
    r = int((values > NOISE).sum())
    if r == 0:
        raise DataError(
            "all rows have the same anchors, so the graph cannot tell them apart; pass features that vary more"
        )
    r = min(r, n_vectors)
    values, vectors = values[:r], vectors[:, :r]
    return np.sqrt(n) * scale[:, None] * vectors / np.sqrt(values), values


def fill_up(W: np.ndarray, n: int, random_state: int) -> np.ndarray:
    """W (m, r) with n columns: if n > r, random rotations of W follow."""
    rng = np.random.default_rng(random_state)
    r = W.shape[1]
    parts = [W]
    while r * len(parts) < n:
        parts.append(W @ random_rotation(r, rng))
    return np.hstack(parts)[:, :n]


def without_noise(Y: np.ndarray) -> np.ndarray:
    """Y with exact zeros where rounding left tiny values: an eigenvector of one component is zero on all others."""
    return np.where(np.abs(Y) > NOISE, Y, 0.0)
