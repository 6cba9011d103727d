"""The training loop: the same steps whether stopped or not, recovery from NaN, and the figures of an epoch."""

import copy
import csv
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hashlens import DTSH, Training, make_hasher
from hashlens.data.images import ArrayImages
from hashlens.data.labels import Labels
from hashlens.errors import DataError, DivergedError, MismatchError, Stopped, UsageError
from hashlens.hashers.deep.inputs import ArrayInputs, ImageInputs, Windows
from hashlens.hashers.deep.training import COLUMNS, RECIPE, _batches, mixed, train
from hashlens.hashers.deep.triplet_losses import DTSHClassLoss, DTSHLoss

FAST = Training(epochs=3, batch_size=40, head_lr=0.05)  # five steps an epoch on the clusters


# The learning rate.


def test_one_cycle_is_torchs():
    steps = 10_000
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1, total_steps=steps, pct_start=0.3, div_factor=25, final_div_factor=4000
    )
    expected = []
    for _ in range(steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(expected) < steps:
            theirs.step()
    ours = [Training().rate(step / steps, 0) for step in range(steps + 1)]
    np.testing.assert_allclose(ours[:-1], expected, atol=6e-4)  # torch is one step ahead, at most 5.2e-4
    np.testing.assert_allclose(ours[3001:], expected[3000:], rtol=1e-9)  # one step ahead, and nothing else
    assert ours[0] == 1 / 25 and max(ours) == ours[3000] == 1 and ours[-1] == pytest.approx(1e-5)


def test_step_schedule():
    training = Training(schedule="step")
    assert [training.rate(0.5, epoch) for epoch in (0, 19, 20, 39, 40, 99)] == pytest.approx(
        [1, 1, 2 / 3, 2 / 3, 4 / 9, 16 / 81]
    )
    assert Training(schedule="step", step_epochs=2, step_factor=0.1).rate(0, 5) == pytest.approx(0.01)


def test_the_rate_of_each_step_is_the_schedules(clusters, monkeypatch):
    seen = []
    step = torch.optim.AdamW.step

    def record(self, *args):
        seen.append([group["lr"] for group in self.param_groups])
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", record)
    images = np.repeat(np.arange(8, dtype=np.uint8), 64).reshape(8, 8, 8)
    training = Training(epochs=2, batch_size=4, lr=2e-3, head_lr=7e-3)
    history = DTSH(4, backbone="small-cnn", image_size=8, training=training).fit(images, np.arange(8) % 2).history_
    factors = [training.rate(i / 4, 0) for i in range(4)]
    np.testing.assert_allclose(seen, [[2e-3 * f, 7e-3 * f] for f in factors], rtol=1e-12)
    assert [row["lr"] for row in history] == pytest.approx([2e-3 * factors[1], 2e-3 * factors[3]])


def test_number_of_epochs():
    enough = RECIPE["images"]
    assert [Training().n_epochs(n) for n in (1, enough // 50, enough // 10, enough // 2, 9 * enough)] == [
        40,
        40,
        10,
        4,
        4,
    ]
    assert Training(epochs=7).n_epochs(10) == 7


# Batches.


def test_every_row_is_in_one_batch():
    for n, classes in ((1, 1), (7, 2), (40, 2), (100, 3), (129, 2), (255, 100), (300, 299)):
        labels = Labels.of(np.arange(n) % classes)
        for last in ("spread", "keep"):
            batches = _batches(len(labels), labels, Training(batch_size=32, last_batch=last), np.random.default_rng(0))
            assert sorted(np.concatenate(batches)) == list(range(n))
    multi = Labels.of(np.eye(50, dtype=int)[np.arange(99) % 50])
    assert sorted(
        np.concatenate(_batches(len(multi), multi, Training(batch_size=32), np.random.default_rng(0)))
    ) == list(range(99))


def test_the_last_batch():
    labels = Labels.of(np.arange(130) % 2)

    def sizes(last):
        return [
            len(b)
            for b in _batches(len(labels), labels, Training(batch_size=32, last_batch=last), np.random.default_rng(0))
        ]

    assert sizes("keep") == [32, 32, 32, 32, 2]
    assert sizes("spread") == [33, 33, 32, 32]
    labels = Labels.of(np.arange(129) % 2)
    assert sizes("keep") == [32, 32, 32, 33], "a single image has no batch statistics"
    labels = Labels.of(np.arange(128) % 2)
    assert sizes("keep") == [32] * 4


def test_order_is_random_and_repeatable():
    labels = Labels.of(np.arange(100) % 2)
    first, again, other = (
        np.concatenate(_batches(len(labels), labels, Training(batch_size=10), np.random.default_rng(seed)))
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert not np.array_equal(first, np.arange(100))


def lonely(batches, y):
    """Rows that have company of their class in the data but none in their batch."""
    return sum((y[b] == y[row]).sum() == 1 and (y == y[row]).sum() > 1 for b in batches for row in b)


def test_many_classes_are_dealt_in_fours():
    y = np.random.default_rng(1).permutation(np.arange(800) % 100)
    for seed in range(5):
        batches = _batches(len(y), Labels.of(y), Training(batch_size=32), np.random.default_rng(seed))
        assert [len(b) for b in batches] == [32] * 25
        for b in batches:
            assert set(np.unique(y[b], return_counts=True)[1].tolist()) <= {4, 8}
    few = np.arange(800) % 8  # enough of each class in a batch of 32: plain random order
    counts = [
        np.unique(few[b], return_counts=True)[1].tolist()
        for b in _batches(len(few), Labels.of(few), Training(batch_size=32), np.random.default_rng(0))
    ]
    assert any(count % 4 for batch in counts for count in batch)


@pytest.mark.parametrize("size", [2, 3, 5, 6, 7, 9])
def test_every_row_has_company_where_possible(size):
    y = np.random.default_rng(1).permutation(np.arange(50 * size) % 50)
    batches = _batches(len(y), Labels.of(y), Training(batch_size=32), np.random.default_rng(0))
    assert lonely(batches, y) == 0


# What a network is trained on.


def test_array_inputs():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(6, 3))
    assert np.array_equal(ArrayInputs([X]).batch(np.array([4, 1]), rng).numpy(), X[[4, 1]].astype(np.float32))
    views = [rng.normal(size=(50, 2, 3, 3)).astype(np.float16) for _ in range(2)]
    rows = rng.permutation(50)[:40]
    batch = ArrayInputs(views).batch(rows, np.random.default_rng(3))
    assert batch.dtype == torch.float32 and batch.is_contiguous(memory_format=torch.channels_last)
    from_view = [[np.array_equal(x, view[row]) for view in views] for x, row in zip(batch.numpy(), rows, strict=True)]
    assert np.sum(from_view, 1).tolist() == [1] * 40 and 10 < np.sum(from_view, 0)[0] < 30
    assert torch.equal(batch, ArrayInputs(views).batch(rows, np.random.default_rng(3)))
    assert np.array_equal(ArrayInputs(views[:1]).batch(rows, rng).numpy(), views[0][rows])
    assert len(ArrayInputs(views)) == 50


def test_windows_are_parts_of_the_images(rng):
    pixels = rng.integers(0, 256, (40, 18, 18, 3), dtype=np.uint8)
    images = ArrayImages(pixels)
    windows = Windows(images, 0)
    found = windows.read(slice(None), 16)  # of 18 pixels: at one of three places each way
    cut = [{pixels[i, y : y + 16, x : x + 16].tobytes() for y in range(3) for x in range(3)} for i in range(40)]
    assert all(window.tobytes() in places for window, places in zip(found, cut, strict=True))
    assert np.array_equal(windows.read([7, 3], 16), found[[7, 3]])  # whatever else is read with it
    assert not np.array_equal(Windows(images, 1).read(slice(None), 16), found)
    assert len({images.fingerprint(), windows.fingerprint(), Windows(images, 1).fingerprint()}) == 3


def test_image_inputs_flip_and_shift():

    pixels = np.random.default_rng(0).integers(0, 256, (40, 6, 6, 3), dtype=np.uint8)
    before = pixels.copy()
    rows = np.random.default_rng(1).permutation(40)
    plain = ImageInputs(ArrayImages(pixels), 6, flip=False, shift=0).batch(rows, np.random.default_rng(2))
    assert np.array_equal(plain.numpy(), pixels[rows])
    flipped = ImageInputs(ArrayImages(pixels), 6, flip=True, shift=0).batch(rows, np.random.default_rng(2)).numpy()
    kinds = ["as is" if np.array_equal(a, pixels[row]) else "flipped" for a, row in zip(flipped, rows, strict=True)]
    for image, row, kind in zip(flipped, rows, kinds, strict=True):
        assert kind == "as is" or np.array_equal(image, pixels[row][:, ::-1])
    assert 10 < kinds.count("flipped") < 30
    shifted = ImageInputs(ArrayImages(pixels), 6, flip=False, shift=1).batch(rows, np.random.default_rng(2)).numpy()
    edged = np.pad(pixels, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    offsets = []
    for image, row in zip(shifted, rows, strict=True):
        places = [(y, x) for y in range(3) for x in range(3)]
        offsets += [(y, x) for y, x in places if np.array_equal(image, edged[row, y : y + 6, x : x + 6])]
    assert len(offsets) == 40 and len(set(offsets)) >= 7
    assert np.array_equal(pixels, before)


# Same seed, same steps.


def learned(hasher):
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in hasher.history_]
    return {k: v.numpy() for k, v in hasher.network_.state_dict().items()}, history


def assert_equal(a, b):
    (weights_a, history_a), (weights_b, history_b) = learned(a), learned(b)
    assert history_a == history_b
    assert weights_a.keys() == weights_b.keys()
    for name, value in weights_a.items():
        assert value.tobytes() == weights_b[name].tobytes(), name


@pytest.mark.parametrize("sampling", ["in-batch", "published"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_seed_decides_everything(clusters, sampling, optimizer):
    X, y = clusters
    training = Training(epochs=2, batch_size=40, optimizer=optimizer)

    def fit(seed):
        return DTSH(8, sampling=sampling, training=training, random_state=seed).fit(X, y)

    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    first = fit(0)
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    assert_equal(first, fit(0))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert not np.array_equal(learned(first)[0]["0.weight"], learned(fit(1))[0]["0.weight"])


def stop_after(n):
    """Whether to stop, asked after each step and each epoch: True the n-th time."""
    calls = iter(range(1, 10_000))
    return lambda: next(calls) == n


@pytest.mark.parametrize("sampling", ["in-batch", "published"])
def test_stopped_and_resumed_is_the_same_run(clusters, tmp_path, sampling):
    """A request is heard after each of the five steps of an epoch but the last, and after the epoch."""
    X, y = clusters

    def make():
        return DTSH(8, sampling=sampling, training=FAST, random_state=3)

    whole = make().fit(X, y, run=tmp_path / "whole")
    for name, requests in {
        "first step": [(1, "epoch 1, step 1")],
        "within": [(3, "epoch 1, step 3")],
        "between": [(6, "epoch 2, step 0")],
        "twice": [(8, "epoch 2, step 2"), (2, "epoch 2, step 4")],
        "often": [(4, "epoch 1, step 4"), (2, "epoch 2, step 0"), (1, "epoch 2, step 1"), (1, "epoch 2, step 2")],
    }.items():
        for request, place in requests:
            with pytest.raises(Stopped, match=f"stopped and saved at {place}; resume with: hashlens train --resume"):
                make().fit(X, y, run=tmp_path / name, stop=stop_after(request))
        assert_equal(whole, make().fit(X, y, run=tmp_path / name))
    assert_equal(whole, make().fit(X, y))  # and one that keeps nothing on disk
    assert_equal(whole, make().fit(X, y, run=tmp_path / "whole"))  # and one that has nothing left to do
    with pytest.raises(Stopped, match=r"epoch 1, step 2; nothing was saved"):
        make().fit(X, y, stop=stop_after(2))
    assert Stopped.exit_code == 130


@pytest.mark.parametrize("method", ["dpsh", "cnnh", "ninh", "dsrh", "drsch", "dlbhc", "classifier"])
def test_every_loss_can_be_resumed(clusters, tmp_path, method):
    """What a loss remembers or learns is saved with the network: banks, slopes, weights of bits, classifiers."""
    X, y = clusters

    def make():
        return make_hasher(method, n_bits=8, training=FAST, random_state=3)

    whole = make().fit(X, y)
    for request in (3, 6, 8):  # within the first epoch, between two, within the second
        with pytest.raises(Stopped):
            make().fit(X, y, run=tmp_path / str(request), stop=stop_after(request))
        assert_equal(whole, make().fit(X, y, run=tmp_path / str(request)))


def test_stopped_and_resumed_with_images(tmp_path):
    """Batch norms, Adam's moments and augmentation are part of what is saved."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8), dtype=np.uint8)
    y = np.arange(24) % 3
    training = Training(epochs=2, batch_size=8, shift=1)

    def make():
        return DTSH(6, backbone="small-cnn", image_size=8, training=training)

    whole = make().fit(pixels, y)
    for place in (2, 4, 6):
        with pytest.raises(Stopped):
            make().fit(pixels, y, run=tmp_path / str(place), stop=stop_after(place))
        assert_equal(whole, make().fit(pixels, y, run=tmp_path / str(place)))


def test_a_request_to_stop_at_the_very_end_is_too_late(clusters, tmp_path):
    X, y = clusters
    steps = 5 + 1
    assert len(DTSH(4, training=FAST).fit(X, y, stop=stop_after(3 * steps)).history_) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"n_bits": 9}, r"n_bits was 8, now 9"),
        ({"alpha": 1.5}, r"alpha was None, now 1\.5"),
        ({"random_state": 1}, r"random_state was 0, now 1"),
        ({"sampling": "published"}, r"sampling was class-codes, now published"),
        ({"training": Training(epochs=4, batch_size=40, head_lr=0.05)}, r"training was .*'epochs': 3.*'epochs': 4"),
        ("features", r"data was"),
        ("labels", r"data was"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_run_is_refused(clusters, tmp_path, change, named):
    X, y = clusters
    with pytest.raises(Stopped):
        DTSH(8, training=FAST).fit(X, y, run=tmp_path, stop=stop_after(2))
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    other = DTSH(8, training=FAST).set_params(**change if isinstance(change, dict) else {})
    if change == "features":
        X = X + 1e-3
    if change == "labels":
        y = np.where(np.arange(200) == 7, (y + 1) % 4, y)
    with pytest.raises(MismatchError, match=f"belongs to another run .*{named}"):
        other.fit(X, y, run=tmp_path)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.parametrize("damage", ["half", "text", "empty", "no position", "flip"])
def test_a_damaged_checkpoint_is_refused(clusters, tmp_path, damage):
    X, y = clusters
    with pytest.raises(Stopped):
        DTSH(8, training=FAST).fit(X, y, run=tmp_path, stop=stop_after(2))
    path = tmp_path / "checkpoint.safetensors"
    content = path.read_bytes()
    path.write_bytes(
        {
            "half": content[: len(content) // 2],
            "text": b"no checkpoint",
            "empty": b"",
            "flip": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
            "no position": content.replace(b'"position"', b'"possition'[:10]),
        }[damage]
    )
    with pytest.raises(DataError, match=r"checkpoint.safetensors is damaged .*--out"):
        DTSH(8, training=FAST).fit(X, y, run=tmp_path)


def test_steps_are_adamws(rng):
    """Three steps of a small network, depthwise kernels and all, against torch's plain AdamW on a copy."""
    from hashlens.features.networks.efficientnet_lite import ConvNorm, InvertedResidual

    maps, labels = rng.normal(size=(12, 3, 6, 6)).astype(np.float16), Labels.of(np.arange(12) % 3)
    layers = [ConvNorm(3, 4, 3, stride=2), InvertedResidual(4, 4, 6, 5, 1), torch.nn.AdaptiveAvgPool2d(1)]
    network = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(4, 5)).to(
        memory_format=torch.channels_last
    )
    reference = copy.deepcopy(network).to(memory_format=torch.contiguous_format).train()
    training = Training(epochs=3, batch_size=12, lr=0.01, head_lr=0.02, weight_decay=0.1, precision="float32")
    loss, inputs = DTSHLoss(5, 1.0, 225), ArrayInputs([maps])
    train(network, loss, inputs, labels, training, seed=0, device="cpu")
    groups = [{"params": layer.parameters(), "lr": 0.01} for layer in reference[:2]]
    groups.append({"params": reference[-1].parameters(), "lr": 0.02})
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1, foreach=False, fused=False)
    full = [group["lr"] for group in optimizer.param_groups]
    for step in range(3):
        for group, lr in zip(optimizer.param_groups, full, strict=True):
            group["lr"] = lr * training.rate(step / 3, step)
        (rows,) = _batches(len(labels), labels, training, np.random.default_rng([0, step]))
        optimizer.zero_grad()
        loss(reference(torch.tensor(maps[rows]).float().contiguous()), labels[rows], rows).backward()
        optimizer.step()
    for (name, ours), theirs in zip(network.named_parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(ours.detach(), theirs.detach(), atol=2e-5, err_msg=name)


def test_a_step_on_mixtures_against_a_loop(rng):
    X, y = rng.normal(size=(12, 5)).astype(np.float32), np.arange(12) % 3
    codes = rng.choice([-1.0, 1.0], (3, 4))
    network = torch.nn.Sequential(torch.nn.Linear(5, 4))
    before = copy.deepcopy(network)
    training = Training(epochs=1, batch_size=12, head_lr=1e-9, mixup=0.4, precision="float32")
    loss = DTSHClassLoss(4, codes)
    (row,) = train(network, loss, ArrayInputs([X]), Labels.of(y), training, seed=3)
    (rows,) = _batches(12, None, training, np.random.default_rng([3, 0]))
    draws = np.random.default_rng([3, 0, 0])
    draws.integers(0, 1, 12)  # the views
    share, partner = draws.beta(0.4, 0.4), draws.permutation(12)
    assert 0.01 < share < 0.99
    mixture = np.array([share * X[rows[i]] + (1 - share) * X[rows[partner[i]]] for i in range(12)], np.float32)
    u = before(torch.from_numpy(mixture))
    expected = share * loss(u, y[rows]) + (1 - share) * loss(u, y[rows[partner]])
    assert row["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_mixtures_of_pixels_stay_pixels():
    x = torch.tensor([[10, 255], [0, 7]], dtype=torch.uint8)
    assert torch.equal(mixed(x, x.flip(0), 0.75), torch.tensor([[8, 193], [2, 69]], dtype=torch.uint8))


def test_mixtures_are_refused_where_images_are_compared(clusters):
    with pytest.raises(UsageError, match=r"DTSHLoss compares images with each other.*omit mixup"):
        DTSH(8, sampling="in-batch", training=Training(mixup=0.2)).fit(*clusters)


def test_bfloat16_is_for_matrix_products_alone(rng):
    """The depthwise convolutions, which are slow in bfloat16, and what is between the layers stay float32."""
    from hashlens.features.networks.efficientnet_lite import InvertedResidual

    block = InvertedResidual(4, 4, 6, 5, 1).to(memory_format=torch.channels_last)
    x = torch.from_numpy(rng.normal(size=(3, 4, 6, 6)).astype(np.float32)).contiguous(memory_format=torch.channels_last)
    seen = {}
    for name, module in block.named_modules():
        module.register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: output.dtype}))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = block(x)
    assert set(seen.values()) == {torch.float32}
    exact = block(x)
    assert 0 < (rounded - exact).abs().max() < 0.05 * exact.abs().max()
    rounded.square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in block.parameters())


# A loss that is not a number.


class Breaking(DTSHLoss):
    """The loss of DTSH, but NaN at the given calls; remembers each call's rows and the weights it was made with."""

    def __init__(self, network, at, spoil=lambda value, u: value * math.nan):
        super().__init__(4, 2.0, 225)
        self.watched = [network]
        self.at = at
        self.spoil = spoil
        self.calls = []

    def forward(self, u, labels, rows):
        self.calls.append((rows, self.watched[0][-1].weight.detach().clone()))
        value = super().forward(u, labels, rows)
        return self.spoil(value, u) if len(self.calls) in self.at else value


def run(clusters, at, checkpoint=None, spoil=None, **options):
    X, y = clusters
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(16, 4))
    loss = Breaking(network, at, *([spoil] if spoil else []))
    training = Training(epochs=3, batch_size=50, head_lr=0.05, **options)  # four steps an epoch
    history = train(
        network,
        loss,
        ArrayInputs([X]),
        Labels.of(y),
        training,
        seed=0,
        device="cpu",
        checkpoint=checkpoint,
    )
    return history, network, loss


def test_one_nan_is_rolled_back(clusters):
    plain, _, plain_loss = run(clusters, at=())
    history, network, loss = run(clusters, at={7})  # the third step of the second epoch
    assert len(loss.calls) == 3 * 4 + 3
    for before, after in ((4, 7), (5, 8)):  # the same batches again ...
        assert np.array_equal(loss.calls[before][0], loss.calls[after][0])
    assert torch.equal(loss.calls[7][1], loss.calls[4][1])  # ... from the same weights ...
    assert not torch.equal(loss.calls[8][1], loss.calls[5][1])  # ... with another rate
    assert all(torch.equal(a[1], b[1]) for a, b in zip(plain_loss.calls[:5], loss.calls[:5], strict=True))
    assert [row["lr"] for row in history] == pytest.approx(
        [plain[0]["lr"], plain[1]["lr"] / 2, plain[2]["lr"] / 2], rel=1e-12
    )
    assert all(math.isfinite(value) for row in history for value in row.values())
    assert torch.isfinite(network[0].weight).all()
    assert [row["epoch"] for row in history] == [1, 2, 3]


@pytest.mark.parametrize("call", [6, 8])  # within an epoch, and at the last step of one
def test_weights_that_are_not_numbers_are_rolled_back(clusters, call):
    """The loss is finite but its gradient is not: noticed at the next step, or at the end of the epoch."""
    history, network, loss = run(clusters, at={call}, spoil=lambda value, u: value + (u * 0).abs().sqrt().sum())
    assert torch.isfinite(network[0].weight).all() and len(history) == 3
    retry = {6: 7, 8: 8}[call]
    assert torch.equal(loss.calls[retry][1], loss.calls[4][1])


def test_nan_again_and_again_is_an_error(clusters, tmp_path):
    checkpoint = tmp_path / "checkpoint.safetensors"
    with pytest.raises(
        DivergedError, match=r"NaN or infinite 4 times \(epoch 2, step 1\).*try --set lr=0\.0001"
    ) as error:
        run(clusters, at=range(5, 1000), checkpoint=checkpoint)
    assert error.value.exit_code == 5
    kept = load_file(checkpoint)
    assert kept and all(torch.isfinite(tensor).all() for tensor in kept.values())
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 1 + 1
    history, _, loss = run(clusters, at=(), checkpoint=checkpoint)  # what is kept can be continued
    assert len(history) == 3 and len(loss.calls) == 2 * 4
    broken = []
    with pytest.raises(DivergedError, match=r"epoch 1, step 1"):
        run(clusters, at=range(1, 1000), spoil=lambda value, u: broken.append(1) or value * math.inf)
    assert len(broken) == 1 + 3


def test_tries_are_counted_over_the_whole_run(clusters):
    run(clusters, at={1, 2, 3})
    with pytest.raises(DivergedError):
        run(clusters, at={1, 6, 11, 13})


# A loss that learns and a loss that has epochs.


class Learning(DTSHLoss):
    """The loss of DTSH times a number that is learned; remembers what it was told of epochs."""

    def __init__(self, spoil_epoch=None):
        super().__init__(4, 2.0, 225)
        self.factor = torch.nn.Parameter(torch.tensor(1.0))
        self.register_buffer("begun", torch.zeros((), dtype=torch.int64))
        self.told = []
        self.spoil_epoch = spoil_epoch

    def begin_epoch(self, epoch, epochs):
        self.begun += 1
        self.told.append((epoch, epochs, int(self.begun)))

    def forward(self, u, labels, rows):
        value = super().forward(u, labels, rows)
        if self.told[-1][0] == self.spoil_epoch:
            self.spoil_epoch = None
            return (self.factor * 0).abs().sqrt() + value  # the slope of the factor is NaN
        return self.factor.exp() * value


def train_learning(clusters, loss, **how):
    X, y = clusters
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(16, 4))
    training = Training(epochs=3, batch_size=50, lr=1e-3, head_lr=0.05)
    train(network, loss, ArrayInputs([X]), Labels.of(y), training, seed=0, device="cpu", **how)
    return network


def test_parameters_of_a_loss_learn_at_the_rate_of_the_hash_layer(clusters):
    loss = Learning()
    train_learning(clusters, loss)
    # Adam's steps are of the size of the rate; the loss is positive, so that the factor only falls
    steps = sum(Training().rate(i / 12, 0) for i in range(12))
    assert 1 - loss.factor.item() == pytest.approx(0.05 * steps, rel=0.2)


def test_epochs_begin_once(clusters, tmp_path):
    whole = Learning()
    weight = train_learning(clusters, whole)[0].weight
    assert whole.told == [(0, 3, 1), (1, 3, 2), (2, 3, 3)]
    for request, told in {2: [(1, 3, 2), (2, 3, 3)], 5: [(1, 3, 2), (2, 3, 3)], 7: [(2, 3, 3)]}.items():
        how = {"checkpoint": tmp_path / str(request) / "checkpoint.safetensors"}
        how["checkpoint"].parent.mkdir()
        with pytest.raises(Stopped):
            train_learning(clusters, Learning(), stop=stop_after(request), **how)
        loss = Learning()
        loss.told = [(-1, 3, 0)]  # the epoch that is being continued was begun before
        assert torch.equal(train_learning(clusters, loss, **how)[0].weight, weight)
        assert loss.told[1:] == told and torch.equal(loss.factor, whole.factor) and loss.begun == 3


def test_an_epoch_that_is_repeated_begins_anew(clusters):
    loss = Learning(spoil_epoch=1)
    train_learning(clusters, loss)
    assert loss.told == [(0, 3, 1), (1, 3, 2), (1, 3, 2), (2, 3, 3)]
    assert torch.isfinite(loss.factor)


# The figures of an epoch.


def test_figures_against_a_loop(clusters):
    """With a learning rate of next to nothing the outputs of an epoch are those of the network at its start."""
    X, y = clusters
    network = torch.nn.Sequential(torch.nn.Linear(16, 6))
    weight, bias = network[0].weight.data, network[0].bias.data
    bias[:4] = torch.tensor([99.0, -99.0, 0.0, 0.0])  # bits 0 and 1 are the same for all images
    weight[2:4] = 0
    weight[2, 0] = weight[3, 0] = 1.0
    order = np.sort(X[:, 0])
    bias[2] = float(-(order[-2] + order[-3]) / 2)  # on for two images of 200: alive at one in a hundred
    bias[3] = float(-(order[-1] + order[-2]) / 2)  # on for one image: dead
    u = network(torch.tensor(X, dtype=torch.float32)).detach().numpy()
    (row,) = train(
        network,
        DTSHLoss(6, 3.0, 225),
        ArrayInputs([X]),
        Labels.of(y),
        Training(epochs=1, batch_size=64, last_batch="keep", lr=1e-12, head_lr=1e-12, precision="float32"),
        seed=0,
        device="cpu",
    )
    on = [sum(value > 0 for value in column) for column in u.T]
    assert on[:4] == [200, 0, 2, 1]
    dead = sum(min(count, 200 - count) / 200 < 0.01 for count in on)
    assert row["dead_bits"] == dead == 3
    assert row["quantisation"] == pytest.approx(np.mean((np.abs(u) - 1) ** 2), rel=1e-5)
    loss = active = 0.0
    for rows in _batches(
        len(y), Labels.of(y), Training(batch_size=64, last_batch="keep"), np.random.default_rng([0, 0])
    ):
        dtsh = DTSHLoss(6, 3.0, 225)
        loss += dtsh(torch.tensor(u[rows]), y[rows]).item() * len(rows) / 200
        active += dtsh.figures["active"] * len(rows) / 200
    assert row["loss"] == pytest.approx(loss, rel=1e-5)
    assert row["active"] == pytest.approx(active, rel=1e-5)


def test_metrics_csv(clusters, tmp_path):
    X, y = clusters
    hasher = DTSH(8, training=FAST).fit(X, y, run=tmp_path)
    assert COLUMNS == ["epoch", "loss", "active", "gradient", "quantisation", "dead_bits", "lr", "seconds"]
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == COLUMNS and [row["epoch"] for row in rows] == ["1", "2", "3"]
    for row, expected in zip(rows, hasher.history_, strict=True):
        assert {k: float(v) for k, v in row.items()} == pytest.approx(expected, rel=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.safetensors", "metrics.csv"]


def test_progress_is_told(clusters, capsys):
    from hashlens.progress import Progress

    DTSH(8, training=FAST).fit(*clusters, progress=Progress())
    said, *lines = capsys.readouterr().err.splitlines()
    assert said == "4 classes: triplets are formed with class codes"
    assert len(lines) == 1 + 3 and lines[1].split()[0] == "1/3" and lines[3].endswith("0 s")
    DTSH(8, training=FAST).fit(*clusters)
    assert capsys.readouterr().err == ""


def test_training_must_be_a_training(clusters):
    X, y = clusters
    with pytest.raises(UsageError, match="training must be a Training"):
        DTSH(8, training={"epochs": 1}).fit(X, y)
