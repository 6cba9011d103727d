"""Digits: 1,797 handwritten digits of 8 x 8 grey pixels, from scikit-learn."""

import numpy as np

from hashlens.data.images import ArrayImages
from hashlens.data.labels import Labels
from hashlens.data.sources import Asked, Kind, Source


def _open(asked: Asked) -> Source:
    from sklearn import datasets

    digits = datasets.load_digits()
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8); stored as 0..16
    images = ArrayImages(grey, [f"digits/{row:04d}" for row in range(len(grey))])
    return Source("digits", images, Labels(digits.target.astype(np.int64), tuple("0123456789")))


KIND = Kind(matches=lambda text, path: text == "digits", open=_open, named=True)
