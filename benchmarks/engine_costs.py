"""What an image costs in Milvus and in PostgreSQL with pgvector: time to insert, disk, memory, and time per query.

    python -m benchmarks.engine_costs [milvus] [pgvector] [--n 1000000]

Real servers on this machine, random codes of 48 bits with paths and labels, through the engines of hashlens; exact
search. CPU time is that of the client and of all processes of the server, since others use the machine. The figures go
to benchmarks/results/engines.json; `hashlens index plan` counts with them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.engine_servers import SERVERS
from hashlens.codes import Codes
from hashlens.errors import StorageError
from hashlens.files import write_json
from hashlens.index.engines import BATCH, open_server
from hashlens.machine import blocks, machine

FILE = Path(__file__).parent / "results" / "engines.json"
N_BITS, QUERIES, K, PATIENCE = 48, 20, 10, 20
TICKS = os.sysconf("SC_CLK_TCK")


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


def items(start: int, stop: int) -> pa.Table:
    """Paths of about 50 characters, as those of benchmarks/big.py, and one of a hundred labels each."""
    paths = [f"/archive/photos/{row // 1000:06d}/image-{row:012d}.jpg" for row in range(start, stop)]
    return pa.table({"path": paths, "labels": [[f"label {row % 100}"] for row in range(start, stop)]})


def measure(name: str, n: int, folder: Path) -> dict[str, Any]:
    packed = np.random.default_rng(0).integers(0, 256, (n, N_BITS // 8), np.uint8)
    queries = Codes(np.random.default_rng(1).integers(0, 256, (QUERIES, N_BITS // 8), np.uint8), N_BITS)
    with SERVERS[name](folder) as server:
        where = server.where
        index = patiently(lambda: open_server(name, where, n_bits=N_BITS))
        before = {"memory": memory(folder), "disk": disk(folder)}

        def insert() -> None:
            for rows in blocks(n, BATCH):
                index.add(Codes(packed[rows], N_BITS), items(rows.start, rows.stop))
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
