"""The one exception that users see: a sentence with the cause, what to do, and an exit code.

Exit codes: 2 wrong use, 3 a problem with the data, 4 model and data or files do not match,
5 training diverged, 6 no disk space or no permission, 7 a download failed, 130 stopped with Ctrl-C.
"""

from __future__ import annotations

from importlib.util import find_spec


class HashlensError(Exception):
    """An error caused by user input; the command line prints it without a traceback."""

    exit_code = 1

    def __init__(self, message: str):
        super().__init__(message)
        self.message = message


class UsageError(HashlensError, ValueError):  # a ValueError too, as Python and scikit-learn would raise it
    exit_code = 2


class DataError(HashlensError, ValueError):
    exit_code = 3


class MismatchError(HashlensError):
    """Things that do not belong together: a checkpoint and a model, a model and codes."""

    exit_code = 4


class DivergedError(HashlensError):
    exit_code = 5


class StorageError(HashlensError):
    exit_code = 6


class DownloadError(HashlensError):
    exit_code = 7


class Stopped(HashlensError):
    """Stopped on request; what was finished is saved."""

    exit_code = 130


def counted(n: int, word: str) -> str:
    """
    >>> counted(1, "image"), counted(2000, "query"), counted(0, "class")
    ('1 image', '2,000 queries', '0 classes')
    """
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}{'es' if word.endswith('s') else 's'}"
    return f"{n:,} {word if n == 1 else plural}"


EXTRAS = {  # the extra of hashlens that installs a module
    "torch": "train",
    "onnx": "train",
    "sklearn": "methods",
    "scipy": "methods",
    "threadpoolctl": "methods",
    "matplotlib": "report",
    "jinja2": "report",
    "fastapi": "serve",
    "uvicorn": "serve",
    "multipart": "serve",
    "prometheus_client": "serve",
    "cachetools": "serve",
    "transformers": "transformers",
    "datasets": "datasets",
    "faiss": "faiss",
    "pymilvus": "milvus",
    "psycopg": "pgvector",
    "ray": "ray",
}


class MissingExtra(UsageError):
    """A module that this installation does not have."""

    def __init__(self, module: str, why: str = "this"):
        self.module = module
        super().__init__(f'{why} needs {module}; run: pip install "hashlens[{EXTRAS[module]}]"')


def require(*modules: str, why: str = "this") -> None:
    """Refuse at once what would fail for a missing module only after hours of work."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, why)
