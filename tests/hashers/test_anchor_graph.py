"""The graph that AGH and DGH share: memberships, eigenvectors, and what becomes of graphs that give too few of them."""

import numpy as np
import pytest

from hashlens.errors import DataError
from hashlens.hashers.shallow.agh import AGH
from hashlens.hashers.shallow.anchor_graph import (
    BLOCK,
    fill_up,
    find_anchors,
    graph_eigenvectors,
    memberships,
    nearest_anchors,
    without_noise,
)
from hashlens.hashers.shallow.dgh import DGH

METHODS = pytest.mark.parametrize("method", [AGH, DGH])


def graph(X, n_anchors=40, n_nearest=4, width=3.0):
    anchors = find_anchors(X, n_anchors, 0)
    return memberships(*nearest_anchors(X, anchors, n_nearest), np.array(width), len(anchors)), anchors


def far_apart(rng, n_components=3, n=40):
    """Components so far from each other that no row has an anchor of another among its nearest: (X, component)."""
    component = np.repeat(np.arange(n_components), n)
    return 1000 * np.eye(n_components, 6)[component] + rng.normal(size=(n_components * n, 6)), component


def test_memberships_against_a_loop(rng):
    X = rng.normal(size=(60, 5))
    Z, anchors = graph(X, 12, 3, 1.7)
    expected = np.zeros((60, 12))
    for i, x in enumerate(X):
        squared = ((x - anchors) ** 2).sum(1)
        near = np.argsort(squared)[:3]
        expected[i, near] = np.exp(-squared[near] / 1.7)
        expected[i] /= expected[i].sum()
    np.testing.assert_allclose(Z.toarray(), expected, atol=1e-12)
    assert Z.nnz == 60 * 3
    np.testing.assert_allclose(Z.sum(1), 1, atol=1e-14)


def test_memberships_in_blocks(rng):
    X = rng.normal(size=(BLOCK + 50, 3))
    Z, anchors = graph(X, 20, 3)
    tail, _ = nearest_anchors(X[BLOCK:], anchors, 3)
    assert Z.shape == (BLOCK + 50, 20) and tail.shape == (50, 3)
    squared, _ = nearest_anchors(X, anchors, 3)
    np.testing.assert_allclose(np.sort(squared[BLOCK:]), np.sort(tail), atol=1e-12)


def test_memberships_far_from_all_anchors_and_with_fewer_anchors_than_nearest(rng):
    anchors = rng.normal(size=(4, 3))
    squared, ids = nearest_anchors(np.full((2, 3), 1e4), anchors, 9)
    assert squared.shape == (2, 4) and sorted(ids[0]) == [0, 1, 2, 3]
    Z = memberships(squared, ids, np.array(1e-3), 4)
    np.testing.assert_allclose(Z.sum(1), 1)
    assert np.isfinite(Z.toarray()).all()


def test_anchors(rng):
    X = rng.normal(size=(90, 4))
    anchors = find_anchors(X, 30, 0)
    assert anchors.shape == (30, 4)
    near = nearest_anchors(X, anchors, 1)[0].mean()
    assert near < 0.7 * nearest_anchors(X, X[:30], 1)[0][30:].mean()  # nearer to the rows than rows themselves
    assert np.array_equal(anchors, find_anchors(X, 30, 0)) and not np.array_equal(anchors, find_anchors(X, 30, 1))
    assert len(find_anchors(X, 300, 0)) == 45  # half of the rows
    assert len(find_anchors(X[:3], 300, 0)) == 2
    repeated = np.repeat(X[:3], 20, axis=0)
    found = find_anchors(repeated, 10, 0)
    assert len(found) == len(np.unique(found, axis=0)) and 2 <= len(found) <= 10


def test_eigenvectors(rng):
    """1^T Y = 0, Y^T Y = n I, A Y = Y diag(values), and none is left out but the constant one."""
    X = rng.normal(size=(300, 4))
    Z, anchors = graph(X)
    n, m = 300, len(anchors)
    W, values = graph_eigenvectors(Z, m)
    Y = Z @ W
    assert W.shape == (m, m - 1) and (np.diff(values) <= 0).all() and values[-1] > 0 and values[0] < 1
    np.testing.assert_allclose(Y.sum(0), 0, atol=1e-7)
    np.testing.assert_allclose(Y.T @ Y, n * np.eye(m - 1), atol=1e-6)
    dense = Z.toarray()
    A = dense / dense.sum(0) @ dense.T
    np.testing.assert_allclose(A.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(A @ Y, Y * values, atol=1e-7)
    expected = np.linalg.eigvalsh(A)[::-1][: m + 1]
    assert expected[0] == pytest.approx(1) and expected[m] == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(values, expected[1:m], atol=1e-12)
    few, few_values = graph_eigenvectors(Z, 7)
    assert np.array_equal(few, W[:, :7]) and np.array_equal(few_values, values[:7])


def test_eigenvectors_of_a_graph_in_several_components(rng):
    X, component = far_apart(rng)
    Z, _ = graph(X, 30, 3)
    W, values = graph_eigenvectors(Z, 4)
    Y = without_noise(Z @ W)
    np.testing.assert_allclose(values[:2], 1, atol=1e-12)  # three components: the constant one is left out
    assert values[2] < 1 - 1e-3
    np.testing.assert_allclose(Y.T @ Y, len(X) * np.eye(4), atol=1e-8)
    for c in range(3):
        np.testing.assert_allclose(Y[component == c, :2].std(0), 0, atol=1e-9)  # constant on each
    assert len(np.unique(Y[:, :2].round(6), axis=0)) == 3
    assert (np.abs(Y[:, :2]) > 1e-3).all()  # and a statement about all of them
    assert (Y[:, 2] == 0).sum() >= 40  # inside one component: exactly nothing elsewhere


def test_a_graph_that_tells_nothing_apart():
    Z = memberships(np.zeros((5, 2)), np.tile([0, 1], (5, 1)), np.array(1.0), 2)
    with pytest.raises(DataError, match="same anchors"):
        graph_eigenvectors(Z, 2)


def test_fill_up(rng):
    W = np.linalg.qr(rng.normal(size=(9, 4)))[0]
    assert np.array_equal(fill_up(W, 3, 0), W[:, :3]) and np.array_equal(fill_up(W, 4, 0), W)
    full = fill_up(W, 11, 0)
    assert full.shape == (9, 11) and np.array_equal(full[:, :4], W)
    rotation = W.T @ full[:, 4:8]
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(W @ rotation, full[:, 4:8], atol=1e-12)
    assert not np.allclose(full[:, 4:7], full[:, 8:])  # a rotation of its own each time
    assert not np.allclose(full, fill_up(W, 11, 1))


@METHODS
def test_components_get_codes_of_their_own(method, rng):
    X, component = far_apart(rng)
    signs = method(16, n_anchors=30, n_nearest=3).fit(X).encode(X).signs().astype(int)
    between = (signs[:, None] != signs).mean(2)
    same = component[:, None] == component
    assert between[same].mean() < between[~same].min()


@METHODS
def test_more_bits_than_eigenvectors(method, clusters):
    X, _ = clusters
    hasher = method(48, n_anchors=6, n_nearest=3).fit(X)
    signs = hasher.encode(X).signs()
    assert hasher.anchors_.shape == (6, 16) and signs.shape == (200, 48)
    assert len(np.unique(signs, axis=1).T) > 5  # six anchors have five eigenvectors: the other bits are no mere copies


@METHODS
def test_anchors_that_no_row_is_near_are_dropped(method, clusters, monkeypatch):
    X, _ = clusters
    usual = method(8, n_anchors=20).fit(X)

    def with_far_ones(*args):
        return np.vstack([np.full((2, 16), 1e3), find_anchors(*args)])

    monkeypatch.setattr("hashlens.hashers.shallow.anchor_graph.find_anchors", with_far_ones)
    hasher = method(8, n_anchors=20).fit(X)
    assert np.array_equal(hasher.anchors_, usual.anchors_) and hasher.projection_.shape == (
        20,
        usual.projection_.shape[1],
    )
    np.testing.assert_allclose(hasher.project(X), usual.project(X), atol=1e-9)


@METHODS
def test_few_and_repeated_rows(method, rng):
    for X in (
        rng.normal(size=(2, 3)),
        rng.normal(size=(7, 1)),
        np.repeat(rng.normal(size=(2, 3)), 30, axis=0),
        np.repeat(rng.normal(size=(9, 3)), 5, axis=0),
        np.pad(rng.normal(size=(30, 2)), ((0, 0), (0, 3))),  # constant columns
    ):
        hasher = method(24).fit(X)
        codes = hasher.encode(X)
        assert np.isfinite(hasher.project(X)).all() and codes.signs().shape == (len(X), 24)
        assert len(np.unique(codes.signs(), axis=0)) > 1
        assert np.isfinite(hasher.project(X + 1e6)).all()


@METHODS
def test_one_nearest_anchor(method, clusters):
    """Every anchor is then a component of its own; with rows on their anchors, the width would be 0."""
    X, _ = clusters
    assert len(np.unique(method(24, n_nearest=1).fit(X).encode(X).signs(), axis=0)) > 20
    twice = np.repeat(np.eye(4), 2, axis=0)
    hasher = method(24, n_nearest=1).fit(twice)
    assert hasher.width_ > 0 and len(np.unique(hasher.encode(twice).signs(), axis=0)) > 1


@METHODS
def test_the_width_is_the_squared_mean_distance_of_the_last_nearest_anchor(method, clusters):
    X, _ = clusters
    hasher = method(8, n_anchors=30, n_nearest=4).fit(X)
    distances = np.sort(np.linalg.norm(X[:, None] - hasher.anchors_, axis=2))
    assert hasher.width_ == pytest.approx(distances[:, 3].mean() ** 2)


@METHODS
def test_far_from_the_origin(method, rng):
    """Distances cancel there, and an anchor that others give way to may be left without rows as well."""
    X = np.c_[rng.integers(0, 2, (200, 4)), 1e-3 * rng.standard_normal((200, 1))]
    for offset in (1e4, 1e5, 1e6):
        codes = method(n_bits=6).fit(X + offset).encode(X + offset)
        assert len(codes) == 200
