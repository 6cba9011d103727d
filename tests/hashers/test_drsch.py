"""DSCH and DRSCH: the Laplacian, weights of bits, and the slope."""

import numpy as np
import pytest
from slow_losses import value_and_gradient

import hashlens
from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.hashers.deep.drsch import DRSCH, DSCH, DSCHLoss
from hashlens.hashers.deep.training import Training

FAST = Training(epochs=20, batch_size=40, head_lr=0.05)


def rows_of(u, slope, w):
    return w * (2 / (1 + np.exp(-slope * u)) - 1)


def test_the_regulariser_is_the_trace_of_the_laplacian(rng):
    """lambda weighs tr(R^T Lap R) / 100 of a batch of 100 images."""
    y = np.arange(100) % 10
    labels, u = Labels.of(y), rng.normal(size=(100, 4))
    A = np.where(y[:, None] == y, 1, 0.001)
    R = rows_of(u, 1.0, np.ones(4))
    trace = np.trace(R.T @ (np.diag(A.sum(1)) - A) @ R)
    pairs = sum(A[i, j] * ((R[i] - R[j]) ** 2).sum() for i in range(100) for j in range(100)) / 2
    assert trace == pytest.approx(pairs, rel=1e-10)
    with_it, without = (
        value_and_gradient(method._loss(labels).double(), u, labels)[0] for method in (DRSCH(4, lambda_=0.02), DSCH(4))
    )
    assert with_it - without == pytest.approx(0.02 * trace / 100, rel=1e-6)
    none = value_and_gradient(DRSCH(4, lambda_=0)._loss(labels).double(), u, labels)[0]
    assert none == without


def test_weights_of_one_are_no_weights(rng):
    labels, signs = Labels.of([0, 0, 1]), rng.choice([-1.0, 1.0], (3, 24))
    value, _, _ = value_and_gradient(DSCHLoss(24, -1000.0).double(), 99 * signs, labels)
    q, p, n = signs
    gaps = [4 * (int((a != b).sum()) - int((a != n).sum())) for a, b in ((q, p), (p, q))]
    assert value == pytest.approx(np.mean(gaps), rel=1e-9)  # four for each bit


def test_the_slope_rises_with_the_epochs():
    loss = DSCHLoss(3, -5.0, 5.0)
    slopes = []
    for epoch in range(5):
        loss.begin_epoch(epoch, 5)
        slopes.append(loss.slope.item())
    np.testing.assert_allclose(slopes, [5, 5 * 4**0.25, 10, 5 * 4**0.75, 20], rtol=1e-6)
    loss.begin_epoch(0, 1)
    assert DSCH(12)._loss(Labels.of([0, 1])).threshold == -12 and DSCH(12)._loss(Labels.of([0, 1])).first_slope == 1
    assert loss.slope == 5 and set(loss.state_dict()) == {"w", "slope"}


def test_training_raises_the_slope(clusters, monkeypatch):
    seen = []
    forward = DSCHLoss.forward
    monkeypatch.setattr(DSCHLoss, "forward", lambda self, *args: seen.append(self.slope.item()) or forward(self, *args))
    DSCH(4, slope=3.0, growth=9.0, training=Training(epochs=3, batch_size=50)).fit(*clusters)
    np.testing.assert_allclose(seen, np.repeat([3.0, 9.0, 27.0], 4), rtol=1e-6)


@pytest.mark.parametrize("cls", [DSCH, DRSCH])
def test_it_learns(clusters, cls, tmp_path):
    X, y = clusters
    hasher = cls(16, training=FAST).fit(X[50:], y[50:])
    codes = hasher.encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.85
    assert hasher.bit_weights_.shape == (16,) and np.ptp(hasher.bit_weights_) > 0.01
    hasher.save(tmp_path)
    loaded = hashlens.load(tmp_path)
    assert loaded.encode(X).equals(codes) and np.array_equal(loaded.bit_weights_, hasher.bit_weights_)
