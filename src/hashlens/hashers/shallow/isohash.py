"""IsoHash, isotropic hashing: principal directions in, their rotation to equal variances out."""

import numpy as np

from hashlens.hashers.shallow.base import LinearHasher
from hashlens.hashers.shallow.spectral import eigenvectors, principal_directions, random_rotation
from hashlens.settings import setting


class IsoHash(LinearHasher):
    """Isotropic hashing by lift and projection.

    W. Kong, W.-J. Li, "Isotropic Hashing", NIPS 2012.

    Minimises ||T - Z||^2 over symmetric T whose diagonal is a and over Z = Q^T Lambda Q with Q orthogonal, where Lambda
    are the variances along the n_bits leading principal directions and a is their mean: the nearest T to Z and the
    nearest Z to T, alternating. Rotated by Q, all directions have the variance a.

    Differences from the paper: where there are fewer features than bits, which the paper does not treat, the variances
    are padded with zeros before they are rotated.
    """

    supervised = False

    n_iterations: int = setting(1000, "maximum number of iterations; our choice", low=0)

    def _learn_projection(self, X: np.ndarray, labels: None) -> np.ndarray:
        directions = principal_directions(X, self.n_bits)
        variances = np.square(X @ directions).mean(0)
        return directions @ equalising_rotation(variances, self.n_iterations, self.random_state)


def equalising_rotation(variances: np.ndarray, n_iterations: int, random_state: int) -> np.ndarray:
    """The orthogonal Q (n, n) for which Q^T Lambda Q has a constant diagonal, Lambda being falling variances (n,)."""
    n = len(variances)
    Lambda = variances / variances.mean()  # so that a = 1
    Q = random_rotation(n, np.random.default_rng(random_state))
    for _ in range(n_iterations):
        Z = (Q.T * Lambda) @ Q
        if np.abs(np.diag(Z) - 1).max() < 1e-9:
            break
        np.fill_diagonal(Z, 1)
        Q = eigenvectors(Z)[1].T  # largest first, like Lambda: otherwise Q^T Lambda Q would not be the nearest
    return Q
