"""What clicks are worth: precision at 10 of the general model before and after `hashlens refine`.

    python -m benchmarks.refine DATA choose     settings, on voc2007 alone → results/tuning/refine.json
    python -m benchmarks.refine DATA measure    birds100 and grocery81 → results/refine.json

A simulated person searches with random images, looks at the first 20 results and marks one of the class of the query as
"more like this" and one of another class as "less like this", until there are enough triplets. Precision is that of all
images that were not such a query, each searched for among all others. DATA has the unpacked folders.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import Codes, HammingIndex, Labels, general, open_source
from hashlens.clicks.learning import MARGIN, MU, held_back, learn
from hashlens.clicks.refine import FEWEST
from hashlens.data.labels import relevant
from hashlens.machine import machine, versions

NEAREST, LOOKED_AT, TRIPLETS = 10, 20, 50
SEEDS = range(5)
RESULTS = Path(__file__).parent / "results"


class Folder:
    """Outputs of the general model for a folder, and who is like whom."""

    def __init__(self, place: Path):
        source = open_source(place)
        self.u = general().relaxed(source.images).astype(np.float32)
        self.labels: Labels = source.labels

    def nearest(self, codes: Codes, rows: np.ndarray, k: int) -> np.ndarray:
        """(len(rows), k): as a search gives them, without the query."""
        index = HammingIndex(codes.n_bits)
        index.add(codes)
        ids = index.search(codes[rows], k + 1)[1]
        others = ids != rows[:, None]
        others[others.all(1), -1] = False
        return ids[others].reshape(len(rows), k)

    def precision(self, u: np.ndarray, rows: np.ndarray) -> float:
        found = self.nearest(Codes.from_relaxed(u), rows, NEAREST)
        return float(np.mean([self.right(row, near).mean() for row, near in zip(rows, found, strict=True)]))

    def right(self, row: int, others: np.ndarray) -> np.ndarray:
        return np.asarray(relevant(self.labels[[row]], self.labels[others])[0])

    def clicks(self, n: int, seed: int) -> np.ndarray:
        rng, triplets = np.random.default_rng(seed), []
        rows, codes = rng.permutation(len(self.u)), Codes.from_relaxed(self.u)
        for row, near in zip(rows, self.nearest(codes, rows, LOOKED_AT), strict=True):
            right = self.right(row, near)
            if right.any() and not right.all():
                triplets.append((row, rng.choice(near[right]), rng.choice(near[~right])))
            if len(triplets) == n:
                break
        return np.array(triplets, np.int64)

    def trial(self, n: int, seed: int, **how: float) -> dict[str, Any]:
        """What refine would do with n clicks, and what it would have done unchecked."""
        triplets = self.clicks(n, seed)
        others = np.setdiff1d(np.arange(len(self.u)), triplets[:, 0])
        start = time.process_time()
        before, after = held_back(self.u, triplets, **how)
        A = learn(self.u, triplets, **how)
        seconds = time.process_time() - start
        better = bool(after.mean() > before.mean()) and len(triplets) >= FEWEST
        old, new = self.precision(self.u, others), self.precision(self.u.astype(np.float64) @ A, others)
        return {
            "seed": seed, "triplets": len(triplets), "before": round(old, 4), "learned": round(new, 4),
            "replaced": better, "gain": round(new - old if better else 0.0, 4), "gain_unchecked": round(new - old, 4),
            "held_back_bits": round(float((after - before).mean()), 3), "cpu_seconds": round(seconds, 2),
        }  # fmt: skip


def choose(data: Path) -> None:
    """On a third data set and other seeds; the mean gain without the check decides."""
    folder, tries = Folder(data / "voc2007" / "voc2007.csv"), []
    for margin, mu in product((1 / 16, 1 / 8, 1 / 4, 1 / 2), (0.1, 0.3, 1.0, 3.0, 10.0)):
        trials = [folder.trial(TRIPLETS, 100 + seed, margin=margin, mu=mu) for seed in SEEDS]
        gains = [trial["gain_unchecked"] for trial in trials]
        tries.append({"margin": margin, "mu": mu, "mean_gain": round(float(np.mean(gains)), 4), "gains": gains})
        print(tries[-1], flush=True)
    best = max(tries, key=lambda one: one["mean_gain"])
    chosen = {"margin": best["margin"], "mu": best["mu"]}
    _write(RESULTS / "tuning" / "refine.json", {"data": "voc2007", "tries": tries, "chosen": chosen})


def measure(data: Path) -> None:
    found: dict[str, Any] = {"nearest": NEAREST, "looked_at": LOOKED_AT, "margin": MARGIN, "mu": MU, "data": {}}
    for name in ("birds100", "grocery81"):
        folder = Folder(data / name)
        rows: dict[str, Any] = {}
        for n in (12, TRIPLETS, 200, 1_000):
            trials = [folder.trial(n, seed) for seed in SEEDS]
            gains = [trial["gain"] for trial in trials]
            rows[str(n)] = {
                "mean_gain": round(float(np.mean(gains)), 4), "worst_gain": min(gains), "trials": trials,
            }  # fmt: skip
            print(name, n, rows[str(n)]["mean_gain"], gains, [trial["gain_unchecked"] for trial in trials], flush=True)
        found["data"][name] = {"n": len(folder.u), "by_triplets": rows}
        _write(RESULTS / "refine.json", found)


def _write(path: Path, facts: dict[str, Any]) -> None:
    path.write_text(json.dumps(facts | {"versions": versions(), "machine": machine()}, indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("what", choices=["choose", "measure"])
    asked = parser.parse_args()
    {"choose": choose, "measure": measure}[asked.what](asked.data)


if __name__ == "__main__":
    main()
