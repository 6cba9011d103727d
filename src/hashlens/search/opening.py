"""An index, a model and an engine by their names in, a searcher out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hashlens.errors import UsageError
from hashlens.files import quoted, without_secrets
from hashlens.search import Searcher, open_index, open_searcher


def open_named(
    source: Path | str,
    model: Path | None = None,
    name: str | None = None,
    at: str | None = None,
    settings: Sequence[str] = (),
    *,
    kept: Path | None = None,
    **how: Any,
) -> Searcher:
    """The index, or that of images, which is `kept` and updated, with its model, and with the engine if one is named.

    `how` are progress and stop for encoding images.
    """
    from hashlens.index.engines import open_engine

    index = open_index(source, model, at=kept, **how)
    if name is None:
        if at is not None or settings:
            raise UsageError("--at and --set are settings of an engine; name it with --engine")
        return open_searcher(index, model)
    engine = open_engine(name, index.n_bits, at or "", settings)
    if not len(engine):
        raise UsageError(
            f"the engine {name} has no codes there; copy them with: hashlens index copy {quoted(index.path)} --engine"
            f" {name} --to {without_secrets(at or '')}"
        )
    return open_searcher(index, model, engine=engine)
