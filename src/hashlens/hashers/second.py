"""The second code: features under the hash layer in, a projection whose signs are a longer code out.

It is ITQ, fitted without labels: it preserves the features of an image, while the first code preserves its labels. So
it distinguishes images with equal first codes, and works for unseen classes.
"""

import numpy as np
from scipy import linalg

from hashlens.hashers.shallow.itq import quantising_rotation
from hashlens.hashers.shallow.spectral import principal_directions

ROWS = 20_000  # to fit on; more make no difference
N_ITERATIONS = 50  # ITQ iterations, as in its paper


def learn_second(features: np.ndarray, n_bits: int, random_state: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean (d,) and projection (d, n_bits); bit 1 where (x - mean) W > 0."""
    if len(features) > ROWS:
        drawn = np.random.default_rng(random_state).choice(len(features), ROWS, replace=False)
        features = features[np.sort(drawn)]
    X = features.astype(np.float64)
    mean = X.mean(0)
    X -= mean
    directions = _principal_directions(X, n_bits)
    return mean, directions @ quantising_rotation(X @ directions, N_ITERATIONS, random_state)


def _principal_directions(X: np.ndarray, n: int) -> np.ndarray:
    """Like `principal_directions`, but far faster with fewer rows than columns."""
    if len(X) >= X.shape[1]:
        return principal_directions(X, n)
    basis = linalg.qr(X.T, mode="economic")[0]
    return basis @ principal_directions(X @ basis, n)
