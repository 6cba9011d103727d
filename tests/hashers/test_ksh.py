"""KSH: the residue that is never formed, the smoothed cost, and the better of two candidates for each bit."""

import tracemalloc

import numpy as np
import pytest

from hashlens.data.labels import Labels, relevant
from hashlens.hashers.shallow.ksh import (
    KSH,
    Residue,
    label_groups,
    signs,
    smoothed_cost,
    smoothed_direction,
    spectral_direction,
    whitened,
)


@pytest.fixture
def label_sets(rng):
    """Sets of up to three of five labels; the first row has none."""
    sets = rng.random((60, 5)) < 0.3
    sets[0] = False
    return Labels.of(sets)


def dense(labels, n_bits, B):
    return n_bits * np.where(relevant(labels, labels), 1.0, -1.0) - B @ B.T


def test_label_groups(label_sets):
    for labels in (Labels.of([2, 0, 2, 5, 0, 2]), label_sets):
        members, different = label_groups(labels)
        assert len(np.unique(different.values, axis=0)) == len(different) == members.shape[0]
        rows = members.toarray().T  # (n, u)
        assert (rows.sum(1) == 1).all()
        assert np.array_equal(different.values[rows.argmax(1)], labels.values)


@pytest.mark.parametrize("single", [True, False])
def test_residue_is_that_of_the_formula(single, label_sets, rng):
    labels = Labels.of(rng.integers(0, 4, 60)) if single else label_sets
    B, K = signs(rng.normal(size=(60, 5))), rng.normal(size=(60, 7))
    residue = Residue(labels, 12)
    for k in range(6):
        R = dense(labels, 12, B[:, :k])
        np.testing.assert_allclose(residue.times(np.eye(60)), R, atol=1e-12)
        np.testing.assert_allclose(residue.times(K[:, 0]), R @ K[:, 0], atol=1e-9)
        F, C = residue.within(K)
        np.testing.assert_allclose(F @ C @ F.T, K.T @ R @ K, atol=1e-9)
        assert residue.explained(B[:, 0]) == pytest.approx(B[:, 0] @ R @ B[:, 0])
        if k < 5:
            residue.subtract(B[:, k])


def test_smoothed_cost_and_its_gradient(label_sets, rng):
    residue = Residue(label_sets, 12)
    z = rng.normal(size=60)
    phi = 2 / (1 + np.exp(-z)) - 1
    R = dense(label_sets, 12, np.empty((60, 0)))
    cost, gradient = smoothed_cost(z, residue)
    assert cost == pytest.approx(-sum(phi[i] * R[i, j] * phi[j] for i in range(60) for j in range(60)))
    for i in range(60):
        step = 1e-5 * np.eye(60)[i]
        slope = (smoothed_cost(z + step, residue)[0] - smoothed_cost(z - step, residue)[0]) / 2e-5
        assert gradient[i] == pytest.approx(slope, rel=1e-6, abs=1e-6)
    assert np.isfinite(smoothed_cost(np.full(60, -1e4), residue)[0])  # exp would overflow


def test_whitened(clusters):
    X, _ = clusters
    K = (X - X.mean(0)) * np.arange(1, 17)
    Z, factor = whitened(K, 1e-6)
    np.testing.assert_allclose(Z @ factor, K, atol=1e-9)
    np.testing.assert_allclose(Z.T @ Z / len(K), np.eye(16), atol=1e-3)
    assert not np.tril(factor, -1).any()
    Z, factor = whitened(np.hstack([K, K]), 1e-6)  # singular
    np.testing.assert_allclose(Z @ factor, np.hstack([K, K]), atol=1e-6)


def test_spectral_direction_is_the_best_one(clusters, rng):
    X, y = clusters
    residue = Residue(Labels.of(y), 12)
    Z, _ = whitened(X - X.mean(0), 1e-6)
    w = spectral_direction(Z, residue)
    assert np.square(Z @ w).sum() == pytest.approx(len(Z))
    best = (Z @ w) @ residue.times(Z @ w)
    for other in [*rng.normal(size=(50, 16)), *(w + 0.1 * rng.normal(size=(50, 16)))]:
        z = Z @ other * np.sqrt(len(Z)) / np.linalg.norm(Z @ other)
        assert z @ residue.times(z) <= best * (1 + 1e-4)  # the ridge


def test_smoothing_lowers_the_cost(clusters, rng):
    X, y = clusters
    residue = Residue(Labels.of(y), 12)
    Z, _ = whitened(X - X.mean(0), 1e-6)
    for start in rng.normal(size=(5, 16)) / 4:
        ends = [smoothed_direction(Z, residue, start, n) for n in (*range(40), 100)]
        costs = [smoothed_cost(Z @ w, residue)[0] for w in ends]
        gradients = [Z.T @ smoothed_cost(Z @ w, residue)[1] for w in ends]
        assert np.array_equal(ends[0], start)
        assert costs[1] <= costs[0] - gradients[0] @ (start - ends[1]) / 2 < costs[0]  # the first step is no leap
        assert costs == sorted(costs, reverse=True)
        assert np.linalg.norm(gradients[-1]) < 0.05 * np.linalg.norm(gradients[0])


def test_the_spectral_candidate_is_kept_if_better(clusters, monkeypatch):
    X, y = clusters
    spectral = KSH(6, n_anchors=40, n_iterations=0).fit(X, y).projection_
    monkeypatch.setattr("hashlens.hashers.shallow.ksh.smoothed_direction", lambda Z, *_: np.eye(Z.shape[1])[-1])
    assert np.array_equal(KSH(6, n_anchors=40).fit(X, y).projection_, spectral)


def test_each_bit_explains_as_much_as_its_spectral_candidate(clusters):
    X, y = clusters
    hasher = KSH(16, n_anchors=40).fit(X, y)
    K = hasher._kernel(X) - hasher.mean_
    Z, _ = whitened(K, hasher.ridge)
    residue = Residue(Labels.of(y), 16)
    gains = []
    for k in range(16):
        b = signs(K @ hasher.projection_[:, k])
        gains.append(residue.explained(b) - residue.explained(signs(Z @ spectral_direction(Z, residue))))
        residue.subtract(b)
    assert min(gains) >= 0 and max(gains) > 0
    B = hasher.encode(X).signs().astype(float)
    np.testing.assert_allclose(residue.times(np.eye(200)), dense(Labels.of(y), 16, B), atol=1e-9)


def test_codes_follow_the_labels(clusters):
    X, y = clusters
    B = KSH(16, n_anchors=40).fit(X, y).encode(X).signs().astype(float)
    S = np.where(y[:, None] == y, 1.0, -1.0)
    assert np.square(S - B @ B.T / 16).mean() < 0.5 * np.square(S).mean()


def test_memory_is_not_quadratic(rng):
    n = 3000
    X, y = rng.normal(size=(n, 8)), rng.integers(0, 5, n)
    tracemalloc.start()
    try:
        KSH(4, n_anchors=20, n_iterations=5).fit(X, y)
        assert tracemalloc.get_traced_memory()[1] < n * n  # bytes: even one bool for each pair would be that many
    finally:
        tracemalloc.stop()


def test_bad_input(clusters, label_sets, rng):
    X, y = clusters
    awkward = np.zeros((10, 5))
    awkward[5:, 2] = 1.0  # two different rows, four constant columns
    codes = KSH(24).fit(awkward, [0] * 5 + [1] * 5).encode(awkward).signs()
    assert codes.shape == (10, 24) and (codes[:5] == codes[0]).all() and (codes[5:] == codes[5]).all()
    assert (codes[0] != codes[9]).any()
    assert KSH(24).fit(X[:8], [0, 1] * 4).project(X).shape == (200, 24)  # fewer rows than bits and anchors
    assert np.isfinite(KSH(12).fit(rng.normal(size=(60, 4)), label_sets).project(X[:, :4])).all()
    assert KSH(12, n_anchors=1).fit(X, y).anchors_.shape == (1, 16)
