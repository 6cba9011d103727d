"""Settings: what a method can be told. Each is one dataclass field that says its default, range and meaning.

    n_anchors: int = setting(1000, "number of anchors; paper: 300", low=1)

Validation, JSON, `hashlens methods NAME` and `--set name=value` all read these declarations. A field that is itself a
dataclass with settings (the `training` of deep methods) contributes them under their own names: `--set epochs=3`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from operator import ge, gt, le, lt
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from hashlens.errors import UsageError

T = TypeVar("T")
LIST = tuple[int, ...]
KINDS: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
KINDS |= {LIST: "integers separated by commas", NoneType: "none"}
NUMBERS: dict[Any, Any] = {int: int | np.integer, float: int | float | np.integer | np.floating}


@dataclass(frozen=True)
class Setting:
    """One setting; `low` and `high` are allowed values, `above` and `below` are not."""

    name: str
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] | None = None
    types: tuple[Any, ...] = ()
    part: str | None = None  # the field that it belongs to, such as training

    @property
    def range(self) -> str:
        """ ">= 1", "> 0 and <= 0.5", "one of a, b"; empty where every value of its type will do."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        return " and ".join(f"{sign} {limit:g}" for sign, _, limit in self._limits())

    def require(self, value: Any) -> None:
        """Refuse a value that is of another type or out of range."""
        if not any(_is_a(value, kind) for kind in self.types):
            kinds = " or ".join(KINDS.get(kind) or f"a {kind.__name__}" for kind in self.types)
            raise UsageError(f"{self.name} must be {kinds}, got {value!r}")
        values = value if isinstance(value, tuple | list) else [] if value is None else [value]
        if not all(self._allows(one) for one in values):
            raise UsageError(f"{self.name} must be {self.range}, got {value}")

    def _allows(self, value: Any) -> bool:
        return value in self.choices if self.choices else all(holds(value, limit) for _, holds, limit in self._limits())

    def _limits(self) -> list[tuple[str, Callable[[Any, Any], bool], float]]:
        limits = [(">=", ge, self.low), (">", gt, self.above), ("<=", le, self.high), ("<", lt, self.below)]
        return [(sign, holds, limit) for sign, holds, limit in limits if limit is not None]

    def parse(self, text: str) -> Any:
        """The value that a text such as 300, true, none or 512,256 stands for."""
        readers = {bool: {"true": True, "false": False}.__getitem__, NoneType: {"none": None}.__getitem__, int: int}
        readers |= {float: float, LIST: lambda listed: tuple(map(int, listed.split(","))), str: str}
        for kind in sorted(set(self.types) & set(readers), key=lambda kind: kind is str):  # any text is a str
            try:
                return readers[kind](text)  # type: ignore[operator]
            except (KeyError, ValueError):
                continue
        return text  # `require` refuses it with a sentence


def setting(default: Any, help: str, *, choices: Iterable[Any] | None = None, **limits: float) -> Any:
    """The dataclass field of a setting; limits are low, high, above and below."""
    facts: dict[str, Any] = {"choices": tuple(choices) if choices else None, **limits}
    return field(default=default, metadata={"setting": Setting("", default, help, **facts)})


def describe(cls: type) -> list[Setting]:
    """All settings of a class, those of its nested dataclasses last."""
    own, nested = [], []
    hints = get_type_hints(cls)
    for one in fields(cls):
        hint: Any = hints[one.name]
        if is_dataclass(hint):
            nested += [replace(inner, part=one.name) for inner in describe(hint)]  # type: ignore[arg-type]
        else:
            types = get_args(hint) if get_origin(hint) is not tuple and get_args(hint) else (hint,)
            known = one.metadata.get("setting", Setting("", one.default, ""))
            own.append(replace(known, name=one.name, default=one.default, types=types))
    return own + nested


def check(obj: Any) -> None:
    """Refuse an object with a setting of the wrong type or out of range."""
    for one in describe(type(obj)):
        holder = obj if one.part is None else getattr(obj, one.part)
        if not hasattr(holder, one.name):
            raise UsageError(f"{one.part} must be a {str(one.part).capitalize()}, got {holder!r}")
        one.require(getattr(holder, one.name))


def changed(obj: Any) -> dict[str, Any]:
    """Settings that differ from their defaults, as JSON has them."""
    values = {one: getattr(getattr(obj, one.part) if one.part else obj, one.name) for one in describe(type(obj))}
    return {one.name: _plain(value) for one, value in values.items() if _plain(value) != _plain(one.default)}


def parse(cls: type, texts: Iterable[str]) -> dict[str, Any]:
    """["n_anchors=300", "epochs=3"] as {"n_anchors": 300, "epochs": 3}, checked against the settings of `cls`."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"a setting is given as name=value, got '{text}'")
        values[name] = find_setting(cls, name).parse(value)
    return checked(cls, values)


def checked(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """The same values, once each is known to `cls` and in range."""
    for name, value in values.items():
        find_setting(cls, name).require(value)
    return values


def parse_for(classes: Mapping[str, type], texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """["ksh.n_anchors=300", "epochs=3"] as {"ksh": {"n_anchors": 300}, "dtsh": {"epochs": 3}}.

    A name without a method is for every method that has such a setting.
    """
    values: dict[str, dict[str, Any]] = {method: {} for method in classes}
    for text in texts:
        method, dot, rest = text.partition(".")
        if dot and "=" not in method:
            if method not in classes:
                raise UsageError(f"'{method}' in '{text}' is not a method compared here{did_you_mean(method, classes)}")
            values[method] |= parse(classes[method], [rest])
            continue
        name = text.partition("=")[0]
        having = [method for method, cls in classes.items() if name in {one.name for one in describe(cls)}]
        for method in having or list(classes)[:1]:  # where none has it, the first says so
            values[method] |= parse(classes[method], [text])
    return values


def apply(obj: T, values: Mapping[str, Any]) -> T:
    """The same object with these settings changed, each where it belongs."""
    for name, value in values.items():
        part = find_setting(type(obj), name).part
        if part is None:
            setattr(obj, name, value)
        else:
            setattr(obj, part, replace(getattr(obj, part), **{name: value}))
    return obj


def find_setting(cls: type, name: str) -> Setting:
    known = {one.name: one for one in describe(cls)}
    if name not in known:
        method = getattr(cls, "name", None)  # what is not a method lists its settings here
        help = f"see: hashlens methods {method}" if method else f"its settings: {', '.join(known)}"
        raise UsageError(f"{method or cls.__name__} has no setting '{name}'{did_you_mean(name, known)}; {help}")
    return known[name]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), 1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def to_json(obj: Any) -> dict[str, Any]:
    """The settings of an object as JSON has them."""
    values = {one.name: getattr(obj, one.name) for one in fields(obj)}
    return {name: _plain(value) for name, value in values.items()}


def from_json(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """What to construct `cls` with, from what `to_json` gave."""
    hints: dict[str, Any] = get_type_hints(cls)
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}  # JSON has no tuples
    parts = {name: hints[name](**from_json(hints[name], v)) for name, v in values.items() if isinstance(v, dict)}
    return {**values, **lists, **parts}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_json(value)
    if hasattr(value, "state_dict"):  # a module of the user's own, which no JSON can hold
        return f"own:{type(value).__name__}"
    return value.item() if isinstance(value, np.generic) else list(value) if isinstance(value, tuple) else value


def _is_a(value: Any, kind: Any) -> bool:
    if kind in NUMBERS:
        return isinstance(value, NUMBERS[kind]) and not isinstance(value, bool) and math.isfinite(value)
    if kind == LIST:
        return isinstance(value, tuple | list) and all(_is_a(one, int) for one in value)
    return isinstance(value, bool | np.bool_ if kind is bool else kind)
