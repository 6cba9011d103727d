"""SIKH, shift-invariant kernel hashing: random waves in, signs of their values relative to thresholds out."""

import numpy as np

from hashlens.hashers.shallow.base import LinearHasher, draw_rows, squared_distances
from hashlens.machine import blocks
from hashlens.settings import setting

NEIGHBOUR = 50  # gamma depends on the distance to this neighbour
SAMPLE = 1000  # rows whose neighbours are searched
BLOCK = 100  # rows at a time: their distances to 59,000 rows take 47 MB


class SIKH(LinearHasher):
    """Locality sensitive hashing for shift-invariant kernels, also called SKLSH.

    M. Raginsky, S. Lazebnik, "Locality-Sensitive Binary Codes from Shift-Invariant Kernels", NIPS 2009.

    Minimises nothing: a bit is sgn(cos(r . x + b) + t) with r from N(0, gamma I), b from [0, 2 pi] and t from [-1, 1],
    all uniform but r. Two items differ in a bit with a probability that depends on their kernel
    exp(-gamma |x - y|^2 / 2) alone and is never above 4 / pi^2.

    Differences from the paper: x is centred by the training mean, which changes no probability; s is the mean over at
    most 1,000 rows, each compared with all rows; with 50 rows or fewer the farthest row replaces the 50th neighbour,
    and if that many rows are equal, s is the root of the mean squared distance of two rows.
    """

    supervised = False

    gamma: float | None = setting(
        None, "inverse squared kernel width; none: 1 / s^2, s the mean distance to the 50th nearest neighbour", above=0
    )

    def _learn_projection(self, X: np.ndarray, labels: None) -> np.ndarray:
        gamma = neighbour_distance(X, self.random_state) ** -2 if self.gamma is None else self.gamma
        rng = np.random.default_rng(self.random_state)
        directions = np.sqrt(gamma) * rng.standard_normal((X.shape[1], self.n_bits))
        self.phases_ = rng.uniform(0, 2 * np.pi, self.n_bits)
        self.thresholds_ = rng.uniform(-1, 1, self.n_bits)
        return directions

    def _project(self, X: np.ndarray) -> np.ndarray:
        return np.cos(super()._project(X) + self.phases_) + self.thresholds_


def neighbour_distance(X: np.ndarray, random_state: int) -> float:
    """The mean distance of a centred row to its 50th nearest neighbour, estimated from some of the rows."""
    rank = min(NEIGHBOUR, len(X) - 1)  # a row is its own neighbour number 0
    rows = draw_rows(X, SAMPLE, random_state)
    parts = (squared_distances(rows[part], X) for part in blocks(len(rows), BLOCK))
    squared = [np.partition(part, rank, axis=1)[:, rank] for part in parts]
    distance = float(np.sqrt(np.concatenate(squared)).mean())
    typical = float(np.sqrt(2 * np.square(X).sum(1).mean()))
    return distance if distance > 1e-6 * typical else typical  # smaller distances are rounding errors of equal rows
