"""A folder with MIRFLICKR-25K as published in; a Source of its pictures with 24 labels out.

    im1.jpg … im25000.jpg           the pictures, here or in the folder mirflickr
    annotations/<label>.txt         the numbers of the pictures with that label, one a line; the folder may also
                                    have its official name, mirflickr25k_annotations_v080

Of the 38 label files the 24 without _r1 are used, as papers do. Pictures without any label (419) are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from hashlens.data import Source
from hashlens.data.folder import check_once
from hashlens.data.images import FileImages, Progress
from hashlens.data.labels import Labels
from hashlens.data.protocols import MIRFLICKR_LABELS
from hashlens.errors import DataError

ANNOTATIONS = ("annotations", "mirflickr25k_annotations_v080")


def is_mirflickr(root: str | os.PathLike[str]) -> bool:
    return _annotations(Path(root)) is not None and _pictures(Path(root)) is not None


def load_mirflickr(root: str | os.PathLike[str], progress: Progress | None = None) -> Source:
    """The labelled pictures that are there, by number; those that labels speak of and that are missing are listed."""
    root = Path(root)
    annotations, folder = _annotations(root), _pictures(root)
    if annotations is None or folder is None:
        raise DataError(
            f"{root} is not MIRFLICKR-25K as published; it needs im1.jpg and so on, and the folder {ANNOTATIONS[0]}"
        )
    of_label = [_read_numbers(annotations / f"{label}.txt") for label in MIRFLICKR_LABELS]
    labelled = np.unique(np.concatenate(of_label))
    if not len(labelled):
        raise DataError(f"no picture has a label in {annotations}; unpack mirflickr25k_annotations_v080.zip again")
    # Labels by picture number first: the files name numbers in no particular order.
    values = np.zeros((labelled.max() + 1, len(MIRFLICKR_LABELS)), bool)
    for c, numbers in enumerate(of_label):
        values[numbers, c] = True

    there = {
        int(match[1]): path.name for path in folder.iterdir() if (match := re.fullmatch(r"im(\d+)\.jpg", path.name))
    }
    missing = [(f"im{number}.jpg", "missing") for number in labelled if int(number) not in there]
    present = [int(number) for number in labelled if int(number) in there]
    good, unreadable = check_once([there[number] for number in present], folder, progress)
    rows = [number for number in present if there[number] in good]
    if not rows:
        raise DataError(f"none of the {len(labelled):,} labelled pictures is in {folder} and readable; check the path")

    warnings = []
    if len(there) > len(present):
        warnings.append(f"pictures without a label are left out: {len(there) - len(present):,}")
    if missing:
        warnings.append(f"missing pictures: {len(missing):,} of {len(labelled):,}, first {missing[0][0]}")
    if unreadable:
        warnings.append(
            f"unreadable pictures are left out: {len(unreadable):,}, first {unreadable[0][0]} ({unreadable[0][1]})"
        )
    return Source(
        "mirflickr25k",
        FileImages(folder, [there[number] for number in rows]),
        Labels(values[rows], MIRFLICKR_LABELS),
        missing + unreadable,
        warnings,
    )


def _annotations(root: Path) -> Path | None:
    folders = [root / name for name in ANNOTATIONS]
    return next((folder for folder in folders if any((folder / f"{x}.txt").exists() for x in MIRFLICKR_LABELS)), None)


def _pictures(root: Path) -> Path | None:
    return next((folder for folder in (root, root / "mirflickr") if any(folder.glob("im[0-9]*.jpg"))), None)


def _read_numbers(path: Path) -> np.ndarray:
    try:
        words = path.read_text(encoding="utf-8-sig").split()
    except FileNotFoundError as error:
        raise DataError(f"there is no {path}; unpack mirflickr25k_annotations_v080.zip again") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file; unpack mirflickr25k_annotations_v080.zip again") from error
    wrong = [word for word in words if not re.fullmatch("[0-9]{1,7}", word)]
    if wrong:
        raise DataError(
            f"{path} holds {wrong[0][:20]!r} where the number of a picture is expected; unpack"
            " mirflickr25k_annotations_v080.zip again"
        )
    return np.array(words, dtype=str).astype(np.int64)
