"""Training: a network, a loss and inputs in, trained weights and a history out. The only training loop.

Every random number of a step depends on the seed, the epoch and the step alone, and the learning rate is a function
of the position in training. So a run that was stopped and continued takes the same steps, bit for bit on the CPU, as
one that was not. No score is computed on the way and no epoch is chosen afterwards: the model is the one at the end.
"""

from __future__ import annotations

import csv
import io
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from hashlens.data.labels import Labels
from hashlens.errors import DataError, DivergedError, MismatchError, Stopped, UsageError
from hashlens.files import quoted, replacing, write_text
from hashlens.progress import Progress, duration

COLUMNS = ["epoch", "loss", "active", "quantisation", "dead_bits", "lr", "seconds"]
TRIES = 3  # after a loss that is not a number


@dataclass(frozen=True)
class Training:
    """How to train; the defaults are ours, made for a pretrained network on a CPU."""

    epochs: int | None = None  # None: as many as it takes to see PICTURES pictures
    batch_size: int = 64
    last_batch: str = "spread"  # or "keep": a short batch at the end of each epoch, as the authors have it
    optimizer: str = "adamw"  # or "sgd", "rmsprop"
    lr: float = 1e-3  # of the pretrained blocks
    head_lr: float = 5e-3  # of the hash layer
    weight_decay: float = 1e-4
    schedule: str = "one-cycle"  # or "step"
    step_epochs: int = 20
    step_factor: float = 2 / 3
    flip: bool | None = None  # None: where it leaves a picture what it is, which digits are not
    mirror: bool = False  # codes are of the mean output of a picture and its mirror image: twice the time, better
    windows: int = 0  # further views of each picture for frozen blocks: it is cut at random places; slower and better
    shift: int = 0  # largest shift in pixels; only where no block is frozen
    precision: str = "auto"  # bfloat16 where the hardware has it
    device: str = "auto"

    PICTURES = 30_000

    def __post_init__(self) -> None:
        choices = {
            "last_batch": ("spread", "keep"),
            "optimizer": ("adamw", "sgd", "rmsprop"),
            "schedule": ("one-cycle", "step"),
            "precision": ("auto", "float32", "bfloat16"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name} must be {' or '.join(allowed)}, not '{getattr(self, name)}'")
        for name, least in {"epochs": 1, "batch_size": 2, "step_epochs": 1, "windows": 0, "shift": 0}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} must be at least {least}, not {value}")
        for name in ("lr", "head_lr"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be a positive number, not {getattr(self, name)}")
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"weight_decay must not be negative, not {self.weight_decay}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise UsageError(f"device must be auto, cpu or cuda, not '{self.device}'")

    def n_epochs(self, n: int) -> int:
        """Few pictures are seen more often than many, within reason."""
        return self.epochs or min(40, max(4, round(self.PICTURES / n)))

    def rate(self, done: float, epoch: int) -> float:
        """Factor on the learning rates: `done` is the part of all steps taken, `epoch` counts from 0."""
        if self.schedule == "step":
            return self.step_factor ** (epoch // self.step_epochs)
        warm, start, end = 0.3, 1 / 25, 1e-5  # the usual one-cycle: up for 30 % of the steps, then down
        if done < warm:
            return start + (1 - start) * (1 - math.cos(math.pi * done / warm)) / 2
        return end + (1 - end) * (1 + math.cos(math.pi * (done - warm) / (1 - warm))) / 2


class Inputs(Protocol):
    """What the network is trained on: rows of the training set as a tensor, augmented with the given randomness."""

    def __len__(self) -> int: ...

    def batch(self, rows: np.ndarray, rng: np.random.Generator) -> torch.Tensor: ...


@dataclass
class Position:
    """Where a run is; saved beside the weights."""

    epoch: int = 0
    step: int = 0
    slower: float = 1.0  # factor on the learning rate after a loss that was not a number
    tries: int = 0
    sums: dict[str, float] = field(default_factory=dict)  # over the steps of this epoch
    ones: list[int] = field(default_factory=list)  # of each bit, over the pictures of this epoch
    seconds: float = 0.0  # of this epoch so far
    history: list[dict[str, float]] = field(default_factory=list)


def train(
    network: nn.Module,
    loss: nn.Module,
    inputs: Inputs,
    labels: Labels | None,
    training: Training,
    *,
    seed: int,
    device: str,
    precision: str,
    checkpoint: Path | None = None,
    identity: dict[str, Any] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[dict[str, float]]:
    """Train `network` (its last module is the hash layer) in place; returns one row of COLUMNS an epoch.

    With `checkpoint` the state is written there after each epoch, and a run that finds one there goes on from it;
    `identity` is what must be equal for that. `loss(u, labels, rows)` gives a scalar and its own figures; a loss that
    knows what is alike by itself is trained without `labels`. Parameters of the loss learn at the rate of the hash
    layer; its `begin_epoch(epoch, epochs)`, where it has one, is called before the first step of each epoch.
    """
    progress = progress or Progress(quiet=True)
    n = len(inputs)
    epochs = training.n_epochs(n)
    optimizer = _optimizer(network, loss, training)
    at = Position()
    if checkpoint is not None and checkpoint.exists():
        at = _load(checkpoint, network, loss, optimizer, identity or {})
    safe = _snapshot(network, loss, optimizer, at)
    begin_epoch = getattr(loss, "begin_epoch", None)
    network.train()
    while at.epoch < epochs:
        batches = _batches(n, labels, training, np.random.default_rng([seed, at.epoch]))
        started = time.monotonic() - at.seconds
        if begin_epoch is not None and at.step == 0:
            begin_epoch(at.epoch, epochs)
        for step in range(at.step, len(batches)):
            rows = batches[step]
            done = (at.epoch * len(batches) + step) / (epochs * len(batches))
            rate = at.slower * training.rate(done, at.epoch)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["full_lr"]
            x = inputs.batch(rows, np.random.default_rng([seed, at.epoch, step])).to(device)
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
                u = network(x).float()
            value, figures = loss(u, None if labels is None else labels[rows], rows)
            if not torch.isfinite(value):
                break
            optimizer.zero_grad(set_to_none=True)
            value.backward()
            optimizer.step()
            _count(at, u.detach(), value.item(), figures, len(rows))
            at.step = step + 1
            if stop() and at.step < len(batches):
                at.seconds = time.monotonic() - started
                _stop(checkpoint, network, loss, optimizer, at, identity)
        learnt = [*network.parameters(), *loss.parameters()]
        if at.step < len(batches) or not all(torch.isfinite(p).all() for p in learnt):
            at = _roll_back(safe, network, loss, optimizer, at, training, progress)
            continue
        at.history.append(_row(at, rate * training.lr, time.monotonic() - started))
        at.epoch, at.step, at.sums, at.ones, at.seconds = at.epoch + 1, 0, {}, [], 0.0
        safe = _snapshot(network, loss, optimizer, at)
        if checkpoint is not None:
            _save(checkpoint, safe, identity or {})
            write_text(checkpoint.parent / "metrics.csv", metrics_csv(at.history))
        _tell(progress, at.history, epochs, training)
        if stop() and at.epoch < epochs:
            _stop(checkpoint, network, loss, optimizer, at, identity)
    network.eval()
    return at.history


def metrics_csv(history: list[dict[str, float]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in history:
        writer.writerow({name: f"{value:.6g}" for name, value in row.items()})
    return out.getvalue()


def _optimizer(network: nn.Module, loss: nn.Module, training: Training) -> torch.optim.Optimizer:
    head = list(list(network.children())[-1].parameters())
    blocks = [p for p in network.parameters() if all(p is not q for q in head)]
    head += loss.parameters()  # a classifier or weights of bits, which are no part of the network
    groups = [
        {"params": params, "lr": lr, "full_lr": lr}
        for params, lr in ((blocks, training.lr), (head, training.head_lr))
        if params
    ]
    if training.optimizer == "rmsprop":  # torch has no fused one
        return torch.optim.RMSprop(groups, lr=training.lr, weight_decay=training.weight_decay)
    kind = torch.optim.AdamW if training.optimizer == "adamw" else torch.optim.SGD
    return kind(groups, lr=training.lr, weight_decay=training.weight_decay, fused=True)


def _batches(n: int, labels: Labels | None, training: Training, rng: np.random.Generator) -> list[np.ndarray]:
    """The rows of an epoch in random order, cut into batches.

    With so many classes that a batch would hold few pictures of each, the pictures of a class are dealt in fours,
    so that every query finds positives.
    """
    size = training.batch_size
    order = rng.permutation(n)
    if labels is not None and not labels.multi and size < 4 * labels.n_classes:
        by_class = order[np.argsort(labels.values[order], kind="stable")]
        starts = np.flatnonzero(np.diff(labels.values[by_class])) + 1
        classes = np.split(by_class, starts)
        fours = [part for group in classes for part in np.array_split(group, max(1, len(group) // 4))]
        fours = [fours[i] for i in rng.permutation(len(fours))]
        batch = np.cumsum([0, *map(len, fours)])[:-1] * max(1, n // size) // n  # of each four; none is cut
        return [np.concatenate([fours[i] for i in np.flatnonzero(batch == b)]) for b in np.unique(batch)]
    if training.last_batch == "keep":
        # one picture alone has no batch statistics: it joins the batch before it
        cuts = [*range(0, n - 1 if n > size else n, size), n]
        return [order[a:b] for a, b in pairwise(cuts)]
    return np.array_split(order, max(1, n // size))


def _count(at: Position, u: torch.Tensor, value: float, figures: dict[str, float], n: int) -> None:
    quantisation = (u.abs() - 1).square().mean().item()
    for name, x in ({"loss": value, "quantisation": quantisation} | figures).items():
        at.sums[name] = at.sums.get(name, 0.0) + x * n
    at.sums["n"] = at.sums.get("n", 0) + n
    ones = (u > 0).sum(0).tolist()
    at.ones = [a + b for a, b in zip(at.ones, ones, strict=True)] if at.ones else ones


def _row(at: Position, lr: float, seconds: float) -> dict[str, float]:
    n = at.sums["n"]
    # a bit that says the same of (nearly) every picture tells nothing
    dead = sum(min(count, n - count) < 0.01 * n for count in at.ones)
    means = {name: at.sums.get(name, math.nan) / n for name in ("loss", "active", "quantisation")}
    return {"epoch": at.epoch + 1, **means, "dead_bits": dead, "lr": lr, "seconds": seconds}


def _tell(progress: Progress, history: list[dict[str, float]], epochs: int, training: Training) -> None:
    row = history[-1]
    if len(history) == 1:
        progress.say("epoch      loss   active   quant   dead bits    s/epoch   left")
    left = (epochs - len(history)) * sum(r["seconds"] for r in history) / len(history)
    progress.say(
        f"{row['epoch']:>3.0f}/{epochs:<3} {row['loss']:>9.4f} {row['active']:>7.1%} {row['quantisation']:>7.3f}"
        f" {row['dead_bits']:>8.0f} {row['seconds']:>12.1f}   {duration(left)}"
    )


Snapshot = tuple[dict[str, torch.Tensor], str]


def _snapshot(network: nn.Module, loss: nn.Module, optimizer: torch.optim.Optimizer, at: Position) -> Snapshot:
    """Everything that the next step depends on, copied."""
    tensors = {f"network.{k}": v for k, v in network.state_dict().items()}
    tensors |= {f"loss.{k}": v for k, v in loss.state_dict().items()}
    for i, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{i}.{k}": v for k, v in state.items() if v is not None}
    return {k: v.detach().clone().contiguous() for k, v in tensors.items()}, json.dumps(asdict(at))


def _restore(snapshot: Snapshot, network: nn.Module, loss: nn.Module, optimizer: torch.optim.Optimizer) -> Position:
    tensors, position = snapshot

    def part(prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        return ((k.removeprefix(prefix), v.clone()) for k, v in tensors.items() if k.startswith(prefix))

    network.load_state_dict(dict(part("network.")))
    loss.load_state_dict(dict(part("loss.")))
    state: dict[int, dict[str, torch.Tensor]] = {}
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for key, value in part("optimizer."):
        i, _, name = key.partition(".")
        if value.shape == params[int(i)].shape:  # moments must lie in memory as their weights do
            value = torch.empty_like(params[int(i)]).copy_(value)
        state.setdefault(int(i), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return Position(**json.loads(position))


def _save(checkpoint: Path, snapshot: Snapshot, identity: dict[str, Any]) -> None:
    from safetensors.torch import save_file

    tensors, position = snapshot
    with replacing(checkpoint) as temporary:
        save_file(tensors, temporary, {"position": position, "identity": json.dumps(identity)})


def _load(
    checkpoint: Path,
    network: nn.Module,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: dict[str, Any],
) -> Position:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(checkpoint, "pt") as file:
            facts = file.metadata() or {}
            saved, position = json.loads(facts["identity"]), facts["position"]
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"the checkpoint {checkpoint} is damaged ({error}); start again with another --out") from error
    different = [k for k in identity.keys() | saved.keys() if identity.get(k) != saved.get(k)]
    if different:
        facts_text = "; ".join(f"{k} was {saved.get(k)}, now {identity.get(k)}" for k in sorted(different))
        raise MismatchError(
            f"the checkpoint {checkpoint} belongs to another run ({facts_text});"
            " repeat that run's options or choose another --out"
        )
    return _restore((tensors, position), network, loss, optimizer)


def _stop(
    checkpoint: Path | None,
    network: nn.Module,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    at: Position,
    identity: dict[str, Any] | None,
) -> None:
    where = f"epoch {at.epoch + 1}, step {at.step}"
    if checkpoint is None:
        raise Stopped(f"stopped at {where}; nothing was saved because no run folder was given")
    _save(checkpoint, _snapshot(network, loss, optimizer, at), identity or {})
    raise Stopped(f"stopped and saved at {where}; continue with: hashlens train --resume {quoted(checkpoint.parent)}")


def _roll_back(
    safe: Snapshot,
    network: nn.Module,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    at: Position,
    training: Training,
    progress: Progress,
) -> Position:
    """Back to the start of the epoch with half the learning rate, a few times; then give up and say so."""
    broken, tries, slower = f"epoch {at.epoch + 1}, step {at.step + 1}", at.tries + 1, at.slower / 2
    if tries > TRIES:
        raise DivergedError(
            f"the loss was not a number {tries} times ({broken}); what was learnt before epoch {at.epoch + 1} is kept;"
            f" try --lr {training.lr / 10:g}"
        )
    at = _restore(safe, network, loss, optimizer)
    at.tries, at.slower = tries, slower
    progress.say(
        f"{broken}: the loss is not a number; back to the start of the epoch with the learning rate times {slower:g}"
        f" (try {tries} of {TRIES})"
    )
    return at
