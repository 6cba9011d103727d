"""Paths, one per line: a file (.txt) or standard input (-); sorted, each once, relative to the current folder."""

import codecs
import glob
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from hashlens.data.sources import Asked, Kind, Source, source_of_files
from hashlens.errors import DataError
from hashlens.files import shown


def _open(asked: Asked) -> Source:
    if asked.text == "-":
        return open_paths(lines_of(sys.stdin.buffer.read()), asked, "standard input")
    try:
        return open_paths(lines_of(asked.path.read_bytes()), asked, asked.path.stem)
    except OSError as error:
        raise DataError(f"cannot read the list {asked.path} ({error.strerror}); check the path") from error


def lines_of(content: bytes) -> list[str]:
    """File names are bytes on most systems: those that are not UTF-8 are kept, to be reported as skipped."""
    text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
    return [line.removesuffix("\r") for line in text.split("\n")]


def open_paths(lines: Iterable[str], asked: Asked, name: str = "a list") -> Source:
    """Missing files are found now: a list is often older than the disk, or was written elsewhere."""
    paths = sorted({line.replace(os.sep, "/") for line in lines if line.strip()})
    where = asked.text if asked.text != "-" else name
    if not paths:
        raise DataError(f"{where} contains no paths; give one per line")
    # os.path: False, not an error, for names that are too long or contain a zero byte
    absent = [path for path in paths if not os.path.isfile(path)]  # noqa: PTH113
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
