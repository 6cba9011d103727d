"""The second code: features under a hash layer in, a projection out whose signs are a longer code of an image.

It is ITQ, fitted without labels: it keeps what the features know about an image, while the first code keeps what the
labels asked for. So it tells apart images with the same first code, and works for unseen classes.
"""

import numpy as np
from scipy import linalg

from hashlens.hashers.shallow.itq import quantising_rotation
from hashlens.hashers.shallow.spectral import principal_directions

ROWS = 20_000  # that it is fitted on; more change nothing
N_ITERATIONS = 50  # of ITQ, as in its paper


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
    """The same as `principal_directions`; with fewer rows than columns far faster, in their space."""
    if len(X) >= X.shape[1]:
        return principal_directions(X, n)
    basis = linalg.qr(X.T, mode="economic")[0]
    return basis @ principal_directions(X @ basis, n)
