"""Export: the same bits without torch, what is refused, and that torch is really not needed."""

import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from PIL import Image

import hashlens
from hashlens import DTSH, Training, load
from hashlens.codes import Codes, export
from hashlens.codes.encoder import Encoder
from hashlens.codes.export import export_onnx
from hashlens.codes.model import ModelFolder
from hashlens.data.images import as_images
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.features.networks.onnx_reader import OPERATORS
from hashlens.hashers.shallow.itq import ITQ
from hashlens.hashers.shallow.ksh import KSH
from hashlens.progress import Progress

QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    return (rng.integers(0, 80, (60, 20, 20, 3)) + 60 * np.eye(3, dtype=int)[y][:, None, None]).astype(np.uint8), y


@pytest.fixture(scope="module", params=[("linear", False, None), ("linear", True, 0), ("divide-and-encode", False, 0)])
def model(request, images, tmp_path_factory):
    head, mirror, long_bits = request.param
    folder = tmp_path_factory.mktemp("deep") / "model"
    training = Training(epochs=2, batch_size=20, mirror=mirror)
    DTSH(12, backbone="small-cnn", head=head, long_bits=long_bits, training=training).fit(*images).save(folder)
    return folder


@pytest.fixture(scope="module")
def exported(model, images, tmp_path_factory):
    """The folder of the exported model, and what the export said of it."""
    folder = tmp_path_factory.mktemp("exported") / "out"
    return folder, export_onnx(model, folder, as_images(images[0]), QUIET)


@pytest.fixture(scope="module")
def shallow(images, tmp_path_factory, session_cache):
    """Methods on features: one whose projection is linear, and one whose is not."""
    folder = tmp_path_factory.mktemp("shallow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASHLENS_CACHE", str(session_cache))
        ITQ(64, features="small-cnn").fit(images[0]).save(folder / "itq")
        KSH(8, features="small-cnn", n_anchors=20).fit(*images).save(folder / "ksh")
    return folder


def fresh_images(n=300):
    """None of those that the export is checked with."""
    return np.random.default_rng(7).integers(0, 256, (n, 24, 24, 3), np.uint8)


def test_an_exported_model_gives_the_same_bits(model, exported, images, tmp_path):
    out, result = exported
    assert result["bits_equal"] == 1 and result["same_model"] and result["n_images"] == 60
    assert result["n_checked"] >= 100_000 and result["n_crops"] == result["n_checked"] // 12 - 60
    encoder = Encoder.load(out)
    assert encoder.codes(fresh_images()).equals(load(model).encode(fresh_images()))
    assert (encoder.n_bits, encoder.mirror) == (12, load(model).training.mirror)
    assert encoder.model == ModelFolder.resolve(model).describe() | {"probe": Encoder.load(model).probe}
    facts = json.loads((out / "config.json").read_text())
    assert facts["input"]["shape"] == ["n", 16, 16, 3] and "center crop" in facts["input"]["resize"]
    with pytest.raises(UsageError, match="not empty; choose another --out"):
        export_onnx(model, out, as_images(images[0]), QUIET)
    with pytest.raises(UsageError, match="already an exported model"):
        export_onnx(out, tmp_path / "again", as_images(images[0]), QUIET)


def test_no_image_is_checked_twice(images):
    """However few are given: bits of the same image say nothing new."""
    seen = []

    class Spy:
        n_bits, second_bits = 100, 0

        def codes(self, view, advance):
            seen.extend(image.tobytes() for image in view.read(np.arange(len(view)), 16))
            return Codes.from_relaxed(np.ones((len(view), 100)))

    result = export.compare_bits(Spy(), Spy(), as_images(images[0][:2]), QUIET)
    assert result["n_checked"] == 100_000 and len(seen) == 2_000 and len(set(seen)) == 1_000


def test_unreadable_images_are_skipped_and_counted(shallow, images, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "CHECKED_BITS", 64 * 10)
    paths = [tmp_path / f"{row}.png" for row in range(6)]
    for path, pixels in zip(paths, images[0], strict=False):
        Image.fromarray(pixels).save(path)
    paths[0].write_bytes(b"not an image")
    paths[3].unlink()
    result = export_onnx(shallow / "itq", tmp_path / "out", as_images(paths), QUIET)
    assert (result["n_images"], result["n_skipped"], result["n_crops"], result["same_model"]) == (4, 2, 6, True)
    with pytest.raises(DataError, match=r"none of 2 can be read, first: not an image\); pass others with --images"):
        export_onnx(shallow / "itq", tmp_path / "no", as_images([paths[0], paths[3]]), QUIET)
    assert not (tmp_path / "no").exists()


def test_a_folder_of_other_files_is_left_alone(model, images, tmp_path, monkeypatch):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="not empty; choose another --out"):
        export_onnx(model, tmp_path, as_images(images[0]), QUIET)
    assert (tmp_path / "thesis.txt").exists()

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "compare_bits", interrupted)
    (tmp_path / "empty").mkdir()
    with pytest.raises(KeyboardInterrupt):
        export_onnx(model, tmp_path / "empty", as_images(images[0]), QUIET)
    assert not (tmp_path / "empty").exists(), "no partial export is left"


def test_a_linear_projection_is_part_of_the_graph(shallow, images, tmp_path):
    result = export_onnx(shallow / "itq", tmp_path / "out", as_images(images[0]), QUIET)
    assert result["same_model"] and not (tmp_path / "out" / "hasher").exists()
    code = f"""
import sys
sys.modules["torch"] = sys.modules["sklearn"] = sys.modules["scipy"] = None
import numpy as np
from hashlens.codes.encoder import Encoder
images = np.random.default_rng(7).integers(0, 256, (300, 24, 24, 3), np.uint8)
np.save({str(tmp_path / "codes.npy")!r}, Encoder.load({str(tmp_path / "out")!r}).codes(images).packed)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert np.array_equal(np.load(tmp_path / "codes.npy"), load(shallow / "itq").encode(fresh_images()).packed)


def test_other_projections_are_saved_beside_the_graph(shallow, images, tmp_path):
    export_onnx(shallow / "ksh", tmp_path / "out", as_images(images[0]), QUIET)
    assert (tmp_path / "out" / "hasher" / "model.safetensors").exists()
    encoder = Encoder.load(tmp_path / "out")
    assert encoder.codes(fresh_images()).equals(load(shallow / "ksh").encode(fresh_images()))
    KSH(8, features="small-cnn", n_anchors=20, random_state=1).fit(*images).save(tmp_path / "out" / "hasher")
    with pytest.raises(DataError, match=r"hasher.*has changed since it was written"):
        Encoder.load(tmp_path / "out")


@pytest.mark.parametrize(("size", "refused"), [(0.5, True), (3e-4, False)])
def test_other_bits_make_another_model(shallow, images, tmp_path, monkeypatch, size, refused):
    """A few bits in 100,000 make it another model; more than one in a thousand refuse it."""
    honest = export.append_projection
    monkeypatch.setattr(export, "append_projection", lambda graph, mean, W: honest(graph, mean * (1 + size), W))
    if refused:
        with pytest.raises(MismatchError, match=r"only \d\d\.\d\d% of the bits"):
            export_onnx(shallow / "itq", tmp_path / "out", as_images(images[0]), QUIET)
        assert not (tmp_path / "out").exists()
        return
    result = export_onnx(shallow / "itq", tmp_path / "out", as_images(images[0]), QUIET)
    assert 0.999 <= result["bits_equal"] < 1 and not result["same_model"]
    own, given = ModelFolder.resolve(tmp_path / "out").describe(), ModelFolder.resolve(shallow / "itq").describe()
    with pytest.raises(MismatchError, match="codes of two models cannot be mixed"):
        ModelFolder.require_same(own, given, "index")


def test_without_torch(model, exported, tmp_path):
    """A process in which torch cannot be imported encodes with the exported model and explains the other."""
    code = f"""
import sys
sys.modules["torch"] = None
import numpy as np
from hashlens.errors import UsageError
from hashlens.codes.encoder import Encoder
images = np.random.default_rng(7).integers(0, 256, (300, 24, 24, 3), np.uint8)
np.save({str(tmp_path / "codes.npy")!r}, Encoder.load({str(exported[0])!r}).codes(images).packed)
try:
    Encoder.load({str(model)!r})
except UsageError as error:
    print(error.message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'needs torch; run: pip install "hashlens[train]"' in done.stdout and "exported" in done.stdout
    assert np.array_equal(np.load(tmp_path / "codes.npy"), load(model).encode(fresh_images()).packed)


def test_damaged_and_unsuitable(exported, images, tmp_path, clusters):
    X, y = clusters
    given = as_images(images[0])
    DTSH(8, training=Training(epochs=1, batch_size=50)).fit(X, y).save(tmp_path / "features")
    with pytest.raises(UsageError, match="trained on features"):
        export_onnx(tmp_path / "features", tmp_path / "out", given, QUIET)
    ITQ(8, features="gist").fit(given).save(tmp_path / "itq")
    with pytest.raises(UsageError, match="runs without torch already"):
        export_onnx(tmp_path / "itq", tmp_path / "out", given, QUIET)
    shutil.copytree(exported[0], tmp_path / "out")
    (tmp_path / "out" / "model.onnx").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"model\.onnx is damaged \(it has changed since it was written"):
        Encoder.load(tmp_path / "out")
    with pytest.raises(DataError, match="is not a model"):
        Encoder.load(tmp_path / "nowhere")


def labelled(images):
    found = as_images(images[0])
    found.labels = images[1]
    return found


@pytest.fixture(scope="module")
def eight(model, images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8") / "out"
    return folder, hashlens.export(model, folder, labelled(images), int8=True)


def test_int8_is_another_model_with_nearly_the_same_codes(model, eight, images):
    folder, result = eight
    assert 0.9 < result["bits_equal"] <= 1 and not result["same_model"]
    assert (result["calibrated_on"], result["n_images"]) == (15, 45)
    trained, exported = load(model), Encoder.load(folder)
    own = ModelFolder(folder).describe()
    assert own["fingerprint"] != ModelFolder.resolve(model).describe()["fingerprint"]
    with pytest.raises(MismatchError, match="cannot be mixed"):
        ModelFolder.require_same(Encoder.load(model).model, exported.model, "index")
    kinds = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    assert "QuantizeLinear" in kinds and kinds <= OPERATORS
    facts = json.loads((folder / "config.json").read_text())["int8"]
    assert facts == {name: result[name] for name in ("calibrated_on", "n_images", "bits_equal", "map", "map_float")}
    # measured as said: every second image that did not calibrate searches among the others
    rows = np.flatnonzero(np.arange(60) % 4)
    y, codes = images[1][rows], exported.codes(images[0][rows])
    scores = hashlens.evaluate_codes(codes[::2], codes[1::2], y[::2], y[1::2])
    assert facts["map"] == pytest.approx(scores["map_tie_aware"])
    equal = codes.signs() == trained.encode(images[0][rows]).signs()
    assert equal.mean() > 0.9


def test_int8_does_not_depend_on_the_batch_and_needs_no_labels(model, images, tmp_path):
    result = export_onnx(model, tmp_path / "out", as_images(images[0]), QUIET, int8=True)
    assert result["map"] is None and result["map_float"] is None
    encoder = Encoder.load(tmp_path / "out")
    together = encoder.codes(fresh_images(40))
    assert all(encoder.codes(fresh_images(40)[[row]]).equals(together[row : row + 1]) for row in range(0, 40, 7))


def test_int8_on_features_and_what_is_measured_is_not_part_of_the_fingerprint(shallow, images, tmp_path):
    calibrate = as_images(images[0][:20])
    for name, checked in (("a", images[0][20:]), ("b", images[0][20:50])):
        export_onnx(shallow / "itq", tmp_path / name, as_images(checked), QUIET, int8=True, calibrate=calibrate)
    facts = [json.loads((tmp_path / name / "config.json").read_text())["int8"] for name in "ab"]
    assert facts[0]["n_images"] == 40 and facts[1]["n_images"] == 30 and facts[0]["calibrated_on"] == 20
    assert (
        ModelFolder(tmp_path / "a").describe()["fingerprint"] == ModelFolder(tmp_path / "b").describe()["fingerprint"]
    )


def test_int8_that_is_too_far_away_is_refused(model, images, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "ENOUGH_INT8", 1.01)
    with pytest.raises(MismatchError, match=r"of the bits equal .* calibrate it with images like its"):
        export_onnx(model, tmp_path / "out", as_images(images[0]), QUIET, int8=True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="at least two images"):
        export_onnx(model, tmp_path / "out", as_images(images[0][:1]), QUIET, int8=True)
