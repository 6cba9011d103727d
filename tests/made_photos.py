"""Different small photos: parts of two real photographs that do not overlap."""

import numpy as np
from PIL import Image


def make_photos(n=16, size=(160, 120)):
    from sklearn.datasets import load_sample_images

    china, flower = load_sample_images().images
    tiles = [
        Image.fromarray(photograph[top : top + 105, left : left + 155]).resize(size, Image.Resampling.LANCZOS)
        for top in (300, 200, 100)
        for photograph in (china, flower)
        for left in (0, 160, 320, 480)
    ]
    # the plainest of these parts, out of focus or sky, say too little to recognise them by
    sharp = sorted(range(len(tiles)), key=lambda i: -np.abs(np.diff(np.asarray(tiles[i], float), axis=1)).mean())
    return [tiles[i] for i in sharp[:n]]
