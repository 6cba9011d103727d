"""Engines: the contract of index/base.py fulfilled by Milvus, PostgreSQL or faiss's inverted lists.

A server (server.py) holds everything that an index folder holds. faiss gets only codes and ids; paths and labels stay
in an index folder with the same ids. An engine is a dataclass whose fields are its settings. Its packages are in the
extra with its name and are imported when it is opened.
"""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from hashlens.codes import Codes
from hashlens.errors import EXTRAS, MismatchError, UsageError, require
from hashlens.index import ENGINES, SERVERS
from hashlens.index.base import Index
from hashlens.index.catalog import Catalog
from hashlens.index.engines.server import Engine, New
from hashlens.index.folder import IndexFolder
from hashlens.progress import Progress
from hashlens.settings import parse

BATCH = 50_000  # codes copied at a time
VERIFY = 1_000  # codes compared at a time
FLUSH = 20  # batches between flushes, which a crash makes it copy again


def open_engine(
    name: str,
    n_bits: int | None,
    where: str,
    settings: Iterable[str] = (),
    *,
    second_bits: int = 0,
    model: dict[str, str] | None = None,
) -> Index:
    """Open an index in an engine, with settings such as n_probe=32; without `n_bits` it must exist.

    A new index is for codes of these lengths, made by this model.
    """
    if name not in ENGINES:
        raise UsageError(f"unknown engine {name}; choose one of {', '.join(ENGINES)}")
    class_name, place = ENGINES[name]
    if not where:
        raise UsageError(f"the engine {name} needs a place: {place}")
    require(*EXTRAS.get(name, ()), why=f"the engine {name}")
    engine = getattr(import_module(f"hashlens.index.engines.{name}"), class_name)
    given = parse(engine, settings)
    more = {"new": New(second_bits, model)} if issubclass(engine, Engine) else {}
    return cast(Index, engine(n_bits, where, **more, **given))


def open_server(name: str, where: str | None, settings: Iterable[str] = (), **new: Any) -> Engine:
    """Open an engine that also holds paths and labels; `new` are the arguments of `open_engine` for a new index."""
    if name in ENGINES and name not in SERVERS:
        raise UsageError(f"the engine {name} holds codes alone; name the folder of its index too")
    found = open_engine(name, new.pop("n_bits", None), where or "", settings, **new)
    assert isinstance(found, Engine)
    return found


def copy_index(folder: Catalog, engine: Index, progress: Progress | None = None) -> dict[str, int]:
    """Copy all codes and ids of an index folder to an engine, except those it already has.

    A server gets second codes, paths and labels too. The same call resumes an interrupted copy. Codes removed from the
    folder after a copy stay in the engine.
    """
    if folder.n_bits != engine.n_bits:
        raise MismatchError(f"{folder.path} holds codes of {folder.n_bits} bits, the engine codes of {engine.n_bits}")
    added = 0
    with (progress or Progress(quiet=True)).bar("codes", len(folder)) as advance:
        try:
            for number, (codes, ids, items) in enumerate(folder.batches_with_items(BATCH), start=1):
                new = ~np.isin(ids, engine.contains(ids))
                _require_copy(folder.path, codes.first[~new], ids[~new], engine)
                if isinstance(engine, Engine):
                    added += len(engine.add(codes[new], items().filter(pa.array(new)), ids=ids[new]))
                else:
                    added += len(engine.add(codes.first[new], ids=ids[new]))
                advance(len(ids))
                if number % FLUSH == 0:
                    engine.flush()
        finally:
            engine.flush()
    return {"added": added, "known": len(folder) - added, "n": len(engine)}


def verify_copy(folder: IndexFolder, engine: Index, progress: Progress | None = None) -> dict[str, int]:
    """Compare every code of an index folder with the engine's code of the same id."""
    missing, different = 0, list[int]()
    with (progress or Progress(quiet=True)).bar("compared", len(folder)) as advance:
        for codes, ids in folder.batches(VERIFY):
            there = np.isin(ids, engine.contains(ids))
            same = engine.within(codes, 0, among=ids)  # the ids of equal codes, per code
            different += [int(ids[row]) for row in np.flatnonzero(there) if ids[row] not in same[row][1]]
            missing += int((~there).sum())
            advance(len(ids))
    if missing or different:
        raise MismatchError(
            f"the engine is not a copy of {folder.path}: {missing:,} codes are missing and {len(different):,} differ"
            + (f", first that of id {different[0]}" if different else "")
            + "; copy the index to an empty place"
        )
    return {"compared": len(folder)}


def _require_copy(path: Path, codes: Codes, ids: np.ndarray, engine: Index) -> None:
    """Refuse an engine that holds another index under the same ids: compares one code per batch."""
    if len(ids) and engine.search(codes[0], 1, among=ids[:1])[0][0, 0] != 0:
        raise MismatchError(f"the code of id {ids[0]} in the engine differs from that in {path}; choose another place")
