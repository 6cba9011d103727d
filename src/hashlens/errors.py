"""The one exception that users see: a sentence with the cause, what to do, and an exit code.

Exit codes: 2 wrong use, 3 a problem with the data, 4 model and data or files do not fit together,
5 training diverged, 6 no room or no permission, 7 something could not be downloaded, 130 stopped with Ctrl-C.
"""

from __future__ import annotations


class HashlensError(Exception):
    """An error that is the user's to mend; the command line prints it without a traceback."""

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
