"""DSRH, deep semantic ranking hashing: outputs of a batch in, ranking hinge weighted by shared labels out."""

from typing import Any

import torch

from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.losses import Loss, ranking_hinge, shared_labels
from hashlens.settings import setting


class DSRH(DeepHasher):
    """Deep semantic ranking based hashing.

    F. Zhao, Y. Huang, L. Wang, T. Tan, "Deep Semantic Ranking Based Hashing for Multi-Label Image Retrieval", CVPR
    2015.

    With h = 2 sigmoid(u) - 1, D_ij = (n_bits - h_i . h_j) / 2 and r_qi the number of labels that q and i share,
    minimises over queries q and pairs with r_qi > r_qj the sum of (2^r_qi - 2^r_qj) / Z_q max(0, D_qi - D_qj + rho),
    + alpha / 2 ||mean of h||^2.

    Differences from the paper: the backbone is EfficientNet-Lite, its leading blocks stay frozen, and the hash layer
    sees its last features alone, not those of two layers; AdamW with a one-cycle schedule, with weight decay in place
    of the paper's beta term; horizontal flips. A query's list is the rest of the batch, Z_q is the sum of its pair
    weights, and the mean of h is taken over the batch.
    """

    rho: float | None = setting(None, "margin in bits; none: n_bits / 8, our choice", low=0)
    alpha: float = setting(0.1, "weight of balanced bits; our choice", low=0)


class DSRHLoss(Loss):
    """Mean over queries of the weighted mean of max(0, D_qi - D_qj + rho), + alpha / 2 ||mean of h||^2."""

    def __init__(self, n_bits: int, rho: float | None = DSRH.rho, alpha: float = DSRH.alpha):
        super().__init__(n_bits)
        self.rho, self.alpha = n_bits / 8 if rho is None else rho, alpha

    def compute(self, u: torch.Tensor, labels: torch.Tensor, rows: Any) -> tuple[torch.Tensor, float]:
        h = torch.tanh(u / 2)  # 2 sigmoid(u) - 1
        distances = (self.n_bits - h @ h.T) / 2
        hinge, active = ranking_hinge(distances, ranking_gains(labels).to(u), self.rho)
        return hinge + self.alpha / 2 * h.mean(0).square().sum(), active


def ranking_gains(labels: torch.Tensor) -> torch.Tensor:
    """(n, n): 2 to the number of shared labels, scaled per query so that many labels do not overflow.

    The diagonal is meaningless.
    """
    shared = shared_labels(labels, labels).double().fill_diagonal_(0)
    return 2.0 ** (shared - shared.amax(1, keepdim=True))
