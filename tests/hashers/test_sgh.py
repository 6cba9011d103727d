"""SGH: the factors of a graph that is never formed, and bits that fit it one after another."""

import itertools

import numpy as np
import pytest

from hashlens.hashers.shallow.sgh import SGH, factorising_projection, graph_factor, last_negative, onto_unit_sphere


def graph(X):
    """S with the line in the place of e^t, by a slow loop; rows in the unit ball."""
    S = np.empty((len(X), len(X)))
    for i, j in itertools.product(range(len(X)), repeat=2):
        t = X[i] @ X[j]
        line = (np.e**2 - 1) / (2 * np.e) * t + (np.e**2 + 1) / (2 * np.e)
        S[i, j] = 2 * np.exp(-(X[i] @ X[i] + X[j] @ X[j]) / 2) * line - 1
    return S


def test_factors_of_the_graph(rng):
    X = rng.normal(size=(40, 5))
    X *= rng.random((40, 1)) / np.linalg.norm(X, axis=1, keepdims=True)  # in the unit ball
    P = graph_factor(X)
    assert P.shape == (40, 7)
    S = (P * last_negative(7)) @ P.T
    np.testing.assert_allclose(S, graph(X), atol=1e-10)
    exact = 2 * np.exp(-np.square(X[:, None] - X).sum(2) / 2) - 1
    above = S - exact  # the line is a chord of e^t from -1 to 1: never below it, and by 0.5575 at most above
    assert above.min() > -1e-10 and 0.5 < above.max() < 2 * 0.5575


def test_rows_are_centred_and_of_length_one(rng):
    X = rng.normal(size=(40, 5)) + 3
    mean = X.mean(0)
    X = np.vstack([X, [mean]])
    Y = onto_unit_sphere(X)
    np.testing.assert_allclose(np.linalg.norm(Y[:-1], axis=1), 1)
    assert not Y[-1].any()
    for x, row in zip(X[:-1] - mean, Y, strict=False):
        assert x @ row == pytest.approx(np.linalg.norm(x))


def misfits(X, K, W, n_bits):
    """||n_bits S - B B^T||^2 for the first bits of W, one more each time; the same with rows and columns centred."""
    S, centring = n_bits * graph(onto_unit_sphere(X)), np.eye(len(X)) - 1 / len(X)
    signs = np.where(K @ W > 0, 1, -1)
    left = [S - signs[:, :n] @ signs[:, :n].T for n in range(W.shape[1] + 1)]
    return [np.square(R).sum() for R in left], [np.square(centring @ R @ centring).sum() for R in left]


def test_bits_fit_the_graph_better_and_better(clusters):
    """While more is left than a bit holds; later bits are only there because they were asked for."""
    X, _ = clusters
    X = X[:100]
    hasher = SGH(24).fit(X)
    K = hasher._kernel(X) - hasher.mean_
    W = factorising_projection(K, 24 * K.T @ graph(onto_unit_sphere(X)) @ K, 24, np.arange(0))
    whole, centred = misfits(X, K, W, 24)
    assert all(after < before for before, after in itertools.pairwise(whole[:11]))
    assert all(after < before for before, after in itertools.pairwise(centred[:11]))
    assert centred[-1] < 0.3 * centred[0]
    assert misfits(X, K, hasher.projection_, 24)[1][-1] < centred[-1]  # every bit was found once more


def test_bits_are_top_eigenvectors_of_what_is_left(clusters):
    X, _ = clusters
    hasher = SGH(6, n_anchors=40).fit(X)
    K = hasher._kernel(X) - hasher.mean_
    Z = K.T @ K + 1e-6 * np.eye(40)
    left = 6 * graph(onto_unit_sphere(X))
    W = factorising_projection(K, K.T @ left @ K, 6, np.arange(0))
    for bit in range(6):
        values, vectors = np.linalg.eig(np.linalg.solve(Z, K.T @ left @ K))
        w = vectors[:, values.real.argmax()].real
        cosine = w @ W[:, bit] / np.linalg.norm(w) / np.linalg.norm(W[:, bit])
        assert abs(cosine) == pytest.approx(1, abs=1e-6)
        signs = np.where(K @ W[:, bit] > 0, 1, -1)
        left = left - np.outer(signs, signs)


def test_values_have_unit_variance(clusters):
    X, _ = clusters
    np.testing.assert_allclose(SGH(12, n_anchors=50).fit(X).project(X).std(0), 1, rtol=1e-3)


def test_shift_and_scale_of_the_features_do_not_matter(clusters):
    X, _ = clusters
    assert SGH(8, n_anchors=50).fit(7 * X + 3).encode(7 * X + 3).equals(SGH(8, n_anchors=50).fit(X).encode(X))


def test_fewer_anchors_and_features_than_bits(rng, clusters):
    X, _ = clusters
    hasher = SGH(48, n_anchors=10).fit(X[:, :2])
    assert hasher.anchors_.shape == (10, 2) and hasher.project(X[:, :2]).shape == (200, 48)
    X = np.hstack([rng.normal(size=(5, 3)), np.ones((5, 20))])
    X = np.repeat(X, 3, axis=0)  # as many anchors, each three times
    hasher = SGH(24).fit(X)
    assert hasher.anchors_.shape == (15, 23) and np.isfinite(hasher.project(X)).all()
    assert len(np.unique(hasher.encode(X[::3]).packed, axis=0)) == 5
