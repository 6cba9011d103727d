"""The written figures are read back and checked pixel by pixel."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from hashlens.codes import Codes
from hashlens.data import make_protocol, open_source
from hashlens.results.figures import curve, curves_figure, svg_line
from hashlens.results.retrieval import (
    CELL,
    DPI_OF_IMAGES,
    FOOT,
    GAP,
    HEAD,
    PAD,
    ROW,
    Neighbours,
    distance_names,
    nearest,
    retrieval_figure,
)

METRICS = [
    {"epoch": str(epoch), "loss": str(3 / epoch), "active": "0.5", "quantisation": "0.2", "dead_bits": "0"}
    for epoch in range(1, 6)
]


def grey_image(value: int = 128, size: tuple[int, int] = (32, 32)) -> Image.Image:
    return Image.new("RGB", size, (value, value, value))


def row(right: list[bool], label: str = "cat") -> Neighbours:
    n = len(right)
    return Neighbours(grey_image(), label, [grey_image()] * n, [label] * n, [3] * n, right, 48)


def dots(path: Path, mode: str = "L") -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert(mode))


def cell(figure: np.ndarray, rank: int) -> np.ndarray:
    """The neighbour of that rank in the first row, with its frame and the text below."""
    left, top = PAD + CELL + GAP + rank * (CELL + PAD) - PAD // 2, HEAD - PAD // 2
    scale = DPI_OF_IMAGES // 100
    return figure[top * scale : (top + ROW) * scale, left * scale : (left + CELL + PAD) * scale]


def test_retrieval_figure_has_a_row_for_each_query(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "results.png"
    retrieval_figure([row([True] * 8), row([False] * 5)], path, title="Two queries")
    figure = dots(path)
    width, height = PAD + CELL + GAP + 8 * (CELL + PAD), HEAD + 2 * ROW + FOOT
    assert figure.shape == (height * DPI_OF_IMAGES // 100, width * DPI_OF_IMAGES // 100)
    scale = DPI_OF_IMAGES // 100
    assert figure[: HEAD * scale].min() < 100, "the title is drawn"
    assert figure[-FOOT * scale :].min() < 100, "the legend is drawn"
    for rank in range(8):
        middle = cell(figure, rank)[PAD // 2 * scale :][: CELL * scale, PAD * scale : CELL * scale]
        assert abs(int(np.median(middle)) - 128) <= 1, "the image keeps its colour"
    second = figure[(HEAD + ROW) * scale : (HEAD + 2 * ROW - 10) * scale]
    used = PAD + CELL + GAP + 5 * (CELL + PAD)
    assert second[:, used * scale :].min() == 255, "a shorter row leaves its end empty"


def test_ties_are_ordered_by_the_second_code(rng) -> None:
    source = open_source("digits")
    protocol = make_protocol(source)

    def codes(rows: np.ndarray) -> Codes:
        second = Codes(rng.integers(0, 256, (len(rows), 2), np.uint8), 16)
        return Codes(np.zeros((len(rows), 1), np.uint8), 8, second)

    query, database = codes(protocol.query), codes(protocol.database)
    for one in nearest(query, database, source, protocol):
        assert one.second is not None and one.distances == [0] * 10
        assert one.second == sorted(one.second) and one.second[-1] <= 5, "the nearest of all that tie"
        assert distance_names(one)[0] == f"0 + {one.second[0]} bit{'s' if one.second[0] != 1 else ''}"
    without = [Codes(one.packed, 8) for one in (query, database)]
    (first, *_) = nearest(*without, source, protocol)
    assert first.second is None and distance_names(first)[0] == "0 bits"


def test_right_and_wrong_differ_without_colour(tmp_path: Path) -> None:
    path = tmp_path / "results.png"
    retrieval_figure([row([True, False, True])], path, title="")
    figure = dots(path)
    right, wrong, again = (cell(figure, rank) < 160 for rank in range(3))
    assert np.array_equal(right, again)

    scale = DPI_OF_IMAGES // 100
    line = (PAD // 2 - 2) * scale  # the middle of the frame's upper side
    upper_right, upper_wrong = (part[line, PAD * scale : CELL * scale] for part in (right, wrong))
    assert upper_right.all(), "the frame of a right image is one line"
    assert 0.3 < upper_wrong.mean() < 0.9, "the frame of a wrong image has gaps"

    sign = (slice((PAD // 2 + CELL + 8) * scale, None), slice(0, (PAD // 2 + 16) * scale))
    below_right, below_wrong = right[sign], wrong[sign]
    assert below_right.any() and below_wrong.any()
    assert (below_right != below_wrong).sum() > 50, "the signs have different shapes"


def test_retrieval_figure_takes_any_image_and_label(tmp_path: Path) -> None:
    path = tmp_path / "results.png"
    odd = Neighbours(
        query=Image.new("L", (300, 20)),
        query_label="costs $5 or $6_a",
        images=[Image.new("RGBA", (1, 1)), Image.new("P", (20, 400))],
        labels=["a label much longer than an image is wide", ""],
        distances=[0, 1],
        right=[False, True],
        n_bits=12,
    )
    nothing = Neighbours(grey_image(), "alone", [], [], [], [], 12)
    retrieval_figure([odd, nothing], path, title="$1 and $2")
    assert dots(path).std() > 0
    with pytest.raises(ValueError, match="at least one query"):
        retrieval_figure([], path, title="")


def test_equal_figures_are_equal_files(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        retrieval_figure([row([True, False])], tmp_path / name, title="Twice")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "b.png"}, "nothing else is left behind"


def test_curves_figure_has_four_panels(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    curves_figure(METRICS, path)
    figure = dots(path, "RGB").astype(int)
    assert figure.shape == (1040, 1600, 3)
    blue = figure[..., 2] - figure[..., 0] > 100
    for vertical in np.array_split(blue, 2, axis=0):
        for panel in np.array_split(vertical, 2, axis=1):
            assert panel.sum() > 500, "every panel has its line"


def test_curves_figure_leaves_out_missing_columns(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    curves_figure([{"epoch": 1, "loss": 2.0, "active": ""}], path)
    assert dots(path).shape == (520, 800)
    with pytest.raises(ValueError, match="no epoch"):
        curves_figure([], path)


def test_curve_reads_text_and_skips_values_that_are_not_numbers() -> None:
    rows = [{"epoch": "1", "loss": "0.5"}, {"epoch": "2", "loss": ""}, {"epoch": "3", "loss": "nan"}]
    rows.append({"epoch": "4"})
    assert curve(rows, "loss") == ([1.0], [0.5])


def plot(name: str = "pr", scale: str = "") -> str:
    x, y = [1, 10, 100], [0.9, 0.8, 0.2]
    return svg_line(name, x, y, "N", "$y", 'a "b" <c>', scale)


@pytest.mark.parametrize("scale", ["unit", "log", "epochs"])
def test_svg_is_the_same_every_time_and_keeps_text_as_text(scale: str) -> None:
    svg = plot(scale=scale)
    assert svg == plot(scale=scale)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'a "b" <c>'
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"N", "$y"} <= texts


def test_svgs_can_share_a_page() -> None:
    ids = [
        {element.get("id") for element in ElementTree.fromstring(plot(name)).iter() if element.get("id")}
        for name in ("one", "two")
    ]
    assert ids[0] and not ids[0] & ids[1]
    svg = plot()
    assert "<style" not in svg, "it would style the whole page"
    assert "#010203" not in svg and "#040506" not in svg
    assert "currentColor" in svg and "var(--accent" in svg


def test_svg_references_lead_somewhere() -> None:
    root = ElementTree.fromstring(plot())
    ids = {element.get("id") for element in root.iter()}
    links = [element.get("{http://www.w3.org/1999/xlink}href") for element in root.iter()]
    links += [(element.get("clip-path") or "")[4:-1] for element in root.iter()]
    links = [link for link in links if link]
    assert links and all(link.removeprefix("#") in ids for link in links)
