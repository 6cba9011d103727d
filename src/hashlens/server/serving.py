"""How to serve, as plain data: what, where, for whom and within which limits."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from hashlens.errors import DataError, MismatchError, StorageError, UsageError
from hashlens.progress import Progress
from hashlens.server.access import LOOPBACK, Access
from hashlens.server.limits import USUAL, Limits

if TYPE_CHECKING:
    from hashlens.search import Searcher

PORTS = 20  # number of ports to try, from the requested one up


@dataclass(frozen=True)
class Serving:
    """How to serve, as plain data."""

    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = USUAL
    access: Access = field(default_factory=Access)
    images: Path | None = None  # the folder the images of the index were moved to
    add_to: Path | None = None  # the folder for images that clients add
    certfile: Path | None = None
    keyfile: Path | None = None
    proxy: str | None = None  # address of a reverse proxy, trusted to name its clients
    access_log: str | None = None  # a file, or - for standard output

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certfile else 'http'}://{host}:{self.port}"


@dataclass(frozen=True)
class Named:
    """What to serve, by name; opened by the server process."""

    index: str | None
    model: Path | None = None
    engine: str | None = None
    at: str | None = None
    settings: Sequence[str] = ()
    kept: Path | None = None  # the folder for the codes of images
    again: bool = False  # whether this is a restart: another model may have taken over since

    def open(self, stop: Callable[[], bool] = lambda: False) -> Searcher:
        from hashlens.search.opening import open_named  # slow imports that the supervisor does not need

        def opened(model: Path | None) -> Searcher:
            given = self.engine, self.at, tuple(self.settings), self.kept
            return open_named(self.index, model, *given, progress=Progress(), stop=stop)

        try:
            return opened(self.model)
        except MismatchError:
            if not self.again or self.model is None:
                raise
            return opened(None)


JOB = TypeAdapter(tuple[Named, Serving])


def require_access(host: str, access: Access, allow_anyone: bool) -> None:
    """Refuse to serve everyone unless explicitly allowed."""
    if not is_loopback(host) and not access.tokens and not allow_anyone:
        raise UsageError(
            f"{host} can be reached from the network: pass --token (or --token-file), or let anyone in with"
            " --allow-anyone"
        )


def require_certificate(certfile: Path | None, keyfile: Path | None) -> None:
    if certfile is None:
        if keyfile is not None:
            raise UsageError("--keyfile needs --certfile")
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certfile, keyfile, password="")
    except OSError as error:  # includes ssl.SSLError
        why = error.strerror or "not a certificate with its key in PEM format"
        named = f"{certfile} and {keyfile}" if keyfile else f"{certfile}"
        raise DataError(f"cannot use {named} for TLS ({why}); check --certfile and --keyfile") from error


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_names(host: str, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Valid Host headers of requests: the given names, this machine's or, beyond loopback, any (None)."""
    if names:
        return (*(name.lower() for name in names), *LOOPBACK)
    return (*LOOPBACK, host) if is_loopback(host) else None


def listen(host: str, port: int) -> socket.socket:
    """A socket on the first free port from `port` up."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + PORTS, 65_536)):
        try:
            return socket.create_server((host, candidate), family=family, backlog=2_048)
        except PermissionError as error:
            raise StorageError(f"port {candidate} needs more privileges; choose --port 1024 or higher") from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(
                    f"cannot listen on {host}: it is not an address of this machine; omit --host"
                ) from error
    raise UsageError(f"cannot listen on {host}: ports {port} to {candidate} are taken; choose another --port")
