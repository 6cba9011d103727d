"""NUS-WIDE at its full size without its images: the paper's split of the real ground truth, and MAP of random codes.

    python -m benchmarks.nuswide FOLDER [--write]

FOLDER contains ConceptsList, Groundtruth and ImageList as published. With --write the figures also go to
benchmarks/results/speed/nuswide.json, for a table in the docs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from hashlens.codes import Codes
from hashlens.data.kinds.nuswide import read_ground_truth
from hashlens.data.protocols import PROTOCOLS
from hashlens.errors import HashlensError
from hashlens.machine import n_threads
from hashlens.results.metrics import evaluate_ranking

FILE = Path(__file__).parent / "results" / "speed" / "nuswide.json"
N_BITS = 48


def main(folder: str, write: bool) -> None:
    known, _ = read_ground_truth(folder)
    start = time.perf_counter()
    protocol = PROTOCOLS["nuswide-1"](known, 0)
    figures = {
        "images": int(known.values.any(axis=1).sum()),
        "queries": len(protocol.query),
        "searched": len(protocol.database),
        "training": len(protocol.train),
        "split_hash": protocol.fingerprint(),
        "split_seconds": round(time.perf_counter() - start, 2),
        "n_bits": N_BITS,
        "threads": n_threads(),
    }
    labels = [known[protocol.query], known[protocol.database]]
    rng = np.random.default_rng(0)
    query, database = (Codes.from_relaxed(rng.standard_normal((len(y), N_BITS))) for y in labels)
    evaluate_ranking(query[:2], database, labels[0][:2], labels[1], topk=5_000)  # compiles
    for topk in (5_000, 50_000):
        start = time.perf_counter()
        value = evaluate_ranking(query, database, *labels, topk=topk).mean_average_precision()
        figures[f"map_at_{topk}"] = round(value, 4)
        figures[f"map_at_{topk}_seconds"] = round(time.perf_counter() - start, 2)
    text = json.dumps(figures, indent=1)
    print(text)
    if write:
        FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    folders = [word for word in sys.argv[1:] if word != "--write"]
    if len(folders) != 1:
        sys.exit("error: give the folder of NUS-WIDE's ground truth: python -m benchmarks.nuswide FOLDER")
    try:
        main(folders[0], "--write" in sys.argv)
    except HashlensError as error:
        sys.exit(f"error: {error.message}")
