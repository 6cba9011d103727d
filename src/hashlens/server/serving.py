"""A searcher in, a server that answers until it is told to stop out."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from hashlens.errors import StorageError, UsageError
from hashlens.search import Searcher
from hashlens.server.app import Limits, create_app
from hashlens.server.guard import LOOPBACK

PORTS = 20  # that are tried, from the one asked for up
SHUTDOWN_SECONDS = 10  # for answers that are under way


def serve(
    searcher: Searcher,
    host: str,
    port: int,
    *,
    limits: Limits,
    pictures: Path | None = None,
    say: Callable[[str], Any] = print,
    ready: Callable[[str], Any] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C; answers that are under way are finished first."""
    local = is_loopback(host)
    sock = listen(host, port)
    found = sock.getsockname()[1]
    if found != port and port:
        say(f"port {port} is taken; using {found}")
    if not local:
        say(
            f"warning: {host} can be reached from the network, and there is no password; put a proxy with TLS and login"
            " in front, or leave out --host"
        )
    facts = searcher.facts()
    address = f"http://{f'[{host}]' if ':' in host else host}:{found}"
    exact = "exact" if facts["exact"] else "approximate"
    line = f"ready  {facts['n']:,} pictures · {facts['n_bits']} bits · {exact} · {address}"
    app = create_app(searcher, limits=limits, pictures=pictures, hosts=(*LOOPBACK, host) if local else None)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="on",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS, limit_concurrency=1_000,
    )  # fmt: skip
    # uvicorn raises a signal again once it has stopped, for whoever else listens; to stop is all that it means here
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        _Server(config, lambda: ready(line)).run([sock])
    finally:
        signal.signal(signal.SIGTERM, before)
        sock.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], Any]):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket at the first free port from `port` up."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    error: OSError | None = None
    for candidate in range(port, min(port + PORTS, 65_536)):
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, candidate))
            sock.listen(2048)
            return sock
        except PermissionError as refused:
            sock.close()
            raise StorageError(f"port {candidate} needs more rights; choose one from 1024 up with --port") from refused
        except socket.gaierror as unknown:
            sock.close()
            raise UsageError(f"{host} is no address of this machine; leave out --host") from unknown
        except OSError as taken:
            sock.close()
            error = taken
    raise UsageError(f"cannot listen at {host}, ports {port} to {candidate} ({error}); choose another --port or --host")
