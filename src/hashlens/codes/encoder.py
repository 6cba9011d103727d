"""Encoder, the only path from an image to its code: a model and images in, codes out.

Extractor -> mean with the mirror image, if the model asks for it -> projection -> bit 1 where > 0. A second code,
if the model has one, is a further projection of the same features in the same pass. The code of an image
does not depend on other images in the batch, on the number of threads, or on how the pixels were stored.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import hashlens
from hashlens.codes import Codes
from hashlens.codes.model import GENERAL, ModelFolder
from hashlens.data.images import Images, as_images
from hashlens.errors import DataError, MissingExtra, extra_of
from hashlens.features.extractor import Extractor, in_blocks, is_features, mirrored
from hashlens.machine import blocks, one_blas_thread, work_ahead
from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.hashers.base import Hasher

PROBES = 4
ROWS = 32  # always projected together, because rounding depends on the number of rows


class Encoder:
    """A model ready to encode images (files, PIL images, uint8 arrays) or, if trained on features, features.

    >>> encoder = Encoder.load("runs/pets")
    >>> encoder.codes(["query.jpg"])
    """

    def __init__(
        self,
        extractor: Extractor | None,
        n_bits: int,
        *,
        second_bits: int = 0,
        hasher: Hasher | None = None,
        mirror: bool = False,
        model: dict[str, str] | None = None,
        claimed: bool = False,
    ):
        self.extractor, self.n_bits, self.mirror = extractor, n_bits, mirror
        self.second_bits = second_bits  # length of the second code; 0 without one
        self.claimed = claimed  # whether its fingerprint is that of the model it was exported from
        self._hasher, self._model = hasher, model

    @classmethod
    def of(cls, hasher: Hasher, model: dict[str, str] | None = None) -> Encoder:
        hasher.require_fitted()
        extractor = hasher.extractor()
        training = getattr(hasher, "training", None)
        mirror = extractor is not None and training is not None and training.mirror
        return cls(extractor, hasher.n_bits, second_bits=hasher.second_bits_, hasher=hasher, mirror=mirror, model=model)

    @classmethod
    def load(cls, path: Path | str) -> Encoder:
        """The encoder of a model, a run or an exported model."""
        folder = ModelFolder.resolve(path)
        if folder.exported:
            from hashlens.codes.export import load_exported

            return load_exported(folder)
        try:
            return cls.of(hashlens.load(folder.path), folder.describe())
        except (ModuleNotFoundError, MissingExtra) as error:
            if error.name is None or not extra_of(error.name):
                raise
            raise MissingExtra(error.name, f"the model in {folder.path} (unless it is exported)") from error

    @cached_property
    def model(self) -> dict[str, str]:
        """Fingerprint, name and probe of the model; a model without a folder is saved temporarily to get them."""
        if self._model is not None:
            return self._model | {"probe": self.probe}
        assert self._hasher is not None
        with tempfile.TemporaryDirectory() as temporary:
            self._hasher.save(temporary)
            found = ModelFolder(Path(temporary)).describe()
            return found | {"name": f"{self._hasher.name}-{self.n_bits}", "probe": self.probe}

    @cached_property
    def probe(self) -> str:
        """The codes of a few fixed images, or rows of features, in hex: unlike a fingerprint they cannot be faked."""
        rng = np.random.default_rng(0)
        if self.extractor is None:
            assert self._hasher is not None
            rows: Any = rng.standard_normal((PROBES, self._hasher.n_features_in_))
        else:
            coarse = rng.integers(0, 256, (PROBES, 4, 4, 3), np.uint8)
            rows = np.kron(
                coarse, np.ones((1, -(-self.extractor.size // 4), -(-self.extractor.size // 4), 1), np.uint8)
            )
        codes = self.codes(rows)
        return b"".join(one.packed.tobytes() for one in (codes, codes.second) if one is not None).hex()

    @property
    def size(self) -> int | None:
        """Pixels per side of the images that the network or the features use."""
        return None if self.extractor is None else self.extractor.size

    def require_images(self) -> Extractor:
        """Refuse a model that cannot encode images."""
        if self.extractor is None:
            raise DataError(
                "this model was trained on features, so it cannot encode images; pass features to encode in Python"
            )
        return self.extractor

    def encode(self, X: Any, *, progress: Progress | bool = False) -> Codes:
        """Codes of images or features, the same as from `Hasher.encode`."""
        X = X if is_features(X) else as_images(X)
        with Progress.of(progress).bar("images", len(X)) as advance:
            return self.codes(X, advance)

    def codes(self, X: Any, advance: Callable[[int], Any] | None = None, *, shared: bool = False) -> Codes:
        """Codes of images or features; `advance(n)` is called after every n of them."""
        return Codes.concatenate([self._codes(u) for u in self._relaxed(X, advance, shared)])

    def _codes(self, u: np.ndarray) -> Codes:
        first = Codes.from_relaxed(u[:, : self.n_bits])
        return replace(first, second=Codes.from_relaxed(u[:, self.n_bits :])) if self.second_bits else first

    def relaxed(self, X: Any, advance: Callable[[int], Any] | None = None, *, shared: bool = False) -> np.ndarray:
        """Real values before the sign, (n, n_bits).

        With `shared`, the outputs of a network's frozen part are cached for other models that have the same part.
        """
        return np.concatenate([u[:, : self.n_bits] for u in self._relaxed(X, advance, shared)])

    def _relaxed(self, X: Any, advance: Callable[[int], Any] | None, shared: bool) -> Iterator[np.ndarray]:
        given, outputs = self._features(X) if is_features(X) else self._images(as_images(X), shared)
        step = ROWS if self.extractor is None else max(ROWS, self.extractor.batch)
        with one_blas_thread():  # each core projects its own rows
            for u in work_ahead(lambda rows: self._project(outputs(rows)), blocks(len(given), step)):
                yield u
                if advance is not None:
                    advance(len(u))

    def _images(self, images: Images, shared: bool) -> tuple[Images, Callable[[slice], np.ndarray]]:
        """The images, and a function that computes the extractor's outputs for some rows."""
        extractor = self.require_images()
        if len(images) == 0:
            raise DataError("no images given; give at least one")
        _ = extractor.forward  # build it once here, not in each thread
        views = [False, True] if self.mirror else [False]
        maps, places = None, np.arange(len(images))
        if shared and extractor.stem is not None:
            kept, places = images.whole or (images, places)
            maps = [extractor.stem.cached(kept, flip=flip, what="frozen blocks") for flip in views]

        def batch_outputs(rows: slice) -> np.ndarray:
            if maps is not None:
                found = [extractor.forward(view[places[rows]]) for view in maps]
            else:
                batch = images.read(np.arange(rows.start, rows.stop), extractor.size)
                found = [extractor(mirrored(batch) if flip else batch) for flip in views]
            return found[0] if len(found) == 1 else (found[0] + found[1]) / 2

        def outputs(rows: slice) -> np.ndarray:
            starts = range(rows.start, rows.stop, extractor.batch)
            return np.concatenate([batch_outputs(slice(i, min(i + extractor.batch, rows.stop))) for i in starts])

        return images, outputs

    def _features(self, X: Any) -> tuple[np.ndarray, Callable[[slice], np.ndarray]]:
        if self._hasher is None or self.extractor is not None:
            raise DataError("this model was trained on images; pass images, not features")
        X = self._hasher._validate(X)
        if X.shape[1] != (n := self._hasher.n_features_in_):
            raise DataError(f"this model was trained on features with {n} columns, got {X.shape[1]}")
        return X, lambda rows: X[rows]

    def _project(self, outputs: np.ndarray) -> np.ndarray:
        if (hasher := self._hasher) is None:
            return outputs
        if hasher.takes == "features":
            outputs = hasher._validate(outputs)
        return in_blocks(hasher._project_both, outputs, ROWS)


def general() -> Encoder:
    """The general model, which comes with the package: codes of any images, without training.

    >>> hashlens.general().encode(["a.jpg", "b.jpg"])
    """
    return Encoder.load(GENERAL)
