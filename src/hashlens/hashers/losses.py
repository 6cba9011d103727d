"""Losses for any training loop: outputs u (n, n_bits) of a network and labels in, a scalar to minimise out.

    loss = hashlens.losses.DTSHLoss(n_bits=48)
    loss(network(images), labels).backward()

Labels are class numbers (n,) or 0/1 columns (n, c), tensors or arrays. `loss.figures` describes the last call. A loss
that learns (DLBHC, DSCH, DRSCH) has parameters for the optimizer. A loss that remembers the training set (CNNH, DPSH
with a memory, DTSH's published sampling) also needs the `rows` of the batch. Call `loss.begin_epoch(epoch, epochs)` for
a loss that changes during training (DPSH, DSCH, DRSCH); for others it does nothing.

Each loss is next to its method, in deep/; code shared by several losses is here.
"""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hashlens.data.labels import Labels
from hashlens.errors import DataError, UsageError


class Loss(nn.Module):
    """A subclass implements `compute`. For checkpoints, its memory is in buffers and what it learns in parameters."""

    needs_labels = True
    needs_rows = False
    mixes = False  # whether images are only compared with classes, so that two images may be mixed

    def __init__(self, n_bits: int):
        super().__init__()
        self.n_bits = n_bits
        self.figures: dict[str, float] = {}  # of the last call: "active", the fraction of triplets (...) still wrong

    def forward(self, u: torch.Tensor, labels: Any = None, rows: Any = None) -> torch.Tensor:
        name = type(self).__name__
        if u.ndim != 2 or u.shape[1] != self.n_bits:
            raise DataError(f"{name} expects outputs of shape (n, {self.n_bits}), got {tuple(u.shape)}")
        if labels is not None:
            labels = label_tensor(labels, u.device)
            if len(labels) != len(u):
                raise DataError(f"{name} got {len(u)} outputs but {len(labels)} labels")
        elif self.needs_labels:
            raise UsageError(f"{name} needs labels; call loss(u, labels)")
        if self.needs_rows and rows is None:
            raise UsageError(
                f"{name} remembers the training set; call loss(u, labels, rows) with the rows of the batch"
            )
        value, active = self.compute(u, labels, None if rows is None else np.asarray(rows))
        self.figures = {} if active is None else {"active": active}
        return value

    def compute(self, u: torch.Tensor, labels: Any, rows: Any) -> tuple[torch.Tensor, float | None]:
        """The scalar, and the fraction of comparisons that are still wrong, if that is defined.

        `labels` are int64 (n,) or bool (n, c) on u's device; `rows` are row numbers in the training set.
        """
        raise NotImplementedError

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Called before the first step of each epoch, counted from 0."""


def label_tensor(labels: Any, device: torch.device | str = "cpu") -> torch.Tensor:
    """Class numbers (n,) as int64, or 0/1 columns (n, c) as bool."""
    expected = "labels must be class numbers (n,) or 0/1 columns (n, c)"
    try:
        labels = torch.as_tensor(labels.values if isinstance(labels, Labels) else labels, device=device)
    except (TypeError, ValueError) as error:
        raise DataError(f"{expected}, got {type(labels).__name__} ({error})") from error
    if labels.ndim == 1:
        return labels.long()
    if labels.ndim != 2 or labels.shape[1] < 2:
        raise DataError(f"{expected}, got shape {tuple(labels.shape)}")
    return labels != 0


def shared_labels(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(n, m) float32: how many labels each pair of items shares."""
    return (a[:, None] == b).float() if a.ndim == 1 else a.float() @ b.T.float()


def same_class(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(n, m) bool: whether two items share a label."""
    return shared_labels(a, b) > 0


def quantisation_error(u: torch.Tensor) -> torch.Tensor:
    """(n,): ||u - sgn(u)||^2 of each row; sgn counts as constant in the derivative."""
    return (u - torch.where(u > 0, 1.0, -1.0).to(u.dtype)).square().sum(1)


def squared_distances(x: torch.Tensor) -> torch.Tensor:
    """(n, n): squared distances between all rows of x."""
    norms = x.square().sum(1)
    return norms[:, None] + norms - 2 * x @ x.T


def ranking_hinge(distances: torch.Tensor, gains: torch.Tensor, margin: float) -> tuple[torch.Tensor, float]:
    """Mean over queries q of the weighted mean over pairs (i, j) of max(0, margin + D_qi - D_qj); and how many are > 0.

    i should be nearer than j: a pair counts where gains_qi > gains_qj and weighs their difference. With gains of 0 and
    1 these are the triplets (query, positive, negative) with equal weights. A query is never in its own pairs; queries
    without pairs are left out of the mean.
    """
    others = ~torch.eye(len(gains), dtype=torch.bool, device=gains.device)
    least = gains.masked_fill(~others, torch.inf).amin(1, keepdim=True)
    query, nearer = torch.nonzero(others & (gains > least), as_tuple=True)
    if not len(query):  # the batch has one class only, or no positive pair
        return distances.sum() * 0, 0.0
    weight = F.relu(gains[query, nearer][:, None] - gains[query]) * others[query]  # (pairs, n)
    total = gains.new_zeros(len(gains)).index_add(0, query, weight.sum(1))  # per query
    # like distances[query], but F.embedding adds up gradients in the same order with any number of threads
    hinge = F.relu(margin + distances[query, nearer][:, None] - F.embedding(query, distances))
    means = (hinge * weight).sum(1) / total[query]
    with torch.no_grad():
        active = ((hinge > 0) & (weight > 0)).sum() / (weight > 0).sum()
    return means.sum() / (total > 0).sum(), active.item()


def classification_loss(scores: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Cross-entropy of scores (n, n_classes) and the fraction of wrong decisions, both means.

    One class per image: softmax, and one decision per image. Label sets: a yes or no for each image and label.
    """
    if labels.ndim == 2:
        value = F.binary_cross_entropy_with_logits(scores, labels.to(scores))
        return value, ((scores > 0) != labels).float().mean().item()
    return F.cross_entropy(scores, labels), (scores.argmax(1) != labels).float().mean().item()
