"""Index: codes in, their nearest neighbours out. `HammingIndex` searches exactly, in memory or in memory maps.

The contract that every back end keeps: results are ordered by (distance, id), a radius includes itself, an id is added
once, and where there are fewer than k results the rest of a row is -1. Where ids are not given they are 0, 1, 2, …
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.hamming import require_same_bits
from hashlens.index import scan
from hashlens.index.tables import Tables
from hashlens.threads import blocks, in_threads, n_threads

QUERIES = 256  # that pass over a part of the database while it is in the cache
MANY = 32  # parts; with more, a search would spend its time between them
SPARE = 256  # places beyond k, so that what is kept is seldom sorted out


class Part:
    """Codes in the order of their ids: `pieces` as the loops read them, and which of them are still there."""

    def __init__(self, pieces: np.ndarray, ids: np.ndarray | int, removed: np.ndarray | None = None):
        self.pieces = np.ascontiguousarray(pieces)  # (n_pieces, n) uint16; what is mapped stays mapped
        self._ids = ids  # ascending, or the first of consecutive ones
        self.alive = scan.NOTHING
        self.tables: Tables | None = None
        if removed is not None and len(removed):
            self.remove(removed)

    def __len__(self) -> int:
        return self.pieces.shape[1]

    @property
    def last_id(self) -> int:
        return int(self._ids + len(self) - 1 if isinstance(self._ids, int) else self._ids[-1])

    def ids(self, places: np.ndarray) -> np.ndarray:
        return places + self._ids if isinstance(self._ids, int) else self._ids[places]

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Of those ids that are here, in ascending order."""
        if isinstance(self._ids, int):
            found = ids - self._ids
            found = found[(found >= 0) & (found < len(self))]
        else:
            found = np.searchsorted(self._ids, ids)
            found = found[(found < len(self)) & (self._ids[np.minimum(found, len(self) - 1)] == ids)]
        return self.still(np.unique(found))

    def still(self, places: np.ndarray) -> np.ndarray:
        """Those places whose codes were not removed."""
        return places[self.alive[places]] if len(self.alive) else places

    def remove(self, ids: np.ndarray) -> int:
        places = self.places(ids)
        if len(places):
            if not len(self.alive):
                self.alive = np.ones(len(self), np.bool_)
            self.alive[places] = False
        return len(places)

    def n_alive(self) -> int:
        return int(self.alive.sum()) if len(self.alive) else len(self)


class HammingIndex:
    """Exact search by Hamming distance.

    >>> index = HammingIndex(codes.n_bits)
    >>> index.add(codes)
    >>> distances, ids = index.search(codes[:5], k=10)
    """

    exact = True

    def __init__(self, n_bits: int, parts: list[Part] | None = None):
        self.n_bits = n_bits
        self.parts = parts or []
        self._n = sum(part.n_alive() for part in self.parts)

    def __len__(self) -> int:
        return self._n

    def add(self, codes: Codes, ids: Any = None) -> np.ndarray:
        """Add codes under these ids, or under those that follow the highest; returns the ids."""
        self._require(codes)
        following = self.parts[-1].last_id + 1 if self.parts else 0
        added = np.arange(following, following + len(codes)) if ids is None else check_ids(ids, len(codes))
        if not len(codes):
            return added
        for part in self.parts:
            taken = part.ids(part.places(added))
            if len(taken):
                raise DataError(f"id {taken[0]} is in the index already; remove it first, or add under another id")
        order = np.argsort(added, kind="stable")
        self.parts.append(Part(codes[order].pieces().T, following if ids is None else added[order]))
        if added[order[0]] < following or len(self.parts) > MANY:
            self._sort()
        self._n += len(codes)
        return added

    def remove(self, ids: Any) -> int:
        """Forget these ids; returns how many of them were there."""
        ids = np.unique(np.asarray(ids, np.int64).ravel())
        removed = sum(part.remove(ids) for part in self.parts)
        self._n -= removed
        return removed

    def prepare_radius(self) -> None:
        """Make tables for small radii: 2 bytes for each 8 bits of a code, and `within` no longer reads all codes."""
        for part in self.parts:
            part.tables = part.tables or Tables(part.pieces)

    def flush(self) -> None:
        """Nothing waits here; back ends that write behind do it now."""

    def search(self, codes: Codes, k: int, *, among: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """The nearest k of each query: distances (q, k) int32 and ids (q, k) int64; `among` these ids only."""
        self._require(codes)
        require_k(k)
        parts = self._only(among) if among is not None else self.parts
        distances = np.full((len(codes), k), -1, np.int32)
        ids = np.full((len(codes), k), -1, np.int64)
        if not len(codes) or not parts:
            return distances, ids
        queries = codes.pieces()
        tasks = blocks(len(codes), QUERIES)
        # with few queries each thread reads a share of the database, else each has queries of its own
        n_shares = n_threads() if len(tasks) < n_threads() else 1
        found: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

        def work(task: tuple[int, int]) -> None:
            block, share = task
            found[task] = _nearest(queries[tasks[block]], parts, share, n_shares, min(k, self._n), self.n_bits)

        in_threads(work, [(block, share) for block in range(len(tasks)) for share in range(n_shares)])
        for block, rows in enumerate(tasks):
            _merge([found[block, share] for share in range(n_shares)], distances[rows], ids[rows])
        return distances, ids

    def within(self, codes: Codes, radius: int, *, among: Any = None) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each query the distances and ids of all codes at most `radius` away."""
        self._require(codes)
        require_radius(radius)
        radius = min(radius, self.n_bits)
        parts = self._only(among) if among is not None else self.parts
        queries = codes.pieces()
        found: list[Any] = [None] * len(codes)

        def work(row: int) -> None:
            pieces = [_within(queries[row], part, radius) for part in parts]
            distances = np.concatenate([d for d, _ in pieces]) if pieces else np.empty(0, np.int32)
            ids = np.concatenate([i for _, i in pieces]) if pieces else np.empty(0, np.int64)
            order = np.argsort(distances, kind="stable")
            found[row] = distances[order], ids[order]

        in_threads(work, range(len(codes)))
        return found

    def _only(self, among: Any) -> list[Part]:
        """Parts that hold nothing but these ids: copies, since few are asked for as a rule."""
        ids = np.unique(np.asarray(among, np.int64).ravel())
        chosen = [(part, part.places(ids)) for part in self.parts]
        return [Part(part.pieces[:, places], part.ids(places)) for part, places in chosen if len(places)]

    def _sort(self) -> None:
        """One part in the order of ids: equal distances are ordered by id because codes are."""
        ids = np.concatenate([part.ids(np.arange(len(part))) for part in self.parts])
        alive = np.concatenate([part.alive if len(part.alive) else np.ones(len(part), bool) for part in self.parts])
        pieces = np.concatenate([part.pieces for part in self.parts], axis=1)
        order = np.argsort(ids[alive], kind="stable")
        self.parts = [Part(pieces[:, alive][:, order], ids[alive][order])]

    def _require(self, codes: Codes) -> None:
        if not isinstance(codes, Codes):
            raise UsageError(f"the index takes Codes, not {type(codes).__name__}; make them with Codes.from_relaxed")
        if codes.n_bits != self.n_bits:
            raise MismatchError(
                f"the index holds codes of {self.n_bits} bits, these have {codes.n_bits}; encode with the same model"
            )
        require_same_bits(codes, codes)


def check_ids(ids: Any, n: int) -> np.ndarray:
    ids = np.asarray(ids)
    if ids.shape != (n,) or ids.dtype.kind not in "iu":
        raise DataError(f"there are {n:,} codes; give as many ids, whole numbers from 0 up")
    ids = ids.astype(np.int64)
    if n and ids.min() < 0:
        raise DataError(f"id {ids.min()} is negative; ids are whole numbers from 0 up")
    if len(np.unique(ids)) < n:
        raise DataError("an id is given twice; each code needs an id of its own")
    return ids


def require_k(k: int) -> None:
    if k < 1:
        raise UsageError(f"k must be 1 or more, not {k}")


def require_radius(radius: int) -> None:
    if radius < 0:
        raise UsageError(f"the radius must be 0 bits or more, not {radius}")


def _nearest(
    queries: np.ndarray, parts: list[Part], share: int, n_shares: int, k: int, n_bits: int
) -> tuple[np.ndarray, np.ndarray]:
    """Distances and ids (q, k) of the nearest in one share of all parts, -1 where there are fewer."""
    counts = np.zeros((len(queries), n_bits + 1), np.int64)
    kept = np.empty((len(queries), 2 * k + SPARE, 2), np.int64)
    n_kept = np.zeros(len(queries), np.int64)
    first = 0
    spans = []
    for part in parts:
        start, stop = len(part) * share // n_shares, len(part) * (share + 1) // n_shares
        alive = part.alive[start:stop] if len(part.alive) else scan.NOTHING
        scan.nearest(queries, part.pieces, start, stop, alive, first, k, counts, kept, n_kept)
        spans.append((first, start, part))
        first += stop - start
    distances = np.full((len(queries), k), -1, np.int32)
    ids = np.full((len(queries), k), -1, np.int64)
    starts = np.array([first for first, _, _ in spans])
    for row in range(len(queries)):
        n = scan.keep_nearest(kept[row], counts[row], k) if n_kept[row] > k else n_kept[row]
        nearest = kept[row, :n][np.argsort(kept[row, :n, 0], kind="stable")]
        distances[row, :n] = nearest[:, 0]
        of_part = np.searchsorted(starts, nearest[:, 1], side="right") - 1
        for number in np.unique(of_part):
            first, start, part = spans[number]
            mine = of_part == number
            ids[row, :n][mine] = part.ids(nearest[mine, 1] - first + start)
    return distances, ids


def _merge(shares: list[tuple[np.ndarray, np.ndarray]], distances: np.ndarray, ids: np.ndarray) -> None:
    """The nearest of all shares, each sorted; equal distances by id."""
    if len(shares) == 1:
        (d, i), k = shares[0], shares[0][0].shape[1]
        distances[:, :k], ids[:, :k] = d, i
        return
    k = min(distances.shape[1], sum(d.shape[1] for d, _ in shares))
    d = np.concatenate([d for d, _ in shares], axis=1)
    i = np.concatenate([i for _, i in shares], axis=1)
    order = np.lexsort((i, np.where(d < 0, np.iinfo(np.int32).max, d)))[:, :k]
    distances[:, :k] = np.take_along_axis(d, order, 1)
    ids[:, :k] = np.take_along_axis(i, order, 1)


def _within(query: np.ndarray, part: Part, radius: int) -> tuple[np.ndarray, np.ndarray]:
    # a code that is looked at by itself costs as much as some ten in a row
    if part.tables is not None and 10 * part.tables.cost(radius) < len(part):
        distances, places = part.tables.within(query, part.pieces, part.alive, radius)
        return distances, part.ids(places)
    distances, places = np.empty(0, np.int32), np.empty(0, np.int64)
    if n := scan.within(query, part.pieces, part.alive, radius, distances, places):
        distances, places = np.empty(n, np.int32), np.empty(n, np.int64)
        scan.within(query, part.pieces, part.alive, radius, distances, places)
    return distances, part.ids(places)
