"""Keys: which images an index already knows, looked up on disk without reading all of them.

A key is a hash of a path and its code. A part of an index keeps its keys sorted, behind every 8,192nd of them and a
filter: a bit for each beginning that keys can have, set if one has it. Most keys that are not here end at the filter;
for others, the guides say in which stretch of 64 KiB they can be. Only what is touched is read and compared with its
checksum.
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


def path_keys(paths: pa.ChunkedArray) -> np.ndarray:
    """The same for the same path."""
    digests = [blake2b(name.encode(), digest_size=8).digest() for name in paths.to_pylist()]
    return np.frombuffer(b"".join(digests), np.int64)


def arranged(keys: np.ndarray) -> np.ndarray:
    """Sorted keys as a part keeps them: guides, filter, keys."""
    flags = np.zeros(_n_flags(len(keys)), bool)
    flags[_flag_of(keys, len(flags))] = True
    return np.concatenate([keys[::STRETCH], np.packbits(flags, bitorder="little").view(np.int64), keys])


def _n_flags(n: int) -> int:
    """A power of 2: 8 to 16 for each key, so that one that is not there is rarely looked for."""
    return 1 << max(6, (8 * n - 1).bit_length())


def _flag_of(keys: np.ndarray, n_flags: int) -> np.ndarray:
    """The first bits of keys, in the order of keys."""
    return ((keys.view(np.uint64) ^ np.uint64(1 << 63)) >> np.uint64(65 - n_flags.bit_length())).view(np.int64)


class Keys:
    """The sorted keys of a part on disk."""

    def __init__(self, file: CheckedFile, n: int):
        self._file, self.n = file, n
        self._n_guides, self._n_flags = -(-n // STRETCH), _n_flags(n)
        self._keys_at = len(file.content) - 8 * n  # in bytes
        self._flags_at = self._keys_at - self._n_flags // 8
        self._guides_at = self._flags_at - 8 * self._n_guides
        if not 0 < self._guides_at <= 4096 or self._guides_at % 64:
            raise file.damaged("it is not the array that it should be")

    def all(self) -> np.ndarray:
        return self._file.part(self._keys_at, len(self._file.content)).view(np.int64)

    def count(self, keys: np.ndarray) -> np.ndarray:
        """(n,) int64: how often each of these sorted keys is here."""
        flag = _flag_of(keys, self._n_flags)
        byte = self._flags_at + (flag >> 3)
        self._file.require(byte // BLOCK)
        perhaps = np.flatnonzero(self._file.content[byte] >> (flag & 7).astype(np.uint8) & 1)
        found = np.zeros(len(keys), np.int64)
        found[perhaps] = self._find(keys[perhaps])
        return found

    def _find(self, keys: np.ndarray) -> np.ndarray:
        guides = self._file.part(self._guides_at, self._flags_at).view(np.int64)
        # equal keys may lie on both sides of a guide
        begin = (np.searchsorted(guides, keys) - 1).clip(0)
        end = np.searchsorted(guides, keys, side="right").clip(1)
        room = self._n_guides + 1
        touched = np.cumsum(np.bincount(begin, minlength=room) - np.bincount(end, minlength=room))[:-1] > 0
        if 4 * np.count_nonzero(touched) > self._n_guides:
            return _count(self.all(), keys)
        found = np.zeros(len(keys), np.int64)
        for number in np.flatnonzero(touched).tolist():  # nothing else is read
            start = self._keys_at + 8 * number * STRETCH
            here = self._file.part(start, min(start + 8 * STRETCH, len(self._file.content))).view(np.int64)
            some = slice(np.searchsorted(keys, here[0]), np.searchsorted(keys, here[-1], side="right"))
            found[some] += _count(here, keys[some])
        return found


def _count(among: np.ndarray, keys: np.ndarray) -> np.ndarray:
    first = np.searchsorted(among, keys)
    found = (among[np.minimum(first, len(among) - 1)] == keys).astype(np.int64)
    here = np.flatnonzero(found)
    found[here] = np.searchsorted(among, keys[here], side="right") - first[here]
    return found
