"""Near-identical images: images in, groups of copies of the same photo out, whatever their size, format or compression.

Two images are near-identical if at most RADIUS of 128 signs differ (each says which of two neighbouring parts of the
grey image is brighter) and the colours of 16 x 16 parts differ by at most COLOURS of 255 on average. On photos of birds
and groceries this finds 96 % of copies at a third of the size and JPEG quality 40, 99 % of better ones, and no pair of
different bird photos; the nearest such pair differs by 22 in colour.
"""

from functools import partial

import numpy as np
from PIL import Image

from hashlens.codes import Codes
from hashlens.data.images import Images
from hashlens.machine import blocks, work_ahead

PARTS = 8
RADIUS = 12
COLOURS = 6.0
AT_ONCE = 1024  # images per block of neighbour searches


def near_identical(images: Images) -> list[list[int]]:
    """Groups of two or more rows, in the order of their first rows; exact copies are included."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    from hashlens.index.memory import HammingIndex

    parts = list(work_ahead(partial(_signatures, images), blocks(len(images), 32)))
    if not parts:
        return []
    rises, colours = (np.concatenate(part) for part in zip(*parts, strict=True))
    codes = Codes.from_relaxed(rises)
    index = HammingIndex(codes.n_bits)
    index.add(codes)
    pairs = []
    for start in range(0, len(codes), AT_ONCE):
        for row, (_, ids) in enumerate(index.within(codes[start : start + AT_ONCE], RADIUS), start=start):
            later = ids[ids > row]
            apart = np.abs(colours[later] - colours[row].astype(np.int16)).mean(axis=1)
            pairs += [(row, other) for other in later[apart <= COLOURS]]
    first, second = np.array(pairs, np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(len(codes), len(codes)))
    _, group = connected_components(graph, directed=False)
    order = np.argsort(group, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    return sorted(rows.tolist() for rows in groups if len(rows) > 1)


def _signatures(images: Images, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    """(n, 128) bool: whether brightness rises to the right and downwards; and (n, 768) uint8 colours."""
    rises, colours = [], []
    for row in range(rows.start, rows.stop):
        image = images.image(row, at_least=4 * PARTS)
        side = PARTS + 1
        grey = np.asarray(image.convert("L").resize((side, side), Image.Resampling.BILINEAR), np.float32)
        differences = np.diff(grey, axis=1)[:PARTS], np.diff(grey, axis=0)[:, :PARTS]
        rises.append(np.concatenate([part.ravel() > 0 for part in differences]))
        colours.append(np.asarray(image.resize((2 * PARTS, 2 * PARTS), Image.Resampling.BILINEAR)).ravel())
    return np.stack(rises), np.stack(colours)
