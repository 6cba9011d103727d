"""Items: the paths and labels of the codes of a part, in memory or in an Arrow file that is checked as it is read.

The manifest says where in the file the buffers of each column are, so Arrow's own metadata need not be trusted. Before
use, checks ensure that buffers lie inside the file, offsets inside their buffers, and that text is UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hashlens.checksums import CheckedFile, block_sums
from hashlens.files import replacing
from hashlens.schema import optional, whole

ITEMS = pa.schema(
    [("path", pa.string()), ("labels", pa.list_(pa.string()))]
    + [(name, pa.int64()) for name in ("size", "mtime", "hash")]  # of the file; the hash is of its content
)
KNOWN = (2, 4, 5)  # numbers of columns; older versions had fewer
ROWS = 1 << 20  # rows per batch
MANY = 1_000  # with fewer, `take` would be slower, because it imports Arrow's functions and pandas
PLACE: Any = ([], [whole(), whole(1)])  # first byte and number of bytes; empty if there is no such buffer
BUFFERS = ("path", "path_text", "labels", "label", "label_text", "labels_known")
STAMPS = tuple(f"{name}{end}" for name in ITEMS.names[2:] for end in ("", "_known"))
BATCH = {"n": whole(1, 2**31 - 1), "n_labels": whole(0, 2**31 - 1)} | {
    optional(name) if name.startswith("hash") else name: PLACE for name in (*BUFFERS, *STAMPS)
}

Row = tuple[str, list[str] | None]  # path and labels


class Items:
    """Items in memory."""

    def __init__(self, table: pa.Table):
        self._table = table

    def table(self) -> pa.Table:
        return self._table

    def column(self, name: str) -> pa.ChunkedArray:
        return self._table.column(name)

    def rows(self, places: np.ndarray) -> list[Row]:
        """Path and labels at some positions."""
        if len(places) > MANY:
            paths, labels = (self.column(name).take(pa.array(places)).to_pylist() for name in ("path", "labels"))
            return list(zip(paths, labels, strict=True))
        return [self._row(int(place)) for place in places]

    def _row(self, place: int) -> Row:
        return self.column("path")[place].as_py(), self.column("labels")[place].as_py()


class MappedItems(Items):
    """Items in a file: a column is checked on first use, and a row when it is read."""

    def __init__(self, file: CheckedFile, batches: Sequence[dict[str, Any]]):
        self._file, self._batches = file, batches
        self._ends = np.cumsum([batch["n"] for batch in batches])
        self._columns: dict[str, pa.ChunkedArray] = {}

    def table(self) -> pa.Table:
        return pa.table([self.column(name) for name in ITEMS.names], schema=ITEMS)

    def column(self, name: str) -> pa.ChunkedArray:
        if name not in self._columns:
            make = {"path": self._paths, "labels": self._labels}.get(name, partial(self._stamps, name))
            try:
                found = pa.chunked_array([make(batch) for batch in self._batches], ITEMS.field(name).type)
                found.validate(full=True)
            except (ValueError, pa.ArrowException) as error:
                raise self._file.damaged(" ".join(str(error).split())[:200]) from error
            self._columns[name] = found
        return self._columns[name]

    def _row(self, place: int) -> Row:
        number = int(np.searchsorted(self._ends, place, side="right"))
        batch = self._batches[number]
        row = place - (int(self._ends[number - 1]) if number else 0)
        (path,) = self._texts(batch, "path", row, row + 1)
        if (known := batch["labels_known"]) and not self._bytes(known, row // 8, 1)[0] >> row % 8 & 1:
            return path, None
        first, last = self._offsets(batch["labels"], row, row + 1, batch["n_labels"])
        return path, self._texts(batch, "label", first, last)

    def _texts(self, batch: dict[str, Any], name: str, first: int, last: int) -> list[str]:
        text = batch[f"{name}_text"]
        if first == last:
            return []
        ends = self._offsets(batch[name], first, last, text[1] if text else 0)
        content = self._bytes(text, ends[0], ends[-1] - ends[0]).tobytes()
        try:
            return [content[a - ends[0] : b - ends[0]].decode() for a, b in pairwise(ends)]
        except UnicodeDecodeError as error:
            raise self._file.damaged("it has text that is not UTF-8") from error

    def _offsets(self, place: list[int], first: int, last: int, most: int) -> list[int]:
        """Some of the offsets, checked to be ascending and within their buffer."""
        found: list[int] = self._bytes(place, 4 * first, 4 * (last + 1 - first)).view("<i4").tolist()
        if found[0] < 0 or found[-1] > most or any(a > b for a, b in pairwise(found)):
            raise self._file.damaged("it points outside of itself")
        return found

    def _bytes(self, place: list[int], start: int, n: int) -> np.ndarray:
        if not n:
            return np.empty(0, np.uint8)
        if not place or start + n > place[1] or place[0] + place[1] > len(self._file.content):
            raise self._file.damaged("it is shorter than it should be")
        return self._file.part(place[0] + start, place[0] + start + n)

    def _buffer(self, place: list[int]) -> pa.Buffer:
        return pa.py_buffer(self._bytes(place, 0, place[1] if place else 0))

    def _paths(self, batch: dict[str, Any]) -> pa.Array:
        buffers = [None, self._buffer(batch["path"]), self._buffer(batch["path_text"])]
        return pa.Array.from_buffers(pa.string(), batch["n"], buffers)

    def _labels(self, batch: dict[str, Any]) -> pa.Array:
        buffers = [None, self._buffer(batch["label"]), self._buffer(batch["label_text"])]
        label = pa.Array.from_buffers(pa.string(), batch["n_labels"], buffers)
        known = self._buffer(batch["labels_known"]) if batch["labels_known"] else None
        if known is not None:  # Arrow's functions disagree on counting the labels of an image without any
            n = batch["n"]
            lengths = np.diff(self._bytes(batch["labels"], 0, 4 * (n + 1)).view("<i4"))
            bits = np.unpackbits(self._bytes(batch["labels_known"], 0, -(-n // 8)), bitorder="little")[:n]
            if np.any(lengths[bits == 0]):
                raise ValueError("it has labels of an image that has none")
        kind = ITEMS.field("labels").type
        return pa.Array.from_buffers(kind, batch["n"], [known, self._buffer(batch["labels"])], children=[label])

    def _stamps(self, name: str, batch: dict[str, Any]) -> pa.Array:
        """Sizes, mtimes or hashes; null if from an older version, or if the images are not files."""
        if not batch.get(name):
            return pa.nulls(batch["n"], pa.int64())
        known = self._buffer(batch[f"{name}_known"]) if batch[f"{name}_known"] else None
        return pa.Array.from_buffers(pa.int64(), batch["n"], [known, self._buffer(batch[name])])


def as_items(table: pa.Table) -> pa.Table:
    """The columns that an index keeps; null if missing in the table."""
    there = table.column_names
    return pa.table([table[one.name] if one.name in there else pa.nulls(len(table), one.type) for one in ITEMS], ITEMS)


def write_items(path: Path, tables: Iterable[pa.Table]) -> None:
    """Write one table after the other, with at most one batch in memory."""
    waiting: list[pa.Table] = []
    with replacing(path) as temporary, pa.ipc.new_file(str(temporary), ITEMS) as file:

        def write() -> None:
            file.write_table(pa.concat_tables(waiting).combine_chunks(), max_chunksize=ROWS)
            waiting.clear()

        for table in tables:
            for start in range(0, len(table), ROWS):
                some = as_items(table.slice(start, ROWS))
                if sum(map(len, waiting)) + len(some) > ROWS:
                    write()
                waiting.append(some)
        if waiting:
            write()


def write_sums(path: Path, of: Path) -> None:
    """Write the checksums of the blocks of a file."""
    with replacing(path) as temporary:
        temporary.write_bytes(block_sums(np.memmap(of, np.uint8, "r")).astype("<u8", copy=False).tobytes())


def find_batches(path: Path) -> list[dict[str, Any]]:
    """Where the buffers of a file are; only for files that we wrote ourselves or verified by their checksum."""
    whole = pa.memory_map(str(path)).read_buffer()
    file = pa.ipc.open_file(pa.BufferReader(whole))
    if file.schema not in [pa.schema(list(ITEMS)[:n]) for n in KNOWN]:
        raise ValueError("it has other columns")

    def place(buffer: pa.Buffer | None) -> list[int]:
        if buffer is None or not buffer.size:
            return []
        start = buffer.address - whole.address
        if not 0 <= start <= start + buffer.size <= whole.size:
            raise ValueError("it is compressed")
        return [start, buffer.size]

    found = []
    for number in range(file.num_record_batches):
        batch = file.get_batch(number)
        batch.validate(full=True)
        paths, labels = batch.columns[:2]
        if paths.null_count or labels.values.null_count or labels.offset:
            raise ValueError("it has images without a path")
        _, path_at, path_text = map(place, paths.buffers())
        known, at, _, label_at, label_text = map(place, labels.buffers())
        places = dict(zip(BUFFERS, (path_at, path_text, at, label_at, label_text, known), strict=True))
        stamps: dict[str, list[int]] = {name: [] for name in STAMPS}
        for name, column in zip(file.schema.names[2:], batch.columns[2:], strict=True):
            if column.null_count < len(column):
                stamps[f"{name}_known"], stamps[name] = map(place, column.buffers())
        found.append({"n": len(batch), "n_labels": len(labels.values), **places, **stamps})
    return found
