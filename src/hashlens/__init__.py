"""hashlens: similar-image search with short binary codes.

>>> from hashlens import DTSH
>>> codes = DTSH(n_bits=48).fit(images, labels).encode(images)  # doctest: +SKIP

Names are loaded when they are used: `import hashlens` imports neither torch nor numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "DTSH": "hashlens.hashers.deep.dtsh",
    "Training": "hashlens.hashers.deep.training",
    "METHODS": "hashlens.hashers",
    "make_hasher": "hashlens.hashers",
    "load": "hashlens.hashers",
    "Codes": "hashlens.codes",
    "Labels": "hashlens.data.labels",
    "open_source": "hashlens.data",
    "make_protocol": "hashlens.data",
    "HammingIndex": "hashlens.index",
    "evaluate_codes": "hashlens.metrics",
    "HashlensError": "hashlens.errors",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hashlens' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
