"""Ways to preserve the geometry of unseen classes, compared on classes held out of the training classes.

    DATA=folder python -m benchmarks.spare [cifar10 birds100-10 ...]

As in orders.py: of the training classes of the protocol unseen, three tenths are held out, and a fifth of their images,
at most 300, are queries against the rest. DTSH learns from four fifths of the images of the other classes; at most 300
of the last fifth are queries against these: the seen classes. birds100-10 has 10 random classes of birds100. Draws
cycle through the three splits, each with other held-out classes; no query of the protocol is opened. Finished draws are
kept.

Fixed features of EfficientNet-Lite0 and 48 bits. A second code of 128 bits orders equal distances, but not for itq:

itq      ITQ of 48 bits, learned from the same rows
dtsh     the defaults
spare F  the last F of the 48 bits are ITQ of the features, the others are learned
mixed W  the outputs of the hash layer plus W times those of ITQ, both divided by their deviation
sum W    the defaults, ordered by the sum of the first distance and W times the second
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.orders import N_BITS, SECOND_BITS, average_precision
from hashlens import DTSH, ITQ, make_protocol, open_source
from hashlens.features.extractor import image_features
from hashlens.files import write_json
from hashlens.progress import Progress

OUT = Path(__file__).parent / "results" / "tuning" / "spare.json"
DRAWS = {"cifar10": 15, "birds100-10": 3, "grocery81-10": 3, "birds100-20": 3, "grocery81-20": 3}
SPLITS, MOST = 3, 300
SPARE, MIXED, SUMS = (4, 8, 12), (0.2, 0.3, 0.4), (0.1, 0.2)


def distances(query: np.ndarray, database: np.ndarray) -> np.ndarray:
    """Hamming distances between the signs of real values, (q, n)."""
    query, database = (np.where(values > 0, 1, -1).astype(np.float32) for values in (query, database))
    return (query.shape[1] - query @ database.T).astype(np.int64) // 2


def measure(source: Any, X: np.ndarray, n_classes: int, draw: int) -> dict[str, dict[str, float]]:
    labels, values = source.labels, source.labels.values
    rows = make_protocol(source, "unseen", draw % SPLITS).train
    rng = np.random.default_rng(1000 + draw)
    classes = rng.permutation(np.unique(values[rows]))[: n_classes or None]
    n_cut = max(2, round(0.3 * len(classes)))
    parts = (rng.permutation(rows[np.isin(values[rows], some)]) for some in (classes[:n_cut], classes[n_cut:]))
    (asked, searched), (held, learned) = (np.split(part, [len(part) // 5]) for part in parts)

    def itq(n_bits: int) -> ITQ:
        return ITQ(n_bits).fit(X[learned])

    def dtsh(n_bits: int) -> DTSH:
        return DTSH(n_bits).fit(X[learned], labels[learned])

    whole, same, second = dtsh(N_BITS), itq(N_BITS), itq(SECOND_BITS)
    deviations = [hasher.project(X[learned]).std() for hasher in (whole, same)]
    shared = {n_bits: (dtsh(N_BITS - n_bits), itq(n_bits)) for n_bits in SPARE}
    found: dict[str, dict[str, float]] = {}
    for kind, (query, database) in {"unseen": (asked[:MOST], searched), "seen": (held[:MOST], learned)}.items():
        relevant = values[query][:, None] == values[database]

        def outputs(*hashers: Any, pair: Any = (query, database)) -> Any:
            return [np.concatenate([hasher.project(X[part]) for hasher in hashers], 1) for part in pair]

        u, v = outputs(whole), outputs(same)
        d1, d2 = distances(*u), distances(*outputs(second))
        firsts = {"dtsh": d1} | {f"spare {n_bits}": distances(*outputs(*both)) for n_bits, both in shared.items()}
        for weight in MIXED:
            mixed = (a / deviations[0] + weight * b / deviations[1] for a, b in zip(u, v, strict=True))
            firsts[f"mixed {weight}"] = distances(*mixed)
        orders = {"itq": distances(*v)} | {name: first * (SECOND_BITS + 1) + d2 for name, first in firsts.items()}
        orders |= {f"sum {weight}": d1 + weight * d2 for weight in SUMS}
        found[kind] = {name: round(average_precision(order, relevant), 4) for name, order in orders.items()}
    return found


def main() -> None:
    result: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for name in sys.argv[1:] or DRAWS:
        data, _, n_classes = name.partition("-")
        source = open_source(data if data == "cifar10" else str(Path(os.environ["DATA"]) / data), progress=print)
        rows = np.unique(np.concatenate([make_protocol(source, "unseen", split).train for split in range(SPLITS)]))
        features = np.asarray(image_features(source.images[rows], "deep", progress=Progress()))
        X = np.zeros((len(source.labels), features.shape[1]), np.float32)
        X[rows] = features
        done = result.setdefault(name, [])
        for draw in range(len(done), DRAWS[name]):
            done.append(measure(source, X, int(n_classes or 0), draw))
            print(name, draw, json.dumps(done[-1]["unseen"]), flush=True)
            write_json(OUT, result)


if __name__ == "__main__":
    main()
