"""Resizing: an image in, its centre square, scaled to the network's size with Pillow's bicubic filter, out.

Nothing else happens between decoding (`images.py`) and a network's preprocessing (`features/networks/normalise.py`); an
image that already has the right size is not changed.

Compiled kernels scale several times as fast as Pillow. They read Pillow's pixels in place and use its weights and fixed
point, so that every byte is the same; Pillow does what they cannot.
"""

from __future__ import annotations

import math
from ctypes import POINTER, PYFUNCTYPE, Structure, c_char_p, c_int64, c_void_p, py_object, pythonapi
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from hashlens.kernels import kernels
from hashlens.kernels.compiled import Compiled

ONE = 1 << 22  # a weight of 1 in Pillow's fixed point
TAPS = 4  # pixels that kernels read at once
SLOWER = "plain"  # kernels that are slower than Pillow, for processors with narrow vectors
STRIP = 2**22  # pixels of an image that Pillow keeps in one piece of memory


def crop(image: Image.Image, size: int) -> np.ndarray:
    """The centre square of an RGB image, scaled to `size` as if the whole image were scaled and then cropped."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    if side == size:
        return np.asarray(image.crop(box))
    kernel = kernels()
    if isinstance(kernel, Compiled) and kernel.name != SLOWER and not _down_first(image, size):
        across, down = windows(image.width, left, side, size), windows(image.height, top, side, size)
        if across and down and (found := _scaled(kernel, image, across, down)) is not None:
            return found
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box))


def _down_first(image: Image.Image, size: int) -> bool:
    """Whether Pillow (since 13) scales vertically first, which gives other bytes."""
    return image.height > size and image.height - size > 2 * (image.width - size)


def _scaled(kernel: Compiled, image: Image.Image, across: Windows, down: Windows) -> np.ndarray | None:
    """The image scaled horizontally, strip by strip, and then vertically; None if Pillow's pixels cannot be read."""
    size, begin, end = len(across.first), int(down.first[0]), int(down.first[-1]) + down.weights.shape[1]
    rows = np.zeros((end - begin, -(-size // TAPS) * TAPS, 4), np.uint8)
    step = max(1, STRIP // image.width)
    for start in range(begin, end, step):
        stop = min(start + step, end)
        strip = image if (start, stop) == (0, image.height) else image.crop((0, start, image.width, stop))
        if (shared := _shared(strip)) is None:
            return None
        kernel.across(shared[1], image.width, rows[start - begin : stop - begin], *across)
    scaled = np.empty((size, size, 3), np.uint8)
    kernel.down(rows, scaled, down.first - begin, down.weights)
    return scaled


class Windows(NamedTuple):
    """The input pixels, and their weights, of each pixel of a scaled row."""

    first: np.ndarray  # (size,) int32, ascending: first input pixel of each
    weights: np.ndarray  # (size, a multiple of TAPS) int32


@lru_cache(maxsize=64)
def windows(n: int, start: int, side: int, size: int) -> Windows | None:
    """How Pillow makes `size` pixels from `side` of n in a row; None if windows exceed the row.

    The weights are found by scaling rows with a 1 at such distances that no window contains two.
    """
    support = 2 * max(1.0, side / size)  # of the bicubic filter, on either side
    period = TAPS * math.ceil((2 * support + 2) / TAPS)
    places, own = np.arange(n), np.arange(size)
    rows = np.zeros((period, n), np.int32)
    rows[places % period, places] = ONE
    box = (start, 0, start + side, period)
    response = np.asarray(Image.fromarray(rows).resize((size, period), Image.Resampling.BICUBIC, box)).T

    def window(first: np.ndarray, taps: int) -> np.ndarray:
        return response[own[:, None], (first[:, None] + np.arange(taps)) % period]

    first = np.maximum(0, start + (own + 0.5) * (side / size) - support).astype(np.int32)
    used = window(first, period) != 0
    before, after = used.argmax(axis=1), used[:, ::-1].argmax(axis=1)
    taps = TAPS * math.ceil((period - before - after).max() / TAPS)
    if taps > n:
        return None
    first = np.minimum(first + before, n - taps).astype(np.int32)
    return Windows(first, np.ascontiguousarray(window(first, taps)))


@lru_cache
def bicubic(size: int, target: int) -> np.ndarray:
    """The matrix (target, size) with which Pillow resizes a column of pixels; for networks that resize themselves."""
    unit = Image.fromarray(np.eye(size, dtype=np.float32))
    return np.array(unit.resize((size, target), Image.Resampling.BICUBIC))


class _Array(Structure):
    """The fields read here of an array shared by Arrow (https://arrow.apache.org/docs/format/CDataInterface.html)."""


_Array._fields_ = [
    *((name, c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(_Array))),
]
# our own prototypes, because functions in pythonapi are shared by all packages
_pointer = PYFUNCTYPE(POINTER(_Array), py_object, c_char_p)(("PyCapsule_GetPointer", pythonapi))


def _shared(image: Image.Image) -> tuple[Any, int] | None:
    """An object that keeps the pixels of an RGB image, four bytes each, alive, and their address.

    None for Pillow before 11.2, or if environment variables of its own make it divide or align its memory differently.
    """
    try:
        _, keeps = image.__arrow_c_array__()
    except (AttributeError, ValueError):
        return None
    if 4 * image.width % Image.core.get_alignment():
        return None
    pixels = _pointer(keeps, b"arrow_array").contents.children[0].contents
    return keeps, pixels.buffers[1]
