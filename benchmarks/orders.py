"""Orders of images that have two codes, compared on classes cut from training classes; queries are never opened.

    DATA=folder python -m benchmarks.orders [birds100 grocery81 cifar10]

Of the training classes of the protocol unseen, three tenths are held out, and a fifth of their images are queries
against the rest. DTSH with 48 bits and a second code of 128 learns from four fifths of the images of the other classes;
the last fifth are queries against these: the seen classes. Fixed features of EfficientNet-Lite0, three draws. Orders:

first       the distance d1 of the first code
both        d1, ties by the distance d2 of the second code: what `search --by both` does
sum W       d1 + W d2
second      d2

and 48-bit ITQ on the same training rows. MAP, ties in database order. Finished draws are kept in the result.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import DTSH, ITQ, Codes, make_protocol, open_source
from hashlens.codes.hamming import distances
from hashlens.features.extractor import image_features
from hashlens.files import write_json
from hashlens.progress import Progress

OUT = Path(__file__).parent / "results" / "tuning" / "orders.json"
DATA = ("cifar10", "grocery81", "birds100")
WEIGHTS = (0.05, 0.1, 0.2, 0.3, 0.5)
N_BITS, SECOND_BITS, DRAWS = 48, 128, 3


def average_precision(order: np.ndarray, relevant: np.ndarray) -> float:
    """MAP of queries whose items are sorted by `order` (q, n); ties in database order."""
    hits = np.take_along_axis(relevant, np.argsort(order, axis=1, kind="stable"), 1)
    precision = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    return float(((precision * hits).sum(1) / hits.sum(1)).mean())


def measure(source: Any, X: np.ndarray, draw: int) -> dict[str, dict[str, float]]:
    rows = make_protocol(source, "unseen", draw).train
    rng = np.random.default_rng(1000 + draw)
    classes = rng.permutation(np.unique(source.labels.values[rows]))
    is_cut = np.isin(source.labels.values[rows], classes[: max(2, round(0.3 * len(classes)))])
    cut, others = (rng.permutation(rows[which]) for which in (is_cut, ~is_cut))
    (asked, searched), (held, learned) = (np.split(part, [len(part) // 5]) for part in (cut, others))
    dtsh = DTSH(N_BITS, second_bits=SECOND_BITS).fit(X[learned], source.labels[learned])
    itq = ITQ(N_BITS).fit(X[learned])
    found: dict[str, dict[str, float]] = {}
    for kind, parts in {"unseen": (asked, searched), "seen": (held, learned)}.items():
        query, database = (dtsh.encode(X[part]) for part in parts)
        assert query.second is not None and database.second is not None
        d1, d2 = between(query.first, database.first), between(query.second, database.second)
        orders = {"first": d1, "both": d1 * (SECOND_BITS + 1) + d2}
        orders |= {f"sum {weight}": d1 + weight * d2 for weight in WEIGHTS}
        orders |= {"second": d2, "itq": between(*(itq.encode(X[part]) for part in parts))}
        queries, items = (source.labels.values[part] for part in parts)
        relevant = queries[:, None] == items
        found[kind] = {name: round(average_precision(order, relevant), 4) for name, order in orders.items()}
    return found


def between(query: Codes, database: Codes) -> np.ndarray:
    return distances(query, database).astype(np.int64)


def main() -> None:
    result: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for data in sys.argv[1:] or DATA:
        source = open_source(data if data == "cifar10" else str(Path(os.environ["DATA"]) / data), progress=print)
        rows = np.unique(np.concatenate([make_protocol(source, "unseen", draw).train for draw in range(DRAWS)]))
        features = np.asarray(image_features(source.images[rows], "deep", progress=Progress()))
        X = np.zeros((len(source.labels), features.shape[1]), np.float32)
        X[rows] = features
        done = result.setdefault(data, [])
        for draw in range(len(done), DRAWS):
            done.append(measure(source, X, draw))
            print(data, draw, json.dumps(done[-1]), flush=True)
            write_json(OUT, result)


if __name__ == "__main__":
    main()
