"""The whole table of exact search, compared with faiss's flat index and with its approximate ones and their recall.

    python -m benchmarks.search_table [--bits 48,64] [--n 1e5,1e6] [--queries 1,16] [--codes dtsh] [--approximate]
    python -m benchmarks.search_table --verify RUN    # trees against the scan, with the codes of a run

One thread, CPU time of the process, hashlens and faiss in turns, the best of several runs. Results are kept in
benchmarks/results/speed/search-table.json and not measured again; delete a row there to repeat it. docs/speed.md shows
all of it.

Codes: "random" are random bits. "itq" and "dtsh" come from scikit-learn's digits: rows drawn with replacement from the
outputs of a hasher trained on 1,500 of them, plus normal noise of NOISE times the standard deviation of each bit,
because there are only 1,797 images; queries are drawn in the same way from the other 297. The features are all products
of two pixels, because 256 bits of ITQ need as many dimensions.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HASHLENS_THREADS"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numba import njit

from hashlens.codes import Codes
from hashlens.files import write_json
from hashlens.index.memory import HammingIndex
from hashlens.kernels import kernels
from hashlens.machine import machine

FILE = Path(__file__).parent / "results" / "speed" / "search-table.json"
BITS = (16, 32, 48, 64, 128, 256)
SIZES = (100_000, 1_000_000)
QUERIES = (1, 16, 1_000)
KS = (1, 10, 100, 1_000)
KINDS = ("random", "itq", "dtsh")
NOISE = 0.5
SINGLE = 16
SECONDS = 0.05  # to repeat each way for, at least twice
LEAST = 2e7  # pairs of codes to compare in one timing, because clocks are coarse
VERIFIED, FLIPPED = 10_000, 0.02  # queries for comparing trees with the scan; share of flipped bits in a million codes
PADDED = (4, 8, 16, 32)  # code sizes in bytes for which faiss has a fast loop
APPROXIMATE = {"n": 100_000, "queries": 1_000, "k": 10}


def outputs(kind: str, n_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Relaxed outputs of a hasher for digits: those it learned from, and the others."""
    from sklearn.datasets import load_digits
    from sklearn.preprocessing import PolynomialFeatures

    from hashlens import DTSH, Training, make_hasher

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    features = PolynomialFeatures(2, include_bias=False).fit_transform(pixels[order] / 16).astype(np.float32)
    hasher = make_hasher("itq", n_bits=n_bits) if kind == "itq" else DTSH(n_bits, training=Training(epochs=30))
    hasher.fit(features[:1_500], labels[order][:1_500])
    projected = hasher.project(features)
    return projected[:1_500], projected[1_500:]


def make_codes(kind: str, n_bits: int, n: int) -> tuple[Codes, Codes]:
    """n codes to search and the queries."""
    rng = np.random.default_rng(1)
    if kind == "random":
        return tuple(Codes(rng.integers(0, 256, (m, n_bits // 8), np.uint8), n_bits) for m in (n, max(QUERIES)))
    learned, others = outputs(kind, n_bits)
    scale = NOISE * learned.std(axis=0)

    def drawn(rows: np.ndarray, m: int) -> Codes:
        packed = np.empty((m, n_bits // 8), np.uint8)
        for start in range(0, m, 100_000):
            size = min(100_000, m - start)
            noisy = rows[rng.integers(0, len(rows), size)] + scale * rng.standard_normal((size, n_bits), np.float32)
            packed[start : start + size] = np.packbits(noisy > 0, axis=1)
        return Codes(packed, n_bits)

    return drawn(learned, n), drawn(others, max(QUERIES))


def padded(codes: Codes) -> np.ndarray:
    n_bytes = next(size for size in PADDED if size >= codes.packed.shape[1])
    return np.pad(codes.packed, ((0, 0), (0, n_bytes - codes.packed.shape[1])))


def in_turns(works: dict[str, Callable[[], object]], size: float) -> dict[str, float]:
    """The least CPU time of each, in seconds. `size` is the number of code pairs that one of them compares.

    The previous work leaves its data in the caches, so short ones run once before they are timed, and then often.
    """
    best, spent, rounds = dict.fromkeys(works, float("inf")), 0.0, 0
    times = max(1, round(LEAST / size))
    while rounds < 2 or (spent < SECONDS * len(works) and rounds < 200):
        for name, work in works.items():
            if size <= 10 * LEAST:
                work()
            start = time.process_time()
            for _ in range(times):
                work()
            taken = time.process_time() - start
            best[name] = min(best[name], taken / times)
            spent += taken
        rounds += 1
    return best


@njit(nogil=True)
def _read(words: np.ndarray) -> int:
    n = len(words) // 4
    a, b, c, d = words[:n], words[n : 2 * n], words[2 * n : 3 * n], words[3 * n : 4 * n]
    total = np.uint64(0)
    for i in range(n):
        total += a[i] ^ b[i] ^ c[i] ^ d[i]
    return total


def measure(kind: str, n_bits: int, n: int, numbers: list[int], done: dict[str, Any], save: Callable[[], None]) -> None:
    """Measure all missing cells of one set of codes."""
    import faiss

    faiss.omp_set_num_threads(1)
    wanted = [(q, k) for q in numbers for k in KS if name_of(kind, n_bits, n, q, k) not in done]
    if not wanted:
        return
    codes, queries = make_codes(kind, n_bits, n)
    index, scan = HammingIndex(n_bits), HammingIndex(n_bits)
    index.add(codes)
    scan.add(codes)
    (part,) = index.parts
    scan.parts[0].tried = True  # prevents a tree from being built, however many queries follow
    start = time.process_time()
    index.build_trees()
    build = time.process_time() - start
    flat = faiss.IndexBinaryFlat(8 * padded(codes[:1]).shape[1])
    flat.add(padded(codes))
    words = part.blocks.reshape(-1).view(np.uint64)
    for q, k in wanted:
        asked, theirs = queries[:q], padded(queries[:q])
        plain, found = scan.search(asked, k), index.search(asked, k)
        by_faiss = flat.search(theirs, k)
        assert np.array_equal(plain[0], by_faiss[0]), "distances differ from faiss's"
        assert all(np.array_equal(a, b) for a, b in zip(plain, found, strict=True)), "the tree differs from the scan"

        # queries differ in cost, so for single queries several run one after the other
        each = [queries[row : row + q] for row in range(SINGLE if q == 1 else 1)]
        padded_each = [padded(asked) for asked in each]

        def by_heap(use: bool, padded_each: list[np.ndarray] = padded_each, k: int = k) -> None:
            flat.use_heap = use
            for asked in padded_each:
                flat.search(asked, k)

        ways: dict[str, Callable[[], object]] = {
            "ours": lambda each=each, k=k: [index.search(asked, k) for asked in each],
            "scan": lambda each=each, k=k: [scan.search(asked, k) for asked in each],
            "heap": lambda: by_heap(True),
            "counts": lambda: by_heap(False),
        }
        if q == 1:
            ways["read"] = lambda: _read(words)
        best = in_turns(ways, n * len(each) * q)
        done[name_of(kind, n_bits, n, q, k)] = {
            "ours": best["ours"] / (q * len(each)),  # seconds per query
            "scan": best["scan"] / (q * len(each)),  # without a tree
            "faiss": min(best["heap"], best["counts"]) / (q * len(each)),
            "read": best.get("read"),  # just reading all codes once
            "distinct": part.tree.n_distinct / n if part.tree else None,
            "build": build,
        }
        save()
        cell = done[name_of(kind, n_bits, n, q, k)]
        print(
            f"{name_of(kind, n_bits, n, q, k):36} {cell['ours'] * 1e6:9.1f} µs per query,"
            f" {cell['faiss'] / cell['ours']:6.1f} x faiss, {cell['scan'] / cell['ours']:6.2f} x our scan",
            flush=True,
        )


def measure_approximate(kind: str, n_bits: int, done: dict[str, Any], save: Callable[[], None]) -> None:
    """faiss's approximate indexes, beside our exact one: time, and how many of the nearest k they find."""
    import faiss

    n, q, k = APPROXIMATE["n"], APPROXIMATE["queries"], APPROXIMATE["k"]
    name = name_of(kind, n_bits, n, q, k)
    if name in done or n_bits < 32:
        return
    codes, queries = make_codes(kind, n_bits, n)
    index = HammingIndex(n_bits)
    index.add(codes)
    index.build_trees()
    exact, _ = index.search(queries, k)
    theirs, width = padded(queries), 8 * padded(queries[:1]).shape[1]
    lists = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(width), width, 316)
    lists.own_fields = False
    lists.train(padded(codes[:20_000]))
    lists.nprobe = 8
    rivals = {
        "IVF, 316 lists, 8 read": lists,
        "HNSW, 16 links, 64 visited": faiss.IndexBinaryHNSW(width, 16),
        "MultiHash, 16-bit pieces, 1 flip": faiss.IndexBinaryMultiHash(width, n_bits // 16, 16),
    }
    rivals["HNSW, 16 links, 64 visited"].hnsw.efSearch = 64
    rivals["MultiHash, 16-bit pieces, 1 flip"].nflip = 1
    row: dict[str, Any] = {}
    ways: dict[str, Callable[[], object]] = {"ours": lambda: index.search(queries, k)}
    for title, rival in rivals.items():
        start = time.process_time()
        rival.add(padded(codes))
        build = time.process_time() - start
        found = rival.search(theirs, k)[0]
        recall = float(((found >= 0) & (found <= exact[:, -1:])).sum() / exact.size)  # ties at the last distance count
        row[title] = {"recall": recall, "build": build}
        ways[title] = lambda rival=rival: rival.search(theirs, k)
    best = in_turns(ways, n * q)
    for title in rivals:
        row[title]["seconds"] = best[title] / q
    done[name] = {"ours": best["ours"] / q, "rivals": row}
    save()
    print(
        name,
        {
            title: f"{cell['recall']:.2f}, {cell['seconds'] / done[name]['ours']:.1f} x ours"
            for title, cell in row.items()
        },
    )


def verify(run: Path) -> dict[str, Any]:
    """Whether trees give the same results as the scan, for the codes of a run and for a million with flipped bits."""
    from hashlens.results.runs import load_codes

    query, real, *_ = load_codes(run)
    query, real = query.first, real.first
    n_more = VERIFIED - len(query)
    asked = Codes.concatenate([query, real[np.linspace(0, len(real) - 1, n_more).astype(int)]])
    rng, n = np.random.default_rng(0), 1_000_000
    drawn = real.packed[rng.integers(0, len(real), n)]
    drawn ^= np.packbits(rng.random((n, real.n_bits)) < FLIPPED, axis=1)[:, : drawn.shape[1]]
    found: dict[str, Any] = {"queries": len(asked), "flipped": FLIPPED}
    for name, codes in (("real", real), ("flipped bits", Codes(drawn, real.n_bits))):
        scan, tree = HammingIndex(codes.n_bits), HammingIndex(codes.n_bits)
        for index in (scan, tree):
            index.add(codes)
        tree.build_trees()
        cell = {"n": len(codes), "distinct": len(np.unique(codes.packed, axis=0))}
        cell["tree"] = tree.parts[0].tree is not None  # none is kept if it would be slower
        for k in (10, 1_000):
            same = [np.array_equal(scan.search(asked[i : i + 500], k), tree.search(asked[i : i + 500], k))
                    for i in range(0, len(asked), 500)]  # fmt: skip
            cell[f"same at k = {k}"] = all(same)
        found[name] = cell
        print(name, cell, flush=True)
    return found


def name_of(kind: str, n_bits: int, n: int, q: int, k: int) -> str:
    return f"{kind} bits={n_bits} n={n} queries={q} k={k}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bits", default=",".join(map(str, BITS)))
    parser.add_argument("--n", default=",".join(map(str, SIZES)))
    parser.add_argument("--queries", default=",".join(map(str, QUERIES)))
    parser.add_argument("--codes", default=",".join(KINDS))
    parser.add_argument("--approximate", action="store_true", help="measure faiss's approximate indexes")
    parser.add_argument("--verify", type=Path, metavar="RUN", help="compare trees with the scan, with codes of a run")
    given = parser.parse_args()
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {"exact": {}, "approximate": {}}
    found["machine"] = machine() | {"kernels": kernels().name}

    def save() -> None:
        write_json(FILE, found)

    if given.verify:
        found["verified"] = verify(given.verify)
        return save()

    for n_bits in map(int, given.bits.split(",")):
        for kind in given.codes.split(","):
            if given.approximate:
                measure_approximate(kind, n_bits, found["approximate"], save)
                continue
            for n in (int(float(size)) for size in given.n.split(",")):
                measure(kind, n_bits, n, [int(q) for q in given.queries.split(",")], found["exact"], save)


if __name__ == "__main__":
    main()
