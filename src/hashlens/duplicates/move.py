"""Moving duplicates away and back: nothing is deleted or overwritten, and a list restores everything.

The list is written before the first file is moved. A file arrives under its new name completely or not at all, and only
then leaves its old place: if the process is killed, each file is at its old place, its new place or both. The video of
a live photo goes with its image, under the same name.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hashlens.data.images import INSIDE
from hashlens.data.kinds.folder import videos_of
from hashlens.duplicates.find import Duplicates, Group, Member
from hashlens.errors import DataError, StorageError, UsageError
from hashlens.files import alone_in, expanded, quoted, sha256, storage_errors, sync, write_json
from hashlens.progress import counted
from hashlens.schema import SHA256, TEXT, conform, parse_json

FORMAT = "hashlens moved files 1"
LIST = {"format": FORMAT, "source": TEXT, "moved": [{"from": TEXT, "to": TEXT, "sha256": SHA256}]}
MOVED = ("identical", "copies")  # look-alikes are different photos and stay


@dataclass
class Moved:
    """What was moved, and the list for `undo`."""

    listed: Path
    paths: list[str] = field(default_factory=list)  # images
    videos: list[str] = field(default_factory=list)  # videos of live photos
    left: list[tuple[str, str]] = field(default_factory=list)  # images that stay, and why


def move_duplicates(result: Duplicates, folder: Path, stop: Callable[[], bool] = lambda: False) -> Moved:
    """Move identical files and copies, except those to keep, into a folder."""
    folder = expanded(folder).absolute()
    extra = result.extra(*MOVED)
    if inside := next((image.path for _, image in extra if INSIDE in image.path), None):
        raise UsageError(f"{inside} is in a tar file and cannot be moved; unpack it first")
    if not extra:
        raise UsageError("no identical files or copies were found, so there is nothing to move; omit --move-to")
    root = Path(os.path.commonpath([Path(image.path).parent for _, image in extra]))
    with alone_in(folder):
        plan: list[tuple[Group, Member, dict[Path, Path]]] = []
        taken: set[Path] = set()
        leaving, digests = {image.path for _, image in extra}, dict[Path, str]()
        for group, image in extra:
            videos = [video for video in videos_of(image.path, leaving) if video not in digests]
            files = [Path(image.path), *videos]
            digests |= {files[0]: image.sha256} | {video: sha256(video) for video in videos}
            to = _free([folder / os.path.relpath(file, root) for file in files], taken)
            taken.update(to)
            plan.append((group, image, dict(zip(files, to, strict=True))))
        number = 1 + sum(1 for _ in folder.glob("moved-*.json"))
        while (listed := folder / f"moved-{number:04d}.json").exists():
            number += 1
        entries = [
            {"from": str(old), "to": str(new), "sha256": digests[old]}
            for _, _, pair in plan
            for old, new in pair.items()
        ]
        write_json(listed, {"format": FORMAT, "source": result.source, "moved": entries})
        moved = Moved(listed)
        for group, image, pair in plan:
            if stop():
                break
            if why := _changed(group.images[0]) or _changed(image) or _linked_to(image, group):
                moved.left.append((image.path, why))
                continue
            try:
                _move_all(pair)
            except StorageError as error:
                done = f"; {counted(len(moved.paths), 'image')} moved before, undo: hashlens duplicates undo"
                raise StorageError(
                    f"{error.message}{done} {quoted(listed)}" if moved.paths else error.message
                ) from error
            moved.paths.append(image.path)
            moved.videos += map(str, list(pair)[1:])
    return moved


def _move_all(files: dict[Path, Path]) -> None:
    """Move files that belong together; if one cannot be moved, all are moved back."""
    done: list[tuple[Path, Path]] = []
    try:
        for old, new in files.items():
            move(old, new)
            done.append((old, new))
    except StorageError:
        for old, new in reversed(done):
            move(new, old)
        raise


def require_outside(folder: Path, *sources: str) -> None:
    """Refuse a folder inside the images, where moved files would be found again."""
    for source in sources:
        if expanded(folder).resolve().is_relative_to(expanded(source).resolve()):
            raise UsageError(
                f"{folder} is inside {source}, where the images would be found again; choose another folder"
            )


def _changed(image: Member) -> str | None:
    """Why an image is not what was compared; None if it is. The one to keep must exist when others leave."""
    try:
        status = Path(image.path).stat()
    except OSError:
        return f"{image.path} is gone"
    return None if (status.st_size, status.st_mtime) == (image.size, image.mtime) else f"{image.path} has changed"


def _linked_to(image: Member, group: Group) -> str | None:
    """Why an image must stay: it is a link, or another of the group is a link to it, which would break; else None."""
    for other in group.images:
        with suppress(OSError):
            if other.path != image.path and Path(other.path).samefile(image.path):
                return f"{other.path} is a link to the same file"
    return f"{image.path} is a link" if Path(image.path).is_symlink() else None


def _free(paths: list[Path], taken: set[Path]) -> list[Path]:
    """Unused names: these, or all with the same number appended."""
    number, free = 1, paths
    while any(path in taken or os.path.lexists(path) for path in free):
        number += 1
        free = [path.with_name(f"{path.stem}-{number}{path.suffix}") for path in paths]
    return free


def undo(listed: Path) -> tuple[int, list[tuple[str, str]]]:
    """Move all files of a list back; returns how many, and the failures with reasons. May be repeated."""
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
        raise UsageError(f"{listed} not found; pass the list that --move-to wrote") from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{listed} is not a list of moved files ({error}); pass the list that --move-to wrote"
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
                    os.close(os.open(new, os.O_CREAT | os.O_EXCL))  # reserve the name before replacing it
                    temporary.replace(new)
            finally:
                temporary.unlink(missing_ok=True)
        sync(new.parent)
    try:
        old.unlink()
    except OSError as error:
        new.unlink()
        why = (error.strerror or "unknown").lower()
        raise StorageError(f"cannot move {old} away: {why}; allow changes in its folder and try again") from error
    sync(old.parent)


def _linked(old: Path, new: Path) -> bool:
    """Give the file a second name, failing if that exists; False if the disk does not support links."""
    try:
        os.link(old, new, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            return False
        raise
    return True
