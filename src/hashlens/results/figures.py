"""Figures: numbers in, PNG, SVG and PDF files, or SVG text for a page, out.

A method has the same colour, dashes and marker in every panel, and no two of up to 36 methods share their dashes and
marker, so that lines are distinguishable without colour. Figures for files are made with matplotlib's objects, not with
pyplot, which keeps every figure in a global list.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.files import replacing, write_text
from hashlens.results.tables import length_name, method_name, row_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import LayoutEngine

INK, GREY, BLUE = "#1f2328", "#59636e", "#0969da"
# Stand-ins: matplotlib does not know CSS colours, so these two are replaced in its output.
PAGE_INK, PAGE_ACCENT = "#010203", "#040506"
DPI = 200

# The lengths of the three lists have no common divisor, so that a look only repeats after 252 methods.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#3a96d0", "#7f7f7f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))

# The columns of metrics.csv to draw over the epochs, with the titles of their panels.
CURVES = {
    "loss": "Loss",
    "active": "Active triplets",
    "gradient": "Mean gradient of an image",
    "quantisation": "Quantisation error",
    "dead_bits": "Dead bits",
}

Line = Sequence[tuple[float, float, float]]  # x, MAP and its deviation


@dataclass(frozen=True)
class Drawing:
    """A figure for a page with its numbers; `svg` is safe markup."""

    title: str
    svg: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


# Training curves and single lines


def curves_figure(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG with a panel for every column of `CURVES` that the rows of metrics.csv have."""
    curves = {title: curve(metrics, column) for column, title in CURVES.items()}
    curves = {title: (epochs, values) for title, (epochs, values) in curves.items() if epochs}
    if not curves:
        raise ValueError("there is no epoch to draw in the metrics")
    columns = min(len(curves), 2)
    lines = -(-len(curves) // columns)
    figure = _new_figure(4 * columns, 2.6 * lines)
    for number, (title, (epochs, values)) in enumerate(curves.items(), start=1):
        axes = figure.add_subplot(lines, columns, number)
        decorate(axes, title, "epoch", "", INK)
        _line(axes, epochs, values, BLUE)
        _epoch_axis(axes)
    save_figure(figure, path)


def curve(metrics: Sequence[Mapping[str, Any]], column: str) -> tuple[list[float], list[float]]:
    """Epochs and values of one column, as numbers, without the rows that lack it or are not finite."""
    points = [(_float(row.get("epoch")), _float(row.get(column))) for row in metrics]
    kept = [(epoch, value) for epoch, value in points if np.isfinite(epoch) and np.isfinite(value)]
    return [epoch for epoch, _ in kept], [value for _, value in kept]


def _float(value: Any) -> float:
    # The csv module reads text; empty cells are empty text.
    return float(value) if value not in (None, "") else float("nan")


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], color: str) -> None:
    # Points are useful if there are few values; on a long line they would only thicken it.
    axes.plot(x, y, color=color, linewidth=1.8, marker="o" if len(x) <= 20 else "", markersize=4)
    axes.set_ylim(0, max(*y, 0) * 1.08 or 1)


def _epoch_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10], min_n_ticks=1))


def svg_line(
    name: str, x: Sequence[float], y: Sequence[float], x_label: str, y_label: str, text: str, scale: str = ""
) -> str:
    """One line as an `<svg>` element for HTML, the same bytes for the same numbers.

    `name` is unique in the page and starts every id, so that plots in one page do not share ids. `text` is for screen
    readers. Ink takes the colour of the text around it and the line takes `--accent`, so the plot follows light and
    dark pages. The `scale` "unit" shows both axes from 0 to 1, "log" has a logarithmic x axis, "epochs" marks integers.
    """
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    figure = _new_figure(4.4, 2.9)
    axes = figure.add_subplot()
    decorate(axes, "", x_label, y_label, PAGE_INK)
    _line(axes, x, y, PAGE_ACCENT)
    if scale == "unit":
        axes.set(xlim=(0, 1), ylim=(0, 1.02))
    if scale == "log" and 0 < min(x) < max(x):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_locator(NullLocator())
    if scale == "epochs":
        _epoch_axis(axes)
    return svg_element(figure, name, text)


# Comparisons and ablations


def write_figures(out: Path, result: Mapping[str, Any]) -> list[Drawing]:
    """Write the figures of a comparison as files, and return them for the report."""
    title = "MAP against the number of bits"
    words = in_words(title, {row_label(row): map_line(row) for row in result["rows"]}, length_name)
    figures: dict[str, tuple[str, Callable[..., Figure], str]] = {"map": (title, map_figure, words)}
    title, words = "Precision and recall over the Hamming radius", "Precision against recall, at each length."
    figures["precision-recall"] = (title, precision_recall_figure, words)
    for name, (_, draw, _) in figures.items():
        save_figure(draw(result), out / f"{name}.png", out / f"{name}.svg")
    return [
        Drawing(title, svg_element(draw(result, PAGE_INK), name, words))
        for name, (title, draw, words) in figures.items()
    ]


def map_figure(result: Mapping[str, Any], ink: str = INK) -> Figure:
    """MAP against the number of bits: a panel per kind of features, a line per method, bars for the deviation.

    Hollow points are printed numbers that are comparable. Lines in a single panel are labelled at their ends.
    """
    kinds = list(dict.fromkeys(row["features"] for row in result["rows"]))
    figure = _methods_figure(len(kinds), 1, 4.2, result, ink, legend=len(kinds) > 1)
    deviate = any(deviation for row in result["rows"] for _, _, deviation in map_line(row))
    x_label = "bits (bars: standard deviation)" if deviate else "bits (one run each, so no deviation)"
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]  # one scale for all panels
    for kind, axes in zip(kinds, panels, strict=True):
        decorate(axes, kind, x_label, "MAP" if kind == kinds[0] else "", ink)
        for row in result["rows"]:
            if row["features"] == kind:
                style = _style(result, row["method"])
                _plot(axes, map_line(row), style)
                if points := printed_points(row):
                    hollow = style | {"linestyle": "", "markerfacecolor": "none", "markersize": 8, "label": None}
                    axes.plot(*zip(*points, strict=True), **hollow)
        axes.set_xticks(result["bits"])
        axes.margins(y=0.08)  # not from 0, because many methods are close together far above 0
        _not_too_near(axes)
    if len(kinds) == 1:
        ends = [(map_line(row), _style(result, row["method"])) for row in result["rows"]]
        label_lines(axes, [(line[-1][:2], style) for line, style in ends if line])
    return figure


def plot_map(result: Mapping[str, Any], axes: Axes | None = None) -> Axes:
    """MAP against the number of bits on the given axes or new ones, a line per method and kind of features.

    On new axes the lines are labelled at their ends, on existing ones in a legend.
    """
    own = axes is None
    if axes is None:
        import matplotlib.pyplot as plt

        axes = plt.figure(layout=_layout()).add_subplot()
    decorate(axes, result["source"], "bits", "MAP", INK)
    for place, row in enumerate(result["rows"]):
        _plot(axes, map_line(row), series_style(place, row_label(row)))
    axes.set_xticks(result["bits"])
    if own:
        lines = [(map_line(row), series_style(place, row_label(row))) for place, row in enumerate(result["rows"])]
        label_lines(axes, [(line[-1][:2], style) for line, style in lines if line])
    else:
        axes.legend(frameon=False, fontsize=9)
    return axes


def precision_recall_figure(result: Mapping[str, Any], ink: str = INK) -> Figure:
    """Precision against recall over the Hamming radius: a column of panels per length, a row per kind."""
    kinds = list(dict.fromkeys(row["features"] for row in result["rows"]))
    bits = [str(n) for n in result["bits"]]
    figure = _methods_figure(len(bits), len(kinds), 3.1, result, ink)
    for (i, j), axes in np.ndenumerate(figure.subplots(len(kinds), len(bits), squeeze=False)):
        y_label = "precision" if j == 0 else ""
        decorate(axes, f"{kinds[i]}, {length_name(bits[j])}", "recall" if i == len(kinds) - 1 else "", y_label, ink)
        for row in result["rows"]:
            curve = row["lengths"][bits[j]]["pr_curve"]
            if row["features"] == kinds[i] and curve:
                # without radii where nothing is found and precision is undefined
                points = [(r, p) for r, p in zip(curve["recall"], curve["precision"], strict=True) if r > 0]
                # equal distances between markers along the line, for any number of radii
                axes.plot(*zip(*points, strict=True), markevery=0.15, **_style(result, row["method"]))
        # each panel has its own upper limit, or weak features would be a thin band
        top = max((max(line.get_ydata()) for line in axes.lines), default=1)
        axes.set(xlim=(0, 1.02), ylim=(0, min(1.02, 1.1 * top)))
    return figure


def ablation_figure(title: str, x_label: str, lines: Mapping[str, Line], *paths: Path) -> None:
    """Write a figure of MAP against the value that was changed, one line per length."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure = _new_figure(5.4, 3.4)
    axes = figure.add_subplot()
    decorate(axes, title, x_label, "MAP", INK)
    for place, (label, points) in enumerate(lines.items()):
        _plot(axes, points, series_style(place, label))
    values = sorted({x for points in lines.values() for x, _, _ in points})
    if values[0] > 0:
        axes.set_xscale("log")
    axes.set_xticks(values)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    _not_too_near(axes)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=9, handlelength=3.6)
    save_figure(figure, *paths)


def map_line(row: Mapping[str, Any]) -> Line:
    """The line of a row of a comparison: its finished lengths."""
    at = row["lengths"].items()
    return [(int(n), one["map"], one["map_deviation"] or 0.0) for n, one in at if one["map"] is not None]


def printed_points(row: Mapping[str, Any]) -> list[tuple[int, float]]:
    """The printed numbers of a row for the same images and features."""
    printed = [(int(n), one.get("printed")) for n, one in row["lengths"].items()]
    return [(n, one["map"]) for n, one in printed if one and one["comparable"]]


def in_words(title: str, lines: Mapping[str, Line], name: Callable[[float], str] = "{:g}".format) -> str:
    """A figure of MAP in words, for screen readers."""
    said = [
        f"{label} " + ", ".join(f"{y:.3f} at {name(x)}" for x, y, _ in points)
        for label, points in lines.items()
        if points
    ]
    return f"{title}: {'; '.join(said)}."


def _methods_figure(
    columns: int, rows: int, side: float, result: Mapping[str, Any], ink: str, legend: bool = True
) -> Figure:
    """A figure with room for panels and, at the right, a legend of all methods with a line, best first."""
    from matplotlib.lines import Line2D

    figure = _new_figure(side * columns + 1.4, max(0.85 * side * rows, 0.19 * len(result["methods"])) + 0.3)
    if not legend:
        return figure
    ranked = sorted((row for row in result["rows"] if row["mean_map"] is not None), key=lambda row: -row["mean_map"])
    lines = [Line2D([], [], **_style(result, method)) for method in dict.fromkeys(row["method"] for row in ranked)]
    # lines long enough to show the dashes
    figure.legend(handles=lines, loc="outside right upper", frameon=False, fontsize=9, handlelength=3.6, labelcolor=ink)
    return figure


def label_lines(axes: Axes, ends: Sequence[tuple[tuple[float, float], Mapping[str, Any]]]) -> None:
    """Label each line beside its last point; labels that would touch are moved apart and connected to it."""
    low, high = axes.get_ylim()
    ends = sorted(ends, key=lambda end: end[0][1])
    heights = [(y - low) / (high - low) for (_, y), _ in ends]
    gap = 0.048  # of the axes' height: a line of text
    for place in range(1, len(heights)):
        heights[place] = max(heights[place], heights[place - 1] + gap)
    limit = 1.02
    for place in reversed(range(len(heights))):
        heights[place] = min(heights[place], limit)
        limit = heights[place] - gap
    for height, (point, style) in zip(heights, ends, strict=True):
        line = {"arrowstyle": "-", "color": style["color"], "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4}
        axes.annotate(
            style["label"], point, (1.06, height), textcoords="axes fraction", arrowprops=line, color=style["color"],
            fontsize=8, va="center", annotation_clip=False,
        )  # fmt: skip


def _style(result: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The style of a method, the same in every panel."""
    return series_style(result["methods"].index(method), method_name(method))


def _plot(axes: Axes, points: Line, style: Mapping[str, Any]) -> None:
    if points:
        x, y, deviations = zip(*points, strict=True)
        bars = deviations if any(deviations) else None  # a single seed has none
        axes.errorbar(x, y, yerr=bars, capsize=3, elinewidth=1, **style)


def series_style(place: int, label: str) -> dict[str, Any]:
    """The style of one of several lines."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
        "linewidth": 1.6,
        "markersize": 5,
        "label": label,
    }


def _not_too_near(axes: Axes, span: float = 0.05) -> None:
    """Make the vertical axis span at least `span`, so that a meaningless difference does not look large."""
    low, high = axes.get_ylim()
    if high - low < span:
        axes.set_ylim((low + high - span) / 2, (low + high + span) / 2)


# What all figures share


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout=_layout())


def _layout() -> LayoutEngine:
    """The layout, with room around the panels."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)


def decorate(axes: Axes, title: str, x_label: str, y_label: str, ink: str) -> None:
    """Title and labels, two axes and a faint grid."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=ink, parse_math=False)
    axes.set_xlabel(x_label, fontsize=9, color=ink, parse_math=False)
    axes.set_ylabel(y_label, fontsize=9, color=ink, parse_math=False)
    axes.grid(color=ink, alpha=0.15, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(ink)
    axes.tick_params(colors=ink, labelsize=8)


def save_figure(figure: Figure, *paths: Path) -> None:
    """Write PNG, SVG or PDF files, chosen by suffix; equal figures give equal files."""
    # without versions and dates
    metadata: dict[str, Any] = {
        ".png": {"Software": None},
        ".pdf": dict.fromkeys(("CreationDate", "Producer", "Creator")),
    }
    for path in paths:
        if path.suffix == ".svg":
            write_text(path, svg_text(figure))
            continue
        with replacing(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], metadata=metadata[path.suffix])


def svg_text(figure: Figure) -> str:
    """A whole SVG file with text as text, the same bytes for the same numbers."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hashlens"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return file.getvalue()


def svg_element(figure: Figure, name: str, text: str) -> str:
    """A figure drawn with PAGE_INK as an `<svg>` element for a page; `name` and `text` as in `svg_line`."""
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    svg = svg_text(figure)
    svg = svg[svg.index("<svg") :]  # without XML declaration and doctype, which do not belong inside HTML
    # Inside a page, matplotlib's style element would apply to the whole page.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(PAGE_INK, "currentColor").replace(PAGE_ACCENT, f"var(--accent, {BLUE})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(text)}" ', 1)
