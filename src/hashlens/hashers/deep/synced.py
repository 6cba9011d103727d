"""Steps shared by several ranks: outputs, gradients and batch statistics of each rank in, those of one process out.

Each rank passes its part of a batch through the network and computes the loss of the whole batch. Autograd then
differentiates the sum of these equal losses, so the mean of the ranks' gradients is the gradient of one process.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from hashlens.ranks import Ranks, reachable


def gather(u: torch.Tensor, n: int, ranks: Ranks) -> torch.Tensor:
    """The n rows of all ranks, in order; each rank has `ranks.part(n)`. All must compute the same from the result."""
    return u if ranks.size == 1 else _Gather.apply(u, n, ranks)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: torch.Tensor, n: int, ranks: Ranks) -> torch.Tensor:
        ctx.mine, ctx.size = ranks.part(n), ranks.size
        sizes = [b - a for a, b in pairwise(ranks.cuts(n))]
        found = [u.new_empty(max(sizes), *u.shape[1:]) for _ in sizes]
        mine = torch.cat([u, u.new_zeros(max(sizes) - len(u), *u.shape[1:])])
        with reachable():
            dist.all_gather(found, mine)
        return torch.cat([one[:size] for one, size in zip(found, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        # sum over ranks, each of which has the same loss for the whole batch
        return ctx.size * gradients[0][ctx.mine], None, None


def average_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Average gradients over all ranks, in place."""
    if ranks.size == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    for dtype in {g.dtype for g in gradients}:
        some = [g for g in gradients if g.dtype == dtype]
        flat = torch.cat([g.flatten() for g in some])
        _add_up(flat)
        flat /= ranks.size
        for gradient, mean in zip(some, flat.split([g.numel() for g in some]), strict=True):
            gradient.copy_(mean.view(gradient.shape))


def _add_up(values: torch.Tensor) -> None:
    with reachable():
        dist.all_reduce(values)


def batch_norms(network: nn.Module) -> list[Any]:
    return [module for module in network.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]


@contextmanager
def synced_statistics(network: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Context in which batch norms in training mode use the statistics of the whole batch.

    torch's SyncBatchNorm does the same, but only on GPUs and as a different module class.
    """
    norms = batch_norms(network) if ranks.size > 1 else []
    for norm in norms:
        norm.forward = partial(_normalised, norm, norm.forward)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward  # restores the method of its class


def _normalised(norm: Any, alone: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    if not norm.training:
        return alone(x)
    with torch.no_grad():
        mean, variance, n = _moments(x)
        if norm.track_running_stats:
            norm.num_batches_tracked.add_(1)
            weight = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            norm.running_mean.lerp_(mean.to(norm.running_mean), weight)
            norm.running_var.lerp_((variance * n / (n - 1)).to(norm.running_var), weight)
    return _Normalise.apply(x, norm.weight, norm.bias, mean, variance, n, norm.eps)


def _moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and variance of each channel over the images of all ranks, and the number of values behind them."""
    channels = x.shape[1]
    # this rank's statistics; the two tensors would receive updates and are not used
    mean, variance = torch.batch_norm_update_stats(x, x.new_zeros(channels).float(), x.new_zeros(channels).float(), 0.0)
    mean, variance, n = mean.double(), variance.double(), x.numel() / channels
    # moments about 0 in float64, because ranks can simply add them up
    sums = torch.cat([n * mean, n * (variance + mean.square()), mean.new_tensor([n])])
    _add_up(sums)
    n = float(sums[-1])
    mean, square = sums[:-1].view(2, -1) / n
    return mean.float(), (square - mean.square()).clamp(min=0).float(), n


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mean: torch.Tensor,
        variance: torch.Tensor,
        n: float,
        eps: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.n, ctx.eps = n, eps
        return F.batch_norm(x, mean, variance, weight, bias, eps=eps)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight, mean, variance = ctx.saved_tensors
        # gradient with fixed statistics, and the sums of it and of its product with the normalised x
        slope, products, total = torch.ops.aten.native_batch_norm_backward(
            gradients[0], x, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        sums = torch.stack([total, products])
        _add_up(sums)
        # the statistics depend on x too; the correction for that is linear in x
        deviation = (variance + ctx.eps).rsqrt()
        level, tilt = sums * (deviation if weight is None else deviation * weight) / ctx.n
        tilt *= deviation
        level -= mean * tilt
        per_channel = (-1, *[1] * (x.ndim - 2))
        slope.addcmul_(x, tilt.view(per_channel), value=-1).sub_(level.view(per_channel))
        return slope, products if weight is not None else None, total if weight is not None else None, *[None] * 4
