"""Schema: a JSON value from outside in, the same value out once every name, type and range in it is known to be right.

A schema is a constant, a type, a pattern for text, `whole(low, high)` for an integer, a list with the schema of all its
items or, if it has not one entry, of each, a tuple of alternatives, or a dict: an object with exactly these names, of
which `optional("name")` may be absent.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

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
    """The value of a JSON text; a ValueError, whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def conform(value: Any, schema: Any, name: str = "it") -> Any:
    """The value, or a ValueError that says what is wrong with it.

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
