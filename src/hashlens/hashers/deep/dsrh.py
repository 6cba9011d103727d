"""DSRH, deep semantic ranking hashing: outputs of a batch in, ranking hinge weighted by shared labels out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hashlens.data.labels import Labels
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.hinge import ranking_hinge


@dataclass(kw_only=True, eq=False, repr=False)
class DSRH(DeepHasher):
    """Deep semantic ranking based hashing.

    F. Zhao, Y. Huang, L. Wang, T. Tan, "Deep Semantic Ranking Based Hashing for Multi-Label Image Retrieval", CVPR
    2015.

    With h = 2 sigmoid(u) - 1, D_ij = (n_bits - h_i . h_j) / 2 and r_qi the number of labels that q and i share,
    minimises over queries q and pairs with r_qi > r_qj the sum of (2^r_qi - 2^r_qj) / Z_q max(0, D_qi - D_qj + rho),
    + alpha / 2 ||mean of h||^2.

    Parameters
    ----------
    rho : margin in bits; an eighth of the bits if None. Ours, the paper's is not known to us.
    alpha : weight of the balance of bits; 0.1 is ours.
    head, backbone, weights, image_size, frozen_blocks, training : as in DTSH.

    Differences from the paper: the backbone is EfficientNet-Lite, its leading blocks stay frozen, and the hash layer
    sees its last features alone, not those of two layers; AdamW with a one-cycle schedule, whose weight decay stands
    for the paper's term beta; horizontal flips. The list of a query is the rest of the batch, Z_q the sum of the
    weights of its pairs, and the mean of h is that of the batch.
    """

    name = "dsrh"

    rho: float | None = None
    alpha: float = 0.1

    def _loss(self, labels: Labels) -> nn.Module:
        return SemanticRanking(self.n_bits / 8 if self.rho is None else self.rho, self.alpha)


class SemanticRanking(nn.Module):
    """Mean over queries of the weighted mean of max(0, D_qi - D_qj + rho), + alpha / 2 ||mean of h||^2."""

    def __init__(self, rho: float, alpha: float):
        super().__init__()
        self.rho = rho
        self.alpha = alpha

    def forward(self, u: torch.Tensor, labels: Labels, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        h = torch.tanh(u / 2)  # 2 sigmoid(u) - 1
        distances = (h.shape[1] - h @ h.T) / 2
        hinge, active = ranking_hinge(distances, torch.from_numpy(ranking_gains(labels)).to(u), self.rho)
        return hinge + self.alpha / 2 * h.mean(0).square().sum(), {"active": active}


def ranking_gains(labels: Labels) -> np.ndarray:
    """(n, n): 2 to the number of shared labels, up to a factor for each query that keeps many labels from overflowing.

    That of a query with itself means nothing.
    """
    shared = labels.matrix() @ labels.matrix().T
    np.fill_diagonal(shared, 0)
    return 2.0 ** (shared - shared.max(1, keepdims=True))
