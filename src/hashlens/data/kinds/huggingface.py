"""A dataset saved by Hugging Face's `datasets` (save_to_disk), with all its parts in order.

Images are the column of type Image; labels are the column called labels, label, class or tags, else the first of type
ClassLabel: a class, a name, a list of them, or a list of 0 and 1. Parts such as train and test become the split (see
`protocols.given_split`). The package `datasets` is an extra and is loaded only here.
"""

import hashlib
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.data.images import INSIDE, MAX_BYTES, Images
from hashlens.data.kinds.table import NAMES, split_labels
from hashlens.data.labels import Labels
from hashlens.data.protocols import SPLIT_WORDS, given_split
from hashlens.data.sources import Asked, Columns, Kind, Source, make_table
from hashlens.errors import DataError, UsageError, require


class HuggingFaceImages(Images):
    """Images in the Arrow files of a dataset, decoded on demand; `mark` changes when the files do."""

    def __init__(self, dataset: Any, column: str, names: Sequence[str], mark: str, root: Path):
        self.names, self._rows = tuple(names), np.arange(len(names))
        self._dataset, self._column, self._mark, self._root = dataset, column, mark, root

    def paths(self) -> list[str]:
        return [f"{self._root.absolute().as_posix()}{INSIDE}{name}" for name in self.names]

    def alone(self) -> Images:
        chosen = self._dataset.select(self._rows)
        return HuggingFaceImages(chosen, self._column, self.names, self.fingerprint(), self._root)

    def open(self, row: int) -> io.BytesIO:
        cell = self._dataset[int(self._rows[row])][self._column]
        if cell is None:
            raise FileNotFoundError(self.names[row])
        if cell["bytes"] is not None:
            return io.BytesIO(cell["bytes"])
        file = Path(cell["path"])
        if not file.is_file() or file.stat().st_size > MAX_BYTES:
            raise OSError(f"{file} is not a file of at most {MAX_BYTES / 1e6:.0f} MB")
        return io.BytesIO(file.read_bytes())

    def fingerprint(self) -> str:
        what = f"huggingface {self._column} {self._mark}\n"
        return hashlib.sha256(what.encode() + self._rows.astype("<i8").tobytes()).hexdigest()


def images_of(dataset: Any) -> HuggingFaceImages:
    """The images and labels of a dataset that is already loaded."""
    dataset, where = dataset.with_format(None), Path("the dataset")
    column = _image_column(dataset, Columns(), where)
    images = _images(where, {"": dataset}, column, getattr(dataset, "_fingerprint", ""))
    if (labels := _label_column(dataset, Columns(), where)) is not None:
        sets = _label_sets(dataset, labels, None)
        images.labels = Labels.of_sets(sets, multi=any(len(names) > 1 for names in sets))
    return images


def is_huggingface(root: Path) -> bool:
    of_part = (root / "dataset_info.json").is_file() and (root / "state.json").is_file()
    return of_part or (root / "dataset_dict.json").is_file()


def _open(asked: Asked) -> Source:
    root, columns = asked.path, asked.columns
    parts = _load(root)
    first = next(iter(parts.values()))
    image_column, label_column = _image_column(first, columns, root), _label_column(first, columns, root)
    images = _images(root, parts, image_column)
    sets = None
    if label_column is not None:
        sets = [labels for part in parts.values() for labels in _label_sets(part, label_column, columns.separator)]
    words, notes = None, []
    if len(parts) > 1:
        words = [word for word, part in parts.items() for _ in range(len(part))]
        if not all(word.lower() in SPLIT_WORDS for word in parts) or given_split(words, root.name) is None:
            notes.append(f"the parts {', '.join(parts)} are not a split with queries, so one is made")
            words = None
    multi = any(len(labels) > 1 for labels in sets or ())
    return Source(root.resolve().name, images, notes=notes, table=make_table(images.paths(), sets, words), multi=multi)


def _load(root: Path) -> dict[str, Any]:
    """{part: dataset}; the name is "" for a dataset without parts."""
    require("datasets", why=f"the Hugging Face dataset {root}")
    try:
        found = importlib.import_module("datasets").load_from_disk(str(root))
    except Exception as error:  # pyarrow and json raise nearly anything on a damaged file
        text = " ".join(str(error).split())[:200]
        raise DataError(f"{root} cannot be read as a Hugging Face dataset ({text}); save it again") from error
    parts = dict(found) if hasattr(found, "keys") else {"": found}
    parts = {name: part.with_format(None) for name, part in parts.items()}  # it may have been saved with torch's format
    if not sum(len(part) for part in parts.values()):
        raise DataError(f"the dataset {root} has no rows; check the path")
    return parts


def _image_column(dataset: Any, columns: Columns, root: Path) -> str:
    found = [name for name, feature in dataset.features.items() if type(feature).__name__ == "Image"]
    chosen = [name for name in found if columns.path in (None, name)]
    if len(chosen) != 1:
        raise UsageError(
            f"choose a column of images in {root} with --column path=COLUMN: {', '.join(found) or 'it has none'}"
            + (f", not {columns.path!r}" if columns.path else "")
        )
    return chosen[0]


def _label_column(dataset: Any, columns: Columns, root: Path) -> str | None:
    if columns.labels is not None and columns.labels not in dataset.features:
        raise UsageError(
            f"{root} has no column {columns.labels!r}; choose one with --column labels=COLUMN:"
            f" {', '.join(dataset.features)}"
        )
    classes = [name for name, feature in dataset.features.items() if hasattr(_inner(feature), "names")]
    usual = [name for name in NAMES["labels"] if name in dataset.features] + classes
    return columns.labels or (usual[0] if usual else None)


def _inner(feature: Any) -> Any:
    """The item type of a list type, in any version of `datasets`."""
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
        known = [value for value in values if value is not None and value != -1]  # -1: no label, as in test parts
        sets.append(tuple(dict.fromkeys(names[value] if names else str(value) for value in known)))
    return sets


def _is_matrix(cells: list[Any]) -> bool:
    """Whether these are rows of 0 and 1, one per label, rather than lists of labels, which are sorted and unique."""
    if not all(isinstance(cell, list) and len(cell) == len(cells[0]) and {*cell} <= {0, 1} for cell in cells):
        return False
    return any(cell != sorted(set(cell)) for cell in cells)


def _images(root: Path, parts: dict[str, Any], column: str, mark: str | None = None) -> HuggingFaceImages:
    datasets: Any = importlib.import_module("datasets")
    stored = datasets.Image(decode=False)
    images = [part.select_columns([column]).cast_column(column, stored) for part in parts.values()]
    names = [f"{word}/{row:05d}" if word else f"{row:05d}" for word, part in parts.items() for row in range(len(part))]
    if mark is None:
        files = sorted(path for path in root.rglob("*") if path.is_file())
        mark = " ".join(f"{path.relative_to(root)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)
    return HuggingFaceImages(datasets.concatenate_datasets(images), column, names, mark, root)


KIND = Kind(
    matches=lambda text, path: is_huggingface(path),
    open=_open,
    labelling="choose the column of labels with --column labels=COLUMN",
    filling="save it again with their labels, or choose another column with --column labels=COLUMN",
    takes=("columns",),
)
