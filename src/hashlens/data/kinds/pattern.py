"""A pattern such as "photos/**/*.jpg", sorted, labelled by the folders below its fixed part; or a single image."""

import glob
import os
import re
from pathlib import Path

from hashlens import addresses
from hashlens.addresses import Address, Place, readable_name
from hashlens.data.formats import EXTENSIONS
from hashlens.data.kinds.folder import class_of
from hashlens.data.sources import Asked, Kind, Source, source_of_files
from hashlens.errors import DataError


def _open(asked: Asked) -> Source:
    if isinstance(asked.place, Address):
        return _open_address(asked.place, asked.text)
    if asked.path.is_file():
        return source_of_files(asked.path.stem, Path.cwd(), [asked.path.as_posix()])
    found = {Path(path).as_posix() for path in expand(str(asked.path)) if path.lower().endswith(EXTENSIONS)}
    if not found:
        raise DataError(f"no image matches {asked.text} (looked for {' '.join(EXTENSIONS)}); check the pattern")
    names, start = sorted(found), fixed_part(asked.path)
    labels = [class_of(os.path.relpath(name, start).replace(os.sep, "/")) for name in names]
    return source_of_files(start.resolve().name, Path.cwd(), names, labels)


def _open_address(address: Address, text: str) -> Source:
    if not glob.has_magic(text):
        return source_of_files(address.stem, address.parent, [address.name])
    start = Address(re.split(r"[*?[]", text)[0].rpartition("/")[0])
    names = [str(one).removeprefix(f"{start}/") for one in addresses.expand(text)]
    names = [name for name in names if name.lower().endswith(EXTENSIONS)]
    if not names:
        raise DataError(f"no image matches {text} (looked for {' '.join(EXTENSIONS)}); check the pattern")
    return source_of_files(start.name, start, names, [class_of(readable_name(name, start)) for name in names])


def expand(pattern: str) -> list[str]:
    return glob.glob(pattern, recursive=True)  # noqa: PTH207 - pathlib's takes hidden files too


def fixed_part(pattern: Path) -> Path:
    """The folder that a pattern starts in: photos for photos/**/*.jpg."""
    parts = pattern.parts
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:fixed])


def _is_image(path: Place) -> bool:
    return path.is_file() if isinstance(path, Path) else path.suffix.lower() in EXTENSIONS


KIND = Kind(
    matches=lambda text, path: glob.has_magic(text) or _is_image(path),
    open=_open,
    labelling="give a table (.csv) with the columns path and label, or a pattern over class folders: photos/*/*.jpg",
)
