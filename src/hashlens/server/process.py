"""The server process: how to serve in, on standard input, a server that answers until it is stopped out.

Started and ended by `supervisor.py`. `serve` does the same without a supervisor, in the calling process.
"""

import asyncio
import faulthandler
import json
import logging
import logging.handlers
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from hashlens.errors import HashlensError, StorageError
from hashlens.search import Searcher
from hashlens.server.app import create_app
from hashlens.server.connections import Connection, Server
from hashlens.server.guard import ACCESS
from hashlens.server.limits import HEADER_SECONDS, KILL_SECONDS, SHUTDOWN_SECONDS
from hashlens.server.serving import JOB, Serving

SWITCH_SECONDS = 0.0005  # Python's 0.005, a few times per request, is long for searches of 0.001


def serve(searcher: Searcher, serving: Serving, sock: socket.socket, ready: Callable[[str], Any] = print) -> None:
    """Serve on a socket (`listen`) until SIGTERM or Ctrl-C; requests in progress are finished first."""
    facts = searcher.facts()
    exact = "exact" if facts["exact"] else "approximate"
    line = f"ready  {facts['n']:,} images · {facts['n_bits']} bits · {exact} · {serving.url}"
    app = create_app(
        searcher, limits=serving.limits, images=serving.images, access=serving.access, add_to=serving.add_to,
        ready=lambda: ready(line),
    )  # fmt: skip
    config = uvicorn.Config(
        app, http=Connection, ws="none", log_level="warning", access_log=False, server_header=False, lifespan="on",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS, proxy_headers=serving.proxy is not None,
        forwarded_allow_ips=serving.proxy, ssl_certfile=serving.certfile, ssl_keyfile=serving.keyfile,
    )  # fmt: skip
    sys.setswitchinterval(SWITCH_SECONDS)
    _log_requests(serving.access_log)
    _allow_open_files(2 * serving.limits.max_connections)
    # uvicorn raises the signal again after stopping, which would kill us before cleaning up
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(Server(config, serving.limits, serving.proxy).serve([sock]))
    finally:
        signal.signal(signal.SIGTERM, before)
        sock.close()


class Loop(asyncio.SelectorEventLoop if sys.platform != "win32" else asyncio.ProactorEventLoop):  # type: ignore[misc]
    """An event loop with less than a minute for TLS handshakes."""

    async def create_server(self, *given: Any, **how: Any) -> Any:
        if how.get("ssl"):
            how["ssl_handshake_timeout"] = HEADER_SECONDS
        return await super().create_server(*given, **how)


def _log_requests(where: str | None) -> None:
    """Log one line of JSON per request; the file is reopened if logrotate has moved it."""
    if where is None:
        return
    try:
        handler = logging.StreamHandler(sys.stdout) if where == "-" else logging.handlers.WatchedFileHandler(where)
    except OSError as error:
        raise StorageError(f"cannot write the access log {where}: {error.strerror}; choose another file") from error
    handler.setFormatter(logging.Formatter("%(message)s"))
    ACCESS.handlers, ACCESS.propagate = [handler], False
    ACCESS.setLevel(logging.INFO)


def _allow_open_files(n: int) -> None:
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = n + 500  # besides connections: mapped and temporary files, pipes to decoders
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def main(socket_number: int, pipe_number: int) -> None:
    """The server process: reads how to serve on standard input, whose end means that the supervisor is gone."""
    named, serving = JOB.validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with_supervisor, daemon=True).start()
    faulthandler.enable()

    def tell(**facts: Any) -> None:
        os.write(pipe_number, json.dumps(facts).encode() + b"\n")
        os.close(pipe_number)

    code, asked = 0, threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.set())  # for SIGTERM while images are encoded
    try:
        serve(named.open(asked.is_set), serving, socket.socket(fileno=socket_number), lambda line: tell(ready=line))
    except HashlensError as error:
        code = error.exit_code
        tell(error=error.message, exit_code=code)
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # does not wait for threads that are still searching


def _end_with_supervisor() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(KILL_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
