"""Figures: numbers of an ablation, or queries and what two methods find, in; SVG, PDF and PNG files out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hashlens.files import replacing, write_text
from hashlens.results.figures import (
    DPI,
    INK,
    Drawing,
    Neighbours,
    decorate,
    draw_retrieval,
    not_too_near,
    save_png,
    series_style,
    svg_style,
    svg_text,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Line = Sequence[tuple[float, float, float]]  # the value that was changed, MAP, deviation


def ablation_drawing(
    out: Path, name: str, title: str, x_label: str, lines: Mapping[str, Line], log_x: bool = False
) -> Drawing:
    """MAP against the value that was changed, one line per length, written to figures/."""
    with svg_style():
        _save(out, name, _ablation_figure(title, x_label, lines, log_x))
    said = [f"{label} " + ", ".join(f"{y:.3f} at {x:g}" for x, y, _ in points) for label, points in lines.items()]
    return Drawing(name, title, f"{title}: {'; '.join(said)}.")


def _ablation_figure(title: str, x_label: str, lines: Mapping[str, Line], log_x: bool) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    figure = Figure(figsize=(5.4, 3.4), dpi=DPI, facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    decorate(axes, title, x_label, "MAP", INK)
    for place, (label, points) in enumerate(lines.items()):
        x, y, deviations = zip(*points, strict=True)
        bars = deviations if any(deviations) else None  # one seed has none
        axes.errorbar(x, y, yerr=bars, capsize=3, elinewidth=1, **series_style(place, label))
    places = sorted({x for points in lines.values() for x, _, _ in points})
    if log_x:
        axes.set_xscale("log")
    axes.set_xticks(places)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.10g}"))
    not_too_near(axes)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=9, handlelength=3.6)
    return figure


def examples_drawing(out: Path, name: str, title: str, found: Mapping[str, list[Neighbours]]) -> Drawing:
    """Per query one row per method; right and wrong differ in frame, dashes and sign, not in colour alone."""
    rows = [
        replace(row, query_label=f"{row.query_label}: {method}")
        for together in zip(*found.values(), strict=True)
        for method, row in zip(found, together, strict=True)
    ]
    with svg_style():
        _save(out, name, draw_retrieval(rows, title=title))
    right = {method: [sum(row.right or []) for row in neighbours] for method, neighbours in found.items()}
    queries = [row.query_label for row in next(iter(found.values()))]
    shown = max(len(row.images) for row in rows)
    words = f"{title}. Right images among the {shown} nearest: " + "; ".join(
        f"{query}: " + ", ".join(f"{method} {right[method][i]}" for method in found) for i, query in enumerate(queries)
    )
    return Drawing(name, title, words + ".")


def _save(out: Path, name: str, figure: Figure) -> None:
    folder = out / "figures"
    save_png(figure, folder / f"{name}.png")
    write_text(folder / f"{name}.svg", svg_text(figure))
    with replacing(folder / f"{name}.pdf") as temporary:
        # without dates, equal figures are equal files
        figure.savefig(temporary, format="pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
