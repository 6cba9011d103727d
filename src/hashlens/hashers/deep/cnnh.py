"""CNNH, convolutional neural network hashing: labels in, codes that factorise them out; then a network learns those."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import nn
from torch.nn import functional as F

from hashlens.data.labels import Labels, relevant
from hashlens.errors import UsageError
from hashlens.hashers.deep.base import DeepHasher


@dataclass(kw_only=True, eq=False, repr=False)
class CNNH(DeepHasher):
    """Supervised hashing by learning codes first and then a network that predicts them.

    R. Xia, Y. Pan, H. Lai, C. Liu, S. Yan, "Supervised Hashing for Image Retrieval via Image Representation Learning",
    AAAI 2014.

    First minimises ||S - H H^T / n_bits||^2 over H in [-1, 1], with S_ij = 1 where i and j share a label, else -1; then
    the mean of log(1 + exp(-sgn(h) u)) over pictures and bits.

    Parameters
    ----------
    n_sweeps : times that each entry of H is visited; 5, as we recall the publication.
    head, backbone, weights, image_size, frozen_blocks, training : as in DTSH.

    Differences from the paper: the network is ours, pretrained, where the paper trains a small one from scratch; AdamW
    with a one-cycle schedule; horizontal flips. The paper says of its second stage that each output predicts a bit;
    the logistic loss is our reading of it. A step of coordinate descent that would make the objective larger is not
    taken, where the paper discards the sweep. Its n x n residual is never formed: pictures with the same labels have
    the same row of S, so that sums over pictures become sums over the different sets of labels; the steps are the
    same. The variant that also predicts classes, CNNH+, is not here.
    """

    name = "cnnh"

    n_sweeps: int = 5

    def _loss(self, labels: Labels) -> nn.Module:
        if self.n_sweeps < 1:
            raise UsageError(f"n_sweeps must be at least 1, not {self.n_sweeps}")
        H = factorise(labels, self.n_bits, self.n_sweeps, np.random.default_rng([self.random_state, 1]))[0]
        return BitLikelihood(np.where(H > 0, 1, -1))


class BitLikelihood(nn.Module):
    """Mean over pictures and bits of softplus(-sign * u); `signs` are those of the whole training set."""

    def __init__(self, signs: np.ndarray):
        super().__init__()
        self.register_buffer("signs", torch.from_numpy(signs.astype(np.int8)))
        self.signs: torch.Tensor

    def forward(self, u: torch.Tensor, labels: Labels, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        agreement = self.signs[rows].to(u) * u
        return F.softplus(-agreement).mean(), {"active": (agreement <= 0).float().mean().item()}


def factorise(labels: Labels, n_bits: int, n_sweeps: int, rng: np.random.Generator) -> tuple[np.ndarray, list[float]]:
    """H (n, n_bits) in [-1, 1] with H H^T / n_bits near S, and ||S - H H^T / n_bits||^2 at the start and after sweeps.

    With `kind` the set of labels of each picture, S_ij = T[kind_i, kind_j], so that S H = T[kind] @ sums.T where `sums`
    adds up the rows of H of each kind.
    """
    _, first, kind = np.unique(labels.values, axis=0, return_index=True, return_inverse=True)
    kind = kind.reshape(-1)
    T = np.where(relevant(labels[first], labels[first]), 1.0, -1.0)
    H = rng.uniform(-1, 1, (len(labels), n_bits))
    values = [objective(H, kind, T)]
    for _ in range(n_sweeps):
        sums, products = _sums(H, kind, len(T)), H.T @ H
        _sweep(H, kind, T, sums, products, rng.permutation(H.size))
        values.append(objective(H, kind, T))
    return H, values


def objective(H: np.ndarray, kind: np.ndarray, T: np.ndarray) -> float:
    """||S - H H^T / n_bits||^2 from sums over kinds: the squares of S, of the product, and twice what they share."""
    counts, sums = np.bincount(kind, minlength=len(T)), _sums(H, kind, len(T))
    shared = (sums * (sums @ T)).sum() / H.shape[1]
    return float(counts @ T**2 @ counts - 2 * shared + ((H.T @ H / H.shape[1]) ** 2).sum())


def _sums(H: np.ndarray, kind: np.ndarray, n_kinds: int) -> np.ndarray:
    """(n_bits, n_kinds): the rows of each kind added up."""
    return np.stack([np.bincount(kind, column, n_kinds) for column in H.T])


@njit(nogil=True, cache=True)
def _sweep(H, kind, T, sums, products, order):  # type: ignore[no-untyped-def]
    """Visit all entries of H; `sums` of the rows of each kind and `products` H^T H follow every change.

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
        else:  # no minimum inside: the better end
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
