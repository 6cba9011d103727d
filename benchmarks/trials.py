"""The settings tried for each method, scored on rows held out of the training rows; queries are never opened.

    hashlens features photos/ --out photos.npy
    python -m benchmarks.trials photos.npy [MORE.npy ...] [--methods ksh,sdh]
    python -m benchmarks.trials photos/ cifar10 --methods dtsh [--only vit-tiny]
    DATA=folder python -m benchmarks.trials combinations combinations-images --methods dtsh

`combinations` are photos of MIRFLICKR-25K in folder/mirflickr25k, on fixed features or as images: a class is one of the
100 most frequent combinations of labels, with 35 photos. No table reports such classes.

Of the training rows of each data set's split, a fifth are queries against the rest, which are trained on: MAP with 48
bits, or n_bits if a trial sets it, and seed 0. Networks and DTSH have a second number: the MAP within that fifth, none
of which was trained on. Finished trials are kept in benchmarks/results/tuning/trials.json; rerunning adds what is
missing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.data import Source, make_protocol, open_source
from hashlens.data.folds import TrainingRows
from hashlens.data.labels import Labels
from hashlens.features.extractor import image_features, is_features
from hashlens.files import write_text
from hashlens.hashers.methods import hasher_class
from hashlens.results.metrics import evaluate_codes
from hashlens.settings import apply

OUT = Path(__file__).parent / "results" / "tuning" / "trials.json"
BITS = 48


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


TRIALS = {
    "dtsh": [
        *grid(n_bits=[16, 48], sampling=["class-codes"], long_bits=[0, 64, 256, 512]),
        *grid(n_bits=[48], sampling=["in-batch"]),
        *grid(n_bits=[32], sampling=["in-batch"], epochs=[6, 11]),
        *grid(n_bits=[32], backbone=["vit-tiny"], epochs=[6], image_size=[160], frozen_blocks=[6, 3], lr=[2e-4]),
        *grid(n_bits=[32], backbone=["vit-tiny"], epochs=[6], image_size=[160], frozen_blocks=[9], lr=[3e-4]),
        *grid(n_bits=[32], backbone=["vit-tiny"], epochs=[6], image_size=[128], frozen_blocks=[6], lr=[3e-4]),
    ],
    "classifier": [
        # the same blocks as DTSH, for as long
        base | {"lr": lr, "head_lr": head_lr}
        for base in grid(frozen_blocks=[16], images=[45_000], weight_decay=[0.1], adapt=[0.0], mixup=[0.2])
        for lr, head_lr in ((1e-3, 2e-3), (2e-3, 5e-3))
    ],
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


def opened(name: str) -> Source:
    if not name.startswith("combinations"):
        return open_source(name)
    photos = open_source(Path(os.environ["DATA"]) / "mirflickr25k")
    names = [" ".join(labels) for labels in photos.labels.sets()]
    frequent = {combination for combination, _ in Counter(filter(None, names)).most_common(100)}
    rng, left = np.random.default_rng(0), dict.fromkeys(frequent, 35)
    rows = []
    for row in rng.permutation(len(names)):
        if left.get(names[row], 0):
            left[names[row]] -= 1
            rows.append(row)
    images: Any = photos.images[rows]
    if name == "combinations":
        images = np.asarray(image_features(images, "deep"))
    return Source(name, images, Labels.of([names[row] for row in rows]))


def cut(source: Source) -> tuple[TrainingRows, np.ndarray, np.ndarray]:
    """The training rows of the source's split; of these, rows to train on and search, and rows as queries."""
    rows = TrainingRows.of(source, make_protocol(source))
    order = np.random.default_rng(0).permutation(len(rows.labels))
    n = len(order) // 5
    return rows, order[n:], order[:n]


def score(source: Source, method: str, settings: dict[str, Any]) -> float | list[float]:
    rows, learned, searched_for = cut(source)
    others = {key: value for key, value in settings.items() if key != "n_bits"}
    hasher: Any = apply(hasher_class(method)(settings.get("n_bits", BITS)), others)
    parts = [rows.images[which] for which in (learned, searched_for)]
    hasher.fit(parts[0], rows.labels[learned])
    database, query = (hasher.encode(part, shared=True) for part in parts)
    labels = rows.labels[searched_for], rows.labels[learned]
    found = evaluate_codes(query, database, *labels, learned=np.ones(len(learned), bool))
    scores = [round(found["map"], 4), round(found["map_unlearned"], 4)]
    return scores[0] if is_features(rows.images) and method != "dtsh" else scores


def words(settings: dict[str, Any]) -> str:
    short = {key: round(value, 7) if isinstance(value, float) else value for key, value in settings.items()}
    return " ".join(f"{key}={value}" for key, value in short.items()) or "defaults"


def main() -> None:
    parser = argparse.ArgumentParser(usage="python -m benchmarks.trials SOURCE ... [--methods ksh,sdh]")
    parser.add_argument(
        "sources", nargs="+", help="images with labels, features that hashlens features wrote, or combinations"
    )
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(TRIALS))
    parser.add_argument("--only", default="", help="only trials with this in their settings")
    asked = parser.parse_args()
    found = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for name, method in product(asked.sources, asked.methods):
        source = opened(name)
        for settings in TRIALS[method]:
            if asked.only not in words(settings):
                continue
            maps = found.setdefault(method, {}).setdefault(words(settings), {})
            if source.name not in maps:
                clock = time.process_time()
                maps[source.name] = score(source, method, settings)
                spent = f"{time.process_time() - clock:.0f} s of one core"
                print(f"{source.name} {method} {words(settings)}: {maps[source.name]} {spent}", flush=True)
                write_text(OUT, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
