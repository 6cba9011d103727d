"""CCA-ITQ: directions correlated with the labels in, the rotation of them that loses least by the sign out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from hashlens.data.labels import Labels
from hashlens.errors import UsageError
from hashlens.hashers.shallow.base import LinearHasher
from hashlens.hashers.shallow.itq import quantising_rotation


@dataclass(kw_only=True, eq=False, repr=False)
class CCAITQ(LinearHasher):
    """Iterative quantisation after canonical correlation analysis.

    Y. Gong, S. Lazebnik, "Iterative Quantization: A Procrustean Approach to Learning Binary Codes", CVPR 2011.

    Minimises ||B - V R||^2 over codes B and rotations R as ITQ does, where V are the features along the n_bits
    directions w that are most correlated with the labels, each scaled by its correlation eta:
    C_xy (C_yy + rho I)^-1 C_yx w = eta^2 (C_xx + rho I) w, with C the covariances of features x and labels y.

    Parameters
    ----------
    rho : regularisation, in units of the mean variance; 1e-4 as in the authors' code.
    n_iterations : turns of ITQ; the paper's 50.

    Differences from the paper: rho is taken relative to the mean variance of the features, and of the labels, so that
    it does not depend on the scale of the features. With c classes at most c - 1 directions are correlated with the
    labels (c, where an item may have several); where there are more bits, the others are zero and the rotation spreads
    those few over all bits.
    """

    name = "ccaitq"

    rho: float = 1e-4
    n_iterations: int = 50

    def _learn_projection(self, X: np.ndarray, labels: Labels | None) -> np.ndarray:
        assert labels is not None
        if not 1e-10 <= self.rho < np.inf:
            raise UsageError(f"rho must be a number from 1e-10 up, not {self.rho}")
        if self.n_iterations < 0:
            raise UsageError(f"n_iterations must not be negative, not {self.n_iterations}")
        directions, correlations = canonical_directions(X, labels.matrix(), self.n_bits, self.rho)
        directions = directions * correlations
        return directions @ quantising_rotation(X @ directions, self.n_iterations, self.random_state)


def canonical_directions(X: np.ndarray, Y: np.ndarray, n: int, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """(d, n) and (n,): directions of centred rows X most correlated with Y, and their correlations, greatest first.

    Both are zeros where no correlation is left.
    """
    d = X.shape[1]
    Y = Y - Y.mean(0)
    Cxy = X.T @ Y / len(X)
    explained = Cxy @ linalg.solve(regularised_covariance(Y, rho), Cxy.T, assume_a="pos")
    squares, directions = linalg.eigh(
        (explained + explained.T) / 2, regularised_covariance(X, rho), subset_by_index=(max(0, d - n), d - 1)
    )
    squares = np.where(squares > 1e-12, squares, 0.0)[::-1]  # the rest is rounding
    directions = directions[:, ::-1] * (squares > 0)
    padding = max(0, n - d)
    return np.pad(directions, ((0, 0), (0, padding))), np.pad(np.sqrt(squares), (0, padding))


def regularised_covariance(X: np.ndarray, rho: float) -> np.ndarray:
    """The covariance (d, d) of centred rows X, plus rho mean variances along the diagonal."""
    covariance = X.T @ X / len(X)
    return covariance + rho * np.diag(covariance).mean() * np.eye(len(covariance))
