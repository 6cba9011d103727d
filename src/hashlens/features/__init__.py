"""Features: pictures in, a row of numbers for each out. What methods on fixed features learn from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.data.images import Images

GIST = "gist"
DEEP = "efficientnet-lite0"  # what "deep" is short for


def backbone_of(kind: str) -> str:
    return DEEP if kind == "deep" else kind


def picture_features(images: Images, kind: str, *, progress: Progress | None = None) -> np.ndarray:
    """Fixed features (n, d) float32, computed once and kept on disk.

    `kind` is "gist" or the name of a pretrained backbone, which may say the size of the pictures: "resnet50@112".
    """
    if kind == GIST:
        from hashlens.features.gist import gist

        return gist(images, progress=progress)
    from hashlens.features.deep import deep_features

    return deep_features(images, kind, progress=progress)
