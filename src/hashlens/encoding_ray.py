"""Encoding on a Ray cluster: pictures and the folder of a model in, the codes folder that `encode_source` makes out.

Ray Data hands batches of paths to actors, each of which holds the model; codes come back in order, and this process
writes the shards and goes on with what is missing. All machines must see the pictures and the model under the same
paths and have hashlens installed. Ray is an extra, loaded only here: pip install "ray[data]".
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hashlens.codes import Codes
from hashlens.data.listing import ListedImages, list_pictures
from hashlens.encoding import begin, encode_function, finish, identify, shard_rows, write_shard
from hashlens.errors import UsageError
from hashlens.export import load_encoder
from hashlens.files import alone_in
from hashlens.progress import Progress
from hashlens.shards import SHARD_SIZE

BATCH = 2_048  # pictures an actor takes at once: a minute of work


def encode_on_ray(
    source: str | Sequence[str],
    model: Path,
    out: Path,
    progress: Progress | None = None,
    *,
    shard_size: int = SHARD_SIZE,
    n_actors: int | None = None,
) -> dict[str, Any]:
    """Encode what the folder `out` has not got yet on a running cluster (or, without one, on this machine).

    By default one core is left free, for Ray's own work; the others have an actor each.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError('encoding on a cluster needs Ray: pip install "ray[data]"') from error
    progress = progress or Progress(quiet=True)
    listing = list_pictures(source, progress=progress.say)
    if listing.images is not None:
        raise UsageError(f"{source} is in the memory of one machine; encode it with hashlens encode")
    encoder = load_encoder(model)
    n_bits = encoder.n_bits
    if not ray.is_initialized():
        ray.init(log_to_driver=False)
    n_actors = n_actors or max(1, int(ray.cluster_resources()["CPU"]) - 1)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    with alone_in(out):
        folder, pictures = begin(listing, source, out, progress, n_bits, identify(encoder, model), shard_size)
        if missing := folder.missing():
            rows = [shard_rows(folder, number) for number in missing]
            wanted = pa.concat_tables([pictures.slice(place.start, place.stop - place.start) for place in rows])
            batches = [wanted.slice(start, BATCH) for start in range(0, len(wanted), BATCH)]
            encoded = ray.data.from_arrow(batches).map_batches(
                _Actor,
                fn_constructor_args=(str(model),),
                batch_size=BATCH,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(size=n_actors),
            )
            # only the last shard is short, so that batches of a shard's size are the shards
            shards = encoded.iter_batches(batch_size=shard_size, batch_format="pyarrow")
            with progress.bar("pictures", len(wanted)) as advance:
                shard: Any  # a pyarrow table
                for number, shard in zip(missing, shards, strict=True):
                    good = pc.is_null(shard["reason"]).to_numpy()
                    packed = np.frombuffer(b"".join(shard["code"].to_pylist()), np.uint8).reshape(len(shard), -1)
                    bad = shard.filter(pa.array(~good))
                    skipped = list(zip(bad["path"].to_pylist(), bad["reason"].to_pylist(), strict=True))
                    write_shard(folder, number, Codes(packed, n_bits), good, shard.filter(good), skipped, progress)
                    advance(len(shard))
        return finish(folder)


class _Actor:
    """Pictures in, their codes and facts out; where one cannot be read, the reason."""

    def __init__(self, model: str):
        os.environ["HASHLENS_THREADS"] = "1"  # an actor a core
        self.encode = encode_function(load_encoder(model))

    def __call__(self, table: pa.Table) -> pa.Table:
        images = ListedImages(table, lambda n: None)
        codes = [row.tobytes() for row in self.encode(images).packed]
        kept = table.select([name for name in ("path", "labels") if name in table.column_names])
        columns = {
            "size": pa.array(images.size),
            "mtime": pa.array(images.mtime),
            "code": pa.array(codes, pa.binary()),
            "reason": pa.array([images.failed.get(row) for row in range(len(table))], pa.string()),
        }
        for name, column in columns.items():
            kept = kept.append_column(name, column)
        return kept
