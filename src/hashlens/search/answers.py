"""Answers: the results of a search in, text or a page out."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.data.thumbnails import thumbnail
from hashlens.files import shown
from hashlens.index.catalog import Catalog
from hashlens.index.engines.server import Engine
from hashlens.progress import counted
from hashlens.search.queries import QueryImage

ORDERS = {"first": "", "both": ", ties by the second code", "second": ", by the second code"}
THUMBNAIL = 192  # pixels, twice the size on pages


def describe_answer(name: str, answer: dict[str, Any]) -> str:
    """The answer as text, one line per image found."""
    index, hits, ties = answer["index"], answer["hits"], answer["ties"]
    times = "  ".join(f"{key} {value:.1f} ms" for key, value in answer["timing_ms"].items() if key != "items")
    exact = "exact" if index["exact"] else "approximate"
    code = f"{answer['n_bits']} bits {grouped(answer['query']['second' if answer['by'] == 'second' else 'code'])}"
    lines = [f"{shown(name)} · {code} · {times} · {counted(index['n'], 'image')}, {exact}{ORDERS[answer['by']]}"]
    if not hits:
        return "\n".join([*lines, _nothing(answer)])
    labels = [shown(", ".join(hit["labels"] or [])) for hit in hits]
    width = max(map(len, ["label", *labels])) if any(labels) else 0
    head = [("rank", "bits apart", "second", "label", "path")]
    rows = [
        (f"{rank}", hit["distance"], hit.get("second_distance"), label, shown(hit["path"]))
        for rank, hit, label in zip(count(1), hits, labels)
    ]
    for rank, distance, second, label, path in [*head, *rows]:
        columns = [f"{rank:>5}", f"{distance:>10}", f"{second:>6}" if answer["by"] == "both" else ""]
        columns += [f"{label:<{width}}" if width else "", path]
        lines.append("  ".join(column for column in columns if column))
    if (ties["total"] or 0) > ties["shown"]:
        d = ties["distance"]
        lines[-1] += f"        {ties['total'] - ties['shown']:,} more at distance {d} (show them: --radius {d})"
    return "\n".join(lines)


def _nothing(answer: dict[str, Any]) -> str:
    if answer["histogram"] is None:
        return "nothing found; try a larger --radius, or omit --label"
    nearest = np.flatnonzero(answer["histogram"])
    if not len(nearest):
        return "no image has that label"
    return f"no image is that near; the nearest is {nearest[0]} bits away (show it: --radius {nearest[0]})"


def grouped(code: str) -> str:
    """A code in groups of four digits; of a long code only the start.

    >>> grouped("9f3c21a077e4")
    '9f3c 21a0 77e4'
    """
    groups = [code[start : start + 4] for start in range(0, len(code), 4)]
    return " ".join(groups if len(groups) <= 8 else [*groups[:4], "…"])


def write_page(
    path: Path,
    answers: Sequence[tuple[str, Any, dict[str, Any]]],
    index: Catalog | Engine,
    moved_to: Path | None = None,
) -> int:
    """Write answers, each with a name and its query, as one HTML file that needs no network.

    Returns how many of the images found cannot be shown.
    """
    from hashlens.results import report

    rows = [
        {
            **answer,
            "name": name,
            "image": None if isinstance(query, str) else QueryImage(query).thumbnail(0, THUMBNAIL),  # str: a code
            "hits": [(hit, thumbnail(index, hit["path"], THUMBNAIL, moved_to)) for hit in answer["hits"]],
        }
        for name, query, answer in answers
    ]
    of = answers[0][0] if len(answers) == 1 else f"{len(answers):,} queries"
    report.write_page(
        path,
        "search.html.j2",
        title=f"Nearest images to {of}",
        rows=rows,
        grouped=grouped,
        nothing=_nothing,
        orders=ORDERS,
    )
    return sum(image is None for row in rows for _, image in row["hits"])
