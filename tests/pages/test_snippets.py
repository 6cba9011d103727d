"""The Python of README and docs runs, page by page, on small data; so do the commands that are cheap."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from written import blocks, pages, title

from hashlens import Codes

ROOT = Path(__file__).parent.parent.parent
WITH_PYTHON = [page for page in pages() if any(language == "python" for language, _ in blocks(page))]
IMAGES = ("docs/howto/add-a-network.md",)  # pages whose `images` must be images; elsewhere features do, and are quicker
SERVER = "db.example"  # what needs a server is run by tests/index/test_conformance.py; here, its names are looked up


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with photos/, query.jpg and a cache of its own."""
    place = tmp_path_factory.mktemp("place")
    for row, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (12, 4, 4, 3), np.uint8)):
        file = place / "photos" / str(row % 3) / f"{row}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((48, 48)).save(file)
    (place / "query.jpg").write_bytes(file.read_bytes())
    return place


def made_names(page):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 20)
    X = (rng.standard_normal((60, 8)) + 3 * np.eye(8)[labels]).astype(np.float32)
    images = rng.integers(0, 256, (60, 32, 32, 3), np.uint8) if title(page) in IMAGES else X
    return {"images": images, "labels": labels, "X": X, "y": labels, "codes": Codes.from_relaxed(X)}


@pytest.mark.parametrize("page", WITH_PYTHON, ids=title)
def test_python_of_a_page(page, place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setenv("HASHLENS_CACHE", str(place / "cache"))
    names = made_names(page)
    for language, text in blocks(page):
        if language == "python":
            code = compile(text, title(page), "exec")
            exec(_imports(text) if SERVER in text else code, names)


def _imports(text):
    return "\n".join(line for line in text.splitlines() if line.startswith(("import ", "from ")))


def test_pages_have_python():
    assert len(WITH_PYTHON) >= 5


CHEAP = [  # commands that pages show and that are quick; each must be on a page
    "hashlens search photos/ query.jpg",
    "hashlens duplicates photos/ --html duplicates.html",
    "hashlens groups photos/ --html groups.html --csv groups.csv",
    "hashlens data check photos.csv",
    "hashlens methods",
    "hashlens methods ksh",
    "hashlens index build codes --out index",
    "hashlens index verify index",
    "hashlens index sync index photos --dry-run",
    "hashlens index compact index",
    "hashlens doctor",
]


def test_cheap_commands_run(place, monkeypatch):
    shown = " ".join(" ".join(page.read_text(encoding="utf-8").split()) for page in pages())
    monkeypatch.chdir(place)
    monkeypatch.setenv("HASHLENS_CACHE", str(place / "cache"))
    rows = [f"{path.relative_to(place)},{path.parent.name}" for path in sorted((place / "photos").rglob("*.jpg"))]
    (place / "photos.csv").write_text("\n".join(["path,labels", *rows]), encoding="utf-8")
    lines = ["hashlens encode photos/ --out codes", *CHEAP]
    script = "\n".join(
        ["from hashlens.cli import app"]  # all in one process, which is quicker
        + [f"app({line.split()[1:]!r}, standalone_mode=False)" for line in lines]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for line in CHEAP:
        assert re.search(re.escape(line), shown), f"no page shows {line}"
    assert (place / "duplicates.html").exists() and (place / "groups.csv").exists()
