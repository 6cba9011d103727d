"""Retrieval: codes of queries and of a database in, the nearest images of a few queries and a figure of them out.

Right and wrong differ in three ways, so that they can be told apart without colour: a solid green frame and a check
mark against a dashed red frame and a cross. The signs are drawn as lines, because fonts may lack them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import ImageOps
from PIL.Image import Image, Resampling

from hashlens.codes import Codes
from hashlens.codes.hamming import distances
from hashlens.data import Source
from hashlens.data.labels import relevant
from hashlens.data.protocols import Protocol
from hashlens.results.figures import GREY, INK, save_figure
from hashlens.results.tables import length_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREEN, RED = "#1a7f37", "#cf222e"
EXAMPLES, NEAREST = 10, 10  # rows and columns of the figure


@dataclass(frozen=True)
class Neighbours:
    """One query and its nearest images; `right` is whether they share its label, None without labels."""

    query: Image
    query_label: str
    images: list[Image]
    labels: list[str]
    distances: list[int]
    right: list[bool] | None
    n_bits: int
    second: list[int] | None = None  # distances of the second codes, which order ties
    second_bits: int = 0


def nearest(query: Codes, database: Codes, source: Source, protocol: Protocol) -> list[Neighbours]:
    """The nearest images of a few queries: the first query of each of the first classes, whatever its score.

    Without queries, a few images of the database are searched for, and results are not marked right or wrong.
    """
    labelled = len(query) > 0
    asked, query = (protocol.query, query) if labelled else (protocol.database, database)

    def named(row: int) -> str:
        return source.labels.describe(int(row)) if labelled else source.images.names[row]

    first = {named(row): place for place, row in reversed(list(enumerate(asked)))} if labelled else {}
    chosen = sorted(first.values())[:EXAMPLES]
    chosen += [place for place in range(len(asked)) if place not in chosen][: EXAMPLES - len(chosen)]
    found = []
    for place in chosen:
        row, apart = asked[place], distances(query[place], database)[0]
        ties = None
        if query.second is not None and database.second is not None:
            ties = distances(query.second[place], database.second)[0]
        order = np.argsort(apart, kind="stable") if ties is None else np.lexsort([ties, apart])
        order = order[protocol.database[order] != row][:NEAREST]
        near = protocol.database[order]
        found.append(
            Neighbours(
                query=source.images.thumbnail(int(row)),
                query_label=named(row),
                images=[source.images.thumbnail(int(other)) for other in near],
                labels=[named(other) for other in near],
                distances=apart[order].tolist(),
                right=relevant(source.labels[[row]], source.labels[near])[0].tolist() if labelled else None,
                n_bits=query.n_bits,
                second=None if ties is None else ties[order].tolist(),
                second_bits=0 if query.second is None else query.second.n_bits,
            )
        )
    return found


def distance_names(row: Neighbours) -> list[str]:
    """The distance of each image as "3 bits", or with second codes "3 + 41 bits"."""
    if row.second is None:
        return [length_name(distance) for distance in row.distances]
    return [f"{first} + {length_name(second)}" for first, second in zip(row.distances, row.second, strict=True)]


# The retrieval figure is laid out in hundredths of an inch, from the top left corner.
CELL = 96  # at 200 dots per inch, 192 dots: a multiple of CIFAR's 32
PAD = 16
GAP = 30  # between the query and its neighbours
ROW = CELL + 54  # an image and two lines of text
HEAD, FOOT = 62, 40
DPI_OF_IMAGES = 100  # for a hundred images: sharp on any screen, in a small file


def retrieval_figure(rows: list[Neighbours], *paths: Path, title: str) -> None:
    """Write a figure with one query per row: the query at the left, its nearest images at the right."""
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
        neighbours = zip(row.images, row.labels, distance_names(row), verdicts, strict=True)
        for rank, (image, label, distance, right) in enumerate(neighbours):
            left = nearest + rank * (CELL + PAD)
            _image(axes, image, left, top)
            _verdict_frame(axes, left, top, CELL, right)
            if right is not None:
                _sign(axes, left, top + CELL + 11, 12, right)
            _text(axes, left + (0 if right is None else 18), top + CELL + 17, distance, size=8)
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
    explained = f"bits: how many of the {lengths} differ from the query's code"
    if second := {row.second_bits for row in rows if row.second is not None}:
        seconds = " or ".join(map(str, sorted(second)))
        explained = (
            f"a + b bits: a of {lengths} differ from the query's code, b of {seconds} from its second code, for ties"
        )
    _text(axes, PAD + (295 if judged else 0), middle, explained, size=8)
    save_figure(figure, *paths)


def _image(axes: Axes, image: Image, left: float, top: float) -> None:
    dots = CELL * DPI_OF_IMAGES // 100
    # Lanczos makes 32x32 pixels a soft photograph; nearest-neighbour scaling makes a mosaic that is harder to
    # recognise.
    square = ImageOps.pad(image.convert("RGB"), (dots, dots), Resampling.LANCZOS, color="white")
    place = (left, left + CELL, top + CELL, top)
    axes.imshow(np.asarray(square), extent=place, aspect="auto", interpolation="nearest")


def _frame(axes: Axes, left: float, top: float, size: float, **style: Any) -> None:
    from matplotlib.patches import Rectangle

    # Outside the image, so that the gaps between the dashes are white.
    left, top, size = left - 2, top - 2, size + 4
    axes.add_patch(Rectangle((left, top), size, size, fill=False, joinstyle="miter", **style))


def _verdict_frame(axes: Axes, left: float, top: float, size: float, right: bool | None) -> None:
    if right is None:
        return _frame(axes, left, top, size, color=GREY, linewidth=1)
    color, dashes = (GREEN, "solid") if right else (RED, (0, (2.2, 1.4)))
    _frame(axes, left, top, size, color=color, linewidth=2.4, linestyle=dashes, capstyle="butt")


def _sign(axes: Axes, left: float, top: float, size: float, right: bool) -> None:
    """A check mark or a cross in the square of `size` at (left, top)."""
    check = [(0.05, 0.55), (0.38, 0.9), (0.95, 0.1)]
    cross = [(0.1, 0.1), (0.9, 0.9), (np.nan, np.nan), (0.1, 0.9), (0.9, 0.1)]  # two lines
    x, y = size * np.transpose(check if right else cross)
    color = GREEN if right else RED
    axes.plot(left + x, top + y, color=color, linewidth=2, solid_capstyle="round", solid_joinstyle="round")


def _text(axes: Axes, x: float, y: float, text: str, *, color: str = INK, **style: Any) -> None:
    # A dollar sign in a label must not start a formula.
    axes.text(x, y, text, color=color, va="center_baseline", parse_math=False, **style)


def _short(label: str) -> str:
    """A label that fits under an image."""
    return label if len(label) <= 16 else label[:15] + "…"
