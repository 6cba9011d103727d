"""The commands that describe the methods and this machine: methods, doctor."""

from dataclasses import asdict
from typing import Annotated

import typer

from hashlens.cli.options import JSON, show

app = typer.Typer()


@app.command()
def methods(
    name: Annotated[
        str | None, typer.Argument(help="Name of a method, to see its settings, its paper and how it differs from it.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """List the methods, or describe one of them."""
    from hashlens.hashers.methods import METHODS

    if name is not None:
        return _describe(name, as_json)
    lines = [f"{name:<14} {one.learns_from:<20} {one.summary} ({one.paper})" for name, one in METHODS.items()]
    show({name: asdict(method) for name, method in METHODS.items()}, as_json, *lines)


def _describe(name: str, as_json: bool) -> None:
    from inspect import getdoc

    from hashlens.hashers.methods import METHODS, hasher_class
    from hashlens.settings import describe

    cls = hasher_class(name)
    settings, about = describe(cls), getdoc(cls) or ""
    lines = [f"{name}: learns from {METHODS[name].learns_from}\n\n{about}\n\nSettings (--set name=value):"]
    for s in settings:
        default = "none" if s.default is None else f"{s.default:.4g}" if isinstance(s.default, float) else s.default
        lines.append(f"  {f'{s.name}={default}':<30} {'; '.join(filter(None, (s.help, s.range, s.tuned)))}")
    facts = [{name: getattr(s, name) for name in ("name", "default", "range", "search", "help")} for s in settings]
    show({"name": name, **asdict(METHODS[name]), "about": about, "settings": facts}, as_json, *lines)


@app.command()
def doctor(as_json: JSON = False) -> None:
    """Show versions and hardware: the first thing to paste into a bug report."""
    from hashlens.machine import diagnose

    facts = diagnose()
    texts = {
        name: ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        for name, value in facts.items()
    }
    show(facts, as_json, *(f"{name:<10} {text}" for name, text in texts.items()))
