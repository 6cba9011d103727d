"""What the commands share: options that mean the same everywhere, and Ctrl-C as a request."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hashlens.files import quoted
from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.data import Source

JSON = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")]
SEED = Annotated[int, typer.Option(min=0, help="Of the split, the initial weights and the order of pictures.")]
TABLES: dict[str, Any] = {"rich_help_panel": "Tables and Hugging Face datasets"}
COLUMN = Annotated[str | None, typer.Option(help="Its name, where it is not the usual one.", **TABLES)]
FROM_FILE = Annotated[
    Path | None, typer.Option(help="An archive of CIFAR-10 that you have: cifar-10-python.tar.gz or -binary.")
]


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within, the first Ctrl-C is a request to save and stop; the second stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("finishing the step and saving; press Ctrl-C again to stop at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def without_secrets(address: str) -> str:
    """The address of an engine as a shell takes it; one that may hold a password is not for the screen."""
    return "ADDRESS" if "@" in address or "password" in address.lower() else quoted(address)


def typed(context: typer.Context) -> list[str]:
    """Names of those parameters that were typed, whatever their values are."""
    # by its name: some versions of typer have an enum of their own in place of click's
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Those options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def open_source_of(config: dict[str, Any], from_file: Path | None, progress: Progress) -> Source:
    """What a run's configuration names."""
    from hashlens.data import open_source
    from hashlens.runs import columns_of

    return open_source(
        config["source"],
        from_file=from_file,
        progress=progress.say,
        columns=columns_of(config),
        quirk=config.get("quirk"),
        labelled="triplets" not in config,
    )
