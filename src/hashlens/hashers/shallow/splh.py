"""SPLH, sequential projection learning: features and pairwise labels in, one projection after another out."""

import numpy as np
from scipy import linalg

from hashlens.data.labels import Labels, relevant
from hashlens.hashers.shallow.base import LinearHasher, draw_rows
from hashlens.hashers.shallow.spectral import NULL, eigenvectors
from hashlens.machine import blocks
from hashlens.settings import setting

BLOCK = 256  # rows of pairs at once, to keep temporary arrays small


class SPLH(LinearHasher):
    """Sequential projection learning for hashing.

    J. Wang, S. Kumar, S.-F. Chang, "Sequential Projection Learning for Hashing with Compact Codes", ICML 2010.

    Bit k maximises w' (X_l' S X_l + eta X' X) w over |w| = 1, where X are the centred features without their part along
    earlier directions, X_l those rows whose labels are used, and S_ij is positive for pairs that share a label,
    negative for others. Then S grows by alpha |x_i . w| |x_j . w| in size wherever x_i . w x_j . w has the wrong sign.

    alpha and eta were chosen on GIST of CIFAR-10, on rows that are neither training rows nor queries.

    Differences from the paper: alpha and eta are scaled as said above. The part along earlier directions is removed
    until a direction gains less than a fifth of the first one; then X is restored, S is kept, and so on. In `published`
    that happens after as many bits as classes can differ in (classes minus one), or as features have dimensions.
    Otherwise later bits only get directions in which classes do not differ: the MAP of those rows falls from 0.14 at 12
    bits to 0.12 at 48, instead of rising from 0.16 to 0.22 (both with alpha 1 and eta 0.1). Directions are sought among
    those orthogonal to earlier ones even where the matrix has no positive eigenvalue left there.
    """

    deterministic = True  # unless rows outnumber n_labelled

    alpha: float = setting(1.0, "extra weight of pairs that the earlier bits got wrong", low=0, high=1)
    eta: float = setting(0.01, "weight of the variance of all rows; 1: as much as the labelled pairs", low=0)
    restart: float | None = setting(
        0.2,
        "fraction of the first direction's gain below which X is whole again; none: after classes less one bits",
        published=None,
        low=0,
        high=1,
    )
    n_labelled: int = setting(5_000, "rows drawn at random, whose pairs are formed; 5,000 need 100 MB", low=2)

    def _learn_projection(self, X: np.ndarray, labels: Labels) -> np.ndarray:
        rows = draw_rows(np.arange(len(X)), self.n_labelled, self.random_state)
        basis = varying_directions(X)
        n_directions = basis.shape[1]
        if self.restart is None:
            n_directions = min(n_directions, label_rank(labels[rows]))
        S = np.where(relevant(labels[rows], labels[rows]), np.float32(1), np.float32(-1))
        return basis @ self._sequence(X @ basis, rows, S, n_directions)

    def _sequence(self, X: np.ndarray, rows: np.ndarray, S: np.ndarray, n_directions: int) -> np.ndarray:
        """(d, n_bits) for features X of full rank; X is restored after `n_directions` bits at the latest."""
        eta = self.eta * largest_eigenvalue(pair_scatter(X[rows], S)) / largest_eigenvalue(X.T @ X)
        W = np.empty((X.shape[1], self.n_bits))
        rest, n_used, first = X, 0, 0.0
        for k in range(self.n_bits):
            if n_used == n_directions:
                rest, n_used = X, 0
            w, gain = self._best(rest, rows, S, eta, W[:, k - n_used : k])
            if n_used and self.restart is not None and gain < self.restart * first:
                rest, n_used = X, 0
                w, gain = self._best(rest, rows, S, eta, W[:, k:k])
            first = first if n_used else gain
            W[:, k] = w
            boost(S, rest[rows] @ w, self.alpha)
            rest, n_used = without(rest, w), n_used + 1
        return W

    def _best(
        self, X: np.ndarray, rows: np.ndarray, S: np.ndarray, eta: float, used: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """The next direction w, orthogonal to those used, and w' M w."""
        M = pair_scatter(X[rows], S) + eta * X.T @ X
        w = leading_direction(M, used)
        return w, float(w @ M @ w)


def varying_directions(X: np.ndarray) -> np.ndarray:
    """(d, r): an orthonormal basis of the directions in which centred rows X, of rank r, differ."""
    values, vectors = eigenvectors(X.T @ X)
    return vectors[:, values > NULL * values[0]]


def label_rank(labels: Labels) -> int:
    """The number of directions in which class means can differ: for single labels, classes minus one."""
    Y = labels.matrix()
    return max(1, int(np.linalg.matrix_rank(Y - Y.mean(0))))


def pair_scatter(X: np.ndarray, S: np.ndarray) -> np.ndarray:
    """X' S X (d, d), symmetric, for symmetric weights S of pairs; only the part of S above the diagonal is read.

    Computed in single precision, like S.
    """
    single = X.astype(np.float32)
    half = np.zeros((X.shape[1], X.shape[1]))
    for part in blocks(len(S), BLOCK):
        half += single[part].T @ (S[part, part.stop :] @ single[part.stop :] + S[part, part] @ single[part] / 2)
    return half + half.T


def largest_eigenvalue(M: np.ndarray) -> float:
    """The largest absolute eigenvalue of a symmetric matrix."""
    return float(np.abs(linalg.eigvalsh(M)).max())


def leading_direction(M: np.ndarray, used: np.ndarray) -> np.ndarray:
    """The unit w that maximises w' M w among those orthogonal to the columns of `used`."""
    # used directions have eigenvalue zero in M, which may be the largest: move them below all others
    lowered = M - 2 * linalg.norm(M) * used @ used.T
    first = eigenvectors(lowered, 1)[1][:, 0]
    w = first - used @ (used.T @ first)
    return w / linalg.norm(w)


def boost(S: np.ndarray, values: np.ndarray, alpha: float) -> None:
    """Change S, in place, where the sign of a pair's product of `values` is not that of its weight.

    Only the part above the diagonal and the blocks on it change, because pairs have no order.
    """
    largest = np.square(values).max()
    if largest == 0:
        return  # nothing is predicted
    values = (values / np.sqrt(largest)).astype(np.float32)
    for part in blocks(len(S), BLOCK):
        weights = S[part, part.start :]
        predicted = values[part, None] * values[part.start :]
        weights -= np.where(predicted * weights < 0, np.float32(alpha) * predicted, np.float32(0))


def without(X: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Rows of X without their part along the unit vector w."""
    return X - np.outer(X @ w, w)
