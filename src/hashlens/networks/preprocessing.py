"""Preprocessing: uint8 pictures (b, h, w, 3) in, what a network takes, float32 (b, 3, h, w), out.

It is the first module of every backbone. Its numbers are buffers, so they are saved with a trained network; what is
not a number (resize rule, order of the colours) goes into its description and comes back from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from hashlens.data.enlarging import bicubic

AVERAGE = "an average picture, kept with the weights"
CROP = "shorter side, bicubic, then centre crop"  # what `Images.read` does


class Normalise(nn.Module):
    """Perhaps resized, divided by `divided_by`, minus the mean, divided by the deviation.

    `mean` and `std` are one number or one a channel, in the network's order of the colours; the mean may also be a
    whole picture (3, size, size). With `size`, pictures of any other size are resized here, in floating point: bicubic,
    neither rounded nor cut off at 0 and 255, as MATLAB does.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(
        self,
        mean: float | Sequence[float] | np.ndarray,
        std: float | Sequence[float],
        *,
        colour: str = "RGB",
        divided_by: float = 255,
        size: int | None = None,
    ):
        super().__init__()
        self.mean = AVERAGE if isinstance(mean, np.ndarray) else _plain(mean)
        self.std = _plain(std)
        self.colour = colour
        self.divided_by = divided_by
        self.size = size
        deviation = _per_channel(std)
        self.register_buffer("scale", torch.tensor(1 / (divided_by * deviation), dtype=torch.float32))
        self.register_buffer("shift", torch.tensor(-_per_channel(mean) / deviation, dtype=torch.float32))

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Normalise:
        """As `describe` described it; an average picture is to come with the weights."""
        mean, size = description["mean"], description["size"]
        return cls(
            np.zeros((3, size, size), np.float32) if mean == AVERAGE else mean,
            description["std"],
            colour=description["colour"],
            divided_by=description["divided_by"],
            size=size,
        )

    def describe(self) -> dict[str, Any]:
        return {
            "resize": CROP if self.size is None else f"{CROP}; then to {self.size} x {self.size}, not rounded",
            "size": self.size,
            "colour": self.colour,
            "divided_by": self.divided_by,
            "mean": self.mean,
            "std": self.std,
        }

    def extra_repr(self) -> str:  # part of what cached features depend on
        return f"{self.mean}, {self.std}, {self.colour}, divided_by={self.divided_by}, size={self.size}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 3, 1, 2)
        if self.colour == "BGR":
            x = x.flip(1)
        x = x.float()
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            down, across = (torch.from_numpy(bicubic(n, self.size)).to(x.device) for n in x.shape[-2:])
            with torch.autocast(x.device.type, enabled=False):  # bfloat16 has not even the 8 bits of a picture
                x = down @ x @ across.T
        return x.mul(self.scale).add(self.shift)


def _plain(values: float | Sequence[float]) -> Any:
    """One number, or a list as JSON has it."""
    return list(values) if isinstance(values, Sequence) else values


def _per_channel(values: float | Sequence[float] | np.ndarray) -> np.ndarray:
    """In double precision, in a shape that fits (b, 3, h, w)."""
    array = np.asarray(values, np.float64)
    return array[:, None, None] if array.ndim == 1 else array
