"""Every image reaches a network as its centre square, scaled to the network's size with Pillow's bicubic filter.

Nothing else happens between decoding (`images.py`) and the numbers that a network gets
(`features/networks/normalise.py`); an image that already has the right size is not changed.

Compiled kernels scale several times as fast as Pillow. They read its pixels where they are and take its own weights, in
its own fixed point, so that every byte is the same; what they cannot do, Pillow does.
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
SLOWER = "plain"  # than Pillow, on processors that multiply few numbers at once
STRIP = 2**22  # pixels of an image whose memory Pillow does not divide


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
    """Whether Pillow (since 13) scales down before across, which gives other bytes."""
    return image.height > size and image.height - size > 2 * (image.width - size)


def _scaled(kernel: Compiled, image: Image.Image, across: Windows, down: Windows) -> np.ndarray | None:
    """Scaled across, strip by strip, and then down. None if Pillow's pixels cannot be read."""
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
    """What the pixels of a scaled row are made from."""

    first: np.ndarray  # (size,) int32, ascending: where the pixels that one is made from begin
    weights: np.ndarray  # (size, a multiple of TAPS) int32


@lru_cache(maxsize=64)
def windows(n: int, start: int, side: int, size: int) -> Windows | None:
    """How Pillow makes `size` pixels from `side` of n in a row; None if windows are longer than the row.

    The weights are what Pillow makes of rows that have a 1 so seldom that no window sees two.
    """
    support = 2 * max(1.0, side / size)  # of the bicubic filter, to either side
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
    """An array as Arrow shares it (https://arrow.apache.org/docs/format/CDataInterface.html), as far as it is read."""


_Array._fields_ = [
    *((name, c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(_Array))),
]
# types of our own: those of the functions in pythonapi itself belong to all packages
_pointer = PYFUNCTYPE(POINTER(_Array), py_object, c_char_p)(("PyCapsule_GetPointer", pythonapi))


def _shared(image: Image.Image) -> tuple[Any, int] | None:
    """What keeps the pixels of an RGB image, four bytes each, where they are, and their address.

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
