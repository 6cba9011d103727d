"""IsoHash: a rotation after which all directions vary alike, for any variances."""

import itertools

import numpy as np
import pytest

from hashlens.hashers.shallow import isohash
from hashlens.hashers.shallow.isohash import IsoHash, equalising_rotation

SPECTRA = {
    "one": np.array([3.0]),
    "falling": np.arange(16.0, 0, -1),
    "steep": 0.5 ** np.arange(48),
    "slow": 1 / np.arange(1.0, 49),
    "flat": np.ones(12),
    "pairs": np.repeat([5.0, 1.0], 6),
    "half zero": np.repeat([2.0, 0.0], 12),
    "one direction": np.eye(48)[0],
}


@pytest.mark.parametrize("variances", SPECTRA.values(), ids=SPECTRA)
def test_all_directions_vary_alike(variances):
    for scale in (1e-6, 1, 1e6):
        Q = equalising_rotation(scale * variances, 1000, 0)
        n, a = len(variances), scale * variances.mean()
        np.testing.assert_allclose(Q.T @ Q, np.eye(n), atol=1e-9)
        Z = Q.T @ np.diag(scale * variances) @ Q
        assert np.abs(np.diag(Z) - a).max() < 1e-6 * a


def test_every_turn_keeps_the_variances_and_comes_nearer():
    variances = np.arange(16.0, 0, -1)
    errors = []
    for n in range(12):
        Q = equalising_rotation(variances, n, 0)
        Z = Q.T @ np.diag(variances) @ Q
        np.testing.assert_allclose(np.linalg.eigvalsh(Z)[::-1], variances, rtol=1e-9)
        errors.append(np.square(np.diag(Z) - variances.mean()).sum())
    assert errors[-1] < 1e-9 * errors[0]
    assert all(after < before for before, after in itertools.pairwise(errors))


@pytest.mark.parametrize("scale", [1e-6, 1, 1e6])
def test_turns_end_when_nothing_is_left_to_do(monkeypatch, scale):
    turns = []
    real = isohash.eigenvectors
    monkeypatch.setattr(isohash, "eigenvectors", lambda Z: turns.append(1) or real(Z))
    equalising_rotation(scale * np.arange(16.0, 0, -1), 1000, 0)
    assert 5 < len(turns) < 50


def test_codes_of_features(clusters):
    X, _ = clusters
    hasher = IsoHash(12).fit(X)
    variances = hasher.project(X).var(0)
    np.testing.assert_allclose(variances, variances.mean(), rtol=1e-6)
    leading = np.linalg.svd(X - X.mean(0), compute_uv=False)[:12] ** 2 / len(X)
    assert variances.mean() == pytest.approx(leading.mean())
    np.testing.assert_allclose(hasher.projection_.T @ hasher.projection_, np.eye(12), atol=1e-9)
    assert IsoHash(12).fit(7 * X + 3).encode(7 * X + 3).equals(hasher.encode(X))


def test_more_bits_than_features(clusters):
    X, _ = clusters
    hasher = IsoHash(40).fit(X)
    assert hasher.projection_.shape == (16, 40)
    np.testing.assert_allclose(hasher.project(X).var(0), X.var(0).sum() / 40, rtol=1e-6)
    assert len(np.unique(hasher.encode(X).signs(), axis=1).T) > 30  # bits are not copies of each other


def test_few_rows_equal_rows_and_constant_columns(rng):
    X = np.hstack([rng.normal(size=(5, 3)), np.ones((5, 20))])
    hasher = IsoHash(48).fit(np.repeat(X, 2, axis=0))
    assert np.isfinite(hasher.project(X)).all()
    assert len(np.unique(hasher.encode(X).packed, axis=0)) == 5
