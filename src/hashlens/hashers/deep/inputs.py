"""Training inputs: row numbers and randomness in, an augmented tensor of features, maps or images out."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from hashlens.data.images import Images
from hashlens.hashers.deep.synced import batch_norms
from hashlens.machine import blocks
from hashlens.ranks import current

Read = Callable[[Any], torch.Tensor]  # takes positions in a batch


class Inputs:
    """A subclass implements `draw` and `__len__`."""

    def __len__(self) -> int:
        raise NotImplementedError

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> Read:
        """Draw the random choices for all `rows`; returns a function that reads the rows at some positions."""
        raise NotImplementedError

    def batch(self, rows: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        return self.draw(rows, rng)(slice(None))


class ArrayInputs(Inputs):
    """Features, or outputs of the frozen blocks, of one or more views of each image; each read draws one view."""

    def __init__(self, views: list[np.ndarray]):
        self.views = views  # each (n, ...) of the same shape and type

    def __len__(self) -> int:
        return len(self.views[0])

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> Read:
        chosen = rng.integers(0, len(self.views), len(rows))
        return lambda places: self._read(rows[places], chosen[places])

    def _read(self, rows: np.ndarray, chosen: np.ndarray) -> torch.Tensor:
        drawn = np.empty((len(rows), *self.views[0].shape[1:]), self.views[0].dtype)
        for i, view in enumerate(self.views):
            mine = chosen == i
            drawn[mine] = view[rows[mine]]
        x = torch.from_numpy(drawn).float()
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


class Windows(Images):
    """Random crops of images, 8/9 of their height and width, optionally with noise; one per image and seed."""

    def __init__(self, images: Images, seed: int, noise: int = 0):
        self.images, self.names, self.seed, self.noise = images, images.names, seed, noise

    def read(self, rows: Any, size: int) -> np.ndarray:
        rows = self._indices(rows)
        margin = size // 8
        wide = self.images.read(rows, size + margin)
        draws = [np.random.default_rng([self.seed, row]) for row in rows]
        places = [rng.integers(0, margin + 1, 2) for rng in draws]
        crops = np.stack([one[y : y + size, x : x + size] for one, (y, x) in zip(wide, places, strict=True)])
        if self.noise:
            noise = [rng.integers(-self.noise, self.noise + 1, crops.shape[1:], np.int16) for rng in draws]
            crops = (crops + np.stack(noise)).clip(0, 255).astype(np.uint8)
        return crops

    def fingerprint(self) -> str:
        return f"{self.images.fingerprint()} windows {self.seed} {self.noise}"

    def __getitem__(self, rows: Any) -> Images:
        raise NotImplementedError("crops are drawn by row; select images first")


class ImageInputs(Inputs):
    """Images, randomly flipped and shifted, for networks trained from the first block on."""

    def __init__(self, images: Images, size: int, flip: bool, shift: int):
        self.images, self.size, self.flip, self.shift = images, size, flip, shift

    def __len__(self) -> int:
        return len(self.images)

    def draw(self, rows: np.ndarray, rng: np.random.Generator) -> Read:
        n = len(rows)
        flipped = rng.random(n) < 0.5 if self.flip else np.zeros(n, bool)
        moved = rng.integers(0, 2 * self.shift + 1, (n, 2)) if self.shift else np.zeros((n, 2), int)
        return lambda places: self._read(rows[places], flipped[places], moved[places])

    def _read(self, rows: np.ndarray, flipped: np.ndarray, moved: np.ndarray) -> torch.Tensor:
        images = self.images.read(rows, self.size)  # (b, size, size, 3) uint8
        images[flipped] = images[flipped, :, ::-1]
        if margin := self.shift:
            wide = np.pad(images, ((0, 0), (margin, margin), (margin, margin), (0, 0)), mode="edge")
            for i, (y, x) in enumerate(moved):
                images[i] = wide[i, y : y + self.size, x : x + self.size]
        return torch.from_numpy(images)


def outputs_of(module: nn.Module, inputs: Inputs, adapt: bool = False) -> torch.Tensor:
    """A module's outputs for every training image, on the CPU; augmented as in training.

    With `adapt`, batch norms use the statistics of random batches, because an untrained network has no useful ones.
    Each rank computes a part.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    rng, ranks = np.random.default_rng(0), current()
    order = rng.permutation(len(inputs))
    reads = [inputs.draw(order[part], rng) for part in blocks(len(inputs), 256)]
    norms = [norm for norm in batch_norms(module.eval()) if adapt]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train().momentum = 0.0  # leaves their running statistics unchanged
    found = []
    with torch.no_grad():
        for read in reads[ranks.part(len(reads))]:
            found.append(module(read(slice(None)).to(device)).float().cpu())
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval().momentum = momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked += len(reads) - len(found)  # count the batches of other ranks
    outputs = ranks.gathered(torch.cat(found).numpy() if found else None)
    return torch.from_numpy(outputs)[np.argsort(order)]
