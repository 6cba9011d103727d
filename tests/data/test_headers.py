"""What is refused before it is decoded, and that no honest image is."""

import io

import numpy as np
import pytest
from PIL import Image

from benchmarks.hostile import hostile_images
from hashlens.data.headers import MAX_SCANS, Costly, require_cheap
from hashlens.data.images import UnreadableImage, as_images, decode

LIMIT = 25_000_000
REFUSED = {  # by their headers alone
    "scans-grey.jpg": "scans: more than 50",
    "scans-colour.jpg": "scans: more than 50",
    "scans-baseline.jpg": "scans: more than 50",
    "segments.jpg": "chunks: more than 50,000",
    "comment.jpg": "fill bytes: more than 1,000",
    "huge.png": "900 megapixels, limit 25",
    "long.png": "2,147 megapixels, limit 25",
    "chunks.png": "chunks: more than 50,000",
    "frames.png": "frames: more than 10,000",
    "canvas.webp": "268 megapixels, limit 25",
    "lossless.webp": "268 megapixels, limit 25",
    "lossy.webp": "268 megapixels, limit 25",
    "frames.webp": "frames: more than 10,000",
    "frame.gif": "4,295 megapixels, limit 25",
    "frames.gif": "frames: more than 10,000",
    "loop.tif": "frames: more than 10,000",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_its_header(name):
    with pytest.raises(Costly, match=REFUSED[name]):
        require_cheap(hostile_images()[name], LIMIT)


@pytest.mark.parametrize("name", ["huge.jpg", "huge.tif", "huge.bmp", "negative.bmp"])
def test_refused_by_what_pillow_reads(name):
    with pytest.raises(Costly, match=r"megapixels, limit 25"):
        decode(io.BytesIO(hostile_images()[name]), max_pixels=LIMIT)


@pytest.mark.parametrize(
    "how",
    [
        {"format": "JPEG"},
        {"format": "JPEG", "progressive": True},
        {"format": "JPEG", "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"},
        {"format": "PNG"},
        {"format": "WEBP"},
        {"format": "WEBP", "lossless": True},
        {"format": "GIF"},
        {"format": "TIFF"},
        {"format": "TIFF", "compression": "tiff_lzw"},
        {"format": "BMP"},
    ],
    ids=lambda how: "-".join(map(str, list(how.values())[:1] + list(how)[1:])),
)
def test_honest_images_pass(how, rng):
    image = Image.fromarray(rng.integers(0, 256, (60, 80, 3), np.uint8))
    file = io.BytesIO()
    image.save(file, **how)
    require_cheap(file.getvalue(), 60 * 80)
    assert decode(file, max_pixels=60 * 80)[1] == (80, 60)
    if how["format"] in ("PNG", "WEBP", "GIF"):  # the others say their size where only the decoder looks
        with pytest.raises(Costly):
            require_cheap(file.getvalue(), 60 * 80 - 1)
    for n_bytes in (1, 10, 30, len(file.getvalue()) - 3):  # what ends early is left to the decoder
        require_cheap(file.getvalue()[:n_bytes], LIMIT)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_animations_pass(kind, rng):
    frames = [Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)) for _ in range(5)]
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:])
    require_cheap(file.getvalue(), LIMIT)
    assert decode(file)[1] == (30, 20)


def test_a_jpeg_of_as_many_scans_as_allowed_is_decoded():
    content = hostile_images()["scans-grey.jpg"]
    scan = content[content.rindex(b"\xff\xda") : -2]
    few = content[: content.index(scan * 2)] + scan * (
        MAX_SCANS - content[: content.index(scan * 2)].count(b"\xff\xda")
    )
    assert decode(io.BytesIO(few + b"\xff\xd9"))[1] == (2_000, 2_000)


def test_encoding_a_folder_refuses_them_too(tmp_path):
    (tmp_path / "scans.jpg").write_bytes(hostile_images()["scans-colour.jpg"])
    with pytest.raises(UnreadableImage, match=r"scans\.jpg: scans: more than 50; save it again, smaller or simpler"):
        as_images([tmp_path / "scans.jpg"]).image(0)
