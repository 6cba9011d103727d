"""A folder with one folder a class in; a Source out, with the pictures that could not be read and why.

The class of a picture is the first folder below the root, however deep the picture lies. Files come in the
order of their sorted paths; hidden ones are ignored.

Every picture of a source is decoded once before any work, so that none can stop a run half way. Which ones were
good is remembered in the cache: a set of 200,000 takes minutes the first time and a second later.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from hashlens.data import Source
from hashlens.data.images import MAX_PIXELS, FileImages, Progress, check_readable
from hashlens.data.labels import Labels
from hashlens.errors import DataError, StorageError
from hashlens.files import cache_dir, is_utf8, shown, write_text

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def load_folder(root: str | os.PathLike[str], progress: Progress | None = None, labelled: bool = True) -> Source:
    """Find the pictures below `root`, see that each can be decoded, and label it by its class folder.

    Unless labels are needed, there may be no class folders, or one; the labels then have no classes.
    """
    root = Path(root)
    found = find_pictures(root)
    loose = [path for path in found if "/" not in path]
    paths = [path for path in found if "/" in path]
    if not labelled and len({path.split("/", 1)[0] for path in paths}) < 2:
        return _unlabelled(root, found, progress)
    if not paths:
        raise DataError(
            f"{root} has {len(loose):,} pictures but no class folders, and labels are needed; put each"
            f" class in a folder of its own, as {root}/cats/1.jpg and {root}/dogs/2.jpg"
        )
    good, skipped = check_once(paths, root, progress)
    require_most(skipped, len(paths), f"in {root}", "mend or remove them, or check that this is the right folder")

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


def _unlabelled(root: Path, paths: list[str], progress: Progress | None) -> Source:
    good, skipped = check_once(paths, root, progress)
    require_most(skipped, len(paths), f"in {root}", "mend or remove them, or check that this is the right folder")
    labels = Labels(np.zeros((len(good), 0), bool), ())
    return Source(root.resolve().name or str(root), FileImages(root, good), labels, skipped)


def require_most(skipped: Sequence[tuple[str, str]], n: int, where: str, advice: str) -> None:
    """Refuse a source of which more than half cannot be used: it is surely not what was meant."""
    if 2 * len(skipped) > n:
        reasons = Counter(reason for _, reason in skipped).most_common(3)
        raise DataError(
            f"{len(skipped):,} of {n:,} pictures {where} cannot be used"
            f" ({', '.join(f'{count:,} {reason}' for reason, count in reasons)}; first: {skipped[0][0]}); {advice}"
        )


def check_once(
    paths: Sequence[str], root: str | os.PathLike[str], progress: Progress | None = None
) -> tuple[dict[str, tuple[int, int]], list[tuple[str, str]]]:
    """check_readable, but a file that was good before and is unchanged (size and times) is not decoded again.

    Bad ones are tried each time: they may have been mended or permitted meanwhile.
    """
    root = Path(root)
    memory = _memory(root)
    known = _recall(memory)
    nameless = [(shown(path), "its name is not UTF-8") for path in paths if not is_utf8(path)]
    paths = [path for path in paths if is_utf8(path)]
    marks = {path: _mark(root / path) for path in paths}
    unsure = [path for path in paths if path not in known or known[path][0] != marks[path]]
    if unsure and progress:
        progress(f"checking {len(unsure):,} pictures in {root}")
    fresh, skipped = check_readable(unsure, root, progress)
    if fresh:
        known |= {path: (marks[path], *size) for path, size in fresh.items()}
        try:
            write_text(memory, json.dumps(known, ensure_ascii=True, separators=(",", ":")))
        except StorageError as error:
            if progress:
                progress(f"the check is not kept for the next time: {error}")
    bad = dict(skipped)
    return {path: known[path][1:] for path in paths if path not in bad}, [*nameless, *skipped]


def forget_checks(root: str | os.PathLike[str]) -> None:
    """Decode every picture below `root` again the next time."""
    _memory(Path(root)).unlink(missing_ok=True)


def _memory(root: Path) -> Path:
    rules = f"{root.resolve()}\0{MAX_PIXELS}"
    return cache_dir() / "readable" / f"{hashlib.sha256(os.fsencode(rules)).hexdigest()[:32]}.json"


def _recall(memory: Path) -> dict[str, tuple[str, int, int]]:
    try:
        saved = json.loads(memory.read_text(encoding="utf-8"))
        return {path: (str(mark), int(width), int(height)) for path, (mark, width, height) in saved.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # none yet, or damaged: then all are checked
        return {}


def _mark(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "gone"  # never remembered: it fails the check
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def locate(root: Path, listed: Iterable[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Where listed files are: {listed: path below root} and [(listed, why it is missing)].

    A file whose name differs only in letter case is taken if there is one such: tables are often written where
    that makes no difference.
    """
    found: dict[str, str] = {}
    missing: list[tuple[str, str]] = []
    folders: dict[Path, dict[str, list[str]]] = {}
    for path in listed:
        if path in found:
            continue
        if _is_file(root / path):
            found[path] = path
            continue
        alike = _other_spellings(root, path, folders)
        if len(alike) == 1:
            found[path] = alike[0]
        else:
            spelt = f"; {' and '.join(alike)} differ from it in letter case" if alike else ""
            missing.append((path, f"missing{spelt}"))
    return found, missing


def respelt_warnings(found: dict[str, str], where: str) -> list[str]:
    """What to say of files that `locate` found under another spelling."""
    respelt = [(listed, path) for listed, path in found.items() if listed != path]
    if not respelt:
        return []
    return [
        f"letter case in {where} differs from the disk for {len(respelt):,} pictures, which are used all the same"
        f" (first: {respelt[0][0]} is {respelt[0][1]}); correct the names to be safe on other machines"
    ]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, a folder that may not be entered
        return False


def _other_spellings(root: Path, path: str, folders: dict[Path, dict[str, list[str]]]) -> list[str]:
    """Files whose path is `path` but for letter case; `folders` remembers {lower case: names} of each folder."""
    candidates = [""]
    for part in PurePosixPath(path).parts:
        longer = []
        for candidate in candidates:
            folder = root / candidate
            if part in ("/", ".."):
                names = [part]
            else:
                if folder not in folders:
                    folders[folder] = _names_by_lower_case(folder)
                names = folders[folder].get(part.casefold(), [])
            longer += [str(PurePosixPath(candidate) / name) for name in names]
        candidates = longer
    return [candidate for candidate in candidates if _is_file(root / candidate)]


def _names_by_lower_case(folder: Path) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    try:
        for name in sorted(entry.name for entry in folder.iterdir()):
            names.setdefault(name.casefold(), []).append(name)
    except OSError:
        pass  # no such folder: nothing is spelt like it
    return names


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
    try:
        status = folder.stat()
        identity = (status.st_dev, status.st_ino)
        if identity in seen:
            return []
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
