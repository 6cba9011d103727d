"""Enlarging: bit for bit what Pillow does."""

import numpy as np
import pytest
from PIL import Image

from hashlens.data import images as images_module
from hashlens.data.images import ArrayImages
from hashlens.data.resize import enlarge


@pytest.mark.parametrize("small", [4, 5, 8, 11, 20, 28, 32, 33, 48, 64])
def test_equals_pillow(rng, small):
    images = rng.integers(0, 256, (3, small, small, 3), np.uint8)
    images[1] = np.where(images[1] > 127, 255, 0)  # overshoots at every edge
    for size in (small + 1, small + 2, 2 * small, 2 * small + 1, 100, 113, 144, 227):
        expected = [np.asarray(Image.fromarray(x).resize((size, size), Image.Resampling.BICUBIC)) for x in images]
        assert np.array_equal(enlarge(images, size), expected), size


def test_it_is_what_arrays_use(rng, monkeypatch):
    monkeypatch.setattr(images_module, "enlarge", lambda images, size: "enlarged")
    images = ArrayImages(rng.integers(0, 256, (3, 8, 8), np.uint8))
    assert images.read(slice(None), 9) == "enlarged" and images.read(slice(None), 7).shape == (3, 7, 7, 3)
