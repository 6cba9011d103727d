"""Training, the only training loop: a network, a loss and inputs in, trained weights and a history out.

The random numbers of a step depend only on the seed, the epoch and the step, and the learning rate on the position in
training. So a resumed run takes the same steps as an uninterrupted one, bit for bit on the CPU, and several ranks
(ranks.py), each of which computes the outputs of a part of a batch, take the same steps as one process. No score is
computed during training and no epoch is chosen afterwards: the last weights are the model.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import nn

from hashlens.checksums import damaged, read_tensors, write_tensors
from hashlens.data.labels import Labels
from hashlens.errors import DivergedError, MismatchError, Stopped, UsageError
from hashlens.files import quoted, write_csv
from hashlens.hashers.deep.inputs import Inputs
from hashlens.hashers.deep.synced import average_gradients, batch_norms, gather, synced_statistics
from hashlens.hashers.losses import Loss, label_tensor
from hashlens.progress import Progress, counted, duration
from hashlens.ranks import Ranks, current
from hashlens.schema import conform, parse_json, whole
from hashlens.settings import check, setting

COLUMNS = ["epoch", "loss", "active", "gradient", "quantisation", "dead_bits", "lr", "seconds"]
TRIES = 3  # restarts of an epoch after a NaN or infinite loss
# values for settings that are None, unless the method has its own recipe
RECIPE: dict[str, Any] = {
    "images": 30_000,
    "lr": 1e-3,
    "head_lr": 5e-3,
    "weight_decay": 1e-4,
    "adapt": 1.0,
    "mixup": 0.0,
}
REAL = (float, whole())
POSITION = {  # the schema of `Position` in a checkpoint
    **{"epoch": whole(), "step": whole(), "slower": REAL, "tries": whole(0, TRIES), "sums": dict, "ones": [whole()]},
    **{"seconds": REAL, "history": [dict.fromkeys(COLUMNS, REAL)]},
}


@dataclass(frozen=True)
class Training:
    """How to train. The defaults are ours, for a pretrained network on a CPU; None lets the method choose."""

    epochs: int | None = setting(None, "training epochs; none: 4 to 40, by the number of images in total", low=1)
    images: int | None = setting(None, "total images over all epochs, if epochs is none", low=1)
    batch_size: int = setting(64, "images per step", low=2)
    last_batch: str = setting(
        "spread", "spread a short last batch over the epoch's others, or keep it", choices=("spread", "keep")
    )
    optimizer: str = setting("adamw", "optimizer", choices=("adamw", "sgd", "rmsprop"))
    lr: float | None = setting(None, "learning rate of the pretrained blocks", above=0, search=(1e-4, 5e-3))
    head_lr: float | None = setting(None, "learning rate of the hash layer", above=0, search=(1e-3, 5e-2))
    weight_decay: float | None = setting(None, "weight decay", low=0, search=(1e-4, 1.0))
    schedule: str = setting("one-cycle", "learning rate schedule", choices=("one-cycle", "step"))
    step_epochs: int = setting(20, "epochs between steps of the step schedule", low=1)
    step_factor: float = setting(2 / 3, "factor of each step of the step schedule", above=0)
    flip: bool | None = setting(None, "train on mirrored images too; none: yes, unless the backbone is for digits")
    mirror: bool = setting(False, "average each image with its mirror image: 2x slower, more accurate")
    windows: int = setting(
        0, "extra random crops per training image, if blocks are frozen: slower, more accurate", low=0
    )
    shift: int = setting(0, "largest random shift in pixels; only if no block is frozen", low=0)
    adapt: float | None = setting(
        None,
        "fraction of training in which batch norms use the statistics of the batch; afterwards these are frozen",
        low=0,
        high=1,
    )
    mixup: float | None = setting(
        None, "train on mixtures of two images and their labels, with shares drawn from Beta(mixup, mixup)", low=0
    )
    precision: str = setting(
        "auto",
        "arithmetic of training; auto: bfloat16 where it is fast; codes are always computed in float32",
        choices=("auto", "float32", "bfloat16"),
    )
    device: str = setting("auto", "device to train on", choices=("auto", "cpu", "cuda"))

    def __post_init__(self) -> None:
        check(self)

    def completed(self, recipe: Mapping[str, Any], bfloat16: bool = False) -> Any:
        """A copy with the values of `recipe` for settings that are None, and a precision if that is auto.

        `bfloat16` says whether the network is faster with it. The type is Any, since no type says that nothing is None
        any more.
        """
        chosen = {name: value for name, value in recipe.items() if getattr(self, name) is None}
        if self.precision == "auto":
            chosen["precision"] = "bfloat16" if bfloat16 else "float32"
        return replace(self, **chosen)

    def n_epochs(self, n: int) -> int:
        """More epochs for fewer images, within limits."""
        return self.epochs or min(40, max(4, round((self.images or RECIPE["images"]) / n)))

    def rate(self, done: float, epoch: int) -> float:
        """Factor for the learning rates: `done` is the fraction of all steps taken, `epoch` counts from 0."""
        if self.schedule == "step":
            return self.step_factor ** (epoch // self.step_epochs)
        warm, start, end = 0.3, 1 / 25, 1e-5  # the usual one-cycle: up for 30 % of the steps, then down
        if done < warm:
            return start + (1 - start) * (1 - math.cos(math.pi * done / warm)) / 2
        return end + (1 - end) * (1 + math.cos(math.pi * (done - warm) / (1 - warm))) / 2


def released(lr: float, **how: Any) -> Training:
    """Training as in the authors' MatConvNet code for DTSH and DPSH, with one learning rate for all layers."""
    common: dict[str, Any] = {"batch_size": 128, "last_batch": "keep", "optimizer": "sgd", "schedule": "step"}
    return Training(lr=lr, head_lr=lr, flip=False, precision="float32", **common | how)


@dataclass
class Position:
    """Where a run is; saved with the weights."""

    epoch: int = 0
    step: int = 0
    slower: float = 1.0  # factor for the learning rate after a NaN
    tries: int = 0
    sums: dict[str, float] = field(default_factory=dict)  # over the steps of this epoch
    ones: list[int] = field(default_factory=list)  # per bit, over the images of this epoch
    seconds: float = 0.0  # spent on this epoch so far
    history: list[dict[str, float]] = field(default_factory=list)


def train(
    network: nn.Module,
    loss: Loss,
    inputs: Inputs,
    labels: Labels | None,
    training: Training,
    *,
    seed: int,
    device: str = "cpu",
    checkpoint: Path | None = None,
    identity: dict[str, Any] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[dict[str, float]]:
    """Train `network` (its last module is the hash layer) in place; returns one row of COLUMNS per epoch.

    With `checkpoint` the state is written there after each epoch, and an existing one is resumed if its `identity` is
    equal. Some losses need no `labels`. Parameters of the loss learn at the rate of the hash layer.
    """
    ranks = current()
    progress = progress if progress and ranks.first else Progress(quiet=True)
    how = training.completed(RECIPE)
    if how.mixup and not loss.mixes:
        raise UsageError(
            f"{type(loss).__name__} compares images with each other, so it cannot use mixtures of two images; omit"
            " mixup"
        )
    n = len(inputs)
    epochs = how.n_epochs(n)
    dealt = None if loss.mixes else labels  # losses that compare images need pairs of a class in each batch

    def batches_of(epoch: int) -> list[np.ndarray]:
        return _batches(n, dealt, how, np.random.default_rng([seed, epoch]))

    _require_shared(ranks, (len(rows) for epoch in range(epochs) for rows in batches_of(epoch)))
    state = _State(network, loss, how, checkpoint, identity or {}, ranks)
    if checkpoint is not None and ranks.first and checkpoint.exists():
        state.load()
    safe = state.agreed()
    values: Any = None if labels is None else label_tensor(labels)
    learned = [*network.parameters(), *loss.parameters()]
    while (at := state.at).epoch < epochs:
        network.train()
        batches = batches_of(at.epoch)
        started = time.monotonic() - at.seconds
        if at.step == 0:
            loss.begin_epoch(at.epoch, epochs)
        for step in range(at.step, len(batches)):
            rows = batches[step]
            done = (at.epoch * len(batches) + step) / (epochs * len(batches))
            rate = at.slower * how.rate(done, at.epoch)
            for group in state.optimizer.param_groups:
                group["lr"] = rate * group["full_lr"]
            if done >= how.adapt:
                freeze_statistics(network)
            rng = np.random.default_rng([seed, at.epoch, step])
            read = inputs.draw(rows, rng)  # draws the random choices of the whole batch
            mine = ranks.part(len(rows))
            x = read(mine).to(device)
            share, others = 1.0, rows
            if how.mixup:
                share, others = float(rng.beta(how.mixup, how.mixup)), rng.permutation(len(rows))
                other = x[others] if ranks.size == 1 else read(others[mine]).to(device)
                x, others = mixed(x, other, share), rows[others]
            with (
                synced_statistics(network, ranks),
                torch.autocast(device, torch.bfloat16, enabled=how.precision == "bfloat16"),
            ):
                u = network(x).float()
            u = gather(u, len(rows), ranks)
            u.retain_grad()
            value = share * loss(u, None if values is None else values[rows], rows)
            if share < 1:
                value = value + (1 - share) * loss(u, values[others], others)
            broken, asked = ranks.each_any(not torch.isfinite(value), stop())
            if broken:
                break
            state.optimizer.zero_grad(set_to_none=True)
            value.backward()
            average_gradients(learned, ranks)
            state.optimizer.step()
            _count(at, u, value.item(), loss.figures)
            at.step = step + 1
            if asked and at.step < len(batches):
                at.seconds = time.monotonic() - started
                state.stop()
        if at.step < len(batches) or ranks.any(not all(torch.isfinite(p).all() for p in learned)):
            progress.say(state.roll_back(safe))
            continue
        at.history.append(_row(at, rate * how.lr, time.monotonic() - started))
        at.epoch, at.step, at.sums, at.ones, at.seconds = at.epoch + 1, 0, {}, [], 0.0
        safe = state.agreed()
        if checkpoint is not None and ranks.first:
            state.save(safe)
            rows_of_csv = [[f"{row[name]:.6g}" for name in COLUMNS] for row in at.history]
            write_csv(checkpoint.parent / "metrics.csv", COLUMNS, rows_of_csv)
        _tell(progress, at.history, epochs)
        if ranks.any(stop()) and at.epoch < epochs:
            state.stop()
    network.eval()
    return state.at.history


def mixed(x: torch.Tensor, other: torch.Tensor, share: float) -> torch.Tensor:
    """`share` of each image of x and the rest of another image; pixel values stay integers."""
    mixture = share * x + (1 - share) * other
    return mixture if x.is_floating_point() else mixture.round().to(x.dtype)


def fast_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 matrices faster than float32 ones."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def freeze_statistics(network: nn.Module) -> None:
    for norm in batch_norms(network):
        norm.eval()


Snapshot = tuple[dict[str, torch.Tensor], str]


class _State:
    """Everything that the next step depends on, and the checkpoint that it is saved to."""

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        training: Any,
        checkpoint: Path | None,
        identity: dict[str, Any],
        ranks: Ranks,
    ):
        self.network, self.loss, self.training, self.ranks = network, loss, training, ranks
        self.checkpoint, self.identity = checkpoint, identity
        self.optimizer, self.at = _optimizer(network, loss, training), Position()

    def snapshot(self) -> Snapshot:
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"loss.{k}": v for k, v in self.loss.state_dict().items()}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in state.items() if v is not None}
        return {k: v.detach().clone().contiguous() for k, v in tensors.items()}, json.dumps(asdict(self.at))

    def agreed(self) -> Snapshot:
        """The snapshot of rank 0, from which all ranks continue, because processors round differently."""
        tensors, position = self.snapshot()
        if self.ranks.size > 1:
            position = self.ranks.from_first(position.encode).decode()
            content = self.ranks.from_first(lambda: to_bytes(tensors))
            if not self.ranks.first:
                tensors = from_bytes(content)
                self.restore((tensors, position))
        return tensors, position

    def restore(self, snapshot: Snapshot) -> None:
        def part(name: str) -> dict[str, torch.Tensor]:
            return {k.removeprefix(name): v.clone() for k, v in snapshot[0].items() if k.startswith(name)}

        self.network.load_state_dict(part("network."))
        self.loss.load_state_dict(part("loss."))
        moments: dict[int, dict[str, torch.Tensor]] = {}
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        for key, value in part("optimizer.").items():
            i, _, name = key.partition(".")
            if value.shape == params[int(i)].shape:  # moments must have the memory layout of the weights
                value = torch.empty_like(params[int(i)]).copy_(value)
            moments.setdefault(int(i), {})[name] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.at = Position(**json.loads(snapshot[1]))

    def save(self, snapshot: Snapshot) -> None:
        assert self.checkpoint is not None
        write_tensors(self.checkpoint, snapshot[0], {"position": snapshot[1], "identity": json.dumps(self.identity)})

    def load(self) -> None:
        assert self.checkpoint is not None
        path, now = self.checkpoint, json.loads(json.dumps(self.identity))
        try:
            tensors, facts, _ = read_tensors(path, ("position", "identity"))
            saved, position = conform(parse_json(facts["identity"]), dict, "identity"), facts["position"]
            at = conform(parse_json(position), POSITION, "position")
            if len(at["history"]) != at["epoch"] or not 0 < at["slower"] <= 1:
                raise ValueError("its position is none of a training")
        except (OSError, KeyError, ValueError) as error:
            raise damaged(path, error, "start again with another --out") from error
        different = sorted(k for k in now.keys() | saved.keys() if now.get(k) != saved.get(k))
        if different:
            facts_text = "; ".join(f"{k} was {saved.get(k)}, now {now.get(k)}" for k in different)
            raise MismatchError(
                f"the checkpoint {path} belongs to another run ({facts_text}); repeat that run's options or choose"
                " another --out"
            )
        try:
            self.restore((tensors, position))
        except (RuntimeError, KeyError, ValueError, IndexError, AttributeError) as error:
            why = str(error).splitlines()[0][:200]
            raise damaged(path, f"it does not fit the network: {why}", "start again with another --out") from error

    def stop(self) -> None:
        where = f"epoch {self.at.epoch + 1}, step {self.at.step}"
        if self.checkpoint is None:
            raise Stopped(f"stopped at {where}; nothing was saved because no run folder was given")
        if self.ranks.first:
            self.save(self.snapshot())
        raise Stopped(
            f"stopped and saved at {where}; resume with: hashlens train --resume {quoted(self.checkpoint.parent)}"
        )

    def roll_back(self, safe: Snapshot) -> str:
        """Return to the start of the epoch with half the learning rate, at most TRIES times; returns a message."""
        at = self.at
        where, tries, slower = f"epoch {at.epoch + 1}, step {at.step + 1}", at.tries + 1, at.slower / 2
        if tries > TRIES:
            raise DivergedError(
                f"the loss was NaN or infinite {tries} times ({where}); the checkpoint before epoch"
                f" {at.epoch + 1} is kept; try --set lr={self.training.lr / 10:g}"
            )
        self.restore(safe)
        self.at.tries, self.at.slower = tries, slower
        return (
            f"{where}: the loss is NaN or infinite; back to the start of the epoch with the learning rate times"
            f" {slower:g} (try {tries} of {TRIES})"
        )


def _require_shared(ranks: Ranks, sizes: Iterable[int]) -> None:
    """Refuse batches with fewer images than ranks."""
    if ranks.size > 1 and (smallest := min(sizes)) < ranks.size:
        raise UsageError(
            f"a batch of {counted(smallest, 'image')} cannot be shared by {ranks.size} ranks; use fewer ranks or a"
            " larger --set batch_size"
        )


def _optimizer(network: nn.Module, loss: Loss, training: Any) -> torch.optim.Optimizer:
    head = list(list(network.children())[-1].parameters())
    blocks = [p for p in network.parameters() if all(p is not q for q in head)]
    head += loss.parameters()  # a classifier or bit weights, not part of the network
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

    If there are so many classes that a batch would have few images of each, images of a class are dealt in fours, so
    that every query has positives.
    """
    size = training.batch_size
    order = rng.permutation(n)
    if labels is not None and not labels.multi and size < 4 * labels.n_classes:
        by_class = order[np.argsort(labels.values[order], kind="stable")]
        starts = np.flatnonzero(np.diff(labels.values[by_class])) + 1
        classes = np.split(by_class, starts)
        fours = [part for group in classes for part in np.array_split(group, max(1, len(group) // 4))]
        fours = [fours[i] for i in rng.permutation(len(fours))]
        batch = np.cumsum([0, *map(len, fours)])[:-1] * max(1, n // size) // n  # batch of each four, never split
        return [np.concatenate([fours[i] for i in np.flatnonzero(batch == b)]) for b in np.unique(batch)]
    if training.last_batch == "keep":
        # a single image has no batch statistics, so it joins the previous batch
        cuts = [*range(0, n - 1 if n > size else n, size), n]
        return [order[a:b] for a, b in pairwise(cuts)]
    return np.array_split(order, max(1, n // size))


def _count(at: Position, u: torch.Tensor, value: float, figures: dict[str, float]) -> None:
    n, slope = len(u), u.grad
    u = u.detach()
    quantisation = (u.abs() - 1).square().mean().item()
    gradient = math.nan if slope is None else slope.norm(dim=1).sum().item()  # of an image's own loss, not of the mean
    for name, x in ({"loss": value, "quantisation": quantisation, "gradient": gradient} | figures).items():
        at.sums[name] = at.sums.get(name, 0.0) + x * n
    at.sums["n"] = at.sums.get("n", 0) + n
    ones = (u > 0).sum(0).tolist()
    at.ones = [a + b for a, b in zip(at.ones, ones, strict=True)] if at.ones else ones


def _row(at: Position, lr: float, seconds: float) -> dict[str, float]:
    n = at.sums["n"]
    # a bit that is the same for nearly all images carries no information
    dead = sum(min(count, n - count) < 0.01 * n for count in at.ones)
    means = {name: at.sums.get(name, math.nan) / n for name in ("loss", "active", "gradient", "quantisation")}
    return {"epoch": at.epoch + 1, **means, "dead_bits": dead, "lr": lr, "seconds": seconds}


def _tell(progress: Progress, history: list[dict[str, float]], epochs: int) -> None:
    row = history[-1]
    if len(history) == 1:
        progress.say("epoch      loss   active   quant   dead bits    s/epoch   left")
    left = (epochs - len(history)) * sum(r["seconds"] for r in history) / len(history)
    progress.say(
        f"{row['epoch']:>3.0f}/{epochs:<3} {row['loss']:>9.4f} {row['active']:>7.1%} {row['quantisation']:>7.3f}"
        f" {row['dead_bits']:>8.0f} {row['seconds']:>12.1f}   {duration(left)}"
    )
