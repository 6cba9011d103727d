"""Retrieval with fixed features before any hashing: MAP@5000 by cosine similarity on MIRFLICKR-25K.

    MIRFLICKR=path/to/mirflickr25k python -m benchmarks.feature_retrieval

Writes benchmarks/results/features/mirflickr.json, from which docs/results.md takes its table.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from hashlens.data import make_protocol, open_source
from hashlens.data.labels import relevant
from hashlens.features.extractor import image_features
from hashlens.machine import blocks, machine, versions
from hashlens.progress import Progress

KINDS = ("efficientnet-lite0@112", "resnet50@112")  # the images of our copy have 128 pixels
OUT = Path(__file__).parent / "results" / "features" / "mirflickr.json"


def average_precisions(similarity: np.ndarray, right: np.ndarray, topk: int) -> np.ndarray:
    """Average precision of each query, divided by the relevant items within the first `topk`, as in the paper."""
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :topk]
    hits = np.take_along_axis(right, order, 1)
    found = hits.cumsum(1)
    precision = found / np.arange(1, hits.shape[1] + 1)
    return (precision * hits).sum(1) / np.maximum(found[:, -1], 1)


def main() -> None:
    if "MIRFLICKR" not in os.environ:
        sys.exit("error: set the variable MIRFLICKR to the folder of MIRFLICKR-25K")
    source = open_source(os.environ["MIRFLICKR"])
    protocol = make_protocol(source)
    assert protocol.topk is not None
    result = {"protocol": protocol.name, "split_hash": protocol.fingerprint(), "topk": protocol.topk, "map": {}}
    for kind in KINDS:
        X = image_features(source.images, kind, progress=Progress())
        X = X / np.linalg.norm(X, axis=1, keepdims=True)
        database, labels = X[protocol.database], source.labels[protocol.database]
        parts = [
            average_precisions(X[rows] @ database.T, relevant(source.labels[rows], labels), protocol.topk)
            for rows in (protocol.query[part] for part in blocks(len(protocol.query), 100))
        ]
        result["map"][kind] = float(np.concatenate(parts).mean())
        print(f"{kind}: MAP@{protocol.topk} {result['map'][kind]:.4f}", flush=True)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(result | {"versions": versions(), "machine": machine()}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
