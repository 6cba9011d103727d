"""Keys: which images an index already knows, looked up on disk without reading all of them.

A key is a hash of a path and its code. A part of an index keeps its keys sorted, behind every 8,192nd of them: these
say in which stretch of 64 KiB a key can be, and only that is read and compared with its checksum.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa

from hashlens.checksums import BLOCK, CheckedFile
from hashlens.machine import blocks

STRETCH = 8_192  # keys
ROWS = 65_536  # whose paths are Python strings at the same time


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


def first_of_each(keys: np.ndarray) -> np.ndarray:
    """(n,) bool: of equal keys, only the first."""
    first = np.zeros(len(keys), bool)
    first[np.unique(keys, return_index=True)[1]] = True
    return first


def with_guides(keys: np.ndarray) -> np.ndarray:
    """Sorted keys as a part keeps them."""
    return np.concatenate([keys[::STRETCH], keys])


class Keys:
    """The sorted keys of a part on disk."""

    def __init__(self, file: CheckedFile, n: int):
        self._file, self.n, self._n_guides = file, n, -(-n // STRETCH)
        self._start = len(file.content) - 8 * n  # of the keys, in bytes
        header = self._start - 8 * self._n_guides
        if not 0 < header <= 4096 or header % 64:
            raise file.damaged("it is not the array that it should be")
        self._header = header

    def all(self) -> np.ndarray:
        return self._file.part(self._start, len(self._file.content)).view(np.int64)

    def count(self, keys: np.ndarray) -> np.ndarray:
        """(n,) int64: how often each of these sorted keys is here."""
        guides = self._file.part(self._header, self._start).view(np.int64)
        touched = np.zeros(self._n_guides, bool)
        for side in ("left", "right"):  # equal keys may lie on both sides of a guide
            touched[(np.searchsorted(guides, keys, side=side) - 1).clip(0)] = True
        numbers = np.flatnonzero(touched)
        begins, ends = (self._start + 8 * np.minimum((numbers + i) * STRETCH, self.n) - i for i in (0, 1))
        self._file.require(np.concatenate([begins, ends]) // BLOCK)
        every = self._file.content[self._start :].view(np.int64)
        if touched.all():
            return _count(every, keys)
        found = np.zeros(len(keys), np.int64)
        for number in numbers.tolist():  # nothing else was compared, so nothing else is looked at
            here = every[number * STRETCH : (number + 1) * STRETCH]
            some = slice(np.searchsorted(keys, here[0]), np.searchsorted(keys, here[-1], side="right"))
            found[some] += _count(here, keys[some])
        return found


def _count(among: np.ndarray, keys: np.ndarray) -> np.ndarray:
    first = np.searchsorted(among, keys)
    found = (among[np.minimum(first, len(among) - 1)] == keys).astype(np.int64)
    here = np.flatnonzero(found)
    found[here] = np.searchsorted(among, keys[here], side="right") - first[here]
    return found
