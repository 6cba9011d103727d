"""Thumbnails: the path that an index has recorded in, the picture itself, small, out.

Only files below the folders that the index was made from are opened. Those folders are what the paths of a part have in
common; a link that leads out of them is not followed.
"""

from __future__ import annotations

import io
import tarfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute
from PIL import Image

from hashlens.data.images import decode, quiet_pillow
from hashlens.data.listing import INSIDE, MAX_MEMBER, members, tar_of
from hashlens.errors import UsageError

if TYPE_CHECKING:
    from hashlens.index.folder import IndexFolder

ARCHIVES = 4  # tar files whose lists of pictures are kept


class Pictures:
    """The pictures of an index; relative paths start at `base`, the folder that hashlens runs in if not given."""

    def __init__(self, index: IndexFolder, base: Path | None = None):
        self.base = (base or Path()).resolve()
        if not self.base.is_dir():
            raise UsageError(f"there is no folder {base}; give one with --pictures where the paths of the index start")
        self._index: IndexFolder | None = None
        self.follow(index)
        self._members = lru_cache(ARCHIVES)(_places_in)

    def follow(self, index: IndexFolder) -> None:
        """An index that was changed may have pictures in other folders."""
        if index is not self._index:
            columns = [index.items(number).column("path") for number in range(len(index.index.parts))]
            self.roots = sorted({(self.base / _common_folder(column)).resolve() for column in columns})
            self._index = index

    def thumbnail(self, path: str, size: int) -> Image.Image | None:
        """The whole picture, shrunk to fit a square of `size`; None if it is not there, or not readable, any more."""
        try:
            with quiet_pillow():
                image = decode(self._file(path), at_least=size)[0].copy()
        except Exception:  # a damaged file makes Pillow raise nearly anything
            return None
        image.thumbnail((size, size), Image.Resampling.BICUBIC)
        return image

    def _file(self, path: str) -> Path | io.BytesIO:
        archive = tar_of(path) if f".tar{INSIDE}" in path else None
        file = (self.base / (archive or path)).resolve()
        if not file.is_file() or not any(file.is_relative_to(root) for root in self.roots):
            raise FileNotFoundError(path)
        if archive is None:
            return file
        offset, n_bytes = self._members(file)[path.removeprefix(f"{archive}{INSIDE}")]
        with file.open("rb") as opened:
            opened.seek(offset)
            return io.BytesIO(opened.read(min(n_bytes, MAX_MEMBER)))


def _places_in(archive: Path) -> dict[str, tuple[int, int]]:
    """Where in a tar file each picture begins, and its bytes."""
    places = {}
    with suppress(tarfile.TarError, OSError, EOFError):  # what comes before damage is still there
        for member in members(str(archive)):
            places[member.name] = member.offset_data, member.size
    return places


def _common_folder(paths: pyarrow.ChunkedArray) -> str:
    """The folder that all paths lie in: what the first and the last of them in order have in common."""
    ends = pyarrow.compute.min_max(paths).as_py()
    first, last = (tar_of(path) if f".tar{INSIDE}" in path else path for path in (ends["min"], ends["max"]))
    n = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: first.rfind("/", 0, n) + 1]
