"""Batches: pictures and a function of batches in, its outputs out; each core reads and computes batches of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.errors import DataError
from hashlens.threads import blocks, work_ahead

if TYPE_CHECKING:
    from hashlens.data.images import Images

BATCH = {"cpu": 8, "cuda": 256}  # larger batches fall out of the CPU's caches


def forward_batches(
    forward: Callable[[np.ndarray], np.ndarray], images: Images, size: int, *, flip: bool = False, batch: int = 8
) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows and forward(pictures of these rows), in order; cores that share a batch would wait for each other."""

    def outputs(rows: slice) -> tuple[slice, np.ndarray]:
        pictures = images.read(np.arange(rows.start, rows.stop), size)
        return rows, forward(np.ascontiguousarray(pictures[:, :, ::-1]) if flip else pictures)

    yield from work_ahead(outputs, blocks(len(images), batch))


def mean_of_views(
    outputs_of: Callable[[bool], Iterable[tuple[slice, np.ndarray]]],
    n: int,
    mirror: bool,
    advance: Callable[[int], Any] = lambda n_done: None,
) -> np.ndarray:
    """(n, d) float32: outputs_of(False), rows and outputs, or with `mirror` the mean with outputs_of(True)."""
    u: np.ndarray | None = None
    views = [False, True] if mirror else [False]
    for flip in views:
        for rows, outputs in outputs_of(flip):
            u = np.zeros((n, outputs.shape[1]), np.float32) if u is None else u
            u[rows] += outputs
            advance(len(outputs))
    if u is None:
        raise DataError("there are no pictures; give at least one")
    u /= len(views)
    return u
