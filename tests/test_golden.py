"""The same pixels have one code: whatever they are stored in, whichever way they come in, bit for bit.

           array   PIL   PNG   tar   Hugging Face   upload
Python       x      x     x     x         x
encode                    x     x         x
search              x     x                           x
server                                                x
exported     x      x     x     x         x
Ray                       x     x
"""

import io
import json
import subprocess
import sys
import tarfile
from dataclasses import replace

import datasets
import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from made_networks import random_weights
from PIL import Image
from ray_environment import ray_environment
from typer.testing import CliRunner

from hashlens import DTSH, Codes, Training, load
from hashlens.cli import app
from hashlens.codes.encoder import Encoder
from hashlens.codes.export import export_onnx
from hashlens.codes.folder import CodesFolder
from hashlens.codes.model import ModelFolder
from hashlens.data import open_source
from hashlens.data.images import as_images
from hashlens.features.networks import weights
from hashlens.hashers.shallow.itq import ITQ
from hashlens.hashers.shallow.ksh import KSH
from hashlens.index.folder import IndexFolder
from hashlens.progress import Progress
from hashlens.search import open_searcher
from hashlens.search.queries import QueryImage
from hashlens.server.app import create_app

N = 9  # of each size: more than a batch
SIZES = [(20, 20), (60, 44)]  # all networks here see 32 x 32 pixels: one is enlarged, the other shrunk
MODELS = ["dtsh-lite0", "dtsh-small-cnn", "itq-small-cnn", "ksh-gist"]
BARELY = Training(epochs=1, batch_size=9, lr=1e-9, head_lr=1e-9)  # random projections tell more images apart
FILES = ["png", "tar", "huggingface"]


@pytest.fixture(scope="module")
def stacks():
    """Images of a few coarse spots each, one array for each size."""
    rough = np.random.default_rng(0).integers(0, 256, (2, N, 5, 5, 3), np.uint8)
    return [
        np.stack([np.asarray(Image.fromarray(x).resize(size, Image.Resampling.BICUBIC)) for x in some])
        for some, size in zip(rough, SIZES, strict=True)
    ]


@pytest.fixture(scope="module")
def stored(stacks, tmp_path_factory):
    """The images in each container, in the same order."""
    root = tmp_path_factory.mktemp("golden")
    pil = [Image.fromarray(image) for stack in stacks for image in stack]
    paths = [root / "png" / f"{row:02d}.png" for row in range(len(pil))]
    (root / "png").mkdir()
    for image, path in zip(pil, paths, strict=True):
        image.save(path)
    with tarfile.open(root / "images.tar", "w") as archive:
        for path in paths:
            archive.add(path, path.name)
    saved = datasets.Dataset.from_dict({"image": [{"path": None, "bytes": path.read_bytes()} for path in paths]})
    saved.cast_column("image", datasets.Image()).save_to_disk(str(root / "huggingface"))
    sources = {"png": root / "png", "tar": root / "images.tar", "huggingface": root / "huggingface"}
    return {
        "array": stacks,
        "pil": [pil],
        **{name: [open_source(str(path), labels="optional").images] for name, path in sources.items()},
        "upload": [path.read_bytes() for path in paths],
        "paths": paths,
        "sources": {name: str(path) for name, path in sources.items()},
    }


@pytest.fixture(scope="module")
def models(stacks, tmp_path_factory, session_cache):
    """The folders of the four models and, beside each, its export where it has a network."""
    root = tmp_path_factory.mktemp("models")
    y = np.arange(N) % 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASHLENS_CACHE", str(session_cache))
        patch.setattr(weights, "pretrained_weights", random_weights)
        lite = {"backbone": "efficientnet-lite0", "image_size": 32, "frozen_blocks": 14}
        small = {"backbone": "small-cnn", "image_size": 32}
        hashers = [
            DTSH(48, sampling="in-batch", training=replace(BARELY, mirror=True), **lite).fit(stacks[0], y),
            DTSH(48, sampling="in-batch", training=BARELY, **small).fit(stacks[0], y),
            ITQ(64, features="small-cnn@32").fit(stacks[0]),
            KSH(24, features="gist", n_anchors=9).fit(stacks[0], np.arange(N) % 4),
        ]
        for name, hasher in zip(MODELS, hashers, strict=True):
            hasher.save(root / name)
            if name != "ksh-gist":
                result = export_onnx(root / name, root / f"{name}-onnx", as_images(stacks[0]), Progress(quiet=True))
                assert result["same_model"]
    return root


@pytest.fixture(scope="module")
def golden(stored, models):
    """The codes of the four models, each image encoded alone."""
    codes = {}
    for name in MODELS:
        encoder = Encoder.load(models / name)
        codes[name] = Codes.concatenate([encoder.codes([image]) for image in stored["pil"][0]])
        assert len(np.unique(codes[name].packed, axis=0)) > 3  # or equal codes would say little
    return codes


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("container", ["array", "pil", *FILES])
def test_python(golden, stored, models, name, container):
    hasher = load(models / name)
    assert Codes.concatenate([hasher.encode(images) for images in stored[container]]).equals(golden[name])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("container", FILES)
def test_encode(golden, stored, models, tmp_path, name, container):
    command = ["encode", stored["sources"][container], "--model", str(models / name), "--out", str(tmp_path / "codes")]
    result = CliRunner().invoke(app, [*command, "--shard-size", "7"], catch_exceptions=False)
    assert result.exit_code == 0
    assert CodesFolder.open(tmp_path / "codes").concatenated()[0].equals(golden[name])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "ksh-gist"])
@pytest.mark.parametrize("container", ["array", "pil", *FILES])
def test_exported(golden, stored, models, name, container):
    encoder = Encoder.load(models / f"{name}-onnx")
    assert Codes.concatenate([encoder.codes(images) for images in stored[container]]).equals(golden[name])


@pytest.fixture(scope="module", params=MODELS)
def served(request, golden, stored, models, tmp_path_factory):
    """An index of a model's codes, and the codes as text."""
    codes, name = golden[request.param], request.param
    index = IndexFolder.create(
        tmp_path_factory.mktemp("index") / "index", codes.n_bits, ModelFolder.resolve(models / name).describe()
    )
    index.add(codes, pa.table({"path": [str(path) for path in stored["paths"]]}))
    return index.path, models / name, [row.tobytes().hex() for row in codes.packed]


def test_search(served, stored):
    index, model, expected = served
    searcher = open_searcher(index, model)
    for queries in (stored["pil"][0], stored["paths"], stored["upload"]):
        answers = [searcher.search(query, k=1) for query in queries]
        assert [answer["query"]["code"] for answer in answers] == expected
        assert all(answer["hits"][0]["distance"] == 0 for answer in answers)
    command = ["search", str(index), str(stored["paths"][0].parent), "--model", str(model), "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert [json.loads(line)["query"]["code"] for line in result.stdout.splitlines()] == expected


def test_server(served, stored):
    index, model, expected = served
    with TestClient(create_app(open_searcher(index, model)), base_url="http://127.0.0.1") as client:
        answers = [client.post("/v1/search", files={"image": ("query.png", body)}).json() for body in stored["upload"]]
    assert [answer["query"]["code"] for answer in answers] == expected


RAY = """
import json, sys
import ray
from typer.testing import CliRunner
from hashlens.cli import app
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
for source, model, out in json.loads(sys.argv[1]):
    command = ["encode", source, "--model", model, "--out", out, "--on", "ray", "--shard-size", "7"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
"""


def test_ray(golden, stored, models, tmp_path):
    """All models; two of them on one container only, as each pair takes Ray ten seconds and more.

    In a process of its own, as Ray's warnings are not ours.
    """
    containers = {name: ["png", "tar"] for name in MODELS} | {"dtsh-small-cnn": ["png"], "itq-small-cnn": ["tar"]}
    pairs = [(name, container) for name in MODELS for container in containers[name]]
    jobs = [[stored["sources"][c], str(models / name), str(tmp_path / f"{name}-{c}")] for name, c in pairs]
    command = [sys.executable, "-c", RAY, json.dumps(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, env=ray_environment())
    assert done.returncode == 0, done.stderr
    for (name, _), (_, _, out) in zip(pairs, jobs, strict=True):
        assert CodesFolder.open(out).concatenated()[0].equals(golden[name])


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_lossy_files_have_the_code_of_all_their_pixels(stored, models, tmp_path, kind):
    """Also one so large that a JPEG decoder could take a half or a quarter of its resolution, which is faster."""
    large = Image.fromarray(np.random.default_rng(1).integers(0, 256, (260, 300, 3), np.uint8))
    photos = tmp_path / "photos"
    photos.mkdir()
    files = [photos / f"{row:02d}.{kind.lower()}" for row in range(len(stored["paths"]) + 1)]
    for image, file in zip([*stored["pil"][0], large], files, strict=True):
        image.save(file, quality=60)
    decoded = [np.asarray(Image.open(io.BytesIO(file.read_bytes())).convert("RGB")) for file in files]
    for name in MODELS:
        encoder = Encoder.load(models / name)
        expected = encoder.codes(decoded)
        assert encoder.codes(files).equals(expected)
        for query in (QueryImage(files[-1]), QueryImage(files[-1].read_bytes()), QueryImage(Image.open(files[-1]))):
            assert encoder.codes(query).equals(expected[-1])
        command = ["encode", str(photos), "--model", str(models / name), "--out", str(tmp_path / name)]
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
        assert CodesFolder.open(tmp_path / name).concatenated()[0].equals(expected)
