"""The file of clicks beside an index: (query, more, less) in, the same triplets out.

clicks.csv has one triplet per line, as paths of images, so `hashlens train --triplets` takes it too. Lines are only
ever appended; a line cut short by a crash is ignored.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from hashlens.errors import DataError, UsageError
from hashlens.files import alone_in, storage_errors

CLICKS = "clicks.csv"
LOCK = ".hashlens-clicks.lock"
HEADER = ("query", "positive", "negative")
MAX_BYTES = 64_000_000  # of the file
MAX_MARKS = 100  # images per request, of each kind

Triplet = tuple[str, str, str]


def triplets_of(query: str, more: Sequence[str], less: Sequence[str]) -> list[Triplet]:
    """All triplets implied by the marks on the results of one query; names are paths."""
    if not more or not less:
        raise UsageError("mark at least one image as more like this and one as less like this")
    if max(len(more), len(less)) > MAX_MARKS:
        raise UsageError(f"at most {MAX_MARKS} images of each kind can be marked at once")
    named = [query, *more, *less]
    if len(set(named)) < len(named):
        raise UsageError("an image is marked twice, or is the query; mark each image once")
    if any("\n" in name or "\r" in name for name in named):
        raise UsageError("a file name with a line break cannot be kept in a list; rename the file")
    return [(query, near, far) for near in more for far in less]


def append_clicks(folder: Path, triplets: Sequence[Triplet]) -> int:
    """Add triplets to the file of an index, flushed to disk; returns its number of lines."""
    path = folder / CLICKS
    with alone_in(folder, LOCK), storage_errors(path):
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        start = path.stat().st_size if path.exists() else 0
        if not start:
            writer.writerow(HEADER)
        writer.writerows(triplets)
        content = text.getvalue().encode()
        if start + len(content) > MAX_BYTES:
            raise UsageError(f"{path} is full ({MAX_BYTES / 1e6:g} MB); learn from it, then move it away")
        with path.open("ab") as file:
            if start and not _ends_with_line(path):
                content = b"\n" + content  # a crash has cut the last line short
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return len(read_clicks(folder))


def read_clicks(folder: Path) -> list[Triplet]:
    """The triplets of an index in the order they were added; none if nobody has clicked."""
    path = folder / CLICKS
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the clicks in {path} ({error}); restore or remove the file") from error
    whole = text[: text.rfind("\n") + 1]
    found = []
    for number, line in enumerate(whole.split("\n"), 1):
        try:  # line by line, so that a quote left open by a crash does not swallow the lines below
            found += [(row[0], row[1], row[2]) for row in csv.reader([line]) if len(row) == 3 and all(row)]
        except csv.Error as error:
            raise DataError(f"line {number} of {path} is malformed ({error}); remove that line") from error
    return [row for row in found if row != HEADER]


def _ends_with_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
