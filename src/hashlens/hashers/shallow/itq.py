"""ITQ, iterative quantisation: principal directions in, the rotation of them that loses least by the sign out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from hashlens.data.labels import Labels
from hashlens.errors import UsageError
from hashlens.hashers.shallow.base import LinearHasher


@dataclass(kw_only=True, eq=False, repr=False)
class ITQ(LinearHasher):
    """Iterative quantisation.

    Y. Gong, S. Lazebnik, "Iterative Quantization: A Procrustean Approach to Learning Binary Codes", CVPR 2011.

    Minimises ||B - V R||^2 over codes B and rotations R, where V are the centred features along the n_bits leading
    principal directions: B = sgn(V R) and the best R for B by turns.

    Parameters
    ----------
    n_iterations : turns; the paper's 50.

    Differences from the paper: where there are fewer features than bits, which the paper does not treat, V is filled up
    with zeros before it is rotated.
    """

    name = "itq"
    supervised = False

    n_iterations: int = 50

    def _learn_projection(self, X: np.ndarray, labels: Labels | None) -> np.ndarray:
        if self.n_iterations < 0:
            raise UsageError(f"n_iterations must not be negative, not {self.n_iterations}")
        directions = principal_directions(X, self.n_bits)
        return directions @ quantising_rotation(X @ directions, self.n_iterations, self.random_state)


def principal_directions(X: np.ndarray, n: int) -> np.ndarray:
    """(d, n): the directions in which centred rows X vary most, the first first; zeros where d < n."""
    d = X.shape[1]
    _, vectors = linalg.eigh(X.T @ X, subset_by_index=(max(0, d - n), d - 1))
    return np.pad(vectors[:, ::-1], ((0, 0), (0, max(0, n - d))))


def quantising_rotation(V: np.ndarray, n_iterations: int, random_state: int) -> np.ndarray:
    """The orthogonal R (n, n) for which V R is near its own signs."""
    n = V.shape[1]
    rotation, _ = linalg.qr(np.random.default_rng(random_state).standard_normal((n, n)))
    for _ in range(n_iterations):
        signs = np.where(V @ rotation > 0, 1.0, -1.0)
        left, _, right = linalg.svd(signs.T @ V)
        rotation = right.T @ left.T
    return rotation
