"""The codes folder: codes and the list of their pictures in, shards on disk out, each whole or not there at all.

codes/
  manifest.json               n_bits, the model, every shard with its checksums, and whether all is done
  shard-00000.codes.npy       uint8 (n, ceil(n_bits / 8)), bits in the order of np.packbits
  shard-00000.items.parquet   path, labels (where there are any), size, mtime in nanoseconds; row i is that of code i
  skipped.csv                 pictures that have no code, each with its reason
  list.parquet                all pictures that are to be encoded, in their order; there until that is done

Only what the manifest names counts. It is replaced after the files of a shard have reached the disk, so that whenever
the power fails there are whole shards and, perhaps, files that are removed when the folder is next opened for writing.
The same pictures and model make the same files, byte for byte, however often the work was interrupted. A folder that is
done can take more pictures: they are a new list, whose shards come after those that are there. So are pictures of a
damaged shard whose list is gone.

Part i/n of a list is a folder with those of its shards whose number leaves i - 1 when divided by n. Parts are made
without knowing of each other; `open_together` puts their shards in order again.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from hashlens.codes import Codes
from hashlens.errors import DataError, HashlensError, MismatchError, UsageError
from hashlens.files import replacing, sha256, storage_errors, sync, write_csv, write_json
from hashlens.threads import blocks

FORMAT = "hashlens codes folder 1"
SHARD_SIZE = 65_536  # pictures: minutes of work, some hundred kilobytes of codes

MANIFEST, LIST, SKIPPED = "manifest.json", "list.parquet", "skipped.csv"
SHARD_FILE = re.compile(r"(shard-\d{5,})\.(codes\.npy|items\.parquet)")
TEMPORARY = re.compile(r"\..+\.tmp")

Skipped = Sequence[tuple[str, str]]  # path and reason


@dataclass(frozen=True)
class Shard:
    """Some codes of a folder and their pictures."""

    folder: Path
    n_bits: int
    name: str
    n: int
    codes_sha256: str
    items_sha256: str

    @property
    def number(self) -> int:
        return int(self.name.removeprefix("shard-"))

    @property
    def files(self) -> tuple[Path, Path]:
        return self.folder / f"{self.name}.codes.npy", self.folder / f"{self.name}.items.parquet"

    def load(self) -> tuple[Codes, pa.Table]:
        """The codes, mapped from their file, and the table of their pictures."""
        try:
            codes = Codes(np.load(self.files[0], mmap_mode="r" if self.n else None), self.n_bits)
            items = pq.read_table(self.files[1])
            if not len(codes) == len(items) == self.n:
                raise ValueError(f"{len(codes):,} codes and {len(items):,} pictures instead of {self.n:,}")
        except (OSError, ValueError, EOFError, pa.ArrowException, HashlensError) as error:
            raise self._damaged(str(error)) from error
        return codes, items

    def paths(self) -> pa.ChunkedArray:
        """The paths of its pictures."""
        try:
            return pq.read_table(self.files[1], columns=["path"])["path"]
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(str(error)) from error

    def require_whole(self) -> None:
        """Refuse a shard whose files are not as they were written."""
        if damage := self.damage():
            raise self._damaged(damage)

    def _damaged(self, why: str) -> DataError:
        return DataError(
            f"{self.name} in {self.folder} is damaged ({why}); run the same hashlens encode command again, which makes"
            " it anew"
        )

    def damage(self) -> str | None:
        """What is wrong with its files, by their checksums."""
        for path, expected in zip(self.files, (self.codes_sha256, self.items_sha256), strict=True):
            try:
                if sha256(path) != expected:
                    return f"{path.name} is not as it was written"
            except OSError as error:
                return f"{path.name} cannot be read: {error.strerror}"
        return None


class CodesFolder:
    """Codes and their pictures, shard by shard, in the order of the pictures.

    >>> folder = CodesFolder.open("codes")
    >>> for codes, items in folder:
    ...     print(len(codes), items["path"][0])
    """

    def __init__(self, path: Path, manifest: dict[str, Any]):
        self.path = path
        self.n_bits: int = manifest["n_bits"]
        self.model: dict[str, str] = manifest["model"]  # fingerprint and name
        self.shard_size: int = manifest["shard_size"]
        self.source: str | None = manifest["source"]
        self.part: tuple[int, int] = tuple(manifest["part"])
        self.list: dict[str, Any] | None = manifest["list"]  # n, sha256, first_shard; None if shards come as they may
        self.n_skipped: int = manifest["skipped"]["n"]
        self.done: bool = manifest["done"]
        self.shards = [Shard(path, self.n_bits, **shard) for shard in manifest["shards"]]
        self._skipped_size: int = manifest["skipped"]["size"]
        self._dropped: bool = manifest.get("dropped", False)  # whether pictures that were here are tried again

    @classmethod
    def open(cls, path: Path | str) -> CodesFolder:
        """A folder to read from."""
        path = Path(path)
        file = path / MANIFEST
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DataError(
                f"there are no codes in {path} ({MANIFEST} is missing); give a folder made by encode"
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(f"{file} cannot be read ({error}); encode again into another folder") from error
        found = manifest.get("format") if isinstance(manifest, dict) else None
        if found != FORMAT:
            raise MismatchError(f"{file} is of the format {found!r}, not {FORMAT!r}; encode again into another folder")
        try:
            return cls(path, manifest)
        except (KeyError, TypeError) as error:
            raise DataError(f"{file} is damaged ({error}); encode again into another folder") from error

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        n_bits: int,
        model: dict[str, str],
        shard_size: int = SHARD_SIZE,
        pictures: pa.Table | None = None,
        source: str | None = None,
        part: tuple[int, int] = (1, 1),
        skipped: Skipped = (),
    ) -> CodesFolder:
        """A folder to write to: a new one, or one that was begun with the same model, bits, source and part.

        `pictures` is the list that its shards are to cover, `skipped` what is known not to be a picture. A folder that
        was begun keeps the list that it was begun with: see `changed` and `pictures`.
        """
        path = Path(path)
        content = listed = None
        if pictures is not None:
            content = parquet(pictures)
            listed = _describe_list(pictures, 0)
        if (path / MANIFEST).exists():
            folder = cls.open(path)
            folder._require_same(n_bits, model, shard_size, source, part)
            folder._clean()
            if content is not None and listed == folder.list and not folder.done:
                _write(path / LIST, content)
            return folder
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            foreign = sorted(entry.name for entry in path.iterdir() if not _is_ours(entry.name))
        if foreign:
            raise UsageError(f"{path} holds other things ({foreign[0]}) and no codes; choose another --out")
        manifest = {"n_bits": n_bits, "model": model, "shard_size": shard_size, "source": source, "part": part}
        folder = cls(path, manifest | {"list": listed, "skipped": {"n": 0, "size": 0}, "done": False, "shards": []})
        folder._clean()
        if content is not None:
            _write(path / LIST, content)
        folder._skip(skipped)
        folder._commit()
        return folder

    def __len__(self) -> int:
        return sum(shard.n for shard in self.shards)

    def __iter__(self) -> Iterator[tuple[Codes, pa.Table]]:
        return (shard.load() for shard in self.shards)

    @property
    def n_listed(self) -> int:
        """How many pictures are on the list that the folder (with the other parts) is to cover."""
        return 0 if self.list is None else self.list["n"]

    def concatenated(self) -> tuple[Codes, pa.Table]:
        """All codes and all their pictures at once, for a folder that fits in memory."""
        return concatenate(self.shards, self.n_bits)

    def skipped(self) -> list[tuple[str, str]]:
        try:
            content = (self.path / SKIPPED).read_bytes()[: self._skipped_size]  # the rest does not count (yet)
        except FileNotFoundError:
            return []
        rows = csv.reader(io.StringIO(content.decode(errors="replace"), newline=""))
        return [(row[0], row[1]) for row in list(rows)[1:] if len(row) == 2]

    def damaged(self) -> list[tuple[Shard, str]]:
        """Shards whose files are not as they were written, each with what is wrong."""
        found = [(shard, shard.damage()) for shard in self.shards]
        return [(shard, damage) for shard, damage in found if damage]

    def verify(self) -> None:
        """Read every file and compare its checksum."""
        if damaged := self.damaged():
            shard, damage = damaged[0]
            others = f" and {len(damaged) - 1:,} more are" if len(damaged) > 1 else " is"
            raise DataError(
                f"{shard.name}{others} damaged in {self.path} ({damage}); run the same hashlens encode command again,"
                " which makes damaged shards anew"
            )

    def changed(self, given: pa.Table) -> bool:
        """Whether these are not the pictures that the folder was begun with."""
        return self.list is None or content_hash(given) != self.list["sha256"]

    def pictures(self) -> pa.Table | None:
        """The list that the folder was begun with, if it is still there."""
        with suppress(OSError, pa.ArrowException):
            table = pq.read_table(pa.BufferReader((self.path / LIST).read_bytes()))
            if not self.changed(table):
                return table
        return None

    def list_is_gone(self) -> DataError:
        return DataError(
            f"the pictures of {self.source} are not those that {self.path} was begun with, and the list of those is"
            f" gone; {ANOTHER}"
        )

    @property
    def first_shard(self) -> int:
        """The number of the shard that the list begins with: not 0 if the folder was done before and took more."""
        return 0 if self.list is None else self.list.get("first_shard", 0)

    def missing(self) -> list[int]:
        """Numbers of the shards that this part of the list still needs."""
        i, n_parts = self.part
        there = {shard.number for shard in self.shards}
        end = self.first_shard - (-self.n_listed // self.shard_size)
        return [number for number in range(self.first_shard + i - 1, end, n_parts) if number not in there]

    def lacks(self, given: pa.Table, shards: Sequence[Shard] | None = None) -> np.ndarray:
        """Which of these pictures, by their paths, have no code in these shards (in all), (n,) bool.

        Those that were skipped do not count, unless their files were changed, or came, since.
        """
        shards = self.shards if shards is None else shards
        tried = [path for path, _ in self.skipped() if not self._changed_since(path)]
        return ~is_among(given["path"], [*(shard.paths() for shard in shards), pa.chunked_array([tried], pa.string())])

    def _changed_since(self, path: str) -> bool:
        try:
            return Path(path).stat().st_ctime_ns > (self.path / SKIPPED).stat().st_mtime_ns
        except (OSError, ValueError):
            return False

    def grow(self, pictures: pa.Table, skipped: Skipped = (), without: Sequence[Shard] = ()) -> None:
        """Begin a new list of pictures, which have no code here, and forget the shards `without` in the same step."""
        last = max([shard.number for shard in self.shards], default=-1)
        self.shards = [shard for shard in self.shards if shard not in without]
        again = set(pictures["path"].to_pylist())
        before = [row for row in self.skipped() if row[0] not in again]
        if len(before) < self.n_skipped:  # those that are tried again
            write_csv(self.path / SKIPPED, ("path", "reason"), before)
            self.n_skipped, self._skipped_size = len(before), (self.path / SKIPPED).stat().st_size
        _write(self.path / LIST, parquet(pictures))
        self._dropped = True
        self._skip(skipped)
        self.list, self.done = _describe_list(pictures, last + 1), False
        self._commit()

    def append(
        self, codes: Codes, items: pa.Table | Sequence[str], skipped: Skipped = (), number: int | None = None
    ) -> None:
        """Add a shard; `items` is a table with the column path and perhaps labels, size and mtime, or a list of paths.

        Without a number it is the one after the last.
        """
        if codes.n_bits != self.n_bits:
            raise MismatchError(f"{self.path} has codes of {self.n_bits} bits, these have {codes.n_bits}; {ANOTHER}")
        table = _items(items)
        if len(table) != len(codes):
            raise DataError(f"there are {len(codes):,} codes and {len(table):,} pictures; give a row for each code")
        number = self.shards[-1].number + 1 if number is None and self.shards else number or 0
        if number in {shard.number for shard in self.shards}:
            raise UsageError(f"{self.path} has a shard {number} already; give another number")
        shard = Shard(self.path, self.n_bits, f"shard-{number:05d}", len(codes), "", "")
        checksums = [
            _write(file, content) for file, content in zip(shard.files, (_npy(codes), parquet(table)), strict=True)
        ]
        shard = Shard(shard.folder, shard.n_bits, shard.name, shard.n, *checksums)
        self._skip(skipped)
        self.shards = sorted([*self.shards, shard], key=lambda shard: shard.number)
        self._commit()

    def drop(self, shards: Iterable[Shard]) -> None:
        """Forget shards, to make them again."""
        gone = set(shards)
        if gone:
            self.shards = [shard for shard in self.shards if shard not in gone]
            self.done, self._dropped = False, True
            self._commit()

    def abandon(self) -> None:
        """Let nothing of it count: the next one to write here begins anew. What was skipped can still be read."""
        (self.path / MANIFEST).unlink(missing_ok=True)
        sync(self.path)

    def finish(self) -> None:
        """Say that all shards are there."""
        if not self.done:
            self.done, self._dropped = True, False
            self._commit()
        (self.path / LIST).unlink(missing_ok=True)

    def _skip(self, rows: Skipped) -> None:
        if self._dropped:  # a shard was here before, and its rows still are
            known = set(self.skipped())
            rows = [row for row in rows if row not in known]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(rows if self._skipped_size else [("path", "reason"), *rows])
        file = self.path / SKIPPED
        with storage_errors(file), file.open("r+b" if file.exists() else "w+b") as stream:
            # what comes after the committed size was written by a process that died before its shard counted
            stream.seek(min(self._skipped_size, stream.seek(0, os.SEEK_END)))
            stream.truncate()
            stream.write(text.getvalue().encode())
            stream.flush()
            os.fsync(stream.fileno())
            self._skipped_size = stream.tell()
        self.n_skipped += len(rows)

    def _commit(self) -> None:
        keys = ("name", "n", "codes_sha256", "items_sha256")
        manifest = {
            "format": FORMAT,
            "n_bits": self.n_bits,
            "model": self.model,
            "shard_size": self.shard_size,
            "source": self.source,
            "part": self.part,
            "list": self.list,
            "skipped": {"n": self.n_skipped, "size": self._skipped_size},
            "done": self.done,
            **({"dropped": True} if self._dropped else {}),
            "shards": [{key: getattr(shard, key) for key in keys} for shard in self.shards],
        }
        sync(self.path)  # names of files first, then the manifest that names them
        write_json(self.path / MANIFEST, manifest)
        sync(self.path)

    def _clean(self) -> None:
        """Remove what a process left behind that was killed."""
        named = {file.name for shard in self.shards for file in shard.files}
        with storage_errors(self.path):
            for entry in self.path.iterdir():
                stray = TEMPORARY.fullmatch(entry.name) or SHARD_FILE.fullmatch(entry.name)
                if (stray and entry.name not in named) or (entry.name == LIST and self.done):
                    entry.unlink(missing_ok=True)

    def _require_same(
        self, n_bits: int, model: dict[str, str], shard_size: int, source: str | None, part: tuple[int, int]
    ) -> None:
        if n_bits != self.n_bits:
            raise MismatchError(f"{self.path} has codes of {self.n_bits} bits, this model makes {n_bits}; {ANOTHER}")
        require_same_model(self.model, model, self.path)
        if source != self.source:
            raise MismatchError(f"{self.path} has the codes of {self.source}, not of {source}; {ANOTHER}")
        if (shard_size, tuple(part)) != (self.shard_size, self.part):
            i, n_parts = self.part
            raise MismatchError(
                f"{self.path} is part {i}/{n_parts} in shards of {self.shard_size:,}; go on with the same, or choose"
                " another --out"
            )


ANOTHER = "choose another --out"


def require_same_model(ours: dict[str, str], given: dict[str, str], where: Path | str) -> None:
    """Refuse codes of another model than that of the codes (or the index) in `where`."""
    if ours["fingerprint"] != given["fingerprint"]:
        raise MismatchError(
            f"{where} was made with {ours['name']} {ours['fingerprint'][:8]}…, you gave {given['name']}"
            f" {given['fingerprint'][:8]}…; codes of two models cannot be mixed, so {ANOTHER}"
        )


def model_fingerprint(folder: Path | str) -> str:
    """sha256 of a model: of its config.json and its weights, whatever else is in the folder."""
    folder = Path(folder)
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.onnx"))
    digest = hashlib.sha256()
    try:
        for file in [folder / "config.json", *weights]:
            digest.update(f"{file.name} {sha256(file)}\n".encode())
    except OSError as error:
        raise DataError(
            f"{folder} holds no hashlens model ({error.strerror}: {Path(error.filename).name}); give the folder"
            " 'model' of a run"
        ) from error
    return digest.hexdigest()


def describe_model(folder: Path | str) -> dict[str, str]:
    """What a folder of codes remembers of its model; in runs/NAME/model it is called NAME."""
    place = Path(folder).absolute()
    if (place / "model.onnx").exists():  # exported: the same codes as those of the model that it was made of
        with suppress(OSError, ValueError, KeyError, TypeError):
            return json.loads((place / "config.json").read_text(encoding="utf-8"))["model"]
    name = place.parent.name if place.name == "model" and place.parent.name else place.name
    return {"fingerprint": model_fingerprint(folder), "name": name}


def open_together(paths: Sequence[Path | str]) -> list[CodesFolder]:
    """Folders of codes of one model, to be read together; a folder of parts (part-1-of-3, …) is opened as its parts."""
    if not paths:
        raise UsageError("no folder of codes is given; name at least one")
    opened = []
    for path in map(Path, paths):
        parts = [] if (path / MANIFEST).exists() else sorted(path.glob("part-*-of-*"), key=_part_number)
        opened += [CodesFolder.open(part) for part in parts or [path]]
    for folder in opened[1:]:
        if folder.n_bits != opened[0].n_bits:
            raise MismatchError(
                f"{opened[0].path} has codes of {opened[0].n_bits} bits, {folder.path} of {folder.n_bits};"
                " encode both with one model"
            )
        require_same_model(opened[0].model, folder.model, opened[0].path)
    return opened


def shards_in_order(folders: Sequence[CodesFolder]) -> list[Shard]:
    """The shards of all folders, one folder after the other; those of the parts of one list as if it were not cut."""
    lists: dict[Any, list[CodesFolder]] = {}
    for folder in folders:
        whole = folder.list is None or folder.part == (1, 1)
        key = folder.path if whole else (folder.list["sha256"], folder.shard_size, folder.part[1])  # type: ignore[index]
        lists.setdefault(key, []).append(folder)
    return [
        shard
        for parts in lists.values()
        for shard in sorted((s for folder in parts for s in folder.shards), key=lambda shard: shard.number)
    ]


def require_complete(folders: Sequence[CodesFolder]) -> None:
    """Refuse folders whose encoding is not done, and parts of a list without the others."""
    for folder in folders:
        if not folder.done:
            left = "" if folder.list is None else f", {len(folder.missing()):,} shards are missing"
            raise DataError(
                f"{folder.path} is not finished{left}; run the same hashlens encode command again, which goes on"
            )
        i, n_parts = folder.part
        alike = [other for other in folders if other.part[1] == n_parts and other.source == folder.source]
        if n_parts > 1 and len({str(other.list and other.list["sha256"]) for other in alike}) > 1:
            raise MismatchError(
                f"the parts of {folder.source} were made from different lists of pictures; encode them all anew"
            )
        if lacking := sorted(set(range(1, n_parts + 1)) - {other.part[0] for other in alike}):
            raise DataError(
                f"{folder.path} is part {i}/{n_parts} of {folder.source}, and part {lacking[0]}/{n_parts} is not given;"
                " give all parts together"
            )


def concatenate(shards: Sequence[Shard], n_bits: int) -> tuple[Codes, pa.Table]:
    """All codes and pictures of some shards at once."""
    loaded = [shard.load() for shard in shards]
    if not loaded:
        return Codes(np.empty((0, -(-n_bits // 8)), np.uint8), n_bits), _items([])
    items = pa.concat_tables([items for _, items in loaded], promote_options="default")
    return Codes.concatenate([codes for codes, _ in loaded]), items


def content_hash(table: pa.Table) -> str:
    """sha256 of names and values: unlike that of a file, it does not depend on the library that wrote it."""
    digest = hashlib.sha256(json.dumps(table.column_names).encode())
    for rows in blocks(len(table), SHARD_SIZE):
        for column in table.slice(rows.start, rows.stop - rows.start).columns:
            digest.update(json.dumps(column.to_pylist()).encode())
    return digest.hexdigest()


def parquet(table: pa.Table) -> bytes:
    """The contents of a Parquet file; equal tables give equal bytes, however they were put together."""
    sink = pa.BufferOutputStream()
    pq.write_table(table.combine_chunks().replace_schema_metadata(None), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _npy(codes: Codes) -> bytes:
    content = io.BytesIO()
    np.save(content, np.ascontiguousarray(codes.packed))
    return content.getvalue()


def _write(path: Path, content: bytes) -> str:
    """Write a file, whole or not at all; returns its checksum."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def is_among(paths: pa.ChunkedArray, known: Iterable[pa.ChunkedArray]) -> np.ndarray:
    """Which of these paths are known, (n,) bool."""
    chunks = [chunk.cast(pa.large_string()) for column in known for chunk in column.chunks]  # they may be gigabytes
    there = pa.chunked_array(chunks, pa.large_string())
    return pa.compute.is_in(paths.cast(pa.large_string()), value_set=there).to_numpy()


def _describe_list(pictures: pa.Table, first_shard: int) -> dict[str, Any]:
    return {"n": len(pictures), "sha256": content_hash(pictures), "first_shard": first_shard}


def _items(items: pa.Table | Sequence[str]) -> pa.Table:
    """The columns of a shard in their order and types."""
    table = items if isinstance(items, pa.Table) else pa.table({"path": pa.array(items, pa.string())})
    columns = {"path": table["path"].cast(pa.string())}
    if "labels" in table.column_names:
        columns["labels"] = table["labels"].cast(pa.list_(pa.string()))
    for name in ("size", "mtime"):
        known = name in table.column_names
        columns[name] = table[name].cast(pa.int64()) if known else pa.nulls(len(table), pa.int64())
    return pa.table(columns)


def _is_ours(name: str) -> bool:
    known = name in (MANIFEST, LIST, SKIPPED)
    return known or bool(SHARD_FILE.fullmatch(name) or TEMPORARY.fullmatch(name))


def _part_number(path: Path) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", path.name)))
