r"""A folder with NUS-WIDE as published in; a Source of the pictures with one of its 21 most frequent concepts out.

    Groundtruth/AllLabels/Labels_<concept>.txt   0 or 1 a line, one line a picture, 81 concepts
    ImageList/Imagelist.txt                      the picture of each line, as actor\0001_2124494179.jpg
    ImageList/flickr_ids.txt                     or only its Flickr id, if the list of paths is not at hand
    Flickr/actor/0001_2124494179.jpg             the pictures

Many of the 269,648 pictures cannot be had any more: those missing are listed, the others used. The labels alone are
enough for the splits: `read_ground_truth`, then a protocol.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hashlens.data import Source
from hashlens.data.folder import check_once, find_pictures, locate, respelt_warnings
from hashlens.data.images import FileImages, Progress
from hashlens.data.labels import Labels
from hashlens.data.protocols import NUSWIDE_CONCEPTS
from hashlens.errors import DataError


@dataclass(frozen=True, eq=False)
class Listing:
    """The pictures of NUS-WIDE with one of the 21 concepts, on disk or not."""

    labels: Labels
    pictures: list[str]  # paths or Flickr ids, one for each row of the labels
    found: dict[str, str]  # of the pictures on disk, the path below `folder`
    missing: list[tuple[str, str]]
    folder: Path
    warnings: list[str]


def is_nuswide(root: str | os.PathLike[str]) -> bool:
    return any((Path(root) / "Groundtruth" / "AllLabels").glob("Labels_*.txt"))


def load_nuswide(root: str | os.PathLike[str], progress: Progress | None = None) -> Source:
    """The pictures that are there and have one of the 21 concepts, in the official order."""
    root = Path(root)
    listing = list_pictures(root, progress)
    if not listing.found:
        raise DataError(
            f"none of the {len(listing.pictures):,} pictures of NUS-WIDE is below {listing.folder} (first:"
            f" {listing.pictures[0]}); put them there as ImageList names them"
        )
    good, unreadable = check_once(list(listing.found.values()), listing.folder, progress)
    rows = [row for row, name in enumerate(listing.pictures) if listing.found.get(name) in good]
    warnings = list(listing.warnings)
    if unreadable:
        warnings.append(
            f"unreadable pictures are left out: {len(unreadable):,}, first {unreadable[0][0]} ({unreadable[0][1]})"
        )
    return Source(
        "nuswide",
        FileImages(listing.folder, [listing.found[listing.pictures[row]] for row in rows]),
        listing.labels[rows],
        listing.missing + unreadable,
        warnings,
    )


def list_pictures(root: Path, progress: Progress | None = None) -> Listing:
    """Labels, list and disk compared, without opening a picture."""
    concepts = read_concepts(root)
    labels = _known_labels(concepts, root)
    pictures = _read_list(root, len(labels))
    warnings = _compare_with_known(concepts)
    if progress and not warnings:
        progress(f"the 21 most frequent of {len(concepts)} concepts in {len(labels):,} lines are the known ones")
    rows = np.flatnonzero(labels.values.any(axis=1))
    if not len(rows):
        raise DataError(f"no picture in {root} has any of the 21 concepts; unpack Groundtruth.zip again")
    if len(rows) < len(labels):
        warnings.append(f"pictures with none of the 21 concepts are left out: {len(labels) - len(rows):,}")
    wanted = [pictures[row] for row in rows]
    folder = root / "Flickr" if (root / "Flickr").is_dir() else root
    if wanted[0].isdecimal():
        found, missing = _locate_ids(folder, wanted)
    else:
        found, missing = locate(folder, wanted)
        warnings += respelt_warnings(found, "ImageList")
    if missing:
        warnings.append(f"missing pictures: {len(missing):,} of {len(wanted):,}, first {missing[0][0]}")
    return Listing(labels[rows], wanted, found, missing, folder, warnings)


def read_ground_truth(root: str | os.PathLike[str]) -> tuple[Labels, list[str]]:
    """Labels of the 21 concepts for every line of the ground truth, and the picture (path or Flickr id) of each.

    >>> labels, pictures = read_ground_truth("NUS-WIDE")  # doctest: +SKIP
    >>> PROTOCOLS["nuswide-1"](labels, 0).save(Path("split.json"))  # doctest: +SKIP
    """
    root = Path(root)
    labels = _known_labels(read_concepts(root), root)
    return labels, _read_list(root, len(labels))


def read_concepts(root: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """{concept: (n,) bool}, the most frequent first."""
    folder = Path(root) / "Groundtruth" / "AllLabels"
    concepts: dict[str, np.ndarray] = {}
    for path in sorted(folder.glob("Labels_*.txt")):
        concepts[path.stem.removeprefix("Labels_")] = _read_column(path)
    if not concepts:
        raise DataError(f"{folder} has no Labels_<concept>.txt; unpack Groundtruth.zip of NUS-WIDE in {root}")
    lengths = {len(column) for column in concepts.values()}
    if len(lengths) > 1:
        shortest = min(concepts, key=lambda concept: len(concepts[concept]))
        raise DataError(
            f"the files in {folder} have from {min(lengths):,} to {max(lengths):,} lines (fewest: Labels_"
            f"{shortest}.txt), but should have the same number; unpack Groundtruth.zip again"
        )
    return dict(sorted(concepts.items(), key=lambda item: (-int(item[1].sum()), item[0])))


def _read_column(path: Path) -> np.ndarray:
    characters = np.frombuffer(path.read_bytes(), np.uint8)
    characters = characters[characters > ord(" ")]
    ones = characters == ord("1")
    if not (ones | (characters == ord("0"))).all():
        raise DataError(f"{path} holds other things than lines of 0 or 1; unpack Groundtruth.zip again")
    return ones


def _known_labels(concepts: dict[str, np.ndarray], root: Path) -> Labels:
    lacking = [concept for concept in NUSWIDE_CONCEPTS if concept not in concepts]
    if lacking:
        raise DataError(
            f"{root} lacks Groundtruth/AllLabels/Labels_{lacking[0]}.txt"
            + (f" and {len(lacking) - 1} more of the 21 concepts" if len(lacking) > 1 else "")
            + "; unpack Groundtruth.zip again"
        )
    return Labels(np.stack([concepts[concept] for concept in NUSWIDE_CONCEPTS], axis=1), NUSWIDE_CONCEPTS)


def _compare_with_known(concepts: dict[str, np.ndarray]) -> list[str]:
    """Nothing if the most frequent concepts are the known 21, else what to think of it."""
    counted = list(concepts)[: len(NUSWIDE_CONCEPTS)]
    others = [concept for concept in counted if concept not in NUSWIDE_CONCEPTS]
    if not others:
        return []
    n = len(concepts[counted[0]])
    return [
        f"the 21 most frequent concepts of these {n:,} lines are not the known ones ({', '.join(others)} instead of"
        f" {', '.join(c for c in NUSWIDE_CONCEPTS if c not in counted)}); the known ones are used: compare results"
        " only if this is meant to be a part of NUS-WIDE"
    ]


def _read_list(root: Path, n: int) -> list[str]:
    for name in ("Imagelist.txt", "flickr_ids.txt"):
        path = root / "ImageList" / name
        if path.exists():
            lines = path.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines()
            listed = [line.strip().replace("\\", "/") for line in lines if line.strip()]
            if len(listed) != n:
                raise DataError(
                    f"{path} lists {len(listed):,} pictures and the ground truth has {n:,} lines; take both from"
                    " the same release of NUS-WIDE"
                )
            return listed
    raise DataError(f"there is no {root}/ImageList/Imagelist.txt; unpack ImageList.zip of NUS-WIDE in {root}")


def _locate_ids(folder: Path, ids: list[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Files by the Flickr id at the end of their names: 0001_2124494179.jpg, or 2124494179.jpg."""
    try:
        paths = find_pictures(folder)
    except DataError:  # none at all
        paths = []
    by_id = {match[1]: path for path in paths if (match := re.search(r"(\d+)\.\w+$", path))}
    found = {name: by_id[name] for name in ids if name in by_id}
    return found, [(name, "missing") for name in ids if name not in by_id]
