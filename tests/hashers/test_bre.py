"""BRE: every weight goes where the error is least, so the error never rises; distances are rebuilt by codes."""

import numpy as np
import pytest

from hashlens.hashers.shallow.bre import BRE, Descent, best_weight, draw_pairs, of_unit_length


def make_descent(rng, n=50, n_bits=6, n_anchors=5, d=4):
    X = of_unit_length(rng.normal(size=(n, d)))
    anchors = np.stack([rng.choice(n, n_anchors, replace=False) for _ in range(n_bits)])
    return X, Descent(X @ X.T, draw_pairs(n, rng), anchors, 0.001 * rng.standard_normal(anchors.shape))


def slow_error(X, descent):
    """From the rows and weights alone, pair by pair."""
    bits = np.stack([X @ (w @ X[a]) > 0 for w, a in zip(descent.weights, descent.anchors, strict=True)], axis=1)
    wanted = np.array([0.5 * ((X[i] - X[j]) ** 2).sum() for i, j in descent.pairs.T])
    wanted /= wanted.max()
    found = np.array([(bits[i] != bits[j]).mean() for i, j in descent.pairs.T])
    return np.square(wanted - found).mean()


def test_pairs(rng):
    pairs = draw_pairs(60, rng)
    assert (pairs[0] < pairs[1]).all() and pairs.min() == 0 and pairs.max() == 59
    assert len(np.unique(pairs, axis=1).T) == pairs.shape[1] <= 3 * 60
    assert np.bincount(pairs.ravel(), minlength=60).min() >= 3
    assert draw_pairs(2, rng).tolist() == [[0], [1]]


def test_error_and_partners(rng):
    X, descent = make_descent(rng)
    assert descent.error() == pytest.approx(slow_error(X, descent), abs=1e-12)
    for i in range(50):
        partners = descent.partner[descent.start[i] : descent.start[i + 1]]
        expected = [j for pair in descent.pairs.T.tolist() if i in pair for j in pair if j != i]
        assert sorted(partners) == sorted(expected)


def test_the_error_never_rises(rng):
    """After every single weight, recomputed in full."""
    X, descent = make_descent(rng)
    errors = [slow_error(X, descent)]
    for _ in range(3):
        for bit in range(6):
            for q in range(5):
                descent.improve(bit, np.array([q]))
                errors.append(slow_error(X, descent))
                assert descent.error() == pytest.approx(errors[-1], abs=1e-12)
    assert (np.diff(errors) <= 1e-12).all()
    assert errors[-1] < 0.8 * errors[0]


@pytest.mark.parametrize("seed", range(20))
def test_the_best_weight_against_trying_all(seed):
    rng = np.random.default_rng(seed)
    _, descent = make_descent(rng)
    column, weight = descent.kernel[seed], 0.001 * rng.normal()
    column[rng.integers(50, size=3)] = 0  # these never turn
    values = rng.normal(scale=0.002, size=50)
    cost = rng.normal(loc=rng.normal(scale=0.2), size=descent.pairs.shape[1])

    def total(w):
        bits = values + (w - weight) * column > 0
        return cost[bits[descent.pairs[0]] != bits[descent.pairs[1]]].sum()

    points = np.sort(weight - values[column != 0] / column[column != 0])
    tried = [weight, points[0] - 1, points[-1] + 1, *((points[1:] + points[:-1]) / 2)]
    found = best_weight(weight, column, values, descent.start, descent.partner, cost[descent.pair])
    assert total(found) == pytest.approx(min(total(w) for w in tried), abs=1e-9)


def test_the_old_weight_is_kept_where_nothing_costs_less(rng):
    _, descent = make_descent(rng)
    start, partner = descent.start, descent.partner
    values = rng.normal(size=50)
    assert best_weight(0.3, np.zeros(50), values, start, partner, np.ones(len(partner))) == 0.3
    assert best_weight(0.3, descent.kernel[0], values, start, partner, np.zeros(len(partner))) == 0.3


def test_equal_costs_are_not_told_apart_by_rounding(rng):
    """Far below and far above all turning points the same pairs differ: the first of both, unless one is the old."""
    _, descent = make_descent(rng)
    for _ in range(20):
        column, values = rng.uniform(0.1, 1, 50), rng.normal(size=50)
        cost = rng.uniform(size=descent.pairs.shape[1])[descent.pair]  # it is best if none differ
        points = -values / column
        assert best_weight(0.0, column, values, descent.start, descent.partner, cost) < points.min()
        for old in (points.min() - 1, points.max() + 1):
            assert best_weight(old, column, values + old * column, descent.start, descent.partner, cost) == old


def test_the_best_weight_may_lie_outside_all_turning_points():
    """Two rows that had better be equal, or had better differ."""
    start, partner, column = np.array([0, 1, 2]), np.array([1, 0]), np.array([1.0, 1.0])
    found = best_weight(0.0, column, np.array([1.0, -1.0]), start, partner, np.ones(2))
    assert found < -1 or found > 1
    found = best_weight(5.0, column, np.array([6.0, 4.0]), start, partner, -np.ones(2))
    assert -1 < found < 1
    found = best_weight(0.0, np.array([1.0, 0.0]), np.array([1.0, -1.0]), start, partner, np.ones(2))
    assert found < -1  # a single turning point


def test_distances_are_rebuilt(clusters):
    X, _ = clusters
    unit = of_unit_length(X - X.mean(0))
    wanted = ((unit[:, None] - unit) ** 2).sum(2) / 4

    def error(hasher):
        signs = hasher.fit(X).encode(X).signs()
        return np.square(wanted - (signs[:, None] != signs).mean(2)).mean()

    assert error(BRE(24)) < 0.7 * error(BRE(24, n_sweeps=0))


def test_the_sample_is_what_is_learned_from(clusters):
    """The weights span the anchors: all projections lie in the space of the sampled rows."""
    X, _ = clusters
    hasher = BRE(12, n_sample=5).fit(X)
    assert np.linalg.matrix_rank(hasher.projection_) <= 5
    assert np.linalg.matrix_rank(BRE(12, n_anchors=1, n_sample=100).fit(X).projection_) > 5


def test_codes_do_not_see_the_scale(clusters):
    X, _ = clusters
    assert BRE(12).fit(X).encode(X).equals(BRE(12).fit(8 * X).encode(8 * X))


def test_few_repeated_and_central_rows(rng):
    for X in (
        rng.normal(size=(2, 3)),
        rng.normal(size=(20, 1)),
        np.repeat(rng.normal(size=(2, 3)), 30, axis=0),
        np.vstack([np.zeros((30, 3)), np.eye(3), -np.eye(3)]),  # most rows are the mean itself
        np.pad(rng.normal(size=(30, 2)), ((0, 0), (0, 3))),  # constant columns
    ):
        hasher = BRE(24).fit(X)
        assert np.isfinite(hasher.projection_).all()
        assert len(np.unique(hasher.encode(X).signs(), axis=0)) > 1
