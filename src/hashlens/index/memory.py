"""`HammingIndex`: exact search by reading all codes, in memory or in memory maps."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.errors import MismatchError
from hashlens.index.base import Index, refuse
from hashlens.index.kernels import scan
from hashlens.index.order import Found, ordered, together
from hashlens.index.radius import Tables, is_cheaper
from hashlens.machine import blocks, in_threads, n_threads, shares

QUERIES = 256  # that pass over a part of the database while it is in the cache
MANY = 32  # parts; with more, a search would spend its time between them
SPARE = 256  # places beyond k, so that what is kept is seldom sorted out
PADDING = np.iinfo(np.int64).max  # after all that was found
PLACE = (1 << scan.SHIFT) - 1
NO_IDS = np.empty(0, np.int64)


class Part:
    """Codes in the order of their ids: `pieces` as the kernels read them, and which of them were not removed."""

    def __init__(
        self,
        pieces: np.ndarray,  # (n_pieces, n) uint16; a memory map stays one
        ids: np.ndarray | int,  # ascending, or the first of consecutive ones
        removed: np.ndarray = NO_IDS,
        tables: Tables | None = None,
        items: Callable[[], Any] = dict,  # the paths and labels of a catalog
    ):
        self.pieces = np.ascontiguousarray(pieces)
        self.pieces.flags.writeable = False  # like a map, so that loops are compiled for one kind of array
        self.tables = tables
        self.items = items
        self.alive = scan.NOTHING
        self._ids = ids
        self.remove(removed)

    def __len__(self) -> int:
        return self.pieces.shape[1]

    @property
    def last_id(self) -> int:
        return int(self._ids + len(self) - 1 if isinstance(self._ids, int) else self._ids[-1])

    def ids(self, places: np.ndarray) -> np.ndarray:
        return places + self._ids if isinstance(self._ids, int) else self._ids[places]

    def places(self, ids: np.ndarray) -> np.ndarray:
        """The places of those ids that are here, ascending."""
        if isinstance(self._ids, int):
            found = ids - self._ids
            found = found[(found >= 0) & (found < len(self))]
        else:
            found = np.searchsorted(self._ids, ids)
            found = found[(found < len(self)) & (self._ids[np.minimum(found, len(self) - 1)] == ids)]
        return self.still(np.unique(found))

    def still(self, places: np.ndarray | None = None) -> np.ndarray:
        """Those of these places, or of all, whose codes were not removed."""
        if places is None:
            return np.flatnonzero(self.alive) if len(self.alive) else np.arange(len(self))
        return places[self.alive[places]] if len(self.alive) else places

    def codes(self, places: np.ndarray, n_bits: int) -> Codes:
        return Codes.from_pieces(self.pieces[:, places].T, n_bits)

    def remove(self, ids: np.ndarray) -> int:
        places = self.places(ids)
        if len(places) and not len(self.alive):
            self.alive = np.ones(len(self), np.bool_)
        self.alive[places] = False
        return len(places)

    def looks_up(self, radius: int) -> bool:
        """Whether codes within this radius are found by tables, since that is cheaper."""
        return self.tables is not None and is_cheaper(len(self), len(self.pieces), radius)


class HammingIndex(Index):
    """Exact search by Hamming distance.

    >>> index = HammingIndex(codes.n_bits)
    >>> index.add(codes)
    >>> distances, ids = index.search(codes[:5], k=10)
    """

    def __init__(self, n_bits: int, parts: list[Part] | None = None):
        super().__init__(n_bits)
        self._use(parts or [])

    def _use(self, parts: list[Part]) -> None:
        self.parts = parts
        self._n = sum(len(part) - int(np.count_nonzero(~part.alive)) for part in parts)

    def __len__(self) -> int:
        return self._n

    def build_tables(self) -> None:
        """Make `within` answer small radii without reading all codes; 4 more bytes per code and 16 bits."""
        for part in self.parts:
            part.tables = part.tables or Tables.build(part.pieces)

    def looks_up(self, radius: int) -> bool:
        """Whether `within` answers this radius from tables, without reading all codes."""
        return bool(self.parts) and all(part.looks_up(min(radius, self.n_bits)) for part in self.parts)

    def histogram(self, code: Codes, *, among: Any = None) -> np.ndarray:
        """(n_bits + 1,) int64: how many codes, or how many `among` these ids, are 0, 1, … bits from the one code."""
        self._require(code)
        if len(code) != 1:
            raise MismatchError(f"a histogram counts the distances from one code, got {len(code)}")
        query = code.pieces()[0]
        parts = self._among(None if among is None else np.unique(np.asarray(among, np.int64)))
        tasks = [(part, rows) for part in parts for rows in shares(len(part))]
        counts = np.zeros((len(tasks), self.n_bits + 1), np.int64)

        def work(number: int) -> None:
            part, rows = tasks[number]
            scan.histogram(query, part.pieces, rows.start, rows.stop, part.alive, counts[number])

        in_threads(work, range(len(tasks)))
        return counts.sum(axis=0)

    def batches(self, n: int) -> Iterator[tuple[Codes, np.ndarray]]:
        """All codes and their ids, from at most n places at a time."""
        for part in self.parts:
            for rows in blocks(len(part), n):
                places = part.still(np.arange(rows.start, rows.stop))
                yield part.codes(places, self.n_bits), part.ids(places)

    def _highest(self) -> int:
        return self.parts[-1].last_id if self.parts else -1

    def _insert(self, codes: Codes, ids: np.ndarray) -> None:
        order = np.argsort(ids, kind="stable")
        ids, first, highest = ids[order], int(ids[order[0]]), self._highest()
        refuse(self._contains(ids))
        consecutive = ids[-1] - first == len(ids) - 1
        self.parts.append(Part(codes[order].pieces().T, first if consecutive else ids))
        if first <= highest or len(self.parts) > MANY:
            self._sort()
        self._n += len(codes)

    def _delete(self, ids: np.ndarray) -> int:
        removed = sum(part.remove(ids) for part in self.parts)
        self._n -= removed
        return removed

    def _contains(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate([ids[:0], *(part.ids(part.places(ids)) for part in self.parts)])

    def _nearest(self, codes: Codes, k: int, among: np.ndarray | None, distances: np.ndarray, ids: np.ndarray) -> None:
        parts = self._among(among)
        if not parts:
            return
        queries, k = codes.pieces(), min(k, self._n)
        tasks = blocks(len(codes), QUERIES)
        # with few queries each thread reads a share of the database, else each has its own queries
        n_shares = n_threads() if len(tasks) < n_threads() else 1
        found = np.empty((len(codes), n_shares, k), np.int64)

        def work(task: tuple[slice, int]) -> None:
            rows, share = task
            found[rows, share] = _nearest(queries[rows], parts, share, n_shares, k, self.n_bits)

        in_threads(work, [(rows, share) for rows in tasks for share in range(n_shares)])
        nearest = found[:, 0] if n_shares == 1 else np.sort(found.reshape(len(codes), -1))[:, :k]
        there = nearest != PADDING
        distances[:, :k][there] = nearest[there] >> scan.SHIFT
        ids[:, :k][there] = _ids(parts, nearest[there] & PLACE)

    def _within(self, codes: Codes, radius: int, among: np.ndarray | None) -> list[Found]:
        parts, queries = self._among(among), codes.pieces()
        found = [ordered([], [])] * len(codes)

        def work(row: int) -> None:
            found[row] = together([[_within(queries[row], part, radius)] for part in parts])[0]

        if parts:
            in_threads(work, range(len(codes)))
        return found

    def _among(self, ids: np.ndarray | None) -> list[Part]:
        """All parts or, with ids, parts that hold only these: copies, since they are few as a rule."""
        if ids is None:
            return self.parts
        chosen = [(part, part.places(ids)) for part in self.parts]
        return [Part(part.pieces[:, places], part.ids(places)) for part, places in chosen if len(places)]

    def _sort(self) -> None:
        """Join all parts in the order of ids: equal distances are ordered by id because codes are."""
        pieces, ids = self._joined()
        order = np.argsort(ids, kind="stable")
        self.parts = [Part(pieces[:, order], ids[order])]

    def _joined(self) -> tuple[np.ndarray, np.ndarray]:
        """Pieces and ids of all codes, part after part."""
        pieces = [part.pieces[:, part.still()] for part in self.parts]
        return np.concatenate(pieces, axis=1), np.concatenate([part.ids(part.still()) for part in self.parts])


def _ids(parts: list[Part], places: np.ndarray) -> np.ndarray:
    """The ids at these places, counted over all parts."""
    ids, first = np.empty(len(places), np.int64), 0
    for part in parts:
        here = (places >= first) & (places < first + len(part))
        ids[here] = part.ids(places[here] - first)
        first += len(part)
    return ids


def _nearest(queries: np.ndarray, parts: list[Part], share: int, n_shares: int, k: int, n_bits: int) -> np.ndarray:
    """The nearest in one share of each part: (q, k) of distance << SHIFT | place among all parts, sorted and padded."""
    counts = np.zeros((len(queries), n_bits + 1), np.int64)
    kept = np.empty((len(queries), 2 * k + SPARE), np.int64)
    n_kept = np.zeros(len(queries), np.int64)
    first = 0
    for part in parts:
        start, stop = len(part) * share // n_shares, len(part) * (share + 1) // n_shares
        scan.nearest(queries, part.pieces, start, stop, part.alive[start:stop], first + start, k, counts, kept, n_kept)
        first += len(part)
    kept[np.arange(kept.shape[1]) >= n_kept[:, None]] = PADDING
    return np.sort(kept)[:, :k]


def _within(query: np.ndarray, part: Part, radius: int) -> Found:
    if part.tables is not None and part.looks_up(radius):
        distances, places = part.tables.within(query, part.pieces, part.alive, radius)
        return distances, part.ids(places)
    distances, places = np.empty(0, np.int32), np.empty(0, np.int64)
    if n := scan.within(query, part.pieces, part.alive, radius, distances, places):
        distances, places = np.empty(n, np.int32), np.empty(n, np.int64)
        scan.within(query, part.pieces, part.alive, radius, distances, places)
    return distances, part.ids(places)
