"""The one exception that users see: a sentence with the cause, what to do, and an exit code.

Exit codes: 2 wrong use, 3 a problem with the data, 4 model and data or files do not match,
5 training diverged, 6 no disk space or no permission, 7 a download failed, 8 another training process (rank) was lost,
130 stopped with Ctrl-C.
"""

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent.parent


class HashlensError(Exception):
    """An error that the user can fix; the command line prints it without a traceback."""

    exit_code = 1

    def __init__(self, message: str):
        self.message = one_line(message)  # it may quote the contents of an untrusted file
        super().__init__(self.message)


def one_line(text: str) -> str:
    """Text as one line without control characters, which a terminal would execute.

    >>> one_line("it has\\n\\nno \\x1b[31mend\\n")
    'it has no \\\\x1b[31mend'
    """
    joined = " ".join(re.split(r"[\t\n\v\f\r]+", text.strip()))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in joined)


class UsageError(HashlensError, ValueError):  # a ValueError too, as Python and scikit-learn would raise it
    exit_code = 2


class Busy(UsageError):
    """Another process is writing there."""


class DataError(HashlensError, ValueError):
    exit_code = 3


class Damaged(DataError):
    """A file that has changed since it was written, or is gone."""

    def __init__(self, path: Any, why: str):  # a Path or an Address
        super().__init__(f"{path} {why}")
        self.path = path


class MismatchError(HashlensError):
    """Things that do not belong together: a checkpoint and a model, a model and codes."""

    exit_code = 4


class OtherModel(MismatchError):
    """Another model has taken over during a request, which can be repeated."""


class DivergedError(HashlensError):
    exit_code = 5


class StorageError(HashlensError):
    exit_code = 6


class Unreachable(StorageError):
    """A server that does not answer at the moment, for example because it is restarting."""


class DownloadError(HashlensError):
    exit_code = 7


class RankError(HashlensError):
    """Another process of the same training ended or cannot be reached."""

    exit_code = 8


class Stopped(HashlensError):
    """Stopped on request; what was finished is saved."""

    exit_code = 130


def require_going(stop: Callable[[], bool]) -> None:
    """Stop if requested; called between two steps of work that writes no file."""
    if stop():
        raise Stopped("stopped; what was computed for each image is kept; rerun the same command to resume")


EXTRAS = {  # {extra: modules that it installs}
    "train": ("torch", "onnx"),
    "methods": ("sklearn", "scipy", "threadpoolctl", "numba"),
    "tune": ("optuna",),
    "report": ("matplotlib",),
    "transformers": ("transformers", "huggingface_hub"),
    "datasets": ("datasets",),
    "heif": ("pillow_heif",),
    "faiss": ("faiss",),
    "milvus": ("pymilvus",),
    "pgvector": ("psycopg",),
    "ray": ("ray",),
    "remote": ("fsspec", "s3fs", "aiohttp", "sshfs"),
}


class MissingExtra(UsageError):
    """A module that this installation does not have."""

    def __init__(self, name: str, why: str = "this"):
        self.name = name
        super().__init__(f"{why} needs {name}; run: {to_install(extra_of(name))}")


def extra_of(module: str | None) -> str | None:
    """The extra that installs a module, if any."""
    return next((extra for extra, modules in EXTRAS.items() if module in modules), None)


def to_install(extra: str | None) -> str:
    """The command that adds an extra to this installation.

    pip and uv complete the installed hashlens, whether from a wheel or a clone, without asking a registry for it. If it
    is not installed, as with PYTHONPATH, the command names the source.
    """
    from importlib import metadata  # slow import, for messages only

    try:
        metadata.distribution("hashlens")
        what = "hashlens"
    except metadata.PackageNotFoundError:
        what = str(SOURCE) if (SOURCE / "pyproject.toml").exists() else "hashlens"
    return f'pip install "{what}[{extra}]"'


def require(*modules: str, why: str = "this") -> None:
    """Refuse early if a module is missing, rather than failing after hours of work."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, why)
