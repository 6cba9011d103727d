"""A folder with one folder a class in; a Source out, with the pictures that could not be read and why.

The class of a picture is the first folder below the root, however deep the picture lies. Files come in the
order of their sorted paths; hidden ones are ignored.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np

from hashlens.data import Source
from hashlens.data.images import FileImages, Progress, check_readable
from hashlens.data.labels import Labels
from hashlens.errors import DataError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def load_folder(root: str | os.PathLike[str], progress: Progress | None = None) -> Source:
    """Find the pictures below `root`, see that each can be decoded, and label it by its class folder."""
    root = Path(root)
    found = find_pictures(root)
    loose = [path for path in found if "/" not in path]
    paths = [path for path in found if "/" in path]
    if not paths:
        raise DataError(
            f"{root} has {len(loose):,} pictures but no class folders, and labels are needed; put each"
            f" class in a folder of its own, as {root}/cats/1.jpg and {root}/dogs/2.jpg"
        )
    if progress:
        progress(f"checking {len(paths):,} pictures in {root}")
    good, skipped = check_readable(paths, root, progress)
    if 2 * len(skipped) > len(paths):
        reasons = Counter(reason for _, reason in skipped).most_common(3)
        raise DataError(
            f"{len(skipped):,} of {len(paths):,} pictures in {root} cannot be read"
            f" ({', '.join(f'{count:,} {reason}' for reason, count in reasons)}; first: {skipped[0][0]});"
            " mend or remove them, or check that this is the right folder"
        )

    classes = [path.split("/", 1)[0] for path in good]
    counts = Counter(classes)
    names = sorted(counts)
    if len(names) == 1:
        raise DataError(
            f"only one class found in {root}: {names[0]} with {counts[names[0]]:,} pictures; telling pictures"
            " apart needs two or more, so add a second class folder"
        )
    position = {name: c for c, name in enumerate(names)}
    labels = Labels(np.array([position[name] for name in classes], np.int64), tuple(names))

    warnings = []
    if loose:
        warnings.append(f"pictures outside the class folders are left out: {len(loose):,}, first {loose[0]}")
    folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    warnings += [f"class {name!r} has no readable picture and is left out" for name in folders if name not in counts]
    single = [name for name in names if counts[name] == 1]
    if single:
        shown = ", ".join(single[:5]) + (", …" if len(single) > 5 else "")
        verb = "class has" if len(single) == 1 else "classes have"
        warnings.append(f"{len(single):,} {verb} a single picture ({shown}): nothing is similar to it in training")
    if skipped:
        warnings.append(f"unreadable pictures are left out: {len(skipped):,}, first {skipped[0][0]} ({skipped[0][1]})")
    return Source(root.resolve().name or str(root), FileImages(root, good), labels, skipped, warnings)


def find_pictures(root: str | os.PathLike[str]) -> list[str]:
    """Sorted relative paths of the files below `root` that end like pictures; an error if there are none."""
    root = Path(root)
    if not root.exists():
        raise DataError(f"there is no folder {root}; check the path")
    if not root.is_dir():
        raise DataError(f"{root} is a file, not a folder; give the folder that holds the class folders")
    files = _files(root, prefix="", seen=set())
    pictures = sorted(path for path in files if path.lower().endswith(EXTENSIONS))
    if not pictures:
        endings = Counter(Path(path).suffix.lower() or "no ending" for path in files).most_common(5)
        others = ", ".join(f"{ending} × {count:,}" for ending, count in endings)
        raise DataError(
            f"no pictures in {root} or its folders (looked for {' '.join(EXTENSIONS)});"
            + (f" found {len(files):,} other files: {others};" if files else " it is empty;")
            + " check the path"
        )
    return pictures


def _files(folder: Path, prefix: str, seen: set[tuple[int, int]]) -> list[str]:
    """Files below `folder`, following links; `seen` stops a link that leads back to a folder on the way."""
    status = folder.stat()
    identity = (status.st_dev, status.st_ino)
    if identity in seen:
        return []
    try:
        entries = sorted(folder.iterdir())
    except PermissionError as error:
        raise DataError(f"permission denied to read the folder {folder}; allow it or move it away") from error
    files = []
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            files += _files(entry, f"{prefix}{entry.name}/", seen | {identity})
        elif entry.is_file() or not entry.exists():  # a link to nothing is listed as unreadable later
            files.append(prefix + entry.name)
    return files
