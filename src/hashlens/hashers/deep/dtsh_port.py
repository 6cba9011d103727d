"""DTSH as its well-known port has it, one difference at a time: outputs of a batch in, likelihood of its triplets out.

The port to PyTorch that most later comparisons use differs from the authors' released code in six ways. Four of them
are settings that DTSH has (`port_settings`); the other two are written here. It is no method of its own and has no
row in METHODS: it exists for the ablation that asks how much of the difference between printed numbers is the port's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hashlens.data.labels import Labels, relevant
from hashlens.hashers.deep.dtsh import (
    DTSH,
    TRIPLETS_PER_QUERY,
    BankTripletLikelihood,
    quantisation_error,
)

DIFFERENCES = {
    1: "theta is u · u, not half of it",
    2: "margin 5, not half the bits",
    3: "quantisation weighs 1 against the mean over bits, not 100 against the sum over 22,500 triplets",
    4: "all triplets inside the batch, gradient through all three; not drawn from a memory, gradient through the query",
    5: "a picture is its own positive (only where triplets are inside the batch, so together with 4)",
    6: "RMSprop at 1e-5, half as many epochs again; not SGD at 5e-4 in steps",
}


@dataclass(kw_only=True, eq=False, repr=False)
class DTSHPort(DTSH):
    """DTSH with the two differences of its port that are no settings of DTSH.

    X. Wang, Y. Shi, K. Kitani, "Deep Supervised Hashing with Triplet Labels", ACCV 2016, as in the port.

    Minimises what DTSH does, with theta_ij = product u_i . u_j.

    Parameters
    ----------
    product : 1/2 in the paper, 1 in the port.
    own_positive : whether a picture counts as its own positive, as in the port; only with sampling="in-batch".
    others : as in DTSH.

    Differences from the port: log(1 + exp(T)) is computed without its clamp of T to [-100, 50], outside of which the
    port has no gradient.
    """

    name = "dtsh-port"

    product: float = 0.5
    own_positive: bool = False
    sampling: str = "published"

    def _loss(self, labels: Labels) -> nn.Module:
        if self.sampling == "in-batch":
            return PortLikelihood(*self._weights(), self.product, self.own_positive)
        loss = super()._loss(labels)
        assert isinstance(loss, BankTripletLikelihood)
        loss.product = self.product
        return loss


class PortLikelihood(nn.Module):
    """Mean over queries of [mean of softplus(-T) over the query's triplets in the batch + lambda ||u - sgn(u)||^2]."""

    def __init__(self, alpha: float, lambda_bar: float, product: float, own_positive: bool):
        super().__init__()
        self.alpha = alpha
        self.lambda_bar = lambda_bar
        self.product = product
        self.own_positive = own_positive

    def forward(self, u: torch.Tensor, labels: Labels, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        same = torch.from_numpy(relevant(labels, labels)).to(u.device)
        itself = torch.eye(len(u), dtype=torch.bool, device=u.device)
        positives = same if self.own_positive else same & ~itself
        quantisation = self.lambda_bar * quantisation_error(u)
        n_triplets = positives.sum(1) * (~same).sum(1)  # of each query
        if not n_triplets.any():
            return quantisation + u.sum() * 0, {"active": 0.0}
        theta = self.product * u @ u.T
        query, positive = torch.nonzero(positives, as_tuple=True)
        gap = theta[query, positive][:, None] - theta[query] - self.alpha  # (pairs, n)
        negative = ~same[query]
        weight = 1 / (n_triplets.clamp(min=1) * (n_triplets > 0).sum())  # of a triplet of each query
        nll = (F.softplus(-gap) * negative).sum(1) @ weight[query].to(u)
        active = ((gap < 0) & negative).sum() / n_triplets.sum()
        return nll + quantisation, {"active": active.item()}


def port_settings(differences: tuple[int, ...], n_bits: int, n_train: int, epochs: int = 100) -> dict[str, Any]:
    """Parameters of DTSHPort for the authors' released code but for these of DIFFERENCES.

    `epochs` are those of the released code, 100; with fewer, its steps of the learning rate are as much shorter, and
    the port has half as many again as it, as in 150 to 100.
    """
    theirs = DTSH.published(n_bits, n_train, training={"epochs": epochs, "step_epochs": max(1, epochs // 5)})
    settings: dict[str, Any] = {"sampling": "published", "training": theirs.training}
    changes: dict[int, dict[str, Any]] = {
        1: {"product": 1.0},
        2: {"alpha": 5.0},
        # lambda is divided by 22,500 and multiplies a sum over bits
        3: {"lambda_": TRIPLETS_PER_QUERY / n_bits},
        4: {"sampling": "in-batch"},
        5: {"sampling": "in-batch", "own_positive": True},
        6: {
            "training": replace(
                theirs.training,
                epochs=round(1.5 * epochs),
                optimizer="rmsprop",
                lr=1e-5,
                head_lr=1e-5,
                weight_decay=1e-5,
                step_factor=1.0,
            )
        },
    }
    for number in differences:
        settings |= changes[number]
    return settings
