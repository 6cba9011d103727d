"""`hashlens tune` on queries that it never sees: the settings it finds, their cost, and the gain.

    DATA=folder python -m benchmarks.tuned [DATA-METHOD ...]

48 bits on fixed features of EfficientNet-Lite0, protocol split: the method with its defaults and with the settings that
`hashlens.tune` chose in TRIES tries on three folds of the training rows. Both are then trained on all training rows and
scored on the queries. Finished splits are kept in the result.
"""

import json
import os
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import Source, evaluate_codes, make_protocol, open_source, tune
from hashlens.features.extractor import image_features
from hashlens.files import write_json
from hashlens.hashers.methods import hasher_class
from hashlens.progress import Progress

OUT = Path(__file__).parent / "results" / "tuned.json"
PLACES = {"birds100": "birds100", "grocery81": "grocery81", "voc2007": "voc2007/voc2007.csv"}
# data and method: splits
RUNS = {
    "birds100-sdh": 3,
    "voc2007-sdh": 3,
    "birds100-ccaitq": 3,
    "voc2007-ccaitq": 3,
    "birds100-lfh": 3,
    "voc2007-dtsh": 1,
}
N_BITS, TRIES = 48, 12


def measure(source: Source, method: str, seed: int) -> dict[str, Any]:
    protocol = make_protocol(source, "split", seed)
    parts = [protocol.train, protocol.query, protocol.database]
    train, query, database = (np.asarray(source.images)[part] for part in parts)
    labels = [source.labels[part] for part in parts]
    default: Any = hasher_class(method)(N_BITS)
    clock = time.process_time()
    default.fit(train, labels[0])
    cost = time.process_time() - clock
    found = tune(source, hasher_class(method)(N_BITS), tries=TRIES, seed=seed, protocol=protocol, progress=Progress())
    spent = time.process_time() - clock - cost
    learned = np.isin(protocol.database, protocol.train)
    result: dict[str, Any] = {"settings": found.settings, "seconds": round(spent, 1), "default_seconds": round(cost, 1)}
    for name, hasher in (("default", default), ("tuned", found.hasher)):
        scores = evaluate_codes(hasher.encode(query), hasher.encode(database), *labels[1:], learned=learned)
        result[name] = {key: round(float(scores[key]), 4) for key in ("map", "map_unlearned")}
    folds = found.summary()
    return result | {"folds": {"default": folds["default_score"], "tuned": folds["score"]}}


def main() -> None:
    names = sys.argv[1:] or list(RUNS)
    if unknown := [name for name in names if name not in RUNS]:
        sys.exit(f"error: there is no run {unknown[0]}; choose from {', '.join(RUNS)}")
    result: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    sources: dict[str, Source] = {}
    for seed, name in product(range(max(RUNS.values())), names):
        data, method = name.split("-")
        done = result.setdefault(name, [])
        if len(done) != seed or seed >= RUNS[name]:
            continue
        if data not in sources:
            images = open_source(str(Path(os.environ["DATA"]) / PLACES[data]))
            X = np.asarray(image_features(images.images, "deep", progress=Progress()))
            sources[data] = Source(data, X, images.labels)
        done.append(measure(sources[data], method, seed))
        print(name, seed, json.dumps(done[-1]), flush=True)
        write_json(OUT, result)


if __name__ == "__main__":
    main()
