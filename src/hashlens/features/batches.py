"""Batches: pictures and a function of batches in, its outputs out; each core reads and computes batches of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

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
