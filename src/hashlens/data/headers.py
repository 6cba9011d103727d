"""Headers: an image file in, an error out if decoding would cost too much; a few kB can take minutes or gigabytes.

Nothing is decoded: blocks are counted and sizes read, and files that cost more than any honest image are refused.
Damage is left to the decoder, whose messages say more.
"""

import re
import struct
from collections.abc import Callable, Iterator

MAX_SCANS = 50  # a progressive JPEG has about ten; each one goes through all pixels again
MAX_FRAMES = 10_000  # although only the first is decoded
MAX_CHUNKS = 50_000  # more than a 300 MB PNG in chunks of 8 kB
MAX_FILL = 1_000  # fill bytes between the segments of a JPEG, which Pillow reads one by one
MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # in JPEG data: not a stuffed byte and not a restart


class Costly(Exception):
    """An image that would take too much time or memory; the text says why in a few words."""


def require_cheap(content: bytes, max_pixels: int) -> None:
    """Refuse a file of too many scans, frames, chunks or pixels."""
    count = next((count for start, count in COUNTS.items() if content.startswith(start)), None)
    if count is None:
        return
    try:
        for kind, value in count(content):
            limit = max_pixels if kind == "pixels" else LIMITS[kind]
            if value > limit:
                raise too_many_pixels(value, limit) if kind == "pixels" else Costly(f"{kind}: more than {limit:,}")
    except (struct.error, IndexError):
        pass  # the file is truncated


def too_many_pixels(n: int, limit: int) -> Costly:
    digits = 0 if limit >= 1e6 else 3
    return Costly(f"{n / 1e6:,.{digits}f} megapixels, limit {limit / 1e6:,.{digits}f}")


LIMITS = {"scans": MAX_SCANS, "frames": MAX_FRAMES, "chunks": MAX_CHUNKS, "fill bytes": MAX_FILL}
Counts = Iterator[tuple[str, int]]  # what is counted, and the count so far


def _jpeg(content: bytes) -> Counts:
    place, n_scans, n_segments = 2, 0, 0
    while found := MARKER.search(content, place):
        if not n_scans:
            yield "fill bytes", found.start() - place
        marker, place = found[0][1], found.end()
        if marker == 0xD9:  # end of image; the rest is not read
            return
        if marker == 0xDA:
            n_scans += 1
            yield "scans", n_scans
        n_segments += 1
        yield "chunks", n_segments
        place += struct.unpack_from(">H", content, place)[0]
    yield "fill bytes", len(content) - place if not n_scans else 0


def _png(content: bytes) -> Counts:
    place, n_chunks, n_frames = 8, 0, 0
    while place < len(content):
        n_bytes, name = struct.unpack_from(">I4s", content, place)
        n_chunks += 1
        yield "chunks", n_chunks
        if name == b"IHDR":
            width, height = struct.unpack_from(">II", content, place + 8)
            yield "pixels", width * height
        elif name == b"fcTL":
            n_frames += 1
            yield "frames", n_frames
        place += 12 + n_bytes


def _webp(content: bytes) -> Counts:
    place, n_chunks, n_frames = 12, 0, 0
    while place < len(content):
        name, n_bytes = struct.unpack_from("<4sI", content, place)
        n_chunks += 1
        yield "chunks", n_chunks
        if name == b"VP8X":  # the canvas, which is allocated as soon as the file is opened
            sides = (1 + int.from_bytes(content[place + at : place + at + 3], "little") for at in (12, 15))
            yield "pixels", next(sides) * next(sides)
        elif name == b"VP8L":
            (bits,) = struct.unpack_from("<I", content, place + 9)
            yield "pixels", (1 + (bits & 0x3FFF)) * (1 + (bits >> 14 & 0x3FFF))
        elif name == b"VP8 ":
            width, height = struct.unpack_from("<HH", content, place + 14)
            yield "pixels", (width & 0x3FFF) * (height & 0x3FFF)
        elif name == b"ANMF":
            n_frames += 1
            yield "frames", n_frames
        place += 8 + n_bytes + n_bytes % 2


def _gif(content: bytes) -> Counts:
    def after_blocks(place: int) -> int:
        while n_bytes := content[place]:
            place += 1 + n_bytes
        return place + 1

    def palette(flags: int) -> int:
        return 3 * 2 ** (1 + (flags & 7)) if flags & 0x80 else 0

    place, n_frames = 13 + palette(content[10]), 0
    while True:
        if content[place] == 0x21:
            place = after_blocks(place + 2)
        elif content[place] == 0x2C:
            n_frames += 1
            yield "frames", n_frames
            width, height = struct.unpack_from("<HH", content, place + 5)
            yield "pixels", width * height
            place = after_blocks(place + 11 + palette(content[place + 9]))
        else:
            return


def _tiff(content: bytes) -> Counts:
    order = "<" if content[:2] == b"II" else ">"
    big = struct.unpack_from(f"{order}H", content, 2)[0] == 43
    address, number, entry = ("Q", "Q", 20) if big else ("I", "H", 12)
    (place,) = struct.unpack_from(order + address, content, 8 if big else 4)
    n_frames = 0
    while place:  # a circular list ends at the limit
        n_frames += 1
        yield "frames", n_frames
        (n_entries,) = struct.unpack_from(order + number, content, place)
        (place,) = struct.unpack_from(order + address, content, place + struct.calcsize(number) + entry * n_entries)


COUNTS: dict[bytes, Callable[[bytes], Counts]] = {
    b"\xff\xd8": _jpeg,
    b"\x89PNG": _png,
    b"RIFF": _webp,
    b"GIF8": _gif,
    b"II": _tiff,
    b"MM": _tiff,
}
