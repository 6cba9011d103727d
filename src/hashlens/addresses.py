"""Addresses: images and codes in a remote store, such as s3://bucket/photos, read and written by fsspec.

An Address has those methods of a Path that are used for both. Every request is tried several times, with growing waits,
because in a store of many machines some always fail. A missing object raises FileNotFoundError, like a missing file; a
store that refuses or does not answer ends the command with one sentence. Credentials are taken from where the store's
own tools look for them, and never appear in addresses or output.
"""

from __future__ import annotations

import functools
import io
import os
import posixpath
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from hashlens.errors import (
    DataError,
    DownloadError,
    HashlensError,
    StorageError,
    UsageError,
    extra_of,
    require,
    to_install,
)

if TYPE_CHECKING:  # imported on use, because every command loads this module
    from concurrent.futures import Future, ThreadPoolExecutor

TRIES = 8  # half a minute in all
FIRST_TRIES = 3  # for a store that has not answered yet: its address may be wrong
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0  # seconds, doubled after each try, with random variation
AT_ONCE = 16  # requests
BLOCK = 4 << 20  # bytes read from a tar file at once; members closer than that share a request
OBJECTS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory")  # stores that replace objects atomically
WEB = ("http", "https")
INSTALLS = {"s3": "s3fs", "s3a": "s3fs", "http": "aiohttp", "https": "aiohttp", "sftp": "sshfs", "ssh": "sshfs"}
INSTALLS |= {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
BAD_CREDENTIALS = re.compile(r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|TokenRefresh|^401$")
FINAL = re.compile(r"4(?!08|29)\d\d")  # HTTP status codes for which retrying is useless
NO_ACCESS = re.compile(r"Credential|PermissionDenied|HostKey")  # names of exceptions

Result = TypeVar("Result")
tried_again = 0  # number of repeated requests in this process
_counting = threading.Lock()


def is_address(text: object) -> bool:
    """
    >>> is_address("s3://bucket/1.jpg"), is_address("photos/1.jpg")
    (True, False)
    """
    return isinstance(text, str) and re.match(r"[a-z][a-z0-9+.-]+://", text) is not None


class Stat(NamedTuple):
    st_size: int
    st_mtime_ns: int  # 0 if the store does not tell

    @property
    def st_ctime_ns(self) -> int:
        return self.st_mtime_ns


class Address:
    """An object of a store, or all objects whose names start with this one and a slash."""

    def __init__(self, text: str):
        self._text = text.rstrip("/")
        self.protocol = text.partition("://")[0]
        parts = urlsplit(text)
        if parts.password is not None or not (parts.netloc or self.protocol in ("file", "hdfs", "memory")):
            what = "has a password" if parts.password is not None else "names no bucket or host"
            raise UsageError(
                f"an address of {self.protocol}:// {what}; write {self.protocol}://NAME/FOLDER, and give credentials as"
                " the tools of that store take them, such as AWS_ACCESS_KEY_ID, ~/.aws, ~/.netrc or an SSH key"
            )

    def __str__(self) -> str:
        return self._text

    as_posix = __str__

    def __repr__(self) -> str:
        return f"Address({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __truediv__(self, name: str) -> Address:
        return Address(f"{self._text}/{name}")

    @property
    def name(self) -> str:
        return posixpath.basename(self._text)

    @property
    def stem(self) -> str:
        return posixpath.splitext(self.name)[0]

    @property
    def suffix(self) -> str:
        return posixpath.splitext(self.name)[1]

    @property
    def parent(self) -> Address:
        return Address(posixpath.dirname(self._text))

    def absolute(self) -> Address:
        return self

    def resolve(self) -> Address:
        return self

    @property
    def _store(self) -> tuple[Any, str]:
        """The file system of fsspec, and the name of this object in it."""
        host = urlsplit(self._text).netloc if self.protocol not in OBJECTS + WEB else ""
        fs = _file_system(self.protocol, host, threading.get_native_id() if self.protocol == "hdfs" else 0)
        return fs, fs._strip_protocol(self._text)

    def _ask(self, request: Callable[[Any, str], Result], verb: str = "found") -> Result:
        return _tried(self, request, verb)

    def read_bytes(self, limit: int | None = None) -> bytes:
        """The content, or its first limit + 1 bytes if it is longer than `limit`."""
        stop = None if limit is None else limit + 1
        return self._ask(lambda fs, path: _content(self.protocol, fs, path, 0, stop), "read")

    def part(self, start: int, n_bytes: int) -> bytes:
        """Bytes from the middle; fewer near the end."""
        return self._ask(lambda fs, path: _content(self.protocol, fs, path, start, start + n_bytes), "read")

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """A seekable file for reading; skipped ranges are not read unless shorter than BLOCK."""
        return io.BufferedReader(_Parts(self), BLOCK)

    def stat(self) -> Stat:
        def request(fs: Any, path: str) -> Stat:
            facts = _facts(self.protocol, fs, path)
            found = next((facts[key] for key in ("LastModified", "mtime", "created") if facts.get(key)), 0)
            seconds = found.timestamp() if hasattr(found, "timestamp") else found
            return Stat(int(facts.get("size") or 0), int(seconds * 1e9) if isinstance(seconds, int | float) else 0)

        return self._ask(request)

    def exists(self) -> bool:
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    is_file = exists  # stores differ in what they call a folder

    def names(self) -> list[str]:
        """All objects below, as sorted names relative to this one."""

        def request(fs: Any, path: str) -> list[str]:
            # nginx redirects folders without a final slash to its own port
            folder = path.rstrip("/") + "/" if self.protocol in WEB else path
            found = fs.find(folder)
            return sorted(one.removeprefix(folder).lstrip("/") for one in found if one.startswith(path))

        try:
            return self._ask(request)
        except FileNotFoundError as error:
            raise DataError(f"{self} not found; check the address") from error

    def iterdir(self) -> Iterator[Address]:
        """Objects directly below; none if there is nothing."""

        def request(fs: Any, path: str) -> list[str]:
            try:
                return sorted(posixpath.basename(one.rstrip("/")) for one in fs.ls(path, detail=False))
            except FileNotFoundError:
                return []

        return (self / name for name in self._ask(request) if name)

    def glob(self, pattern: str) -> Iterator[Address]:
        """Objects below this one that match a pattern."""
        return iter(expand(f"{self._text}/{pattern}"))

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._ask(lambda fs, path: fs.rm_file(path), "written")
        except FileNotFoundError:
            if not missing_ok:
                raise

    def write_bytes(self, content: bytes) -> None:
        """Replace the object atomically: others see the old or the new one."""

        def request(fs: Any, path: str) -> None:
            if self.protocol in OBJECTS:
                fs.pipe_file(path, content)
                return
            fs.makedirs(posixpath.dirname(path), exist_ok=True)
            temporary = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.tmp")
            fs.pipe_file(temporary, content)
            fs.mv(temporary, path)

        self._ask(request, "written")

    def require_writable(self) -> None:
        if self.protocol in WEB:
            raise UsageError(f"{self} can only be read; write to a folder, or to s3://, gs://, hdfs:// or sftp://")


Place = Path | Address


def place(path: str | os.PathLike[str] | Address) -> Place:
    """A path or address as a place in a store or on this machine."""
    if isinstance(path, Address):
        return path
    return Address(path) if isinstance(path, str) and is_address(path) else Path(path)


def below(root: Place, name: str) -> Place:
    """A file in a list, relative to `root` unless it is an address itself."""
    return Address(name) if is_address(name) else root / name


def readable_name(name: str, root: Place) -> str:
    """A name as people would write it; web servers escape names."""
    return unquote(name) if isinstance(root, Address) and root.protocol in WEB else name


def expand(pattern: str) -> list[Address]:
    """The addresses that match a pattern, sorted."""
    start = Address(re.split(r"[*?[]", pattern)[0])

    def request(fs: Any, path: str) -> list[Address]:
        own = fs._strip_protocol(pattern)
        head = pattern[: len(pattern) - len(own)] if pattern.endswith(own) else f"{start.protocol}://"
        return [Address(f"{head}{one}") for one in sorted(fs.glob(own))]

    try:
        return start._ask(request)
    except FileNotFoundError as error:
        raise DataError(f"{pattern} not found; check the address") from error


def ahead(wanted: Iterable[tuple[int, Address, int, int]], limit: int) -> dict[int, Future[bytes]]:
    """Start reading (row, object, offset, bytes), several at once; zero bytes mean the whole object.

    Rows of one object that lie close together, as in a tar file, share a request.
    """
    coming: dict[int, Future[bytes]] = {}
    together: dict[Address, list[tuple[int, int, int]]] = {}
    for row, address, offset, n_bytes in wanted:
        if not n_bytes:
            coming[row] = _pool().submit(address.read_bytes, limit)
        else:
            together.setdefault(address, []).append((offset, offset + n_bytes, row))
    for address, parts in together.items():
        for group in _groups(sorted(parts)):
            start, stop = group[0][0], max(end for _, end, _ in group)
            whole = _pool().submit(address.part, start, stop - start)
            for begin, end, row in group:
                coming[row] = _Cut(whole, begin - start, end - start)  # type: ignore[assignment]
    return coming


def _groups(parts: Sequence[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Runs of parts that together are no longer than BLOCK."""
    group: list[tuple[int, int, int]] = []
    for part in parts:
        if group and part[1] - group[0][0] > BLOCK:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


class _Cut:
    """A part of the result of a request."""

    def __init__(self, whole: Future[bytes], start: int, stop: int):
        self._whole, self._start, self._stop = whole, start, stop

    def result(self) -> bytes:
        return self._whole.result()[self._start : self._stop]

    def cancel(self) -> None:
        self._whole.cancel()


class _Parts(io.RawIOBase):
    """An object as a raw file: each read is a request."""

    def __init__(self, address: Address):
        self._address, self._at = address, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (self._address.stat().st_size if start is None else start)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        content = self._address.part(self._at, len(buffer))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)


@functools.lru_cache
def _pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(AT_ONCE, "fetch")


@functools.lru_cache
def _file_system(protocol: str, host: str, thread: int) -> Any:
    """The file system of a protocol, which finds its own credentials and options (fsspec, AWS_..., ~/.ssh/config)."""
    require("fsspec", why=f"{protocol}://")
    import fsspec

    if protocol not in fsspec.available_protocols():
        raise UsageError(f"{protocol}:// is not known; use s3://, gs://, hdfs://, https:// or sftp://")
    options: dict[str, Any] = {"use_listings_cache": False}  # others may write there
    if protocol in ("s3", "s3a"):
        # retried here, as for all stores, not at three levels
        options |= {"config_kwargs": {"retries": {"total_max_attempts": 1}, "connect_timeout": 10, "read_timeout": 30}}
    elif protocol in WEB:
        options = {"client_kwargs": {"trust_env": True}}  # proxies and ~/.netrc
    elif protocol in ("sftp", "ssh"):
        options = {"known_hosts": ()}  # the usual file; unknown hosts are refused
    try:
        kind = fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        name = INSTALLS.get(protocol, "more software")
        extra = to_install("remote") if extra_of(name) else f"pip install {name}"
        raise UsageError(f"{protocol}:// needs {name}; run: {extra}") from error
    if host:
        options |= {k: v for k, v in kind._get_kwargs_from_urls(f"{protocol}://{host}/").items() if v not in (None, "")}
    try:
        fs = kind(**options, skip_instance_cache=True)
    except OSError as error:
        if re.search("libhdfs|libjvm", str(error)):
            raise UsageError("hdfs:// needs libhdfs and Java; set HADOOP_HOME, JAVA_HOME and CLASSPATH") from error
        raise
    if protocol in ("s3", "s3a"):
        fs.retries = 1
    return fs


def _facts(protocol: str, fs: Any, path: str) -> dict[str, Any]:
    """Size and time of an object; fsspec alone would take a failing web server for a missing file."""
    if protocol not in WEB:
        return fs.info(path)
    from email.utils import parsedate_to_datetime

    from fsspec.asyn import sync

    async def ask() -> dict[str, Any]:
        session = await fs.set_session()
        async with session.head(fs.encode_url(path), allow_redirects=True, **fs.kwargs) as response:
            _require_good(response, path)
            changed = response.headers.get("Last-Modified")
            size = int(response.headers.get("Content-Length") or 0)
            return {"size": size, "mtime": parsedate_to_datetime(changed) if changed else 0}

    return sync(fs.loop, ask)


def _require_good(response: Any, url: str) -> None:
    if response.status == 404:
        raise FileNotFoundError(url)
    if response.status == 403:
        raise PermissionError(url)
    response.raise_for_status()


def _content(protocol: str, fs: Any, path: str, start: int, stop: int | None) -> bytes:
    if protocol in WEB:
        from fsspec.asyn import sync

        return sync(fs.loop, _from_web, fs, path, start, stop)
    if protocol in OBJECTS:
        if stop is None:
            return fs.cat_file(path)
        try:
            return fs.cat_file(path, start=start, end=stop)
        except OSError as error:
            if _code(error) in ("InvalidRange", "416"):  # the offset is at or past the end
                return b""
            raise
    with fs.open(path, "rb") as file:
        file.seek(start)
        return file.read(-1 if stop is None else stop - start)


async def _from_web(fs: Any, url: str, start: int, stop: int | None) -> bytes:
    """Read a range, and no more than that, whatever the server sends."""
    session = await fs.set_session()
    headers = {"Accept-Encoding": "identity"}
    if start or stop is not None:
        headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    async with session.get(fs.encode_url(url), headers=headers, **fs.kwargs) as response:
        if response.status == 416:  # the offset is at or past the end
            return b""
        _require_good(response, url)
        if start and response.status != 206:
            raise UsageError(f"the server of {url} cannot send parts of a file, which tar files need; copy it first")
        content = bytearray()
        async for chunk in response.content.iter_chunked(1 << 16):
            content += chunk
            if stop is not None and len(content) >= stop - start:
                return bytes(content[: stop - start])
        return bytes(content)


_answered: set[int] = set()  # file systems that have answered once


def _tried(address: Address, request: Callable[[Any, str], Result], verb: str) -> Result:
    """Make a request of a store, with several tries."""
    import random

    global tried_again
    number = 0
    while True:
        number += 1
        fs = None
        try:
            fs, path = address._store
            found = request(fs, path)
            _answered.add(id(fs))
            return found
        except (HashlensError, FileNotFoundError):
            if fs is not None:
                _answered.add(id(fs))
            raise
        except Exception as error:  # each store raises its own errors
            code = _code(error)
            if verb == "read" and isinstance(error, PermissionError) and not BAD_CREDENTIALS.search(code):
                raise PermissionError(str(address)) from error  # for this object only; others may be readable
            if isinstance(error, PermissionError) or NO_ACCESS.search(type(error).__name__) or code == "401":
                raise StorageError(
                    f"{address} cannot be {verb}: the store refuses access ({_short(error, code)}); check the"
                    " credentials"
                ) from error
            if isinstance(error, NotImplementedError | TypeError | ImportError) or FINAL.fullmatch(code):
                raise StorageError(f"{address} cannot be {verb} ({_short(error, code)}); check the address") from error
            if number >= (TRIES if id(fs) in _answered else FIRST_TRIES):
                raise DownloadError(
                    f"{address} cannot be {verb}, tried {number} times ({_short(error, code)}); check the address and"
                    " the network, then rerun the same command"
                ) from error
        with _counting:
            tried_again += 1
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (number - 1))
        time.sleep(wait * random.uniform(0.5, 1.5))


def _code(error: BaseException | None) -> str:
    """The S3 code or HTTP status that caused an error."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict) and response.get("Error", {}).get("Code"):
            return str(response["Error"]["Code"])
        status = getattr(error, "code" if type(error).__name__ == "HttpError" else "status", None)  # gcsfs; aiohttp
        if isinstance(status, int):
            return str(status)
        error = error.__cause__
    return ""


def _short(error: BaseException, code: str) -> str:
    """A description of an error without its text, which may contain credentials."""
    names = {"ConnectionRefusedError": "connection refused", "TimeoutError": "no answer in time"}
    return code or names.get(type(error).__name__, type(error).__name__)
