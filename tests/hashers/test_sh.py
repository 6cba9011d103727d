"""SH: which waves are taken, where they cross zero, and what odd features do to it."""

import numpy as np
import pytest

from hashlens.hashers.shallow.sh import SH, slowest_waves
from hashlens.hashers.shallow.spectral import principal_directions


@pytest.mark.parametrize("n", [1, 2, 12, 48])
def test_the_slowest_waves_are_taken(rng, n):
    ranges = np.sort(rng.uniform(0.01, 5, 10))[::-1]
    axes, waves = slowest_waves(ranges, n)
    slow = []  # as the authors list them: axis i has waves up to its share of n + 1
    for i, r in enumerate(ranges):
        slow += [(k / r, i, k) for k in range(1, int(np.ceil((n + 1) * r / ranges.max())))]
    expected = sorted(slow)[:n]
    assert list(zip(axes.tolist(), waves.tolist(), strict=True)) == [(i, k) for _, i, k in expected]
    frequencies = waves / ranges[axes]
    assert len(axes) == n and waves.min() == 1 and (np.diff(frequencies) >= 0).all()


def test_axes_without_range_have_no_waves():
    axes, waves = slowest_waves(np.array([2.0, 1.0, 0.0, 1e-320]), 6)
    assert axes.tolist() == [0, 0, 1, 0, 0, 1] and waves.tolist() == [1, 2, 1, 3, 4, 2]


def test_evenly_spread_numbers():
    """The first bit changes at the midpoint, the bit of wave k changes k times and at even distances."""
    X = np.linspace(2, 10, 8001)[:, None]
    signs = SH(8).fit(X).encode(X).signs()
    for k in range(1, 9):
        changes = np.flatnonzero(np.diff(signs[:, k - 1])) / 8000
        np.testing.assert_allclose(changes, (np.arange(k) + 0.5) / k, atol=2e-4)


def test_waves_go_on_outside_the_box():
    X = np.linspace(0, 1, 101)[:, None]
    hasher = SH(3).fit(X)
    np.testing.assert_allclose(np.abs(hasher.project(X + 2)), np.abs(hasher.project(X)), atol=1e-9)
    np.testing.assert_allclose(hasher.project(-X), hasher.project(X) * hasher.project(X[:1]) ** 2, atol=1e-9)


def test_values_are_cosines_along_principal_directions(clusters):
    X, _ = clusters
    along = X @ principal_directions(X - X.mean(0), 12)
    a, R = along.min(0), along.max(0) - along.min(0)
    modes = sorted((k / R[i], i, k) for i in range(12) for k in range(1, 13))[:12]
    assert {k for _, _, k in modes} != {1}
    expected = np.stack([np.cos(k * np.pi * (along[:, i] - a[i]) / R[i]) for _, i, k in modes], axis=1)
    np.testing.assert_allclose(SH(12).fit(X).project(X), expected, atol=1e-9)


def test_nothing_is_random_and_units_do_not_matter(clusters):
    X, _ = clusters
    hasher = SH(24).fit(X)
    assert np.array_equal(SH(24).fit(X).project(X), hasher.project(X))
    assert np.array_equal(SH(24, random_state=7).fit(X).project(X), hasher.project(X))
    np.testing.assert_allclose(np.abs(SH(24).fit(7 * X + 3).project(7 * X + 3)), np.abs(hasher.project(X)), atol=1e-8)


def test_more_bits_than_features(clusters):
    X, _ = clusters
    signs = SH(48).fit(X[:, :3]).encode(X[:, :3]).signs()
    assert len(np.unique(signs, axis=1).T) == 48


def test_few_rows_equal_rows_and_constant_columns(rng):
    X = np.hstack([rng.normal(size=(5, 3)), np.ones((5, 20))])
    hasher = SH(48).fit(np.repeat(X, 2, axis=0))
    values = hasher.project(X)
    assert values.shape == (5, 48) and np.isfinite(values).all()
    assert len(np.unique(hasher.encode(X).packed, axis=0)) == 5
