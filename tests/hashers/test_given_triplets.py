"""DTSH from explicit triplets: the loss against a loop, and learning without labels."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hashlens import evaluate_codes
from hashlens.errors import DataError, UsageError
from hashlens.hashers.deep.dtsh import DTSH
from hashlens.hashers.deep.training import Training
from hashlens.hashers.deep.triplet_losses import DTSHTripletLoss

TRIPLETS = np.array([[0, 1, 2], [3, 4, 5], [5, 0, 1], [2, 4, 0], [4, 5, 3]])


def draw(y, rng, n=4_000):
    """Random triplets of labelled rows."""
    rows = rng.integers(0, len(y), (20 * n, 3))
    q, p, m = rows.T
    good = (y[q] == y[p]) & (y[q] != y[m]) & (q != p)
    return rows[good][:n]


def test_loss_against_a_loop(rng):
    loss = DTSHTripletLoss(4, TRIPLETS, 6, 2.0, 0.1 * 22_500).double()
    bank = torch.from_numpy(rng.normal(size=(6, 4)))
    loss.bank.copy_(bank)
    rows = np.array([5, 2])
    u = torch.tensor(rng.normal(size=(2, 4)), requires_grad=True)
    value = loss(u, rows=rows)
    outputs = [u[list(rows).index(i)] if i in rows else bank[i] for i in range(6)]
    gaps = [outputs[q] @ (outputs[p] - outputs[n]) / 2 - 2 for q, p, n in TRIPLETS]  # all have an image in the batch
    signs = torch.where(u > 0, 1.0, -1.0)
    expected = torch.stack([F.softplus(-gap) for gap in gaps]).mean() + 0.1 * (u - signs).square().sum(1).mean()
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    slopes = torch.autograd.grad(value, u)[0], torch.autograd.grad(expected, u)[0]
    torch.testing.assert_close(*slopes)
    assert loss.figures["active"] == pytest.approx(np.mean([gap.item() < 0 for gap in gaps]))
    torch.testing.assert_close(loss.bank[rows], u.detach())


def test_only_triplets_of_the_batch_that_were_seen_count(rng):
    loss = DTSHTripletLoss(4, TRIPLETS, 6, 1.0, 0.0)
    u = torch.tensor(rng.normal(size=(2, 4)), requires_grad=True)
    value = loss(u, rows=np.array([0, 1]))  # the third image of every triplet was not seen yet
    assert value.item() == 0 and loss.figures == {"active": 0.0}
    loss.bank.copy_(torch.from_numpy(rng.normal(size=(6, 4))))
    loss.bank[2] = torch.nan
    value = loss(u, rows=np.array([0, 1]))
    q, p, n = (loss.bank[i] for i in (5, 0, 1))
    assert value.item() == pytest.approx(F.softplus(1 - q @ (p - n) / 2).item(), rel=1e-5)


def test_triplets_per_step_are_limited(rng, monkeypatch):
    monkeypatch.setattr(DTSHTripletLoss, "MOST", 3)
    loss = DTSHTripletLoss(4, TRIPLETS, 6, 1.0, 0.0)
    loss.bank.zero_()
    u = torch.zeros(6, 4)
    assert loss(u, rows=np.arange(6)).item() == pytest.approx(np.log1p(np.exp(1)), rel=1e-6)


def test_learning_without_labels(clusters, rng):
    X, y = clusters
    training = Training(epochs=15, batch_size=50, head_lr=0.05)
    by_triplets = DTSH(12, training=training).fit(X, triplets=draw(y, rng)).encode(X)
    by_labels = DTSH(12, sampling="in-batch", training=training).fit(X, y).encode(X)
    maps = [evaluate_codes(c[:50], c[50:], y[:50], y[50:])["map"] for c in (by_triplets, by_labels)]
    assert maps[0] > 0.8 and maps[0] > maps[1] - 0.05


def test_stopped_and_resumed_is_the_same_run(clusters, rng, tmp_path):
    from hashlens.hashers.deep.training import Stopped

    X, y = clusters
    triplets = draw(y, rng)
    make = lambda: DTSH(8, training=Training(epochs=3, batch_size=50))  # noqa: E731
    whole = make().fit(X, triplets=triplets, run=tmp_path / "whole").project(X)
    asked = iter([False] * 5 + [True] * 10)
    with pytest.raises(Stopped):
        make().fit(X, triplets=triplets, run=tmp_path / "parts", stop=lambda: next(asked))
    assert np.array_equal(make().fit(X, triplets=triplets, run=tmp_path / "parts").project(X), whole)


def test_other_triplets_are_another_run(clusters, rng, tmp_path):
    from hashlens.errors import MismatchError
    from hashlens.hashers.deep.training import Stopped

    X, y = clusters
    triplets = draw(y, rng)
    hasher = DTSH(8, training=Training(epochs=3, batch_size=50))
    with pytest.raises(Stopped):
        hasher.fit(X, triplets=triplets, run=tmp_path, stop=lambda: True)
    with pytest.raises(MismatchError, match="data was"):
        hasher.fit(X, triplets=triplets[1:], run=tmp_path)


def test_bad_input(clusters):
    X, y = clusters
    with pytest.raises(UsageError, match="either labels or triplets, not both"):
        DTSH(8).fit(X, y, triplets=[[0, 1, 2]])
    with pytest.raises(DataError, match="outside rows 0 to 199"):
        DTSH(8).fit(X, triplets=[[0, 1, 200]])
    with pytest.raises(UsageError, match="n_bits must be"):
        DTSH(0).fit(X, triplets=[[0, 1, 2]])
