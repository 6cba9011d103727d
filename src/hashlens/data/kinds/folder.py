"""A folder: all images below it at any depth, sorted by path; the class of an image is its first folder.

Hidden files and system folders are ignored (formats.py). Other kinds find their files with these functions.
"""

import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

from hashlens.addresses import Address, Place, is_address, place, readable_name
from hashlens.data.formats import EXTENSIONS, HEIC, RAW, VIDEOS, is_ignored
from hashlens.data.sources import Asked, Kind, Source, source_of_files
from hashlens.errors import DataError, to_install


@dataclass
class Found:
    """The files below a folder."""

    images: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # number of other files, by extension
    live: int = 0  # number of videos of live photos
    closed: list[tuple[str, str]] = field(default_factory=list)  # folders that cannot be read, and why

    def notes(self) -> list[str]:
        """Notes on files that are not used, with their numbers."""
        heic, raw = (sum(self.others[one] for one in kind) for kind in (HEIC, RAW))
        lines = [
            (heic, f"HEIC photos left out: {heic:,}; to read them, run: {to_install('heif')}"),
            (raw, f"RAW files left out: {raw:,}; only the images beside them are used"),
            (self.live, f"videos of live photos left out: {self.live:,}; their images are used"),
        ]
        return [line for n, line in lines if n]


def _open(asked: Asked) -> Source:
    root = asked.place
    found = find_images(root)
    if found.closed and asked.labelled:
        folder, why = found.closed[0]
        raise DataError(f"{why} to read the folder {root / folder}; allow it or move the folder")
    names = found.images
    labels, notes = [class_of(readable_name(name, root)) for name in names], found.notes()
    if isinstance(root, Path) and asked.labelled and (classes := {name for found in labels for name in found}):
        folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not is_ignored(entry.name))
        notes += [f"class {name!r} has no image and is left out" for name in folders if name not in classes]
    skipped = [(folder, f"folder cannot be read ({why})") for folder, why in found.closed]
    name = root.resolve().name or str(root)
    return source_of_files(name, root, names, labels, notes=notes, skipped=skipped)


def class_of(name: str) -> list[str]:
    """
    >>> class_of("cats/2024/1.jpg"), class_of("1.jpg")
    (['cats'], [])
    """
    return [name.split("/", 1)[0]] if "/" in name else []


def locate(root: Place, listed: Iterable[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Find listed files: {listed: path below root} and [(listed, why it is missing)].

    A file that differs only in letter case is used if it is the only one, because many tables come from systems that
    ignore letter case.
    """
    if isinstance(root, Address):  # missing ones are noticed on reading, because asking takes as long
        return {path: path for path in listed}, []
    found: dict[str, str] = {}
    missing: list[tuple[str, str]] = []
    names_in = cache(_names_in)
    for path in dict.fromkeys(listed):
        # os.path.isfile returns False, not an error, for too long names and folders without permission
        alike = [path] if is_address(path) or os.path.isfile(root / path) else _spellings(root, path, names_in)  # noqa: PTH113
        if len(alike) == 1:
            found[path] = alike[0]
        else:
            others = f"; {' and '.join(alike)} differ from it in letter case" if alike else ""
            missing.append((path, f"missing{others}"))
    return found, missing


def _spellings(root: Path, path: str, names_in: Callable[[Path], dict[str, list[str]]]) -> list[str]:
    """Files whose path differs from `path` at most in letter case."""
    found = [""]
    for part in PurePosixPath(path).parts:
        found = [f"{start}{name}/" for start in found for name in names_in(root / start).get(part.casefold(), [])]
    return [name[:-1] for name in found if os.path.isfile(root / name[:-1])]  # noqa: PTH113


def _names_in(folder: Path) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    with suppress(OSError):  # no such folder
        for name in sorted(entry.name for entry in folder.iterdir()):
            names.setdefault(name.casefold(), []).append(name)
    return names


def respelled(found: dict[str, str], where: str) -> list[str]:
    """A note about files that `locate` found under another spelling."""
    others = [(listed, path) for listed, path in found.items() if listed != path]
    return [
        f"letter case in {where} differs from the disk for {len(others):,} images, which are still used (first:"
        f" {listed} is {path}); correct the names"
        for listed, path in others[:1]
    ]


def find_images(root: str | os.PathLike[str] | Address) -> Found:
    """The image files below `root`, as sorted relative paths, and counts of other files; an error if there are none."""
    root = place(root)
    found = _walk(root) if isinstance(root, Path) else _sorted_out(root.names())
    if not found.images:
        extensions = [f"{extension or 'no extension'} × {count:,}" for extension, count in found.others.most_common(5)]
        closed = [f"{folder}: {why}" for folder, why in found.closed[:1]]
        there = ", ".join(extensions + closed) or "it is empty"
        heic = f"; to read HEIC photos, run: {to_install('heif')}" if any(found.others[one] for one in HEIC) else ""
        raise DataError(
            f"no images in {root} or its folders ({there}; looked for {' '.join(EXTENSIONS)}); check the path{heic}"
        )
    found.images.sort()
    return found


def _walk(root: Path) -> Found:
    """All files below `root`. Links are followed last and only to new folders: no cycles, no image twice."""
    found, seen = Found(), set()
    real, linked = [""], list[str]()
    while real or linked:
        prefix = real.pop() if real else linked.pop(0)
        try:
            status = (root / prefix).stat()
            if (identity := (status.st_dev, status.st_ino)) in seen:
                continue
            seen.add(identity)
            with os.scandir(root / prefix) as entries:
                listed = [entry for entry in entries if not is_ignored(entry.name)]
        except PermissionError as error:
            if not prefix:
                raise DataError(f"permission denied to read the folder {root}; allow it or move the folder") from error
            found.closed.append((prefix.rstrip("/"), "permission denied"))
            continue
        except FileNotFoundError:  # removed in the meantime
            continue
        videos, stems = [], set()
        for entry in sorted(listed, key=lambda entry: entry.name):
            path, what = prefix + entry.name, _what(entry)
            stem, extension = os.path.splitext(entry.name.lower())  # noqa: PTH122 - a tenth of the time
            if what == "folder":
                (linked if entry.is_symlink() else real).append(f"{path}/")
            elif extension in EXTENSIONS and what != "other":
                found.images.append(path)
                stems.add(stem)
            elif what == "file":
                found.others[extension] += 1
                if extension in VIDEOS:
                    videos.append(stem)
        found.live += sum(stem in stems for stem in videos)
    return found


def videos_of(image: str, leaving: Collection[str] = ()) -> list[Path]:
    """The video beside the image of a live photo, if there is one and no other image has the same name.

    Images that are `leaving` do not count as others.
    """
    others = [path for path in _beside(Path(image), EXTENSIONS) if str(path) != image and str(path) not in leaving]
    return [] if others else _beside(Path(image), VIDEOS)


def _beside(path: Path, extensions: Iterable[str]) -> list[Path]:
    """Files that differ from `path` only in their extension."""
    found: dict[tuple[int, int], Path] = {}
    for extension in extensions:
        for spelling in (extension, extension.upper()):
            with suppress(OSError, ValueError):
                status = os.stat(beside := path.with_suffix(spelling))  # noqa: PTH116
                if stat.S_ISREG(status.st_mode):
                    found.setdefault((status.st_dev, status.st_ino), beside)  # keep one of two spellings of a name
    return list(found.values())


def _sorted_out(names: Iterable[str]) -> Found:
    """Sort the objects of a store by kind, judging by name."""
    found = Found()
    for name in names:
        extension = PurePosixPath(name).suffix.lower()
        if not any(map(is_ignored, name.split("/"))):
            if extension in EXTENSIONS:
                found.images.append(name)
            else:
                found.others[extension] += 1
    return found


def _what(entry: os.DirEntry[str]) -> str:
    """The type of an entry: folder, file, nothing (a broken link, reported later as unreadable) or other (a pipe)."""
    try:
        if entry.is_dir():
            return "folder"
        return "file" if entry.is_file() else "other" if os.path.exists(entry) else "nothing"  # noqa: PTH110
    except OSError:  # a link to itself
        return "nothing"


KIND = Kind(
    matches=lambda text, path: isinstance(path, Address) or path.is_dir(),
    open=_open,
    labelling="put each class in a folder of its own, as cats/1.jpg and dogs/2.jpg",
)
