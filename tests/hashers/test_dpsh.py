"""DPSH: the pairwise likelihood and its gradient against slow loops, and the bank of remembered outputs."""

import math

import numpy as np
import pytest
import torch
from slow_losses import BATCHES, differences, n_shared, value_and_gradient

from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.errors import UsageError
from hashlens.hashers.deep.dpsh import DPSH, BankPairLikelihood
from hashlens.hashers.deep.training import Training


def slow_loss(u, rows, bank, labels, eta_bar):
    """`bank` already holds the outputs of the batch, and stays as it is whatever u."""
    total = 0.0
    for k, row in enumerate(rows):
        for j in range(len(bank)):
            theta = u[k] @ bank[j] / 2
            s = n_shared(labels[row], labels[j]) > 0
            total += max(theta, 0) + math.log1p(math.exp(-abs(theta))) - s * theta
    signs = np.where(u > 0, 1, -1)
    return total / (len(rows) * len(bank)) + eta_bar * ((u - signs) ** 2).sum() / len(rows)


def filled_loss(labels, n_bits, rng, eta_bar=0.3):
    loss = BankPairLikelihood(eta_bar, Labels.of(labels), n_bits).double()
    loss.bank[:] = torch.tensor(rng.normal(size=(len(labels), n_bits)))
    return loss


@pytest.mark.parametrize("name", BATCHES)
def test_against_loops(rng, name):
    labels = np.array(BATCHES[name])
    loss = filled_loss(labels, 4, rng)
    rows, u = np.array([3, 0, 1]), 2 * rng.normal(size=(3, 4))
    bank = loss.bank.numpy().copy()
    bank[rows] = u
    value, gradient, figures = value_and_gradient(loss, u, Labels.of(labels)[rows], rows)
    assert value == pytest.approx(slow_loss(u, rows, bank, labels, 0.3), rel=1e-12)
    numbers = differences(lambda x: slow_loss(x, rows, bank, labels, 0.3), u)
    np.testing.assert_allclose(gradient, numbers, rtol=1e-6, atol=1e-8)
    wrong = [
        (u[k] @ bank[j] > 0) != (n_shared(labels[row], labels[j]) > 0)
        for k, row in enumerate(rows)
        for j in range(len(bank))
    ]
    assert figures["active"] == pytest.approx(np.mean(wrong), rel=1e-6)


def test_the_papers_gradient(rng):
    """Half the sum over the bank of (a - s) u_j, and that of the quantisation."""
    labels = np.array(BATCHES["unbalanced"])
    loss = filled_loss(labels, 5, rng)
    rows, u = np.array([5, 2]), rng.normal(size=(2, 5))
    _, gradient, _ = value_and_gradient(loss, u, Labels.of(labels)[rows], rows)
    bank = loss.bank.numpy()
    for k, row in enumerate(rows):
        direction = np.zeros(5)
        for j in range(len(bank)):
            direction += (1 / (1 + math.exp(-(u[k] @ bank[j]) / 2)) - (labels[row] == labels[j])) * bank[j] / 2
        expected = direction / (2 * len(bank)) + 0.3 * 2 * (u[k] - np.sign(u[k])) / 2
        np.testing.assert_allclose(gradient[k], expected, rtol=1e-10)


def test_it_is_the_cross_entropy_of_theta(rng):
    labels = np.array(BATCHES["sets"])
    loss = filled_loss(labels, 6, rng, eta_bar=0.0)
    u = torch.tensor(rng.normal(size=(len(labels), 6)))
    value, _ = loss(u, Labels.of(labels), np.arange(len(labels)))
    same = torch.tensor([[float(n_shared(a, b) > 0) for b in labels] for a in labels], dtype=torch.float64)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(u @ u.T / 2, same)
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)


def test_bank_is_zero_then_holds_the_latest_outputs(rng):
    labels = np.arange(20) % 4
    loss = BankPairLikelihood(0.0, Labels.of(labels), 3).double()
    assert set(loss.state_dict()) == {"bank", "uses_bank"} and not loss.bank.any()
    expected = np.zeros((20, 3))
    for rows in (np.arange(8), np.arange(5, 13)):
        u = torch.tensor(rng.normal(size=(8, 3)), requires_grad=True)
        loss(u, Labels.of(labels)[rows], rows)
        expected[rows] = u.detach()
        assert np.array_equal(loss.bank.numpy(), expected) and not loss.bank.requires_grad


def test_pictures_not_yet_seen_cost_log_2_and_teach_nothing(rng):
    labels = np.arange(1000) % 4
    loss = BankPairLikelihood(0.0, Labels.of(labels), 3).double()
    u = rng.normal(size=(1, 3))
    value, gradient, _ = value_and_gradient(loss, u, Labels.of(labels)[:1], np.array([0]))
    theta = (u @ u.T).item() / 2
    assert value == pytest.approx((999 * math.log(2) + math.log1p(math.exp(theta)) - theta) / 1000, rel=1e-12)
    np.testing.assert_allclose(gradient, (1 / (1 + math.exp(-theta)) - 1) * u / 2 / 1000, rtol=1e-10)


@pytest.mark.parametrize("scale", [1e4, 1e-30, 0.0])
def test_extreme_outputs_stay_finite(rng, scale):
    labels = Labels.of([0, 0, 1, 1, 2])
    u = (scale * rng.choice([-1.0, 1.0], (5, 48))).astype(np.float32)
    value, gradient, _ = value_and_gradient(BankPairLikelihood(0.01, labels, 48), u, labels)
    assert math.isfinite(value) and np.isfinite(gradient).all()


def test_at_first_a_batch_is_paired_with_itself(rng):
    labels = Labels.of(np.arange(40) % 4)
    loss = BankPairLikelihood(0.3, labels, 6, memory_from=0.5).double()
    rows, u = np.array([3, 8, 11, 20]), torch.from_numpy(rng.normal(size=(4, 6))).requires_grad_()
    loss.begin_epoch(1, 4)
    value, _ = loss(u, labels[rows], rows)
    # as if there were no other pictures, but both of a pair learn
    assert value.item() == pytest.approx(slow_loss(u.detach().numpy(), np.arange(4), u.detach().numpy(), rows % 4, 0.3))
    value.backward()
    small = BankPairLikelihood(0.3, labels[rows], 6).double()
    again = u.detach().clone().requires_grad_()
    small(again, labels[rows], np.arange(4))[0].backward()
    pairs = again.grad - 0.3 * 2 * (again.detach() - again.detach().sign()) / 4
    torch.testing.assert_close(u.grad, again.grad + pairs)
    loss.begin_epoch(2, 4)
    assert loss(u, labels[rows], rows)[0].item() != pytest.approx(value.item()), "now with all that was seen"
    np.testing.assert_array_equal(loss.bank[rows], u.detach())


def test_the_part_without_memory_is_a_part():
    with pytest.raises(UsageError, match="from 0 to 1, not 2"):
        DPSH(12, memory_from=2)._loss(Labels.of(np.arange(9)))
    assert DPSH.published(12, 5000).memory_from == 0


def test_eta_is_counted_against_the_pairs_of_a_picture():
    assert DPSH(12)._loss(Labels.of(np.arange(5000) % 10)).eta_bar == pytest.approx(0.002)
    assert DPSH(12, eta=50)._loss(Labels.of(np.arange(100) % 10)).eta_bar == pytest.approx(0.5)


def test_the_published_configuration():
    hasher = DPSH.published(24, 5000, weights="f.mat", training={"epochs": 3})
    training = hasher.training
    assert (training.lr, training.head_lr, training.weight_decay, training.optimizer) == (0.05, 0.05, 1e-5, "sgd")
    assert [training.rate(0, epoch) for epoch in (0, 49, 50, 149)] == pytest.approx([1, 1, 0.1, 0.01])
    assert (training.batch_size, training.last_batch, training.flip, training.epochs) == (128, "keep", False, 3)
    assert (hasher.backbone, hasher.weights, hasher.frozen_blocks, hasher.head) == ("cnn-f", "f.mat", 0, "linear")
    assert hasher.eta == 10 and DPSH.published(24, 5000).training.epochs == 150


def test_it_learns(clusters):
    X, y = clusters
    codes = DPSH(16, training=Training(epochs=20, batch_size=40, head_lr=0.05)).fit(X[50:], y[50:]).encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.85
