"""Opening: the names of an index or images, a model and an engine in, a searcher out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hashlens.errors import UsageError
from hashlens.files import quoted, without_secrets
from hashlens.index import SERVERS
from hashlens.search import Searcher, open_index, open_searcher


def open_named(
    source: str | None,
    model: Path | None = None,
    name: str | None = None,
    at: str | None = None,
    settings: Sequence[str] = (),
    kept: Path | None = None,
    **how: Any,
) -> Searcher:
    """Open an index, the index of some images, or one on a server, with its model.

    `kept` is where the codes of images are kept; `how` is passed to `open_index`.
    """
    from hashlens.index.engines import open_engine, open_server

    if name is None:
        if at is not None or settings:
            raise UsageError("--at and --set are settings of an engine; choose one with --engine")
        if source is None:
            raise UsageError("name an index or images, or an engine with --engine and --at")
        return open_searcher(open_index(source, model, at=kept, **how), model)
    if name in SERVERS or source is None:
        if source is not None:
            raise UsageError(f"the engine {name} holds paths and labels itself; omit {source}")
        return open_searcher(open_server(name, at, settings), model)
    index = open_index(source, model, at=kept, **how)
    engine = open_engine(name, index.n_bits, at or "", settings)
    if not len(engine):
        raise UsageError(
            f"the engine {name} has no codes there; copy them with: hashlens index copy {quoted(index.path)} --engine"
            f" {name} --at {without_secrets(at or '')}"
        )
    return open_searcher(index, model, engine=engine)
