"""The index of a source: images and a model in, an index out that is updated each time it is requested.

It is kept in the user's cache, or at `--index PATH`, and never among the images. Only new and changed images
(changes.py) are encoded; deleted ones are removed. Finished parts stay when a call is stopped or killed, and the next
call resumes. Beside the files of an index (folder.py) there are

  skipped.csv   images that cannot be read, with the reason, size and mtime: they are tried again when those change,
                and each time if the reason can go away without that
  clicks.csv    a person's clicks, from which `hashlens refine` learns (clicks/)
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from hashlens.clicks.file import CLICKS
from hashlens.codes.encoder import Encoder
from hashlens.codes.model import GENERAL, ModelFolder
from hashlens.data.images import PASSING
from hashlens.data.sources import Columns, Source, open_source
from hashlens.errors import Busy, DataError, MismatchError, Stopped, UsageError
from hashlens.files import alone_in, cache_dir, require_room, shown, write_csv
from hashlens.index.changes import Known, Mark, find_changed, marks_in, marks_of
from hashlens.index.folder import IndexFolder
from hashlens.machine import blocks
from hashlens.progress import Progress, counted

STEP = 128  # images between two checks of the clock and for Ctrl-C
SAVE_SECONDS = 30  # of encoding between two saves
LOCK = ".hashlens-library.lock"  # for the whole update; each change of the index has its own lock
SKIPPED = "skipped.csv"


def index_of(
    source: str | os.PathLike[str],
    model: Path | str | None = None,
    *,
    at: Path | str | None = None,
    columns: Columns | None = None,
    progress: Progress | bool | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> IndexFolder:
    """The index of all images of a source, up to date.

    Parameters
    ----------
    source : anything that `open_source` takes by name.
    model : folder of a model; the default is the general one.
    at : folder to keep the index in, instead of the cache.
    stop : called often; when it returns True, finished work is saved and `Stopped` is raised.
    """
    shows = Progress.of(progress)
    if source == "-":
        raise UsageError("images from standard input cannot be kept up to date; pass a folder or a list (.txt)")
    opened = open_source(source, labels="optional", columns=columns, progress=shows.say)
    made_by = _Model(model)
    path = _cached(opened.address, made_by.facts) if at is None else Path(at)
    try:
        with alone_in(path, LOCK):
            index = _open(path, opened, made_by, shows, kept=at is not None)
            made_by = made_by.used_by(index)
            _update(index, opened, made_by, shows, stop)
            return index
    except Busy:
        there = _existing(path)
        if there is None or not len(there):
            raise
        shows.say(f"note: another process is updating the codes of {opened.address}; using the {len(there):,} it has")
        return there


class _Model:
    """A model that is loaded only if something has to be encoded."""

    def __init__(self, path: Path | str | None):
        self.folder = ModelFolder.resolve(GENERAL if path is None else path)
        self.facts = self.folder.describe()

    def used_by(self, index: IndexFolder) -> _Model:
        """This model, or the one refined from it by clicks on this index."""
        found = self.folder.used_by(index.model, index.path)
        return self if found == self.folder else _Model(found.path)

    @cached_property
    def encoder(self) -> Encoder:
        encoder = Encoder.load(self.folder.path)
        encoder.require_images()
        return encoder


def _cached(address: str, model: dict[str, str]) -> Path:
    """Where the codes of a source are cached: a readable name, and a hash of the source and the model."""
    name = re.sub(r"[^\w.-]+", "-", Path(address).name).strip("-.")[:40] or "images"
    key = hashlib.sha256(os.fsencode(f"{address}\0{model['fingerprint']}")).hexdigest()[:20]
    return cache_dir() / "libraries" / f"{name}-{key}"


def _existing(path: Path) -> IndexFolder | None:
    return IndexFolder.open(path) if (path / "index.json").exists() else None


def _open(path: Path, opened: Source, model: _Model, progress: Progress, kept: bool) -> IndexFolder:
    """The existing index or a new one; an unreadable one in the cache is replaced."""
    try:
        index = _existing(path)
    except (DataError, MismatchError) as error:
        if kept:
            raise
        progress.say(f"note: encoding all images again, because {error.message}")
        for entry in path.iterdir():
            if entry.name not in (LOCK, CLICKS):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        index = None
    if index is None:
        n_bits, second_bits = model.encoder.n_bits, model.encoder.second_bits
        return IndexFolder.create(
            path, n_bits, model.facts, second_bits=second_bits, source=opened.address, option="--index"
        )
    if (found := index.facts.get("source")) != opened.address:
        what = f"the index of {found}" if found else "an index that was built from codes"
        raise MismatchError(f"{path} is {what}, not of {opened.address}; choose another --index")
    ModelFolder.require_same(index.model, model.used_by(index).facts, path)
    return index


def _update(index: IndexFolder, opened: Source, model: _Model, progress: Progress, stop: Callable[[], bool]) -> None:
    marks, known, skipped = marks_of(opened), marks_in(index), _skipped(index.path)
    closed = tuple(f"{folder}/" for folder, _ in opened.skipped_paths())  # unreadable, so their images may still exist
    gone = [path for path in known.keys() - marks if not path.startswith(closed)]
    changed, touched = find_changed(marks, known)
    index.set_mtimes(touched)
    tried = {path: why for path, why in skipped.items() if path in marks}
    fresh = known.keys() - changed
    fresh |= {path for path, (why, *stamp) in tried.items() if (*stamp,) == _stamp(marks[path]) and why not in PASSING}
    row_of = {path: row for row, path in enumerate(opened.table["path"].to_pylist())}  # tables may contain repeats
    wanted = [row for path, row in row_of.items() if path not in fresh]
    if tried != skipped:
        _write_skipped(index.path, tried)
    if gone:
        index.remove([id_ for path in gone for id_ in known[path].ids])
    if wanted:
        for warning in opened.warnings:
            progress.say(f"note: {warning}")
        if known or skipped:
            facts = {"new": len(wanted) - len(changed), "changed": len(changed), "deleted": len(gone)}
            said = ", ".join(f"{n:,} {what}" for what, n in facts.items() if n)
            progress.say(f"update  {opened.address}: {said} of {counted(len(marks), 'image')}")
        else:
            size = f"{counted(index.n_bits, 'bit')} each, kept in {index.path}"
            progress.say(f"encode  {counted(len(marks), 'image')} of {opened.address}   {size}")
        require_room(index.path, len(wanted) * -(-(index.n_bits + index.second_bits) // 8), "the codes")  # fail early
        _encode(wanted, opened, model, _Work(index, known, tried), progress, stop)
        if 2 * len(index) < sum(map(len, index.parts)):
            index.compact()
    if tried and (wanted or not len(index)):
        path, (why, *_) = min(tried.items())
        first = f"first {shown(path)}"
        if not len(index):
            raise DataError(
                f"no image of {opened.address} can be read ({len(tried):,} tried, {first}: {why}); check that this is"
                " the right source"
            )
        listed = index.path / SKIPPED
        progress.say(f"note: images that cannot be read: {len(tried):,}, {first} ({why}); all are listed in {listed}")


def _encode(
    wanted: list[int], opened: Source, model: _Model, work: _Work, progress: Progress, stop: Callable[[], bool]
) -> None:
    from hashlens.codes.encode import encode_rows  # slow import: loads Arrow's functions, not needed for searches

    with progress.bar("images", len(wanted)) as advance:
        for rows in blocks(len(wanted), STEP):
            table = opened.table.take(wanted[rows])
            work.add(encode_rows(model.encoder, table, opened.reader(table), advance))
            left = len(wanted) - rows.stop
            stopped = left and stop()
            if not left or stopped or work.seconds > SAVE_SECONDS:
                work.save()
            if stopped:
                raise Stopped(f"stopped; {counted(left, 'image')} left to encode; rerun the same command to resume")


class _Work:
    """Images that are encoded but not in the index yet, and all that could not be encoded."""

    def __init__(self, index: IndexFolder, known: dict[str, Known], skipped: dict[str, tuple[str, int, int]]):
        self.index, self.known, self.skipped = index, known, skipped
        self._tables: list[pa.Table] = []
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the last save."""
        return time.monotonic() - self._since

    def add(self, encoded: pa.Table) -> None:
        self._tables.append(encoded)

    def save(self) -> None:
        """Replace the codes of these images in the index; after an interruption they are encoded again."""
        if not self._tables:
            return
        table = pa.concat_tables(self._tables, promote_options="default")
        columns = [
            table[name].to_pylist() for name in ("path", "reason", "size", "mtime") if name in table.column_names
        ]
        self.index.remove([id_ for path in columns[0] if path in self.known for id_ in self.known[path].ids])
        good, before = [], dict(self.skipped)
        for row, (path, why, *stamp) in enumerate(zip(*columns, strict=True)):
            if why is None:
                self.skipped.pop(path, None)
                good.append(row)
            else:
                size, mtime = stamp or (0, 0)
                self.skipped[path] = why, size, mtime
        if self.skipped != before:
            _write_skipped(self.index.path, self.skipped)
        if good:
            from hashlens.codes.encode import codes_in

            items = table.take(good)
            self.index.add(codes_in(items, self.index.n_bits, self.index.second_bits), items)
        self._tables, self._since = [], time.monotonic()


def skipped_in(path: Path) -> list[str]:
    """Images missing from the index at `path` because they cannot be read."""
    return sorted(_skipped(path))


def _stamp(mark: Mark) -> tuple[int, int]:
    return mark[0] or 0, mark[1] or 0


def _skipped(path: Path) -> dict[str, tuple[str, int, int]]:
    """Unreadable images: the reason, size and mtime of each."""
    with suppress(OSError, ValueError, csv.Error), (path / SKIPPED).open(encoding="utf-8", newline="") as file:
        return {name: (why, int(size), int(mtime)) for name, why, size, mtime in list(csv.reader(file))[1:]}
    return {}


def _write_skipped(path: Path, skipped: dict[str, tuple[str, int, int]]) -> None:
    rows = [(name, why, str(size), str(mtime)) for name, (why, size, mtime) in sorted(skipped.items())]
    write_csv(path / SKIPPED, ("path", "reason", "size", "mtime"), rows)
