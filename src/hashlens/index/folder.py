"""The index on disk: codes with their paths and labels in, a folder out that opens at once and survives a crash.

INDEX/
  index.json              what belongs to the index: code length, model, parts, removed ids; replaced in one step
  part-00000.pieces.npy   (n_pieces, n) uint16, 16 bits of all codes a row, mapped into memory
  part-00000.items.arrow  path and labels of each code, mapped into memory
  part-00000.ids.npy      (n,) int64, only after `compact`; otherwise ids are first_id, first_id + 1, …
  removed-00001.npy       sorted ids that are no longer there
  forgotten-00002.npy     sorted keys (known.py) of pictures that were removed and are not in a part any more

A change writes new files first and index.json last; two processes do not change an index at the same time. Files of
these names that index.json does not name were left by a crash and are deleted by the next change. Ids never change and
are never used again.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute

from hashlens.codes import Codes
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.files import (
    alone_in,
    is_utf8,
    quoted,
    replacing,
    require_own,
    require_room,
    sha256,
    storage_errors,
    sync,
    write_json,
)
from hashlens.index import HammingIndex, Part
from hashlens.index.known import KnownPictures, picture_keys
from hashlens.index.pieces import PIECE

FORMAT = "hashlens index 2"
FILE = re.compile(r"part-\d{5,}\.(pieces\.npy|items\.arrow|ids\.npy)|(removed|forgotten)-\d{5,}\.npy")
TEMPORARY = re.compile(r"\.(part-\d{5,}|removed-\d{5,}|forgotten-\d{5,}|index)\..+\.tmp")
ITEMS = pa.schema([("path", pa.string()), ("labels", pa.list_(pa.string()))])


class IndexFolder:
    """A `HammingIndex` whose codes lie in a folder, and what each id stands for."""

    def __init__(self, path: Path, facts: dict[str, Any]):
        self.path = path
        self.facts = facts
        self._known: KnownPictures | None = None  # once it is asked for, until something is removed
        self._gone: tuple[Any, np.ndarray] | None = None  # what was removed, and their keys
        self.index = self._map()
        self._stamp = stamp(path)

    @classmethod
    def create(cls, path: Path, n_bits: int, model: dict[str, str]) -> Self:
        facts = {
            "format": FORMAT,
            "n_bits": n_bits,
            "model": model,
            "next_id": 0,
            "next_file": 0,
            "parts": [],
            "removed": None,
            "forgotten": None,
        }
        with alone_in(path):
            if (path / "index.json").exists():
                raise DataError(
                    f"{path} holds an index already; add to it with: hashlens index add {quoted(path)} CODES"
                )
            require_own(path, ["index.json"], "index")
            write_json(path / "index.json", facts)
            return cls(path, facts)

    @classmethod
    def open(cls, path: Path) -> Self:
        try:
            before = stamp(path)
            facts = _read_facts(path)
            if facts["format"] != FORMAT:
                raise MismatchError(f"{path} has the format {facts['format']!r}, this version reads {FORMAT!r}")
            folder = cls(path, facts)
            folder._stamp = before  # a change while this was read is seen by `changed`
            return folder
        except FileNotFoundError as error:
            if error.filename and Path(error.filename).name != "index.json":
                raise DataError(f"{error.filename} is missing from the index; build the index again") from error
            raise DataError(f"there is no index in {path}; make one with: hashlens index build CODES") from error
        except PermissionError as error:
            raise DataError(f"{error.filename} cannot be read: permission denied") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"the index in {path} is damaged ({error}); build it again from its codes") from error

    def __len__(self) -> int:
        return len(self.index)

    @property
    def n_bits(self) -> int:
        return self.facts["n_bits"]

    @property
    def has_removed(self) -> bool:
        """Whether pictures were ever removed."""
        return bool(self.facts["removed"] or self.facts["forgotten"])

    def changed(self) -> bool:
        """Whether another process has changed the index since; this one still answers as before."""
        return stamp(self.path) not in (self._stamp, None)

    def add(self, codes: Codes, items: pa.Table, *, only_new: bool = False, again: bool = False) -> np.ndarray:
        """Add codes with their paths and labels; returns the new ids, none if nothing was added.

        With `only_new` a picture, that is a path with its code, that is there is not added, nor one that was removed,
        unless it is to be there `again`.
        """
        if codes.n_bits != self.n_bits:
            raise MismatchError(f"{self.path} holds codes of {self.n_bits} bits, these have {codes.n_bits}")
        if len(codes) != items.num_rows:
            raise DataError(f"there are {len(codes):,} codes and {items.num_rows:,} items; each code needs its own")
        with self._alone():
            known = None
            if only_new:
                known = self._known_pictures()
                keys = picture_keys(codes.pieces(), items.column("path"))
                is_new = known.new(keys)
                if not again:
                    is_new &= ~np.isin(keys, self._removed_keys())
                codes, items, keys = codes[is_new], items.filter(pa.array(is_new)), keys[is_new]
            if not len(codes):
                return np.empty(0, np.int64)
            first = self.facts["next_id"]
            with self._change() as facts:
                facts["parts"].append(self._write_part(codes.pieces().T, items, first))
                facts["next_id"] += len(codes)
            if known is not None:  # the change has made us forget it
                known.add(keys)
                self._known = known
        return np.arange(first, first + len(codes))

    def remove(self, ids: Any) -> int:
        """Forget these ids; returns how many of them were there. `compact` gives their room back."""
        ids = np.unique(np.asarray(ids, np.int64).ravel())
        with self._alone():
            there = np.concatenate([np.empty(0, np.int64), *(part.ids(part.places(ids)) for part in self.index.parts)])
            if len(there):
                removed = np.union1d(self._removed(), there)
                with self._change() as facts:
                    facts["removed"] = self._save_numbered("removed", removed, facts)
        return len(there)

    def compact(self) -> int:
        """Write everything that is still there into one part; returns the number of codes whose room was given back.

        8 bytes of each that was removed are kept, so that it is not added again by mistake.
        """
        with self._alone():
            self.verify()  # what is damaged would be written anew, with a checksum that says that it is whole
            return self._compact()

    def _compact(self) -> int:
        alive = [np.flatnonzero(part.alive) if len(part.alive) else np.arange(len(part)) for part in self.index.parts]
        n_removed = sum(len(part) for part in self.index.parts) - len(self)
        if n_removed == 0 and len(self.index.parts) < 2:
            return 0
        pieces = [part.pieces[:, places] for part, places in zip(self.index.parts, alive, strict=True)]
        ids = [part.ids(places) for part, places in zip(self.index.parts, alive, strict=True)]
        items = [self.items(number).take(places) for number, places in enumerate(alive)]
        removed = np.unique(self._removed_keys())
        with self._change() as facts:
            facts["parts"] = []
            if len(removed):
                facts["forgotten"] = self._save_numbered("forgotten", removed, facts)
            if len(self):
                part = self._write_part(np.concatenate(pieces, axis=1), pa.concat_tables(items), np.concatenate(ids))
                facts["parts"] = [part]
            facts["removed"] = None
        return n_removed

    def verify(self) -> int:
        """Compare every file with its checksum; returns the number of files."""
        for name, expected in self._files():
            try:
                found = sha256(self.path / name)
            except OSError as error:
                raise DataError(
                    f"{self.path / name} cannot be read ({error.strerror}); build the index again"
                ) from error
            if found != expected:
                raise DataError(f"{self.path / name} is damaged: its checksum is not that of the index; build it again")
        return len(self._files())

    def item(self, id_: int) -> dict[str, Any] | None:
        """Path and labels of an id, or None if it is not there (any more)."""
        for number, part in enumerate(self.index.parts):
            places = part.places(np.array([id_]))
            if len(places):
                row = self.items(number).slice(int(places[0]), 1).to_pylist()[0]
                return {"id": int(id_), "path": row["path"], "labels": row["labels"]}
        return None

    def code(self, id_: int) -> Codes | None:
        for part in self.index.parts:
            places = part.places(np.array([id_]))
            if len(places):
                return Codes.from_pieces(part.pieces[:, places].T, self.n_bits)
        return None

    def ids_with(self, label: str) -> np.ndarray:
        """The ids of the pictures that have this label."""
        require_text(label, "the label")
        found = [np.empty(0, np.int64)]
        for number, part in enumerate(self.index.parts):
            column = self.items(number).column("labels").combine_chunks()
            flat = pa.compute.equal(column.flatten(), label)
            places = np.unique(pa.compute.list_parent_indices(column).filter(flat).to_numpy())
            found.append(part.ids(part.still(places)))
        return np.concatenate(found)

    def ids_like(self, pattern: str) -> np.ndarray:
        """The ids of the pictures whose path matches a shell pattern such as */cache/*."""
        require_text(pattern, "the pattern")
        try:
            matches = re.compile(fnmatch.translate(pattern)).match
        except re.error as error:
            raise UsageError(f"'{pattern}' is no pattern ({error}); write one such as '*/cache/*'") from error
        found = [np.empty(0, np.int64)]
        for number, part in enumerate(self.index.parts):
            paths = self.items(number).column("path").to_pylist()
            places = np.flatnonzero([matches(path) is not None for path in paths])
            found.append(part.ids(part.still(places)))
        return np.concatenate(found)

    def require_model(self, fingerprint: str) -> None:
        own = self.facts["model"]["fingerprint"]
        if own != fingerprint:
            raise MismatchError(
                f"{self.path} was made with the model {own[:12]}, this one is {fingerprint[:12]}; codes of two models"
                " cannot be compared: use that model, or encode the pictures again"
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Within, no other process changes the index; what others changed before is known, what they left is gone."""
        with alone_in(self.path):
            facts = _read_facts(self.path)
            if facts != self.facts:
                self.facts = facts
                self.index = self._map()
            named = {name for name, _ in self._files()}
            for entry in self.path.iterdir():
                ours = FILE.fullmatch(entry.name) or TEMPORARY.fullmatch(entry.name)
                if ours and entry.name not in named:
                    entry.unlink()
            yield
            self._stamp = stamp(self.path)

    @contextmanager
    def _change(self) -> Iterator[dict[str, Any]]:
        """Facts to be changed; they and the files they name become the index when the block ends well."""
        facts = json.loads(json.dumps(self.facts))
        with storage_errors(self.path):
            yield facts
            sync(self.path)  # names of files first, then the list that names them
            write_json(self.path / "index.json", facts)
            sync(self.path)
        before = {name for name, _ in self._files()}
        self.facts = facts
        self.index = self._map()
        for name in before - {name for name, _ in self._files()}:
            (self.path / name).unlink()

    def _write_part(self, pieces: np.ndarray, items: pa.Table, ids: np.ndarray | int) -> dict[str, Any]:
        require_room(self.path, pieces.nbytes + 2 * items.nbytes, "a part of the index")
        number = max([int(part["name"][5:]) for part in self.facts["parts"]], default=-1) + 1
        name = f"part-{number:05d}"
        self._save(f"{name}.pieces.npy", np.ascontiguousarray(pieces))
        with replacing(self.path / f"{name}.items.arrow") as temporary, pa.OSFile(str(temporary), "wb") as file:
            chosen = pa.table([items.column("path"), _labels(items)], schema=ITEMS)
            with pa.ipc.new_file(file, ITEMS) as writer:
                writer.write_table(chosen.combine_chunks())
        kinds = ["pieces.npy", "items.arrow"]
        if not isinstance(ids, int):
            self._save(f"{name}.ids.npy", ids)
            kinds.append("ids.npy")
        return {
            "name": name,
            "n": pieces.shape[1],
            "first_id": ids if isinstance(ids, int) else None,
            "sha256": {kind: sha256(self.path / f"{name}.{kind}") for kind in kinds},
        }

    def _save_numbered(self, kind: str, array: np.ndarray, facts: dict[str, Any]) -> dict[str, Any]:
        name = f"{kind}-{facts['next_file']:05d}.npy"
        facts["next_file"] += 1
        self._save(name, array)
        return {"name": name, "n": len(array), "sha256": sha256(self.path / name)}

    def _save(self, name: str, array: np.ndarray) -> None:
        with replacing(self.path / name) as temporary, temporary.open("wb") as file:
            np.save(file, array)

    def _known_pictures(self) -> KnownPictures:
        """Those that are there."""
        if self._known is None:
            self._known = KnownPictures()
            for number, part in enumerate(self.index.parts):
                keys = picture_keys(part.pieces.T, self.items(number).column("path"))
                self._known.add(keys[part.alive] if len(part.alive) else keys)
        return self._known

    def _removed_keys(self) -> np.ndarray:
        """Those that were removed, now or before `compact`."""
        forgotten = self.facts["forgotten"]
        of = (self.facts["removed"], forgotten)
        if self._gone is not None and self._gone[0] == of:
            return self._gone[1]
        keys = [np.load(self.path / forgotten["name"]) if forgotten else np.empty(0, np.int64)]
        for number, part in enumerate(self.index.parts):
            if len(part.alive):
                places = np.flatnonzero(~part.alive)
                keys.append(picture_keys(part.pieces[:, places].T, self.items(number).column("path").take(places)))
        self._gone = of, np.concatenate(keys)
        return self._gone[1]

    def _map(self) -> HammingIndex:
        self._known = None
        removed = self._removed()
        parts = []
        for part in self.facts["parts"]:
            pieces = np.load(self.path / f"{part['name']}.pieces.npy", mmap_mode="r")
            if pieces.shape != (-(-self.n_bits // PIECE), part["n"]) or pieces.dtype != np.uint16:
                raise ValueError(f"{part['name']}.pieces.npy does not hold what index.json says")
            first = part["first_id"]
            ids = np.load(self.path / f"{part['name']}.ids.npy", mmap_mode="r") if first is None else first
            parts.append(Part(pieces, ids, removed))
        self.items = lru_cache(None)(self._read_items)  # mapped when first asked for
        return HammingIndex(self.n_bits, parts)

    def _removed(self) -> np.ndarray:
        removed = self.facts["removed"]
        return np.load(self.path / removed["name"]) if removed else np.empty(0, np.int64)

    def _read_items(self, number: int) -> pa.Table:
        path = self.path / f"{self.facts['parts'][number]['name']}.items.arrow"
        try:
            return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{path} is missing or damaged; build the index again") from error

    def _files(self) -> list[tuple[str, str]]:
        files = [
            (f"{part['name']}.{kind}", digest)
            for part in self.facts["parts"]
            for kind, digest in part["sha256"].items()
        ]
        lists = [self.facts[kind] for kind in ("removed", "forgotten") if self.facts[kind]]
        return files + [(one["name"], one["sha256"]) for one in lists]


def _read_facts(path: Path) -> dict[str, Any]:
    return {"forgotten": None} | json.loads((path / "index.json").read_text(encoding="utf-8"))


def stamp(path: Path) -> tuple[int, int] | None:
    """What differs whenever index.json was replaced; None if there is none."""
    try:
        found = (path / "index.json").stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def require_text(text: str, what: str) -> None:
    """Half of a pair, as JSON can spell it, or a byte that is no UTF-8, as a shell can: no such text is in an index."""
    if not is_utf8(text):
        raise UsageError(f"{what} is not text; give one of those that the index has")


def _labels(items: pa.Table) -> Any:
    if "labels" in items.column_names:
        return items.column("labels")
    return pa.nulls(items.num_rows, pa.list_(pa.string()))
