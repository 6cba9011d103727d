"""NINH, network in network hashing: outputs of a batch in, hinge of its triplets on values between 0 and 1 out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hashlens.data.labels import Labels, relevant
from hashlens.errors import UsageError
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.hinge import ranking_hinge, squared_distances


@dataclass(kw_only=True, eq=False, repr=False)
class NINH(DeepHasher):
    """Simultaneous feature learning and hash coding, also called DNNH.

    H. Lai, Y. Pan, Y. Liu, S. Yan, "Simultaneous Feature Learning and Hash Coding with Deep Neural Networks", CVPR
    2015.

    With f = g(sigmoid(beta u)), minimises over the triplets (query, positive, negative) the sum of
    max(0, margin + ||f_q - f_p||^2 - ||f_q - f_n||^2). g is 0 below 0.5 - epsilon, 1 above 0.5 + epsilon and the value
    itself between them.

    Parameters
    ----------
    margin : in bits, since f lies between 0 and 1; the paper's 1. An eighth of the bits scored higher in our trials.
    beta : slope of the sigmoid; 1 is ours.
    epsilon : half the width in which g lets values and gradients pass; 0.5, ours, lets all pass.
    head : "divide-and-encode", the paper's: each bit sees 50 values of its own.
    backbone, weights, image_size, frozen_blocks, training : as in DTSH.

    Differences from the paper: the backbone is EfficientNet-Lite, not a network in network, and its leading blocks
    stay frozen; AdamW with a one-cycle schedule; horizontal flips. Triplets are all those in the batch, and the hinge
    is a mean over them, not a sum. There is no threshold g by default: beyond its narrow zone nothing is learnt.
    """

    name = "ninh"

    margin: float = 1.0
    beta: float = 1.0
    epsilon: float = 0.5
    head: str = "divide-and-encode"

    def _loss(self, labels: Labels) -> nn.Module:
        if not 0 < self.epsilon <= 0.5:
            raise UsageError(f"epsilon must be above 0 and at most 0.5, not {self.epsilon}")
        return TripletHinge(self.margin, self.beta, self.epsilon)


class TripletHinge(nn.Module):
    """Mean over queries of the mean of max(0, margin + D_qp - D_qn) over the query's triplets in the batch."""

    def __init__(self, margin: float, beta: float, epsilon: float):
        super().__init__()
        self.margin = margin
        self.beta = beta
        self.epsilon = epsilon

    def forward(self, u: torch.Tensor, labels: Labels, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        values = piecewise_threshold(torch.sigmoid(self.beta * u), self.epsilon)
        same = torch.from_numpy(relevant(labels, labels)).to(u)
        hinge, active = ranking_hinge(squared_distances(values), same, self.margin)
        return hinge, {"active": active}


def piecewise_threshold(s: torch.Tensor, epsilon: float) -> torch.Tensor:
    """0 below 0.5 - epsilon, 1 above 0.5 + epsilon, s between them."""
    return torch.where(s > 0.5 + epsilon, 1.0, torch.where(s < 0.5 - epsilon, 0.0, s))
