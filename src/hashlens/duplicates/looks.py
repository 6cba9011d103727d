"""Looks: images in, 4.4 KB for each out, from which copies are found and judged.

A look has a small grey image, the box of the content inside a border, and 256-bit codes of the whole image and of the
content, each also without a margin. A code says, for 8 x 8 cells, whether there are more edges than usual, and in which
direction brightness rises.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hashlens.checksums import block_sums, sum_of
from hashlens.data.images import INSIDE, decode, tar_of
from hashlens.data.thumbnails import file_of
from hashlens.duplicates.align import PART, SIDE, TEXTURE
from hashlens.errors import Stopped, StorageError
from hashlens.files import cache_dir, replacing, size_and_mtime
from hashlens.index.catalog import Catalog
from hashlens.machine import blocks, work_ahead
from hashlens.progress import Progress, counted

CELLS = 8  # per side
BITS = 4 * CELLS * CELLS
ZOOMS = (1.0, 0.9, 0.8)  # share of a box that a code covers, to match crops
WORK_SIDE = 160  # pixels; larger images are reduced first
REACH = 0.35  # share of the image in which to search for a border
FLAT = 12  # range of grey levels of nearly all pixels in a line of a border
SMALLER = 0.95  # share of the image: if the content is larger, there is no border

LOOK = np.dtype(
    [
        ("digest", np.uint8, 32),  # sha256 of the file; all zeros if it cannot be read
        ("width", np.int32),
        ("height", np.int32),
        ("sharpness", np.float32),
        ("colour", np.float32, 3),  # mean colour, 0 to 255
        ("parts", np.uint8),  # number of parts with texture; 0: nothing can be said
        ("boxes", np.float32, (2, 4)),  # left, top, right, bottom of the whole and of the content, 0 to 1
        ("codes", np.uint8, (2, len(ZOOMS), BITS // 8)),
        ("grey", np.uint8, (SIDE, SIDE)),
    ]
)
WHOLE = (0.0, 0.0, 1.0, 1.0)
KEPT = np.dtype([("name", np.uint8, 16), ("size", np.int64), ("mtime", np.int64), ("look", LOOK)])
VERSION = "looks-2"  # raise it when the contents of looks change, so that no old ones are used
SAVED = 2_048  # images between two saves
MANY_PARTS = 16  # parts, above which they are joined


def looks_of(
    index: Catalog, paths: Sequence[str], progress: Progress, stop: Callable[[], bool] = lambda: False
) -> np.ndarray:
    """A LOOK for each image of an index; looks of unchanged files come from the cache."""
    place = cache_dir() / VERSION / hashlib.sha256(os.fsencode(index.path.absolute())).hexdigest()[:32]
    kept, marks = _kept(place), np.zeros(len(paths), KEPT)
    for mark, path in zip(marks, paths, strict=True):
        mark["name"] = np.frombuffer(hashlib.sha256(os.fsencode(path)).digest()[:16], np.uint8)
        mark["size"], mark["mtime"] = size_and_mtime(tar_of(path) if INSIDE in path else path)
    rows_of = {_key(row): place for place, row in enumerate(kept)}
    found = np.array([rows_of.get(_key(mark), -1) for mark in marks], np.int64)
    marks["look"][found >= 0] = kept["look"][found[found >= 0]]
    missing, roots = np.flatnonzero(found < 0), index.roots
    done = 0

    def work(part: slice) -> list[np.ndarray]:
        return [_look(roots, paths[row]) for row in missing[part]]

    if not len(missing):
        return marks["look"]
    with progress.bar("looking", len(missing)) as advance:
        unsaved = 0
        for looks in work_ahead(work, blocks(len(missing), 32)):
            marks["look"][missing[done : done + len(looks)]] = looks
            done, unsaved = done + len(looks), unsaved + len(looks)
            advance(len(looks))
            asked = done < len(missing) and stop()
            if unsaved >= SAVED or asked or done == len(missing):
                _save(place, marks[missing[done - unsaved : done]], marks if done == len(missing) else None, progress)
                unsaved = 0
            if asked:
                left = counted(len(missing) - done, "image")
                raise Stopped(f"stopped; {left} left to look at; rerun the same command to resume")
    return marks["look"]


def _key(mark: Any) -> tuple[bytes, int, int]:
    return mark["name"].tobytes(), int(mark["size"]), int(mark["mtime"])


def _kept(place: Path) -> np.ndarray:
    parts = [np.empty(0, KEPT)]
    for file in sorted(place.glob("*.looks")):
        with suppress(OSError, ValueError):
            content = file.read_bytes()
            if file.stem[-32:] == _sum(content):  # otherwise damaged, and its looks are made again
                parts.append(np.frombuffer(content, KEPT))
    return np.concatenate(parts)


def _sum(content: bytes) -> str:
    return sum_of(block_sums(content))


def _save(place: Path, new: np.ndarray, whole: np.ndarray | None, progress: Progress) -> None:
    """Add a part; if `whole` is given and there are many parts, it replaces all of them."""
    files = sorted(place.glob("*.looks"))
    number = int(files[-1].stem[:6]) + 1 if files else 0
    joined = whole is not None and len(files) >= MANY_PARTS
    written = whole if whole is not None and joined else new
    written = written[written["look"]["digest"].any(axis=1)]  # unreadable images may become readable later
    content = written.tobytes()
    try:
        with replacing(place / f"{number:06d}-{_sum(content)}.looks") as temporary:
            temporary.write_bytes(content)
        for old in files if joined else ():
            old.unlink(missing_ok=True)
    except StorageError as error:
        progress.say(f"note: what was computed of the images is not kept: {error.message}")


def _look(roots: list[str], path: str) -> np.ndarray:
    try:
        file = file_of(roots, path)
        data = file.read_bytes() if isinstance(file, Path) else file.getvalue()
        image, size = decode(io.BytesIO(data), at_least=WORK_SIDE)
        look = look_at(image)
    except Exception:  # Pillow raises nearly anything on a damaged file
        return np.zeros((), LOOK)
    across = (size[0] > size[1]) == (image.width > image.height)  # otherwise EXIF turned it
    look["width"], look["height"] = size if across else size[::-1]
    look["digest"] = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
    return look


def look_at(image: Image.Image) -> np.ndarray:
    """One LOOK without its digest."""
    look = np.zeros((), LOOK)
    look["width"], look["height"] = image.size
    look["colour"] = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)).mean(axis=(0, 1))
    grey = image.convert("L")
    if max(grey.size) > WORK_SIDE:
        grey = grey.resize(
            (min(WORK_SIDE, grey.width), min(WORK_SIDE, grey.height)), Image.Resampling.BILINEAR, reducing_gap=2.0
        )
    look["boxes"] = WHOLE, _content(np.asarray(grey))
    for number, (left, top, right, bottom) in enumerate(look["boxes"].astype(float) * (*grey.size, *grey.size)):
        if number and not has_border(look):
            break
        for place, zoom in enumerate(ZOOMS):
            across, down = (right - left) * (1 - zoom) / 2, (bottom - top) * (1 - zoom) / 2
            box = left + across, top + down, right - across, bottom - down
            look["codes"][number, place] = _code(_shrunk(grey, box))
    look["grey"] = _shrunk(grey, None)
    parts = look["grey"].reshape(SIDE // PART, PART, SIDE // PART, PART)
    look["parts"] = (parts.std(axis=(1, 3)) >= TEXTURE).sum()
    look["sharpness"] = _sharpness(np.asarray(grey, np.float32))
    return look


def _sharpness(grey: np.ndarray) -> float:
    """The mean step between neighbouring pixels."""
    return float(np.mean([np.abs(np.diff(grey, axis=axis)).mean() if grey.shape[axis] > 1 else 0 for axis in (0, 1)]))


def has_border(looks: np.ndarray) -> np.ndarray:
    left, top, right, bottom = np.moveaxis(looks["boxes"][..., 1, :], -1, 0)
    return (right - left) * (bottom - top) < SMALLER


def _shrunk(grey: Image.Image, box: tuple[float, float, float, float] | None) -> np.ndarray:
    return np.asarray(grey.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box))


def _content(grey: np.ndarray) -> tuple[float, float, float, float]:
    """The box inside the innermost flat lines near the edges: without borders, window bars and margins."""
    height, width = grey.shape
    left, top, right, bottom = 0, 0, width, height
    for _ in range(2):  # once more, without the other pair of margins
        top, bottom = _between(grey[:, left:right])
        if top >= bottom:  # an image of only a few pixels
            return WHOLE
        left, right = _between(grey[top:bottom].T)
        if left >= right:
            return WHOLE
    return left / width, top / height, right / width, bottom / height


def _between(lines: np.ndarray) -> tuple[int, int]:
    n = len(lines)
    low, high = np.sort(lines, axis=1)[:, [lines.shape[1] // 20, -1 - lines.shape[1] // 20]].T.astype(int)
    flat = np.flatnonzero(high - low < FLAT)
    before, after = flat[flat < REACH * n], flat[flat >= (1 - REACH) * n]
    return int(before[-1]) + 1 if len(before) else 0, int(after[0]) if len(after) else n


def _code(grey: np.ndarray) -> np.ndarray:
    down, across = (_cells(np.gradient(grey.astype(np.float32), axis=axis)) for axis in (0, 1))
    edges = [slope - np.median(slope) for slope in (across[1], down[1])]
    return np.packbits(np.stack([*edges, across[0], down[0]], axis=-1) > 0)


def _cells(slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean slope in each cell, and its steepness."""
    parts = slope.reshape(CELLS, SIDE // CELLS, CELLS, SIDE // CELLS)
    return parts.mean((1, 3)), np.abs(parts).mean((1, 3))


def turned(codes: np.ndarray, way: int) -> np.ndarray:
    """Codes (n, BITS // 8) of the images turned in one of 8 ways: bit 4 transposes, then bits 1 and 2 mirror."""
    bits = np.unpackbits(codes, axis=1).reshape(-1, CELLS, CELLS, 4)
    if way & 4:
        bits = bits.swapaxes(1, 2)[..., [1, 0, 3, 2]]
    if way & 1:
        bits = bits[:, :, ::-1] ^ np.array([0, 0, 1, 0], np.uint8)
    if way & 2:
        bits = bits[:, ::-1] ^ np.array([0, 0, 0, 1], np.uint8)
    return np.packbits(bits.reshape(len(codes), -1), axis=1)


def turning(way: int) -> np.ndarray:
    """The same turn as a map of the unit square, (3, 3)."""
    transpose = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1.0]]) if way & 4 else np.eye(3)
    x, y = (-1.0 if way & 1 else 1.0), (-1.0 if way & 2 else 1.0)
    return np.array([[x, 0, (1 - x) / 2], [0, y, (1 - y) / 2], [0, 0, 1]]) @ transpose
