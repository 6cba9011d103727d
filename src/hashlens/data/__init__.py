"""The name of a data set, a table or a folder in; a Source (images and labels) and a Protocol (its split) out."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hashlens.errors import DataError, UsageError
from hashlens.files import expanded

if TYPE_CHECKING:  # kept out of the import, so that `hashlens --help` is quick
    from hashlens.data.images import Images
    from hashlens.data.labels import Labels
    from hashlens.data.protocols import Protocol

SOURCES = {
    "cifar10": "60,000 colour pictures of 32 x 32 in 10 classes, downloaded once",
    "digits": "1,797 handwritten digits of 8 x 8, part of scikit-learn",
}


@dataclass(frozen=True)
class Columns:
    """What the columns of a table (or a Hugging Face dataset) are called, where the usual names do not do."""

    path: str | None = None
    labels: str | None = None
    split: str | None = None
    separator: str | None = None  # between the labels of one picture; None: | or ;


@dataclass(frozen=True, eq=False)
class Source:
    """Pictures and their labels, row by row; `skipped` are the files left out, each with its reason."""

    name: str
    images: Images
    labels: Labels
    skipped: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    split: Protocol | None = None  # the one that came with the pictures

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
    columns: Columns | None = None,
    quirk: str | None = None,
    labelled: bool = True,
) -> Source:
    """Open "cifar10", "digits", a table (.csv, .tsv) of paths and labels, or a folder.

    A folder is recognised by what is in it: NUS-WIDE or MIRFLICKR-25K as published, a dataset saved by Hugging
    Face's `datasets`, or else one folder of pictures a class. `from_file` is an archive of CIFAR-10 that was
    downloaded by hand; `progress` is called like print; `columns` names the columns of a table. A folder that
    has the name of a data set is opened as "./cifar10". With the `quirk` "transposed-test-batch" the pictures of
    CIFAR-10's test batch are mirrored along the diagonal, as in the authors' released code. Unless `labelled`, a
    folder need not have class folders: its labels then have no classes.
    """
    if quirk is not None and (quirk, name_or_path) != ("transposed-test-batch", "cifar10"):
        raise UsageError(f"the only quirk is transposed-test-batch, for cifar10, not {quirk!r} for {name_or_path}")
    if from_file is not None and name_or_path != "cifar10":
        raise UsageError(f"--from-file is only for cifar10, not for {name_or_path}; leave it out")
    path = expanded(name_or_path)
    is_name = isinstance(name_or_path, str) and name_or_path in SOURCES
    if not is_name and path.suffix.lower() in (".csv", ".tsv") and not path.is_dir():
        from hashlens.data.table import load_table

        return load_table(path, columns, progress)
    if not is_name:
        from hashlens.data.huggingface import is_huggingface, load_huggingface

        if is_huggingface(path):
            return load_huggingface(path, columns, progress)
    if columns is not None and columns != Columns():
        raise UsageError(
            f"columns and separators are for tables (.csv, .tsv) and Hugging Face datasets, and {name_or_path} is"
            " neither; leave them out"
        )
    if name_or_path == "cifar10":
        from hashlens.data.cifar10 import load_cifar10

        return Source("cifar10", *load_cifar10(from_file, progress, transpose_test_batch=quirk is not None))
    if name_or_path == "digits":
        from hashlens.data.digits import load_digits

        return Source("digits", *load_digits())

    is_word = isinstance(name_or_path, str) and not any(mark in name_or_path for mark in "/\\.~")
    if is_word and not path.exists():
        close = difflib.get_close_matches(str(name_or_path), SOURCES, n=1)
        hint = f"; did you mean {close[0]}?" if close else "; check the spelling or the path"
        raise UsageError(f"{str(name_or_path)!r} is neither a folder here nor a data set ({', '.join(SOURCES)}){hint}")
    from hashlens.data.folder import load_folder
    from hashlens.data.mirflickr import is_mirflickr, load_mirflickr
    from hashlens.data.nuswide import is_nuswide, load_nuswide

    if is_nuswide(path):
        return load_nuswide(path, progress)
    if is_mirflickr(path):
        return load_mirflickr(path, progress)
    return load_folder(path, progress, labelled)


def make_protocol(source: Source, name: str | None = None, seed: int = 0) -> Protocol:
    """Split a source by the protocol of that name.

    By default it is the split that came with the pictures, if one did; else setting 1 of the paper for CIFAR-10
    and NUS-WIDE, "mirflickr" for MIRFLICKR-25K, and "split" for anything else.
    """
    from hashlens.data.protocols import PROTOCOLS

    if source.split is not None and name in (None, source.split.name):
        protocol = source.split
    else:
        name = name or _natural_protocol(source)
        if name not in PROTOCOLS:
            raise UsageError(f"there is no protocol {name!r}; known are {', '.join(PROTOCOLS)}")
        protocol = PROTOCOLS[name](source.labels, seed)
    protocol.check(len(source.images))
    return protocol


def _natural_protocol(source: Source) -> str:
    from hashlens.data.protocols import natural_protocol

    # the number too, because somebody's own folder may be called cifar10
    is_cifar10 = source.name == "cifar10" and len(source.labels) == 60_000
    return "cifar10-1" if is_cifar10 else natural_protocol(source.labels)
