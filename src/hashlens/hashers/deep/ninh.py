"""NINH, network in network hashing: outputs of a batch in, hinge of its triplets on values between 0 and 1 out."""

from typing import Any

import torch

from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.heads import HEADS
from hashlens.hashers.losses import Loss, ranking_hinge, same_class, squared_distances
from hashlens.settings import setting


class NINH(DeepHasher):
    """Simultaneous feature learning and hash coding, also called DNNH.

    H. Lai, Y. Pan, Y. Liu, S. Yan, "Simultaneous Feature Learning and Hash Coding with Deep Neural Networks", CVPR
    2015.

    With f = g(sigmoid(beta u)), minimises over the triplets (query, positive, negative) the sum of
    max(0, margin + ||f_q - f_p||^2 - ||f_q - f_n||^2). g is 0 below 0.5 - epsilon, 1 above 0.5 + epsilon and the
    identity between them.

    Differences from the paper: the backbone is EfficientNet-Lite, not a network in network, and its leading blocks
    stay frozen; AdamW with a one-cycle schedule; horizontal flips. Triplets are all those in the batch, and the hinge
    is a mean over them, not a sum. By default there is no threshold g, because it has no gradient outside its narrow
    zone.
    """

    margin: float = setting(1.0, "margin in bits; paper: 1; n_bits / 8 scored higher in our trials", low=0)
    beta: float = setting(1.0, "slope of the sigmoid; our choice", above=0)
    epsilon: float = setting(0.5, "half the width in which gradients pass; 0.5: all pass", above=0, high=0.5)
    head: str = setting("divide-and-encode", "hash layer; paper: each bit sees 50 values of its own", choices=HEADS)


class NINHLoss(Loss):
    """Mean over queries of the mean of max(0, margin + D_qp - D_qn) over the query's triplets in the batch."""

    def __init__(
        self, n_bits: int, margin: float = NINH.margin, beta: float = NINH.beta, epsilon: float = NINH.epsilon
    ):
        super().__init__(n_bits)
        self.margin, self.beta, self.epsilon = margin, beta, epsilon

    def compute(self, u: torch.Tensor, labels: torch.Tensor, rows: Any) -> tuple[torch.Tensor, float]:
        values = piecewise_threshold(torch.sigmoid(self.beta * u), self.epsilon)
        return ranking_hinge(squared_distances(values), same_class(labels, labels).to(u), self.margin)


def piecewise_threshold(s: torch.Tensor, epsilon: float) -> torch.Tensor:
    """0 below 0.5 - epsilon, 1 above 0.5 + epsilon, s between them."""
    return torch.where(s > 0.5 + epsilon, 1.0, torch.where(s < 0.5 - epsilon, 0.0, s))
