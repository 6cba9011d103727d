"""Speed as ratios: each part runs our way and the usual way in one process and prints both, the ratio and a limit.

    python -m benchmarks.bench [metrics] [loss] [epoch] [time-to-map] [--write]

Seconds on a shared machine are noisy, ratios within one process much less so; metrics and loss are in CPU time. With
--write the figures of these two also go to benchmarks/results/speed/bench.json, for a table in the docs. The usual ways
are written here from their descriptions: sorting the whole ranking for each query, a loop over the rows of a batch,
fine-tuning the whole network in plain torch.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as the command line does

import numpy as np
import torch
from torch.nn import functional as F

from hashlens.codes import Codes
from hashlens.data import make_protocol, open_source
from hashlens.data.labels import Labels
from hashlens.features.networks.inference import prepare_cpu, set_layout
from hashlens.files import write_json
from hashlens.hashers.deep.dtsh import DTSH
from hashlens.hashers.deep.training import Training, train
from hashlens.hashers.deep.triplet_losses import DTSHLoss
from hashlens.machine import machine
from hashlens.progress import Progress
from hashlens.results.metrics import evaluate_codes, evaluate_ranking

FILE = Path(__file__).parent / "results" / "speed" / "bench.json"


def seconds(work: Callable[[], object], repeats: int = 3, clock: Callable[[], float] = time.process_time) -> float:
    """The best of several runs after a warm-up, because noise only adds time."""
    work()
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def alternating(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The best of several runs of each; runs alternate, so that a slow moment of the machine affects all."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
    return {name: min(taken[1:]) for name, taken in times.items()}  # the first is a warm-up


def show(what: str, ours: float, usual: float, limit: str) -> dict[str, float | str]:
    print(
        f"{what}\n  ours {ours:.4g} s, usual {usual:.4g} s: {usual / ours:.1f} times as fast\n  limit: {limit}",
        flush=True,
    )
    return {"what": what, "ours": ours, "usual": usual}


def metrics() -> dict[str, float | str]:
    """MAP of 1,000 queries in 59,000 codes of 48 bits."""
    rng = np.random.default_rng(0)
    labels = [Labels.of(rng.integers(0, 10, n)) for n in (1_000, 59_000)]
    centres = rng.standard_normal((10, 48))
    query, database = (Codes.from_relaxed(centres[y.values] + 1.5 * rng.standard_normal((len(y), 48))) for y in labels)

    def ours() -> float:
        return evaluate_ranking(query, database, *labels).mean_average_precision()

    signs = database.signs().astype(np.float32)
    onehot = np.eye(10, dtype=np.float32)[labels[1].values]

    def usual() -> float:
        total = 0.0
        for row, label in zip(query.signs().astype(np.float32), labels[0].values, strict=True):
            relevant = (np.eye(10, dtype=np.float32)[label] @ onehot.T > 0).astype(np.float32)
            ranked = relevant[np.argsort(0.5 * (48 - row @ signs.T), kind="stable")]
            places = np.flatnonzero(ranked) + 1.0
            total += np.mean(np.arange(1, len(places) + 1) / places)
        return total / len(query)

    assert abs(ours() - usual()) < 1e-9, "both follow the same definition"
    words = database.words()
    read = seconds(lambda: [np.bitwise_xor(words, words) for _ in range(50)]) / 50 * len(query)
    limit = f"{read:.3f} s to read the codes once for each query with numpy on one core"
    found = show("MAP, 1,000 queries x 59,000 codes x 48 bits", seconds(ours), seconds(usual, 1), limit)
    everything = seconds(lambda: evaluate_codes(query, database, *labels))
    print(f"  all measures (tie-aware, bounds, precision, recall, radius) in {everything:.3f} s")
    return found | {"usual way": "a sort of all distances for each query"}


def loss() -> dict[str, float | str]:
    """One forward and backward of the loss at batch 256, 32 bits, 10 classes."""
    rng = np.random.default_rng(0)
    labels = Labels.of(rng.integers(0, 10, 256))
    start = torch.from_numpy(rng.standard_normal((256, 32)).astype(np.float32))
    likelihood = DTSHLoss(32)

    def ours() -> torch.Tensor:
        u = start.clone().requires_grad_()
        likelihood(u, labels).backward()
        assert u.grad is not None
        return u.grad

    same = torch.from_numpy(labels.values[:, None] == labels.values[None, :])

    def usual() -> torch.Tensor:
        u = start.clone().requires_grad_()
        theta = u @ u.T / 2
        total = torch.zeros(())
        for row in range(256):
            positive = same[row].clone()
            positive[row] = False
            gap = theta[row][positive][:, None] - theta[row][~same[row]][None, :] - 16
            total = total + F.softplus(-gap).mean()
        signs = torch.where(u > 0, 1.0, -1.0)
        (total / 256 + (u - signs).square().sum(1).mean() / 225).backward()
        assert u.grad is not None
        return u.grad

    assert torch.allclose(ours(), usual(), atol=1e-6), "both have the same gradient"
    n = int((same.sum(1) - 1).mul((~same).sum(1)).sum())
    x = torch.randn(n)

    def bare() -> None:
        y = x.clone().requires_grad_()
        F.softplus(y).sum().backward()

    least = seconds(bare, 20)
    limit = f"{least:.4f} s for the {n:,} softplus of its triplets and their gradient alone"
    found = show("loss step, batch 256", seconds(ours, 20), seconds(usual, 5), limit)
    return found | {"usual way": "a loop over the rows of the batch", "softplus": least, "triplets": n}


def epoch() -> None:
    """An epoch of training against the bare forward and backward passes of the trained part."""
    prepare_cpu()
    images, labels, hasher = _cifar10(1_280)
    hasher._build(images)
    inputs, network = hasher._inputs(images, "cpu", Progress(quiet=True))
    set_layout(network, torch.channels_last).train()
    loss_of = DTSHLoss(32)
    training = Training(epochs=2, batch_size=hasher.training.batch_size)
    batches = [np.arange(i, i + training.batch_size) for i in range(0, len(labels), training.batch_size)]
    rng = np.random.default_rng(0)
    ready = [inputs.batch(rows, rng) for rows in batches]

    def bare() -> None:
        for x in ready:
            network.zero_grad(set_to_none=True)
            network(x).sum().backward()

    def ours() -> float:
        rows = train(network, loss_of, inputs, labels, training, seed=0, device="cpu")
        return min(row["seconds"] for row in rows)

    floor, whole = math.inf, math.inf
    for _ in range(4):  # alternating, to cancel drift
        floor, whole = min(floor, seconds(bare, 1, time.perf_counter)), min(whole, ours())
    print(
        f"training epoch of {len(labels):,} images\n  ours {whole:.2f} s, bare forward and backward {floor:.2f} s:"
        f" {whole / floor - 1:+.1%} overhead"
    )
    a = torch.randn(2048, 1152)
    b = torch.randn(1152, 192)
    peak = 2048 * 1152 * 192 / seconds(lambda: a @ b, 20, time.perf_counter)
    print(f"  limit: a matrix product of such a layer runs at {peak / 1e9:.0f} G multiply-adds/s here", flush=True)


def time_to_map(goal: float = 0.765) -> None:
    """Training seconds until MAP at 32 bits reaches the paper's 0.765, against fine-tuning the whole network."""
    prepare_cpu()
    source = open_source("cifar10", progress=print)
    protocol = make_protocol(source)
    images, labels = source.images[protocol.train], source.labels[protocol.train]
    part = protocol.database[:5_000]  # enough to estimate MAP; its time is not counted

    def score(hasher: DTSH) -> float:
        codes = [hasher.encode(source.images[rows]) for rows in (protocol.query, part)]
        return evaluate_codes(*codes, source.labels[protocol.query], source.labels[part])["map"]

    def ours(epochs: int) -> DTSH:
        _forget_features()
        return DTSH(32, training=Training(epochs=epochs)).fit(images, labels)

    def usual(epochs: int) -> DTSH:
        hasher = _untrained()
        hasher._build(images)
        network = hasher.network_
        pixels = images.read(np.arange(len(images)), hasher.image_size_)
        optimizer = torch.optim.AdamW(
            [{"params": network[:-1].parameters(), "lr": 1e-3}, {"params": network[-1].parameters(), "lr": 5e-3}]
        )
        steps = epochs * (len(images) // 64)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-3, 5e-3], total_steps=steps)
        loss_of = DTSHLoss(32)
        rng = np.random.default_rng(0)
        network.train()
        for _ in range(epochs):
            order = rng.permutation(len(images))
            for i in range(0, len(order) - 63, 64):
                rows = order[i : i + 64]
                x = torch.from_numpy(pixels[rows])
                value = loss_of(network(x.flip(2) if rng.random() < 0.5 else x), labels[rows])
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                schedule.step()
        network.eval()
        hasher.history_ = []
        return hasher

    print(f"training time to MAP {goal} at 32 bits, CIFAR-10 setting 1")

    def reached(name: str, way: Callable[[int], DTSH], epochs: int) -> tuple[float, bool]:
        start, spent = time.perf_counter(), time.process_time()
        hasher = way(epochs)
        taken, spent = time.perf_counter() - start, time.process_time() - spent
        value = score(hasher)
        print(f"  {name}: {epochs} epochs, {taken:.0f} s, {spent:.0f} s of CPU, MAP {value:.3f}", flush=True)
        return taken, value >= goal

    own, there = 0.0, False
    for epochs in (1, 2, 3, 4, 6, 8):
        own, there = reached("ours", ours, epochs)
        if there:
            break
    # fine-tuning takes minutes per epoch: try fewer than 3 epochs while they suffice, else more while it matters
    taken, enough = reached("whole network", usual, 3)
    more = (2, 1) if enough else (4, 6, 8)
    for epochs in more:
        if not enough and taken > 5 * own:
            break
        next_taken, next_enough = reached("whole network", usual, epochs)
        if enough and not next_enough:
            break
        taken, enough = next_taken, next_enough
        if enough and epochs > 3:
            break
    words = "" if enough else f"more than (it has not reached {goal} by then) "
    words += "" if there else f"but ours has not reached {goal}: "
    print(f"  {words}{taken / own:.1f} times as fast", flush=True)


def _cifar10(n: int) -> tuple[object, Labels, DTSH]:
    source = open_source("cifar10", progress=print)
    rows = make_protocol(source).train[:: 5_000 // n][:n]
    return source.images[rows], source.labels[rows], _untrained()


def _untrained() -> DTSH:
    """DTSH with the settings that `fit` would choose for CIFAR-10."""
    hasher = DTSH(32)
    hasher.sampling_, hasher.n_classes_, hasher.long_bits_ = "in-batch", 0, 0
    return hasher


def _forget_features() -> None:
    """Clear the cache, so that the time for computing the frozen part is counted."""
    import shutil

    from hashlens.files import cache_dir

    shutil.rmtree(cache_dir() / "features", ignore_errors=True)


PARTS: dict[str, Callable[[], dict[str, Any] | None]] = {
    "metrics": metrics,
    "loss": loss,
    "epoch": epoch,
    "time-to-map": time_to_map,
}

if __name__ == "__main__":
    chosen = [name for name in sys.argv[1:] if name != "--write"] or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        sys.exit(f"error: there is no part {unknown[0]}; choose from {', '.join(PARTS)}")
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for name in chosen:
        measured = PARTS[name]()
        if measured is not None:
            kept[name] = measured | {"machine": machine()}
    if "--write" in sys.argv:
        write_json(FILE, kept)
