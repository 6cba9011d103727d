"""Images: arrays, files or PIL images in, uint8 (n, size, size, 3) RGB batches or thumbnails out.

All images are read in the same way: first frame, turned upright by its EXIF, deep grey scaled to 8 bits, transparency
on white, then RGB. Files are decoded to the end, so a truncated one is an error.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

# importing them registers them; otherwise Pillow would import the decoders of all formats
from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin  # isort: skip # noqa: F401

from hashlens.addresses import Address, Place, ahead, below, place
from hashlens.data.formats import HAS_HEIC, HEIC, decoders
from hashlens.data.headers import Costly, require_cheap, too_many_pixels
from hashlens.data.resize import crop
from hashlens.errors import DataError, DownloadError, StorageError, UsageError, to_install
from hashlens.machine import in_threads, shares
from hashlens.progress import counted

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa

MAX_PIXELS = 89_478_485  # Pillow's own default: 256 MB of RGB

MAX_BYTES = 2**28  # per file
INSIDE = "::"  # shards/00000.tar::cats/1.jpg; a name inside a tar file is never used as a path


MISSING, FOLDER, UNKNOWN_HEIC = "no such file", "a folder", "a HEIC photo"
FORBIDDEN, NO_MEMORY = "permission denied", "more than the memory that is left for it"
PASSING = (FORBIDDEN, NO_MEMORY, UNKNOWN_HEIC)  # reasons that may go away without a change of the file
ADVICE = {MISSING: "check the path", FOLDER: "check the path"}
LIMIT = re.compile(r"limit|more than")  # found in reasons from `headers.py` and the server's decoders


class UnreadableImage(DataError):
    """A file that is damaged or not an image; `reason` says why in a few words."""

    def __init__(self, name: object, reason: str):
        super().__init__(f"cannot read the image {name}: {reason}; {_advice(reason)}")
        self.reason = reason


def _advice(reason: str) -> str:
    if reason == UNKNOWN_HEIC:
        return f"to read those, run: {to_install('heif')}"
    usual = "save it again, smaller or simpler" if LIMIT.search(reason) else "repair or remove it"
    return ADVICE.get(reason, usual)


class Images:
    """A sequence of images, decoded on demand; row i has the name `names[i]`."""

    names: Sequence[str]
    in_memory = False
    labels: Any = None  # if they came with the images; selections (images[rows]) have none
    whole: tuple[Images, np.ndarray] | None = None  # see `part`
    _rows: np.ndarray  # rows of the underlying images

    def open(self, row: int) -> Path | io.BytesIO:
        """The file of an image, or its bytes."""
        raise NotImplementedError

    def data(self, row: int) -> bytes:
        file = self.open(row)
        return file.read_bytes() if isinstance(file, Path) else file.getvalue()

    def image(self, row: int, at_least: int | None = None) -> Image.Image:
        """One whole image in RGB; a JPEG may be reduced to a shorter side of at least `at_least`."""
        file: Path | io.BytesIO = io.BytesIO()
        try:
            file = self.open(row)
            return decode(file, at_least)[0]
        except Exception as error:  # Pillow raises nearly anything on a damaged file
            if isinstance(error, DownloadError | StorageError):  # the store failed, not this image
                raise
            raise UnreadableImage(below(getattr(self, "root", Path()), self.names[row]), reason(file, error)) from error

    def __getitem__(self, rows: Any) -> Images:
        """The images at `rows` (indices, slice or mask), without copying or decoding them."""
        chosen = self._indices(rows)
        view = copy(self)
        for own in ("labels", "whole"):
            view.__dict__.pop(own, None)
        view._rows = self._rows[chosen]
        view.names = tuple(self.names[row] for row in chosen)
        return view

    def part(self, rows: np.ndarray) -> Images:
        """The images at `rows`; cached values are computed once for all images and shared by all parts."""
        chosen = self[rows]
        chosen.whole = self, rows
        return chosen

    def alone(self) -> Images:
        """The same images, without a reference to those they were selected from."""
        return ArrayImages([np.asarray(self.image(row)) for row in range(len(self))], self.names)

    def fingerprint(self) -> str:
        """sha256 of the images in order: the key of everything computed from them and cached."""
        digest = hashlib.sha256(b"items")
        for row in range(len(self)):
            image = self.image(row)
            digest.update(f"{image.size}".encode() + image.tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    def read(self, rows: Any, size: int) -> np.ndarray:
        """The images at `rows` as uint8 (len(rows), size, size, 3), resized as in `resize.py`."""
        rows = self._indices(rows)
        batch = np.empty((len(rows), size, size, 3), np.uint8)

        def fill(part: slice) -> None:
            for i in range(part.start, part.stop):
                batch[i] = crop(self.image(int(rows[i])), size)  # decoded in full: codes depend on all pixels

        with self.ahead(rows):
            in_threads(fill, shares(len(rows)))  # Pillow decodes and resizes without the GIL
        return batch

    def ahead(self, rows: np.ndarray) -> AbstractContextManager[None]:
        """Context in which images in a store are fetched in advance."""
        return nullcontext()

    def thumbnail(self, row: int, size: int = 96) -> Image.Image:
        """The whole image, shrunk (never enlarged) to fit a square of `size`."""
        return shrunk(self.image(row, at_least=size), size)

    def paths(self) -> list[str]:
        """The names, made independent of the current folder."""
        return list(self.names)

    def why_unreadable(self, row: int) -> str | None:
        """Decode one image; return the reason if that fails."""
        try:
            self.image(row, at_least=1)  # at an eighth of its size, a JPEG is still read to the end, but faster
        except UnreadableImage as error:
            return error.reason
        return None

    def _indices(self, rows: Any) -> np.ndarray:
        return np.atleast_1d(np.arange(len(self))[rows])


class ArrayImages(Images):
    """Images in memory: uint8 (n, h, w, 3) colour or (n, h, w) grey, or a list of single images."""

    in_memory = True

    def __init__(self, array: np.ndarray | Sequence[np.ndarray], names: Sequence[str] | None = None):
        if isinstance(array, np.ndarray) and (array.ndim not in (3, 4) or (array.ndim == 3 and array.shape[-1] == 3)):
            raise DataError(
                f"an array of images must have the shape (n, h, w, 3) or (n, h, w), got {array.shape};"
                " put a single image in a list"
            )
        for image in array[:1] if isinstance(array, np.ndarray) else array:
            if image.dtype != np.uint8:
                raise DataError(f"images must be uint8 from 0 to 255, got {image.dtype}; convert them first")
            if not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)) or image.size == 0:
                raise DataError(f"an image must have the shape (h, w, 3) or (h, w), got {image.shape}")
        if names is not None and len(names) != len(array):
            raise DataError(f"{counted(len(array), 'image')} but {counted(len(names), 'name')}; give one each")
        self._array = array
        self._rows = np.arange(len(array))
        self.names = tuple(names) if names is not None else tuple(f"{row:05d}" for row in self._rows)

    @property
    def tiny_grey(self) -> bool:
        """Whether these are grey images of at most 28 x 28, like handwritten digits."""
        return isinstance(self._array, np.ndarray) and self._array.ndim == 3 and max(self._array.shape[1:]) <= 28

    @property
    def side(self) -> int | None:
        """Height and width, if all images are squares of one size."""
        shape = self._array.shape[1:3] if isinstance(self._array, np.ndarray) else (0, 1)
        return int(shape[0]) if shape[0] == shape[1] else None

    def image(self, row: int, at_least: int | None = None) -> Image.Image:
        return Image.fromarray(self._array[self._rows[row]]).convert("RGB")

    def alone(self) -> Images:
        array = self._array
        chosen = array[self._rows] if isinstance(array, np.ndarray) else [array[int(row)] for row in self._rows]
        return ArrayImages(chosen, self.names)

    def read(self, rows: Any, size: int) -> np.ndarray:
        if self.side != size:
            return super().read(rows, size)
        batch = self._array[self._rows[self._indices(rows)]]
        return np.repeat(batch[..., None], 3, axis=3) if batch.ndim == 3 else batch

    def fingerprint(self) -> str:
        digest = hashlib.sha256(b"array")
        for row in self._rows:
            image = np.ascontiguousarray(self._array[int(row)])
            digest.update(f"{image.shape}".encode())
            digest.update(image.data)
        return digest.hexdigest()


class Names(Sequence[str]):
    """A column of paths as names below a folder, made on demand, because a list of ten million takes gigabytes."""

    def __init__(self, paths: pa.ChunkedArray, root: Place):
        self._paths, self._root = paths, root
        self._prefix = f"{root.as_posix()}/".replace("//", "/")

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, row: Any) -> Any:
        return self._paths[int(row)].as_py().removeprefix(self._prefix)

    def take(self, rows: np.ndarray) -> Names:
        return Names(self._paths.take(rows), self._root)


class FileImages(Images):
    """Image files, or members of tar files, named by their paths below a folder, or by their addresses.

    `places` has the offset and the number of bytes of each member of a tar file, (n, 2).
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | Address,
        paths: Names | Iterable[str | os.PathLike[str]],
        places: np.ndarray | None = None,
    ):
        self.root = place(root)
        self.names = paths if isinstance(paths, Names) else tuple(place(path).as_posix() for path in paths)
        self._places = places
        self._coming: dict[int, Future[bytes]] = {}  # contents of rows being read from a store

    @classmethod
    def of(cls, table: pa.Table, root: Place = Path("/")) -> FileImages:
        """The files of a source's table."""
        inside = "offset" in table.column_names
        places = np.stack([table["offset"].to_numpy(), table["size"].to_numpy()], 1) if inside else None
        return cls(root, Names(table["path"], root), places)

    def __getitem__(self, rows: Any) -> FileImages:
        rows = self._indices(rows)
        names = self.names.take(rows) if isinstance(self.names, Names) else [self.names[row] for row in rows]
        return FileImages(self.root, names, None if self._places is None else self._places[rows])

    def alone(self) -> Images:
        return self  # there is no reference to other files

    def paths(self) -> list[str]:
        return [below(self.root, name).absolute().as_posix() for name in self.names]

    def file(self, row: int) -> Place:
        """The image file, or the tar file that contains it."""
        name = self.names[row]
        return below(self.root, name if self._places is None else tar_of(name))

    def open(self, row: int) -> Path | io.BytesIO:
        file, (offset, n_bytes) = self.file(row), self._place(row)
        if n_bytes > MAX_BYTES:
            raise OSError(f"{n_bytes / 1e6:,.0f} MB, limit {MAX_BYTES / 1e6:,.0f}")
        if coming := self._coming.get(row):
            content = coming.result()
        elif self._places is not None:
            content = _part(file, offset, n_bytes)
        elif isinstance(file, Path):
            return file
        else:
            content = file.read_bytes(MAX_BYTES)
        if len(content) < n_bytes:
            raise EOFError
        return io.BytesIO(content)

    def _place(self, row: int) -> tuple[int, int]:
        """Offset and number of bytes in a tar file."""
        return (0, 0) if self._places is None else tuple(self._places[row].tolist())

    @contextmanager
    def ahead(self, rows: np.ndarray) -> Iterator[None]:
        files = [(row, self.file(row), self._place(row)) for row in rows.tolist()]
        wanted = [(row, file, *at) for row, file, at in files if isinstance(file, Address) and at[1] <= MAX_BYTES]
        coming = ahead(wanted, MAX_BYTES)
        self._coming |= coming
        try:
            yield
        finally:
            for row, future in coming.items():
                self._coming.pop(row, None)
                future.cancel()

    def marks(self) -> list[str]:
        """Strings that change when a file does: size and times, and the place in a tar file."""
        found = []
        for row in range(len(self)):
            try:
                status = self.file(row).stat()
                place = "" if self._places is None else f" {self._places[row].tolist()}"
                found.append(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}{place}")
            except OSError:
                found.append("gone")  # never remembered as good
        return found

    def fingerprint(self) -> str:
        """A hash of names, sizes, times, and bytes from the middle: folders may be equal in all else."""
        digest = hashlib.sha256(b"files")
        for row, name in enumerate(self.names):
            try:
                status = self.file(row).stat()
                start, n_bytes = (0, status.st_size) if self._places is None else self._place(row)
                sample = _part(self.file(row), start + n_bytes // 2, 64)
            except OSError as error:
                raise DataError(f"cannot read the image {self.root / name} ({error.strerror}); restore it") from error
            digest.update(os.fsencode(name) + f"\0{n_bytes}\0{status.st_mtime_ns}\n".encode() + sample)
        return digest.hexdigest()


def _part(file: Place, start: int, n_bytes: int) -> bytes:
    """Bytes from the middle of a file; fewer near its end."""
    if isinstance(file, Address):
        return file.part(start, n_bytes)
    with file.open("rb") as opened:
        opened.seek(start)
        return opened.read(n_bytes)


def tar_of(path: str) -> str:
    """The tar file that contains an image."""
    return path[: path.index(f".tar{INSIDE}") + len(".tar")]


class ItemImages(Images):
    """Images of a torch Dataset, or any sequence of images, made on demand."""

    def __init__(self, items: Any):
        self._items, self._rows = items, np.arange(len(items))
        self.names = tuple(f"{row:05d}" for row in self._rows)

    def image(self, row: int, at_least: int | None = None) -> Image.Image:
        return Image.fromarray(pixels(self._items[int(self._rows[row])])).convert("RGB")

    @cached_property
    def labels(self) -> Any:
        """The second element of each item, or torchvision's `targets`, which need no decoding."""
        targets = getattr(self._items, "targets", None)
        if targets is not None and len(targets) == len(self._items):
            return np.asarray(targets)[self._rows]
        items = (self._items[int(row)] for row in self._rows)
        found = [np.asarray(item[1]) for item in items if isinstance(item, tuple | list)]
        return np.stack(found) if found else None


def as_images(x: Any) -> Images:
    """Anything ACCEPTED as `Images`, with `labels` if they came with the images."""
    if isinstance(x, Images):
        return x
    if isinstance(getattr(x, "images", None), Images):  # a Source
        x.images.labels = x.labels
        return x.images
    if isinstance(x, np.ndarray):
        return ArrayImages(x)
    if hasattr(x, "cast_column"):  # a Hugging Face dataset
        from hashlens.data.kinds.huggingface import images_of

        return images_of(x)
    if hasattr(x, "dataset") and hasattr(x, "__iter__"):  # a torch DataLoader, read once in its own order
        batches = list(x)
        images = ArrayImages([pixels(one) for batch in batches for one in _first(batch)])
        if isinstance(batches[0], tuple | list):
            images.labels = np.concatenate([np.asarray(batch[1]) for batch in batches])
        return images
    is_other = isinstance(x, str | bytes | list | tuple | dict) or hasattr(x, "__array__")
    if hasattr(x, "__getitem__") and hasattr(x, "__len__") and not is_other:
        return ItemImages(x)  # a torch Dataset
    if not isinstance(x, list | tuple):
        raise UsageError(f"images must be {ACCEPTED}, got {type(x).__name__}; put a single image in a list")
    if not x:
        raise DataError(f"the list of images is empty; pass {ACCEPTED}")
    if all(isinstance(item, str | os.PathLike) for item in x):
        return FileImages("", x)
    if all(isinstance(item, np.ndarray) for item in x):
        return ArrayImages(x)
    if all(isinstance(item, Image.Image) for item in x):
        return ArrayImages([pixels(item) for item in x])
    kinds = ", ".join(sorted({type(item).__name__ for item in x}))
    raise UsageError(f"images must be {ACCEPTED}, got a list of {kinds}")


ACCEPTED = (
    "Images, a Source, a uint8 array (n, h, w, 3), a list of paths, PIL images or uint8 arrays, a torch Dataset or"
    " DataLoader, or a Hugging Face dataset"
)


def _first(item: Any) -> Any:
    """The image of an item, or the images of a batch, without labels."""
    return item[0] if isinstance(item, tuple | list) else item


def pixels(item: Any) -> np.ndarray:
    """A PIL image, or an array or tensor (h, w, 3) or (3, h, w), as uint8 (h, w, 3) or (h, w).

    Floats must be in [0, 1], as from torchvision's ToTensor; rounding 255 x restores the bytes exactly.
    """
    item = _first(item)
    if isinstance(item, Image.Image):
        with quiet_pillow():
            return np.asarray(rgb(upright(item)))
    array = np.asarray(item)
    if array.ndim == 3 and array.shape[0] in (1, 3) and (hasattr(item, "permute") or array.shape[2] not in (1, 3)):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.dtype.kind == "f":
        if not (array.min(initial=0) >= 0 and array.max(initial=0) <= 1):
            raise DataError(
                f"image values must be uint8, or floats within [0, 1] before any normalisation, got {array.min():.3g}"
                f" to {array.max():.3g}"
            )
        array = np.round(array * 255).astype(np.uint8)
    return ArrayImages([array])._array[0]  # which checks it


def decode(
    file: Path | io.BytesIO, at_least: int | None = None, max_pixels: int = MAX_PIXELS
) -> tuple[Image.Image, tuple[int, int]]:
    """One file as (RGB image, (width, height) as stored); raises whatever Pillow raises on a bad file."""
    content = _content(file)
    require_cheap(content, max_pixels)
    with quiet_pillow(), _opened(content, max_pixels) as image:
        size = image.size
        if size[0] * size[1] > max_pixels:
            raise too_many_pixels(size[0] * size[1], max_pixels)
        if at_least:
            # decode a JPEG at 1/2, 1/4 or 1/8 if that leaves twice the size needed: faster, with no visible difference
            image.draft("RGB", (2 * at_least, 2 * at_least))
        image.load()
        return rgb(upright(image)), size


def _opened(content: bytes, max_pixels: int) -> Image.Image:
    try:
        return Image.open(io.BytesIO(content), formats=decoders())
    except Image.DecompressionBombError as error:  # Pillow's own limit, above ours
        raise too_many_pixels(int(re.findall(r"\d+", str(error))[0]), max_pixels) from error


def _content(file: Path | io.BytesIO) -> bytes:
    if isinstance(file, io.BytesIO):
        content = file.getvalue()
    else:
        with file.open("rb") as opened:
            n_bytes = os.fstat(opened.fileno()).st_size or MAX_BYTES  # 0 for a pipe
            content = opened.read(min(n_bytes, MAX_BYTES) + 1)  # Python allocates the requested number first
    if len(content) > MAX_BYTES:
        raise Costly(f"more than {MAX_BYTES / 1e6:,.0f} MB")
    return content


def shrunk(image: Image.Image, size: int) -> Image.Image:
    image = image.copy()
    image.thumbnail((size, size), Image.Resampling.BICUBIC)
    return image


def upright(image: Image.Image) -> Image.Image:
    try:
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) != 1  # checked first, as transposing always copies
        return ImageOps.exif_transpose(image) if turned else image
    except Exception:  # broken EXIF is common; the image is still good
        return image


def rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB: deep grey scaled to 8 bits (Pillow would clip it to white), transparency on white."""
    if image.mode == "F" or image.mode.startswith("I"):
        values = np.nan_to_num(np.asarray(image, dtype=np.float32))
        highest = float(values.max())
        # "I;16" has a known range; 32 bits get the smallest usual range that fits
        ranges = (65535,) if image.mode.startswith("I;16") else (1, 255, 65535, highest)
        full = next(limit for limit in ranges if highest <= limit)
        image = Image.fromarray((values * (255 / full)).clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return image if image.mode == "RGB" else image.convert("RGB")


def reason(file: Path | io.BytesIO, error: Exception) -> str:
    """Why a file could not be read, in a few words."""
    text = str(error)
    if isinstance(error, Costly):
        return text
    if isinstance(error, MemoryError):
        return NO_MEMORY
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return MISSING
    if isinstance(error, IsADirectoryError):
        return FOLDER
    if isinstance(error, PermissionError):
        return FORBIDDEN
    if isinstance(error, UnidentifiedImageError):
        if isinstance(file, Path) and file.suffix.lower() in HEIC and not HAS_HEIC:
            return UNKNOWN_HEIC
        try:
            n_bytes = file.stat().st_size if isinstance(file, Path) else len(file.getbuffer())
        except OSError:  # removed in the meantime
            return MISSING
        return "not an image" if n_bytes else "zero bytes"
    if "truncated" in text.lower() or isinstance(error, EOFError):
        return "truncated"
    return f"damaged ({' '.join(text.split()) or type(error).__name__})"


_readers = 0  # number of threads inside quiet_pillow
_readers_lock = Lock()
_filters = ExitStack()


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings (odd EXIF, palettes, sizes); real problems raise errors.

    Warning filters are per process: the first thread to enter sets them, the last to leave restores them.
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
