"""Small images of one grey, which tells them apart, and what tests of sources share."""

import struct
import zlib

from PIL import Image

from hashlens.data import open_source, readable


def paint(path, grey, size=(12, 10), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (grey, grey, grey)).save(path, **options)


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
