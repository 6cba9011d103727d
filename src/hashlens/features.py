"""Features: pictures in, the outputs of a network's leading blocks out, computed once and kept on disk.

Used for the frozen part of a network that is being trained (feature maps) and, with all blocks, for fixed
features. The file's name is a hash of everything it depends on: weights, picture size, flip, pictures and precision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from hashlens.errors import DataError
from hashlens.files import cache_dir, replacing, require_room
from hashlens.progress import Progress
from hashlens.threads import blocks as cut
from hashlens.threads import work_ahead

if TYPE_CHECKING:
    from torch import nn

    from hashlens.data.images import Images

BATCH = {"cpu": 8, "cuda": 256}  # larger batches fall out of the CPU's caches


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
    progress = progress or Progress(quiet=True)
    key = _key(blocks, images, f"{size} {flip} {precision}")
    path = cache_dir() / "features" / f"{key}.npy"
    if path.exists():
        return np.load(path, mmap_mode="r")
    what = "features of flipped pictures" if flip else "features"
    with replacing(path) as temporary, progress.bar(what, len(images)) as advance:
        out: np.memmap | None = None
        for rows, outputs in forward_all(blocks, images, size, flip=flip, device=device, precision=precision):
            if out is None:
                shape = (len(images), *outputs.shape[1:])
                require_room(path.parent, int(np.prod(shape)) * 2, "the features")
                out = np.lib.format.open_memmap(temporary, "w+", np.float16, shape)
            # float16 keeps 11 bits of a feature, which networks hold within a few units or tens
            if np.abs(outputs).max(initial=0) > np.finfo(np.float16).max:
                raise DataError("the outputs of the frozen blocks are too large to be kept; use --frozen-blocks 0")
            out[rows] = outputs
            advance(len(outputs))
        assert out is not None, "callers pass at least one picture"
        out.flush()
        del out
    return np.load(path, mmap_mode="r")


def deep_features(images: Images, backbone: str, *, progress: Progress | None = None) -> np.ndarray:
    """Fixed features (n, d) float32: what a pretrained backbone gives for each picture before any training."""
    from hashlens.networks import build_blocks, network_info
    from hashlens.networks.inference import choose_device, choose_precision

    device = choose_device()
    precision = choose_precision(device=device)
    size = network_info(backbone).size
    blocks = build_blocks(backbone).eval()
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
    """Run all pictures through `module` in batches; each core reads and computes batches of its own.

    Cores that share one batch would wait for each other at every layer.
    """
    from hashlens.networks.inference import forward_function, prepare_cpu

    prepare_cpu()
    forward = forward_function(module, np.zeros((1, size, size, 3), np.uint8), device, precision)

    def outputs(rows: slice) -> tuple[slice, np.ndarray]:
        pictures = images.read(np.arange(rows.start, rows.stop), size)
        return rows, forward(np.ascontiguousarray(pictures[:, :, ::-1]) if flip else pictures)

    yield from work_ahead(outputs, cut(len(images), BATCH[device]))


def _key(blocks: nn.Module, images: Images, settings: str) -> str:
    digest = hashlib.sha256(f"{settings} {images.fingerprint()}".encode())
    digest.update(str(blocks).encode())
    for name, value in sorted(blocks.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()[:32]
