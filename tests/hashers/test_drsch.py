"""DSCH and DRSCH: hinge and Laplacian against slow loops, weights of bits, the slope, and shorter codes."""

import json

import numpy as np
import pytest
import torch
from slow_losses import BATCHES, WITHOUT_TRIPLETS, n_shared, triplets_of, value_and_gradient

import hashlens
from hashlens import evaluate_codes
from hashlens.data.labels import Labels
from hashlens.errors import UsageError
from hashlens.hashers.deep.drsch import DRSCH, DSCH, SimilarityComparison
from hashlens.hashers.deep.heads import HEADS
from hashlens.hashers.deep.training import Training

FAST = Training(epochs=20, batch_size=40, head_lr=0.05)


def make_loss(n_bits=5, threshold=-2.0, slope=1.7, lambda_bar=0.3, w=None):
    loss = SimilarityComparison(threshold, slope, 4.0, lambda_bar, n_bits).double()
    if w is not None:
        loss.w.data = torch.tensor(w)
    return loss


def rows_of(u, slope, w):
    return w * (2 / (1 + np.exp(-slope * u)) - 1)


def slow_loss(r, labels, threshold, lambda_bar):
    """The loss and its gradient in the weighted rows r."""
    n, triplets, total, gradient = len(r), triplets_of(labels), 0.0, np.zeros_like(r)
    for q, pairs in triplets.items():
        share_of_one = 1 / (len(triplets) * len(pairs))
        for p, k in pairs:
            difference = ((r[q] - r[p]) ** 2).sum() - ((r[q] - r[k]) ** 2).sum()
            total += share_of_one * max(difference, threshold)
            if difference > threshold:
                gradient[q] += share_of_one * 2 * (r[k] - r[p])
                gradient[p] += share_of_one * 2 * (r[p] - r[q])
                gradient[k] += share_of_one * 2 * (r[q] - r[k])
    for i in range(n):
        for j in range(n):
            affinity = 1 if n_shared(labels[i], labels[j]) else 0.001
            total += lambda_bar * affinity * ((r[i] - r[j]) ** 2).sum() / n**2
            gradient[i] += lambda_bar * affinity * 4 * (r[i] - r[j]) / n**2
    return total, gradient


@pytest.mark.parametrize("name", BATCHES)
def test_against_loops(rng, name):
    labels = np.array(BATCHES[name])
    u, w = rng.normal(size=(len(labels), 5)), rng.uniform(-2, 2, 5)
    loss = make_loss(w=w)
    value, gradient, figures = value_and_gradient(loss, u, Labels.of(labels))
    r = rows_of(u, loss.slope.item(), w)
    expected, slope = slow_loss(r, labels, -2.0, 0.3)
    assert value == pytest.approx(expected, rel=1e-12)
    v = r / w
    np.testing.assert_allclose(gradient, slope * w * loss.slope.item() / 2 * (1 - v**2), rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(loss.w.grad, (slope * v).sum(0), rtol=1e-9, atol=1e-13)
    late = [
        ((r[q] - r[p]) ** 2).sum() - ((r[q] - r[n]) ** 2).sum() > -2
        for q, pairs in triplets_of(labels).items()
        for p, n in pairs
    ]
    assert figures["active"] == pytest.approx(np.mean(late), rel=1e-6)


@pytest.mark.parametrize("name", BATCHES)
def test_by_finite_differences(rng, name):
    labels = Labels.of(BATCHES[name])
    loss = make_loss(n_bits=3, w=rng.uniform(-2, 2, 3))
    u = torch.tensor(rng.normal(size=(len(labels), 3)), requires_grad=True)

    def value(x, w):
        return torch.func.functional_call(loss, {"w": w}, (x, labels, np.arange(len(labels))))[0]

    assert torch.autograd.gradcheck(value, (u, loss.w))


@pytest.mark.parametrize("labels", WITHOUT_TRIPLETS)
def test_a_batch_without_triplets_teaches_nothing(rng, labels):
    u = rng.normal(size=(len(labels), 5))
    _, gradient, figures = value_and_gradient(make_loss(lambda_bar=0.0), u, Labels.of(labels))
    assert not gradient.any() and figures == {"active": 0}


def test_the_regulariser_is_the_trace_of_the_laplacian(rng):
    """lambda weighs tr(R^T Lap R) / 100 of a batch of 100 pictures."""
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
    value, _, _ = value_and_gradient(make_loss(24, threshold=-1000.0, lambda_bar=0.0), 99 * signs, labels)
    q, p, n = signs
    gaps = [4 * (int((a != b).sum()) - int((a != n).sum())) for a, b in ((q, p), (p, q))]
    assert value == pytest.approx(np.mean(gaps), rel=1e-9)  # four for each bit


def test_the_slope_rises_with_the_epochs():
    loss = SimilarityComparison(-5.0, 5.0, 4.0, 0.0, 3)
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
    forward = SimilarityComparison.forward
    monkeypatch.setattr(
        SimilarityComparison, "forward", lambda self, *args: seen.append(self.slope.item()) or forward(self, *args)
    )
    DSCH(4, slope=3.0, growth=9.0, training=Training(epochs=3, batch_size=50)).fit(*clusters)
    np.testing.assert_allclose(seen, np.repeat([3.0, 9.0, 27.0], 4), rtol=1e-6)


@pytest.mark.parametrize("cls", [DSCH, DRSCH])
def test_it_learns(clusters, cls):
    X, y = clusters
    hasher = cls(16, training=FAST).fit(X[50:], y[50:])
    codes = hasher.encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.85
    assert hasher.bit_weights_.shape == (16,) and np.ptp(hasher.bit_weights_) > 0.01


@pytest.mark.parametrize("head", HEADS)
def test_shorter_codes_are_the_heaviest_bits(clusters, head, tmp_path):
    X, y = clusters
    hasher = DRSCH(16, head=head, training=FAST, random_state=3).fit(X, y)
    signs, weights = hasher.encode(X).signs(), hasher.bit_weights_.copy()
    order = sorted(range(16), key=lambda bit: -(weights[bit] ** 2))
    for n_bits in (1, 5, 16):
        shorter = hasher.truncate(n_bits)
        assert type(shorter) is DRSCH and shorter.n_bits == n_bits
        assert np.array_equal(shorter.encode(X).signs(), signs[:, order[:n_bits]])
        assert np.array_equal(shorter.bit_weights_, weights[order[:n_bits]])
        assert shorter.get_params() == hasher.get_params() | {"n_bits": n_bits}
    # it is a model like any other, and the longer one is as it was
    shorter = hasher.truncate(5)
    shorter.save(tmp_path)
    loaded = hashlens.load(tmp_path)
    assert loaded.encode(X).equals(shorter.encode(X)) and np.array_equal(loaded.bit_weights_, shorter.bit_weights_)
    assert loaded.truncate(2).encode(X).equals(hasher.truncate(2).encode(X))
    assert hasher.n_bits == 16 and np.array_equal(hasher.encode(X).signs(), signs)
    assert "bit_weights" not in json.loads((tmp_path / "config.json").read_text())


def test_shorter_codes_of_pictures():
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8)
    hasher = DSCH(6, backbone="small-cnn", image_size=8, training=Training(epochs=1, batch_size=8))
    hasher.fit(pixels, np.arange(24) % 3)
    order = np.argsort(-(hasher.bit_weights_**2), kind="stable")
    np.testing.assert_allclose(
        hasher.truncate(4).project(pixels), hasher.project(pixels)[:, order[:4]], rtol=1e-5, atol=1e-6
    )


def test_wrong_use(clusters):
    X, y = clusters
    with pytest.raises(UsageError, match="call fit first"):
        DSCH(8).truncate(4)
    hasher = DSCH(8, training=Training(epochs=1)).fit(X, y)
    for wrong in (0, 9, -1):
        with pytest.raises(UsageError, match=f"8 bits can be cut to 1 to 8 bits, not to {wrong}"):
            hasher.truncate(wrong)
    with pytest.raises(UsageError, match="threshold must be below 0, not 0"):
        DSCH(8, threshold=0.0).fit(X, y)
    with pytest.raises(UsageError, match="slope and growth must be above 0, not 0 and 2"):
        DRSCH(8, slope=0, growth=2).fit(X, y)
