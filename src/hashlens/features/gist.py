"""GIST: pictures in, 512 numbers for each out. They say how much of each scale and orientation is in which part.

A. Oliva and A. Torralba, "Modeling the shape of the scene: a holistic representation of the spatial envelope",
International Journal of Computer Vision, 2001. The grey picture's contrast is evened out, then 32 Gabor filters are
applied, 4 scales x 8 orientations, and the magnitude of each response is averaged over 4 x 4 blocks. Numbers are
those of the authors' toolbox. Order: scale, orientation, column of blocks, row of blocks.

Differences from the toolbox: pictures are 32 pixels a side by default, not 128. That is enough to tell scenes apart
(A. Torralba, R. Fergus and W. T. Freeman, "80 million tiny images", 2008), it is CIFAR-10's own size, and codes
learnt from either are equally good there. The size never depends on the pictures, so that those that are searched
for and those that are searched always agree. Pictures of another size are resized with bicubic, not bilinear, filters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy import fft
from threadpoolctl import threadpool_limits

from hashlens.errors import UsageError
from hashlens.features.cache import kept
from hashlens.progress import Progress
from hashlens.threads import blocks, work_ahead

if TYPE_CHECKING:
    from hashlens.data.images import Images

SCALES, ORIENTATIONS, BLOCKS = 4, 8, 4
SIZE = 32
BATCH = 8  # larger batches fall out of the CPU's caches
VERSION = 1  # of the numbers: to be raised whenever they change, because they are kept on disk

PLANE = (0, 2)  # pictures lie side by side, (row, picture, column), so that one matrix product serves all of a batch
CONTRAST_BORDER = 5  # pixels mirrored on each side before the contrast is evened out
CONTRAST_CYCLES = 4  # a picture: slower changes of brightness are taken away
FILTER_BORDER = 32  # pixels mirrored on each side before the filters
NEGLIGIBLE = 1e-6  # where a filter passes less, nothing is computed


def gist(images: Images, *, size: int = SIZE, progress: Progress | None = None) -> np.ndarray:
    """GIST of the pictures at `size` x `size` pixels, (n, 512) float32, mapped from the cache."""
    if size < BLOCKS:
        raise UsageError(f"GIST is taken of pictures of at least {BLOCKS} pixels a side, not {size}")
    key = hashlib.sha256(f"gist {VERSION} {size} {images.fingerprint()}".encode()).hexdigest()[:32]

    def described(rows: slice) -> tuple[slice, np.ndarray]:
        return rows, describe(images.read(np.arange(rows.start, rows.stop), size))

    def batches() -> Iterator[tuple[slice, np.ndarray]]:
        with threadpool_limits(1, user_api="blas"):  # each core multiplies matrices of its own batch
            yield from work_ahead(described, blocks(len(images), BATCH))

    return kept(key, len(images), batches(), np.float32, what="GIST", progress=progress)


def describe(pictures: np.ndarray) -> np.ndarray:
    """GIST of uint8 pictures (b, size, size, 3): (b, 512) float32.

    A filter's response is Y S X: the part S of the spectrum that it passes, between the inverse Fourier transforms from
    those frequencies to the pixels inside the border. As both are few, matrix products are twice as fast as fast
    Fourier transforms, which give everything.
    """
    b, size = pictures.shape[:2]
    starts = np.linspace(0, size, BLOCKS + 1).astype(int)[:-1]
    inverse = _inverse_transform(size)
    x = _mirrored(_even_contrast(_stretched(pictures)), FILTER_BORDER)
    spectrum = fft.fftshift(fft.fft2(x, axes=PLANE), PLANE).view(np.float32)  # real and imaginary parts in turn
    out = np.empty((b, SCALES * ORIENTATIONS, BLOCKS, BLOCKS), np.float32)
    for i, (rows, columns, passed) in enumerate(_filters(size)):
        part = spectrum[rows, :, 2 * columns.start : 2 * columns.stop] * passed
        down = inverse[:, rows] @ part.view(np.complex64).reshape(len(part), -1)
        response = np.abs(down.reshape(size * b, -1) @ inverse[:, columns].T).reshape(size, b, size)
        sums = np.add.reduceat(np.add.reduceat(response, starts, axis=0), starts, axis=2)
        out[:, i] = sums.transpose(1, 2, 0)  # (row, picture, column) to (picture, column, row)
    sides = np.diff(starts, append=size)
    return (out / np.outer(sides, sides).astype(np.float32)).reshape(b, -1)


def _stretched(pictures: np.ndarray) -> np.ndarray:
    """Grey from 0 to 255; the sum of the channels does for their mean."""
    grey = pictures.swapaxes(0, 1).sum(axis=3, dtype=np.float32)
    grey -= grey.min(axis=PLANE, keepdims=True)
    highest = grey.max(axis=PLANE, keepdims=True)
    return grey / np.maximum(highest, 1) * 255  # sums are whole numbers: below 1 is a picture of one colour


def _even_contrast(grey: np.ndarray) -> np.ndarray:
    """Logarithm, minus its slow changes, divided by its local standard deviation."""
    size = len(grey)
    x = _mirrored(np.log1p(grey), CONTRAST_BORDER)
    if size % 2:  # the toolbox has even sides
        x = _mirrored(x, 0, 1)
    x -= _slow_changes(x)
    x /= 0.2 + np.sqrt(np.abs(_slow_changes(x * x)))
    inside = slice(CONTRAST_BORDER, CONTRAST_BORDER + size)
    return x[inside, :, inside]


def _slow_changes(x: np.ndarray) -> np.ndarray:
    n = len(x)
    vertical, horizontal = fft.fftfreq(n, 1 / n)[:, None, None], fft.rfftfreq(n, 1 / n)
    passed = np.exp2(-(vertical**2 + horizontal**2) / CONTRAST_CYCLES**2)  # a half at CONTRAST_CYCLES
    return fft.irfft2(fft.rfft2(x, axes=PLANE) * passed.astype(np.float32), (n, n), PLANE)


def _mirrored(x: np.ndarray, before: int, after: int | None = None) -> np.ndarray:
    border = (before, before if after is None else after)
    return np.pad(x, (border, (0, 0), border), "symmetric")


@lru_cache
def _inverse_transform(size: int) -> np.ndarray:
    """(size, n) complex64: from centred frequencies to the pixels inside the border."""
    n = size + 2 * FILTER_BORDER
    pixels = np.arange(FILTER_BORDER, FILTER_BORDER + size)
    return (np.exp(2j * np.pi * np.outer(pixels, _frequencies(n))) / n).astype(np.complex64)


def _frequencies(n: int) -> np.ndarray:
    return fft.fftshift(fft.fftfreq(n))  # in cycles a pixel


@lru_cache
def _filters(size: int) -> list[tuple[slice, slice, np.ndarray]]:
    """Of each filter the rows and columns of the centred spectrum where it is not negligible, and its values there.

    Values are (rows, 1, 2 x columns): for several pictures, and for the real and imaginary parts.
    """
    frequencies = _frequencies(size + 2 * FILTER_BORDER)
    x, y = np.meshgrid(frequencies, frequencies)
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    found = []
    for scale in range(SCALES):
        for orientation in range(ORIENTATIONS):
            away = (angle + np.pi * orientation / ORIENTATIONS + np.pi) % (2 * np.pi) - np.pi
            exponent = 3.5 * (radius / (0.3 / 1.85**scale) - 1) ** 2  # relative to the filter's own frequency
            exponent += 2 * np.pi * (ORIENTATIONS / 8 * away) ** 2  # only one half of the plane: responses are complex
            passed = np.exp(-exponent)
            rows, columns = (_extent((passed > NEGLIGIBLE).any(axis=axis)) for axis in (1, 0))
            found.append((rows, columns, passed[rows, None, columns].repeat(2, axis=2).astype(np.float32)))
    return found


def _extent(mask: np.ndarray) -> slice:
    where = np.flatnonzero(mask)
    return slice(int(where[0]), int(where[-1]) + 1)
