"""SPLH: each direction is the best left, each bit makes the pairs that it gets wrong weigh more."""

import numpy as np
import pytest

from hashlens.data.labels import Labels
from hashlens.hashers.shallow.splh import (
    SPLH,
    boost,
    label_rank,
    largest_eigenvalue,
    leading_direction,
    pair_scatter,
    varying_directions,
    without,
)


def pairs_of(y):
    return np.where(y[:, None] == y, np.float32(1), np.float32(-1))


def test_first_direction_maximises_the_adjusted_covariance(clusters, rng):
    X, y = clusters
    centred = X - X.mean(0)
    pairs = centred.T @ pairs_of(y).astype(np.float64) @ centred
    spread = centred.T @ centred
    M = pairs + 0.3 * np.linalg.norm(pairs, 2) / np.linalg.norm(spread, 2) * spread
    w = SPLH(1, eta=0.3).fit(X, y).projection_[:, 0]
    assert w @ M @ w == pytest.approx(np.linalg.eigvalsh(M)[-1], rel=1e-6)
    others = rng.normal(size=(16, 100))
    others /= np.linalg.norm(others, axis=0)
    assert (np.sum(others * (M @ others), axis=0) < w @ M @ w).all()


def test_all_directions_against_the_paper_step_by_step(clusters):
    X, y = clusters
    W = SPLH(6, alpha=0.7, eta=0.2).fit(X, y).projection_  # four classes: whole features again after three bits
    rest, S = X - X.mean(0), pairs_of(y).astype(np.float64)
    eta = 0.2 * np.linalg.norm(rest.T @ S @ rest, 2) / np.linalg.norm(rest.T @ rest, 2)
    for k in range(6):
        w = np.linalg.eigh(rest.T @ S @ rest + eta * rest.T @ rest)[1][:, -1]
        np.testing.assert_allclose(np.abs(w @ W[:, k]), 1, atol=1e-6)
        predicted = np.outer(rest @ w, rest @ w)
        predicted /= np.abs(predicted).max()
        for i in range(len(S)):
            for j in range(len(S)):
                if predicted[i, j] * S[i, j] < 0:
                    S[i, j] -= 0.7 * predicted[i, j]
        rest = X - X.mean(0) if k == 2 else rest - np.outer(rest @ w, w)


def test_directions_are_orthonormal_until_there_are_as_many_as_classes_less_one(clusters):
    X, y = clusters
    assert label_rank(Labels.of(y)) == 3 and label_rank(Labels.of(np.eye(5, dtype=int)[y])) == 3
    W = SPLH(12, restart=None).fit(X, y).projection_
    for k in range(0, 12, 3):
        np.testing.assert_allclose(W[:, k : k + 3].T @ W[:, k : k + 3], np.eye(3), atol=1e-9)
    W = SPLH(16, restart=None).fit(X, np.arange(200) // 2).projection_  # a hundred classes in 16 dimensions
    np.testing.assert_allclose(W.T @ W, np.eye(16), atol=1e-9)


def test_nothing_is_left_along_a_direction(clusters, rng):
    X, _ = clusters
    w = rng.normal(size=16)
    w /= np.linalg.norm(w)
    rest = without(X, w)
    np.testing.assert_allclose(rest @ w, 0, atol=1e-12)
    across = rng.normal(size=16)
    across -= across @ w * w
    np.testing.assert_allclose(rest @ across, X @ across)


def test_pairs_change_only_where_the_bit_is_wrong(clusters, rng):
    y = np.tile(clusters[1], 3)  # more rows than a block
    S = pairs_of(y)
    before, values = S.copy(), rng.normal(size=600)
    boost(S, values, 0.5)
    S = np.triu(S) + np.triu(S, 1).T  # what is below the diagonal is never read
    wrong = np.sign(np.outer(values, values)) != before
    assert 0.2 < wrong.mean() < 0.8
    assert np.array_equal(S[~wrong], before[~wrong])
    assert (S[wrong] * before[wrong] > 1).all()  # larger, and of the sign they had
    assert np.abs(S).max() <= 1.5
    after = S.copy()
    boost(S, np.zeros(600), 0.5)  # predicts nothing, thus nothing wrong
    assert np.array_equal(S, after)


def test_leading_direction_where_no_eigenvalue_is_positive(rng):
    """The used direction has the largest eigenvalue, zero, and is not taken again."""
    Q = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    M = Q @ np.diag([0, -1, -2, -3, -4.0]) @ Q.T
    np.testing.assert_allclose(np.abs(leading_direction(M, Q[:, :0]) @ Q), np.eye(5)[0], atol=1e-9)
    np.testing.assert_allclose(np.abs(leading_direction(M, Q[:, :1]) @ Q), np.eye(5)[1], atol=1e-9)
    np.testing.assert_allclose(np.abs(leading_direction(M, Q[:, :3]) @ Q), np.eye(5)[3], atol=1e-9)
    assert largest_eigenvalue(M) == pytest.approx(4)


def test_pair_scatter(rng):
    X, S = rng.normal(size=(600, 4)), rng.normal(size=(600, 600)).astype(np.float32)  # more rows than a block
    S += S.T
    slow = sum(np.outer(X[i], sum(S[i, j] * X[j] for j in range(600))) for i in range(600))
    np.testing.assert_allclose(pair_scatter(X, S), slow, rtol=1e-4, atol=1e-2)
    below = np.tril(np.full((600, 600), np.nan, np.float32), -300)
    np.testing.assert_array_equal(pair_scatter(X, S + below), pair_scatter(X, S))


def test_more_bits_than_features(clusters):
    X, y = clusters
    hasher = SPLH(48).fit(X, y)
    np.testing.assert_allclose(np.linalg.norm(hasher.projection_, axis=0), 1)
    assert hasher.projection_.shape == (16, 48)
    assert len(np.unique(hasher.encode(X).signs(), axis=1).T) > 16  # pairs weigh differently: later bits are others


def test_constant_and_repeated_columns_are_never_projected_on(clusters):
    X, y = clusters
    wide = np.hstack([X[:, :5], np.full((200, 2), 3.0), X[:, :5]])
    assert varying_directions(wide - wide.mean(0)).shape == (12, 5)
    W = SPLH(9).fit(wide, y).projection_
    assert np.isfinite(W).all() and np.abs(W[5:7]).max() < 1e-6
    np.testing.assert_allclose(W[:5], W[7:], atol=1e-6)
    narrow = SPLH(9).fit(X[:, :5], y)
    assert SPLH(9).fit(wide, y).project(wide).std(0).min() > 0.1
    same = np.abs(narrow.encode(X[:, :5]).signs().T @ SPLH(9).fit(wide, y).encode(wide).signs().astype(int)).diagonal()
    assert (same[:5] >= 196).all()


def test_fewer_rows_than_bits_and_repeated_rows(clusters):
    X, y = clusters
    for rows in (np.arange(6), np.repeat(np.arange(6), 30)):
        hasher = SPLH(24).fit(X[rows], y[rows])
        assert np.isfinite(hasher.projection_).all() and hasher.encode(X).n_bits == 24


def test_rows_without_a_label_count_for_the_variance_only(clusters):
    X, y = clusters
    few = SPLH(12, n_labelled=40, random_state=1).fit(X, y)
    assert not np.array_equal(few.projection_, SPLH(12, n_labelled=40, random_state=2).fit(X, y).projection_)
    assert np.array_equal(SPLH(12).fit(X, y).projection_, SPLH(12, random_state=2).fit(X, y).projection_)
    rows = np.sort(np.random.default_rng(1).choice(200, 40, replace=False))
    wrong = np.where(np.isin(np.arange(200), rows), y, 3 - y)
    assert np.array_equal(few.projection_, SPLH(12, n_labelled=40, random_state=1).fit(X, wrong).projection_)


def test_label_sets_that_overlap(clusters):
    X, y = clusters
    sets = np.zeros((200, 5), int)
    sets[np.arange(200), y] = 1
    sets[:, 4] = y < 2  # the first two classes are similar to each other
    merged = np.array([0, 0, 1, 2])[y]
    codes = SPLH(2).fit(X, sets).encode(X)
    assert codes.equals(SPLH(2).fit(X, merged).encode(X)) and not codes.equals(SPLH(2).fit(X, y).encode(X))
