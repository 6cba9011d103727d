"""Encoding on a Ray cluster: a codes folder and its missing shards in, these shards encoded out, in order.

Ray Data hands batches of paths to actors, each of which holds the model; this process writes what they return. All
machines must see the images and the model under the same paths and have hashlens installed. Without a running cluster,
the cores of this machine are used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from hashlens.codes.encode import encode_rows
from hashlens.codes.encoder import Encoder
from hashlens.codes.folder import CodesFolder
from hashlens.data.images import FileImages

BATCH = 2_048  # images that an actor takes at once: a minute of work


def encoded_on_ray(
    model: Path, folder: CodesFolder, missing: list[slice], advance: Callable[[int], None]
) -> Iterator[pa.Table]:
    """What `encode_rows` returns for each of the missing ranges of rows."""
    import ray

    if not missing:
        return
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    wanted = pa.concat_tables([folder.listed()[rows] for rows in missing])
    batches = [wanted.slice(start, BATCH) for start in range(0, len(wanted), BATCH)]
    encoded = ray.data.from_arrow(batches).map_batches(
        _Actor,
        fn_constructor_args=(str(model),),
        batch_size=BATCH,
        batch_format="pyarrow",
        # one core is left for Ray's own work
        compute=ray.data.ActorPoolStrategy(size=max(1, int(ray.cluster_resources()["CPU"]) - 1)),
    )
    found: Any = iter(encoded.iter_batches(batch_size=BATCH, batch_format="pyarrow"))
    waiting = wanted[:0]
    for rows in missing:
        n = rows.stop - rows.start
        while len(waiting) < n:
            waiting = pa.concat_tables([waiting, next(found)], promote_options="default")
        yield waiting[:n]
        advance(n)
        waiting = waiting[n:]


class _Actor:
    def __init__(self, model: str):
        os.environ["HASHLENS_THREADS"] = "1"  # one actor per core
        self.encoder = Encoder.load(model)

    def __call__(self, table: pa.Table) -> pa.Table:
        return encode_rows(self.encoder, table, FileImages.of(table))
