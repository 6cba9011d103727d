"""CGHash: triplets, bits against slow sums, and weights that satisfy the conditions of their optimum."""

import itertools

import numpy as np
import pytest

from hashlens.data.labels import Labels
from hashlens.errors import DataError
from hashlens.hashers.shallow.cghash import (
    BitSearch,
    CGHash,
    draw_columns,
    draw_triplets,
    dual,
    generate_bits,
    margins,
    master,
    pair_weights,
    smoothed_cost,
)

C = 30.0


@pytest.fixture
def learned(rng):
    """Bits of five classes that are hard to tell apart: weights, triplets and columns (t, 8)."""
    y = np.repeat(np.arange(5), 60)
    X = np.column_stack([rng.normal(size=(5, 16))[y] + 2 * rng.normal(size=(300, 16)), np.ones(300)])
    triplets = draw_triplets(Labels.of(y), 10, rng)
    hyperplanes, weights, last = generate_bits(BitSearch(X, triplets, 2, 20, rng), 8, C, C)
    assert last == C and hyperplanes.shape == (17, 8)
    return weights, triplets, np.column_stack([margins(bit > 0, triplets) for bit in (X @ hyperplanes).T])


@pytest.mark.parametrize("rows_at_once", [7, 1000])
def test_triplets(rows_at_once, rng, monkeypatch):
    monkeypatch.setattr("hashlens.hashers.shallow.cghash.ROWS_AT_ONCE", rows_at_once)
    y = np.array([0] * 12 + [1] * 15 + [2] * 2 + [3])  # the last is alone, two have one like them each
    row, positive, negative = draw_triplets(Labels.of(y), 4, rng).T
    assert np.bincount(row, minlength=30).tolist() == [4] * 27 + [1, 1, 0]
    assert (y[row] == y[positive]).all() and (y[row] != y[negative]).all() and (row != positive).all()
    assert len(set(zip(row, positive, strict=True))) == len(set(zip(row, negative, strict=True))) == len(row)
    assert len(set(negative)) > 25


def test_triplets_of_label_sets(rng):
    """Sharing one label is enough; a row without labels is alike to none, not even itself."""
    sets = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0], [0, 0, 0]])
    found = set(map(tuple, draw_triplets(Labels.of(sets), 5, rng).tolist()))
    assert {(row, positive) for row, positive, _ in found} <= {(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (3, 0)}
    assert {row for row, _, _ in found} == {0, 1, 2, 3}


def test_columns_are_drawn_evenly(rng):
    allowed = np.tile([True, True, False, True, True], (20_000, 1))
    drawn = draw_columns(allowed, 2, rng)
    for place in (0, 1):
        np.testing.assert_allclose(np.bincount(drawn[:, place]), [5000, 5000, 0, 5000, 5000], atol=300)
    assert draw_columns(allowed[:1], 9, rng)[0, 4:].tolist() == [-1]


def test_margins_by_hand():
    bits = np.array([True, True, False, False])
    triplets = np.array([[0, 1, 2], [0, 2, 1], [0, 2, 3], [2, 3, 0]])
    assert margins(bits, triplets).tolist() == [1, -1, 0, 1]


def test_pair_weights_give_the_sum_over_triplets(rng):
    triplets = np.array([rng.choice(20, 3, replace=False) for _ in range(50)])
    u = rng.random(50)
    pull = pair_weights(triplets, u, 20)
    for _ in range(10):
        bits = rng.random(20) < 0.5
        s = np.where(bits, 1.0, -1.0)
        assert s @ (pull @ s) == pytest.approx(u @ margins(bits, triplets))
    assert np.array_equal(pull.toarray(), pull.toarray().T)


def test_smoothed_cost_and_its_gradient(rng):
    triplets = np.array([rng.choice(20, 3, replace=False) for _ in range(50)])
    pull = pair_weights(triplets, rng.random(50), 20)
    X, v = rng.normal(size=(20, 4)), rng.normal(size=4)
    s = np.tanh(X @ v)
    cost, gradient = smoothed_cost(v, X, pull)
    assert cost == pytest.approx(-s @ pull.toarray() @ s)
    for i in range(4):
        step = 1e-6 * np.eye(4)[i]
        slope = (smoothed_cost(v + step, X, pull)[0] - smoothed_cost(v - step, X, pull)[0]) / 2e-6
        assert gradient[i] == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_the_best_bit(clusters, rng):
    X, y = clusters
    X = np.column_stack([X - X.mean(0), np.ones(200)])
    triplets = draw_triplets(Labels.of(y), 10, rng)
    u = rng.random(len(triplets))
    hyperplane, column = BitSearch(X, triplets, 5, 20, rng).best(u)
    assert np.array_equal(column, margins(X @ hyperplane > 0, triplets))
    others = [u @ margins(X @ v > 0, triplets) for v in rng.normal(size=(200, 17))]
    assert u @ column > max(others)
    assert u @ column > u @ BitSearch(X, triplets, 0, 20, rng).best(u)[1]  # the spectral start alone


def test_the_spectral_start(clusters, rng):
    X, y = clusters
    X = np.column_stack([X - X.mean(0), np.ones(200)])
    triplets = draw_triplets(Labels.of(y), 10, rng)
    pull = pair_weights(triplets, np.ones(len(triplets)), 200)

    def quotient(v):
        z = X @ v
        return z @ (pull @ z) / (z @ z)

    found = BitSearch(X, triplets, 0, 20, rng)._spectral(pull)
    assert all(quotient(v) < quotient(found) * (1 + 1e-3) for v in rng.normal(size=(100, 17)))
    assert all(quotient(found + 0.02 * v) < quotient(found) * (1 + 1e-3) for v in rng.normal(size=(100, 17)))


def test_weights_are_optimal(learned):
    """At the optimum sum_r u_r a_rk is 1 where a bit has weight and at most 1 elsewhere; u is between 0 and C / T."""
    w, triplets, columns = learned
    assert w.shape == (8,) and (w >= 0).all() and (w > 0).sum() >= 6
    u = dual(columns, w, C)
    assert (u >= 0).all() and (u <= C / len(triplets)).all()
    asked = u @ columns
    np.testing.assert_allclose(asked[w > 1e-6], 1, atol=1e-3)
    assert (asked <= 1 + 1e-3).all()


def test_a_useless_bit_gets_no_weight(learned, rng):
    w, triplets, columns = learned
    more = np.column_stack([columns, margins(rng.random(300) < 0.5, triplets), -columns[:, 0]])
    found = master(more, C, np.zeros(10))
    assert (found[8:] == 0).all()
    np.testing.assert_allclose(found[:8], w, atol=1e-3)


def test_each_bit_lowers_the_objective(learned):
    _, _, columns = learned
    costs = [C * np.log(2)]
    for k in range(1, 9):
        w = master(columns[:, :k], C, np.zeros(k))
        costs.append(w.sum() + C * np.log1p(np.exp(-columns[:, :k] @ w)).mean())
    assert all(after < before for before, after in itertools.pairwise(costs)) and costs[-1] < 0.9 * costs[0]


def test_more_bits_than_the_objective_asks_for(clusters, rng):
    """With a small C no bit is worth its weight; where the first is right for all triplets, no second one is."""
    X, y = clusters
    X = np.column_stack([X, np.ones(200)])
    search = BitSearch(X, draw_triplets(Labels.of(y), 10, rng), 2, 20, rng)
    assert len(generate_bits(search, 3, 0.1, 0.1)[1]) == 1
    assert generate_bits(search, 3, 0.1, 100.0)[2] > 1
    X = np.repeat([[0.0], [1.0]], 20, axis=0)
    signs = CGHash(5).fit(X, X[:, 0].astype(int)).encode(X).signs()
    assert (signs[:20] == signs[0]).all() and (signs[20:] == -signs[0]).all()


def test_bits_are_repeated_equally_often(clusters):
    """Far apart, four classes of equal size are told apart best by the three ways to halve them."""
    X, y = clusters
    signs = CGHash(48).fit(X + 20 * np.eye(4, 16)[y], y).encode(X + 20 * np.eye(4, 16)[y]).signs()
    halves = np.sign(signs.T @ np.eye(4)[y])
    ways, times = np.unique(halves * halves[:, :1], axis=0, return_counts=True)
    assert (ways.sum(1) == 0).all() and times.tolist() == [16, 16, 16]


def test_projections_are_those_of_the_hyperplanes(clusters):
    """Rows are centred and scaled to a spread of 1 for the search; the bias is that of the constant column."""
    X, y = clusters
    hasher = CGHash(4, C=C, n_triplets=10, random_state=3).fit(X, y)
    rng = np.random.default_rng(3)
    scaled = np.column_stack([(X - X.mean(0)) / (X - X.mean(0)).std(), np.ones(200)])
    search = BitSearch(scaled, draw_triplets(Labels.of(y), 10, rng), 2, 20, rng)
    hyperplanes, weights, _ = generate_bits(search, 4, C, 1000 * C)
    np.testing.assert_allclose(hasher.project(X), scaled @ hyperplanes, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(hasher.bit_weights_, weights)


def test_weights_are_saved(clusters, tmp_path):
    hasher = CGHash(6).fit(*clusters)
    assert hasher.bit_weights_.shape == (6,) and (hasher.bit_weights_ > 0).any()
    hasher.save(tmp_path / "model")
    assert np.array_equal(CGHash.load(tmp_path / "model").bit_weights_, hasher.bit_weights_)


def test_bad_input(clusters, rng):
    X, _ = clusters
    awkward = np.zeros((10, 5))
    awkward[5:, 2] = 1.0  # two different rows, four constant columns
    codes = CGHash(24).fit(awkward, [0] * 5 + [1] * 5).encode(awkward).signs()
    assert (codes[:5] == codes[0]).all() and (codes[5:] == codes[5]).all() and (codes[0] != codes[9]).any()
    assert CGHash(24).fit(X[:8], [0, 1] * 4).project(X).shape == (200, 24)  # fewer rows than bits and triplets of a row
    sets = rng.random((200, 5)) < 0.3
    sets[0] = False
    assert np.isfinite(CGHash(12).fit(X, sets).project(X)).all()
    with pytest.raises(DataError, match="learning needs such triplets"):
        CGHash(12).fit(X[:3], [[1, 1, 0], [1, 0, 1], [0, 1, 1]])
