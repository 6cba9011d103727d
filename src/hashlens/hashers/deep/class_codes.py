"""Codes of classes in closed form: features and labels in, one code per class that follows the geometry of the classes.

Classes that look alike get codes near each other, but any two codes differ in at least a few bits.
"""

import numpy as np
from scipy import linalg, sparse

from hashlens.data.labels import Labels
from hashlens.hashers.shallow.base import signs
from hashlens.hashers.shallow.itq import quantising_rotation
from hashlens.hashers.shallow.spectral import NULL, eigenvectors

ROTATIONS = 50  # iterations, as in ITQ
RIDGE = 1.0  # on the covariance within classes, relative to its mean eigenvalue
SHRINKAGE = 0.1  # ridge of the regression, relative in the same way
TURNS = 20  # bits flipped per class before `separated` gives up


def class_codes(features: np.ndarray, labels: Labels, n_bits: int, apart: int, random_state: int) -> np.ndarray:
    """(n_classes, n_bits) of -1 and 1, float32; any two differ in at least `apart` bits, if there is room.

    The mean features of the classes are whitened by the covariance within classes, projected onto the directions in
    which they differ most, and rotated to be near their own signs.
    """
    means, within = class_statistics(features, labels)
    ridge = RIDGE * np.trace(within) / len(within) or 1.0  # 0 with a single image per class
    root = linalg.cholesky(within + ridge * np.eye(len(within)), lower=True)
    white = linalg.solve_triangular(root, means.T, lower=True).T
    white -= white.mean(0)
    # the principal coordinates of c classes in d dimensions need the smaller of a (c, c) and a (d, d) matrix
    if len(white) < white.shape[1]:
        values, vectors = eigenvectors(white @ white.T, min(n_bits, len(white)))
        places = vectors * np.sqrt(values.clip(0))
    else:
        values, vectors = eigenvectors(white.T @ white, n_bits)
        places = white @ vectors
    places = places * (values > NULL * values[0])
    places = np.pad(places, ((0, 0), (0, n_bits - places.shape[1])))
    return separated(places @ quantising_rotation(places, ROTATIONS, random_state), apart).astype(np.float32)


def class_statistics(features: np.ndarray, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Mean features (c, d) of each class, and the covariance (d, d) of images around the mean of their classes."""
    has = memberships(labels)
    per_image = has.sum(1)
    means = has.T @ features / np.maximum(labels.counts(), 1)[:, None]
    expected = has @ means / np.maximum(per_image, 1)[:, None]
    rest = (features - expected)[per_image > 0]
    return means, rest.T @ rest / max(1, len(rest))


def memberships(labels: Labels) -> sparse.csr_array:
    """(n, n_classes) of 0 and 1; sparse, because thousands of classes would not fit in memory."""
    if labels.multi:
        return sparse.csr_array(labels.values, dtype=np.float64)
    n = len(labels)
    return sparse.csr_array((np.ones(n), labels.values, np.arange(n + 1)), (n, labels.n_classes))


def separated(values: np.ndarray, apart: int) -> np.ndarray:
    """The signs of `values` (c, n_bits), the cheapest of them flipped until any two rows differ in `apart` places.

    Flipping a sign costs its absolute value. Without enough room, rows are as far apart as a few flips get them.
    """
    codes = signs(values)
    c, n_bits = codes.shape
    price = np.abs(values) / max(np.abs(values).mean(), np.finfo(float).tiny)
    distance = (n_bits - codes @ codes.T) / 2
    np.fill_diagonal(distance, np.inf)
    nearest = distance.min(1)
    for _ in range(TURNS * c):
        a = int(nearest.argmin())
        if nearest[a] >= apart:
            break
        b = int(distance[a].argmin())
        best: tuple[float, int, int] | None = None
        for row in (a, b):
            agreeing = np.flatnonzero(codes[a] == codes[b])
            moved = distance[row] + codes[row, agreeing, None] * codes[:, agreeing].T  # (agreeing, c)
            crowded = (np.maximum(0, apart - moved) ** 2).sum(1) - (np.maximum(0, apart - distance[row]) ** 2).sum()
            back = codes[row, agreeing] != np.where(values[row, agreeing] > 0, 1, -1)  # flipped before
            total = np.where(back, -1, 1) * price[row, agreeing] + crowded / 2
            k = int(total.argmin())
            if best is None or total[k] < best[0]:
                best = float(total[k]), row, int(agreeing[k])
        assert best is not None
        _, row, bit = best
        change = codes[row, bit] * codes[:, bit]
        left_behind = np.flatnonzero((distance[row] == nearest) & (change > 0))  # rows whose nearest was `row`
        distance[row] += change
        distance[:, row] = distance[row]
        codes[row, bit] *= -1
        price[row, bit] += 0.2  # otherwise two rows could flip the same bits for ever
        nearest = np.minimum(nearest, distance[row])
        for one in (row, *left_behind):
            nearest[one] = distance[one].min()
    return codes


def ridge_regression(features: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights (d, m) and bias (m,) that predict targets from features."""
    centre, level = features.mean(0), targets.mean(0)
    centred = features - centre
    gram = centred.T @ centred
    gram[np.diag_indices_from(gram)] += SHRINKAGE * np.trace(gram) / len(gram)
    weights = linalg.solve(gram, centred.T @ (targets - level), assume_a="pos")
    return weights, level - centre @ weights
