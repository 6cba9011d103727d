"""DeepHasher: what all deep methods share. Pictures or features in, a trained network and its codes out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from hashlens.data.images import ArrayImages, Images, as_images
from hashlens.data.labels import Labels
from hashlens.errors import DataError, UsageError
from hashlens.features import extract, forward_all
from hashlens.hashers.base import Hasher
from hashlens.hashers.deep.inputs import FeatureInputs, MapInputs, PictureInputs
from hashlens.hashers.deep.training import Inputs, Training, train
from hashlens.networks import build_blocks, network_info
from hashlens.networks.inference import Normalise, choose_device, choose_precision, prepare_cpu, set_layout
from hashlens.progress import Progress

HASH_LAYER_STD = 0.01  # the authors' initialisation of the hash layer


class DeepHasher(Hasher):
    """A backbone with one linear hash layer on top; a method adds its loss.

    X may be pictures (anything that `as_images` takes) or a float array (n, d) of features, which go to the hash layer
    directly. With pictures, the leading `frozen_blocks` are not trained: their outputs are computed once and kept.
    """

    takes: ClassVar[str] = "images"

    backbone: str
    image_size: int | None
    frozen_blocks: int | None
    training: Training

    def _loss(self, labels: Labels) -> nn.Module:
        """The module `loss(u, labels of the batch, rows) -> (scalar, figures)` for these training labels."""
        raise NotImplementedError

    def _validate(self, X: Any) -> Any:
        if isinstance(X, np.ndarray) and X.ndim == 2:
            return super()._validate(X).astype(np.float32)
        images = as_images(X)
        if len(images) == 0:
            raise DataError("there are no pictures; give at least one")
        return images

    def _fit(
        self,
        X: Any,
        labels: Labels | None,
        *,
        run: Path | None = None,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        assert labels is not None  # all deep methods are supervised
        _require_triplets(labels)
        prepare_cpu()
        progress = progress or Progress(quiet=True)
        device = choose_device(self.training.device)
        precision = choose_precision(self.training.precision, device)
        self._build(X)
        inputs, network = self._inputs(X, device, precision, progress)
        identity = {
            "method": self.name,
            **self._params_as_json(),
            "backbone": self.backbone_,
            "image_size": self.image_size_,
            "frozen_blocks": self.frozen_blocks_,
            "precision": precision,
            "data": _fingerprint(X, labels),
        }
        set_layout(network.to(device), torch.channels_last)
        self.history_ = train(
            network,
            self._loss(labels).to(device),
            inputs,
            labels,
            self.training,
            seed=self.random_state,
            device=device,
            precision=precision,
            checkpoint=None if run is None else run / "checkpoint.safetensors",
            identity=identity,
            progress=progress,
            stop=stop,
        )
        set_layout(self.network_.to("cpu"), torch.contiguous_format).eval()

    def _build(self, X: Any, pretrained: bool = True) -> None:
        """Choose what was left to us and build the network; the random part depends on the seed alone."""
        self.backbone_ = self._choose_backbone(X)
        if self.backbone_ == "none":
            self.image_size_ = self.frozen_blocks_ = 0
            self.n_features_in_ = X.shape[1]
        else:
            info = network_info(self.backbone_)
            self.image_size_ = self.image_size or info.size
            self.frozen_blocks_ = info.frozen if self.frozen_blocks is None else self.frozen_blocks
            self.n_features_in_ = info.n_features
            if self.image_size_ < 8:
                raise UsageError(f"the image size must be at least 8 pixels, not {self.image_size_}")
        with torch.random.fork_rng():
            torch.manual_seed(self.random_state)
            self._assemble(pretrained)
        if not 0 <= self.frozen_blocks_ <= max(0, len(self.network_) - 2):
            raise UsageError(
                f"{self.backbone_} has {len(self.network_) - 2} blocks; {self.frozen_blocks_} of them cannot be frozen"
            )

    def _assemble(self, pretrained: bool) -> None:
        """Normalise, the blocks, the hash layer: one flat sequence."""
        parts: list[nn.Module] = []
        if self.backbone_ != "none":
            info = network_info(self.backbone_)
            parts = [Normalise(info.mean, info.std), *build_blocks(self.backbone_, pretrained)]
        head = nn.Linear(self.n_features_in_, self.n_bits)
        nn.init.normal_(head.weight, std=HASH_LAYER_STD)
        nn.init.normal_(head.bias, std=HASH_LAYER_STD)
        self.network_ = nn.Sequential(*parts, head)

    def _choose_backbone(self, X: Any) -> str:
        if isinstance(X, np.ndarray):
            return "none"
        if self.backbone != "auto":
            return self.backbone
        return "small-cnn" if isinstance(X, ArrayImages) and X.tiny_grey else "efficientnet-lite0"

    def _inputs(self, X: Any, device: str, precision: str, progress: Progress) -> tuple[Inputs, nn.Module]:
        """What the loop is to read, and the part of the network that it is to train."""
        if isinstance(X, np.ndarray):
            return FeatureInputs(X), self.network_
        flip = network_info(self.backbone_).flip if self.training.flip is None else self.training.flip
        if self.frozen_blocks_ == 0:
            return PictureInputs(X, self.image_size_, flip, self.training.shift), self.network_
        cut = 1 + self.frozen_blocks_  # Normalise comes first
        frozen, trained = self.network_[:cut], self.network_[cut:]
        progress.say(
            f"{self.frozen_blocks_} of {len(self.network_) - 2} blocks of {self.backbone_} stay as they are;"
            " their outputs are computed once"
        )
        views = [
            extract(frozen, X, self.image_size_, flip=flipped, device=device, precision=precision, progress=progress)
            for flipped in ([False, True] if flip else [False])
        ]
        return MapInputs(views), trained

    def _project(self, X: Any, *, progress: Progress | None = None) -> np.ndarray:
        features = isinstance(X, np.ndarray)
        if features != (self.backbone_ == "none") or (features and X.shape[1] != self.n_features_in_):
            expected = f"features with {self.n_features_in_} columns" if self.backbone_ == "none" else "pictures"
            raise DataError(f"this model was trained on {expected}; give it the same")
        if features:
            with torch.inference_mode():
                return self.network_(torch.from_numpy(X)).numpy()
        device = choose_device(self.training.device)
        precision = choose_precision(self.training.precision, device)
        u = np.empty((len(X), self.n_bits), np.float32)
        with (progress or Progress(quiet=True)).bar("codes", len(X)) as advance:
            for rows, outputs in forward_all(self.network_, X, self.image_size_, device=device, precision=precision):
                u[rows] = outputs
                advance(len(outputs))
        return u

    def _params_as_json(self) -> dict[str, Any]:
        return super()._params_as_json() | {"training": asdict(self.training)}

    @classmethod
    def _params_from_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        return params | {"training": Training(**params["training"])}

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        learnt = {
            "backbone": self.backbone_,
            "image_size": self.image_size_,
            "frozen_blocks": self.frozen_blocks_,
            "n_features": self.n_features_in_,
        }
        if self.backbone_ != "none":
            info = network_info(self.backbone_)
            # whoever feeds the network by other means must know how
            learnt["preprocessing"] = {
                "resize": "shorter side, bicubic, then centre crop",
                "colour": "RGB",
                "scale": "divided by 255",
                "mean": info.mean,
                "std": info.std,
            }
        return learnt, {name: value.numpy() for name, value in self.network_.state_dict().items()}

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.backbone_ = config["backbone"]
        self.image_size_ = config["image_size"]
        self.frozen_blocks_ = config["frozen_blocks"]
        self.n_features_in_ = config["n_features"]
        with torch.random.fork_rng():
            self._assemble(pretrained=False)
        try:
            self.network_.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
        except RuntimeError as error:
            raise ValueError("its weights do not fit its configuration") from error
        self.network_.eval()


def _require_triplets(labels: Labels) -> None:
    counts = labels.counts()
    if (counts > 0).sum() < 2:
        raise DataError("all pictures are of one class; learning needs at least two classes to tell apart")
    if counts.max() == len(labels):
        raise DataError(
            f"all pictures share the label '{labels.names[int(counts.argmax())]}'; learning needs pictures that differ"
        )
    if counts.max() < 2:
        raise DataError("no class has two pictures; learning needs pairs of pictures that belong together")


def _fingerprint(X: Images | np.ndarray, labels: Labels) -> str:
    """Of the training data, so that a checkpoint is never continued on other data."""
    digest = hashlib.sha256(X.tobytes() if isinstance(X, np.ndarray) else X.fingerprint().encode())
    digest.update(np.ascontiguousarray(labels.values).tobytes())
    return digest.hexdigest()[:16]
