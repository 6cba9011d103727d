"""The codes folder: codes and the list of their images in, shards on disk out, each complete or absent.

codes/
  manifest.json                  n_bits, the model, every shard with its rows and checksums, and whether all is done;
                                 it has a checksum itself, and no file is used before it was compared with its own
  list.parquet                   all images to encode, in order; it only grows
  shard-000000000.codes.npy      uint8 (n, ceil(n_bits / 8)), bits in the order of np.packbits
  shard-000000000.second.npy     the second codes in the same form, if the model makes these
  shard-000000000.items.parquet  path, labels (where there are any), size, mtime in nanoseconds and hash of the content
                                 (of files); row i is that of code i
  skipped.csv                    images that have no code, each with its reason

A shard is a range of rows of the list, named by the first row. Files count only if the manifest names them. It is
replaced after the files of a shard have reached the disk, so a power failure leaves complete shards and perhaps stray
files, which are removed when the folder is next opened for writing. The same images and model make the same files, byte
for byte, however often the work was interrupted.

Part i/n is a folder with every n-th shard of the list, made independently; `open_together` puts the shards in order.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hashlens.addresses import Place, is_address, place
from hashlens.checksums import damaged, read_sealed, write_sealed
from hashlens.codes import MANIFEST, RUN_CODES, Codes
from hashlens.codes.model import MODEL, ModelFolder
from hashlens.errors import DataError, DownloadError, HashlensError, MismatchError, StorageError, UsageError
from hashlens.files import replacing, require_own, storage_errors, sync, why_not, write_csv
from hashlens.machine import blocks
from hashlens.schema import SHA256, TEXT, conform, load_array, load_table, optional, whole

STAMPS = ("size", "mtime", "hash")
FORMAT, BEFORE = "hashlens codes folder 3", "hashlens codes folder 2"
SHARD_SIZE = 65_536  # images: minutes of work, some hundred kilobytes of codes
LIST, SKIPPED = "list.parquet", "skipped.csv"
REPLACEABLE = re.compile(
    r"shard-\d{9,}\.((codes|second)\.npy|items\.parquet)|\..+\.tmp"
)  # leftovers, unless the manifest names them
ANOTHER = "choose another --out"
AGAIN = "rerun the same hashlens encode command to make it again"
ROWS = whole(0, 2**40)
SCHEMA: dict[Any, Any] = {
    "format": FORMAT,
    "n_bits": whole(1, 65_536),
    optional("second_bits"): whole(1, 65_536),  # absent without second codes
    "model": MODEL,
    "shard_size": whole(1, 2**31 - 1),
    "source": (None, TEXT, [TEXT]),
    "part": [whole(1), whole(1)],
    "list": {"n": ROWS, "columns": [TEXT], "sha256": (SHA256, ""), "files": [SHA256]},
    "done": bool,
    "shards": [
        {
            "start": ROWS,
            "stop": ROWS,
            "n": ROWS,
            "codes_sha256": SHA256,
            "items_sha256": SHA256,
            optional("second_sha256"): SHA256,
        }
    ],
}

Skipped = Iterable[tuple[str, str]]  # path and reason


@dataclass(frozen=True)
class Shard:
    """The codes of a range of rows of the list, without unreadable images."""

    folder: Place
    n_bits: int
    second_bits: int  # 0 without second codes
    start: int
    stop: int
    n: int
    codes_sha256: str
    items_sha256: str
    second_sha256: str = ""

    @property
    def name(self) -> str:
        return f"shard-{self.start:09d}"

    @property
    def files(self) -> dict[Place, str]:
        """Its files and their checksums: codes, items and, if any, second codes."""
        kinds = {"codes.npy": self.codes_sha256, "items.parquet": self.items_sha256}
        if self.second_bits:
            kinds["second.npy"] = self.second_sha256
        return {self.folder / f"{self.name}.{kind}": expected for kind, expected in kinds.items()}

    def load(self) -> tuple[Codes, pa.Table]:
        """The codes and the table of their images, after all were compared with their checksums."""
        codes_of, items_of, *second_of = [self._content(path) for path in self.files]
        try:
            lengths = (self.n_bits, self.second_bits)
            codes, *second = (
                Codes(load_array(io.BytesIO(content)), n_bits)
                for content, n_bits in zip((codes_of, *second_of), lengths, strict=False)
            )
            codes = replace(codes, second=second[0]) if second else codes
            items = load_table(pa.BufferReader(items_of))
            if not len(codes) == len(items) == self.n:
                raise ValueError(f"{len(codes):,} codes and {len(items):,} images instead of {self.n:,}")
            if _items(items).schema != items.schema or items["path"].null_count:
                raise ValueError("it has other columns")
        except (KeyError, ValueError, pa.ArrowException, HashlensError) as error:
            raise damaged(self.folder / self.name, " ".join(str(error).split())[:200], AGAIN) from error
        return codes, items

    def _content(self, path: Place) -> bytes:
        """The bytes of one of its files, verified by their checksum."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise damaged(path, f"it cannot be read: {why_not(error)}", AGAIN) from error
        if hashlib.sha256(content).hexdigest() != self.files[path]:
            raise damaged(path, "it has changed since it was written", AGAIN)
        return content

    def damage(self) -> str | None:
        """What is wrong with its files, by their checksums."""
        try:
            for path in self.files:
                self._content(path)
        except DataError as error:
            return error.message.removesuffix(f"; {AGAIN}")
        return None


class CodesFolder:
    """Codes and their images, shard by shard, in the order of the list.

    >>> folder = CodesFolder.open("codes")
    >>> for codes, items in folder:
    ...     print(len(codes), items["path"][0])
    """

    def __init__(self, path: Place, manifest: dict[str, Any]):
        self.path = path
        self.n_bits: int = manifest["n_bits"]
        self.second_bits: int = manifest.get("second_bits", 0)
        self.model: dict[str, str] = manifest["model"]  # fingerprint and name
        self.shard_size: int = manifest["shard_size"]
        self.source: str | None = manifest["source"]
        self.part: tuple[int, int] = tuple(manifest["part"])
        self.list: dict[str, Any] = manifest["list"]  # n, columns, their sha256, and that of files that may have them
        self.done: bool = manifest["done"]
        self.shards = [Shard(path, self.n_bits, self.second_bits, **shard) for shard in manifest["shards"]]
        self._listed: pa.Table | None = None

    @staticmethod
    def at(path: Place | str) -> Place | None:
        """The place of the codes in a codes folder or a run; None if it has none."""
        folder = place(path)
        return next((one for one in (folder, folder / RUN_CODES) if (one / MANIFEST).is_file()), None)

    @classmethod
    def open(cls, path: Place | str) -> CodesFolder:
        """The codes in a folder or a run, for reading."""
        path = cls.at(path) or place(path)
        file = path / MANIFEST
        try:
            return cls(path, _read_manifest(file))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(
                f"{path} has no codes ({MANIFEST} is missing); pass a folder made by hashlens encode or train"
            ) from error
        except HashlensError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(file, error, "encode into another folder") from error

    @classmethod
    def create(
        cls,
        path: Place | str,
        *,
        n_bits: int,
        second_bits: int = 0,
        model: dict[str, str],
        shard_size: int = SHARD_SIZE,
        source: str | None = None,
        part: tuple[int, int] = (1, 1),
    ) -> CodesFolder:
        """A folder for writing: a new one, or one begun with the same model, bits, source and part."""
        path = place(path)
        if (path / MANIFEST).exists():
            folder = cls.open(path)
            ModelFolder.require_same(folder.model, model, path)
            for what, found, given in (
                ("the source", folder.source, source),
                ("--shard-size", folder.shard_size, shard_size),
                ("--part", "{}/{}".format(*folder.part), "{}/{}".format(*part)),
            ):
                if given != found:
                    raise MismatchError(f"{path} was started with {what} {found}, not {given}; {ANOTHER}")
            folder._clean()
            return folder
        require_own(path, [SKIPPED], "codes")  # the first file to be written and the last to be removed
        manifest: dict[str, Any] = {"n_bits": n_bits, "second_bits": second_bits, "model": model, "source": source}
        manifest |= {"shard_size": shard_size, "part": part, "done": False, "shards": []}
        folder = cls(path, manifest | {"list": {"n": 0, "columns": [], "sha256": "", "files": []}})
        write_csv(path / SKIPPED, ("path", "reason"), ())
        folder._clean()
        folder._commit()
        return folder

    def __len__(self) -> int:
        return sum(shard.n for shard in self.shards)

    def __iter__(self) -> Iterator[tuple[Codes, pa.Table]]:
        return (shard.load() for shard in self.shards)

    def concatenated(self) -> tuple[Codes, pa.Table]:
        """All codes and all their images at once, for a folder that fits in memory."""
        codes, items = zip(*self, strict=True)
        return Codes.concatenate(codes), pa.concat_tables(items, promote_options="default")

    def skipped(self) -> list[tuple[str, str]]:
        """Images that have no code, each with its reason, sorted."""
        try:
            text = (self.path / SKIPPED).read_bytes().decode("utf-8", "replace")
            return [(row[0], row[1]) for row in list(csv.reader(io.StringIO(text, newline="")))[1:] if len(row) == 2]
        except FileNotFoundError:
            return []
        except (OSError, csv.Error) as error:
            raise damaged(self.path / SKIPPED, error, "delete it; its images are tried again") from error

    def damaged(self) -> list[tuple[Shard, str]]:
        """Shards whose files have changed since they were written, each with a description of the damage."""
        found = [(shard, shard.damage()) for shard in self.shards]
        return [(shard, damage) for shard, damage in found if damage]

    def listed(self) -> pa.Table:
        """All images to encode."""
        if self._listed is None:
            try:
                content = (self.path / LIST).read_bytes()
                if hashlib.sha256(content).hexdigest() not in self.list["files"]:
                    raise ValueError("it has changed since it was written")
                table = load_table(pa.BufferReader(content)).slice(0, self.list["n"])
                table = table.select(self.list["columns"])
                if content_hash(table) != self.list["sha256"]:
                    raise ValueError("it has changed since it was written")
            except (OSError, KeyError, ValueError, pa.ArrowException) as error:
                raise damaged(self.path / LIST, error, ANOTHER) from error
            self._listed = table
        return self._listed

    def extend(self, given: pa.Table, skipped: Skipped = ()) -> int:
        """Add the images of `given` that are not listed yet, or were unreadable and have changed since.

        Returns how many rows were added.
        """
        new = given
        if self.list["n"]:
            if content_hash(given) == self.list["sha256"]:
                self._listed = given
            listed = self.listed()
            _require_same_places(listed, given, self.path)
            known = pc.is_in(given["path"], value_set=listed["path"].combine_chunks())
            again = pc.is_in(given["path"], value_set=pa.array(self._repaired(), pa.string()))
            new = given.filter(pc.or_(pc.invert(known), again))
            given = pa.concat_tables([listed, new], promote_options="default")
        self._skip((), skipped)
        if len(new) or not (self.path / LIST).exists():
            self._write_list(given)
        return len(new)

    def _write_list(self, table: pa.Table) -> None:
        table = table.combine_chunks().replace_schema_metadata(None)
        content = parquet(table)
        digest = hashlib.sha256(content).hexdigest()
        self.list["files"] += [digest]  # the list only grows: either file has the rows that the manifest names
        self._commit()
        _write(self.path / LIST, content)
        facts = {"n": len(table), "columns": table.column_names, "sha256": content_hash(table), "files": [digest]}
        self._listed, self.list, self.done = table, facts, False
        self._commit()

    def _repaired(self) -> list[str]:
        """Images that were unreadable when their shard was made, but whose files have changed since."""
        if not (skipped := self.skipped()):
            return []
        waiting = {path for rows in self.missing() for path in self.listed()["path"][rows].to_pylist()}
        written = (self.path / SKIPPED).stat().st_mtime_ns
        return [path for path, _ in skipped if path not in waiting and _changed_at(path) > written]

    def missing(self) -> list[slice]:
        """Ranges of rows that still need a shard."""
        i, n_parts = self.part
        found, end = [], 0
        for start, stop in [*((shard.start, shard.stop) for shard in self.shards), (self.list["n"], 0)]:
            found += [slice(end + rows.start, end + rows.stop) for rows in blocks(start - end, self.shard_size)]
            end = stop
        return [rows for rows in found if rows.start // self.shard_size % n_parts == i - 1]

    def append(self, rows: slice, codes: Codes, items: pa.Table, skipped: Skipped = ()) -> None:
        """Add the shard of these rows: codes and images of the readable ones, and the `skipped` others."""
        if len(items) != len(codes):
            raise DataError(f"{len(codes):,} codes and {len(items):,} images do not match; give one row per code")
        if codes.second_bits != self.second_bits:
            raise MismatchError(
                f"{self.path} has second codes of {self.second_bits} bits, these of {codes.second_bits}; {ANOTHER}"
            )
        shard = Shard(self.path, self.n_bits, self.second_bits, rows.start, rows.stop, len(codes), "", "")
        contents = [_npy(codes), parquet(_items(items)), *([_npy(codes.second)] if codes.second is not None else [])]
        digests = [_write(path, content) for path, content in zip(shard.files, contents, strict=True)]
        codes_sha256, items_sha256, *second = digests
        shard = replace(shard, codes_sha256=codes_sha256, items_sha256=items_sha256, second_sha256="".join(second))
        self._skip(items["path"].to_pylist(), skipped)
        self.shards = sorted([*self.shards, shard], key=lambda shard: shard.start)
        self._commit()

    def drop(self, shards: Iterable[Shard]) -> None:
        """Forget shards, to make them again."""
        if dropped := set(shards):
            self.shards = [shard for shard in self.shards if shard not in dropped]
            self.done = False
            self._commit()

    def finish(self) -> None:
        """Mark the folder as complete."""
        if not self.done:
            self.done = True
            self._commit()

    def _skip(self, read: Sequence[str], skipped: Skipped) -> None:
        """Update skipped.csv: remove images that were read, add `skipped` ones."""
        before, good = dict(self.skipped()), set(read)
        now = {path: why for path, why in before.items() if path not in good} | dict(skipped)
        if now != before:
            write_csv(self.path / SKIPPED, ("path", "reason"), sorted(now.items()))

    def _commit(self) -> None:
        names = ("n_bits", "model", "shard_size", "source", "part", "list", "done")
        of_shard: tuple[str, ...] = ("start", "stop", "n", "codes_sha256", "items_sha256")
        manifest = {"format": FORMAT, **{name: getattr(self, name) for name in names}}
        if self.second_bits:
            manifest["second_bits"], of_shard = self.second_bits, (*of_shard, "second_sha256")
        manifest["shards"] = [{name: getattr(shard, name) for name in of_shard} for shard in self.shards]
        sync(self.path)  # file names must reach the disk before the manifest that lists them
        write_sealed(self.path / MANIFEST, manifest)
        sync(self.path)

    def _clean(self) -> None:
        """Remove files left behind by a process that was killed."""
        named = {file.name for shard in self.shards for file in shard.files}
        with storage_errors(self.path):
            for entry in self.path.iterdir():
                if REPLACEABLE.fullmatch(entry.name) and entry.name not in named:
                    entry.unlink(missing_ok=True)


def _read_manifest(file: Place) -> dict[str, Any]:
    manifest = read_sealed(file)
    if manifest.get("format") == BEFORE:  # the current format only adds checksums of the manifest and the list
        content = (file.parent / LIST).read_bytes() if (file.parent / LIST).exists() else b""
        conform(manifest.get("list"), dict, "list")
        listed = manifest["list"] | {"files": [hashlib.sha256(content).hexdigest()]}
        manifest |= {"format": FORMAT, "list": listed}
        conform(manifest, SCHEMA, "it")
        with suppress(StorageError):
            write_sealed(file, manifest)
    elif conform(manifest.get("format"), TEXT, "format") != FORMAT:
        found = str(manifest.get("format"))[:60]
        raise MismatchError(f"{file} has the format {found!r}, not {FORMAT!r}; encode into another folder")
    conform(manifest, SCHEMA, "it")
    shards = manifest["shards"]
    ends = [0, *(shard["stop"] for shard in shards)]
    if any(end > shard["start"] or shard["start"] + shard["n"] > shard["stop"] for end, shard in zip(ends, shards)):  # noqa: B905
        raise ValueError("its shards overlap")
    if any(("second_sha256" in shard) != ("second_bits" in manifest) for shard in shards):
        raise ValueError("some of its shards have second codes")
    if manifest["part"][0] > manifest["part"][1]:
        raise ValueError(f"part is {manifest['part']}")
    return manifest


def write_codes(path: Path, codes: Codes, items: pa.Table, model: dict[str, str], source: str | None = None) -> None:
    """Write codes from memory as a finished codes folder, replacing an existing one."""
    (path / MANIFEST).unlink(missing_ok=True)
    n_bits, second_bits = codes.n_bits, codes.second_bits
    folder = CodesFolder.create(path, n_bits=n_bits, second_bits=second_bits, model=model, source=source)
    folder.extend(items)
    folder.append(slice(0, len(codes)), codes, items)
    folder.finish()


def open_together(paths: Sequence[Place | str]) -> list[CodesFolder]:
    """Finished codes folders of one model, to be read together; a folder of parts (part-1-of-3, …) means all."""
    if not paths:
        raise UsageError("no codes folder given; name at least one")
    opened = []
    for path in map(place, paths):
        parts: list[Any] = [] if CodesFolder.at(path) else list(path.glob("part-*-of-*"))
        found = [CodesFolder.open(part) for part in parts] or [CodesFolder.open(path)]
        opened += sorted(found, key=lambda folder: folder.part)
    for folder in opened:
        ModelFolder.require_same(opened[0].model, folder.model, opened[0].path)
    for folder in opened:
        _require_complete(folder, opened)
    return opened


def _require_complete(folder: CodesFolder, opened: Sequence[CodesFolder]) -> None:
    """Refuse a folder that is not fully encoded, and a part of a list without the others."""
    if not folder.done:
        raise DataError(
            f"{folder.path} is not finished, {len(folder.missing()):,} shards are missing; rerun the same hashlens"
            " encode command to resume"
        )
    i, n_parts = folder.part
    alike = [other for other in opened if other.part[1] == n_parts and other.source == folder.source]
    if n_parts > 1 and len({other.list["sha256"] for other in alike}) > 1:
        raise MismatchError(
            f"the parts of {folder.source} were made from different lists of images; encode all of them again"
        )
    if lacking := sorted(set(range(1, n_parts + 1)) - {other.part[0] for other in alike}):
        raise DataError(
            f"{folder.path} is part {i}/{n_parts} of {folder.source}, and part {lacking[0]}/{n_parts} is missing;"
            " pass all parts together"
        )


def shards_in_order(folders: Sequence[CodesFolder]) -> list[Shard]:
    """The shards of all folders, one folder after the other, except that parts of one list are merged in its order."""
    lists: dict[Any, list[Shard]] = {}
    for folder in folders:
        whole = folder.part == (1, 1)
        key = folder.path if whole else (folder.list["sha256"], folder.shard_size, folder.part[1])
        lists.setdefault(key, []).extend(folder.shards)
    return [shard for shards in lists.values() for shard in sorted(shards, key=lambda shard: shard.start)]


def content_hash(table: pa.Table) -> str:
    """sha256 of names and values: unlike the hash of a file, it does not depend on the library that wrote it."""
    digest = hashlib.sha256(json.dumps(table.column_names).encode())
    for rows in blocks(len(table), SHARD_SIZE):
        for column in table.slice(rows.start, rows.stop - rows.start).columns:
            digest.update(json.dumps(column.to_pylist()).encode())
    return digest.hexdigest()


def parquet(table: pa.Table) -> bytes:
    """The contents of a Parquet file; equal tables give equal bytes, however they were built."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks().replace_schema_metadata(None), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _npy(codes: Codes) -> bytes:
    """The contents of a .npy file."""
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(codes.packed))
    return file.getvalue()


def _write(path: Place, content: bytes) -> str:
    """Write a file atomically; returns its checksum."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def _require_same_places(listed: pa.Table, given: pa.Table, where: Place) -> None:
    """Refuse a tar file that has been rewritten: its images may no longer be at the recorded offsets."""
    if "offset" not in listed.column_names or "offset" not in given.column_names:
        return
    found = pc.index_in(listed["path"], value_set=given["path"].combine_chunks())
    for name in ("offset", "size"):
        now = given[name].take(found)
        if not pc.all(pc.fill_null(pc.equal(now, listed[name]), True)).as_py():
            raise MismatchError(f"a tar file has changed since {where} was started; {ANOTHER}")


def _changed_at(path: str) -> int:
    try:
        rounded = 10**9 if is_address(path) else 0  # a store may drop fractions of a second
        return place(path).stat().st_ctime_ns + rounded
    except (OSError, ValueError, DownloadError):
        return 0


def _items(table: pa.Table) -> pa.Table:
    """The columns of a shard in their order and types; unknown sizes and times are null."""
    types = {"path": pa.string(), "labels": pa.list_(pa.string())} | dict.fromkeys(STAMPS, pa.int64())
    columns = {name: table[name].cast(kind) for name, kind in types.items() if name in table.column_names}
    for name in STAMPS[:2]:
        columns.setdefault(name, pa.nulls(len(table), types[name]))
    return pa.table({name: columns[name] for name in types if name in columns})
