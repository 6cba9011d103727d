"""A plain `pip install hashlens`: exported models encode and search; everything else names the extra it needs."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

from hashlens import DTSH, Training, make_hasher
from hashlens.codes.export import export_onnx
from hashlens.data.images import as_images
from hashlens.errors import EXTRAS
from hashlens.progress import Progress

SOURCE = Path(__file__).parent.parent / "src"
SMALL = Training(epochs=1, batch_size=8)


def to_install(extra):
    """What works in these folders, where the software is not installed: from its source."""
    return f'pip install "{SOURCE.parent}[{extra}]"'


def installed(name, found, extra=""):
    """All distributions that an install of `name` brings."""
    if name in found:
        return found
    if name == "hashlens":  # as it is here, not as it was when it was installed
        project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines = project["dependencies"] + project["optional-dependencies"].get(extra, [])
    else:
        found[name] = metadata.distribution(name)
        lines = found[name].requires or []
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            installed(requirement.name.lower().replace("_", "-"), found)
    return found


def fill(site, extra=""):
    """Make `site` a folder like site-packages that has only what hashlens or hashlens[extra] needs."""
    site.mkdir(exist_ok=True)
    distributions = installed("hashlens", {}, extra)
    for distribution in distributions.values():
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(distribution.locate_file(name))


def start_in(place, site, *arguments):
    environment = os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{site}", "HASHLENS_OFFLINE": "1"}
    command = [sys.executable, "-S", "-m", "hashlens", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=place, env=environment, **pipes)


def run_in(place, site, *arguments):
    started = start_in(place, site, *arguments)
    out, err = started.communicate()
    return subprocess.CompletedProcess(arguments, started.returncode, out, err)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder like site-packages with the base dependencies alone, and what a user has: models and photos."""
    site, place = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("place")
    fill(site)
    rng = np.random.default_rng(0)
    pixels, y = rng.integers(0, 256, (24, 20, 20, 3), np.uint8), np.repeat(np.arange(3), 8)
    for row, image in enumerate(pixels):
        (place / "photos" / str(y[row])).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / "photos" / str(y[row]) / f"{row}.png")
    DTSH(12, backbone="small-cnn", training=SMALL).fit(pixels, y).save(place / "deep")
    make_hasher("itq", n_bits=12, features="small-cnn").fit(pixels).save(place / "itq")
    for name in ("deep", "itq"):
        export_onnx(place / name, place / f"{name}-exported", as_images(pixels), Progress(quiet=True))

    run = partial(run_in, place, site)
    run.start = partial(start_in, place, site)

    assert run("encode", "photos", "--model", "deep-exported", "--out", "codes").returncode == 0
    assert run("index", "build", "codes", "--out", "index").returncode == 0
    yield run
    shutil.rmtree(site)


@pytest.mark.parametrize("model", ["deep-exported", "itq-exported"])
def test_exported_models_encode_and_search(base, model):
    for command in (
        ["encode", "photos", "--model", model, "--out", f"codes-{model}"],
        ["index", "build", f"codes-{model}", "--out", f"index-{model}"],
        ["search", f"index-{model}", "photos/1/9.png", "-k", "24", "--model", model, "--json"],
    ):
        done = base(*command)
        assert done.returncode == 0, done.stderr
    own = next(hit for hit in json.loads(done.stdout)["hits"] if hit["path"].endswith("photos/1/9.png"))
    assert own["distance"] == 0


def test_a_folder_is_searched_without_any_model_of_ones_own(base):
    done = base("search", "photos", "photos/1/9.png", "-k", "3", "--json")
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)["hits"][0]
    assert first["distance"] == 0 and first["path"].endswith("photos/1/9.png")


def test_nothing_is_reported_to_the_maker_of_the_runtime(base, tmp_path, monkeypatch):
    """onnxruntime would make a number for this machine, keep what it has seen in a database, and send it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HASHLENS_CACHE", raising=False)
    assert base("search", "photos", "photos/1/9.png", "-q").returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["hashlens"]


def test_duplicates_of_a_folder_are_found(base):
    done = base("duplicates", "photos", "--radius", "-1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["n_images"] == 24 and found["groups"] == []


def test_a_folder_is_served(base):
    """The page answers, so all that the server imports is there."""
    with base.start("serve", "photos", "--port", "0") as server:
        line = server.stdout.readline()
        assert line.startswith("ready  24 images"), line + server.stderr.read()
        address = line.split()[-1]
        with urllib.request.urlopen(f"{address}/") as page:
            assert b"<!doctype html>" in page.read().lower()
        server.terminate()


@pytest.mark.parametrize(
    ("typed", "extra"),
    [
        ("demo", "train"),
        ("train photos", "train"),
        ("train photos --method itq --features gist", "methods"),
        ("tune photos --method itq --features gist", "methods"),
        ("encode photos --model deep-exported --on ray --out new", "ray"),
        ("compare photos --methods itq --features gist", "methods"),
        ("features photos", "train"),
        ("features photos --kind gist", "methods"),
        ("encode photos --model deep", "train"),
        ("encode photos --model itq", "methods"),
        ("export deep", "train"),
        ("index copy index --engine faiss --to lists", "faiss"),
        ("data check digits", "methods"),
        ("groups photos", "methods"),
    ],
)
def test_a_missing_extra_is_named(base, typed, extra):
    done = base(*typed.split())
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert lines[-1].startswith("error: ") and to_install(extra) in lines[-1]


def test_shallow_methods_train_with_the_methods_extra_alone(tmp_path):
    fill(site := tmp_path / "site", "methods")
    for row, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (24, 20, 20, 3), np.uint8)):
        file = tmp_path / "photos" / str(row % 3) / f"{row}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file)
    itq = ["train", "photos", "--method", "itq"]
    done = run_in(tmp_path, site, *itq, "--features", "gist", "--bits", "12", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert to_install("report") in done.stderr and "report" not in done.stdout
    assert (tmp_path / "run" / "result.json").exists() and not (tmp_path / "run" / "report.html").exists()
    done = run_in(tmp_path, site, *itq)
    assert done.returncode == 2 and to_install("train") in done.stderr


def test_doctor_lists_what_is_missing(base):
    done = base("doctor")
    assert done.returncode == 0, done.stderr
    assert all(f"{extra} missing" in done.stdout for extra in EXTRAS)
