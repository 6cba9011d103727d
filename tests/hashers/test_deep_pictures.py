"""Deep hashers on pictures: frozen blocks, files on disk, and a sentence for everything that does not fit."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file

import hashlens
from hashlens import DTSH, Training
from hashlens.data.images import ArrayImages
from hashlens.errors import DataError, HashlensError, MismatchError, Stopped, UsageError
from hashlens.hashers.deep import base
from hashlens.hashers.deep.inputs import MapInputs
from hashlens.networks import weights
from hashlens.networks.efficientnet_lite import build
from hashlens.progress import Progress

ONE_EPOCH = Training(epochs=1, batch_size=8)
LITE = {"backbone": "efficientnet-lite0", "image_size": 32, "frozen_blocks": 14, "training": ONE_EPOCH}
SMALL = {"backbone": "small-cnn", "image_size": 8, "training": ONE_EPOCH}


@cache
def random_weights(name):
    """Made weights whose batch norms fit noise, so that different pictures have different features."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = build(name)
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None  # the statistics of one batch
        with torch.no_grad():
            network.train()(torch.randn(16, 3, 32, 32))
        return network.state_dict()


@pytest.fixture(autouse=True)
def made_weights(monkeypatch):
    monkeypatch.setattr(weights, "pretrained_weights", random_weights)


@pytest.fixture
def pictures(rng):
    """24 colour pictures of three classes, each class with a colour of its own."""
    y = np.arange(24) % 3
    pixels = rng.integers(0, 128, (24, 36, 40, 3), dtype=np.uint8)
    pixels[np.arange(24), :, :, y] += 120
    return pixels, y


@pytest.fixture
def tiny(rng):
    return rng.integers(0, 256, (24, 8, 8), dtype=np.uint8), np.arange(24) % 3


def test_fit_encode_save_load(pictures, tmp_path, monkeypatch):
    X, y = pictures
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


def test_every_way_of_giving_pictures_gives_the_same_codes(pictures, tmp_path):
    X, y = pictures
    paths = []
    for i, pixels in enumerate(X):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(pixels).save(paths[-1])
    hasher = DTSH(12, **LITE).fit(X, y)
    codes = hasher.encode(X)
    for same in (ArrayImages(X), list(X), [Image.fromarray(x) for x in X], [str(p) for p in paths], paths):
        assert hasher.encode(same).equals(codes)
    assert DTSH(12, **LITE).fit(paths, y).encode(X).equals(codes)


def test_frozen_blocks_stay_as_they_are(pictures):
    X, y = pictures
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
def test_kept_outputs_then_the_trained_part_equal_the_whole(pictures, flip):
    X, y = pictures
    hasher = DTSH(12, **LITE | {"training": Training(epochs=1, batch_size=8, flip=flip)}).fit(X, y)
    inputs, trained = hasher._inputs(ArrayImages(X), "cpu", "float32", Progress(quiet=True))
    rows = np.array([5, 0, 17, 9, 23, 11])
    plain, mirrored = hasher.project(X[rows]), hasher.project(X[rows][:, :, ::-1])
    with torch.inference_mode():
        seen = trained(inputs.batch(rows, np.random.default_rng(0))).numpy()
    near_plain, near_mirrored = (np.abs(seen - u).max(1) < 0.01 * np.abs(u).max() for u in (plain, mirrored))
    assert (near_plain ^ near_mirrored).all()
    assert near_mirrored.any() == flip and near_plain.any()


def test_windows_are_further_views(pictures, monkeypatch):
    X, y = pictures
    made = []
    monkeypatch.setattr(base, "MapInputs", lambda views: made.append(views) or MapInputs(views))
    plain, cut = (DTSH(6, **LITE | {"training": replace(ONE_EPOCH, windows=n)}).fit(X, y) for n in (0, 2))
    assert [len(views) for views in made] == [2, 6]  # each view mirrored too
    assert len({np.asarray(view).tobytes() for view in made[1]}) == 6
    assert not np.array_equal(plain.project(X), cut.project(X))


@pytest.mark.parametrize("frozen", [0, 4, 18])
def test_any_number_of_blocks_may_be_frozen(pictures, frozen):
    X, y = pictures
    hasher = DTSH(6, **LITE | {"frozen_blocks": frozen}).fit(X, y)
    assert hasher.frozen_blocks_ == frozen and hasher.encode(X).n_bits == 6


def test_choices_left_to_us(rng):
    y = np.arange(24) % 3
    grey = DTSH(6, training=ONE_EPOCH).fit(rng.integers(0, 256, (24, 8, 8), dtype=np.uint8), y)
    assert (grey.backbone_, grey.image_size_, grey.frozen_blocks_) == ("small-cnn", 16, 0)
    colour = DTSH(6, image_size=16, training=ONE_EPOCH).fit(rng.integers(0, 256, (24, 8, 8, 3), dtype=np.uint8), y)
    assert colour.backbone_ == "efficientnet-lite0" and colour.frozen_blocks_ > 0


def test_bfloat16_trains(tiny):
    X, y = tiny
    rough = DTSH(6, **SMALL | {"training": Training(epochs=2, batch_size=8, precision="bfloat16")}).fit(X, y)
    exact = DTSH(6, **SMALL | {"training": Training(epochs=2, batch_size=8, precision="float32")}).fit(X, y)
    assert rough.network_[-1].weight.dtype == torch.float32
    assert rough.history_[0]["loss"] == pytest.approx(exact.history_[0]["loss"], rel=0.05)
    assert rough.history_[0]["loss"] != exact.history_[0]["loss"]
    assert np.isfinite(rough.project(X)).all()


def test_small_cnn_learns(rng):
    """Pictures bright above or below, left or right: the corner is the class."""
    y = np.arange(80) % 4
    pixels = rng.integers(0, 100, (80, 8, 8), dtype=np.uint8)
    for i, c in enumerate(y):
        pixels[i, 4 * (c // 2) :, 4 * (c % 2) :][:4, :4] += 120
    training = Training(epochs=10, batch_size=20, lr=5e-3, flip=False)
    hasher = DTSH(12, **SMALL | {"training": training}).fit(pixels, y)
    codes = hasher.encode(pixels)
    assert hashlens.evaluate_codes(codes, codes, y, y)["map_tie_aware"] > 0.8
    assert hasher.history_[-1]["loss"] < hasher.history_[0]["loss"] / 2


def test_progress_is_told(pictures, capsys, empty_cache):
    X, y = pictures
    hasher = DTSH(12, **LITE).fit(X, y, progress=Progress())
    lines = capsys.readouterr().err
    assert "14 of 18 blocks of efficientnet-lite0 stay as they are" in lines
    assert "features of flipped pictures  24/24" in lines and "1/1" in lines
    hasher.encode(X, progress=Progress())
    assert "codes  24/24" in capsys.readouterr().err


# What does not fit.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"X": lambda X: X.astype(np.float32)}, "uint8"),
        ({"X": lambda X: "pictures/"}, "not str"),
        ({"X": lambda X: []}, "no pictures"),
        ({"X": lambda X: X[:0]}, "no pictures"),
        ({"X": lambda X: X[0]}, "looks like a single picture"),
        ({"X": lambda X: [X[0], "a.png"]}, "this list holds"),
        ({"X": lambda X: ["gone.png"] * 24}, r"gone\.png"),
        ({"y": lambda y: y[:-1]}, "24 pictures but 23 labels"),
        ({"y": lambda y: y * 0 + 5}, "all pictures are of one class"),
        ({"y": lambda y: np.arange(24)}, "no class has two pictures"),
        ({"y": lambda y: None}, "learns from labels"),
        ({"y": lambda y: np.eye(24, dtype=int)}, "no class has two pictures"),
        ({"frozen_blocks": -1}, "has 18 blocks; -1 of them"),
        ({"frozen_blocks": 99}, "has 18 blocks; 99 of them"),
        ({"image_size": 7}, "at least 8 pixels, not 7"),
        ({"backbone": "vgg"}, "no backbone 'vgg'"),
        ({"sampling": "some"}, "in-batch or published"),
        ({"n_bits": 0}, "number of bits"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_wrong_input_is_a_sentence(pictures, change, sentence):
    X, y = pictures
    X, y = change.get("X", lambda v: v)(X), change.get("y", lambda v: v)(y)
    params = {"n_bits": 6} | LITE | {k: v for k, v in change.items() if k not in "Xy"}
    with pytest.raises((DataError, UsageError), match=sentence):
        DTSH(**params).fit(X, y)


def test_the_hash_layer_cannot_be_frozen(pictures):
    with pytest.raises(UsageError, match="has 18 blocks; 19 of them"):
        DTSH(6, **LITE | {"frozen_blocks": 19}).fit(*pictures)


def test_label_sets_that_all_meet(pictures):
    Y = np.zeros((24, 3), int)
    Y[:, 0] = 1
    Y[::2, 1] = 1
    with pytest.raises(DataError):
        DTSH(6, **LITE).fit(pictures[0], Y)


@pytest.mark.parametrize("wrong", [{"backbone": "vgg"}, {"frozen_blocks": 99}])
def test_after_a_fit_that_failed_nothing_is_learnt(pictures, wrong):
    hasher = DTSH(6, **LITE | wrong)
    with pytest.raises(UsageError):
        hasher.fit(*pictures)
    assert not hasher.is_fitted()


def test_after_a_fit_that_was_stopped_nothing_is_learnt(tiny):
    hasher = DTSH(6, **SMALL)
    with pytest.raises(Stopped):
        hasher.fit(*tiny, stop=lambda: True)
    assert not hasher.is_fitted()


def test_features_and_pictures_are_not_mixed(tiny, rng):
    X, y = tiny
    features = rng.normal(size=(24, 5))
    on_pictures, on_features = DTSH(6, **SMALL).fit(X, y), DTSH(6, training=ONE_EPOCH).fit(features, y)
    with pytest.raises(DataError, match="this model was trained on pictures"):
        on_pictures.encode(features)
    with pytest.raises(DataError, match="this model was trained on features with 5 columns"):
        on_features.encode(X)
    with pytest.raises(DataError, match="uint8"):
        on_pictures.encode(X / 255)


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
        with pytest.raises(DataError, match="missing or damaged") as error:
            load(model)
        assert str(model) in error.value.message


def test_models_with_other_weights(model):
    arrays = load_file(model / "model.safetensors")
    for wrong in ({k: v for k, v in arrays.items() if k != "1.0.weight"}, arrays | {"extra": np.zeros(3)}):
        save_file(wrong, model / "model.safetensors")
        with pytest.raises(DataError, match="weights do not fit its configuration"):
            hashlens.load(model)


def test_models_of_another_method(model):
    text = (model / "config.json").read_text()
    (model / "config.json").write_text(text.replace('"method": "dtsh"', '"method": "lsh2"'))
    with pytest.raises(MismatchError, match="holds a lsh2 model, not dtsh"):
        DTSH.load(model)
    with pytest.raises(HashlensError, match="no method 'lsh2'"):
        hashlens.load(model)


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


def test_mirror_is_the_mean_of_a_picture_and_its_mirror_image(rng):
    pictures = rng.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    y = np.arange(40) % 2
    plain = DTSH(8, backbone="small-cnn", training=Training(epochs=1, batch_size=20)).fit(pictures, y)
    both = DTSH(8, backbone="small-cnn", training=Training(epochs=1, batch_size=20, mirror=True)).fit(pictures, y)
    flipped = pictures[:, :, ::-1].copy()
    expected = (plain.project(pictures) + plain.project(flipped)) / 2
    np.testing.assert_allclose(both.project(pictures), expected, atol=1e-6)
    np.testing.assert_allclose(both.project(flipped), expected, atol=1e-6)
    assert not np.allclose(plain.project(pictures), expected, atol=1e-3)


def test_a_checkpoint_is_not_continued_on_other_frozen_weights(tmp_path, monkeypatch, rng):
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
