"""NINH: the triplet hinge and its gradient against slow loops, the threshold, and what a bit sees."""

import numpy as np
import pytest
import torch
from slow_losses import BATCHES, WITHOUT_TRIPLETS, triplets_of, value_and_gradient

from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.errors import UsageError
from hashlens.hashers.deep.ninh import NINH, TripletHinge, piecewise_threshold
from hashlens.hashers.deep.training import Training


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def slow_hinge(values, labels, margin):
    """The loss, its gradient in the values, and the part of triplets that are active."""
    triplets, total, active = triplets_of(labels), 0.0, []
    gradient = np.zeros_like(values)
    for q, pairs in triplets.items():
        share_of_one = 1 / (len(triplets) * len(pairs))
        for p, n in pairs:
            hinge = margin + ((values[q] - values[p]) ** 2).sum() - ((values[q] - values[n]) ** 2).sum()
            active.append(hinge > 0)
            if hinge > 0:
                total += share_of_one * hinge
                gradient[q] += share_of_one * 2 * (values[n] - values[p])
                gradient[p] += share_of_one * 2 * (values[p] - values[q])
                gradient[n] += share_of_one * 2 * (values[q] - values[n])
    return total, gradient, np.mean(active)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize(("beta", "epsilon"), [(1.0, 0.5), (3.0, 0.2)])
def test_against_loops(rng, name, beta, epsilon):
    labels = np.array(BATCHES[name])
    u = rng.normal(size=(len(labels), 5))
    value, gradient, figures = value_and_gradient(TripletHinge(1.0, beta, epsilon), u, Labels.of(labels))
    s = sigmoid(beta * u)
    values = np.where(s < 0.5 - epsilon, 0.0, np.where(s > 0.5 + epsilon, 1.0, s))
    expected, slope, active = slow_hinge(values, labels, 1.0)
    assert value == pytest.approx(expected, rel=1e-12) and value > 0
    inside = np.abs(s - 0.5) <= epsilon
    assert inside.all() == (epsilon == 0.5)
    np.testing.assert_allclose(gradient, slope * inside * beta * s * (1 - s), rtol=1e-9, atol=1e-14)
    assert figures["active"] == pytest.approx(active, rel=1e-6)


@pytest.mark.parametrize("name", BATCHES)
def test_by_finite_differences(rng, name):
    labels = Labels.of(BATCHES[name])
    u = torch.tensor(rng.normal(size=(len(labels), 3)), requires_grad=True)
    for epsilon in (0.5, 0.1):
        loss = TripletHinge(1.0, 1.0, epsilon)
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, labels, np.arange(len(labels)))[0], u)


@pytest.mark.parametrize("labels", WITHOUT_TRIPLETS)
def test_a_batch_without_triplets_teaches_nothing(rng, labels):
    value, gradient, figures = value_and_gradient(
        TripletHinge(1.0, 1.0, 0.5), rng.normal(size=(len(labels), 4)), Labels.of(labels)
    )
    assert value == 0 and not gradient.any() and figures == {"active": 0}


def test_a_bit_apart_is_enough():
    """Saturated values: a unit of the squared distance is a bit, and the margin is one."""
    near, far = np.array([30.0, 30, 30, 30]), np.array([-30.0, -30, 30, 30])
    labels = Labels.of([0, 0, 1, 1])
    for margin, expected in ((1.0, 0.0), (2.0, 0.0), (2.5, 0.5)):  # the classes are two bits apart
        u = np.array([near, near, far, far])
        value, gradient, _ = value_and_gradient(TripletHinge(margin, 1.0, 0.5), u, labels)
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


@pytest.mark.parametrize("epsilon", [0, -0.1, 0.6])
def test_wrong_epsilon(clusters, epsilon):
    with pytest.raises(UsageError, match=f"epsilon must be above 0 and at most 0.5, not {epsilon}"):
        NINH(4, epsilon=epsilon).fit(*clusters)
