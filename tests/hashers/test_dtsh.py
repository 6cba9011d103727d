"""DTSH: properties of its likelihood, and the authors' released update against slow loops."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from slow_losses import n_shared, triplets_of, value_and_gradient

from hashlens import ITQ
from hashlens.data.labels import Labels
from hashlens.errors import DataError, UsageError
from hashlens.hashers.deep import triplet_losses
from hashlens.hashers.deep.dtsh import DTSH
from hashlens.hashers.deep.likelihood import triplet_nll
from hashlens.hashers.deep.training import Training
from hashlens.hashers.deep.triplet_losses import DTSHBankLoss, DTSHLoss, draw_from_bank


def test_all_triplets_at_zero_cost_log_2():
    labels = Labels.of([0, 0, 1, 1])
    value, _, _ = value_and_gradient(DTSHLoss(6, 0.0, 0.0), np.ones((4, 6)), labels)
    assert value == pytest.approx(math.log(2), rel=1e-12)


def nll_of(theta, same, alpha):
    return triplet_nll(theta, same & ~torch.eye(len(theta), dtype=torch.bool), ~same, alpha)


def test_one_triplet_as_a_function_of_its_gap():
    same = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])

    def nll(gap):
        theta = torch.zeros(3, 3, dtype=torch.float64)
        theta[0, 1] = theta[1, 0] = gap
        return nll_of(theta, same, 0.0)[0].item()

    gaps = np.linspace(-30, 30, 61)
    values = [nll(gap) for gap in gaps]
    assert all(a > b for a, b in pairwise(values))
    for gap in gaps:  # softplus(-T) + T = softplus(T)
        assert nll(gap) + gap == pytest.approx(nll(-gap), abs=1e-8)  # torch cuts its softplus off at 20


@pytest.mark.parametrize("scale", [1e-3, 1, 30, 1e3, 1e6])
def test_outputs_of_any_size(rng, scale):
    """Products of exponentials must neither overflow nor vanish; the reference is torch, a triplet at a time."""
    labels = rng.integers(0, 4, 40)
    same = torch.from_numpy(labels[:, None] == labels[None, :])
    theta = torch.tensor(scale * rng.normal(size=(40, 40)), requires_grad=True)
    value, active = nll_of(theta, same, 3.0)
    (slope,) = torch.autograd.grad(value, theta)
    triplets = triplets_of(labels)
    q, p, n = np.array([(q, p, n) for q, pairs in triplets.items() for p, n in pairs]).T
    weight = torch.tensor([1 / (len(triplets) * len(triplets[i])) for i in q], dtype=torch.float64)
    gap = theta[q, p] - theta[q, n] - 3
    expected = (torch.logaddexp(-gap, torch.zeros_like(gap)) * weight).sum()
    assert value.item() == pytest.approx(expected.item(), rel=1e-9)
    np.testing.assert_allclose(slope, torch.autograd.grad(expected, theta)[0], rtol=1e-9, atol=1e-15)
    assert active == pytest.approx((gap < 0).double().mean().item())


def test_outputs_that_are_not_numbers_are_not_hidden():
    same = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    for wrong in (math.nan, math.inf):
        theta = torch.zeros(3, 3)
        theta[0, 2] = wrong
        assert not math.isfinite(nll_of(theta, same, 1.0)[0].item())


def test_a_unit_of_theta_is_a_bit(rng):
    signs = rng.choice([-1.0, 1.0], (3, 24))
    q, p, n = signs
    difference_in_bits = (q != n).sum() - (q != p).sum()
    for alpha in (0.0, 5.0):
        value, _, _ = value_and_gradient(DTSHLoss(24, alpha), signs, Labels.of([0, 0, 1]))
        other = (p != n).sum() - (q != p).sum()  # the second query of this batch is p
        expected = [math.log1p(math.exp(-(bits - alpha))) for bits in (difference_in_bits, other)]
        assert value == pytest.approx(np.mean(expected), rel=1e-12)  # and signs have no quantisation error


def test_an_image_is_not_its_own_positive():
    """Two queries of class 0 with theirs far apart: were u . u a positive, the first loss would be near zero."""
    u = np.array([[9.0, 0.0], [-9.0, 0.0], [0.0, 9.0]])
    value, _, _ = value_and_gradient(DTSHLoss(2, 0.0, 0.0), u, Labels.of([0, 0, 1]))
    assert value == pytest.approx(math.log1p(math.exp(40.5)), rel=1e-12)
    assert value_and_gradient(DTSHLoss(2, 0.0, 0.0), u[1:], Labels.of([0, 1]))[0] == 0


def test_defaults_are_the_papers():
    labels = Labels.of([0, 0, 1, 1])
    for n_bits in (12, 24, 32, 48):
        loss = DTSH(n_bits, sampling="in-batch")._loss(labels)
        assert type(loss) is DTSHLoss
        assert loss.alpha == n_bits / 2
        assert loss.lambda_bar == pytest.approx(1 / 225, rel=1e-12)
    assert DTSH(12, alpha=3.0)._loss(labels).alpha == 3 and DTSH(12, alpha=0)._loss(labels).alpha == 0
    assert DTSH(12, lambda_=0)._loss(labels).lambda_bar == 0
    published = DTSH(12, sampling="published", random_state=7)._loss(Labels.of([0, 1] * 100))
    assert (published.alpha, published.lambda_bar, published.random_state) == (6, 100 / 22500, 7)
    assert published.bank.shape == (200, 12)


# The authors' released code: a bank of remembered outputs, and triplets drawn from it.


def ten_classes(rng, n=600):
    return rng.permutation(np.arange(n) % 10)


def bank_loss(labels, n_bits=4, batch_size=8, alpha=2.0, lambda_bar=100 / 22500, seed=5):
    return DTSHBankLoss(n_bits, labels, batch_size, alpha, lambda_bar * 22_500, seed).double()


def slow_direction(u_k, positives, negatives, bank, alpha, eta):
    """D_k = sum over the triplets of (1 - sigmoid(T)) (u_p - u_n), minus 4 eta (u_k - sign(u_k)); and their number."""
    direction, count = np.zeros_like(u_k), 0
    for group_p, group_n in zip(positives, negatives, strict=True):
        for p in group_p:
            t = (bank[p] - bank[group_n]) @ u_k / 2 - alpha  # with all negatives of the group
            direction += (1 - 1 / (1 + np.exp(-t))) @ (bank[p] - bank[group_n])
            count += len(group_n)
    return direction - 4 * eta * (u_k - np.sign(u_k)), count


def test_published_direction(rng):
    y = ten_classes(rng)
    loss = bank_loss(y)
    loss.bank[:] = torch.tensor(rng.normal(size=(600, 4)))
    rows, u = rng.permutation(600)[:8], rng.normal(size=(8, 4))
    value, gradient, figures = value_and_gradient(loss, u, Labels.of(y)[rows], rows)
    positives, negatives = draw_from_bank(Labels.of(y), rows, [5, 0])
    bank = loss.bank.numpy()
    total, late = 0.0, []
    for k in range(8):
        direction, count = slow_direction(u[k], positives[k], negatives[k], bank, 2.0, eta=100)
        assert count == 22500
        np.testing.assert_allclose(direction / 8, -2 * count * gradient[k], rtol=1e-9, atol=1e-9)
        for group_p, group_n in zip(positives[k], negatives[k], strict=True):
            t = np.array([[u[k] @ (bank[p] - bank[n]) / 2 - 2.0 for n in group_n] for p in group_p])
            total += np.log1p(np.exp(-t)).sum() / 22500
            late.append((t < 0).mean())
        total += 100 / 22500 * ((u[k] - np.sign(u[k])) ** 2).sum()
    assert value == pytest.approx(total / 8, rel=1e-9)
    assert figures["active"] == pytest.approx(np.mean(late), rel=1e-6)


def test_published_step_is_a_step_of_sgd(rng):
    """W <- W + lr (g / (batch N) - 5e-4 W) over three batches, the last of them short, on a linear model."""
    n, batch, lr, big_k = 600, 8, 5e-4, 22500
    y, X = ten_classes(rng), rng.normal(size=(600, 3))
    W = rng.normal(size=(4, 3))
    model = torch.nn.Linear(3, 4, bias=False).double()
    model.weight.data = torch.tensor(W)
    loss = bank_loss(y, batch_size=batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * 2 * big_k / n, weight_decay=5e-4 * n / (2 * big_k))
    bank = np.zeros((n, 4))
    order = rng.permutation(n)
    for step, rows in enumerate([order[:8], order[8:16], order[16:19]]):
        optimizer.zero_grad()
        loss(model(torch.tensor(X[rows])), y[rows], rows).backward()
        optimizer.step()
        # the authors' way
        u = X[rows] @ W.T
        bank[rows] = u
        positives, negatives = draw_from_bank(Labels.of(y), rows, [5, step])
        g = np.zeros_like(W)
        for k in range(len(rows)):
            g += np.outer(slow_direction(u[k], positives[k], negatives[k], bank, 2.0, 100)[0], X[rows[k]])
        W = W + lr * (g / (batch * n) - 5e-4 * W)
        np.testing.assert_allclose(model.weight.detach().numpy(), W, rtol=1e-10, atol=1e-13)


def test_published_gradient_by_finite_differences(rng):
    y = ten_classes(rng, 60)
    loss = bank_loss(y, n_bits=3, batch_size=2)
    loss.bank[:] = torch.tensor(rng.normal(size=(60, 3)))
    rows = np.array([4, 17])
    u = torch.tensor(rng.normal(size=(2, 3)), requires_grad=True)

    def value(x):
        loss.draws.zero_()  # the same triplets every time
        return loss(x, y[rows], rows)

    assert torch.autograd.gradcheck(value, u)


def test_bank_is_zero_then_holds_the_latest_outputs(rng, monkeypatch):
    y = ten_classes(rng)
    loss = bank_loss(y)
    assert np.array_equal(loss.bank.numpy(), np.zeros((600, 4)))
    at_draw = []

    def draw(labels, rows, seed):
        at_draw.append(loss.bank.clone())
        return draw_from_bank(labels, rows, seed)

    monkeypatch.setattr(triplet_losses, "draw_from_bank", draw)
    expected = np.zeros((600, 4))
    for rows in (np.arange(8), np.arange(5, 13)):
        u = torch.tensor(rng.normal(size=(8, 4)), requires_grad=True)
        loss(u, Labels.of(y)[rows], rows)
        expected[rows] = u.detach().numpy()
        assert np.array_equal(at_draw[-1].numpy(), expected)
        assert not loss.bank.requires_grad
    assert set(loss.state_dict()) == {"bank", "draws"} and int(loss.draws) == 2


def test_unvisited_images_add_nothing_but_their_quantisation(rng):
    y = ten_classes(rng)
    u = rng.normal(size=(8, 4))
    _, gradient, _ = value_and_gradient(bank_loss(y), u, Labels.of(y)[:8], np.arange(8))
    np.testing.assert_allclose(gradient, 2 * 100 / 22500 * (u - np.sign(u)) / 8, rtol=1e-12)


def test_a_short_last_batch_is_divided_by_the_nominal_size(rng):
    y = ten_classes(rng)
    u = rng.normal(size=(3, 4))
    values = [value_and_gradient(bank_loss(y, batch_size=size), u, Labels.of(y)[:3], np.arange(3)) for size in (3, 128)]
    assert values[0][0] == pytest.approx(values[1][0] * 128 / 3, rel=1e-12)
    np.testing.assert_allclose(values[0][1], values[1][1] * 128 / 3, rtol=1e-12)


def test_draws_of_ten_classes(rng):
    y = ten_classes(rng, 800)
    rows = rng.permutation(800)[:128]
    positives, negatives = draw_from_bank(Labels.of(y), rows, [0, 0])
    assert positives.shape == negatives.shape == (128, 9, 50)  # 50 x 50 pairs for each of nine classes: 22,500
    for q, row in enumerate(rows):
        assert (y[positives[q]] == y[row]).all()
        others = [set(y[group].tolist()) for group in negatives[q]]
        assert all(len(classes) == 1 for classes in others)
        assert set.union(*others) == set(range(10)) - {y[row]}
        for group in [*positives[q], *negatives[q]]:
            assert len(set(group.tolist())) == 50  # without replacement
        assert len({tuple(sorted(group)) for group in positives[q].tolist()}) == 9  # afresh for each class
    assert not np.isin(positives, rows).any() and not np.isin(negatives, rows).any()


def test_draws_depend_on_the_seed_alone(rng):
    labels, rows = Labels.of(ten_classes(rng)), np.arange(8)
    first = draw_from_bank(labels, rows, [1, 2])
    assert all(np.array_equal(a, b) for a, b in zip(first, draw_from_bank(labels, rows, [1, 2]), strict=True))
    for seed in ([1, 3], [2, 2]):
        assert not np.array_equal(first[0], draw_from_bank(labels, rows, seed)[0])


def test_draws_of_small_classes_repeat():
    y = np.repeat([0, 1, 2], [60, 52, 7])
    rows = np.array([0, 60, 61, 112, 113])  # leaves 59, 50 and 5
    positives, negatives = draw_from_bank(Labels.of(y), rows, [0, 0])
    assert positives.shape == negatives.shape == (5, 2, 50)
    for q, row in enumerate(rows):
        assert (y[positives[q]] == y[row]).all() and (y[negatives[q]] != y[row]).all()
        for group in [*positives[q], *negatives[q]]:
            members = set(group.tolist())
            assert not members & set(rows.tolist())
            assert len(members) == 50 if y[group[0]] < 2 else members <= {114, 115, 116, 117, 118}


def test_draws_of_label_sets(rng):
    Y = rng.random((300, 4)) < 0.35
    Y[~Y.any(1), 0] = True
    Y[:, 0] &= ~Y[:, 3]
    rows = np.arange(0, 60, 5)
    positives, negatives = draw_from_bank(Labels.of(Y), rows, [3, 1])
    assert positives.shape == negatives.shape == (12, 9, 50)
    for q, row in enumerate(rows):
        assert all(n_shared(Y[row], Y[p]) for p in positives[q].flat)
        assert not any(n_shared(Y[row], Y[n]) for n in negatives[q].flat)
    assert not np.isin(positives, rows).any() and not np.isin(negatives, rows).any()


@pytest.mark.parametrize(
    "labels",
    [
        [0] * 6 + [1] * 6 + [2],  # the only image of class 2 is in the batch
        [[1, 0]] * 6 + [[0, 1]] * 6 + [[0, 0]],  # an image without a label has no positives
        [[1, 0]] * 6 + [[0, 1]] * 6 + [[1, 1]],  # and one with all labels no negatives
    ],
)
def test_a_query_without_triplets_in_the_bank_has_no_gradient(rng, labels):
    loss = bank_loss(labels, batch_size=3, lambda_bar=0.0)
    loss.bank[:] = torch.tensor(rng.normal(size=(13, 4)))
    rows = np.array([0, 6, 12])
    value, gradient, _ = value_and_gradient(loss, rng.normal(size=(3, 4)), Labels.of(labels)[rows], rows)
    assert math.isfinite(value)
    assert np.abs(gradient[:2]).min() > 1e-3
    assert np.abs(gradient[2]).max() < 1e-15  # what is left of x - x, summed in two orders


def test_published_needs_images_outside_the_batch(rng):
    labels = [0, 0, 1, 1]
    with pytest.raises(UsageError, match="batch"):
        DTSH(4, sampling="published").fit(rng.normal(size=(4, 3)), labels)


@pytest.mark.parametrize(("n_train", "lr"), [(5_000, 4.5e-3), (50_000, 4.5e-4)])
def test_the_published_configuration(n_train, lr):
    """A step of torch's SGD is the authors' step: rate 5e-4 on 2 K / n times our gradient, decay 5e-4 at rate 5e-4."""
    hasher = DTSH.published(24, n_train, weights="f.mat", training={"epochs": 3})
    training = hasher.training
    assert training.lr == training.head_lr == pytest.approx(lr)
    assert training.lr * training.weight_decay == pytest.approx(5e-4 * 5e-4)
    assert [training.rate(0, epoch) for epoch in (0, 19, 20, 99)] == pytest.approx([1, 1, 2 / 3, (2 / 3) ** 4])
    assert (training.optimizer, training.batch_size, training.last_batch) == ("sgd", 128, "keep")
    assert (training.flip, training.shift, training.epochs) == (False, 0, 3)
    assert (hasher.backbone, hasher.weights, hasher.frozen_blocks) == ("cnn-f", "f.mat", 0)
    assert (hasher.sampling, hasher.alpha, hasher.lambda_, hasher.head) == ("published", None, 100, "linear")


# Spare bits: the end of the code is not learned.


def test_spare_bits_are_itq_of_the_features(clusters, tmp_path):
    X, y = clusters[0].astype(np.float32), clusters[1]
    how = {"sampling": "in-batch", "training": Training(epochs=3)}
    hasher, fewer = DTSH(12, spare_bits=4, **how).fit(X, y), DTSH(8, **how).fit(X, y)
    codes = hasher.encode(X)
    # the learned bits are those of a code without the others, margin included
    assert np.array_equal(codes.signs()[:, :8], fewer.encode(X).signs())
    assert np.array_equal(codes.signs()[:, 8:], ITQ(4).fit(X.astype(np.float64)).encode(X).signs())
    u = hasher.project(X)
    assert u[:, 8:].std() == pytest.approx(u[:, :8].std(), rel=0.01)
    hasher.save(tmp_path / "model")
    loaded = DTSH.load(tmp_path / "model")
    assert loaded.spare_bits_ == 4 and np.array_equal(loaded.encode(X).packed, codes.packed)
    again = loaded.fit(X, y)
    assert np.array_equal(again.encode(X).packed, codes.packed)


@pytest.mark.parametrize(
    "how", [{"sampling": "class-codes"}, {"sampling": "published"}, {"head": "layers"}, {"spare_bits": 12}]
)
def test_spare_bits_that_cannot_be(clusters, how):
    with pytest.raises(UsageError, match="spare_bits"):
        DTSH(12, **{"spare_bits": 4, "sampling": "in-batch"} | how).fit(*clusters)


def test_gaps_between_class_numbers_change_nothing(clusters):
    X, y = clusters
    found = [DTSH(8, training=Training(epochs=1)).fit(X, y * gap).encode(X) for gap in (1, 1000)]
    assert np.array_equal(found[0].packed, found[1].packed)


def test_more_classes_than_codes_are_said(clusters, capsys):
    X, y = clusters
    quick = Training(epochs=1)
    DTSH(2, training=quick).fit(X, y, progress=True)
    assert "share a code" not in capsys.readouterr().err
    DTSH(1, training=quick).fit(X, y, progress=True)
    note = "note: there are only 2 codes of 1 bit for 4 classes, so some classes share a code; use at least 2 bits"
    assert note in capsys.readouterr().err


def test_what_cannot_be_learned_is_one_sentence(clusters):
    X, y = clusters
    with pytest.raises(UsageError, match="apart must be <= the 8 bits of a code, got 9"):
        DTSH(8, apart=9).fit(X, y)
    with pytest.raises(DataError, match="all rows of features are equal"):
        DTSH(8).fit(np.ones_like(X), y)
