"""Triplets (query, positive, negative): a file or an array in, checked row numbers out.

This is how the paper states its problem: no class labels, only that a query is more like one image than another.
"""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.data.images import FileImages, Images
from hashlens.errors import DataError
from hashlens.progress import counted

HELD_OUT = 1_000
A_LINE = "a query, a positive and a negative on each line"


def read_triplets(path: Path, images: Images) -> np.ndarray:
    """(m, 3) int64 rows of `images` from a file with a query, a positive and a negative on each line.

    Images are given by name, with or without the folder, or by row from 0, separated by commas, tabs or spaces. A first
    line "query,positive,negative" and empty lines are ignored.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read the triplet file {path} ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read the triplet file {path} ({error}); write {A_LINE}") from error
    lines = text.splitlines()
    separator = next((mark for mark in "\t," if mark in text.lstrip().partition("\n")[0]), " ")
    row_of = {name: row for row, name in enumerate(images.names)}
    if isinstance(images, FileImages):  # absolute and relative paths name the same file
        here = f"{Path.cwd().as_posix()}/"
        row_of = {
            name: row for row, path in enumerate(images.paths()) for name in (path, path.removeprefix(here))
        } | row_of
    triplets: list[list[int]] = []
    for number, line in enumerate(lines, 1):
        try:
            words = [word.strip() for word in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]
        except csv.Error as error:
            raise DataError(f"line {number} of {path} is malformed ({error}); write {A_LINE}") from error
        words = [word for word in words if word] if separator == " " else words
        if not line.strip() or (not triplets and [word.lower() for word in words] == ["query", "positive", "negative"]):
            continue
        if len(words) != 3:
            raise DataError(f"line {number} of {path} has {counted(len(words), 'entry')}; write {A_LINE}")
        triplets.append([_row(word, row_of, len(images), f"line {number} of {path}") for word in words])
    if not triplets:
        raise DataError(f"{path} is empty; write {A_LINE}")
    return np.array(triplets, np.int64)


def _row(word: str, row_of: dict[str, int], n: int, where: str) -> int:
    if word in row_of:
        return row_of[word]
    if word.isdecimal():
        if len(word) < 19 and int(word) < n:
            return int(word)
        raise DataError(f"{where} names row {word[:19]}, but there are {counted(n, 'image')}; rows count from 0")
    raise DataError(f"{where} names {word!r}, which is not among the images; give a listed path or a row")


def clean_triplets(triplets: Any, n: int) -> tuple[np.ndarray, list[str]]:
    """The usable triplets, (m, 3) int64 in their order, and notes on those left out.

    Left out are repetitions, contradictions such as (q, a, b) and (q, b, a), and triplets that name an image twice.
    """
    given = np.asarray(triplets)
    if given.ndim != 2 or given.shape[1] != 3 or given.dtype.kind not in "iu":
        raise DataError(
            f"triplets must be rows of three integers (query, positive, negative), got {given.dtype} {given.shape}"
        )
    rows = given.astype(np.int64)
    outside = np.flatnonzero(((rows < 0) | (rows >= n)).any(1))
    if len(outside):
        raise DataError(
            f"triplets with images outside rows 0 to {n - 1:,}: {len(outside):,}, first triplet {outside[0]:,}:"
            f" {rows[outside[0]].tolist()}; correct or remove them"
        )
    notes = []

    def drop(bad: np.ndarray, why: str) -> None:
        nonlocal rows
        if bad.any():
            first = ", ".join(map(str, rows[bad][0].tolist()))
            notes.append(f"triplets left out because {why}: {bad.sum():,}, first {first}")
            rows = rows[~bad]

    query, positive, negative = rows.T
    drop((query == positive) | (query == negative) | (positive == negative), "an image is named twice in them")
    _, first_seen = np.unique(rows, axis=0, return_index=True)
    repeated = np.ones(len(rows), bool)
    repeated[first_seen] = False
    drop(repeated, "they repeat others")
    if n >= 2**21:  # three row numbers would not fit into 64 bits
        raise DataError(f"triplets are supported for up to {2**21:,} images, got {n:,}")
    place = np.array([n * n, n, 1])
    drop(np.isin(rows[:, [0, 2, 1]] @ place, rows @ place), "others say the opposite")
    if not len(rows):
        raise DataError(f"no triplet can be trained on: {'; '.join(notes)}; correct the triplets")
    return rows, notes


def split_triplets(
    given: np.ndarray, train: np.ndarray, seed: int, say: Callable[[str], object]
) -> tuple[np.ndarray, np.ndarray]:
    """Triplets for training, as positions in `train`, and some held out for evaluation, as rows of the source.

    A tenth is held out, at most a thousand. Triplets that name images outside `train` are left out, because queries of
    the split must not be trained on.
    """
    place = np.full(max(given.max(initial=-1), train.max(initial=-1)) + 1, -1)
    place[train] = np.arange(len(train))
    inside = (place[given] >= 0).all(1)
    if not inside.all():
        say(
            f"note: triplets left out because they name images outside the training set: {(~inside).sum():,} of"
            f" {len(given):,}"
        )
    given = given[inside]
    if len(given) < 2:
        raise DataError("fewer than two triplets are left to train on; name training images of the split")
    held = np.zeros(len(given), bool)
    held[np.random.default_rng(seed).permutation(len(given))[: min(HELD_OUT, max(1, len(given) // 10))]] = True
    return place[given[~held]], given[held]


def triplets_right(query: Codes, positive: Codes, negative: Codes) -> float:
    """The fraction of triplets whose positive is nearer to the query than the negative; ties count half."""
    near = (query.signs() != positive.signs()).sum(1)
    far = (query.signs() != negative.signs()).sum(1)
    return float(np.mean((near < far) + 0.5 * (near == far)))
