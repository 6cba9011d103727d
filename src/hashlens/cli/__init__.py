"""The command line: one command a stage; results on standard output, progress on standard error."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

import hashlens
from hashlens.cli import about, compare, data, index, search, train
from hashlens.errors import HashlensError, StorageError

app = typer.Typer(
    help="Similar-image search with short binary codes. Start with: hashlens demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for commands in (train, search, index, data, compare, about):  # in the order of use, which is that of --help
    app.add_typer(commands.app)


def main() -> None:
    """Run a command; a mistake of the user's is one sentence on stderr and a non-zero exit code, never a traceback."""
    # torch's threads spin for some microseconds when they wait, then sleep: sleeping at once costs a fifth of the
    # training speed, spinning for long takes the cores from whatever else runs
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    try:
        app()
    except HashlensError as error:
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("stopped; run the same command again to start over", file=sys.stderr)
        sys.exit(130)
    except MemoryError:
        print("error: not enough memory; try a smaller --image-size or fewer pictures", file=sys.stderr)
        sys.exit(StorageError.exit_code)
    except BrokenPipeError:  # the reader of our output has gone
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:  # a path that is too long, a disk that is gone
        name = f"{error.filename}: " if error.filename else ""
        print(f"error: {name}{error.strerror or error}; check the path and the disk", file=sys.stderr)
        sys.exit(StorageError.exit_code)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"hashlens {hashlens.__version__}")
        raise typer.Exit
