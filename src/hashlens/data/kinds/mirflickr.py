"""The folder of MIRFLICKR-25K as published: its labelled images, by number, with 24 labels.

    im1.jpg … im25000.jpg           the images, here or in the folder mirflickr
    annotations/<label>.txt         the numbers of the images with that label, one per line; the folder may also
                                    have its official name, mirflickr25k_annotations_v080

Of the 38 label files, the 24 without _r1 are used, as in papers. Images without any label (419) are left out.
"""

import re
from pathlib import Path

import numpy as np

from hashlens.data.labels import Labels
from hashlens.data.protocols import MIRFLICKR_LABELS
from hashlens.data.sources import Asked, Kind, Source, source_of_files
from hashlens.errors import DataError

ANNOTATIONS = ("annotations", "mirflickr25k_annotations_v080")
AGAIN = "unpack mirflickr25k_annotations_v080.zip again"


def is_mirflickr(root: Path) -> bool:
    return _annotations(root) is not None and _images(root) is not None


def _open(asked: Asked) -> Source:
    annotations, folder = _annotations(asked.path), _images(asked.path)
    assert annotations is not None and folder is not None
    of_label = [_read_numbers(annotations / f"{label}.txt") for label in MIRFLICKR_LABELS]
    labelled = np.unique(np.concatenate(of_label))
    if not len(labelled):
        raise DataError(f"no image has a label in {annotations}; {AGAIN}")
    values = np.stack([np.isin(labelled, numbers) for numbers in of_label], axis=1)
    names = [path.name for path in folder.iterdir()]
    there = {int(match[1]) for name in names if (match := re.fullmatch(r"im(\d+)\.jpg", name))}
    found = np.isin(labelled, list(there))
    if not found.any():
        raise DataError(f"none of the {len(labelled):,} labelled images is in {folder}; check the path")
    left_out = len(there) - found.sum()
    return source_of_files(
        "mirflickr25k",
        folder,
        [f"im{number}.jpg" for number in labelled[found]],
        Labels(values[found], MIRFLICKR_LABELS).sets(),
        skipped=[(f"im{number}.jpg", "missing") for number in labelled[~found]],
        notes=[f"images without a label are left out: {left_out:,}"] if left_out else [],
        classes=MIRFLICKR_LABELS,
    )


def _annotations(root: Path) -> Path | None:
    folders = [root / name for name in ANNOTATIONS]
    return next((folder for folder in folders if any((folder / f"{x}.txt").exists() for x in MIRFLICKR_LABELS)), None)


def _images(root: Path) -> Path | None:
    return next((folder for folder in (root, root / "mirflickr") if any(folder.glob("im[0-9]*.jpg"))), None)


def _read_numbers(path: Path) -> np.ndarray:
    try:
        words = path.read_text(encoding="utf-8-sig").split()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path} ({error}); {AGAIN}") from error
    wrong = [word for word in words if not re.fullmatch("[0-9]{1,7}", word)]
    if wrong:
        raise DataError(f"{path} contains {wrong[0][:20]!r} instead of the number of an image; {AGAIN}")
    return np.array(words, dtype=str).astype(np.int64)


KIND = Kind(matches=lambda text, path: is_mirflickr(path), open=_open, protocol="mirflickr")
