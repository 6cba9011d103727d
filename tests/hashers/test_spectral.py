"""The same model on every machine: neither the number of threads nor the instruction set of BLAS changes a bit."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import ortho_group

from hashlens.hashers.shallow.spectral import eigenvectors, principal_directions, random_rotation, settled

FIT_ALL = """
import sys
import numpy as np
from hashlens.hashers.methods import METHODS, hasher_class

rng = np.random.default_rng(0)
y = rng.permutation(np.repeat(np.arange(6), 100))
X = rng.normal(size=(6, 64))[y] + 1.5 * rng.normal(size=(600, 64)) * 0.97 ** np.arange(64)
small = {"n_trees": 20, "n_anchors": 100, "n_epochs": 3, "n_sample": 200}
found = {}
for name, method in METHODS.items():
    if method.path.startswith("shallow."):
        cls = hasher_class(name)
        own = {key: value for key, value in small.items() if hasattr(cls(), key)}
        for kind, rows in {"wide": X, "narrow": X[:, :10]}.items():  # fewer features than bits: eigenvalues are equal
            found[f"{name} {kind}"] = cls(24, **own).fit(rows, y).project(rows)
assert "torch" not in sys.modules
np.savez(sys.argv[1], **found)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction sets have these names on x86 only")
def test_threads_and_instruction_sets_do_not_matter(tmp_path):
    outcomes = []
    for threads, kind in [("1", "Haswell"), ("2", "Haswell"), ("1", "Prescott")]:  # AVX2 and SSE3
        chosen = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "OPENBLAS_CORETYPE": kind}
        chosen |= {"OPENBLAS_THREAD_TIMEOUT": "4"}  # on a busy machine, threads that wait and do not sleep cost minutes
        path = tmp_path / f"{kind}-{threads}.npz"
        subprocess.run([sys.executable, "-c", FIT_ALL, path], check=True, env=os.environ | chosen)
        outcomes.append(np.load(path))
    first, *others = outcomes
    assert len(first.files) >= 36
    assert any(
        not np.array_equal(first[name], other[name]) for other in others for name in first.files
    )  # different roundings
    for other in others:
        for name in first.files:
            # SPLH computes in single precision; the others in double
            np.testing.assert_allclose(other[name], first[name], atol=1e-3 * np.abs(first[name]).max(), err_msg=name)
            assert ((other[name] > 0) == (first[name] > 0)).mean() > 0.999, name


@pytest.mark.parametrize("values", [[5, 3, 2, 1], [3, 3, 2, 2], [1, 1, 1, 0], [2, 0, 0, 0]])
def test_signs_and_bases_are_settled(values, rng):
    """Whatever basis of an eigenspace the solver gives, the same comes out, and it is one."""
    values = np.array(values, float)
    vectors = ortho_group.rvs(4, random_state=rng)
    expected = settled(values, vectors)
    np.testing.assert_allclose(expected * values @ expected.T, vectors * values @ vectors.T, atol=1e-12)
    for _ in range(5):
        other = vectors * rng.choice([-1, 1], 4)
        for value in set(values):
            space = values == value
            if space.sum() > 1:
                other[:, space] = other[:, space] @ ortho_group.rvs(space.sum(), random_state=rng)
        np.testing.assert_allclose(settled(values, other), expected, atol=1e-12)


def test_antisymmetric_vectors_have_a_sign():
    for v in ([1.0, -1.0], [1.0, 2.0, -2.0, -1.0]):
        column = np.array(v)[:, None]
        assert np.array_equal(settled(np.ones(1), column), settled(np.ones(1), -column))


def test_eigenvectors_and_a_tie_at_the_cut(rng):
    basis = ortho_group.rvs(6, random_state=rng)
    A = basis * [9, 7, 7, 7, 2, 1] @ basis.T
    values, vectors = eigenvectors(A)
    np.testing.assert_allclose(values, [9, 7, 7, 7, 2, 1])
    np.testing.assert_allclose(A @ vectors, vectors * values, atol=1e-12)
    for n in (1, 2, 3, 5, 9):  # two and three cut through the space of the sevens
        np.testing.assert_allclose(eigenvectors(A, n)[1], vectors[:, :n], atol=1e-12)
    B = A + 3 * np.eye(6)
    values, vectors = eigenvectors(A, 2, B)
    np.testing.assert_allclose(A @ vectors, B @ vectors * values, atol=1e-12)


def test_principal_directions_past_the_rank_are_zero(rng):
    X = rng.normal(size=(5, 3)) @ rng.normal(size=(3, 8))
    X -= X.mean(0)
    directions = principal_directions(X, 10)
    assert directions.shape == (8, 10) and not directions[:, 3:].any()
    np.testing.assert_allclose(X @ directions @ directions.T, X, atol=1e-12)
    rotation = random_rotation(7, rng)
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(7), atol=1e-12)
