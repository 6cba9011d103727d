"""Likelihood of all triplets of a batch: inner products, positives and negatives in, negative log and gradient out.

The n^3 triplets of a batch of n need only n^2 exponentials: exp(theta_n - theta_p) is a product. Per triplet there
remain a multiplication, a division and one factor of a long product, instead of a logarithm.
"""

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from torch.nn import functional as F

from hashlens.machine import in_threads, shares


def triplet_nll(
    theta: torch.Tensor, positives: torch.Tensor, negatives: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, float]:
    """Mean over queries q of the mean softplus(-T) over all their triplets, and the fraction of triplets with T < 0.

    T = theta_qp - theta_qn - alpha; `positives` and `negatives` (n, n) say which p and n belong to each q.
    """
    n_triplets = positives.sum(1) * negatives.sum(1)  # per query
    n_queries = (n_triplets > 0).sum()
    if n_queries == 0:  # the batch has one class only, or no positive pair
        return theta.sum() * 0, 0.0
    weight = 1 / (n_triplets.clamp(min=1) * n_queries).double()  # of one triplet, per query
    if theta.device.type == "cpu":
        nll, n_active = _Compiled.apply(theta, positives, negatives, weight, alpha)
        return nll, n_active.item() / int(n_triplets.sum())
    query, positive = torch.nonzero(positives, as_tuple=True)
    gap = theta[query, positive][:, None] - theta[query] - alpha  # (pairs, n)
    negative = negatives[query]
    nll = (F.softplus(-gap) * negative).sum(1) @ weight[query].to(theta)
    return nll, (((gap < 0) & negative).sum() / n_triplets.sum()).item()


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        theta: torch.Tensor,
        positives: torch.Tensor,
        negatives: torch.Tensor,
        weight: torch.Tensor,
        alpha: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        slope = np.zeros(theta.shape)
        nll, n_active = np.zeros(len(theta)), np.zeros(len(theta), np.int64)
        arrays = (theta.detach().numpy().astype(np.float64), positives.numpy(), negatives.numpy())
        in_threads(
            lambda rows: _likelihood(*arrays, alpha, rows.start, rows.stop, nll, slope, n_active), shares(len(nll))
        )
        ctx.save_for_backward(torch.from_numpy(slope * weight.numpy()[:, None]).to(theta.dtype))
        active = torch.tensor(n_active.sum())
        ctx.mark_non_differentiable(active)
        return torch.tensor(nll @ weight.numpy(), dtype=theta.dtype), active

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None, None, None, None


# error_model: a check for division by zero would keep the inner loop from being vectorised
@njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _likelihood(theta, positives, negatives, alpha, start, stop, nll, slope, n_active):  # type: ignore[no-untyped-def]
    """For queries start..stop: sum over their triplets of softplus(-T), its gradient in theta, and how many T < 0."""
    largest = 700.0  # exp of a larger number is infinite
    for q in range(start, stop):
        p, n = np.flatnonzero(positives[q]), np.flatnonzero(negatives[q])
        if len(p) == 0 or len(n) == 0:
            continue
        near, far = theta[q][p], theta[q][n] + alpha
        pulls = np.zeros(len(n))  # sum over positives of sigmoid(-T), for each negative
        total = 0.0
        middle = (near.min() + near.max() + far.min() + far.max()) / 4
        reach = max(near.max() - middle, middle - near.min(), far.max() - middle, middle - far.min())
        if reach < largest / 2:
            left, right = np.exp(middle - near), np.exp(far - middle)
            # product of 1 + exp(-T) for each negative; its logarithm is taken before it overflows
            product = np.ones(len(n))
            room = largest / math.log1p(left.max() * right.max())
            taken = 0
            for i in range(len(p)):
                pull = 0.0
                count = 0
                for j in range(len(n)):
                    odds = left[i] * right[j]
                    above = 1 + odds
                    share = odds / above
                    product[j] *= above
                    pulls[j] += share
                    pull += share
                    count += odds > 1
                slope[q, p[i]] = -pull
                n_active[q] += count
                taken += 1
                if taken + 1 > room or i == len(p) - 1:
                    for j in range(len(n)):
                        total += math.log(product[j])
                        product[j] = 1.0
                    taken = 0
        else:  # outputs this large mean that training diverges, so speed does not matter
            for i in range(len(p)):
                for j in range(len(n)):
                    x = far[j] - near[i]
                    small = math.exp(-abs(x))
                    share = (1.0 if x > 0 else small) / (1 + small)
                    total += max(x, 0.0) + math.log1p(small)
                    pulls[j] += share
                    slope[q, p[i]] -= share
                    n_active[q] += x > 0
        nll[q] = total
        for j in range(len(n)):
            slope[q, n[j]] = pulls[j]
