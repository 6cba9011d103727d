"""The cost of a second code: exact search by both codes against the first alone, in one process.

    python -m benchmarks.second [--write]

Codes of 48 bits with a second code of 128: `distinct` first codes are drawn at random and repeated, so that the k-th
distance ties with a share of all images, as for codes trained on that many classes.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import Codes, HammingIndex
from hashlens.files import write_json

OUT = Path(__file__).parent / "results" / "speed" / "second.json"
N, N_BITS, SECOND_BITS, K, QUERIES, ROUNDS = 1_000_000, 48, 128, 10, 25, 3


def made(n: int, distinct: int, seed: int) -> Codes:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).integers(0, 256, (distinct, N_BITS // 8), np.uint8)
    second = Codes(rng.integers(0, 256, (n, SECOND_BITS // 8), np.uint8), SECOND_BITS)
    return Codes(centres[rng.integers(0, distinct, n)], N_BITS, second)


def measure(distinct: int) -> dict[str, Any]:
    index = HammingIndex(N_BITS, second_bits=SECOND_BITS)
    index.add(made(N, distinct, 1))
    queries = made(QUERIES, distinct, 2)
    best: dict[str, float] = {}
    for _ in range(ROUNDS):
        for by in ("first", "both", "second"):
            times = []
            for row in range(QUERIES):  # one way at a time, because each leaves its own data in the caches
                start = time.process_time()
                index.search(queries[row], K, by=by)
                times.append(time.process_time() - start)
            best[by] = min(best.get(by, np.inf), float(np.median(times)) * 1000)
    return best | {"distinct": distinct}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {OUT.name}")
    os.environ["HASHLENS_THREADS"] = "1"
    cells = [measure(distinct) for distinct in (10, 1_000, 100_000, N)]
    for cell in cells:
        times = ", ".join(f"{by} {cell[by]:.2f} ms" for by in ("first", "both", "second"))
        print(f"{cell['distinct']:>9,} distinct: {times}, both / first {cell['both'] / cell['first']:.2f}")
    if parser.parse_args().write:
        write_json(OUT, {"n": N, "n_bits": N_BITS, "second_bits": SECOND_BITS, "k": K, "cells": cells})


if __name__ == "__main__":
    main()
