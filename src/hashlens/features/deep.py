"""Deep features: pictures in, the outputs of a network's leading blocks out, computed once and kept on disk.

Used for the frozen part of a network that is being trained (feature maps) and, with all blocks, for fixed
features. The file's name is a hash of everything it depends on: weights, picture size, flip, pictures and precision.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from hashlens import threads
from hashlens.errors import DataError, UsageError
from hashlens.features.batches import BATCH, forward_batches
from hashlens.features.cache import kept
from hashlens.progress import Progress

if TYPE_CHECKING:
    from torch import nn

    from hashlens.data.images import Images


def extract(
    blocks: nn.Module,
    images: Images,
    size: int,
    *,
    flip: bool = False,
    device: str = "cpu",
    precision: str = "float32",
    progress: Progress | None = None,
) -> np.ndarray:
    """Outputs of `blocks` (which take uint8 pictures) for all `images`, (n, ...) float16, mapped from the cache."""
    key = _key(blocks, images, f"{size} {flip} {precision}")
    outputs = forward_all(blocks, images, size, flip=flip, device=device, precision=precision)
    what = "features of flipped pictures" if flip else "features"
    return kept(key, len(images), _within_float16(outputs), np.float16, what=what, progress=progress)


def feature_size(kind: str) -> tuple[str, int]:
    """The backbone that makes features of this kind, and the size of the pictures that it is given.

    >>> feature_size("resnet50"), feature_size("resnet50@112")
    (('resnet50', 144), ('resnet50', 112))
    """
    from hashlens.networks import network_info

    given = re.fullmatch(r"(.+)@(\d+)", kind)
    backbone = given[1] if given else kind
    info = network_info(backbone)
    size = int(given[2]) if given else info.size
    if not 8 <= size <= 4096:
        raise UsageError(f"pictures for features must have 8 to 4,096 pixels a side, not {size}")
    return backbone, size


def feature_network(kind: str) -> tuple[nn.Module, int]:
    """The blocks that make features of this kind, and the size of the pictures that they take."""
    import torch

    from hashlens.networks import build_blocks

    backbone, size = feature_size(kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # a network without published weights gives the same features each time
        return build_blocks(backbone).eval(), size


def deep_features(images: Images, kind: str, *, progress: Progress | None = None) -> np.ndarray:
    """Fixed features (n, d) float32: what a pretrained backbone gives for each picture before any training."""
    from hashlens.networks.inference import choose_device, choose_precision

    device = choose_device()
    precision = choose_precision(device=device)
    blocks, size = feature_network(kind)
    found = extract(blocks, images, size, device=device, precision=precision, progress=progress)
    return np.asarray(found, np.float32)


def forward_all(
    module: nn.Module,
    images: Images,
    size: int,
    *,
    flip: bool = False,
    device: str = "cpu",
    precision: str = "float32",
) -> Iterator[tuple[slice, np.ndarray]]:
    """Run all pictures through `module` in batches; it is made ready only when the first is asked for."""
    from hashlens.networks.inference import forward_function, prepare_cpu

    prepare_cpu()
    forward = forward_function(module, np.zeros((1, size, size, 3), np.uint8), device, precision)
    yield from forward_batches(forward, images, size, flip=flip, batch=BATCH[device])


def forward_kept(
    module: nn.Module, maps: np.ndarray, *, device: str = "cpu", precision: str = "float32"
) -> Iterator[tuple[slice, np.ndarray]]:
    """The same for what `extract` gave for the leading blocks: run the rest of the network on it."""
    from hashlens.networks.inference import forward_function, prepare_cpu

    prepare_cpu()
    forward = forward_function(module, np.zeros((1, *maps.shape[1:]), np.float32), device, precision)

    def outputs(rows: slice) -> tuple[slice, np.ndarray]:
        return rows, forward(np.asarray(maps[rows], np.float32))

    yield from threads.work_ahead(outputs, threads.blocks(len(maps), BATCH[device]))


def _within_float16(batches: Iterable[tuple[slice, np.ndarray]]) -> Iterator[tuple[slice, np.ndarray]]:
    """float16 keeps 11 bits of a feature, which networks hold within a few units or tens."""
    for rows, outputs in batches:
        if np.abs(outputs).max(initial=0) > np.finfo(np.float16).max:
            raise DataError("the outputs of the frozen blocks are too large to be kept; use --frozen-blocks 0")
        yield rows, outputs


def _key(blocks: nn.Module, images: Images, settings: str) -> str:
    digest = hashlib.sha256(f"{settings} {images.fingerprint()}".encode())
    digest.update(str(blocks).encode())
    for name, value in sorted(blocks.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()[:32]
