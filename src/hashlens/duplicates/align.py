"""Alignment: pairs of small grey images and first guesses in; how well the images agree once aligned, out.

A guess, an affine map, is refined by least squares from coarse to fine, brightness and contrast with it (Lucas and
Kanade, 1981). Then the images are compared part by part: in each part with texture, what is left after brightness and
straight edges are removed must correlate. Text or a sticker spoils a few parts only; smooth skies and straight
horizons, which all look the same, have no part that counts.
"""

import numpy as np
from numba import njit

SIDE = 64  # of the grey images
PART = 8  # side of the parts that are compared
TEXTURE = 1.5  # standard deviation in grey levels, below which a part says nothing
SLACK = 0.75  # pixels by which a part may stick out of the other image
STEPS = (10, 6, 4)  # of refinement at a quarter, half and all of SIDE
SETTLED = 0.05  # pixels; a step that moves less is the last
HOPELESS = 0.7  # correlation after a stage, below which the pair is given up
EARLY, HOPELESS_EARLY = 3, 0.5  # the same after a few steps
SAME, VARIED = 1.5, 8.0  # grey levels: that much apart, images that vary by that much are the same
SAME_COLOUR = 4.0  # levels of the mean red, green and blue
UNKNOWNS = 8  # six of the map, contrast and brightness


@njit(nogil=True, cache=True)
def agreement(
    greys: np.ndarray,
    colours: np.ndarray,
    boxes: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    maps: np.ndarray,
    found: np.ndarray,
) -> None:
    """For each pair of rows of `greys`, (n, SIDE, SIDE) uint8: found[pair] = correlation, parts, overlap.

    Parameters
    ----------
    colours : (n, 3) means.
    boxes : (n, 4) of what counts in each image, 0 to 1.
    maps : (n_pairs, 6) guesses from the unit square of the first image to that of the second; overwritten.
    found : (n_pairs, 3) float64: the mean correlation of parts with texture, how many parts that are, and how much of
        the first or second box, whichever is more, lies inside the other.
    """
    fit = np.empty(4)  # contrast, brightness, typical error, correlation
    for pair in range(len(first)):
        found[pair] = 0.0
        a, b, m = greys[first[pair]], greys[second[pair]], maps[pair]
        box_a, box_b = boxes[first[pair]], boxes[second[pair]]
        colour = np.abs(colours[first[pair]] - colours[second[pair]]).max()
        if colour <= SAME_COLOUR and _difference(a, b, m) <= SAME:
            found[pair, 0], found[pair, 1], found[pair, 2] = 1.0, (SIDE // PART) ** 2, 1.0
            continue
        given_up = False
        for stage in range(len(STEPS)):
            shrink = 1 << (len(STEPS) - 1 - stage)
            small_a, small_b = _shrunk(a, shrink), _shrunk(b, shrink)
            fit[2] = 0.0
            for step in range(STEPS[stage]):
                moved = _refine(small_a, small_b, box_a, box_b, m, fit)
                if moved < SETTLED or (step == EARLY and fit[3] < HOPELESS_EARLY):
                    break
            size = abs(m[0] * m[4] - m[1] * m[3])
            if fit[3] < HOPELESS or size < 0.1 or size > 10:
                given_up = True
                break
        if not given_up:
            _compare(small_a, small_b, box_a, box_b, m, found[pair])


@njit(nogil=True, cache=True, inline="always")
def _inside(box: np.ndarray, x: float, y: float, slack: float, margin: float) -> bool:
    """Whether a point is in the image, give or take the slack, and in the box but for its margin next to a border."""
    if min(x, y) < -slack or max(x, y) > 1 + slack:
        return False
    return (
        (box[0] == 0 or x >= box[0] + margin)
        and (box[1] == 0 or y >= box[1] + margin)
        and (box[2] == 1 or x <= box[2] - margin)
        and (box[3] == 1 or y <= box[3] - margin)
    )


@njit(nogil=True, cache=True)
def _difference(a: np.ndarray, b: np.ndarray, m: np.ndarray) -> float:
    """The mean difference in grey levels before anything is aligned; infinite if the image is nearly uniform."""
    if a.std() < VARIED:
        return np.inf
    total = 0.0
    for i in range(SIDE):
        for j in range(SIDE):
            u, v = (j + 0.5) / SIDE, (i + 0.5) / SIDE
            x, y = m[0] * u + m[1] * v + m[2], m[3] * u + m[4] * v + m[5]
            if min(x, y) < 0 or max(x, y) > 1:
                return np.inf
            total += abs(a[i, j] - _sample(b, x * SIDE - 0.5, y * SIDE - 0.5)[0])
    return total / (SIDE * SIDE)


@njit(nogil=True, cache=True)
def _shrunk(image: np.ndarray, by: int) -> np.ndarray:
    side = SIDE // by
    small = np.zeros((side, side))
    for i in range(SIDE):
        for j in range(SIDE):
            small[i // by, j // by] += image[i, j]
    return small / (by * by)


@njit(nogil=True, cache=True)
def _sample(image: np.ndarray, x: float, y: float) -> tuple[float, float, float]:
    """The value between four pixels and its slopes along x and y."""
    last = image.shape[0] - 1.001
    x, y = min(max(x, 0.0), last), min(max(y, 0.0), last)
    i, j = int(y), int(x)
    fx, fy = x - j, y - i
    rise_top = float(image[i, j + 1]) - image[i, j]
    rise_bottom = float(image[i + 1, j + 1]) - image[i + 1, j]
    top, bottom = image[i, j] + rise_top * fx, image[i + 1, j] + rise_bottom * fx
    return top + (bottom - top) * fy, rise_top + (rise_bottom - rise_top) * fy, bottom - top


@njit(nogil=True, cache=True)
def _refine(
    a: np.ndarray, b: np.ndarray, box_a: np.ndarray, box_b: np.ndarray, m: np.ndarray, fit: np.ndarray
) -> float:
    """One step of Gauss and Newton on the map `m` and on `fit`, in place; by how many pixels it moved.

    Pixels that the last fit explains badly, such as text, count less.
    """
    side = a.shape[0]
    half = 0.5 / side  # pixel of the border may be mixed into the first inside it
    contrast, brightness, typical = fit[0], fit[1], fit[2]
    normal, right, row = np.zeros((UNKNOWNS, UNKNOWNS)), np.zeros(UNKNOWNS), np.empty(UNKNOWNS)
    n, sum_aa, errors = 0, 0.0, 0.0
    for i in range(side):
        v = (i + 0.5) / side
        for j in range(side):
            u = (j + 0.5) / side
            x, y = m[0] * u + m[1] * v + m[2], m[3] * u + m[4] * v + m[5]
            if not (_inside(box_a, u, v, 0.0, half) and _inside(box_b, x, y, 0.0, half)):
                continue
            value, dx, dy = _sample(b, x * side - 0.5, y * side - 0.5)
            grey, weight = a[i, j], 1.0
            if typical > 0:
                error = abs(grey - contrast * value - brightness)
                errors += error
                weight = 1 / (1 + (error / (2 * typical)) ** 2)
            n += 1
            sum_aa += weight * grey * grey
            row[0], row[1], row[2] = dx * u, dx * v, dx
            row[3], row[4], row[5] = dy * u, dy * v, dy
            row[6], row[7] = value, 1.0
            for p in range(UNKNOWNS):
                weighted = row[p] * weight
                right[p] += weighted * grey
                for q in range(p + 1):
                    normal[p, q] += weighted * row[q]
    fit[3] = 0.0
    if n < side * side // 16:
        return 0.0
    weights = normal[7, 7]
    var_a = sum_aa - right[7] * right[7] / weights
    var_b = normal[6, 6] - normal[7, 6] * normal[7, 6] / weights
    both = right[6] - right[7] * normal[7, 6] / weights
    if var_a > 0 and var_b > 0:
        fit[3] = both / np.sqrt(var_a * var_b)
    for p in range(UNKNOWNS):
        for q in range(p):
            normal[q, p] = normal[p, q]
        # damped, so that a direction without slopes, as in a sky, is not followed
        normal[p, p] += 1e-3 * normal[p, p] + 1.0 if p < 6 else 1e-3
    step = np.linalg.solve(normal, right)  # a = contrast * (b + slopes * step) + brightness
    fit[0], fit[1] = step[6], step[7]
    # the error after the step is not known yet: that before it, or what the plain fit leaves
    fit[2] = errors / n if typical > 0 else np.sqrt(max(var_a - both * both / max(var_b, 1e-9), 0.0) / n) + 1.0
    moved = 0.0
    if step[6] > 1e-3:
        for p in range(6):
            change = min(max(step[p] / step[6] / side, -0.1), 0.1)
            m[p] += change
            moved = max(moved, abs(change) * side)
    return moved


@njit(nogil=True, cache=True)
def _compare(
    a: np.ndarray, b: np.ndarray, box_a: np.ndarray, box_b: np.ndarray, m: np.ndarray, found: np.ndarray
) -> None:
    inside = np.zeros((SIDE, SIDE), np.bool_)
    warped = np.zeros((SIDE, SIDE))
    top, left, slack = SIDE, SIDE, SLACK / SIDE - 0.5 / SIDE
    for i in range(SIDE):
        for j in range(SIDE):
            u, v = (j + 0.5) / SIDE, (i + 0.5) / SIDE
            x, y = m[0] * u + m[1] * v + m[2], m[3] * u + m[4] * v + m[5]
            if _inside(box_a, u, v, slack, 1 / SIDE) and _inside(box_b, x, y, slack, 1 / SIDE):
                inside[i, j] = True
                warped[i, j] = _sample(b, x * SIDE - 0.5, y * SIDE - 0.5)[0]
                top, left = min(top, i), min(left, j)
    total, n_textured = 0.0, 0
    for i in range(top, SIDE - PART + 1, PART):
        for j in range(left, SIDE - PART + 1, PART):
            if inside[i : i + PART, j : j + PART].all():
                correlation = _correlation(a[i : i + PART, j : j + PART], warped[i : i + PART, j : j + PART])
                if correlation > -2:
                    n_textured += 1
                    total += correlation
    found[0], found[1] = total / max(n_textured, 1), n_textured
    area_a = (box_a[2] - box_a[0]) * (box_a[3] - box_a[1])
    area_b = (box_b[2] - box_b[0]) * (box_b[3] - box_b[1])
    size = abs(m[0] * m[4] - m[1] * m[3])
    found[2] = inside.mean() * max(1 / area_a, size / area_b)


@njit(nogil=True, cache=True)
def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Of two parts, less the means of their rows and columns, which all horizons share; -2 if neither has texture."""
    rest = np.empty((2, PART, PART))
    rest[0], rest[1] = a, b
    for part in rest:
        for i in range(PART):
            part[i] -= part[i].mean()
        for j in range(PART):
            part[:, j] -= part[:, j].mean()
    var_a, var_b, both = (rest[0] ** 2).mean(), (rest[1] ** 2).mean(), (rest[0] * rest[1]).mean()
    if max(var_a, var_b) < TEXTURE * TEXTURE:
        return -2.0
    if min(var_a, var_b) < TEXTURE * TEXTURE / 64:  # one of them is flat there
        return 0.0
    return both / np.sqrt(var_a * var_b)
