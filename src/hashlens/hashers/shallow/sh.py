"""SH, spectral hashing: principal directions in, the signs of the slowest waves along them out."""

import numpy as np

from hashlens.hashers.shallow.base import LinearHasher
from hashlens.hashers.shallow.spectral import principal_directions


class SH(LinearHasher):
    """Spectral hashing.

    Y. Weiss, A. Torralba, R. Fergus, "Spectral Hashing", NIPS 2008.

    Minimises sum_ij A_ij |b_i - b_j|^2 over balanced and uncorrelated codes b, A_ij being the similarity of two items.
    Without the signs, and with items spread evenly over a box along the n_bits leading principal directions, the
    solutions are waves cos(k pi (p - a) / R) along one direction, where p goes from a to a + R; the n_bits of them with
    the lowest frequency k / R are taken, k >= 1.

    Differences from the paper: none known. As in the authors' code, the box reaches from the smallest to the
    largest value, and waves along several directions at once are left out. Where there are fewer features than bits,
    the bits are waves along the directions there are.
    """

    deterministic = True
    supervised = False

    def _learn_projection(self, X: np.ndarray, labels: None) -> np.ndarray:
        directions = principal_directions(X, min(self.n_bits, X.shape[1]))
        along = X @ directions
        low, ranges = along.min(0), np.ptp(along, axis=0)
        axes, waves = slowest_waves(ranges, self.n_bits)
        frequencies = np.pi * waves / ranges[axes]
        self.phases_ = -frequencies * low[axes]
        return directions[:, axes] * frequencies

    def _project(self, X: np.ndarray) -> np.ndarray:
        return np.cos(super()._project(X) + self.phases_)


def slowest_waves(ranges: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n waves of lowest frequency k / range, slowest first: the axis (n,) and the number k >= 1 (n,) of each."""
    wide = np.flatnonzero(ranges >= ranges.max() / n)  # the longest axis has n waves slower than any along shorter ones
    axes, waves = np.meshgrid(wide, np.arange(1, n + 1), indexing="ij")
    order = np.argsort(waves / ranges[axes], axis=None, kind="stable")[:n]
    return axes.ravel()[order], waves.ravel()[order]
