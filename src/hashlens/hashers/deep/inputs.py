"""What a network is trained on: rows of features, feature maps or pictures in, an augmented tensor out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from hashlens.data.images import Images


class FeatureInputs:
    """Fixed features (n, d), as they are."""

    def __init__(self, features: np.ndarray):
        self.features = torch.from_numpy(np.asarray(features, np.float32))

    def __len__(self) -> int:
        return len(self.features)

    def batch(self, rows: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        return self.features[rows]


class MapInputs:
    """Outputs of the frozen blocks for each picture: of one or more views of it, of which one is drawn each time."""

    def __init__(self, views: list[np.ndarray]):
        self.views = views  # each (n, ...) float16

    def __len__(self) -> int:
        return len(self.views[0])

    def batch(self, rows: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        chosen = rng.integers(0, len(self.views), len(rows))
        maps = np.empty((len(rows), *self.views[0].shape[1:]), np.float16)
        for i, view in enumerate(self.views):
            mine = chosen == i
            maps[mine] = view[rows[mine]]
        x = torch.from_numpy(maps).float()
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


class Windows(Images):
    """The same pictures, of each a window at a random place: 8/9 of its height and width."""

    def __init__(self, images: Images, seed: int):
        self.images, self.names, self.seed = images, images.names, seed

    def read(self, rows: Any, size: int) -> np.ndarray:
        rows = self._indices(rows)
        margin = size // 8
        wide = self.images.read(rows, size + margin)
        places = [np.random.default_rng([self.seed, row]).integers(0, margin + 1, 2) for row in rows]
        return np.stack([one[y : y + size, x : x + size] for one, (y, x) in zip(wide, places, strict=True)])

    def fingerprint(self) -> str:
        return f"{self.images.fingerprint()} windows {self.seed}"

    def picture(self, row: int, at_least: int | None = None) -> Image.Image:
        return self.images.picture(row, at_least)

    def __getitem__(self, rows: Any) -> Images:
        raise NotImplementedError("windows are drawn by row: cut out pictures first")


class PictureInputs:
    """Pictures, flipped and shifted at random: for networks that are trained from the first block on."""

    def __init__(self, images: Images, size: int, flip: bool, shift: int):
        self.images = images
        self.size = size
        self.flip = flip
        self.shift = shift

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, rows: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
        pictures = self.images.read(rows, self.size)  # (b, size, size, 3) uint8
        if self.flip:
            flipped = rng.random(len(rows)) < 0.5
            pictures[flipped] = pictures[flipped, :, ::-1]
        if self.shift:
            margin = self.shift
            wide = np.pad(pictures, ((0, 0), (margin, margin), (margin, margin), (0, 0)), mode="edge")
            for i, (y, x) in enumerate(rng.integers(0, 2 * margin + 1, (len(rows), 2))):
                pictures[i] = wide[i, y : y + self.size, x : x + self.size]
        return torch.from_numpy(pictures)
