"""ITQ and CCA-ITQ, iterative quantisation: directions in, their rotation with the least quantisation error out."""

import numpy as np
from scipy import linalg

from hashlens.data.labels import Labels
from hashlens.hashers.shallow.base import LinearHasher, signs
from hashlens.hashers.shallow.spectral import NULL, eigenvectors, principal_directions, random_rotation
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
    """The orthogonal R (n, n) for which V R is near its own signs.

    With few classes and a long code most columns of V are zero: the corresponding rows of R have no effect and are
    filled up at the end. Learning them too would take twenty to a hundred times as long.
    """
    n = V.shape[1]
    rotation = random_rotation(n, np.random.default_rng(random_state))
    filled = V.any(0)
    if not filled.any():
        return rotation
    V, learned = V[:, filled], rotation[filled]
    for _ in range(n_iterations):
        left, _, right = linalg.svd(signs(V @ learned).T @ V, full_matrices=False)
        learned = right.T @ left.T  # the signs of singular vectors cancel
    rotation[filled] = learned
    if not filled.all():
        rotation[~filled] = linalg.qr(learned.T)[0][:, len(learned) :].T
    return rotation


class CCAITQ(LinearHasher):
    """Iterative quantisation after canonical correlation analysis.

    Y. Gong, S. Lazebnik, "Iterative Quantization: A Procrustean Approach to Learning Binary Codes", CVPR 2011.

    Minimises ||B - V R||^2 over codes B and rotations R as ITQ does, where V are the features along the n_bits
    directions w that are most correlated with the labels, each scaled by its correlation eta:
    C_xy (C_yy + rho I)^-1 C_yx w = eta^2 (C_xx + rho I) w, with C the covariances of features x and labels y.

    Differences from the paper: rho is relative to the mean variance of the features, and of the labels, so that it does
    not depend on their scale; it is 0.1, and 1e-4 in `published`. With c classes at most c - 1 directions are
    correlated with the labels (c, if items may have several); with more bits, the others are zero and the rotation
    spreads these few over all bits.
    """

    needs_pairs = False
    rho: float = setting(
        0.1,
        "regularisation relative to the mean variance; authors' code: 1e-4, absolute",
        published=0.0001,
        low=1e-10,
        search=(1e-4, 10.0),
    )
    n_iterations: int = setting(50, "iterations of ITQ; paper: 50", low=0)

    def _learn_projection(self, X: np.ndarray, labels: Labels) -> np.ndarray:
        directions, correlations = canonical_directions(X, labels.matrix(), self.n_bits, self.rho)
        directions = directions * correlations
        return directions @ quantising_rotation(X @ directions, self.n_iterations, self.random_state)


def canonical_directions(X: np.ndarray, Y: np.ndarray, n: int, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """(d, n) and (n,): directions of centred rows X most correlated with Y, and their correlations, largest first.

    Both are zero where no correlation is left.
    """
    Y = Y - Y.mean(0)
    Cxy = X.T @ Y / len(X)
    explained = Cxy @ linalg.solve(regularised_covariance(Y, rho), Cxy.T, assume_a="pos")
    squares, directions = eigenvectors((explained + explained.T) / 2, n, regularised_covariance(X, rho))
    squares = np.where(squares > NULL, squares, 0.0)
    directions = directions * (squares > 0)
    padding = n - len(squares)
    return np.pad(directions, ((0, 0), (0, padding))), np.pad(np.sqrt(squares), (0, padding))


def regularised_covariance(X: np.ndarray, rho: float) -> np.ndarray:
    """The covariance (d, d) of centred rows X, plus rho mean variances along the diagonal."""
    covariance = X.T @ X / len(X)
    return covariance + rho * np.diag(covariance).mean() * np.eye(len(covariance))
