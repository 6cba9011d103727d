"""Eigenvectors and rotations that are the same on every machine, up to rounding.

An eigenvector may have either sign, and equal eigenvalues allow any basis of their space: by default the order of
additions inside BLAS decides, and so determines half of the bits. Here a rule decides: the basis of each eigenspace is
the one nearest, by Gram-Schmidt, to fixed random directions, which fixes the sign of a single vector. Rules based on
entries fail on common vectors: the largest entry of (1, -1) is a tie, and the sum of its cubes is zero.
"""

import numpy as np
from scipy import linalg

SAME = 1e-9  # eigenvalues nearer than this, relative to the largest, count as equal
NULL = 1e-12  # eigenvalues below this, relative to the largest, are zero up to rounding


def eigenvectors(A: np.ndarray, n: int | None = None, B: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The n largest eigenvalues of symmetric A (m, m) or, with B, of A v = w B v, largest first, and their vectors.

    By default, or if m < n, all m.
    """
    m = len(A)
    n = m if n is None else min(n, m)
    values, vectors = linalg.eigh(A, B, subset_by_index=(max(0, m - n - 1), m - 1))  # one more, to detect a tie
    if n < m and values[1] - values[0] <= SAME * np.abs(values).max():
        values, vectors = linalg.eigh(A, B)
    values, vectors = values[::-1], settled(values[::-1], vectors[:, ::-1])
    return values[:n], vectors[:, :n]


def leading_eigenvector(F: np.ndarray, C: np.ndarray) -> np.ndarray:
    """(m,): the leading eigenvector of F C F^T, for F (m, r) and symmetric C (r, r); much faster for r < m."""
    if 1 < F.shape[1] < len(F):
        Q, R = linalg.qr(F, mode="economic")
        values, vectors = linalg.eigh(R @ C @ R.T, subset_by_index=(F.shape[1] - 2, F.shape[1] - 1))
        if values[1] - max(values[0], 0) > SAME * np.abs(values).max():  # no tie, not even with the null space
            return settled(values[::-1], Q @ vectors[:, ::-1])[:, 0]
    return eigenvectors(F @ C @ F.T, 1)[1][:, 0]


def settled(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The same eigenvectors (m, n) of descending eigenvalues (n,), with signs and bases by the rule above."""
    drawn = np.random.default_rng(0).standard_normal(vectors.shape)
    vectors = vectors * np.where((vectors * drawn).sum(0) < 0, -1.0, 1.0)
    ends = np.flatnonzero(-np.diff(values) > SAME * np.abs(values).max()) + 1
    for group in np.split(np.arange(len(values)), ends):
        if len(group) > 1:
            vectors[:, group] = vectors[:, group] @ orthonormal(vectors[:, group].T @ drawn[:, group])
    return vectors


def orthonormal(M: np.ndarray) -> np.ndarray:
    """The columns of M made orthonormal one after another, without changing any sign."""
    Q, R = linalg.qr(M, mode="economic")
    return Q * np.where(np.diag(R) < 0, -1.0, 1.0)


def random_rotation(n: int, rng: np.random.Generator) -> np.ndarray:
    """A random orthogonal matrix (n, n)."""
    return orthonormal(rng.standard_normal((n, n)))


def principal_directions(X: np.ndarray, n: int) -> np.ndarray:
    """(d, n): the directions in which centred rows X vary most, in that order; zeros beyond the rank of X."""
    values, vectors = eigenvectors(X.T @ X, n)
    return np.pad(vectors * (values > NULL * values[0]), ((0, 0), (0, n - len(values))))
