"""NINH: its margin in bits, the threshold, and what each bit sees."""

import numpy as np
import pytest
import torch
from slow_losses import value_and_gradient

from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.hashers.deep.ninh import NINH, NINHLoss, piecewise_threshold
from hashlens.hashers.deep.training import Training


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_a_bit_apart_is_enough():
    """Saturated values: a unit of the squared distance is a bit, and the margin is one."""
    near, far = np.array([30.0, 30, 30, 30]), np.array([-30.0, -30, 30, 30])
    labels = Labels.of([0, 0, 1, 1])
    for margin, expected in ((1.0, 0.0), (2.0, 0.0), (2.5, 0.5)):  # the classes are two bits apart
        u = np.array([near, near, far, far])
        value, gradient, _ = value_and_gradient(NINHLoss(4, margin), u, labels)
        assert value == pytest.approx(expected, abs=1e-9) and np.abs(gradient).max() < 1e-9


def test_the_threshold():
    s = torch.linspace(0, 1, 1001, dtype=torch.float64, requires_grad=True)
    g = piecewise_threshold(s, 0.1)
    assert (g.diff() >= 0).all()
    ends = torch.tensor([0.0, 1.0])
    assert torch.equal(piecewise_threshold(ends, 0.1), ends)
    assert set(g[(s - 0.5).abs() > 0.101].tolist()) == {0.0, 1.0}
    middle = (s - 0.5).abs() < 0.099
    assert torch.equal(g[middle], s[middle])
    (slope,) = torch.autograd.grad(g.sum(), s)
    assert slope[middle].eq(1).all() and not slope[(s - 0.5).abs() > 0.101].any()
    assert torch.equal(piecewise_threshold(s, 0.5), s)


def test_a_bit_of_the_network_sees_values_of_its_own(clusters):
    X, y = clusters
    hasher = NINH(4, training=Training(epochs=1)).fit(X, y)
    first, relu, last = hasher.network_[-1]
    values = relu(first(torch.tensor(X[:1], dtype=torch.float32))).detach().requires_grad_()
    for bit in range(4):
        (slope,) = torch.autograd.grad(last(values)[0, bit], values)
        assert set(slope[0].nonzero().flatten().tolist()) == set(range(50 * bit, 50 * bit + 50))


def test_it_learns(clusters):
    X, y = clusters
    hasher = NINH(16, training=Training(epochs=20, batch_size=40, head_lr=0.02)).fit(X[50:], y[50:])
    codes = hasher.encode(X)
    assert np.array_equal(codes.signs() == 1, sigmoid(hasher.project(X)) > 0.5)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.85
