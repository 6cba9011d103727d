"""The supervisor: starts the server process, restarts it when it dies, and ends it in time.

It holds the socket, so that no connection is refused meanwhile. SIGTERM ends the server, with SIGKILL once its time is
up; SIGHUP starts a new one (with the current model, certificate and tokens) and ends the old one when the new one
answers. Truncating an index file while it is mapped kills the process that reads it (SIGBUS); the next process reports
what is wrong with the file.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hashlens.errors import HashlensError, Stopped
from hashlens.server.limits import KILL_SECONDS
from hashlens.server.serving import JOB, Named, Serving

PAUSES = (0, 1, 5)  # seconds before each restart; then the supervisor gives up
LIVED = 5  # seconds; after a shorter life, the first restart waits too
HINTS = {
    "SIGBUS": ": a file of the index was cut short, or its disk failed",
    "SIGKILL": ": perhaps it ran out of memory",
}


def supervise(
    named: Named,
    serving: Callable[[], Serving],
    sock: socket.socket,
    *,
    say: Callable[[str], Any],
    ready: Callable[[str], Any],
) -> None:
    """Serve on a socket until SIGTERM or Ctrl-C; `serving` is called whenever a server process starts."""
    if sys.platform == "win32":  # Windows can neither pass on sockets nor end process groups
        from hashlens.server.process import serve

        serve(named.open(), serving(), sock, ready)
    else:
        Supervisor(named, serving, sock, say, ready).run()


class Supervisor:
    def __init__(
        self,
        named: Named,
        serving: Callable[[], Serving],
        sock: socket.socket,
        say: Callable[[str], Any],
        ready: Callable[[str], Any],
    ):
        self._named, self._serving, self._sock, self._say, self._ready = named, serving, sock, say, ready
        self._wakeup, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        watched = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD]
        before = {number: signal.signal(number, lambda number, frame: None) for number in watched}
        wakeup = signal.set_wakeup_fd(self._write)
        server: Server | None = None
        try:
            server = self._start()
            self._ready(server.line)
            while True:
                received = self._wait(None)
                self._stop_if_asked(received)
                if server.process.poll() is not None:
                    server = self._again(server)
                elif signal.SIGHUP in received:
                    server = self._renew(server)
        except _Asked as asked:
            if asked.number == signal.SIGINT:
                raise Stopped("stopped") from None
        finally:
            if server is not None:
                self._end(server)
            signal.set_wakeup_fd(wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wakeup)
            os.close(self._write)

    def _start(self) -> Server:
        """A server process that answers; raises the error that it ended with."""
        serving = self._serving()
        read, write = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "hashlens.server.process", str(self._sock.fileno()), str(write)],
            stdin=subprocess.PIPE,
            pass_fds=[self._sock.fileno(), write],
            process_group=0,  # Ctrl-C is handled by the supervisor
        )
        os.close(write)
        server = Server(process, time.monotonic())
        with os.fdopen(read, "rb") as pipe:
            try:
                assert process.stdin is not None
                process.stdin.write(JOB.dump_json((self._named, serving)) + b"\n")
                process.stdin.flush()  # stays open, so that it ends when we die
                while read not in select.select([self._wakeup, read], [], [])[0]:
                    self._stop_if_asked(self._wait(0))
                message = json.loads(pipe.readline() or b"{}")
            except BaseException as error:
                self._end(server)
                if not isinstance(error, OSError):
                    raise
                message = {}
        if "ready" in message:
            server.line, self._named = message["ready"], replace(self._named, again=True)
            return server
        code = process.wait()
        self._end(server)
        failed = HashlensError(message.get("error") or _died(code))
        failed.exit_code = message.get("exit_code", 1)
        raise failed

    def _again(self, dead: Server) -> Server:
        self._say(f"{_died(dead.process.wait())}; starting it again")
        first = PAUSES[0] if time.monotonic() - dead.started > LIVED else PAUSES[1]
        for pause in (first, *PAUSES[1:]):
            self._stop_if_asked(self._wait(pause))
            try:
                server = self._start()
                self._say("serving again")
                return server
            except HashlensError as error:
                found = error
                self._say(f"cannot serve: {error.message}")
        raise found

    def _renew(self, old: Server) -> Server:
        try:
            new = self._start()
        except HashlensError as error:
            self._say(f"the old server stays: {error.message}")
            return old
        self._say("a new server process answers")
        self._end(old)
        return new

    def _end(self, server: Server) -> None:
        """End a server within KILL_SECONDS, whatever it is doing; its decoders end with it."""
        with suppress(ProcessLookupError):
            server.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(KILL_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
        if server.process.stdin is not None:
            with suppress(OSError):
                server.process.stdin.close()

    def _wait(self, seconds: float | None) -> set[int]:
        """Wait for signals; returns those that arrived."""
        end = None if seconds is None else time.monotonic() + seconds
        received: set[int] = set()
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not select.select([self._wakeup], [], [], left)[0]:
                return received
            received |= set(os.read(self._wakeup, 1_000))
            if end is None or received & {signal.SIGTERM, signal.SIGINT}:
                return received

    def _stop_if_asked(self, received: set[int]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            if number in received:
                raise _Asked(number)


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    started: float
    line: str = ""


class _Asked(Exception):
    """Raised when asked to stop."""

    def __init__(self, number: int):
        self.number = number


def _died(code: int) -> str:
    if code >= 0:
        return f"the server process ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"the server process was ended by {name}{HINTS.get(name, '')}"
