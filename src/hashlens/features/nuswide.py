r"""NUS-WIDE: its published low-level features in, 1134 numbers per image out.

    Low_Level_Features/Train_Normalized_<block>.dat   space-separated numbers, one row per image, five blocks
    Low_Level_Features/BoW_Train_int.dat              the sixth: counts of 500 visual words
    ImageList/TrainImagelist.txt                      the image of each row, as actor\0001_2124494179.jpg

and the same with Test. The files may also be in another folder up to two levels down. Images are found by the Flickr id
at the end of their names, because sources have another order, that of ImageList/Imagelist.txt.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path

import numpy as np

from hashlens.data.kinds.nuswide import is_nuswide, list_images
from hashlens.data.sources import Source, source_of_files
from hashlens.errors import DataError, UsageError
from hashlens.features.cache import kept
from hashlens.files import expanded
from hashlens.progress import Progress

WORDS = "BoW_{part}_int.dat"
BLOCKS = {  # file and number of columns, in the order of the features
    "{part}_Normalized_CH.dat": 64,  # colour histogram
    "{part}_Normalized_CORR.dat": 144,  # colour auto-correlogram
    "{part}_Normalized_EDH.dat": 73,  # edge direction histogram
    "{part}_Normalized_WT.dat": 128,  # wavelet texture
    "{part}_Normalized_CM55.dat": 225,  # colour moments of 5 x 5 blocks
    WORDS: 500,  # SIFT descriptors
}
NUSWIDE = "nuswide-1134"  # name of these features, beside those computed from images
PARTS = ("Train", "Test")
CHUNK = 1000  # rows read at once
AGAIN = "unpack Low_Level_Features.zip and ImageList.zip of the same release again"


def nuswide_features(
    root: str | os.PathLike[str], images: Sequence[str], train: np.ndarray, *, progress: Progress | None = None
) -> np.ndarray:
    """Scaled features of `images` (paths or Flickr ids), (n, up to 1134) float32; scaled by the rows `train`."""
    return scaled(read_features(root, images, progress=progress), train)


def source_features(root: str, progress: Progress) -> tuple[Source, np.ndarray]:
    """All images of NUS-WIDE with one of the 21 concepts, on disk or not, and their features, scaled over all rows."""
    folder = expanded(root)
    if not is_nuswide(folder):
        raise UsageError(f"{NUSWIDE} features come with NUS-WIDE, and {root} is not its folder; choose another --kind")
    listing = list_images(folder)
    names = [listing.found.get(name, name) for name in listing.images]
    source = source_of_files("nuswide", listing.folder, names, listing.labels.sets(), notes=listing.notes)
    return source, nuswide_features(folder, listing.images, np.arange(len(names)), progress=progress)


def read_features(
    root: str | os.PathLike[str], images: Sequence[str], *, progress: Progress | None = None
) -> np.ndarray:
    """The published numbers, (n, 1134) float32 in the order of `images`, mapped from the cache."""
    if not len(images):
        raise DataError("no images given; give the names of at least one")
    root = Path(root)
    lists = {part: _find(root, f"{part}Imagelist.txt") for part in PARTS}
    tables = {part: [_find(root, name.format(part=part)) for name in BLOCKS] for part in PARTS}
    key = _key([*lists.values(), *(path for paths in tables.values() for path in paths)], images)
    batches = _rows_of(images, lists, tables)
    return kept(key, len(images), batches, np.float32, what="NUS-WIDE's features", progress=progress)


def scaled(features: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Each column with mean 0 and variance 1 over the rows `train`, each block of columns with variance 1 in total.

    Without the latter the 500 visual words would outweigh the 64 colours. Counts of words are first divided by their
    sum. Columns that do not vary over `train` are left out.
    """
    if not len(train):
        raise DataError("no training rows given to scale the features by; give at least one")
    parts = []
    start = 0
    for name, n_columns in BLOCKS.items():
        block = np.array(features[:, start : start + n_columns], np.float32)
        start += n_columns
        if name == WORDS:
            block /= np.maximum(block.sum(axis=1, keepdims=True), 1)  # an image may have no words
        learned = block[train].astype(np.float64)
        varies = np.ptp(learned, axis=0) > 0
        mean, deviation = learned[:, varies].mean(axis=0), learned[:, varies].std(axis=0)
        deviation *= np.sqrt(varies.sum())
        parts.append((block[:, varies] - mean.astype(np.float32)) / deviation.astype(np.float32))
    return np.hstack(parts)


def _find(root: Path, name: str) -> Path:
    for pattern in (name, f"*/{name}", f"*/*/{name}"):
        if found := sorted(root.glob(pattern)):
            return found[0]
    archive, folder = ("ImageList", "ImageList") if "list" in name else ("low-level features", "Low_Level_Features")
    raise DataError(f"{name} not found in {root / folder}; unpack the {archive} of NUS-WIDE in {root}")


def _rows_of(
    images: Sequence[str], lists: dict[str, Path], tables: dict[str, list[Path]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions in `images` and their features, in the order of the files."""
    listed = {}
    for part, path in lists.items():
        names = path.read_text(encoding="utf-8-sig", errors="surrogateescape").splitlines()
        listed[part] = [_flickr_id(name.strip()) for name in names if name.strip()]
    line = {name: number for number, name in enumerate(chain(*listed.values()))}
    unknown = [name for name in images if _flickr_id(name) not in line]
    if unknown:
        raise DataError(
            f"{len(unknown):,} of {len(images):,} images are not in NUS-WIDE's lists (first: {unknown[0]}); name them"
            " as published, with the Flickr id at the end"
        )
    lines = np.array([line[_flickr_id(name)] for name in images])
    places = np.argsort(lines, kind="stable")
    lines = lines[places]
    first = 0
    for part, names in listed.items():
        for values in _read_tables(tables[part], len(names), lists[part]):
            here = slice(*np.searchsorted(lines, (first, first + len(values))))
            yield places[here], values[lines[here] - first]
            first += len(values)


def _flickr_id(name: str) -> str:
    match = re.search(r"(\d+)(\.\w+)?$", name)
    return match[1].lstrip("0") if match else name


def _read_tables(paths: list[Path], n: int, listing: Path) -> Iterator[np.ndarray]:
    """Chunks of rows, with the columns of all files side by side."""
    with ExitStack() as stack:
        files = [stack.enter_context(path.open(encoding="ascii", errors="replace")) for path in paths]
        lines = [filter(str.strip, file) for file in files]
        for start in range(0, n + 1, CHUNK):  # past n, to check that no row follows
            parts = []
            for path, n_columns, some in zip(paths, BLOCKS.values(), lines, strict=True):
                try:
                    parts.append(_numbers(list(islice(some, CHUNK)), min(CHUNK, n - start), n_columns))
                except ValueError as error:
                    raise DataError(f"{path} does not fit {listing} after row {start:,} ({error}); {AGAIN}") from error
            yield np.hstack(parts)


def _numbers(lines: list[str], n_rows: int, n_columns: int) -> np.ndarray:
    if len(lines) != n_rows:
        raise ValueError(f"it has {'more' if len(lines) > n_rows else 'fewer'} rows than images are listed")
    values = np.loadtxt(lines, np.float32, comments=None, ndmin=2) if lines else np.empty((0, n_columns), np.float32)
    if values.shape[1] != n_columns:
        raise ValueError(f"{values.shape[1]} numbers per row, expected {n_columns}")
    if not np.isfinite(values).all():
        raise ValueError("NaN or infinite values")
    return values


def _key(paths: list[Path], images: Sequence[str]) -> str:
    """A hash of names, sizes and times, because hashing gigabytes would take as long as reading the numbers."""
    digest = hashlib.sha256(b"nuswide 1")
    for path in paths:
        status = path.stat()
        digest.update(os.fsencode(path.absolute()) + f"\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    digest.update("\n".join(images).encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]
