"""CNNH, convolutional neural network hashing: labels in, a network that predicts their factors out."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch.nn import functional as F

from hashlens.data.labels import Labels, relevant
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.losses import Loss
from hashlens.settings import setting


class CNNH(DeepHasher):
    """Supervised hashing that learns codes first and then a network that predicts them.

    R. Xia, Y. Pan, H. Lai, C. Liu, S. Yan, "Supervised Hashing for Image Retrieval via Image Representation Learning",
    AAAI 2014.

    First minimises ||S - H H^T / n_bits||^2 over H in [-1, 1], with S_ij = 1 where i and j share a label, else -1; then
    the mean of log(1 + exp(-sgn(h) u)) over images and bits.

    Differences from the paper: the network is ours, pretrained, where the paper trains a small one from scratch; AdamW
    with a one-cycle schedule; horizontal flips. The paper says that each output of its second stage predicts a bit; the
    logistic loss is our reading of that. A step of coordinate descent that would increase the objective is not taken,
    where the paper discards the sweep. Its n x n residual is never formed: images with the same labels have the same
    row of S, so sums over images become sums over distinct label sets, with the same steps. The variant that also
    predicts classes, CNNH+, is not implemented.
    """

    n_sweeps: int = setting(5, "passes over the entries of the factor; paper, as we recall it: 5", low=1)


class CNNHLoss(Loss):
    """Mean over images and bits of softplus(-sign * u); the signs of the whole training set come from its `labels`."""

    needs_labels, needs_rows = False, True
    signs: torch.Tensor

    def __init__(self, n_bits: int, labels: Any, n_sweeps: int = CNNH.n_sweeps, random_state: int = 0):
        super().__init__(n_bits)
        H = factorise(Labels.of(labels), n_bits, n_sweeps, np.random.default_rng([random_state, 1]))
        self.register_buffer("signs", torch.from_numpy(np.where(H > 0, 1, -1).astype(np.int8)))

    def compute(self, u: torch.Tensor, labels: Any, rows: np.ndarray) -> tuple[torch.Tensor, float]:
        agreement = self.signs[rows].to(u) * u
        return F.softplus(-agreement).mean(), (agreement <= 0).float().mean().item()


def factorise(labels: Labels, n_bits: int, n_sweeps: int, rng: np.random.Generator) -> np.ndarray:
    """H (n, n_bits) in [-1, 1] with H H^T / n_bits near S.

    `kind` is the label set of each image: S_ij = T[kind_i, kind_j], so S H = T[kind] @ sums.T, where `sums` adds up the
    rows of H of each kind.
    """
    _, first, kind = np.unique(labels.values, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    T = np.where(relevant(labels[first], labels[first]), 1.0, -1.0)
    H = rng.uniform(-1, 1, (len(labels), n_bits))
    for _ in range(n_sweeps):
        sums, products = _sums(H, kind, len(T)), H.T @ H
        _sweep(H, kind, T, sums, products, rng.permutation(H.size))
    return H


def _sums(H: np.ndarray, kind: np.ndarray, n_kinds: int) -> np.ndarray:
    """(n_bits, n_kinds): the rows of each kind added up."""
    return np.stack([np.bincount(kind, column, n_kinds) for column in H.T])


@njit(nogil=True, cache=True)
def _sweep(H, kind, T, sums, products, order):  # type: ignore[no-untyped-def]
    """Visit all entries of H; `sums` (rows of H per kind) and `products` (H^T H) are updated with every change.

    With R = H H^T - n_bits S and g1, g2 the derivatives of ||R||^2 in H_ij, a step t changes it by exactly
    g1 t + g2 t^2 / 2 + 4 H_ij t^3 + t^4.
    """
    n_bits = H.shape[1]
    for place in order:
        i, j = place // n_bits, place % n_bits
        row, near = H[i], T[kind[i]]
        g1 = 4 * (np.dot(row, products[j]) - n_bits * np.dot(near, sums[j]))
        g2 = 4 * (products[j, j] + row[j] ** 2 + np.dot(row, row) - n_bits * near[kind[i]])
        down, up = -1 - row[j], 1 - row[j]
        if g2 > 0:
            t = min(max(-g1 / g2, down), up)
        else:  # no minimum inside: take the better end
            t = down if _change(g1, g2, row[j], down) < _change(g1, g2, row[j], up) else up
        if _change(g1, g2, row[j], t) < 0:
            products[j] += t * row
            products[:, j] += t * row
            products[j, j] += t * t
            sums[j, kind[i]] += t
            row[j] += t


@njit(nogil=True, cache=True)
def _change(g1, g2, h, t):  # type: ignore[no-untyped-def]
    return t * (g1 + t * (g2 / 2 + t * (4 * h + t)))
