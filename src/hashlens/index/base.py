"""The contract of every index: codes in, their nearest neighbours out, in memory, in a folder or in an engine.

Results are ordered by (distance, id) (order.py), a radius is inclusive, an id can be added only once, and rows with
fewer than k results are padded with -1. By default codes get the ids after the highest. `Index` checks the arguments
and pads the results; a subclass implements insertion, deletion and search.
"""

from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.codes.bits import require_codes
from hashlens.codes.hamming import require_same_bits
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.index.order import Found, ordered


class Index:
    exact = True
    second_bits: int = 0  # length of second codes; 0: none

    def __init__(self, n_bits: int):
        self.n_bits = n_bits

    def __len__(self) -> int:
        raise NotImplementedError

    def add(self, codes: Codes, ids: Any = None) -> np.ndarray:
        """Add codes under these ids, or by default under the next free ones; returns the ids."""
        self._require(codes)
        if ids is None:
            following = self._highest() + 1
            added = np.arange(following, following + len(codes))
        else:
            added = check_ids(ids, len(codes))
        if len(codes):
            self._insert(codes, added)
        return added

    def remove(self, ids: Any) -> int:
        """Remove these ids; returns how many of them were in the index."""
        ids = _ascending(ids)
        return self._delete(ids) if len(ids) else 0

    def contains(self, ids: Any) -> np.ndarray:
        """Those of the given ids that are in the index, ascending."""
        ids = _ascending(ids)
        return self._contains(ids) if len(ids) else ids

    def search(self, codes: Codes, k: int, *, among: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """The nearest k of each query: distances (q, k) int32 and ids (q, k) int64; only `among` some ids."""
        self._require(codes)
        require_numbers(k=k)
        distances = np.full((len(codes), k), -1, np.int32)
        ids = np.full((len(codes), k), -1, np.int64)
        among = None if among is None else _ascending(among)
        if len(codes) and (among is None or len(among)):
            self._nearest(codes, k, among, distances, ids)
        return distances, ids

    def within(self, codes: Codes, radius: int, *, among: Any = None) -> list[Found]:
        """For each query, the distances and ids of all codes at most `radius` away."""
        self._require(codes)
        require_numbers(radius=radius)
        among = None if among is None else _ascending(among)
        if not len(codes) or (among is not None and not len(among)):
            return [ordered([], [])] * len(codes)
        return self._within(codes, min(radius, self.n_bits), among)

    def flush(self) -> None:
        """Store all additions and removals permanently before returning."""

    def close(self) -> None:
        """Release files and connections."""

    def _highest(self) -> int:
        """The highest id, or one less than the first one to assign."""
        raise NotImplementedError

    def _insert(self, codes: Codes, ids: np.ndarray) -> None:
        """Insert all codes, or none if an id is taken."""
        raise NotImplementedError

    def _delete(self, ids: np.ndarray) -> int:
        raise NotImplementedError

    def _contains(self, ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _nearest(self, codes: Codes, k: int, among: np.ndarray | None, distances: np.ndarray, ids: np.ndarray) -> None:
        """Write the nearest k of each query, or as many as there are, to the start of its row."""
        raise NotImplementedError

    def _within(self, codes: Codes, radius: int, among: np.ndarray | None) -> list[Found]:
        raise NotImplementedError

    def _require(self, codes: Codes) -> None:
        require_codes("an index", codes)
        if codes.n_bits != self.n_bits:
            raise MismatchError(
                f"the index holds codes of {self.n_bits} bits, these have {codes.n_bits}; encode with the same model"
            )
        require_same_bits(codes, codes)

    def require_second(self, codes: Codes) -> Codes:
        """Codes in the form of the index: with or without second codes."""
        if not self.second_bits:
            return codes.first
        if codes.second_bits != self.second_bits:
            found = f"ones of {codes.second_bits}" if codes.second else "none"
            raise MismatchError(
                f"the index holds second codes of {self.second_bits} bits, these codes have {found}; encode with the"
                " same model"
            )
        return codes


def require_numbers(k: int | None = None, radius: int | None = None) -> None:
    for name, value, lowest in (("k", k, 1), ("radius", radius, 0)):
        if value is not None and (not isinstance(value, int | np.integer) or value < lowest):
            raise UsageError(f"{name} must be an integer >= {lowest}, got {value!r}")


def refuse(taken: np.ndarray) -> None:
    """Refuse ids that are already in the index."""
    if len(taken):
        raise DataError(f"id {taken[0]} is already in the index; remove it first, or use another id")


def check_ids(ids: Any, n: int) -> np.ndarray:
    ids = np.asarray(ids)
    if ids.shape != (n,) or ids.dtype.kind not in "iu":
        raise DataError(f"there are {n:,} codes; pass as many ids, integers >= 0")
    ids = ids.astype(np.int64)
    if n and ids.min() < 0:
        raise DataError(f"ids must be >= 0, got {ids.min()}")
    if len(np.unique(ids)) < n:
        raise DataError("an id occurs twice; each code needs its own id")
    return ids


def _ascending(ids: Any) -> np.ndarray:
    return np.unique(np.asarray(ids, np.int64).ravel())
