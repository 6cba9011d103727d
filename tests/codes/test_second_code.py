"""The second code of a model: it leaves the first as it is, comes from the same pass, and survives save and export."""

import numpy as np
import pytest
from made_index import make_images

import hashlens
from hashlens import DTSH, ITQ, KSH, Codes, Encoder, Training
from hashlens.codes.encode import encode_source
from hashlens.codes.export import export_onnx
from hashlens.codes.folder import CodesFolder
from hashlens.data.images import as_images
from hashlens.errors import DataError, UsageError
from hashlens.features.networks import inference
from hashlens.progress import Progress

QUIET = Progress(quiet=True)
SMALL = {"backbone": "small-cnn", "image_size": 24, "sampling": "in-batch"}
LABELS = np.repeat([0, 1, 2], 20)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images") / "images")


def dtsh(**settings):
    return DTSH(20, **SMALL, training=Training(epochs=1, batch_size=30), **settings)


@pytest.mark.parametrize("head", ["linear", "layers", "divide-and-encode"])
def test_the_first_code_stays_as_it_is(paths, head, tmp_path):
    plain, both = dtsh(head=head).fit(paths, LABELS), dtsh(head=head, second_bits=72).fit(paths, LABELS)
    codes = both.encode(paths)
    assert codes.first.equals(plain.encode(paths))
    assert codes.second_bits == 72
    np.testing.assert_array_equal(both.project(paths), plain.project(paths))
    both.save(tmp_path)
    assert hashlens.load(tmp_path).encode(paths).equals(codes)
    assert Encoder.load(tmp_path).encode(paths).equals(codes)


def test_it_is_the_sign_of_the_projected_features(paths):
    hasher = dtsh(second_bits=40).fit(paths, LABELS)
    features = inference.forward_function(hasher.network_[:-1], np.zeros((1, 24, 24, 3), np.uint8))(
        as_images(paths).read(slice(None), 24)
    )
    second = (features - hasher.second_mean_) @ hasher.second_projection_
    signs = hasher.encode(paths).second.signs()
    clear = np.abs(second) > 1e-4  # the mirror image is not part of this model; float32 rounds
    assert hasher.training.mirror is False
    assert clear.mean() > 0.95
    np.testing.assert_array_equal(signs[clear], np.where(second > 0, 1, -1)[clear])


def test_images_of_one_pass(paths, monkeypatch):
    """Both codes come from one run of the network."""
    hasher = dtsh(second_bits=40).fit(paths, LABELS)
    encoder, batches = Encoder.of(hasher), []
    forward = encoder.extractor.forward
    encoder.extractor.__dict__["forward"] = lambda batch: batches.append(len(batch)) or forward(batch)
    encoder.encode(paths)
    assert sum(batches) == len(paths)


@pytest.mark.parametrize("method", [ITQ, KSH, DTSH])
def test_models_on_features(method, tmp_path):
    X = np.random.default_rng(0).normal(size=(200, 30))
    hasher = method(16, second_bits=24).fit(X, np.arange(200) % 4)
    codes = hasher.encode(X)
    assert codes.first.equals(method(16).fit(X, np.arange(200) % 4).encode(X))
    itq = ITQ(24).fit(X).encode(X)
    assert (codes.second.signs() == itq.signs()).mean() > 0.99  # it is ITQ; float32 rounds
    hasher.save(tmp_path)
    assert hashlens.load(tmp_path).encode(X).equals(codes)


@pytest.mark.parametrize("kind", ["network", "linear", "kernel"])
def test_exported(paths, tmp_path, kind):
    if kind == "network":
        hasher = dtsh(second_bits=44).fit(paths, LABELS)
    else:
        hasher = (ITQ if kind == "linear" else KSH)(16, second_bits=44, features="small-cnn").fit(paths, LABELS)
    hasher.save(tmp_path / "model")
    small = as_images(as_images(paths).read(slice(None), 36))
    result = export_onnx(tmp_path / "model", tmp_path / "exported", small, QUIET)
    assert result["second_bits"] == 44 and result["n_checked"] >= 100_000
    assert result["n_checked"] % (hasher.n_bits + 44) == 0  # bits of both codes are compared
    assert result["same_model"]
    exported = Encoder.load(tmp_path / "exported")
    assert exported.encode(paths).equals(hasher.encode(paths))
    if kind != "kernel":
        import onnx

        graph = onnx.load(tmp_path / "exported" / "model.onnx").graph
        assert [output.name for output in graph.output] == ["output", "second"]


def test_an_encoded_folder_resumes_with_both(paths, tmp_path):
    encoder = Encoder.of(dtsh(second_bits=40).fit(paths, LABELS))
    folder = str(tmp_path.parent)
    source = [*paths[:10]]
    encode_source(encoder, source, tmp_path / "codes", QUIET, shard_size=4)
    codes, items = CodesFolder.open(tmp_path / "codes").concatenated()
    assert codes.equals(encoder.encode(items["path"].to_pylist()))
    (tmp_path / "codes" / "shard-000000004.second.npy").unlink()
    encode_source(encoder, source, tmp_path / "codes", QUIET, shard_size=4)
    assert CodesFolder.open(tmp_path / "codes").concatenated()[0].equals(codes)
    assert folder


def test_wrong_ones_are_refused(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 30))
    with pytest.raises(UsageError, match="at most 507 bits, these have 600"):
        ITQ(600, second_bits=128).fit(X)
    with pytest.raises(UsageError, match=r"second_bits must be >= 0, got -1"):
        ITQ(16, second_bits=-1).fit(X)
    hasher = ITQ(16, second_bits=24).fit(X)
    hasher.second_projection_ = hasher.second_projection_[:, :20]
    hasher.save(tmp_path)
    with pytest.raises(DataError, match="its second code is not one of 24 bits"):
        hashlens.load(tmp_path)
    assert Codes.from_relaxed(X).second_bits == 0
