"""Every image reaches a network as its centre square, scaled to the network's size with Pillow's bicubic filter.

This is all that happens between decoding (`images.py`) and the numbers that a network is given
(`features/networks/preprocessing.py`); an image that already has the size is not changed. Arrays of small square images
are enlarged by a compiled loop that gives the same bits as Pillow: with Pillow, enlarging the 60,000 images of CIFAR-10
takes a tenth of the time from images to codes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from hashlens.machine import in_threads, shares

TAPS = 4  # pixels that a bicubic value depends on, in each direction
PRECISION = 22  # bits after the point in Pillow's weights for 8-bit images


def crop(image: Image.Image, size: int) -> np.ndarray:
    """The centre square scaled to `size`, as if the whole image were scaled and then cropped."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    if side == size:
        return np.asarray(image.crop(box))
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box))


@lru_cache
def bicubic(size: int, target: int) -> np.ndarray:
    """The matrix (target, size) with which Pillow resizes a column of pixels."""
    unit = Image.fromarray(np.eye(size, dtype=np.float32))
    return np.array(unit.resize((size, target), Image.Resampling.BICUBIC))


def enlarge(images: np.ndarray, size: int) -> np.ndarray:
    """uint8 (b, h, h, 3) to (b, size, size, 3), 4 <= h < size, bit for bit as Pillow: first across, then down."""
    start, weights = _taps(images.shape[1], size)
    out, loop = np.empty((len(images), size, size, 3), np.uint8), _compiled()
    in_threads(lambda rows: loop(images[rows], out[rows], start, weights), shares(len(images)))
    return out


@lru_cache
def _taps(size: int, larger: int) -> tuple[np.ndarray, np.ndarray]:
    """For each new pixel the first old one that it depends on and TAPS fixed-point weights, as Pillow has them."""
    centers = (np.arange(larger) + 0.5) * (size / larger)
    start = np.minimum(np.maximum(centers - 1.5, 0).astype(np.int64), size - TAPS)
    x = np.abs(start[:, None] + np.arange(TAPS) - centers[:, None] + 0.5)
    weights = np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, ((x - 5) * x + 8) * x * -0.5 + 2, 0))
    weights /= weights.sum(1, keepdims=True)
    return start, (weights * (1 << PRECISION) + np.copysign(0.5, weights)).astype(np.int32)  # truncation then rounds


@lru_cache
def _compiled() -> Any:
    import numba  # loaded only where it is used

    return numba.njit(nogil=True, cache=True)(_enlarge)


def _enlarge(images, out, start, weights):  # type: ignore[no-untyped-def]
    n, small, _, _ = images.shape
    size = out.shape[1]
    wide = np.empty((small, size * 3), np.int32)
    line = np.empty(size * 3, np.int32)
    half = np.int32(1 << (PRECISION - 1))
    for b in range(n):
        for row in range(small):
            for column in range(size):
                for channel in range(3):
                    value = half
                    for tap in range(TAPS):
                        value = np.int32(value + weights[column, tap] * images[b, row, start[column] + tap, channel])
                    wide[row, 3 * column + channel] = min(max(value >> PRECISION, 0), 255)
        for row in range(size):
            line[:] = half
            for tap in range(TAPS):
                weight, source = weights[row, tap], wide[start[row] + tap]
                for i in range(size * 3):
                    line[i] = np.int32(line[i] + weight * source[i])
            target = out[b, row].reshape(-1)
            for i in range(size * 3):
                target[i] = min(max(line[i] >> PRECISION, 0), 255)
