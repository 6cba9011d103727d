"""Hashers: the table of methods, pictures or features in, codes out. Everything that lists methods iterates over it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashlens.errors import DataError, UsageError

if TYPE_CHECKING:
    from hashlens.hashers.base import Hasher


@dataclass(frozen=True)
class Method:
    """One row of the table; the class is imported only when it is used."""

    path: str  # module:class
    supervised: bool
    takes: str  # "images" (features too) or "features"
    summary: str
    paper: str


METHODS: dict[str, Method] = {
    "dtsh": Method(
        "hashlens.hashers.deep.dtsh:DTSH",
        True,
        "images",
        "triplet label likelihood, features and codes learnt together",
        "Wang, Shi, Kitani, ACCV 2016",
    ),
    "itq": Method(
        "hashlens.hashers.shallow.itq:ITQ",
        False,
        "features",
        "principal directions, rotated so that the sign loses least",
        "Gong, Lazebnik, CVPR 2011",
    ),
    "lsh": Method(
        "hashlens.hashers.shallow.lsh:LSH",
        False,
        "features",
        "signs of random projections",
        "Andoni, Indyk, FOCS 2006; Charikar, STOC 2002",
    ),
}


def hasher_class(name: str) -> type[Hasher]:
    if name not in METHODS:
        raise UsageError(f"there is no method '{name}'; choose one of {', '.join(METHODS)}")
    module, _, attribute = METHODS[name].path.partition(":")
    return getattr(import_module(module), attribute)


def make_hasher(name: str, **params: Any) -> Hasher:
    return hasher_class(name)(**params)


def load(folder: str | Path) -> Hasher:
    """The hasher that `save` wrote to `folder`, whatever its method."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        method = config["method"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder} holds no hashlens model (config.json is missing or damaged); give the folder 'model' of a run"
        ) from error
    return hasher_class(method).load(folder)
