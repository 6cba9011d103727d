"""Repair: an index with damaged files in, the same index with all files intact out.

Files with a copy are restored from it, and tables from the codes. Damaged codes are taken from the codes folder or
computed again from the images; damaged paths and labels are looked up in the codes folder by code. Images that cannot
be restored are removed and counted; if only second codes cannot be restored, the index continues without any. Ids stay
the same, unless they are lost themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hashlens.checksums import CheckedFile, damaged
from hashlens.codes import Codes
from hashlens.codes.folder import open_together, shards_in_order
from hashlens.codes.model import ModelFolder
from hashlens.errors import DataError
from hashlens.files import alone_in, quoted
from hashlens.index.folder import COPY, KEYS, IndexFolder, copy_file, files_of, read_facts, write_facts
from hashlens.index.items import MappedItems, as_items
from hashlens.index.memory import Part
from hashlens.kernels import LANES, from_blocks
from hashlens.progress import Progress


def repair(
    path: Path, codes: Sequence[Path] = (), model: Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Restore all damaged files; returns their names and how many images were lost."""
    progress = progress or Progress(quiet=True)
    if not path.is_dir():
        IndexFolder.open(path)  # raises an error that says what is missing
    with alone_in(path):
        facts, repaired = _facts(path)
        had_second = "second_bits" in facts
        bad = {name for name, file in files_of(facts).items() if _is_bad(path / name, file)}
        repaired += sorted(bad)
        for name in sorted(bad):
            other = name.removesuffix(COPY) if name.endswith(COPY) else f"{name}{COPY}"
            if other in files_of(facts) and other not in bad:
                copy_file(path / other, path / name)
                bad -= {name}
        for kind in ("removed", "forgotten"):
            if facts[kind] and facts[kind]["name"] in bad:
                why = "and so is its copy: it is not known which images were removed"
                raise damaged(path / facts[kind]["name"], why, _build_again(path))
        for part in facts["parts"]:  # keys are made again when needed
            if any(f"{part['name']}.{kind}" in bad for kind in KEYS):
                bad -= {f"{part['name']}.{kind}" for kind in KEYS if part["files"].pop(kind)}
        given = _Given(codes, model, path, facts["model"], progress)
        lost = _replace_parts(path, facts, bad, given) if bad else 0
        if repaired:
            write_facts(path, facts)
    index = IndexFolder.open(path)
    if repaired:
        index.build_trees()
    index.verify()
    without = had_second and not index.second_bits
    return {"repaired": repaired, "lost": lost, "second_lost": without, "n": len(index), "index": str(path)}


def _build_again(path: Path) -> str:
    return f"build the index again with: hashlens index build CODES --out {quoted(path.with_name('new'))}"


def _facts(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The facts in index.json or its copy, and the names of damaged files."""
    found, wrong = {}, {}
    for name in ("index.json", f"index.json{COPY}"):
        try:
            found[name] = read_facts(path, name)
        except (OSError, ValueError) as error:
            wrong[name] = error
    if not found:
        raise damaged(path / "index.json", f"{wrong['index.json']}; so is its copy", _build_again(path))
    facts = found.get("index.json") or found[f"index.json{COPY}"]
    if wrong:
        write_facts(path, facts)
    return facts, sorted(wrong)


def _is_bad(path: Path, facts: dict[str, Any]) -> bool:
    try:
        CheckedFile(path, facts, "").whole()
    except DataError:
        return True
    return False


def _replace_parts(path: Path, facts: dict[str, Any], bad: set[str], given: _Given) -> int:
    """Rewrite every part that has damaged files, and change `facts`; returns how many images were lost."""
    wanted = [part for part in facts["parts"] if any(f"{part['name']}.{kind}" in bad for kind in part["files"])]
    salvaged = {part["name"]: _salvage(path, part, facts, bad, given) for part in wanted}
    if any(codes.second is None for codes, _, _ in salvaged.values()):  # if some are lost, all are dropped
        facts.pop("second_bits", None)
        for part in facts["parts"]:
            part["files"].pop("second.npy", None)
    index = IndexFolder(path, facts | {"parts": [part for part in facts["parts"] if part not in wanted]})
    lost, parts = 0, []
    for part in facts["parts"]:
        if part not in wanted:
            parts.append((_first_id(path, part), part))
            continue
        codes, items, ids = salvaged[part["name"]]
        codes = index.require_second(codes)
        lost += part["n"] - len(codes)
        if ids is None:  # lost, so assign new ones
            ids = np.arange(facts["next_id"], facts["next_id"] + len(codes))
            facts["next_id"] += len(codes)
        if len(codes):
            parts.append((int(ids[0]), index._write_part(Part.of(codes, ids), [items], facts)))
    facts["parts"] = [part for _, part in sorted(parts, key=lambda pair: pair[0])]
    return lost


def _first_id(path: Path, part: dict[str, Any]) -> int:
    if part["first_id"] is not None:
        return part["first_id"]
    file = CheckedFile(path / f"{part['name']}.ids.npy", part["files"]["ids.npy"], "")
    return int(file.array((part["n"],), np.int64)[0])


def _salvage(
    path: Path, part: dict[str, Any], facts: dict[str, Any], bad: set[str], given: _Given
) -> tuple[Codes, pa.Table, np.ndarray | None]:
    """The codes, items and ids of a part, as far as they are intact or can be restored."""
    second_bits = facts.get("second_bits", 0)

    def file(kind: str) -> CheckedFile:
        return CheckedFile(path / f"{part['name']}.{kind}", part["files"][kind], "")

    n = part["n"]
    kinds = ("blocks.npy", "second.npy", "items.arrow", "ids.npy")
    has = {kind: f"{part['name']}.{kind}" not in bad for kind in kinds}
    ids: np.ndarray | None = None
    if part["first_id"] is not None:
        ids = np.arange(part["first_id"], part["first_id"] + n)
    elif has["ids.npy"]:
        ids = file("ids.npy").array((n,), np.int64)

    def packed(kind: str, n_bits: int) -> Codes:
        blocks = file(kind).array((-(-n // LANES), -(-n_bits // 8), LANES), np.uint8)
        return Codes(from_blocks(blocks, np.arange(n)), n_bits)

    codes = items = None
    if has["blocks.npy"]:
        codes = packed("blocks.npy", facts["n_bits"])
        if second_bits and has["second.npy"]:
            codes = replace(codes, second=packed("second.npy", second_bits))
    if has["items.arrow"]:
        items = MappedItems(file("items.arrow"), part["batches"]).table()
    if codes is None and items is None:
        raise damaged(path / f"{part['name']}.blocks.npy", "and so is .items.arrow", _build_again(path))
    if codes is None:
        assert items is not None
        codes, kept = given.codes_of(items)
        items = items.take(kept)
    elif items is not None and second_bits and codes.second is None:
        again, rows = given.codes_of(items)
        if len(rows) == n:  # keep intact codes, even if this machine would round differently
            codes = replace(codes, second=again.second)
        kept = np.arange(n)
    elif items is None:
        items, kept = given.items_of(codes)
        codes = codes[kept]
    else:
        kept = np.arange(n)
    return codes, items, None if ids is None else ids[kept]


class _Given:
    """The sources for restoring an index: the codes folders, or the model and the images."""

    def __init__(
        self, codes: Sequence[Path], model: Path | None, near: Path, made_with: dict[str, str], progress: Progress
    ):
        self.model, self.near, self.made_with, self.progress = model, near, made_with, progress
        self.folders = open_together(codes) if codes else []
        for folder in self.folders:
            ModelFolder.require_same(made_with, folder.model, near)

    def codes_of(self, items: pa.Table) -> tuple[Codes, np.ndarray]:
        """The codes of images by their paths, and the rows of images that have one."""
        if not self.folders:
            return self._encoded(items)
        places = {path: row for row, path in enumerate(items["path"].to_pylist())}
        found: list[Codes] = []
        last = np.full(len(items), -1)  # the last code of each image
        for shard in shards_in_order(self.folders):
            codes, table = shard.load()
            rows = [row for row, path in enumerate(table["path"].to_pylist()) if path in places]
            before = sum(map(len, found))
            last[[places[table["path"][row].as_py()] for row in rows]] = np.arange(before, before + len(rows))
            found.append(codes[rows])
        kept = np.flatnonzero(last >= 0)
        return Codes.concatenate(found)[last[kept]], kept

    def _encoded(self, items: pa.Table) -> tuple[Codes, np.ndarray]:
        from hashlens.codes.encode import codes_in, encode_rows
        from hashlens.codes.encoder import Encoder
        from hashlens.data.images import FileImages

        found = ModelFolder.resolve(self.model) if self.model else ModelFolder.find(self.made_with, self.near)
        encoder = Encoder.load(found.path)
        ModelFolder.require_same(self.made_with, encoder.model, self.near)
        with self.progress.bar("images", len(items)) as advance:
            encoded = encode_rows(encoder, items, FileImages.of(items), advance)
        kept = np.flatnonzero(encoded["reason"].is_null().to_numpy())
        return codes_in(encoded.take(kept), encoder.n_bits, encoder.second_bits), kept

    def items_of(self, codes: Codes) -> tuple[pa.Table, np.ndarray]:
        """For each code, the first image in the codes folder that has it and is not taken yet; and the rows found."""
        if not self.folders:
            raise DataError(
                f"the paths in {self.near} are damaged; name the folder of its codes: hashlens index repair"
                f" {quoted(self.near)} --codes CODES"
            )
        waiting: dict[bytes, list[int]] = {}
        for row in range(len(codes) - 1, -1, -1):
            waiting.setdefault(codes.packed[row].tobytes(), []).append(row)
        found, rows = [], []
        for shard in shards_in_order(self.folders):
            own, table = shard.load()
            here = []
            for place, code in enumerate(own.packed):
                if left := waiting.get(code.tobytes()):
                    rows.append(left.pop())
                    here.append(place)
            found.append(as_items(table).take(pa.array(here, pa.int64())))
        order = np.argsort(np.array(rows, np.int64), kind="stable")
        return pa.concat_tables(found).take(order), np.array(rows, np.int64)[order]
