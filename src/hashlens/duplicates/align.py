"""Alignment: pairs of small grey images and first guesses in, how well the images agree once aligned out.

A guess, an affine map, is refined together with brightness and contrast by least squares, from coarse to fine (Lucas
and Kanade, 1981). Then the images are compared part by part: in each part with texture, the pixels must correlate after
removing brightness and straight edges. Text or a sticker spoils only a few parts; smooth skies and straight horizons,
which all look the same, have no parts that count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SIDE = 64  # of the grey images
PART = 8  # side of the parts that are compared
TEXTURE = 1.5  # minimum standard deviation of a part, in grey levels
SLACK = 0.75  # pixels by which a part may extend beyond the other image
STEPS = (10, 6, 4)  # refinement steps at a quarter, half and all of SIDE
SETTLED = 0.05  # pixels; stop after a step that moves less
HOPELESS = 0.7  # give up a pair with a lower correlation after a stage
EARLY, HOPELESS_EARLY = 3, 0.5  # the same after a few steps
FARTHEST = 0.1  # maximum change per step of a number of the map, relative to the image
SAME, VARIED = 1.5, 8.0  # grey levels: images that vary by 8 and differ by 1.5 are the same
SAME_COLOUR = 4.0  # levels, for mean red, green and blue
UNKNOWNS = 8  # six of the map, contrast and brightness


@dataclass
class Pairs:
    """Pairs of images, one per row, and their current maps and fits."""

    a: np.ndarray  # (n, side, side) float32, minus their means
    b: np.ndarray
    box_a: np.ndarray  # (n, 4) of the area that counts, 0 to 1
    box_b: np.ndarray
    maps: np.ndarray  # (n, 6) from the unit square of a to that of b
    fit: np.ndarray  # (n, 4): contrast, brightness, typical error, correlation

    def __getitem__(self, rows: np.ndarray) -> Pairs:
        return Pairs(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def shrunk(self, by: int) -> Pairs:
        """The same pairs at a fraction of the size, with the fits reset."""
        n, side = len(self.a), SIDE // by
        a, b = (image.reshape(n, side, by, side, by).mean((2, 4)) for image in (self.a, self.b))
        return Pairs(a, b, self.box_a, self.box_b, self.maps, np.zeros((n, 4)))

    def size(self) -> np.ndarray:
        """The scale of the content of a in b."""
        return np.abs(self.maps[:, 0] * self.maps[:, 4] - self.maps[:, 1] * self.maps[:, 3])


def agreement(
    greys: np.ndarray,
    colours: np.ndarray,
    boxes: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    maps: np.ndarray,
) -> np.ndarray:
    """For each pair of rows of `greys`, (n, SIDE, SIDE) uint8: correlation, parts and overlap, (n_pairs, 3).

    These are the mean correlation of parts with texture, their number, and how much of the first or second box,
    whichever is more, lies inside the other.

    Parameters
    ----------
    colours : (n, 3) means.
    boxes : (n, 4) of the area that counts in each image, 0 to 1.
    maps : (n_pairs, 6) guesses from the unit square of the first image to that of the second.
    """
    found = np.zeros((len(first), 3))
    a, b = (greys[rows].astype(np.float32) for rows in (first, second))
    alike = np.abs(colours[first] - colours[second]).max(axis=1) <= SAME_COLOUR
    alike[alike] = _differences(a[alike], b[alike], maps[alike]) <= SAME
    found[alike] = 1.0, (SIDE // PART) ** 2, 1.0
    left = np.flatnonzero(~alike)
    a, b = (image[left] - image[left].mean(axis=(1, 2), keepdims=True) for image in (a, b))
    pairs = Pairs(a, b, boxes[first[left]], boxes[second[left]], maps[left].astype(float), np.zeros((len(left), 4)))
    for stage, steps in enumerate(STEPS):
        small = pairs.shrunk(1 << (len(STEPS) - 1 - stage))
        moving = np.arange(len(left))
        for step in range(steps):
            some = small[moving]
            moved = _refine(some)
            small.maps[moving], small.fit[moving] = some.maps, some.fit
            hopeless = (step == EARLY) & (some.fit[:, 3] < HOPELESS_EARLY)
            moving = moving[(moved >= SETTLED) & ~hopeless]
        size = small.size()
        pairs.maps = small.maps
        good = np.flatnonzero((small.fit[:, 3] >= HOPELESS) & (size >= 0.1) & (size <= 10))
        left, pairs = left[good], pairs[good]
    for place, row in enumerate(left):
        found[row] = _compare(pairs[np.array([place])])
    return found


def _grid(side: int) -> tuple[np.ndarray, np.ndarray]:
    """The centres of all pixels, row by row, 0 to 1."""
    middles = (np.arange(side) + 0.5) / side
    return np.tile(middles, side), np.repeat(middles, side)


def _mapped(maps: np.ndarray, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    m = maps[:, :, None]
    return m[:, 0] * u + m[:, 1] * v + m[:, 2], m[:, 3] * u + m[:, 4] * v + m[:, 5]


def _sample(images: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Interpolated values, and their slopes along x and y, at positions from 0 to 1 in each image."""
    n, side, _ = images.shape
    x, y = ((places * side - 0.5).clip(0, side - 1.001).astype(np.float32) for places in (x, y))
    j, i = x.astype(np.int32), y.astype(np.int32)
    fx, fy, place = x - j, y - i, i * side + j + np.arange(0, n * side * side, side * side, dtype=np.int32)[:, None]
    pixels = images.reshape(-1)
    top, right, low, corner = (pixels.take(place + step) for step in (0, 1, side, side + 1))
    rise_top, rise_low = right - top, corner - low
    top, low = top + rise_top * fx, low + rise_low * fx
    down = low - top
    return top + down * fy, rise_top + (rise_low - rise_top) * fy, down


def _inside(boxes: np.ndarray, x: np.ndarray, y: np.ndarray, slack: float, margin: float) -> np.ndarray:
    """Whether points are in the image, up to the slack, and in the box, except for its margin next to a border."""
    low = np.where(boxes[:, :2] == 0, -slack, boxes[:, :2] + margin)[:, :, None]
    high = np.where(boxes[:, 2:] == 1, 1 + slack, boxes[:, 2:] - margin)[:, :, None]
    return (x >= low[:, 0]) & (x <= high[:, 0]) & (y >= low[:, 1]) & (y <= high[:, 1])


def _differences(a: np.ndarray, b: np.ndarray, maps: np.ndarray) -> np.ndarray:
    """The mean differences in grey levels before anything is aligned; infinite if an image is nearly uniform."""
    x, y = _mapped(maps, *_grid(SIDE))
    outside = (np.minimum(x, y) < 0).any(axis=1) | (np.maximum(x, y) > 1).any(axis=1)
    difference = np.abs(a.reshape(len(a), SIDE * SIDE) - _sample(b, x, y)[0]).mean(axis=1)
    return np.where(outside | (a.std(axis=(1, 2)) < VARIED), np.inf, difference)


def _refine(pairs: Pairs) -> np.ndarray:
    """One step of Gauss and Newton on maps and fits, in place; returns how many pixels each moved.

    Pixels that fit badly, such as text, count less.
    """
    n, side, _ = pairs.a.shape
    (u, v), grey = _grid(side), pairs.a.reshape(n, side * side)
    x, y = _mapped(pairs.maps, u, v)
    half = 0.5 / side  # pixel: the first one inside a border may be a mixture
    inside = _inside(pairs.box_a, u, v, 0.0, half) & _inside(pairs.box_b, x, y, 0.0, half)
    value, dx, dy = _sample(pairs.b, x, y)
    contrast, brightness, typical = pairs.fit[:, :3].T[:, :, None].astype(np.float32)
    error = np.abs(grey - contrast * value - brightness)
    known = typical > 0
    weight = inside / (1 + (error / np.where(known, 2 * typical, np.inf)) ** 2)
    rows = np.empty((n, UNKNOWNS + 1, side * side), np.float32)  # the last row is the target of the others
    u, v = u.astype(np.float32), v.astype(np.float32)
    for place, part in enumerate((dx * u, dx * v, dx, dy * u, dy * v, dy, value, np.float32(1), grey)):
        rows[:, place] = part
    products = (rows * weight[:, None].astype(np.float32) @ rows.swapaxes(1, 2)).astype(float)
    normal, right = products[:, :UNKNOWNS, :UNKNOWNS], products[:, :UNKNOWNS, UNKNOWNS]
    n_inside, weights = inside.sum(axis=1), np.maximum(normal[:, 7, 7], 1e-9)
    enough = n_inside >= side * side // 16
    var_a = products[:, UNKNOWNS, UNKNOWNS] - right[:, 7] ** 2 / weights
    var_b = normal[:, 6, 6] - normal[:, 6, 7] ** 2 / weights
    both = right[:, 6] - right[:, 7] * normal[:, 6, 7] / weights
    varied = enough & (var_a > 0) & (var_b > 0)
    pairs.fit[:, 3] = np.where(varied, both / np.sqrt(np.where(varied, var_a * var_b, 1)), 0)
    # damped, to avoid steps in directions without slopes, as in a sky
    diagonal = np.arange(UNKNOWNS)
    normal[:, diagonal[:6], diagonal[:6]] *= 1.001
    normal[:, diagonal, diagonal] += np.where(diagonal < 6, 1.0, 1e-3)
    step = np.linalg.solve(normal, right[:, :, None])[:, :, 0]  # a = contrast * (b + slopes * step) + brightness
    # the error after the step is unknown: take that before it, or that of the plain fit
    left_over = np.sqrt(np.maximum(var_a - both**2 / np.maximum(var_b, 1e-9), 0) / np.maximum(n_inside, 1)) + 1
    before = (error * inside).sum(axis=1) / np.maximum(n_inside, 1)
    pairs.fit[:, :2], pairs.fit[:, 2] = step[:, 6:], np.where(known[:, 0], before, left_over)
    moves = enough & (step[:, 6] > 1e-3)
    change = (step[:, :6] / np.where(moves, step[:, 6], np.inf)[:, None] / side).clip(-FARTHEST, FARTHEST)
    pairs.maps += change
    return np.abs(change).max(axis=1) * side


def _compare(pair: Pairs) -> tuple[float, int, float]:
    """Correlation, parts and overlap of one aligned pair."""
    (u, v), slack = _grid(SIDE), (SLACK - 0.5) / SIDE
    x, y = _mapped(pair.maps, u, v)
    inside = _inside(pair.box_a, u, v, slack, 1 / SIDE) & _inside(pair.box_b, x, y, slack, 1 / SIDE)
    inside = inside.reshape(SIDE, SIDE)
    if not inside.any():
        return 0.0, 0, 0.0
    top, left = int(inside.any(axis=1).argmax()), int(inside.any(axis=0).argmax())
    whole = _parts(inside, top, left).all(axis=(1, 2))
    a, b = (_parts(image, top, left)[whole] for image in (pair.a[0], _sample(pair.b, x, y)[0].reshape(SIDE, SIDE)))
    for part in (a, b):  # minus the means of rows and columns, which all horizons share
        part -= part.mean(axis=2, keepdims=True)
        part -= part.mean(axis=1, keepdims=True)
    var_a, var_b, both = (a * a).mean((1, 2)), (b * b).mean((1, 2)), (a * b).mean((1, 2))
    textured = np.maximum(var_a, var_b) >= TEXTURE**2
    flat = np.minimum(var_a, var_b) < TEXTURE**2 / 64  # in either image
    correlations = np.where(flat, 0, both / np.sqrt(np.where(flat, 1, var_a * var_b)))[textured]
    areas = [(box[0, 2] - box[0, 0]) * (box[0, 3] - box[0, 1]) for box in (pair.box_a, pair.box_b)]
    overlap = inside.mean() * max(1 / areas[0], pair.size()[0] / areas[1])
    return float(correlations.mean()) if len(correlations) else 0.0, len(correlations), float(overlap)


def _parts(image: np.ndarray, top: int, left: int) -> np.ndarray:
    """The image from (top, left) on, cut into whole parts, (n, PART, PART)."""
    down, across = (SIDE - top) // PART, (SIDE - left) // PART
    cut = image[top : top + down * PART, left : left + across * PART].reshape(down, PART, across, PART)
    return cut.swapaxes(1, 2).reshape(-1, PART, PART).copy()
