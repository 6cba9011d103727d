"""AGH: eigenvectors of the anchor graph give the first bits, the cuts that part the fewest neighbours the second."""

import numpy as np
import pytest
from scipy import optimize

import hashlens
from hashlens.hashers.shallow.agh import AGH, second_layer, second_thresholds
from hashlens.hashers.shallow.anchor_graph import graph_eigenvectors


@pytest.fixture
def graph(rng):
    """Z and eigenvectors Y of a connected graph."""
    X = rng.normal(size=(200, 3))
    Z = AGH(12, n_anchors=40).fit(X)._memberships(X)
    W, values = graph_eigenvectors(Z, 6)
    assert values[0] < 0.99
    return Z, Z @ W


def test_one_layer_is_the_signs_of_eigenvectors(clusters):
    X, _ = clusters
    hasher = AGH(10, layers=1, n_anchors=40).fit(X)
    Y = hasher.project(X)
    np.testing.assert_allclose(Y.sum(0), 0, atol=1e-8)
    np.testing.assert_allclose(Y.T @ Y, 200 * np.eye(10), atol=1e-8)
    Z = hasher._memberships(X).toarray()
    A = Z / Z.sum(0) @ Z.T
    np.testing.assert_allclose(np.diag(Y.T @ A @ Y) / 200, np.linalg.eigvalsh(A)[::-1][1:11], atol=1e-10)


def test_second_thresholds_part_the_fewest_neighbours(graph):
    """Against a numerical minimum of r^T (I - A) r along the line 1^T r = 0."""
    Z, Y = graph
    dense = Z.toarray()
    laplacian = np.eye(200) - dense / dense.sum(0) @ dense.T
    thresholds = second_thresholds(Z, Y)
    R = second_layer(Y, thresholds)
    np.testing.assert_allclose(R.sum(0), 0, atol=1e-8)
    for k, y in enumerate(Y.T):
        n_positive = (y > 0).sum()

        def cost(t, y=y, n_positive=n_positive):
            u = (n_positive * t - np.abs(y).sum()) / (200 - n_positive)  # from 1^T r = 0
            r = second_layer(y[:, None], np.array([[t], [u]]))[:, 0]
            return r @ laplacian @ r

        found = optimize.minimize_scalar(cost)
        assert thresholds[0, k] == pytest.approx(found.x, abs=1e-5)
        assert cost(thresholds[0, k]) <= found.fun * (1 + 1e-12)
    assert (thresholds[0] > 0).all() and (thresholds[1] < 0).all()  # both sides are cut


def test_second_bits():
    Y = np.array([[2.0], [0.5], [0.0], [-0.5], [-2.0]])
    R = second_layer(Y, np.array([[1.0], [-1.0]]))
    np.testing.assert_array_equal(R[:, 0], [1.0, -0.5, -1.0, -0.5, 1.0])


def test_first_bits_without_neighbours_across_are_cut_at_means(rng):
    """A graph of two components: the bit that parts them leaves nothing to choose."""
    X = np.vstack([rng.normal(size=(40, 4)), 500 + rng.normal(size=(60, 4))])
    hasher = AGH(2, n_anchors=30, n_nearest=3).fit(X)
    first, second = hasher.project(X).T
    assert len({*first[:40].round(9)}) == len({*first[40:].round(9)}) == 1 and first[0] * first[40] < 0
    np.testing.assert_allclose(sorted(hasher.thresholds_[:, 0]), sorted({*first.round(12)}), atol=1e-9)
    assert (second == 0).all()  # rounding is no bit


@pytest.mark.parametrize("n_bits", [1, 2, 7, 12])
def test_two_layers_and_odd_numbers_of_bits(n_bits, clusters):
    """Half of the bits, and the odd one, are first bits; the leading eigenvectors give second ones."""
    X, _ = clusters
    two = AGH(n_bits, n_anchors=40).fit(X)
    n_first = (n_bits + 1) // 2
    one = AGH(n_first, layers=1, n_anchors=40).fit(X)
    assert two.projection_.shape == (40, n_first) and two.thresholds_.shape == (2, n_bits // 2)
    np.testing.assert_allclose(two.project(X)[:, :n_first], one.project(X), atol=1e-9)
    expected = second_layer(one.project(X)[:, : n_bits // 2], two.thresholds_)
    np.testing.assert_allclose(two.project(X)[:, n_first:], expected, atol=1e-9)


def test_one_layer_is_saved_and_loaded(clusters, tmp_path):
    X, _ = clusters
    hasher = AGH(12, layers=1).fit(X)
    hasher.save(tmp_path)
    loaded = hashlens.load(tmp_path)
    assert loaded.layers == 1 and np.array_equal(loaded.project(X), hasher.project(X))
