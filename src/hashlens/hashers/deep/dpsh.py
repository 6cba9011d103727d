"""DPSH, deep pairwise-supervised hashing: outputs of a batch in, likelihood of its pairs with all pictures out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hashlens.data.labels import Labels, relevant
from hashlens.errors import UsageError
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.dtsh import quantisation_error
from hashlens.hashers.deep.training import Training


@dataclass(kw_only=True, eq=False, repr=False)
class DPSH(DeepHasher):
    """Deep supervised hashing with pairwise labels.

    W.-J. Li, S. Wang, W.-C. Kang, "Feature Learning Based Deep Supervised Hashing with Pairwise Labels", IJCAI 2016.

    With theta_ij = u_i . u_j / 2 and s_ij = 1 where i and j share a label, else 0, minimises over all pairs the sum of
    log(1 + exp(theta_ij)) - s_ij theta_ij, + eta sum ||u - sgn(u)||^2.

    Parameters
    ----------
    eta : weight of the quantisation term as the paper counts it, that is against the sum over the pairs of a picture
        with all n training pictures; 10 in the authors' code.
    memory_from : the part of training, from 0 to 1, after which a batch is paired with the remembered outputs of the
        whole training set; before, with itself. 0 in the authors' code.
    head, backbone, weights, image_size, frozen_blocks, training : as in DTSH; the paper's head is "linear".

    Differences from the paper: the backbone is EfficientNet-Lite and its leading blocks stay frozen; AdamW with a
    one-cycle schedule; horizontal flips. The sums are divided by the number of pairs. As in the authors' code, a batch
    is paired with the remembered outputs of the whole training set, itself included, and the gradient goes through
    the batch only; but not before the second half of training. With the memory from the start, in a few epochs instead
    of the authors' 150, the loss hardly fell; we believe because most pairs are to be unlike, so that all outputs flee
    from the mean of the remembered ones, which lags behind while they move fast.
    """

    name = "dpsh"

    eta: float = 10.0
    memory_from: float = 0.5

    @classmethod
    def published(cls, n_bits: int, n_train: int, **changes: Any) -> Self:
        """The settings of the authors' released code on the paper's CNN-F; `changes` are those you make to them.

        Their loss is divided by the number of pairs as ours is, so nothing depends on `n_train`.
        """
        theirs = Training(
            epochs=150,
            batch_size=128,
            last_batch="keep",
            optimizer="sgd",
            lr=0.05,
            head_lr=0.05,
            weight_decay=1e-5,
            schedule="step",
            step_epochs=50,
            step_factor=0.1,
            flip=False,
            precision="float32",
        )
        training = replace(theirs, **changes.pop("training", {}))
        asked: dict[str, Any] = {"backbone": "cnn-f", "frozen_blocks": 0, "memory_from": 0.0, **changes}
        return cls(n_bits, training=training, **asked)

    def _loss(self, labels: Labels) -> nn.Module:
        if not 0 <= self.memory_from <= 1:
            raise UsageError(f"memory_from is a part of training, from 0 to 1, not {self.memory_from}")
        return BankPairLikelihood(self.eta / len(labels), labels, self.n_bits, self.memory_from)


class BankPairLikelihood(nn.Module):
    """Mean over pairs (batch, training set) of softplus(theta) - s theta, + eta_bar mean ||u - sgn(u)||^2.

    `eta_bar` is the paper's eta divided by the number of training pictures. Before the part `memory_from` of all epochs
    the pairs are those within the batch.
    """

    def __init__(self, eta_bar: float, labels: Labels, n_bits: int, memory_from: float = 0.0):
        super().__init__()
        self.eta_bar = eta_bar
        self.labels = labels
        self.memory_from = memory_from
        self.register_buffer("bank", torch.zeros(len(labels), n_bits))  # zeros until a picture was first seen
        self.register_buffer("uses_bank", torch.tensor(memory_from == 0))  # a buffer: it is kept in a checkpoint
        self.bank: torch.Tensor
        self.uses_bank: torch.Tensor

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        self.uses_bank.fill_(epoch >= self.memory_from * epochs)

    def forward(self, u: torch.Tensor, labels: Labels, rows: np.ndarray) -> tuple[torch.Tensor, dict[str, float]]:
        self.bank[rows] = u.detach().to(self.bank)
        others, other_labels = (self.bank.to(u.dtype), self.labels) if self.uses_bank else (u, labels)
        same = torch.from_numpy(relevant(labels, other_labels)).to(u.device)
        theta = u @ others.T / 2  # (b, n), or (b, b)
        nll = F.softplus(theta).mean() - (theta * same).mean()
        active = ((theta > 0) != same).float().mean().item()
        return nll + self.eta_bar * quantisation_error(u), {"active": active}
