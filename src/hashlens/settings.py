"""Settings of methods, training and engines: each is a dataclass field with a default, a range and a help text.

    n_anchors: int = setting(1000, "number of anchors; paper: 300", low=1, search=(100, 3000))

Validation, JSON, `hashlens methods NAME`, `--set name=value` and `hashlens tune` all read these declarations. A
field that is itself a dataclass with settings (the `training` of deep methods) contributes them under their own names:
`--set epochs=3`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from operator import ge, gt, le, lt
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from hashlens.errors import UsageError

T = TypeVar("T")
KINDS: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "text", NoneType: "none"}
PLURALS: dict[Any, str] = {int: "integers", float: "numbers"}
READERS: dict[Any, Callable[[str], Any]] = {
    bool: {"true": True, "false": False}.__getitem__,
    NoneType: {"none": None}.__getitem__,
}
NUMBERS: dict[Any, Any] = {int: int | np.integer, float: int | float | np.integer | np.floating}


@dataclass(frozen=True)
class Setting:
    """One setting; `low` and `high` are allowed values, `above` and `below` are not.

    `search` has the values for tuning: a tuple (from, to), on a logarithmic scale if it spans a decade, or a list.
    """

    name: str
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] | None = None
    types: tuple[Any, ...] = ()
    search: tuple[float, float] | list[Any] | None = None
    part: str | None = None  # the field that it belongs to, such as training
    published: Any = ...  # the value for the paper's tables, if not the default

    @property
    def range(self) -> str:
        """ ">= 1", "> 0 and <= 0.5", "one of a, b"; empty if any value of its type is allowed."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        return " and ".join(f"{sign} {limit:g}" for sign, _, limit in self._limits())

    @property
    def tuned(self) -> str:
        """ "tuned from 0.1 to 10", "tuned over a, b"; empty if it is not tuned."""
        if isinstance(self.search, tuple):
            return "tuned from {:g} to {:g}".format(*self.search)
        return f"tuned over {', '.join(map(str, self.search))}" if self.search else ""

    def require(self, value: Any) -> None:
        """Refuse a value of the wrong type or out of range."""
        if not any(_is_a(value, kind) for kind in self.types):
            raise UsageError(f"{self.name} must be {' or '.join(map(_words, self.types))}, got {value!r}")
        values = value if isinstance(value, tuple | list) else [] if value is None else [value]
        if not all(self._allows(one) for one in values):
            raise UsageError(f"{self.name} must be {self.range}, got {value}")

    def _allows(self, value: Any) -> bool:
        return value in self.choices if self.choices else all(holds(value, limit) for _, holds, limit in self._limits())

    def _limits(self) -> list[tuple[str, Callable[[Any, Any], bool], float]]:
        limits = [(">=", ge, self.low), (">", gt, self.above), ("<=", le, self.high), ("<", lt, self.below)]
        return [(sign, holds, limit) for sign, holds, limit in limits if limit is not None]

    def parse(self, text: str) -> Any:
        """The value of a text such as 300, true, none or 512,256."""
        for kind in sorted(self.types, key=lambda kind: kind is str):  # any text is a str
            try:
                if item := _item(kind):
                    return get_origin(kind)(READERS.get(item, item)(one) for one in text.split(","))
                return READERS.get(kind, kind)(text)
            except (KeyError, ValueError, TypeError):  # TypeError: a module cannot be given as text
                continue
        return text  # `require` refuses it with a message


def setting(
    default: Any,
    help: str,
    *,
    choices: Iterable[Any] | None = None,
    search: tuple[float, float] | list[Any] | None = None,
    published: Any = ...,
    **limits: float,
) -> Any:
    """The dataclass field of a setting; limits are low, high, above and below, the rest is as in `Setting`."""
    facts: dict[str, Any] = {"choices": tuple(choices) if choices else None, "search": search, "published": published}
    facts |= limits
    metadata = {"setting": Setting("", default, help, **facts)}
    if isinstance(default, list):  # each object needs its own list
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def describe(cls: type) -> list[Setting]:
    """All settings of a class, with those of nested dataclasses last."""
    own, nested = [], []
    hints = get_type_hints(cls)
    for one in fields(cls):
        hint: Any = hints[one.name]
        if is_dataclass(hint):
            inner = describe(hint)  # type: ignore[arg-type]
            nested += [replace(each, part=one.name, default=getattr(one.default, each.name)) for each in inner]
        else:
            known = one.metadata.get("setting", Setting("", one.default, ""))
            choices = known.choices or _literals(hint)
            own.append(replace(known, name=one.name, choices=choices, types=tuple(_kinds(hint))))
    return own + nested


def check(obj: Any) -> None:
    """Refuse an object with a setting of the wrong type or out of range."""
    for one in describe(type(obj)):
        holder = obj if one.part is None else getattr(obj, one.part)
        if not hasattr(holder, one.name):
            raise UsageError(f"{one.part} must be a {str(one.part).capitalize()}, got {holder!r}")
        one.require(getattr(holder, one.name))


def changed(obj: Any) -> dict[str, Any]:
    """Settings that differ from their defaults, as JSON values."""
    known = describe(type(obj))
    values = [_plain(getattr(getattr(obj, one.part) if one.part else obj, one.name)) for one in known]
    return {one.name: value for one, value in zip(known, values, strict=True) if value != _plain(one.default)}


def parse(cls: type, texts: Iterable[str]) -> dict[str, Any]:
    """["n_anchors=300", "epochs=3"] as {"n_anchors": 300, "epochs": 3}, checked against the settings of `cls`."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"write a setting as name=value, got '{text}'")
        values[name] = find_setting(cls, name).parse(value)
    return checked(cls, values)


def checked(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """The same values, after checking that `cls` knows each and it is in range."""
    for name, value in values.items():
        find_setting(cls, name).require(value)
    return values


def parse_for(classes: Mapping[str, type], texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """["ksh.n_anchors=300", "epochs=3"] as {"ksh": {"n_anchors": 300}, "dtsh": {"epochs": 3}}.

    A name without a method applies to all methods that have such a setting.
    """
    values: dict[str, dict[str, Any]] = {method: {} for method in classes}
    for text in texts:
        method, dot, rest = text.partition(".")
        if dot and "=" not in method:
            if method not in classes:
                hint = f"{did_you_mean(method, classes)}; choose from {', '.join(classes)}"
                raise UsageError(f"'{method}' in '{text}' is not a method compared here{hint}")
            values[method] |= parse(classes[method], [rest])
            continue
        name = text.partition("=")[0]
        having = [method for method, cls in classes.items() if name in {one.name for one in describe(cls)}]
        for method in having or list(classes)[:1]:  # if none has it, the first raises the error
            values[method] |= parse(classes[method], [text])
    return values


def apply(obj: T, values: Mapping[str, Any]) -> T:
    """The same object with these settings changed, including those of its parts."""
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
        ours = cls.__module__.startswith("hashlens.")
        listed = cls.__module__.startswith("hashlens.hashers.") and hasattr(cls, "name")  # in `hashlens methods`
        title = getattr(cls, "name", cls.__name__) if ours else cls.__name__
        help = f"see: hashlens methods {title}" if listed else f"its settings: {', '.join(known)}"
        raise UsageError(f"{title} has no setting '{name}'{did_you_mean(name, known)}; {help}")
    return known[name]


def require_arguments(cls: type, given: Mapping[str, Any]) -> None:
    """Refuse unknown arguments of `cls`'s constructor, and say where a setting of one of its parts belongs."""
    for name in given.keys() - {one.name for one in fields(cls)}:
        part = find_setting(cls, name).part or ""
        whole = f"{cls.__name__}({part}={type(getattr(cls, part)).__name__}({name}={given[name]!r}))"
        raise UsageError(f"'{name}' is a setting of {part}: use {whole}, or --set {name}={given[name]}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that suggests the most similar name; one of the same letters comes first: dtsh, not dh, for dhst."""
    names = list(known)
    close = [one for one in names if sorted(one) == sorted(name)] or get_close_matches(name, names, 1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def to_json(obj: Any) -> dict[str, Any]:
    """The settings of an object as JSON values."""
    values = {one.name: getattr(obj, one.name) for one in fields(obj)}
    return {name: _plain(value) for name, value in values.items()}


def from_json(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor arguments of `cls` from the output of `to_json`."""
    hints: dict[str, Any] = get_type_hints(cls)
    if unknown := values.keys() - hints:
        raise ValueError(f"unknown setting {min(unknown)}")
    found = dict(values)
    for name, value in values.items():
        hint = hints[name]
        listed = next((get_origin(kind) for kind in _kinds(hint) if _item(kind)), None)
        if is_dataclass(hint) and isinstance(value, dict):
            found[name] = hint(**from_json(hint, value))  # type: ignore[operator, arg-type]
        elif listed and isinstance(value, list):
            found[name] = listed(value)  # JSON has no tuples
        elif is_dataclass(hint) or isinstance(value, dict | list):
            raise ValueError(f"{name} is {value!r}")
    return found


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_json(value)
    if hasattr(value, "state_dict"):  # a user's own module, which does not fit into JSON
        return f"own:{type(value).__name__}"
    return value.item() if isinstance(value, np.generic) else list(value) if isinstance(value, tuple) else value


def _kinds(hint: Any) -> list[Any]:
    """int and None for int | None, str for Literal["a", "b"]."""
    if get_origin(hint) in (Union, UnionType):
        return [kind for one in get_args(hint) for kind in _kinds(one)]
    return [type(get_args(hint)[0])] if get_origin(hint) is Literal else [hint]


def _literals(hint: Any) -> tuple[Any, ...]:
    """("a", "b") for Literal["a", "b"], also in a union or a list."""
    inner = get_args(hint)
    return inner if get_origin(hint) is Literal else tuple(value for one in inner for value in _literals(one))


def _item(kind: Any) -> Any:
    """The kind of the items of a list or tuple; None for other kinds."""
    return _kinds(get_args(kind)[0])[0] if get_origin(kind) in (list, tuple) else None


def _words(kind: Any) -> str:
    if item := _item(kind):
        return f"{PLURALS.get(item, 'values')} separated by commas"
    return KINDS.get(kind) or f"a {kind.__name__}"


def _is_a(value: Any, kind: Any) -> bool:
    if kind in NUMBERS:
        return isinstance(value, NUMBERS[kind]) and not isinstance(value, bool) and math.isfinite(value)
    if item := _item(kind):
        return isinstance(value, tuple | list) and all(_is_a(one, item) for one in value)
    return isinstance(value, bool | np.bool_ if kind is bool else kind)
