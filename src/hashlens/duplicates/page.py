"""A page of duplicates: groups side by side, heading by heading, in one file that needs no network."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from hashlens.data.images import decode, shrunk
from hashlens.data.thumbnails import file_of
from hashlens.duplicates.find import KINDS, Duplicates, Group
from hashlens.files import write_csv

THUMBNAIL = 240  # pixels


def write_page(path: Path, result: Duplicates) -> None:
    from hashlens.results import report

    headings = [
        (kind, what, [(group, [(image, thumbnail(image.path)) for image in group.images]) for group in result.of(kind)])
        for kind, what in KINDS.items()
    ]
    report.write_page(
        path, "duplicates.html.j2", title=f"Duplicates in {result.source}", result=result, headings=headings
    )


def thumbnail(path: str) -> Image.Image | None:
    try:
        folder = path[: path.rfind("/") + 1].partition(".tar::")[0]
        return shrunk(decode(file_of([folder[: folder.rfind("/") + 1]], path), at_least=THUMBNAIL)[0], THUMBNAIL)
    except Exception:  # Pillow raises nearly anything on a damaged file
        return None


def write_table(path: Path, groups: list[Group]) -> None:
    """One line per image, for a spreadsheet."""
    header = ("group", "kind", "keep", "why", "path", "width", "height", "bytes", "sha256")
    rows = []
    for group in groups:
        for place, image in enumerate(group.images):
            advice = ("yes", group.why) if place == 0 else ("no", "")
            facts = (image.width, image.height, image.size, image.sha256)
            rows.append([group.name, group.kind, *advice, image.path, *map(str, facts)])
    write_csv(path, header, rows)
