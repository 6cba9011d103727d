"""What tests let several ranks do: torchrun runs this file, `alone` the same in one process."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from hashlens import DTSH, Training, make_hasher
from hashlens.data.labels import Labels
from hashlens.hashers.deep.inputs import ArrayInputs
from hashlens.hashers.deep.training import train
from hashlens.hashers.deep.triplet_losses import DTSHLoss
from hashlens.hashers.methods import METHODS
from hashlens.ranks import current, joined

N, BITS = 210, 8
SHORT = Training(epochs=5, batch_size=21, head_lr=5e-3, precision="float32")  # fifty steps; two ranks get 10 and 11


def data():
    """Features (n, 12), tiny images, class numbers and label sets of four clusters."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.arange(N) % 4)
    features = rng.normal(size=(4, 12))[y] + 0.8 * rng.normal(size=(N, 12))
    looks = rng.integers(0, 200, (4, 8, 8, 3))[y] + rng.integers(0, 56, (N, 8, 8, 3))
    sets = np.eye(4, dtype=int)[y] | np.eye(4, dtype=int)[rng.integers(0, 4, N)]
    return features, looks.astype(np.uint8), y, sets


def cases():
    """Names, and functions that fit a model: every other deep method, and DTSH in all ways."""
    features, images, y, sets = data()
    for name, method in METHODS.items():
        if not method.deep or name == "dtsh":
            continue
        settings = {"training": SHORT} if method.takes == "images" else {"epochs": 20}  # of three steps
        if name == "ninh":  # AdamW takes full steps along gradients of 1e-10 at the kinks of its loss
            settings = {"training": Training(**{**vars(SHORT), "optimizer": "sgd", "head_lr": 0.3})}
        settings |= {"pretraining_epochs": 5} if name == "semantic" else {}
        for kind, labels in (("single", y), ("multi", sets)):
            if method.supervised or kind == "single":
                yield (
                    f"{name}-{kind}",
                    lambda n=name, s=settings, t=labels: make_hasher(n, n_bits=BITS, second_bits=8, **s).fit(
                        features, t
                    ),
                )
    for sampling in ("in-batch", "published", "class-codes"):
        for kind, labels in (("single", y), ("multi", sets)):
            yield (
                f"{sampling}-{kind}",
                lambda s=sampling, t=labels: DTSH(BITS, sampling=s, training=SHORT).fit(features, t),
            )
    rng = np.random.default_rng(1)
    triplets = [[rng.choice(np.flatnonzero(y == y[q])), rng.choice(np.flatnonzero(y != y[q]))] for q in range(N)]
    rows = np.column_stack([np.arange(N), triplets])
    rows = rows[rows[:, 0] != rows[:, 1]]
    yield "given-triplets", lambda: DTSH(BITS, training=SHORT).fit(features, triplets=rows)

    def of_images(sampling="in-batch", frozen_blocks=0, **how):
        training = Training(**{**vars(SHORT), "lr": 1e-3, **how})
        hasher = DTSH(
            BITS, backbone="small-cnn", image_size=8, sampling=sampling, frozen_blocks=frozen_blocks, training=training
        )
        return hasher.fit(images, y)

    yield "batch-norms", lambda: of_images(flip=True, shift=1)
    yield "batch-norms-frozen-later", lambda: of_images(adapt=0.5)
    yield "frozen-blocks", lambda: of_images(frozen_blocks=2, flip=True, windows=1)
    yield "mixup", lambda: of_images("class-codes", flip=True, mixup=0.4)


def fit_all():
    """{case: what was learned and the figures of each epoch}."""
    found = {}
    for name, fit in cases():
        hasher = fit()
        arrays = {f"{name}:{key}": torch.from_numpy(np.array(value)) for key, value in hasher._state()[1].items()}
        found |= arrays
        if hasattr(hasher, "history_"):
            rows = [[row[key] for key in ("loss", "active", "gradient", "quantisation")] for row in hasher.history_]
            found[f"{name}:history"] = torch.tensor(rows, dtype=torch.float64)
    return found


class Faulty(nn.Module):
    """Passes on what it gets, but for `fault`, which one rank has at one step."""

    def __init__(self, fault):
        super().__init__()
        self.fault, self.calls = fault, 0

    def forward(self, x):
        self.calls += 1
        if current().rank == 1 and self.calls == 7:
            return self.fault(x)
        return x


def end(x):
    os.kill(os.getpid(), signal.SIGKILL)


def hang(x):
    time.sleep(1000)


FAULTS = {"nan": lambda x: x * torch.nan, "killed": end, "hangs": hang, "none": lambda x: x}


def train_with(fault, out, stop=lambda: False):
    """A training in which something happens to rank 1."""
    features, _, y, _ = data()
    torch.manual_seed(0)
    network = nn.Sequential(Faulty(FAULTS[fault]), nn.Linear(12, BITS))
    said = []

    class Heard:
        say = staticmethod(said.append)

    history = train(
        network,
        DTSHLoss(BITS),
        ArrayInputs([features.astype(np.float32)]),
        Labels.of(y),
        SHORT,
        seed=0,
        checkpoint=out / "checkpoint.safetensors",
        progress=Heard(),
        stop=stop,
    )
    return network, history, said


def main():
    what, out = sys.argv[1], Path(sys.argv[2])
    with joined() as ranks:
        if what == "all":
            found = fit_all()
            if ranks.first:
                save_file(found, out)
        elif what == "unequal":
            features, _, y, _ = data()
            DTSH(BITS, training=SHORT).fit(features + ranks.rank, y)
        else:
            network, _, said = train_with(what, out)
            if ranks.first:
                (out / "said.txt").write_text("\n".join(said))
                save_file(network.state_dict(), out / "network.safetensors")
    with joined() as again, joined() as within:
        assert again.size == within.size == ranks.size
        assert again.gathered(np.array([again.rank])).tolist() == [*range(again.size)]
    threads = [(thread / "comm").read_text() for thread in Path("/proc/self/task").iterdir()]
    assert not any("gloo" in name for name in threads), f"they could abort this process as it ends: {threads}"


if __name__ == "__main__":
    main()
