"""Upgrade: index.json of an older version in, one of this version out, after verifying every file by its SHA-256.

Version 5 has no keys; the first addition makes them. Version 4 has no checksums of blocks: its files stay, and
index.json is replaced if the folder is writable. Version 3 has the codes in another order, pieces of 16 bits; they are
rewritten.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hashlens.checksums import CheckedFile, damaged, describe_file
from hashlens.errors import DataError, MismatchError, StorageError, UsageError
from hashlens.files import alone_in, replacing, sha256
from hashlens.index import folder as now
from hashlens.index.items import find_batches
from hashlens.kernels import to_blocks
from hashlens.schema import SHA256, TEXT, conform, optional

CODES = {"hashlens index 4": "blocks.npy", "hashlens index 3": "pieces.npy"}
KINDS = ("ids.npy", *now.TABLES)


def _numbered(kind: str) -> tuple[Any, ...]:
    return None, {"name": re.compile(rf"{kind}-\d{{5,9}}\.npy"), "n": now.COUNT, "sha256": SHA256}


def _schema(before: str) -> dict[Any, Any]:
    digests = {CODES[before]: SHA256, "items.arrow": SHA256} | {optional(kind): SHA256 for kind in KINDS}
    part: Any = now.SCHEMA["parts"][0]
    parts = {name: part[name] for name in ("name", "n", "first_id")} | {"sha256": digests}
    lists = {kind: _numbered(kind) for kind in ("removed", "forgotten")}
    return now.SCHEMA | {"format": before, "parts": [parts]} | lists


def upgraded(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    before = conform(facts.get("format"), TEXT, "format")
    if before == "hashlens index 5":
        return facts | {"format": now.FORMAT}
    odd = before == "hashlens index 3" and -(-conform(facts.get("n_bits"), now.SCHEMA["n_bits"]) // 8) % 2
    if before not in CODES or (odd and facts.get("forgotten")):  # keys of removed images came from whole pieces
        raise MismatchError(f"{path} has the format {before[:60]!r}, this version reads {now.FORMAT!r}; build it again")
    conform(facts, _schema(before), "index.json")
    parts = [_part(path, part, facts["n_bits"]) for part in facts["parts"]]
    facts = facts | {"format": now.FORMAT, "parts": parts}
    for kind in ("removed", "forgotten"):
        if one := facts[kind]:
            facts[kind] = {"name": one["name"], "n": one["n"]} | _file(path / one["name"], one["sha256"])
    with suppress(StorageError, UsageError, OSError), alone_in(path):  # if read-only or locked, upgrade next time
        for name in now.files_of(facts):
            if name.endswith(now.COPY):
                now.copy_file(path / name.removesuffix(now.COPY), path / name)
        now.write_facts(path, facts)
    return facts


def _part(path: Path, part: dict[str, Any], n_bits: int) -> dict[str, Any]:
    files = {kind: _file(path / f"{part['name']}.{kind}", expected) for kind, expected in part["sha256"].items()}
    if (pieces := files.pop("pieces.npy", None)) is not None:
        shape = (-(-n_bits // 16), part["n"])
        found = CheckedFile(path / f"{part['name']}.pieces.npy", pieces, now.remedy(path)).array(shape, np.uint16)
        packed = np.ascontiguousarray(found.T).view(np.uint8)[:, : -(-n_bits // 8)]
        blocks = path / f"{part['name']}.blocks.npy"
        with replacing(blocks) as temporary, temporary.open("wb") as file:
            np.save(file, to_blocks(np.ascontiguousarray(packed)))
        files["blocks.npy"] = describe_file(blocks)
    arrow = path / f"{part['name']}.items.arrow"
    try:
        batches = find_batches(arrow)
    except (ValueError, pa.ArrowException) as error:
        raise damaged(arrow, error, now.remedy(path)) from error
    return {name: part[name] for name in ("name", "n", "first_id")} | {"files": files, "batches": batches}


def _file(path: Path, expected: str) -> dict[str, Any]:
    try:
        if sha256(path) != expected:
            raise damaged(path, "it has changed since it was written", now.remedy(path.parent))
        return describe_file(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {now.remedy(path.parent)}") from error
