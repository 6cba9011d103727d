"""A folder that Hugging Face's `datasets` saved (save_to_disk) in; a Source out.

Pictures are the column of the type Image, labels the one called labels, label, class or tags, or else the first of the
type ClassLabel: a class, a name, or a list of them; or a list of 0 and 1. Parts such as train and test become the split
(see `protocols.given_split`). The package `datasets` is an extra and is loaded only here.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hashlens.data import Columns, Source
from hashlens.data.folder import require_most
from hashlens.data.images import Images, Progress, decode, quiet_pillow, reason
from hashlens.data.protocols import SPLIT_WORDS, given_split
from hashlens.data.table import LABEL_NAMES, labels_of, split_labels
from hashlens.errors import DataError, UsageError
from hashlens.threads import blocks, work_ahead

MAX_BYTES = 2**28  # of one picture


class HuggingFaceImages(Images):
    """Pictures in the Arrow files of a dataset, decoded when they are asked for."""

    def __init__(self, dataset: Any, column: str, names: Sequence[str], mark: str, rows: np.ndarray):
        self.names = tuple(names)
        self._dataset, self._column, self._mark, self._rows = dataset, column, mark, rows

    def __getitem__(self, rows: Any) -> HuggingFaceImages:
        chosen = self._indices(rows)
        names = [self.names[row] for row in chosen]
        return HuggingFaceImages(self._dataset, self._column, names, self._mark, self._rows[chosen])

    def data(self, row: int) -> bytes:
        """The picture as it is stored: the bytes of a JPEG or PNG file."""
        cell = self._dataset[int(self._rows[row])][self._column]
        if cell is None:
            raise FileNotFoundError(self.names[row])
        if cell["bytes"] is not None:
            return cell["bytes"]
        file = Path(cell["path"])
        if not file.is_file() or file.stat().st_size > MAX_BYTES:
            raise OSError(f"{file} is no file of at most {MAX_BYTES / 1e6:.0f} MB")
        return file.read_bytes()

    def picture(self, row: int, at_least: int | None = None) -> Image.Image:
        file = io.BytesIO()
        try:
            file = io.BytesIO(self.data(row))
            return decode(file, at_least)[0]
        except Exception as error:  # a damaged file makes Pillow raise nearly anything
            raise DataError(
                f"cannot read the picture {self.names[row]}: {reason(file, error)}; take it out of the dataset"
            ) from error

    def why_unreadable(self, row: int) -> str | None:
        file = io.BytesIO()
        try:
            file = io.BytesIO(self.data(row))
            decode(file, at_least=1)
        except Exception as error:
            return reason(file, error)
        return None

    def fingerprint(self) -> str:
        what = f"huggingface {self._column} {self._mark}\n"
        return hashlib.sha256(what.encode() + self._rows.astype("<i8").tobytes()).hexdigest()


def is_huggingface(root: str | os.PathLike[str]) -> bool:
    root = Path(root)
    return (root / "dataset_dict.json").is_file() or (
        (root / "dataset_info.json").is_file() and (root / "state.json").is_file()
    )


def load_huggingface(
    root: str | os.PathLike[str], columns: Columns | None = None, progress: Progress | None = None
) -> Source:
    """All parts of the dataset one after the other, each picture decoded once to see that it can be."""
    root, columns = Path(root), columns or Columns()
    parts = _open(root)
    first = next(iter(parts.values()))
    picture_column, label_column = _picture_column(first, columns, root), _label_column(first, columns, root)
    images = _images(root, parts, picture_column)
    sets = [labels for part in parts.values() for labels in _label_sets(part, label_column, columns.separator)]
    words = [word for word, part in parts.items() for _ in range(len(part))]

    if progress:
        progress(f"checking {len(images):,} pictures in {root}")
    single = all(len(labels) < 2 for labels in sets)
    skipped, kept = [], []
    for row, why in enumerate(_check(images)):
        why = why or ("no label" if single and not sets[row] else None)
        if why:
            skipped.append((images.names[row], why))
        else:
            kept.append(row)
    require_most(skipped, len(images), f"in {root}", "mend the dataset, or name its columns")
    labels = labels_of([sets[row] for row in kept], single)
    if labels.n_classes < 2:
        raise DataError(
            f"only one label found in {root}: {', '.join(labels.names) or 'none at all'}; telling pictures apart needs"
            " two or more, so add a second or name another column with --label-column"
        )
    warnings = []
    if skipped:
        warnings.append(f"pictures left out: {len(skipped):,}, first {skipped[0][0]} ({skipped[0][1]})")
    split = None
    if len(parts) > 1:
        known = all(word.lower() in SPLIT_WORDS for word in parts)
        split = given_split([words[row] for row in kept], root.name) if known else None
        if split is None:
            warnings.append(f"the parts {', '.join(parts)} are not a split into queries and others, so one is made")
    return Source(root.resolve().name, images[kept], labels, skipped, warnings, split)


def _open(root: Path) -> dict[str, Any]:
    """{name of the part: its dataset}; a dataset that is not divided has one part called ""."""
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise UsageError(
            f"{root} is a Hugging Face dataset, and reading it needs another package: pip install 'hashlens[datasets]'"
        ) from error
    try:
        found = datasets.load_from_disk(str(root))
    except Exception as error:  # whatever pyarrow or json raise on a damaged file
        text = " ".join(str(error).split())[:200]
        raise DataError(f"{root} cannot be read as a Hugging Face dataset ({text}); save it again") from error
    parts = dict(found) if hasattr(found, "keys") else {"": found}
    parts = {name: part.with_format(None) for name, part in parts.items()}  # it may have been saved for torch or numpy
    if not sum(len(part) for part in parts.values()):
        raise DataError(f"the dataset {root} has no rows; check the path")
    return parts


def _picture_column(dataset: Any, columns: Columns, root: Path) -> str:
    pictures = [name for name, feature in dataset.features.items() if type(feature).__name__ == "Image"]
    if columns.path is not None:
        if columns.path not in pictures:
            raise UsageError(
                f"{columns.path!r} is no column of pictures in {root}; those are: {', '.join(pictures) or 'none'}"
            )
        return columns.path
    if len(pictures) != 1:
        raise UsageError(
            f"{root} has {len(pictures)} columns of pictures among {', '.join(dataset.features)}; name one with"
            " --path-column"
        )
    return pictures[0]


def _label_column(dataset: Any, columns: Columns, root: Path) -> str:
    if columns.labels is not None and columns.labels in dataset.features:
        return columns.labels
    classes = [name for name, feature in dataset.features.items() if hasattr(_inner(feature), "names")]
    usual = [name for name in LABEL_NAMES if name in dataset.features] + classes
    if columns.labels is not None or not usual:
        wanted = f"no column {columns.labels!r}" if columns.labels else "no column of labels"
        raise UsageError(f"{root} has {wanted} among {', '.join(dataset.features)}; name one with --label-column")
    return usual[0]


def _inner(feature: Any) -> Any:
    """The type within a list type, in any of the forms that versions of `datasets` have for it."""
    if isinstance(feature, list):
        return feature[0]
    return getattr(feature, "feature", feature)


def _label_sets(dataset: Any, column: str, separator: str | None) -> list[tuple[str, ...]]:
    if column not in dataset.features:  # as in the test parts of competitions
        return [()] * len(dataset)
    cells = list(dataset[column])
    names = getattr(_inner(dataset.features[column]), "names", None)
    if names is None and _is_matrix(cells):
        return [tuple(str(c) for c, value in enumerate(cell) if value) for cell in cells]
    sets = []
    for cell in cells:
        if isinstance(cell, str):
            sets.append(split_labels(cell, separator))
            continue
        values = cell if isinstance(cell, list) else [cell]
        known = [value for value in values if value is not None and value != -1]  # -1: no label, as test parts have
        sets.append(tuple(dict.fromkeys(names[value] if names else str(value) for value in known)))
    return sets


def _is_matrix(cells: list[Any]) -> bool:
    """Whether these are rows of 0 and 1, one for each label, and not lists of labels: each once, in their order."""
    rows = all(isinstance(cell, list) and len(cell) == len(cells[0]) for cell in cells)
    return (
        rows
        and all(value in (0, 1) for cell in cells for value in cell)
        and any(cell != sorted(set(cell)) for cell in cells)
    )


def _images(root: Path, parts: dict[str, Any], column: str) -> HuggingFaceImages:
    datasets: Any = importlib.import_module("datasets")
    pictures = [
        part.select_columns([column]).cast_column(column, datasets.Image(decode=False)) for part in parts.values()
    ]
    names = [f"{word}/{row:05d}" if word else f"{row:05d}" for word, part in parts.items() for row in range(len(part))]
    files = sorted(path for path in root.rglob("*") if path.is_file())
    mark = " ".join(f"{path.relative_to(root)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)
    return HuggingFaceImages(datasets.concatenate_datasets(pictures), column, names, mark, np.arange(len(names)))


def _check(images: HuggingFaceImages) -> list[str | None]:
    def examine(part: slice) -> list[str | None]:
        return [images.why_unreadable(row) for row in range(part.start, part.stop)]

    with quiet_pillow():
        return [why for found in work_ahead(examine, blocks(len(images), 32)) for why in found]
