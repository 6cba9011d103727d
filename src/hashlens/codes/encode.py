"""Encoding: a model and a source of images of any size in, a codes folder out.

The list of images is made first and kept (see codes/folder.py). A shard is encoded and written as a whole, so rerunning
the same command resumes after any interruption and adds new images. Each image is decoded once; unreadable images get
no code, and skipped.csv says why. Only paths are kept in memory for all images.

With part i/n, n machines encode one list independently: each makes every n-th shard, in its own folder part-i-of-n
below `out`. `open_together` reads these folders together.
"""

import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from hashlens import addresses
from hashlens.addresses import Address, Place, is_address
from hashlens.checksums import hash_of, hash_of_file
from hashlens.codes import MANIFEST, Codes
from hashlens.codes.encoder import Encoder
from hashlens.codes.folder import SHARD_SIZE, STAMPS, CodesFolder, content_hash
from hashlens.codes.model import ModelFolder
from hashlens.data import Columns
from hashlens.data.images import FORBIDDEN, MAX_BYTES, FileImages, Images, UnreadableImage
from hashlens.data.sources import Source, open_source
from hashlens.errors import DataError, HashlensError, Stopped, StorageError, UsageError, require
from hashlens.files import alone_in, require_room, size_and_mtime
from hashlens.progress import Progress, counted

FINISH_SECONDS = 10  # when asked to stop, a shard that needs less than this is still finished
SHARD_OVERHEAD = 10_000  # bytes of a shard's files besides its rows
RAY_BATCH = 2_048  # images per batch of an actor, at most: a minute of work


def encode_source(
    encoder: Encoder,
    source: str | Sequence[str],
    out: Place,
    progress: Progress,
    *,
    columns: Columns | None = None,
    shard_size: int = SHARD_SIZE,
    part: tuple[int, int] = (1, 1),
    stop: Callable[[], bool] = lambda: False,
    ray_model: Path | None = None,
) -> dict[str, Any]:
    """Encode the images of a source that have no code in the folder `out` yet.

    Parameters
    ----------
    source : anything that `open_source` takes.
    columns : of a table.
    part : (i, n): make every n-th shard, starting with the i-th, in the folder part-i-of-n below `out`.
    stop : called often; when it returns True, the current shard is dropped unless it is nearly done.
    ray_model : folder of the encoder's model, to encode on a Ray cluster.
    """
    if ray_model is not None:
        require("ray", why="encoding on a cluster")
    if isinstance(out, Address):
        out.require_writable()
    out = _part_folder(out, part)
    tried_before = addresses.tried_again
    opened = open_source(source, labels="optional", columns=columns, progress=progress.say)
    if ray_model is not None and not isinstance(opened.images, FileImages):
        raise UsageError(f"{source} is in the memory of one machine; encode it without --on ray")
    for warning in opened.warnings:
        progress.say(f"note: {warning}")
    with alone_in(out):
        folder = _begin(opened, out, progress, encoder, shard_size, part)
        missing = folder.missing()
        with progress.bar("images", sum(rows.stop - rows.start for rows in missing)) as advance:

            def encoded_here() -> Generator[pa.Table]:
                for rows in missing:
                    table = folder.listed()[rows]
                    yield encode_rows(encoder, table, opened.reader(table), _watch(len(table), advance, stop, folder))

            encoded = _encoded_on_ray(ray_model, folder, missing, advance) if ray_model else encoded_here()
            with closing(encoded):
                for rows in missing:
                    if stop():
                        raise _stopped(folder)
                    _write_shard(folder, rows, next(encoded), progress)
        skipped = folder.skipped()
        if not len(folder) and skipped:
            path, why = skipped[-1]
            raise DataError(
                f"no image of {folder.source} can be read ({len(skipped):,} tried, last {path}: {why}); see"
                f" {folder.path / 'skipped.csv'}"
            )
        folder.finish()
    if tried_again := addresses.tried_again - tried_before:
        progress.say(f"note: requests tried again: {tried_again:,}")
    return {"n": len(folder), "n_bits": folder.n_bits, "n_skipped": len(skipped), "out": str(folder.path)}


def _part_folder(out: Place, part: tuple[int, int]) -> Place:
    i, n_parts = part
    if not 1 <= i <= n_parts:
        raise UsageError(f"part {i} of {n_parts} does not exist; parts are numbered from 1")
    if n_parts > 1 and (out / MANIFEST).exists():
        raise UsageError(f"{out} contains codes that were not made in parts; choose another --out for the parts")
    return out if n_parts == 1 else out / f"part-{i}-of-{n_parts}"


def parse_part(text: str) -> tuple[int, int]:
    """
    >>> parse_part("3/16")
    (3, 16)
    """
    if not (found := re.fullmatch(r"(\d+)/(\d+)", text.strip())):
        raise UsageError(f"--part must look like 3/16 (the third of sixteen), got {text!r}")
    return int(found[1]), int(found[2])


def _begin(
    opened: Source, out: Place, progress: Progress, encoder: Encoder, shard_size: int, part: tuple[int, int]
) -> CodesFolder:
    """The folder, new or with its shards verified, and its list with the images of the source."""
    if shard_size < 1:
        raise UsageError(f"shard_size must be >= 1, got {shard_size}")
    name, lengths = opened.address, {"n_bits": encoder.n_bits, "second_bits": encoder.second_bits}
    folder = CodesFolder.create(out, **lengths, model=encoder.model, shard_size=shard_size, source=name, part=part)
    _drop_damaged(folder, opened, progress)
    before, table = folder.list["n"], opened.table
    if part != (1, 1) and before and content_hash(table) != folder.list["sha256"]:  # all parts need the same list
        progress.say(f"note: {name} has changed since {out} was started; new images need another --out")
    else:
        n_new = folder.extend(table, opened.skipped_paths() if part[0] == 1 else ())  # in one part only
        if before and n_new:
            progress.say(f"note: images added since the last run: {n_new:,}")
    missing = folder.missing()
    n_code_bytes = sum(-(-n_bits // 8) for n_bits in lengths.values())
    bits = " and ".join(counted(n_bits, "bit") for n_bits in lengths.values() if n_bits)
    n, size = counted(folder.list["n"], "image"), f"{bits}, {counted(n_code_bytes, 'byte')} each"
    progress.say(f"encode  {n} of {name} → {out}/   {size}")
    if folder.shards:
        progress.say(
            f"resume  {len(folder.shards):,} shards found and verified, {len(missing):,} to go: {len(folder):,} codes"
        )
    n_rows = sum(rows.stop - rows.start for rows in missing)
    row_bytes = n_code_bytes + 16 + table.nbytes / max(1, len(table))
    require_room(out, int(n_rows * row_bytes) + len(missing) * SHARD_OVERHEAD, "the codes")
    return folder


def _drop_damaged(folder: CodesFolder, opened: Source, progress: Progress) -> None:
    """Drop damaged shards so that they are made again; refuse if some of their images no longer exist."""
    damaged = folder.damaged()
    without_code = {path for path, _ in folder.skipped()}
    for shard, damage in damaged:
        images = opened.reader(folder.listed()[shard.start : shard.stop])
        if isinstance(images, FileImages):
            lost = [row for row, path in enumerate(images.paths()) if path not in without_code]
            if gone := [images.names[row] for row in lost if not images.file(row).exists()]:
                raise DataError(
                    f"{damage} and cannot be made again: images are gone ({len(gone):,}, first {gone[0]}); restore"
                    " them, or choose another --out"
                )
        progress.say(f"{damage}: making {shard.name} again, {shard.n:,} images")
    folder.drop(shard for shard, _ in damaged)


def encode_rows(
    encoder: Encoder, table: pa.Table, images: Images, done: Callable[[int], None] | None = None
) -> pa.Table:
    """Listed images in; their paths, labels and stamps out, each with its code or the reason for having none."""
    listed = ListedImages(table, images)
    codes = encoder.codes(listed, done)
    columns = {name: table[name] for name in ("path", "labels", *STAMPS) if name in table.column_names}
    if listed.on_disk:
        stamps = np.array([listed.stamps.get(row, (0, 0, 0)) for row in range(len(table))], np.int64).reshape(-1, 3)
        columns |= {name: pa.array(stamps[:, at]) for at, name in enumerate(STAMPS)}
    columns["code"] = pa.array([row.tobytes() for row in codes.packed], pa.binary())
    if codes.second is not None:
        columns["second"] = pa.array([row.tobytes() for row in codes.second.packed], pa.binary())
    columns["reason"] = pa.array([listed.failed.get(row) for row in range(len(table))], pa.string())
    return pa.table(columns)


def stamps_of(path: str) -> tuple[int, int, int]:
    """STAMPS of a file, 0 where unknown; the time is taken first, so that a change in between is noticed later."""
    size, mtime = size_and_mtime(path)
    with suppress(OSError):
        if 0 < size <= MAX_BYTES:  # not a pipe or device, and not too large to decode
            return size, mtime, hash_of_file(path)
    return size, mtime, 0


def codes_in(encoded: pa.Table, n_bits: int, second_bits: int = 0) -> Codes:
    """The codes in some rows of the result of `encode_rows`."""
    second = codes_in(encoded.select(["second"]).rename_columns(["code"]), second_bits) if second_bits else None
    packed = np.frombuffer(b"".join(encoded["code"].to_pylist()), np.uint8)
    return Codes(packed.reshape(len(encoded), -(-n_bits // 8)), n_bits, second)


def _write_shard(folder: CodesFolder, rows: slice, encoded: pa.Table, progress: Progress) -> None:
    """Add the codes of all readable images to the folder."""
    good = pc.is_null(encoded["reason"])
    items, bad = encoded.filter(good), encoded.filter(pc.invert(good))
    codes = codes_in(items, folder.n_bits, folder.second_bits)
    skipped = list(zip(bad["path"].to_pylist(), bad["reason"].to_pylist(), strict=True))
    try:
        folder.append(rows, codes, items, skipped)
    except StorageError as error:
        raise StorageError(f"{error.message} ({len(folder.shards):,} shards are complete and safe)") from error
    if skipped:
        path, why = skipped[0]
        progress.say(f"images skipped: {len(skipped):,}, first {path} ({why})")


class ListedImages(Images):
    """Rows of a list. Unreadable images are replaced by blank ones, and `failed` says why."""

    def __init__(self, table: pa.Table, images: Images):
        self.names = table["path"].to_pylist()
        self.failed: dict[int, str] = {}
        self.stamps: dict[int, tuple[int, int, int]] = {}  # per row, of the file when it was read
        self.on_disk = isinstance(images, FileImages) and "offset" not in table.column_names
        self._images = images

    def read(self, rows: Any, size: int) -> np.ndarray:
        return self._images.read(rows, size) if self._images.in_memory else super().read(rows, size)

    def ahead(self, rows: np.ndarray) -> AbstractContextManager[None]:
        return self._images.ahead(rows)

    def image(self, row: int, at_least: int | None = None) -> Image.Image:
        name = self.names[row]
        try:
            if self.on_disk:
                self.stamps[row] = self._stamps_in_store(row) if is_address(name) else stamps_of(name)
            return self._images.image(row, at_least)
        except PermissionError:
            self.failed[row] = FORBIDDEN
        except OSError:
            self.failed[row] = "gone"  # the file existed when the list was made
        except UnreadableImage as error:
            self.failed[row] = "gone" if error.reason == "no such file" else error.reason
        return Image.new("RGB", (1, 1))

    def _stamps_in_store(self, row: int) -> tuple[int, int, int]:
        """The stamps without a time, because asking for it would take as long as the image."""
        content = self._images.data(row)
        return len(content), 0, hash_of(content)


def _watch(
    n: int, advance: Callable[[int], None], stop: Callable[[], bool], folder: CodesFolder
) -> Callable[[int], None]:
    """A function to call with the number of encoded images: advances the bar, and stops the shard when asked to."""
    left, start = n, time.monotonic()

    def done(some: int) -> None:
        nonlocal left
        left -= some
        advance(some)
        seconds_each = (time.monotonic() - start) / (n - left)
        if stop() and left * seconds_each > FINISH_SECONDS:
            raise _stopped(folder)

    return done


def _stopped(folder: CodesFolder) -> Stopped:
    return Stopped(
        f"stopped; {len(folder.shards):,} shards are complete in {folder.path}/; rerun the same command to resume"
    )


def _encoded_on_ray(
    model: Path, folder: CodesFolder, missing: list[slice], advance: Callable[[int], None]
) -> Generator[pa.Table]:
    """The results of `encode_rows` for all missing ranges of rows, computed on a Ray cluster.

    Ray Data hands batches of paths to actors, each of which holds the model; this process writes what they return. All
    machines need hashlens, and the images and the model under the same paths or addresses. Ray chooses the cluster:
    RAY_ADDRESS, or one started here with `ray start`, or else the cores of this machine. If an actor is killed, Ray
    starts another, on another machine if need be, and repeats its batch; if this process is killed, the shards that
    were written stay.
    """
    os.environ.setdefault("RAY_DATA_LOG_LEVEL", "ERROR")  # real problems are raised as exceptions
    import ray

    if not missing:
        return
    ours = not ray.is_initialized()
    with redirect_stdout(sys.stderr):  # Ray reports lost actors on stdout
        try:
            if ours:
                _join_ray()
            yield from _encoded_by_actors(model, folder, missing, advance)
        finally:
            if ours:
                ray.shutdown()


def _join_ray() -> None:
    import ray

    where = os.environ.get("RAY_ADDRESS", "")
    try:
        if at := re.fullmatch(r"(?:ray://)?(.+):(\d+)", where):  # Ray itself would retry for minutes
            socket.create_connection((at[1], int(at[2])), timeout=10).close()
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # a slow start raises no specific class
        why = " ".join(str(error).split())[:100] or type(error).__name__
        raise UsageError(
            f"cannot reach Ray{f' at {where}' if where else ''} ({why}); start it with: ray start --head, or unset"
            " RAY_ADDRESS to use the cores of this machine"
        ) from error


def _encoded_by_actors(
    model: Path, folder: CodesFolder, missing: list[slice], advance: Callable[[int], None]
) -> Iterator[pa.Table]:
    import ray

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    wanted = pa.concat_tables([folder.listed()[rows] for rows in missing])
    size = min(RAY_BATCH, folder.shard_size)
    batches = [wanted.slice(start, size) for start in range(0, len(wanted), size)]
    encoded = ray.data.from_arrow(batches).map_batches(
        _RayActor,
        fn_constructor_args=(str(ModelFolder.resolve(model).path.absolute()),),
        batch_size=size,
        batch_format="pyarrow",
        # leave one core for Ray itself
        compute=ray.data.ActorPoolStrategy(size=max(1, int(ray.cluster_resources()["CPU"]) - 1)),
    )
    found: Any = iter(encoded.iter_batches(batch_size=size, batch_format="pyarrow"))
    waiting = wanted[:0]
    for rows in missing:
        n = rows.stop - rows.start
        while len(waiting) < n:
            try:
                waiting = pa.concat_tables([waiting, next(found)], promote_options="default")
            except ray.exceptions.RayError as error:
                raise _of_an_actor(error) from error
        yield waiting[:n]
        advance(n)
        waiting = waiting[n:]


def _of_an_actor(error: BaseException) -> HashlensError:
    """The error that an actor raised, or one saying that Ray gave up."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, HashlensError) and hasattr(cause, "message"):
            return DataError(cause.message)
        cause = getattr(cause, "cause", None) or cause.__cause__
    return StorageError(f"Ray gave up ({type(error).__name__}); see its logs, then rerun the same command to resume")


class _RayActor:
    def __init__(self, model: str):
        os.environ["HASHLENS_THREADS"] = "1"  # one actor per core
        self.encoder = Encoder.load(model)

    def __call__(self, table: pa.Table) -> pa.Table:
        return encode_rows(self.encoder, table, FileImages.of(table))
