"""Figures: neighbours and numbers in; PNG files, or SVG text to put into a page, out.

Right and wrong differ in three ways, so that they can be told apart without colour: a solid green frame and a check
mark against a dashed red frame and a cross. The signs are drawn as lines, because fonts may lack them. Figures for
files are made with matplotlib's objects and not with pyplot, which keeps every figure in a global list.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

GREEN, RED = "#1a7f37", "#cf222e"
INK, GREY, BLUE = "#1f2328", "#59636e", "#0969da"
# Stand-ins: matplotlib does not know CSS colours, so these two are replaced in its output.
PAGE_INK, PAGE_ACCENT = "#010203", "#040506"

# The lengths of the three lists have no common divisor, so that only 252 methods later one looks like another.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#3a96d0", "#7f7f7f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p")
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))

CURVES = {
    "loss": "Loss",
    "active": "Active triplets",
    "quantisation": "Quantisation error",
    "dead_bits": "Dead bits",
}
"""The columns of metrics.csv that are drawn over the epochs, with the titles of their panels."""


@dataclass(frozen=True)
class Drawing:
    """A figure with its numbers; `svg` is safe markup for a page, or empty where only the files of `name` exist."""

    name: str
    title: str
    words: str  # what it shows, for screen readers
    svg: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Neighbours:
    """One query and its nearest images; `right` is whether they share its label, None where there are no labels."""

    query: Image
    query_label: str
    images: list[Image]
    labels: list[str]
    distances: list[int]
    right: list[bool] | None
    n_bits: int


# The retrieval figure is laid out in hundredths of an inch, from the top left corner.
CELL = 96  # at 200 dots per inch 192 dots, a whole multiple of CIFAR's 32
PAD = 16
GAP = 30  # between the query and its neighbours
ROW = CELL + 54  # an image and two lines of text
HEAD, FOOT = 62, 40
DPI = 200
DPI_OF_IMAGES = 100  # a hundred images, sharp enough on any screen, in a file small enough to send


def retrieval_figure(rows: list[Neighbours], path: Path, *, title: str) -> None:
    """Write a PNG with one query per row: the query at the left, its nearest images at the right."""
    save_png(draw_retrieval(rows, title=title), path)


def draw_retrieval(rows: list[Neighbours], *, title: str) -> Figure:
    if not rows:
        raise ValueError("a retrieval figure needs at least one query")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    widest = max(len(row.images) for row in rows)
    # Never so narrow that the legend is cut off.
    width = max(PAD + CELL + GAP + widest * (CELL + PAD), 640)
    height = HEAD + len(rows) * ROW + FOOT
    figure = Figure(figsize=(width / 100, height / 100), dpi=DPI_OF_IMAGES, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")

    nearest = PAD + CELL + GAP
    _text(axes, PAD, 17, title, size=11, weight="bold")
    _text(axes, PAD, 46, "query", size=8, color=GREY)
    _text(axes, nearest, 46, "nearest first", size=8, color=GREY)
    for number, row in enumerate(rows):
        top = HEAD + number * ROW
        _image(axes, row.query, PAD, top)
        _frame(axes, PAD, top, CELL, color=INK, linewidth=3.5)
        _text(axes, PAD, top + CELL + 17, _short(row.query_label), size=8, weight="bold")
        verdicts: Sequence[bool | None] = row.right or [None] * len(row.images)
        neighbours = zip(row.images, row.labels, row.distances, verdicts, strict=True)
        for rank, (image, label, distance, right) in enumerate(neighbours):
            left = nearest + rank * (CELL + PAD)
            _image(axes, image, left, top)
            _verdict_frame(axes, left, top, CELL, right)
            if right is not None:
                _sign(axes, left, top + CELL + 11, 12, right)
            bits = "1 bit" if distance == 1 else f"{distance} bits"
            _text(axes, left + (0 if right is None else 18), top + CELL + 17, bits, size=8)
            _text(axes, left, top + CELL + 32, _short(label), size=8, color=GREY)

    rule = height - FOOT
    axes.add_line(Line2D([PAD, width - PAD], [rule, rule], color="#d1d9e0", linewidth=0.8))
    middle = height - FOOT / 2
    judged = any(row.right for row in rows)
    for left, right, text in ((PAD, True, "same label"), (PAD + 140, False, "other label")) if judged else ():
        _verdict_frame(axes, left, middle - 9, 18, right)
        _sign(axes, left + 28, middle - 6, 12, right)
        _text(axes, left + 46, middle, text, size=8)
    lengths = " or ".join(str(n_bits) for n_bits in sorted({row.n_bits for row in rows}))
    _text(
        axes,
        PAD + (295 if judged else 0),
        middle,
        f"bits: how many of the {lengths} differ from the query's code",
        size=8,
    )
    return figure


def _image(axes: Axes, image: Image, left: float, top: float) -> None:
    from PIL import Image as images
    from PIL import ImageOps

    dots = CELL * DPI_OF_IMAGES // 100
    # Lanczos makes 32x32 pixels a soft photograph; nearest neighbour a mosaic that is harder to recognise.
    square = ImageOps.pad(image.convert("RGB"), (dots, dots), images.Resampling.LANCZOS, color="white")
    place = (left, left + CELL, top + CELL, top)
    axes.imshow(np.asarray(square), extent=place, aspect="auto", interpolation="nearest")


def _frame(axes: Axes, left: float, top: float, size: float, **style: Any) -> None:
    from matplotlib.patches import Rectangle

    # Outside the image, so that white shows between the dashes.
    left, top, size = left - 2, top - 2, size + 4
    axes.add_patch(Rectangle((left, top), size, size, fill=False, joinstyle="miter", **style))


def _verdict_frame(axes: Axes, left: float, top: float, size: float, right: bool | None) -> None:
    if right is None:
        return _frame(axes, left, top, size, color=GREY, linewidth=1)
    color, dashes = (GREEN, "solid") if right else (RED, (0, (2.2, 1.4)))
    _frame(axes, left, top, size, color=color, linewidth=2.4, linestyle=dashes, capstyle="butt")


def _sign(axes: Axes, left: float, top: float, size: float, right: bool) -> None:
    """A check mark or a cross in the square of `size` at (left, top)."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Line

    if right:
        points, moves = [(0.05, 0.55), (0.38, 0.9), (0.95, 0.1)], [Line.MOVETO, Line.LINETO, Line.LINETO]
    else:
        points, moves = [(0.1, 0.1), (0.9, 0.9), (0.1, 0.9), (0.9, 0.1)], [Line.MOVETO, Line.LINETO] * 2
    line = Line([(left + size * x, top + size * y) for x, y in points], moves)
    style: dict[str, Any] = {"edgecolor": GREEN if right else RED, "linewidth": 2}
    axes.add_patch(PathPatch(line, fill=False, capstyle="round", joinstyle="round", **style))


def _text(axes: Axes, x: float, y: float, text: str, *, color: str = INK, **style: Any) -> None:
    # A label may contain a dollar sign, which is not the start of a formula.
    axes.text(x, y, text, color=color, va="center_baseline", parse_math=False, **style)


def _short(label: str) -> str:
    """A label that fits under an image."""
    return label if len(label) <= 16 else label[:15] + "…"


def save_png(figure: Figure, path: Path) -> None:
    with replacing(path) as temporary:
        # Without matplotlib's version in the file, equal figures are equal files.
        figure.savefig(temporary, format="png", metadata={"Software": None})


def curves_figure(metrics: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG with a panel for every column of `CURVES` that the rows of metrics.csv have."""
    curves = {title: curve(metrics, column) for column, title in CURVES.items()}
    curves = {title: (epochs, values) for title, (epochs, values) in curves.items() if epochs}
    if not curves:
        raise ValueError("there is no epoch to draw in the metrics")
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = min(len(curves), 2)
    lines = -(-len(curves) // columns)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(4 * columns, 2.6 * lines), dpi=DPI, facecolor="white", layout=layout)
    for number, (title, (epochs, values)) in enumerate(curves.items(), start=1):
        axes = figure.add_subplot(lines, columns, number)
        decorate(axes, title, "epoch", "", INK)
        _line(axes, epochs, values, BLUE)
        _epoch_axis(axes)
    save_png(figure, path)


def curve(metrics: Sequence[Mapping[str, Any]], column: str) -> tuple[list[float], list[float]]:
    """Epochs and values of one column, as numbers, without the rows that lack it or are not finite."""
    points = [(_float(row.get("epoch")), _float(row.get(column))) for row in metrics]
    kept = [(epoch, value) for epoch, value in points if np.isfinite(epoch) and np.isfinite(value)]
    return [epoch for epoch, _ in kept], [value for _, value in kept]


def _float(value: Any) -> float:
    # The csv module reads text, and an empty cell is empty text.
    return float(value) if value not in (None, "") else float("nan")


def _line(axes: Axes, x: Sequence[float], y: Sequence[float], color: str) -> None:
    # Points show where few values were measured; on a long line they would only thicken it.
    axes.plot(x, y, color=color, linewidth=1.8, marker="o" if len(x) <= 20 else "", markersize=4)
    axes.set_ylim(0, max(*y, 0) * 1.08 or 1)


def decorate(axes: Axes, title: str, x_label: str, y_label: str, ink: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=ink, parse_math=False)
    axes.set_xlabel(x_label, fontsize=9, color=ink, parse_math=False)
    axes.set_ylabel(y_label, fontsize=9, color=ink, parse_math=False)
    plain_axes(axes, ink)


def series_style(place: int, label: str) -> dict[str, Any]:
    """The look of one of several lines."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place % len(DASHES)],
        "linewidth": 1.6,
        "markersize": 5,
        "label": label,
    }


def not_too_near(axes: Axes, span: float = 0.05) -> None:
    """Make the vertical axis span at least `span`, so that a meaningless difference does not look large."""
    low, high = axes.get_ylim()
    if high - low < span:
        axes.set_ylim((low + high - span) / 2, (low + high + span) / 2)


def plain_axes(axes: Axes, ink: str) -> None:
    """Two axes and a faint grid."""
    axes.grid(color=ink, alpha=0.15, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(ink)
    axes.tick_params(colors=ink, labelsize=8)


def _epoch_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, steps=[1, 2, 5, 10], min_n_ticks=1))


def svg_line(
    name: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    x_label: str,
    y_label: str,
    text: str,
    unit_square: bool = False,
    log_x: bool = False,
    epochs: bool = False,
) -> str:
    """One line as an `<svg>` element for HTML, the same bytes for the same numbers.

    `name` is unique in the page and starts every id, so that plots in one page do not share ids. `text` is for screen
    readers. Ink takes the colour of the text around it and the line takes `--accent`, so the plot follows light and
    dark pages. `unit_square` shows both axes from 0 to 1, `log_x` has a logarithmic x axis, `epochs` marks integers.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

    with svg_style():
        figure = Figure(figsize=(4.4, 2.9), layout="constrained")
        axes = figure.add_subplot()
        decorate(axes, "", x_label, y_label, PAGE_INK)
        _line(axes, x, y, PAGE_ACCENT)
        if unit_square:
            axes.set(xlim=(0, 1), ylim=(0, 1.02))
        if log_x and 0 < min(x) < max(x):
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
            axes.xaxis.set_minor_locator(NullLocator())
        if epochs:
            _epoch_axis(axes)
        return svg_element(figure, name, text)


def svg_style() -> AbstractContextManager[None]:
    """Within, figures are drawn and written with text as text, the same bytes for the same numbers."""
    import matplotlib

    return matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hashlens", "font.family": "sans-serif"})


def svg_text(figure: Figure) -> str:
    """A whole SVG file."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return file.getvalue()


def svg_element(figure: Figure, name: str, text: str) -> str:
    """A figure that was drawn with PAGE_INK as an `<svg>` element for a page; `name` and `text` as in `svg_line`."""
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    svg = svg_text(figure)
    svg = svg[svg.index("<svg") :]  # HTML wants no XML declaration and no doctype here
    # Inside a page, matplotlib's style element would apply to the whole page.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(PAGE_INK, "currentColor").replace(PAGE_ACCENT, f"var(--accent, {BLUE})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(text)}" ', 1)
