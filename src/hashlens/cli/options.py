"""What the commands share: options that mean the same everywhere, how results are shown, and Ctrl-C as a request."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from hashlens.data.sources import AT_ADDRESSES, KINDS, Columns
from hashlens.errors import UsageError
from hashlens.files import expanded
from hashlens.progress import Progress
from hashlens.ranks import current

if TYPE_CHECKING:
    from hashlens.data import Source

DATA, LEARNING = "Data and split", "Network and training"  # panels of --help

JSON = Annotated[bool, Option("--json", help="Print the result as one JSON object.")]
QUIET = Annotated[bool, Option("--quiet", "-q", help="Do not show progress on standard error.")]
BITS = Annotated[int, Option(help="Code length in bits.")]
SEED = Annotated[int, Option(min=0, help="Seed for the split, initial weights and batch order.")]
SOURCE = Annotated[str, Argument(help=f"Images: {KINDS}; {AT_ADDRESSES}.")]
PROTOCOL = Annotated[
    str | None,
    Option(
        help="cifar10-1, cifar10-2, nuswide-1 or nuswide-2 (the paper's), mirflickr, unseen, split, or few-1, few-2,"
        " few-4 or few-8 (split with that many training images per class).",
        show_default="that of the source, else split",
        rich_help_panel=DATA,
    ),
]
SPLITS = Annotated[
    int,
    Option(
        min=1,
        help="Number of random splits, with consecutive seeds; MAP is reported as mean ± deviation.",
        rich_help_panel=DATA,
    ),
]
COLUMNS = Annotated[
    list[str] | None,
    Option(
        "--column",
        metavar="NAME=COLUMN",
        help="Column names in a table or Hugging Face dataset, if not the defaults: path=COLUMN, labels=COLUMN,"
        " split=COLUMN, or separator=CHARACTER between labels. May be repeated.",
        rich_help_panel=DATA,
    ),
]
FROM_FILE = Annotated[
    Path | None, Option(help="Local archive of CIFAR-10: cifar-10-binary.tar.gz.", rich_help_panel=DATA)
]


def show(result: Any, as_json: bool, *lines: str) -> None:
    """Print the result as JSON, or else these lines but for empty ones."""
    print(json.dumps(result) if as_json else "\n".join(filter(None, lines)))


def command_line() -> str:
    """What was typed, to repeat it."""
    return shlex.join(["hashlens", *sys.argv[1:]])


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within, the first Ctrl-C is a request to save and stop; the second stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        if current().first:
            print("finishing the step and saving; press Ctrl-C again to stop at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def typed(context: typer.Context) -> list[str]:
    """Names of those parameters that were typed, whatever their values are."""
    # by its name: some versions of typer have an enum of their own in place of click's
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Those options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def full_path(path: Path | None) -> str | None:
    """The same file from any folder."""
    return None if path is None else str(expanded(path).absolute())


def listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, option: str) -> list[int]:
    words = listed(text)
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise UsageError(f"{option} takes comma-separated whole numbers, such as 12,24, got {text!r}")
    return [int(word) for word in words]


def chosen_columns(texts: list[str] | None) -> Columns:
    """What --column says, once or several times."""
    found = {}
    for text in texts or []:
        name, _, column = text.partition("=")
        if name not in ("path", "labels", "split", "separator") or not column:
            raise UsageError(f"--column takes path=, labels=, split= or separator= and a column, got {text!r}")
        found[name] = column
    return Columns(**found)


def open_source_of(config: dict[str, Any], from_file: Path | None, progress: Progress) -> Source:
    """What a run's configuration names."""
    from hashlens.data import open_source, readable

    source = open_source(
        config["source"],
        from_file=from_file,
        progress=progress.say,
        columns=Columns(**config["columns"]) if "columns" in config else None,
        quirk=config.get("quirk"),
        labels="optional" if "triplets" in config else "required",
    )
    return readable(source, progress.say)
