"""Speed of search and encoding as ratios, in one process, against faiss and against a plain torch loop.

    python -m benchmarks.search_bench [--write] [single] [batch] [radius] [cold] [encode]

With --write the figures also go to benchmarks/results/speed/search.json, for a table in the docs. One thread unless
stated. The limit of a scan is memory bandwidth: the speed of one thread that only sums the numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before faiss is loaded, or its threads would spin

import numpy as np
from numba import njit

from benchmarks.bench import alternating, seconds
from hashlens.codes import Codes
from hashlens.index.memory import HammingIndex
from hashlens.machine import machine

FILE = Path(__file__).parent / "results" / "speed" / "search.json"


def random_codes(n: int, n_bits: int, seed: int = 0) -> Codes:
    packed = np.random.default_rng(seed).integers(0, 256, (n, -(-n_bits // 8)), np.uint8)
    if n_bits % 8:
        packed[:, -1] &= np.uint8(0xFF << (8 - n_bits % 8) & 0xFF)
    return Codes(packed, n_bits)


def faiss_flat(codes: Codes) -> Any:
    """faiss's exact binary index; codes are padded to 8 bytes, because it has no fast loop for 6."""
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexBinaryFlat(64 * codes.words().shape[1])
    index.add(codes.words().view(np.uint8))
    return index


def faiss_search(index: Any, use_heap: bool, packed: np.ndarray) -> object:
    index.use_heap = use_heap
    return index.search(packed, 100)


@njit(nogil=True)
def _read(words: np.ndarray) -> int:
    """The fastest way to read: several positions at once, like the rows of an index."""
    n = len(words) // 4
    a, b, c, d = words[:n], words[n : 2 * n], words[2 * n : 3 * n], words[3 * n : 4 * n]
    total = np.uint64(0)
    for i in range(n):
        total += a[i] ^ b[i] ^ c[i] ^ d[i]
    return total


@dataclass(frozen=True)
class Measured:
    """One measurement: ours, the usual way, and a remark."""

    what: str
    ours: str
    usual: str
    ratio: float | None  # how many times faster ours is
    remark: str = ""

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f": {self.ratio:,.1f} times as fast"
        usual = f", {self.usual}" if self.usual else ""
        remark = f"\n  {self.remark}" if self.remark else ""
        return f"{self.what}\n  ours {self.ours}{usual}{ratio}{remark}"


def single() -> Measured:
    """Exact top 100 of one query in 20 million codes of 64 bits."""
    database, query = random_codes(20_000_000, 64), random_codes(5, 64, 1)
    index = HammingIndex(64)
    index.add(database)
    other = faiss_flat(database)
    packed = query.words().view(np.uint8)
    found = index.search(query, 100)
    theirs = other.search(packed, 100)
    assert np.array_equal(found[0], theirs[0]), "distances differ"
    words = index.parts[0].blocks.view(np.uint64).ravel()
    times = alternating(
        {
            "ours": lambda: index.search(query[0], 100),
            **{f"use_heap={heap}": partial(faiss_search, other, heap, packed[:1]) for heap in (True, False)},
            "limit": lambda: _read(words),
        },
        15,
    )
    ours, limit = times.pop("ours"), times.pop("limit")
    best = min(times, key=times.__getitem__)
    size = words.nbytes / 1e9
    return Measured(
        "one query, exact top 100 of 20 million codes of 64 bits, 1 thread",
        f"{ours * 1e3:.1f} ms ({size / ours:.1f} GB/s)",
        f"faiss {times[best] * 1e3:.1f} ms ({best}, {size / times[best]:.1f} GB/s)",
        times[best] / ours,
        f"this thread reads {size / limit:.1f} GB/s: ours is at {limit / ours:.0%} of that limit, which is"
        f" {times[best] / limit:.1f} times faiss",
    )


def batch() -> Measured:
    """Exact top 100 of 1,000 queries in a million codes of 48 bits."""
    database, query = random_codes(1_000_000, 48), random_codes(1_000, 48, 1)
    index = HammingIndex(48)
    index.add(database)
    other = faiss_flat(database)
    packed = query.words().view(np.uint8)
    assert np.array_equal(index.search(query, 100)[0], other.search(packed, 100)[0]), "distances differ"
    times = alternating(
        {
            "ours": lambda: index.search(query, 100),
            **{f"use_heap={heap}": partial(faiss_search, other, heap, packed) for heap in (True, False)},
        },
        3,
    )
    ours = times.pop("ours")
    best = min(times.values())
    return Measured(
        "1,000 queries, exact top 100 of a million codes of 48 bits, 1 thread",
        f"{1000 / ours:,.0f} queries/s",
        f"faiss {1000 / best:,.0f} queries/s",
        best / ours,
    )


def radius() -> Measured:
    """Everything within 2 bits, in 10 million codes of 64 bits: tables against the scan."""
    database = random_codes(10_000_000, 64)
    query = database[np.arange(0, 10_000_000, 1_000_000)]
    index = HammingIndex(64)
    index.add(database)
    plain = index.within(query, 2)
    scanned = seconds(lambda: index.within(query, 2), 3) / len(query)
    index.build_tables()
    looked_up = index.within(query, 2)
    assert all(np.array_equal(a[1], b[1]) for a, b in zip(plain, looked_up, strict=True)), "results differ"
    quick = seconds(lambda: index.within(query, 2), 20) / len(query)
    return Measured(
        "within 2 bits, 10 million codes of 64 bits, 1 thread",
        f"tables {quick * 1e6:.0f} µs per query",
        f"our scan {scanned * 1e3:.1f} ms",
        scanned / quick,
    )


def cold() -> Measured:
    """A new process opens an index of a million codes and answers its first query."""
    import pyarrow as pa

    from hashlens.index.folder import IndexFolder

    with tempfile.TemporaryDirectory() as folder:
        index = IndexFolder.create(Path(folder), 48, {"fingerprint": "0" * 64, "name": "bench"})
        paths = pa.table({"path": [f"photos/{i:07d}.jpg" for i in range(1_000_000)]})
        index.add(random_codes(1_000_000, 48), paths)
        code = (
            "from pathlib import Path; from hashlens.index.folder import IndexFolder\n"
            f"index = IndexFolder.open(Path({folder!r}))\n"
            "print(next(iter(index.lookup(index.search(next(index.batches(1))[0], 1)[1]).values()))['path'])"
        )
        times = []
        for _ in range(4):  # the first run compiles; the result is cached on the machine
            start = time.perf_counter()
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            times.append(time.perf_counter() - start)
        assert done.stdout == "photos/0000000.jpg\n", done.stdout
    return Measured(
        "a new process opens a million codes and answers its first query",
        f"{min(times[1:]):.2f} s",
        "",
        None,
        f"{times[0]:.2f} s the first time, when loops are compiled",
    )


def encode(n: int = 1_000) -> Measured:
    """JPEG files to codes: ours against a torch DataLoader and the same network, both on all cores."""
    import torch
    from PIL import Image, ImageOps
    from torch.utils.data import DataLoader, Dataset

    from hashlens.hashers.deep.dtsh import DTSH
    from hashlens.machine import n_threads

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(n):
            colours = rng.integers(0, 256, (12, 16, 3), np.uint8)  # smooth, so that files are as large as photographs
            Image.fromarray(colours).resize((640, 480), Image.Resampling.BICUBIC).save(f"{folder}/{i:04d}.jpg")
        paths = sorted(Path(folder).glob("*.jpg"))
        hasher = DTSH(48)
        hasher.sampling_, hasher.n_classes_, hasher.long_bits_ = "in-batch", 0, 0  # what `fit` would choose
        hasher._build(paths)
        hasher.history_ = []
        network, size = hasher.network_.eval(), hasher.image_size_

        class Files(Dataset):
            def __len__(self) -> int:
                return n

            def __getitem__(self, i: int) -> torch.Tensor:
                image = Image.open(paths[i]).convert("RGB")
                square = ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)
                return torch.from_numpy(np.asarray(square).copy())

        def usual() -> np.ndarray:
            loader = DataLoader(Files(), batch_size=64, num_workers=n_threads())
            with torch.inference_mode():
                return np.concatenate([network(batch).numpy() > 0 for batch in loader])

        usual_time = seconds(usual, 2)  # before ours, which changes the process's memory allocation
        ours_time = seconds(lambda: hasher.encode(paths), 2)
        equal = (hasher.encode(paths).signs() > 0) == usual()
    return Measured(
        f"{n:,} JPEG files of 640 x 480, {hasher.backbone_} at {size} pixels, {n_threads()} threads",
        f"{n / ours_time:.0f} images/s",
        f"a torch DataLoader and eager torch {n / usual_time:.0f} images/s",
        usual_time / ours_time,
        f"{equal.mean():.2%} of the bits equal",
    )


PARTS = {"single": single, "batch": batch, "radius": radius, "cold": cold, "encode": encode}


def main() -> None:
    chosen = [name for name in sys.argv[1:] if name != "--write"] or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        sys.exit(f"error: there is no part {unknown[0]}; choose from {', '.join(PARTS)}")
    figures = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for name in chosen:
        if name != "encode":
            os.environ["HASHLENS_THREADS"] = "1"
        else:
            os.environ.pop("HASHLENS_THREADS", None)
        measured = PARTS[name]()
        print(measured, flush=True)
        figures[name] = asdict(measured) | {"cpu": machine()["cpu"]}
    if "--write" in sys.argv:
        FILE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
