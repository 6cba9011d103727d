"""The value of the second code for seen and unseen classes: MAP by the first code, by both and by the second alone.

    DATA=folder python -m benchmarks.ties

DTSH on fixed features of EfficientNet-Lite0, 48 bits, with a second code of 128 bits, as `hashlens train` makes it, and
ITQ with 48 bits on the same features, fitted once on DTSH's training rows and once on the database. Protocols split
(cifar10-1 for CIFAR-10) and unseen, three splits each. Finished splits are kept in the result; no setting was chosen by
these figures.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import DTSH, ITQ, evaluate_codes, make_protocol, open_source
from hashlens.features.extractor import image_features
from hashlens.files import write_json
from hashlens.progress import Progress

OUT = Path(__file__).parent / "results" / "ties.json"
SEEN = {"birds100": "split", "grocery81": "split", "cifar10": "cifar10-1"}
N_BITS, SECOND_BITS, SPLITS = 48, 128, 3


def measure(source: Any, X: np.ndarray, name: str, seed: int) -> dict[str, float]:
    protocol = make_protocol(source, name, seed)
    rows = [protocol.train, protocol.query, protocol.database]
    train, query, database = (X[part] for part in rows)
    labels = [source.labels[part] for part in rows]
    dtsh = DTSH(N_BITS, second_bits=SECOND_BITS).fit(train, labels[0])
    found = evaluate_codes(dtsh.encode(query), dtsh.encode(database), *labels[1:])
    scores = {name: found[name] for name in ("map", "map_tie_aware", "map_both", "map_second")}
    for name, learned in (("map_itq", train), ("map_itq_database", database)):
        itq = ITQ(N_BITS).fit(learned)
        scores[name] = evaluate_codes(itq.encode(query), itq.encode(database), *labels[1:])["map"]
    return scores | {"n_query": len(query), "n_database": len(database)}


def main() -> None:
    result: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    result |= {"method": "dtsh", "n_bits": N_BITS, "second_bits": SECOND_BITS, "itq_bits": N_BITS}
    for data, seen in SEEN.items():
        source = open_source(data if data == "cifar10" else str(Path(os.environ["DATA"]) / data), progress=print)
        X = np.asarray(image_features(source.images, "deep", progress=Progress()))
        for classes, name in (("seen", seen), ("unseen", "unseen")):
            done = result.setdefault(data, {}).setdefault(classes, [])
            for seed in range(len(done), SPLITS):
                done.append(measure(source, X, name, seed))
                print(data, classes, seed, {key: round(float(value), 4) for key, value in done[-1].items()}, flush=True)
                write_json(OUT, result)


if __name__ == "__main__":
    main()
