"""The resize rule: the centre square, scaled as Pillow does it, whatever the images come from."""

import numpy as np
import pytest
from PIL import Image

from hashlens.data.images import ArrayImages


@pytest.mark.parametrize("small", [1, 4, 5, 8, 28, 32, 64])
def test_equals_pillow(rng, small):
    images = rng.integers(0, 256, (3, small, small, 3), np.uint8)
    for size in (small, small + 1, 2 * small + 1, 100, 144):
        expected = [np.asarray(Image.fromarray(x).resize((size, size), Image.Resampling.BICUBIC)) for x in images]
        assert np.array_equal(ArrayImages(images).read(slice(None), size), expected), size


def test_the_centre_square_is_kept(rng):
    images = rng.integers(0, 256, (2, 10, 16), np.uint8)
    assert np.array_equal(ArrayImages(images).read(slice(None), 10)[..., 0], images[:, :, 3:13])
