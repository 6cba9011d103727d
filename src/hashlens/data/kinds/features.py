"""Features (.npy) written by `hashlens features`, to train on instead of images.

The table of the same name (.parquet) has the image and labels of each row.
"""

from typing import Any

import numpy as np
from PIL import Image

from hashlens.data.images import FileImages, UnreadableImage
from hashlens.data.sources import Asked, Kind, Source
from hashlens.errors import DataError, UsageError
from hashlens.schema import load_array, load_table


class FeatureRows(np.ndarray):
    """(n, d) float32 with the names and thumbnails that images would have."""

    files: FileImages
    in_memory = True

    def __getitem__(self, rows: Any) -> Any:
        found = super().__getitem__(rows)
        if isinstance(rows, np.ndarray) and rows.ndim == 1:
            found.files = self.files[rows]
        return found

    @property
    def names(self) -> object:
        return self.files.names

    def thumbnail(self, row: int, size: int = 96) -> Image.Image:
        try:
            return self.files.thumbnail(row, size)
        except UnreadableImage:  # the images may be missing
            return Image.new("RGB", (size, size), "white")


def _open(asked: Asked) -> Source:
    import pyarrow as pa

    if not asked.labelled:
        raise UsageError(f"{asked.path} contains features, which only train and compare take; give images")
    beside = asked.path.with_suffix(".parquet")
    if not beside.exists():
        raise DataError(
            f"{beside}, the table of the images and labels of {asked.path.name}, is missing; copy it there, or write"
            " both with hashlens features"
        )
    try:
        rows: Any = load_array(asked.path, mmap_mode="r").view(FeatureRows)
        table = load_table(beside)
        if rows.ndim != 2 or len(rows) != len(table):
            raise ValueError(f"rows of shape {rows.shape} for {len(table):,} images")
        rows.files = FileImages.of(table)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        text = " ".join(str(error).split())[:200]
        raise DataError(
            f"{asked.path} and its .parquet table were not written by hashlens features ({text}); write them again"
        ) from error
    multi = "labels" in table.column_names and any(len(labels) > 1 for labels in table["labels"].to_pylist())
    return Source(asked.path.stem, rows, table=table, multi=multi)


KIND = Kind(
    matches=lambda text, path: path.suffix.lower() == ".npy" and path.is_file(),
    open=_open,
    labelling="write the features of a labelled source with hashlens features",
)
