"""Export: the same bits without torch, what is refused, and that torch is really not needed."""

import json
import subprocess
import sys

import numpy as np
import pytest

from hashlens import DTSH, Training, load
from hashlens.data.images import as_images
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.export import OnnxEncoder, export_onnx, load_encoder
from hashlens.hashers.shallow.itq import ITQ
from hashlens.progress import Progress

QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    return (rng.integers(0, 80, (60, 20, 20, 3)) + 60 * np.eye(3, dtype=int)[y][:, None, None]).astype(np.uint8), y


@pytest.fixture(scope="module", params=[("linear", False), ("linear", True), ("divide-and-encode", False)])
def model(request, pictures, tmp_path_factory):
    head, mirror = request.param
    folder = tmp_path_factory.mktemp("deep") / "model"
    training = Training(epochs=2, batch_size=20, mirror=mirror)
    DTSH(12, backbone="small-cnn", head=head, training=training).fit(*pictures).save(folder)
    return folder


def test_the_same_bits(model, pictures, tmp_path):
    images = as_images(pictures[0])
    result = export_onnx(model, tmp_path / "out", images, QUIET)
    assert result["bits_equal"] >= 0.999 and result["n_pictures"] == 60 and result["pictures_per_second"]["onnx"] > 0
    encoder = load_encoder(tmp_path / "out")
    assert isinstance(encoder, OnnxEncoder) and encoder.n_bits == 12
    assert (encoder.encode(images).signs() == load(model).encode(images).signs()).mean() > 0.999
    facts = json.loads((tmp_path / "out" / "config.json").read_text())
    assert facts["input"]["shape"] == ["n", 16, 16, 3] and "centre crop" in facts["input"]["resize"]
    assert len(facts["model"]["fingerprint"]) == 64
    with pytest.raises(UsageError, match="not empty; choose another --out"):
        export_onnx(model, tmp_path / "out", images, QUIET)


def test_a_folder_of_other_things_is_left_alone(model, pictures, tmp_path, monkeypatch):
    import hashlens.export

    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not empty; choose another --out"):
        export_onnx(model, tmp_path, as_images(pictures[0]), QUIET)
    assert (tmp_path / "thesis.txt").exists()

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(hashlens.export, "_compare", interrupted)
    (tmp_path / "empty").mkdir()
    with pytest.raises(KeyboardInterrupt):
        export_onnx(model, tmp_path / "empty", as_images(pictures[0]), QUIET)
    assert not (tmp_path / "empty").exists(), "nothing half done is left"


def test_a_method_on_features(pictures, tmp_path, monkeypatch):
    """Its network makes the features, and its own arithmetic the codes."""
    from hashlens import networks

    blocks = networks.build_blocks("small-cnn")  # the same random weights each time, as a pretrained network has
    monkeypatch.setattr(networks, "build_blocks", lambda name: blocks)
    images = as_images(pictures[0])
    ITQ(8, features="small-cnn").fit(images).save(tmp_path / "model")
    result = export_onnx(tmp_path / "model", tmp_path / "out", images, QUIET)
    assert result["bits_equal"] >= 0.999
    assert (tmp_path / "out" / "hasher" / "model.safetensors").exists()
    own = load(tmp_path / "model").encode(images)
    assert (load_encoder(tmp_path / "out").encode(images).signs() == own.signs()).mean() > 0.999


def test_other_bits_are_refused(model, pictures, tmp_path, monkeypatch):
    import hashlens.export

    honest = hashlens.export._onnx
    assert (
        load(model).training.mirror == json.loads((model / "config.json").read_text())["params"]["training"]["mirror"]
    )
    other = DTSH(12, backbone="small-cnn", random_state=5, training=Training(epochs=1, batch_size=20)).fit(*pictures)
    monkeypatch.setattr(hashlens.export, "_onnx", lambda network, size: honest(other.network_.eval(), size))
    with pytest.raises(MismatchError, match=r"only \d\d\.\d\d% of the bits"):
        export_onnx(model, tmp_path / "out", as_images(pictures[0]), QUIET)
    assert not (tmp_path / "out").exists()


def test_without_torch(model, pictures, tmp_path):
    """A fresh process in which torch cannot be imported encodes with the exported model and explains the other."""
    export_onnx(model, tmp_path / "out", as_images(pictures[0]), QUIET)
    np.save(tmp_path / "pictures.npy", pictures[0])
    code = f"""
import sys
sys.modules["torch"] = None
import numpy as np
from hashlens.errors import UsageError
from hashlens.export import load_encoder
pictures = np.load({str(tmp_path / "pictures.npy")!r})
np.save({str(tmp_path / "codes.npy")!r}, load_encoder({str(tmp_path / "out")!r}).encode(pictures).packed)
try:
    load_encoder({str(model)!r})
except UsageError as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "needs torch" in done.stdout and "hashlens export" in done.stdout
    expected = load(model).encode(pictures[0]).packed
    assert (np.load(tmp_path / "codes.npy") == expected).mean() > 0.99


def test_damaged_and_unsuitable(model, pictures, tmp_path, clusters):
    X, y = clusters
    images = as_images(pictures[0])
    DTSH(8, training=Training(epochs=1, batch_size=50)).fit(X, y).save(tmp_path / "features")
    with pytest.raises(UsageError, match="trained on features"):
        export_onnx(tmp_path / "features", tmp_path / "out", images, QUIET)
    ITQ(8, features="gist").fit(X).save(tmp_path / "itq")
    with pytest.raises(UsageError, match="runs without torch as it is"):
        export_onnx(tmp_path / "itq", tmp_path / "out", images, QUIET)
    export_onnx(model, tmp_path / "out", images, QUIET)
    (tmp_path / "out" / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"model\.onnx is not as it was written"):
        load_encoder(tmp_path / "out")
    with pytest.raises(DataError, match="no hashlens model"):
        load_encoder(tmp_path / "nowhere")
