"""Batches of features in, one array out, computed once: the next time it is mapped from a file in the cache."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from hashlens.files import cache_dir, replacing, require_room
from hashlens.progress import Progress


def kept(
    key: str,
    n: int,
    batches: Iterable[tuple[Any, np.ndarray]],
    dtype: type[np.floating],
    *,
    what: str = "features",
    progress: Progress | None = None,
) -> np.ndarray:
    """The array (n, ...) of all `batches`, pairs of rows and their values, read-only.

    `key` is a hash of everything the values depend on. `batches` is not read if the array is in the cache.
    """
    progress = progress or Progress(quiet=True)
    path = cache_dir() / "features" / f"{key}.npy"
    if path.exists():
        try:
            found = np.load(path, mmap_mode="r")
            if len(found) == n:
                return found
        except (OSError, ValueError, EOFError):
            pass
        progress.say(f"note: {path} is damaged; {what} are computed again")
    with replacing(path) as temporary, progress.bar(what, n) as advance:
        out: np.memmap | None = None
        for rows, values in batches:
            if out is None:
                shape = (n, *values.shape[1:])
                require_room(path.parent, int(np.prod(shape)) * np.dtype(dtype).itemsize, "the features")
                out = np.lib.format.open_memmap(temporary, "w+", dtype, shape)
            out[rows] = values
            advance(len(values))
        assert out is not None, "callers pass at least one image"
        out.flush()
        del out
    return np.load(path, mmap_mode="r")
