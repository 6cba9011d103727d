"""LSH and ITQ: what makes each of them that method, and features from images."""

import itertools

import numpy as np
import pytest

from hashlens.data.images import as_images
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.features import networks
from hashlens.features.extractor import image_features
from hashlens.hashers.shallow.itq import ITQ, quantising_rotation
from hashlens.hashers.shallow.lsh import LSH
from hashlens.hashers.shallow.spectral import principal_directions


def test_lsh_distance_is_an_angle(rng):
    """The part of differing bits is angle / pi, within three standard deviations."""
    X = rng.normal(size=(6, 10))
    n_bits = 20_000
    codes = LSH(n_bits).fit(np.vstack([X, -X])).encode(X)  # their mean is zero
    signs = codes.signs()
    for i in range(5):
        cosine = X[i] @ X[i + 1] / np.linalg.norm(X[i]) / np.linalg.norm(X[i + 1])
        expected = np.arccos(cosine) / np.pi
        deviation = np.sqrt(expected * (1 - expected) / n_bits)
        assert abs((signs[i] != signs[i + 1]).mean() - expected) < 3 * deviation


def test_lsh_does_not_see_the_scale(clusters):
    X, _ = clusters
    assert LSH(24).fit(X).encode(X).equals(LSH(24).fit(7 * X).encode(7 * X))


def test_principal_directions(rng):
    X = rng.normal(size=(300, 8)) * np.arange(1, 9)
    X -= X.mean(0)
    W = principal_directions(X, 5)
    V = X @ W
    np.testing.assert_allclose(W.T @ W, np.eye(5), atol=1e-12)
    spread = (V**2).sum(0)
    np.testing.assert_allclose(V.T @ V, np.diag(spread), atol=1e-8 * spread.max())
    expected = np.linalg.svd(X, compute_uv=False)[:5] ** 2
    np.testing.assert_allclose(spread, expected, rtol=1e-9)
    more = principal_directions(X, 11)
    assert more.shape == (8, 11) and not more[:, 8:].any() and np.linalg.matrix_rank(more) == 8


def test_itq_loses_less_with_every_turn(clusters):
    X, _ = clusters
    V = (X - X.mean(0)) @ principal_directions(X - X.mean(0), 12)
    errors = []
    for n in range(30):
        R = quantising_rotation(V, n, 0)
        np.testing.assert_allclose(R.T @ R, np.eye(12), atol=1e-9)
        errors.append(np.square(np.where(V @ R > 0, 1, -1) - V @ R).sum())
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(errors))
    assert errors[-1] < 0.98 * errors[0]


def test_other_features_of_the_same_name_are_refused(rng, tmp_path, monkeypatch):
    """The network that makes the features is part of the model."""
    images = rng.integers(0, 256, (20, 16, 16, 3), np.uint8)
    hasher = ITQ(8, features="small-cnn").fit(images)
    hasher.save(tmp_path)
    assert ITQ.load(tmp_path).encode(images).equals(hasher.encode(images))
    build = networks.build_blocks

    def changed(name):
        blocks = build(name)
        next(blocks.parameters()).data.mul_(1.1)
        return blocks

    monkeypatch.setattr(networks, "build_blocks", changed)
    with pytest.raises(MismatchError, match="the features small-cnn are not those that this ITQ was fitted on"):
        ITQ.load(tmp_path).encode(images)


def test_bits_that_were_set_after_fit_are_refused(clusters, tmp_path):
    hasher = ITQ(8).fit(clusters[0]).set_params(n_bits=12)
    for use in (hasher.encode, lambda X: hasher.save(tmp_path)):
        with pytest.raises(UsageError, match="was fitted with 8 bits, not 12; fit it again"):
            use(clusters[0])
    assert hasher.fit(clusters[0]).encode(clusters[0]).n_bits == 12


def test_itq_with_more_bits_than_features(clusters):
    X, _ = clusters
    hasher = ITQ(40).fit(X)
    assert hasher.projection_.shape == (16, 40)
    assert len(np.unique(hasher.encode(X).signs(), axis=1).T) > 30  # bits are not copies of each other


def test_images_are_turned_into_features(rng, clusters):
    images = rng.integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    hasher = ITQ(8, features="gist").fit(images)
    features = image_features(as_images(images), "gist")
    assert hasher.encode(images[:7]).equals(ITQ(8).fit(features).encode(features[:7]))
    with pytest.raises(DataError, match="trained on images"):
        hasher.encode(clusters[0])
    with pytest.raises(DataError, match="trained on features"):
        LSH(8).fit(clusters[0]).encode(images)
