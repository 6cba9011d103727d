"""Deep hashers on images: frozen blocks, files on disk, and a sentence for everything that does not fit."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_networks import random_weights, resealed
from PIL import Image
from safetensors.numpy import load_file, save_file
from torch import nn

import hashlens
from hashlens import DTSH, Training
from hashlens.checksums import read_sealed
from hashlens.data.images import ArrayImages
from hashlens.errors import DataError, MismatchError, Stopped, UsageError
from hashlens.features.networks import weights
from hashlens.hashers.deep import base
from hashlens.hashers.deep.inputs import ArrayInputs
from hashlens.progress import Progress

ONE_EPOCH = Training(epochs=1, batch_size=8)
LITE = {
    "backbone": "efficientnet-lite0",
    "image_size": 32,
    "frozen_blocks": 14,
    "sampling": "in-batch",
    "training": ONE_EPOCH,
}
SMALL = {"backbone": "small-cnn", "image_size": 8, "training": ONE_EPOCH}


@pytest.fixture(autouse=True)
def made_weights(monkeypatch):
    monkeypatch.setattr(weights, "pretrained_weights", random_weights)


@pytest.fixture
def images(rng):
    """24 colour images of three classes, each class with its own colour."""
    y = np.arange(24) % 3
    pixels = rng.integers(0, 128, (24, 36, 40, 3), dtype=np.uint8)
    pixels[np.arange(24), :, :, y] += 120
    return pixels, y


@pytest.fixture
def tiny(rng):
    return rng.integers(0, 256, (24, 8, 8), dtype=np.uint8), np.arange(24) % 3


def test_fit_encode_save_load(images, tmp_path, monkeypatch):
    X, y = images
    hasher = DTSH(12, **LITE).fit(X, y)
    u, codes = hasher.project(X), hasher.encode(X)
    assert len(np.unique(codes.packed, axis=0)) > 2  # or equal codes would say little
    assert u.shape == (24, 12) and u.dtype == np.float32 and np.isfinite(u).all()
    assert np.array_equal(codes.signs(), np.where(u > 0, 1, -1))
    assert (len(hasher.history_), hasher.frozen_blocks_, hasher.image_size_) == (1, 14, 32)
    rows = np.array([17, 3, 3, 8])
    np.testing.assert_allclose(hasher.project(X[rows]), u[rows], atol=1e-4)

    hasher.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["method"] == "dtsh" and config["hashlens"] == hashlens.__version__
    assert (config["backbone"], config["image_size"], config["n_features"]) == ("efficientnet-lite0", 32, 1280)
    assert config["network"]["mean"] == 0.498 and config["network"]["colour"] == "RGB"
    monkeypatch.setattr(weights, "pretrained_weights", None)  # they are not asked for again
    for loaded in (hashlens.load(tmp_path / "model"), DTSH.load(tmp_path / "model")):
        assert np.array_equal(loaded.project(X), u) and loaded.encode(X).equals(codes)
        assert loaded.get_params() == hasher.get_params()


@pytest.mark.parametrize("shape", [(36, 40), (20, 20), (20, 24)], ids=["reduced", "enlarged square", "enlarged"])
def test_every_way_of_giving_images_gives_the_same_codes(images, tmp_path, shape):
    X, y = images
    X, paths = np.ascontiguousarray(X[:, : shape[0], : shape[1]]), []
    for i, pixels in enumerate(X):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(pixels).save(paths[-1])
    hasher = DTSH(12, **LITE).fit(X, y)
    codes = hasher.encode(X)
    for same in (ArrayImages(X), list(X), [Image.fromarray(x) for x in X], [str(p) for p in paths], paths):
        assert hasher.encode(same).equals(codes)
    assert DTSH(12, **LITE).fit(paths, y).encode(X).equals(codes)


def test_frozen_blocks_stay_as_they_are(images):
    X, y = images
    state = DTSH(12, **LITE).fit(X, y).network_.state_dict()
    before = random_weights("efficientnet-lite0")
    own = {"0.scale", "0.shift", "19.weight", "19.bias"}  # of the preprocessing, which comes first, and the hash layer
    assert {f"{int(k.split('.')[0]) + 1}.{k.partition('.')[2]}" for k in before} | own == set(state)
    for key, value in before.items():
        block, _, rest = key.partition(".")
        now = state[f"{int(block) + 1}.{rest}"]
        if int(block) < 14:
            assert torch.equal(now, value), key
        else:
            assert not torch.equal(now, value), key


@pytest.mark.parametrize("flip", [False, True])
def test_kept_outputs_then_the_trained_part_equal_the_whole(images, flip):
    X, y = images
    hasher = DTSH(12, **LITE | {"training": Training(epochs=1, batch_size=8, flip=flip)}).fit(X, y)
    inputs, trained = hasher._inputs(ArrayImages(X), "cpu", Progress(quiet=True))
    rows = np.array([5, 0, 17, 9, 23, 11])
    plain, mirrored = hasher.project(X[rows]), hasher.project(X[rows][:, :, ::-1])
    with torch.inference_mode():
        seen = trained(inputs.batch(rows, np.random.default_rng(0))).numpy()
    near_plain, near_mirrored = (np.abs(seen - u).max(1) < 0.01 * np.abs(u).max() for u in (plain, mirrored))
    assert (near_plain ^ near_mirrored).all()
    assert near_mirrored.any() == flip and near_plain.any()


def test_windows_are_further_views(images, monkeypatch):
    X, y = images
    made = []
    monkeypatch.setattr(base, "ArrayInputs", lambda views: made.append(views) or ArrayInputs(views))
    plain, cut = (DTSH(6, **LITE | {"training": replace(ONE_EPOCH, windows=n)}).fit(X, y) for n in (0, 2))
    assert [len(views) for views in made] == [2, 6]  # each view mirrored too
    assert len({np.asarray(view).tobytes() for view in made[1]}) == 6
    assert not np.array_equal(plain.project(X), cut.project(X))


@pytest.mark.parametrize("frozen", [0, 4, 18])
def test_any_number_of_blocks_may_be_frozen(images, frozen):
    X, y = images
    hasher = DTSH(6, **LITE | {"frozen_blocks": frozen}).fit(X, y)
    assert hasher.frozen_blocks_ == frozen and hasher.encode(X).n_bits == 6


def test_choices_left_to_us(rng):
    y = np.arange(24) % 3
    grey = DTSH(6, training=ONE_EPOCH).fit(rng.integers(0, 256, (24, 8, 8), dtype=np.uint8), y)
    assert (grey.backbone_, grey.image_size_, grey.frozen_blocks_) == ("small-cnn", 16, 0)
    colour = DTSH(6, image_size=16, training=ONE_EPOCH).fit(rng.integers(0, 256, (24, 8, 8, 3), dtype=np.uint8), y)
    assert colour.backbone_ == "efficientnet-lite0" and colour.frozen_blocks_ > 0


def test_bfloat16_is_for_training_only(tiny, tmp_path):
    X, y = tiny
    rough = DTSH(6, long_bits=0, **SMALL | {"training": Training(epochs=2, batch_size=8, precision="bfloat16")}).fit(
        X, y
    )
    exact = DTSH(6, long_bits=0, **SMALL | {"training": Training(epochs=2, batch_size=8, precision="float32")}).fit(
        X, y
    )
    assert all(weights.dtype == torch.float32 for weights in rough.network_.parameters())
    assert rough.history_[0]["loss"] == pytest.approx(exact.history_[0]["loss"], rel=0.05)
    assert rough.history_[0]["loss"] != exact.history_[0]["loss"]
    with torch.inference_mode():  # codes are computed in float32 all the same
        expected = rough.network_(torch.from_numpy(X[..., None].repeat(3, 3))).numpy()
    np.testing.assert_allclose(rough.project(X), expected, rtol=1e-4, atol=1e-6)
    rough.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["params"]["training"]["precision"] == "bfloat16"


def test_small_cnn_learns(rng):
    """Images bright above or below, left or right: the corner is the class."""
    y = np.arange(80) % 4
    pixels = rng.integers(0, 100, (80, 8, 8), dtype=np.uint8)
    for i, c in enumerate(y):
        pixels[i, 4 * (c // 2) :, 4 * (c % 2) :][:4, :4] += 120
    training = Training(epochs=10, batch_size=20, lr=5e-3, flip=False)
    hasher = DTSH(12, **SMALL | {"training": training}).fit(pixels, y)
    codes = hasher.encode(pixels)
    assert hashlens.evaluate_codes(codes, codes, y, y)["map_tie_aware"] > 0.8
    assert hasher.history_[-1]["loss"] < hasher.history_[0]["loss"] / 2


def test_progress_is_told(images, capsys, empty_cache):
    X, y = images
    hasher = DTSH(12, **LITE).fit(X, y, progress=Progress())
    lines = capsys.readouterr().err
    assert "14 of 18 blocks of efficientnet-lite0 stay as they are" in lines
    assert "features of mirrored images  24/24" in lines and "1/1" in lines
    hasher.encode(X, progress=Progress())
    assert "codes  24/24" in capsys.readouterr().err


# What does not fit.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"X": lambda X: X.astype(np.float32)}, "uint8"),
        ({"X": lambda X: "images/"}, "got str"),
        ({"X": lambda X: []}, "is empty"),
        ({"X": lambda X: X[:0]}, "no images"),
        ({"X": lambda X: X[0]}, "put a single image in a list"),
        ({"X": lambda X: [X[0], "a.png"]}, "got a list of ndarray, str"),
        ({"X": lambda X: ["gone.png"] * 24}, r"gone\.png"),
        ({"y": lambda y: y[:-1]}, "24 images but 23 labels"),
        ({"y": lambda y: y * 0 + 5}, "only one class"),
        ({"y": lambda y: np.arange(24)}, "no class has two images"),
        ({"y": lambda y: None}, "learns from labels"),
        ({"y": lambda y: np.eye(24, dtype=int)}, "no class has two images"),
        ({"frozen_blocks": 99}, "has 18 blocks; cannot freeze 99"),
        ({"backbone": "vgg"}, "backbone 'vgg' not found"),
        ({"n_bits": 0}, "n_bits must be >= 1, got 0"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_wrong_input_is_a_sentence(images, change, sentence):
    X, y = images
    X, y = change.get("X", lambda v: v)(X), change.get("y", lambda v: v)(y)
    params = {"n_bits": 6} | LITE | {k: v for k, v in change.items() if k not in "Xy"}
    with pytest.raises((DataError, UsageError), match=sentence):
        DTSH(**params).fit(X, y)


def test_the_hash_layer_cannot_be_frozen(images):
    with pytest.raises(UsageError, match="has 18 blocks; cannot freeze 19"):
        DTSH(6, **LITE | {"frozen_blocks": 19}).fit(*images)


def test_label_sets_that_all_meet(images):
    Y = np.zeros((24, 3), int)
    Y[:, 0] = 1
    Y[::2, 1] = 1
    with pytest.raises(DataError):
        DTSH(6, **LITE).fit(images[0], Y)


@pytest.mark.parametrize("wrong", [{"backbone": "vgg"}, {"frozen_blocks": 99}])
def test_after_a_fit_that_failed_nothing_is_learned(images, wrong):
    hasher = DTSH(6, **LITE | wrong)
    with pytest.raises(UsageError):
        hasher.fit(*images)
    assert not hasher.is_fitted()


def test_after_a_fit_that_was_stopped_nothing_is_learned(tiny):
    hasher = DTSH(6, **SMALL)
    with pytest.raises(Stopped):
        hasher.fit(*tiny, stop=lambda: True)
    assert not hasher.is_fitted()


def test_features_and_images_are_not_mixed(tiny, rng):
    X, y = tiny
    features = rng.normal(size=(24, 5))
    on_images, on_features = DTSH(6, **SMALL).fit(X, y), DTSH(6, training=ONE_EPOCH).fit(features, y)
    with pytest.raises(DataError, match="this model was trained on images"):
        on_images.encode(features)
    with pytest.raises(DataError, match="this model was trained on features"):
        on_features.encode(X)
    with pytest.raises(DataError, match="uint8"):
        on_images.encode(X / 255)


def test_numpy_numbers_of_bits_can_be_saved(tiny, tmp_path):
    hasher = DTSH(np.int64(6), **SMALL).fit(*tiny)
    hasher.save(tmp_path)
    assert DTSH.load(tmp_path).encode(tiny[0]).equals(hasher.encode(tiny[0]))


# Models on disk.


@pytest.fixture
def model(tiny, tmp_path):
    DTSH(6, **SMALL).fit(*tiny).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("config.json", lambda content: content[:40]),
        ("config.json", lambda content: b"\xff\xfe"),
        ("config.json", lambda content: b"[]"),
        ("config.json", lambda content: b'{"method": "dtsh"}'),
        ("config.json", lambda content: content.replace(b'"n_bits": 6', b'"n_bits": 8')),
        ("config.json", lambda content: content.replace(b'"n_bits"', b'"bits"')),
        ("config.json", lambda content: content.replace(b'"backbone": "small-cnn",\n  "image', b'"image')),
        ("config.json", lambda content: None),
        ("model.safetensors", lambda content: content[: len(content) // 2]),
        ("model.safetensors", lambda content: b""),
        ("model.safetensors", lambda content: b"no tensors at all, only words"),
        ("model.safetensors", lambda content: None),
    ],
)
def test_damaged_models(model, file, damage):
    content = (model / file).read_bytes()
    damaged = damage(content)
    assert damaged != content
    if damaged is None:
        (model / file).unlink()
    else:
        (model / file).write_bytes(damaged)
    for load in (hashlens.load, DTSH.load):
        with pytest.raises(DataError, match="damaged") as error:
            load(model)
        assert str(model) in error.value.message


def test_models_with_other_weights(model):
    arrays = load_file(model / "model.safetensors")
    for wrong in ({k: v for k, v in arrays.items() if k != "1.0.weight"}, arrays | {"extra": np.zeros(3)}):
        save_file(wrong, model / "model.safetensors")
        resealed(model, read_sealed(model / "config.json"))
        with pytest.raises(DataError, match="weights do not fit its configuration"):
            hashlens.load(model)


def test_models_of_another_method(model):
    resealed(model, read_sealed(model / "config.json") | {"method": "lsh2"})
    for load in (DTSH.load, hashlens.load):
        with pytest.raises(MismatchError, match="contains a lsh2 model, not dtsh"):
            load(model)


def test_saving_over_a_model_replaces_it(model, tiny):
    X, y = tiny
    other = DTSH(9, **SMALL, random_state=5).fit(X, y)
    other.save(model)
    assert hashlens.load(model).encode(X).equals(other.encode(X))
    assert sorted(path.name for path in model.iterdir()) == ["config.json", "model.safetensors"]


def test_loading_leaves_the_random_state(model):
    torch.manual_seed(3)
    hashlens.load(model)
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(3))


def test_mirror_is_the_mean_of_an_image_and_its_mirror_image(rng):
    images = rng.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    y = np.arange(40) % 2
    how = {"backbone": "small-cnn", "long_bits": 0}  # a long code ends in the code of a class, mirrored or not
    plain = DTSH(8, **how, training=Training(epochs=1, batch_size=20)).fit(images, y)
    both = DTSH(8, **how, training=Training(epochs=1, batch_size=20, mirror=True)).fit(images, y)
    flipped = images[:, :, ::-1].copy()
    expected = (plain.project(images) + plain.project(flipped)) / 2
    np.testing.assert_allclose(both.project(images), expected, atol=1e-6)
    np.testing.assert_allclose(both.project(flipped), expected, atol=1e-6)
    assert not np.allclose(plain.project(images), expected, atol=1e-3)


ENCODE = """
import sys
import numpy as np, hashlens
from torch import nn
folder = sys.argv[1]
for name in ("images", "features", "eager"):
    own = {"backbone": nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.Softplus(), nn.Flatten())} if name == "eager" else {}
    u = hashlens.load(f"{folder}/{name}", **own).project(np.load(f"{folder}/{name}.npy"))
    np.save(f"{folder}/{name}-{sys.argv[2]}.npy", u)
"""


def test_codes_are_the_same_on_every_cpu(images, tmp_path, rng):
    """Under two instruction sets and two numbers of threads, outputs differ by what float32 rounds at most.

    They do differ where torch itself runs: with a layer that is not written as ONNX.
    """
    X, y = images
    features = rng.normal(size=(24, 300)).astype(np.float32)
    own = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.Softplus(), nn.Flatten())
    models = {
        "images": DTSH(12, **LITE).fit(X, y),
        "features": DTSH(12, training=ONE_EPOCH).fit(features, y),
        "eager": DTSH(12, long_bits=0, backbone=own, image_size=32, training=ONE_EPOCH).fit(X, y),
    }
    given = {"images": X, "features": features, "eager": X}
    for name, data in given.items():
        np.save(tmp_path / f"{name}.npy", data)
        models[name].save(tmp_path / name)
    for run, (capability, threads) in enumerate([("default", "1"), ("avx2", "2")]):
        environment = {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": threads, "HASHLENS_THREADS": threads}
        subprocess.run([sys.executable, "-c", ENCODE, tmp_path, str(run)], env=os.environ | environment, check=True)
    for name, data in given.items():
        here, *there = models[name].project(data), *(np.load(tmp_path / f"{name}-{run}.npy") for run in range(2))
        for u in there:
            np.testing.assert_allclose(u, here, rtol=1e-4, atol=1e-5 * np.abs(here).max())
            clear = np.abs(here) > 1e-4 * np.abs(here).max()
            assert clear.mean() > 0.99 and np.array_equal((u > 0)[clear], (here > 0)[clear])
        assert name != "eager" or not np.array_equal(*there), "the two runs must differ, or this test sees nothing"


def test_a_checkpoint_is_not_resumed_on_other_frozen_weights(tmp_path, monkeypatch, rng):
    """They are not in it: only the trained part is."""
    images, labels = rng.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8), np.arange(40) % 2

    def fit(**more):
        hasher = DTSH(8, backbone="small-cnn", frozen_blocks=1, training=Training(epochs=2, batch_size=20))
        return hasher.fit(images, labels, run=tmp_path, **more)

    with pytest.raises(Stopped):
        fit(stop=lambda: True)
    build = base.build_blocks

    def changed(*args):
        blocks = build(*args)
        with torch.no_grad():
            next(blocks[1].parameters()).add_(1)
        return blocks

    monkeypatch.setattr(base, "build_blocks", changed)
    with pytest.raises(MismatchError, match="frozen was"):
        fit()


@pytest.mark.parametrize("change", [{"n_features": 10**13}, {"n_features": -1}, {"backbone": 5}, {"backbone": None}])
def test_a_model_whose_configuration_is_damaged(tmp_path, rng, change):
    images, labels = rng.integers(0, 256, (20, 16, 16, 3), dtype=np.uint8), np.arange(20) % 2
    DTSH(8, backbone="small-cnn", training=Training(epochs=1, batch_size=20)).fit(images, labels).save(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    where = next(part for part in (facts, *facts.values()) if isinstance(part, dict) and "n_features" in part)
    where |= change
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(DataError):
        hashlens.load(tmp_path)


# Images and labels from torch.


class Pairs(torch.utils.data.Dataset):
    """Images as ToTensor gives them, and classes."""

    def __init__(self, X, y):
        self.X, self.y = X, y

    def __len__(self):
        return len(self.X)

    def __getitem__(self, row):
        return torch.from_numpy(self.X[row]).permute(2, 0, 1) / 255, int(self.y[row])


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_datasets_and_loaders(images, kind):
    X, y = images
    data = Pairs(X, y) if kind == "dataset" else torch.utils.data.DataLoader(Pairs(X, y), batch_size=7)
    expected = DTSH(8, **LITE).fit(X, y)
    hasher = DTSH(8, **LITE).fit(data)
    assert np.array_equal(hasher.project(X), expected.project(X)) and hasher.encode(data).equals(expected.encode(X))
    sets = np.eye(3, dtype=int)[y]
    assert DTSH(8, **LITE).fit(data, sets).encode(X).equals(DTSH(8, **LITE).fit(X, sets).encode(X)), "y is preferred"
