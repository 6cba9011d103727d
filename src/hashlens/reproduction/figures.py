"""Figures: numbers of an ablation, or queries and what two methods find, in; SVG, PDF and PNG files out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hashlens.comparison.figures import COLOURS, DASHES, MARKERS
from hashlens.figures import (
    DPI,
    INK,
    PAGE_INK,
    Neighbours,
    draw_retrieval,
    not_too_near,
    plain_axes,
    save_png,
    svg_element,
    svg_style,
    svg_text,
)
from hashlens.files import replacing, write_text
from hashlens.reproduction.sections import Drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Line = Sequence[tuple[float, float, float]]  # what was changed, MAP, deviation


def ablation_drawing(
    out: Path, name: str, title: str, x_label: str, lines: Mapping[str, Line], log_x: bool = False
) -> Drawing:
    """MAP against what was changed, one line for each length; written to figures/ and given for the page."""

    def draw(ink: str) -> Figure:
        return _ablation_figure(title, x_label, lines, log_x, ink)

    with svg_style():
        _save(out, name, draw(INK))
        svg = svg_element(draw(PAGE_INK), name, _words(title, lines))
    rows = [
        [line, f"{x:g}", f"{y:.4f}", f"{deviation:.4f}"] for line, points in lines.items() for x, y, deviation in points
    ]
    return Drawing(name, title, _words(title, lines), svg, ["line", x_label, "MAP", "deviation"], rows)


def _ablation_figure(title: str, x_label: str, lines: Mapping[str, Line], log_x: bool, ink: str) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure = Figure(figsize=(5.4, 3.4), dpi=DPI, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=ink, parse_math=False)
    axes.set_xlabel(x_label, fontsize=9, color=ink)
    axes.set_ylabel("MAP", fontsize=9, color=ink)
    for place, (label, points) in enumerate(lines.items()):
        x, y, deviations = zip(*points, strict=True)
        axes.errorbar(
            x,
            y,
            yerr=deviations if any(deviations) else None,  # of one seed there is none
            capsize=3,
            elinewidth=1,
            color=COLOURS[place % len(COLOURS)],
            marker=MARKERS[place % len(MARKERS)],
            linestyle=DASHES[place % len(DASHES)],
            linewidth=1.6,
            markersize=5,
            label=label,
        )
    places = sorted({x for points in lines.values() for x, _, _ in points})
    if log_x:
        axes.set_xscale("log")
    axes.set_xticks(places)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    not_too_near(axes)
    plain_axes(axes, ink)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=9, handlelength=3.6, labelcolor=ink)
    return figure


def _words(title: str, lines: Mapping[str, Line]) -> str:
    spoken = [f"{label} " + ", ".join(f"{y:.3f} at {x:g}" for x, y, _ in points) for label, points in lines.items()]
    return f"{title}: " + "; ".join(spoken) + "."


def examples_drawing(out: Path, name: str, title: str, found: Mapping[str, list[Neighbours]]) -> Drawing:
    """For each query one row a method; right and wrong differ in frame, dashes and sign, not in colour alone."""
    rows = [
        _named(row, method)
        for together in zip(*found.values(), strict=True)
        for method, row in zip(found, together, strict=True)
    ]
    with svg_style():
        _save(out, name, draw_retrieval(rows, title=title))
    right = {method: [sum(row.right or []) for row in neighbours] for method, neighbours in found.items()}
    queries = [row.query_label for row in next(iter(found.values()))]
    shown = max(len(row.images) for row in rows)
    words = f"{title}. Right pictures among the {shown} nearest: " + "; ".join(
        f"{query}: " + ", ".join(f"{method} {right[method][i]}" for method in found) for i, query in enumerate(queries)
    )
    table = [[query, *(str(right[method][i]) for method in found)] for i, query in enumerate(queries)]
    return Drawing(name, title, words + ".", "", ["query", *(f"right of {m}'s {shown}" for m in found)], table)


def _named(row: Neighbours, method: str) -> Neighbours:
    from dataclasses import replace

    return replace(row, query_label=f"{row.query_label}: {method}")


def _save(out: Path, name: str, figure: Figure) -> None:
    folder = out / "figures"
    save_png(figure, folder / f"{name}.png")
    write_text(folder / f"{name}.svg", svg_text(figure))
    with replacing(folder / f"{name}.pdf") as temporary:
        # without dates, equal figures are equal files
        figure.savefig(temporary, format="pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
