"""RSH: rankings against slow loops, and a projection that is the minimum of the penalised objective."""

import numpy as np
import pytest

from hashlens.data.labels import Labels
from hashlens.hashers.shallow.rsh import RSH, preferences, ranking_matrix


@pytest.fixture
def label_sets(rng):
    sets = rng.random((30, 4)) < 0.4
    sets[0] = False  # shares no label with anyone: no row ranks above another
    return Labels.of(sets)


def slow_ranking_matrix(X, labels):
    Y = labels.matrix()
    scores = Y @ Y.T
    A = np.zeros((X.shape[1], X.shape[1]))
    for m in range(len(X)):
        p, pairs = np.zeros(X.shape[1]), 0
        for i in range(len(X)):
            for j in range(len(X)):
                order = np.sign(scores[m, i] - scores[m, j])
                p += order * (X[i] - X[j]) / 2  # each pair is met twice
                pairs += order > 0
        if pairs:
            A += np.outer(p, X[m]) / pairs
    return A


@pytest.mark.parametrize("single", [True, False])
def test_ranking_matrix_is_the_triple_sum(single, label_sets, rng):
    X = rng.normal(size=(30, 3))
    labels = Labels.of(rng.integers(0, 3, 30)) if single else label_sets
    np.testing.assert_allclose(ranking_matrix(X, labels), slow_ranking_matrix(X, labels), atol=1e-12)


def test_preferences_by_hand():
    """Three groups of 1, 2 and 3 rows; ranks for the first query: 3, 1, 2, so 5, 0 and 2 rows are below."""
    scores = np.array([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    found = preferences(scores, np.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(found[0], np.array([5, -4, 2 - 1]) / (5 + 3 * 2))
    assert not found[1].any()
    np.testing.assert_allclose(found[2], np.array([3, 3, -3]) / 9)


def objective(W, A, lambda_):
    gap = W.T @ W - np.eye(W.shape[1])
    return -np.trace(W.T @ A @ W) + lambda_ / 2 * np.square(gap).sum()


@pytest.mark.parametrize("n_bits", [1, 7, 16, 24])
def test_projection_is_the_minimum(n_bits, clusters, rng):
    X, y = clusters
    A = ranking_matrix(X - X.mean(0), Labels.of(y))
    A = (A + A.T) / 2
    values, vectors = np.linalg.eigh(A)
    A = A / values[-1]
    W = RSH(n_bits, lambda_=0.5).fit(X, y).projection_
    gradient = -2 * A @ W + 2 * 0.5 * W @ (W.T @ W - np.eye(n_bits))
    np.testing.assert_allclose(gradient, 0, atol=1e-5)  # not 0, because equally good directions are decided between
    least = objective(W, A, 0.5)
    if n_bits <= 16:
        assert least < objective(vectors[:, ::-1][:, :n_bits], A, 0.5)
    for _ in range(20):
        assert objective(W + 0.1 * rng.normal(size=W.shape), A, 0.5) > least
        other = rng.normal(size=W.shape)
        for _ in range(300):  # descent from anywhere ends no lower
            other -= 0.02 * (-2 * A @ other + other @ (other.T @ other - np.eye(n_bits)))
        assert objective(other, A, 0.5) >= least - 1e-5


def test_a_large_weight_makes_projections_orthogonal(clusters):
    X, y = clusters
    W = RSH(12, lambda_=1e6).fit(X, y).projection_
    np.testing.assert_allclose(W.T @ W, np.eye(12), atol=1e-5)
    A = ranking_matrix(X - X.mean(0), Labels.of(y))
    leading = np.linalg.eigvalsh((A + A.T) / 2)[-12:]
    assert np.trace(W.T @ A @ W) == pytest.approx(leading.sum(), rel=1e-5)


def test_directions_without_effect_are_those_of_least_variance(clusters):
    """Four classes differ in three directions; a fourth one may be any other."""
    X, y = clusters
    X = X - X.mean(0)
    W = RSH(4, lambda_=1e6).fit(X, y).projection_
    means = np.array([X[y == c].mean(0) for c in range(4)])
    informative = np.linalg.svd(means)[2][:3].T
    rest = np.eye(16) - informative @ informative.T
    fourth = np.linalg.svd(W - informative @ (informative.T @ W))[0][:, 0]
    least = np.linalg.eigvalsh(rest @ X.T @ X @ rest)[3]  # after three zeros
    assert np.square(X @ fourth).sum() == pytest.approx(least, rel=1e-3)


def test_bad_input(clusters, label_sets, rng):
    X, y = clusters
    hasher = RSH(40).fit(X, y)  # more bits than features
    assert np.linalg.matrix_rank(hasher.projection_) == 16
    assert len(np.unique(hasher.encode(X).signs(), axis=1).T) > 30  # bits are not copies of each other
    awkward = np.zeros((10, 5))
    awkward[5:, 2] = 1.0  # two different rows, four constant columns
    codes = RSH(12).fit(awkward, [0] * 5 + [1] * 5).encode(awkward).signs()
    assert (codes[:5] == codes[0]).all() and (codes[5:] == -codes[0]).all()
    assert RSH(24).fit(X[:8], [0, 1] * 4).project(X).shape == (200, 24)  # fewer rows than bits
    mirrored = np.vstack([X, -X, X, -X])  # classes with equal means: no direction is better than another
    assert np.isfinite(RSH(12).fit(mirrored, np.repeat([0, 1], 400)).project(X)).all()
    assert np.isfinite(RSH(12).fit(rng.normal(size=(30, 4)), label_sets).project(X[:, :4])).all()
