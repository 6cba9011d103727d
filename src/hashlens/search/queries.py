"""Queries: what can be searched for, a picture, a code or a name on the command line, in; its code out.

Pictures are read and encoded exactly as `hashlens encode` does it, so that a picture of the index finds itself at
0 bits.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hashlens.codes import Codes
from hashlens.data.images import FORMATS, Images, decode, reason, rgb, upright
from hashlens.errors import DataError, UsageError
from hashlens.export import OnnxEncoder
from hashlens.features.batches import mean_of_views
from hashlens.index.plan import readable

READABLE = "JPEG, PNG, WebP, BMP, GIF or TIFF"


class UnreadablePicture(DataError):
    """What was given as a picture is none, or is damaged or too large."""


def parse_code(text: str, n_bits: int) -> Codes:
    """
    >>> parse_code("9f3c 21a0 77e4", 48).packed.tolist()
    [[159, 60, 33, 160, 119, 228]]
    """
    n_digits = 2 * -(-n_bits // 8)
    try:
        packed = bytes.fromhex(text)
    except ValueError as error:
        raise UsageError(f"a code is written in {n_digits} hex digits, such as {'9f3c21a0' * 8:.{n_digits}}") from error
    if len(packed) * 2 != n_digits:
        raise UsageError(
            f"the index holds codes of {n_bits} bits: {n_digits} hex digits are needed, {2 * len(packed)} are given"
        )
    if n_bits % 8 and packed[-1] & (0xFF >> (n_bits % 8)):
        raise UsageError(f"the index holds codes of {n_bits} bits; bits beyond those must be 0")
    return Codes(np.frombuffer(packed, np.uint8)[None], n_bits)


class QueryPicture(Images):
    """One picture, read when the model asks for it and as large as it asks for, as pictures of an index are."""

    names = ("query",)

    def __init__(self, source: Path | bytes | Image.Image, max_pixels: int):
        self.seconds = 0.0
        self.facts: dict[str, Any] = {"path": source.as_posix()} if isinstance(source, Path) else {}
        self._source, self._max_pixels = source, max_pixels

    def picture(self, row: int, at_least: int | None = None) -> Image.Image:
        start = time.perf_counter()
        file = io.BytesIO(self._source) if isinstance(self._source, bytes) else self._source
        try:
            if isinstance(file, Image.Image):
                image, size = rgb(upright(file)), file.size
            else:
                _require_pixels(file, self._max_pixels)
                image, size = decode(file, at_least)
        except UnreadablePicture:
            raise
        except Exception as error:  # a damaged file makes Pillow raise nearly anything
            raise UnreadablePicture(_why(file, error)) from error
        self.facts |= {"width": size[0], "height": size[1]}
        self.seconds += time.perf_counter() - start
        return image

    def __getitem__(self, rows: Any) -> Images:
        return self

    def fingerprint(self) -> str:
        raise NotImplementedError("this is read once: nothing computed from it is to be kept")


def _require_pixels(file: Path | io.BytesIO, most: int) -> None:
    """Only the first bytes are read for this: a small file can claim to be a picture that fills the memory."""
    with Image.open(file, formats=FORMATS) as image:
        width, height = image.size
    if width * height > most:
        raise UnreadablePicture(
            f"the picture has {width:,} x {height:,} pixels, the limit is {most / 1e6:.0f} million; make it smaller"
        )
    if isinstance(file, io.BytesIO):
        file.seek(0)


def _why(file: Path | io.BytesIO | Image.Image, error: Exception) -> str:
    if isinstance(file, Image.Image):
        return f"the picture is damaged ({error}); open it again"
    name = "this" if isinstance(file, io.BytesIO) else f"'{file}'"
    try:
        why = reason(file, error)
        n_bytes = len(file.getbuffer()) if isinstance(file, io.BytesIO) else file.stat().st_size
    except OSError:
        return f"there is no picture {name}; check the path"
    if why == "truncated":
        return f"{name} is cut off after {readable(n_bytes)}; save or send it again"
    return f"{name} is not a picture that can be read ({why}); give a {READABLE}"


def code_function(encoder: Any) -> Callable[[Images], Codes]:
    """What makes the code of one picture: the network is made ready here, once, and not again for each picture."""
    from hashlens.encoding import encode_function
    from hashlens.export import network_of

    if isinstance(encoder, OnnxEncoder):
        return encoder.encode
    try:
        network, size, on_features = network_of(encoder, None)
    except (UsageError, AttributeError):  # nothing that runs alone; it has its own way
        return encode_function(encoder)
    from hashlens.hashers.base import Hasher
    from hashlens.networks.inference import choose_device, choose_precision, forward_function, prepare_cpu

    prepare_cpu()
    wanted = (choose_device(), "auto", False)
    if not on_features:
        wanted = (choose_device(encoder.training.device), encoder.training.precision, encoder.training.mirror)
    device, precision, mirror = wanted
    example = np.zeros((1, size, size, 3), np.uint8)
    forward = forward_function(network, example, device, choose_precision(precision, device))

    def codes_of(images: Images) -> Codes:
        picture = images.read([0], size)

        def view(flip: bool) -> Iterator[tuple[slice, np.ndarray]]:
            yield slice(0, 1), forward(np.ascontiguousarray(picture[:, :, ::-1]) if flip else picture)

        outputs = mean_of_views(view, 1, mirror)
        if on_features:
            outputs = Hasher.project(encoder, outputs.astype(np.float16).astype(np.float32))
        return Codes.from_relaxed(outputs)

    return codes_of


def queries(source: str) -> Iterator[tuple[str, Any]]:
    """What the command line is given, by name: a picture, a code, each picture of a folder, or - for standard input."""
    if source == "-":
        yield "standard input", sys.stdin.buffer.read()
    elif is_folder(source):
        from hashlens.data.folder import find_pictures

        for name in find_pictures(Path(source)):
            yield (Path(source) / name).as_posix(), Path(source) / name
    else:
        yield source, source


def is_there(name: str) -> bool:
    """Whether there is a file of that name; a code may be longer than any name, and a folder may be closed to us."""
    return os.path.exists(name)  # noqa: PTH110 - pathlib raises for these


def is_folder(name: str) -> bool:
    return os.path.isdir(name)  # noqa: PTH112 - as above
