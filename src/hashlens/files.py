"""Files: the cache folder, checksums, locks and atomic writes."""

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
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hashlens.addresses import Address, Place
from hashlens.errors import Busy, StorageError, UsageError

LOCK = ".hashlens.lock"
LATEST = 2**63 - 1  # nanoseconds since 1970 (year 2262) that fit an index; disks allow later times


def cache_dir() -> Path:
    """The folder for downloads and computed features; HASHLENS_CACHE moves it."""
    if os.environ.get("HASHLENS_CACHE"):
        return Path(os.environ["HASHLENS_CACHE"])
    import platformdirs

    return Path(platformdirs.user_cache_dir("hashlens"))


def state_dir() -> Path:
    """The folder for users' decisions, which must outlive caches; HASHLENS_CACHE moves it too."""
    if os.environ.get("HASHLENS_CACHE"):
        return Path(os.environ["HASHLENS_CACHE"]) / "state"
    import platformdirs

    return Path(platformdirs.user_data_dir("hashlens"))


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with ~ replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{path} cannot be expanded: there is no such home folder; write the full path") from error


def is_utf8(text: str) -> bool:
    """Whether a file name, which on most systems is bytes, is UTF-8 and so fits a table."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(path: str) -> str:
    """`path` as printable text: other bytes and terminal control characters are escaped.

    >>> shown("a\\x1b[31m.jpg")
    'a\\\\x1b[31m.jpg'
    """
    text = path.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def why_not(error: OSError) -> str:
    """Why a file cannot be read, in a few words; stores have no error numbers."""
    kinds = {FileNotFoundError: "no such file", PermissionError: "permission denied"}
    return error.strerror or kinds.get(type(error), type(error).__name__)


def quoted(path: str | os.PathLike[str]) -> str:
    """A path quoted for the shell."""
    return shlex.quote(os.fspath(path))


def without_secrets(address: str) -> str:
    """The address of an engine, quoted for the shell; hidden if it may contain a password."""
    return "ADDRESS" if "@" in address or "password" in address.lower() else quoted(address)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_and_mtime(path: str) -> tuple[int, int]:
    """Size and mtime, which tell whether a file has changed; zeros if it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a third of the time of a Path
    except (OSError, ValueError):
        return 0, 0
    return status.st_size, max(-LATEST, min(status.st_mtime_ns, LATEST))


@contextmanager
def replacing(path: Place) -> Iterator[Path]:
    """A temporary path beside `path`: renamed to it when the block succeeds, deleted when it fails.

    At an address, the content is uploaded as a whole when the block succeeds.
    """
    if isinstance(path, Address):
        with tempfile.TemporaryDirectory() as scratch:
            written = Path(scratch) / "file"
            yield written
            path.write_bytes(written.read_bytes())
        return
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        temporary.touch(exist_ok=False)  # with the permissions of any new file
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Place, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_csv(path: Place, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def json_text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Place, value: Any) -> None:
    write_text(path, json_text(value))


@contextmanager
def storage_errors(path: Place) -> Iterator[None]:
    """Turn a full disk, a missing permission or a wrong path into one sentence."""
    try:
        yield
    except OSError as error:
        reasons = {
            errno.ENOSPC: "the disk is full; free some space and rerun the same command",
            errno.EDQUOT: "the disk quota is used up; free some space and rerun the same command",
            errno.EACCES: "permission denied; choose another folder",
            errno.EPERM: "permission denied; choose another folder",
            errno.EROFS: "the disk is read-only; choose another folder",
            errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
            errno.EISDIR: "a folder with that name exists; choose another path",
            errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
            errno.EEXIST: "a file with that name exists; choose another path",
        }
        # numpy only says "601 requested and 207 written" when a disk is full
        number = errno.ENOSPC if error.errno is None and str(error).endswith(" written") else error.errno
        if number not in reasons:
            raise
        raise StorageError(f"cannot write {path}: {reasons[number]}") from error


def require_own(folder: Place, signs: Sequence[str], what: str, option: str = "--out") -> None:
    """Refuse a non-empty folder without `signs`, the files that show that we created it."""
    with storage_errors(folder):
        names = [] if isinstance(folder, Path) and not folder.exists() else sorted(one.name for one in folder.iterdir())
    others = [name for name in names if not name.startswith(".")]
    if others and not set(signs) <= set(names):
        raise UsageError(
            f"{folder} contains other files ({others[0]}) and is not the folder of {what}; choose another {option}"
        )


def require_kind(path: Path, begins: bytes, what: str) -> None:
    """Refuse to replace a file that does not start with `begins`; an empty one may be replaced."""
    found = b""
    with suppress(OSError):  # then writing fails too, and is reported
        if path.is_file():  # reading a pipe would block
            with path.open("rb") as file:
                found = file.read(len(begins))
    if found and found.lower() != begins.lower():
        raise UsageError(f"{path} exists and is not a {what}; choose another name")


def require_room(folder: Place, n_bytes: int, what: str) -> None:
    """Refuse before the work starts if the disk of `folder` has less than `n_bytes` free."""
    if isinstance(folder, Address):  # stores do not tell
        return
    if (free := free_bytes(folder)) < n_bytes:
        cached = folder.absolute().is_relative_to(cache_dir().absolute())
        other = "set HASHLENS_CACHE to a folder on another disk" if cached else "choose a folder on another disk"
        raise StorageError(
            f"not enough disk space for {what} in {folder}: {n_bytes / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free;"
            f" free some space or {other}"
        )


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    existing = next(place for place in [folder.absolute(), *folder.absolute().parents] if place.exists())
    return shutil.disk_usage(existing).free


@contextmanager
def alone_in(folder: Place, lock_name: str = LOCK, wait: float = 0) -> Iterator[None]:
    """Context in which no other process writes to `folder`; a killed process releases its lock.

    It waits for another process for at most `wait` seconds. At an address, processes on other machines are not noticed.
    """
    from filelock import FileLock, Timeout

    if isinstance(folder, Address):
        name = hashlib.sha256(str(folder).encode()).hexdigest()[:32]
        with alone_in(cache_dir() / "locks", f"{name}.lock", wait):
            yield
        return
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    with storage_errors(folder):
        before = [] if created else os.listdir(folder)  # noqa: PTH208 - names alone
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(folder / lock_name, thread_local=False).acquire(timeout=wait)
        except Timeout as error:
            raise Busy(
                f"another process is writing to {folder}; wait until it has finished, or choose another folder"
            ) from error
    try:
        with lock:
            yield
    except BaseException:
        with suppress(OSError):  # leave no empty folder behind after a failure
            if set(os.listdir(folder)) - set(before) == {lock_name}:  # noqa: PTH208
                (folder / lock_name).unlink()
                for path in created:
                    path.rmdir()
        raise


def sync(folder: Place) -> None:
    """Flush the folder itself, so that new file names survive a power failure."""
    if isinstance(folder, Path) and sys.platform != "win32":
        handle = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # not supported by every file system
                os.fsync(handle)
        finally:
            os.close(handle)
