"""Engine: an index on a server, which holds codes, second codes, paths, labels, ids and the model's identity.

It gives the same answers as an index folder with the same images. Its facts, with the schema version, are stored beside
the codes; so is a key of each removed image, to avoid adding it again by mistake (keys.py). A subclass implements
insertion, deletion, search and filters for one server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import pyarrow as pa

from hashlens.codes import Codes
from hashlens.codes.bits import require_levels
from hashlens.codes.model import MODEL, ModelFolder
from hashlens.errors import Damaged, DataError, MismatchError, UsageError
from hashlens.index import NEAREST, TRIED
from hashlens.index.base import Index, check_ids, require_numbers
from hashlens.index.catalog import common_folder, matching, require_text
from hashlens.index.items import ITEMS, as_items
from hashlens.index.keys import image_keys, path_keys
from hashlens.index.order import BY, Found, fill, ordered
from hashlens.schema import TEXT, conform, whole
from hashlens.settings import check, setting

FORMAT = "hashlens engine 2"
SCHEMA = {
    "format": FORMAT,
    "n_bits": whole(1, 65_536),
    "second_bits": whole(0, 65_536),
    "model": (None, MODEL),
    "index": re.compile(r"[a-z]{1,20}"),
    "roots": [TEXT],
}
ROOTS = 32  # most folders of images to list
PAGE = 10_000  # images read at a time
COLLECTION = re.compile(r"[a-z_][a-z0-9_]{0,47}")  # at most 63 characters with the suffixes of extra tables


class Asked(NamedTuple):
    """The limits of a search."""

    among: np.ndarray | None = None  # ids, ascending
    label: str | None = None


class New(NamedTuple):
    """The properties of a new collection, besides the length of its codes."""

    second_bits: int = 0
    model: dict[str, str] | None = None  # the model that makes the codes


@dataclass(eq=False)
class Engine(Index):
    """A collection of images on a server, created if it does not exist and `n_bits` is given."""

    n_bits: InitVar[int | None]
    where: InitVar[str]
    new: InitVar[New] = New()  # noqa: RUF009 - it cannot change
    collection: str = setting("hashlens", "name of the collection or table")
    index: str | None = setting(None, "how the server searches; by default as it was built, flat, which is exact")

    name = ""
    indexes: ClassVar[tuple[str, ...]] = ("flat",)  # kinds that the server offers
    many_writers = False  # whether several processes may add at a time
    damage: ClassVar[Damaged | None] = None  # the server takes care of its files

    def __post_init__(self, n_bits: int | None, where: str, new: New) -> None:
        self.facts: dict[str, Any] = {}
        check(self)
        if not COLLECTION.fullmatch(self.collection):
            raise UsageError(
                f"{self.collection!r} is not a valid collection; use lower-case letters, digits and _, at most 48"
            )
        if self.index not in (None, *self.indexes):
            raise UsageError(f"index must be one of {', '.join(self.indexes)} with {self.name}, got {self.index}")
        self._connect(where)
        try:
            self._open(n_bits, new)
        except BaseException:
            self.close()
            raise

    def _open(self, n_bits: int | None, new: New) -> None:
        facts = self._read_facts()
        if facts is None:
            if n_bits is None:
                raise DataError(
                    f"{self.path} does not exist there; build it with: hashlens index build CODES --engine {self.name}"
                )
            require_levels(n_bits, new.second_bits)
            facts = {"format": FORMAT, "n_bits": n_bits, **new._asdict(), "index": "flat", "roots": []}
            self._create(facts)
            facts = self._read_facts()
        self.facts = self._require_facts(facts)
        super().__init__(self.facts["n_bits"])
        self.second_bits: int = self.facts["second_bits"]
        self.model: Any = self.facts["model"]  # None if codes were added without one
        if n_bits not in (None, self.n_bits):
            raise MismatchError(
                f"{self.path} holds codes of {self.n_bits} bits, not of {n_bits}; choose another collection, or encode"
                " with the same model"
            )
        if new.model is not None and self.model is not None:
            ModelFolder.require_same(self.model, new.model, self.path)
        self._opened()

    def _require_facts(self, facts: Any) -> dict[str, Any]:
        found = facts.get("format") if isinstance(facts, dict) else None
        if found != FORMAT:
            raise MismatchError(
                f"{self.path} has the schema {str(found or 'of something else')[:60]!r}, this version reads {FORMAT!r};"
                " choose another collection, or copy the index to it again"
            )
        try:
            return cast(dict[str, Any], conform(facts, SCHEMA, "facts"))
        except ValueError as error:
            raise MismatchError(f"{self.path} has facts that are wrong ({error}); choose another collection") from error

    @property
    def path(self) -> Path:
        """The name to show in messages; models are searched in this folder."""
        return Path(f"{self.name}:{self.collection}")

    @property
    def kind(self) -> str:
        return self.index or cast(str, self.facts["index"])

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.kind == "flat"

    def changed(self) -> bool:
        """Always False: a server answers from its current state."""
        return False

    @property
    def roots(self) -> list[str]:
        """The folders of the images: for each addition, the common folder of its paths."""
        return list(self._now()["roots"])

    def add(  # type: ignore[override]
        self,
        codes: Codes,
        items: pa.Table | None = None,
        *,
        ids: Any = None,
        only_new: bool = False,
        again: bool = False,
        join: bool = True,
        trees: bool = True,
    ) -> np.ndarray:
        """Add codes with their paths and labels, under these ids or the next free ones; returns the ids.

        `only_new` and `again` are as in `IndexFolder.add`; `join` and `trees` only affect index folders.
        """
        self._require(codes)
        codes = self.require_second(codes)
        table = as_items(pa.table({"path": [""] * len(codes)}) if items is None else items)
        if len(table) != len(codes):
            raise DataError(f"got {len(codes):,} codes and {len(table):,} items; each code needs one item")
        given = None if ids is None else check_ids(ids, len(codes))
        with self._writing():
            keys = image_keys(codes.packed, table.column("path"))
            paths = path_keys(table.column("path"))
            if only_new:
                new = self._is_new(keys, paths, again)
                codes, table, keys, paths = codes[new], table.filter(pa.array(new)), keys[new], paths[new]
                given = None if given is None else given[new]
            if not len(codes):
                return np.empty(0, np.int64)
            roots = _with_roots(self._now()["roots"], [common_folder(table.column("path"))])
            added = self._take_ids(len(codes), given, roots)
            self._insert_all(codes, added, table, keys, paths)
        return added

    def replace(self, ids: Any, codes: Codes, items: pa.Table) -> np.ndarray:
        """Add codes and remove these ids."""
        with self._writing():
            added = self.add(codes, items)
            self.remove(ids)
        return added

    def set_mtimes(self, mtimes: Mapping[int, int]) -> None:
        """Update the mtimes of ids whose files were touched without a change of content."""
        if mtimes:
            with self._writing():
                self._set_mtimes(dict(mtimes))

    def require_by(self, by: str) -> None:
        if by not in BY:
            raise UsageError(f"by must be one of {', '.join(BY)}, got {by!r}")
        if by != "first" and not self.second_bits:
            raise UsageError(f"the index holds no second codes, so it cannot be searched by {by}; search by first")

    def only(self, label: str | None) -> dict[str, Any]:
        """Arguments that limit a search to images with a label."""
        if label is not None:
            require_text(label, "the label")
        return {"label": label}

    def search(
        self, codes: Codes, k: int, *, among: Any = None, label: str | None = None, by: str = "first"
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest k of each query, as in `HammingIndex.search`, optionally only of images with a label."""
        self._require_asked(codes, by)
        require_numbers(k=k)
        distances = np.full((len(codes), k), -1, np.int32)
        ids = np.full((len(codes), k), -1, np.int64)
        asked = _asked(among, label)
        if len(codes) and (asked.among is None or len(asked.among)):
            fill(self._find(codes, k, asked, by), distances, ids)
        return distances, ids

    def within(
        self, codes: Codes, radius: int, *, among: Any = None, label: str | None = None, by: str = "first"
    ) -> list[Found]:
        """For each query, the distances and ids of all codes at most `radius` away."""
        self._require_asked(codes, by)
        require_numbers(radius=radius)
        asked = _asked(among, label)
        if not len(codes) or (asked.among is not None and not len(asked.among)):
            return [ordered([], [])] * len(codes)
        most = self.second_bits if by == "second" else self.n_bits
        return self._find_within(codes, min(radius, most), asked, by)

    def looks_up(self, radius: int, by: str = "first") -> bool:
        return False

    def histogram(self, code: Codes, *, label: str | None = None, by: str = "first") -> np.ndarray | None:
        """How many images are 0, 1, … bits from the code; None if the server cannot count them."""
        raise NotImplementedError

    def count_at(self, code: Codes, distance: int, *, label: str | None = None, by: str = "first") -> int | None:
        """How many images are exactly that far; None if the server cannot count them."""
        raise NotImplementedError

    def lookup(self, ids: Any) -> dict[int, dict[str, Any]]:
        """Id, path, labels and codes (in hex) of those ids that are in the index."""
        ids = np.unique(np.asarray(ids, np.int64).ravel())
        shown = ("id", "path", "labels", "code", "second")[: 5 if self.second_bits else 4]
        return {row["id"]: {name: row[name] for name in shown} for row in self._rows(ids)} if len(ids) else {}

    def page(self, start: int, n: int) -> list[dict[str, Any]]:
        """`lookup` for n images from the start-th on, in the order of ids."""
        ids = self._ids_from(start, n)
        found = self.lookup(ids)
        return [found[id_] for id_ in ids if id_ in found]

    def labels(self, most: int = 1_000) -> list[str]:
        """The labels in the index, most frequent first; at most `most`."""
        raise NotImplementedError

    def examples(self, n: int = 6) -> list[int]:
        """Ids spread over the index, as example queries."""
        found = (self._first_from(int(place)) for place in np.linspace(0, self._highest(), n))
        return sorted({id_ for id_ in found if id_ is not None})

    def ids_with(self, label: str) -> np.ndarray:
        """The ids of the images that have this label."""
        require_text(label, "the label")
        return self._ids_labelled(label)

    def ids_like(self, pattern: str) -> np.ndarray:
        """The ids of the images whose path matches a shell pattern such as */cache/*."""
        matches = matching(pattern)
        return np.array([id_ for id_, path, *_ in self.stamps() if matches(path)], np.int64)

    def stamps(self) -> Iterator[tuple[int, str, Any, Any, Any, Any]]:
        """Id, path, size, mtime, labels and hash of every image, in the order of ids."""
        last = -1
        while rows := self._page_after(last, PAGE):
            for row in rows:
                yield row["id"], row["path"], row["size"], row["mtime"], row["labels"], row["hash"]
            last = rows[-1]["id"]

    def set_index(self, kind: str) -> dict[str, Any]:
        """Have the server build an index of this kind; returns its recall and other facts."""
        if kind not in self.indexes:
            raise UsageError(f"index must be one of {', '.join(self.indexes)} with {self.name}, got {kind}")
        self._build_index(kind)
        self._change_facts(index=kind)
        self.index = kind
        return {"index_kind": kind, "recall": 1.0 if kind == "flat" else self.recall()}

    def recall(self) -> float | None:
        """The share of nearest images, for some of its own images, that are as near as the exact search's."""
        ids = self.examples(TRIED)
        found = self.lookup(ids)
        right = total = 0
        kind = self.kind
        for id_ in ids:
            code = Codes(np.frombuffer(bytes.fromhex(found[id_]["code"]), np.uint8)[None], self.n_bits)
            self.index = "flat"
            exact = self.search(code, NEAREST + 1)[0][0]
            self.index = kind
            near = self.search(code, NEAREST + 1)[0][0]
            n = int((exact >= 0).sum()) - 1  # without the image itself
            right += min(n, int(((near >= 0) & (near <= exact[n])).sum()) - 1)
            total += n
        return round(right / total, 4) if total else None

    def _require_asked(self, codes: Codes, by: str) -> None:
        self._require(codes)
        self.require_by(by)
        if by != "first" and codes.second_bits != self.second_bits:
            raise MismatchError(
                f"the index holds second codes of {self.second_bits} bits, the query"
                + (f" has one of {codes.second_bits}" if codes.second else " has none")
                + "; encode it with the same model, or search by first"
            )

    def _is_new(self, keys: np.ndarray, paths: np.ndarray, again: bool) -> np.ndarray:
        """Which images to add, by their keys and path keys; of equal ones, only the first."""
        first = np.zeros(len(keys), bool)
        first[np.unique(keys, return_index=True)[1]] = True
        new = first & ~np.isin(keys, self._known("key", keys))
        if again or not new.any():
            return new
        removed = self._removed(np.concatenate([keys, paths]))
        same = np.isin(keys, removed)
        other = ~same & np.isin(paths, removed)
        if other.any():  # removed with another code, unless the path has an image now
            other &= ~np.isin(paths, self._known("path_key", paths[other]))
        return new & ~same & ~other

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Context in which writes are atomic if the server supports that."""
        yield

    def _now(self) -> dict[str, Any]:
        """The facts as currently stored on the server."""
        return self._require_facts(self._read_facts())

    def _connect(self, where: str) -> None:
        raise NotImplementedError

    def _read_facts(self) -> dict[str, Any] | None:
        """The facts; None if there is no such collection."""
        raise NotImplementedError

    def _create(self, facts: dict[str, Any]) -> None:
        raise NotImplementedError

    def _opened(self) -> None:
        """Called once the facts are known."""

    def _change_facts(self, **facts: Any) -> None:
        raise NotImplementedError

    def _take_ids(self, n: int, given: np.ndarray | None, roots: list[str]) -> np.ndarray:
        """Reserve these ids (refused if one is taken), or n that were never used; record the folders of the images."""
        raise NotImplementedError

    def _insert_all(self, codes: Codes, ids: np.ndarray, items: pa.Table, keys: np.ndarray, paths: np.ndarray) -> None:
        raise NotImplementedError

    def _set_mtimes(self, mtimes: dict[int, int]) -> None:
        raise NotImplementedError

    def _known(self, column: str, keys: np.ndarray) -> np.ndarray:
        """Those of the given keys that occur in this column of images."""
        raise NotImplementedError

    def _removed(self, keys: np.ndarray) -> np.ndarray:
        """Those of the given keys that belong to removed images."""
        raise NotImplementedError

    def _find(self, codes: Codes, k: int, asked: Asked, by: str) -> list[Found]:
        raise NotImplementedError

    def _find_within(self, codes: Codes, radius: int, asked: Asked, by: str) -> list[Found]:
        raise NotImplementedError

    def _rows(self, ids: np.ndarray) -> list[dict[str, Any]]:
        """Id, path, labels, code and second code of those ids that exist."""
        raise NotImplementedError

    def _page_after(self, id_: int, n: int) -> list[dict[str, Any]]:
        """Id, path, labels, size, mtime and hash of the next n images, in the order of ids."""
        raise NotImplementedError

    def _ids_from(self, start: int, n: int) -> list[int]:
        raise NotImplementedError

    def _first_from(self, id_: int) -> int | None:
        """An existing id that is at least this one."""
        raise NotImplementedError

    def _ids_labelled(self, label: str) -> np.ndarray:
        raise NotImplementedError

    def _build_index(self, kind: str) -> None:
        raise NotImplementedError


def _asked(among: Any, label: str | None) -> Asked:
    return Asked(None if among is None else np.unique(np.asarray(among, np.int64).ravel()), label)


def _with_roots(before: Iterable[str], new: Iterable[str]) -> list[str]:
    """All folders or, if there are too many, their common folder."""
    found = sorted({*before, *new})
    return found if len(found) <= ROOTS else [common_folder(pa.chunked_array([found]))]


def item_columns(items: pa.Table) -> list[tuple[Any, ...]]:
    """Path, labels, size, mtime and hash of each row."""
    return list(zip(*(items.column(name).to_pylist() for name in ITEMS.names), strict=True))
