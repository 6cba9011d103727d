"""A folder: all images below it, sorted by path; the class of an image is the first folder below, at any depth.

Hidden files are ignored. Other kinds find their files with these functions.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath

from hashlens.data.sources import Asked, Kind, Source, source_of_files
from hashlens.errors import DataError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def _open(asked: Asked) -> Source:
    names = find_images(asked.path)
    labels = [class_of(name) for name in names]
    classes = {name for found in labels for name in found}
    empty = sorted(entry.name for entry in asked.path.iterdir() if entry.is_dir() and entry.name not in classes)
    notes = [f"class {name!r} has no image and is left out" for name in empty if not name.startswith(".")]
    name = asked.path.resolve().name or str(asked.path)
    return source_of_files(name, asked.path, names, labels, notes=notes if classes and asked.labelled else [])


def class_of(name: str) -> list[str]:
    """
    >>> class_of("cats/2024/1.jpg"), class_of("1.jpg")
    (['cats'], [])
    """
    return [name.split("/", 1)[0]] if "/" in name else []


def locate(root: Path, listed: Iterable[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Where listed files are: {listed: path below root} and [(listed, why it is missing)].

    A file that differs only in letter case is used if it is the only one: many tables come from systems that ignore
    letter case.
    """
    found: dict[str, str] = {}
    missing: list[tuple[str, str]] = []
    names_in = cache(_names_in)
    for path in dict.fromkeys(listed):
        # os.path.isfile: False, not an error, for names that are too long and folders without permission
        alike = [path] if os.path.isfile(root / path) else _spellings(root, path, names_in)  # noqa: PTH113
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
    """A note on files that `locate` found under another spelling."""
    others = [(listed, path) for listed, path in found.items() if listed != path]
    return [
        f"letter case in {where} differs from the disk for {len(others):,} images, which are still used (first:"
        f" {listed} is {path}); correct the names"
        for listed, path in others[:1]
    ]


def find_images(root: str | os.PathLike[str]) -> list[str]:
    """Sorted relative paths of the image files below `root`; an error if it has none."""
    root = Path(root)
    files = _files(root, prefix="", seen=set())
    images = sorted(path for path in files if path.lower().endswith(EXTENSIONS))
    if not images:
        extensions = Counter(Path(path).suffix.lower() or "no extension" for path in files).most_common(5)
        found = ", ".join(f"{extension} × {count:,}" for extension, count in extensions) or "it is empty"
        raise DataError(
            f"no images in {root} or its folders ({found}; looked for {' '.join(EXTENSIONS)}); check the path"
        )
    return images


def _files(folder: Path, prefix: str, seen: set[tuple[int, int]]) -> list[str]:
    """Files below `folder`, following links; `seen` stops a link to a folder above it."""
    try:
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in seen:
            return []
        entries = sorted(folder.iterdir())
    except PermissionError as error:
        raise DataError(f"permission denied to read the folder {folder}; allow it or move the folder") from error
    files = []
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            files += _files(entry, f"{prefix}{entry.name}/", seen | {identity})
        elif entry.is_file() or not entry.exists():  # a broken link is reported as unreadable later
            files.append(prefix + entry.name)
    return files


KIND = Kind(
    matches=lambda text, path: path.is_dir(),
    open=_open,
    labelling="put each class in a folder of its own, as cats/1.jpg and dogs/2.jpg",
)
