"""Search: a picture, an id or a code in, the nearest pictures of an index out, as plain data, as text or as a page.

Pictures are read and encoded exactly as `hashlens encode` does it, so that a picture of the index finds itself at
0 bits. Equal distances are ordered by id, and an answer says how many pictures tie at its last distance.
"""

from __future__ import annotations

import copy
import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hashlens.codes import Codes
from hashlens.data.images import MAX_PIXELS
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.export import load_encoder
from hashlens.index import HammingIndex, require_k, require_radius
from hashlens.index.engines import Engine
from hashlens.index.folder import IndexFolder
from hashlens.index.histogram import count_distances
from hashlens.search.queries import QueryPicture, UnreadablePicture, code_function, is_there, parse_code
from hashlens.shards import model_fingerprint

__all__ = ["EmptyIndex", "NoSuchPicture", "Searcher", "UnreadablePicture", "open_searcher"]

K = 10  # results, where neither their number nor a radius is asked for


class NoSuchPicture(DataError):
    """The index has no picture of that id."""


class EmptyIndex(DataError):
    """There is nothing to search."""


@dataclass
class Query:
    """The code that is searched for, where it comes from, and how long it took, in seconds."""

    code: Codes
    facts: dict[str, Any] = field(default_factory=dict)
    decode: float = 0.0
    encode: float = 0.0


class Searcher:
    """An index and the model that made it, ready to answer.

    What other processes add to the index or remove from it counts from the next search on. With an `engine` that holds
    a copy of the codes (see index/engines.py), that one finds the nearest, and the index knows what they are.

    >>> searcher = open_searcher("index")
    >>> answer = searcher.search(Path("query.jpg"), k=10)
    >>> [(hit["distance"], hit["path"]) for hit in answer["hits"]]
    """

    def __init__(
        self, index: IndexFolder, encoder: Any = None, *, engine: Engine | None = None, max_pixels: int = MAX_PIXELS
    ):
        if encoder is not None and encoder.n_bits != index.n_bits:
            raise MismatchError(
                f"{index.path} holds codes of {index.n_bits} bits, this model makes {encoder.n_bits}; use the model"
                " that the index was made with"
            )
        self.index = index
        self.engine = engine
        self.max_pixels = max_pixels
        self._codes_of = None if encoder is None else code_function(encoder)

    @property
    def takes_pictures(self) -> bool:
        """Whether there is a model; without one only ids and codes can be searched for."""
        return self._codes_of is not None

    def now(self) -> Searcher:
        """This one with the index as it is on disk now, and as it stays for whoever holds the answer."""
        if self.index.changed():
            with suppress(DataError):  # in the middle of a change: the next one to ask tries again
                index = IndexFolder.open(self.index.path)
                if index.facts["model"]["fingerprint"] != self.index.facts["model"]["fingerprint"]:
                    raise MismatchError(f"{index.path} was made again with another model; open it again with that one")
                self.index = index
        return copy.copy(self)

    def search(
        self, query: Any, k: int | None = None, radius: int | None = None, label: str | None = None
    ) -> dict[str, Any]:
        """The nearest k pictures, 10 if k is not given; with a radius all within it; with both, the nearest k there.

        Parameters
        ----------
        query : a picture (Path, bytes or PIL), an id (int), a code (`Codes`), or text: a code in hex, or a path.
        label : search only among pictures that have it.

        Returns
        -------
        query, hits in the order of (distance, id), ties at the last distance, histogram (how many of the pictures that
        were searched are at each distance from 0 to n_bits), timing_ms and facts of the index. An engine tells of what
        it finds only: then the histogram and the total of the ties are None.
        """
        if k is not None:
            require_k(k)
        if radius is not None:
            require_radius(radius)
        return self.now()._search(query, k, radius, label)

    def _search(self, query: Any, k: int | None, radius: int | None, label: str | None) -> dict[str, Any]:
        if not len(self.index):
            raise EmptyIndex("the index has no pictures; add some with: hashlens index add INDEX CODES")
        asked = self.encode(query)
        start = time.perf_counter()
        among = None if label is None else self.index.ids_with(label)
        distances, ids = self._nearest(asked.code, k, radius, among)
        histogram = None if self.engine else count_distances(self.index.index, asked.code, among=among).tolist()
        found = time.perf_counter()
        hits = self._hits(distances, ids)
        seconds = (asked.decode, asked.encode, found - start, time.perf_counter() - found)
        return {
            "query": {"code": asked.code.packed[0].tobytes().hex(), **asked.facts},
            "hits": hits,
            "ties": _ties(distances, histogram),
            "histogram": histogram,
            "timing_ms": {
                name: round(1000 * value, 2)
                for name, value in zip(("decode", "encode", "search", "items"), seconds, strict=True)
            },
            "index": self.facts(),
        }

    def encode(self, query: Any) -> Query:
        """The code of a query."""
        if isinstance(query, Codes):
            return self._of_code(query)
        if isinstance(query, bool):
            raise UsageError(f"cannot search for {query}; give a picture, an id or a code")
        if isinstance(query, int | np.integer):
            return self._of_id(int(query))
        if isinstance(query, str):
            is_code = set(query.lower()) <= set("0123456789abcdef") and not is_there(query)
            return self._of_code(parse_code(query, self.index.n_bits)) if is_code else self._of_picture(Path(query))
        if isinstance(query, Path | bytes | Image.Image):
            return self._of_picture(query)
        raise UsageError(f"cannot search for {type(query).__name__}; give a picture, an id or a code")

    def warm_up(self) -> None:
        """Compile, map and load now what the first search would otherwise wait for."""
        if len(self.index):
            blank = Codes(np.zeros((1, -(-self.index.n_bits // 8)), np.uint8), self.index.n_bits)
            self.search(Image.new("RGB", (64, 64)) if self.takes_pictures else blank)
            small = HammingIndex(self.index.n_bits)  # what is compiled for it is compiled for all
            small.add(blank)
            small.within(blank, 0)
            small.search(blank, 1, among=[0])
            count_distances(small, blank, among=np.array([0]))

    def facts(self) -> dict[str, Any]:
        return {
            "n": len(self.index),
            "n_bits": self.index.n_bits,
            "exact": self.index.index.exact if self.engine is None else self.engine.exact,
            "model": self.index.facts["model"],
        }

    def labels(self, most: int = 1_000) -> list[str]:
        """The labels of the index, most frequent first; at most so many."""
        import pyarrow as pa

        chunks = []
        for number, part in enumerate(self.index.index.parts):
            column = self.index.items(number).column("labels")
            still = column.take(np.flatnonzero(part.alive)) if len(part.alive) else column
            chunks += [chunk.flatten() for chunk in still.chunks]
        counted = pa.chunked_array(chunks, pa.string()).value_counts()
        values, counts = counted.field("values"), counted.field("counts").to_numpy(zero_copy_only=False)
        return values.take(np.argsort(-counts, kind="stable")[:most]).to_pylist()

    def examples(self, n: int = 6) -> list[int]:
        """Ids spread over the index, to try a search with."""
        ids = []
        for part in self.index.index.parts:
            places = part.still(np.linspace(0, len(part) - 1, min(n, len(part))).astype(np.int64))
            ids += part.ids(places).tolist()
        return [ids[place] for place in np.unique(np.linspace(0, len(ids) - 1, n).astype(int))] if ids else []

    def item(self, id_: int) -> dict[str, Any]:
        """Path, labels and code of an id."""
        found, code = (self.index.item(id_), self.index.code(id_)) if abs(id_) < 2**63 else (None, None)
        if found is None or code is None:
            raise NoSuchPicture(f"the index has no picture {id_}; it was removed, or never there")
        return found | {"code": code.packed[0].tobytes().hex()}

    def _of_code(self, code: Codes) -> Query:
        if code.n_bits != self.index.n_bits or len(code) != 1:
            raise MismatchError(
                f"the index holds codes of {self.index.n_bits} bits; search for one such code at a time, not for"
                f" {len(code)} of {code.n_bits}"
            )
        return Query(code)

    def _of_id(self, id_: int) -> Query:
        item = self.item(id_)
        return Query(parse_code(item.pop("code"), self.index.n_bits), item)

    def _of_picture(self, picture: Path | bytes | Image.Image) -> Query:
        if self._codes_of is None:
            raise UsageError("no model is loaded, so pictures cannot be encoded; search by id or by code")
        image = QueryPicture(picture, self.max_pixels)
        start = time.perf_counter()
        code = self._codes_of(image)
        return Query(code, image.facts, image.seconds, time.perf_counter() - start - image.seconds)

    def _nearest(
        self, code: Codes, k: int | None, radius: int | None, among: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Distances and ids of the answer, without padding."""
        place: HammingIndex | Engine = self.index.index if self.engine is None else self.engine
        if radius is not None and k is None:
            distances, ids = place.within(code, radius, among=among)[0]
            there = self._there(ids)
            return distances[there], ids[there]
        most = min(k or K, len(self.index))
        asked = most
        while True:
            (distances,), (ids,) = place.search(code, asked, among=among)
            there = self._there(ids)
            if there.sum() >= most or ids[-1] < 0:
                break
            asked *= 2  # some of them were removed from the index since the engine got its copy
        distances, ids = distances[there][:most], ids[there][:most]
        near = distances <= (self.index.n_bits if radius is None else radius)
        return distances[near], ids[near]

    def _there(self, ids: np.ndarray) -> np.ndarray:
        """Which of the found ids are of pictures; an engine may hold what was removed from the index since."""
        if self.engine is None:
            return ids >= 0
        known = [part.ids(part.places(ids)) for part in self.index.index.parts]
        return np.isin(ids, np.concatenate([np.empty(0, np.int64), *known]))

    def _hits(self, distances: np.ndarray, ids: np.ndarray) -> list[dict[str, Any]]:
        """What each id stands for; all of a part at once, since a radius can find many."""
        items: dict[int, dict[str, Any]] = {}
        for number, part in enumerate(self.index.index.parts):
            places = part.places(ids)
            if not len(places):
                continue
            rows = self.index.items(number).take(places).to_pylist()
            packed = Codes.from_pieces(part.pieces[:, places].T, self.index.n_bits).packed
            for id_, row, code in zip(part.ids(places).tolist(), rows, packed, strict=True):
                items[id_] = {"path": row["path"], "labels": row["labels"], "code": code.tobytes().hex()}
        return [{"id": i, "distance": d, **items[i]} for d, i in zip(distances.tolist(), ids.tolist(), strict=True)]


def open_searcher(
    index: Path | str, model: Path | str | None = None, *, engine: Engine | None = None, **limits: Any
) -> Searcher:
    """The index in a folder with the model that made its codes; without `model`, the one that the index names."""
    folder = IndexFolder.open(Path(index))
    place = find_model(folder) if model is None else Path(model)
    require_model(folder, place)
    return Searcher(folder, load_encoder(place), engine=engine, **limits)


def find_model(index: IndexFolder) -> Path:
    """The folder of the model that the index names: NAME, or runs/NAME/model."""
    name = index.facts["model"]["name"]
    places = [Path(name), Path(name) / "model", Path("runs") / name / "model"]
    places += [index.path.parent / place for place in places]
    for place in places:
        if (place / "config.json").exists():
            return place
    raise UsageError(
        f"{index.path} was made with the model {name}, which is not here; say where it is with --model FOLDER"
    )


def require_model(index: IndexFolder, model: Path) -> None:
    """Refuse a model whose codes are not those of the index; an exported one passes for the model that it came from."""
    fingerprints = [model_fingerprint(model)]
    if (model / "model.onnx").exists():
        try:
            fingerprints.append(json.loads((model / "config.json").read_text(encoding="utf-8"))["model"]["fingerprint"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"the exported model in {model} is damaged ({error}); export it again") from error
    if index.facts["model"]["fingerprint"] not in fingerprints:
        index.require_model(fingerprints[-1])


def _ties(distances: np.ndarray, histogram: list[int] | None) -> dict[str, int | None] | None:
    if not len(distances):
        return None
    last = int(distances[-1])
    total = None if histogram is None else histogram[last]
    return {"distance": last, "shown": int((distances == last).sum()), "total": total}
