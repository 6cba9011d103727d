"""What README and docs say is true: tables, claims and links; tests/pages has commands, snippets and the site."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import tables
from hashlens import METHODS, __version__
from hashlens.results.paper import finished_sections
from hashlens.results.paper.page import markdown
from hashlens.results.paper.targets import TARGETS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_tables_are_current(page):
    text = page.read_text(encoding="utf-8")
    assert tables.filled(text) == text, "run: make results"


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("cifar10-*.json")), ids=lambda p: p.stem)
def test_results_tell_how_they_were_made(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    for key in ("command", "config", "versions", "machine", "seconds", "metrics", "protocol"):
        assert result[key], key
    assert len(result["protocol"]["split_hash"]) == 64
    assert result["map"] == result["metrics"]["map"]


def test_the_reproduction_page_is_current():
    folder = ROOT / "docs" / "reproduction"
    sections = finished_sections(folder)
    machine = json.loads((folder / "env.json").read_text(encoding="utf-8"))["machine"]
    assert [section.target for section in sections] == list(TARGETS)
    assert (folder / "REPRODUCTION.md").read_text(encoding="utf-8") == markdown(sections, machine)
    assert "/tmp" not in json.dumps([section.command for section in sections])


def maps(name):
    """MAP by method and length of a committed comparison."""
    path = ROOT / "benchmarks" / "results" / "comparison" / f"{name}.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return {row["method"]: {n: at["map"] for n, at in row["lengths"].items()} for row in rows}


def test_claims_about_the_comparisons_hold():
    """docs/comparison.md: near the printed numbers with GIST, above them with learned features, DTSH above all."""
    path = ROOT / "benchmarks" / "results" / "comparison"
    gist = maps("cifar10-gist") | maps("cifar10-gist-slow")
    printed = {}
    for name in ("cifar10-gist", "cifar10-gist-slow"):
        for row in json.loads((path / f"{name}.json").read_text(encoding="utf-8"))["rows"]:
            printed |= {(row["method"], n): at["printed"]["map"] for n, at in row["lengths"].items() if at["printed"]}
    assert len(printed) == 7 * 4
    for (method, n), theirs in printed.items():
        assert gist[method][n] > theirs - 0.01, (method, n)
        assert method not in ("sh", "itq") or gist[method][n] < theirs + 0.01, (method, n)

    own = {str(n): tables.load()[f"cifar10-1-dtsh-{n}"]["map"] for n in (12, 24, 32, 48)}
    for name in ("cifar10-deep", "cifar10-resnet50"):
        for method, at in maps(name).items():
            assert all(gist[method][n] < at[n] < own[n] for n in own), (name, method)
    dtsh = maps("mirflickr")["dtsh"]
    for method, at in maps("mirflickr-shallow").items():
        assert all(at[n] < dtsh[n] for n in dtsh), method
    networks = maps("mirflickr-networks")
    for method, at in maps("mirflickr-shallow").items():
        assert all(at[n] < networks["dtsh"][n] for n in at), method
    for n, own_map in networks["dtsh"].items():
        assert own_map < networks["dsrh"][n] < networks["dpsh"][n] < own_map + 0.02
        assert networks["dpsh"][n] == max(at[n] for at in networks.values())


@pytest.mark.parametrize("page", [*tables.PAGES, *sorted(ROOT.glob("docs/*/*.md"))], ids=lambda page: page.name)
def test_files_that_a_page_links_to_exist(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        made = "generated/" in target  # by docs/pages.py
        assert made or target.startswith("https://") or (page.parent / target).exists(), target


def test_every_promise_names_a_test_that_exists():
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    tests = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    found = [table.split("\n\n")[0] for table in text.split("| promise | kept by |\n|---|---|\n")[1:]]
    rows = [row for table in found for row in table.strip().splitlines()]
    assert len(rows) >= 35
    for row in rows:
        promise, kept_by = row.strip("| ").rsplit(" | ", 1)
        named = re.findall(r"`([^`]*)`", kept_by)
        assert promise and named, row
        file = None
        for one in named:
            if one.startswith("benchmarks/"):
                assert (ROOT / one).exists(), one
                continue
            name, test = re.fullmatch(r"(test_\w+\.py)?(?:::(test_\w+))?", one).groups()
            file = name or file
            assert file in tests, row
            assert not test or f"def {test}(" in tests[file], test


def test_one_version():
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_numbers_of_readme():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"and {len(METHODS) - 1} other methods" in text
    words = {8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}
    assert f"has {words[len(list((ROOT / 'examples').glob('*.py')))]} scripts" in text
