"""Small square pictures in, large ones out: Pillow's bicubic enlargement, several times as fast.

Enlarging 60,000 pictures of CIFAR-10 one by one takes a tenth of the whole time from pictures to codes.
"""

from __future__ import annotations

from functools import lru_cache

import numba
import numpy as np
from PIL import Image

from hashlens.threads import in_threads, shares

TAPS = 4  # pixels that a bicubic value depends on, in each direction


def enlarge(pictures: np.ndarray, size: int) -> np.ndarray:
    """(b, h, h, 3) uint8 to (b, size, size, 3) uint8; unlike Pillow, nothing is rounded between the two directions."""
    start, weights = _taps(pictures.shape[1], size)
    out = np.empty((len(pictures), size, size, 3), np.uint8)
    in_threads(lambda rows: _enlarge(pictures[rows], out[rows], start, weights), shares(len(pictures)))
    return out


@lru_cache
def bicubic(size: int, target: int) -> np.ndarray:
    """The matrix (target, size) that resizes a column of pixels as Pillow does, read off its own result."""
    unit = Image.fromarray(np.eye(size, dtype=np.float32))
    return np.array(unit.resize((size, target), Image.Resampling.BICUBIC))


@lru_cache
def _taps(size: int, larger: int) -> tuple[np.ndarray, np.ndarray]:
    """For each new pixel the first old one that it depends on and TAPS weights."""
    matrix = bicubic(size, larger)
    start = np.array([min(np.flatnonzero(row)[0], size - TAPS) for row in matrix])
    return start, np.stack([row[s : s + TAPS] for row, s in zip(matrix, start, strict=True)])


@numba.njit(nogil=True, fastmath=True, cache=True)
def _enlarge(pictures, out, start, weights):  # type: ignore[no-untyped-def]
    n, small, _, _ = pictures.shape
    size = out.shape[1]
    wide = np.empty((small, size * 3), np.float32)
    line = np.empty(size * 3, np.float32)
    for b in range(n):
        for row in range(small):
            for column in range(size):
                for channel in range(3):
                    value = np.float32(0)
                    for tap in range(TAPS):
                        value += weights[column, tap] * pictures[b, row, start[column] + tap, channel]
                    wide[row, 3 * column + channel] = value
        for row in range(size):
            first = start[row]
            for i in range(size * 3):
                line[i] = np.float32(0.5)  # truncation then rounds
            for tap in range(TAPS):
                weight, source = weights[row, tap], wide[first + tap]
                for i in range(size * 3):
                    line[i] += weight * source[i]
            target = out[b, row].reshape(-1)
            for i in range(size * 3):
                target[i] = np.uint8(min(max(line[i], np.float32(0)), np.float32(255)))
