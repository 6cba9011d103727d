"""Small images of one grey, which tells them apart, and what tests of sources share."""

import struct
import zlib

import numpy as np
from PIL import Image

from hashlens.data import open_source, readable


def paint(path, grey, size=(12, 10), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (grey, grey, grey)).save(path, **options)


def three_classes(folder, n, noise, colour):
    """A folder of three class folders with n noisy images each, which differ in their colour."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(("circle", "square", "stripe")):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = rng.integers(0, noise, (24, 24, 3), np.uint8)
            pixels[..., number] += colour
            Image.fromarray(pixels).save(folder / name / f"{i:02d}.png")
    return folder


def huge_png(width, height):
    """The start of a PNG that claims to be this large."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    length, check = struct.pack(">I", len(header) - 4), struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + length + header + check + struct.pack(">I", 0) + b"IDAT"


def opened(path, **options):
    return readable(open_source(path, **options))


def greys(source):
    return source.images.read(slice(None), 4)[:, 0, 0, 0].tolist()


def described(source):
    return [source.labels.describe(row) for row in range(len(source.labels))]
