"""Copies: every kind is found in all orientations, different photos and dark images are not mixed up."""

import numpy as np
import pytest
from made_photos import make_photos
from PIL import Image

from benchmarks.copies import KINDS, ORIENTED, dark_and_uniform, false_groups, saved
from hashlens.duplicates.align import SIDE
from hashlens.duplicates.copies import candidates, copies, is_copy, judged
from hashlens.duplicates.looks import LOOK, ZOOMS, _code, has_border, look_at, turned, turning

N = 16


@pytest.fixture(scope="module")
def photos():
    return make_photos(N)


def looks_of(images):
    return np.stack([look_at(image) for image in images])


@pytest.mark.parametrize("kind", KINDS)
def test_every_copy_is_paired_with_its_photo_alone(photos, kind):
    rng = np.random.default_rng(0)
    pairs = copies(looks_of([*photos, *(saved(KINDS[kind](photo, rng), kind) for photo in photos)]))
    found = {(first, second) for first, second in pairs.tolist() if second - first == N}
    assert len(found) >= (N if kind in ORIENTED else N - 1)
    assert not [pair for pair in pairs.tolist() if pair[0] % N != pair[1] % N]


def test_three_changes_at_once(photos):
    rng = np.random.default_rng(0)

    def changed(photo):
        cropped = KINDS["crop 5 %"](photo.transpose(Image.Transpose.ROTATE_90), rng)
        return saved(KINDS["border 20 %"](cropped, rng), "border 20 %")

    pairs = copies(looks_of([*photos, *map(changed, photos)]))
    assert len({first for first, second in pairs.tolist() if second - first == N}) >= N - 2
    assert not [pair for pair in pairs.tolist() if pair[0] % N != pair[1] % N]


def test_dark_and_uniform_images_make_no_groups(photos):
    assert len(copies(looks_of(list(dark_and_uniform(photos))[::4]))) == 0


def test_a_sky_that_is_turned_is_found_and_another_sky_is_not():
    """Nothing but a gradient: no texture, so only what is nearly the same counts."""
    way = np.linspace(0, 1, 128)[:, None, None]
    blue, red = (
        Image.fromarray(np.broadcast_to(np.add(top, np.subtract(bottom, top) * way), (128, 128, 3)).astype(np.uint8))
        for top, bottom in (([40, 80, 200], [200, 220, 250]), ([250, 120, 60], [90, 30, 60]))
    )
    clouds = Image.fromarray((np.asarray(blue) + np.sin(np.arange(128) / 9)[None, :, None] * 6).astype(np.uint8))
    images = [clouds, saved(clouds.transpose(Image.Transpose.ROTATE_90), ""), red]
    assert copies(looks_of(images)).tolist() == [[0, 1]]


def test_nothing_and_one_image_have_no_copies(photos):
    assert copies(np.empty(0, LOOK)).shape == copies(looks_of(photos[:1])).shape == (0, 2)


@pytest.mark.parametrize("way", range(8))
def test_turned_codes_and_maps_are_those_of_the_turned_image(photos, way):
    """By turning the image itself, pixel by pixel."""
    grey = np.asarray(photos[0].convert("L").resize((SIDE, SIDE)))
    image = grey.T if way & 4 else grey
    image = image[:, ::-1] if way & 1 else image
    image = image[::-1] if way & 2 else image
    differ = np.unpackbits(turned(_code(grey)[None], way)[0] ^ _code(image)).sum()
    assert differ <= 4  # a slope of exactly zero has no sign
    for i, j in ((3, 10), (50, 7)):
        x, y, _ = turning(way) @ [(j + 0.5) / SIDE, (i + 0.5) / SIDE, 1]
        assert image[round(y * SIDE - 0.5), round(x * SIDE - 0.5)] == grey[i, j]


def test_the_content_of_a_framed_image_and_of_a_window(photos):
    rng = np.random.default_rng(0)
    look = look_at(KINDS["border 20 %"](photos[0], rng))
    assert has_border(look)
    expected = [32 / 224, 32 / 184, 192 / 224, 152 / 184]
    np.testing.assert_allclose(look["boxes"][1], expected, atol=0.02)
    assert not has_border(look_at(photos[0]))


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (500, 1), (1, 40), (4, 2)])
def test_an_image_of_a_few_pixels_is_looked_at(size):
    look = look_at(Image.new("RGB", size, "grey"))
    assert (look["width"], look["height"]) == size and look["parts"] == 0


def test_the_alignment_finds_a_crop_that_no_zoom_foresees(photos):
    """From a first guess that is several pixels off, to a high correlation."""
    photo = photos[0].resize((128, 128))
    looks = looks_of([photo, photo.crop((12, 0, 124, 120))])
    guess = np.eye(3)[None]
    found = judged(looks, np.array([0]), np.array([1]), guess)
    assert is_copy(found).all() and found[0, 2] > 0.95
    swapped = judged(looks, np.array([1]), np.array([0]), guess)
    assert swapped[0, 0] > 0.75  # at the pixels of the crop, which the whole has to be enlarged for


def test_candidates_are_few_and_sorted(photos):
    first, second, maps = candidates(looks_of([*photos, *photos]))[0]
    assert (first < second).all() and maps.shape == (len(first), 3, 3)
    assert {(row, row + N) for row in range(N)} <= set(zip(first.tolist(), second.tolist(), strict=True))
    assert len(ZOOMS) == 3


def test_false_groups_counts_groups_of_different_photos():
    same = np.arange(4)
    pairs = np.array([[0, 4], [1, 6], [2, 5], [3, 7]])  # of 4 photos and 4 copies
    assert false_groups(4, pairs, same) == 1
    assert false_groups(4, pairs, np.array([0, 1, 1, 3])) == 0
    assert false_groups(4, pairs[:1], same) == 0
