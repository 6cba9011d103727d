"""MLH: exact inference, a bound above the loss and its gradient, and the pairs it learns from."""

import itertools

import numpy as np
import pytest

from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.hashers.shallow.mlh import MLH, Pairs, bound_gradient, most_violating, pair_losses, signs


def distances(g1, g2):
    return (g1 != g2).sum(1)


def augmented(u1, u2, g1, g2, losses):
    """What `most_violating` maximises, for n pairs."""
    return losses[np.arange(len(u1)), distances(g1, g2)] + (g1 * u1).sum(1) + (g2 * u2).sum(1)


def bounds(W, x1, x2, losses):
    u1, u2 = x1 @ W, x2 @ W
    best = augmented(u1, u2, *most_violating(u1, u2, losses), losses)
    return best - np.abs(u1).sum(1) - np.abs(u2).sum(1)


def test_losses_by_hand():
    far, near = pair_losses(4, 2, 1.0) * 3
    assert far.tolist() == [3, 2, 1, 0, 0] and near.tolist() == [0, 0, 1, 2, 3]
    far, near = pair_losses(4, 2, 9.0) * 3
    assert far.tolist() == [9, 6, 3, 0, 0] and near.tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 1])


@pytest.mark.parametrize("n_bits", [1, 2, 3, 4])
def test_inference_equals_brute_force(n_bits, rng):
    n = 200
    codes = np.array(list(itertools.product([-1.0, 1.0], repeat=n_bits)))
    u1, u2 = rng.normal(size=(2, n, n_bits))
    losses = np.where(
        rng.random((n, 1)) < 0.5,
        3 * pair_losses(n_bits, 1, 2.0)[rng.integers(2, size=n)],
        rng.normal(size=(n, n_bits + 1)),  # any function of the distance will do
    )
    found = augmented(u1, u2, *most_violating(u1, u2, losses), losses)
    best = np.full(n, -np.inf)
    for g1, g2 in itertools.product(codes, codes):
        best = np.maximum(best, augmented(u1, u2, np.tile(g1, (n, 1)), np.tile(g2, (n, 1)), losses))
    np.testing.assert_allclose(found, best, rtol=1e-12)


def test_inference_takes_no_and_all_bits_into_account(rng):
    u = 1e-3 * rng.normal(size=(50, 6))
    far, near = pair_losses(6, 3, 1.0)
    g1, g2 = most_violating(u, u[::-1], np.tile(far, (50, 1)))
    assert not distances(g1, g2).any()
    g1, g2 = most_violating(u, u[::-1], np.tile(near, (50, 1)))
    assert (distances(g1, g2) == 6).all()


@pytest.mark.parametrize("scale", [0.01, 0.1, 1])
def test_the_bound_is_never_below_the_loss(scale, rng):
    x1, x2 = rng.normal(size=(2, 500, 10))
    W = scale * rng.normal(size=(10, 12))
    losses = pair_losses(12, 3, 1.5)[rng.integers(2, size=500)]
    loss = losses[np.arange(500), distances(signs(x1 @ W), signs(x2 @ W))]
    difference = bounds(W, x1, x2, losses) - loss
    assert difference.min() >= -1e-9 and difference.max() > 1e-3


def test_gradient_by_finite_differences(rng):
    x1, x2 = rng.normal(size=(2, 40, 5))
    W = 0.1 * rng.normal(size=(5, 6))
    losses = pair_losses(6, 2, 1.0)[rng.integers(2, size=40)]
    gradient = bound_gradient(W, x1, x2, losses)
    assert np.abs(gradient).max() > 0.01
    for place in np.ndindex(*W.shape):
        step = np.zeros_like(W)
        step[place] = 1e-7  # small: the bound is made of planes
        slope = (bounds(W + step, x1, x2, losses) - bounds(W - step, x1, x2, losses)).mean() / 2e-7
        assert slope == pytest.approx(gradient[place], abs=1e-6)


def test_fitting_lowers_the_bound_and_the_loss(clusters):
    X, y = clusters
    Z = X - X.mean(0)
    Z /= np.linalg.norm(Z, axis=1).mean()
    i, j = np.triu_indices(200, 1)
    losses = pair_losses(12, 3, 1.0)[(y[i] == y[j]).astype(int)]
    results = []
    for epochs in (0, 10):
        W = MLH(12, rho=0.25, lambda_=1.0, n_epochs=epochs).fit(X, y).projection_
        codes = signs(Z @ W)
        loss = losses[np.arange(len(i)), distances(codes[i], codes[j])].mean()
        results.append((bounds(W, Z[i], Z[j], losses).mean(), loss))
    (bound_before, loss_before), (bound_after, loss_after) = results
    assert bound_after < 0.7 * bound_before and loss_after < 0.7 * loss_before


def test_pairs_are_half_similar_and_all_are_drawn():
    y = np.array([0] * 3 + [1] * 6 + [2])  # the last class has no pair
    first, second, similar = Pairs(Labels.of(y)).draw(20_000, np.random.default_rng(0))
    assert np.array_equal(similar, y[first] == y[second]) and (first != second).all()
    assert similar.sum() == 10_000
    seen = set(zip(first.tolist(), second.tolist(), strict=True))
    assert seen == {(i, j) for i in range(10) for j in range(10) if i != j}


def test_pairs_of_label_sets(rng):
    sets = rng.random((30, 6)) < 0.2
    first, second, similar = Pairs(Labels.of(sets.astype(int))).draw(5_000, rng)
    assert np.array_equal(similar, (sets[first] & sets[second]).any(1)) and (first != second).all()
    assert similar.sum() == 2_500


def test_pairs_where_all_rows_have_a_label_in_common():
    sets = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]])  # any two do, though no label is everybody's
    first, second, similar = Pairs(Labels.of(sets)).draw(100, np.random.default_rng(0))
    assert similar.all() and (first != second).all()


def test_scale_of_the_features_does_not_matter(clusters):
    X, y = clusters
    assert MLH(12).fit(X, y).encode(X).equals(MLH(12).fit(64 * X, y).encode(64 * X))


def test_more_bits_than_features(clusters):
    X, y = clusters
    codes = MLH(40).fit(X, y).encode(X)
    assert len(np.unique(codes.signs(), axis=1).T) > 30  # bits are not copies of each other


def test_few_rows_repeated_rows_and_constant_columns(clusters):
    X, y = clusters
    for rows in (np.arange(6), np.repeat(np.arange(6), 30)):
        hasher = MLH(24, n_epochs=2).fit(X[rows], y[rows])
        assert np.isfinite(hasher.projection_).all() and hasher.encode(X).n_bits == 24
    wide = np.hstack([X, np.full((200, 1), 3.0)])
    assert np.isfinite(MLH(12, n_epochs=2).fit(wide, y).projection_).all()


def test_label_sets_that_overlap(clusters):
    X, y = clusters
    sets = np.zeros((200, 5), int)
    sets[np.arange(200), y] = 1
    sets[:, 4] = y < 2
    codes = MLH(16).fit(X, sets).encode(X)
    assert evaluate_codes(codes, codes, sets, sets)["map_tie_aware"] > 0.7
