"""The port of DTSH: its loss against a slow loop, and each difference of it from the released code."""

import math

import numpy as np
import pytest
import torch
from slow_losses import BATCHES, differences, n_shared, value_and_gradient

from hashlens.data.labels import Labels
from hashlens.hashers import METHODS
from hashlens.hashers.deep.dtsh import DTSH, BankTripletLikelihood, TripletLikelihood
from hashlens.hashers.deep.dtsh_port import DIFFERENCES, DTSHPort, PortLikelihood, port_settings
from hashlens.hashers.deep.training import Training


def slow_port(u, labels, alpha, lambda_bar, product, own_positive):
    """Loops over the queries, positives and negatives of a batch."""
    of_queries = []
    for q in range(len(u)):
        positives = [p for p in range(len(u)) if n_shared(labels[q], labels[p]) and (own_positive or p != q)]
        negatives = [n for n in range(len(u)) if not n_shared(labels[q], labels[n])]
        gaps = [product * (u[q] @ u[p] - u[q] @ u[n]) - alpha for p in positives for n in negatives]
        if gaps:
            of_queries.append(np.mean([math.log1p(math.exp(-t)) for t in gaps]))
    quantisation = np.mean([((row - np.where(row > 0, 1, -1)) ** 2).sum() for row in u])
    return (np.mean(of_queries) if of_queries else 0) + lambda_bar * quantisation


@pytest.mark.parametrize("own_positive", [False, True])
@pytest.mark.parametrize("name", BATCHES)
def test_loss_and_gradient_against_a_slow_loop(name, own_positive):
    labels = BATCHES[name]
    u = np.random.default_rng(1).normal(size=(len(labels), 4))
    loss = PortLikelihood(1.5, 0.3, 1.0, own_positive)
    value, gradient, _ = value_and_gradient(loss, u, Labels.of(labels))
    arguments = (labels, 1.5, 0.3, 1.0, own_positive)
    assert value == pytest.approx(slow_port(u, *arguments))
    np.testing.assert_allclose(gradient, differences(lambda x: slow_port(x, *arguments), u), atol=1e-6)


def test_without_differences_it_is_dtsh():
    labels = Labels.of(BATCHES["unbalanced"])
    u = np.random.default_rng(2).normal(size=(len(labels), 6)).astype(np.float32)
    port, dtsh = (
        value_and_gradient(loss, u, labels) for loss in (PortLikelihood(2, 0.1, 0.5, False), TripletLikelihood(2, 0.1))
    )
    assert port[0] == pytest.approx(dtsh[0], rel=1e-5) and port[2]["active"] == pytest.approx(dtsh[2]["active"])
    np.testing.assert_allclose(port[1], dtsh[1], atol=1e-6)


def test_the_whole_product_acts_on_remembered_outputs_too():
    labels = Labels.of(np.arange(512) % 4)
    hasher = DTSHPort(8, product=1.0, alpha=0.0, lambda_=0.0)
    loss = hasher._loss(labels)
    assert isinstance(loss, BankTripletLikelihood) and DTSH(8, sampling="published")._loss(labels).product == 0.5
    u = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    half = DTSHPort(8, alpha=0.0, lambda_=0.0)._loss(labels)
    rows = np.arange(64)
    for which in (loss, half):
        which.bank.normal_(generator=torch.Generator().manual_seed(1))
    twice = loss(u, labels[rows], rows)[0]
    half.bank *= 2  # the same products
    assert twice.item() == pytest.approx(half(u, labels[rows], rows)[0].item(), rel=1e-3)


def test_settings_of_each_difference():
    base = port_settings((), 32, 5_000)
    published = DTSH.published(32, 5_000)
    assert base == {"sampling": "published", "training": published.training}
    changes = {number: port_settings((number,), 32, 5_000) for number in DIFFERENCES}
    assert list(changes) == [1, 2, 3, 4, 5, 6]
    for number, keys in {1: ["product"], 2: ["alpha"], 3: ["lambda_"], 4: ["sampling"], 6: ["training"]}.items():
        assert [key for key in changes[number] if base.get(key) != changes[number][key]] == keys
    assert changes[5]["own_positive"] and changes[5]["sampling"] == "in-batch"
    assert changes[3]["lambda_"] / 22_500 * 32 == pytest.approx(1), "1 against the mean over bits"
    training = changes[6]["training"]
    assert (training.optimizer, training.lr, training.head_lr, training.epochs) == ("rmsprop", 1e-5, 1e-5, 150)
    assert training.rate(0.99, 140) == 1, "no steps of the rate"
    assert (published.training.epochs, port_settings((), 32, 5_000, 10)["training"].step_epochs) == (100, 2)


def test_all_six_train_and_encode():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    X = rng.normal(size=(300, 12)) + 3 * np.eye(12)[y]
    settings = port_settings((1, 2, 3, 4, 5, 6), 8, 300, 2)
    hasher = DTSHPort(8, **settings).fit(X, y)
    assert hasher.encode(X).n_bits == 8 and len(hasher.history_) == 3
    assert hasher.get_params()["product"] == 1.0
    assert DTSHPort.name not in METHODS, "no method of its own"


def test_rmsprop_learns_and_goes_on_where_it_was_stopped(tmp_path):
    from hashlens.errors import Stopped

    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    X = rng.normal(size=(90, 12)) + 3 * np.eye(12)[y]
    training = Training(epochs=4, optimizer="rmsprop", lr=1e-2, head_lr=1e-2, batch_size=30)
    whole = DTSH(8, training=training).fit(X, y)
    assert whole.history_[-1]["loss"] < whole.history_[0]["loss"]
    with pytest.raises(Stopped):
        DTSH(8, training=training).fit(X, y, run=tmp_path, stop=iter([False] * 4 + [True] * 99).__next__)
    again = DTSH(8, training=training).fit(X, y, run=tmp_path)
    np.testing.assert_array_equal(again.project(X), whole.project(X))
