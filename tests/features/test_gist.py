"""GIST: against a slow version written from the description, and what it must and must not depend on."""

import numpy as np
import pytest

from hashlens.data.images import ArrayImages
from hashlens.features import gist as module
from hashlens.features.extractor import image_features
from hashlens.features.gist import describe

N = 19  # more than one batch


@pytest.fixture(autouse=True)
def folder(empty_cache):
    return empty_cache / "features"


def make_images(rng, n=N, size=32):
    """Smooth blobs with noise, so that all scales hold something."""
    rough = rng.integers(0, 256, (n, 6, 6, 3), dtype=np.uint8)
    smooth = ArrayImages(rough).read(slice(None), size).astype(float)
    return (smooth * 0.8 + rng.uniform(0, 50, smooth.shape)).astype(np.uint8)


def slow_gist(image, scales=4, orientations=8, blocks=4):
    """One image, one frequency, one filter and one block at a time, in float64."""
    grey = image.astype(float).mean(axis=2)
    size = len(grey)
    grey = grey - grey.min()
    grey = 255 * grey / grey.max()

    img = np.pad(np.log(1 + grey), 5, "symmetric")
    n = len(img)
    s1 = 4 / np.sqrt(np.log(2))
    low = np.empty((n, n))
    for row in range(n):
        for column in range(n):
            fy, fx = row - n // 2, column - n // 2
            low[row, column] = np.exp(-(fx**2 + fy**2) / s1**2)
    low = np.fft.ifftshift(low)
    high = img - np.fft.ifft2(np.fft.fft2(img) * low).real
    localstd = np.sqrt(np.abs(np.fft.ifft2(np.fft.fft2(high**2) * low)))
    even = (high / (0.2 + localstd))[5 : 5 + size, 5 : 5 + size]

    padded = np.pad(even, 32, "symmetric")
    n = size + 64
    fy, fx = np.mgrid[:n, :n] - n // 2
    fr, th = np.fft.ifftshift(np.sqrt(fx**2 + fy**2)), np.fft.ifftshift(np.angle(fx + 1j * fy))
    limits = np.floor(np.linspace(0, size, blocks + 1)).astype(int)
    out = []
    for i in range(scales):
        for j in range(orientations):
            tr = th + np.pi * j / orientations
            tr = np.where(tr > np.pi, tr - 2 * np.pi, tr)
            c3 = 16 * orientations**2 / 32**2
            h = np.exp(-10 * 0.35 * (fr / n / (0.3 / 1.85**i) - 1) ** 2 - 2 * c3 * np.pi * tr**2)
            response = np.abs(np.fft.ifft2(np.fft.fft2(padded) * h))[32 : 32 + size, 32 : 32 + size]
            for c in range(blocks):
                for r in range(blocks):
                    out.append(response[limits[r] : limits[r + 1], limits[c] : limits[c + 1]].mean())
    return np.array(out)


@pytest.mark.parametrize("size", [4, 32, 50, 128])
def test_equals_the_slow_version(rng, size):
    images = make_images(rng, 3, size)
    expected = np.stack([slow_gist(image) for image in images])
    found = describe(images)
    assert found.shape == (3, 512) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_all_images_in_order(rng):
    images = make_images(rng)
    features = image_features(ArrayImages(images), "gist")
    assert features.shape == (N, 512) and features.dtype == np.float32
    assert (features > 0).all()
    np.testing.assert_allclose(features, [slow_gist(image) for image in images], rtol=1e-4, atol=1e-5)


def test_images_of_another_size_are_resized(rng):
    images = ArrayImages(make_images(rng, 5, 48))
    assert np.array_equal(image_features(images, "gist"), describe(images.read(slice(None), 32)))


def channels(image):
    """(scale, orientation, row, column)"""
    return describe(image[None]).reshape(4, 8, 4, 4).swapaxes(2, 3)


@pytest.mark.parametrize(
    ("direction", "orientation"), [((1, 0), 0), ((1, -1), 2), ((0, 1), 4), ((1, 1), 6)], ids=["x", "falling", "y", "up"]
)
@pytest.mark.parametrize(("scale", "frequency"), [(0, 0.3), (1, 0.162), (2, 0.088)])
def test_a_grating_excites_the_filters_of_its_scale_and_orientation(direction, orientation, scale, frequency):
    y, x = np.mgrid[:64, :64]
    along = (direction[0] * x + direction[1] * y) / np.hypot(*direction)
    wave = np.round(127.5 + 100 * np.cos(2 * np.pi * frequency * along)).astype(np.uint8)
    strength = channels(np.repeat(wave[..., None], 3, axis=2))[..., 1:3, 1:3].mean(axis=(2, 3))
    assert np.unravel_index(strength.argmax(), strength.shape) == (scale, orientation)
    opposite = strength[scale, (orientation + 4) % 8]
    assert strength[scale, orientation] > 10 * opposite


def test_each_block_is_a_place(rng):
    images = np.full((1, 32, 32, 3), 128, np.uint8)
    images[0, 2:6, 18:22] = rng.integers(0, 256, (4, 4, 3))
    for strength in channels(images[0])[0]:
        assert np.unravel_index(strength.argmax(), (4, 4)) == (0, 2)


def test_a_quarter_turn_moves_orientations_and_blocks(rng):
    image = make_images(rng, 1)[0]
    upright, turned = channels(image), channels(np.rot90(image).copy())
    expected = np.rot90(np.roll(upright, 4, axis=1), axes=(2, 3))
    # not quite: the highest frequency has no opposite, and the zero frequency has one angle
    np.testing.assert_allclose(turned, expected, atol=0.01 * expected.max())
    for other in range(1, 8):
        assert np.abs(turned - np.roll(expected, other, axis=1)).max() > 0.3 * turned.max()


@pytest.mark.parametrize(("factor", "constant"), [(1, 55), (2, 0), (0.5, 3)])
def test_brightness_and_contrast_change_nothing(rng, factor, constant):
    image = (rng.integers(0, 50, (1, 32, 32, 1)) * 2).astype(np.uint8).repeat(3, axis=3)
    changed = (image * factor + constant).astype(np.uint8)
    assert np.array_equal(describe(changed), describe(image))


def test_grey_is_the_plain_mean(rng):
    images = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    assert np.array_equal(describe(images[..., ::-1]), describe(images))


@pytest.mark.parametrize("value", [0, 7, 255])
def test_a_image_of_one_colour_is_zero(rng, value):
    images = make_images(rng, 3)
    alone = describe(images[[0, 2]])
    images[1] = value
    found = describe(images)
    assert not found[1].any()
    np.testing.assert_allclose(found[[0, 2]], alone, rtol=1e-5)


def test_the_second_time_nothing_is_computed(rng, folder, monkeypatch):
    images = make_images(rng)
    first = np.array(image_features(ArrayImages(images), "gist"))

    def refuse(images):
        raise AssertionError("computed again")

    monkeypatch.setattr(module, "describe", refuse)
    again = image_features(ArrayImages(images.copy()), "gist")
    assert np.array_equal(again, first) and not again.flags.writeable
    changed = images.copy()
    changed[3, 2, 1, 0] ^= 1
    for other in (changed, images[::-1]):
        with pytest.raises(AssertionError, match="computed again"):
            image_features(ArrayImages(other), "gist")
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    with pytest.raises(AssertionError, match="computed again"):
        image_features(ArrayImages(images), "gist")
    assert len(list(folder.glob("*.npy"))) == 1
