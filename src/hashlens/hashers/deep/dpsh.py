"""DPSH, deep pairwise-supervised hashing: outputs of a batch in, likelihood of its pairs with all images out."""

from dataclasses import replace
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional as F

from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.heads import Standardised
from hashlens.hashers.deep.inputs import outputs_of
from hashlens.hashers.deep.training import released
from hashlens.hashers.losses import Loss, label_tensor, quantisation_error, same_class
from hashlens.settings import setting


class DPSH(DeepHasher):
    """Deep supervised hashing with pairwise labels.

    W.-J. Li, S. Wang, W.-C. Kang, "Feature Learning Based Deep Supervised Hashing with Pairwise Labels", IJCAI 2016.

    With theta_ij = u_i . u_j / 2 and s_ij = 1 where i and j share a label, else 0, minimises over all pairs the sum of
    log(1 + exp(theta_ij)) - s_ij theta_ij, + eta sum ||u - sgn(u)||^2.

    Differences from the paper: the backbone is EfficientNet-Lite and its leading blocks stay frozen; AdamW with a
    one-cycle schedule; horizontal flips. The sums are divided by the number of pairs. As in the authors' code, a batch
    is paired with the remembered outputs of the whole training set, itself included, and the gradient goes through
    the batch only. Similar pairs together weigh as much as the others, and the hash layer learns on centred
    features: with a hundred classes only one pair in a hundred is similar, and in a few epochs, instead of the authors'
    150, outputs would only learn to move apart. `published` does neither.
    """

    eta: float = setting(
        10.0,
        "weight of the quantisation term, against a sum over n pairs; authors' code: 10",
        low=0,
        search=(0.1, 1000.0),
    )
    memory_from: float = setting(
        0.0,
        "fraction of training after which pairs are with remembered outputs of the whole set; authors' code: 0",
        low=0,
        high=1,
    )
    balance: bool = setting(True, "give similar and dissimilar pairs the same total weight; paper: false")
    centre: bool = setting(True, "learn a linear hash layer on centred features; paper: false")

    @classmethod
    def published(cls, n_bits: int = 48, n_train: int = 5_000, **changes: Any) -> Self:
        """The authors' released configuration with your `changes`; `n_train`, as in DTSH, changes nothing here."""
        theirs = released(0.05, epochs=150, weight_decay=1e-5, step_epochs=50, step_factor=0.1)
        training = replace(theirs, **changes.pop("training", {}))
        asked: dict[str, Any] = {
            "backbone": "cnn-f",
            "frozen_blocks": 0,
            "balance": False,
            "centre": False,
            **changes,
        }
        return cls(n_bits, training=training, **asked)

    def _start(self, network: nn.Sequential, inputs: Any, labels: Any, loss: Any, adapt: bool) -> None:
        if self.centre and self.head == "linear":
            drawn = network[-1].state_dict()
            features = outputs_of(network[:-1], inputs, adapt)
            layer = Standardised(features, drawn["weight"].T.numpy(), drawn["bias"].numpy())
            layer.scale.fill_(1)  # scaling features to unit variance gave lower MAP
            network[-1] = self.network_[-1] = layer


class DPSHLoss(Loss):
    """Mean over pairs of softplus(theta) - s theta, + eta / n mean ||u - sgn(u)||^2.

    With `balance`, the first term is half the mean over similar pairs plus half the mean over dissimilar ones. With the
    `labels` of the whole training set, pairs are (batch, training set) after the fraction `memory_from` of all epochs;
    before, and without these labels, they are within the batch. n is the number of remembered images, or else the batch
    size.
    """

    bank: torch.Tensor
    uses_bank: torch.Tensor
    labels: torch.Tensor

    def __init__(
        self,
        n_bits: int,
        labels: Any = None,
        eta: float = DPSH.eta,
        memory_from: float = DPSH.memory_from,
        balance: bool = DPSH.balance,
    ):
        super().__init__(n_bits)
        self.eta, self.memory_from, self.balance, self.needs_rows = eta, memory_from, balance, labels is not None
        if labels is not None:
            self.register_buffer("labels", label_tensor(labels), persistent=False)
            self.register_buffer("bank", torch.zeros(len(self.labels), n_bits))  # zeros for images not seen yet
            self.register_buffer("uses_bank", torch.tensor(memory_from == 0))  # a buffer, to be saved in checkpoints

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        if self.needs_rows:
            self.uses_bank.fill_(epoch >= self.memory_from * epochs)

    def compute(self, u: torch.Tensor, labels: torch.Tensor, rows: Any) -> tuple[torch.Tensor, float]:
        n, others, other_labels = len(u), u, labels
        if self.needs_rows:
            n = len(self.bank)
            self.bank[rows] = u.detach().to(self.bank)
            if self.uses_bank:
                others, other_labels = self.bank.to(u.dtype), self.labels
        same = same_class(labels, other_labels)
        theta = u @ others.T / 2  # (b, n), or (b, b)
        if self.balance and 0 < (share := same.double().mean().item()) < 1:
            weights = torch.where(same, theta.new_tensor(0.5 / share), theta.new_tensor(0.5 / (1 - share)))
            nll = ((F.softplus(theta) - theta * same) * weights).mean()
        else:
            nll = F.softplus(theta).mean() - (theta * same).mean()
        active = ((theta > 0) != same).float().mean().item()
        return nll + self.eta / n * quantisation_error(u).mean(), active
