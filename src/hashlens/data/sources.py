"""Sources: anything that a command accepts as images in, a `Source` with images, labels and perhaps a split out.

SOURCES lists the kinds in the order in which they are tried; the module of the same name in data/kinds says what it
matches and opens it. Opening decodes nothing; training adds `readable`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hashlens.addresses import Address, Place, below, place
from hashlens.errors import DataError, StorageError, UsageError
from hashlens.files import cache_dir, expanded, is_utf8, shown, write_text
from hashlens.progress import counted
from hashlens.schema import parse_json

if TYPE_CHECKING:  # not imported at run time, to keep `hashlens --help` fast
    import pyarrow as pa

    from hashlens.data.images import Images
    from hashlens.data.labels import Labels
    from hashlens.data.protocols import Protocol

SOURCES = {
    "cifar10": "cifar10",
    "digits": "digits",
    "huggingface": "a saved Hugging Face dataset",
    "nuswide": "the folder of NUS-WIDE",
    "mirflickr": "the folder of MIRFLICKR-25K",
    "folder": "a folder (labelled by its class folders)",
    "tar": 'tar files ("shards/{000..099}.tar")',
    "table": "a table (.csv, .tsv, .parquet) of paths and labels",
    "features": "a file of features (.npy) for train and compare",
    "list": "a list of paths (.txt, or - for standard input)",
    "pattern": 'a pattern ("photos/**/*.jpg") or one image',
}

AT_ADDRESSES = "folders, tar files, tables, lists and patterns also at s3://, gs://, hdfs://, https:// or sftp://"
# kinds for addresses, chosen by name, because asking a web server would read the whole file
ADDRESSED = ("tar", "table", "list", "pattern", "folder")
# all kinds in the order of the help, your own images first
KINDS = ", ".join(SOURCES[kind] for kind in sorted(SOURCES, key=lambda kind: kind not in ADDRESSED))
NO_LABEL = "no label"  # why an image is skipped
Progress = Callable[[str], object]  # called with one line of text, like print


@dataclass(frozen=True)
class Columns:
    """Column names of a table or a Hugging Face dataset that differ from the defaults."""

    path: str | None = None
    labels: str | None = None
    split: str | None = None
    separator: str | None = None  # between the labels of one image; None: | or ;


@dataclass(frozen=True)
class Asked:
    """The arguments of `Kind.open`."""

    text: str
    place: Place
    labelled: bool
    columns: Columns
    from_file: str | os.PathLike[str] | None
    quirk: str | None
    say: Progress

    @property
    def path(self) -> Path:
        """The place, for kinds that are local files."""
        assert isinstance(self.place, Path)
        return self.place


@dataclass(frozen=True)
class Kind:
    """What each module of data/kinds exports as KIND."""

    matches: Callable[[str, Any], bool]  # takes the text and the Path or Address it names
    open: Callable[[Asked], Source]
    labelling: str = ""  # how to give labels to images of this kind
    filling: str = ""  # the same where only some images have one; "": as `labelling`
    protocol: str = "split"  # its usual split
    named: bool = False  # opened by its name; a folder with that name is written ./cifar10
    takes: tuple[str, ...] = ()  # which of columns, from_file and quirk it understands


class Source:
    """Images and their labels, row by row.

    `table` has a row per image: `path` (absolute; `/shards/0.tar::cats/1.jpg` inside a tar file, `cifar10/00017` for
    images in memory), and, if known, `labels` (a list of strings), `split`, and for tar files `offset`, `size` and
    `mtime`. `images` reads the same rows; `labels` is None if no image has one; `skipped` lists (image, reason).
    """

    def __init__(
        self,
        name: str,
        images: Images,
        labels: Labels | None = None,
        skipped: Sequence[tuple[str, str]] = (),
        notes: Sequence[str] = (),
        split: Protocol | None = None,
        *,
        table: pa.Table | None = None,
        classes: tuple[str, ...] | None = None,
        multi: bool = False,
    ):
        if labels is not None and len(images) != len(labels):
            found = f"{counted(len(images), 'image')} and {counted(len(labels), 'label')}"
            raise DataError(f"{name} has {found}; give one row per image")
        self.name, self.images, self.skipped, self.notes = name, images, list(skipped), list(notes)
        self.classes = classes if labels is None else labels.names  # None: those that occur
        self.multi = multi if labels is None else labels.multi  # whether an image may have several labels
        self.kind, self.address, self.labelled = "", name, False
        # missing arguments are derived on first use
        self.__dict__ |= {k: v for k, v in {"table": table, "labels": labels, "split": split}.items() if v is not None}

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def table(self) -> pa.Table:
        paths = self.images.paths() if hasattr(self.images, "paths") else list(map(str, range(len(self))))
        return make_table(paths, None if self.labels is None else self.labels.sets())

    @cached_property
    def labels(self) -> Labels:  # or None; typed for the usual case of required labels
        from hashlens.data.labels import Labels

        sets = self._column("labels")
        return Labels.of_sets(sets, self.classes, self.multi) if sets else None  # type: ignore[return-value]

    @cached_property
    def split(self) -> Protocol | None:
        """The split that came with the images."""
        from hashlens.data.protocols import given_split

        words = self._column("split")
        return given_split(words, self.name) if words else None

    def _column(self, name: str) -> list[Any] | None:
        table = self.__dict__.get("table")
        return table[name].to_pylist() if table is not None and name in table.column_names else None

    @cached_property
    def warnings(self) -> list[str]:
        from hashlens.data.labels import is_date

        lines = [*self.notes]
        if self.labelled:
            counts, values = self.labels.counts(), self.labels.values
            single = [name for name, count in zip(self.labels.names, counts, strict=True) if count == 1]
            if single:
                names = ", ".join(single[:5]) + (", …" if len(single) > 5 else "")
                lines.append(
                    f"classes with a single image: {len(single):,} ({names}); no other image shares their"
                    " label: add images, or remove these classes"
                )
            dates = [name for name in self.labels.names if is_date(name)]
            if 2 * len(dates) > self.labels.n_classes:
                lines.append(
                    f"most classes look like dates ({', '.join(dates[:3])}): a model would learn when the images were"
                    " taken, not what they show; sort them into folders by what they show"
                )
            if self.labels.multi and (n := int((~values.any(axis=1)).sum())):
                lines.append(
                    f"images without a label: {n:,}; each counts as an image with none of the labels, in training and"
                    " among the searched images: label or remove those that have one"
                )
        for reason, count in Counter(reason.split(";")[0] for _, reason in self.skipped).items():
            first = next(name for name, other in self.skipped if other.split(";")[0] == reason)
            line = f"images left out, {reason}: {count:,}, first {first}"
            if reason == NO_LABEL and 10 * count > len(self) + len(self.skipped):
                kind = kind_named(self.kind)
                line += f"; that is {count / (len(self) + len(self.skipped)):.0%}: {kind.filling or kind.labelling}"
            lines.append(line)
        return lines

    def reader(self, table: pa.Table) -> Images:
        """The images of a table: some rows of this source, or an older list of the same files."""
        from hashlens.data.images import FileImages

        if isinstance(self.images, FileImages):
            return FileImages.of(table)
        import pyarrow.compute as pc

        rows = pc.index_in(table["path"], value_set=self.table["path"].combine_chunks())
        if rows.null_count:
            gone = table["path"].filter(pc.is_null(rows))[0]
            raise DataError(f"{self.address} no longer has {gone}; choose another --out")
        return self.images[rows.to_numpy()]

    def skipped_paths(self) -> list[tuple[str, str]]:
        """`skipped` with absolute paths."""
        root = getattr(self.images, "root", None)
        return [(below(root, name).as_posix() if root else name, why) for name, why in self.skipped]

    def without(self, reasons: dict[int, str]) -> Source:
        """The source without these rows, which are added to `skipped`."""
        import numpy as np

        keep = np.setdiff1d(np.arange(len(self)), list(reasons))
        rest = copy(self)
        rest.images, rest.table = self.images[keep], self.table.take(keep)
        rest.skipped = [*self.skipped, *((self.images.names[row], why) for row, why in sorted(reasons.items()))]
        rest.notes = list(self.notes)
        for derived in ("labels", "split", "warnings"):
            rest.__dict__.pop(derived, None)
        return rest


def open_source(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    labels: Literal["required", "optional"] = "required",
    columns: Columns | None = None,
    from_file: str | os.PathLike[str] | None = None,
    quirk: str | None = None,
    progress: Progress | None = None,
) -> Source:
    """Open anything listed in SOURCES, or a sequence of paths.

    Parameters
    ----------
    labels : "required" refuses a source without labels and leaves out images that lack one.
    from_file : an archive of CIFAR-10 that you downloaded.
    quirk : "transposed-test-batch": CIFAR-10 with its test batch mirrored along the diagonal, as in the authors' code.
    """
    from hashlens.data.kinds.list import open_paths

    labelled, say = labels == "required", progress or (lambda line: None)
    if not isinstance(source, str | os.PathLike):
        asked = Asked("the list", Path(), labelled, Columns(), None, None, say)
        return _finish(open_paths([os.fspath(path) for path in source], asked), "list", labelled)
    text = os.fspath(source)
    if not text.strip():  # an unset variable in a script; as a path it would mean the current folder
        raise UsageError("the source is empty; name one, or give . for the current folder")
    typed = text if isinstance(source, str) else f"./{text}"  # a Path is a file or folder even if it is called cifar10
    where = place(source)
    where = expanded(where) if isinstance(where, Path) else where
    asked = Asked(typed, where, labelled, columns or Columns(), from_file, quirk, say)
    try:
        kinds = SOURCES if isinstance(where, Path) else ADDRESSED
        name = next((name for name in kinds if kind_named(name).matches(typed, where)), None)
    except PermissionError as error:  # from a file that a kind looks for inside
        raise DataError(f"{text} cannot be read (permission denied); check the permissions of the folder") from error
    if name is None or not (
        isinstance(where, Address) or kind_named(name).named or where.exists() or re.search(r"[*?[{]|^-$", text)
    ):
        raise DataError(
            f"{text} not found; {_like(asked.path) or 'check the path'} (all sources: hashlens data --help)"
        )
    kind = kind_named(name)
    options = {"columns": columns != Columns() and columns, "from_file": from_file, "quirk": quirk}
    for option, value in options.items():
        if value and option not in kind.takes:
            takers = [name for name in SOURCES if option in kind_named(name).takes]
            raise UsageError(f"{option} is only for {' and '.join(takers)}, not for {text}; omit it")
    found = kind.open(asked)
    found.address = absolute(source)
    return _finish(found, name, labelled)


def _like(path: Path) -> str:
    """A question that suggests a source with a similar name."""
    try:
        names = [entry.name for entry in islice(path.parent.iterdir(), 10_000)]
    except OSError:
        names = []
    close = difflib.get_close_matches(path.name, [*(name for name in SOURCES if kind_named(name).named), *names], n=1)
    return f"did you mean {path.with_name(close[0])}?" if close else ""


def kind_named(name: str) -> Kind:
    return import_module(f"hashlens.data.kinds.{name}").KIND


def absolute(source: str | os.PathLike[str]) -> str:
    """A name of the same source that is valid from any folder."""
    if source == "-" or (isinstance(source, str) and source in SOURCES and kind_named(source).named):
        return str(source)
    where = place(source)
    return (expanded(where).absolute() if isinstance(where, Path) else where).as_posix()


def _finish(source: Source, kind: str, labelled: bool) -> Source:
    """If labels are needed, refuse labels that teach nothing, and leave out images that lack their single label."""
    source.kind, source.labelled = kind, labelled
    if not labelled:
        return source
    how = kind_named(kind)
    if source.labels is None:
        n = counted(len(source), "image")
        raise DataError(f"{source.address} has {n} but no labels, which are needed here; {how.labelling}")
    if not source.multi and source.labels.multi:  # some images have no label
        values, n = source.labels.values, len(source) + len(source.skipped)
        source = source.without({row: NO_LABEL for row in range(len(source)) if not values[row].any()})
        _require_most(source.skipped, n, source.address, f"label them: {how.filling or how.labelling}")
    if source.labels.n_classes < 2:
        raise DataError(
            f"only one class found in {source.address}: {source.labels.names[0]} with {counted(len(source), 'image')};"
            " learning needs two or more, so add images of a second class"
        )
    return source


def _require_most(skipped: Sequence[tuple[str, str]], n: int, where: str, advice: str) -> None:
    """Refuse a source if more than half of its images cannot be used: it is surely not the intended one."""
    if 2 * len(skipped) > n:
        reasons = Counter(reason.split(";")[0] for _, reason in skipped).most_common(3)
        raise DataError(
            f"{len(skipped):,} of {n:,} images in {where} cannot be used"
            f" ({', '.join(f'{count:,} {reason}' for reason, count in reasons)}; first: {skipped[0][0]}); {advice}"
        )


def make_table(
    paths: Sequence[str],
    labels: Sequence[Sequence[str]] | None = None,
    split: Sequence[str] | None = None,
    **facts: Any,
) -> pa.Table:
    """The table of a source; `facts` are more columns."""
    import pyarrow as pa

    columns: dict[str, Any] = {"path": pa.array(paths, pa.string())}
    if labels is not None and any(labels):
        columns["labels"] = pa.array(labels, pa.list_(pa.string()))
    if split is not None:
        columns["split"] = pa.array(split, pa.string())
    return pa.table(columns | {name: pa.array(values) for name, values in facts.items()})


def source_of_files(
    name: str,
    root: Place,
    names: Sequence[str],
    labels: Sequence[Sequence[str]] | None = None,
    split: Sequence[str] | None = None,
    *,
    skipped: Sequence[tuple[str, str]] = (),
    notes: Sequence[str] = (),
    classes: tuple[str, ...] | None = None,
    **facts: Any,
) -> Source:
    """A source of files below `root`, or at addresses; names that are not UTF-8 do not fit a table and are skipped."""
    from hashlens.data.images import FileImages

    root = root.absolute()
    good = [row for row, path in enumerate(names) if is_utf8(path)]
    if len(good) < len(names):
        bad = [shown(path) for path in names if not is_utf8(path)]
        if not good:
            raise DataError(f"none of the {len(bad):,} image names is UTF-8 (first: {bad[0]}); rename them")
        skipped = [*skipped, *((path, "name is not UTF-8") for path in bad)]
        names, labels = [names[row] for row in good], labels and [labels[row] for row in good]
        split = split and [split[row] for row in good]
        facts = {fact: values[good] for fact, values in facts.items()}
    table = make_table([below(root, path).as_posix() for path in names], labels, split, **facts)
    images, multi = FileImages.of(table, root), any(len(some) > 1 for some in labels or ())
    return Source(name, images, None, skipped, notes, table=table, classes=classes, multi=multi or bool(classes))


def make_protocol(source: Source, name: str | None = None, seed: int = 0) -> Protocol:
    """Split a source by the protocol of that name.

    The default is the split that came with the images, else the usual one for that kind of source: setting 1 of the
    paper for CIFAR-10 and NUS-WIDE, "mirflickr" for MIRFLICKR-25K, "split" for anything else.
    """
    from hashlens.data.protocols import PROTOCOLS, unlabelled

    if source.split is not None and name in (None, source.split.name):
        protocol = source.split
    elif source.labels is None:
        protocol = unlabelled(len(source))
    else:
        name = name or (kind_named(source.kind).protocol if source.kind else "split")
        if name not in PROTOCOLS:
            what = f"{source.name} has no split of its own" if name == "given" else f"unknown protocol {name!r}"
            raise UsageError(f"{what}; choose one of {', '.join(PROTOCOLS)}")
        protocol = PROTOCOLS[name](source.labels, seed)
    protocol.check(len(source))
    return protocol


def make_protocols(source: Source, name: str | None = None, seed: int = 0, splits: int = 1) -> list[Protocol]:
    """Several splits by the protocol of that name, with the seeds `seed`, `seed` + 1, ..."""
    if splits < 1:
        raise UsageError(f"splits must be >= 1, got {splits}")
    made = [make_protocol(source, name, seed + number) for number in range(splits)]
    if len({protocol.fingerprint() for protocol in made}) < splits:
        where = "" if source.labels is None else "; for random ones choose --protocol split"
        raise UsageError(f"{source.name} has one split only ({made[0].description}): omit --splits{where}")
    return made


def readable(source: Source, progress: Progress | None = None, again: bool = False) -> Source:
    """The source without the images that cannot be decoded, so that none can stop a run halfway.

    Good files are remembered in the cache and not decoded again until their size or times change, unless `again`.
    """
    from hashlens.data.images import MAX_PIXELS, FileImages
    from hashlens.machine import blocks, work_ahead

    images, say = source.images, progress or (lambda line: None)
    if images.in_memory:
        return source
    marks = images.marks() if isinstance(images, FileImages) else None
    rules = f"{getattr(images, 'root', '')}\0{MAX_PIXELS}"
    memory = cache_dir() / "readable" / f"{hashlib.sha256(os.fsencode(rules)).hexdigest()[:32]}.json"
    known: dict[str, str] = {}
    if marks and not again:
        with suppress(OSError, ValueError, TypeError):  # missing or damaged: then check all files
            known = dict(parse_json(memory.read_bytes()))
    unsure = [row for row in range(len(images)) if not marks or known.get(images.names[row]) != marks[row]]
    if not unsure:
        return source
    say(f"checking {counted(len(unsure), 'image')} in {source.address}")

    def examine(part: slice) -> list[str | None]:
        return [images.why_unreadable(row) for row in unsure[part]]

    reasons: dict[int, str] = {}
    n_seen, last_said = 0, time.monotonic()
    for found in work_ahead(examine, blocks(len(unsure), 32)):
        for row, why in zip(unsure[n_seen : n_seen + len(found)], found, strict=True):
            if why:
                reasons[row] = why
            elif marks:
                known[images.names[row]] = marks[row]
        n_seen += len(found)
        if time.monotonic() - last_said > 2:
            say(f"checked {n_seen:,} of {len(unsure):,}, {len(reasons):,} unreadable")
            last_said = time.monotonic()
    if marks and len(reasons) < len(unsure):
        try:
            write_text(memory, json.dumps(known, separators=(",", ":")))
        except StorageError as error:
            say(f"the result of the check is not cached: {error}")
    if not reasons:
        return source
    rest = source.without(reasons)
    new = rest.skipped[len(source.skipped) :]
    _require_most(new, len(images), source.address, "repair or remove them, or check that this is the right source")
    if source.labelled:
        gone = sorted(set(source.labels.names) - set(rest.labels.names))
        rest.notes += [f"class {name!r} has no readable image and is left out" for name in gone]
    return _finish(rest, source.kind, source.labelled)
