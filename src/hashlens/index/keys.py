"""Keys: which images an index already knows, looked up on disk without reading all of them.

A key is a hash of a path and its code. A part of an index stores guides (every 8,192nd key), a filter (a bit for each
possible prefix of a key, set if a key has it) and its sorted keys. The filter rejects most keys that are not here; for
the others, the guides tell which stretch of 64 KiB to search. Only data that is used is read and verified.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa

from hashlens.checksums import BLOCK, CheckedFile
from hashlens.machine import blocks

STRETCH = 8_192  # keys
ROWS = 65_536  # most paths converted to Python strings at once


def image_keys(packed: np.ndarray, paths: pa.ChunkedArray) -> np.ndarray:
    """(n,) int64: the same for the same path and code, in every process."""
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


def path_keys(paths: pa.ChunkedArray) -> np.ndarray:
    """(n,) int64: the same for the same path, in every process."""
    digests = [blake2b(name.encode(), digest_size=8).digest() for name in paths.to_pylist()]
    return np.frombuffer(b"".join(digests), np.int64)


def arranged(keys: np.ndarray) -> np.ndarray:
    """Sorted keys in the layout of a part: guides, filter, keys."""
    flags = np.zeros(_n_flags(len(keys)), bool)
    flags[_flag_of(keys, len(flags))] = True
    return np.concatenate([keys[::STRETCH], np.packbits(flags, bitorder="little").view(np.int64), keys])


def _n_flags(n: int) -> int:
    """The size of the filter, a power of 2: 8 to 16 bits per key, so that most absent keys are rejected."""
    return 1 << max(6, (8 * n - 1).bit_length())


def _flag_of(keys: np.ndarray, n_flags: int) -> np.ndarray:
    """The leading bits of keys, so in the order of keys."""
    return ((keys.view(np.uint64) ^ np.uint64(1 << 63)) >> np.uint64(65 - n_flags.bit_length())).view(np.int64)


class Keys:
    """The sorted keys of a part on disk."""

    def __init__(self, file: CheckedFile, n: int):
        self._file, self.n = file, n
        self._n_guides, self._n_flags = -(-n // STRETCH), _n_flags(n)
        self._keys_at = len(file.content) - 8 * n  # offset in bytes
        self._flags_at = self._keys_at - self._n_flags // 8
        self._guides_at = self._flags_at - 8 * self._n_guides
        if not 0 < self._guides_at <= 4096 or self._guides_at % 64:
            raise file.damaged("it is not the array that it should be")

    def all(self) -> np.ndarray:
        return self._file.part(self._keys_at, len(self._file.content)).view(np.int64)

    def count(self, keys: np.ndarray) -> np.ndarray:
        """(n,) int64: how often each of these sorted keys occurs here."""
        flag = _flag_of(keys, self._n_flags)
        byte = self._flags_at + (flag >> 3)
        self._file.require(byte // BLOCK)
        perhaps = np.flatnonzero(self._file.content[byte] >> (flag & 7).astype(np.uint8) & 1)
        found = np.zeros(len(keys), np.int64)
        found[perhaps] = self._find(keys[perhaps])
        return found

    def _find(self, keys: np.ndarray) -> np.ndarray:
        guides = self._file.part(self._guides_at, self._flags_at).view(np.int64)
        # equal keys may lie on both sides of a guide; the first comes after the last lower guide
        at = STRETCH * (np.searchsorted(guides, keys) - 1).clip(0)
        self._require(np.concatenate([at, (at + STRETCH - 1).clip(max=self.n - 1)]))
        held = self._file.content[self._keys_at :].view(np.int64)
        # all at once, because separate searches in distant memory would take longer than everything else
        for step in (*(STRETCH >> power for power in range(1, STRETCH.bit_length())), 1):
            at += step * (held[(at + step - 1).clip(max=self.n - 1)] < keys)
        found = np.zeros(len(keys), np.int64)
        left = np.arange(len(keys))
        while len(left := left[at[left] < self.n]):
            self._require(at[left])
            left = left[held[at[left]] == keys[left]]
            found[left] += 1
            at[left] += 1
        return found

    def _require(self, places: np.ndarray) -> None:
        self._file.require((self._keys_at + 8 * places) // BLOCK)
