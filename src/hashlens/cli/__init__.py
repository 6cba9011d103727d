"""The command line: one command per stage; results on standard output, progress on standard error."""

import io
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Annotated, Any

import typer

import hashlens
from hashlens.errors import HashlensError, MissingExtra, Stopped, StorageError, extra_of
from hashlens.ranks import joined

ClickException: Any = typer.BadParameter.__mro__[2]  # typer contains a click of its own, or uses the public one

MODULES = ("train", "encode", "search", "unlabelled", "index", "results", "about")  # in the order of --help


def _app(modules: Sequence[str]) -> typer.Typer:
    """The commands of some modules of this folder."""
    made = typer.Typer(
        help="Similar-image search with short binary codes. Start with: hashlens serve PHOTOS; with labels: train"
        " PHOTOS",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in modules:
        made.add_typer(import_module(f"hashlens.cli.{name}").app)
    made.callback(invoke_without_command=True)(_version)
    return made


def __getattr__(name: str) -> Any:
    """All commands as `app`, made when they are asked for."""
    if name != "app":
        raise AttributeError(f"module 'hashlens.cli' has no attribute '{name}'")
    return globals().setdefault("app", _app(MODULES))


def main() -> None:
    """Run a command; a user error is one sentence on stderr and a non-zero exit code, never a traceback."""
    # torch's idle threads spin briefly, then sleep: sleeping at once costs a fifth of the training speed, spinning
    # for long starves other processes
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names can be any bytes
    try:
        asked = sys.argv[1:2]
        app = _app(["search"] if asked == ["search"] else MODULES)  # making all commands takes longer than a search
        with joined() if asked == ["train"] else nullcontext():  # the one command that ranks share
            sys.exit(app(standalone_mode=False) or 0)
    except ClickException as error:
        help_asked = type(error).__name__ == "NoArgsIsHelpError"
        where = error.ctx.command_path if getattr(error, "ctx", None) else "hashlens"
        message = error.format_message().rstrip(".")
        print(message if help_asked else f"error: {message}; see: {where} --help", file=sys.stderr)
        sys.exit(error.exit_code)
    except HashlensError as error:
        print(error.message if isinstance(error, Stopped) else f"error: {error.message}", file=sys.stderr)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if not extra_of(module):
            raise
        print(f"error: {MissingExtra(module, (asked or ['this command'])[0]).message}", file=sys.stderr)
        sys.exit(MissingExtra.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("stopped; rerun the same command to start over", file=sys.stderr)
        sys.exit(130)
    except MemoryError:
        print("error: not enough memory; try a smaller --image-size or fewer images", file=sys.stderr)
        sys.exit(StorageError.exit_code)
    except BrokenPipeError:  # the reader of our output is gone
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:  # a path that is too long, a disk that was removed
        name = f"{error.filename}: " if error.filename else ""
        print(f"error: {name}{error.strerror or error}; check the path and the disk", file=sys.stderr)
        sys.exit(StorageError.exit_code)


def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"hashlens {hashlens.__version__}")
        raise typer.Exit
