"""SIKH: how often bits differ, by which width, and what odd features do to it."""

import numpy as np
import pytest

from hashlens.hashers.shallow import sikh
from hashlens.hashers.shallow.sikh import SIKH, neighbour_distance

N_BITS = 40_000


def expected_part(distance, gamma):
    """The part of differing bits by the paper's series."""
    m = np.arange(1, 10_000)
    return 8 / np.pi**2 * np.sum((1 - np.exp(-gamma * (m * distance) ** 2 / 2)) / (4 * m**2 - 1))


def differing_part(hasher, X, Y):
    return (hasher.encode(X).signs() != hasher.encode(Y).signs()).mean(1)


@pytest.mark.parametrize("gamma", [0.3, 1.0, 4.0])
def test_the_part_of_differing_bits(rng, gamma):
    X = rng.normal(size=(8, 5))
    steps = rng.normal(size=(8, 5))
    lengths = np.array([0.01, 0.1, 0.3, 0.5, 1, 2, 4, 50])
    steps *= (lengths / np.linalg.norm(steps, axis=1))[:, None]
    parts = differing_part(SIKH(N_BITS, gamma=gamma).fit(X), X, X + steps)
    for part, length in zip(parts, lengths, strict=True):
        expected = expected_part(length, gamma)
        assert abs(part - expected) < 4 * np.sqrt(expected * (1 - expected) / N_BITS)
    assert expected_part(50, gamma) == pytest.approx(4 / np.pi**2, rel=1e-4)


def test_only_the_difference_of_two_items_matters(rng):
    X = rng.normal(size=(6, 5))
    step = 0.6 * rng.normal(size=5)
    parts = differing_part(SIKH(N_BITS, gamma=1).fit(X), X + 10 * rng.normal(size=(6, 5)), X)
    here, there = (differing_part(SIKH(N_BITS, gamma=1).fit(X), Y, Y + step) for Y in (X, X + 100))
    assert np.ptp(np.concatenate([here, there])) < 8 * np.sqrt(0.25 / N_BITS)
    assert parts.min() > here.max()


def test_shift_and_scale_of_the_features_do_not_matter(clusters):
    X, _ = clusters
    codes = SIKH(24).fit(X).encode(X)
    assert SIKH(24).fit(7 * X + 3).encode(7 * X + 3).equals(codes)
    assert not SIKH(24, gamma=1).fit(7 * X).encode(7 * X).equals(SIKH(24, gamma=1).fit(X).encode(X))


def test_the_width_is_the_distance_to_the_50th_neighbour(clusters):
    X, _ = clusters
    X = X - X.mean(0)
    distances = np.sort(np.linalg.norm(X[:, None] - X, axis=2), axis=1)
    expected = distances[:, 50].mean()
    assert neighbour_distance(X, 0) == pytest.approx(expected, rel=1e-9)
    by_rule, given = SIKH(12).fit(X), SIKH(12, gamma=expected**-2).fit(X)
    np.testing.assert_allclose(by_rule.projection_, given.projection_, rtol=1e-9)


def test_the_width_is_estimated_from_some_rows(rng, monkeypatch):
    X = rng.normal(size=(2500, 6))
    compared = []
    real = sikh.squared_distances
    monkeypatch.setattr(sikh, "squared_distances", lambda X, Y: compared.append(len(X) * len(Y)) or real(X, Y))
    few = neighbour_distance(X, 0)
    assert sum(compared) == 1000 * 2500 and max(compared) == 100 * 2500
    monkeypatch.setattr(sikh, "SAMPLE", 2500)
    assert few != neighbour_distance(X, 0) and few == pytest.approx(neighbour_distance(X, 0), rel=0.02)


def test_few_rows_and_equal_rows(rng):
    X = rng.normal(size=(30, 4))
    X -= X.mean(0)
    distances = np.linalg.norm(X[:, None] - X, axis=2)
    assert neighbour_distance(X, 0) == pytest.approx(distances.max(1).mean(), rel=1e-9)
    X = np.repeat(rng.normal(size=(2, 4)), 60, axis=0) + 1000
    Y = X - X.mean(0)
    typical = np.sqrt(np.square(Y[:, None] - Y).sum(2).mean())
    assert neighbour_distance(Y, 0) == pytest.approx(typical, rel=1e-9)
    codes = SIKH(48).fit(X).encode(X)
    assert codes[:60].equals(codes[np.zeros(60, int)]) and not codes[:1].equals(codes[60:61])


def test_two_rows_and_a_constant_column(rng):
    X = np.hstack([rng.normal(size=(2, 3)), np.ones((2, 1))])
    assert SIKH(48).fit(X).encode(X).signs().any()
    assert SIKH(48).fit(X).project(X).shape == (2, 48)
