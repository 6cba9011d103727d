"""Images: every way in gives the same RGB, and bad files are errors with a reason."""

import io
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from made_images import huge_png
from PIL import Image

from hashlens.data import open_source, readable
from hashlens.data.images import MAX_PIXELS, ArrayImages, FileImages, as_images
from hashlens.errors import DataError, UsageError
from hashlens.hashers.shallow.ksh import KSH


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (6, 20, 20, 3), dtype=np.uint8)


def smooth(width, height):
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 255 - x], axis=2).astype(np.uint8))


def test_array_at_its_own_size_is_untouched(pixels):
    images = ArrayImages(pixels)
    assert np.array_equal(images.read([4, 0, 4], 20), pixels[[4, 0, 4]])
    assert images.read([], 20).shape == (0, 20, 20, 3)
    assert images.read([], 8).shape == (0, 8, 8, 3)


def test_grey_array_has_three_equal_channels():
    grey = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8)
    images = ArrayImages(grey)
    assert np.array_equal(images.read([1, 0], 8), np.repeat(grey[[1, 0], ..., None], 3, axis=3))
    large = images.read([1], 16)
    assert large.shape == (1, 16, 16, 3) and np.array_equal(large[..., 0], large[..., 2])


def test_resize_is_pillows_antialiased_bicubic_of_each_row(pixels):
    batch = ArrayImages(pixels).read(slice(None), 7)
    for row, small in enumerate(batch):
        assert np.array_equal(small, Image.fromarray(pixels[row]).resize((7, 7), Image.Resampling.BICUBIC))


@pytest.mark.parametrize("size", [(60, 30), (30, 60), (31, 30), (30, 30), (400, 31)])
def test_shorter_side_is_scaled_and_the_centre_kept(size):
    image = smooth(*size)
    (batch,) = as_images([image]).read([0], 15)
    factor = 15 / min(size)
    whole = np.asarray(image.resize([round(side * factor) for side in size], Image.Resampling.BICUBIC))
    top, left = (whole.shape[0] - 15) // 2, (whole.shape[1] - 15) // 2
    # the same up to half a pixel of the crop's place, which the ramps turn into a few grey levels
    tolerance = 255 / min(size) + 2
    assert np.abs(batch.astype(int) - whole[top : top + 15, left : left + 15]).max() <= tolerance


def test_views_compose_and_keep_names_with_image(pixels):
    images = ArrayImages(pixels, [f"n{row}" for row in range(6)])
    view = images[[5, 3, 1]][np.array([False, True, True])]
    assert list(view.names) == ["n3", "n1"] and len(view) == 2
    assert np.array_equal(view.read([1, 0], 20), pixels[[1, 3]])
    assert list(images[2:4].names) == ["n2", "n3"] and list(images[-1].names) == ["n5"]
    with pytest.raises(IndexError):
        view.read([2], 20)


def test_fingerprint_is_of_the_content(pixels):
    images = ArrayImages(pixels)
    assert images.fingerprint() == ArrayImages(pixels.copy(), names=list("abcdef")).fingerprint()
    assert images[[2, 0]].fingerprint() == ArrayImages(pixels[[2, 0]]).fingerprint()
    changed = pixels.copy()
    changed[3, 0, 0, 0] ^= 1
    others = [ArrayImages(changed), images[::-1], images[:5], ArrayImages(pixels.reshape(6, 10, 40, 3))]
    assert len({images.fingerprint(), *(other.fingerprint() for other in others)}) == 5


def test_fingerprint_of_files_sees_a_change(tmp_path):
    smooth(8, 8).save(tmp_path / "a.png")
    smooth(8, 9).save(tmp_path / "b.png")
    before = FileImages(tmp_path, ["a.png", "b.png"]).fingerprint()
    assert FileImages(str(tmp_path), ["a.png", "b.png"]).fingerprint() == before
    smooth(8, 10).save(tmp_path / "b.png")
    assert FileImages(tmp_path, ["a.png", "b.png"]).fingerprint() != before
    (tmp_path / "b.png").unlink()
    with pytest.raises(DataError, match=r"b\.png"):
        FileImages(tmp_path, ["a.png", "b.png"]).fingerprint()


def test_fingerprints_of_files_that_are_equal_but_for_their_pixels(tmp_path):
    for name, grey in (("a", 10), ("b", 200)):
        (tmp_path / name).mkdir()
        Image.new("RGB", (16, 16), (grey,) * 3).save(tmp_path / name / "x.bmp")
        os.utime(tmp_path / name / "x.bmp", (0, 0))
    assert (tmp_path / "a" / "x.bmp").stat().st_size == (tmp_path / "b" / "x.bmp").stat().st_size
    first, second = (FileImages(tmp_path / name, ["x.bmp"]).fingerprint() for name in "ab")
    assert first != second


def test_files_arrays_and_pil_images_give_the_same(tmp_path):
    images = [smooth(40, 30), smooth(30, 50), smooth(24, 24)]
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for image, path in zip(images, paths, strict=True):
        image.save(path)
    from_pil = as_images(images).read([0, 1, 2], 16)
    assert np.array_equal(from_pil, as_images(paths).read([0, 1, 2], 16))
    assert np.array_equal(from_pil, as_images([np.asarray(p) for p in images]).read([0, 1, 2], 16))
    assert np.array_equal(from_pil[[2]], FileImages(tmp_path, ["0.png", "1.png", "2.png"])[2:].read([0], 16))


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 100, (100, 100, 100)),
        ("LA", (0, 0), (255, 255, 255)),
        ("LA", (40, 255), (40, 40, 40)),
        ("RGBA", (255, 0, 0, 0), (255, 255, 255)),
        ("RGBA", (255, 0, 0, 128), (255, 127, 127)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("YCbCr", (128, 128, 128), (128, 128, 128)),
        ("I;16", 65535, (255, 255, 255)),
        ("I;16", 257 * 100, (100, 100, 100)),
        ("I;16", 200, (1, 1, 1)),
        ("I", 257 * 100, (100, 100, 100)),
        ("I", 100, (100, 100, 100)),
        ("F", 0.5, (128, 128, 128)),
        ("F", float("nan"), (0, 0, 0)),
    ],
)
def test_modes(mode, value, expected):
    (batch,) = as_images([Image.new(mode, (4, 4), value)]).read([0], 4)
    assert np.array_equal(np.unique(batch.reshape(-1, 3), axis=0), [expected])


def test_transparent_palette_is_laid_on_white(tmp_path):
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((0, 0), 1)
    image.save(tmp_path / "a.png", transparency=bytes([0, 255]))  # in bytes: Pillow warns about those
    (batch,) = FileImages(tmp_path, ["a.png"]).read([0], 4)
    assert batch[0, 0].tolist() == [200, 100, 50] and batch[1, 1].tolist() == [255, 255, 255]


def test_exif_turns_the_image_and_broken_exif_does_not_matter(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter to the right
    smooth(40, 20).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    assert FileImages(tmp_path, ["turned.jpg"]).thumbnail(0).size == (20, 40)
    smooth(40, 20).save(tmp_path / "broken.jpg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xffrubbish", quality=95)
    assert FileImages(tmp_path, ["broken.jpg"]).thumbnail(0).size == (40, 20)


def test_thumbnail_shows_the_whole_image(pixels):
    assert as_images([smooth(400, 100)]).thumbnail(0).size == (96, 24)
    assert as_images([smooth(400, 100)]).thumbnail(0, size=40).size == (40, 10)
    assert np.array_equal(ArrayImages(pixels).thumbnail(2), pixels[2])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"])
@pytest.mark.parametrize("part", [0.5, 0.9])
def test_truncated_files_are_errors(tmp_path, kind, part):
    rng = np.random.default_rng(1)
    file = io.BytesIO()
    noise = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    noise.save(file, kind)
    (tmp_path / "a").write_bytes(file.getvalue())
    (tmp_path / "b").write_bytes(file.getvalue()[: int(part * len(file.getvalue()))])
    images = FileImages(tmp_path, ["a", "b"])
    assert images.why_unreadable(0) is None and images.why_unreadable(1)
    with pytest.raises(DataError, match="b: "):
        images.read([0, 1], 16)


def test_progressive_jpeg_truncated_is_an_error(tmp_path):
    file = io.BytesIO()
    smooth(300, 300).save(file, "JPEG", progressive=True)
    (tmp_path / "a.jpg").write_bytes(file.getvalue()[:-200])
    assert FileImages(tmp_path, ["a.jpg"]).why_unreadable(0) == "truncated"


def test_reasons(tmp_path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("not an image at all")
    (tmp_path / "huge.png").write_bytes(huge_png(20000, 20000))
    (tmp_path / "large.png").write_bytes(huge_png(10000, 9000))  # above our limit, where Pillow only warns
    # a PostScript file, which Pillow would hand to Ghostscript
    (tmp_path / "eps.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    expected = {
        "empty.jpg": "zero bytes",
        "text.jpg": "not an image",
        "huge.png": "400 megapixels, limit 89",
        "large.png": "90 megapixels, limit 89",
        "eps.jpg": "not an image",
        "gone.jpg": "no such file",
    }
    images = FileImages(tmp_path, expected)
    assert [images.why_unreadable(row) for row in range(len(images))] == list(expected.values())
    assert MAX_PIXELS < 90_000_000


def test_check_keeps_the_order_of_many(tmp_path):
    smooth(9, 7).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"x")
    names = [f"{row:03d}.png" for row in range(100)]
    for row, name in enumerate(names):
        (tmp_path / name).symlink_to("b.png" if row % 3 == 0 else "a.png")
    source = readable(open_source(tmp_path / "*.png", labels="optional"))
    good = [name for row, name in enumerate(names) if row % 3]
    assert [Path(name).name for name in source.images.names] == [*good, "a.png"]
    assert [Path(path).name for path, _ in source.skipped] == [*names[::3], "b.png"]


@pytest.mark.parametrize("x", ["a.png", 3, None, [1, 2], [np.zeros((2, 2, 3), np.uint8), "a.png"]])
def test_other_things_are_refused_with_what_is_accepted(x):
    with pytest.raises(UsageError, match="a list of paths, PIL images or uint8 arrays"):
        as_images(x)


@pytest.mark.parametrize(
    "x",
    [
        [],
        np.zeros((2, 8, 8, 3)),
        np.zeros((2, 8, 8, 4), np.uint8),
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 3), np.uint8),
        np.zeros((2, 0, 8, 3), np.uint8),
        [np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8, 3), np.float32)],
    ],
)
def test_arrays_that_are_not_images_are_refused(x):
    with pytest.raises(DataError):
        as_images(x)


def test_names_must_fit(pixels):
    with pytest.raises(DataError, match=r"6 images but 5 names"):
        ArrayImages(pixels, list("abcde"))


def test_reading_in_several_threads_leaves_the_warning_filters_as_they_were(rng):
    images = ArrayImages([rng.integers(0, 256, (9, 7, 3), dtype=np.uint8) for _ in range(8)])
    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: images.read([i % 8], 5), range(200)))
    assert warnings.filters == before


class Items(torch.utils.data.Dataset):
    """Items as torch users have them: (image, class)."""

    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return self.images[row], row % 3


@pytest.mark.parametrize(
    "form",
    [
        Image.fromarray,
        lambda one: one,
        torch.from_numpy,
        lambda one: torch.from_numpy(one).permute(2, 0, 1),
        lambda one: torch.from_numpy(one).permute(2, 0, 1) / 255,
    ],
)
def test_torch_datasets_and_loaders(pixels, form):
    dataset = Items([form(one) for one in pixels])
    images = as_images(dataset)
    assert np.array_equal(images.read(slice(None), 20), pixels) and images.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert np.array_equal(images[[4, 1]].read([0, 1], 20), pixels[[4, 1]])
    assert images.fingerprint() != images[::-1].fingerprint()
    if form is not Image.fromarray:  # which torch's loader does not collate
        loaded = as_images(torch.utils.data.DataLoader(dataset, batch_size=4))
        assert np.array_equal(loaded.read(slice(None), 20), pixels) and loaded.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_method_learns_from_the_labels_that_come_with_images(pixels):
    given = KSH(4, features="gist", n_anchors=3).fit(pixels, np.arange(6) % 3)
    for X in (Items(pixels), torch.utils.data.DataLoader(Items(pixels), batch_size=4)):
        assert KSH(4, features="gist", n_anchors=3).fit(X).encode(X).equals(given.encode(pixels))
    with pytest.raises(UsageError, match="learns from labels"):
        KSH(4, features="gist").fit(pixels)


def test_normalised_tensors_are_refused(pixels):
    images = as_images(Items([torch.from_numpy(one) / 128 - 1 for one in pixels]))
    with pytest.raises(DataError, match=r"within \[0, 1\] before any normalisation, got -1 to"):
        images.read([0], 8)


def test_sources(pixels, tmp_path):
    for name, one in zip("abcd", pixels, strict=False):
        (tmp_path / name).mkdir()
        Image.fromarray(one).save(tmp_path / name / "1.png")
    images = as_images(open_source(tmp_path))
    assert np.array_equal(images.read(slice(None), 20), pixels[:4]) and images.labels.names == tuple("abcd")


def test_a_jpeg_has_the_pixels_of_its_full_decoding(tmp_path):
    """Decoding at a fraction of the size is faster, but the codes would not be those of all pixels."""
    smooth(900, 700).save(tmp_path / "a.jpg")
    whole = np.asarray(Image.open(tmp_path / "a.jpg"))
    assert np.array_equal(as_images([tmp_path / "a.jpg"]).read([0], 32), as_images([whole]).read([0], 32))
