"""Networks: the table of backbones, each pictures (b, size, size, 3) uint8 in, features (b, n_features) out.

A backbone is one flat sequence: its own preprocessing, then its blocks, of which any number of leading ones can be
frozen and their outputs kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hashlens.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class NetworkInfo:
    """What the rest of the package needs to know of a backbone without building it."""

    module: str  # where its builder lives
    size: int  # pixels a side that it is used with unless the user says otherwise
    n_features: int
    pretrained: bool
    frozen: int  # leading blocks, after the preprocessing, that are not trained by default
    flip: bool  # whether a mirrored picture of the kind it is for is still a good picture
    summary: str
    resizes: bool = False  # whether its preprocessing enlarges small square pictures itself, without rounding


NETWORKS: dict[str, NetworkInfo] = {
    "efficientnet-lite0": NetworkInfo(
        "efficientnet_lite", 136, 1280, True, 13, True, "ImageNet, 3.4 M parameters; the default"
    ),
    "efficientnet-lite1": NetworkInfo("efficientnet_lite", 136, 1280, True, 17, True, "ImageNet, 4.1 M parameters"),
    "efficientnet-lite2": NetworkInfo("efficientnet_lite", 136, 1280, True, 17, True, "ImageNet, 4.8 M parameters"),
    "resnet50": NetworkInfo(
        "resnet50", 144, 2048, True, 14, True, "ImageNet, 23.5 M parameters; learnt at 224 pixels, which is slower"
    ),
    "alexnet": NetworkInfo(
        "alexnet", 224, 4096, True, 5, True, "ImageNet, 57 M parameters; fc6 and fc7 random without a file of weights"
    ),
    "cnn-f": NetworkInfo(
        "cnn_f", 224, 4096, True, 5, False, "ImageNet, 57 M parameters; the paper's, from imagenet-vgg-f.mat", True
    ),
    "small-cnn": NetworkInfo("small_cnn", 16, 128, False, 0, False, "for tiny grey pictures, trained from scratch"),
}
FROM_FILE = ("cnn-f", "alexnet")  # backbones whose weights may come from a file that the user has
HUGGING_FACE = "hf:"  # before the name or folder of a model of the `transformers` package


def network_info(name: str) -> NetworkInfo:
    if name.startswith(HUGGING_FACE):
        return _module(name).info(name)
    if name not in NETWORKS:
        raise UsageError(
            f"there is no backbone '{name}'; choose one of {', '.join(NETWORKS)}, or hf: and a name or folder"
        )
    return NETWORKS[name]


def build_blocks(
    name: str, pretrained: bool = True, weights: Path | None = None, description: dict[str, Any] | None = None
) -> nn.Sequential:
    """The backbone as a flat sequence: preprocessing, then blocks.

    Pretrained weights are read from the file `weights` or else found and verified here, on first use. A saved network
    is built from its `description` and without weights, which are then loaded into it.
    """
    from torch import nn

    from hashlens.networks.preprocessing import Normalise

    if pretrained and weights is not None and name not in FROM_FILE:
        raise UsageError(f"{name} takes no file of weights; leave it out, or choose one of {', '.join(FROM_FILE)}")
    module = _module(name)
    if hasattr(module, "build_network"):
        return module.build_network(name, pretrained, weights, description)
    blocks: nn.Sequential = module.build(name)
    if pretrained and network_info(name).pretrained:
        from hashlens.networks.weights import pretrained_weights

        state = pretrained_weights(name) if weights is None else module.read_weights(weights)
        # what was not published (layers of AlexNet) stays random
        blocks.load_state_dict(blocks.state_dict() | state if name in FROM_FILE else state)
    described = None if description is None else Normalise.from_description(description)
    return nn.Sequential(described or Normalise(**module.PREPROCESSING), *blocks)


def describe_network(name: str, blocks: nn.Module) -> dict[str, Any]:
    """What `build_blocks` needs to build a saved network, and whoever feeds it by other means; it becomes JSON."""
    from hashlens.networks.preprocessing import Normalise

    module, preprocessing = _module(name), next(blocks.children())
    assert isinstance(preprocessing, Normalise)
    return preprocessing.describe() | (module.describe(blocks) if hasattr(module, "describe") else {})


def _module(name: str) -> ModuleType:
    hugging_face = name.startswith(HUGGING_FACE)
    return import_module(f"hashlens.networks.{'hugging_face' if hugging_face else network_info(name).module}")
