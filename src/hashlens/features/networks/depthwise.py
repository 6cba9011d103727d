"""Depthwise convolution on the CPU with a fast backward pass: the same result as torch, in a fraction of the time.

For kernels as large as the map (5 x 5 on 4 x 4, the last blocks of EfficientNet at 128 pixels) the weight gradient of
torch's CPU library takes up to seventy times as long as the forward pass, and two thirds of a training step. Here the
input gradient is a convolution with the flipped kernel, and the weight gradient is a compiled loop, innermost over
channels, which are contiguous in memory.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch.nn import functional as F

from hashlens.machine import in_threads, shares

CHANNELS = 192  # processed together, so that their gradients stay in the caches; best of 64 to 576


def suits(x: torch.Tensor, kernel: int, stride: int) -> bool:
    """Whether `Depthwise` can replace torch's convolution; it only pays off if gradients are needed."""
    return (
        torch.is_grad_enabled()
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and kernel % 2 == 1
        and stride == 1
        and x.is_contiguous(memory_format=torch.channels_last)
    )


class Depthwise(torch.autograd.Function):
    """Stride 1, odd square kernel, "same" zero padding: x (b, c, h, w), weight (c, 1, k, k)."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, padding=weight.shape[-1] // 2, groups=weight.shape[0])

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = F.conv2d(gradient, weight.flip(2, 3), padding=weight.shape[-1] // 2, groups=weight.shape[0])
        if ctx.needs_input_grad[1]:
            of_weight = _weight_gradient(x, gradient, weight.shape[-1])
        return of_x, of_weight


def _weight_gradient(x: torch.Tensor, gradient: torch.Tensor, kernel: int) -> torch.Tensor:
    images = x.detach().permute(0, 2, 3, 1).numpy()  # (b, h, w, c), no copy
    outputs = gradient.detach().permute(0, 2, 3, 1).numpy()
    channels = images.shape[3]
    sums = np.zeros((kernel, kernel, channels), np.float32)
    in_threads(lambda part: _correlate(images, outputs, sums, part.start, part.stop), shares(channels))
    return torch.from_numpy(sums).permute(2, 0, 1)[:, None]


@numba.njit(nogil=True, fastmath=True, cache=True)
def _correlate(x, gradient, sums, start, end):  # type: ignore[no-untyped-def]
    n, height, width, _ = x.shape
    kernel = sums.shape[0]
    reach = kernel // 2
    for first in range(start, end, CHANNELS):
        last = min(first + CHANNELS, end)
        for b in range(n):
            for row in range(height):
                for column in range(width):
                    g = gradient[b, row, column, first:last]
                    for i in range(max(0, reach - row), min(kernel, height + reach - row)):
                        for j in range(max(0, reach - column), min(kernel, width + reach - column)):
                            pixel = x[b, row + i - reach, column + j - reach, first:last]
                            total = sums[i, j, first:last]
                            for c in range(last - first):
                                total[c] += g[c] * pixel[c]
