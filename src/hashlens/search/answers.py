"""Answers: what a search found in; text or a page out."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hashlens.data.images import decode, quiet_pillow
from hashlens.files import shown
from hashlens.search.queries import is_there
from hashlens.thumbnails import Pictures

THUMBNAIL = 192  # pixels, twice what pages show


def describe_answer(name: str, answer: dict[str, Any]) -> str:
    """The answer as text, a line for each picture found."""
    index, hits, ties = answer["index"], answer["hits"], answer["ties"]
    times = "  ".join(f"{key} {value:.1f} ms" for key, value in answer["timing_ms"].items() if key != "items")
    exact = "exact" if index["exact"] else "approximate"
    code = f"{index['n_bits']} bits {grouped(answer['query']['code'])}"
    lines = [f"{shown(name)} · {code} · {times} · {index['n']:,} pictures, {exact}"]
    if not hits:
        return "\n".join([*lines, _nothing(answer)])
    labels = [shown(", ".join(hit["labels"] or [])) for hit in hits]
    width = max(len("label"), *map(len, labels)) if any(labels) else 0
    lines.append(" rank  bits apart  " + (f"{'label':<{width}}  " if width else "") + "path")
    for rank, (hit, label) in enumerate(zip(hits, labels, strict=True), 1):
        lines.append(
            f"{rank:>5}  {hit['distance']:>10}  " + (f"{label:<{width}}  " if width else "") + shown(hit["path"])
        )
    if (ties["total"] or 0) > ties["shown"]:
        d = ties["distance"]
        lines[-1] += f"        {ties['total'] - ties['shown']:,} more at distance {d} (show: --radius {d})"
    return "\n".join(lines)


def _nothing(answer: dict[str, Any]) -> str:
    if answer["histogram"] is None:
        return "nothing is found there; try a larger --radius, or without --label"
    nearest = np.flatnonzero(answer["histogram"])
    if not len(nearest):
        return "no picture has that label"
    return f"no picture is as near as that; the nearest is {nearest[0]} bits away (show: --radius {nearest[0]})"


def grouped(code: str) -> str:
    """
    >>> grouped("9f3c21a077e4")
    '9f3c 21a0 77e4'
    """
    return " ".join(code[start : start + 4] for start in range(0, len(code), 4))


def write_page(path: Path, answers: Sequence[tuple[str, Any, dict[str, Any]]], pictures: Pictures) -> int:
    """Write answers, each with its name and what was searched for, as one HTML file that needs no network.

    Returns how many of the pictures found are not there to be shown.
    """
    from hashlens import report

    rows = [
        {
            **answer,
            "name": name,
            "image": _small(query),
            "hits": [(hit, pictures.thumbnail(hit["path"], THUMBNAIL)) for hit in answer["hits"]],
        }
        for name, query, answer in answers
    ]
    of = answers[0][0] if len(answers) == 1 else f"{len(answers):,} queries"
    report.write_page(
        path, "search.html.j2", title=f"Nearest pictures of {of}", rows=rows, grouped=grouped, nothing=_nothing
    )
    return sum(picture is None for row in rows for _, picture in row["hits"])


def _small(query: Any) -> Image.Image | None:
    if isinstance(query, str) and not is_there(query):
        return None
    with quiet_pillow():
        image = decode(io.BytesIO(query) if isinstance(query, bytes) else Path(query), THUMBNAIL)[0]
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BICUBIC)
    return image
