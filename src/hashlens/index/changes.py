"""Changes: an index and a source of images in, what is new, changed and deleted out.

This is the only rule for "changed", shared by `index sync` and the index that follows a folder (library.py).

An image has changed if its size or labels differ from those in the index, or if both its mtime and its content differ;
which time is later does not matter, so a clock that goes back does no harm. An image that was only touched keeps its
code and id, and the index notes the new time. If the index does not know the size and mtime of an image (from an older
version), the image counts as changed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pyarrow as pa

from hashlens.addresses import is_address
from hashlens.checksums import hash_of_file
from hashlens.codes.encoder import Encoder
from hashlens.data.images import FileImages
from hashlens.data.sources import Source
from hashlens.errors import UsageError
from hashlens.files import size_and_mtime
from hashlens.index.engines.server import Engine
from hashlens.index.folder import IndexFolder
from hashlens.machine import blocks

STEP = 4_096  # images encoded between two changes of the index

Mark = tuple[Any, Any, Any]  # size, mtime and labels


class Known(NamedTuple):
    """What an index knows about an image: its ids, and size, mtime, labels and hash of the last id."""

    ids: list[int]
    mark: Mark
    hash: int | None  # None or 0 if unknown


class Changes(NamedTuple):
    added: list[int]  # rows of the source
    changed: list[int]
    deleted: list[int]  # ids of the index
    touched: dict[int, int]  # {id: new mtime} of images with the same content

    def counted(self) -> dict[str, int]:
        """The numbers of images that are not up to date."""
        return {"added": len(self.added), "changed": len(self.changed), "deleted": len(self.deleted)}


def find_changes(index: IndexFolder | Engine, source: Source) -> Changes:
    now, known = marks_of(source), marks_in(index)
    differ, touched = find_changed(now, known)
    closed = tuple(f"{folder}/" for folder, _ in source.skipped_paths())  # unreadable, so their images may still exist
    added = [row for row, path in enumerate(now) if path not in known]
    changed = [row for row, path in enumerate(now) if path in differ]
    deleted = [one.ids for path, one in known.items() if path not in now and not path.startswith(closed)]
    return Changes(added, changed, [id_ for ids in deleted for id_ in ids], touched)


def find_changed(now: dict[str, Mark], known: dict[str, Known]) -> tuple[set[str], dict[int, int]]:
    """The paths of images that have changed, and {id: new mtime} of images that were only touched."""
    changed: set[str] = set()
    touched: dict[int, int] = {}
    for path, one in known.items():
        if path not in now or now[path] == one.mark:
            continue
        size, mtime, labels = now[path]
        if one.hash and (size, labels) == (one.mark[0], one.mark[2]) and one.hash == _hash(path):
            touched.update(dict.fromkeys(one.ids, int(mtime)))
        else:
            changed.add(path)
    return changed, touched


def _hash(path: str) -> int | None:
    """The hash of a file's content; None if it cannot be read."""
    try:
        return hash_of_file(path)
    except OSError:
        return None


def marks_of(source: Source) -> dict[str, Mark]:
    """The current size, mtime and labels of each image; size and mtime are 0 for missing files."""
    table = source.table
    paths = table["path"].to_pylist()
    if any(map(is_address, paths[:1])):
        raise UsageError(
            f"{source.address} is at an address, whose images are not compared with those of an index; encode it again,"
            " which encodes what is new, and give its codes to: hashlens index add"
        )
    if isinstance(source.images, FileImages) and "offset" not in table.column_names:
        stamps: Iterable[tuple[Any, Any]] = map(size_and_mtime, paths)
    else:
        stamps = zip(*(_column(table, name) for name in ("size", "mtime")), strict=True)
    labels = _column(table, "labels")
    return {path: (*stamp, own or None) for path, stamp, own in zip(paths, stamps, labels, strict=True)}


def marks_in(index: IndexFolder | Engine) -> dict[str, Known]:
    """What the index knows about each image, by path."""
    found: dict[str, Known] = {}
    for id_, path, size, mtime, labels, hash_ in index.stamps():
        ids = found[path].ids if path in found else []
        found[path] = Known([*ids, id_], (size, mtime, labels or None), hash_)
    return found


def sync(
    index: IndexFolder | Engine,
    source: Source,
    encoder: Callable[[], Encoder],
    *,
    advance: Callable[[int], Any] | None = None,
    changes: Changes | None = None,
) -> dict[str, int]:
    """Bring an index up to date: encode new and changed images, remove those deleted or no longer readable.

    The encoder is requested only if there is something to encode. Each step is one change of the index, so an
    interrupted call leaves a valid index, and the next call resumes.
    """
    from hashlens.codes.encode import codes_in, encode_rows  # slow import: loads Arrow's functions

    added, changed, deleted, touched = changes or find_changes(index, source)
    known = {path: one.ids for path, one in marks_in(index).items()} if changed else {}
    index.remove(deleted)
    index.set_mtimes(touched)
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
