"""Files: the cache folder, checksums, and writes that are whole or not there at all."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hashlens.errors import StorageError, UsageError

if sys.platform != "win32":
    import fcntl


def cache_dir() -> Path:
    """Where downloads and computed features are kept; HASHLENS_CACHE moves it."""
    if os.environ.get("HASHLENS_CACHE"):
        return Path(os.environ["HASHLENS_CACHE"])
    import platformdirs

    return Path(platformdirs.user_cache_dir("hashlens"))


def expanded(path: str | os.PathLike[str]) -> Path:
    """With the home folder in place of ~."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"there is no home folder for {path}; write the path in full") from error


def is_utf8(text: str) -> bool:
    """Names of files are bytes to most systems; no table can hold one that is not text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(path: str) -> str:
    """A name that is not UTF-8, or has characters that would steer a terminal, as text.

    >>> shown("a\\x1b[31m.jpg")
    'a\\\\x1b[31m.jpg'
    """
    text = path.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(path: str | os.PathLike[str]) -> str:
    """A path as a shell takes it."""
    return shlex.quote(os.fspath(path))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, moved onto it when the block ends well and removed when it does not."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        temporary.touch(exist_ok=False)  # with the rights that any new file has
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, a missing permission or a path that is no folder into one sentence."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: "there is no room on the disk; free some and run the same command again",
            errno.EDQUOT: "the disk quota is used up; free some room and run the same command again",
            errno.EACCES: "permission denied; choose another place",
            errno.EPERM: "permission denied; choose another place",
            errno.EROFS: "the disk is read-only; choose another place",
            errno.ENOTDIR: "part of that path is a file, not a folder; choose another place",
            errno.EISDIR: "a folder of that name is in the way; choose another place",
            errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
            errno.EEXIST: "a file of that name is in the way; choose another place",
        }
        if error.errno not in reasons:
            raise
        raise StorageError(f"cannot write {path}: {reasons[error.errno]}") from error


def require_own(folder: Path, signs: Sequence[str], what: str) -> None:
    """Refuse a folder that has things in it but not `signs`, the files by which we know that we have made it."""
    with storage_errors(folder):
        names = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    others = [name for name in names if not name.startswith(".")]
    if others and not set(signs) <= set(names):
        raise UsageError(f"{folder} holds other things ({others[0]}) and no {what}; choose another --out")


def require_kind(path: Path, begins: bytes, what: str) -> None:
    """Refuse to replace a file that does not begin as ours do; an empty one is nobody's loss."""
    try:
        if not path.is_file():  # a pipe, say, would be waited for
            return
        with path.open("rb") as file:
            found = file.read(len(begins))
    except OSError:  # it cannot be written either, and that is said then
        return
    if not found or found.lower() == begins.lower():
        return
    raise UsageError(f"{path} is there already and is no {what}; choose another name")


def require_room(folder: Path, n_bytes: int, what: str) -> None:
    """Refuse before the work starts if `folder`'s disk cannot hold `n_bytes` more."""
    existing = next(parent for parent in [folder.absolute(), *folder.absolute().parents] if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < n_bytes:
        cached = folder.absolute().is_relative_to(cache_dir().absolute())
        other = "set HASHLENS_CACHE to a folder on another disk" if cached else "choose a folder on another disk"
        raise StorageError(
            f"no room for {what} in {folder}: it needs {n_bytes / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free;"
            f" free some room or {other}"
        )


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Within, no other process writes to `folder`; the system lifts the lock even of a process that is killed."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process is writing to {folder}; wait until it has finished, or choose another folder"
            ) from error
        except OSError:
            pass  # a disk without locks
        yield
    finally:
        os.close(handle)


def sync(folder: Path) -> None:
    """Names of files are on the disk when this returns, not only their contents."""
    if sys.platform != "win32":
        handle = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # not every disk can
                os.fsync(handle)
        finally:
            os.close(handle)
