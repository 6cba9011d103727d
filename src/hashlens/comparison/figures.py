"""Figures of a comparison: its result in; MAP against bits and precision against recall out, a panel for each case.

A method has the same colour, dashes and marker in every panel, and no two methods share their dashes and marker: lines
are told apart without colour.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashlens.comparison.tables import length_name, map_rows, method_name, precision_rows
from hashlens.figures import DPI, INK, PAGE_INK, not_too_near, plain_axes, save_png, svg_element, svg_style, svg_text
from hashlens.files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hashlens.report import Plot

# The lengths of the three lists have no common divisor, so it takes 7 x 9 x 4 methods until one looks like another.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#3a96d0", "#7f7f7f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))


def write_figures(out: Path, result: dict[str, Any]) -> list[Plot]:
    """Write the figures as files, and give them as plots for the report."""
    from hashlens.report import Plot

    drawings = {
        "map": ("MAP against the number of bits", map_figure, map_words(result), *map_rows(result)),
        "precision-recall": (
            "Precision and recall over the Hamming radius",
            precision_recall_figure,
            "Precision against recall of every method at each length; the numbers follow.",
            *precision_rows(result),
        ),
    }
    plots = []
    for name, (title, draw, words, columns, rows) in drawings.items():
        with svg_style():
            figure = draw(result, INK)
            save_png(figure, out / f"{name}.png")
            write_text(out / f"{name}.svg", svg_text(figure))
            plots.append(Plot(title, svg_element(draw(result, PAGE_INK), name, words), columns, rows))
    return plots


def map_figure(result: dict[str, Any], ink: str) -> Figure:
    """MAP against the number of bits: a panel for each kind of features, a line a method, bars for the deviation."""
    kinds = list(dict.fromkeys(row["features"] for row in result["rows"]))
    figure = _figure(len(kinds), 1, 4.2, len(result["methods"]))
    first = None
    for number, kind in enumerate(kinds, start=1):
        axes = figure.add_subplot(1, len(kinds), number, sharey=first)  # heights are compared across panels
        first = first or axes
        _decorate(axes, kind, "bits", "MAP" if number == 1 else "", ink)
        rows = [row for row in result["rows"] if row["features"] == kind]
        for row in rows:
            points = [(int(n), at) for n, at in row["lengths"].items() if at["map"] is not None]
            if points:
                x, y = [n for n, _ in points], [at["map"] for _, at in points]
                deviation = [at["map_deviation"] or 0 for _, at in points]
                axes.errorbar(x, y, yerr=deviation, capsize=3, elinewidth=1, **_style(result, row["method"]))
        axes.set_xticks(result["bits"])
        axes.margins(y=0.08)  # not from 0: many methods are near each other, far above it
        not_too_near(axes)
    _legend(figure, result, ink)
    return figure


def precision_recall_figure(result: dict[str, Any], ink: str) -> Figure:
    """Precision against recall over the Hamming radius: a column of panels for each length, a row for each kind."""
    kinds = list(dict.fromkeys(row["features"] for row in result["rows"]))
    bits = [str(n) for n in result["bits"]]
    figure = _figure(len(bits), len(kinds), 3.1, len(result["methods"]))
    for number, (kind, n) in enumerate([(kind, n) for kind in kinds for n in bits], start=1):
        axes = figure.add_subplot(len(kinds), len(bits), number)
        first, last = (number - 1) % len(bits) == 0, number > len(bits) * (len(kinds) - 1)
        title = f"{kind}, {length_name(n)}"
        _decorate(axes, title, "recall" if last else "", "precision" if first else "", ink)
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
    """What the figure of MAP shows, for those who do not see it."""
    lines = []
    for row in result["rows"]:
        points = [(n, at["map"]) for n, at in row["lengths"].items() if at["map"] is not None]
        if points:
            spoken = ", ".join(f"{value:.3f} at {length_name(n)}" for n, value in points)
            lines.append(f"{method_name(row['method'])} on {row['features']} {spoken}")
    return "MAP against the number of bits: " + "; ".join(lines) + "."


def _curve(at: dict[str, Any]) -> list[tuple[float, float]]:
    """Recall and precision at each radius, but for those at which nothing is found: nothing has no precision."""
    curve = at["pr_curve"] or {"recall": [], "precision": []}
    return [(r, p) for r, p in zip(curve["recall"], curve["precision"], strict=True) if r > 0]


def _top(values: Iterable[float | None]) -> float:
    """Of an axis from 0: each panel has its own, or weak features would be a thin band."""
    return min(1.02, 1.1 * max((value for value in values if value is not None), default=0)) or 1


def _figure(columns: int, rows: int, side: float, n_methods: int) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    size = (side * columns + 1.4, max(0.85 * side * rows, 0.19 * n_methods) + 0.3)  # the legend is at the right
    return Figure(figsize=size, dpi=DPI, facecolor="white", layout=layout)


def _decorate(axes: Axes, title: str, x_label: str, y_label: str, ink: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=ink, parse_math=False)
    axes.set_xlabel(x_label, fontsize=9, color=ink)
    axes.set_ylabel(y_label, fontsize=9, color=ink)
    plain_axes(axes, ink)


def _style(result: dict[str, Any], method: str) -> dict[str, Any]:
    place = result["methods"].index(method)
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
        "linewidth": 1.6,
        "markersize": 5,
        "label": method_name(method),
    }


def _legend(figure: Figure, result: dict[str, Any], ink: str) -> None:
    """All methods that have a line, the best first, with enough of the line to show its dashes."""
    from matplotlib.lines import Line2D

    ranked = sorted((row for row in result["rows"] if row["mean_map"] is not None), key=lambda row: -row["mean_map"])
    methods = dict.fromkeys(row["method"] for row in ranked)
    lines = [Line2D([], [], **_style(result, method)) for method in methods]
    figure.legend(handles=lines, loc="outside right upper", frameon=False, fontsize=9, handlelength=3.6, labelcolor=ink)
