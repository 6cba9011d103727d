"""Networks: the table of backbones, each pictures (b, size, size, 3) uint8 in, features (b, n_features) out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hashlens.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class NetworkInfo:
    """What the rest of the package needs to know of a backbone without building it."""

    module: str  # where its builder lives
    size: int  # pixels a side that it is used with unless the user says otherwise
    mean: float  # of the input scaled to [0, 1]
    std: float
    n_features: int
    pretrained: bool
    frozen: int  # leading blocks that are not trained by default
    flip: bool  # whether a mirrored picture of the kind it is for is still a good picture
    summary: str


NETWORKS: dict[str, NetworkInfo] = {
    "efficientnet-lite0": NetworkInfo(
        "efficientnet_lite", 144, 0.498, 0.502, 1280, True, 13, True, "ImageNet, 3.4 M parameters; the default"
    ),
    "efficientnet-lite1": NetworkInfo(
        "efficientnet_lite", 144, 0.498, 0.502, 1280, True, 17, True, "ImageNet, 4.1 M parameters"
    ),
    "efficientnet-lite2": NetworkInfo(
        "efficientnet_lite", 144, 0.498, 0.502, 1280, True, 17, True, "ImageNet, 4.8 M parameters"
    ),
    "small-cnn": NetworkInfo(
        "small_cnn", 16, 0.5, 0.5, 128, False, 0, False, "for tiny grey pictures, trained from scratch"
    ),
}


def network_info(name: str) -> NetworkInfo:
    if name not in NETWORKS:
        raise UsageError(f"there is no backbone '{name}'; choose one of {', '.join(NETWORKS)}")
    return NETWORKS[name]


def build_blocks(name: str, pretrained: bool = True) -> nn.Sequential:
    """The backbone as a flat sequence of blocks; pretrained weights are found and verified here, on first use."""
    from importlib import import_module

    info = network_info(name)
    builder: Callable[[str], nn.Sequential] = import_module(f"hashlens.networks.{info.module}").build
    blocks = builder(name)
    if pretrained and info.pretrained:
        from hashlens.networks.weights import pretrained_weights

        blocks.load_state_dict(pretrained_weights(name))
    return blocks
