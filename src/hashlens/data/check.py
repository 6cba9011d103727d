"""A source in; what is in it out: sizes, labels, what is skipped and why, copies, and the split that would be made."""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hashlens.data import Columns, make_protocol, open_source
from hashlens.data.folder import forget_checks
from hashlens.data.huggingface import HuggingFaceImages
from hashlens.data.images import FileImages, Images, Progress, decode, quiet_pillow
from hashlens.data.labels import Labels
from hashlens.data.nuswide import is_nuswide, list_pictures
from hashlens.data.protocols import PROTOCOLS, Protocol, natural_protocol
from hashlens.errors import DataError, UsageError
from hashlens.files import expanded, quoted
from hashlens.threads import blocks, work_ahead

SHOWN = 20  # skipped pictures and groups of copies that the text lists; the report has all of them


class Picture(NamedTuple):
    width: int
    height: int
    n_bytes: int
    file: bytes  # sha256 of the file, or of the pixels where there is no file
    pixels: bytes  # sha256 of the quick decoding: equal pixels in files of one format have the same; not the reverse


def check_source(
    name_or_path: str | os.PathLike[str],
    *,
    protocol: str | None = None,
    seed: int = 0,
    from_file: str | os.PathLike[str] | None = None,
    columns: Columns | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Read every picture of a source and report in plain values, ready for JSON.

    A split that cannot be made is part of the report, under "error". NUS-WIDE without a single picture is reported
    from its labels: sizes of nothing, but the split of the complete set.
    """
    if protocol is not None and protocol not in (*PROTOCOLS, "given"):
        raise UsageError(f"there is no protocol {protocol!r}; known are {', '.join(PROTOCOLS)}")
    path = expanded(name_or_path)
    if is_nuswide(path) and not (listing := list_pictures(path, progress)).found:
        return {
            "source": "nuswide",
            "path": str(name_or_path),
            "sizes": {"count": 0},
            "labels": _label_facts(listing.labels),
            "skipped": _skipped(listing.missing),
            "duplicates": {"files": [], "pixels": [], "different_labels": [], "query_in_database": 0},
            "split": _split_facts(_attempt(lambda: _of_ground_truth(listing.labels, protocol, seed))),
            "warnings": [*listing.warnings, "no picture is there: labels and split are those of the ground truth"],
        }

    source = open_source(name_or_path, from_file=from_file, columns=columns, progress=progress)
    try:
        pictures = _examine(source.images, progress)
    except Exception:
        # Good when it was first opened, bad now, and no trace of it in size and times: open all anew.
        if isinstance(source.images, FileImages):
            forget_checks(source.images.root)
        source = open_source(name_or_path, from_file=from_file, columns=columns, progress=progress)
        pictures = _examine(source.images, progress)
    split = _attempt(lambda: make_protocol(source, protocol, seed))
    same = _groups([picture.file for picture in pictures])
    alike = _same_pixels(source.images, pictures)
    return {
        "source": source.name,
        "path": str(name_or_path),
        "sizes": _size_facts(pictures),
        "labels": _label_facts(source.labels),
        "skipped": _skipped(source.skipped),
        "duplicates": {
            "files": _named(same, source.images),
            "pixels": _named(alike, source.images),
            "different_labels": _named([g for g in same + alike if _labels_differ(g, source.labels)], source.images),
            "query_in_database": 0 if isinstance(split, str) else _leaked(same + alike, split),
        },
        "split": _split_facts(split),
        "warnings": list(source.warnings),
    }


def _examine(images: Images, progress: Progress | None) -> list[Picture]:
    """Every picture read and decoded once more, whatever is remembered of it."""

    def examine(part: slice) -> list[Picture]:
        return [_picture(images, row) for row in range(part.start, part.stop)]

    pictures: list[Picture] = []
    last_said = time.monotonic()
    with quiet_pillow():
        for found in work_ahead(examine, blocks(len(images), 32)):
            pictures += found
            if progress and time.monotonic() - last_said > 2:
                progress(f"compared {len(pictures):,} of {len(images):,}")
                last_said = time.monotonic()
    return pictures


def _picture(images: Images, row: int) -> Picture:
    if isinstance(images, FileImages | HuggingFaceImages):
        data = (images.root / images.names[row]).read_bytes() if isinstance(images, FileImages) else images.data(row)
        # at an eighth of the size, as far as the format allows: a picture is compared in full only with its likes
        small, size = decode(io.BytesIO(data), at_least=1)
        pixels = f"{size} {small.size}".encode() + small.tobytes()
        return Picture(*size, len(data), hashlib.sha256(data).digest(), hashlib.sha256(pixels).digest())
    image = images.picture(row)
    pixels = f"{image.size}".encode() + image.tobytes()
    digest = hashlib.sha256(pixels).digest()
    return Picture(*image.size, len(pixels), digest, digest)


def _groups(keys: Sequence[bytes]) -> list[list[int]]:
    """Rows with the same key, where there are several."""
    rows: dict[bytes, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    return [group for group in rows.values() if len(group) > 1]


def _same_pixels(images: Images, pictures: Sequence[Picture]) -> list[list[int]]:
    """Pictures that differ as files but not to the eye: other metadata, another compression without loss."""
    found = []
    with quiet_pillow():
        for group in _groups([picture.pixels for picture in pictures]):
            if len({pictures[row].file for row in group}) > 1:
                whole = [hashlib.sha256(images.picture(row).tobytes()).digest() for row in group]
                found += [[group[i] for i in again] for again in _groups(whole)]
    return [group for group in found if len({pictures[row].file for row in group}) > 1]


def _named(groups: list[list[int]], images: Images) -> list[list[str]]:
    return [[images.names[row] for row in group] for group in groups]


def _labels_differ(group: list[int], labels: Labels) -> bool:
    return len({labels.describe(row) for row in group}) > 1


def _leaked(groups: list[list[int]], split: Protocol) -> int:
    """Queries of which a copy is searched: they are found for nothing and flatter the result."""
    query, database = set(split.query.tolist()), set(split.database.tolist())
    return len({row for group in groups if database & set(group) for row in group if row in query})


def _size_facts(pictures: Sequence[Picture]) -> dict[str, Any]:
    if not pictures:
        return {"count": 0}
    by_area = sorted((picture.width * picture.height, picture.width, picture.height) for picture in pictures)
    return {
        "count": len(pictures),
        "smallest": list(by_area[0][1:]),
        "median": list(by_area[len(by_area) // 2][1:]),
        "largest": list(by_area[-1][1:]),
        "bytes": sum(picture.n_bytes for picture in pictures),
    }


def _label_facts(labels: Labels) -> dict[str, Any]:
    counts = labels.counts()
    per_picture = labels.values.sum(axis=1) if labels.multi else np.ones(len(labels), np.int64)
    return {
        "count": labels.n_classes,
        "several": labels.multi,
        "pictures": len(labels),
        "per_picture": round(float(per_picture.mean()), 3) if len(labels) else 0.0,
        "unlabelled": int((per_picture == 0).sum()),
        "per_class": {name: int(count) for name, count in zip(labels.names, counts, strict=True)},
    }


def _skipped(skipped: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"path": path, "reason": reason} for path, reason in skipped]


def _attempt(make: Callable[[], Protocol]) -> Protocol | str:
    """The split, or the sentence that says why there is none."""
    try:
        return make()
    except DataError as error:
        return error.message


def _of_ground_truth(labels: Labels, protocol: str | None, seed: int) -> Protocol:
    if protocol == "given":
        raise DataError("NUS-WIDE comes without a split of its own; choose nuswide-1 or nuswide-2")
    return PROTOCOLS[protocol or natural_protocol(labels)](labels, seed)


def _split_facts(split: Protocol | str) -> dict[str, Any]:
    if isinstance(split, str):
        return {"error": split}
    return {
        "name": split.name,
        "seed": split.seed,
        "train": len(split.train),
        "query": len(split.query),
        "database": len(split.database),
        "topk": split.topk,
        "description": split.description,
        "sha256": split.fingerprint(),
    }


def describe_check(report: dict[str, Any]) -> str:
    """The report for people: one line a fact, the pictures that need a hand below theirs."""
    sizes, labels = report["sizes"], report["labels"]
    kind = f"label sets, {labels['per_picture']:.1f} labels a picture" if labels["several"] else "one label each"
    lines = [f"{report['path']}  {sizes['count']:,} pictures · {labels['count']:,} labels · {kind}"]
    if sizes["count"]:
        shown = ", ".join(
            f"{which} {sizes[which][0]} × {sizes[which][1]}" for which in ("smallest", "median", "largest")
        )
        lines.append(_line("sizes", f"{shown}; {_megabytes(sizes['bytes'])}"))
    lines.append(_line("balance", _balance(labels)))
    lines += _describe_skipped(report["skipped"])
    lines += _describe_copies(report["duplicates"])
    split = report["split"]
    if "error" in split:
        lines.append(_line("split", f"none: {split['error']}"))
    else:
        cut = f"MAP over the top {split['topk']:,}" if split["topk"] else "MAP over the whole ranking"
        lines.append(_line("split", f"{split['name']}, seed {split['seed']}: {split['description']}; {cut}"))
    lines += [_line("note", warning) for warning in report["warnings"]]
    if sizes["count"] and "error" not in split:
        lines.append(_line("next", f"hashlens train {quoted(report['path'])}"))
    return "\n".join(lines)


def _line(word: str, text: str) -> str:
    return f"  {word:<11} {text}"


def _balance(labels: dict[str, Any]) -> str:
    counts = labels["per_class"]
    fewest, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
    ratio = f", ratio {counts[most] / counts[fewest]:.1f}" if counts[fewest] else ""
    without = f"; {labels['unlabelled']:,} without a label" if labels["unlabelled"] else ""
    return f"from {counts[fewest]:,} ({fewest}) to {counts[most]:,} ({most}) a label{ratio}{without}"


def _describe_skipped(skipped: list[dict[str, str]]) -> list[str]:
    if not skipped:
        return [_line("skipped", "none")]
    reasons = Counter(entry["reason"] for entry in skipped).most_common()
    lines = [_line("skipped", f"{len(skipped):,}: {', '.join(f'{count:,} {reason}' for reason, count in reasons)}")]
    lines += [_line("", f"{entry['path']}  {entry['reason']}") for entry in skipped[:SHOWN]]
    return lines + _and_more(skipped)


def _describe_copies(duplicates: dict[str, Any]) -> list[str]:
    groups = duplicates["files"] + duplicates["pixels"]
    if not groups:
        return [_line("duplicates", "none")]
    # equal files have equal pixels, so a group of files is within a group of pixels or apart from all of them
    alike = {name for group in duplicates["pixels"] for name in group}
    counted = [*duplicates["pixels"], *(group for group in duplicates["files"] if group[0] not in alike)]
    copies = sum(len(group) - 1 for group in counted)
    text = f"{copies:,} (groups of the same file: {len(duplicates['files']):,}, of the same pixels:"
    text += f" {len(duplicates['pixels']):,})"
    if duplicates["different_labels"]:
        text += f"; groups under different labels: {len(duplicates['different_labels']):,}"
    if duplicates["query_in_database"]:
        text += f"; queries with a copy in the database, which flatters MAP: {duplicates['query_in_database']:,}"
    return [_line("duplicates", text), *[_line("", " = ".join(group)) for group in groups[:SHOWN]], *_and_more(groups)]


def _and_more(entries: Sequence[Any]) -> list[str]:
    return [_line("", f"… and {len(entries) - SHOWN:,} more; --json lists all")] if len(entries) > SHOWN else []


def _megabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:,.1f} MB"
