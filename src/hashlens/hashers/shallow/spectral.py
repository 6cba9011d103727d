"""Eigenvectors and rotations that are the same on every machine, up to rounding.

An eigenvector may point either way, and where eigenvalues are equal any basis of their space will do: left alone, the
order of additions inside BLAS decides, and with it half of the bits. Here a rule decides: the basis of each eigenspace
is the one nearest, by Gram and Schmidt, to fixed random directions, which for a single vector fixes its sign. A rule
by entries fails on common vectors: the largest entry of (1, -1) is a tie, and the sum of its cubes is zero.
"""

import numpy as np
from scipy import linalg

SAME = 1e-9  # eigenvalues nearer than this, relative to the largest, count as equal
NULL = 1e-12  # those below this, relative to the largest, are what rounding leaves of zero


def eigenvectors(A: np.ndarray, n: int | None = None, B: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The n largest eigenvalues of symmetric A (m, m) or, with B, of A v = w B v, the largest first; and their vectors.

    All m by default, and where there are fewer than n.
    """
    m = len(A)
    n = m if n is None else min(n, m)
    values, vectors = linalg.eigh(A, B, subset_by_index=(max(0, m - n - 1), m - 1))  # and one more, to see a tie
    if n < m and values[1] - values[0] <= SAME * np.abs(values).max():
        values, vectors = linalg.eigh(A, B)
    values, vectors = values[::-1], settled(values[::-1], vectors[:, ::-1])
    return values[:n], vectors[:, :n]


def leading_eigenvector(F: np.ndarray, C: np.ndarray) -> np.ndarray:
    """(m,): that of the largest eigenvalue of F C F^T, for F (m, r) and symmetric C (r, r); for r < m much faster."""
    if 1 < F.shape[1] < len(F):
        Q, R = linalg.qr(F, mode="economic")
        values, vectors = linalg.eigh(R @ C @ R.T, subset_by_index=(F.shape[1] - 2, F.shape[1] - 1))
        if values[1] - max(values[0], 0) > SAME * np.abs(values).max():  # no tie, nor one with what F leaves out
            return settled(values[::-1], Q @ vectors[:, ::-1])[:, 0]
    return eigenvectors(F @ C @ F.T, 1)[1][:, 0]


def settled(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The same eigenvectors (m, n) of falling eigenvalues (n,), with signs and bases by the rule above."""
    drawn = np.random.default_rng(0).standard_normal(vectors.shape)
    vectors = vectors * np.where((vectors * drawn).sum(0) < 0, -1.0, 1.0)
    ends = np.flatnonzero(-np.diff(values) > SAME * np.abs(values).max()) + 1
    for group in np.split(np.arange(len(values)), ends):
        if len(group) > 1:
            vectors[:, group] = vectors[:, group] @ orthonormal(vectors[:, group].T @ drawn[:, group])
    return vectors


def orthonormal(M: np.ndarray) -> np.ndarray:
    """The columns of M made orthonormal one after another, none of them turned around."""
    Q, R = linalg.qr(M, mode="economic")
    return Q * np.where(np.diag(R) < 0, -1.0, 1.0)


def random_rotation(n: int, rng: np.random.Generator) -> np.ndarray:
    """A random orthogonal matrix (n, n)."""
    return orthonormal(rng.standard_normal((n, n)))


def principal_directions(X: np.ndarray, n: int) -> np.ndarray:
    """(d, n): the directions in which centred rows X vary most, in that order; zeros beyond the rank of X."""
    values, vectors = eigenvectors(X.T @ X, n)
    return np.pad(vectors * (values > NULL * values[0]), ((0, 0), (0, n - len(values))))
