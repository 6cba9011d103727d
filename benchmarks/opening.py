"""The cost of checksums when opening a large index: the same index with and without verification, alternately.

python -m benchmarks.opening [--n 20000000] [--out benchmarks/results/opening.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from hashlens.checksums import CheckedFile
from hashlens.codes import Codes
from hashlens.index.folder import IndexFolder

ROUNDS = 7
MODEL = {"fingerprint": "0" * 64, "name": "opening"}


def seconds(path: Path) -> float:
    start = time.perf_counter()
    IndexFolder.open(path)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_000_000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "index"
        packed = np.random.default_rng(0).integers(0, 256, (given.n, 6), np.uint8)
        paths = pa.array(np.arange(given.n)).cast(pa.string())
        IndexFolder.create(path, 48, MODEL).add(Codes(packed, 48), pa.table({"path": paths}))
        del packed, paths
        times: dict[str, list[float]] = {"checked": [], "unchecked": []}
        for _ in range(ROUNDS):
            times["checked"].append(seconds(path))
            with patch.object(CheckedFile, "whole", lambda file: file.content):
                times["unchecked"].append(seconds(path))
        query = Codes(np.zeros((1, 6), np.uint8), 48)
        index = IndexFolder.open(path)
        index.search(query, 10)
        start = time.perf_counter()
        index.search(query, 10)
        search = time.perf_counter() - start
    best = {name: min(some) for name, some in times.items()}
    result = {
        "n": given.n,
        "n_bits": 48,
        "seconds": {name: [round(one, 4) for one in some] for name, some in times.items()},
        "more seconds to open": round(best["checked"] - best["unchecked"], 4),
        "seconds of a search": round(search, 4),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if given.out:
        given.out.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
