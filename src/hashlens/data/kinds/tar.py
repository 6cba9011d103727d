"""Tar files: their images in order, labelled by the first folder inside, like a folder.

One file, a pattern, or a range such as "shards/{00000..00999}.tar". A name inside a tar file is never used as a path.
Folders that contain everything are skipped, such as photos/ in what `tar cf photos.tar photos` writes. Tar files at an
address are read twice from start to end: once for the places of their images, once for the images.
"""

import glob
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import addresses
from hashlens.addresses import is_address, place
from hashlens.data.formats import EXTENSIONS
from hashlens.data.images import INSIDE
from hashlens.data.kinds.pattern import expand
from hashlens.data.sources import Asked, Kind, Source, source_of_files
from hashlens.errors import DataError, UsageError
from hashlens.files import shown


def _open(asked: Asked) -> Source:
    paths = _expand(asked.place.as_posix())
    absent = [path for path in paths if not place(path).is_file()]
    if absent or not paths:
        which = f"{len(absent):,} of {len(paths):,} are missing, first {absent[0]}" if absent else "nothing matches"
        raise DataError(f"cannot find the tar files {asked.text} ({which}); check the pattern or the range")
    names, folders, facts, skipped = [], [], [], []
    full = [place(path).absolute().as_posix() for path in paths]
    root = place(_common(full))
    for path in (path.removeprefix(f"{root}/") for path in full):
        try:
            with (root / path).open("rb") as file, opened(fileobj=file, mode="r:") as archive:
                for member in members(archive):
                    if not member.name.lower().endswith(EXTENSIONS):
                        continue
                    name = f"{path}{INSIDE}{member.name}"
                    if member.islnk() or member.issym():
                        skipped.append((shown(name), "a link; give the file itself"))
                    elif member.isreg():
                        names.append(name)
                        folders.append(member.name.removeprefix("./").rpartition("/")[0])
                        facts.append((member.offset_data, min(member.size, 2**62), _nanoseconds(member.mtime)))
        except (tarfile.TarError, OSError) as error:
            skipped.append((path, f"the rest of this tar file cannot be read ({error})"))
    if not names:
        raise DataError(f"no images in {asked.text}{f' ({skipped[0][1]})' if skipped else ''}; check the tar files")
    places = dict(zip(("offset", "size", "mtime"), np.array(facts, np.int64).T, strict=True))
    name = Path(paths[0]).stem if len(paths) == 1 else root.name
    return source_of_files(name, root, names, _classes(folders), skipped=skipped, **places)


def _common(paths: list[str]) -> str:
    """The folder that contains all paths.

    >>> _common(["s3://shards/a/1.tar", "s3://shards/b/1.tar"])
    's3://shards'
    """
    folders = [path.rpartition("/")[0].split("/") for path in paths]
    return "/".join(os.path.commonprefix(folders)) or "/"  # noqa: RUF071 - of lists


def _classes(folders: list[str]) -> list[list[str]]:
    """The first part of each folder below the common one; if there is only one folder, it is the class.

    >>> _classes(["photos/cats", "photos/dogs/2024", "photos"]), _classes(["cats", "cats"])
    ([['cats'], ['dogs'], []], [['cats'], ['cats']])
    """
    parts = {folder: folder.split("/") if folder else [] for folder in set(folders)}
    start = len(os.path.commonprefix([*parts.values()])) - (len(parts) == 1)  # noqa: RUF071 - of lists
    return [parts[folder][start : start + 1] for folder in folders]


def _expand(pattern: str) -> list[str]:
    """Expand ranges of numbers such as {00000..00999}, then patterns.

    >>> _expand("a{08..10}.tar")
    ['a08.tar', 'a09.tar', 'a10.tar']
    """
    span = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if span is None:
        if glob.has_magic(pattern):
            return sorted(map(str, addresses.expand(pattern)) if is_address(pattern) else expand(pattern))
        return [pattern]
    first, last = span.groups()
    if int(last) < int(first):
        raise UsageError(f"the range {span[0]} is empty; write the smaller number first")
    numbers = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return [path for n in numbers for path in _expand(pattern[: span.start()] + n + pattern[span.end() :])]


@contextmanager
def _headers() -> Iterator[None]:
    try:
        yield
    except (ValueError, OverflowError, RecursionError) as error:  # huge numbers, or long names of long names of ...
        raise tarfile.ReadError("a header is damaged") from error


def opened(**what: Any) -> tarfile.TarFile:
    """Like `tarfile.open`, which also reads the first header."""
    with _headers():
        return tarfile.open(**what)


def members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members in order; raises where the file is damaged, which tarfile would take for its end."""
    last = -1
    while True:
        with _headers():
            member = archive.next()
        if member is None:
            break
        if member.size < 0 or member.offset <= last:  # otherwise reading would never end
            raise tarfile.ReadError("a header is damaged")
        last = member.offset
        archive.members.clear()  # type: ignore[attr-defined] # otherwise it keeps all of them
        yield member
    archive.fileobj.seek(archive.offset)
    if any(archive.fileobj.read(tarfile.BLOCKSIZE)):  # a complete file ends with zeros
        raise tarfile.ReadError("a header is damaged")


def _nanoseconds(mtime: float) -> int:
    return int(min(max(0, mtime), 2**33) * 1e9)  # a header can claim any time, even NaN


KIND = Kind(
    matches=lambda text, path: text.endswith(".tar"),
    open=_open,
    labelling="put each class in a folder of its own inside the tar files, as cats/1.jpg and dogs/2.jpg",
)
