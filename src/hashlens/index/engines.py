"""Engines: codes in, the answers of `HammingIndex` out of Milvus, PostgreSQL or lists that are searched in part.

`Engine` is what they have in common: it checks what it is asked and pads what it answers, so that every engine keeps
the contract of `hashlens.index` in the same words. Only codes and ids go to an engine; paths and labels stay in the
index folder, whose ids are the same. The packages are extras, imported when an engine is opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.hamming import require_same_bits
from hashlens.index import check_ids, require_k, require_radius
from hashlens.index.folder import IndexFolder
from hashlens.progress import Progress
from hashlens.threads import blocks

ENGINES = {  # name: module, class, what it imports, what `where` is
    "milvus": ("milvus", "MilvusIndex", "pymilvus", "an address such as http://localhost:19530, or a file NAME.db"),
    "pgvector": ("pgvector", "PgvectorIndex", "psycopg", "a connection such as postgresql://localhost/pictures"),
    "faiss": ("approximate", "ApproximateIndex", "faiss", "a folder"),
}
BATCH = 50_000  # codes that are copied at once
FLUSH = 20  # batches after which what was copied is stored for good: what is lost when the work is killed

Found = tuple[np.ndarray, np.ndarray]  # distances int32 and ids int64 of one query, ordered by (distance, id)


class Engine:
    """An index that lies elsewhere; a back end knows how to insert, delete, find and look up."""

    exact = True

    def __init__(self, n_bits: int):
        self.n_bits = n_bits

    def add(self, codes: Codes, ids: Any = None) -> np.ndarray:
        """Add codes under these ids, or under those that follow the highest; returns the ids."""
        self._require(codes)
        if ids is None:
            following = self._highest() + 1
            added = np.arange(following, following + len(codes))
        else:
            added = check_ids(ids, len(codes))
        if len(codes):
            self._insert(codes, added)
        return added

    def remove(self, ids: Any) -> int:
        """Forget these ids; returns how many of them were there."""
        ids = _whole(ids)
        return self._delete(ids) if len(ids) else 0

    def known(self, ids: Any) -> np.ndarray:
        """Those of these ids that are in the index, ascending."""
        ids = _whole(ids)
        return self._known(ids) if len(ids) else ids

    def search(self, codes: Codes, k: int, *, among: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """The nearest k of each query: distances (q, k) int32 and ids (q, k) int64; `among` these ids only."""
        self._require(codes)
        require_k(k)
        distances = np.full((len(codes), k), -1, np.int32)
        ids = np.full((len(codes), k), -1, np.int64)
        among = None if among is None else _whole(among)
        if len(codes) and (among is None or len(among)):
            for row, (found, found_ids) in enumerate(self._nearest(codes, k, among)):
                n = min(k, len(found))
                distances[row, :n], ids[row, :n] = found[:n], found_ids[:n]
        return distances, ids

    def within(self, codes: Codes, radius: int, *, among: Any = None) -> list[Found]:
        """For each query the distances and ids of all codes at most `radius` away."""
        self._require(codes)
        require_radius(radius)
        among = None if among is None else _whole(among)
        if not len(codes) or (among is not None and not len(among)):
            return [ordered([], []) for _ in range(len(codes))]
        return self._within(codes, min(radius, self.n_bits), among)

    def flush(self) -> None:
        """What was added or removed is stored for good when this returns."""

    def close(self) -> None:
        """Let go of files and connections."""

    def __len__(self) -> int:
        raise NotImplementedError

    def _highest(self) -> int:
        """The highest id, or one less than the first that is given."""
        raise NotImplementedError

    def _insert(self, codes: Codes, ids: np.ndarray) -> None:
        """All of them, or none if an id is taken."""
        raise NotImplementedError

    def _delete(self, ids: np.ndarray) -> int:
        raise NotImplementedError

    def _known(self, ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _nearest(self, codes: Codes, k: int, among: np.ndarray | None) -> list[Found]:
        """At least the nearest k of each query, or all there are."""
        raise NotImplementedError

    def _within(self, codes: Codes, radius: int, among: np.ndarray | None) -> list[Found]:
        raise NotImplementedError

    def _require(self, codes: Codes) -> None:
        if codes.n_bits != self.n_bits:
            raise MismatchError(
                f"the index holds codes of {self.n_bits} bits, these have {codes.n_bits}; encode with the same model"
            )
        require_same_bits(codes, codes)


def ordered(distances: Any, ids: Any) -> Found:
    distances, ids = np.asarray(distances).astype(np.int32), np.asarray(ids).astype(np.int64)
    order = np.lexsort((ids, distances))
    return distances[order], ids[order]


def together(pieces: Sequence[list[Found]]) -> list[Found]:
    """The answers to the same queries from several parts of an index."""
    return [
        ordered(np.concatenate([d for d, _ in of_query]), np.concatenate([i for _, i in of_query]))
        for of_query in zip(*pieces, strict=True)
    ]


def refuse(taken: np.ndarray) -> None:
    """The sentence for ids that are there already, as in `HammingIndex.add`."""
    if len(taken):
        raise DataError(f"id {taken[0]} is in the index already; remove it first, or add under another id")


def open_engine(name: str, n_bits: int, where: str, *, collection: str | None = None) -> Engine:
    """Open or create an index of that engine; `collection` names one of several in a Milvus or PostgreSQL."""
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name}; choose one of {', '.join(ENGINES)}")
    module, class_name, package, place = ENGINES[name]
    if not where:
        raise UsageError(f"the engine {name} needs a place: {place}")
    if collection is not None and name == "faiss":
        raise UsageError("a collection is chosen in milvus and pgvector; for faiss give another folder")
    try:
        found = getattr(import_module(f"hashlens.index.{module}"), class_name)
    except ImportError as error:
        if (error.name or package).startswith("hashlens"):
            raise
        raise UsageError(f'the engine {name} needs {package}: pip install "hashlens[{name}]"') from error
    return found(n_bits, where) if collection is None else found(n_bits, where, collection)


def copy_index(folder: IndexFolder, engine: Engine, progress: Progress | None = None) -> dict[str, int]:
    """Copy all codes and ids of an index folder to an engine; those that are there already are not sent again.

    Stopped or killed, the same call goes on. What was removed from the folder after a copy is not removed there.
    """
    if folder.n_bits != engine.n_bits:
        raise MismatchError(f"{folder.path} holds codes of {folder.n_bits} bits, the engine those of {engine.n_bits}")
    added = 0
    tasks = [(part, rows) for part in folder.index.parts for rows in blocks(len(part), BATCH)]
    with (progress or Progress(quiet=True)).bar("codes", len(folder)) as advance:
        try:
            for number, (part, rows) in enumerate(tasks, start=1):
                places = part.still(np.arange(rows.start, rows.stop))
                codes, ids = Codes.from_pieces(part.pieces[:, places].T, folder.n_bits), part.ids(places)
                new = ~np.isin(ids, engine.known(ids))
                _require_copy(folder.path, codes[~new], ids[~new], engine)
                added += len(engine.add(codes[new], ids[new]))
                advance(len(places))
                if number % FLUSH == 0:
                    engine.flush()
        except KeyboardInterrupt:
            engine.flush()
            raise
    engine.flush()
    return {"added": added, "known": len(folder) - added, "n": len(engine)}


def _require_copy(path: Path, codes: Codes, ids: np.ndarray, engine: Engine) -> None:
    """Refuse an engine that has the ids of another index: one of each batch is compared, there and here."""
    if len(ids) and engine.search(codes[0], 1, among=ids[:1])[0][0, 0] != 0:
        raise MismatchError(
            f"id {ids[0]} has another code in the engine than in {path}; choose a place that holds no other index"
        )


def _whole(ids: Any) -> np.ndarray:
    return np.unique(np.asarray(ids, np.int64).ravel())
