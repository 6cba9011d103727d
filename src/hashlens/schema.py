"""Schema: a JSON value from outside in, the same value out after checking every name, type and range in it.

A schema is a constant, a type, a pattern for text, `whole(low, high)` for an integer, a list (one schema for all items,
or else one for each), a tuple of alternatives, or a dict: an object with exactly these names, of which
`optional("name")` may be absent.
"""

from __future__ import annotations

import json
import re
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # not imported at run time, so that `hashlens --help` is quick
    import numpy as np
    import pyarrow as pa

LARGEST = 2**62
SHA256 = re.compile(r"[0-9a-f]{64}")
TEXT = re.compile(r"[^\x00]{0,4096}")


class Whole(NamedTuple):
    low: int
    high: int


class Optional(NamedTuple):
    name: str


def whole(low: int = 0, high: int = LARGEST) -> Whole:
    return Whole(low, high)


def optional(name: str) -> Optional:
    return Optional(name)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; any error is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def load_array(file: Any, mmap_mode: Any = None) -> np.ndarray:
    """The array of a .npy file without pickles; any error is a ValueError."""
    import numpy as np

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # headers as written by Python 2 would be parsed differently
            found = np.load(file, mmap_mode=mmap_mode, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # numpy raises nearly anything on a damaged header
        raise ValueError(f"it is not an array ({error})") from error
    if not isinstance(found, np.ndarray):
        raise ValueError("it is not an array")
    return found


def load_table(file: Any) -> pa.Table:
    """The table of a Parquet file with valid UTF-8 text; any error is a ValueError."""
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
        table.validate(full=True)
        _ = table.column_names
    except FileNotFoundError:
        raise
    except Exception as error:  # Arrow raises nearly anything on a damaged file
        raise ValueError(" ".join(str(error).split())[:200]) from error
    return table


def conform(value: Any, schema: Any, name: str = "it") -> Any:
    """The value if it conforms, else a ValueError that says what is wrong.

    >>> conform({"n": 3, "names": ["a"]}, {"n": whole(1), "names": [str], optional("why"): str})["n"]
    3
    """
    if isinstance(schema, Optional):
        schema = schema.name
    if isinstance(schema, tuple) and not isinstance(schema, Whole):
        for one in schema:
            try:
                return conform(value, one, name)
            except ValueError as error:
                wrong = error
        raise wrong
    if isinstance(schema, Whole):
        right = type(value) is int and schema.low <= value <= schema.high
    elif isinstance(schema, re.Pattern):
        right = type(value) is str and schema.fullmatch(value) is not None
    elif isinstance(schema, type):
        right = type(value) is schema
    elif isinstance(schema, dict | list):
        right = type(value) is type(schema)
    else:
        right = type(value) is type(schema) and value == schema
    if not right:
        raise ValueError(f"{name} is {_short(value)}")
    if isinstance(schema, list):
        each = schema * len(value) if len(schema) == 1 else schema
        if len(each) != len(value):
            raise ValueError(f"{name} has {len(value)} items instead of {len(each)}")
        for place, (item, inner) in enumerate(zip(value, each, strict=True)):
            conform(item, inner, f"{name}[{place}]")
    elif isinstance(schema, dict):
        _closed(value, schema, name)
    return value


def _closed(value: dict[str, Any], schema: dict[Any, Any], name: str) -> None:
    known = {key.name if isinstance(key, Optional) else key: (key, inner) for key, inner in schema.items()}
    if unknown := value.keys() - known.keys():
        raise ValueError(f"{name} has the unknown entry {_short(min(unknown))}")
    for own, (key, inner) in known.items():
        if own in value:
            conform(value[own], inner, own)
        elif not isinstance(key, Optional):
            raise ValueError(f"{own} is missing")


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
