"""Deep Hashing: its objective against loops, its start, and what its weights do; the supervised variant's pairs."""

import numpy as np
import pytest
import torch
from slow_losses import BATCHES, differences
from torch import nn

from hashlens.data.labels import Labels, relevant
from hashlens.hashers.deep.deep_hashing import (
    DeepHashing,
    DeepHashingLoss,
    SupervisedDeepHashing,
    between_less_within,
    start,
)
from hashlens.hashers.deep.feature_network import dense_layers


def slow_objective(u, layers, lambda1, lambda2, lambda3, alpha, labels):
    h = np.tanh(u)
    total = sum(0.5 * (np.where(row > 0, 1, -1) - row) @ (np.where(row > 0, 1, -1) - row) for row in h) / len(h)
    total -= lambda1 / 2 * sum(row @ row for row in h) / len(h)
    if alpha:
        total -= lambda1 / 2 * alpha * slow_between_less_within(h, labels)
    for W, c in layers:
        total += lambda2 / 2 * np.linalg.norm(W @ W.T - np.eye(len(W))) ** 2
        total += lambda3 / 2 * (np.linalg.norm(W) ** 2 + c @ c)
    return total


def slow_between_less_within(h, labels):
    alike = relevant(Labels.of(labels), Labels.of(labels))
    pairs = {True: [], False: []}
    for i in range(len(h)):
        for j in range(len(h)):
            if i != j:
                pairs[bool(alike[i, j])].append((h[i] - h[j]) @ (h[i] - h[j]))
    return (np.mean(pairs[False]) if pairs[False] else 0) - (np.mean(pairs[True]) if pairs[True] else 0)


@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("name", BATCHES)
def test_against_loops(rng, name, alpha):
    labels = np.array(BATCHES[name])
    torch.manual_seed(0)
    network = dense_layers([6, 5, 4, 3], nn.Tanh).double()
    loss = DeepHashingLoss(network, 30.0, 0.2, 0.3, alpha)
    layers = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in loss.layers]
    u = rng.normal(size=(len(labels), 3))
    x = torch.tensor(u, requires_grad=True)
    value = loss(x, labels)
    value.backward()
    rest = (layers, 30.0, 0.2, 0.3, alpha, labels)
    assert value.item() == pytest.approx(slow_objective(u, *rest), rel=1e-10)
    np.testing.assert_allclose(x.grad, differences(lambda z: slow_objective(z, *rest), u), rtol=1e-5, atol=1e-8)


def test_gradient_through_the_layers():
    torch.manual_seed(1)
    network = dense_layers([4, 3, 3, 2], nn.Tanh).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    labels = Labels.of(np.array([0, 1, 0, 1, 2, 2]))
    loss = DeepHashingLoss(network, 3.0, 0.2, 0.3, 1.0)
    value = loss(network(x), labels)
    gradients = torch.autograd.grad(value, list(network.parameters()))
    for parameter, gradient in zip(network.parameters(), gradients, strict=True):
        before = parameter.detach().clone()

        def at(values, parameter=parameter):
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(values))
                return loss(network(x), labels).item()

        np.testing.assert_allclose(gradient, differences(at, before.numpy().copy()), rtol=1e-5, atol=1e-7)
        parameter.data = before


def test_it_starts_with_principal_directions_and_identities(rng):
    x = torch.from_numpy((rng.normal(size=(300, 6)) * [9, 7, 5, 3, 2, 1]).astype(np.float32))
    x -= x.mean(0)
    network = dense_layers([6, 4, 3, 2], nn.Tanh)
    start(network, x)
    first, second, third = (layer.weight.detach().numpy() for layer in network if isinstance(layer, nn.Linear))
    np.testing.assert_allclose(np.abs(first), np.eye(4, 6), atol=0.15)
    np.testing.assert_allclose(first @ first.T, np.eye(4), atol=1e-5)
    assert np.array_equal(second, np.eye(3, 4)) and np.array_equal(third, np.eye(2, 3))


@pytest.mark.parametrize(
    ("n_bits", "widths"), [(12, [60, 30, 12]), (16, [60, 30, 16]), (24, [70, 40, 24]), (64, [100, 80, 64])]
)
def test_widths_are_the_papers(n_bits, widths):
    assert DeepHashing(n_bits)._widths == widths
    assert DeepHashing(200)._widths == [200, 200, 200]


def test_training_lowers_the_loss_by_the_sign(clusters):
    X, _ = clusters
    lost = []
    for epochs in (1, 60):
        h = np.tanh(DeepHashing(8, epochs=epochs).fit(X).project(X))
        lost.append(np.square(np.where(h > 0, 1, -1) - h).mean())
    assert lost[1] < 0.7 * lost[0]


def test_rows_are_more_orthogonal_with_a_larger_lambda2(clusters):
    X, _ = clusters

    def apart(lambda2):
        hasher = DeepHashing(8, lambda2=lambda2, epochs=60).fit(X)
        return sum(np.linalg.norm(W @ W.T - np.eye(len(W))) for W in (hasher.weight1_, hasher.weight2_))

    distances = [apart(lambda2) for lambda2 in (0.001, 1, 100)]
    assert distances[0] > distances[1] > distances[2]


def test_pairs_of_a_class_are_drawn_together(clusters):
    X, y = clusters
    apart = []
    for alpha in (0.0, 1.0, 5.0):
        h = torch.from_numpy(SupervisedDeepHashing(8, alpha=alpha, epochs=60).fit(X, y).project(X)).tanh()
        apart.append(between_less_within(h, torch.from_numpy(y)).item())
    assert apart[0] < apart[1] < apart[2]
    without = SupervisedDeepHashing(8, alpha=0.0, epochs=3).fit(X, y)  # the other method
    assert np.array_equal(without.project(X), DeepHashing(8, lambda1=1.0, lambda2=100.0, epochs=3).fit(X).project(X))
