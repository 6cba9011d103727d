"""Codes of classes: they follow the geometry of the classes, keep their distance, and start the hash layer well."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from slow_losses import BATCHES, differences, value_and_gradient

from hashlens import DTSH, Training
from hashlens.data.labels import Labels
from hashlens.errors import UsageError
from hashlens.hashers.deep.class_codes import class_codes, memberships, ridge_regression, separated
from hashlens.hashers.deep.heads import SHARPNESS, FromLongCode, Standardised, plain
from hashlens.hashers.deep.triplet_losses import DTSHClassLoss


def distances(codes):
    found = (codes.shape[1] - codes @ codes.T) / 2
    return found[np.triu_indices(len(codes), 1)]


@pytest.fixture
def many_classes(rng):
    """40 classes of 6, in 8 families: (features, labels, family of each class)."""
    families = 3 * rng.normal(size=(8, 20))
    classes = np.repeat(families, 5, axis=0) + rng.normal(size=(40, 20))
    labels = np.repeat(np.arange(40), 6)
    return classes[labels] + 0.7 * rng.normal(size=(240, 20)), labels, np.repeat(np.arange(8), 5)


@pytest.mark.parametrize(("n_classes", "n_bits", "apart"), [(100, 48, 12), (100, 16, 4), (10, 32, 14), (600, 32, 6)])
def test_any_two_classes_differ_in_so_many_bits(rng, n_classes, n_bits, apart):
    values = rng.normal(size=(n_classes, n_bits))
    codes = separated(values, apart)
    assert distances(codes).min() >= apart > distances(np.sign(values)).min()
    turned = codes != np.sign(values)
    assert turned.mean() < 0.05 and np.abs(values[turned]).mean() < np.abs(values).mean() / 2  # the cheapest


def test_codes_that_are_apart_stay_as_they_are(rng):
    values = rng.normal(size=(20, 64))
    assert np.array_equal(separated(values, 10), np.where(values > 0, 1, -1))


def test_more_classes_than_codes(rng):
    codes = separated(rng.normal(size=(50, 4)), 2)
    assert codes.shape == (50, 4) and len(np.unique(codes, axis=0)) == 16


def test_codes_follow_the_geometry_of_the_classes(many_classes):
    X, y, family = many_classes
    codes = class_codes(X, Labels.of(y), 32, 4, 0)
    assert codes.shape == (40, 32) and codes.dtype == np.float32 and set(np.unique(codes)) == {-1, 1}
    near = (family[:, None] == family)[np.triu_indices(40, 1)]
    assert distances(codes).min() >= 4
    assert distances(codes)[near].mean() < 0.6 * distances(codes)[~near].mean()


@pytest.mark.parametrize("n_bits", [8, 24])
def test_few_classes_and_sets_of_labels(rng, n_bits):
    X = rng.normal(size=(60, 5))
    sets = np.eye(3, dtype=bool)[rng.integers(0, 3, 60)] | (rng.random((60, 3)) < 0.3)
    codes = class_codes(X, Labels.of(sets), n_bits, 2, 0)
    assert codes.shape == (3, n_bits) and distances(codes).min() >= 2


def test_regression(rng):
    X, Y = rng.normal(2, 1, size=(50, 6)), rng.normal(size=(50, 3))
    weights, bias = ridge_regression(X, Y)
    expected = Ridge(0.1 * len(X) * X.var(0).mean()).fit(X, Y)
    np.testing.assert_allclose(weights, expected.coef_.T, atol=1e-10)
    np.testing.assert_allclose(bias, expected.intercept_, atol=1e-10)


def test_standardised_layer_as_a_plain_one(rng):
    features = torch.from_numpy(rng.normal(3, 5, (50, 7))).float()
    features[:, 2] = 9  # always the same
    layer = Standardised(features, rng.normal(size=(7, 4)), np.arange(4.0))
    torch.testing.assert_close(layer(features).mean(0), torch.arange(4.0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(layer.dense()(features), layer(features), rtol=1e-4, atol=1e-4)


def test_bits_are_written_from_a_longer_code(many_classes, tmp_path):
    X, y, _ = many_classes
    seen = y < 30
    hasher = DTSH(12, training=Training(epochs=15)).fit(X[seen], y[seen])
    head = hasher.network_[-1]
    assert isinstance(head, FromLongCode) and head is plain(head) and hasher.long_bits_ == 512
    x = torch.from_numpy(X).float()
    long = torch.tanh(head.long(x))
    # the agreement with a code is its share of the bits, times the sharpness
    codes = torch.sign(head.agreement.weight)
    p = torch.softmax(SHARPNESS * (long @ codes.T) / 512, 1)
    torch.testing.assert_close(head(x), head.direct(long) + p @ head.codes.weight.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(head.train()(x), head.long(x))  # the likelihood is that of the long code
    head.eval()
    # the regression gives the short code of a class from its long one
    assert ((head.direct(codes) > 0) == (head.codes.weight.T > 0)).float().mean() > 0.95
    hasher.save(tmp_path / "model")
    assert np.array_equal(DTSH.load(tmp_path / "model").encode(X).packed, hasher.encode(X).packed)
    own = head.codes.weight.T[torch.from_numpy(y[seen])] > 0
    assert ((head(x[seen]) > 0) == own).float().mean() > 0.97
    linear = DTSH(12, long_bits=0, training=Training(epochs=15)).fit(X[seen], y[seen])
    assert linear.long_bits_ == 0
    # crowded codes: 12 bits for 30 classes, two images of each held out
    train, query = seen & (np.arange(240) % 6 < 4), seen & (np.arange(240) % 6 >= 4)
    scores = [
        DTSH(12, long_bits=long_bits, training=Training(epochs=15)).fit(X[train], y[train]).score(X[query], y[query])
        for long_bits in (None, 0)
    ]
    assert scores[0] > scores[1]


def test_a_longer_code_needs_one_label_per_image(rng):
    X = rng.normal(size=(60, 5))
    sets = np.eye(3, dtype=bool)[rng.integers(0, 3, 60)] | (rng.random((60, 3)) < 0.3)
    assert DTSH(8, training=Training(epochs=1)).fit(X, sets).long_bits_ == 0


def test_the_margin_is_the_same_share_of_a_longer_code():
    labels = Labels.of(np.repeat(np.arange(20), 5))
    hasher = DTSH(16, alpha=4.0)
    hasher.long_bits_ = 64
    assert hasher._loss(labels).alpha == 16.0


@pytest.mark.parametrize("name", BATCHES)
def test_the_loss_against_a_loop(rng, name):
    labels = BATCHES[name]
    n_classes = np.shape(labels)[1] if np.ndim(labels) == 2 else max(labels) + 1
    codes, u = rng.choice([-1.0, 1.0], (n_classes, 6)), rng.normal(size=(len(labels), 6))
    loss = DTSHClassLoss(6, codes, 2.0, 900.0)
    value, gradient, figures = value_and_gradient(loss, u, labels)

    def slow(u):
        means, active = [], []
        for row, own in zip(np.tanh(u), labels, strict=True):
            mine = np.flatnonzero(own) if np.ndim(own) else [own]
            gaps = [
                (row @ codes[p] - row @ codes[n]) / 2 - 2.0 for p in mine for n in range(n_classes) if n not in mine
            ]
            if gaps:
                means.append(np.mean(np.log1p(np.exp(-np.array(gaps)))))
                active += [gap < 0 for gap in gaps]
        return np.mean(means) + 900 / 22_500 * np.mean(((u - np.sign(u)) ** 2).sum(1)), np.mean(active)

    assert value == pytest.approx(slow(u)[0], rel=1e-6)
    assert figures["active"] == pytest.approx(slow(u)[1])
    np.testing.assert_allclose(gradient, differences(lambda x: slow(x)[0], u), atol=1e-6)


def test_many_classes_with_few_images_each(many_classes):
    X, y, _ = many_classes
    train, query = np.arange(240) % 6 < 4, np.arange(240) % 6 >= 4
    scores = {}
    for sampling in ("class-codes", "in-batch"):
        hasher = DTSH(24, sampling=sampling, training=Training(epochs=15)).fit(X[train], y[train])
        scores[sampling] = hasher.score(X[query], y[query])
    assert scores["class-codes"] > scores["in-batch"] + 0.05


def test_a_single_image_per_class(rng):
    X = rng.normal(size=(12, 6))
    codes = class_codes(X, Labels.of(np.arange(12)), 16, 3, 0)
    assert distances(codes).min() >= 3
    hasher = DTSH(16, training=Training(epochs=10)).fit(X, np.arange(12))
    assert hasher.sampling_ == "class-codes" and len(np.unique(hasher.encode(X).packed, axis=0)) == 12


@pytest.mark.parametrize(
    ("n_classes", "per_class", "chosen"),
    [(10, 500, "in-batch"), (16, 200, "in-batch"), (10, 22, "class-codes"), (17, 500, "class-codes")],
)
def test_how_triplets_are_formed_follows_from_the_data(n_classes, per_class, chosen):
    labels = Labels.of(np.repeat(np.arange(n_classes), per_class))
    assert DTSH()._sampling_for(labels) == chosen
    assert DTSH(sampling="published")._sampling_for(labels) == "published"


@pytest.mark.parametrize(("per_class", "mixup"), [(20, 0.2), (60, 0.0)])
def test_mixtures_where_classes_have_few_images(rng, per_class, mixup):
    labels = Labels.of(np.repeat(np.arange(20), per_class))
    hasher = DTSH(8)
    hasher.sampling_ = "class-codes"
    assert hasher._recipe(labels, pretrained=True)["mixup"] == mixup
    assert hasher._recipe(labels, pretrained=False)["adapt"] == 1.0  # statistics of an untrained network mean nothing


def test_bits_between_classes(many_classes):
    with pytest.raises(UsageError, match="apart must be >= 1, got 0"):
        DTSH(24, apart=0).fit(*many_classes[:2])


@pytest.mark.parametrize("values", [[2, 0, 2, 4], [[1, 0, 1], [0, 0, 0], [0, 1, 0]]])
def test_memberships_are_the_matrix_of_the_labels(values):
    labels = Labels.of(values)
    assert np.array_equal(memberships(labels).toarray(), labels.matrix())
