"""Extractor: uint8 images (b, size, size, 3) in, float32 rows out, by a network or as GIST.

Nothing between an image and its code is rounded below float32, and the values of an image do not depend on other images
in the batch: kernels whose order of summation depends on the number of rows always get the same number.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.errors import DataError, UsageError, require
from hashlens.features.cache import kept
from hashlens.machine import blocks, one_blas_thread, work_ahead
from hashlens.progress import Progress
from hashlens.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from torch import nn

    from hashlens.data.images import Images

GIST = "gist"
DEEP = "efficientnet-lite0"  # the network that "deep" stands for
BATCH = {"cpu": 8, "cuda": 256}  # images per batch; larger ones fall out of the CPU's caches

Forward = Callable[[np.ndarray], np.ndarray]


class Extractor:
    """A function from uint8 batches to float32 outputs that several threads may call at once.

    `make` builds it when it is first needed: a cached result needs only `key`, the hash of everything the outputs
    depend on. With a `stem`, the part of a network that several models share, the input is the stem's outputs.
    """

    def __init__(
        self,
        make: Callable[[], Forward],
        size: int,
        key: Callable[[], str],
        *,
        stem: Extractor | None = None,
        batch: int = BATCH["cpu"],
        module: nn.Module | None = None,
    ):
        self.size, self.stem, self.batch = size, stem, batch
        self.module = module  # the network, if any, for export
        self._make, self._key = make, key

    @classmethod
    def of_network(cls, module: Any, size: int, *, cut: int = 0, device: str = "auto") -> Extractor:
        """The outputs of a network that takes uint8 images; its first `cut` modules are the stem."""
        require("torch", why="a network")
        from hashlens.features.networks.inference import choose_device

        device = choose_device(device)
        stem = cls.of_network(module[:cut], size, device=device) if cut else None

        def make() -> Forward:
            from hashlens.features.networks.inference import forward_function, prepare_cpu

            prepare_cpu()
            blank = np.zeros((1, size, size, 3), np.uint8)
            return forward_function(module[cut:], blank if stem is None else stem(blank), device)

        def key() -> str:
            digest = hashlib.sha256(f"{size} {device} {module}".encode())
            for name, value in sorted(module.state_dict().items()):
                digest.update(name.encode() + value.cpu().numpy().tobytes())
            if {type(m).__module__.partition(".")[0] for m in module.modules()} - {"torch", "hashlens"}:
                digest.update(found.probe.tobytes())  # its forward method may have been edited
            return digest.hexdigest()

        found = cls(make, size, key, stem=stem, batch=BATCH[device], module=module)
        return found

    @cached_property
    def forward(self) -> Forward:
        """The function from a batch, or the stem's outputs for it, to outputs."""
        return self._make()

    @cached_property
    def key(self) -> str:
        return self._key()

    @cached_property
    def probe(self) -> np.ndarray:
        """Eight numbers that mix all outputs for two fixed images; they differ for networks with other outputs."""
        rng = np.random.default_rng(0)
        outputs = self(rng.integers(0, 256, (2, self.size, self.size, 3), np.uint8)).ravel()
        return rng.standard_normal((8, len(outputs)), np.float32) @ outputs / np.sqrt(len(outputs))

    def gives(self, probe: np.ndarray | None) -> bool:
        """Whether `probe` is from this extractor, up to the rounding of another machine."""
        return probe is not None and np.allclose(self.probe, probe, rtol=0, atol=1e-3 * np.abs(probe).max())

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        return self.forward(batch if self.stem is None else self.stem(batch))

    def cached(
        self,
        images: Images,
        *,
        flip: bool = False,
        dtype: type[np.floating] = np.float32,
        what: str = "features",
        progress: Progress | None = None,
        ranks: Ranks = ALONE,
    ) -> np.ndarray:
        """Outputs for all images, (n, ...), computed once and mapped from the cache.

        Everything that leads to a code is float32. float16, with its 11 bits, is enough for maps to train on. Each of
        the `ranks` computes a part.
        """
        if len(images) == 0:
            raise DataError("no images given; give at least one")
        if images.whole is not None:
            whole, rows = images.whole
            return self.cached(whole, flip=flip, dtype=dtype, what=what, progress=progress, ranks=ranks)[rows]
        settings = f"{self.key} {flip} {np.dtype(dtype)} {images.fingerprint()}"
        key = hashlib.sha256(settings.encode()).hexdigest()[:32]
        ranks.require_same(features=key)

        def outputs(rows: slice) -> np.ndarray:
            batch = images.read(np.arange(rows.start, rows.stop), self.size)
            found = self(mirrored(batch) if flip else batch)
            if np.abs(found).max(initial=0) > np.finfo(dtype).max:
                raise DataError("the outputs of the frozen blocks are too large to be kept; use --frozen-blocks 0")
            return found

        def batches() -> Iterator[tuple[slice, np.ndarray]]:
            _ = self.forward  # build it once here, not in each thread
            parts, done = blocks(len(images), self.batch), 0
            with one_blas_thread():
                mine = work_ahead(outputs, ranks.turns(parts))
                while done < len(images):  # one batch per rank
                    found = ranks.gathered(next(mine, None))
                    yield slice(done, done + len(found)), found
                    done += len(found)

        what += " of mirrored images" if flip else ""
        return kept(key, len(images), batches(), dtype, what=what, progress=progress, ranks=ranks)


def extractor(kind: str) -> Extractor:
    """Fixed features: "gist", "deep", or a pretrained network, optionally with an image size: "resnet50@112"."""
    if kind == GIST:
        require("scipy", "threadpoolctl", why="GIST")
        from hashlens.features.gist import SIZE, VERSION, describe

        return Extractor(lambda: describe, SIZE, lambda: f"{GIST} {VERSION} {SIZE}")
    require("torch", why=f"computing {kind} features (except by an exported model)")
    import torch

    from hashlens.features.networks import build_blocks

    backbone, size = feature_size(kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # fixes the features of a network without published weights
        return Extractor.of_network(build_blocks(backbone).eval(), size)


def image_features(images: Images, kind: str, *, progress: Progress | None = None, ranks: Ranks = ALONE) -> np.ndarray:
    """Fixed features (n, d) float32, computed once and kept in the cache."""
    return extractor(kind).cached(images, progress=progress, ranks=ranks)


def backbone_of(kind: str) -> str:
    return DEEP if kind == "deep" else kind


def feature_size(kind: str) -> tuple[str, int]:
    """The network that makes features of this kind, and the size of its input images.

    >>> feature_size("resnet50"), feature_size("resnet50@112")
    (('resnet50', 144), ('resnet50', 112))
    """
    from hashlens.features.networks import network_info

    given = re.fullmatch(r"(.+)@(\d+)", backbone_of(kind))
    backbone = given[1] if given else backbone_of(kind)
    info = network_info(backbone)
    size = int(given[2]) if given else info.size
    if not 8 <= size <= 4096:
        raise UsageError(f"the image size for features must be between 8 and 4,096 pixels, got {size}")
    return backbone, size


def is_features(X: Any) -> bool:
    """Whether X is rows of numbers rather than images."""
    return (isinstance(X, np.ndarray) and X.ndim == 2) or hasattr(X, "toarray")  # sparse matrices have toarray


def mirrored(batch: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(batch[:, :, ::-1])


def one_core_session(model: bytes | str) -> Forward:
    """An ONNX model, given as bytes or as a file name, as a function of one batch; without torch.

    It may be called from several threads at once; each call keeps one core busy.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before the import, which starts telemetry
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors have no common class
        what = Path(model).name if isinstance(model, str) else "the ONNX model"
        raise ValueError(f"{what} is unreadable: {str(error).splitlines()[0]}") from error

    def forward(batch: np.ndarray) -> np.ndarray:
        first, *second = session.run(None, {"input": batch})
        return np.concatenate([first, *second], axis=1) if second else first

    return forward


def in_blocks(function: Forward, rows: np.ndarray, n: int) -> np.ndarray:
    """function(rows), called with exactly n rows at a time: the last block is padded with copies of its last row.

    The order of summation of a matrix product depends on the number of rows, but not on a row's position.
    """
    found = []
    for part in blocks(len(rows), n):
        block = rows[part]
        if len(block) < n:
            block = np.concatenate([block, np.repeat(block[-1:], n - len(block), axis=0)])
        found.append(function(block)[: part.stop - part.start])
    return found[0] if len(found) == 1 else np.concatenate(found)
