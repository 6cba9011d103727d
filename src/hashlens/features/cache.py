"""Cache: batches of features in, one array out; computed once, later verified and mapped from a file."""

import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.checksums import FILE, CheckedFile, damaged, describe_file, read_sealed, write_sealed
from hashlens.errors import DataError
from hashlens.files import cache_dir, replacing, require_room, storage_errors
from hashlens.progress import Progress
from hashlens.ranks import ALONE, Ranks, same_folder
from hashlens.schema import conform, whole

FACTS = {"shape": [whole()], "dtype": re.compile("float(16|32|64)"), **FILE}


def kept(
    key: str,
    n: int,
    batches: Iterable[tuple[Any, np.ndarray]],
    dtype: type[np.floating],
    *,
    what: str = "features",
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> np.ndarray:
    """The array (n, ...) of all `batches`, pairs of rows and their values, read-only.

    `key` is a hash of everything the values depend on. `batches` is not read if the array is in the cache. With several
    `ranks`, each must pass all batches; of ranks that share a cache, one writes.
    """
    progress = progress or Progress(quiet=True)
    folder = cache_dir() / "features"
    path, facts = folder / f"{key}.values.npy", folder / f"{key}.json"
    again = f"{what} are computed again"
    _adopt(folder / f"{key}.npy", path, facts)
    found = None
    if path.exists():
        try:
            found = _load(path, facts, n, again)
        except DataError as error:
            progress.say(f"note: {error.message}")
    if not ranks.any(found is None):
        assert found is not None
        return found
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if ranks.first_with(same_folder(folder)):
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
            _describe(temporary, facts)
    else:
        deque(batches, maxlen=0)  # computes this rank's part for the ranks that write
    ranks.wait()
    return _load(path, facts, n, again)


def _describe(path: Path, facts: Path) -> None:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    write_sealed(facts, {"shape": list(array.shape), "dtype": array.dtype.name, **describe_file(path)})


def _load(path: Path, facts: Path, n: int, again: str) -> np.ndarray:
    """The array in a file, after verifying its checksum."""
    try:
        known = conform(read_sealed(facts), FACTS)
        if known["shape"][:1] != [n]:
            raise ValueError(f"its shape is {known['shape']}")
    except (OSError, ValueError) as error:
        raise damaged(facts, error, again) from error
    return CheckedFile(path, known, again).array(tuple(known["shape"]), known["dtype"])


def _adopt(before: Path, path: Path, facts: Path) -> None:
    """Adopt an array computed by a version without checksums."""
    if before.exists():
        try:
            _describe(before, facts)
            before.replace(path)
        except (OSError, ValueError, EOFError):
            before.unlink(missing_ok=True)
