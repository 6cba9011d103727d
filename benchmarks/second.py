"""What a second code costs: exact search by both codes against the first alone, in turns in one process.

    python -m benchmarks.second [--write]

Codes of 48 bits with a second code of 128: `distinct` first codes are drawn at random and repeated, so that the k-th
distance ties with a share of all images, as it does for codes that were trained on so many classes.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import Codes, HammingIndex
from hashlens.files import write_json

OUT = Path(__file__).parent / "results" / "speed" / "second.json"
N, N_BITS, SECOND_BITS, K, ROUNDS = 1_000_000, 48, 128, 10, 25


def made(n: int, distinct: int, seed: int) -> Codes:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(0).integers(0, 256, (distinct, N_BITS // 8), np.uint8)
    second = Codes(rng.integers(0, 256, (n, SECOND_BITS // 8), np.uint8), SECOND_BITS)
    return Codes(centres[rng.integers(0, distinct, n)], N_BITS, second)


def measure(distinct: int) -> dict[str, Any]:
    index = HammingIndex(N_BITS, second_bits=SECOND_BITS)
    index.add(made(N, distinct, 1))
    queries = made(ROUNDS, distinct, 2)
    best: dict[str, list[float]] = {"first": [], "both": [], "second": []}
    for row in range(ROUNDS):
        for by, times in best.items():
            start = time.thread_time()
            index.search(queries[row], K, by=by)
            times.append(time.thread_time() - start)
    return {by: float(np.median(times)) * 1000 for by, times in best.items()} | {"distinct": distinct}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {OUT.name}")
    cells = [measure(distinct) for distinct in (10, 1_000, 100_000, N)]
    for cell in cells:
        times = ", ".join(f"{by} {cell[by]:.2f} ms" for by in ("first", "both", "second"))
        print(f"{cell['distinct']:>9,} distinct: {times}, both / first {cell['both'] / cell['first']:.2f}")
    if parser.parse_args().write:
        write_json(OUT, {"n": N, "n_bits": N_BITS, "second_bits": SECOND_BITS, "k": K, "cells": cells})


if __name__ == "__main__":
    main()
