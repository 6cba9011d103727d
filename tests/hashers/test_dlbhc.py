"""DLBHC: the cross-entropy above a sigmoid layer against slow loops, and that the codes are its units."""

import math

import numpy as np
import pytest
import torch
from slow_losses import BATCHES, differences, value_and_gradient

from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.hashers.deep.dlbhc import DLBHC, LatentClassifier
from hashlens.hashers.deep.training import Training

FAST = Training(epochs=20, batch_size=40, head_lr=0.05)


def slow_loss(u, weight, bias, labels):
    """The loss and the part of wrong decisions."""
    total, wrong = 0.0, []
    for k in range(len(u)):
        scores = weight @ (1 / (1 + np.exp(-u[k]))) + bias
        if np.ndim(labels[k]) == 0:
            total += math.log(sum(math.exp(s) for s in scores)) - scores[labels[k]]
            wrong.append(max(range(len(scores)), key=lambda c, scores=scores: scores[c]) != labels[k])
        else:
            for s, truth in zip(scores, labels[k], strict=True):
                total += math.log1p(math.exp(-s if truth else s)) / len(scores)
                wrong.append((s > 0) != bool(truth))
    return total / len(u), np.mean(wrong)


def make_loss(labels, n_bits, rng):
    loss = LatentClassifier(n_bits, Labels.of(labels).n_classes, 0).double()
    loss.weight.data = torch.tensor(rng.normal(size=loss.weight.shape))
    loss.bias.data = torch.tensor(rng.normal(size=loss.bias.shape))
    return loss


@pytest.mark.parametrize("name", BATCHES)
def test_against_loops(rng, name):
    labels = np.array(BATCHES[name])
    loss, u = make_loss(labels, 5, rng), rng.normal(size=(len(labels), 5))
    weight, bias = loss.weight.detach().numpy(), loss.bias.detach().numpy()
    value, gradient, figures = value_and_gradient(loss, u, Labels.of(labels))
    expected, wrong = slow_loss(u, weight, bias, labels)
    assert value == pytest.approx(expected, rel=1e-12) and figures["active"] == pytest.approx(wrong, rel=1e-6)
    numbers = differences(lambda x: slow_loss(x, weight, bias, labels)[0], u)
    np.testing.assert_allclose(gradient, numbers, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", BATCHES)
def test_by_finite_differences(rng, name):
    labels = Labels.of(BATCHES[name])
    loss = make_loss(BATCHES[name], 3, rng)
    u = torch.tensor(rng.normal(size=(len(labels), 3)), requires_grad=True)

    def value(x, weight, bias):
        arguments = (x, labels, np.arange(len(labels)))
        return torch.func.functional_call(loss, {"weight": weight, "bias": bias}, arguments)[0]

    assert torch.autograd.gradcheck(value, (u, loss.weight, loss.bias))


@pytest.mark.parametrize("sets", [False, True])
def test_it_learns_to_classify(clusters, sets, tmp_path):
    X, y = clusters
    labels = np.eye(4, dtype=int)[y] if sets else y
    hasher = DLBHC(16, training=FAST).fit(X[50:], labels[50:])
    wrong = [row["active"] for row in hasher.history_]
    assert wrong[-1] < 0.1 and wrong[-1] < wrong[0] / 2
    codes = hasher.encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.8
    units = 1 / (1 + np.exp(-hasher.project(X)))
    assert ((units > 0) & (units < 1)).all() and np.array_equal(codes.signs() == 1, units > 0.5)
    assert set(hasher.network_.state_dict()) == {"0.weight", "0.bias"}  # the classifier is no part of the model


def test_the_classifier_is_trained_with_the_network(clusters, monkeypatch):
    made = []
    build = DLBHC._loss
    monkeypatch.setattr(DLBHC, "_loss", lambda self, labels: made.append(build(self, labels)) or made[-1])
    DLBHC(8, training=FAST).fit(*clusters)
    start = LatentClassifier(8, 4, 0)
    assert start.weight.std().item() == pytest.approx(0.01, rel=0.5) and not start.bias.any()
    assert (made[0].weight - start.weight).abs().max() > 0.1 and (made[0].bias - start.bias).abs().max() > 0.001


def test_the_classifier_starts_from_the_seed():
    first, again, other = (LatentClassifier(8, 4, seed).weight for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
