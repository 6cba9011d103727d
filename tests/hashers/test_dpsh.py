"""DPSH: the paper's gradient, the memory of outputs, and when it is used."""

import math

import numpy as np
import pytest
import torch
from slow_losses import BATCHES, value_and_gradient

from hashlens import evaluate_codes
from hashlens.hashers.deep.dpsh import DPSH, DPSHLoss
from hashlens.hashers.deep.training import Training


def filled_loss(labels, n_bits, rng, eta_bar=0.3):
    loss = DPSHLoss(n_bits, labels, eta_bar * len(labels), balance=False).double()
    loss.bank[:] = torch.tensor(rng.normal(size=(len(labels), n_bits)))
    return loss


def test_the_papers_gradient(rng):
    """Half the sum over the bank of (a - s) u_j, and that of the quantisation."""
    labels = np.array(BATCHES["unbalanced"])
    loss = filled_loss(labels, 5, rng)
    rows, u = np.array([5, 2]), rng.normal(size=(2, 5))
    _, gradient, _ = value_and_gradient(loss, u, labels[rows], rows)
    bank = loss.bank.numpy()
    for k, row in enumerate(rows):
        direction = np.zeros(5)
        for j in range(len(bank)):
            direction += (1 / (1 + math.exp(-(u[k] @ bank[j]) / 2)) - (labels[row] == labels[j])) * bank[j] / 2
        expected = direction / (2 * len(bank)) + 0.3 * 2 * (u[k] - np.sign(u[k])) / 2
        np.testing.assert_allclose(gradient[k], expected, rtol=1e-10)


def test_bank_is_zero_then_holds_the_latest_outputs(rng):
    labels = np.arange(20) % 4
    loss = DPSHLoss(3, labels, 0.0, 0.0).double()
    assert set(loss.state_dict()) == {"bank", "uses_bank"} and not loss.bank.any()
    expected = np.zeros((20, 3))
    for rows in (np.arange(8), np.arange(5, 13)):
        u = torch.tensor(rng.normal(size=(8, 3)), requires_grad=True)
        loss(u, labels[rows], rows)
        expected[rows] = u.detach()
        assert np.array_equal(loss.bank.numpy(), expected) and not loss.bank.requires_grad


def test_images_not_yet_seen_cost_log_2_and_have_no_gradient(rng):
    labels = np.arange(1000) % 4
    loss = DPSHLoss(3, labels, 0.0, balance=False).double()
    u = rng.normal(size=(1, 3))
    value, gradient, _ = value_and_gradient(loss, u, labels[:1], np.array([0]))
    theta = (u @ u.T).item() / 2
    assert value == pytest.approx((999 * math.log(2) + math.log1p(math.exp(theta)) - theta) / 1000, rel=1e-12)
    np.testing.assert_allclose(gradient, (1 / (1 + math.exp(-theta)) - 1) * u / 2 / 1000, rtol=1e-10)


def test_at_first_a_batch_is_paired_with_itself(rng):
    """As the loss without a memory, whose eta counts against the pairs of the batch and not of the training set."""
    labels, rows, u = np.arange(40) % 4, np.array([3, 8, 11, 20]), rng.normal(size=(4, 6))
    loss = DPSHLoss(6, labels, 12.0, memory_from=0.5).double()
    loss.begin_epoch(1, 4)
    first = value_and_gradient(loss, u, labels[rows], rows)
    alone = value_and_gradient(DPSHLoss(6, eta=12.0 * 4 / 40), u, labels[rows])
    assert first[0] == alone[0] and np.array_equal(first[1], alone[1])
    np.testing.assert_array_equal(loss.bank[rows], u)
    loss.begin_epoch(2, 4)
    assert value_and_gradient(loss, u, labels[rows], rows)[0] != pytest.approx(first[0]), "now with all that was seen"


def test_balanced_pairs_weigh_as_much_on_either_side(rng):
    labels, u = np.array([0, 0, 0, 1, 2, 2]), rng.normal(size=(6, 5))
    terms = {True: [], False: []}
    for i in range(6):
        for j in range(6):
            theta, same = u[i] @ u[j] / 2, bool(labels[i] == labels[j])
            terms[same].append(math.log1p(math.exp(theta)) - same * theta)
    value, *_ = value_and_gradient(DPSHLoss(5, eta=0.0), u, labels)
    assert value == pytest.approx((np.mean(terms[True]) + np.mean(terms[False])) / 2, rel=1e-10)


def test_the_hash_layer_learns_on_centred_features(clusters):
    X, y = clusters
    shifted = [DPSH(8, training=Training(epochs=1)).fit(X + far, y).encode(X + far).signs() for far in (0, 50)]
    assert (shifted[0] == shifted[1]).mean() > 0.95


def test_the_published_configuration():
    hasher = DPSH.published(24, 5000, weights="f.mat", training={"epochs": 3})
    training = hasher.training
    assert (training.lr, training.head_lr, training.weight_decay, training.optimizer) == (0.05, 0.05, 1e-5, "sgd")
    assert [training.rate(0, epoch) for epoch in (0, 49, 50, 149)] == pytest.approx([1, 1, 0.1, 0.01])
    assert (training.batch_size, training.last_batch, training.flip, training.epochs) == (128, "keep", False, 3)
    assert (hasher.backbone, hasher.weights, hasher.frozen_blocks, hasher.head) == ("cnn-f", "f.mat", 0, "linear")
    assert (hasher.eta, hasher.memory_from) == (10, 0) and DPSH.published(24, 5000).training.epochs == 150


def test_it_learns(clusters):
    X, y = clusters
    codes = DPSH(16, training=Training(epochs=20, batch_size=40, head_lr=0.05)).fit(X[50:], y[50:]).encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.85
