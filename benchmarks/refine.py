"""What clicks are worth: precision at 10 of the general model before and after `hashlens refine`.

    python -m benchmarks.refine DATA choose     settings, on voc2007 alone → results/tuning/refine.json
    python -m benchmarks.refine DATA measure    birds100 and grocery81 → results/refine.json

A simulated person searches with random images, looks at the first 20 results and marks one with the query's class as
"more like this" and one of another class as "less like this", until there are enough triplets. Precision is measured
with all images that were no such query, each searched for among all others. DATA has the unpacked folders.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import Codes, HammingIndex, general, open_source
from hashlens.clicks.learning import MARGIN, MU, geometry, held_back, is_better, learn
from hashlens.data.labels import relevant
from hashlens.machine import machine, versions

NEAREST, LOOKED_AT, TRIPLETS = 10, 20, 50
SEEDS = range(5)
RESULTS = Path(__file__).parent / "results"


class Folder:
    """Outputs of the general model for a folder, and which images are alike."""

    def __init__(self, place: Path):
        source = open_source(place)
        self.u = general().relaxed(source.images).astype(np.float32)
        self.alike = np.asarray(relevant(source.labels, source.labels))  # (n, n) bool
        self.every = np.arange(len(self.u))
        self.before = self.precision(self.u)
        self.geometry = geometry(self.u)

    def nearest(self, u: np.ndarray, k: int) -> np.ndarray:
        """(n, k): the nearest images in the order of a search, without the query."""
        codes = Codes.from_relaxed(u)
        index = HammingIndex(codes.n_bits)
        index.add(codes)
        ids = index.search(codes, k + 1)[1]
        others = ids != self.every[:, None]
        others[others.all(1), -1] = False
        return ids[others].reshape(-1, k)

    def precision(self, u: np.ndarray) -> np.ndarray:
        """Of each image as the query, (n,)."""
        return np.take_along_axis(self.alike, self.nearest(u, NEAREST), 1).mean(1)

    @cached_property
    def looked_at(self) -> np.ndarray:
        return self.nearest(self.u, LOOKED_AT)

    def clicks(self, n: int, seed: int) -> np.ndarray:
        rng, triplets = np.random.default_rng(seed), []
        for row in rng.permutation(self.every):
            near = self.looked_at[row]
            right = self.alike[row, near]
            if right.any() and not right.all():
                triplets.append((row, rng.choice(near[right]), rng.choice(near[~right])))
            if len(triplets) == n:
                break
        return np.array(triplets, np.int64)

    def gain(self, triplets: np.ndarray, **how: float) -> tuple[float, float]:
        """Precision on images that were never a query of a click, before and after learning from all clicks."""
        others = np.setdiff1d(self.every, triplets[:, 0])
        after = self.precision(self.u.astype(np.float64) @ learn(self.u, triplets, self.geometry, **how))
        return float(self.before[others].mean()), float(after[others].mean())

    def trial(self, n: int, seed: int) -> dict[str, Any]:
        """The result of refine with n clicks, with and without its check."""
        triplets = self.clicks(n, seed)
        start = time.process_time()
        before, after = held_back(self.u, triplets, self.geometry)
        seconds = time.process_time() - start
        replaced = is_better(triplets, before, after)
        old, new = self.gain(triplets)
        return {
            "seed": seed, "triplets": len(triplets), "before": round(old, 4), "learned": round(new, 4),
            "gain_unchecked": round(new - old, 4), "replaced": replaced, "gain": round(replaced * (new - old), 4),
            "held_back_bits": round(float((after - before).mean()), 3), "check_cpu_seconds": round(seconds, 2),
        }  # fmt: skip


@cache
def opened(place: Path) -> Folder:
    return Folder(place)


def choose(data: Path) -> None:
    """Choose settings on a third data set and other seeds, by the mean gain without the check."""
    folder, tries = Folder(data / "voc2007" / "voc2007.csv"), []
    for margin, mu in product((1 / 16, 1 / 8, 1 / 4, 1 / 2), (0.1, 0.3, 1.0, 3.0)):
        pairs = [folder.gain(folder.clicks(TRIPLETS, 100 + seed), margin=margin, mu=mu) for seed in SEEDS]
        gains = [round(after - before, 4) for before, after in pairs]
        tries.append({"margin": margin, "mu": mu, "mean_gain": round(float(np.mean(gains)), 4), "gains": gains})
        print(tries[-1], flush=True)
    best = max(tries, key=lambda one: (one["mean_gain"], one["mu"]))  # of equal ones, the one that changes less
    chosen = {"margin": best["margin"], "mu": best["mu"]}
    _write(RESULTS / "tuning" / "refine.json", {"data": "voc2007", "tries": tries, "chosen": chosen})


def measure(data: Path) -> None:
    """Measure; earlier results with this model and these settings are kept."""
    model = general().model["fingerprint"]
    found: dict[str, Any] = {"model": model, "nearest": NEAREST, "looked_at": LOOKED_AT, "margin": MARGIN, "mu": MU}
    before = json.loads((RESULTS / "refine.json").read_text("utf-8"))
    kept = before["data"] if all(before.get(what) == value for what, value in found.items()) else {}
    found["data"] = kept
    for n, name in product((TRIPLETS, 20, 200, 1_000), ("birds100", "grocery81")):
        rows: dict[str, Any] = found["data"].setdefault(name, {"by_triplets": {}})["by_triplets"]
        if str(n) not in rows:
            folder = opened(data / name)
            trials = [folder.trial(n, seed) for seed in SEEDS]
            gains = [trial["gain"] for trial in trials]
            rows[str(n)] = {
                "mean_gain": round(float(np.mean(gains)), 4), "worst_gain": min(gains), "trials": trials,
            }  # fmt: skip
            print(name, n, rows[str(n)]["mean_gain"], gains, [trial["gain_unchecked"] for trial in trials], flush=True)
            sorted_ = {size: rows[size] for size in sorted(rows, key=int)}
            found["data"][name] = {"n": len(folder.u), "by_triplets": sorted_}
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
