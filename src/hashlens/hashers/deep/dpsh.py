"""DPSH, deep pairwise-supervised hashing: outputs of a batch in, likelihood of its pairs with all images out."""

from dataclasses import replace
from typing import Any, Self

import torch
from torch.nn import functional as F

from hashlens.hashers.deep.base import DeepHasher
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
    the batch only; but not before the second half of training. With the memory from the start, in a few epochs instead
    of the authors' 150, the loss hardly fell; we believe because most pairs are dissimilar, so that all outputs move
    away from the mean of the remembered ones, which lags behind.
    """

    eta: float = setting(
        10.0,
        "weight of the quantisation term, against a sum over n pairs; authors' code: 10",
        low=0,
        search=(0.1, 1000.0),
    )
    memory_from: float = setting(
        0.5, "fraction of training before outputs of the whole set are remembered; authors' code: 0", low=0, high=1
    )

    @classmethod
    def published(cls, n_bits: int, n_train: int, **changes: Any) -> Self:
        """The authors' released configuration with your `changes`; `n_train`, as in DTSH, changes nothing here."""
        theirs = released(0.05, epochs=150, weight_decay=1e-5, step_epochs=50, step_factor=0.1)
        training = replace(theirs, **changes.pop("training", {}))
        asked: dict[str, Any] = {"backbone": "cnn-f", "frozen_blocks": 0, "memory_from": 0.0, **changes}
        return cls(n_bits, training=training, **asked)


class DPSHLoss(Loss):
    """Mean over pairs of softplus(theta) - s theta, + eta / n mean ||u - sgn(u)||^2.

    With the `labels` of the whole training set, pairs are (batch, training set) after the fraction `memory_from` of all
    epochs; before, and without these labels, they are within the batch. n is the number of images that are remembered,
    or of those in the batch.
    """

    bank: torch.Tensor
    uses_bank: torch.Tensor
    labels: torch.Tensor

    def __init__(self, n_bits: int, labels: Any = None, eta: float = DPSH.eta, memory_from: float = DPSH.memory_from):
        super().__init__(n_bits)
        self.eta, self.memory_from, self.needs_rows = eta, memory_from, labels is not None
        if labels is not None:
            self.register_buffer("labels", label_tensor(labels), persistent=False)
            self.register_buffer("bank", torch.zeros(len(self.labels), n_bits))  # zeros until an image was first seen
            self.register_buffer("uses_bank", torch.tensor(memory_from == 0))  # a buffer: it is kept in a checkpoint

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
        nll = F.softplus(theta).mean() - (theta * same).mean()
        active = ((theta > 0) != same).float().mean().item()
        return nll + self.eta / n * quantisation_error(u).mean(), active
