"""Copies: looks in, pairs of images of the same photo out.

Candidates have near codes in any of eight orientations, possibly with one image cropped; aligning the two small images
decides. The limits were chosen on photos that are in no table: CORRELATION is the highest value that finds 95 % of
every kind of copy, because other exposures of a scene correlate too (benchmarks/copies.py --tune).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hashlens.codes import Codes
from hashlens.duplicates.align import agreement
from hashlens.duplicates.looks import BITS, ZOOMS, has_border, turned, turning
from hashlens.errors import require_going
from hashlens.index.memory import HammingIndex
from hashlens.machine import blocks, in_threads
from hashlens.progress import Progress

RADIUS = 72  # of 256 bits
FRAMED_RADIUS = 32  # for whole images that both have borders, because borders look alike
NEAREST = 8  # nearest codes to check for each code
GUESSES = 3  # alignments to try per pair
CORRELATION, PARTS, OVERLAP = 0.8, 4, 0.5  # minimum values of a copy; more correlation for few parts
AT_ONCE = 32  # pairs aligned together: more would not fit into the processor's cache


def copies(looks: np.ndarray, progress: Progress | None = None, stop: Callable[[], bool] = lambda: False) -> np.ndarray:
    """(n, 2) rows of looks of each pair, smaller first."""
    found: set[tuple[int, int]] = set()
    for first, second, maps in candidates(looks):
        pairs = list(zip(first.tolist(), second.tolist(), strict=True))
        left = np.array([place for place, pair in enumerate(pairs) if pair not in found], np.int64)
        good = is_copy(judged(looks, first[left], second[left], maps[left], progress, stop))
        found.update(pairs[place] for place in left[good])
    return np.array(sorted(found), np.int64).reshape(-1, 2)


def is_copy(found: np.ndarray, limit: float = CORRELATION) -> np.ndarray:
    """Whether the agreement of a pair is that of copies."""
    correlation, parts, overlap = found.T
    return (correlation >= limit + 1 / np.maximum(parts, 1)) & (parts >= PARTS) & (overlap >= OVERLAP)


def candidates(looks: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Rows of pairs, smaller first, and maps (3, 3) from one to the other: best guesses, second guesses, …"""
    usable = np.flatnonzero(looks["parts"] >= PARTS)
    bordered = has_border(looks)
    contents = usable[bordered[usable]]
    rows = np.concatenate([usable, contents])  # row of each code: first whole images, then contents
    which = np.repeat([0, 1], [len(usable), len(contents)])
    if len(rows) < 2:
        return []
    codes = looks["codes"][rows, which]
    index = HammingIndex(BITS)
    index.add(Codes(np.ascontiguousarray(codes[:, 0]), BITS))
    boxes = _squares(looks["boxes"][rows, which].astype(float))
    found = []
    for number, zoom in enumerate(ZOOMS):
        for way in range(8):
            asked = Codes(turned(codes[:, number], way), BITS)
            distances, ids = index.search(asked, min(NEAREST + 1, len(rows)))
            here, place = np.nonzero((distances <= RADIUS) & (ids >= 0))
            there = ids[here, place]
            apart = distances[here, place]
            framed = bordered[rows[here]] & bordered[rows[there]] & (which[here] + which[there] == 0)
            other = (rows[here] != rows[there]) & (apart <= np.where(framed, FRAMED_RADIUS, RADIUS))
            here, there, apart = here[other], there[other], apart[other]
            margin = (1 - zoom) / 2
            view = np.array([[zoom, 0, margin], [0, zoom, margin], [0, 0, 1.0]])
            maps = boxes[there] @ turning(way) @ np.linalg.inv(boxes[here] @ view)
            found.append((apart, rows[here], rows[there], maps))
    apart, first, second, maps = (np.concatenate(parts) for parts in zip(*found, strict=True))
    swap = first > second
    maps[swap] = np.linalg.inv(maps[swap])
    first, second = np.minimum(first, second), np.maximum(first, second)
    order = np.lexsort((apart, second, first))
    first, second, maps = first[order], second[order], maps[order]
    another = np.ones(len(first), bool)  # whether the pair, or map, differs from the previous one
    another[1:] = (np.diff(first) != 0) | (np.diff(second) != 0) | (np.abs(np.diff(maps, axis=0)).max((1, 2)) > 0.01)
    first, second, maps = first[another], second[another], maps[another]
    starts = np.flatnonzero(np.r_[True, (np.diff(first) != 0) | (np.diff(second) != 0)])
    place = np.arange(len(first)) - np.repeat(starts, np.diff(np.r_[starts, len(first)]))
    return [(first[place == guess], second[place == guess], maps[place == guess]) for guess in range(GUESSES)]


def _squares(boxes: np.ndarray) -> np.ndarray:
    """Maps from the unit square to boxes."""
    left, top, right, bottom = boxes.T
    maps = np.zeros((len(boxes), 3, 3))
    maps[:, 0, 0], maps[:, 0, 2], maps[:, 1, 1], maps[:, 1, 2], maps[:, 2, 2] = right - left, left, bottom - top, top, 1
    return maps


def judged(
    looks: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    maps: np.ndarray,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> np.ndarray:
    """(n, 3): correlation, parts and overlap of each pair, see `agreement`."""
    # compare at the pixels of the image with less detail of the common area
    swap = np.abs(np.linalg.det(maps)) < 1
    maps = np.where(swap[:, None, None], np.linalg.inv(maps), maps)[:, :2].reshape(-1, 6)
    first, second = np.where(swap, second, first), np.where(swap, first, second)
    found = np.zeros((len(first), 3))
    greys, colours = np.ascontiguousarray(looks["grey"]), np.ascontiguousarray(looks["colour"])
    boxes = np.where(has_border(looks)[:, None], looks["boxes"][:, 1], looks["boxes"][:, 0]).astype(float)
    with (progress or Progress(quiet=True)).bar("comparing", len(first)) as advance:

        def work(part: slice) -> None:
            require_going(stop)
            found[part] = agreement(greys, colours, boxes, first[part], second[part], maps[part])
            advance(part.stop - part.start)

        in_threads(work, blocks(len(first), AT_ONCE))
    return found
