"""hashlens serve as a user starts it: a process, its address, its children."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path


class Running:
    def __init__(self, process: subprocess.Popen[str], address: str):
        self.process, self.address = process, address
        self.host, port = address.split("://")[1].rsplit(":", 1)
        self.port = int(port)
        self.lines: list[str] = []  # of standard error
        self._reader = threading.Thread(target=lambda: self.lines.extend(iter(process.stderr.readline, "")))
        self._reader.start()

    @property
    def server(self) -> int:
        """The process id of the server that the supervisor started."""
        return children(self.process.pid)[0]

    def connect(self, timeout: float = 30) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def stop(self) -> int:
        """As a service manager does it: what was answered is in the log; gives the exit code."""
        self.process.terminate()
        return self.process.wait(60)

    def end(self) -> None:
        with contextlib.suppress(IndexError):
            os.kill(self.server, 9)  # and with its input, that of the supervisor
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            pipe.close()


@contextlib.contextmanager
def running(*arguments: object, **how: object) -> Iterator[Running]:
    command = [sys.executable, "-m", "hashlens", "serve", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd="/", **pipes, **how)
    line = process.stdout.readline()
    assert line.startswith("ready "), process.stderr.read()
    found = Running(process, line.split()[-1])
    try:
        yield found
    finally:
        found.end()


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


def resident(pid: int) -> int:
    """Memory of a server with all its processes."""
    total = 0
    for one in [pid, *descendants(pid)]:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total
