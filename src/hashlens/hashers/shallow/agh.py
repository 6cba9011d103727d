"""AGH, anchor graph hashing: the smoothest functions on an anchor graph in, one or two thresholds of each out."""

import numpy as np
from scipy import sparse

from hashlens.hashers.shallow.anchor_graph import NOISE, AnchorGraphHasher, fill_up, graph_eigenvectors, without_noise
from hashlens.settings import setting


class AGH(AnchorGraphHasher):
    """Anchor graph hashing.

    W. Liu, J. Wang, S. Kumar, S.-F. Chang, "Hashing with Graphs", ICML 2011.

    Minimises tr(Y^T (I - A) Y) with 1^T Y = 0 and Y^T Y = n I, where A are the similarities of an anchor graph: Y are
    its leading eigenvectors. The first layer's bits are sgn(Y). With two layers there are half as many eigenvectors,
    and each gives a second bit: both sides of zero are cut once more, where the fewest neighbours are separated.

    Differences from the paper: only the constant eigenvector is left out, not all whose eigenvalue is near 1 (as in the
    released code): in a graph of several components these separate the components. Where the graph has fewer
    eigenvectors than needed (few anchors), random rotations of them follow. If the first bit separates no neighbours at
    all, any second cut is equally good, and both sides are cut at their means. There are up to 800 anchors; `published`
    has the paper's 300.
    """

    supervised = False

    layers: int = setting(2, "thresholds per eigenvector; the paper recommends 2", choices=(1, 2))
    n_nearest: int = setting(5, "anchors each row belongs to; paper: 5 for photographs, 2 for digits", low=1)

    def _learn_projection(self, Z: sparse.csr_array) -> np.ndarray:
        n_second = self.n_bits // 2 if self.layers == 2 else 0
        W, _ = graph_eigenvectors(Z, self.n_bits - n_second)
        W = fill_up(W, self.n_bits - n_second, self.random_state)
        self.thresholds_ = second_thresholds(Z, without_noise(Z @ W[:, :n_second]))
        return W

    def _project(self, X: np.ndarray) -> np.ndarray:
        first = super()._project(X)
        return np.hstack([first, second_layer(first[:, : self.thresholds_.shape[1]], self.thresholds_)])


def second_thresholds(Z: sparse.csr_array, Y: np.ndarray) -> np.ndarray:
    """(2, k): t and u for which r = [y - t where y > 0, u - y elsewhere] has r^T (I - A) r least and 1^T r = 0.

    With P the rows where y > 0, r is |y| + u - (t + u) [in P], and the constant u does not count: a parabola in t + u.
    """
    n, mass = Z.shape[0], Z.sum(0)[:, None]
    positive = (Y > 0).astype(np.float64)
    size, rest = positive.sum(0), n - positive.sum(0)
    above = (positive * Y).sum(0)  # the sum of the rest is -above
    shared = Z.T @ positive / mass  # A [in P] = Z shared
    linear = above - (shared * (Z.T @ np.abs(Y))).sum(0)  # |y|^T (I - A) [in P]
    square = size - (shared * (Z.T @ positive)).sum(0)  # [in P]^T (I - A) [in P]
    flat = square < NOISE * n  # P has no neighbours outside it
    total = np.where(flat, above / size - above / rest, linear / np.where(flat, 1.0, square))
    return np.stack([2 * above + rest * total, size * total - 2 * above]) / n


def second_layer(Y: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    return without_noise(np.where(Y > 0, Y - thresholds[0], thresholds[1] - Y))
