"""GIST: images in, 512 numbers for each out: the energy at each scale and orientation in each part.

A. Oliva and A. Torralba, "Modeling the shape of the scene: a holistic representation of the spatial envelope",
International Journal of Computer Vision, 2001. The grey image's contrast is evened out, then 32 Gabor filters are
applied, 4 scales x 8 orientations, and the magnitude of each response is averaged over 4 x 4 blocks. Parameters are
those of the authors' toolbox. Order: scale, orientation, column of blocks, row of blocks.

Differences from the toolbox: images are 32 pixels per side, not 128. That is enough to tell scenes apart
(A. Torralba, R. Fergus and W. T. Freeman, "80 million tiny images", 2008), it is CIFAR-10's own size, and codes
learned from either are equally good there. The size is the same for all images, so that queries and database agree.
Images of another size are resized with bicubic, not bilinear, filters.
"""

from functools import lru_cache

import numpy as np
from scipy import fft

SCALES, ORIENTATIONS, BLOCKS = 4, 8, 4
SIZE = 32
VERSION = 2  # version of the numbers, which are cached on disk: raise it whenever they change

PLANE = (1, 2)
CONTRAST_BORDER = 5  # pixels mirrored on each side before the contrast is evened out
CONTRAST_CYCLES = 4  # per image: slower changes of brightness are removed
FILTER_BORDER = 32  # pixels mirrored on each side before the filters
NEGLIGIBLE = 1e-6  # frequencies at which a filter passes less are skipped


def describe(images: np.ndarray) -> np.ndarray:
    """GIST of uint8 images (b, size, size, 3), size even: (b, 512) float32.

    A filter's response is Y S X: the part S of the spectrum that it passes, between the inverse Fourier transforms from
    those frequencies to the pixels inside the border. Both are few, so matrix products are twice as fast as full fast
    Fourier transforms. Each image has its own products, so that it is rounded the same in any batch.
    """
    b, size = images.shape[:2]
    starts = np.linspace(0, size, BLOCKS + 1).astype(int)[:-1]
    inverse = _inverse_transform(size)
    x = _mirrored(_even_contrast(_stretched(images)), FILTER_BORDER)
    spectrum = fft.fftshift(fft.fft2(x, axes=PLANE), PLANE).view(np.float32)  # real and imaginary parts in turn
    out = np.empty((b, SCALES * ORIENTATIONS, BLOCKS, BLOCKS), np.float32)
    for i, (rows, columns, passed) in enumerate(_filters(size)):
        part = spectrum[:, rows, 2 * columns.start : 2 * columns.stop] * passed
        response = np.abs(inverse[:, rows] @ part.view(np.complex64) @ inverse[:, columns].T)
        sums = np.add.reduceat(np.add.reduceat(response, starts, axis=1), starts, axis=2)
        out[:, i] = sums.swapaxes(1, 2)  # (image, column, row)
    sides = np.diff(starts, append=size)
    return (out / np.outer(sides, sides).astype(np.float32)).reshape(b, -1)


def _stretched(images: np.ndarray) -> np.ndarray:
    """Grey stretched to 0..255; the sum of the channels serves as their mean."""
    grey = images.sum(axis=3, dtype=np.float32)
    grey -= grey.min(axis=PLANE, keepdims=True)
    highest = grey.max(axis=PLANE, keepdims=True)
    return grey / np.maximum(highest, 1) * 255  # sums are integers, so below 1 means an image of one colour


def _even_contrast(grey: np.ndarray) -> np.ndarray:
    """The logarithm minus its slow changes, divided by its local standard deviation."""
    size = grey.shape[1]
    x = _mirrored(np.log1p(grey), CONTRAST_BORDER)
    x -= _slow_changes(x)
    x /= 0.2 + np.sqrt(np.abs(_slow_changes(x * x)))
    inside = slice(CONTRAST_BORDER, CONTRAST_BORDER + size)
    return x[:, inside, inside]


def _slow_changes(x: np.ndarray) -> np.ndarray:
    n = x.shape[1]
    vertical, horizontal = fft.fftfreq(n, 1 / n)[:, None], fft.rfftfreq(n, 1 / n)
    passed = np.exp2(-(vertical**2 + horizontal**2) / CONTRAST_CYCLES**2)  # 1/2 at CONTRAST_CYCLES
    return fft.irfft2(fft.rfft2(x, axes=PLANE) * passed.astype(np.float32), (n, n), PLANE)


def _mirrored(x: np.ndarray, border: int) -> np.ndarray:
    return np.pad(x, ((0, 0), (border, border), (border, border)), "symmetric")


@lru_cache
def _inverse_transform(size: int) -> np.ndarray:
    """(size, n) complex64: from centred frequencies to the pixels inside the border."""
    n = size + 2 * FILTER_BORDER
    pixels = np.arange(FILTER_BORDER, FILTER_BORDER + size)
    return (np.exp(2j * np.pi * np.outer(pixels, _frequencies(n))) / n).astype(np.complex64)


def _frequencies(n: int) -> np.ndarray:
    return fft.fftshift(fft.fftfreq(n))  # in cycles per pixel


@lru_cache
def _filters(size: int) -> list[tuple[slice, slice, np.ndarray]]:
    """Rows and columns of the centred spectrum where each filter is not negligible, and its values there.

    Values are (rows, 2 x columns): for the real and imaginary parts.
    """
    frequencies = _frequencies(size + 2 * FILTER_BORDER)
    x, y = np.meshgrid(frequencies, frequencies)
    radius, angle = np.hypot(x, y), np.arctan2(y, x)
    found = []
    for scale in range(SCALES):
        for orientation in range(ORIENTATIONS):
            away = (angle + np.pi * orientation / ORIENTATIONS + np.pi) % (2 * np.pi) - np.pi
            exponent = 3.5 * (radius / (0.3 / 1.85**scale) - 1) ** 2  # relative to the filter's own frequency
            exponent += 2 * np.pi * (ORIENTATIONS / 8 * away) ** 2  # only half of the plane, so responses are complex
            passed = np.exp(-exponent)
            rows, columns = (_extent((passed > NEGLIGIBLE).any(axis=axis)) for axis in (1, 0))
            found.append((rows, columns, passed[rows, columns].repeat(2, axis=1).astype(np.float32)))
    return found


def _extent(mask: np.ndarray) -> slice:
    where = np.flatnonzero(mask)
    return slice(int(where[0]), int(where[-1]) + 1)
