"""ITQ, iterative quantisation: principal directions in, the rotation that the sign changes least out."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from hashlens.hashers.shallow.base import LinearHasher, signs
from hashlens.hashers.shallow.spectral import principal_directions, random_rotation
from hashlens.settings import setting


class ITQ(LinearHasher):
    """Iterative quantisation.

    Y. Gong, S. Lazebnik, "Iterative Quantization: A Procrustean Approach to Learning Binary Codes", CVPR 2011.

    Minimises ||B - V R||^2 over codes B and rotations R, where V are the centred features along the n_bits leading
    principal directions: B = sgn(V R) and the best R for B, alternating.

    Differences from the paper: where there are fewer features than bits, which the paper does not treat, V is filled up
    with zeros before it is rotated.
    """

    supervised = False

    n_iterations: int = setting(50, "number of iterations; paper: 50", low=0)

    def _learn_projection(self, X: np.ndarray, labels: None) -> np.ndarray:
        directions = principal_directions(X, self.n_bits)
        return directions @ quantising_rotation(X @ directions, self.n_iterations, self.random_state)


def quantising_rotation(V: np.ndarray, n_iterations: int, random_state: int) -> np.ndarray:
    """The orthogonal R (n, n) for which V R is near its own signs."""
    n = V.shape[1]
    rotation = random_rotation(n, np.random.default_rng(random_state))
    for _ in range(n_iterations):
        left, _, right = linalg.svd(signs(V @ rotation).T @ V)
        rotation = right.T @ left.T  # where V is not zero, the signs of singular vectors cancel
    return rotation
