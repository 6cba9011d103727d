"""SDH: bits that never make the codes' cost worse, and a classifier and a prediction that solve their equations."""

import itertools

import numpy as np
import pytest

from hashlens.hashers.shallow.sdh import SDH, improved_codes, ridge


@pytest.fixture
def problem(rng):
    """Random codes, a classifier, labels and a weak pull."""
    B, G = rng.choice([-1.0, 1.0], (40, 6)), rng.normal(size=(6, 3))
    Y = np.eye(3)[rng.integers(0, 3, 40)]
    P = rng.normal(size=(40, 6))
    return B, G, Y, P


def cost(B, G, Y, P, nu):
    return np.square(Y - B @ G).sum() + nu * np.square(B - P).sum()


def test_codes_improve_with_every_sweep(problem):
    B, G, Y, P = problem
    costs = [cost(improved_codes(B, G, Y @ G.T + 0.3 * P, n), G, Y, P, 0.3) for n in range(6)]
    assert costs[0] == cost(B, G, Y, P, 0.3)
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(costs)) and costs[-1] < 0.7 * costs[0]


def test_one_bit_is_the_best_while_the_others_stay(problem):
    """With one sweep, each column is chosen by trying both signs in every row, in order."""
    B, G, Y, P = problem
    expected = B.copy()
    for k in range(6):
        tried = []
        for sign in (-1.0, 1.0):
            expected[:, k] = sign
            tried.append(np.square(Y - expected @ G).sum(1) + 0.3 * np.square(expected - P).sum(1))
        expected[:, k] = np.where(tried[1] < tried[0], 1.0, -1.0)
    assert np.array_equal(improved_codes(B, G, Y @ G.T + 0.3 * P, 1), expected)


def test_codes_in_the_end_cannot_be_improved_by_one_bit(problem):
    B, G, Y, P = problem
    end = improved_codes(B, G, Y @ G.T + 0.3 * P, 100)
    for k in range(6):
        flipped = end.copy()
        flipped[:, k] *= -1
        rows = [np.square(Y - x @ G).sum(1) + 0.3 * np.square(x - P).sum(1) for x in (end, flipped)]
        assert (rows[0] <= rows[1] + 1e-9).all()


def test_a_bit_that_makes_no_difference_stays(problem):
    B = problem[0]
    before = B.copy()
    assert np.array_equal(improved_codes(B, np.zeros((6, 3)), np.zeros_like(B), 10), before)
    improved_codes(*problem[:2], -100 * B, 3)
    assert np.array_equal(B, before)  # what is given is not written to


def test_classifier_solves_its_equations(problem):
    B, _, Y, _ = problem
    G = ridge(B, Y, 2.0)
    np.testing.assert_allclose(B.T @ (B @ G - Y) + 2 * G, 0, atol=1e-10)
    copies = np.repeat(B[:, :1], 6, axis=1)  # a singular B^T B
    assert np.isfinite(ridge(copies, Y, 1.0)).all()


def test_prediction_solves_its_equations(clusters):
    """Without a turn the codes are those drawn at first; the prediction has an intercept and a ridge."""
    X, y = clusters
    hasher = SDH(8, n_anchors=30, n_iterations=0, ridge=0.5, random_state=4).fit(X, y)
    B = np.random.default_rng(4).choice([-1.0, 1.0], (200, 8))
    K = hasher._kernel(X) - hasher.mean_
    residue = B - hasher.project(X)
    np.testing.assert_allclose(residue.sum(0), 0, atol=1e-9)
    np.testing.assert_allclose(K.T @ residue, 0.5 * hasher.projection_, atol=1e-9)


def test_a_class_gets_one_code(rng):
    y = np.repeat(np.arange(4), 50)
    X = 8 * np.eye(4, 16)[y] + 0.3 * rng.normal(size=(200, 16))
    signs = SDH(16, n_anchors=50).fit(X, y).encode(X).signs()
    same = y[:, None] == y
    differing = (signs[:, None] != signs).sum(2)
    assert differing[same].mean() < 0.5 and differing[~same].min() >= 3


def test_bad_input(clusters, rng):
    X, _ = clusters
    awkward = np.zeros((10, 5))
    awkward[5:, 2] = 1.0  # two different rows, four constant columns
    codes = SDH(24).fit(awkward, [0] * 5 + [1] * 5).encode(awkward).signs()
    assert (codes[:5] == codes[0]).all() and (codes[5:] == codes[5]).all() and (codes[0] != codes[9]).any()
    assert SDH(24).fit(X[:8], [0, 1] * 4).project(X).shape == (200, 24)  # fewer rows than bits and anchors
    sets = rng.random((200, 5)) < 0.3
    sets[0] = False
    assert np.isfinite(SDH(12).fit(X, sets).project(X)).all()
