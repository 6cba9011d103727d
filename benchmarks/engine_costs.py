"""The costs of an image in Milvus and in PostgreSQL with pgvector: time to insert, disk, memory, and time per query.

    python -m benchmarks.engine_costs [milvus] [pgvector] [--n 100000 1000000]

Real servers on this machine, through the engines of hashlens. Codes of 48 bits, paths and queries are those of
benchmarks/big.py, with one of a hundred labels each. Before queries are measured, the server is settled: everything is
flushed, compacted and indexed, and the server is restarted and warmed up with queries. Exact search is measured, and
each server's approximate index with its recall.

CPU time of the client and of all server processes is measured, because the machine is shared. A server's idle CPU time
is measured for IDLE seconds and subtracted. The figures go to benchmarks/results/engines.json and are used by `hashlens
index plan`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.big import N_BITS, Images
from benchmarks.engine_servers import SERVERS
from hashlens.codes import Codes
from hashlens.errors import StorageError
from hashlens.files import write_json
from hashlens.index.engines import BATCH, open_server
from hashlens.machine import blocks, machine

FILE = Path(__file__).parent / "results" / "engines.json"
QUERIES, K, PATIENCE = 20, 10, 20
IDLE = 10  # seconds
SETTLED = 0.3  # of a core; a server using less has no background work
SECONDS = 600  # most seconds to settle
APPROXIMATE = {"milvus": "ivf", "pgvector": "hnsw"}
TICKS = os.sysconf("SC_CLK_TCK")


def processes(folder: Path) -> list[Path]:
    """The server's processes: started here or with the folder in their command, and their children."""
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
            total += sum(map(int, fields[11:15])) / TICKS  # own time, and that of children that have ended
    return total


def memory(folder: Path) -> int:
    """Resident bytes of the server; memory shared by its processes counts once."""
    total = 0
    for path in processes(folder):
        with suppress(OSError):
            lines = (path / "smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def disk(folder: Path) -> int:
    """Bytes of its files, without PostgreSQL's log, which has a fixed size."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() and "pg_wal" not in file.parts else 0
    return total


def timed(folder: Path, work: Callable[[], object], idle: float = 0) -> dict[str, float]:
    start = cpu(folder), time.perf_counter()
    work()
    wall = time.perf_counter() - start[1]
    return {"cpu": cpu(folder) - start[0] - idle * wall, "wall": wall}


def patiently(work: Callable[[], Any]) -> Any:
    """Retry `work` while a server on a busy machine is behind with earlier requests."""
    for _ in range(PATIENCE):
        with suppress(StorageError):
            return work()
        time.sleep(3)
    return work()


def settle(name: str, index: Any, folder: Path) -> None:
    """Wait until the server has finished its background work."""
    patiently(index.flush)
    if name == "pgvector":
        index._execute("VACUUM ANALYZE {table}")
    else:
        client = index._client
        for place in index._collections():
            job = client.compact(place)
            while client.get_compaction_state(job) != "Completed":
                time.sleep(1)
            while client.describe_index(place, "code").get("pending_index_rows"):
                time.sleep(1)
    end = time.monotonic() + SECONDS
    while (used := timed(folder, lambda: time.sleep(5)))["cpu"] > SETTLED * used["wall"] and time.monotonic() < end:
        pass


class Searches:
    """Counts the searches for an answer of Milvus: ties at its end need more than one."""

    def __init__(self, index: Any):
        self.n = 0
        self._search = index._search
        index._search = self

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.n += 1
        return self._search(*given, **named)


def items(paths: pa.Table, start: int) -> pa.Table:
    labels = [[f"label {row % 100}"] for row in range(start, start + len(paths))]
    return paths.append_column("labels", pa.array(labels, pa.list_(pa.string())))


def queried(index: Any, queries: Codes, folder: Path, idle: float) -> dict[str, float]:
    """The costs of a query, and the number of searches behind it."""

    def ask() -> None:
        for row in range(QUERIES):
            index.search(queries[row], K)

    patiently(ask)
    searches = Searches(index) if hasattr(index, "_search") else None
    found = {key: value / QUERIES for key, value in timed(folder, ask, idle).items()}
    if searches is not None:
        found["searches"] = searches.n / QUERIES
        del index._search
    return found


def measure(name: str, n: int, images: Images, folder: Path) -> Iterator[dict[str, Any]]:
    """Measurements, first without, then with the approximate index, which may take much longer to build."""
    queries = images.queries()
    with SERVERS[name](folder) as server:
        index = patiently(lambda: open_server(name, server.where, n_bits=N_BITS))
        settle(name, index, folder)
        before = {"memory": memory(folder), "disk": disk(folder)}
        idle = timed(folder, lambda: time.sleep(IDLE))
        found: dict[str, Any] = {"n": n, "idle": idle["cpu"] / idle["wall"]}

        def insert() -> None:
            for rows in blocks(n, BATCH):
                codes, paths = images.shard(rows.start, rows.stop - rows.start)
                index.add(codes, items(paths, rows.start))
            settle(name, index, folder)

        found |= {"insert": timed(folder, insert, found["idle"])}
        assert len(index) == n
        index.close()
        server.stop()  # memory used for inserting does not count for searching
        server.start()
        index = patiently(lambda: open_server(name, server.where))
        settle(name, index, folder)
        found |= {"query": queried(index, queries, folder, found["idle"])}
        found |= {"memory": memory(folder), "disk": disk(folder), "before": before}

        yield found

        def build() -> None:
            patiently(lambda: index.set_index(APPROXIMATE[name]))
            settle(name, index, folder)

        near = {"index_kind": APPROXIMATE[name], "build": timed(folder, build, found["idle"])}
        near |= {"query": queried(index, queries, folder, found["idle"]), "recall": patiently(index.recall)}
        near |= {"memory": memory(folder), "disk": disk(folder)}
        index.close()
        yield found | {"approximate": near}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", metavar="engine", help=", ".join(SERVERS))
    parser.add_argument("--n", type=int, nargs="+", default=[100_000, 1_000_000])
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.engines if name not in SERVERS]:
        parser.error(f"there is no engine {unknown[0]}; choose from {', '.join(SERVERS)}")
    result = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder).resolve()
        images = Images(scratch)
        for name in asked.engines or SERVERS:
            for n in asked.n:
                for found in measure(name, n, images, scratch / f"{name}-{n}"):
                    print(name, json.dumps(found), flush=True)
                    result.setdefault(name, {})[str(n)] = found
                    write_json(FILE, result | {"n_bits": N_BITS, "machine": machine()})


if __name__ == "__main__":
    main()
