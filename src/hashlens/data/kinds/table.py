"""A table (.csv, .tsv, .parquet) of image paths and labels, in its own order.

The first line names the columns, in any letter case. Unless `Columns` names them, they are found by these names:

    path     path, file, filename, file_name, image or picture; relative to the folder of the table, or an address
    labels   labels, label, class or tags: all labels of the image in one cell, separated by | or ; (any other separator
             must be given, because many labels contain commas); without such a column, every other column is a label
             and contains 0 or 1
    split    split or subset: train, query (or test), database (or gallery), val; see `protocols.given_split`

If no image has more than one label, these are single labels. Rows of the same image are joined. Cells are separated by
commas, or by semicolons or tabs if the first line has no comma.
"""

import codecs
import csv
import difflib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

from hashlens.addresses import Place, is_address
from hashlens.data.kinds.folder import locate, respelled
from hashlens.data.protocols import SPLIT_WORDS, given_split
from hashlens.data.sources import Asked, Columns, Kind, Source, source_of_files
from hashlens.errors import DataError, UsageError
from hashlens.files import why_not
from hashlens.schema import load_table

NAMES = {
    "path": ("path", "file", "filename", "file_name", "image", "picture"),
    "labels": ("labels", "label", "class", "tags"),
    "split": ("split", "subset"),
}
BITS = {"0": False, "1": True, "0.0": False, "1.0": True}  # some programs write integers like that


class Row(NamedTuple):
    line: int
    path: str
    labels: tuple[str, ...]
    split: str  # "" without a split column


def _open(asked: Asked) -> Source:
    path = asked.place
    rows, notes = _read_rows(path, asked.columns, asked.labelled)
    found, missing = locate(path.parent, [row.path for row in rows])
    rows_of: dict[str, list[Row]] = defaultdict(list)  # rows per image
    for row in rows:
        rows_of[found.get(row.path, row.path)].append(row)
    labels_of = {name: tuple(dict.fromkeys(x for row in same for x in row.labels)) for name, same in rows_of.items()}
    there = set(found.values())
    kept = [name for name in rows_of if name in there]
    n_gone = len(rows_of) - len(kept)
    if not kept or (asked.labelled and 2 * n_gone > len(rows_of)):
        raise DataError(
            f"{n_gone:,} of the {len(rows_of):,} images of {path} are missing (first: {missing[0][0]}); paths are"
            f" relative to {path.parent}"
        )
    notes += respelled(found, path.name) + _repeated_notes(rows_of, labels_of, path)
    split = [rows_of[name][0].split for name in kept] if rows[0].split else None
    if split and given_split(split, path.name) is None:
        notes.append(f"the split column of {path.name} has no queries, so a split is made")
        split = None
    labels = [labels_of[name] for name in kept]
    gone = {label for some in labels_of.values() for label in some} - {label for some in labels for label in some}
    notes += [f"class {label!r} has no image and is left out" for label in sorted(gone)]
    return source_of_files(path.stem, path.parent, kept, labels, split, skipped=missing, notes=notes)


def _repeated_notes(rows_of: dict[str, list[Row]], labels_of: dict[str, tuple[str, ...]], path: Place) -> list[str]:
    """A note about images with several rows, which must be in the same part of the split."""
    repeated = [name for name, rows in rows_of.items() if len(rows) > 1]
    for name in repeated:
        first, *others = rows_of[name]
        for row in others:
            if row.split.lower() != first.split.lower():
                raise DataError(
                    f"{name} is {first.split!r} in line {first.line} of {path} and {row.split!r} in line {row.line};"
                    " an image belongs to one part of the split, so remove one of the lines"
                )
    return [
        f"images with more than one row: {len(repeated):,}; their labels are joined (first: {name}:"
        f" {', '.join(labels_of[name]) or 'no label'})"
        for name in repeated[:1]
    ]


def _read_rows(path: Place, columns: Columns, labelled: bool) -> tuple[list[Row], list[str]]:
    """The rows that have a path, and notes about oddities."""
    header, lines = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_text(path)
    twice = [name for name, count in Counter(name.lower() for name in header).items() if count > 1]
    if twice:
        raise DataError(f"the column {twice[0]!r} occurs twice in {path}; rename one")
    name_at, labels_at, split_at = (_find(header, getattr(columns, what), what, path) for what in NAMES)
    if name_at is None:
        raise UsageError(
            f"{path} has no column called {', '.join(NAMES['path'])} (its first line has {', '.join(header)}); choose"
            " the column of paths with --column path=COLUMN, or put names such as path,labels in the first line"
        )
    bits: dict[int, str] = {}
    if labels_at is None:
        bits = {c: name for c, name in enumerate(header) if c not in (name_at, split_at)}
        wrong = next(((n, c, _text(cells[c])) for n, cells in lines for c in bits if _text(cells[c]) not in BITS), None)
        if wrong and labelled:
            raise UsageError(
                f"{path} has no column called {', '.join(NAMES['labels'])} (but {', '.join(header)}), nor a 0/1 column"
                f" per label (line {wrong[0]} has {wrong[2]!r} under {bits[wrong[1]]!r}); choose the column of labels"
                " with --column labels=COLUMN"
            )
        bits = {} if wrong else bits
    rows, pathless = [], []
    for number, cells in lines:
        if labels_at is not None:
            labels = split_labels(cells[labels_at], columns.separator)
        else:
            labels = tuple(name for c, name in bits.items() if BITS[_text(cells[c])])
        word = "" if split_at is None else _text(cells[split_at])
        if split_at is not None and word.lower() not in SPLIT_WORDS:
            raise DataError(
                f"line {number} of {path} has {word!r} in the column {header[split_at]!r}; write one of"
                f" {', '.join(SPLIT_WORDS)}, or rename the column if it is not a split"
            )
        if name := _text(cells[name_at]).replace("\\", "/"):
            rows.append(Row(number, name if is_address(name) else PurePosixPath(name).as_posix(), labels, word))
        else:
            pathless.append(number)
    if not rows:
        raise DataError(f"no row of {path} has a path; choose another column with --column path=COLUMN")
    notes = [f"rows without a path are left out: {len(pathless):,}, first line {line}" for line in pathless[:1]]
    if labels_at is not None and columns.separator is None:
        notes += [
            f"{label!r} is one label; if the comma separates labels, give --column separator=,"
            for label in [label for row in rows for label in row.labels if "," in label][:1]
        ]
    return rows, notes


def _text(cell: Any) -> str:
    return "" if cell is None else str(int(cell) if isinstance(cell, bool) else cell).strip()


def _read_parquet(path: Place) -> tuple[list[str], list[tuple[int, list[Any]]]]:
    """The names of the columns, and (row number, cells) of every row."""
    try:
        table = load_table(path if isinstance(path, Path) else pa.BufferReader(path.read_bytes()))
    except OSError as error:
        raise DataError(f"cannot read {path} ({why_not(error)}); check the path") from error
    except ValueError as error:
        raise DataError(f"cannot read {path} as a Parquet table ({error}); check the file") from error
    if not len(table):
        raise DataError(f"{path} has columns ({', '.join(table.column_names)}) but no rows; add a row per image")
    columns = [column.to_pylist() for column in table.columns]
    return table.column_names, [(number, list(cells)) for number, cells in enumerate(zip(*columns, strict=True), 1)]


def _read_text(path: Place) -> tuple[list[str], list[tuple[int, list[Any]]]]:
    """The names in the first line, and (line number, cells) of every non-empty line."""
    try:
        contents = path.read_bytes()
        wide = contents.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # "Unicode text" of spreadsheets
        text = contents.decode("utf-16" if wide else "utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read {path} ({why_not(error)}); check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read {path} as text ({error}); save it as CSV UTF-8") from error
    first = text.lstrip("\r\n").split("\n", 1)[0]
    marks = ("\t" if path.suffix.lower() == ".tsv" else ",", ";", "\t")
    delimiter = next((mark for mark in marks if mark in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        lines: list[tuple[int, list[Any]]] = [(reader.line_num, cells) for cells in reader if "".join(cells).strip()]
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of {path} is malformed ({error}); fix that line") from error
    if len(lines) < 2:
        raise DataError(
            f"{path} has no images; name the columns in the first line (path,labels) and add a line per image"
        )
    header = [name.strip() for name in lines[0][1]]
    for number, cells in lines[1:]:
        if len(cells) != len(header):
            raise DataError(
                f"line {number} of {path} has {len(cells)} cells and the first line has {len(header)}; put a cell"
                f' that contains the separator {delimiter!r} in quotes: "beach{delimiter}sunset"'
            )
    return header, lines[1:]


def _find(header: Sequence[str], wanted: str | None, what: str, path: Place) -> int | None:
    """The requested column, else the first with one of the usual names, else None."""
    lower = [name.lower() for name in header]
    if wanted is None:
        return next((lower.index(name) for name in NAMES[what] if name in lower), None)
    if wanted.strip().lower() not in lower:
        close = difflib.get_close_matches(wanted.lower(), lower, n=1)
        hint = f"did you mean {header[lower.index(close[0])]}?" if close else f"choose one with --column {what}=COLUMN"
        raise UsageError(f"{path} has no column {wanted!r} among {', '.join(header)}; {hint}")
    return lower.index(wanted.strip().lower())


def split_labels(cell: Any, separator: str | None = None) -> tuple[str, ...]:
    """The labels in one cell, each once.

    >>> split_labels("beach; sunset|beach")
    ('beach', 'sunset')
    """
    parts = cell
    if not isinstance(cell, list):
        parts = _text(cell).split(separator) if separator else re.split(r"[|;]", _text(cell))
    return tuple(dict.fromkeys(text for part in parts if (text := _text(part))))


KIND = Kind(
    matches=lambda text, path: path.suffix.lower() in (".csv", ".tsv", ".parquet"),
    open=_open,
    labelling="fill in a column called label, or choose the column of labels with --column labels=COLUMN",
    filling="fill in their labels in the table, or choose another column with --column labels=COLUMN",
    takes=("columns",),
)
