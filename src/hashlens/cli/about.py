"""The commands that tell what there is: methods, doctor."""

from __future__ import annotations

import json

import typer

from hashlens.cli.options import JSON

app = typer.Typer()


@app.command()
def methods(as_json: JSON = False) -> None:
    """List the methods."""
    from dataclasses import asdict

    from hashlens.hashers import METHODS

    if as_json:
        print(json.dumps({name: asdict(method) for name, method in METHODS.items()}))
        return
    for name, method in METHODS.items():
        labels = "labels" if method.supervised else "no labels"
        print(f"{name:<14} {labels:<10} {method.takes:<9} {method.summary} ({method.paper})")


@app.command()
def doctor(as_json: JSON = False) -> None:
    """Tell what this machine has: the first thing to paste into a bug report."""
    from hashlens.doctor import diagnose

    facts = diagnose()
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"{name:<10} {text}")
