"""Every image reaches a network as its centre square, scaled to the network's size with Pillow's bicubic filter.

This is all that happens between decoding (`images.py`) and the numbers that a network is given
(`features/networks/normalise.py`); an image that already has the size is not changed.
"""

from functools import lru_cache

import numpy as np
from PIL import Image


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
    """The matrix (target, size) with which Pillow resizes a column of pixels; for networks that resize themselves."""
    unit = Image.fromarray(np.eye(size, dtype=np.float32))
    return np.array(unit.resize((size, target), Image.Resampling.BICUBIC))
