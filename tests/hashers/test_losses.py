"""Losses: values, gradients and figures against slow loops over the papers' formulas, and use in any training loop."""

import math

import numpy as np
import pytest
import torch
from slow_losses import BATCHES, WITHOUT_TRIPLETS, differences, n_shared, triplets_of, value_and_gradient

from hashlens import DPSH, Training, evaluate_codes, losses
from hashlens.data.labels import Labels
from hashlens.errors import DataError, UsageError
from hashlens.hashers.deep.base import DeepHasher
from hashlens.hashers.deep.drsch import UNLIKE
from hashlens.hashers.deep.dsrh import ranking_gains
from hashlens.hashers.losses import label_tensor

N_BITS = 4
LISTS = BATCHES | {
    "levels": [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 1]],
    "all share": [[1, 1, 0], [1, 0, 0], [1, 1, 1]],
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return max(x, 0) + math.log1p(math.exp(-abs(x)))


def signs_of(u):
    return np.where(u > 0, 1.0, -1.0)


def quantisation(u):
    return np.mean([((row - signs_of(row)) ** 2).sum() for row in u])


def mean_over_triplets(of_queries):
    """(mean over queries of the mean of their values, fraction of active ones) of {query: [(value, active)]}."""
    means = [np.mean([value for value, _ in values]) for values in of_queries.values()]
    active = [active for values in of_queries.values() for _, active in values]
    return (np.mean(means), np.mean(active)) if means else (0.0, 0.0)


def slow_dtsh(u, labels, alpha, lambda_bar, product=0.5, own_positive=False):
    of_queries = {}
    for q in range(len(u)):
        for p in range(len(u)):
            for n in range(len(u)):
                if (
                    n_shared(labels[q], labels[p])
                    and not n_shared(labels[q], labels[n])
                    and (own_positive or p != q)
                    and n != q
                ):
                    t = product * (u[q] @ u[p] - u[q] @ u[n]) - alpha
                    of_queries.setdefault(q, []).append((softplus(-t), t < 0))
    value, active = mean_over_triplets(of_queries)
    return value + lambda_bar * quantisation(u), active


def slow_dpsh(u, others, labels, other_labels, eta_bar, balance):
    similar, others_of, wrong = [], [], []
    for k in range(len(u)):
        for j in range(len(others)):
            theta, s = u[k] @ others[j] / 2, n_shared(labels[k], other_labels[j]) > 0
            (similar if s else others_of).append(softplus(theta) - s * theta)
            wrong.append((theta > 0) != s)
    mean = np.mean(similar + others_of)
    if balance and similar and others_of:
        mean = (np.mean(similar) + np.mean(others_of)) / 2
    return mean + eta_bar * quantisation(u), np.mean(wrong)


def slow_hinge(values, labels, margin):
    """Triplet hinge on squared distances."""
    of_queries = {}
    for q, pairs in triplets_of(labels).items():
        for p, n in pairs:
            hinge = margin + ((values[q] - values[p]) ** 2).sum() - ((values[q] - values[n]) ** 2).sum()
            of_queries.setdefault(q, []).append((max(hinge, 0), hinge > 0))
    return mean_over_triplets(of_queries)


def slow_ninh(u, labels, margin, beta, epsilon):
    s = sigmoid(beta * u)
    return slow_hinge(np.where(s < 0.5 - epsilon, 0, np.where(s > 0.5 + epsilon, 1, s)), labels, margin)


def slow_drsch(u, labels, threshold, slope, w, lambda_bar):
    r = w * (2 * sigmoid(slope * u) - 1)
    hinge, active = slow_hinge(r, labels, -threshold)
    affinity = [[1 if n_shared(a, b) else UNLIKE for b in labels] for a in labels]
    pairs = [affinity[i][j] * ((r[i] - r[j]) ** 2).sum() for i in range(len(r)) for j in range(len(r))]
    return hinge + threshold + lambda_bar * np.mean(pairs), active


def weighted_pairs(labels):
    """{query: [(i, j, 2^r_i - 2^r_j), ...]} where i shares more labels with the query than j."""
    found = {}
    for q in range(len(labels)):
        for i in range(len(labels)):
            for j in range(len(labels)):
                weight = 2 ** n_shared(labels[q], labels[i]) - 2 ** n_shared(labels[q], labels[j])
                if len({q, i, j}) == 3 and weight > 0:
                    found.setdefault(q, []).append((i, j, weight))
    return found


def slow_dsrh(u, labels, rho, alpha):
    h = 2 * sigmoid(u) - 1
    pairs, total, active = weighted_pairs(labels), alpha / 2 * (h.mean(0) ** 2).sum(), []
    for q, of_query in pairs.items():
        z = sum(weight for _, _, weight in of_query) * len(pairs)
        for i, j, weight in of_query:
            hinge = (h[q] @ h[j] - h[q] @ h[i]) / 2 + rho
            total += weight / z * max(hinge, 0)
            active.append(hinge > 0)
    return total, np.mean(active) if active else 0.0


def slow_classifier(scores, labels):
    total, wrong = 0.0, []
    for row, label in zip(scores, labels, strict=True):
        if np.ndim(label) == 0:
            total += math.log(sum(math.exp(s) for s in row)) - row[label]
            wrong.append(max(range(len(row)), key=row.__getitem__) != label)
        else:
            total += sum(softplus(-s if truth else s) for s, truth in zip(row, label, strict=True)) / len(row)
            wrong += [(s > 0) != bool(truth) for s, truth in zip(row, label, strict=True)]
    return total / len(scores), np.mean(wrong)


def slow_cnnh(u, signs):
    agreement = (signs * u).ravel()
    return np.mean([softplus(-x) for x in agreement]), np.mean([x <= 0 for x in agreement])


def case(name, labels, rng):
    """The loss, outputs of a batch of rows, and the slow loss as a function of these outputs."""
    labels, rows = np.array(labels), np.arange(len(labels))
    if name in ("cnnh", "dpsh, memory"):
        rows = np.array([3, 0, 1]) if len(labels) > 3 else np.array([1, 0])
    n_classes = Labels.of(labels).n_classes
    u = 2 * rng.normal(size=(len(rows), n_classes if name == "classifier" else N_BITS))
    batch = labels[rows]
    if name.startswith("dtsh"):
        loss = losses.DTSHLoss(N_BITS, 2.5, 0.3 * 22_500)
        options = {"product": 1.0, "own_positive": True} if name == "dtsh, port" else {}
        vars(loss).update(options)
        slow = lambda x: slow_dtsh(x, batch, 2.5, 0.3, **options)  # noqa: E731
    elif name == "dpsh":
        loss = losses.DPSHLoss(N_BITS, eta=0.7)
        slow = lambda x: slow_dpsh(x, x, batch, batch, 0.7 / len(x), True)  # noqa: E731
    elif name == "dpsh, memory":
        loss = losses.DPSHLoss(N_BITS, labels, eta=0.7, memory_from=0, balance=False).double()
        bank = rng.normal(size=(len(labels), N_BITS))
        loss.bank[:] = torch.tensor(bank)
        bank[rows] = u  # remembered, without a gradient
        slow = lambda x: slow_dpsh(x, bank, batch, labels, 0.7 / len(labels), False)  # noqa: E731
    elif name == "ninh":
        loss = losses.NINHLoss(N_BITS, margin=1.5)
        slow = lambda x: slow_ninh(x, batch, 1.5, 1.0, 0.5)  # noqa: E731
    elif name == "ninh, threshold":
        loss = losses.NINHLoss(N_BITS, 1.0, 3.0, 0.2)
        slow = lambda x: slow_ninh(x, batch, 1.0, 3.0, 0.2)  # noqa: E731
    elif name == "dsrh":
        loss = losses.DSRHLoss(N_BITS, 1.5, 0.7)
        slow = lambda x: slow_dsrh(x, batch, 1.5, 0.7)  # noqa: E731
    elif name in ("dsch", "drsch"):
        kind = {"dsch": losses.DSCHLoss, "drsch": losses.DRSCHLoss}[name]
        loss = kind(N_BITS, -2.0, 1.7, **{"lambda_": 0.3 / 50} if name == "drsch" else {}).double()
        loss.w.data = torch.tensor(rng.uniform(-2, 2, N_BITS))
        w, slope = loss.w.detach().numpy(), loss.slope.item()
        slow = lambda x: slow_drsch(x, batch, -2.0, slope, w, 0.3 if name == "drsch" else 0)  # noqa: E731
    elif name == "dlbhc":
        loss = losses.DLBHCLoss(N_BITS, n_classes).double()
        loss.weight.data, loss.bias.data = (torch.tensor(rng.normal(size=p.shape)) for p in (loss.weight, loss.bias))
        weight, bias = loss.weight.detach().numpy(), loss.bias.detach().numpy()
        slow = lambda x: slow_classifier(sigmoid(x) @ weight.T + bias, batch)  # noqa: E731
    elif name == "classifier":
        loss = losses.ClassifierCodeLoss(n_classes)
        slow = lambda x: slow_classifier(x, batch)  # noqa: E731
    else:
        loss = losses.CNNHLoss(N_BITS, labels)
        slow = lambda x: slow_cnnh(x, loss.signs.numpy()[rows])  # noqa: E731
    return loss, u, batch, rows, slow


CASES = ["dtsh", "dtsh, port", "dpsh", "dpsh, memory", "ninh", "ninh, threshold", "dsrh", "dsch", "drsch", "dlbhc"]
CASES += ["classifier", "cnnh"]


@pytest.mark.parametrize("batch", LISTS)
@pytest.mark.parametrize("name", CASES)
def test_against_loops(rng, name, batch):
    loss, u, labels, rows, slow = case(name, LISTS[batch], rng)
    value, gradient, figures = value_and_gradient(loss, u, labels, rows)
    expected, active = slow(u)
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, differences(lambda x: slow(x)[0], u), rtol=1e-6, atol=1e-8)
    assert figures == {"active": pytest.approx(active, rel=1e-6)}


@pytest.mark.parametrize("name", ["dsch", "drsch", "dlbhc"])
def test_gradients_of_what_a_loss_learns(rng, name):
    loss, u, labels, rows, _ = case(name, BATCHES["sets"], rng)
    parameters = dict(loss.named_parameters())

    def value(*values):
        return torch.func.functional_call(
            loss, dict(zip(parameters, values, strict=True)), (torch.tensor(u), labels, rows)
        )

    assert parameters and torch.autograd.gradcheck(value, tuple(parameters.values()))


@pytest.mark.parametrize("labels", [*WITHOUT_TRIPLETS, [[1, 1], [1, 1], [1, 1]]])
@pytest.mark.parametrize("name", ["dtsh", "ninh", "dsrh", "dsch"])
def test_a_batch_without_triplets_has_no_gradient(rng, name, labels):
    loss, u, labels, _, _ = case(name, labels, rng)
    loss.lambda_bar = 0.0
    if name == "dsrh":
        loss.alpha = 0.0
    value, gradient, figures = value_and_gradient(loss, u, labels)
    assert value == (loss.threshold if name == "dsch" else 0)
    assert not gradient.any() and figures == {"active": 0}


@pytest.mark.parametrize("scale", [1e4, 1e-30, 0.0])
@pytest.mark.parametrize("name", CASES)
def test_extreme_outputs_stay_finite(rng, name, scale):
    loss, u, labels, rows, _ = case(name, BATCHES["balanced"], rng)
    value, gradient, _ = value_and_gradient(loss.float(), (scale * signs_of(u)).astype(np.float32), labels, rows)
    assert math.isfinite(value) and np.isfinite(gradient).all()


# In any training loop.


@pytest.mark.parametrize("sets", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_labels_of_any_kind(rng, name, sets):
    """Tensors, arrays, lists and Labels; 0/1 columns as bool, int or float."""
    y = [0, 1, 2, 0, 1, 2, 0]
    loss, u, labels, rows, _ = case(name, np.eye(3, dtype=int)[y] if sets else y, rng)
    kinds = [labels, labels.tolist(), torch.tensor(labels), Labels.of(labels), labels.astype(np.int32)]
    if sets:
        kinds += [labels.astype(bool), torch.tensor(labels, dtype=torch.float32)]
    values = {value_and_gradient(loss, u, kind, rows)[0] for kind in kinds}
    assert len(values) == 1 and math.isfinite(values.pop())


def test_in_a_custom_training_loop(clusters):
    X, y = (torch.tensor(a) for a in clusters)
    network = torch.nn.Linear(16, 12).double()
    loss = losses.DTSHLoss(12)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    actives = []
    for _ in range(60):
        value = loss(network(X), y)
        assert value.shape == ()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        actives.append(loss.figures["active"])
    assert actives[-1] < 0.3 * actives[0]


def test_every_image_method_has_a_loss():
    from hashlens.hashers.methods import METHODS, hasher_class

    for name in (name for name, method in METHODS.items() if method.takes == "images"):
        cls = hasher_class(name)
        found = getattr(losses, f"{cls.__name__}Loss")
        assert issubclass(found, losses.Loss) and isinstance(cls(8)._loss(Labels.of([0, 1] * 70)), found)
    with pytest.raises(AttributeError, match="no attribute 'ITQLoss'"):
        losses.ITQLoss  # noqa: B018


def test_a_new_loss_is_a_class_and_its_method(clusters):
    class ToyLoss(losses.Loss):
        def compute(self, u, labels, rows):
            distances = losses.squared_distances(torch.tanh(u))
            same = losses.same_class(labels, labels)
            return distances[same].mean() - distances[~same].mean(), None

    class Toy(DeepHasher):
        name = "toy"

        def _loss(self, labels):
            return ToyLoss(self.n_bits)

    X, y = clusters
    codes = Toy(12, training=Training(epochs=10, batch_size=50, head_lr=0.05)).fit(X, y).encode(X)
    assert evaluate_codes(codes[:50], codes[50:], y[:50], y[50:])["map"] > 0.7


def test_a_loss_may_have_more_than_its_method_sets(monkeypatch):
    class OtherLoss(losses.Loss):
        def __init__(self, n_bits, margin, power=2):
            super().__init__(n_bits)
            self.margin, self.power = margin, power

    class Other(DeepHasher):
        margin: float = 3.0

    monkeypatch.setitem(globals(), "OtherLoss", OtherLoss)
    loss = Other(8)._loss(Labels.of([0, 1]))
    assert (loss.n_bits, loss.margin, loss.power) == (8, 3.0, 2)


def test_a_loss_is_inherited_or_missed():
    class MyDPSH(DPSH):
        eta: float = 3.0

    class Lossless(DeepHasher):
        pass

    assert MyDPSH(8)._loss(Labels.of([0, 1])).eta == 3.0
    with pytest.raises(NotImplementedError, match="write LosslessLoss beside Lossless, or its _loss"):
        Lossless(8)._loss(Labels.of([0, 1]))


def test_wrong_use():
    u, y = torch.zeros(4, 8), [0, 0, 1, 1]
    with pytest.raises(DataError, match=r"DTSHLoss expects outputs of shape \(n, 6\), got \(4, 8\)"):
        losses.DTSHLoss(6)(u, y)
    with pytest.raises(DataError, match="DTSHLoss got 4 outputs but 3 labels"):
        losses.DTSHLoss(8)(u, y[:3])
    with pytest.raises(UsageError, match="NINHLoss needs labels"):
        losses.NINHLoss(8)(u)
    with pytest.raises(UsageError, match=r"DPSHLoss remembers the training set; call loss\(u, labels, rows\)"):
        losses.DPSHLoss(8, y)(u, y)
    for wrong in (np.zeros((4, 1)), np.zeros((4, 2, 2))):
        with pytest.raises(DataError, match=r"class numbers \(n,\) or 0/1 columns \(n, c\), got shape \(4, "):
            losses.DTSHLoss(8)(u, wrong)
    for wrong in (["a", "a", "b", "b"], np.array(["a", "a", "b", "b"]), [[0, 1], [1], [0], [1]]):
        with pytest.raises(DataError, match=r"0/1 columns \(n, c\), got (list|ndarray) \("):
            losses.DTSHLoss(8)(u, wrong)


@pytest.mark.parametrize("name", ["DSRHLoss", "DTSHTripletLoss"])
def test_gradients_are_the_same_each_time_with_two_threads(rng, name):
    u, rows, triplets = (
        rng.normal(size=(64, 16)).astype(np.float32) * 3,
        np.arange(64),
        rng.integers(0, 64, (20_000, 3)),
    )
    labels, args = (rng.random((64, 20)) < 0.3, ()) if name == "DSRHLoss" else (None, (triplets, 64))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = {value_and_gradient(getattr(losses, name)(16, *args), u, labels, rows)[1].tobytes() for _ in range(60)}
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


def test_hundreds_of_shared_labels_do_not_overflow(rng):
    sets = np.zeros((4, 2000), int)
    sets[:2] = 1
    sets[2, :1500] = 1
    sets[3, 0] = 1
    gains = ranking_gains(label_tensor(sets))
    assert gains.isfinite().all() and gains[0, 1] > gains[0, 2] >= gains[0, 3] >= 0
    value, gradient, _ = value_and_gradient(losses.DSRHLoss(3), rng.normal(size=(4, 3)), sets)
    assert math.isfinite(value) and np.isfinite(gradient).all()
