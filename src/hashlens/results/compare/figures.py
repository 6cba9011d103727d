"""Figures of a comparison: its result in; MAP against bits and precision against recall out, a panel per case.

A method has the same colour, dashes and marker in every panel, and no two methods share their dashes and marker, so
that lines can be told apart without colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashlens.files import write_text
from hashlens.results.figures import (
    DPI,
    INK,
    PAGE_INK,
    Drawing,
    decorate,
    not_too_near,
    save_png,
    series_style,
    svg_element,
    svg_style,
    svg_text,
)
from hashlens.results.tables import length_name, method_name, row_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_figures(out: Path, result: dict[str, Any]) -> list[Drawing]:
    """Write the figures as files, and give them for the report."""
    words = "Precision against recall of every method at each length."
    drawings = {
        "map": ("MAP against the number of bits", map_figure, map_words(result)),
        "precision-recall": ("Precision and recall over the Hamming radius", precision_recall_figure, words),
    }
    plots = []
    for name, (title, draw, words) in drawings.items():
        with svg_style():
            figure = draw(result, INK)
            save_png(figure, out / f"{name}.png")
            write_text(out / f"{name}.svg", svg_text(figure))
            plots.append(Drawing(name, title, words, svg_element(draw(result, PAGE_INK), name, words)))
    return plots


def map_figure(result: dict[str, Any], ink: str) -> Figure:
    """MAP against the number of bits: a panel per kind of features, a line per method, bars for the deviation."""
    kinds = list(dict.fromkeys(row["features"] for row in result["rows"]))
    figure = _figure(len(kinds), 1, 4.2, len(result["methods"]))
    first = None
    for number, kind in enumerate(kinds, start=1):
        axes = figure.add_subplot(1, len(kinds), number, sharey=first)  # heights are compared across panels
        first = first or axes
        decorate(axes, kind, "bits", "MAP" if number == 1 else "", ink)
        for row in result["rows"]:
            if row["features"] == kind:
                _plot_row(axes, row, _style(result, row["method"]))
        axes.set_xticks(result["bits"])
        axes.margins(y=0.08)  # not from 0: many methods are near each other, far above it
        not_too_near(axes)
    _legend(figure, result, ink)
    return figure


def plot_map(result: dict[str, Any], axes: Axes | None = None) -> Axes:
    """MAP against the number of bits on the given axes or new ones, a line per method and kind of features."""
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.figure(layout="constrained").add_subplot()
    decorate(axes, result["source"], "bits", "MAP", INK)
    for place, row in enumerate(result["rows"]):
        _plot_row(axes, row, series_style(place, row_label(row)))
    axes.set_xticks(result["bits"])
    axes.legend(frameon=False, fontsize=9)
    return axes


def _plot_row(axes: Axes, row: dict[str, Any], style: dict[str, Any]) -> None:
    points = [
        (int(n), at["map"], at["map_deviation"] or 0) for n, at in row["lengths"].items() if at["map"] is not None
    ]
    if points:
        x, y, deviation = zip(*points, strict=True)
        axes.errorbar(x, y, yerr=deviation, capsize=3, elinewidth=1, **style)


def precision_recall_figure(result: dict[str, Any], ink: str) -> Figure:
    """Precision against recall over the Hamming radius: a column of panels per length, a row per kind."""
    kinds = list(dict.fromkeys(row["features"] for row in result["rows"]))
    bits = [str(n) for n in result["bits"]]
    figure = _figure(len(bits), len(kinds), 3.1, len(result["methods"]))
    for number, (kind, n) in enumerate([(kind, n) for kind in kinds for n in bits], start=1):
        axes = figure.add_subplot(len(kinds), len(bits), number)
        first, last = (number - 1) % len(bits) == 0, number > len(bits) * (len(kinds) - 1)
        title = f"{kind}, {length_name(n)}"
        decorate(axes, title, "recall" if last else "", "precision" if first else "", ink)
        curves = {row["method"]: _curve(row["lengths"][n]) for row in result["rows"] if row["features"] == kind}
        for method, points in curves.items():
            if points:
                x, y = zip(*points, strict=True)
                # the same distance on the line between markers, whatever the number of radii
                axes.plot(x, y, markevery=0.15, **_style(result, method))
        axes.set(xlim=(0, 1.02), ylim=(0, _top(p for points in curves.values() for _, p in points)))
    _legend(figure, result, ink)
    return figure


def map_words(result: dict[str, Any]) -> str:
    """What the figure of MAP shows, for screen readers."""
    lines = []
    for row in result["rows"]:
        points = [(n, at["map"]) for n, at in row["lengths"].items() if at["map"] is not None]
        if points:
            values = ", ".join(f"{value:.3f} at {length_name(n)}" for n, value in points)
            lines.append(f"{method_name(row['method'])} on {row['features']} {values}")
    return "MAP against the number of bits: " + "; ".join(lines) + "."


def _curve(at: dict[str, Any]) -> list[tuple[float, float]]:
    """Recall and precision at each radius, except where nothing is found, so that precision is not defined."""
    curve = at["pr_curve"] or {"recall": [], "precision": []}
    return [(r, p) for r, p in zip(curve["recall"], curve["precision"], strict=True) if r > 0]


def _top(values: Iterable[float | None]) -> float:
    """Upper end of an axis from 0; each panel has its own, or weak features would be a thin band."""
    return min(1.02, 1.1 * max((value for value in values if value is not None), default=0)) or 1


def _figure(columns: int, rows: int, side: float, n_methods: int) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    size = (side * columns + 1.4, max(0.85 * side * rows, 0.19 * n_methods) + 0.3)  # the legend is at the right
    return Figure(figsize=size, dpi=DPI, facecolor="white", layout=layout)


def _style(result: dict[str, Any], method: str) -> dict[str, Any]:
    return series_style(result["methods"].index(method), method_name(method))


def _legend(figure: Figure, result: dict[str, Any], ink: str) -> None:
    """All methods that have a line, best first, long enough to show the dashes."""
    from matplotlib.lines import Line2D

    ranked = sorted((row for row in result["rows"] if row["mean_map"] is not None), key=lambda row: -row["mean_map"])
    methods = dict.fromkeys(row["method"] for row in ranked)
    lines = [Line2D([], [], **_style(result, method)) for method in methods]
    figure.legend(handles=lines, loc="outside right upper", frameon=False, fontsize=9, handlelength=3.6, labelcolor=ink)
