"""Moving duplicates away and back: nothing is deleted or overwritten, and a list restores everything.

The list is written before the first file is moved. A file arrives under its new name complete or not at all, and only
then leaves the old place: whenever the process is killed, each file is at its old place, its new one or both.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hashlens.data.images import INSIDE
from hashlens.duplicates.find import Duplicates, Group, Member
from hashlens.errors import DataError, StorageError, UsageError
from hashlens.files import alone_in, expanded, sha256, storage_errors, sync, write_json
from hashlens.schema import SHA256, TEXT, conform, parse_json

FORMAT = "hashlens moved files 1"
LIST = {"format": FORMAT, "source": TEXT, "moved": [{"from": TEXT, "to": TEXT, "sha256": SHA256}]}
MOVED = ("identical", "copies")  # look-alikes are different photos, and stay


def move_duplicates(
    result: Duplicates, folder: Path, stop: Callable[[], bool] = lambda: False
) -> tuple[Path, list[str], list[tuple[str, str]]]:
    """Move identical files and copies, all but those to keep, into a folder.

    Returns the list for `undo`, the paths that were moved, and those that were left with the reason.
    """
    folder = expanded(folder).absolute()
    extra = result.extra(*MOVED)
    if inside := next((image.path for _, image in extra if INSIDE in image.path), None):
        raise UsageError(f"{inside} is in a tar file and cannot be moved; unpack it first")
    if not extra:
        raise UsageError("no identical files or copies were found, so there is nothing to move; omit --move-to")
    root = Path(os.path.commonpath([Path(image.path).parent for _, image in extra]))
    with alone_in(folder):
        plan: list[tuple[Group, Member, Path]] = []
        taken: set[Path] = set()
        for group, image in extra:
            to = _free(folder / os.path.relpath(image.path, root), taken)
            taken.add(to)
            plan.append((group, image, to))
        number = 1 + sum(1 for _ in folder.glob("moved-*.json"))
        while (listed := folder / f"moved-{number:04d}.json").exists():
            number += 1
        entries = [{"from": image.path, "to": str(to), "sha256": image.sha256} for _, image, to in plan]
        write_json(listed, {"format": FORMAT, "source": result.source, "moved": entries})
        moved, left = [], []
        for group, image, to in plan:
            if stop():
                break
            if why := _changed(group.images[0]) or _changed(image) or _linked_to(image, group):
                left.append((image.path, why))
                continue
            move(Path(image.path), to)
            moved.append(image.path)
    return listed, moved, left


def require_outside(folder: Path, *sources: str) -> None:
    """Refuse a folder inside the images, where what is moved would be found again."""
    for source in sources:
        if expanded(folder).resolve().is_relative_to(expanded(source).resolve()):
            raise UsageError(f"{folder} is inside {source}, where the images would be found again; choose another one")


def _changed(image: Member) -> str | None:
    """Whether it is still what was compared: the one to keep must be there when the others leave."""
    try:
        status = Path(image.path).stat()
    except OSError:
        return f"{image.path} is gone"
    return None if (status.st_size, status.st_mtime) == (image.size, image.mtime) else f"{image.path} has changed"


def _linked_to(image: Member, group: Group) -> str | None:
    """Whether it is a link, or another of the group is a link to it, which would lead nowhere."""
    for other in group.images:
        with suppress(OSError):
            if other.path != image.path and Path(other.path).samefile(image.path):
                return f"{other.path} is the same file by a link"
    return f"{image.path} is a link" if Path(image.path).is_symlink() else None


def _free(path: Path, taken: set[Path]) -> Path:
    number, free = 1, path
    while free in taken or os.path.lexists(free):
        number += 1
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return free


def undo(listed: Path) -> tuple[int, list[tuple[str, str]]]:
    """Move all files of a list back; how many, and those that could not be with the reason. May be repeated."""
    restored, left = 0, []
    for entry in read_list(listed):
        old, new, digest = Path(entry["from"]), Path(entry["to"]), entry["sha256"]
        if not new.is_file():
            if not old.is_file():
                left.append((str(old), f"{new} is gone"))
            continue  # never moved, or restored before
        if os.path.lexists(old):
            if old.is_file() and sha256(old) == digest and (not new.stat().st_size or sha256(new) == digest):
                new.unlink()  # killed between two steps
                restored += 1
            else:
                left.append((str(old), f"another file is there now; its duplicate is {new}"))
            continue
        move(new, old)
        restored += 1
    return restored, left


def read_list(listed: Path) -> list[dict[str, str]]:
    try:
        return conform(parse_json(listed.read_bytes()), LIST)["moved"]
    except FileNotFoundError as error:
        raise UsageError(f"{listed} not found; give the list that --move-to has written") from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{listed} is not a list of moved files ({error}); give the one that --move-to has written"
        ) from error


def move(old: Path, new: Path) -> None:
    """Move one file, to another disk too, without ever overwriting one."""
    with storage_errors(new):
        new.parent.mkdir(parents=True, exist_ok=True)
        if not _linked(old, new):
            temporary = new.with_name(f".{new.name}.{secrets.token_hex(8)}.tmp")
            try:
                shutil.copy2(old, temporary)
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                if sha256(temporary) != sha256(old):
                    raise StorageError(f"{old} changed while it was copied to {new}; rerun the same command")
                if not _linked(temporary, new):
                    os.close(os.open(new, os.O_CREAT | os.O_EXCL))  # the name is ours before it is replaced
                    temporary.replace(new)
            finally:
                temporary.unlink(missing_ok=True)
        sync(new.parent)
    with storage_errors(old):
        old.unlink()
        sync(old.parent)


def _linked(old: Path, new: Path) -> bool:
    """Give the file a second name, which fails if that exists; False where the disk cannot."""
    try:
        os.link(old, new, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            return False
        raise
    return True
