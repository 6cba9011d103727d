"""hashlens: similar-image search with short binary codes.

>>> from hashlens import DTSH
>>> codes = DTSH(n_bits=48).fit(images, labels).encode(images)  # doctest: +SKIP

Names are loaded when they are used: `import hashlens` imports neither torch nor numba. __init__.pyi lists them.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.2.0"


@cache
def _homes() -> dict[str, str]:
    """The module of each public name."""
    import ast

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    lines = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}


def __getattr__(name: str) -> Any:
    home = None if name.startswith("_") else _homes().get(name)
    if home is None:
        raise AttributeError(f"module 'hashlens' has no attribute '{name}'")
    return import_module(f"hashlens.{name}") if home == "hashlens" else getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(["__version__", *_homes()])
