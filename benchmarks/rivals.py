"""The settings tried for each method, scored on rows cut from training rows; queries are never opened.

    hashlens features photos/ --out photos.npy
    python -m benchmarks.rivals photos.npy [MORE.npy ...] [--methods ksh,sdh]

Of the training rows of each data set's split, a fifth are searched for among the rest, which are learned from; MAP with
48 bits and seed 0. Finished trials are kept in benchmarks/results/tuning/rivals.json; rerunning adds what is missing.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.data import Source, make_protocol, open_source
from hashlens.files import write_text
from hashlens.hashers.methods import hasher_class
from hashlens.results.metrics import evaluate_ranking
from hashlens.settings import apply

OUT = Path(__file__).parent / "results" / "tuning" / "rivals.json"
BITS = 48


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


TRIALS = {
    "ksh": [
        *grid(n_anchors=[1000], width=[1.0], ridge=[1e-6]),
        *grid(n_anchors=[3000], width=[1.0, 1 / 3, 1 / 6], ridge=[1e-6, 1e-4]),
        *grid(n_anchors=[3000], width=[1 / 3], ridge=[1e-3, 1e-2]),
    ],
    "sdh": [*grid(n_anchors=[1000], width=[1 / 3]), *grid(n_anchors=[3000], width=[1 / 3, 1 / 6, 1 / 12])],
    "ccaitq": grid(rho=[1e-4, 0.03, 0.1, 0.3]),
    "lfh": [
        *grid(n_columns=[BITS], balance=[False], beta=[30.0], lambda_=[100.0]),
        *grid(balance=[True], beta=[3.0], lambda_=[100.0, 300.0, 1000.0]),
    ],
    "dpsh": [
        *grid(memory_from=[0.5], balance=[False], centre=[False]),
        *grid(memory_from=[0.0], balance=[True], centre=[True]),
    ],
    "rsh": grid(lambda_=[1.0, 100.0]),
    "agh": grid(n_anchors=[300, 800]),
    "dgh": grid(n_anchors=[300, 800]),
    "mlh": grid(n_epochs=[10, 30]),
    "dh-supervised": [
        *grid(lambda1=[0.05], lambda2=[5e-7], epochs=[60]),
        *grid(lambda1=[1.0], lambda2=[1.0, 100.0], epochs=[60]),
    ],
    "splh": grid(restart=[None, 0.2, 0.4]),
    "fasth": grid(n_trees=[200, 500]),
    "cghash": [*grid(C=[30.0], n_triplets=[10]), *grid(C=[100.0], n_triplets=[30])],
}


def cut(source: Source) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from and to search, and rows to search for, all of them training rows of the source's split."""
    rows = np.random.default_rng(0).permutation(make_protocol(source).train)
    n = len(rows) // 5
    return rows[n:], rows[:n]


def score(source: Source, method: str, settings: dict[str, Any]) -> float:
    learned, searched_for = cut(source)
    X, labels = np.asarray(source.images), source.labels
    hasher = apply(hasher_class(method)(BITS), settings)
    hasher.fit(X[learned], labels[learned])
    codes = [hasher.encode(X[rows]) for rows in (searched_for, learned)]
    return evaluate_ranking(*codes, labels[searched_for], labels[learned]).mean_average_precision()


def main() -> None:
    parser = argparse.ArgumentParser(usage="python -m benchmarks.rivals FEATURES.npy ... [--methods ksh,sdh]")
    parser.add_argument("features", nargs="+", help="written by hashlens features")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(TRIALS))
    asked = parser.parse_args()
    found = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for name, method in product(asked.features, asked.methods):
        source = open_source(name)
        for settings in TRIALS[method]:
            words = (
                " ".join(
                    f"{key}={round(value, 7) if isinstance(value, float) else value}" for key, value in settings.items()
                )
                or "defaults"
            )
            maps = found.setdefault(method, {}).setdefault(words, {})
            if source.name not in maps:
                clock = time.perf_counter()
                maps[source.name] = round(score(source, method, settings), 4)
                print(
                    f"{source.name} {method} {words}: {maps[source.name]} {time.perf_counter() - clock:.0f} s",
                    flush=True,
                )
                write_text(OUT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
