"""The index on disk: codes with their paths and labels in, a folder out that opens at once and survives a crash.

INDEX/
  index.json              code length, model, parts with checksums, removed ids; replaced in one step
  part-00000.blocks.npy   (n_blocks, n_bytes, 64) uint8, 64 codes per block (kernels/), memory-mapped
  part-00000.items.arrow  path, labels, size and mtime of each code, memory-mapped
  part-00000.ids.npy      (n,) int64, only after `compact`; otherwise ids are first_id, first_id + 1, …
  part-00000.starts.npy, part-00000.places.npy   radius tables (radius.py), only if the index has them; memory-mapped
  removed-00001.npy       sorted ids that were removed
  forgotten-00002.npy     sorted keys (`image_keys`) of removed images whose codes were reclaimed by `compact`

A change writes new files first and index.json last; two processes cannot change an index at the same time. Files of
these names that index.json does not list were left by a crash and are deleted by the next change. Ids never change and
are never reused.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from hashlens.codes import Codes
from hashlens.errors import DataError, MismatchError
from hashlens.files import (
    alone_in,
    quoted,
    replacing,
    require_own,
    require_room,
    sha256,
    storage_errors,
    sync,
    write_json,
)
from hashlens.index.catalog import ITEMS, Catalog, as_items
from hashlens.index.memory import Part
from hashlens.index.radius import N_VALUES, Tables, n_pieces, table_bytes
from hashlens.kernels import LANES
from hashlens.machine import blocks

FORMAT = "hashlens index 4"
EMPTY: dict[str, Any] = {"next_id": 0, "next_file": 0, "next_part": 0, "parts": [], "removed": None, "forgotten": None}
TABLES = ("starts.npy", "places.npy")
ROWS = 65_536  # whose paths are Python strings at the same time
FILE = r"part-\d{5,}\.(items\.arrow|(blocks|ids|starts|places)\.npy)|(removed|forgotten)-\d{5,}\.npy"
OURS = re.compile(rf"{FILE}|\.({FILE}|index\.json)\..+\.tmp")  # temporary ones too, see files.replacing


class IndexFolder(Catalog):
    """A catalog in a folder."""

    def __init__(self, path: Path):
        self._stamp = _stamp(path)  # first, so that `changed` notices a change while the rest is read
        self.facts = _read_facts(path)
        if self.facts["format"] != FORMAT:
            raise MismatchError(
                f"{path} has the format {self.facts['format']!r}, this version reads {FORMAT!r}; build it again"
            )
        super().__init__(path, self.facts["n_bits"], self.facts["model"])
        self._map()

    @classmethod
    def create(
        cls,
        path: Path,
        n_bits: int,
        model: dict[str, str],
        *,
        radius_tables: bool = False,
        source: str | None = None,
        option: str = "--out",
    ) -> Self:
        """An empty index; one of a `source` is kept up to date with it by library.py."""
        facts = {"format": FORMAT, "n_bits": n_bits, "model": model, "radius_tables": radius_tables, "source": source}
        with alone_in(path):
            if (path / "index.json").exists():
                raise DataError(
                    f"{path} already holds an index; add to it with: hashlens index add {quoted(path)} CODES"
                )
            require_own(path, ["index.json"], "an index", option)
            write_json(path / "index.json", facts | EMPTY)
            return cls(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        try:
            return cls(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            if error.filename and Path(error.filename).name != "index.json":
                raise DataError(f"{error.filename} is missing from the index; build the index again") from error
            from hashlens.codes.folder import CodesFolder

            codes = CodesFolder.at(path)
            found = f"{path} has codes but no index" if codes else f"{path} has no index and no codes"
            what = quoted(path) if codes else "CODES"
            raise DataError(f"{found}; build one with: hashlens index build {what}") from error
        except PermissionError as error:
            raise DataError(f"{error.filename} cannot be read: permission denied") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"the index in {path} is damaged ({error}); build it again from its codes") from error

    def changed(self) -> bool:
        return _stamp(self.path) not in (self._stamp, None)

    def add(  # type: ignore[override]
        self, codes: Codes, items: pa.Table, *, only_new: bool = False, again: bool = False
    ) -> np.ndarray:
        """Add codes with their paths and labels; returns the new ids, none if nothing was added.

        With `only_new`, an image (a path with its code) that is in the index is not added, nor one that was removed,
        unless removed ones are to be added `again`.
        """
        self.require_items(codes, items)
        with self._alone():
            if only_new:
                known, removed = self._known_keys, self._removed_keys
                keys = image_keys(codes.packed, items.column("path"))
                new = is_new(keys, known)
                if not again:
                    new &= ~np.isin(keys, removed)
                codes, items = codes[new], items.filter(pa.array(new))
            if not len(codes):
                return np.empty(0, np.int64)
            first = self.facts["next_id"]
            with self._change() as facts:
                facts["parts"].append(self._write_part(codes, first, items, facts))
                facts["next_id"] += len(codes)
            if only_new:  # the change has cleared them
                # a stable sort merges two sorted runs in one pass
                known = np.sort(np.concatenate([known, np.sort(keys[new])]), kind="stable")
                self._known_keys, self._removed_keys = known, removed
        return np.arange(first, first + len(codes))

    def _delete(self, ids: np.ndarray) -> int:
        with self._alone():
            there = self._contains(ids)
            if len(there):
                removed = np.union1d(self._load_numbered("removed"), there)
                with self._change() as facts:
                    facts["removed"] = self._save_numbered("removed", removed, facts)
        return len(there)

    def compact(self) -> int:
        """Join all parts without the removed codes; returns how many codes were reclaimed.

        8 bytes per removed image are kept, so that it is not added again by mistake.
        """
        with self._alone():
            self.verify()  # damaged files would be rewritten with checksums that say they are fine
            n_removed = sum(len(part) for part in self.parts) - len(self)
            if not n_removed and len(self.parts) < 2:
                return 0
            removed = np.unique(self._removed_keys)
            with self._change() as facts:
                facts["parts"], facts["removed"] = [], None
                if len(removed):
                    facts["forgotten"] = self._save_numbered("forgotten", removed, facts)
                if len(self):
                    items = pa.concat_tables([as_items(part.items()).take(part.still()) for part in self.parts])
                    facts["parts"] = [self._write_part(*self._joined(), items, facts)]
            return n_removed

    def set_radius_tables(self, wanted: bool) -> None:
        """Write radius tables for all parts, now and whenever codes are added, or delete them."""
        with self._alone():
            if self.facts["radius_tables"] == wanted:
                return
            with self._change() as facts:
                facts["radius_tables"] = wanted
                for part, own in zip(facts["parts"], self.parts, strict=True):
                    for kind in TABLES:
                        part["sha256"].pop(kind, None)
                    if wanted:
                        part["sha256"] |= self._save_tables(part["name"], own)

    def verify(self) -> int:
        """Compare every file with its checksum; returns the number of files."""
        for name, expected in self._files().items():
            try:
                damage = "is damaged" if sha256(self.path / name) != expected else ""
            except OSError as error:
                damage = f"cannot be read ({error.strerror})"
            if damage:
                raise DataError(f"{self.path / name} {damage}; build the index again")
        return len(self._files())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Within, only this process changes the index; earlier changes by others are loaded, leftovers deleted."""
        with alone_in(self.path):
            facts = _read_facts(self.path)
            if facts != self.facts:
                self.facts = facts
                self._map()
            named = self._files()
            for entry in self.path.iterdir():
                if OURS.fullmatch(entry.name) and entry.name not in named:
                    entry.unlink()
            yield
            self._stamp = _stamp(self.path)

    @contextmanager
    def _change(self) -> Iterator[dict[str, Any]]:
        """Facts to change; they and the files they name become the index if the block succeeds."""
        facts = json.loads(json.dumps(self.facts))
        with storage_errors(self.path):
            yield facts
            sync(self.path)  # the files first, then the list that names them
            write_json(self.path / "index.json", facts)
            sync(self.path)
        before = self._files()
        self.facts = facts
        self._map()
        for name in before.keys() - self._files():
            (self.path / name).unlink()

    def _write_part(
        self, codes: Codes, ids: np.ndarray | int, items: pa.Table, facts: dict[str, Any]
    ) -> dict[str, Any]:
        require_room(self.path, codes.packed.nbytes + 2 * items.nbytes, "a part of the index")
        name = f"part-{facts['next_part']:05d}"  # never used again: others may still have the old part mapped
        facts["next_part"] += 1
        part = Part.of(codes, ids)
        digests = {"blocks.npy": self._save(f"{name}.blocks.npy", part.blocks)}
        with replacing(self.path / f"{name}.items.arrow") as temporary, pa.ipc.new_file(str(temporary), ITEMS) as file:
            file.write_table(as_items(items).combine_chunks())
        digests["items.arrow"] = sha256(self.path / f"{name}.items.arrow")
        if not isinstance(ids, int):
            digests["ids.npy"] = self._save(f"{name}.ids.npy", ids)
        if self.facts["radius_tables"]:
            digests |= self._save_tables(name, part)
        first_id = ids if isinstance(ids, int) else None
        return {"name": name, "n": len(codes), "first_id": first_id, "sha256": digests}

    def _save_tables(self, name: str, part: Part) -> dict[str, str]:
        require_room(self.path, table_bytes(len(part), self.n_bits), "the radius tables")
        return {
            kind: self._save(f"{name}.{kind}", array) for kind, array in zip(TABLES, Tables.build(part), strict=True)
        }

    def _save_numbered(self, kind: str, array: np.ndarray, facts: dict[str, Any]) -> dict[str, Any]:
        name = f"{kind}-{facts['next_file']:05d}.npy"
        facts["next_file"] += 1
        return {"name": name, "n": len(array), "sha256": self._save(name, array)}

    def _save(self, name: str, array: np.ndarray) -> str:
        with replacing(self.path / name) as temporary, temporary.open("wb") as file:
            np.save(file, array)
        return sha256(self.path / name)

    @cached_property
    def _known_keys(self) -> np.ndarray:
        """The keys of the images in the index, sorted."""
        every = ((part, np.arange(len(part))) for part in self.parts)
        keys = [image_keys(part.codes(all_), part.items().column("path"))[part.still()] for part, all_ in every]
        return np.sort(np.concatenate([np.empty(0, np.int64), *keys]))

    @cached_property
    def _removed_keys(self) -> np.ndarray:
        """The keys of the images that were removed, before `compact` too."""
        keys = [self._load_numbered("forgotten")]
        for part in self.parts:
            if part.alive is not None:
                places = np.flatnonzero(~part.alive)
                keys.append(image_keys(part.codes(places), part.items().column("path").take(places)))
        return np.concatenate(keys)

    def _map(self) -> None:
        for name in ("_known_keys", "_removed_keys"):
            self.__dict__.pop(name, None)
        removed = self._load_numbered("removed")
        self._use([self._map_part(part, removed) for part in self.facts["parts"]])

    def _map_part(self, part: dict[str, Any], removed: np.ndarray) -> Part:
        n_bytes, n, first = -(-self.n_bits // 8), part["n"], part["first_id"]

        def load(kind: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
            array = np.load(self.path / f"{part['name']}.{kind}", mmap_mode="r")
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"{part['name']}.{kind} does not match index.json")
            return np.asarray(array)

        ids = load("ids.npy", (n,), np.int64) if first is None else first
        tables = None
        if "places.npy" in part["sha256"]:
            pieces = n_pieces(n_bytes)
            starts = load("starts.npy", (pieces, N_VALUES + 1), np.uint32)
            tables = Tables(starts, load("places.npy", (pieces, n), np.uint32))

        @cache  # mapped when first needed
        def items() -> pa.Table:
            path = self.path / f"{part['name']}.items.arrow"
            try:
                return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            except (OSError, pa.ArrowInvalid) as error:
                raise DataError(f"{path} is missing or damaged; build the index again") from error

        return Part(load("blocks.npy", (-(-n // LANES), n_bytes, LANES), np.uint8), n, ids, removed, tables, items)

    def _load_numbered(self, kind: str) -> np.ndarray:
        return np.load(self.path / self.facts[kind]["name"]) if self.facts[kind] else np.empty(0, np.int64)

    def _files(self) -> dict[str, str]:
        """The checksum of every file of the index."""
        lists = [self.facts[kind] for kind in ("removed", "forgotten") if self.facts[kind]]
        parts = self.facts["parts"]
        files = {f"{part['name']}.{kind}": digest for part in parts for kind, digest in part["sha256"].items()}
        return files | {one["name"]: one["sha256"] for one in lists}


def _read_facts(path: Path) -> dict[str, Any]:
    return json.loads((path / "index.json").read_text(encoding="utf-8"))


def _stamp(path: Path) -> tuple[int, int] | None:
    """Differs whenever index.json was replaced; None if it does not exist."""
    try:
        found = (path / "index.json").stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def is_new(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which keys are not among the sorted `known` ones, (n,) bool; of equal ones, only the first."""
    first = np.zeros(len(keys), bool)
    first[np.unique(keys, return_index=True)[1]] = True
    if not len(known):
        return first
    return first & (known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] != keys)


def image_keys(packed: np.ndarray, paths: pa.ChunkedArray) -> np.ndarray:
    """(n,) int64, the same for the same path and code, in every process."""
    keys = np.empty(len(packed), np.int64)
    for rows in blocks(len(packed), ROWS):
        codes = np.ascontiguousarray(packed[rows])
        each = codes.view(f"V{codes.shape[1]}")[:, 0].tolist()
        names = paths.slice(rows.start, rows.stop - rows.start).to_pylist()
        digests = [
            blake2b(code + name.encode(), digest_size=8).digest() for code, name in zip(each, names, strict=True)
        ]
        keys[rows] = np.frombuffer(b"".join(digests), np.int64)
    return keys
