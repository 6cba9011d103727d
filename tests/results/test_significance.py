"""The paired test over queries on cases whose answer is known."""

from itertools import product

import numpy as np
import pytest

from hashlens.errors import DataError, MismatchError
from hashlens.results.significance import paired_test


def exact_p(differences):
    """Over all choices of signs."""
    signs = np.array(list(product([-1, 1], repeat=len(differences))))
    means = np.abs(signs @ differences)
    return (means >= abs(np.sum(differences)) - 1e-12).mean()


@pytest.mark.parametrize(
    "differences", [[0.2], [0.1, 0.1, 0.1], [0.3, -0.1, 0.2, 0.05, 0.4], [0.1, -0.1], [0.01, 0.3, 0.3, 0.3, 0.3, 0.3]]
)
def test_p_is_that_of_all_choices_of_signs(differences):
    found = paired_test(np.array(differences) + 0.5, np.full(len(differences), 0.5), draws=40_000)
    assert found.p == pytest.approx(exact_p(np.array(differences)), abs=0.01)
    assert found.difference == pytest.approx(np.mean(differences))
    assert found.n == len(differences)


def test_equal_methods_are_not_different():
    ap = np.random.default_rng(0).random(100)
    found = paired_test(ap, ap)
    assert (found.difference, found.p, found.low, found.high) == (0, 1, 0, 0) and not found.different


def test_a_shift_of_all_queries_is_different_and_a_shift_of_one_is_not():
    ap = np.random.default_rng(1).random(300)
    assert paired_test(ap + 0.01, ap).p == pytest.approx(1e-4)  # none of 9,999 draws is as far from 0
    other = ap.copy()
    other[0] += 0.5
    assert paired_test(other, ap).p == 1, "with either sign of one query the mean is as far from 0 from 0"


def test_noise_is_rarely_significant():
    rng = np.random.default_rng(2)
    called = [paired_test(*rng.random((2, 60)), draws=499).different for _ in range(300)]
    assert 0.01 < np.mean(called) < 0.1


def test_the_interval_holds_the_mean_and_shrinks_with_queries():
    rng = np.random.default_rng(3)
    few, many = (paired_test(0.1 + 0.2 * rng.standard_normal(n), np.zeros(n)) for n in (50, 5_000))
    for found in (few, many):
        assert found.low < found.difference < found.high
    assert many.high - many.low == pytest.approx(2 * 1.96 * 0.2 / np.sqrt(5_000), rel=0.15)
    assert few.high - few.low > 5 * (many.high - many.low)
    back = paired_test(np.zeros(50), np.full(50, 0.1))
    assert back.difference == pytest.approx(-0.1), "first minus second"


def test_queries_that_are_left_out_are_left_out_of_both():
    first, second = np.array([0.5, np.nan, 0.7, 0.9]), np.array([0.4, 0.1, np.nan, 0.7])
    found = paired_test(first, second)
    assert found.n == 2 and found.difference == pytest.approx(0.15)
    with pytest.raises(DataError, match="no query"):
        paired_test(np.array([np.nan]), np.array([0.5]))


def test_other_queries_are_refused():
    with pytest.raises(MismatchError, match="same queries"):
        paired_test(np.zeros(3), np.zeros(4))


def test_the_same_numbers_give_the_same_p():
    rng = np.random.default_rng(4)
    pair = rng.random((2, 40))
    assert paired_test(*pair) == paired_test(*pair)
