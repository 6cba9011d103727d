"""The order of hits: nearest first, and among equal distances the lowest id first, in every index and engine.

If images have a second code, a search is ordered by

first    the distance of the first code, then the id
both     the distance of the first code, then that of the second, then the id
second   the distance of the second code, then the id
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

BY = ("first", "both", "second")
Found = tuple[np.ndarray, np.ndarray]  # distances int32 and ids int64 of one query, ordered by (distance, id)


def ordered(distances: Any, ids: Any, seconds: Any = None) -> Found:
    distances, ids = np.asarray(distances).astype(np.int32), np.asarray(ids).astype(np.int64)
    order = np.lexsort((ids, distances) if seconds is None else (ids, seconds, distances))
    return distances[order], ids[order]


def together(parts: Sequence[list[Found]]) -> list[Found]:
    """The answers to the same queries from several parts of an index, merged."""
    return [
        ordered(np.concatenate([d for d, _ in of_query]), np.concatenate([i for _, i in of_query]))
        for of_query in zip(*parts, strict=True)
    ]


def fill(found: Iterable[Found], distances: np.ndarray, ids: np.ndarray) -> None:
    """Write answers of any length to the rows of a result padded with -1."""
    for row, (near, their_ids) in enumerate(found):
        n = min(distances.shape[1], len(near))
        distances[row, :n], ids[row, :n] = near[:n], their_ids[:n]
