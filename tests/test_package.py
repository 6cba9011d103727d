"""The package: what a plain install downloads, what is in wheel and source archive, and what runs without POSIX."""

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import size
from docs import pages

ROOT = Path(__file__).parent.parent


def test_a_plain_install_is_small():
    found = json.loads(size.RESULT.read_text(encoding="utf-8"))
    again = "measure again: python -m benchmarks.size --write"
    assert found["dependencies"] == size.dependencies(), again
    assert found["bytes"] == sum(found["files"].values()) <= size.LIMIT
    assert f"{found['bytes'] / 1e6:.0f} MB to download" in (ROOT / "README.md").read_text(encoding="utf-8"), again


def built(kind, place):
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(Path(place).iterdir())


def test_the_source_archive_has_the_software_and_no_results(tmp_path):
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "hatch_build.py", "src/hashlens/py.typed"} <= names
    assert {"src/hashlens/kernels/core.c", "tests/test_package.py", "examples/own_loss.py"} <= names
    assert {"docs/conf.py", "docs/figures/groceries.jpg", "docs/reproduction/REPRODUCTION.md"} <= names
    unwanted = ("benchmarks/results/", "docs/reproduction/sections/", "docs/generated/", "site/", "runs/")
    assert not [name for name in names if name.startswith(unwanted)]


def test_a_site_without_the_results_says_so(tmp_path, monkeypatch):
    """As built from the source archive, which has no measured results."""
    measured = pages.method_page("itq")
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
    page = pages.method_page("itq")
    assert "leaves out the measured results" in page and "MAP 0." not in page
    assert "leaves out the measured results" not in measured and "MAP 0." in measured


@pytest.mark.skipif(not os.environ.get("HASHLENS_LONG"), reason="make docs-test builds the wheel")
def test_the_wheel_has_what_the_base_needs_and_nothing_else(tmp_path):
    with zipfile.ZipFile(built("wheel", tmp_path)) as archive:
        names = set(archive.namelist())
    for name in ("py.typed", "__init__.pyi", "server/page/index.html", "codes/general/README.md"):
        assert f"hashlens/{name}" in names, name
    assert any(name.endswith(".onnx") for name in names)
    assert all(name.startswith(("hashlens/", "hashlens-")) for name in names)
    assert not [name for name in names if re.search(r"\.pyc$|/tests?/", name)]


@pytest.mark.skipif(not os.environ.get("HASHLENS_LONG"), reason="make docs-test builds the wheel")
def test_the_command_in_messages_completes_what_is_installed(tmp_path):
    """pip asks no registry for a hashlens that is there, so a wheel or a clone is enough for every extra."""
    wheel, python = built("wheel", tmp_path / "dist"), tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [python, "-m", "pip", "install", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--quiet", wheel], check=True)
    command = [python, "-c", "import runpy, sys; print(runpy.run_path(sys.argv[1])['to_install']('heif'))"]
    errors = next((tmp_path / "venv").rglob("hashlens/errors.py"))
    told = subprocess.run([*command, errors], capture_output=True, text=True, check=True).stdout.strip()
    assert told == 'pip install "hashlens[heif]"'
    done = subprocess.run([*pip, shlex.split(told)[-1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "already satisfied: hashlens[heif]" in done.stdout, done.stderr


def test_every_extra_is_on_the_page():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    for extra in set(extras) - {"dev", "docs", "engines", "milvus-lite", "milvus-server"}:
        assert f"`{extra}`" in page, extra


HIDDEN = """
import sys
for name in ("fcntl", "pwd", "grp", "termios", "resource"):
    sys.modules[name] = None
from hashlens.cli import app
for line in (["search", "photos", "photos/3.png", "-k", "2"], ["encode", "photos", "--out", "codes"],
             ["index", "build", "codes", "--out", "index"], ["index", "remove", "index", "--ids", "1"],
             ["index", "compact", "index"], ["index", "verify", "index"], ["duplicates", "photos"], ["doctor"]):
    app(line, standalone_mode=False)
"""


def test_the_base_needs_nothing_that_only_posix_has(tmp_path):
    (tmp_path / "photos").mkdir()
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), np.uint8)):
        Image.fromarray(pixels).resize((32, 32)).save(tmp_path / "photos" / f"{i}.png")
    environment = os.environ | {"HASHLENS_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_no_module_imports_what_only_posix_has_at_once():
    """Such an import is inside a function or behind a check of the platform."""
    for path in (ROOT / "src").rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not re.match(r"(import|from) (fcntl|pwd|grp|termios|resource|pty)\b", line), path


def test_issue_templates_are_there():
    for name in ("bug", "docs", "method"):
        text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8")
        assert "name: " in text and "body:" in text
