"""DGH: the objective rises in every step, Y stays balanced and uncorrelated, zero gradients keep bits."""

import numpy as np
import pytest

from hashlens.hashers.shallow import dgh
from hashlens.hashers.shallow.agh import AGH
from hashlens.hashers.shallow.dgh import DGH, Similarities, ascend, balanced, best_rotation, objective


@pytest.fixture
def Z(clusters):
    X, _ = clusters
    return DGH(12, n_anchors=40).fit(X)._memberships(X)


def test_similarities_against_the_dense_matrix(Z, rng):
    dense = Z.toarray()
    A = dense / dense.sum(0) @ dense.T
    B = np.where(rng.normal(size=(200, 5)) > 0, 1.0, -1.0)
    Y = rng.normal(size=(200, 5))
    graph = Similarities(Z)
    np.testing.assert_allclose(graph.apply(B), A @ B, atol=1e-12)
    assert objective(graph, B, Y, 0.7) == pytest.approx(np.trace(B.T @ A @ B) + 0.7 * np.trace(B.T @ Y))


@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("rho", [0.1, 1.0, 5.0])
def test_the_objective_rises_in_every_step(Z, rho, rotate, monkeypatch, rng):
    monkeypatch.setattr(dgh, "STEPS", 1)
    graph = Similarities(Z)
    B, Y = DGH(12, rotate=rotate)._start(Z)
    values = [objective(graph, B, Y, rho)]
    for _ in range(15):
        for _ in range(4):
            B = ascend(graph, B, Y, rho)
            values.append(objective(graph, B, Y, rho))
        Y = balanced(B, rng)
        values.append(objective(graph, B, Y, rho))
    assert (np.diff(values) >= -1e-9 * abs(values[-1])).all()
    assert values[-1] > values[0] + 1


def test_the_b_step_rests_where_the_gradient_has_the_signs_of_b(Z):
    graph = Similarities(Z)
    start, Y = DGH(12)._start(Z)
    B = ascend(graph, start, Y, 0.5)
    gradient = 2 * graph.apply(B) + 0.5 * Y
    assert (gradient * B > 0).all() and not np.array_equal(B, start)


def test_a_zero_gradient_keeps_the_bit():
    class Nothing:
        def apply(self, B):
            return np.zeros_like(B)

    B = np.array([[1.0, -1.0], [-1.0, 1.0]])
    Y = np.array([[0.0, 0.0], [3.0, -3.0]])
    np.testing.assert_array_equal(ascend(Nothing(), B, Y, 1.0), [[1, -1], [1, -1]])


def test_y_is_balanced_uncorrelated_and_best(rng):
    B = np.where(rng.normal(size=(90, 8)) > 0.3, 1.0, -1.0)
    Y = balanced(B, rng)
    np.testing.assert_allclose(Y.sum(0), 0, atol=1e-8)
    np.testing.assert_allclose(Y.T @ Y, 90 * np.eye(8), atol=1e-8)
    best = np.linalg.svd(B - B.mean(0), compute_uv=False).sum() * np.sqrt(90)
    assert np.vdot(B, Y) == pytest.approx(best)


def test_y_of_dependent_and_constant_bits(rng):
    B = np.where(rng.normal(size=(90, 8)) > 0, 1.0, -1.0)
    B[:, 2], B[:, 3], B[:, 5] = B[:, 0], -B[:, 1], 1.0
    Y = balanced(B, rng)
    np.testing.assert_allclose(Y.sum(0), 0, atol=1e-8)
    np.testing.assert_allclose(Y.T @ Y, 90 * np.eye(8), atol=1e-8)
    assert np.vdot(B, Y) == pytest.approx(np.linalg.svd(B - B.mean(0), compute_uv=False).sum() * np.sqrt(90))
    nothing = balanced(np.ones((90, 3)), rng)
    np.testing.assert_allclose(nothing.sum(0), 0, atol=1e-8)
    np.testing.assert_allclose(nothing.T @ nothing, 90 * np.eye(3), atol=1e-8)


def test_y_of_fewer_rows_than_bits(rng):
    B = np.where(rng.normal(size=(5, 9)) > 0, 1.0, -1.0)
    Y = balanced(B, rng)
    np.testing.assert_allclose(Y.sum(0), 0, atol=1e-8)
    np.testing.assert_allclose(np.linalg.eigvalsh(Y.T @ Y), [0] * 5 + [5] * 4, atol=1e-8)


def test_rotation(rng):
    G = rng.normal(size=(150, 6)) * np.arange(6, 0, -1)
    R, B = best_rotation(G)
    np.testing.assert_allclose(R.T @ R, np.eye(6), atol=1e-10)
    assert np.array_equal(B, np.where(G @ R > 0, 1, -1))
    assert np.vdot(B, G @ R) > 1.01 * np.abs(G).sum()
    assert np.vdot(B, G @ R) == pytest.approx(np.linalg.svd(G.T @ B, compute_uv=False).sum())  # no other R is better


def test_the_rotated_start_spans_the_same_space_and_its_codes_agree_more(Z):
    """tr(B^T A Y) / n_bits, squared, is the paper's lower bound of the objective."""
    graph = Similarities(Z)
    (plain_B, plain_Y), (B, Y) = (DGH(12, rotate=rotate)._start(Z) for rotate in (False, True))
    for codes, real in ((plain_B, plain_Y), (B, Y)):
        np.testing.assert_allclose(real.T @ real, 200 * np.eye(12), atol=1e-8)
        assert set(np.unique(codes)) == {-1, 1}
    np.testing.assert_allclose(Y @ Y.T, plain_Y @ plain_Y.T, atol=1e-8)
    assert np.vdot(B, graph.apply(Y)) > 1.02 * np.vdot(plain_B, graph.apply(plain_Y))
    assert np.array_equal(B, np.where(graph.apply(Y) > 0, 1, -1))


def test_codes_of_new_rows_are_averages_over_neighbours(clusters, monkeypatch):
    X, _ = clusters
    found = []
    monkeypatch.setattr(dgh, "ascend", lambda *args: found.append(ascend(*args)) or found[-1])
    hasher = DGH(12, n_anchors=40).fit(X[:150])
    Z, new = hasher._memberships(X[:150]).toarray(), hasher._memberships(X[150:]).toarray()
    expected = new / Z.sum(0) @ Z.T @ found[-1]
    np.testing.assert_allclose(hasher.project(X[150:]), expected, atol=1e-9)


def test_no_iterations_leave_the_start(clusters):
    X, _ = clusters
    hasher = DGH(6, n_iterations=0, rotate=False, n_anchors=40).fit(X)
    signs = AGH(6, layers=1, n_anchors=40, n_nearest=3).fit(X).encode(X).signs()
    Z = hasher._memberships(X)
    np.testing.assert_allclose(hasher.projection_, Similarities(Z).anchor_means(signs.astype(float)), atol=1e-12)


def test_rho_makes_bits_differ_from_each_other(clusters):
    X, _ = clusters

    def correlation(rho):
        return np.abs(np.corrcoef(DGH(24, rho=rho, n_anchors=40).fit(X).encode(X).signs().T)).mean()

    assert correlation(5.0) < 0.85 * correlation(0.0)
