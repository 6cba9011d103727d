"""`HammingIndex`: exact search by reading all codes, in memory or memory-mapped, or fewer with the help of trees."""

import copy
import threading
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.codes.bits import require_levels
from hashlens.codes.hamming import distances as distances_between
from hashlens.errors import MismatchError, UsageError
from hashlens.index.base import Index, refuse
from hashlens.index.order import BY, Found, ordered
from hashlens.index.radius import Tables, is_cheaper
from hashlens.index.tree import MANY as MANY_QUERIES
from hashlens.index.tree import Tree, best_tree, can_build, step_of
from hashlens.kernels import Rows, View, from_blocks, joined_blocks, kernels, to_blocks
from hashlens.machine import blocks, in_threads, n_threads, shares

QUERIES = 256  # per task of a thread
MANY = 32  # parts; with more, searches would be dominated by their overhead
SHARED = 8_000_000  # bytes of codes; above, several threads answer one query faster than one thread
QUERIES_OF_A_TREE = 3_000  # queries that cost as much time as building a tree
WATCHED = 64  # queries after which to check whether trees still pay off
UNASKED = 20_000_000  # most codes for which a tree, which takes memory, is built unasked
WITHOUT_TREES = (-1, False)  # cache key of the view without trees
NO_IDS = np.empty(0, np.int64)


class Part(Rows):
    """Codes in the order of their ids, in the layout of the kernels, and which of them were not removed."""

    def __init__(
        self,
        blocks: np.ndarray,  # (n_blocks, n_bytes, 64) uint8; a memory map stays one
        n: int,
        ids: np.ndarray | int,  # ascending, or the first of consecutive ids
        removed: np.ndarray = NO_IDS,
        tables: Tables | None = None,
        items: Callable[[], Any] = dict,  # makes the paths and labels of a catalog
        tree: Tree | None = None,
        tried: bool = False,  # whether a tree was tried
        second: np.ndarray | None = None,  # blocks of the second codes
    ):
        super().__init__(blocks, n, ids)
        self.second = second
        self.tables = tables
        self.tree, self.tried = tree, tried
        self.items = items
        self.remove(removed)

    @classmethod
    def of(cls, codes: Codes, ids: np.ndarray | int, items: Callable[[], Any] = dict) -> "Part":
        second = None if codes.second is None else to_blocks(codes.second.packed)
        return cls(to_blocks(codes.packed), len(codes), ids, items=items, second=second)

    @classmethod
    def joined(cls, parts: list["Part"]) -> "Part":
        """One part made of several, including all that was removed from them."""
        ids: np.ndarray | int = parts[0].first_id
        if any(isinstance(part._ids, np.ndarray) for part in parts) or any(
            after.first_id != before.last_id + 1 for before, after in pairwise(parts)
        ):
            ids = np.concatenate([part.ids(np.arange(len(part))) for part in parts])
        n = sum(map(len, parts))
        blocks = joined_blocks([(part.blocks, len(part)) for part in parts])
        seconds = [(part.second, len(part)) for part in parts if part.second is not None]
        return cls(blocks, n, ids, second=joined_blocks(seconds) if seconds else None)

    def of_second(self) -> "Part":
        """The second codes, to search by them alone."""
        assert self.second is not None
        part = Part(self.second, len(self), self._ids)
        part.alive = self.alive
        return part

    def with_removed(self, ids: np.ndarray) -> "Part":
        """The same codes with exactly these ids removed."""
        part = copy.copy(self)
        part.alive = None
        part.remove(ids)
        return part

    @property
    def first_id(self) -> int:
        return int(self._ids if isinstance(self._ids, int) else self._ids[0])

    @property
    def last_id(self) -> int:
        return int(self._ids + len(self) - 1 if isinstance(self._ids, int) else self._ids[-1])

    def places(self, ids: np.ndarray) -> np.ndarray:
        """The positions of those ids that are here, ascending."""
        if isinstance(self._ids, int):
            found = ids - self._ids
            found = found[(found >= 0) & (found < len(self))]
        else:
            found = np.searchsorted(self._ids, ids)
            found = found[(found < len(self)) & (self._ids[np.minimum(found, len(self) - 1)] == ids)]
        return self.still(np.unique(found))

    def still(self, places: np.ndarray | None = None) -> np.ndarray:
        """Those of the given positions, or of all, whose codes were not removed."""
        if places is None:
            return np.arange(len(self)) if self.alive is None else np.flatnonzero(self.alive)
        return places if self.alive is None else places[self.alive[places]]

    def remove(self, ids: np.ndarray) -> int:
        places = self.places(ids)
        if len(places):
            alive = np.ones(len(self), np.bool_) if self.alive is None else self.alive.copy()
            alive[places] = False
            self.alive = alive  # running searches keep the old array
        return len(places)

    @property
    def n_removed(self) -> int:
        return 0 if self.alive is None else len(self) - int(np.count_nonzero(self.alive))

    def looks_up(self, radius: int) -> bool:
        """Whether codes within this radius are looked up in tables, because that is cheaper."""
        return self.tables is not None and is_cheaper(len(self), self.blocks.shape[1], radius)


class HammingIndex(Index):
    """Exact search by Hamming distance.

    >>> index = HammingIndex(codes.n_bits)
    >>> index.add(codes)
    >>> distances, ids = index.search(codes[:5], k=10)
    """

    def __init__(self, n_bits: int, parts: list[Part] | None = None, *, second_bits: int = 0):
        super().__init__(n_bits)
        require_levels(n_bits, second_bits)
        self.second_bits = second_bits  # length of second codes; 0: none
        self._use(parts or [])

    def _use(self, parts: list[Part]) -> None:
        self.parts = parts
        self._changed()

    def _changed(self) -> None:
        """Forget everything computed from the parts."""
        self._views: dict[tuple[int, bool], View] = {}
        self._n_asked = 0
        for name in ("seconds", "_n", "_first_ids"):
            self.__dict__.pop(name, None)

    @cached_property
    def _n(self) -> int:
        return sum(len(part) - part.n_removed for part in self.parts)

    @cached_property
    def _first_ids(self) -> np.ndarray:
        return np.array([part.first_id for part in self.parts], np.int64)

    def _parts_of(self, ids: np.ndarray) -> list[Part]:
        """The parts that can hold some of these ids, so that few ids do not cost time in all parts."""
        numbers = np.unique(np.searchsorted(self._first_ids, ids, side="right") - 1)
        return [self.parts[number] for number in numbers.tolist() if number >= 0]

    @cached_property
    def seconds(self) -> "HammingIndex":
        """The second codes as an index of their own."""
        return HammingIndex(self.second_bits, [part.of_second() for part in self.parts])

    def search(self, codes: Codes, k: int, *, among: Any = None, by: str = "first") -> tuple[np.ndarray, np.ndarray]:
        """The nearest k of each query: distances (q, k) int32 and ids (q, k) int64; only `among` some ids.

        `by` is first, both or second (order.py); distances are those of the first code, unless it is second.
        """
        codes, index = self._asked_by(codes, by)
        distances, ids = Index.search(index, codes, k, among=among)
        return (distances // (self.second_bits + 1) if by == "both" else distances), ids

    def within(self, codes: Codes, radius: int, *, among: Any = None, by: str = "first") -> list[Found]:
        """For each query, the distances and ids of all codes at most `radius` away; `by` is as in `search`."""
        codes, index = self._asked_by(codes, by)
        found = Index.within(index, codes.first, radius, among=among)
        if by == "both":
            found = [self.order_ties(codes[row], *of_query) for row, of_query in enumerate(found)]
        return found

    def order_ties(self, code: Codes, distances: np.ndarray, ids: np.ndarray) -> Found:
        """The results for a code, whose ids must be in the index, ordered by both codes."""
        assert code.second is not None
        order = np.argsort(ids)
        places = [(part, part.places(ids[order])) for part in self._parts_of(ids)]
        packed = [from_blocks(part.second, there) for part, there in places if part.second is not None]
        theirs = Codes(np.concatenate([code.second.packed[:0], *packed]), self.second_bits)
        return ordered(distances[order], ids[order], distances_between(code.second, theirs)[0])

    def _asked_by(self, codes: Codes, by: str) -> "tuple[Codes, HammingIndex]":
        """The codes to search with, and the index to search."""
        self._require(codes)
        self.require_by(by)
        if by == "first":
            return codes.first, self
        if codes.second_bits != self.second_bits:
            raise MismatchError(
                f"the index holds second codes of {self.second_bits} bits, the query"
                + (f" has one of {codes.second_bits}" if codes.second else " has none")
                + "; encode it with the same model, or search by first"
            )
        assert codes.second is not None
        return (codes, self) if by == "both" else (codes.second, self.seconds)

    def require_by(self, by: str) -> None:
        if by not in BY:
            raise UsageError(f"by must be one of {', '.join(BY)}, got {by!r}")
        if by != "first" and not self.second_bits:
            raise UsageError(f"the index holds no second codes, so it cannot be searched by {by}; search by first")

    def _view(self, k: int, n_queries: int) -> View:
        """All parts, with the trees that find k results faster."""
        key = step_of(k), n_queries >= MANY_QUERIES
        view = self._views.get(key)
        if view is None:
            most = [part.tree.most.get(key) if part.tree else None for part in self.parts]
            view = View(self.parts, tuple(one is not None for one in most))
            view.most = sum(filter(None, most))
            self._views[key] = view
        return view

    def _watch(self, view: View, n_queries: int, n_read: int) -> None:
        """Stop using trees if they read too much for these queries, unlike for the codes used to try them."""
        if not view.most:
            return
        view.n_asked, view.n_read = view.n_asked + n_queries, view.n_read + n_read
        if view.n_asked < WATCHED:
            return
        if view.n_read > view.n_asked * view.most:
            for key in [key for key, one in self._views.items() if one is view]:
                del self._views[key]
                for part in self.parts:
                    if part.tree is not None:
                        part.tree.most.pop(key, None)
        view.n_asked = view.n_read = 0

    def build_trees(self) -> None:
        """Make `search` read only some of the codes if that is faster, as it is for most trained codes.

        This happens by itself, in the background, after enough queries to pay off.
        """
        self._build_trees([part for part in self.parts if part.tree is None and can_build(len(part))])

    def _build_trees(self, parts: list[Part]) -> None:
        for part in parts:
            part.tree, part.tried = best_tree(part, self.n_bits), True
        self._views = {}

    def _asked(self, n_queries: int) -> None:
        """Count queries until building trees pays off."""
        self._n_asked += n_queries
        if self._n_asked >= QUERIES_OF_A_TREE:
            self._n_asked = -(2**62)  # only once for these parts
            parts = [part for part in self.parts if not part.tried and can_build(len(part)) and len(part) <= UNASKED]
            if parts:
                threading.Thread(target=self._build_trees, args=(parts,), daemon=True).start()

    def __len__(self) -> int:
        return self._n

    def build_tables(self) -> None:
        """Make `within` answer small radii without reading all codes; takes 4 more bytes per code and 16 bits."""
        for part in self.parts:
            part.tables = part.tables or Tables.build(part)

    def looks_up(self, radius: int, by: str = "first") -> bool:
        """Whether `within` answers this radius from tables, without reading all codes."""
        if by == "second":
            return self.seconds.looks_up(radius)
        return bool(self.parts) and all(part.looks_up(min(radius, self.n_bits)) for part in self.parts)

    def histogram(self, code: Codes, *, among: Any = None, by: str = "first") -> np.ndarray:
        """(n_bits + 1,) int64: how many codes, optionally only `among` some ids, are 0, 1, … bits from the one code."""
        if by == "second":
            return self.seconds.histogram(self._asked_by(code, by)[0], among=among)
        self._require(code)
        if len(code) != 1:
            raise MismatchError(f"a histogram counts the distances from one code, got {len(code)}")
        parts = self._among(None if among is None else np.unique(np.asarray(among, np.int64)))
        tasks = [(part, rows) for part in parts for rows in shares(len(part.blocks))]
        counts = np.zeros((len(tasks), self.n_bits + 1), np.int64)
        query = np.ascontiguousarray(code.packed[0])

        def work(number: int) -> None:
            part, rows = tasks[number]
            kernels().histogram(part, rows.start, rows.stop, query, counts[number])

        in_threads(work, range(len(tasks)))
        return counts.sum(axis=0)

    def batches(self, n: int) -> Iterator[tuple[Codes, np.ndarray]]:
        """All codes and their ids, from at most n positions at a time."""
        for part in self.parts:
            for rows in blocks(len(part), n):
                places = part.still(np.arange(rows.start, rows.stop))
                yield self._codes(part, places), part.ids(places)

    def _codes(self, part: Part, places: np.ndarray) -> Codes:
        second = None if part.second is None else Codes(from_blocks(part.second, places), self.second_bits)
        return Codes(part.codes(places), self.n_bits, second)

    def _highest(self) -> int:
        return self.parts[-1].last_id if self.parts else -1

    def _insert(self, codes: Codes, ids: np.ndarray) -> None:
        codes = self.require_second(codes)
        order = np.argsort(ids, kind="stable")
        ids, first, highest = ids[order], int(ids[order[0]]), self._highest()
        refuse(self._contains(ids))
        consecutive = ids[-1] - first == len(ids) - 1
        self.parts = [*self.parts, Part.of(codes[order], first if consecutive else ids)]
        if first <= highest or len(self.parts) > MANY:
            self._sort()
        self._changed()

    def _delete(self, ids: np.ndarray) -> int:
        removed = sum(part.remove(ids) for part in self.parts)
        self._changed()
        return removed

    def _contains(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate([ids[:0], *(part.ids(part.places(ids)) for part in self._parts_of(ids))])

    def _nearest(self, codes: Codes, k: int, among: np.ndarray | None, distances: np.ndarray, ids: np.ndarray) -> None:
        if among is not None:
            view = View(self._among(among), trees=False)
        elif codes.second is not None:  # all ties are read, and trees have them in no useful order
            view = self._views.setdefault(WITHOUT_TREES, View(self.parts, trees=False))
        else:
            view = self._view(distances.shape[1], len(codes))
        if self._n_asked >= 0 and codes.second is None:
            self._asked(len(codes))
        queries = np.ascontiguousarray(codes.packed)
        seconds = None if codes.second is None else np.ascontiguousarray(codes.second.packed)

        def nearest(rows: slice, distances: np.ndarray, ids: np.ndarray, share: int = 0, n_shares: int = 1) -> int:
            second = (None, 0) if seconds is None else (seconds[rows], self.second_bits)
            return kernels().nearest(view, queries[rows], self.n_bits, distances, ids, share, n_shares, *second)

        every = slice(0, len(codes))
        if len(codes) <= QUERIES and (view.n_bytes < SHARED or n_threads() == 1):
            self._watch(view, len(codes), nearest(every, distances, ids))
            return
        tasks = blocks(len(codes), QUERIES)
        if view.n_bytes < SHARED or len(tasks) >= n_threads():

            def work(rows: slice) -> None:
                n_read.append(nearest(rows, distances[rows], ids[rows]))

            n_read: list[int] = []
            in_threads(work, tasks)
            self._watch(view, len(codes), sum(n_read))
            return
        # with few queries, each thread reads a share of the database
        n_shares = n_threads()
        found = np.empty((2, n_shares, *distances.shape), np.int64)

        def work_on(share: int) -> None:
            near = np.empty(distances.shape, np.int32)
            nearest(every, near, found[1, share], share, n_shares)
            found[0, share] = near

        in_threads(work_on, range(n_shares))
        apart, theirs = (np.concatenate(list(of), axis=1) for of in found)
        apart[apart < 0] = np.iinfo(np.int64).max  # sort after all results
        order = np.lexsort((theirs, apart))[:, : distances.shape[1]]
        distances[:] = np.take_along_axis(apart, order, axis=1)
        ids[:] = np.take_along_axis(theirs, order, axis=1)
        distances[ids < 0] = -1

    def _within(self, codes: Codes, radius: int, among: np.ndarray | None) -> list[Found]:
        parts = self._among(among)
        found = [ordered([], [])] * len(codes)
        queries = np.ascontiguousarray(codes.packed)

        def work(row: int) -> None:
            each = [_within(queries[row], self.n_bits, part, radius) for part in parts]
            found[row] = ordered(*(np.concatenate(values) for values in zip(*each, strict=True)))

        if parts:
            in_threads(work, range(len(codes)))
        return found

    def _among(self, ids: np.ndarray | None) -> list[Part]:
        """All parts or, with ids, copies of parts that hold only these, which are usually few."""
        if ids is None:
            return self.parts
        chosen = [(part, part.places(ids)) for part in self._parts_of(ids)]
        return [Part.of(self._codes(part, places), part.ids(places)) for part, places in chosen if len(places)]

    def _sort(self) -> None:
        """Join all parts in the order of ids, which makes results at equal distances ordered by id."""
        codes, ids = self._joined()
        order = np.argsort(ids, kind="stable")
        self.parts = [Part.of(codes[order], ids[order])]

    def _joined(self, parts: list[Part] | None = None) -> tuple[Codes, np.ndarray]:
        """Concatenated codes and ids of these parts, or of all, without removed ones."""
        parts = self.parts if parts is None else parts
        places = [part.still() for part in parts]
        codes = [self._codes(part, still) for part, still in zip(parts, places, strict=True)]
        ids = [part.ids(still) for part, still in zip(parts, places, strict=True)]
        return Codes.concatenate(codes), np.concatenate(ids)


def _within(query: np.ndarray, n_bits: int, part: Part, radius: int) -> Found:
    by_tree = part.tree is not None and radius <= part.tree.radius
    if not by_tree and part.tables is not None and part.looks_up(radius):
        return part.tables.within(query, part, radius)
    return kernels().within(part, query, n_bits, radius)
