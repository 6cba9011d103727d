"""IsoHash, isotropic hashing: principal directions in, a rotation of them that all vary alike out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from hashlens.data.labels import Labels
from hashlens.errors import UsageError
from hashlens.hashers.shallow.base import LinearHasher
from hashlens.hashers.shallow.itq import principal_directions


@dataclass(kw_only=True, eq=False, repr=False)
class IsoHash(LinearHasher):
    """Isotropic hashing by lift and projection.

    W. Kong, W.-J. Li, "Isotropic Hashing", NIPS 2012.

    Minimises ||T - Z||^2 over symmetric T whose diagonal is a and over Z = Q^T Lambda Q with Q orthogonal, where Lambda
    are the variances along the n_bits leading principal directions and a is their mean: the nearest T to Z and the
    nearest Z to T by turns. Rotated by Q, all directions have the variance a.

    Parameters
    ----------
    n_iterations : the most turns; ours. They end when no variance is further from a than one part in 10^9.

    Differences from the paper: where there are fewer features than bits, which the paper does not treat, the variances
    are filled up with zeros before they are rotated.
    """

    name = "isohash"
    supervised = False

    n_iterations: int = 1000

    def _learn_projection(self, X: np.ndarray, labels: Labels | None) -> np.ndarray:
        if self.n_iterations < 0:
            raise UsageError(f"n_iterations must not be negative, not {self.n_iterations}")
        directions = fix_signs(principal_directions(X, self.n_bits))
        variances = np.square(X @ directions).mean(0)
        return directions @ equalising_rotation(variances, self.n_iterations, self.random_state)


def equalising_rotation(variances: np.ndarray, n_iterations: int, random_state: int) -> np.ndarray:
    """The orthogonal Q (n, n) for which Q^T Lambda Q has a constant diagonal, Lambda being falling variances (n,)."""
    n = len(variances)
    Lambda = variances / variances.mean()  # so that a = 1
    Q, _ = linalg.qr(np.random.default_rng(random_state).standard_normal((n, n)))
    for _ in range(n_iterations):
        Z = (Q.T * Lambda) @ Q
        if np.abs(np.diag(Z) - 1).max() < 1e-9:
            break
        np.fill_diagonal(Z, 1)
        _, vectors = linalg.eigh(Z)
        Q = vectors[:, ::-1].T  # greatest first, as Lambda: only then is Q^T Lambda Q the nearest
    return fix_signs(Q.T).T


def fix_signs(vectors: np.ndarray) -> np.ndarray:
    """Columns whose greatest entry is positive; else rounding would choose the signs of eigenvectors, so the codes."""
    greatest = np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], axis=0)
    return vectors * np.where(greatest < 0, -1.0, 1.0)
