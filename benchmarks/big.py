"""The index on one machine, from 10^5 to 10^8 images: the costs of adding, opening and searching, and of the plan.

    python -m benchmarks.big SCRATCH [--most 1e8] [--keep]

Codes of 48 bits come from DTSH: rows drawn with replacement from the outputs of a network trained on scikit-learn's
digits, plus normal noise of 0.5 times the standard deviation of each bit (as in search_table.py). A bit of such a code
is 1 with a probability that depends only on the row, so bits are drawn from these probabilities, in steps of 1/65,536.
Paths are synthetic, about 50 characters long. Shards of 65,536 images are added as `hashlens index add` does, one
thread; trees are built at each size of the table, as that command does at its end.

CPU time of the process is measured, because the machine is shared; wall time is recorded too. Before the last size is
reached, the prediction of `hashlens index plan` from the smaller sizes is written to the result. After a kill, the same
command resumes; a new SCRATCH begins a new record. It needs 15 GB for 10^8 and is deleted at the end, unless --keep.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["HASHLENS_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hashlens.codes import Codes
from hashlens.files import write_json
from hashlens.index.folder import IndexFolder
from hashlens.index.plan import fitted, folder_at
from hashlens.machine import machine

FILE = Path(__file__).parent / "results" / "big.json"
N_BITS, NOISE, SHARD = 48, 0.5, 65_536
SIZES = tuple(10**power for power in range(5, 9))
MODEL = {"fingerprint": "0" * 64, "name": "big"}
QUERIES, K, ROUNDS = 100, 10, 5


class Images:
    """The codes and paths of any shard, and queries; the same in each process."""

    def __init__(self, scratch: Path):
        kept = scratch / "outputs.npz"
        if not kept.exists():
            from benchmarks.search_table import outputs

            learned, others = outputs("dtsh", N_BITS)
            np.savez(kept, learned=learned, others=others)
        with np.load(kept) as found:
            learned, others = found["learned"], found["others"]
        from scipy.stats import norm

        scale = NOISE * learned.std(axis=0)
        self._ones, self._query_ones = (
            np.round(norm.cdf(rows / scale) * 65_535).astype(np.uint16) for rows in (learned, others)
        )

    def shard(self, start: int, n: int) -> tuple[Codes, pa.Table]:
        """The images from the start-th on."""
        numbers = pa.array(np.arange(start, start + n))
        folders = pc.cast(pc.divide(numbers, 1_000), pa.string())
        names = pc.utf8_lpad(pc.cast(numbers, pa.string()), 12, padding="0")
        paths = pc.binary_join_element_wise("/mnt/archive/photos/2024/", folders, "/IMG_", names, ".jpg", "")
        return _drawn(self._ones, n, start), pa.table({"path": paths})

    def queries(self) -> Codes:
        return _drawn(self._query_ones, QUERIES, 2**40)


def _drawn(ones: np.ndarray, n: int, seed: int) -> Codes:
    rng = np.random.default_rng(seed)
    random = np.frombuffer(rng.bytes(2 * n * N_BITS), np.uint16).reshape(n, N_BITS)
    return Codes(np.packbits(random < ones[rng.integers(0, len(ones), n)], axis=1), N_BITS)


class Clock:
    """CPU and wall time spent adding, kept with the index so that a killed run resumes."""

    def __init__(self, path: Path):
        self.path = path
        self.spent = json.loads(path.read_text()) if path.exists() else {"n": 0, "cpu": 0.0, "wall": 0.0}

    def __enter__(self) -> Clock:
        self._start = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.spent["cpu"] += time.process_time() - self._start[0]
        self.spent["wall"] += time.perf_counter() - self._start[1]

    def save(self, n: int) -> None:
        self.spent["n"] = n
        self.path.write_text(json.dumps(self.spent))


def grow(index: IndexFolder, images: Images, to: int, clock: Clock) -> None:
    """Add shards until there are that many images."""
    while len(index) < to:
        start = len(index)
        codes, items = images.shard(start, min(SHARD, to - start))
        with clock:
            index.add(codes, items, only_new=True, trees=False)
        clock.save(len(index))
        if start // 1_000_000 < len(index) // 1_000_000:
            per_image = clock.spent["cpu"] / len(index) * 1e6
            print(f"{len(index):>12,} images, {len(index.facts['parts'])} parts, {per_image:.2f} µs each", flush=True)
    with clock:
        index.build_trees()
    clock.save(len(index))


def disk(path: Path) -> dict[str, int]:
    """Bytes of the index by kind of file."""
    sizes: Counter[str] = Counter()
    for file in path.iterdir():
        kind = file.name.split(".")[1] if file.name.startswith("part-") else "other"
        sizes[kind] += file.stat().st_size
    return dict(sorted(sizes.items()))


def memory() -> dict[str, int]:
    """Resident bytes of this process: all, and those outside mapped files."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(status[key].split()[0]) * 1024 for name, key in (("all", "VmRSS"), ("own", "RssAnon"))}


def timed(work: Any) -> dict[str, float]:
    start = time.process_time(), time.perf_counter()
    work()
    return {"cpu": time.process_time() - start[0], "wall": time.perf_counter() - start[1]}


def best(work: Any) -> float:
    """CPU seconds, the least of several runs."""
    return min(timed(work)["cpu"] for _ in range(ROUNDS))


def measure(scratch: Path) -> dict[str, Any]:
    """The costs of opening and searching the index in a new process; run as a separate process."""
    images, path = Images(scratch), scratch / "index"
    queries = images.queries()
    before = memory()
    opened: list[IndexFolder] = []
    opening = timed(lambda: opened.append(IndexFolder.open(path)))
    (index,) = opened
    found = {"parts": len(index.parts), "trees": sum(part.tree is not None for part in index.parts)}
    found |= {"distinct": [part.tree.n_distinct / len(part) for part in index.parts if part.tree is not None]}
    found |= {"open": opening, "memory_before": before, "memory_open": memory()}

    def each(index: Any) -> None:
        for row in range(QUERIES):
            index.search(queries[row], K)

    first = timed(lambda: index.search(queries[0], K))
    each(index)
    found |= {"first_query": first, "query": best(lambda: each(index)) / QUERIES}
    found |= {"queries_100": best(lambda: index.search(queries, K))}
    ids = index.search(queries[0], K)[1][0]
    index.lookup(ids)
    found |= {"lookup": best(lambda: index.lookup(ids))}
    found |= {"memory_searched": memory()}
    distances, near = index.search(queries[:5], K)
    for part in index.parts:
        part.tree = None
    index._views = {}
    scanned = index.search(queries[:5], K)
    assert np.array_equal(scanned[0], distances) and np.array_equal(scanned[1], near), "the tree answers otherwise"
    far = Codes(np.random.default_rng(0).integers(0, 256, (5, N_BITS // 8), np.uint8), N_BITS)  # far from all codes
    found |= {"scan": best(lambda: [index.search(far[row], K) for row in range(len(far))]) / len(far)}
    found |= {"memory_scanned": memory()}
    adding = IndexFolder.open(path, to_add=True)
    codes, items = images.shard(0, SHARD)
    some = codes[:1_000], items.slice(0, 1_000)
    found |= {"open_to_add": timed(lambda: IndexFolder.open(path, to_add=True))}
    found |= {"known_1000": timed(lambda: adding.add(*some, only_new=True, trees=False))}
    assert len(adding) == len(index)
    keys = np.random.default_rng(0).integers(-(2**62), 2**62, SHARD)  # keys of a shard of new images
    paths = items.column("path")
    adding._is_new(keys, paths, False)
    found |= {"new_keys": best(lambda: adding._is_new(keys, paths, False))}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--most", type=float, default=max(SIZES))
    parser.add_argument("--keep", action="store_true", help="do not delete SCRATCH")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.scratch.mkdir(parents=True, exist_ok=True)
    if asked.measure:
        print(json.dumps(measure(asked.scratch)))
        return
    images, path = Images(asked.scratch), asked.scratch / "index"
    result = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if not path.exists():
        result = {"before": result["before"]} if "before" in result else {}
    result |= {"n_bits": N_BITS, "second_bits": 0, "shard": SHARD, "machine": machine()}
    sizes: dict[str, Any] = result.setdefault("sizes", {})
    index = IndexFolder.open(path, to_add=True) if path.exists() else IndexFolder.create(path, N_BITS, MODEL)
    clock = Clock(asked.scratch / "clock.json")
    for n in (size for size in SIZES if size <= asked.most):
        if len(index) > n or (len(index) == n and str(n) in sizes):
            continue
        if n == max(SIZES) and "predicted" not in result:  # predict before measuring
            constants = fitted(list(sizes.values()))
            result["predicted"] = folder_at(n, N_BITS, 0, constants) | {"n": n, "constants": constants}
            write_json(FILE, result)
        grow(index, images, n, clock)
        command = [sys.executable, "-m", "benchmarks.big", str(asked.scratch), "--measure"]
        measured = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        build = {"cpu": clock.spent["cpu"], "wall": clock.spent["wall"], "peak_memory": peak}
        sizes[str(n)] = {"n": n, "build": build, "disk": disk(path), **measured}
        write_json(FILE, result)
        print(json.dumps(sizes[str(n)]), flush=True)
    if not asked.keep:
        shutil.rmtree(asked.scratch)


if __name__ == "__main__":
    main()
