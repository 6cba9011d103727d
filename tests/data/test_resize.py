"""The resize rule: the centre square, scaled as Pillow does it, whatever the images come from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hashlens.data import resize
from hashlens.data.images import ArrayImages
from hashlens.kernels import available
from hashlens.kernels.compiled import Compiled

LEVELS = [name for name in available() if name != "numpy"]
compiled = pytest.mark.skipif(not LEVELS, reason="there was no compiler")


@pytest.mark.parametrize("small", [1, 4, 5, 8, 28, 32, 64])
def test_equals_pillow(rng, small):
    images = rng.integers(0, 256, (3, small, small, 3), np.uint8)
    for size in (small, small + 1, 2 * small + 1, 100, 144):
        expected = [np.asarray(Image.fromarray(x).resize((size, size), Image.Resampling.BICUBIC)) for x in images]
        assert np.array_equal(ArrayImages(images).read(slice(None), size), expected), size


def test_the_centre_square_is_kept(rng):
    images = rng.integers(0, 256, (2, 10, 16), np.uint8)
    assert np.array_equal(ArrayImages(images).read(slice(None), 10)[..., 0], images[:, :, 3:13])


def by_pillow(image, size):
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, (left, top, left + side, top + side)))


def by_kernels(level, image, size):
    """None where Pillow is left to do it."""
    side = min(image.size)
    across = resize.windows(image.width, (image.width - side) // 2, side, size)
    down = resize.windows(image.height, (image.height - side) // 2, side, size)
    return resize._scaled(Compiled(level), image, across, down) if across and down else None


@st.composite
def scalings(draw):
    """An image, black and white (so that sums leave the range of a byte), random or smooth, and a size."""
    width, height, size = draw(st.integers(1, 400)), draw(st.integers(1, 400)), draw(st.integers(1, 240))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
    if draw(st.booleans()):
        pixels = np.where(pixels > 127, 255, 0).astype(np.uint8)
    return Image.fromarray(pixels), size


@compiled
@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(scaling=scalings())
def test_every_level_scales_as_pillow_does(level, scaling):
    image, size = scaling
    if not resize._down_first(image, size):
        found = by_kernels(level, image, size)
        assert found is None or np.array_equal(found, by_pillow(image, size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASHLENS_KERNELS", level)
        assert np.array_equal(resize.crop(image, size), by_pillow(image, size))


@compiled
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("width", "height"), [(640, 480), (480, 640), (32, 32), (1, 1), (7, 5)])
def test_usual_images_are_scaled_by_the_kernels(rng, level, width, height):
    image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
    found = by_kernels(level, image, 136)
    assert (found is None) == (width < resize.TAPS)
    assert found is None or np.array_equal(found, by_pillow(image, 136))


@compiled
def test_a_large_image_is_scaled_in_strips(rng, monkeypatch):
    image = Image.fromarray(rng.integers(0, 256, (300, 400, 3), np.uint8))
    monkeypatch.setattr(resize, "STRIP", 10_000)
    assert np.array_equal(by_kernels(LEVELS[-1], image, 64), by_pillow(image, 64))
    large = Image.new("RGB", (5_000, 4_000))  # in several blocks of Pillow's memory
    with pytest.raises(ValueError, match="contiguous"):
        large.__arrow_c_array__()
    large.paste(image.resize((5_000, 4_000)))
    monkeypatch.undo()
    assert np.array_equal(by_kernels(LEVELS[-1], large, 64), by_pillow(large, 64))


@compiled
def test_where_pillow_divides_its_memory_it_scales_itself(rng):
    before = Image.core.get_block_size()
    Image.core.set_block_size(2**16)
    try:
        image = Image.fromarray(rng.integers(0, 256, (300, 400, 3), np.uint8))
        assert by_kernels(LEVELS[-1], image, 64) is None
        assert np.array_equal(resize.crop(image, 64), by_pillow(image, 64))
    finally:
        Image.core.set_block_size(before)
