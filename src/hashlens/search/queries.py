"""Queries: an image or a code in hex in, its code out.

Images are read and encoded exactly as in `hashlens encode`, so an image of the index finds itself at 0 bits.
"""

import glob
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hashlens.addresses import is_address
from hashlens.codes import Codes
from hashlens.data.formats import EXTENSIONS, READABLE
from hashlens.data.images import (
    INSIDE,
    MAX_PIXELS,
    FileImages,
    Images,
    UnreadableImage,
    decode,
    quiet_pillow,
    reason,
    rgb,
    upright,
)
from hashlens.data.kinds.list import lines_of
from hashlens.data.sources import open_source
from hashlens.errors import DataError, UsageError
from hashlens.files import expanded


def parse_code(text: str, n_bits: int, second_bits: int = 0) -> Codes:
    """Parse a code in hex, optionally followed by the second code.

    >>> parse_code("9f3c 21a0 77e4", 48).packed.tolist()
    [[159, 60, 33, 160, 119, 228]]
    """
    n_digits, n_more = 2 * -(-n_bits // 8), 2 * -(-second_bits // 8)
    digits = "".join(text.split())
    if second_bits and len(digits) == n_digits + n_more:
        second = parse_code(digits[n_digits:], second_bits)
        return replace(parse_code(digits[:n_digits], n_bits), second=second)
    try:
        packed = bytes.fromhex(digits)
    except ValueError as error:
        raise UsageError(f"a code has {n_digits} hex digits, such as {'9f3c21a0' * 8:.{n_digits}}") from error
    if len(packed) * 2 != n_digits:
        raise UsageError(
            f"the index contains codes of {n_bits} bits: {n_digits} hex digits are needed, got {2 * len(packed)}"
        )
    if n_bits % 8 and packed[-1] & (0xFF >> (n_bits % 8)):
        raise UsageError(f"the index contains codes of {n_bits} bits; the bits after those must be 0")
    return Codes(np.frombuffer(packed, np.uint8)[None], n_bits)


class QueryImage(Images):
    """One image, read when the model needs it and at the model's size, like images of an index."""

    def __init__(self, source: Path | bytes | Image.Image, max_pixels: int = MAX_PIXELS, name: str | None = None):
        self._source, self._max_pixels = source, max_pixels
        self.facts: dict[str, Any] = {"path": source.as_posix()} if isinstance(source, Path) else {}
        if name is not None:
            self.facts["name"] = name
        self.names = (name or self.facts.get("path", "given"),)
        self.seconds = 0.0
        self.cropped_to: int | None = None  # pixels per side, if already cropped for a model

    def image(self, row: int, at_least: int | None = None) -> Image.Image:
        start = time.perf_counter()
        file: Any = io.BytesIO(self._source) if isinstance(self._source, bytes) else self._source
        try:
            with quiet_pillow():
                if isinstance(file, Image.Image):
                    image, (width, height) = rgb(upright(file)), file.size
                else:
                    image, (width, height) = decode(file, at_least, self._max_pixels)
        except Exception as error:  # Pillow raises nearly anything on a damaged file
            raise unreadable(self.names[0], reason(file, error)) from error
        self.facts = {"width": width, "height": height} | self.facts  # facts from before cropping take precedence
        self.seconds += time.perf_counter() - start
        return image


def unreadable(name: str, why: str) -> UnreadableImage:
    """An error for a query, which, unlike other files in a folder, must be an image."""
    return UnreadableImage(name, f"not a {READABLE} file" if why == "not an image" else why)


def is_code(text: str) -> bool:
    """Whether text is a code in hex, optionally with spaces, and not the name of a file."""
    # pathlib raises if a code is longer than any file name, or a folder is unreadable
    return set(text.lower()) <= set("0123456789abcdef ") and not os.path.exists(text)  # noqa: PTH110


def queries(text: str, say: Callable[[str], object] = print) -> Iterator[tuple[str, Any]]:
    """The queries named on the command line: a code, an image on standard input, or each image of a source.

    `say` is called with notes about skipped images.
    """
    given: str | list[str] = text
    if text == "-":
        content = sys.stdin.buffer.read()
        if b"\0" in content:  # occurs in every image, but never in a list of paths
            yield "standard input", content
            return
        given = lines_of(content)
    elif is_code(text):
        yield text, text
        return
    elif (
        text.lower().endswith(EXTENSIONS)
        and not (glob.has_magic(text) or is_address(text))
        and not os.path.isdir(expanded(text))  # noqa: PTH112
    ):
        path = expanded(text).absolute()
        if not os.path.exists(path):  # noqa: PTH110
            raise DataError(f"image {text} not found; check the path")
        yield path.as_posix(), path
        return
    source = open_source(given, labels="optional")
    for skipped, why in source.skipped:
        say(f"skipped: {skipped}: {why}")
    for row, name in enumerate(source.table["path"].to_pylist()):
        if isinstance(source.images, FileImages) and not (INSIDE in name or is_address(name)):
            yield name, Path(name)
        else:
            yield name, _as_stored(source.images, row)


def _as_stored(images: Images, row: int) -> bytes | Image.Image:
    """The bytes of an image if it has any, so that it is decoded like any file."""
    try:
        return images.data(row)
    except NotImplementedError:  # images from an array
        return images.image(row)
