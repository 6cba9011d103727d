"""DSRH: the weighted ranking hinge and its gradient against slow loops, and the balance of bits."""

import math

import numpy as np
import pytest
import torch
from slow_losses import BATCHES, WITHOUT_TRIPLETS, n_shared, value_and_gradient

from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.hashers.deep.dsrh import DSRH, SemanticRanking, ranking_gains
from hashlens.hashers.deep.training import Training

LISTS = BATCHES | {
    "levels": [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 1]],
    "all share": [[1, 1, 0], [1, 0, 0], [1, 1, 1]],
}


def weighted_pairs(labels):
    """{query: [(i, j, 2^r_i - 2^r_j), ...]} where i shares more labels with the query than j."""
    found = {}
    for q in range(len(labels)):
        for i in range(len(labels)):
            for j in range(len(labels)):
                weight = 2 ** n_shared(labels[q], labels[i]) - 2 ** n_shared(labels[q], labels[j])
                if len({q, i, j}) == 3 and weight > 0:
                    found.setdefault(q, []).append((i, j, weight))
    return found


def slow_loss(u, labels, rho, alpha):
    """The loss and its gradient in u."""
    h = 2 / (1 + np.exp(-u)) - 1
    n, n_bits = h.shape
    pairs = weighted_pairs(labels)
    total, gradient = alpha / 2 * (h.mean(0) ** 2).sum(), np.tile(alpha * h.mean(0) / n, (n, 1))
    for q, of_query in pairs.items():
        z = sum(weight for _, _, weight in of_query) * len(pairs)
        for i, j, weight in of_query:
            hinge = (n_bits - h[q] @ h[i]) / 2 - (n_bits - h[q] @ h[j]) / 2 + rho
            if hinge > 0:
                omega = weight / z
                total += omega * hinge
                gradient[q] += omega / 2 * (h[j] - h[i])
                gradient[i] -= omega / 2 * h[q]
                gradient[j] += omega / 2 * h[q]
    return total, gradient * (1 - h**2) / 2


@pytest.mark.parametrize("name", LISTS)
def test_against_loops(rng, name):
    labels = np.array(LISTS[name])
    u = 2 * rng.normal(size=(len(labels), 5))
    value, gradient, figures = value_and_gradient(SemanticRanking(1.5, 0.7), u, Labels.of(labels))
    expected, slope = slow_loss(u, labels, 1.5, 0.7)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, slope, rtol=1e-9, atol=1e-14)
    h = np.tanh(u / 2)
    active = [h[q] @ (h[j] - h[i]) / 2 + 1.5 > 0 for q, pairs in weighted_pairs(labels).items() for i, j, _ in pairs]
    assert figures["active"] == pytest.approx(np.mean(active), rel=1e-6)


@pytest.mark.parametrize("name", LISTS)
def test_by_finite_differences(rng, name):
    labels = Labels.of(LISTS[name])
    loss = SemanticRanking(1.0, 0.5)
    u = torch.tensor(rng.normal(size=(len(labels), 3)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels, np.arange(len(labels)))[0], u)


@pytest.mark.parametrize("labels", [*WITHOUT_TRIPLETS, [[1, 1], [1, 1], [1, 1]]])
def test_equal_relevance_weighs_nothing(rng, labels):
    u = rng.normal(size=(len(labels), 4))
    value, gradient, figures = value_and_gradient(SemanticRanking(1.0, 0.0), u, Labels.of(labels))
    assert value == 0 and not gradient.any() and figures == {"active": 0}


def test_a_list_in_order_costs_nothing():
    """Codes of 0, 1 and 3 differing bits for 2, 1 and 0 shared labels: gaps of one bit and more."""
    labels = Labels.of([[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 1]])
    signs = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, -1], [-1, -1, -1, 1]])
    assert value_and_gradient(SemanticRanking(1.0, 0.0), 60.0 * signs, labels)[0] == pytest.approx(0, abs=1e-12)
    swapped = 60.0 * signs[[0, 2, 1, 3]]  # the picture with one label now nearer than that with two
    assert value_and_gradient(SemanticRanking(1.0, 0.0), swapped, labels)[0] > 0.1
    assert value_and_gradient(SemanticRanking(1.5, 0.0), 60.0 * signs, labels)[0] > 0.01


def test_one_label_a_picture_is_a_plain_triplet_hinge(rng):
    y = np.array(BATCHES["unbalanced"])
    u = rng.normal(size=(len(y), 4))
    one = value_and_gradient(SemanticRanking(1.0, 0.0), u, Labels.of(y))
    sets = value_and_gradient(SemanticRanking(1.0, 0.0), u, Labels.of(np.eye(3, dtype=int)[y]))
    assert one[0] == sets[0] and np.array_equal(one[1], sets[1])
    assert {weight for pairs in weighted_pairs(y).values() for _, _, weight in pairs} == {1}


def test_hundreds_of_shared_labels_do_not_overflow(rng):
    sets = np.zeros((4, 2000), int)
    sets[:2] = 1
    sets[2, :1500] = 1
    sets[3, 0] = 1
    gains = ranking_gains(Labels.of(sets))
    assert np.isfinite(gains).all() and gains[0, 1] > gains[0, 2] >= gains[0, 3] >= 0
    value, gradient, _ = value_and_gradient(SemanticRanking(1.0, 1.0), rng.normal(size=(4, 3)), Labels.of(sets))
    assert math.isfinite(value) and np.isfinite(gradient).all()


def test_balance():
    labels = Labels.of([0, 1])
    value, _, _ = value_and_gradient(SemanticRanking(1.0, 3.0), np.array([[50.0, 50, -50], [50, -50, -50]]), labels)
    assert value == pytest.approx(3 / 2 * 2, rel=1e-9)  # two of three bits say the same of all pictures


def test_defaults():
    labels = Labels.of([0, 0, 1, 1])
    for hasher, expected in ((DSRH(32), (4, 0.1)), (DSRH(8, rho=0.0, alpha=0.5), (0, 0.5))):
        loss = hasher._loss(labels)
        assert (loss.rho, loss.alpha) == expected


def test_it_learns_levels(clusters):
    X, y = clusters
    hasher = DSRH(16, training=Training(epochs=20, batch_size=40, head_lr=0.05)).fit(X[50:], y[50:])
    codes = hasher.encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.85
    # classes 0 and 1 share a second label, and so do 2 and 3
    sets = np.concatenate([np.eye(4, dtype=int)[y], np.eye(2, dtype=int)[y // 2]], 1)
    signs = DSRH(16, training=hasher.training).fit(X, sets).encode(X).signs().astype(float)
    near = signs @ signs.T
    own, cousin, other = (
        near[same].mean()
        for same in (y[:, None] == y, (y[:, None] != y) & (y[:, None] // 2 == y // 2), y[:, None] // 2 != y // 2)
    )
    assert own > cousin + 2 and cousin > other + 2
