"""The name of a data set or a folder in; a Source (images and labels) and a Protocol (its split) out."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hashlens.errors import DataError, UsageError

if TYPE_CHECKING:  # kept out of the import, so that `hashlens --help` is quick
    from hashlens.data.images import Images
    from hashlens.data.labels import Labels
    from hashlens.data.protocols import Protocol

SOURCES = {
    "cifar10": "60,000 colour pictures of 32 x 32 in 10 classes, downloaded once",
    "digits": "1,797 handwritten digits of 8 x 8, part of scikit-learn",
}


@dataclass(frozen=True, eq=False)
class Source:
    """Pictures and their labels, row by row; `skipped` are the files left out, each with its reason."""

    name: str
    images: Images
    labels: Labels
    skipped: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(
                f"{self.name} has {len(self.images):,} pictures and {len(self.labels):,} labels;"
                " give one label row for each picture"
            )


def open_source(
    name_or_path: str | os.PathLike[str],
    *,
    from_file: str | os.PathLike[str] | None = None,
    progress: Callable[[str], object] | None = None,
) -> Source:
    """Open "cifar10", "digits" or a folder with one folder a class.

    `from_file` is an archive of CIFAR-10 that was downloaded by hand; `progress` is called like print. A
    folder that has the name of a data set is opened as "./cifar10".
    """
    if from_file is not None and name_or_path != "cifar10":
        raise UsageError(f"--from-file is only for cifar10, not for {name_or_path}; leave it out")
    if name_or_path == "cifar10":
        from hashlens.data.cifar10 import load_cifar10

        return Source("cifar10", *load_cifar10(from_file, progress))
    if name_or_path == "digits":
        from hashlens.data.digits import load_digits

        return Source("digits", *load_digits())

    path = Path(name_or_path).expanduser()
    is_word = isinstance(name_or_path, str) and not any(mark in name_or_path for mark in "/\\.~")
    if is_word and not path.exists():
        close = difflib.get_close_matches(str(name_or_path), SOURCES, n=1)
        hint = f"; did you mean {close[0]}?" if close else "; check the spelling or the path"
        raise UsageError(f"{str(name_or_path)!r} is neither a folder here nor a data set ({', '.join(SOURCES)}){hint}")
    from hashlens.data.folder import load_folder

    return load_folder(path, progress)


def make_protocol(source: Source, name: str | None = None, seed: int = 0) -> Protocol:
    """Split a source; by default by setting 1 of the paper for CIFAR-10, by "split" for anything else."""
    from hashlens.data.protocols import PROTOCOLS

    # the number too, because somebody's own folder may be called cifar10
    is_cifar10 = source.name == "cifar10" and len(source.labels) == 60_000
    name = name or ("cifar10-1" if is_cifar10 else "split")
    if name not in PROTOCOLS:
        raise UsageError(f"there is no protocol {name!r}; known are {', '.join(PROTOCOLS)}")
    protocol = PROTOCOLS[name](source.labels, seed)
    protocol.check(len(source.images))
    return protocol
