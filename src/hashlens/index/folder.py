"""The index on disk: codes with their paths and labels in, a folder out that opens at once and survives a crash.

INDEX/
  index.json              code length, model, parts with checksums, removed ids; replaced in one step
  part-00000.blocks.npy   (n_blocks, n_bytes, 64) uint8, 64 codes per block (kernels/), memory-mapped
  part-00000.second.npy   the second codes in the same form, if the index has these (`second_bits`)
  part-00000.items.arrow  path, labels, size, mtime and hash of the file of each code, memory-mapped
  part-00000.items.sums   the checksum of each of its blocks
  part-00000.keys.npy, part-00000.keys.sums   keys of these images (keys.py), once an addition needed them
  part-00000.ids.npy      (n,) int64, only after `compact`; otherwise ids are first_id, first_id + 1, …
  part-00000.starts.npy, part-00000.places.npy   radius tables (radius.py), only if the index has them; memory-mapped
  part-00000.tree.npy     a tree over the distinct codes (tree.py), if it is faster than reading all; memory-mapped
  removed-00001.npy       sorted ids that were removed
  forgotten-00002.npy     sorted keys (`image_keys`) of removed images whose codes were reclaimed by `compact`

A change writes new files first and index.json last; two processes cannot change an index at the same time. Files with
these names that index.json does not list were left by a crash and are deleted by the next change. Ids never change and
are never reused. An addition writes a part and, unless images were removed, reads none; merging.py decides when parts
are joined.

No file is used before its checksum was verified: items and keys on first use, all others when the index is opened.
Files that cannot be restored otherwise (index.json, ids, removed, forgotten) have a copy, NAME.copy; repair.py restores
everything else from codes or images.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from hashlens.checksums import FILE as OF_FILE
from hashlens.checksums import CheckedFile, compare_file, damaged, describe_file, read_sealed, write_sealed
from hashlens.clicks.file import CLICKS
from hashlens.codes import Codes
from hashlens.codes.bits import MOST_LEVELS, require_levels
from hashlens.codes.model import MODEL
from hashlens.errors import Busy, Damaged, DataError, HashlensError, StorageError
from hashlens.files import alone_in, quoted, replacing, require_own, require_room, storage_errors, sync
from hashlens.index.catalog import Catalog
from hashlens.index.items import BATCH, MappedItems, find_batches, write_items, write_sums
from hashlens.index.keys import Keys, arranged, image_keys, path_keys
from hashlens.index.memory import Part
from hashlens.index.merging import FULL, parts_to_join
from hashlens.index.radius import N_VALUES, Tables, n_pieces, table_bytes
from hashlens.index.tree import Tree, best_tree, can_build, tree_bytes
from hashlens.kernels import LANES
from hashlens.machine import blocks
from hashlens.schema import TEXT, conform, optional, whole

FORMAT = "hashlens index 6"
EMPTY: dict[str, Any] = {"next_id": 0, "next_file": 0, "next_part": 0, "parts": [], "removed": None, "forgotten": None}
TABLES = ("starts.npy", "places.npy")
ROWS = 1 << 20  # most paths in memory at once
COPY = ".copy"
FILE = (
    r"part-\d{5,9}\.(items\.(arrow|sums)|keys\.(npy|sums)|(blocks|second|pieces|starts|places|tree)\.npy|ids\.npy(\.copy)?)"
    r"|(removed|forgotten)-\d{5,9}\.npy(\.copy)?"
)
OURS = re.compile(rf"{FILE}|\.({FILE}|index\.json(\.copy)?)\..+\.tmp")  # including temporary files, see files.replacing
COUNT, NUMBER = whole(1, 2**40), whole(0, 2**30)


def _numbered(kind: str) -> tuple[Any, ...]:
    return None, {"name": re.compile(rf"{kind}-\d{{5,9}}\.npy"), "n": COUNT, **OF_FILE}


KEYS = ("keys.npy", "keys.sums")
KINDS = ("second.npy", "items.sums", "ids.npy", "ids.npy.copy", *KEYS, *TABLES, "tree.npy")
TREE = {"n_distinct": COUNT, "most": [whole()], "radius": (None, whole())}
SCHEMA: dict[Any, Any] = {
    "format": FORMAT,
    "n_bits": whole(1, 65_536),
    "model": MODEL,
    "radius_tables": bool,
    optional("second_bits"): whole(1, 65_536),  # absent without second codes
    optional("source"): (None, TEXT),
    "next_id": whole(),
    "next_file": NUMBER,
    "next_part": NUMBER,
    "parts": [
        {
            "name": re.compile(r"part-\d{5,9}"),
            "n": COUNT,
            "first_id": (None, whole()),
            "files": {"blocks.npy": OF_FILE, "items.arrow": OF_FILE} | {optional(kind): OF_FILE for kind in KINDS},
            "batches": [BATCH],
            optional("tree"): (None, TREE),  # None: tried, but not faster
        }
    ],
    "removed": _numbered("removed"),
    "forgotten": _numbered("forgotten"),
}


class IndexFolder(Catalog):
    """A catalog in a folder."""

    def __init__(self, path: Path, facts: dict[str, Any] | None = None, before: Catalog | None = None):
        """`before` is the same index in an earlier state; parts in both are not mapped and verified again."""
        self._stamp = _stamp(path)  # first, so that `changed` notices changes during reading
        self.facts = facts or read_facts(path)
        self._mapped: dict[str, tuple[dict[str, Any], np.ndarray, Part]] = {}  # {name: (facts, removed, part)}
        self._keys: dict[str, Keys] = {}
        super().__init__(path, self.facts["n_bits"], self.facts["model"])
        self._parts: list[Part] | None = None
        if isinstance(before, IndexFolder) and before.damage is None:
            self._mapped = before._mapped
        self._take(self.facts)

    @property
    def parts(self) -> list[Part]:
        """The parts, mapped and verified on first use; additions do not need them."""
        if self._parts is None:
            self._parts = self._map_parts()
        return self._parts

    @parts.setter
    def parts(self, parts: list[Part]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        if self._parts is not None:
            return self._n
        removed = self.facts["removed"]
        return sum(part["n"] for part in self.facts["parts"]) - (removed["n"] if removed else 0)

    @classmethod
    def create(
        cls,
        path: Path,
        n_bits: int,
        model: dict[str, str],
        *,
        second_bits: int = 0,
        radius_tables: bool = False,
        source: str | None = None,
        option: str = "--out",
    ) -> Self:
        """Create an empty index; library.py keeps an index of a `source` up to date with it."""
        facts = {"format": FORMAT, "n_bits": n_bits, "model": model, "radius_tables": radius_tables, "source": source}
        if second_bits:
            require_levels(n_bits, second_bits)
            facts["second_bits"] = second_bits
        with alone_in(path):
            if (path / "index.json").exists():
                raise DataError(
                    f"{path} already contains an index; add to it with: hashlens index add {quoted(path)} CODES"
                )
            if source is None or set(_names(path)) - {CLICKS}:  # clicks outlive the index of an image folder
                require_own(path, ["index.json"], "an index", option)
            write_facts(path, facts | EMPTY)
            return cls(path)

    @classmethod
    def open(cls, path: Path, before: Catalog | None = None, *, to_add: bool = False) -> Self:
        """Open the index in a folder.

        `before` is the same index, opened earlier; parts in both are not mapped and verified again. With `to_add`, no
        codes are read until they are needed.
        """
        try:
            while True:
                index = cls(path, before=before)
                try:
                    if not to_add:
                        _ = index.parts
                    return index
                except Damaged:
                    if not index.changed():
                        raise
                    before = index  # another process has replaced files in the meantime: keep what is mapped
        except (FileNotFoundError, NotADirectoryError) as error:
            from hashlens.codes.folder import CodesFolder

            codes = CodesFolder.at(path)
            found = f"{path} has codes but no index" if codes else f"{path} has no index and no codes"
            what = quoted(path) if codes else "CODES"
            raise DataError(f"{found}; build one with: hashlens index build {what}") from error
        except PermissionError as error:
            raise DataError(f"{error.filename} cannot be read: permission denied") from error
        except HashlensError:
            raise
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(path / "index.json", error, remedy(path)) from error

    def changed(self) -> bool:
        return _stamp(self.path) not in (self._stamp, None)

    def add(  # type: ignore[override]
        self,
        codes: Codes,
        items: pa.Table,
        *,
        only_new: bool = False,
        again: bool = False,
        join: bool = True,
        trees: bool = True,
    ) -> np.ndarray:
        """Add codes with their paths and labels; returns the new ids, none if nothing was added.

        With `only_new`, images (a path with its code) already in the index are not added, nor are images whose path was
        removed, whatever their code is now, unless `again` is set. For quick answers, `join` parts later; for frequent
        additions, build the `trees` once, at the end.
        """
        self.require_items(codes, items)
        keys = None
        with self._alone():
            codes = self.require_second(codes)
            if join:
                with suppress(StorageError):
                    self._merge()  # finish an interrupted merge
            if only_new:
                keys = image_keys(codes.packed, items.column("path"))
                new = self._is_new(keys, items.column("path"), again)
                codes, items, keys = codes[new], items.filter(pa.array(new)), keys[new]
            first = self.facts["next_id"]
            if len(codes):
                with self._change() as facts:
                    self._append(codes, items, facts, keys)
                if join:
                    self._tidy(trees)
        return np.arange(first, first + len(codes))

    @property
    def is_tidy(self) -> bool:
        """Whether `join` has nothing to do."""
        parts = self.facts["parts"]
        tried = all("tree" in part or not can_build(part["n"]) for part in parts)
        return tried and parts_to_join([part["n"] for part in parts]) is None

    def join(self) -> None:
        """Join parts and try trees, as an addition does by default."""
        with self._alone():
            self._merge()
            self._save_trees()

    def replace(self, ids: Any, codes: Codes, items: pa.Table) -> np.ndarray:
        """Remove these ids and add codes in one step, so that no search sees half of it; returns the new ids."""
        self.require_items(codes, items)
        with self._alone():
            codes = self.require_second(codes)
            gone, first = self._contains(np.unique(np.asarray(ids, np.int64))), self.facts["next_id"]
            if len(gone) or len(codes):
                with self._change() as facts:
                    self._append(codes, items, facts)
                    if len(gone):
                        removed = np.union1d(self._load_numbered("removed"), gone)
                        facts["removed"] = self._save_numbered("removed", removed, facts)
                self._tidy()
        return np.arange(first, first + len(codes))

    def set_mtimes(self, mtimes: Mapping[int, int]) -> None:
        """Update the mtimes of ids whose files were touched without a change of content; ids and codes stay."""
        ids = np.array(sorted(mtimes), np.int64)
        if not len(ids):
            return
        with self._alone(), self._change() as facts:
            for number, part in enumerate(self.parts):
                places = part.places(ids)
                if len(places):
                    facts["parts"][number] = self._with_mtimes(facts, number, places, mtimes)

    def _with_mtimes(
        self, facts: dict[str, Any], number: int, places: np.ndarray, mtimes: Mapping[int, int]
    ) -> dict[str, Any]:
        """A part under a new name, because others may have the old one mapped; only its items are rewritten."""
        part, own = facts["parts"][number], self.parts[number]
        table = own.items().table()
        column = table["mtime"].to_pylist()
        for place, id_ in zip(places.tolist(), own.ids(places).tolist(), strict=True):
            column[place] = mtimes[id_]
        table = table.set_column(table.column_names.index("mtime"), "mtime", pa.array(column, pa.int64()))
        name = f"part-{facts['next_part']:05d}"
        facts["next_part"] += 1
        for kind in part["files"].keys() - {"items.arrow", "items.sums"}:
            link_file(self.path / f"{part['name']}.{kind}", self.path / f"{name}.{kind}")
        files, batches = self._save_items(name, [table])
        return part | {"name": name, "files": part["files"] | files, "batches": batches}

    def promote(self, new: IndexFolder) -> None:
        """Take over the contents, ids and model of another index in one step; the other one is unchanged."""
        with self._alone(), self._change() as facts:
            facts.pop("second_bits", None)
            facts |= {**new.facts, "next_part": facts["next_part"], "next_file": facts["next_file"], "parts": []}
            names: dict[str, str] = {}  # {old: new name}, up to the first dot of file names
            for part in new.facts["parts"]:
                names[part["name"]] = f"part-{facts['next_part']:05d}"
                facts["next_part"] += 1
                facts["parts"].append({**part, "name": names[part["name"]]})
            for kind in ("removed", "forgotten"):
                if one := facts[kind]:
                    names[one["name"].removesuffix(".npy")] = to = f"{kind}-{facts['next_file']:05d}"
                    facts["next_file"] += 1
                    facts[kind] = {**one, "name": f"{to}.npy"}
            for name in files_of(new.facts):
                before, dot, kind = name.partition(".")
                try:
                    link_file(new.path / name, self.path / f"{names[before]}{dot}{kind}")
                except FileNotFoundError as error:
                    raise Busy(f"{new.path} is being changed by another process; rerun the same command") from error

    def recode(self, ids: np.ndarray, codes: Codes, model: dict[str, str]) -> None:
        """Replace the codes of all images by those of another model in one step; `ids` are all ids, in order.

        Second codes stay, and removed images stay removed.
        """
        with self._alone():
            self.verify()  # as in `compact`
            before, present = self._joined()
            if not np.array_equal(present, ids):
                raise Busy(f"{self.path} was changed by another process in the meantime; rerun the same command")
            items = _items_of(self.parts)
            codes = Codes(codes.packed, codes.n_bits, before.second)
            with self._change() as facts:
                facts |= {"n_bits": codes.n_bits, "model": model}
                self._forget(facts)
                if len(ids):
                    facts["parts"] = [self._write_part(Part.of(codes, ids), items, facts)]
            self._save_trees()

    def _delete(self, ids: np.ndarray) -> int:
        with self._alone():
            there = self._contains(ids)
            if len(there):
                removed = np.union1d(self._load_numbered("removed"), there)
                with self._change() as facts:
                    facts["removed"] = self._save_numbered("removed", removed, facts)
        return len(there)

    def compact(self) -> int:
        """Join all parts and drop the removed codes; returns how many codes were reclaimed.

        16 bytes per removed image are kept, to avoid adding it again by mistake.
        """
        with self._alone():
            self.verify()  # otherwise damaged files would be rewritten with valid checksums
            n_removed = sum(len(part) for part in self.parts) - len(self)
            groups = self._to_compact()
            if all(len(group) == 1 and not self.parts[group[0]].n_removed for group in groups):
                return 0
            with self._change() as facts:
                before = facts["parts"]
                self._forget(facts)
                for group in groups:
                    parts = [self.parts[number] for number in group]
                    if len(group) == 1 and not parts[0].n_removed:
                        facts["parts"].append(before[group[0]])
                    elif any(len(part) > part.n_removed for part in parts):
                        joined = Part.of(*self._joined(parts))
                        facts["parts"].append(self._write_part(joined, _items_of(parts), facts))
            self._save_trees()
            return n_removed

    def _to_compact(self) -> list[list[int]]:
        """Groups of part numbers; each group becomes one part."""
        groups: list[list[int]] = [[]]
        n = 0
        for number, part in enumerate(self.parts):
            here = len(part) - part.n_removed
            if n and n + here > FULL:
                groups.append([])
                n = 0
            groups[-1].append(number)
            n += here
        return groups if self.parts else []

    def build_trees(self) -> None:
        """Build a tree for each part that is large enough and was not tried yet; see `HammingIndex.build_trees`."""
        with self._alone():
            self._save_trees()

    def _forget(self, facts: dict[str, Any]) -> None:
        """Drop all parts; of removed images, keep only the keys."""
        facts["parts"], facts["removed"] = [], None
        if len(keys := self._all_removed_keys()):
            facts["forgotten"] = self._save_numbered("forgotten", keys, facts)

    def set_radius_tables(self, wanted: bool) -> None:
        """Write radius tables for all parts, now and whenever codes are added, or delete them."""
        with self._alone():
            if self.facts["radius_tables"] == wanted:
                return
            with self._change() as facts:
                facts["radius_tables"] = wanted
                for part, own in zip(facts["parts"], self.parts, strict=True):
                    for kind in TABLES:
                        part["files"].pop(kind, None)
                    if wanted:
                        part["files"] |= self._save_tables(part["name"], own)

    def verify(self) -> int:
        """Compare every file with its checksum, and read all paths and labels; returns the number of files."""
        n = self.compare_files()
        for part in self.parts:
            part.items().table()  # an untrusted file may have a valid checksum and still be nonsense
        return n

    def compare_files(self, pause: Callable[[int], Any] = lambda n_bytes: None) -> int:
        """Compare every file with its checksum; `pause(n_bytes)` is called after every few bytes."""
        compared: set[str] = set()
        while left := {name: file for name, file in self._files_now().items() if name not in compared}:
            for name, facts in left.items():
                try:
                    compare_file(self.path / name, facts, remedy(self.path), pause)
                except Damaged:
                    if name in self._files_now():  # otherwise another process has deleted it
                        raise
            compared |= left.keys()
        return len(compared) + 2

    def _files_now(self) -> dict[str, dict[str, Any]]:
        """The facts about every file in index.json and its copy on disk."""
        self._read_facts(f"index.json{COPY}")
        return files_of(self._read_facts())

    def _read_facts(self, name: str = "index.json") -> dict[str, Any]:
        try:
            return read_facts(self.path, name)
        except HashlensError:
            raise
        except FileNotFoundError as error:
            raise Damaged(self.path / name, f"is missing; {remedy(self.path)}") from error
        except (OSError, ValueError) as error:
            raise damaged(self.path / name, error, remedy(self.path)) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Context in which only this process changes the index; loads changes by others and deletes leftovers."""
        with alone_in(self.path):
            facts = self._read_facts()
            if facts != self.facts:
                self._take(facts)
            self._delete_leftovers()
            if not _same(self.path / "index.json", self.path / f"index.json{COPY}"):  # after a crash between the two
                write_facts(self.path, self.facts)
            yield
            self._stamp = _stamp(self.path)

    def _delete_leftovers(self) -> None:
        """Delete files that index.json on disk does not name."""
        named = files_of(self._read_facts())
        for entry in self.path.iterdir():
            if OURS.fullmatch(entry.name) and entry.name not in named:
                entry.unlink()

    @contextmanager
    def _change(self) -> Iterator[dict[str, Any]]:
        """Facts to change; they and the files they name become the index if the block succeeds."""
        parts = [part | {"files": dict(part["files"])} for part in self.facts["parts"]]
        facts = self.facts | {"parts": parts}
        try:
            with storage_errors(self.path):
                yield facts
                sync(self.path)  # files must reach the disk before the list that names them
                write_facts(self.path, facts)
        except BaseException:
            with suppress(OSError, HashlensError):  # they would waste space on a full disk
                self._delete_leftovers()
            raise
        before = self._files()
        self._take(facts)
        for name in before.keys() - self._files():
            (self.path / name).unlink()

    def _append(self, codes: Codes, items: pa.Table, facts: dict[str, Any], keys: np.ndarray | None = None) -> None:
        """Write new codes as parts."""
        require_room(self.path, 2 * items.nbytes, "paths and labels")
        for rows in blocks(len(codes), FULL):
            part = Part.of(codes[rows], facts["next_id"])
            of_rows = None if keys is None else np.sort(keys[rows])
            facts["parts"].append(self._write_part(part, [items.slice(rows.start, len(part))], facts, of_rows))
            facts["next_id"] += len(part)

    def _tidy(self, trees: bool = True) -> None:
        """Tidy up after a completed addition; if the disk is full, the next addition does it.

        That one also reports damage, before it adds anything.
        """
        with suppress(StorageError, Damaged):
            self._merge()
            if trees:
                self._save_trees()

    def _merge(self) -> None:
        """Join parts until merging.py is satisfied; each join is a separate change, so a crash loses at most one."""
        while some := parts_to_join([part["n"] for part in self.facts["parts"]]):
            told = self.facts["parts"][some]
            n_bytes = sum(file["bytes"] for part in told for file in part["files"].values())
            require_room(self.path, n_bytes, "the joined parts of the index")
            # mapped again to verify it: otherwise damaged files would be rewritten with valid checksums
            parts = [self._map_part(part, helpers=False) for part in told]
            keys = None
            if all("keys.npy" in part["files"] for part in told):
                # a stable sort merges sorted runs in one pass
                keys = np.sort(np.concatenate([self._map_keys(part).all() for part in told]), kind="stable")
            with self._change() as facts:
                tables = (part.items().table() for part in parts)
                facts["parts"][some] = [self._write_part(Part.joined(parts), tables, facts, keys)]

    def _write_part(
        self, part: Part, items: Iterable[pa.Table], facts: dict[str, Any], keys: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Write codes, ids, items and, if known, sorted keys; `_save_trees` writes the tree."""
        n_bytes = part.blocks.nbytes + (0 if part.second is None else part.second.nbytes)
        require_room(self.path, n_bytes, "a part of the index")
        name = f"part-{facts['next_part']:05d}"  # never reused, because others may still have the old part mapped
        facts["next_part"] += 1
        files = {"blocks.npy": self._save(f"{name}.blocks.npy", part.blocks)}
        if part.second is not None:
            files["second.npy"] = self._save(f"{name}.second.npy", part.second)
        of_items, batches = self._save_items(name, items)
        files |= of_items
        if keys is not None:
            files |= self._save_keys(name, keys)
        ids = part._ids
        first_id = ids if isinstance(ids, int) else None
        if not isinstance(ids, int):
            files |= {kind: self._save(f"{name}.{kind}", ids) for kind in ("ids.npy", "ids.npy.copy")}
        if self.facts["radius_tables"]:
            files |= self._save_tables(name, part)
        return {"name": name, "n": len(part), "first_id": first_id, "files": files, "batches": batches}

    def _save_items(self, name: str, items: Iterable[pa.Table]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The facts for index.json about the item files, and where the items are in them."""
        place, sums = (self.path / f"{name}.items.{kind}" for kind in ("arrow", "sums"))
        write_items(place, items)
        write_sums(sums, place)
        return {"items.arrow": describe_file(place), "items.sums": describe_file(sums)}, find_batches(place)

    def _save_keys(self, name: str, keys: np.ndarray) -> dict[str, Any]:
        files = {"keys.npy": self._save(f"{name}.keys.npy", arranged(keys))}
        write_sums(self.path / f"{name}.keys.sums", self.path / f"{name}.keys.npy")
        return files | {"keys.sums": describe_file(self.path / f"{name}.keys.sums")}

    def _save_tables(self, name: str, part: Part) -> dict[str, Any]:
        require_room(self.path, table_bytes(len(part), self.n_bits), "the radius tables")
        return {
            kind: self._save(f"{name}.{kind}", array) for kind, array in zip(TABLES, Tables.build(part), strict=True)
        }

    def _save_trees(self) -> None:
        """Try a tree for each part that was not tried yet; each is a separate change, because it takes long."""
        for number, before in enumerate(self.facts["parts"]):
            if "tree" in before or not can_build(before["n"]):
                continue
            with self._change() as facts:
                told = facts["parts"][number]
                tree = best_tree(self._map_part(before, helpers=False), self.n_bits)
                told["tree"] = None if tree is None else tree.facts()
                if tree is not None:
                    require_room(self.path, tree.nbytes, "the tree over its codes")
                    told["files"]["tree.npy"] = self._save(f"{told['name']}.tree.npy", tree.flat())

    def _save_numbered(self, kind: str, array: np.ndarray, facts: dict[str, Any]) -> dict[str, Any]:
        name = f"{kind}-{facts['next_file']:05d}.npy"
        facts["next_file"] += 1
        self._save(f"{name}{COPY}", array)
        return {"name": name, "n": len(array)} | self._save(name, array)

    def _save(self, name: str, array: np.ndarray) -> dict[str, Any]:
        with replacing(self.path / name) as temporary, temporary.open("wb") as file:
            np.save(file, array)
        return describe_file(self.path / name)

    def _is_new(self, keys: np.ndarray, paths: pa.ChunkedArray, again: bool) -> np.ndarray:
        """Which images to add, by their keys and paths, (n,) bool; of equal ones, only the first."""
        self._make_keys()
        order = np.argsort(keys, kind="stable")
        asked = keys[order]
        n_known = np.zeros(len(keys), np.int64)
        for part in self.facts["parts"]:
            if part["name"] not in self._keys:
                self._keys[part["name"]] = self._map_keys(part)
            n_known += self._keys[part["name"]].count(asked)
        removed = self._removed_keys  # parts still contain their keys
        n_removed = np.searchsorted(removed, asked, side="right") - np.searchsorted(removed, asked)
        first = np.append(True, asked[1:] != asked[:-1])[: len(asked)]
        new = np.empty(len(keys), bool)
        new[order] = first & (n_known <= n_removed)
        return new if again else new & ~self._are_removed(keys, paths)

    def _make_keys(self) -> None:
        """Write the keys of parts that have none: from an older version, or because they were never needed."""
        if all("keys.npy" in part["files"] for part in self.facts["parts"]):
            return
        with self._change() as facts:
            for told, part in zip(facts["parts"], self.parts, strict=True):
                if "keys.npy" not in told["files"]:
                    keys = image_keys(part.codes(np.arange(len(part))), part.items().column("path"))
                    told["files"] |= self._save_keys(told["name"], np.sort(keys))

    def _map_keys(self, part: dict[str, Any]) -> Keys:
        file, sums = (self._file(part, kind) for kind in KEYS)
        file.by_blocks(sums)
        return Keys(file, part["n"])

    def _file(self, part: dict[str, Any], kind: str) -> CheckedFile:
        return CheckedFile(self.path / f"{part['name']}.{kind}", part["files"][kind], remedy(self.path))

    @cached_property
    def _removed_keys(self) -> np.ndarray:
        """The keys and path keys of removed images that `compact` has not reclaimed, sorted."""
        keys = [np.empty(0, np.int64)]
        if not self.facts["removed"]:  # without mapping any part
            return keys[0]
        for part in self.parts:
            if part.alive is not None:
                places = np.flatnonzero(~part.alive)
                paths = part.items().column("path").take(places)
                keys += [image_keys(part.codes(places), paths), path_keys(paths)]
        return np.sort(np.concatenate(keys))

    def _all_removed_keys(self) -> np.ndarray:
        """The keys of all removed images, reclaimed ones included, sorted."""
        return np.union1d(self._load_numbered("forgotten"), self._removed_keys)

    def _are_removed(self, keys: np.ndarray, paths: pa.ChunkedArray) -> np.ndarray:
        """Which images were removed, (n,) bool: with this code, or with another code if the path has no image now."""
        import pyarrow.compute as pc  # slow, and not needed for searches

        removed = self._all_removed_keys()
        if not len(removed):
            return np.zeros(len(keys), bool)
        same = np.isin(keys, removed)
        other = ~same & np.isin(path_keys(paths), removed)
        if other.any():
            asked = paths.filter(pa.array(other))
            columns = (part.items().column("path").take(part.still()) for part in self.parts)
            held = {path for one in columns for path in one.filter(pc.is_in(one, asked)).to_pylist()}
            other &= [path not in held for path in paths.to_pylist()]
        return same | other

    def _take(self, facts: dict[str, Any]) -> None:
        """Become the index that these facts describe; unchanged parts are not read again."""
        if facts["removed"] != self.facts["removed"]:
            self.__dict__.pop("_removed_keys", None)
        files = {part["name"]: part["files"] for part in self.facts["parts"]}
        same = {part["name"] for part in facts["parts"] if part["files"] == files.get(part["name"])}
        self.facts, self.n_bits, self.model = facts, facts["n_bits"], facts["model"]
        self.second_bits = facts.get("second_bits", 0)
        self._keys = {name: keys for name, keys in self._keys.items() if name in same}
        if self._parts is not None:
            self._parts = self._map_parts()
        self._changed()

    def _map_parts(self) -> list[Part]:
        removed, none = self._load_numbered("removed"), np.empty(0, np.int64)
        self._mapped = dict(self._mapped) if self.damage is None else {}
        for facts in self.facts["parts"]:
            before, gone_before, part = self._mapped.get(facts["name"], (None, none, None))
            if part is None or before != facts:
                part, gone_before = self._map_part(facts), none
            gone = removed[slice(*np.searchsorted(removed, [part.first_id, part.last_id + 1]))]
            if not np.array_equal(gone, gone_before):
                part = part.with_removed(gone)  # running searches keep the old part
            self._mapped[facts["name"]] = facts, gone, part
        self._mapped = {facts["name"]: self._mapped[facts["name"]] for facts in self.facts["parts"]}
        parts = [part for _, _, part in self._mapped.values()]
        if any(after.first_id <= before.last_id for before, after in pairwise(parts)):
            raise damaged(self.path / "index.json", "its parts have ids in common", remedy(self.path))
        return parts

    def _map_part(self, part: dict[str, Any], *, helpers: bool = True) -> Part:
        """Map a part: codes, ids and items without removed ones and, as `helpers`, tables and tree."""
        n, first = part["n"], part["first_id"]

        file, read = partial(self._file, part), []

        def load(kind: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
            read.append(file(kind))
            return np.asarray(read[-1].array(shape, dtype))

        def load_blocks(kind: str, n_bits: int) -> np.ndarray:
            blocks = load(kind, (-(-n // LANES), -(-n_bits // 8), LANES), np.uint8)
            # the kernels trust their input: extra bits would make them count beyond the end of an array
            if n_bits % 8 and np.any(blocks[:, -1] & (0xFF >> n_bits % 8)):
                raise file(kind).damaged(f"it has bits past bit {n_bits}")
            return blocks

        codes = load_blocks("blocks.npy", self.n_bits)
        second = load_blocks("second.npy", self.second_bits) if self.second_bits else None
        ids = load("ids.npy", (n,), np.int64) if first is None else first
        if not isinstance(ids, int) and (ids[0] < 0 or np.any(ids[1:] <= ids[:-1])):
            raise file("ids.npy").damaged("its ids are not in order")
        tables = None
        if helpers and "places.npy" in part["files"]:
            pieces = n_pieces(codes.shape[1])
            starts = load("starts.npy", (pieces, N_VALUES + 1), np.uint32)
            tables = Tables(starts, load("places.npy", (pieces, n), np.uint32))
            if np.any(starts[:, 1:] < starts[:, :-1]) or np.any(starts[:, -1] != n) or np.any(tables.places >= n):
                raise file("starts.npy").damaged("it points outside of the codes")

        tree = None
        if helpers and (facts := part.get("tree")):
            flat = load("tree.npy", (tree_bytes(n, self.n_bits, facts["n_distinct"]),), np.uint8)
            try:
                tree = Tree.from_flat(flat, n, self.n_bits, facts)
            except ValueError as error:
                raise file("tree.npy").damaged(error) from error

        for one in read:
            one.release()

        # mapped now, because another process may delete them when it joins parts; verified on first use
        arrow, sums = file("items.arrow"), file("items.sums") if "items.sums" in part["files"] else None

        @cache
        def items() -> MappedItems:
            if sums is not None:
                arrow.by_blocks(sums)
            return MappedItems(arrow, part["batches"])

        return Part(codes, n, ids, tables=tables, items=items, tree=tree, tried="tree" in part, second=second)

    def _load_numbered(self, kind: str) -> np.ndarray:
        if not (facts := self.facts[kind]):
            return np.empty(0, np.int64)
        return CheckedFile(self.path / facts["name"], facts, remedy(self.path)).array((facts["n"],), np.int64)

    def _files(self) -> dict[str, dict[str, Any]]:
        """The facts in index.json about every file of the index."""
        return files_of(self.facts)


def _names(path: Path) -> list[str]:
    return [entry.name for entry in path.iterdir() if not entry.name.startswith(".")]


def files_of(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {f"{part['name']}.{kind}": file for part in facts["parts"] for kind, file in part["files"].items()}
    for kind in ("removed", "forgotten"):
        if one := facts[kind]:
            found |= {one["name"]: one, f"{one['name']}{COPY}": one}
    return found


def remedy(path: Path) -> str:
    return f"repair it with: hashlens index repair {quoted(path)}"


def read_facts(path: Path, name: str = "index.json") -> dict[str, Any]:
    """The facts in index.json, fully validated; those of an older version are upgraded."""
    facts = read_sealed(path / name)
    if facts.get("format") != FORMAT:
        from hashlens.index.upgrade import upgraded

        facts = upgraded(path, facts)
    conform(facts, SCHEMA, name)
    _require_order(facts)
    return facts


def _require_order(facts: dict[str, Any]) -> None:
    """Refuse facts that have the right types but contradict each other."""
    names = [part["name"] for part in facts["parts"]]
    if (facts["n_bits"] + 1) * (facts.get("second_bits", 0) + 1) > MOST_LEVELS and "second_bits" in facts:
        raise ValueError(f"second_bits is {facts['second_bits']}")
    if len(set(names)) < len(names):
        raise ValueError(f"{names[0]} is named twice")
    for part in facts["parts"]:
        if sum(batch["n"] for batch in part["batches"]) != part["n"]:
            raise ValueError(f"{part['name']} has not as many items as codes")
        if (part["first_id"] is None) != ("ids.npy" in part["files"]):
            raise ValueError(f"{part['name']} has no ids")
        for kinds, what in ((TABLES, "tables"), (KEYS, "keys")):
            if len({kind in part["files"] for kind in kinds}) > 1:
                raise ValueError(f"{part['name']} has half of its {what}")
        if bool(part.get("tree")) != ("tree.npy" in part["files"]):
            raise ValueError(f"{part['name']} has half of its tree")
        if ("second_bits" in facts) != ("second.npy" in part["files"]):
            raise ValueError(f"{part['name']} has not as many second codes as the index")
        if part["first_id"] is not None and part["first_id"] + part["n"] > facts["next_id"]:
            raise ValueError(f"{part['name']} has ids that were never given")


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    with replacing(path / f"index.json{COPY}") as copy:
        write_sealed(path / "index.json", facts, copy)
        sync(path)
    sync(path)


def link_file(path: Path, to: Path) -> None:
    """Give a file that never changes a second name, or copy it if that is not possible."""
    try:
        os.link(path, to)
    except OSError:
        copy_file(path, to)


def copy_file(path: Path, to: Path) -> None:
    with replacing(to) as temporary:
        shutil.copyfile(path, temporary)


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


def _stamp(path: Path) -> tuple[int, int] | None:
    """A value that differs whenever index.json was replaced; None if there is none."""
    try:
        found = (path / "index.json").stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _items_of(parts: list[Part]) -> Iterator[pa.Table]:
    """The items that were not removed, in chunks."""
    for part in parts:
        table = part.items().table()
        for rows in blocks(len(part), ROWS):
            yield table.take(pa.array(part.still(np.arange(rows.start, rows.stop))))
