"""A table (.csv, .tsv) of picture paths and labels in; a Source out, with the rows that could not be used and why.

The first line names the columns; letter case does not matter. Where `Columns` says nothing, they are found so:

    path     path, file, filename, file_name, image or picture; relative to the folder of the table
    labels   labels, label, class or tags: one cell with all labels of the picture, separated by | or ; (another
             separator, such as a comma in quotes, has to be given: many a label holds one); or, if there is no
             such column, every other column is a label and holds 0 or 1
    split    split or subset, if there is one: train, query (or test), database (or gallery), val; see
             `protocols.given_split` for what they mean

If no picture has more than one label, these are single labels, and a row without one is skipped ("no label"). If any
has several they are label sets, and a row without one stays, as a picture without labels. Rows of the same picture
are joined. Cells are separated by commas, or by semicolons or tabs if the first line has no comma.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from hashlens.data import Columns, Source
from hashlens.data.folder import check_once, locate, require_most, respelt_warnings
from hashlens.data.images import FileImages, Progress
from hashlens.data.labels import Labels
from hashlens.data.protocols import SPLIT_WORDS, given_split
from hashlens.errors import DataError, UsageError

PATH_NAMES = ("path", "file", "filename", "file_name", "image", "picture")
LABEL_NAMES = ("labels", "label", "class", "tags")
SPLIT_NAMES = ("split", "subset")

BITS = {"0": False, "1": True, "0.0": False, "1.0": True}  # some programs write whole numbers like that


@dataclass(frozen=True)
class Row:
    line: int
    path: str
    labels: tuple[str, ...]
    split: str | None


def load_table(
    path: str | os.PathLike[str], columns: Columns | None = None, progress: Progress | None = None
) -> Source:
    """Read the table, find its pictures, see that each can be decoded, and label it by its row."""
    path = Path(path)
    rows, warnings = read_rows(path, columns or Columns())
    nameless = [(f"line {row.line}", "no path") for row in rows if not row.path]
    found, missing = locate(path.parent, [row.path for row in rows if row.path])
    there = set(found.values())
    warnings += respelt_warnings(found, path.name)
    joined, more = _join([replace(row, path=found.get(row.path, row.path)) for row in rows if row.path], path)
    warnings += more
    _, unreadable = check_once([name for name in joined if name in there], path.parent, progress)
    bad = dict(missing) | dict(unreadable)

    single = all(len(row.labels) < 2 for row in joined.values())
    unlabelled = [name for name, row in joined.items() if not row.labels]
    if joined and len(unlabelled) == len(joined):
        raise DataError(f"no row of {path} has a label; fill in the labels or name their column with --label-column")
    if single:
        bad |= {name: "no label" for name in unlabelled if name not in bad}
    skipped = nameless + [(name, bad[name]) for name in joined if name in bad]
    advice = f"correct the table, whose paths are looked for below {path.parent}"
    require_most(skipped, len(nameless) + len(joined), f"of {path}", advice)
    kept = [row for name, row in joined.items() if name not in bad]
    labels = labels_of([row.labels for row in kept], single)
    if labels.n_classes < 2:
        raise DataError(
            f"only one label found in {path}: {', '.join(labels.names) or 'none at all'}, for {len(kept):,} pictures;"
            " telling pictures apart needs two or more, so add rows with a second label"
        )
    warnings += _label_warnings(joined.values(), labels)
    for reason, count in Counter(reason.split(";")[0] for _, reason in skipped).items():
        first = next(name for name, other in skipped if other.split(";")[0] == reason)
        warnings.append(f"rows left out, {reason}: {count:,}, first {first}")
    split = None
    if kept and kept[0].split is not None:
        split = given_split([row.split or "" for row in kept], path.name)
        if split is None:
            warnings.append(f"the split column of {path.name} sets no queries apart, so a split is made")
    images = FileImages(path.parent, [row.path for row in kept])
    return Source(path.stem, images, labels, skipped, warnings, split)


def read_rows(path: Path, columns: Columns) -> tuple[list[Row], list[str]]:
    """The rows of a table, and what is odd about them."""
    header, lines = _read_cells(path)
    name_column = _find(header, columns.path, PATH_NAMES, path, "--path-column")
    label_column = _find(header, columns.labels, LABEL_NAMES, path, "--label-column")
    split_column = _find(header, columns.split, SPLIT_NAMES, path, "--split-column")
    if name_column is None:
        raise UsageError(
            f"{path} has no column called {', '.join(PATH_NAMES[:-1])} or {PATH_NAMES[-1]} (its first line has"
            f" {', '.join(header)}); name the column of paths with --path-column, or put names such as path,labels"
            " in the first line"
        )
    bits: dict[int, str] = {}
    if label_column is None:
        bits = {c: name for c, name in enumerate(header) if c not in (name_column, split_column)}
        _require_bits(bits, lines, header, path)
    rows = []
    for number, cells in lines:
        if label_column is not None:
            labels = split_labels(cells[label_column], columns.separator)
        else:
            labels = tuple(name for c, name in bits.items() if BITS[cells[c].strip()])
        word = None if split_column is None else cells[split_column]
        if word is not None and word.strip().lower() not in SPLIT_WORDS:
            raise DataError(
                f"line {number} of {path} has {word!r} in the column {header[split_column or 0]!r}; write one of"
                f" {', '.join(SPLIT_WORDS)}, or rename the column if it is no split"
            )
        name = cells[name_column].strip().replace("\\", "/")
        rows.append(Row(number, PurePosixPath(name).as_posix() if name else "", labels, word))
    warnings = []
    with_comma = [label for row in rows for label in row.labels if "," in label]
    if label_column is not None and columns.separator is None and with_comma:
        warnings.append(
            f"{with_comma[0]!r} is taken as one label; if the comma separates labels, say so with --separator ,"
        )
    return rows, warnings


def _read_cells(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names in the first line, and (line number, cells) of every line that is not empty."""
    text = _read_text(path)
    first = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = next(
        (mark for mark in ("\t" if path.suffix.lower() == ".tsv" else ",", ";", "\t") if mark in first), ","
    )
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of {path} cannot be read ({error}); mend it") from error
    if not lines:
        raise DataError(f"{path} is empty; its first line names the columns, such as path,labels")
    header = [name.strip() for name in lines[0][1]]
    if len(lines) == 1:
        raise DataError(f"{path} has a first line ({', '.join(header)}) and no pictures; add a line for each picture")
    repeated = [name for name, count in Counter(name.lower() for name in header).items() if count > 1]
    if repeated:
        raise DataError(f"the column {repeated[0]!r} occurs twice in {path}; give each column a name of its own")
    for number, cells in lines[1:]:
        if len(cells) != len(header):
            raise DataError(
                f"line {number} of {path} has {len(cells)} cells and the first line has {len(header)}; put a cell"
                f' that holds the separator {delimiter!r} in quotes: "beach{delimiter}sunset"'
            )
    return header, lines[1:]


def _read_text(path: Path) -> str:
    try:
        contents = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path") from error
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}); allow it or check the path") from error
    wide = contents.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # "Unicode text" of spreadsheets
    try:
        return contents.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text (byte {contents[error.start]:#x} at {error.start:,}); save it as CSV UTF-8"
        ) from error


def _find(header: Sequence[str], wanted: str | None, usual: Sequence[str], path: Path, option: str) -> int | None:
    """The column that was asked for, or the first of the usual names; None if there is none of these."""
    lower = [name.lower() for name in header]
    if wanted is None:
        return next((lower.index(name) for name in usual if name in lower), None)
    if wanted.strip().lower() not in lower:
        close = difflib.get_close_matches(wanted.lower(), lower, n=1)
        hint = f"did you mean {header[lower.index(close[0])]}?" if close else f"give one of these with {option}"
        raise UsageError(f"there is no column {wanted!r} in {path}, which has {', '.join(header)}; {hint}")
    return lower.index(wanted.strip().lower())


def _require_bits(bits: dict[int, str], lines: list[tuple[int, list[str]]], header: list[str], path: Path) -> None:
    wrong = next(
        ((n, name, cells[c]) for n, cells in lines for c, name in bits.items() if cells[c].strip() not in BITS), None
    )
    if wrong or not bits:
        because = f"line {wrong[0]} has {wrong[2]!r} under {wrong[1]!r}" if wrong else "there are no other columns"
        raise UsageError(
            f"{path} has no column called {', '.join(LABEL_NAMES)} (but {', '.join(header)}), nor one 0/1 column a"
            f" label ({because}); name the column of labels with --label-column"
        )


def split_labels(cell: str, separator: str | None = None) -> tuple[str, ...]:
    """The labels in one cell, each once.

    >>> split_labels("beach; sunset|beach")
    ('beach', 'sunset')
    """
    parts = cell.split(separator) if separator else re.split(r"[|;]", cell)
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def labels_of(sets: Sequence[Sequence[str]], single: bool) -> Labels:
    """Labels numbered in sorted order: one class number each, or sets."""
    names = tuple(sorted({name for labels in sets for name in labels}))
    number = {name: c for c, name in enumerate(names)}
    if single:
        return Labels(np.array([number[labels[0]] for labels in sets], np.int64), names)
    values = np.zeros((len(sets), len(names)), bool)
    for row, labels in enumerate(sets):
        values[row, [number[name] for name in labels]] = True
    return Labels(values, names)


def _join(rows: Sequence[Row], path: Path) -> tuple[dict[str, Row], list[str]]:
    """{path: row}: rows of the same picture as one, with the labels of all."""
    joined: dict[str, Row] = {}
    repeated: dict[str, Row] = {}
    for row in rows:
        first = joined.get(row.path)
        if first is None:
            joined[row.path] = row
            continue
        if (first.split or "").strip().lower() != (row.split or "").strip().lower():
            raise DataError(
                f"{row.path} is {first.split!r} in line {first.line} of {path} and {row.split!r} in line {row.line};"
                " a picture belongs to one part of the split, so remove one of the lines"
            )
        labels = tuple(dict.fromkeys(first.labels + row.labels))
        joined[row.path] = repeated[row.path] = Row(first.line, row.path, labels, first.split)
    if not repeated:
        return joined, []
    first = next(iter(repeated.values()))
    return joined, [
        f"pictures with more than one row: {len(repeated):,}; their labels are joined (first: {first.path}:"
        f" {', '.join(first.labels) or 'no label'})"
    ]


def _label_warnings(rows: Iterable[Row], labels: Labels) -> list[str]:
    warnings = []
    gone = sorted({name for row in rows for name in row.labels} - set(labels.names))
    warnings += [f"label {name!r} has no readable picture and is left out" for name in gone]
    lonely = [name for name, count in zip(labels.names, labels.counts(), strict=True) if count == 1]
    if lonely:
        shown = ", ".join(lonely[:5]) + (", …" if len(lonely) > 5 else "")
        verb = "label has" if len(lonely) == 1 else "labels have"
        warnings.append(f"{len(lonely):,} {verb} a single picture ({shown}): nothing is similar to it in training")
    unlabelled = int((~labels.values.any(axis=1)).sum()) if labels.multi else 0
    if unlabelled:
        warnings.append(f"pictures without a label: {unlabelled:,}; they are searched, but nothing is relevant to them")
    return warnings
