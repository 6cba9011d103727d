"""Kept outputs: an index and its model in, the relaxed outputs of all its images out, computed once.

outputs.npy, beside the index, has a row per image: its id and the real values before the sign. Ids are never reused, so
a row is valid as long as the model is the same; only images without a row are encoded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hashlens.checksums import FILE, CheckedFile, describe_file, read_sealed, write_sealed
from hashlens.codes.encode import ListedImages
from hashlens.codes.encoder import Encoder
from hashlens.data.images import Images
from hashlens.data.sources import open_source
from hashlens.data.thumbnails import file_of
from hashlens.errors import DataError, HashlensError, Stopped
from hashlens.files import replacing, require_room, shown
from hashlens.index.folder import IndexFolder
from hashlens.machine import blocks
from hashlens.progress import Progress, counted
from hashlens.schema import SHA256, conform, whole

OUTPUTS, ABOUT = "outputs.npy", "outputs.json"
SCHEMA = {"fingerprint": SHA256, "n": whole(1), "n_bits": whole(1, 65_536), "file": FILE}
STEP = 512  # images between two checks for Ctrl-C


class IndexedImages(Images):
    """The images of an index by their paths."""

    def __init__(self, roots: list[str], paths: list[str], moved_to: Path | None = None):
        self.names, self._roots, self._moved_to = paths, roots, moved_to

    def open(self, row: int) -> Any:
        return file_of(self._roots, self.names[row], self._moved_to)


def outputs_of(
    index: IndexFolder,
    encoder: Callable[[], Encoder],
    fingerprint: str,
    progress: Progress,
    stop: Callable[[], bool],
    images: Path | None = None,
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Ids (n,) in order, outputs (n, n_bits) float32 and paths of all images; `encoder` computes missing ones.

    `fingerprint` is the encoder's; `images` is the folder the images were moved to.
    """
    ids = np.concatenate([part.ids(part.still()) for part in index.parts])
    table = pa.concat_tables([part.items().table().take(pa.array(part.still())) for part in index.parts])
    kept_ids, kept = _kept(index.path, fingerprint, index.n_bits)
    places = np.searchsorted(kept_ids, ids)
    known = np.zeros(len(ids), bool)
    if len(kept_ids):
        known = kept_ids[np.minimum(places, len(kept_ids) - 1)] == ids
    u = np.empty((len(ids), index.n_bits), np.float32)
    u[known] = kept[places[known]]
    missing = np.flatnonzero(~known)
    if len(missing):
        require_room(index.path, u.nbytes, "the outputs of the model")
        progress.say(f"encode  {counted(len(missing), 'image')}; the outputs of the model are kept for next time")
        done = 0
        try:
            reader = _reader(index, images)
            with progress.bar("images", len(missing)) as advance:
                for rows in blocks(len(missing), STEP):
                    if stop():
                        left = counted(len(missing) - done, "image")
                        raise Stopped(f"stopped; {left} left to encode; rerun the same command to resume")
                    some = table.take(pa.array(missing[rows]))
                    listed = ListedImages(some, reader(some))
                    u[missing[rows]] = encoder().relaxed(listed, advance)[:, : index.n_bits]  # without the second code
                    _require_all(listed)
                    done = rows.stop
        finally:
            known[missing[:done]] = True
            if done:
                _keep(index.path, fingerprint, ids[known], u[known])
    return ids, u, table["path"].to_pylist()


def _reader(index: IndexFolder, images: Path | None) -> Callable[[pa.Table], Images]:
    source = index.facts.get("source")
    if source and images is None:
        return open_source(source, labels="optional").reader
    return lambda table: IndexedImages(index.roots, table["path"].to_pylist(), images)


def _require_all(listed: ListedImages) -> None:
    if listed.failed:
        row, why = min(listed.failed.items())
        raise DataError(
            f"{shown(listed.names[row])} of the index cannot be read ({why}); if the images were moved, pass their"
            " folder with --images; if they are gone, remove them with: hashlens index sync"
        )


def _kept(folder: Path, fingerprint: str, n_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The kept outputs of this model; empty if missing or damaged."""
    try:
        facts = conform(read_sealed(folder / ABOUT), SCHEMA)
        if (facts["fingerprint"], facts["n_bits"]) == (fingerprint, n_bits):
            rows = CheckedFile(folder / OUTPUTS, facts["file"], "").array((facts["n"],), _row(n_bits))
            return rows["id"], rows["u"]
    except (OSError, ValueError, HashlensError):
        pass
    return np.empty(0, np.int64), np.empty((0, n_bits), np.float32)


def _keep(folder: Path, fingerprint: str, ids: np.ndarray, u: np.ndarray) -> None:
    rows = np.empty(len(ids), _row(u.shape[1]))
    rows["id"], rows["u"] = ids, u
    with replacing(folder / OUTPUTS) as temporary, temporary.open("wb") as file:
        np.save(file, rows)
    facts = {"fingerprint": fingerprint, "n": len(ids), "n_bits": u.shape[1]}
    write_sealed(folder / ABOUT, facts | {"file": describe_file(folder / OUTPUTS)})


def _row(n_bits: int) -> np.dtype[Any]:
    return np.dtype([("id", "<i8"), ("u", "<f4", (n_bits,))])
