"""The commands that describe the methods and this machine: methods, doctor."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from hashlens.cli.options import JSON

app = typer.Typer()


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="One method, to see its settings, paper and differences.")] = None,
    as_json: JSON = False,
) -> None:
    """List the methods, or describe one of them."""
    from hashlens.hashers.methods import METHODS

    if name is not None:
        _describe(name, as_json)
    elif as_json:
        print(json.dumps({name: asdict(method) for name, method in METHODS.items()}))
    else:
        for name, method in METHODS.items():
            print(f"{name:<14} {method.learns_from:<20} {method.summary} ({method.paper})")


def _describe(name: str, as_json: bool) -> None:
    from inspect import getdoc

    from hashlens.hashers.methods import METHODS, hasher_class
    from hashlens.settings import describe

    cls = hasher_class(name)
    settings, about = describe(cls), getdoc(cls) or ""
    if as_json:
        facts = [{"name": s.name, "default": s.default, "range": s.range, "help": s.help} for s in settings]
        print(json.dumps({"name": name, **asdict(METHODS[name]), "about": about, "settings": facts}))
        return
    print(f"{name}: learns from {METHODS[name].learns_from}\n\n{about}\n\nSettings (--set name=value):")
    for s in settings:
        default = "none" if s.default is None else f"{s.default:.4g}" if isinstance(s.default, float) else s.default
        print(f"  {f'{s.name}={default}':<30} {s.help}" + (f"; {s.range}" if s.range else ""))


@app.command()
def doctor(as_json: JSON = False) -> None:
    """Tell what this machine has: the first thing to paste into a bug report."""
    from hashlens.machine import diagnose

    facts = diagnose()
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"{name:<10} {text}")
