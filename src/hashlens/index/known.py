"""Which pictures an index has: paths with their codes in, those that are new out."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa

from hashlens.threads import blocks

ROWS = 65_536  # whose paths are Python strings at once


class KnownPictures:
    """A set of pictures: 8 bytes for each.

    Sorted arrays of about doubling sizes keep adding cheap and leave few to look into.
    """

    def __init__(self) -> None:
        self._sorted: list[np.ndarray] = []

    def add(self, keys: np.ndarray) -> None:
        if not len(keys):
            return
        self._sorted.append(np.sort(keys))
        while len(self._sorted) > 1 and len(self._sorted[-2]) <= 2 * len(self._sorted[-1]):
            self._sorted.append(np.sort(np.concatenate([self._sorted.pop(), self._sorted.pop()]), kind="stable"))

    def new(self, keys: np.ndarray) -> np.ndarray:
        """Which of these are not in the set, (n,) bool; of equal ones only the first."""
        is_new = np.zeros(len(keys), bool)
        is_new[np.unique(keys, return_index=True)[1]] = True
        for there in self._sorted:
            places = np.minimum(np.searchsorted(there, keys), len(there) - 1)
            is_new &= there[places] != keys
        return is_new


def picture_keys(pieces: np.ndarray, paths: pa.ChunkedArray) -> np.ndarray:
    """(n,) int64, the same for the same path and code, in every process; `pieces` are (n, n_pieces) as in an index."""
    keys = np.empty(len(pieces), np.int64)
    for rows in blocks(len(pieces), ROWS):
        codes = np.ascontiguousarray(pieces[rows])
        each = codes.view(f"V{codes.dtype.itemsize * codes.shape[1]}")[:, 0].tolist()
        names = paths.slice(rows.start, rows.stop - rows.start).to_pylist()
        digests = [
            blake2b(code + name.encode(), digest_size=8).digest() for code, name in zip(each, names, strict=True)
        ]
        keys[rows] = np.frombuffer(b"".join(digests), np.int64)
    return keys
