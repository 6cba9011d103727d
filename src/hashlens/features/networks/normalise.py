"""Preprocessing: uint8 images (b, h, w, 3) in, network input, float32 (b, 3, h, w), out.

It is the first module of every backbone. Its numbers are buffers, so they are saved with a trained network; the rest
(resize rule, channel order) is saved in its description.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from hashlens.data.resize import bicubic

AVERAGE = "an average image, kept with the weights"
CROP = "shorter side, bicubic, then centre crop"  # see data/resize.py


class Normalise(nn.Module):
    """Divide images by `divided_by`, subtract the mean, divide by the standard deviation.

    `mean` and `std` are one number or one per channel, in the network's channel order; the mean may also be a whole
    image (3, size, size). With `size`, images of any other size are first resized in floating point: bicubic, as in
    MATLAB, neither rounded nor clipped to 0..255.
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
        self.std, self.colour, self.divided_by, self.size = _plain(std), colour, divided_by, size
        deviation = _per_channel(std)
        self.register_buffer("scale", torch.tensor(1 / (divided_by * deviation), dtype=torch.float32))
        self.register_buffer("shift", torch.tensor(-_per_channel(mean) / deviation, dtype=torch.float32))

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Normalise:
        """The inverse of `describe`; an average image is saved with the weights."""
        options = {name: description[name] for name in ("mean", "std", "colour", "divided_by", "size")}
        if options["mean"] == AVERAGE:
            options["mean"] = np.zeros((3, options["size"], options["size"]), np.float32)
        return cls(**options)

    def describe(self) -> dict[str, Any]:
        resize = CROP if self.size is None else f"{CROP}; then to {self.size} x {self.size}, not rounded"
        options = {"size": self.size, "colour": self.colour, "divided_by": self.divided_by}
        return {"resize": resize, **options, "mean": self.mean, "std": self.std}

    def extra_repr(self) -> str:  # part of the key of cached features
        return f"{self.mean}, {self.std}, {self.colour}, divided_by={self.divided_by}, size={self.size}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 3, 1, 2)
        if self.colour == "BGR":
            x = x.flip(1)
        x = x.float()
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            down, across = (torch.from_numpy(bicubic(n, self.size)).to(x.device) for n in x.shape[-2:])
            with torch.autocast(x.device.type, enabled=False):  # bfloat16 cannot hold all pixel values
                x = down @ x @ across.T
        return x.mul(self.scale).add(self.shift)


def _plain(values: float | Sequence[float]) -> Any:
    """One number, or a list for JSON."""
    return list(values) if isinstance(values, Sequence) else values


def _per_channel(values: float | Sequence[float] | np.ndarray) -> np.ndarray:
    """As double precision, in a shape that broadcasts to (b, 3, h, w)."""
    array = np.asarray(values, np.float64)
    return array[:, None, None] if array.ndim == 1 else array
