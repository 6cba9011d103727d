"""Changes: an index and a source of images in, what is new, changed and deleted out.

The one rule for "changed", which `index sync` and the index that follows a folder (library.py) share.

An image has changed if its size, mtime or labels are not those that the index has; which time is later does not
matter, so a clock that goes back does no harm. An image of which the index does not know size and mtime (one of an
older version) counts as changed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from hashlens.codes.encoder import Encoder
from hashlens.data.images import FileImages
from hashlens.data.sources import Source
from hashlens.files import size_and_mtime
from hashlens.index.folder import IndexFolder
from hashlens.machine import blocks

STEP = 4_096  # images that are encoded between two changes of the index

MARKED = ("size", "mtime", "labels")
Mark = tuple[Any, Any, Any]  # of these


class Changes(NamedTuple):
    added: list[int]  # rows of the source
    changed: list[int]
    deleted: list[int]  # ids of the index


def find_changes(index: IndexFolder, source: Source) -> Changes:
    now, known = marks_of(source), marks_in(index)
    closed = tuple(f"{folder}/" for folder, _ in source.skipped_paths())  # nobody knows what is in there now
    added = [row for row, path in enumerate(now) if path not in known]
    changed = [row for row, (path, mark) in enumerate(now.items()) if path in known and known[path][1] != mark]
    deleted = [ids for path, (ids, _) in known.items() if path not in now and not path.startswith(closed)]
    return Changes(added, changed, [id_ for ids in deleted for id_ in ids])


def marks_of(source: Source) -> dict[str, Mark]:
    """Size, mtime and labels of each image now; a file that cannot be found has size and mtime 0."""
    table = source.table
    paths = table["path"].to_pylist()
    if isinstance(source.images, FileImages) and "offset" not in table.column_names:
        stamps: Iterable[tuple[Any, Any]] = map(size_and_mtime, paths)
    else:
        stamps = zip(*(_column(table, name) for name in ("size", "mtime")), strict=True)
    labels = _column(table, "labels")
    return {path: (*stamp, own or None) for path, stamp, own in zip(paths, stamps, labels, strict=True)}


def marks_in(index: IndexFolder) -> dict[str, tuple[list[int], Mark]]:
    """The ids and the mark of each image in the index; the mark of the last, if it is there twice."""
    found: dict[str, tuple[list[int], Mark]] = {}
    for part in index.parts:
        places = part.still()
        columns = [part.items().column(name).take(pa.array(places)).to_pylist() for name in ("path", *MARKED)]
        for id_, path, size, mtime, labels in zip(part.ids(places).tolist(), *columns, strict=True):
            ids = found[path][0] if path in found else []
            found[path] = [*ids, id_], (size, mtime, labels or None)
    return found


def sync(
    index: IndexFolder,
    source: Source,
    encoder: Callable[[], Encoder],
    *,
    advance: Callable[[int], Any] | None = None,
    changes: Changes | None = None,
) -> dict[str, int]:
    """Bring an index up to date: encode what is new or changed, remove what is deleted or no longer readable.

    The encoder is asked for only if there is something to encode. Each step is one change of the index, so a call that
    is interrupted leaves a right index, and the next one resumes.
    """
    from hashlens.codes.encode import codes_in, encode_rows  # it loads Arrow's functions

    added, changed, deleted = changes or find_changes(index, source)
    known = {path: ids for path, (ids, _) in marks_in(index).items()} if changed else {}
    index.remove(deleted)
    unreadable = {"added": 0, "changed": 0}
    both = [*((row, "added") for row in added), *((row, "changed") for row in changed)]
    for rows in blocks(len(both), STEP):
        table = source.table.take([row for row, _ in both[rows]])
        encoded = encode_rows(encoder(), table, source.reader(table), advance)
        good = [row for row, why in enumerate(encoded["reason"].to_pylist()) if why is None]
        for row in set(range(len(table))) - set(good):
            unreadable[both[rows][row][1]] += 1
        items = encoded.take(pa.array(good, pa.int64()))
        before = [id_ for path in table["path"].to_pylist() for id_ in known.get(path, ())]
        index.replace(before, codes_in(items, index.n_bits, index.second_bits), items)
    return {
        "added": len(added) - unreadable["added"],
        "changed": len(changed) - unreadable["changed"],
        "deleted": len(deleted),
        "unreadable": sum(unreadable.values()),
    }


def _column(table: pa.Table, name: str) -> list[Any]:
    return table[name].to_pylist() if name in table.column_names else [None] * len(table)
