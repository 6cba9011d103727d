"""ClassifierCode: class codes that are far apart, and images that get the code of their class."""

import json
import math

import numpy as np
import pytest

from hashlens import Codes, evaluate_codes
from hashlens.hashers.deep.classifier_code import ClassifierCode, distant_codes
from hashlens.hashers.deep.training import Training

FAST = Training(epochs=20, batch_size=40, head_lr=0.05)


@pytest.mark.parametrize(("n", "n_bits", "least"), [(10, 12, 4), (10, 32, 14), (10, 48, 22), (100, 48, 14), (2, 1, 1)])
def test_codes_of_classes_are_far_apart(n, n_bits, least):
    for seed in range(5):
        codes = distant_codes(n, n_bits, np.random.default_rng(seed))
        assert codes.shape == (n, n_bits) and set(np.unique(codes)) == {-1, 1}
        apart = [(codes[i] != codes[j]).sum() for i in range(n) for j in range(i)]
        assert min(apart) >= least


def test_more_classes_than_codes():
    codes = distant_codes(9, 2, np.random.default_rng(0))
    assert len(np.unique(codes, axis=0)) == 4


def test_a_code_is_that_of_the_predicted_class(clusters):
    X, y = clusters
    hasher = ClassifierCode(12, training=FAST).fit(X[50:], y[50:])
    scores = (
        X.astype(np.float32) @ hasher.network_[0].weight.detach().numpy().T + hasher.network_[0].bias.detach().numpy()
    )
    predicted = scores.argmax(1)
    assert (predicted[:50] == y[:50]).mean() > 0.9
    assert np.array_equal(hasher.project(X), hasher.class_codes_[predicted])
    assert np.array_equal(hasher.encode(X).signs(), hasher.class_codes_[predicted])
    codes = hasher.encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.85
    # a perfect classifier has a perfect score, at any number of bits with a code for each class
    perfect = Codes.from_relaxed(hasher.class_codes_[y])
    assert evaluate_codes(perfect[:50], perfect[50:], y[:50], y[50:])["map_tie_aware"] == 1


def test_a_code_of_label_sets_is_the_sum_of_their_codes(clusters):
    X, y = clusters
    sets = np.eye(5, dtype=int)[y]
    sets[:, 4] = y < 2
    sets[:20] = 0
    hasher = ClassifierCode(24, training=FAST).fit(X, sets)
    scores = (
        X.astype(np.float32) @ hasher.network_[0].weight.detach().numpy().T + hasher.network_[0].bias.detach().numpy()
    )
    codes = hasher.class_codes_.astype(float)
    expected = np.zeros((200, 24))
    for k in range(200):
        for c in range(5):
            expected[k] += (1 / (1 + math.exp(-scores[k, c])) - sets[:, c].mean()) * codes[c]
    np.testing.assert_allclose(hasher.project(X), expected, rtol=1e-3, atol=1e-4)
    signs = hasher.encode(X).signs().astype(float)
    near = signs @ signs.T
    own, cousin, other = (
        near[y[:, None] == y].mean(),
        near[np.ix_(y == 0, y == 1)].mean(),
        near[np.ix_(y == 0, y == 2)].mean(),
    )
    assert own > cousin > other
    ones = (signs > 0).mean(0)
    assert ((ones > 0.1) & (ones < 0.9)).mean() > 0.8  # not one code for all


@pytest.mark.parametrize("sets", [False, True])
def test_images_and_saving(tmp_path, sets):
    """The network has an output for each class, whatever the number of bits."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8)
    y = np.arange(24) % 3
    hasher = ClassifierCode(7, backbone="small-cnn", image_size=8, training=Training(epochs=2, batch_size=8))
    hasher.fit(pixels, np.eye(3, dtype=int)[y] if sets else y)
    assert hasher.network_[-1].out_features == 3 and hasher.project(pixels).shape == (24, 7)
    hasher.save(tmp_path)
    loaded = ClassifierCode.load(tmp_path)
    assert np.array_equal(loaded.project(pixels), hasher.project(pixels)) and loaded.multi_ is sets
    assert json.loads((tmp_path / "config.json").read_text())["multi"] is sets


def test_codes_of_classes_depend_on_the_seed(clusters):
    first, again, other = (
        ClassifierCode(12, training=Training(epochs=1), random_state=seed).fit(*clusters).class_codes_
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)
