"""The figures of docs/concepts, from codes of scikit-learn's digits.

python -m benchmarks.concepts           measure, some seconds, → benchmarks/results/concepts.json
python -m benchmarks.concepts --draw    only redraw the saved measurements, → docs/figures/concepts
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from sklearn.datasets import load_digits

from hashlens import evaluate_codes, make_hasher
from hashlens.codes.hamming import distances
from hashlens.files import write_text
from hashlens.results.figures import COLOURS, INK, decorate, save_figure

ROOT = Path(__file__).parent.parent
FIGURES, RESULT = ROOT / "docs" / "figures" / "concepts", ROOT / "benchmarks" / "results" / "concepts.json"
N_NEW, N_BITS, LENGTHS = 300, 16, (4, 8, 12, 16, 24, 32, 48)
BLUE, ORANGE = COLOURS[:2]
ORDERS = {"map_best": "best order", "map_tie_aware": "expected", "map": "database order", "map_worst": "worst order"}


def measure() -> dict[str, Any]:
    X, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))
    new, old = rows[:N_NEW], rows[N_NEW:]
    pairs = np.triu_indices(N_NEW, 1)
    same = y[new][pairs[0]] == y[new][pairs[1]]
    found: dict[str, Any] = {"n_bits": N_BITS, "n_images": N_NEW, "distances": {}, "ties": {}}
    for name in ("lsh", "dtsh"):
        codes = make_hasher(name, n_bits=N_BITS).fit(X[old], y[old]).encode(X[new])
        apart = distances(codes, codes)[pairs]
        found["distances"][name] = {
            kind: np.bincount(apart[which], minlength=N_BITS + 1).tolist()
            for kind, which in (("same", same), ("other", ~same))
        }
    for name in ("lsh", "itq"):
        found["ties"][name] = {}
        for n_bits in LENGTHS:
            hasher = make_hasher(name, n_bits=n_bits).fit(X[old])
            scores = evaluate_codes(hasher.encode(X[new]), hasher.encode(X[old]), y[new], y[old])
            found["ties"][name][str(n_bits)] = {order: scores[order] for order in ORDERS}
    return found


def draw_distances(found: dict[str, Any]) -> None:
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    for place, (name, title) in enumerate({"lsh": "Random projections (LSH)", "dtsh": "Trained (DTSH)"}.items(), 1):
        axes = figure.add_subplot(1, 2, place)
        decorate(axes, title, "Hamming distance, bits", "share of pairs" if place == 1 else "", INK)
        for kind, color, label in (("same", BLUE, "same class"), ("other", ORANGE, "other classes")):
            counts = np.array(found["distances"][name][kind])
            share = counts / counts.sum()
            axes.fill_between(np.arange(len(share)), share, step="mid", color=color, alpha=0.35)
            axes.step(np.arange(len(share)), share, where="mid", color=color, linewidth=1.6)
            peak = int(share.argmax())
            left = -64 if kind == "same" and peak > 1 else 4  # next to the other label
            axes.annotate(label, (peak, share[peak]), (left, 3), textcoords="offset points", color=color, fontsize=8.5)
        axes.margins(y=0.15)
    save_figure(figure, FIGURES / "distances.svg")


def draw_ties(found: dict[str, Any]) -> None:
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    for place, (name, title) in enumerate({"lsh": "LSH", "itq": "ITQ"}.items(), 1):
        axes = figure.add_subplot(1, 2, place)
        decorate(axes, title, "bits", "MAP" if place == 1 else "", INK)
        at = found["ties"][name]
        bits = [int(n) for n in at]
        lines = {order: [at[n][order] for n in at] for order in ORDERS}
        axes.fill_between(bits, lines["map_worst"], lines["map_best"], color=BLUE, alpha=0.15, linewidth=0)
        axes.plot(bits, lines["map_tie_aware"], color=BLUE, linewidth=2)
        axes.plot(bits, lines["map"], color=ORANGE, linewidth=1.2, linestyle=(0, (4, 2)))
        for order, i, shift, color in (
            ("map_best", 1, (2, 6), BLUE),
            ("map_worst", 1, (4, -10), BLUE),
            ("map_tie_aware", -1, (-44, 8), BLUE),
            ("map", -1, (-72, -18), ORANGE),
        ):
            where = bits[i], lines[order][i]
            axes.annotate(ORDERS[order], where, shift, textcoords="offset points", color=color, fontsize=8)
        axes.margins(x=0.03, y=0.12)
    save_figure(figure, FIGURES / "ties.svg")


def draw_pipeline() -> None:
    """Image, features, projections, signs, with the numbers of one digit and 8-bit ITQ."""
    X, _ = load_digits(return_X_y=True)
    hasher = make_hasher("itq", n_bits=8).fit(X)
    u = hasher.project(X[:1])[0]
    figure = Figure(figsize=(7.2, 1.9))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 100), ylim=(0, 26))
    axes.axis("off")
    axes.imshow(X[0].reshape(8, 8), cmap="gray_r", extent=(3, 17, 7, 21), aspect="auto", interpolation="nearest")
    _box(axes, 29, 7, 16, 14, "64 numbers;\nusually those\nof a network")
    _box(axes, 55, 7, 15, 14, "\n".join(f"{value:+.1f}" for value in u[:3]) + "\n…")
    bits = "".join("1" if value > 0 else "0" for value in u)
    _box(axes, 80, 9.5, 17, 9, bits, 12, "monospace")
    for start, end, text in ((17.5, 28, "pixels"), (45.8, 54, "W"), (70.8, 79, "sign")):
        axes.add_patch(FancyArrowPatch((start, 14), (end, 14), arrowstyle="-|>", mutation_scale=11, color="#555555"))
        axes.text((start + end) / 2, 15.4, text, ha="center", fontsize=8.5, color="#333333")
    for x, text in ((10, "image"), (37, "features"), (62.5, f"{len(u)} projections"), (88.5, f"code, {len(u)} bits")):
        axes.text(x, 2.6, text, ha="center", fontsize=9, color="#333333", fontweight="bold")
    save_figure(figure, FIGURES / "pipeline.svg")


def _box(axes: Axes, x: float, y: float, w: float, h: float, text: str, size: float = 9, family: str = "") -> None:
    axes.add_patch(FancyBboxPatch((x, y), w, h, boxstyle="round,pad=0.3", facecolor="#eef5fa", edgecolor=BLUE))
    axes.text(
        x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=size, family=family or None, color="#222222"
    )


if __name__ == "__main__":
    if "--draw" not in sys.argv:
        write_text(RESULT, json.dumps(measure(), indent=1) + "\n")
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    FIGURES.mkdir(parents=True, exist_ok=True)
    draw_distances(found)
    draw_ties(found)
    draw_pipeline()
