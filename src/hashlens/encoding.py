"""Encoding: a hasher and a source of pictures in, a folder with codes and the list of their pictures out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashlens.data import SOURCES, open_source
from hashlens.errors import DataError
from hashlens.files import write_csv
from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.hashers.base import Hasher


def encode_source(hasher: Hasher, source: str, out: Path, progress: Progress) -> dict[str, Any]:
    """Row i of codes.safetensors is line i of items.csv; what could not be read is only in skipped.csv."""
    from hashlens.data.folder import find_pictures
    from hashlens.data.images import FileImages, Images, check_readable

    images: Images
    skipped: list[tuple[str, str]] = []
    if source in SOURCES:
        images = open_source(source, progress=progress.say).images
    else:
        root = Path(source).expanduser()
        if not root.is_dir():
            raise DataError(f"there is no folder {source}; give a folder of pictures")
        found = find_pictures(root)
        readable, skipped = check_readable(found, root, progress.say)
        if not readable:
            raise DataError(f"no picture in {source} can be read ({len(found):,} looked at); check the path")
        images = FileImages(root, readable)
    codes = hasher.encode(images, progress=progress)
    codes.save(out / "codes.safetensors")
    write_csv(out / "items.csv", ["path"], [(name,) for name in images.names])
    write_csv(out / "skipped.csv", ["path", "reason"], skipped)
    return {"n": len(codes), "n_bits": codes.n_bits, "n_skipped": len(skipped), "out": str(out)}
