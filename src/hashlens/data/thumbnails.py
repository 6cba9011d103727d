"""Thumbnails: an index and a path in, a small image out.

Only files below a root are opened: the folder that the user names, or else the folders that the index was made from
(for each part, the common folder of its paths). Links that lead outside are not followed.
"""

from __future__ import annotations

import io
import os
import tarfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from hashlens.data.images import INSIDE, MAX_BYTES, decode, shrunk
from hashlens.data.kinds.tar import members, opened

if TYPE_CHECKING:
    from hashlens.index.catalog import Catalog
    from hashlens.index.engines.server import Engine


def thumbnail(index: Catalog | Engine, path: str, size: int, moved_to: Path | None = None) -> Image.Image | None:
    """The whole image, shrunk to fit a square of `size`; None if it is missing or not readable.

    If the images were moved, `moved_to` is where the folder common to all of them is now.
    """
    try:
        return shrunk(decode(file_of(index.roots, path, moved_to), at_least=size)[0], size)
    except Exception:  # Pillow raises nearly anything on a damaged file
        return None


def file_of(roots: list[str], path: str, moved_to: Path | None = None) -> Path | io.BytesIO:
    """The file of an image, or its bytes in a tar file."""
    before, inside, member = path.partition(f".tar{INSIDE}")
    file = f"{before}.tar" if inside else path
    place = Path(file).resolve()
    if moved_to is not None:
        if not place.is_relative_to(moved_to.resolve()):
            place = (moved_to / os.path.relpath(file, os.path.commonpath(roots))).resolve()
        roots = [os.fspath(moved_to)]
    if not place.is_file() or not any(place.is_relative_to(Path(root).resolve()) for root in roots):
        raise FileNotFoundError(path)
    if not inside:
        return place
    offset, n_bytes = _members(place)[member]
    with place.open("rb") as archive:
        archive.seek(offset)
        return io.BytesIO(archive.read(min(n_bytes, MAX_BYTES)))


@lru_cache(4)
def _members(archive: Path) -> dict[str, tuple[int, int]]:
    """The offset and the number of bytes of each image in a tar file."""
    places = {}
    # members before the damage are still readable
    with suppress(tarfile.TarError, OSError, EOFError), opened(name=archive, mode="r:") as whole:
        for member in members(whole):
            places[member.name] = member.offset_data, member.size
    return places
