"""Few labels: MAP with 1, 2, 4 and 8 training images per class, DTSH beside its rivals on the same features.

    DATA=folder python -m benchmarks.few

Fixed features of EfficientNet-Lite0, 48 bits, defaults of all methods, protocols few-1 to few-8, three splits. All
images but the queries are searched, so most of the database was not used in training. Finished runs are kept in the
result; no setting was chosen by these figures.

Writes benchmarks/results/few.json and docs/figures/few.png.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import evaluate_codes, make_protocol, open_source
from hashlens.features.extractor import image_features
from hashlens.files import write_json
from hashlens.hashers.methods import hasher_class
from hashlens.progress import Progress
from hashlens.results.figures import INK, decorate, label_lines, save_figure, series_style
from hashlens.results.tables import method_name

OUT = Path(__file__).parent / "results" / "few.json"
FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "few.png"
DATA = ("birds100", "grocery81")
METHODS = ("dtsh", "classifier", "ksh", "sdh", "ccaitq", "itq")
PER_CLASS = (1, 2, 4, 8)
N_BITS, SPLITS = 48, 3


def measure(method: str, source: Any, X: np.ndarray, per_class: int, seed: int) -> float:
    protocol = make_protocol(source, f"few-{per_class}", seed)
    hasher: Any = hasher_class(method)(N_BITS)
    hasher.fit(X[protocol.train], source.labels[protocol.train])
    codes = [hasher.encode(X[rows]) for rows in (protocol.query, protocol.database)]
    return float(evaluate_codes(*codes, source.labels[protocol.query], source.labels[protocol.database])["map"])


def main() -> None:
    found: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for data in DATA:
        source = open_source(str(Path(os.environ["DATA"]) / data))
        X = np.asarray(image_features(source.images, "deep", progress=Progress()))
        for method in METHODS:
            for per_class in PER_CLASS:
                maps = found.setdefault(data, {}).setdefault(method, {}).setdefault(str(per_class), [])
                for seed in range(len(maps), SPLITS):
                    maps.append(round(measure(method, source, X, per_class, seed), 4))
                    write_json(OUT, found)
                print(data, method, per_class, maps, flush=True)
    draw(found)


def draw(found: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), facecolor="white", layout="constrained")
    for axes, data in zip(figure.subplots(1, 2), DATA, strict=True):
        decorate(axes, data, "training images per class", f"MAP, {N_BITS} bits", INK)
        ends = []
        for place, method in enumerate(METHODS):
            maps = np.array([found[data][method][str(n)] for n in PER_CLASS])
            style = series_style(place, method_name(method))
            ends.append(((PER_CLASS[-1], maps[-1].mean()), style))
            axes.errorbar(PER_CLASS, maps.mean(1), maps.std(1, ddof=1), capsize=2, **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(PER_CLASS, [str(n) for n in PER_CLASS])
        axes.set_ylim(bottom=0)
        label_lines(axes, ends)
    save_figure(figure, FIGURE)


if __name__ == "__main__":
    main()
