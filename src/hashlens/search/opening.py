"""An index or images, a model and an engine by their names in, a searcher out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hashlens.errors import UsageError
from hashlens.files import quoted, without_secrets
from hashlens.search import Searcher, open_index, open_searcher


def open_named(
    source: str,
    model: Path | None = None,
    name: str | None = None,
    at: str | None = None,
    settings: Sequence[str] = (),
    kept: Path | None = None,
    **how: Any,
) -> Searcher:
    """The index, or that of the images, with its model, and with the engine if one is named.

    `kept` is where the codes of images are kept; `how` is given to `open_index`.
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
