"""Arrays, files or PIL pictures in; uint8 (n, size, size, 3) RGB batches for a network, or thumbnails, out.

A picture is read the same way wherever it comes from: first frame, turned upright by its EXIF, grey of more
than 8 bits scaled to 8, transparency laid on white, then RGB. Files are decoded to the end, so that a
truncated one is an error and never half a grey picture.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from hashlens.errors import DataError, UsageError
from hashlens.threads import in_threads, n_threads, shares

MAX_PIXELS = 89_478_485  # Pillow's own default: 256 MB of RGB

# Only these decoders are tried, whatever a file is called: others (EPS, for one) start outside programs.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")

Progress = Callable[[str], object]  # like print: it is given one line of text now and then


class Images(ABC):
    """A sequence of pictures that are decoded when they are asked for; row i has the name `names[i]`."""

    names: Sequence[str]

    @abstractmethod
    def picture(self, row: int, at_least: int | None = None) -> Image.Image:
        """One whole picture in RGB; a JPEG may come reduced, with a shorter side of `at_least` or more."""

    @abstractmethod
    def __getitem__(self, rows: Any) -> Images:
        """The pictures at `rows` (indices, slice or mask), without copying or decoding them."""

    @abstractmethod
    def fingerprint(self) -> str:
        """sha256 of what the pictures are, in order: the key of everything computed from them."""

    def __len__(self) -> int:
        return len(self.names)

    def read(self, rows: Any, size: int) -> np.ndarray:
        """The pictures at `rows` as uint8 (len(rows), size, size, 3): shorter side to `size`, centre crop."""
        rows = self._indices(rows)
        batch = np.empty((len(rows), size, size, 3), np.uint8)

        def fill(part: slice) -> None:
            for i in range(part.start, part.stop):
                batch[i] = crop(self.picture(int(rows[i]), at_least=size), size)

        with quiet_pillow():
            in_threads(fill, shares(len(rows)))  # Pillow decodes and resizes without the GIL
        return batch

    def thumbnail(self, row: int, size: int = 96) -> Image.Image:
        """The whole picture, shrunk (never enlarged) to fit a square of `size`."""
        with quiet_pillow():
            image = self.picture(row, at_least=size).copy()
        image.thumbnail((size, size), Image.Resampling.BICUBIC)
        return image

    def _indices(self, rows: Any) -> np.ndarray:
        return np.atleast_1d(np.arange(len(self))[rows])


class ArrayImages(Images):
    """Pictures in memory: uint8 (n, h, w, 3) colour or (n, h, w) grey, or a list of single ones."""

    def __init__(self, array: np.ndarray | Sequence[np.ndarray], names: Sequence[str] | None = None):
        if isinstance(array, np.ndarray) and array.ndim not in (3, 4):
            raise DataError(
                f"an array of pictures has the shape (n, h, w, 3) or (n, h, w), not {array.shape};"
                " put a single picture in a list"
            )
        if isinstance(array, np.ndarray) and array.ndim == 3 and array.shape[-1] == 3:
            raise DataError(f"an array of shape {array.shape} looks like a single picture; put it in a list")
        # one check does for a whole array: its pictures are alike
        for picture in array[:1] if isinstance(array, np.ndarray) else array:
            if picture.dtype != np.uint8:
                raise DataError(f"pictures are uint8 from 0 to 255, not {picture.dtype}; convert them first")
            if not (picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] == 3)) or picture.size == 0:
                raise DataError(f"a picture has the shape (h, w, 3) or (h, w), not {picture.shape}")
        if names is not None and len(names) != len(array):
            raise DataError(f"{len(names):,} names were given for {len(array):,} pictures; give one for each")
        self._array = array
        self._rows = np.arange(len(array))
        self.names = tuple(names) if names is not None else tuple(f"{row:05d}" for row in self._rows)

    def __getitem__(self, rows: Any) -> ArrayImages:
        chosen = self._indices(rows)
        view = object.__new__(ArrayImages)
        view._array = self._array
        view._rows = self._rows[chosen]
        view.names = tuple(self.names[row] for row in chosen)
        return view

    @property
    def tiny_grey(self) -> bool:
        """Whether these are grey pictures of at most 28 x 28, such as handwritten digits."""
        return isinstance(self._array, np.ndarray) and self._array.ndim == 3 and max(self._array.shape[1:]) <= 28

    @property
    def side(self) -> int | None:
        """Pixels a side, if all pictures are squares of one size."""
        shape = self._array.shape[1:3] if isinstance(self._array, np.ndarray) else (0, 1)
        return int(shape[0]) if shape[0] == shape[1] else None

    def picture(self, row: int, at_least: int | None = None) -> Image.Image:
        return Image.fromarray(self._array[self._rows[row]]).convert("RGB")

    def read(self, rows: Any, size: int) -> np.ndarray:
        if isinstance(self._array, np.ndarray):
            height, width = self._array.shape[1:3]
            batch = self._array[self._rows[self._indices(rows)]]
            if batch.ndim == 3:
                batch = np.repeat(batch[..., None], 3, axis=3)
            if height == width == size:
                return batch
            if 4 <= height == width < size:
                from hashlens.data.enlarging import enlarge  # numba is loaded only where it is used

                return enlarge(batch, size)
        return super().read(rows, size)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(b"array")
        for row in self._rows:
            picture = np.ascontiguousarray(self._array[int(row)])
            digest.update(f"{picture.shape}".encode())
            digest.update(picture.data)
        return digest.hexdigest()


class FileImages(Images):
    """Picture files below a folder, named by their paths relative to it."""

    def __init__(self, root: str | os.PathLike[str], paths: Iterable[str | os.PathLike[str]]):
        self.root = Path(root)
        self.names = tuple(Path(path).as_posix() for path in paths)

    def __getitem__(self, rows: Any) -> FileImages:
        return FileImages(self.root, [self.names[row] for row in self._indices(rows)])

    def picture(self, row: int, at_least: int | None = None) -> Image.Image:
        path = self.root / self.names[row]
        try:
            return decode(path, at_least)[0]
        except Exception as error:  # a damaged file makes Pillow raise nearly anything
            raise DataError(
                f"cannot read the picture {path}: {reason(path, error)}; mend it or take it away"
            ) from error

    def fingerprint(self) -> str:
        """Of names, sizes, times, and some bytes from the middle: two folders can be equal in all the rest."""
        digest = hashlib.sha256(b"files")
        for name in self.names:
            try:
                with (self.root / name).open("rb") as file:
                    status = os.fstat(file.fileno())
                    file.seek(status.st_size // 2)
                    sample = file.read(64)
            except OSError as error:
                raise DataError(
                    f"the picture {self.root / name} cannot be found any more ({error.strerror});"
                    " put it back or open the folder again"
                ) from error
            digest.update(os.fsencode(name) + f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode() + sample)
        return digest.hexdigest()


def as_images(x: Any) -> Images:
    """Images, a uint8 array of them, or a list of paths, of PIL pictures or of uint8 arrays -> Images."""
    accepted = "Images, a uint8 array (n, h, w, 3), or a list of paths, PIL pictures or uint8 arrays"
    if isinstance(x, Images):
        return x
    if isinstance(x, np.ndarray):
        return ArrayImages(x)
    if not isinstance(x, list | tuple):
        raise UsageError(f"pictures come as {accepted}, not {type(x).__name__}; put a single one in a list")
    if not x:
        raise DataError(f"there are no pictures in an empty list; give {accepted}")
    if all(isinstance(item, str | os.PathLike) for item in x):
        return FileImages("", x)
    if all(isinstance(item, np.ndarray) for item in x):
        return ArrayImages(x)
    if all(isinstance(item, Image.Image) for item in x):
        with quiet_pillow():
            return ArrayImages([np.asarray(rgb(upright(item))) for item in x])
    kinds = ", ".join(sorted({type(item).__name__ for item in x}))
    raise UsageError(f"pictures come as {accepted}; this list holds {kinds}")


def check_readable(
    paths: Sequence[str], root: str | os.PathLike[str], progress: Progress | None = None
) -> tuple[dict[str, tuple[int, int]], list[tuple[str, str]]]:
    """Decode every file once: the good paths with their (width, height), the bad ones with a reason."""
    root = Path(root)

    def examine(part: Sequence[str]) -> list[tuple[int, int] | str]:
        found: list[tuple[int, int] | str] = []
        for path in part:
            try:
                # at_least=1 lets a JPEG come at an eighth of its size: still read to the end, but quicker
                found.append(decode(root / path, at_least=1)[1])
            except Exception as error:
                found.append(reason(root / path, error))
        return found

    good: dict[str, tuple[int, int]] = {}
    bad: list[tuple[str, str]] = []
    parts = [paths[start : start + 32] for start in range(0, len(paths), 32)]
    last_said = time.monotonic()
    with quiet_pillow(), ThreadPoolExecutor(n_threads()) as pool:
        for part, found in zip(parts, pool.map(examine, parts), strict=True):
            for path, size_or_reason in zip(part, found, strict=True):
                if isinstance(size_or_reason, str):
                    bad.append((path, size_or_reason))
                else:
                    good[path] = size_or_reason
            if progress and time.monotonic() - last_said > 2:
                progress(f"checked {len(good) + len(bad):,} of {len(paths):,}, {len(bad):,} unreadable")
                last_said = time.monotonic()
    return good, bad


def decode(file: Path | io.BytesIO, at_least: int | None = None) -> tuple[Image.Image, tuple[int, int]]:
    """One file as (RGB picture, (width, height) as stored); raises whatever Pillow raises on a bad one."""
    with Image.open(file, formats=FORMATS) as image:
        size = image.size
        if size[0] * size[1] > MAX_PIXELS:
            raise Image.DecompressionBombError(f"({size[0] * size[1]} pixels)")
        if at_least:
            # A JPEG is decoded at 1/2, 1/4 or 1/8 when that leaves twice what is needed: much quicker, and
            # after the antialiased resize the difference cannot be seen.
            image.draft("RGB", (2 * at_least, 2 * at_least))
        image.load()
        return rgb(upright(image)), size


def upright(image: Image.Image) -> Image.Image:
    try:
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1  # asked first: transposing copies always
        return ImageOps.exif_transpose(image) if turned else image
    except Exception:  # broken EXIF is common and no reason to lose the picture
        return image


def rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB: deep grey scaled down (Pillow would clip it to white), transparency on white."""
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.nan_to_num(np.asarray(image, dtype=np.float32))
        highest = float(values.max())
        # "I;16" says its range; for 32 bits the smallest usual one that holds the values is taken
        ranges = (65535,) if image.mode.startswith("I;16") else (1, 255, 65535, highest)
        full = next(limit for limit in ranges if highest <= limit)
        image = Image.fromarray((values * (255 / full)).clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return image if image.mode == "RGB" else image.convert("RGB")


def crop(image: Image.Image, size: int) -> np.ndarray:
    """The centre square scaled to `size`; as if the whole had been scaled first, and then cropped."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    if side == size:
        return np.asarray(image.crop(box))
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box))


def reason(file: Path | io.BytesIO, error: Exception) -> str:
    """Why a file could not be read, in a few words for a list of skipped pictures."""
    text = str(error)
    if isinstance(error, Image.DecompressionBombError):
        pixels = re.search(r"\((\d+) pixels\)", text)
        megapixels = f"{int(pixels[1]) / 1e6:,.0f} megapixels" if pixels else "too many pixels"
        return f"{megapixels}, limit {MAX_PIXELS / 1e6:.0f}"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, UnidentifiedImageError):
        n_bytes = file.stat().st_size if isinstance(file, Path) else len(file.getbuffer())
        return "not a picture" if n_bytes else "zero bytes"
    if "truncated" in text.lower() or isinstance(error, EOFError):
        return "truncated"
    return f"damaged ({' '.join(text.split()) or type(error).__name__})"


_readers = 0  # threads inside quiet_pillow
_readers_lock = Lock()
_filters = ExitStack()


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Without Pillow's warnings (odd EXIF, palettes, sizes): what matters is an error with a reason here.

    The filters belong to the process: the first thread that enters sets them, the last that leaves restores them.
    """
    global _readers
    with _readers_lock:
        _readers += 1
        if _readers == 1:
            _filters.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
    try:
        yield
    finally:
        with _readers_lock:
            _readers -= 1
            if _readers == 0:
                _filters.close()
