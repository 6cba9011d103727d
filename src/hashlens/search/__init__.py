"""Search: an image, an id or a code in, the nearest images of an index out, as plain data, as text or as a page.

Equal distances are ordered by the second code, if images have one, then by id (index/order.py); an answer says which
codes decided, and how many images tie at its last distance.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from hashlens.codes import MANIFEST, RUN_CODES, Codes
from hashlens.codes.encoder import Encoder
from hashlens.codes.model import CONFIG, ModelFolder
from hashlens.data.images import MAX_PIXELS, UnreadableImage, pixels
from hashlens.errors import DataError, HashlensError, MismatchError, OtherModel, UsageError
from hashlens.files import expanded
from hashlens.index.base import Index, require_numbers
from hashlens.index.catalog import Catalog
from hashlens.index.engines.server import Engine
from hashlens.index.folder import IndexFolder
from hashlens.progress import Progress
from hashlens.search.queries import QueryImage, is_code, parse_code

__all__ = ["EmptyIndex", "NoSuchImage", "Searcher", "UnreadableImage", "open_index", "open_searcher", "search_folder"]

Result = TypeVar("Result")
K = 10  # results by default, if no radius is given


class NoSuchImage(DataError):
    """The index has no image with that id."""


class EmptyIndex(DataError):
    """There is nothing to search."""


@dataclass
class Query:
    """The code to search for, where it comes from, and how many seconds encoding took."""

    code: Codes
    facts: dict[str, Any] = field(default_factory=dict)
    decode: float = 0.0
    encode: float = 0.0


class Searcher:
    """An index with the model that made it, ready to search.

    The index is a folder, in memory, or on a server (index/engines). Changes that other processes make to it are seen
    by the next search. With an `engine` that holds a copy of the codes, the engine finds the nearest ids and the index
    knows their images.

    >>> searcher = open_searcher("index")
    >>> answer = searcher.search(Path("query.jpg"), k=10)
    >>> [(hit["distance"], hit["path"]) for hit in answer["hits"]]
    """

    def __init__(
        self,
        index: Catalog | Engine,
        encoder: Encoder | None = None,
        *,
        engine: Index | None = None,
        max_pixels: int = MAX_PIXELS,
    ):
        if encoder is not None and encoder.n_bits != index.n_bits:
            raise MismatchError(
                f"{index.path} has codes of {index.n_bits} bits, this model makes {encoder.n_bits}; use the model"
                " that the index was made with"
            )
        self.index, self.encoder, self.engine, self.max_pixels = index, encoder, engine, max_pixels
        # one thread at a time opens the index: others would only repeat the work, and `ast`, with which numpy reads
        # headers, fails in two threads at once (CPython 3.11)
        self.loading = Lock()
        self.changing = False  # whether this process is in the middle of a change
        self.stale: str | None = None  # why the index on disk could not be loaded; answers come from the old one

    @property
    def takes_images(self) -> bool:
        """Whether there is a model for images; without one, queries can only be ids and codes."""
        return self.encoder is not None and self.encoder.size is not None

    def image_size(self) -> int:
        """Pixels per side of the images that the model takes."""
        if self.encoder is None or self.encoder.size is None:
            raise UsageError("no model for images is loaded, so they cannot be encoded; search by id or by code")
        return self.encoder.size

    def now(self, wait: bool = False) -> Searcher:
        """A searcher on the current index on disk, which later changes of the index do not affect.

        While this process changes the index, or another thread reopens it, this is the previous one, unless `wait` is
        set.
        """
        if self.index.changed() and (wait or not self.changing) and self.loading.acquire(blocking=wait):
            try:
                if self.index.changed():
                    self.load()
            finally:
                self.loading.release()
        if self.index.damage is not None:
            raise self.index.damage.with_traceback(None)  # otherwise the traceback would grow with every search
        return copy.copy(self)

    def load(self) -> None:
        """Load the index that is on disk now, or remember why that is not possible."""
        try:
            assert isinstance(self.index, Catalog)  # servers never report changes
            index = IndexFolder.open(self.index.path, self.index)
            encoder = self.encoder
            if index.model["fingerprint"] != self.index.model["fingerprint"]:  # another model was promoted
                try:
                    encoder = None if encoder is None else find_encoder(index)
                    if self.engine is not None:
                        raise UsageError("an engine has the codes of the old one")
                except UsageError as error:
                    why = f"{index.path} was rebuilt with another model; restart with that model"
                    raise MismatchError(why) from error
            # in one step, so that copies made in another thread have an index with its own model
            self.__dict__.update(index=index, encoder=encoder, stale=None)
        except HashlensError as error:  # perhaps in the middle of a change; the next call retries
            self.stale = error.message

    def on_disk(self, work: Callable[[Searcher], Result]) -> Result:
        """Return work(self.now()), repeated if another process replaced a file of the index meanwhile."""
        now = self.now()
        try:
            return work(now)
        except DataError:
            if not now.index.changed():
                raise
            return work(self.now(wait=True))

    def search(
        self,
        query: Any,
        k: int | None = None,
        radius: int | None = None,
        label: str | None = None,
        histogram: bool = False,
        by: str | None = None,
    ) -> dict[str, Any]:
        """The nearest k images (10 by default); with a radius, all within it; with both, the nearest k within it.

        Parameters
        ----------
        query : an image (Path, bytes, PIL or uint8 array), an id (int), a code (`Codes`), or text: a code in hex,
            perhaps followed by the second code, or a path.
        label : search only images that have this label.
        histogram : also count the searched images at each distance, which reads all codes once more.
        by : "first": by the first code alone. "both": equal distances are ordered by the second code. "second": by the
            second code alone, for images of unseen classes. The default is both if the index and the query have a
            second code and no engine searches, else first.

        Returns
        -------
        query, by, n_bits of the code that distances and radius refer to, hits, ties at the last distance, histogram
        (the number of searched images at each distance from 0 to n_bits), timing_ms and facts of the index. The
        histogram and the total of the ties are None unless requested, and if an engine finds the hits. With by="both",
        hits also have the second_distance.
        """
        require_numbers(k, radius)
        if by is not None:
            self.index.require_by(by)
        return self.on_disk(lambda now: now._search(query, k, radius, label, histogram, by))

    def _search(
        self,
        query: Any,
        k: int | None,
        radius: int | None,
        label: str | None,
        histogram: bool = False,
        by: str | None = None,
        tries: int = 3,
    ) -> dict[str, Any]:
        if not len(self.index):
            raise EmptyIndex("the index has no images; add some with: hashlens index add INDEX CODES")
        asked = self.encode(query)
        start = time.perf_counter()
        by = self._by(asked.code, by)
        only = self.index.only(label)
        tables = radius is not None and label is None and not self.engine and self.index.looks_up(radius, by)
        distances, ids = self._nearest(asked.code, k, radius, only, tables, by)
        counted, total = self._counted(asked.code, distances, only, by) if histogram else (None, None)
        found = time.perf_counter()
        items = self.index.lookup(ids)
        pairs = zip(distances.tolist(), ids.tolist(), strict=True)
        hits = [{"id": i, "distance": d, **items[i]} for d, i in pairs if i in items]
        if len(hits) < len(ids) and isinstance(self.index, Engine) and tries:  # others removed images meanwhile
            return self._search(query, k, radius, label, histogram, by, tries - 1)
        query_codes = {"code": _hex(asked.code)}
        if asked.code.second is not None:
            query_codes["second"] = _hex(asked.code.second)
        if by == "both":
            for hit in hits:
                hit["second_distance"] = (int(hit["second"], 16) ^ int(query_codes["second"], 16)).bit_count()
        seconds = {"decode": asked.decode, "encode": asked.encode, "search": found - start}
        seconds["items"] = time.perf_counter() - found
        return {
            "query": {**query_codes, **asked.facts},
            "by": by,
            "n_bits": self.index.second_bits if by == "second" else self.index.n_bits,
            "hits": hits,
            "ties": _ties(distances, total),
            "histogram": counted,
            "timing_ms": {name: round(1000 * value, 2) for name, value in seconds.items()},
            "index": self.facts(),
        }

    def _counted(
        self, code: Codes, distances: np.ndarray, only: dict[str, Any], by: str
    ) -> tuple[list[int] | None, int | None]:
        """The histogram, and how many images are as far as the last hit, if they can be counted."""
        if self.engine is not None:
            return None, None
        counts = self.index.histogram(code, **only, by=by)
        last = int(distances[-1]) if len(distances) else 0
        if counts is None:
            assert isinstance(self.index, Engine)
            return None, self.index.count_at(code, last, **only, by=by)
        return counts.tolist(), int(counts[last])

    def _by(self, code: Codes, by: str | None) -> str:
        """The codes that a search is by: the default, or the user's choice if it is possible."""
        known = self.index.second_bits and code.second is not None
        if by is None:
            return "both" if known and self.engine is None else "first"
        self.index.require_by(by)
        if by != "first" and not known:
            raise UsageError(
                f"this query has no second code, so it cannot be searched by {by}; pass an image, an id, or a code"
                " followed by its second code"
            )
        if by == "second" and self.engine is not None:
            raise UsageError("an engine holds only first codes, so it cannot search by second; omit --engine")
        return by

    def parse_code(self, text: str) -> Codes:
        """Parse a code in hex, optionally followed by the second code."""
        return parse_code(text, self.index.n_bits, self.index.second_bits)

    def encode(self, query: Any) -> Query:
        """The code of a query, with its second code if known."""
        n_bits = self.index.n_bits
        if isinstance(query, int | np.integer) and not isinstance(query, bool):
            item = dict(self.item(int(query)))
            return Query(self.parse_code(item.pop("code") + item.pop("second", "")), item)
        if isinstance(query, str):
            query = self.parse_code(query) if is_code(query) else Path(query)
        if isinstance(query, Codes):
            if query.n_bits != n_bits or len(query) != 1:
                raise MismatchError(
                    f"the index contains codes of {n_bits} bits; search for one such code at a time, got {len(query)}"
                    f" of {query.n_bits}"
                )
            return Query(query)
        if isinstance(query, np.ndarray):
            query = Image.fromarray(pixels(query))
        if isinstance(query, Path | bytes | Image.Image):
            query = QueryImage(query, self.max_pixels)
        if not isinstance(query, QueryImage):
            raise UsageError(f"cannot search for {type(query).__name__}; pass an image, an id or a code")
        if query.cropped_to not in (None, self.image_size()):
            raise OtherModel("another model has taken over, which takes images of another size; try again")
        assert self.encoder is not None
        start, before = time.perf_counter(), query.seconds  # seconds spent elsewhere, such as on decoding
        code = self.encoder.codes(query)
        encode = time.perf_counter() - start - (query.seconds - before)
        return Query(code, query.facts, query.seconds, encode)

    def close(self) -> None:
        """Release files and connections."""
        self.index.close()
        if self.engine is not None:
            self.engine.close()

    def warm_up(self) -> None:
        """Compile, map and load everything that the first search would otherwise wait for."""
        if len(self.index):
            blank = Codes(np.zeros((1, -(-self.index.n_bits // 8)), np.uint8), self.index.n_bits)
            self.search(Image.new("RGB", (64, 64)) if self.takes_images else blank)
            self.index.within(blank, 0)

    def facts(self) -> dict[str, Any]:
        exact = (self.engine or self.index).exact
        lengths = {"n_bits": self.index.n_bits, "second_bits": self.index.second_bits}
        return {"n": len(self.index), **lengths, "exact": exact, "model": self.index.model}

    def item(self, id_: int) -> dict[str, Any]:
        """Id, path, labels and codes of an image."""
        found = self.index.lookup([id_]) if abs(id_) < 2**63 else {}
        if id_ not in found:
            raise NoSuchImage(f"the index has no image {id_}; it was removed, or never added")
        return found[id_]

    def _nearest(
        self, code: Codes, k: int | None, radius: int | None, only: dict[str, Any], tables: bool, by: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances and ids of the answer, without padding; an engine may still hold images removed from the index."""
        place: Any = self.engine or self.index
        how: dict[str, Any] = only if self.engine else {**only, "by": by}

        ordering = self.engine is not None and by == "both"

        def present(distances: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            there = np.isin(ids, self.index.contains(ids)) if self.engine else ids >= 0
            return distances[there], ids[there]

        def all_within(radius: int) -> tuple[np.ndarray, np.ndarray]:
            found = present(*place.within(code, radius, **how)[0])
            return self.index.order_ties(code, *found) if isinstance(self.index, Catalog) and ordering else found

        if radius is not None and (k is None or tables):
            distances, ids = all_within(radius)
            return distances[:k], ids[:k]
        most = min(k or K, len(self.index))
        asked = most
        while True:
            (found_at,), (found,) = place.search(code, asked, **how)
            distances, ids = (values[:most] for values in present(found_at, found))
            if len(ids) == most or found[-1] < 0:
                break
            asked *= 2  # some were removed from the index since the engine got its copy
        if ordering and len(ids):  # an engine orders by the first code, so all ties are needed
            distances, ids = (values[:most] for values in all_within(int(distances[-1])))
        near = distances <= (2**31 - 1 if radius is None else radius)
        return distances[near], ids[near]


def open_index(source: Path | str, model: Path | str | None = None, **options: Any) -> Catalog:
    """Open the index in a folder; for codes or a run, one in memory; for any other source, one that is kept up to date.

    `model`, by default the general one, and `options` are those of `index_of` in index/library.py.
    """
    path, built = expanded(source), "index.json"
    ours = [built, MANIFEST, RUN_CODES, "part-*-of-*", CONFIG, f"model/{CONFIG}"]
    found = next((name for name in ours if next(path.glob(name), None)), None)
    if found is None:
        from hashlens.index.library import index_of

        return index_of(source, model, **options)
    if options.get("at") is not None:
        raise UsageError(f"{path} has codes and is not a folder of images; omit --index")
    if found == built or CONFIG in found:  # for a model or a run without codes, the error says what is missing
        return IndexFolder.open(path)
    from hashlens.codes.folder import open_together, shards_in_order

    folders = open_together([path])
    index = Catalog(path, folders[0].n_bits, folders[0].model, second_bits=folders[0].second_bits)
    for shard in shards_in_order(folders):
        if shard.n:
            index.add(*shard.load())
    return index


def open_searcher(
    index: Path | str | Catalog | Engine,
    model: Path | str | None = None,
    *,
    engine: Index | None = None,
    **limits: Any,
) -> Searcher:
    """An index, or anything for `open_index`, with the model that made its codes: by default the one it names."""
    catalog = index if isinstance(index, Catalog | Engine) else open_index(index, model)
    return Searcher(catalog, find_encoder(catalog, model), engine=engine, **limits)


def find_encoder(catalog: Catalog | Engine, model: Path | str | None = None) -> Encoder:
    """The model that made the codes of an index: the one that the index names, or the given one if it is the same."""
    if catalog.model is None:
        raise DataError(f"{catalog.path} does not say which model made its codes; build it from codes with that model")
    if model is None:
        found = ModelFolder.find(catalog.model, catalog.path)
    else:
        found = ModelFolder.resolve(model).used_by(catalog.model, catalog.path)
        ModelFolder.require_same(catalog.model, found.describe(), catalog.path)
    encoder = Encoder.load(found.path)
    if encoder.claimed:
        ModelFolder.require_same(catalog.model, encoder.model, catalog.path)
    return encoder


def search_folder(
    source: Path | str,
    model: Path | str | None = None,
    *,
    index: Path | str | None = None,
    progress: Progress | bool = False,
) -> Searcher:
    """A folder of images, or any other source, ready to search: its codes are brought up to date first.

    They are kept in the cache, or in the folder `index`; `model` is the general one by default.

    >>> hashlens.search_folder("photos").search("query.jpg", k=10)["hits"]
    """
    from hashlens.index.library import index_of

    return open_searcher(index_of(source, model, at=index, progress=progress), model)


def _hex(code: Codes) -> str:
    return code.packed[0].tobytes().hex()


def _ties(distances: np.ndarray, total: int | None) -> dict[str, int | None] | None:
    if not len(distances):
        return None
    last = int(distances[-1])
    return {"distance": last, "shown": int((distances == last).sum()), "total": total}
