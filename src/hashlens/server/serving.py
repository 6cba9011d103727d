"""A searcher in, a server out that answers until it is stopped."""

import errno
import ipaddress
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from hashlens.errors import StorageError, UsageError
from hashlens.search import Searcher
from hashlens.server.app import create_app
from hashlens.server.guard import LOOPBACK
from hashlens.server.limits import CONNECTIONS, SHUTDOWN_SECONDS, Limits

PORTS = 20  # to try, from the requested one up


def serve(
    searcher: Searcher,
    host: str,
    port: int,
    *,
    limits: Limits,
    images: Path | None = None,
    say: Callable[[str], Any] = print,
    ready: Callable[[str], Any] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress are finished first."""
    local = is_loopback(host)
    sock = listen(host, port)
    found = sock.getsockname()[1]
    if found != port and port:
        say(f"port {port} is taken; using {found}")
    if not local:
        say(
            f"warning: {host} can be reached from the network and there is no password; put a proxy with TLS and a"
            " login in front, or omit --host"
        )
    facts = searcher.facts()
    address = f"http://{f'[{host}]' if ':' in host else host}:{found}"
    exact = "exact" if facts["exact"] else "approximate"
    line = f"ready  {facts['n']:,} images · {facts['n_bits']} bits · {exact} · {address}"
    hosts = (*LOOPBACK, host) if local else None
    app = create_app(searcher, limits=limits, images=images, hosts=hosts, ready=lambda: ready(line))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="on",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS, limit_concurrency=CONNECTIONS,
    )  # fmt: skip
    # uvicorn raises the signal again once it has stopped, which would kill us before we clean up
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        uvicorn.Server(config).run([sock])
    finally:
        signal.signal(signal.SIGTERM, before)
        sock.close()


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket at the first free port from `port` up."""
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
