"""The report is read back with an HTML parser."""

from __future__ import annotations

import base64
import io
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hashlens.results.report import write_report
from hashlens.results.retrieval import Neighbours

EVIL = "<script>alert(1)</script>"
RESULT: dict[str, Any] = {
    "method": "dtsh",
    "n_bits": 48,
    "source": "cifar10",
    "protocol": {"name": "cifar10-5k", "n_train": 5000, "n_query": 1000, "split_hash": "77c1ab", "seed": 0},
    "backbone": "lite0",
    "image_size": 128,
    "metrics": {
        "map": 0.7704,
        "map_tie_aware": 0.7691,
        "map_best": 0.79,
        "map_worst": 0.75,
        "definition": "whole ranking, ties by lowest id",
        "precision_at_1000": 0.7,
        "precision_at_100": 0.8,
        "precision_radius_2": 0.81,
        "empty_radius_2": 0.05,
        "per_class_map": {"dog": 0.6, EVIL: 0.9},
        "pr_curve": {"precision": [0.9, 0.5, 0.1], "recall": [0.1, 0.5, 1.0]},
    },
    "paper": {"map": 0.774, "source": "Table 1", "comparable": True},
    "seconds": {"train": 125.0, "encode": 0.5},
    "versions": {"numpy": "2.3"},
    "machine": {"cpu": "Xeon"},
    "config": {"epochs": 30, "loss": {"margin": 24.0}},
}
HISTORY = [{"epoch": epoch, "loss": 1 / epoch, "active": 0.5, "dead_bits": 0} for epoch in (1, 2, 3)]
VOID = {"meta", "img", "br", "link", "hr", "input"}


def neighbours(label: str = "cat") -> Neighbours:
    small, large = Image.new("RGB", (32, 32), "navy"), Image.new("RGB", (800, 600), "teal")
    return Neighbours(small, label, [small, large], [label, "dog"], [0, 3], [True, False], 48)


class Page(HTMLParser):
    """All tags with their attributes, all text; every opened tag has to be closed in order."""

    def __init__(self, path: Path):
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self.open
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data + " "

    def all(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag in names]


def report(path: Path, result: dict[str, Any] = RESULT, **parts: Any) -> Page:
    write_report(path, title="A run", result=result, **parts)
    return Page(path)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return report(
        tmp_path_factory.mktemp("run") / "report.html",
        neighbours=[neighbours(), neighbours(EVIL)],
        history=HISTORY,
        commands=["hashlens train cifar10 --bits 48", "hashlens eval 'a & b'"],
    )


def test_it_asks_for_nothing_from_the_network(page: Page) -> None:
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/"))
    assert not page.all("script", "link", "iframe", "object")
    assert not re.search(r"url\((?!#)|@import", page.source)
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'")


def test_labels_are_text_and_not_markup(page: Page) -> None:
    assert "<script" not in page.source
    assert page.text.count(EVIL) >= 2
    assert f"Query: {EVIL}" in [a["alt"] for a in page.all("img")]
    assert "hashlens eval 'a & b'" in page.text


def test_every_image_and_plot_has_words(page: Page) -> None:
    assert len(page.all("img")) == 2 * 3
    assert all(a.get("alt") for a in page.all("img"))
    drawings = page.all("svg")
    assert all(a.get("aria-hidden") == "true" or a.get("aria-label") for a in drawings)
    assert sum(a.get("role") == "img" for a in drawings) == 5
    labels = [a.get("aria-label") for a in drawings]
    assert "Precision and recall: precision 0.9 at recall 0.1, 0.1 at recall 1." in labels
    assert "Precision among the N nearest images: precision 0.8 at N 100, 0.7 at N 1000." in labels


def test_structure(page: Page) -> None:
    assert page.source.startswith("<!DOCTYPE html>")
    assert page.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))
    assert all(a.get("scope") in ("row", "col") for a in page.all("th"))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["aria-labelledby"] for a in page.all("section")} <= set(ids)


def test_numbers_are_there(page: Page) -> None:
    for words in (
        "MAP of this run 0.770",
        "MAP in the paper 0.774 Table 1",
        "Difference −0.004",
        "whole ranking, ties by lowest id",
        "Tie-aware MAP 0.769",
        "MAP, best ties 0.790",
        "Precision within radius 2 0.810",
        "Nothing within radius 2 0.050",
        "Split hash 77c1ab",
        "loss.margin 24",
        "train 2 min 5 s",
        "numpy 2.3",
        "cpu Xeon",
        "hashlens train cifar10 --bits 48",
    ):
        assert words in page.text
    bars = [a["style"] for a in page.all("span") if a.get("class") == "bar"]
    assert bars == ["width: 90.0%", "width: 60.0%"], "best class first"


def test_right_and_wrong_differ_in_class_sign_and_words(page: Page) -> None:
    items = page.source.split("<li ")[3:5]  # the legend has two
    assert 'class="right"' in items[0] and 'class="wrong"' in items[1]
    signs = [re.findall(r'<path d="([^"]*)"', item)[0] for item in items]
    assert signs[0] != signs[1]
    assert "Same label" in items[0] and "Other label" in items[1]
    assert "0 of 48 bits differ" in " ".join(items[0].split())
    assert "3 of 48 bits differ" in " ".join(items[1].split())
    assert re.search(r"\.right \.frame \{[^}]*solid", page.source)
    assert re.search(r"\.wrong \.frame \{[^}]*dashed", page.source)


def test_images_are_inside_and_small(page: Page) -> None:
    sizes = set()
    for attributes in page.all("img"):
        data = base64.b64decode((attributes["src"] or "").split("base64,")[1], validate=True)
        with Image.open(io.BytesIO(data)) as image:
            sizes.add(image.size)
    assert sizes == {(32, 32), (192, 144)}


def test_the_same_run_gives_the_same_file(tmp_path: Path) -> None:
    first = report(tmp_path / "a.html", neighbours=[neighbours()], history=HISTORY)
    second = report(tmp_path / "b.html", neighbours=[neighbours()], history=HISTORY)
    assert first.source == second.source


def test_a_run_without_labels_or_printed_number(tmp_path: Path) -> None:
    page = report(tmp_path / "report.html", RESULT | {"metrics": {"triplets_right": 0.9}, "paper": None})
    assert "Held-out triplets right 0.900" in page.text and "MAP of this run" not in page.text
    assert "paper" not in page.text and not page.all("svg", "img")
    other = RESULT | {"paper": {"map": 0.7, "source": "Table 1", "comparable": False}}
    assert "not comparable" in report(tmp_path / "report.html", other, history=[{"epoch": 1, "loss": "nan"}]).text
