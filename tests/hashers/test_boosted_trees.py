"""Boosted trees: bins, splits against a slow search, AdaBoost's loss, and votes against a walk down each tree."""

import itertools
import math

import numpy as np
import pytest

from hashlens.hashers.shallow.boosted_trees import (
    NO_SPLIT,
    Trees,
    bin_edges,
    boost,
    grow,
    heaviest,
    to_bytes,
    votes,
    weight_of_vote,
)


def walk(column, feature, threshold, leaf):
    """What a tree says of one row, node by node."""
    node = 0
    while node < len(feature):
        node = 2 * node + 1 + int(column[feature[node]] > threshold[node])
    return leaf[node - len(feature)]


def impurity(signs, weights):
    """Weight times Gini impurity."""
    total = weights.sum()
    return total - (weights[signs > 0].sum() ** 2 + weights[signs < 0].sum() ** 2) / total if total > 0 else 0.0


def best_impurity(columns, signs, weights, candidates):
    """The least impurity of two parts, by trying every split."""
    found = impurity(signs, weights)
    for feature, threshold in itertools.product(candidates, range(255)):
        right = columns[feature] > threshold
        found = min(found, impurity(signs[right], weights[right]) + impurity(signs[~right], weights[~right]))
    return found


def made(rng, n=300, d=5, step=1):
    """Bytes, the signs of a product of two of them with some noise, and weights that sum to 1."""
    columns = rng.integers(0, 256 // step, (d, n), dtype=np.uint8) * np.uint8(step)
    signs = np.where((columns[1] > 100) ^ (columns[3] > 150) ^ (rng.random(n) < 0.1), 1, -1).astype(np.int8)
    weights = rng.random(n) + 0.01
    return columns, signs, weights / weights.sum()


def all_features(columns, depth):
    return np.tile(np.arange(len(columns), dtype=np.int32), (2**depth - 1, 1))


@pytest.mark.parametrize("n", [2, 3, 100, 255, 256, 257, 1000, 5000])
def test_bins_hold_equally_many_rows(rng, n):
    X = rng.normal(size=(n, 3))
    edges = bin_edges(X)
    columns = to_bytes(X, edges)
    assert edges.shape == (3, 255) and columns.shape == (3, n) and columns.dtype == np.uint8
    assert (np.diff(edges) >= 0).all()
    for column, values in zip(columns, X.T, strict=True):
        counts = np.unique(column, return_counts=True)[1]
        assert len(counts) == min(n, 256) and counts.max() - counts.min() <= 1
        assert (np.diff(column[np.argsort(values)].astype(int)) >= 0).all()


def test_bins_of_equal_values():
    constant, rare, two = np.full(1000, 7.0), np.repeat([0.0, 1.0, 5.0], [990, 5, 5]), np.arange(1000) // 500
    X = np.stack([constant, rare, two], axis=1)
    columns = to_bytes(X, bin_edges(X))
    assert [len(np.unique(column)) for column in columns] == [1, 3, 2]


def test_bytes_are_numbers_of_edges_below(rng):
    X = rng.normal(size=(400, 19))
    edges = bin_edges(X[:300])
    X[0] = edges[:, 77]  # an edge is not below itself
    X[1], X[2] = -1e300, 1e300
    expected = [np.searchsorted(edges[j], X[:, j], side="left") for j in range(19)]
    columns = to_bytes(X, edges)
    assert np.array_equal(columns, expected)
    assert set(columns[:, 1]) == {0} and set(columns[:, 2]) == {255}


@pytest.mark.parametrize("step", [1, 32])
def test_every_split_is_the_purest(rng, step):
    columns, signs, weights = made(rng, step=step)
    weights = np.full_like(weights, 1 / len(weights))  # none is trimmed
    candidates = np.array([[0, 2, 3], [1, 4, 2], [0, 1, 2]], np.int32)
    feature, threshold, leaf = grow(columns, signs, weights, candidates)
    right = columns[feature[0]] > threshold[0]
    rows_of = [np.ones(300, bool), ~right, right]
    for node, rows in enumerate(rows_of):
        assert feature[node] in candidates[node]
        side = columns[feature[node]] > threshold[node]
        own = [(signs[rows & part], weights[rows & part]) for part in (side, ~side)]
        expected = best_impurity(columns[:, rows], signs[rows], weights[rows], candidates[node])
        assert expected < impurity(signs[rows], weights[rows])
        np.testing.assert_allclose(sum(impurity(*part) for part in own), expected, rtol=1e-12)
        if node > 0:  # and its leaves say what most of their weight says
            for part, said in zip((~side, side), leaf[2 * node - 2 : 2 * node], strict=True):
                assert said == np.sign((signs * weights)[rows & part].sum())


def test_a_threshold_lies_halfway():
    columns = np.array([[10, 10, 60, 60]], np.uint8)
    signs = np.array([-1, -1, 1, 1], np.int8)
    feature, threshold, leaf = grow(columns, signs, np.full(4, 0.25), all_features(columns, 1))
    assert (feature[0], threshold[0], leaf.tolist()) == (0, 35, [-1, 1])


def test_pure_nodes_and_equal_rows_are_not_split(rng):
    columns = rng.integers(0, 256, (4, 50), dtype=np.uint8)
    for sign in (-1, 1):
        _, threshold, leaf = grow(columns, np.full(50, sign, np.int8), np.full(50, 0.02), all_features(columns, 3))
        assert set(threshold) == {NO_SPLIT} and set(leaf) == {sign}
    columns[:] = 9
    signs = np.where(np.arange(50) < 20, -1, 1).astype(np.int8)
    _, threshold, leaf = grow(columns, signs, np.full(50, 0.02), all_features(columns, 3))
    assert set(threshold) == {NO_SPLIT} and set(leaf) == {1}
    _, _, leaf = grow(columns, signs, np.where(np.arange(50) < 40, 0.025, 0.0), all_features(columns, 3))
    assert set(leaf) == {-1}  # a tie


def test_the_order_of_rows_does_not_matter(rng):
    columns, signs, weights = made(rng)
    order = rng.permutation(300)
    reordered = np.ascontiguousarray(columns[:, order])
    candidates = all_features(columns, 4)
    once = grow(columns, signs, weights, candidates)
    again = grow(reordered, signs[order], weights[order], candidates)
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))


def test_the_lightest_rows_are_trimmed():
    weights = np.array([0.3, 0.004, 0.35, 0.005, 0.341])
    assert heaviest(weights).tolist() == [0, 2, 4]
    assert heaviest(np.array([0.3, 0.006, 0.35, 0.005, 0.339])).tolist() == [0, 1, 2, 4]
    assert len(heaviest(np.full(1000, 0.001))) == 1000  # equals stay together
    columns = np.array([[0, 0, 1, 1, 2]], np.uint8)
    weights = np.array([0.25, 0.25, 0.25, 0.245, 0.005])
    signs = np.array([-1, -1, 1, 1, -1], np.int8)
    assert grow(columns, signs, weights, all_features(columns, 2))[2].tolist() == [-1, -1, 1, 1]


def test_boosting_lowers_the_exponential_loss(rng):
    columns, signs, weights = made(rng, n=400)
    trees = boost(columns, signs, weights, n_trees=40, depth=2, n_candidates=3, rng=rng)
    margin, losses = np.zeros(400), [1.0]
    for tree in zip(*trees, strict=True):
        said = np.array([walk(column, *tree[:3]) for column in columns.T])
        current = weights * np.exp(-margin)
        error = current[said != signs].sum() / current.sum()
        assert tree[3] == pytest.approx(weight_of_vote(error), abs=1e-9)
        margin += tree[3] * said * signs
        losses.append((weights * np.exp(-margin)).sum())
        # what AdaBoost promises
        assert losses[-1] == pytest.approx(losses[-2] * (2 * math.sqrt(error * (1 - error)) if error < 0.5 else 1))
    assert all(after <= before * (1 + 1e-12) for before, after in itertools.pairwise(losses))
    assert losses[-1] < 0.5 and weights[margin < 0].sum() < 0.1


def test_weight_of_vote():
    assert weight_of_vote(0.2) == pytest.approx(math.log(4) / 2)
    assert weight_of_vote(0) == pytest.approx(math.log(1e8))
    assert weight_of_vote(0.5) == weight_of_vote(0.7) == weight_of_vote(1) == 0


def test_weights_say_what_a_mistake_costs(rng):
    columns = np.zeros((1, 10), np.uint8)  # nothing to tell rows apart: the heavier side wins
    signs = np.where(np.arange(10) < 3, 1, -1)
    how = {"n_trees": 3, "depth": 1, "n_candidates": 1, "rng": rng}
    assert (votes(columns, boost(columns, signs, np.ones(10), **how)) < 0).all()
    assert (votes(columns, boost(columns, signs, np.where(signs > 0, 9.0, 1.0), **how)) > 0).all()
    assert (votes(columns, boost(columns, signs, np.where(signs > 0, 1.0, 0.0), **how)) > 0).all()
    assert (votes(columns, boost(columns, signs, np.zeros(10), **how)) < 0).all()  # all alike


def test_boosting_draws_candidates_for_each_node(rng):
    columns = np.repeat(rng.integers(0, 256, (1, 200), dtype=np.uint8), 30, axis=0)  # one feature is as good as another
    signs = np.where(rng.random(200) < 0.5, 1, -1)
    trees = boost(columns, signs, np.ones(200), n_trees=20, depth=3, n_candidates=1, rng=rng)
    split = trees.threshold != NO_SPLIT
    assert split.mean() > 0.7 and len(np.unique(trees.feature[split])) == 30
    assert any(len(np.unique(feature)) > 3 for feature in trees.feature)
    every = boost(columns, signs, np.ones(200), n_trees=20, depth=3, n_candidates=99, rng=rng)
    assert set(every.feature[every.threshold != NO_SPLIT]) == {0}  # of equals the first


def test_votes_are_those_of_a_walk_down_each_tree(rng):
    n_trees = 7
    for depth in (1, 2, 4, 5):
        trees = Trees(
            rng.integers(0, 6, (n_trees, 2**depth - 1)).astype(np.int32),
            rng.integers(0, 256, (n_trees, 2**depth - 1), dtype=np.uint8),
            rng.choice(np.array([-1, 1], np.int8), (n_trees, 2**depth)),
            rng.random(n_trees),
        )
        columns = rng.integers(0, 256, (6, 333), dtype=np.uint8)
        expected = [sum(vote * walk(column, *tree) for *tree, vote in zip(*trees, strict=True)) for column in columns.T]
        np.testing.assert_allclose(votes(columns, trees), expected, atol=1e-12)
        some = np.ascontiguousarray(columns[:, 100:103])
        assert np.array_equal(votes(some, trees), votes(columns, trees)[100:103])
