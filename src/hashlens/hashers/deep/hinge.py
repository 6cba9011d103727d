"""Ranking hinge: distances within a batch and how near each pair should be in, the mean hinge of all triplets out."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def ranking_hinge(distances: torch.Tensor, gains: torch.Tensor, margin: float) -> tuple[torch.Tensor, float]:
    """Mean over queries q of the weighted mean over pairs (i, j) of max(0, margin + D_qi - D_qj); and how many are > 0.

    i should be nearer than j: a pair counts where gains_qi > gains_qj and weighs their difference. With gains of 0 and
    1 these are the triplets (query, positive, negative), all of one weight. A query is in no pair of its own; one
    without pairs is left out of the mean.
    """
    others = ~torch.eye(len(gains), dtype=torch.bool, device=gains.device)
    least = gains.masked_fill(~others, torch.inf).amin(1, keepdim=True)
    query, nearer = torch.nonzero(others & (gains > least), as_tuple=True)
    if not len(query):  # a batch of one class, or without a pair of it
        return distances.sum() * 0, 0.0
    weight = F.relu(gains[query, nearer][:, None] - gains[query]) * others[query]  # (pairs, n)
    total = gains.new_zeros(len(gains)).index_add(0, query, weight.sum(1))  # of each query
    hinge = F.relu(margin + distances[query, nearer][:, None] - distances[query])
    means = (hinge * weight).sum(1) / total[query]
    with torch.no_grad():
        active = ((hinge > 0) & (weight > 0)).sum() / (weight > 0).sum()
    return means.sum() / (total > 0).sum(), active.item()


def squared_distances(x: torch.Tensor) -> torch.Tensor:
    """(n, n): between all rows of x."""
    norms = x.square().sum(1)
    return norms[:, None] + norms - 2 * x @ x.T
