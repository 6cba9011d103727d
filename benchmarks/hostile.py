"""Malicious images: small files that would cost minutes or gigabytes, or crash a decoder."""

from __future__ import annotations

import io
import re
import struct
import zlib
from functools import cache
from itertools import pairwise

from PIL import Image


@cache
def hostile_images() -> dict[str, bytes]:
    """{name: file}, with the same bytes every time."""
    return {
        "scans-grey.jpg": _jpeg_of_scans("L", 5_000),
        "scans-colour.jpg": _jpeg_of_scans("RGB", 8_000),
        "scans-baseline.jpg": _jpeg_of_scans("L", 3_000, progressive=False),
        "huge.jpg": _jpeg_header(65_500, 65_500),
        "segments.jpg": _jpeg_header(64, 64, b"\xff\xe5\x00\x02" * 400_000),
        "comment.jpg": b"\xff\xd8" + b"\xff" * 5_000_000,
        "exif-loop.jpg": _jpeg_header(64, 64, _segment(0xE1, b"Exif\0\0" + _tiff([(0x8769, 4, 1, 8)]))),
        "length.jpg": b"\xff\xd8\xff\xe0\x00\x00" + b"\0" * 1000,
        "mpo.jpg": _jpeg_header(64, 64, _segment(0xE2, b"MPF\0" + _tiff([(0xB001, 4, 1, 2**31)]))),
        "huge.png": _png(30_000, 30_000),
        "overflow.png": _png(2**31 - 1, 2**31 - 1),
        "long.png": _png(1, 2**31 - 1),
        "chunks.png": _png(8, 8, _chunk(b"abCd", b"") * 60_000),
        "frames.png": _png(8, 8, _chunk(b"acTL", struct.pack(">II", 2**31, 0)) + _chunk(b"fcTL", b"\0" * 26) * 20_000),
        "text.png": _png(8, 8, _chunk(b"zTXt", b"a\0\0" + _deflated()) * 3),
        "profile.png": _png(8, 8, _chunk(b"iCCP", b"a\0\0" + _deflated())),
        "pixels.png": _png(8, 8, pixels=_deflated()),
        "length.png": b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 2**32 - 1, b"IHDR") + b"\0" * 100,
        "canvas.webp": _webp(_part(b"VP8X", b"\x02\0\0\0" + b"\xff\x3f\x00" * 2) + _part(b"ANIM", b"\0" * 6)),
        "lossless.webp": _webp(_part(b"VP8L", b"\x2f" + struct.pack("<I", 0x0FFFFFFF) + b"\0" * 50)),
        "lossy.webp": _webp(_part(b"VP8 ", b"\x10\0\0\x9d\x01\x2a" + struct.pack("<HH", 16_383, 16_383) + b"\0" * 50)),
        "frames.webp": _webp(_part(b"VP8X", b"\x02\0\0\0" + b"\7\0\0" * 2) + _part(b"ANMF", b"\0" * 16) * 20_000),
        "frame.gif": _gif(1, 1, _gif_frame(65_535, 65_535, b"\x02\x02\x4c\x01\x00")),
        "frames.gif": _gif(4, 4, _gif_frame(4, 4, b"\x02\x02\x4c\x01\x00") * 20_000),
        "blocks.gif": _gif(4, 4, b"\x21\xfe" + b"\1a" * 500_000),
        "loop.tif": _tiff([(256, 4, 1, 8), (257, 4, 1, 8)], following=8),
        "huge.tif": _tiff([(256, 4, 1, 2**32 - 1), (257, 4, 1, 2**32 - 1), (262, 3, 1, 1), (273, 4, 1, 8)]),
        "strips.tif": _tiff([(256, 4, 1, 64), (257, 4, 1, 64), (262, 3, 1, 1), (273, 4, 2**30, 8), (279, 4, 2**30, 8)]),
        "samples.tif": _tiff([(256, 4, 1, 64), (257, 4, 1, 64), (262, 3, 1, 2), (277, 3, 1, 65_535), (273, 4, 1, 8)]),
        "huge.bmp": _bmp(30_000, 30_000),
        "negative.bmp": _bmp(1_000, -(2**31)),
        "runs.bmp": runs_of_one(500_000),
        "program.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
        "entities.jpg": b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "' + b"a" * 9_999 + b'">]><svg>&a;&a;</svg>',
    }


def runs_of_one(n: int) -> bytes:
    """A BMP with an inconspicuous header and pixels in runs of one, each read separately."""
    return _bmp(4_999, 5_000, 1, b"\x01\x07" * n)


def _jpeg_of_scans(mode: str, n: int, progressive: bool = True) -> bytes:
    """A JPEG that repeats its shortest scan n times; each goes through all pixels."""
    file = io.BytesIO()
    Image.new(mode, (2_000, 2_000), 128 if mode == "L" else (9, 90, 200)).save(
        file, "JPEG", progressive=progressive, optimize=True
    )
    content = file.getvalue()[:-2]
    starts = [found.start() for found in re.finditer(rb"\xff\xda", content)] + [len(content)]
    scans = [content[start:end] for start, end in pairwise(starts)]
    return content + min(scans, key=len)[:500] * n + b"\xff\xd9"


def _jpeg_header(width: int, height: int, segments: bytes = b"") -> bytes:
    """A small JPEG that claims another size."""
    file = io.BytesIO()
    Image.new("L", (64, 64)).save(file, "JPEG")
    content = bytearray(file.getvalue())
    at = content.index(b"\xff\xc0")
    content[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(content[:2]) + segments + bytes(content[2:])


def _segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _png(width: int, height: int, chunks: bytes = b"", pixels: bytes | None = None) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    content = _chunk(b"IDAT", zlib.compress(b"\0" * 1_000) if pixels is None else pixels)
    return b"\x89PNG\r\n\x1a\n" + header + chunks + content + _chunk(b"IEND", b"")


@cache
def _deflated() -> bytes:
    """200 MB of zeros in 870 kB, made quickly by repeating one block."""
    packer = zlib.compressobj(1)
    head = packer.compress(b"\0" * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(b"\0" * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * 190 + packer.flush()


def _part(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _webp(parts: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", len(parts) + 4) + b"WEBP" + parts


def _gif(width: int, height: int, blocks: bytes) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0" * 6 + blocks + b"\x3b"


def _gif_frame(width: int, height: int, pixels: bytes) -> bytes:
    return b"\x2c" + struct.pack("<HHHHB", 0, 0, width, height, 0) + pixels


def _tiff(entries: list[tuple[int, int, int, int]], following: int = 0) -> bytes:
    """One directory at 8: (tag, type, count, value); `following` is the offset of the next one."""
    packed = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + packed + struct.pack("<I", following)


def _bmp(width: int, height: int, compression: int = 0, pixels: bytes = b"\0" * 100) -> bytes:
    n_bits = 8 if compression else 24
    palette = b"\0" * 1_024 if compression else b""
    start = 54 + len(palette)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, n_bits, compression, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + header + palette + pixels
