"""The paper's claim about the margin alpha, in its own regime and in ours: MAP and mean gradient against epochs.

    python -m benchmarks.margin

CIFAR-10, setting 1 with 10,000 of its database images, 32 bits, hash layer on fixed features of EfficientNet-Lite0,
alpha from 0 to half the bits. The paper's regime: its sampling, plain SGD with its rates, 100 epochs; for two margins
also with the last two blocks of the network trained. Ours: all triplets of a batch, AdamW with one cycle. The mean
gradient is the mean norm of the gradient of an image's own loss with respect to its outputs.

Writes benchmarks/results/margin.json after each run, and docs/figures/margin.png.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hashlens import DTSH
from hashlens.codes import Codes
from hashlens.data import make_protocol, open_source
from hashlens.features.extractor import Extractor, image_features
from hashlens.files import write_text
from hashlens.hashers.deep.training import Training
from hashlens.progress import Progress
from hashlens.results.figures import INK, decorate, save_figure, series_style
from hashlens.results.metrics import evaluate_codes

OUT = Path(__file__).parent / "results" / "margin.json"
FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "margin.png"
BITS = 32
ALPHAS = {"paper": (0.0, 4.0, 8.0, 12.0, 16.0), "network": (0.0, 16.0), "ours": (0.0, 4.0, 8.0, 12.0, 16.0)}
NAMES = {
    "paper": "published sampling, SGD",
    "network": "published sampling, SGD, two blocks trained",
    "ours": "in-batch triplets, AdamW",
}
EVERY = {"paper": 5, "network": 10, "ours": 1}  # epochs from one MAP to the next


def hasher_of(regime: str, alpha: float, n_train: int) -> DTSH:
    if regime == "paper":
        return DTSH.published(BITS, n_train, alpha=alpha)
    if regime == "network":
        return DTSH.published(BITS, n_train, alpha=alpha, backbone="efficientnet-lite0", frozen_blocks=16)
    return DTSH(BITS, alpha=alpha, sampling="in-batch", training=Training(epochs=20))


def relaxed(hasher: DTSH, part: Any) -> np.ndarray:
    """Outputs for features, or for images with the current network."""
    if isinstance(part, np.ndarray):
        return hasher._project(part)
    cut = 1 + hasher.frozen_blocks_  # the preprocessing comes first
    stem = Extractor.of_network(hasher.network_[:cut], hasher.image_size_)
    fixed = stem.cached(part, dtype=np.float16, progress=Progress())
    with torch.inference_mode():
        parts = [hasher.network_[cut:](torch.from_numpy(fixed[i : i + 256]).float()) for i in range(0, len(fixed), 256)]
    return torch.cat(parts).numpy()


class Watch:
    """A `stop` callback, called after each step, that measures MAP once per epoch."""

    def __init__(self, hasher: Any, score: Any, steps: int, every: int):
        self.hasher, self.score, self.steps, self.every = hasher, score, steps, every
        self.asked = 0
        self.maps: list[tuple[int, float]] = []

    def __call__(self) -> bool:
        self.asked += 1
        epoch, rest = divmod(self.asked, self.steps + 1)  # called once per step and once per epoch
        if rest == 0 and (epoch == 1 or epoch % self.every == 0):
            self.hasher.network_.eval()
            self.maps.append((epoch, round(self.score(), 4)))
        return False


def main() -> None:
    source = open_source("cifar10", progress=print)
    protocol = make_protocol(source, "cifar10-1")
    parts = [protocol.train, protocol.query, np.random.default_rng(0).choice(protocol.database, 10_000, replace=False)]
    images = [source.images[rows].alone() for rows in parts]
    features = [image_features(part, "deep", progress=Progress()) for part in images]
    labels = [source.labels[rows] for rows in parts]
    found: dict[str, Any] = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for regime in NAMES:
        train, *searched = images if regime == "network" else features
        for alpha in ALPHAS[regime]:
            if f"{alpha:g}" in found.setdefault(regime, {}):
                continue
            hasher = hasher_of(regime, alpha, len(train))

            def score(hasher: DTSH = hasher, searched: Any = searched) -> float:
                codes = [Codes.from_relaxed(relaxed(hasher, part)) for part in searched]
                return float(evaluate_codes(*codes, *labels[1:])["map"])

            size, whole = hasher.training.batch_size, hasher.training.last_batch == "keep"
            steps = -(-len(train) // size) if whole else len(train) // size
            watch = Watch(hasher, score, steps, every=EVERY[regime])
            hasher.fit(train, labels[0], stop=watch)
            found[regime][f"{alpha:g}"] = {
                "map": sorted({**dict(watch.maps), len(hasher.history_): round(score(), 4)}.items()),
                "gradient": [(int(row["epoch"]), float(f"{row['gradient']:.4g}")) for row in hasher.history_],
            }
            print(regime, alpha, found[regime][f"{alpha:g}"]["map"][-1], flush=True)
            write_text(OUT, json.dumps(found, indent=1) + "\n")
    draw(found)


def draw(found: dict[str, Any]) -> None:
    from matplotlib.figure import Figure

    shown = {regime: title for regime, title in NAMES.items() if len(found[regime]) == len(ALPHAS[regime])}
    figure = Figure(figsize=(9, 3 * len(shown)), facecolor="white", layout="constrained")
    panels = figure.subplots(len(shown), 2)
    for axes, (regime, title) in zip(panels, shown.items(), strict=True):
        for one, (column, measure) in zip(axes, (("map", "MAP"), ("gradient", "mean gradient")), strict=True):
            decorate(one, title, "epoch", measure, INK)
            for alpha, lines in found[regime].items():
                place = ALPHAS["paper"].index(float(alpha))  # one colour per margin
                x, y = zip(*lines[column], strict=True)
                one.plot(x, y, **series_style(place, f"alpha {alpha}") | {"marker": ""})
            one.set_ylim(bottom=0)
            one.xaxis.get_major_locator().set_params(integer=True)
    panels[0][0].legend(frameon=False, fontsize=8)
    save_figure(figure, FIGURE)


if __name__ == "__main__":
    main()
