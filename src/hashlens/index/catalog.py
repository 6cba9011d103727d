"""`Catalog`: an exact index that also has the path and labels of each code, to show with results."""

import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hashlens.codes import Codes
from hashlens.data.images import INSIDE
from hashlens.errors import Damaged, DataError, UsageError
from hashlens.files import is_utf8
from hashlens.index.items import Items, as_items
from hashlens.index.memory import HammingIndex, Part
from hashlens.kernels import from_blocks
from hashlens.machine import blocks

STAMPED = ("path", "size", "mtime", "labels", "hash")


class Catalog(HammingIndex):
    """Codes made by one model, with their paths and labels; ids count from 0."""

    damage: Damaged | None = None  # found after opening: this index must give no more answers

    def __init__(self, path: Path, n_bits: int, model: dict[str, str], *, second_bits: int = 0):
        super().__init__(n_bits, second_bits=second_bits)
        self.path = path
        self.model = model  # fingerprint and name

    def _changed(self) -> None:
        super()._changed()
        self.__dict__.pop("roots", None)

    def add(self, codes: Codes, items: pa.Table) -> np.ndarray:  # type: ignore[override]  # it chooses the ids
        """Add codes with their paths and labels; returns the new ids."""
        self.require_items(codes, items)
        codes = self.require_second(codes)
        first = self._highest() + 1
        own = Items(as_items(items))
        self._use([*self.parts, Part.of(codes, first, items=lambda: own)])
        return np.arange(first, first + len(codes))

    def require_items(self, codes: Codes, items: pa.Table) -> None:
        self._require(codes)
        if len(codes) != items.num_rows:
            raise DataError(f"got {len(codes):,} codes and {items.num_rows:,} items; each code needs one item")

    def changed(self) -> bool:
        """Whether another process has changed the index; this object still has the old state."""
        return False

    def lookup(self, ids: Any) -> dict[int, dict[str, Any]]:
        """Id, path, labels and codes (in hex) of those ids that are in the index."""
        ids = np.unique(np.asarray(ids, np.int64).ravel())
        found = {}
        for part in self._parts_of(ids):
            places = part.places(ids)
            here, codes = part.ids(places).tolist(), part.codes(places)
            for (path, labels), id_, code in zip(part.items().rows(places), here, codes, strict=True):
                found[id_] = {"id": id_, "path": path, "labels": labels, "code": code.tobytes().hex()}
            if part.second is not None:
                for id_, code in zip(here, from_blocks(part.second, places), strict=True):
                    found[id_]["second"] = code.tobytes().hex()
        return found

    def labels(self, most: int = 1_000) -> list[str]:
        """The labels in the index, most frequent first; at most `most`."""
        chunks = []
        for part in self.parts:
            column = part.items().column("labels")
            still = column if part.alive is None else column.take(part.still())
            chunks += [chunk.flatten() for chunk in still.chunks]
        counted = pa.chunked_array(chunks, pa.string()).value_counts()
        values, counts = counted.field("values"), counted.field("counts").to_numpy(zero_copy_only=False)
        return values.take(np.argsort(-counts, kind="stable")[:most]).to_pylist()

    def examples(self, n: int = 6) -> list[int]:
        """Ids spread over the index, as example queries."""
        ids: list[int] = []
        for part in self.parts:
            places = part.still(np.linspace(0, len(part) - 1, min(n, len(part))).astype(np.int64))
            ids += part.ids(places).tolist()
        return [ids[place] for place in np.unique(np.linspace(0, len(ids) - 1, n).astype(int))] if ids else []

    def page(self, start: int, n: int) -> list[dict[str, Any]]:
        """`lookup` for n images from the start-th on, in the order of ids."""
        ids: list[int] = []
        for part in self.parts:
            here = len(part) - part.n_removed
            if start < here and len(ids) < n:
                stop = min(here, start + n - len(ids))
                places = np.arange(start, stop) if part.alive is None else part.still()[start:stop]
                ids += part.ids(places).tolist()
            start = max(0, start - here)
        found = self.lookup(ids)
        return [found[id_] for id_ in ids]

    @cached_property
    def roots(self) -> list[str]:
        """The folders of the images: for each part, the common folder of its paths."""
        return sorted({common_folder(part.items().column("path")) for part in self.parts})

    def ids_with(self, label: str) -> np.ndarray:
        """The ids of the images that have this label."""
        import pyarrow.compute as pc  # 0.1 s, not needed by searches without a label

        require_text(label, "the label")

        def places(items: Items) -> np.ndarray:
            column = items.column("labels").combine_chunks()
            matches = pc.equal(column.flatten(), label)
            return np.unique(pc.list_parent_indices(column).filter(matches).to_numpy())

        return self._ids_where(places)

    def ids_like(self, pattern: str) -> np.ndarray:
        """The ids of the images whose path matches a shell pattern such as */cache/*."""
        matches = matching(pattern)
        return self._ids_where(
            lambda items: np.flatnonzero([matches(path) for path in items.column("path").to_pylist()])
        )

    def only(self, label: str | None) -> dict[str, Any]:
        """Arguments that limit a search to images with a label."""
        return {"among": None if label is None else self.ids_with(label)}

    def batches_with_items(self, n: int) -> Iterator[tuple[Codes, np.ndarray, Callable[[], pa.Table]]]:
        """All codes, their ids and a function that returns their items, from at most n places at a time."""
        for part in self.parts:
            for rows in blocks(len(part), n):
                places = part.still(np.arange(rows.start, rows.stop))
                yield self._codes(part, places), part.ids(places), partial(_take, part, places)

    def stamps(self) -> Iterator[tuple[int, str, Any, Any, Any, Any]]:
        """Id, path, size, mtime, labels and hash of every image, in the order of ids."""
        for part in self.parts:
            places = part.still()
            columns = [part.items().column(name).take(pa.array(places)).to_pylist() for name in STAMPED]
            yield from zip(part.ids(places).tolist(), *columns, strict=True)

    def _ids_where(self, places: Callable[[Items], np.ndarray]) -> np.ndarray:
        found = [part.ids(part.still(places(part.items()))) for part in self.parts]
        return np.concatenate([np.empty(0, np.int64), *found])


def _take(part: Part, places: np.ndarray) -> pa.Table:
    return part.items().table().take(pa.array(places))


def matching(pattern: str) -> Callable[[str], bool]:
    """Whether a path matches a shell pattern."""
    require_text(pattern, "the pattern")
    match = re.compile(fnmatch.translate(pattern)).match
    return lambda path: match(path) is not None


def require_text(text: str, what: str) -> None:
    """Refuse text that no index can hold: half a surrogate pair from JSON, or any bytes from a shell argument."""
    if not is_utf8(text):
        raise UsageError(f"{what} is not valid text; use one from the index")


def common_folder(paths: pa.ChunkedArray) -> str:
    """The folder that contains all paths: the common prefix of the first and the last in sorted order."""
    import pyarrow.compute as pc

    ends = pc.min_max(paths).as_py()
    first, last = (path.partition(f".tar{INSIDE}")[0] for path in (ends["min"], ends["max"]))
    prefix = os.path.commonprefix([first, last])  # noqa: RUF071 - cut at a / below
    return prefix[: prefix.rfind("/") + 1]
