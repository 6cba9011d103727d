"""Hamming distances against counting signs that differ."""

import numpy as np
import pytest

from hashlens.codes import Codes, hamming
from hashlens.errors import MismatchError, UsageError


def random_codes(n, n_bits, seed):
    return Codes.from_relaxed(np.random.default_rng(seed).standard_normal((n, n_bits)))


@pytest.mark.parametrize("n_bits", [1, 7, 8, 12, 24, 48, 64, 65, 128, 1000])
def test_distances_count_differing_bits(n_bits):
    a, b = random_codes(7, n_bits, 0), random_codes(33, n_bits, 1)
    result = hamming.distances(a, b)
    assert result.dtype == np.uint16
    np.testing.assert_array_equal(result, (a.signs()[:, None] != b.signs()[None]).sum(axis=2))


@pytest.mark.parametrize("n_bits", [1, 64, 65, 300])
def test_extremes(n_bits):
    ones, zeros = Codes.from_signs(np.ones((1, n_bits))), Codes.from_signs(-np.ones((1, n_bits)))
    assert hamming.distances(ones, Codes.concatenate([ones, zeros])).tolist() == [[0, n_bits]]


def test_no_rows():
    codes = random_codes(3, 12, 0)
    assert hamming.distances(codes[:0], codes).shape == (0, 3)
    assert hamming.distances(codes, codes[:0]).shape == (3, 0)


def test_lengths_must_agree():
    # 12 and 16 bits both take two bytes: the arrays alone would not notice
    with pytest.raises(MismatchError, match="12 and of 16 bits"):
        hamming.distances(random_codes(1, 12, 0), random_codes(1, 16, 0))


def test_too_long():
    codes = random_codes(1, hamming.MAX_BITS + 1, 0)
    with pytest.raises(UsageError, match="at most"):
        hamming.distances(codes, codes)
