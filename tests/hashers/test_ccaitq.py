"""CCA-ITQ: directions that are correlated with the labels, then the rotation of ITQ."""

import numpy as np
import pytest

from hashlens.hashers.shallow.itq import CCAITQ, canonical_directions, quantising_rotation


def test_correlations(clusters):
    """Each is the correlation of X w with the best guess of it from the labels; the first is the greatest there is."""
    X, y = clusters
    X = X - X.mean(0)
    Y = np.eye(4)[y]
    W, correlations = canonical_directions(X, Y, 3, 1e-9)
    assert (np.diff(correlations) <= 0).all() and correlations.min() > 0 and correlations.max() <= 1
    for w, correlation in zip(W.T, correlations, strict=True):
        guess = Y @ np.linalg.lstsq(Y, X @ w, rcond=None)[0]
        assert np.corrcoef(guess, X @ w)[0, 1] == pytest.approx(correlation, abs=1e-6)
    rng = np.random.default_rng(1)
    for _ in range(50):
        v = X @ (W[:, 0] + 0.1 * rng.normal(size=16))
        guess = Y @ np.linalg.lstsq(Y, v, rcond=None)[0]
        assert np.corrcoef(guess, v)[0, 1] <= correlations[0] + 1e-6
    np.testing.assert_allclose((X @ W).T @ (X @ W) / 200, np.eye(3), atol=1e-6)


def test_correlations_with_label_sets(clusters):
    """Labels are centred: a guess may add a constant, which columns of 0 and 1 alone do not give."""
    X, y = clusters
    X = X - X.mean(0)
    sets = np.eye(4)[y]
    sets[:, 0] = 1 - (np.arange(200) % 7 == 0)
    W, correlations = canonical_directions(X, sets, 4, 1e-9)
    for w, correlation in zip(W.T, correlations, strict=True):
        causes = np.column_stack([np.ones(200), sets])
        guess = causes @ np.linalg.lstsq(causes, X @ w, rcond=None)[0]
        assert np.corrcoef(guess, X @ w)[0, 1] == pytest.approx(correlation, abs=1e-6)


def test_classes_less_one_have_correlations(clusters):
    X, y = clusters
    X = X - X.mean(0)
    W, correlations = canonical_directions(X, np.eye(4)[y], 24, 1e-4)
    assert W.shape == (16, 24) and (correlations[:3] > 0.5).all()
    assert not correlations[3:].any() and not W[:, 3:].any()
    sets = np.random.default_rng(2).random((200, 4)) < 0.4
    assert (canonical_directions(X, sets.astype(float), 24, 1e-4)[1] > 0).sum() == 4


def test_projection_is_scaled_and_rotated(clusters):
    X, y = clusters
    hasher = CCAITQ(12, random_state=5).fit(X, y)
    W, correlations = canonical_directions(X - X.mean(0), np.eye(4)[y], 12, hasher.rho)
    V = (X - X.mean(0)) @ W * correlations
    R = quantising_rotation(V, 50, 5)
    np.testing.assert_allclose(R.T @ R, np.eye(12), atol=1e-8)
    np.testing.assert_allclose(hasher.project(X), V @ R, atol=1e-8)
    errors = [np.square(np.abs(V @ quantising_rotation(V, n, 5)) - 1).sum() for n in (0, 50)]
    assert errors[1] < errors[0]


def test_units_do_not_matter(clusters):
    X, y = clusters
    codes = CCAITQ(12).fit(X, y).encode(X)
    for scale in (1e-3, 1e3):
        assert CCAITQ(12).fit(scale * X + 3, y).encode(scale * X + 3).equals(codes)


def test_classes_that_do_not_occur_and_rows_without_label(clusters):
    X, y = clusters
    assert CCAITQ(12).fit(X, 3 * y + 1).encode(X).n_bits == 12
    sets = np.eye(4, dtype=int)[y]
    sets[:20] = 0
    codes = CCAITQ(12).fit(X, sets).encode(X)
    assert len(np.unique(codes.packed, axis=0)) > 4


def test_fewer_rows_than_features_and_bits(rng):
    X = np.hstack([rng.normal(size=(6, 30)), np.ones((6, 2))])
    hasher = CCAITQ(48).fit(np.repeat(X, 2, axis=0), np.repeat([0, 1, 2, 0, 1, 2], 2))
    assert hasher.projection_.shape == (32, 48)
    signs = hasher.encode(X).signs()
    assert len(np.unique(signs, axis=0)) == 3  # thirty features can tell six rows apart by class, without a rest
    assert np.array_equal(signs[:3], signs[3:])
