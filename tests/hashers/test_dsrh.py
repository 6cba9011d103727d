"""DSRH: ranking by the number of shared labels, and the balance of bits."""

import numpy as np
import pytest
from slow_losses import BATCHES, value_and_gradient

from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.hashers.deep.dsrh import DSRH, DSRHLoss
from hashlens.hashers.deep.training import Training


def test_a_list_in_order_costs_nothing():
    """Codes of 0, 1 and 3 differing bits for 2, 1 and 0 shared labels: gaps of one bit and more."""
    labels = Labels.of([[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 1]])
    signs = np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, -1], [-1, -1, -1, 1]])
    assert value_and_gradient(DSRHLoss(4, 1.0, 0.0), 60.0 * signs, labels)[0] == pytest.approx(0, abs=1e-12)
    swapped = 60.0 * signs[[0, 2, 1, 3]]  # the image with one label is now nearer than that with two
    assert value_and_gradient(DSRHLoss(4, 1.0, 0.0), swapped, labels)[0] > 0.1
    assert value_and_gradient(DSRHLoss(4, 1.5, 0.0), 60.0 * signs, labels)[0] > 0.01


def test_one_label_per_image_is_a_plain_triplet_hinge(rng):
    y = np.array(BATCHES["unbalanced"])
    u = rng.normal(size=(len(y), 4))
    one = value_and_gradient(DSRHLoss(4, 1.0, 0.0), u, Labels.of(y))
    sets = value_and_gradient(DSRHLoss(4, 1.0, 0.0), u, Labels.of(np.eye(3, dtype=int)[y]))
    assert one[0] == sets[0] and np.array_equal(one[1], sets[1])


def test_balance():
    labels = Labels.of([0, 1])
    value, _, _ = value_and_gradient(DSRHLoss(3, 1.0, 3.0), np.array([[50.0, 50, -50], [50, -50, -50]]), labels)
    assert value == pytest.approx(3 / 2 * 2, rel=1e-9)  # two of three bits are the same for all images


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
