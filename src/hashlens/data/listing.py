"""A source of any size in; the fixed list of its pictures out, and a reader of any stretch of that list.

Nothing is decoded here: a picture is read once, when its turn comes, and one that fails then is left out with a reason.

    photos/                     all pictures below it, sorted; labelled by the first folder, if any lie in folders
    "photos/**/*.jpg"           a pattern, sorted
    list.txt or -               paths, one a line (- is standard input), sorted, each once; relative to where one is
    labels.csv                  a table as in data/table.py, in its own order, with its labels
    "shards/{00000..00999}.tar" pictures in tar files, in their order; a pattern or one file will do as well
    cifar10, digits             a data set, with its labels
"""

from __future__ import annotations

import codecs
import glob
import io
import os
import re
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from hashlens.data import SOURCES, Columns, open_source
from hashlens.data.folder import EXTENSIONS, find_pictures, locate, respelt_warnings
from hashlens.data.images import Images, Progress, decode, reason
from hashlens.errors import DataError, UsageError
from hashlens.files import expanded, is_utf8, shown

INSIDE = "::"  # shards/00000.tar::cats/1.jpg; a name inside a tar file is never used as a path
MAX_MEMBER = 2**28  # bytes of one picture in a tar file
BLOCK = 512  # of tar files


@dataclass(frozen=True, eq=False)
class Listing:
    """Pictures in their order, and what was found at once not to be one."""

    table: pa.Table  # path; labels, where there are any; offset, size and mtime for pictures in tar files
    skipped: list[tuple[str, str]] = field(default_factory=list)
    images: Images | None = None  # of a data set, in the same order


def list_pictures(
    source: str | Sequence[str], columns: Columns | None = None, progress: Progress | None = None
) -> Listing:
    """The pictures of a source (see above), or of a sequence of paths."""
    if not isinstance(source, str):
        return _list_paths(source, "the list")
    path = expanded(source)
    is_table = path.suffix.lower() in (".csv", ".tsv") and not path.is_dir()
    if columns is not None and columns != Columns() and not is_table:
        raise UsageError(f"columns and separators are for tables (.csv, .tsv), and {source} is none; leave them out")
    if source in SOURCES:
        return _list_data_set(source, progress)
    if source == "-":
        return _list_paths(_lines(sys.stdin.buffer.read()), "standard input")
    if path.is_dir():
        return _list_folder(path)
    if source.endswith(".tar"):
        return _list_tars(_expand(str(path)), source)
    if is_table:
        return _list_table(path, columns or Columns(), progress)
    if path.suffix.lower() == ".txt" and not glob.has_magic(source):
        return _list_paths(_read_lines(path), source)
    if path.is_file():
        return _list_paths([str(path)], source)
    if glob.has_magic(source):
        return _list_pattern(str(path), source)
    raise DataError(
        f"there is no {source}; give a folder of pictures, a pattern, a list (.txt or -), a table (.csv), tar files"
        f" or one of {', '.join(SOURCES)}"
    )


def _list_data_set(name: str, progress: Progress | None) -> Listing:
    found = open_source(name, progress=progress)
    labels = [[found.labels.names[value]] for value in found.labels.values]
    return Listing(_table(found.images.names, labels), images=found.images)


def _list_folder(root: Path) -> Listing:
    paths = find_pictures(root)
    labels = [[path.split("/", 1)[0]] if "/" in path else [] for path in paths]
    return _listing([_below(root, path) for path in paths], labels if any(labels) else None)


def _list_pattern(pattern: str, source: str) -> Listing:
    paths = [path for path in _glob(pattern) if path.lower().endswith(EXTENSIONS)]
    if not paths:
        raise DataError(f"no picture matches {source} (looked for {' '.join(EXTENSIONS)}); check the pattern")
    return _listing(sorted(map(_posix, set(paths))))


def _glob(pattern: str) -> list[str]:
    return glob.glob(pattern, recursive=True)  # noqa: PTH207 - pathlib's takes hidden files too


def _read_lines(path: Path) -> list[str]:
    try:
        return _lines(path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read the list {path} ({error.strerror}); check the path") from error


def _lines(content: bytes) -> list[str]:
    """Names are bytes to most systems: those that are not UTF-8 stay as they are, to be named as skipped."""
    text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
    return [line.removesuffix("\r") for line in text.split("\n")]


def _list_paths(lines: Iterable[str], source: str) -> Listing:
    """A list is often older than the disk, or written elsewhere: what is not there is found out at once."""
    paths = sorted({_posix(line) for line in lines if line.strip()})
    if not paths:
        raise DataError(f"{source} names no pictures; give one path a line")
    missing = [(path, why) for path in paths if (why := _why_no_file(path))]
    if len(missing) == len(paths):
        raise DataError(
            f"none of the {len(paths):,} paths in {source} can be read (first: {paths[0]}, {missing[0][1]}); paths are"
            " relative to the folder that hashlens runs in"
        )
    gone = dict(missing)
    listing = _listing([path for path in paths if path not in gone])
    return replace(listing, skipped=[*((shown(path), why) for path, why in missing), *listing.skipped])


def _list_table(path: Path, columns: Columns, progress: Progress | None) -> Listing:
    from hashlens.data.table import PATH_NAMES, Row, _join, _read_cells, read_rows

    header, lines = _read_cells(path)
    # paths alone: what is to be encoded needs no labels
    if len(header) == 1 and columns == Columns() and header[0].lower() in PATH_NAMES:
        rows = [Row(number, cells[0].strip().replace("\\", "/"), (), None) for number, cells in lines]
        warnings: list[str] = []
    else:
        rows, warnings = read_rows(path, columns)
    skipped = [(f"line {row.line}", "no path") for row in rows if not row.path]
    found, missing = locate(path.parent, [row.path for row in rows if row.path])
    joined, more = _join([replace(row, path=found[row.path]) for row in rows if row.path in found], path)
    for warning in [*warnings, *respelt_warnings(found, path.name), *more]:
        if progress:
            progress(f"note: {warning}")
    skipped += [(shown(_below(path.parent, name)), why) for name, why in missing]
    if not joined:
        raise DataError(f"none of the {len(rows):,} pictures of {path} is there; paths are relative to its folder")
    labels = [list(row.labels) for row in joined.values()]
    listing = _listing([_below(path.parent, name) for name in joined], labels if any(labels) else None)
    return replace(listing, skipped=skipped + listing.skipped)


def _expand(pattern: str) -> list[str]:
    """Ranges of numbers such as {00000..00999}, then patterns.

    >>> _expand("a{08..10}.tar")
    ['a08.tar', 'a09.tar', 'a10.tar']
    """
    span = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if span is None:
        return sorted(_glob(pattern)) if glob.has_magic(pattern) else [pattern]
    first, last = span.groups()
    if int(last) < int(first):
        raise UsageError(f"the range {span[0]} is empty; write the smaller number first")
    numbers = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
    return [path for n in numbers for path in _expand(pattern[: span.start()] + n + pattern[span.end() :])]


def _list_tars(paths: list[str], source: str) -> Listing:
    absent = [path for path in paths if not Path(path).is_file()]
    if absent or not paths:
        which = f"{len(absent):,} of {len(paths):,} are missing, first {absent[0]}" if absent else "nothing matches"
        raise DataError(f"cannot find the tar files {source} ({which}); check the pattern or the range")
    names: list[str] = []
    facts: list[tuple[int, int, int]] = []
    skipped: list[tuple[str, str]] = []
    for path in map(_posix, paths):
        try:
            for member in members(path):
                if not member.isreg():
                    skipped.append((f"{path}{INSIDE}{member.name}", "a link; give the file itself"))
                    continue
                names.append(f"{path}{INSIDE}{member.name}")
                facts.append((member.offset_data, min(member.size, 2**62), _nanoseconds(member.mtime)))
        except (tarfile.TarError, OSError, ValueError) as error:
            skipped.append((path, f"the rest of this tar file cannot be read ({error})"))
    if not names:
        raise DataError(
            f"no pictures in {source}" + (f" ({skipped[0][1]})" if skipped else "") + "; check the tar files"
        )
    columns = np.array(facts, np.int64).T
    listing = _listing(names, **dict(zip(("offset", "size", "mtime"), columns, strict=True)))
    return replace(listing, skipped=skipped + listing.skipped)


def members(path: str) -> Iterator[tarfile.TarInfo]:
    """Files in a tar file that end like pictures; an error where it is damaged, which tarfile takes for its end."""
    with tarfile.open(path, "r:") as archive:
        last = -1
        while (member := archive.next()) is not None:
            if member.size < 0 or member.offset <= last:  # it would be read for ever
                raise tarfile.ReadError("a header is damaged")
            last = member.offset
            archive.members.clear()  # type: ignore[attr-defined] # it would keep a million of them
            if (member.isreg() or member.islnk() or member.issym()) and member.name.lower().endswith(EXTENSIONS):
                yield member
        end = archive.offset
    with Path(path).open("rb") as file:
        file.seek(end)
        if any(file.read(BLOCK)):  # a whole file ends with zeros
            raise tarfile.ReadError("a header is damaged")


def _nanoseconds(mtime: float) -> int:
    return int(min(max(0, mtime), 2**33) * 1e9)  # a header can claim any time, NaN too


class ListedImages(Images):
    """A stretch of a listing. A picture that cannot be read is a blank one here, and `failed` says why.

    `seen(n)` is called for every n pictures that have been read; it may raise to stop.
    """

    def __init__(self, table: pa.Table, seen: Callable[[int], None], images: Images | None = None):
        self.names = table["path"].to_pylist()
        self.failed: dict[int, str] = {}
        self.size = self._column(table, "size")
        self.mtime = self._column(table, "mtime")
        self._offset = self._column(table, "offset") if "offset" in table.column_names else None
        self._table, self._seen, self._images = table, seen, images

    def read(self, rows: Any, size: int) -> np.ndarray:
        rows = self._indices(rows)
        batch = super().read(rows, size) if self._images is None else self._images.read(rows, size)
        self._seen(len(rows))
        return batch

    def picture(self, row: int, at_least: int | None = None) -> Image.Image:
        if self._images is not None:
            return self._images.picture(row, at_least)
        file: Path | io.BytesIO = Path(self.names[row])
        try:
            file = self._file(row)
            return decode(file, at_least)[0]
        except (FileNotFoundError, NotADirectoryError):
            self.failed[row] = "gone"  # it was there when the list was made
        except Exception as error:  # a damaged file makes Pillow raise nearly anything
            self.failed[row] = _why(file, error)
        return Image.new("RGB", (1, 1))

    def items(self) -> tuple[np.ndarray, pa.Table]:
        """After reading: which pictures are good, (n,) bool, and the table of those."""
        good = np.ones(len(self), bool)
        good[list(self.failed)] = False
        table = self._table.select([name for name in ("path", "labels") if name in self._table.column_names])
        if self._images is None:
            table = table.append_column("size", pa.array(self.size)).append_column("mtime", pa.array(self.mtime))
        return good, table.filter(pa.array(good))

    def skipped(self) -> list[tuple[str, str]]:
        return [(self.names[row], why) for row, why in sorted(self.failed.items())]

    def __getitem__(self, rows: Any) -> ListedImages:
        chosen = self._indices(rows)
        images = None if self._images is None else self._images[chosen]
        return ListedImages(self._table.take(pa.array(chosen)), self._seen, images)

    def fingerprint(self) -> str:
        raise NotImplementedError("these are read once: nothing computed from them is to be kept")

    def _file(self, row: int) -> Path | io.BytesIO:
        """The file of a picture: itself, or its bytes in a tar file."""
        if self._offset is None:
            path = Path(self.names[row])
            status = path.stat()
            self.size[row], self.mtime[row] = status.st_size, status.st_mtime_ns
            return path
        if self.size[row] > MAX_MEMBER:
            raise OSError(f"{self.size[row] / 1e6:,.0f} MB, limit {MAX_MEMBER / 1e6:,.0f}")
        with Path(tar_of(self.names[row])).open("rb") as file:
            file.seek(self._offset[row])
            content = file.read(self.size[row])
        if len(content) < self.size[row]:
            raise EOFError
        return io.BytesIO(content)

    def _column(self, table: pa.Table, name: str) -> np.ndarray:
        if name not in table.column_names:
            return np.zeros(len(table), np.int64)
        return table[name].to_numpy().copy()


def tar_of(path: str) -> str:
    """The tar file that a picture is in."""
    return path[: path.index(f".tar{INSIDE}") + len(".tar")]


def _why(file: Path | io.BytesIO, error: Exception) -> str:
    try:
        return reason(file, error)
    except OSError:  # it went away while we looked
        return "gone"


def _listing(paths: Sequence[str], labels: list[list[str]] | None = None, **facts: np.ndarray) -> Listing:
    """Without the names that are not UTF-8, which no table can hold."""
    good = [is_utf8(path) for path in paths]
    table_of = [i for i, is_good in enumerate(good) if is_good]
    bad = [shown(path) for path, is_good in zip(paths, good, strict=True) if not is_good]
    if not table_of:
        raise DataError(f"the names of all {len(paths):,} pictures are not UTF-8 (first: {bad[0]}); rename them")
    table = _table(
        [paths[i] for i in table_of],
        None if labels is None else [labels[i] for i in table_of],
        **{name: values[table_of] for name, values in facts.items()},
    )
    return Listing(table, [(path, "its name is not UTF-8") for path in bad])


def _table(paths: Sequence[str], labels: list[list[str]] | None = None, **facts: np.ndarray) -> pa.Table:
    columns: dict[str, Any] = {"path": pa.array(paths, pa.string())}
    if labels is not None:
        columns["labels"] = pa.array(labels, pa.list_(pa.string()))
    return pa.table(columns | {name: pa.array(values) for name, values in facts.items()})


def _why_no_file(path: str) -> str | None:
    try:
        if Path(path).is_file():
            return None
        return "not a file" if Path(path).exists() else "no such file"
    except (OSError, ValueError) as error:  # a name too long, a byte 0
        return f"no such file ({getattr(error, 'strerror', None) or error})"


def _below(root: Path, path: str) -> str:
    return (root / path).as_posix()


def _posix(path: str) -> str:
    return path.replace(os.sep, "/") if os.sep != "/" else path
