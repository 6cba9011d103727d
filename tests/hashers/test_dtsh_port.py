"""The port of DTSH: each of its differences from the released code. Its loss is among those of test_losses.py."""

import numpy as np
import pytest
import torch

from hashlens.data.labels import Labels
from hashlens.hashers.deep.dtsh import DTSH
from hashlens.hashers.deep.dtsh_port import DIFFERENCES, DTSHPort, port_settings
from hashlens.hashers.deep.training import Training
from hashlens.hashers.deep.triplet_losses import DTSHBankLoss
from hashlens.hashers.methods import METHODS


def test_the_whole_product_acts_on_remembered_outputs_too():
    labels = Labels.of(np.arange(512) % 4)
    hasher = DTSHPort(8, product=1.0, alpha=0.0, lambda_=0.0)
    loss = hasher._loss(labels)
    assert isinstance(loss, DTSHBankLoss) and DTSH(8, sampling="published")._loss(labels).product == 0.5
    u = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    half = DTSHPort(8, alpha=0.0, lambda_=0.0)._loss(labels)
    rows = np.arange(64)
    for which in (loss, half):
        which.bank.normal_(generator=torch.Generator().manual_seed(1))
    twice = loss(u, labels[rows], rows)
    half.bank *= 2  # the same products
    assert twice.item() == pytest.approx(half(u, labels[rows], rows).item(), rel=1e-3)


def test_in_the_batch_it_has_the_differences():
    loss = DTSHPort(8, sampling="in-batch", product=1.0, own_positive=True)._loss(Labels.of([0, 1]))
    assert (loss.product, loss.own_positive) == (1.0, True)


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
    assert DTSHPort.name not in METHODS, "it is not a method"


def test_rmsprop_learns_and_resumes(tmp_path):
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
