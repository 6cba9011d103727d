"""Encoding: a model and a source of pictures of any size in, a folder with codes and the list of their pictures out.

The list of pictures is made first and kept (see data/listing.py); its rows are cut into shards by position. A shard is
encoded and written as a whole, so the same command goes on where the last one ended, whatever ended it. Each picture
is decoded once, or twice for a model that also looks at its mirror image; one that cannot be read has no code, and
skipped.csv says why. Memory does not grow with the number of pictures but for their paths. When all is done, the same
command takes up pictures that have come since; one is known by its path.

With part i/n, n machines encode one list without knowing of each other: each makes every n-th shard, in a folder
part-i-of-n of its own below the one that is given. `shards.open_together` reads the folders as one.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from hashlens.codes import Codes
from hashlens.data import Columns
from hashlens.data.listing import ListedImages, Listing, list_pictures
from hashlens.errors import DataError, MismatchError, Stopped, StorageError, UsageError
from hashlens.files import alone_in, require_room
from hashlens.progress import Progress
from hashlens.shards import MANIFEST, SHARD_SIZE, CodesFolder, Shard, describe_model, is_among
from hashlens.threads import blocks, work_ahead

if TYPE_CHECKING:
    from hashlens.data.images import Images

FINISH_SECONDS = 10  # a shard that is nearly done is finished even when asked to stop
PROJECTED = 1_024  # rows of features that are projected at once
A_SHARD = 10_000  # bytes that a shard takes beside its rows
A_LIST = "a list"  # what a source is called that has no name


class Encoder(Protocol):
    """A hasher, an exported model, or anything else that makes codes of pictures."""

    n_bits: int

    def encode(self, X: Any, /) -> Codes: ...


def encode_source(
    encoder: Encoder,
    source: str | Sequence[str],
    out: Path,
    progress: Progress,
    *,
    model: Path | None = None,
    columns: Columns | None = None,
    shard_size: int = SHARD_SIZE,
    part: tuple[int, int] = (1, 1),
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Encode what the folder `out` has not got yet.

    Parameters
    ----------
    source : a folder, pattern, list, table, tar files or data set (see data/listing.py), or a sequence of paths.
    model : the folder that the encoder was loaded from; without it the encoder is identified by saving it.
    columns : of a table.
    part : (i, n): make every n-th shard, from the i-th on, in the folder part-i-of-n below `out`.
    stop : asked all the time; when it says so, the shard at work is dropped unless it is nearly done.
    """
    out = part_folder(out, part)
    if shard_size < 1:
        raise UsageError(f"a shard holds 1 picture or more, not {shard_size}")
    listing = list_pictures(source, columns, progress.say)
    with alone_in(out):
        folder, pictures = begin(
            listing, source, out, progress, encoder.n_bits, identify(encoder, model), shard_size, part
        )
        if missing := folder.missing():
            encode = encode_function(encoder)
            rows = [shard_rows(folder, number) for number in missing]
            n_views = 2 if mirrors(encoder) else 1
            n_reads = n_views * sum(place.stop - place.start for place in rows)
            with progress.bar("pictures" if n_views == 1 else "pictures, twice each", n_reads) as advance:
                for number, place in zip(missing, rows, strict=True):
                    if stop():
                        raise _stopped(folder)
                    table = pictures.slice(place.start, place.stop - place.start)
                    images = ListedImages(
                        table,
                        _Watch(n_views * len(table), advance, stop, folder),
                        None if listing.images is None else listing.images[place],
                    )
                    codes = encode(images)
                    write_shard(folder, number, codes, *images.items(), images.skipped(), progress)
        return finish(folder)


def shard_rows(folder: CodesFolder, number: int) -> slice:
    """The rows of the list that are in a shard."""
    start = (number - folder.first_shard) * folder.shard_size
    return slice(start, min(start + folder.shard_size, folder.n_listed))


def part_folder(out: Path, part: tuple[int, int]) -> Path:
    i, n_parts = part
    if not 1 <= i <= n_parts:
        raise UsageError(f"there is no part {i} of {n_parts}; parts are numbered from 1")
    if n_parts > 1 and (out / MANIFEST).exists():
        raise UsageError(f"{out} holds codes that were not made in parts; choose another --out for the parts")
    return out if n_parts == 1 else out / f"part-{i}-of-{n_parts}"


def parse_part(text: str) -> tuple[int, int]:
    """
    >>> parse_part("3/16")
    (3, 16)
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    i, n_parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= i <= n_parts:
        raise UsageError(f"a part is given as 3/16, the third of sixteen, not as {text!r}")
    return i, n_parts


def begin(
    listing: Listing,
    source: str | Sequence[str],
    out: Path,
    progress: Progress,
    n_bits: int,
    model: dict[str, str],
    shard_size: int = SHARD_SIZE,
    part: tuple[int, int] = (1, 1),
) -> tuple[CodesFolder, pa.Table]:
    """The folder, new or with what is already there verified, and the pictures that it is to hold."""
    name = _name(source)
    n_code_bytes = -(-n_bits // 8)
    folder = CodesFolder.create(
        out,
        n_bits=n_bits,
        model=model,
        shard_size=shard_size,
        pictures=listing.table,
        source=name,
        part=part,
        skipped=listing.skipped if part[0] == 1 else [],  # once is enough
    )
    damaged = folder.damaged()
    pictures = _pictures(folder, listing, [shard for shard, _ in damaged], progress)
    for shard, damage in damaged:
        progress.say(f"{shard.name} is damaged ({damage}): made again, {shard.n:,} pictures")
    missing = folder.missing()
    n = folder.n_listed if missing else len(folder) + folder.n_skipped
    new = "new " if missing and folder.first_shard else ""
    progress.say(f"encode  {n:,} {new}pictures of {name} → {out}/   {n_bits} bits, {n_code_bytes} bytes each")
    if folder.shards:
        progress.say(
            f"resume  {len(folder.shards):,} shards found and verified, {len(missing):,} to go: {len(folder):,} codes"
        )
    if missing:
        each = n_code_bytes + 16 + pictures.nbytes / len(pictures)
        n_bytes = min(len(missing) * shard_size, len(pictures)) * each + len(missing) * A_SHARD
        require_room(out, int(n_bytes), "the codes")
    return folder, pictures


def _pictures(folder: CodesFolder, listing: Listing, damaged: list[Shard], progress: Progress) -> pa.Table:
    """The list of the folder without its damaged shards.

    It is that which was begun or, when that is done or gone, all that has no code yet.
    """
    given = listing.table
    same = not folder.changed(given)
    begun_with = given if same else folder.pictures()
    of_list = all(shard.number >= folder.first_shard for shard in damaged)
    if folder.part != (1, 1) or listing.images is not None:  # the other parts must have the same list
        if not same:
            progress.say(
                f"note: the pictures of {folder.source} are not those that {folder.path} was begun with, which are"
                " encoded; encode new ones into another folder, with --out"
            )
        folder.drop(damaged)
        if folder.missing() and begun_with is None:
            raise folder.list_is_gone()
        return given if begun_with is None else begun_with
    mended = folder.done and not damaged and folder.n_skipped > 0 and folder.lacks(given).any()
    if same and of_list and not mended:
        folder.drop(damaged)
        return given
    # where a tar file was, anything may be now; a list without a name may be another one
    loose = folder.source in ("-", A_LIST) or "offset" in given.column_names
    if not folder.done and begun_with is not None and loose and not _has_all(given, begun_with):
        raise MismatchError(
            f"{folder.path} was begun with another list of pictures; give the same, or choose another --out"
        )
    if not folder.done and begun_with is not None and of_list:
        folder.drop(damaged)
        n_new = int((folder.lacks(given) & ~is_among(given["path"], [begun_with["path"]])).sum())
        if n_new:
            progress.say(
                f"note: {n_new:,} pictures came after {folder.path} was begun; when this is done, the same command"
                " encodes them"
            )
        return begun_with
    _require_pictures(damaged, given, folder)
    whole = [shard for shard in folder.shards if shard not in damaged]
    new = given.filter(pa.array(folder.lacks(given, whole)))
    n_gone = sum(shard.n for shard in whole) - is_among(given["path"], [shard.paths() for shard in whole]).sum()
    if n_gone > 0:
        progress.say(f"note: {n_gone:,} pictures of {folder.path} are no longer in {folder.source}; their codes stay")
    if len(new) or damaged or not folder.done:
        folder.grow(new, listing.skipped, without=damaged)
    return new


def _require_pictures(damaged: list[Shard], given: pa.Table, folder: CodesFolder) -> None:
    """Refuse to drop codes that could not be made again."""
    for shard in damaged:
        try:
            paths = shard.paths()
        except DataError:  # nobody knows what they were
            continue
        if lost := int((~is_among(paths, [given["path"]])).sum()):
            raise DataError(
                f"{shard.name} in {folder.path} is damaged, and {lost:,} of its {shard.n:,} pictures are not in"
                f" {folder.source} any more; give a source that has them, or choose another --out"
            )


def _has_all(given: pa.Table, wanted: pa.Table) -> bool:
    """Whether these pictures are all there, in the same places of the same tar files."""
    columns = [name for name in ("path", "offset", "size") if name in wanted.column_names]
    rows = set(zip(*(given[name].to_pylist() for name in columns), strict=True))
    return rows.issuperset(zip(*(wanted[name].to_pylist() for name in columns), strict=True))


def write_shard(
    folder: CodesFolder,
    number: int,
    codes: Codes,
    good: np.ndarray,
    items: pa.Table,
    skipped: list[tuple[str, str]],
    progress: Progress,
) -> None:
    """Add the good ones of a shard's codes to the folder."""
    n_safe = len(folder.shards)
    try:
        folder.append(codes[good], items, skipped, number)
    except StorageError as error:
        raise StorageError(f"{error.message} ({n_safe:,} shards are complete and safe)") from error
    if skipped:
        path, why = skipped[0]
        progress.say(f"shard {number}: {len(skipped):,} pictures skipped, first {path} ({why})")


def finish(folder: CodesFolder) -> dict[str, Any]:
    """Say that all is done, and what there is."""
    if folder.shards and not len(folder):
        path, why = folder.skipped()[-1]
        folder.abandon()  # once the pictures are mended, the same command reads them
        raise DataError(
            f"no picture of {folder.source} can be read ({folder.n_skipped:,} looked at, last {path}: {why});"
            f" see {folder.path / 'skipped.csv'}"
        )
    folder.finish()
    return {"n": len(folder), "n_bits": folder.n_bits, "n_skipped": folder.n_skipped, "out": str(folder.path)}


class _Watch:
    """Counts the pictures of a shard that have been read, from several threads, and stops the work when asked to."""

    def __init__(self, n: int, advance: Callable[[int], None], stop: Callable[[], bool], folder: CodesFolder):
        self._n, self._left = n, n
        self._advance, self._stop, self._folder = advance, stop, folder
        self._lock = Lock()
        self._start = time.monotonic()

    def __call__(self, n: int) -> None:
        with self._lock:
            self._left -= n
            self._advance(n)
            seconds_each = (time.monotonic() - self._start) / (self._n - self._left)
            if self._stop() and self._left * seconds_each > FINISH_SECONDS:
                raise _stopped(self._folder)


def _stopped(folder: CodesFolder) -> Stopped:
    return Stopped(
        f"stopped; {len(folder.shards):,} shards are complete in {folder.path}/, the same command goes on with the next"
    )


def encode_function(encoder: Encoder) -> Callable[[Images], Codes]:
    """What makes the codes of a shard's pictures.

    A method on fixed features would keep those in the cache, a thousand times the size of the codes: here they are used
    as they come and forgotten.
    """
    if not getattr(encoder, "takes_pictures_", False):
        return encoder.encode
    from hashlens.hashers.base import Hasher

    hasher: Any = encoder
    features = _feature_function(hasher.features)

    def encode(images: Images) -> Codes:
        codes, waiting, n = [], [], 0
        for batch in features(images):
            waiting.append(batch)
            n += len(batch)
            if n == len(images) or sum(map(len, waiting)) >= PROJECTED:
                codes.append(Codes.from_relaxed(Hasher.project(hasher, np.concatenate(waiting))))
                waiting = []
        return Codes.concatenate(codes)

    return encode


def _feature_function(kind: str) -> Callable[[Images], Iterator[np.ndarray]]:
    """Batches of features, the same numbers as those of `features.picture_features`."""
    from hashlens.features import GIST

    if kind == GIST:
        from threadpoolctl import threadpool_limits

        from hashlens.features.gist import BATCH, SIZE, describe

        def gist(images: Images) -> Iterator[np.ndarray]:
            with threadpool_limits(1, user_api="blas"):  # each core multiplies matrices of its own batch
                yield from work_ahead(
                    lambda rows: describe(images.read(np.arange(rows.start, rows.stop), SIZE)),
                    blocks(len(images), BATCH),
                )

        return gist
    from hashlens.features.deep import feature_network, forward_all
    from hashlens.networks.inference import choose_device, choose_precision

    device = choose_device()
    precision = choose_precision(device=device)
    module, size = feature_network(kind)

    def features(images: Images) -> Iterator[np.ndarray]:
        for _, outputs in forward_all(module, images, size, device=device, precision=precision):
            yield outputs.astype(np.float16).astype(np.float32)  # what the cache would have kept

    return features


def mirrors(encoder: Any) -> bool:
    """Whether the codes are those of a picture and its mirror image together."""
    own = getattr(encoder, "mirror", None)  # of an exported model
    return bool(getattr(getattr(encoder, "training", None), "mirror", False)) if own is None else own


def identify(encoder: Any, folder: Path | None) -> dict[str, str]:
    """Fingerprint and name of a model; an exported one passes for the model that it came from."""
    if isinstance(known := getattr(encoder, "model", None), dict):
        return known
    if folder is not None:
        return describe_model(folder)
    with tempfile.TemporaryDirectory() as temporary:
        encoder.save(temporary)
        return describe_model(temporary) | {"name": f"{encoder.name}-{encoder.n_bits}"}


def _name(source: str | Sequence[str]) -> str:
    return source if isinstance(source, str) else A_LIST
