"""An nn.Module of the user's own as backbone: images in, features (b, d) out.

It takes float32 images (b, 3, size, size), normalised by ImageNet's mean and deviation; if it starts with a
`Normalise`, uint8 images (b, size, size, 3). The modules of an `nn.Sequential` are its blocks, so leading ones can be
frozen; any other module is one block. The module itself is never changed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from hashlens.features.networks import Network
from hashlens.features.networks.preprocessing import IMAGENET, Normalise


@dataclass(frozen=True)
class OwnNetwork(Network):
    module: nn.Module | None = None

    def blocks(self, pretrained: bool, weights: Path | None, description: dict[str, Any] | None) -> nn.Sequential:
        module = copy.deepcopy(self.module)
        blocks = list(module) if isinstance(module, nn.Sequential) else [module]
        if isinstance(blocks[0], Normalise):
            return nn.Sequential(*blocks)
        return nn.Sequential(Normalise(**IMAGENET), *blocks)  # type: ignore[arg-type]
