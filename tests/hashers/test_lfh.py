"""LFH: steps that never make the factors less likely, and a regression on them."""

import numpy as np
import pytest

from hashlens.data.labels import Labels, relevant
from hashlens.hashers.shallow.lfh import LFH, balanced_groups, better_rows, curvature, first_factors, ridge


def objective(U, S, beta):
    """Over ordered pairs of different rows, as the paper writes it."""
    theta = U @ U.T / 2
    terms = S * theta - np.logaddexp(0, theta)
    return terms.sum() - np.trace(terms) - np.square(U).sum() / (2 * beta)


@pytest.mark.parametrize("size", [0.1, 1, 20])
def test_a_full_row_update_never_lowers_the_objective(rng, size):
    y = rng.integers(3, size=30)
    S = y[:, None] == y
    U = size * rng.normal(size=(30, 5))
    values = [objective(U, S, 3.0)]
    for i in np.tile(np.arange(30), 5):
        others = np.arange(30) != i
        U[[i]] = better_rows(U[[i]], U[others], S[[i]][:, others], 3.0)
        values.append(objective(U, S, 3.0))
    assert (np.diff(values) >= -1e-9 * np.abs(values[0])).all()
    assert values[-1] > values[0] + 1


def test_balanced_pairs_have_the_same_total_weight(rng):
    for labels in (Labels.of(rng.integers(5, size=40)), Labels.of(rng.random((40, 6)) < 0.3)):
        groups, (other, alike) = balanced_groups(labels)
        similar = relevant(labels, labels)
        weights = np.where(similar, alike, other)
        assert weights[similar].sum() == pytest.approx(weights[~similar].sum()) and weights.mean() == pytest.approx(1)
        assert np.array_equal(np.sort(np.concatenate(groups)), np.arange(40))
        assert all((similar[group] == similar[group[0]]).all() for group in groups)


def test_a_balanced_row_update_never_lowers_the_objective(rng):
    labels = Labels.of(rng.integers(6, size=30))
    _, (other, alike) = balanced_groups(labels)
    S, U = relevant(labels, labels), rng.normal(size=(30, 5))
    weights = np.where(S, alike, other)

    def value():
        theta = U @ U.T / 2
        terms = weights * (S * theta - np.logaddexp(0, theta))
        return terms.sum() - np.trace(terms) - np.square(U).sum() / 6

    values = [value()]
    for i in np.tile(np.arange(30), 4):
        others = np.arange(30) != i
        U[[i]] = better_rows(U[[i]], U[others], S[[i]][:, others], 3.0, (other, alike))
        values.append(value())
    assert (np.diff(values) >= -1e-9 * np.abs(values[0])).all() and values[-1] > values[0] + 1


def test_many_classes_are_learned(rng):
    """With as few columns as bits and unweighted pairs, the factors of a hundred classes collapse."""
    y = np.arange(1000) % 100
    X = rng.normal(size=(100, 40))[y] + 0.5 * rng.normal(size=(1000, 40))
    assert LFH(16, n_iterations=10).fit(X, y).score(X, y) > 3 * LFH.published(16, n_iterations=10).fit(X, y).score(X, y)


def test_better_rows_is_one_newton_step_for_each_row(rng):
    U, others, similar = rng.normal(size=(7, 3)), rng.normal(size=(4, 3)), rng.integers(2, size=(7, 4))
    new = better_rows(U, others, similar, 2.0)
    for i in range(7):
        gradient = -U[i] / 2.0
        for j in range(4):
            gradient = gradient + (similar[i, j] - 1 / (1 + np.exp(-U[i] @ others[j] / 2))) * others[j]
        np.testing.assert_allclose(new[i], U[i] - np.linalg.inv(curvature(others, 2.0, np.ones(4))) @ gradient)


def test_curvature_is_negative_definite_and_below_every_hessian(rng):
    for scale in (0.1, 1, 10):
        others = scale * rng.normal(size=(3, 6))  # fewer rows than bits: singular without the second term
        bound = curvature(others, 4.0, np.ones(3))
        assert np.linalg.eigvalsh(bound).max() <= -1 / 4.0 + 1e-12
        u = rng.normal(size=6)
        a = 1 / (1 + np.exp(-others @ u / 2))
        hessian = -(others.T * (a * (1 - a) / 2)) @ others - np.eye(6) / 4.0
        assert np.linalg.eigvalsh(hessian - bound).min() > -1e-9


def test_large_factors_do_not_overflow(rng):
    U = better_rows(1e4 * rng.normal(size=(5, 3)), 1e4 * rng.normal(size=(4, 3)), np.ones((5, 4)), 2.0)
    assert np.isfinite(U).all()


def test_ridge_is_the_closed_form_and_a_minimum(rng):
    X, Y = rng.normal(size=(20, 5)), rng.normal(size=(20, 3))
    W = ridge(X, Y, 0.7)
    np.testing.assert_allclose(W, np.linalg.inv(X.T @ X + 0.7 * np.eye(5)) @ X.T @ Y)
    np.testing.assert_allclose(X.T @ (X @ W - Y) + 0.7 * W, 0, atol=1e-12)


def test_projection_is_the_regression_of_the_factors_on_standardised_features(clusters):
    X, y = clusters
    hasher = LFH(6, lambda_=2.0).fit(X, y)
    Z = (X - X.mean(0)) / X.std(0)
    W = np.linalg.inv(Z.T @ Z + 2.0 * 200 / 16 * np.eye(16)) @ Z.T @ hasher._factors(Z, Labels.of(y))
    np.testing.assert_allclose(hasher.project(X), Z @ W, atol=1e-8)


def test_factors_without_a_turn_are_principal_components(clusters, rng):
    X, _ = clusters
    Z = X - X.mean(0)
    U = first_factors(Z, 12, rng)
    np.testing.assert_allclose(U.T @ U / 200, np.eye(12), atol=1e-9)  # unit variance, uncorrelated
    left = np.linalg.svd(Z)[0][:, :12]
    np.testing.assert_allclose(left @ (left.T @ U), U, atol=1e-9)
    U = first_factors(Z, 20, rng)
    assert U.shape == (200, 20) and np.linalg.matrix_rank(U) == 20


def test_turns_make_the_labels_more_likely(clusters):
    X, y = clusters
    Z, S = X - X.mean(0), y[:, None] == y
    before, after = (LFH(12, n_iterations=n)._factors(Z, Labels.of(y)) for n in (0, 50))
    assert objective(after, S, 30 / 12) > objective(before, S, 30 / 12)
    signs = np.where(after > 0, 1, -1)
    near = signs @ signs.T
    assert near[S].mean() > near[~S].mean() + 6


def test_scale_of_a_column_does_not_matter(clusters):
    X, y = clusters
    scaled = X * np.logspace(-3, 3, 16) + 5
    assert LFH(12).fit(X, y).encode(X).equals(LFH(12).fit(scaled, y).encode(scaled))


def test_constant_columns_are_never_projected_on(clusters, rng):
    """Nor those that differ by rounding only."""
    X, y = clusters
    rounded = 1e6 * (1 + 2e-16 * rng.integers(3, size=(200, 4)))
    assert rounded.std(0).min() > 0
    wide = np.hstack([X, np.zeros((200, 1)), np.full((200, 1), 1e6 / 3), rounded])
    hasher = LFH(12).fit(wide, y)
    assert not hasher.projection_[16:].any() and hasher.projection_[:16].all()
    assert np.isfinite(hasher.projection_).all()


def test_fewer_rows_than_bits_and_repeated_rows(clusters):
    X, y = clusters
    for rows in (np.arange(6), np.repeat(np.arange(6), 30), np.array([0, 1, 2, 3, 4])):
        hasher = LFH(24).fit(X[rows], y[rows])
        assert np.isfinite(hasher.projection_).all() and hasher.encode(X).n_bits == 24
        start = LFH(24, n_iterations=0).fit(X[rows], y[rows])
        assert not np.allclose(hasher.projection_, start.projection_)  # there is still something to learn from


def test_label_sets_that_overlap(clusters):
    X, y = clusters
    sets = np.zeros((200, 5), int)
    sets[np.arange(200), y] = 1
    sets[:, 4] = y < 2
    merged = np.array([0, 0, 1, 2])[y]
    codes = LFH(12).fit(X, sets).encode(X)
    assert codes.equals(LFH(12).fit(X, merged).encode(X)) and not codes.equals(LFH(12).fit(X, y).encode(X))
