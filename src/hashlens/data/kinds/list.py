"""A list of paths, one per line: a file (.txt) or standard input (-); sorted, without repeats.

Paths are relative to the current folder or, if the list is at an address, to its folder; or are addresses themselves.
"""

import codecs
import glob
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from hashlens.addresses import Address, is_address
from hashlens.data.sources import Asked, Kind, Source, source_of_files
from hashlens.errors import DataError
from hashlens.files import shown, why_not


def _open(asked: Asked) -> Source:
    if asked.text == "-":
        return open_paths(lines_of(sys.stdin.buffer.read()), asked, "standard input")
    try:
        return open_paths(lines_of(asked.place.read_bytes()), asked, asked.place.stem)
    except OSError as error:
        raise DataError(f"cannot read the list {asked.place} ({why_not(error)}); check the path") from error


def lines_of(content: bytes) -> list[str]:
    """The lines of a file; names that are not UTF-8 are kept, to be reported as skipped."""
    text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
    return [line.removesuffix("\r") for line in text.split("\n")]


def open_paths(lines: Iterable[str], asked: Asked, name: str = "a list") -> Source:
    """Open a list of paths; missing files are reported now, because lists are often outdated or from elsewhere."""
    paths = sorted({line.replace(os.sep, "/") for line in lines if line.strip()})
    where = asked.text if asked.text != "-" else name
    if not paths:
        raise DataError(f"{where} contains no paths; give one per line")
    if isinstance(asked.place, Address):  # missing ones are noticed on reading, because asking takes as long
        return source_of_files(name, asked.place.parent, paths)
    # os.path returns False, not an error, for names that are too long or contain a zero byte
    absent = [path for path in paths if not (is_address(path) or os.path.isfile(path))]  # noqa: PTH113
    missing = {path: "not a file" if os.path.exists(path) else "no such file" for path in absent}  # noqa: PTH110
    if len(missing) == len(paths):
        raise DataError(
            f"no path in {where} can be read (first of {len(paths):,}: {paths[0]}, {missing[paths[0]]}); paths are"
            " relative to the current folder"
        )
    skipped = [(shown(path), why) for path, why in missing.items()]
    return source_of_files(name, Path.cwd(), [path for path in paths if path not in missing], skipped=skipped)


KIND = Kind(
    matches=lambda text, path: text == "-" or (path.suffix.lower() == ".txt" and not glob.has_magic(text)),
    open=_open,
    labelling="give a table (.csv) with the columns path and label instead",
)
