"""`hashlens data check`: sizes, labels, skipped images and why, duplicates, and the split that training would use."""

import hashlib
import io
import os
from collections import Counter, defaultdict
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from hashlens.data.duplicates import near_identical
from hashlens.data.formats import decoders
from hashlens.data.images import ArrayImages, Images, quiet_pillow
from hashlens.data.kinds.nuswide import is_nuswide, list_images
from hashlens.data.labels import Labels
from hashlens.data.protocols import PROTOCOLS, ROLES, Protocol
from hashlens.data.sources import Columns, Progress, Source, make_protocol, open_source, readable
from hashlens.errors import DataError, UsageError
from hashlens.files import expanded, quoted
from hashlens.machine import blocks, work_ahead
from hashlens.progress import counted

SHOWN = 20  # skipped images and groups of duplicates listed in the text; the report has all of them


class Facts(NamedTuple):
    """Facts about one image."""

    width: int
    height: int
    n_bytes: int
    digest: bytes  # sha256 of the file, or of the pixels of an image in memory


def check_source(
    name_or_path: str | os.PathLike[str],
    *,
    protocol: str | None = None,
    seed: int = 0,
    from_file: str | os.PathLike[str] | None = None,
    columns: Columns | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Decode every image of a source, ignoring the cache, and return a report ready for JSON.

    A split that cannot be made is part of the report, under "error". NUS-WIDE without a single image is reported
    from its labels: no sizes, but the split of the complete set.
    """
    if protocol is not None and protocol not in (*PROTOCOLS, "given"):
        raise UsageError(f"unknown protocol {protocol!r}; choose one of {', '.join(PROTOCOLS)}")
    path = expanded(name_or_path)
    facts: list[Facts] = []
    alike: list[list[int]] = []
    if is_nuswide(path) and not (listing := list_images(path)).found:
        notes = [*listing.notes, "no images found; labels and split are from the ground truth"]
        images = ArrayImages(np.zeros((len(listing.labels), 1, 1), np.uint8), listing.images)
        source = Source("nuswide", images, listing.labels, listing.missing, notes)
        source.kind = "nuswide"
    else:
        source = open_source(name_or_path, from_file=from_file, columns=columns, progress=progress)
        if source.kind == "features":
            raise UsageError(f"{name_or_path} contains features; check the images they were computed from")
        source = readable(source, progress, again=True)
        with quiet_pillow():
            for found in work_ahead(partial(_facts, source.images), blocks(len(source), 32)):
                facts += found
            alike = near_identical(source.images)
    same: dict[bytes, list[int]] = defaultdict(list)
    for row, fact in enumerate(facts):
        same[fact.digest].append(row)
    copies = [rows for rows in same.values() if len(rows) > 1]
    leaked: set[int] = set()  # queries with a copy in the database
    try:
        split = make_protocol(source, protocol, seed)
        query, database = set(split.query.tolist()), set(split.database.tolist())
        leaked = query & {row for rows in alike if database & set(rows) for row in rows}
        split_facts, notes = _split_facts(split), list(split.notes)
    except (DataError, UsageError) as error:
        split_facts, notes = {"error": error.message}, []

    def names(rows: list[int]) -> list[str]:
        return [source.images.names[row] for row in rows]

    labelled = [(rows, [source.labels.describe(row) for row in rows]) for rows in alike]
    return {
        "source": source.name,
        "path": str(name_or_path),
        "sizes": _size_facts(facts),
        "labels": _label_facts(source.labels),
        "skipped": [{"path": name, "reason": reason} for name, reason in source.skipped],
        "duplicates": {
            "groups": [names(rows) for rows in copies],
            "near_identical": [names(rows) for rows in alike],
            "different_labels": [
                dict(zip(names(rows), labels, strict=True)) for rows, labels in labelled if len(set(labels)) > 1
            ],
            "query_in_database": names(sorted(leaked)),
        },
        "split": split_facts,
        "warnings": [*(source.warnings if facts else source.notes), *notes],
    }


def _facts(images: Images, rows: slice) -> list[Facts]:
    found = []
    for row in range(rows.start, rows.stop):
        if images.in_memory:
            image = images.image(row)
            data, size = image.tobytes(), image.size
        else:
            data = images.data(row)
            with Image.open(io.BytesIO(data), formats=decoders()) as image:
                size = image.size
        found.append(Facts(*size, len(data), hashlib.sha256(f"{size}".encode() + data).digest()))
    return found


def _size_facts(facts: list[Facts]) -> dict[str, Any]:
    if not facts:
        return {"count": 0}
    by_area = sorted((fact.width * fact.height, fact.width, fact.height) for fact in facts)
    places = {"smallest": 0, "median": len(facts) // 2, "largest": -1}
    sizes = {which: list(by_area[place][1:]) for which, place in places.items()}
    return {"count": len(facts), **sizes, "bytes": sum(fact.n_bytes for fact in facts)}


def _label_facts(labels: Labels) -> dict[str, Any]:
    per_image = labels.values.sum(axis=1) if labels.multi else np.ones(len(labels), np.int64)
    return {
        "count": labels.n_classes,
        "several": labels.multi,
        "images": len(labels),
        "per_image": round(float(per_image.mean()), 3) if len(labels) else 0.0,
        "unlabelled": int((per_image == 0).sum()),
        "per_class": dict(zip(labels.names, labels.counts().tolist(), strict=True)),
    }


def _split_facts(split: Protocol) -> dict[str, Any]:
    facts = {key: getattr(split, key) for key in ("name", "seed", "topk", "description")}
    return facts | {role: len(getattr(split, role)) for role in ROLES} | {"sha256": split.fingerprint()}


def describe_check(report: dict[str, Any]) -> str:
    """The report as text: a line per fact, and the images that need attention."""
    sizes, labels, skipped, split = (report[part] for part in ("sizes", "labels", "skipped", "split"))
    kind = f"label sets, {labels['per_image']:.1f} labels per image" if labels["several"] else "one label each"
    head = f"{report['path']}  {counted(sizes['count'], 'image')} · {counted(labels['count'], 'label')} · {kind}"
    lines: list[tuple[str, str]] = []
    if sizes["count"]:
        sides = [f"{which} {sizes[which][0]} × {sizes[which][1]}" for which in ("smallest", "median", "largest")]
        lines.append(("sizes", f"{', '.join(sides)}; {sizes['bytes'] / 1e6:,.1f} MB"))
    lines.append(("balance", _balance(labels)))

    reasons = Counter(entry["reason"] for entry in skipped).most_common()
    text = f"{len(skipped):,}: {', '.join(f'{count:,} {reason}' for reason, count in reasons)}" if skipped else "none"
    lines += [("skipped", text), *_first([f"{entry['path']}  {entry['reason']}" for entry in skipped])]

    copies = report["duplicates"]
    exact, near = (sum(len(group) - 1 for group in copies[kind]) for kind in ("groups", "near_identical"))
    text = (f"{exact:,}" if exact else "none") + f"; near-identical: {near - exact:,}" * (near > exact)
    lines += [("duplicates", text), *_first([" = ".join(group) for group in copies["near_identical"]])]
    if noise := copies["different_labels"]:
        advice = "correct the labels of each group, or remove the group"
        lines.append(
            ("label noise", f"groups of near-identical images with different labels: {len(noise):,}; {advice}")
        )
        lines += _first([" = ".join(f"{path} ({label})" for path, label in group.items()) for group in noise])
    if leaked := copies["query_in_database"]:
        advice = "remove the copies, or keep them together in a column split of a table"
        lines.append(("leaks", f"queries with a copy in the database, which inflates MAP: {len(leaked):,}; {advice}"))
        lines += _first(leaked)

    if "error" in split:
        lines.append(("split", f"none: {split['error']}"))
    else:
        cut = f"MAP over the top {split['topk']:,}" if split["topk"] else "MAP over the whole ranking"
        lines.append(("split", f"{split['name']}, seed {split['seed']}: {split['description']}; {cut}"))
    lines += [("note", warning) for warning in report["warnings"]]
    if sizes["count"] and "error" not in split:
        lines.append(("next", f"hashlens train {quoted(report['path'])}"))
    return "\n".join([head, *(f"  {word:<11} {text}" for word, text in lines)])


def _balance(labels: dict[str, Any]) -> str:
    counts = labels["per_class"]
    fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    ratio = f", ratio {counts[most] / counts[fewest]:.1f}" if counts[fewest] else ""
    without = f"; {labels['unlabelled']:,} without a label" if labels["unlabelled"] else ""
    return f"from {counts[fewest]:,} ({fewest}) to {counts[most]:,} ({most}) per label{ratio}{without}"


def _first(texts: list[str]) -> list[tuple[str, str]]:
    more = [f"… and {len(texts) - SHOWN:,} more; --json lists all"] if len(texts) > SHOWN else []
    return [("", text) for text in texts[:SHOWN] + more]
