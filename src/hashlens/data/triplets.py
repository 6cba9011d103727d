"""Explicit triplets: a file or an array in, clean rows (query, positive, negative) out, with what was wrong with them.

This is how the paper states its problem: no class labels, only that a query is more like one picture than another.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.data.images import FileImages, Images
from hashlens.errors import DataError

HELD_OUT = 1_000


def read_triplets(path: Path, images: Images) -> np.ndarray:
    """(m, 3) int64 rows of `images` from a file with a query, a positive and a negative on each line.

    Pictures are named as `images` names them, with or without its folder, or by their row from 0; a comma, a
    tab or a blank stands between them. A first line "query,positive,negative" and empty lines are passed over.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataError(f"there is no triplet file {path}; check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as text ({error}); write a query, positive and negative a line"
        ) from error
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise DataError(f"{path} is empty; write a query, a positive and a negative on each line")
    first = lines[0][1]
    separator = next((mark for mark in "\t," if mark in first), " ")
    row_of = {name: row for row, name in enumerate(images.names)}
    if isinstance(images, FileImages):  # named from where one is, as a shell does, the file is the same
        row_of = {(images.root / name).as_posix(): row for name, row in row_of.items()} | row_of
    triplets = []
    for number, line in lines:
        try:
            words = [word.strip() for word in next(csv.reader([line], delimiter=separator, skipinitialspace=True))]
        except csv.Error as error:
            raise DataError(f"line {number} of {path} cannot be read ({error}); mend it") from error
        words = [word for word in words if word] if separator == " " else words
        if number == lines[0][0] and [word.lower() for word in words] == ["query", "positive", "negative"]:
            continue
        if len(words) != 3:
            raise DataError(
                f"line {number} of {path} has {len(words)} entries; give a query, a positive and a negative"
            )
        triplets.append([_row(word, row_of, len(images), f"line {number} of {path}") for word in words])
    return np.array(triplets, np.int64).reshape(-1, 3)


def _row(word: str, row_of: dict[str, int], n: int, where: str) -> int:
    if word in row_of:
        return row_of[word]
    if word.isdecimal():
        if len(word) < 19 and int(word) < n:
            return int(word)
        raise DataError(f"{where} names row {word[:19]}, but there are {n:,} pictures; rows count from 0")
    raise DataError(
        f"{where} names {word!r}, which is not among the pictures; give its path as it is listed, or its row"
    )


def clean_triplets(triplets: Any, n: int) -> tuple[np.ndarray, list[str]]:
    """Triplets that can be learnt from, (m, 3) int64 in their order, and a note on each kind that was left out.

    A triplet that is repeated counts once; if both (q, a, b) and (q, b, a) are given, neither is kept; a query that is
    its own positive or negative, or a positive that is the negative, says nothing.
    """
    given = np.asarray(triplets)
    if given.ndim != 2 or given.shape[1] != 3 or given.dtype.kind not in "iu":
        raise DataError(
            f"triplets must be rows of three whole numbers (query, positive, negative), not {given.dtype} {given.shape}"
        )
    rows = given.astype(np.int64)
    outside = np.flatnonzero(((rows < 0) | (rows >= n)).any(1))
    if len(outside):
        raise DataError(
            f"{len(outside):,} triplets name pictures outside rows 0 to {n - 1:,}, first triplet {outside[0]:,}:"
            f" {rows[outside[0]].tolist()}; correct or remove them"
        )
    notes = []

    def drop(bad: np.ndarray, why: str) -> None:
        nonlocal rows
        if bad.any():
            first = ", ".join(map(str, rows[bad][0].tolist()))
            notes.append(f"{bad.sum():,} triplets are left out because {why} (first: {first})")
            rows = rows[~bad]

    query, positive, negative = rows.T
    drop((query == positive) | (query == negative) | (positive == negative), "a picture is named twice in them")
    _, first_seen = np.unique(rows, axis=0, return_index=True)
    repeated = np.ones(len(rows), bool)
    repeated[first_seen] = False
    drop(repeated, "they repeat others")
    keys, swapped = _keys(rows, n), _keys(rows[:, [0, 2, 1]], n)
    drop(np.isin(swapped, keys), "others say the opposite")
    if not len(rows):
        raise DataError(f"none of the {len(given):,} triplets can be learnt from: {'; '.join(notes)}")
    return rows, notes


def _keys(rows: np.ndarray, n: int) -> np.ndarray:
    """One number for each triplet where that fits 64 bits; else a number by order."""
    if n < 2**21:
        return (rows[:, 0] * n + rows[:, 1]) * n + rows[:, 2]
    raise DataError(f"triplets are supported for up to {2**21:,} pictures; there are {n:,}")


def split_triplets(
    given: np.ndarray, train: np.ndarray, seed: int, say: Callable[[str], object]
) -> tuple[np.ndarray, np.ndarray]:
    """Triplets to learn from, as places in `train`, and some held out to be judged by, as rows of the source.

    A tenth is held out, or a thousand if that is less. Triplets that name pictures outside `train` are left out: a
    query of the split must not be learnt from.
    """
    place = np.full(max(given.max(initial=-1), train.max(initial=-1)) + 1, -1)
    place[train] = np.arange(len(train))
    inside = (place[given] >= 0).all(1)
    if not inside.all():
        say(f"note: {(~inside).sum():,} of {len(given):,} triplets name pictures that are not for training; left out")
    given = given[inside]
    if len(given) < 2:
        raise DataError("no two triplets are left to learn from; name pictures of the training part of the split")
    held = np.zeros(len(given), bool)
    held[np.random.default_rng(seed).permutation(len(given))[: min(HELD_OUT, max(1, len(given) // 10))]] = True
    return place[given[~held]], given[held]


def triplets_right(query: Codes, positive: Codes, negative: Codes) -> float:
    """The part of triplets whose positive is nearer to the query than the negative; equally near counts half."""
    near = (query.signs() != positive.signs()).sum(1)
    far = (query.signs() != negative.signs()).sum(1)
    return float(np.mean((near < far) + 0.5 * (near == far)))
