r"""The folder of NUS-WIDE as published: the images with one of its 21 most frequent concepts, in the official order.

    Groundtruth/AllLabels/Labels_<concept>.txt   0 or 1 per line, a line per image; 21 of the 81 are used
    ImageList/Imagelist.txt                      the image of each line, as actor\0001_2124494179.jpg
    ImageList/flickr_ids.txt                     or only its Flickr id, where the list of paths is not available
    Flickr/actor/0001_2124494179.jpg             the images

Many of the 269,648 images are no longer available: missing ones are listed and the others used. A split needs only the
labels: `read_ground_truth`, then a protocol.
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hashlens.data.kinds.folder import find_images, locate, respelled
from hashlens.data.labels import Labels
from hashlens.data.protocols import NUSWIDE_CONCEPTS
from hashlens.data.sources import Asked, Kind, Source, source_of_files
from hashlens.errors import DataError
from hashlens.progress import counted

TRUTH = Path("Groundtruth") / "AllLabels"
LISTS = ("Imagelist.txt", "flickr_ids.txt")
AGAIN = "unpack Groundtruth.zip of NUS-WIDE again"


class Listing(NamedTuple):
    """The images of NUS-WIDE with one of the 21 concepts, on disk or not."""

    labels: Labels
    images: list[str]  # paths or Flickr ids, one per row of the labels
    found: dict[str, str]  # {image: path below `folder`} of images on disk
    missing: list[tuple[str, str]]
    folder: Path
    notes: list[str]


def is_nuswide(root: Path) -> bool:
    return any((root / TRUTH).glob("Labels_*.txt"))


def _open(asked: Asked) -> Source:
    listing = list_images(asked.path)
    rows = [row for row, name in enumerate(listing.images) if name in listing.found]
    if not rows:
        raise DataError(
            f"none of the {len(listing.images):,} images of NUS-WIDE is below {listing.folder} (first:"
            f" {listing.images[0]}); put them there with the names in ImageList"
        )
    return source_of_files(
        "nuswide",
        listing.folder,
        [listing.found[listing.images[row]] for row in rows],
        listing.labels[rows].sets(),
        skipped=listing.missing,
        notes=listing.notes,
        classes=NUSWIDE_CONCEPTS,
    )


def list_images(root: Path) -> Listing:
    """Compare the labels, the image list and the disk, without opening an image."""
    labels, images = read_ground_truth(root)
    rows = np.flatnonzero(labels.values.any(axis=1))
    if not len(rows):
        raise DataError(f"no image in {root} has any of the 21 concepts; {AGAIN}")
    left_out = len(labels) - len(rows)
    notes = [f"images with none of the 21 concepts are left out: {left_out:,}"] if left_out else []
    wanted = [images[row] for row in rows]
    folder = root / "Flickr" if (root / "Flickr").is_dir() else root
    if wanted[0].isdecimal():
        found, missing = _locate_ids(folder, wanted)
    else:
        found, missing = locate(folder, wanted)
        notes += respelled(found, "ImageList")
    return Listing(labels[rows], wanted, found, missing, folder, notes)


def read_ground_truth(root: Path) -> tuple[Labels, list[str]]:
    """Labels of the 21 concepts for every line of the ground truth, and its image (path or Flickr id).

    >>> labels, images = read_ground_truth(Path("NUS-WIDE"))  # doctest: +SKIP
    >>> PROTOCOLS["nuswide-1"](labels, 0).save(Path("split.json"))  # doctest: +SKIP
    """
    columns = {concept: _read_column(root / TRUTH / f"Labels_{concept}.txt") for concept in NUSWIDE_CONCEPTS}
    fewest = min(columns, key=lambda concept: len(columns[concept]))
    n, most = len(columns[fewest]), max(map(len, columns.values()))
    if n < most:
        raise DataError(f"Labels_{fewest}.txt in {root / TRUTH} has {n:,} lines and others {most:,}; {AGAIN}")
    path = next((path for name in LISTS if (path := root / "ImageList" / name).exists()), None)
    if path is None:
        raise DataError(f"{root}/ImageList/{LISTS[0]} not found; unpack ImageList.zip of NUS-WIDE in {root}")
    lines = path.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines()
    listed = [line.strip().replace("\\", "/") for line in lines if line.strip()]
    if len(listed) != n:
        raise DataError(
            f"{path} lists {counted(len(listed), 'image')} and the ground truth has {counted(n, 'line')}; use the same"
            " release of both"
        )
    return Labels(np.stack(list(columns.values()), axis=1), NUSWIDE_CONCEPTS), listed


def _read_column(path: Path) -> np.ndarray:
    try:
        characters = np.frombuffer(path.read_bytes(), np.uint8)
    except FileNotFoundError as error:
        raise DataError(f"{path} not found; {AGAIN}") from error
    characters = characters[characters > ord(" ")]
    ones = characters == ord("1")
    if not (ones | (characters == ord("0"))).all():
        raise DataError(f"{path} must contain only lines of 0 or 1; {AGAIN}")
    return ones


def _locate_ids(folder: Path, ids: list[str]) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Files by the Flickr id at the end of their names: 0001_2124494179.jpg, or 2124494179.jpg."""
    try:
        paths = find_images(folder).images
    except DataError:  # no image at all
        paths = []
    by_id = {match[1]: path for path in paths if (match := re.search(r"(\d+)\.\w+$", path))}
    found = {name: by_id[name] for name in ids if name in by_id}
    return found, [(name, "missing") for name in ids if name not in by_id]


KIND = Kind(matches=lambda text, path: is_nuswide(path), open=_open, protocol="nuswide-1")
