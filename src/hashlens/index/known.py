"""Which images an index knows: paths with their codes in, 8-byte keys out, and which of them are new."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa

from hashlens.machine import blocks

ROWS = 65_536  # whose paths are Python strings at the same time


def is_new(keys: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Which keys are not among the sorted `known` ones, (n,) bool; of equal ones, only the first."""
    first = np.zeros(len(keys), bool)
    first[np.unique(keys, return_index=True)[1]] = True
    if not len(known):
        return first
    return first & (known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] != keys)


def merged(known: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Sorted keys with more of them; one pass, where sorting again would take many."""
    keys = np.sort(keys)
    return np.insert(known, np.searchsorted(known, keys), keys)


def image_keys(pieces: np.ndarray, paths: pa.ChunkedArray) -> np.ndarray:
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
