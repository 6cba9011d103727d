"""Duplicates: images in, groups of identical files, of copies and of look-alikes out, never mixed.

Identical files have the same content. Copies show the same photo (copies.py). Look-alikes have near codes. An image
that fits several headings is listed under the first; for later headings, the image to keep represents its group.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.data.kinds.folder import videos_of
from hashlens.duplicates.copies import copies
from hashlens.duplicates.looks import has_border, looks_of
from hashlens.errors import DataError, UsageError, require_going
from hashlens.files import alone_in, cache_dir, shown, state_dir, write_json
from hashlens.index.catalog import Catalog
from hashlens.index.library import skipped_in
from hashlens.index.memory import HammingIndex
from hashlens.progress import Progress, counted
from hashlens.schema import SHA256, TEXT, conform, parse_json
from hashlens.search import open_index

KINDS = {
    "identical": "the same file",
    "copies": "the same photo, resized, recompressed, cropped, turned or framed",
    "look-alikes": "a different photo that looks alike",
}
CLEARLY, SLIGHTLY = 0.75, 0.97  # shares of the best value, below which an image is clearly or slightly worse
AT_ONCE = 1024  # images per block of look-alike searches
IGNORED = "duplicates-ignored.json"  # decisions of the user
LOCK, WAIT = ".hashlens-duplicates.lock", 10.0  # seconds; enough, because these files are written quickly
SEEN, MOST_SEEN = "duplicates-seen.json", 20_000  # groups that `ignore` can name


@dataclass(frozen=True)
class Member:
    """One image of a group."""

    path: str
    width: int
    height: int
    size: int  # bytes of the file
    mtime: float  # seconds since 1970
    sha256: str
    other: bool = False  # whether it is in the folder compared against


@dataclass(frozen=True)
class Group:
    """One group of duplicates; the first image is the one to keep, and `why` says why."""

    kind: str
    images: list[Member]
    why: str

    @property
    def name(self) -> str:
        """A name that depends only on the images."""
        text = "\n".join([self.kind, *sorted({image.sha256 for image in self.images})])
        return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass
class Duplicates:
    """All duplicates found."""

    source: str
    n_images: int
    groups: list[Group] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    n_ignored: int = 0  # pairs that the user has declared not to be duplicates
    against: str | None = None

    def of(self, kind: str) -> list[Group]:
        return [group for group in self.groups if group.kind == kind]

    @property
    def root(self) -> str:
        """The common folder of all paths, with a final slash; paths are shown without it."""
        folders = [Path(image.path).parent for group in self.groups for image in group.images]
        return os.path.join(os.path.commonpath(folders), "") if folders else ""  # noqa: PTH118

    def extra(self, *kinds: str) -> list[tuple[Group, Member]]:
        """All images except those to keep, and never images of the folder compared against."""
        chosen = [group for group in self.groups if group.kind in kinds]
        return [(group, image) for group in chosen for image in group.images[1:] if not image.other]

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "against": self.against,
            "n_images": self.n_images,
            "groups": [
                {"name": group.name, "kind": group.kind, "keep": group.images[0].path, "why": group.why}
                | {"images": [asdict(image) for image in group.images]}
                for group in self.groups
            ],
            "unreadable": self.unreadable,
            "n_ignored": self.n_ignored,
        }


def find_duplicates(
    source: str | os.PathLike[str],
    model: Path | str | None = None,
    *,
    against: str | os.PathLike[str] | None = None,
    radius: int | None = None,
    at: Path | str | None = None,
    progress: Progress | bool | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Duplicates:
    """Find identical files, copies and look-alikes.

    Parameters
    ----------
    source : images, or an index of them.
    model : makes the codes of images by which look-alikes are found; the default is the general one.
    against : other images; then only groups with images from both are found, and the image to keep is one of these.
    radius : maximum Hamming distance of look-alikes; the default is a seventh of the bits, and -1 finds none.
    at : folder to keep the index of the images in, instead of the cache.

    >>> for group in hashlens.find_duplicates("photos").groups:
    ...     print(group.kind, [image.path for image in group.images])
    """
    shows = Progress.of(progress)
    sources = [source] if against is None else [source, against]
    parts, skipped = [], list[str]()
    for number, name in enumerate(sources):
        index = open_index(os.fspath(name), model, at=at if number == 0 else None, progress=shows, stop=stop)
        paths, codes = listed(index)
        parts.append((paths, codes, looks_of(index, paths, shows, stop)))
        skipped += skipped_in(index.path)
    if against is not None and parts[0][1].n_bits != parts[1][1].n_bits:
        raise UsageError(f"{source} and {against} have codes of different lengths; use one model for both")
    paths = [path for part in parts for path in part[0]]
    other = np.repeat(np.arange(len(parts)) > 0, [len(part[0]) for part in parts])
    if against is not None and set(parts[0][0]) & set(parts[1][0]):
        raise UsageError(f"{source} and {against} have images in common; pass two separate folders")
    codes, looks = Codes.concatenate([part[1] for part in parts]), np.concatenate([part[2] for part in parts])
    readable: np.ndarray = np.asarray(looks["digest"].any(axis=1))
    if not readable.any():
        raise DataError(f"no image of {source} can be read; if they were moved, build the index again")
    result = Duplicates(
        os.fspath(source), int(readable[~other].sum()), against=None if against is None else os.fspath(against)
    )
    result.unreadable = sorted([*skipped, *(path for path, good in zip(paths, readable, strict=True) if not good)])
    rows = np.flatnonzero(readable)
    across = against is not None
    search = _Search([paths[row] for row in rows], codes[rows], looks[rows], other[rows], across, shows, stop)
    result.groups = search.groups(codes.n_bits // 7 if radius is None else radius)
    result.n_ignored = search.n_ignored
    _remember(result.groups)
    return result


def listed(index: Catalog) -> tuple[list[str], Codes]:
    """Paths and codes of an index, in the order of paths."""
    paths, codes = [], []
    for part in index.parts:
        places = part.still()
        column = part.items().column("path")
        paths += [column[int(place)].as_py() for place in places]
        codes.append(Codes(part.codes(places), index.n_bits))
    if not paths:
        raise DataError(f"{index.path} has no images; nothing to compare")
    order = sorted(range(len(paths)), key=paths.__getitem__)
    return [paths[row] for row in order], Codes.concatenate(codes)[order]


class _Search:
    """Images in, groups out, heading by heading."""

    def __init__(
        self,
        paths: list[str],
        codes: Codes,
        looks: np.ndarray,
        other: np.ndarray,
        across: bool,
        progress: Progress,
        stop: Callable[[], bool],
    ):
        self.codes, self.looks, self.other, self.across = codes, looks, other, across
        self.progress, self.stop = progress, stop
        left, top, right, bottom = looks["boxes"][:, 1].T
        self.inside = np.where(has_border(looks), (right - left) * (bottom - top), 1.0)
        self.pixels = looks["width"].astype(float) * looks["height"] * self.inside  # without borders
        self.digests = [digest.tobytes().hex() for digest in looks["digest"]]
        self.members = [
            Member(path, int(look["width"]), int(look["height"]), *_size_and_mtime(path), digest, bool(from_other))
            for path, look, digest, from_other in zip(paths, looks, self.digests, other, strict=True)
        ]
        self.ignored = _ignored()
        self.n_ignored = 0

    def groups(self, radius: int) -> list[Group]:
        found, rows = [], np.arange(len(self.members))
        for kind, pairs in (("identical", self._identical), ("copies", self._copies), ("look-alikes", self._alike)):
            apart = kind == "look-alikes"
            together = self._together(self._wanted(pairs(rows, radius)), apart)
            gone = set()
            for chosen in together:
                keep, why = self._best(chosen)
                rest = [row for row in chosen if row != keep]
                gone |= set(rest)
                if kind != "identical" or not _same_file([self.members[row].path for row in chosen]):
                    found.append(Group(kind, [self.members[row] for row in (keep, *rest)], why))
            rows = np.array([row for row in rows if row not in gone], np.int64)
        return found

    def _identical(self, rows: np.ndarray, radius: int) -> Iterator[tuple[int, int]]:
        same: dict[str, list[int]] = {}
        for row in rows.tolist():
            same.setdefault(self.digests[row], []).append(row)
        for alike in same.values():
            yield from ((alike[0], row) for row in alike[1:])
            if apart := [row for row in alike if self.other[row] != self.other[alike[0]]]:  # pairs across both folders
                yield from ((apart[0], row) for row in alike if row not in (alike[0], apart[0]))

    def _copies(self, rows: np.ndarray, radius: int) -> Iterator[tuple[int, int]]:
        for first, second in copies(self.looks[rows], self.progress, self.stop).tolist():
            yield int(rows[first]), int(rows[second])

    def _alike(self, rows: np.ndarray, radius: int) -> Iterator[tuple[int, int]]:
        if radius < 0:
            return
        # images without texture have codes, but all have the same one
        rows = rows[self.looks["parts"][rows] > 0]
        codes = self.codes[rows]
        index = HammingIndex(codes.n_bits)
        if len(rows):
            index.add(codes)
        for start in range(0, len(rows), AT_ONCE):
            require_going(self.stop)
            near = index.within(codes[start : start + AT_ONCE], radius)
            for row, (_, ids) in enumerate(near, start=start):
                yield from ((int(rows[row]), int(rows[other])) for other in ids[ids > row])

    def _wanted(self, pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        for first, second in pairs:
            if self.across and self.other[first] == self.other[second]:
                continue
            if self._is_ignored(self.digests[first], self.digests[second]):
                self.n_ignored += 1
            else:
                yield first, second

    def _is_ignored(self, first: str, second: str) -> bool:
        """Whether both are in the same ignored group; for identical files, in a group of identical files."""
        return any(
            first in group and second in group and (first != second or len(group) == 1)
            for group in self.ignored.get(first, ())
        )

    def _together(self, pairs: Iterable[tuple[int, int]], apart: bool) -> list[list[int]]:
        """Groups of rows, ordered by first row; with `apart`, all rows of a group are paired with the same one.

        Otherwise a chain of look-alikes could make half a folder one group.
        """
        near: dict[int, set[int]] = {}
        for first, second in pairs:
            near.setdefault(first, set()).add(second)
            near.setdefault(second, set()).add(first)
        groups: list[list[int]] = []
        placed: set[int] = set()
        for row in sorted(near, key=lambda row: (-len(near[row]), row)) if apart else sorted(near):
            if row in placed:
                continue
            group, new = {row}, near[row] - placed
            while new:
                group |= new
                new = set() if apart else set().union(*(near[one] for one in new)) - group
            placed |= group
            if len(group) > 1:
                groups.append(sorted(group))
        return sorted(groups)

    def _best(self, rows: Sequence[int]) -> tuple[int, str]:
        """The image to keep, and why: each rule keeps only the best, until one is left."""
        left: list[int] = list(rows)
        words: list[str] = []
        for word, score, close in (
            ("in the other folder", lambda row: self.members[row].other, 1.0),
            ("largest", self.pixels.__getitem__, CLEARLY),
            ("less border", self.inside.__getitem__, SLIGHTLY),
            ("sharpest", self.looks["sharpness"].__getitem__, CLEARLY),
            ("largest", self.pixels.__getitem__, SLIGHTLY),
            ("no link", lambda row: not Path(self.members[row].path).is_symlink(), 1.0),
            ("live photo", lambda row: bool(videos_of(self.members[row].path)), 1.0),
            ("oldest", lambda row: -self.members[row].mtime, 1.0),
            ("shortest name", lambda row: -len(self.members[row].path), 1.0),
            ("first name", lambda row: -sorted(rows, key=lambda one: self.members[one].path).index(row), 1.0),
        ):
            scores = [score(row) for row in left]
            best = [row for row, value in zip(left, scores, strict=True) if value >= close * max(scores)]
            if len(best) < len(left):
                left, words = best, [*words, word] if word not in words else words
            if len(left) == 1:
                break
        return left[0], ", ".join(words)


def _size_and_mtime(path: str) -> tuple[int, float]:
    try:
        status = Path(path).stat()
        return status.st_size, status.st_mtime
    except (OSError, ValueError):  # it is inside a tar file
        return 0, 0.0


def _same_file(paths: Sequence[str]) -> bool:
    """Whether several paths are links to one file, whose removal would free no space."""
    try:
        return all(os.path.samefile(path, paths[0]) for path in paths[1:])  # noqa: PTH121
    except (OSError, ValueError):  # gone, or inside a tar file
        return False


def _ignored() -> dict[str, list[set[str]]]:
    """For each image, by its sha256, the ignored groups it is in."""
    found: dict[str, list[set[str]]] = {}
    for entry in _ignored_groups():
        group = set(entry["sha256"])
        for digest in group:
            found.setdefault(digest, []).append(group)
    return found


def _ignored_groups() -> list[dict[str, Any]]:
    file = state_dir() / IGNORED
    try:
        return conform(parse_json(file.read_bytes()), [{"name": TEXT, "sha256": [SHA256]}])
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise DataError(f"{file} is damaged ({error}); restore or remove it") from error


def _remember(groups: Sequence[Group]) -> None:
    """Save groups, so that `ignore` can find them by name."""
    new = {group.name: sorted({image.sha256 for image in group.images}) for group in groups}
    with alone_in(cache_dir(), LOCK, wait=WAIT):
        write_json(cache_dir() / SEEN, dict([*(_seen() | new).items()][-MOST_SEEN:]))


def _seen() -> dict[str, list[str]]:
    try:
        seen = parse_json((cache_dir() / SEEN).read_bytes())
        return {name: conform(digests, [SHA256]) for name, digests in seen.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def ignore(names: Sequence[str]) -> int:
    """Never report the images of these groups as duplicates again; returns how many groups are ignored now."""
    seen = _seen()
    if unknown := [name for name in names if name not in seen]:
        raise UsageError(f"no group {unknown[0]} was found before; pass a name that hashlens duplicates printed")
    with alone_in(state_dir(), LOCK, wait=WAIT):
        groups = _ignored_groups()
        known = {group["name"] for group in groups}
        groups += [{"name": name, "sha256": seen[name]} for name in dict.fromkeys(names) if name not in known]
        write_json(state_dir() / IGNORED, groups)
    return len(groups)


def describe(result: Duplicates, most: int = 20) -> str:
    """The result as text: by heading, one line per image, the one to keep first."""
    root = result.root
    against = "" if result.against is None else f" against {result.against}"
    lines = [f"{result.source}{against}  {counted(result.n_images, 'image')}" + f", paths below {root}" * bool(root)]
    for kind, what in KINDS.items():
        groups = result.of(kind)
        n_extra = sum(len(group.images) - 1 for group in groups)
        extra = f", {counted(n_extra, 'image')} besides those to keep" if groups else ""
        lines.append(f"\n{kind} ({what}): {counted(len(groups), 'group')}{extra}")
        for group in groups[:most]:
            keep, *others = (shown(image.path.removeprefix(root)) for image in group.images)
            lines.append(f"  {group.name}  keep {keep}  ({group.why})")
            lines += [f"  {'':>8}       {other}" for other in others]
        if len(groups) > most:
            lines.append(f"  … and {len(groups) - most:,} more; --html, --csv and --json have all")
    if result.unreadable:
        lines.append(f"\nnot readable: {len(result.unreadable):,}, first {shown(result.unreadable[0])}")
    return "\n".join(lines)
