"""Nothing in; 1,797 handwritten digits (8 x 8 grey) that come with scikit-learn out, images and labels."""

from __future__ import annotations

import numpy as np

from hashlens.data.images import ArrayImages
from hashlens.data.labels import Labels


def load_digits() -> tuple[ArrayImages, Labels]:
    from sklearn import datasets

    digits = datasets.load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8); stored as 0..16
    names = [f"digits/{row:04d}" for row in range(len(grey))]
    return ArrayImages(grey, names), Labels(digits.target.astype(np.int64), tuple("0123456789"))
