"""DeepHasher, the base of all deep methods: images or features in, a trained network and its codes out."""

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from hashlens.data.images import ArrayImages, as_images
from hashlens.data.labels import Labels
from hashlens.errors import DataError, HashlensError, MismatchError, UsageError
from hashlens.features.extractor import Extractor, is_features
from hashlens.features.networks import OWN, Network, build_blocks, describe_network, network_info
from hashlens.features.networks.inference import choose_device, prepare_cpu, set_layout
from hashlens.hashers.base import SECOND, Hasher, never, require_variation
from hashlens.hashers.deep.heads import HEADS, BothCodes, build_head, plain
from hashlens.hashers.deep.inputs import ArrayInputs, ImageInputs, Inputs, Windows, outputs_of
from hashlens.hashers.deep.training import RECIPE, Training, fast_bfloat16, train
from hashlens.hashers.losses import Loss
from hashlens.progress import Progress
from hashlens.ranks import current
from hashlens.schema import TEXT, conform, whole
from hashlens.settings import setting, to_json

DEFAULT_TRAINING = Training()


class DeepHasher(Hasher):
    """A backbone with a head on top; a method adds its loss.

    X may be images (anything that `as_images` takes) or a float array (n, d) of features, which go to the hash layer
    directly. With images, the leading `frozen_blocks` are not trained: their outputs are computed once and cached.
    `backbone` may also be an nn.Module, see features/networks/__init__.py.
    """

    takes: ClassVar[str] = "images"
    beside_network: ClassVar[tuple[str, ...]] = ()  # learned arrays besides weights, without the trailing underscore

    head: str = setting("linear", "hash layer on top of the backbone; paper: linear", choices=HEADS)
    backbone: str | nn.Module = setting(
        "auto",
        "network below the hash layer, or your own nn.Module; auto: efficientnet-lite0, or small-cnn for tiny images",
    )
    weights: str | None = setting(None, "file with the weights of a backbone that cannot be downloaded")
    image_size: int | None = setting(None, "image side in pixels; none: what suits the backbone", low=8)
    frozen_blocks: int | None = setting(None, "leading blocks left untrained; none: what suits the backbone", low=0)
    training: Training = DEFAULT_TRAINING

    def _loss(self, labels: Any) -> Loss:
        """The loss for these training labels: by default NAMELoss, in the module of the class NAME or of its base.

        Its constructor's arguments are filled from the method's settings, `labels` and `n_classes`.
        """
        known = vars(self) | {"labels": labels, "n_classes": labels.n_classes}
        for cls in type(self).__mro__:
            loss = getattr(import_module(cls.__module__), f"{cls.__name__}Loss", None)
            if loss is not None:
                return loss(**{name: known[name] for name in signature(loss).parameters if name in known})
        raise NotImplementedError(f"write {type(self).__name__}Loss beside {type(self).__name__}, or its _loss")

    def _recipe(self, labels: Any, pretrained: bool) -> Mapping[str, Any]:
        """Values for training settings that are None; fixed features count as pretrained."""
        return RECIPE

    def _n_frozen(self, info: Network, n_blocks: int) -> int:
        """The default number of leading blocks that are not trained."""
        return min(info.frozen, n_blocks)

    def _start(self, network: nn.Sequential, inputs: Inputs, labels: Any, loss: Any, adapt: bool) -> None:
        """Set initial weights other than random ones; the last module of `network` is the hash layer.

        `adapt` says whether batch norms will use the statistics of the batch.
        """

    def _keep(self, loss: Any, features: Callable[[], np.ndarray]) -> None:
        """Keep anything learned outside the network, by the loss or from the features under the hash layer."""

    @property
    def _n_outputs(self) -> int:
        """Outputs of the network per image: one per bit, unless the code is computed otherwise."""
        return self.n_bits

    def _validate(self, X: Any) -> Any:
        if is_features(X):
            return super()._validate(X).astype(np.float32)
        images = as_images(X)
        if len(images) == 0:
            raise DataError("there are no images; pass at least one")
        return images

    def _fit(
        self,
        X: Any,
        labels: Any,
        *,
        run: Path | None = None,
        progress: Progress | bool = False,
        stop: Callable[[], bool] = never,
    ) -> None:
        """Learn from `Labels`, or whatever `_targets` returns."""
        if isinstance(X, np.ndarray):
            require_variation(X)
        loss, ranks = self._loss(labels), current()
        progress = Progress.of(progress) if ranks.first else Progress(quiet=True)
        prepare_cpu()
        device = choose_device(self.training.device)
        self._build(X)
        pretrained = self.backbone_ == "none" or self.frozen_blocks_ > 0
        suits = self.backbone_ != "none" and network_info(self._network_of).bfloat16
        fast = suits and device == "cpu" and fast_bfloat16()
        training = self.training.completed(self._recipe(labels, pretrained), bfloat16=fast)
        self.precision_ = training.precision
        frozen = self.network_[: 1 + self.frozen_blocks_].state_dict() if self.frozen_blocks_ else {}
        data = X.tobytes() if isinstance(X, np.ndarray) else X.fingerprint().encode()
        identity = {  # not in the checkpoint, but must match to resume from it
            "method": self.name,
            **to_json(self),
            **self._chosen(),
            "data": _hash(data, labels.values.tobytes()),
            "frozen": _hash(*(name.encode() + value.cpu().numpy().tobytes() for name, value in frozen.items())),
        }
        ranks.require_same(**identity)
        inputs, network = self._inputs(X, device, progress)
        with torch.random.fork_rng():  # new layers draw weights
            self._start(network, inputs, labels, loss, adapt=training.adapt != 0)
        set_layout(network.to(device), torch.channels_last)
        self.history_ = train(
            network,
            loss.to(device),
            inputs,
            labels if isinstance(labels, Labels) else None,
            training,
            seed=self.random_state,
            device=device,
            checkpoint=None if run is None else run / "checkpoint.safetensors",
            identity=identity,
            progress=progress,
            stop=stop,
        )
        features = cache(lambda: outputs_of(network[:-1], inputs).numpy())
        self._keep(loss, features)
        if self.second_bits:
            self._learn_second(features())
        with torch.random.fork_rng():  # new layers draw weights
            self.network_[-1] = plain(self.network_[-1].cpu())
        set_layout(self.network_.to("cpu"), torch.contiguous_format).eval()
        if self.backbone_.startswith(OWN):
            self.probe_ = self._whole().probe

    def _build(self, X: Any) -> None:
        """Choose what was not set and build the network; its random weights depend only on the seed."""
        self.backbone_ = self._choose_backbone(X)
        self.image_size_ = self.frozen_blocks_ = 0
        if self.backbone_ != "none":
            info = network_info(self._network_of)
            self.image_size_ = self.image_size or info.size_for(X.side if isinstance(X, ArrayImages) else None)
            if not self.image_size_:
                raise UsageError("a module of your own as backbone needs image_size, the image side in pixels")
        with torch.random.fork_rng():
            torch.manual_seed(self.random_state)
            self._assemble(X.shape[1] if self.backbone_ == "none" else None, pretrained=True)
        if self.backbone_ != "none":
            n_blocks = len(self.network_) - 2  # preprocessing and head are not blocks
            frozen = self.frozen_blocks
            self.frozen_blocks_ = self._n_frozen(info, n_blocks) if frozen is None else frozen
            if self.frozen_blocks_ > n_blocks:
                raise UsageError(f"{self.backbone_} has {n_blocks} blocks; cannot freeze {self.frozen_blocks_} of them")

    def _assemble(self, n_features: int | None, pretrained: bool, description: dict[str, Any] | None = None) -> None:
        """Preprocessing, blocks and head as one flat sequence; with fixed features the head alone."""
        blocks = nn.Sequential()
        if self.backbone_ != "none":
            weights = None if self.weights is None else Path(self.weights)
            blocks = build_blocks(self._network_of, pretrained, weights, description)
        self.n_features_in_ = n_features or self._count_features(blocks)
        self.network_ = nn.Sequential(*blocks, self._head())

    def _head(self) -> nn.Module:
        return build_head(self.head, self.n_features_in_, self._n_outputs)

    def _count_features(self, blocks: nn.Sequential) -> int:
        image = torch.zeros(1, self.image_size_, self.image_size_, 3, dtype=torch.uint8)
        try:
            with torch.inference_mode():
                shape = blocks.eval()(image).shape
        except RuntimeError as error:  # the image shrinks to nothing in some layer, or the network needs another size
            usual = network_info(self._network_of).size
            advice = f"omit --image-size, or try {usual}" if usual else f"try another image_size ({error})"
            raise UsageError(f"{self.backbone_} cannot take images of {self.image_size_} pixels; {advice}") from error
        if len(shape) != 2:
            raise UsageError(f"{self.backbone_} must output features of shape (b, d), got {tuple(shape)}")
        return shape[1]

    @property
    def _network_of(self) -> str | nn.Module:
        """The network's name or module, for `network_info` and `build_blocks`."""
        return self.backbone if isinstance(self.backbone, nn.Module) else self.backbone_

    def _choose_backbone(self, X: Any) -> str:
        if isinstance(X, np.ndarray):
            return "none"
        if self.backbone != "auto":
            return network_info(self.backbone).name if isinstance(self.backbone, nn.Module) else self.backbone
        return "small-cnn" if isinstance(X, ArrayImages) and X.tiny_grey else "efficientnet-lite0"

    def _inputs(self, X: Any, device: str, progress: Progress) -> tuple[Inputs, nn.Sequential]:
        """The inputs of the training loop, and the part of the network that it trains."""
        if isinstance(X, np.ndarray):
            return ArrayInputs([X]), self.network_
        flip = network_info(self._network_of).flip if self.training.flip is None else self.training.flip
        if self.frozen_blocks_ == 0:
            return ImageInputs(X, self.image_size_, flip, self.training.shift), self.network_
        cut = 1 + self.frozen_blocks_  # the preprocessing comes first
        stem = Extractor.of_network(self.network_[:cut], self.image_size_, device=device)
        progress.say(
            f"{self.frozen_blocks_} of {len(self.network_) - 2} blocks of {self.backbone_} stay as they are;"
            " their outputs are computed once"
        )
        views = [
            stem.cached(seen, flip=flipped, dtype=np.float16, progress=progress, ranks=current())
            for seen in (X, *(Windows(X, seed) for seed in range(self.training.windows)))
            for flipped in ([False, True] if flip else [False])
        ]
        return ArrayInputs(views), nn.Sequential(*list(self.network_)[cut:])

    def extractor(self) -> Extractor | None:
        return None if self.backbone_ == "none" else self._whole()

    def _whole(self) -> Extractor:
        """The whole network; its frozen part is the stem, shared by models with the same frozen part."""
        cut = 1 + self.frozen_blocks_ if self.frozen_blocks_ else 0  # the preprocessing comes first
        network = self.network_
        if self.second_bits_:
            head = BothCodes(network[-1], self.second_mean_, self.second_projection_)
            network = nn.Sequential(*list(network)[:-1], head)
        return Extractor.of_network(network, self.image_size_, cut=cut, device=self.training.device)

    def _project(self, X: np.ndarray) -> np.ndarray:
        """Real values from features; for images X already has the network's outputs."""
        if self.backbone_ != "none":
            return X
        with torch.inference_mode():
            return self.network_(torch.from_numpy(X)).numpy()

    @property
    def _n_projected(self) -> int:
        return self.n_features_in_ if self.backbone_ == "none" else self._n_outputs

    def _chosen(self) -> dict[str, Any]:
        """The settings that were chosen by the method or for the machine because the user left them open."""
        names = ("backbone", "image_size", "frozen_blocks", "precision")
        return {name: getattr(self, f"{name}_") for name in names}

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        learned = self._chosen() | {"n_features": self.n_features_in_}
        if self.backbone_ != "none":  # other runtimes need to know the network's input
            learned["network"] = describe_network(self._network_of, self.network_[:-1])
        arrays = {name: value.numpy() for name, value in self.network_.state_dict().items()}
        if self.backbone_.startswith(OWN):
            arrays["probe"] = self.probe_
        beside = (*self.beside_network, *SECOND) if self.second_bits_ else self.beside_network
        return learned, arrays | {name: getattr(self, f"{name}_") for name in beside}

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        arrays = dict(arrays)
        for name in (*self.beside_network, *(name for name in SECOND if name in arrays)):
            setattr(self, f"{name}_", arrays.pop(name))
        self.backbone_ = conform(config["backbone"], TEXT, "backbone")
        self.image_size_ = conform(config["image_size"], whole(0, 4096), "image_size")
        self.frozen_blocks_ = conform(config["frozen_blocks"], whole(0, 1000), "frozen_blocks")
        self.precision_ = conform(config["precision"], TEXT, "precision")
        conform(config["n_features"], whole(1, max([1, *(n for array in arrays.values() for n in array.shape)])))
        if str(self.backbone_).startswith(OWN) and not isinstance(self.backbone, nn.Module):
            raise UsageError(
                f"this model was trained with its user's own module ({self.backbone_.removeprefix(OWN)}); load it"
                f" with {type(self).__name__}.load(folder, backbone=module)"
            )
        if "probe" in arrays:
            self.probe_ = arrays.pop("probe")
        try:
            with torch.random.fork_rng():
                self._assemble(config["n_features"], pretrained=False, description=config.get("network"))
            self.network_.load_state_dict({name: torch.from_numpy(value) for name, value in arrays.items()})
        except HashlensError:
            raise
        except Exception as error:  # impossible sizes, unknown names, a different module
            raise ValueError("its weights do not fit its configuration") from error
        self.network_.eval()
        if self.backbone_ != "none":
            if self.frozen_blocks_ > len(self.network_) - 2:
                raise ValueError(f"frozen_blocks is {self.frozen_blocks_}")
            if self._count_features(nn.Sequential(*list(self.network_)[:-1])) != self.n_features_in_:
                raise ValueError(f"n_features is {self.n_features_in_}")
        if self.backbone_.startswith(OWN) and not self._whole().gives(getattr(self, "probe_", None)):
            raise MismatchError(
                f"this module takes the weights of the model's own {self.backbone_.removeprefix(OWN)} but computes"
                " something else; give the module that it was trained with"
            )


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:16]
