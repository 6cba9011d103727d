"""FastH: its pairs and their weights, graph cuts against brute force, one bit after another, and bad input."""

import itertools

import numpy as np
import pytest
from scipy import sparse

from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.hashers.shallow.boosted_trees import boost
from hashlens.hashers.shallow.fasth import (
    FastH,
    best_signs,
    draw_pairs,
    energy,
    groups_alike,
    infer_bit,
    pair_weights,
    sweep,
    symmetric,
)

SETS = Labels.of(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 1], [0, 0, 0]]))


def blobs(rng, n=400, n_classes=4, d=16):
    y = rng.permutation(np.arange(n) % n_classes)
    return 2 * rng.normal(size=(n_classes, d))[y] + rng.normal(size=(n, d)), y


def attractive(rng, n, density=0.6):
    """A sparse symmetric matrix without positive entries."""
    A = -np.triu(rng.random((n, n)) * (rng.random((n, n)) < density), 1)
    return sparse.csr_array(A + A.T)


@pytest.mark.parametrize("r", [1, 2, 5, 48])
def test_pair_weights_are_what_a_bit_saves(r):
    """Similar pairs want the same sign, others different ones, and never the other way round."""
    for d in range(r):
        own = pair_weights(np.array([d, d]), np.array([True, False]), r)
        assert own[0] == pytest.approx((d / r) ** 2 - ((d + 1) / r) ** 2)
        assert own[1] == pytest.approx(max(0, 0.5 - d / r) ** 2 - max(0, 0.5 - (d + 1) / r) ** 2)
        assert own[0] < 0 <= own[1]
        assert (own[1] > 0) == (d < r / 2)


def test_every_row_draws_partners_of_both_kinds(rng):
    y = np.repeat(np.arange(4), [40, 40, 40, 1])
    pairs, similar = draw_pairs(Labels.of(y), 10, rng)
    i, j = pairs.T
    assert (i < j).all() and len(np.unique(i * 1000 + j)) == len(pairs)  # each pair once
    assert np.array_equal(y[i] == y[j], similar)
    for kind in (True, False):
        partners = np.bincount(pairs[similar == kind].ravel(), minlength=len(y))
        assert (partners[:120] >= 10).all() and partners.max() < 40  # its own ten and those that drew it
        assert len(pairs[similar == kind]) <= 1210
    assert not (pairs[similar] == 120).any()  # the only one of its class


def test_few_rows_have_all_partners(rng):
    pairs, similar = draw_pairs(SETS, 100, rng)
    assert len(pairs) == 21  # of seven rows
    alike = {tuple(pair) for pair in pairs[similar].tolist()}
    assert alike == {(0, 1), (0, 3), (0, 5), (1, 5), (4, 5)}


def test_groups_share_a_label():
    assert [group.tolist() for group in groups_alike(SETS)] == [[0, 3], [0, 1, 5], [4, 5], [2], [6]]
    numbers = Labels.of(np.array([3, 0, 3, 0, 1]))  # nothing is of class 2
    assert [group.tolist() for group in groups_alike(numbers)] == [[1, 3], [4], [0, 2]]


def test_symmetric():
    A = symmetric(np.array([[0, 2], [1, 2]]), np.array([0.5, -1.0]), 3).toarray()
    assert A.tolist() == [[0, 0, 0.5], [0, 0, -1], [0.5, -1, 0]]


@pytest.mark.parametrize("n", [1, 2, 5, 9, 12])
def test_a_cut_is_as_good_as_trying_all_signs(rng, n):
    all_signs = 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1) - 1
    mixed = 0
    for scale in np.repeat([0.1, 0.5, 1, 3, 1e-9], 8):
        A, unary = attractive(rng, n), scale * rng.normal(size=n)
        energies = all_signs @ unary + (all_signs * (A @ all_signs.T).T).sum(1) / 2
        z = best_signs(A, unary)
        assert set(z) <= {-1, 1}
        rounding = 1e-12 + n * n * np.abs(unary).sum() / 2**29
        assert energy(A, unary, z) == pytest.approx(energies.min(), abs=rounding)
        mixed += len(set(z)) == 2
    assert mixed > 5 or n == 1


def test_a_sweep_never_raises_the_energy(rng):
    n = 120
    y = rng.integers(0, 5, n)
    same = y[:, None] == y
    A = np.triu(np.where(same, -1, 1) * rng.random((n, n)) * (rng.random((n, n)) < 0.3), 1)
    A = sparse.csr_array(A + A.T)
    z = rng.choice([-1.0, 1.0], n)
    energies = [energy(A, np.zeros(n), z)]
    groups = groups_alike(Labels.of(y))
    for group in groups * 3:
        before = z.copy()
        sweep(A, z, [group])
        energies.append(energy(A, np.zeros(n), z))
        outside = np.setdiff1d(np.arange(n), group)
        assert np.array_equal(z[outside], before[outside])
        for point in group:  # the best of all signs of the block, hence no single one can be better
            flipped = z.copy()
            flipped[point] *= -1
            assert energy(A, np.zeros(n), flipped) >= energies[-1] - 1e-6
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(energies))
    assert energies[1] < energies[0] and energies[5] < energies[0] - 10


def test_a_sweep_keeps_what_is_as_good(rng):
    for sign in (-1.0, 1.0):
        z = np.full(6, sign)
        sweep(sparse.csr_array((6, 6)), z, [np.arange(6)])
        assert (z == sign).all()
        sweep(attractive(rng, 6), z, [np.arange(6)])
        assert (z == sign).all()


def test_a_bit_tells_classes_apart_also_when_no_pair_is_wrong(rng):
    y = np.arange(60) % 4
    groups = groups_alike(Labels.of(y))
    pairs, similar = draw_pairs(Labels.of(y), 20, rng)
    A = symmetric(pairs, np.where(similar, -1.0, 0.0), 60)
    for _ in range(10):
        z = infer_bit(A, groups, 2, rng)
        assert sorted(set(z[group]).pop() for group in groups if len(set(z[group])) == 1) == [-1, -1, 1, 1]


def test_the_first_bits_do_not_depend_on_how_many_follow(clusters):
    """The loss of bit r is that of r bits, not of all."""
    X, y = clusters
    few, many = (FastH(n_bits, n_trees=10).fit(X, y) for n_bits in (4, 9))
    assert np.array_equal(few.project(X), many.project(X)[:, :4])


def test_a_bit_corrects_the_predictions_of_the_trees(clusters, monkeypatch):
    """Distances are those of learned functions, not of the bits that they were to learn."""
    from hashlens.hashers.shallow import fasth

    X, y = clusters
    seen = []
    monkeypatch.setattr(
        fasth, "pair_weights", lambda d, similar, r: seen.append((d.copy(), r)) or pair_weights(d, similar, r)
    )
    hasher = FastH(5, n_trees=1, depth=1).fit(X, y)  # a stump cannot learn a bit by heart
    bits = hasher.project(X) > 0
    pairs, _ = draw_pairs(Labels.of(y), 100, np.random.default_rng(0))
    for k, (distance, r) in enumerate(seen):
        assert r == k + 1
        assert np.array_equal(distance, (bits[pairs[:, 0], :k] != bits[pairs[:, 1], :k]).sum(1))
    assert len(seen) == 5


def test_trees_learn_what_the_cut_found_by_the_weight_of_its_pairs(clusters, monkeypatch):
    from hashlens.hashers.shallow import fasth

    X, y = clusters
    seen = []
    monkeypatch.setattr(
        fasth, "infer_bit", lambda A, *how: seen.append([np.abs(A.toarray()).sum(1), infer_bit(A, *how)]) or seen[-1][1]
    )
    monkeypatch.setattr(fasth, "boost", lambda *given, **how: seen[-1].append(given[1:]) or boost(*given, **how))
    FastH(4, n_trees=3, n_partners=5).fit(X, y)
    for expected_weights, expected_z, (z, weights) in seen:
        assert z is expected_z
        np.testing.assert_allclose(weights, expected_weights)
        assert weights.std() > 0
    assert len(seen) == 4


def test_what_is_learned(clusters):
    X, y = clusters
    hasher = FastH(3, n_trees=7, depth=2).fit(X, y)
    assert hasher.edges_.shape == (16, 255)
    assert (hasher.feature_.shape, hasher.feature_.dtype) == ((3, 7, 3), np.int32)
    assert (hasher.threshold_.shape, hasher.threshold_.dtype) == ((3, 7, 3), np.uint8)
    assert (hasher.leaf_.shape, hasher.leaf_.dtype) == ((3, 7, 4), np.int8)
    assert hasher.vote_.shape == (3, 7) and (hasher.vote_ >= 0).all()
    u = hasher.project(X)
    assert (np.abs(u) <= hasher.vote_.sum(1) + 1e-9).all()
    more = np.vstack([X] * 6)  # more than a thread takes at once
    assert np.array_equal(hasher.project(more), np.vstack([u] * 6))


def test_separate_clusters_are_found_again(rng):
    X, y = blobs(rng)
    codes = FastH(16, n_trees=50).fit(X[100:], y[100:]).encode(X)
    assert evaluate_codes(codes[:100], codes[100:], y[:100], y[100:])["map"] > 0.95


def test_monotone_features_give_the_same_codes(rng):
    """Bins of equally many rows see nothing but the order of values."""
    X, y = blobs(rng, n=150)
    assert FastH(6, n_trees=10).fit(X, y).encode(X).equals(FastH(6, n_trees=10).fit(np.exp(X), y).encode(np.exp(X)))


def test_two_classes_fill_all_bits(rng):
    X, y = blobs(rng, n=100, n_classes=2)
    signs = FastH(8, n_trees=20).fit(X, y).encode(X).signs()
    assert (np.abs(signs.mean(0)) < 0.2).all()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda X: X[:, :1],
        lambda X: np.repeat(X[::8], 8, axis=0),
        lambda X: np.hstack([X, np.ones((len(X), 3))]),
        lambda X: np.hstack([np.zeros((len(X), 300)), X]),
        lambda X: 1e300 * X,
        lambda X: 1e-300 * X,
    ],
    ids=["one column", "equal rows", "constant columns", "more columns than candidates", "huge", "tiny"],
)
def test_unusual_features(rng, spoil):
    X, y = blobs(rng, n=160)
    X = spoil(X[np.argsort(y)])
    hasher = FastH(12, n_trees=20).fit(X, np.sort(y))
    codes = hasher.encode(X)
    assert codes.n_bits == 12 and np.isfinite(hasher.project(X)).all()
    assert evaluate_codes(codes, codes, np.sort(y), np.sort(y))["map"] > 0.4


def test_fewer_rows_than_bits(rng):
    X, y = rng.normal(size=(5, 3)), np.array([0, 1, 0, 1, 2])
    signs = FastH(24, n_trees=5).fit(X, y).encode(X).signs()
    assert signs.shape == (5, 24)
    assert (signs[0] == signs[2]).all() and (signs[1] == signs[3]).all() and (signs[0] != signs[1]).any()


def test_rows_without_labels(rng):
    """They are similar to nothing, and share a group with nothing."""
    X, y = blobs(rng, n=200)
    sets = np.eye(4, dtype=int)[y]
    sets[:10] = 0
    sets[10:20, 0] = 1  # and some with two
    codes = FastH(12, n_trees=30).fit(X, sets).encode(X[20:])
    assert evaluate_codes(codes[:50], codes[50:], y[20:70], y[70:])["map"] > 0.8
