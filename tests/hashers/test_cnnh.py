"""CNNH: coordinate descent against the paper's, with its n x n residual, and a network that learns the codes."""

from itertools import pairwise

import numpy as np
import pytest
from slow_losses import n_shared

from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.hashers.deep.cnnh import CNNH, _sums, _sweep, factorise
from hashlens.hashers.deep.training import Training

LABELS = {
    "classes": [0, 2, 2, 0, 5, 5, 2, 0, 5, 2],
    "sets": [[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1], [0, 0, 0], [1, 1, 0], [0, 0, 0]],
}


def similarity(labels):
    return np.array([[1.0 if n_shared(a, b) else -1.0 for b in labels] for a in labels])


def kinds_of(labels):
    """Numbers of the sets of labels in their sorted order, and which of them share a label."""
    names = sorted({tuple(np.atleast_1d(row).tolist()) for row in labels})
    kind = np.array([names.index(tuple(np.atleast_1d(row).tolist())) for row in labels])
    first = [np.flatnonzero(kind == k)[0] for k in range(len(names))]
    return kind, similarity(labels)[np.ix_(first, first)]


def slow_sweep(H, S, order):
    """The paper's: R = H H^T - n_bits S is kept up to date."""
    n_bits = H.shape[1]
    R = H @ H.T - n_bits * S
    for place in order:
        i, j = divmod(place, n_bits)
        g1 = 4 * R[i] @ H[:, j]
        g2 = 4 * (H[:, j] @ H[:, j] + H[i, j] ** 2 + R[i, i])

        def after(t, i=i, j=j):
            changed = H.copy()
            changed[i, j] += t
            return ((changed @ changed.T - n_bits * S) ** 2).sum()

        ends = (-1 - H[i, j], 1 - H[i, j])
        t = np.clip(-g1 / g2, *ends) if g2 > 0 else min(ends, key=after)
        if after(t) < (R**2).sum():
            R[i] += t * H[:, j]
            R[:, i] += t * H[:, j]
            R[i, i] += t**2
            H[i, j] += t
    np.testing.assert_allclose(R, H @ H.T - n_bits * S, atol=1e-10)


@pytest.mark.parametrize("name", LABELS)
def test_a_sweep_is_the_papers(rng, name):
    labels = np.array(LABELS[name])
    kind, T = kinds_of(labels)
    H = rng.uniform(-1, 1, (len(labels), 5))
    expected = H.copy()
    for _ in range(3):
        order = rng.permutation(H.size)
        sums, products = _sums(H, kind, len(T)), H.T @ H
        _sweep(H, kind, T, sums, products, order)
        slow_sweep(expected, similarity(labels), order)
        np.testing.assert_allclose(H, expected, atol=1e-9)
        np.testing.assert_allclose(products, H.T @ H, atol=1e-10)  # follow every change
        np.testing.assert_allclose(sums.T, [H[kind == k].sum(0) for k in range(len(T))], atol=1e-10)
    assert np.abs(H).max() <= 1 + 1e-12


@pytest.mark.parametrize("name", LABELS)
def test_the_objective_falls(name):
    labels = np.array(LABELS[name])
    after = [factorise(Labels.of(labels), 6, n_sweeps, np.random.default_rng(0)) for n_sweeps in range(6)]
    values = [((similarity(labels) - H @ H.T / 6) ** 2).sum() for H in after]
    assert all(a >= b - 1e-9 for a, b in pairwise(values)) and values[-1] < 0.8 * values[0]


@pytest.mark.parametrize("seed", range(5))
def test_two_classes_get_opposite_codes(seed):
    y = np.arange(12) % 2
    signs = CNNH(4, random_state=seed)._loss(Labels.of(y)).signs.numpy()
    assert set(signs.ravel().tolist()) <= {-1, 1}
    assert (signs[y == 0] == signs[0]).all() and (signs[y == 1] == -signs[0]).all()


def test_where_the_curve_bends_down_an_end_is_taken():
    """At H = 0 the second derivative is negative and the first is zero: Newton's step would not exist."""
    H, kind = np.zeros((3, 4)), np.array([0, 0, 1])
    T = np.array([[1.0, -1.0], [-1.0, 1.0]])
    _sweep(H, kind, T, _sums(H, kind, 2), H.T @ H, np.array([0]))
    assert abs(H[0, 0]) == 1 and not H.ravel()[1:].any()


def test_many_images_fit_into_memory():
    """Nothing is as large as n x n: 100,000 images would need 80 GB."""
    y = np.arange(100_000) % 10
    H = factorise(Labels.of(y), 8, 1, np.random.default_rng(0))
    assert H.shape == (100_000, 8)
    T, means = np.where(np.eye(10) > 0, 1.0, -1.0), np.stack([H[y == c].mean(0) for c in range(10)])
    assert ((T - means @ means.T / 8) ** 2).mean() < 0.95  # of the random start 1


def test_the_network_learns_the_codes(clusters):
    X, y = clusters
    hasher = CNNH(16, training=Training(epochs=20, batch_size=40, head_lr=0.05)).fit(X[50:], y[50:])
    codes = hasher.encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.85
    targets = CNNH(16)._loss(Labels.of(y[50:])).signs.numpy()
    assert (codes.signs()[50:] == targets).mean() > 0.9
