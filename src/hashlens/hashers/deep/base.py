"""DeepHasher: what all deep methods share. Pictures or features in, a trained network and its codes out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from hashlens.data.images import ArrayImages, Images, as_images
from hashlens.data.labels import Labels
from hashlens.errors import DataError, HashlensError, UsageError
from hashlens.features.batches import mean_of_views
from hashlens.features.deep import extract, forward_all, forward_kept
from hashlens.hashers.base import Hasher, is_features
from hashlens.hashers.deep.heads import build_head
from hashlens.hashers.deep.inputs import FeatureInputs, MapInputs, PictureInputs, Windows
from hashlens.hashers.deep.training import Inputs, Training, train
from hashlens.networks import build_blocks, describe_network, network_info
from hashlens.networks.inference import choose_device, choose_precision, prepare_cpu, set_layout
from hashlens.progress import Progress

DEFAULT_TRAINING = Training()


@dataclass(kw_only=True, eq=False, repr=False)
class DeepHasher(Hasher):
    """A backbone with a head on top; a method adds its loss.

    X may be pictures (anything that `as_images` takes) or a float array (n, d) of features, which go to the hash layer
    directly. With pictures, the leading `frozen_blocks` are not trained: their outputs are computed once and kept.
    """

    takes: ClassVar[str] = "images"

    head: str = "linear"
    backbone: str = "auto"
    weights: str | None = None
    image_size: int | None = None
    frozen_blocks: int | None = None
    training: Training = DEFAULT_TRAINING

    def _loss(self, labels: Labels) -> nn.Module:
        """The module `loss(u, labels of the batch, rows) -> (scalar, figures)` for these training labels.

        What it remembers is a buffer of it, what it learns a parameter; both are saved in checkpoints.
        """
        raise NotImplementedError

    @property
    def _n_outputs(self) -> int:
        """Values that the network gives for a picture: one a bit, unless the code is made of something else."""
        return self.n_bits

    def _validate(self, X: Any) -> Any:
        if is_features(X):
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
        loss: nn.Module | None = None,
        run: Path | None = None,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Learn from labels or, without them, by a `loss` that holds what is alike as `triplets`.

        A method that needs its loss afterwards makes it itself and gives it with the labels.
        """
        if not isinstance(self.training, Training):
            raise UsageError("training is given as Training(epochs=3, ...); import it from hashlens")
        if labels is not None:
            loss = self._loss(labels) if loss is None else loss
            supervision = labels.values
        else:
            assert loss is not None and isinstance(loss.triplets, torch.Tensor)
            supervision = loss.triplets.numpy()
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
            "data": _fingerprint(X, supervision),
            "frozen": _hash(self.network_[: 1 + self.frozen_blocks_] if self.frozen_blocks_ else nn.Sequential()),
        }
        set_layout(network.to(device), torch.channels_last)
        self.history_ = train(
            network,
            loss.to(device),
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
        else:
            info = network_info(self.backbone_)
            native = X.side if info.resizes and isinstance(X, ArrayImages) else None
            self.image_size_ = self.image_size or native or info.size
            if self.image_size_ < 8:
                raise UsageError(f"the image size must be at least 8 pixels, not {self.image_size_}")
        with torch.random.fork_rng():
            torch.manual_seed(self.random_state)
            self._assemble(X.shape[1] if self.backbone_ == "none" else None, pretrained)
        n_blocks = max(0, len(self.network_) - 2)
        if self.backbone_ != "none":
            self.frozen_blocks_ = min(info.frozen, n_blocks) if self.frozen_blocks is None else self.frozen_blocks
        if not 0 <= self.frozen_blocks_ <= n_blocks:
            raise UsageError(f"{self.backbone_} has {n_blocks} blocks; {self.frozen_blocks_} of them cannot be frozen")

    def _assemble(self, n_features: int | None, pretrained: bool, description: dict[str, Any] | None = None) -> None:
        """Preprocessing, blocks and head as one flat sequence; with fixed features the head alone."""
        blocks = nn.Sequential()
        if self.backbone_ != "none":
            weights = None if self.weights is None else Path(self.weights)
            blocks = build_blocks(self.backbone_, pretrained, weights, description)
        self.n_features_in_ = n_features or self._count_features(blocks)
        self.network_ = nn.Sequential(*blocks, build_head(self.head, self.n_features_in_, self._n_outputs))

    def _count_features(self, blocks: nn.Sequential) -> int:
        picture = torch.zeros(1, self.image_size_, self.image_size_, 3, dtype=torch.uint8)
        try:
            with torch.inference_mode():
                return blocks.eval()(picture).shape[1]
        except RuntimeError as error:  # nothing is left of the picture after some layer, or the network wants one size
            raise UsageError(
                f"{self.backbone_} cannot take pictures of {self.image_size_} pixels;"
                f" leave out --image-size, or try {network_info(self.backbone_).size}"
            ) from error

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
        cut = 1 + self.frozen_blocks_  # the preprocessing comes first
        frozen, trained = self.network_[:cut], self.network_[cut:]
        progress.say(
            f"{self.frozen_blocks_} of {len(self.network_) - 2} blocks of {self.backbone_} stay as they are;"
            " their outputs are computed once"
        )
        views = [
            extract(frozen, seen, self.image_size_, flip=flipped, device=device, precision=precision, progress=progress)
            for seen in (X, *(Windows(X, seed) for seed in range(self.training.windows)))
            for flipped in ([False, True] if flip else [False])
        ]
        return MapInputs(views), trained

    def _project(self, X: Any, *, keep: bool = False, progress: Progress | None = None) -> np.ndarray:
        """With `keep`, the outputs of the frozen blocks are kept on disk for the next model on the same pictures.

        They are kept with 11 bits of precision, as in training, so a bit that was nearly 0 may come out otherwise.
        """
        features = isinstance(X, np.ndarray)
        if features != (self.backbone_ == "none") or (features and X.shape[1] != self.n_features_in_):
            expected = f"features with {self.n_features_in_} columns" if self.backbone_ == "none" else "pictures"
            raise DataError(f"this model was trained on {expected}; give it the same")
        if features:
            with torch.inference_mode():
                return self.network_(torch.from_numpy(X)).numpy()
        device = choose_device(self.training.device)
        precision = choose_precision(self.training.precision, device)
        how: dict[str, Any] = {"device": device, "precision": precision}

        def view(flip: bool) -> Iterator[tuple[slice, np.ndarray]]:
            if not keep or self.frozen_blocks_ == 0:
                return forward_all(self.network_, X, self.image_size_, flip=flip, **how)
            cut = 1 + self.frozen_blocks_  # the preprocessing comes first
            maps = extract(self.network_[:cut], X, self.image_size_, flip=flip, progress=progress, **how)
            return forward_kept(self.network_[cut:], maps, **how)

        mirror = self.training.mirror
        with (progress or Progress(quiet=True)).bar("codes", len(X) * (1 + mirror)) as advance:
            return mean_of_views(view, len(X), mirror, advance)

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
        if self.backbone_ != "none":  # whoever feeds the network by other means must know how
            learnt["network"] = describe_network(self.backbone_, self.network_[:-1])
        return learnt, {name: value.numpy() for name, value in self.network_.state_dict().items()}

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.backbone_ = config["backbone"]
        self.image_size_ = config["image_size"]
        self.frozen_blocks_ = config["frozen_blocks"]
        try:
            with torch.random.fork_rng():
                self._assemble(config["n_features"], pretrained=False, description=config.get("network"))
            self.network_.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
        except HashlensError:
            raise
        except Exception as error:  # a number that no layer can have, a name that is none
            raise ValueError("its weights do not fit its configuration") from error
        self.network_.eval()


def _fingerprint(X: Images | np.ndarray, supervision: np.ndarray) -> str:
    """Of the training data, so that a checkpoint is never continued on other data."""
    digest = hashlib.sha256(X.tobytes() if isinstance(X, np.ndarray) else X.fingerprint().encode())
    digest.update(np.ascontiguousarray(supervision).tobytes())
    return digest.hexdigest()[:16]


def _hash(frozen: nn.Module) -> str:
    """Of weights that are not trained, which a checkpoint does not hold."""
    digest = hashlib.sha256()
    for name, value in frozen.state_dict().items():
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
