"""Search: a picture, an id or a code in, the nearest pictures of an index out, as plain data, as text or as a page.

Pictures are read and encoded exactly as `hashlens encode` does it, so that a picture of the index finds itself at
0 bits. Equal distances are ordered by id, and an answer says how many pictures tie at its last distance.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hashlens.codes import Codes
from hashlens.data.images import FORMATS, MAX_PIXELS, Images, decode, quiet_pillow, reason, rgb, upright
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.export import OnnxEncoder, load_encoder
from hashlens.index import HammingIndex, require_k, require_radius
from hashlens.index.engines import Engine
from hashlens.index.folder import IndexFolder
from hashlens.index.histogram import count_distances
from hashlens.index.plan import readable
from hashlens.shards import model_fingerprint
from hashlens.thumbnails import Pictures

K = 10  # results, where neither their number nor a radius is asked for
THUMBNAIL = 192  # pixels, twice what pages show
READABLE = "JPEG, PNG, WebP, BMP, GIF or TIFF"


class UnreadablePicture(DataError):
    """What was given as a picture is none, or is damaged or too large."""


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

    With an `engine` that holds a copy of the codes (see index/engines.py), that one finds the nearest, and the index
    knows what they are. It tells of what it finds only: then `histogram` and `ties` are of the hits alone.

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
        self._codes_of = None if encoder is None else _prepare(encoder)

    @property
    def takes_pictures(self) -> bool:
        """Whether there is a model; without one only ids and codes can be searched for."""
        return self._codes_of is not None

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
        were searched are at each distance from 0 to n_bits), timing_ms and facts of the index.
        """
        if k is not None:
            require_k(k)
        if radius is not None:
            require_radius(radius)
        if not len(self.index):
            raise EmptyIndex("the index has no pictures; add some with: hashlens index add INDEX CODES")
        asked = self.encode(query)
        start = time.perf_counter()
        among = None if label is None else self._ids_with(label)
        distances, ids = self._nearest(asked.code, k, radius, among)
        if self.engine is None:
            histogram = count_distances(self.index.index, asked.code, among=among)
        else:
            histogram = np.bincount(distances, minlength=self.index.n_bits + 1)
        found = time.perf_counter()
        hits = self._hits(distances, ids)
        seconds = (asked.decode, asked.encode, found - start, time.perf_counter() - found)
        return {
            "query": {"code": asked.code.packed[0].tobytes().hex(), **asked.facts},
            "hits": hits,
            "ties": _ties(distances, histogram),
            "histogram": histogram.tolist(),
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
            is_code = set(query.lower()) <= set("0123456789abcdef") and not Path(query).exists()
            return self._of_code(parse_code(query, self.index.n_bits)) if is_code else self._of_picture(Path(query))
        if isinstance(query, Path | bytes | Image.Image):
            return self._of_picture(query)
        raise UsageError(f"cannot search for {type(query).__name__}; give a picture, an id or a code")

    def warm_up(self) -> None:
        """Compile, map and load now what the first search would otherwise wait for."""
        if len(self.index):
            blank = Codes(np.zeros((1, -(-self.index.n_bits // 8)), np.uint8), self.index.n_bits)
            self.search(Image.new("RGB", (64, 64)) if self.takes_pictures else blank)

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

        columns = [self.index.items(number).column("labels") for number in range(len(self.index.index.parts))]
        chunks = [chunk.flatten() for column in columns for chunk in column.chunks]
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
        image = _QueryPicture(picture, self.max_pixels)
        start = time.perf_counter()
        code = self._codes_of(image)
        return Query(code, image.facts, image.seconds, time.perf_counter() - start - image.seconds)

    def _ids_with(self, label: str) -> np.ndarray:
        try:
            label.encode()
        except UnicodeEncodeError as error:  # half of a pair, as JSON can spell it
            raise UsageError("the label is not text; give one of those that the index has") from error
        return self.index.ids_with(label)

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


def parse_code(text: str, n_bits: int) -> Codes:
    """
    >>> parse_code("9f3c 21a0 77e4", 48).packed.tolist()
    [[159, 60, 33, 160, 119, 228]]
    """
    n_digits = 2 * -(-n_bits // 8)
    try:
        packed = bytes.fromhex(text)
    except ValueError as error:
        raise UsageError(f"a code is written in {n_digits} hex digits, such as {'9f3c21a0' * 8:.{n_digits}}") from error
    if len(packed) * 2 != n_digits:
        raise UsageError(
            f"the index holds codes of {n_bits} bits: {n_digits} hex digits are needed, {2 * len(packed)} are given"
        )
    if n_bits % 8 and packed[-1] & (0xFF >> (n_bits % 8)):
        raise UsageError(f"the index holds codes of {n_bits} bits; bits beyond those must be 0")
    return Codes(np.frombuffer(packed, np.uint8)[None], n_bits)


class _QueryPicture(Images):
    """One picture, read when the model asks for it and as large as it asks for, as pictures of an index are."""

    names = ("query",)

    def __init__(self, source: Path | bytes | Image.Image, max_pixels: int):
        self.seconds = 0.0
        self.facts: dict[str, Any] = {"path": source.as_posix()} if isinstance(source, Path) else {}
        self._source, self._max_pixels = source, max_pixels

    def picture(self, row: int, at_least: int | None = None) -> Image.Image:
        start = time.perf_counter()
        file = io.BytesIO(self._source) if isinstance(self._source, bytes) else self._source
        try:
            if isinstance(file, Image.Image):
                image, size = rgb(upright(file)), file.size
            else:
                _require_pixels(file, self._max_pixels)
                image, size = decode(file, at_least)
        except UnreadablePicture:
            raise
        except Exception as error:  # a damaged file makes Pillow raise nearly anything
            raise UnreadablePicture(_why(file, error)) from error
        self.facts |= {"width": size[0], "height": size[1]}
        self.seconds += time.perf_counter() - start
        return image

    def __getitem__(self, rows: Any) -> Images:
        return self

    def fingerprint(self) -> str:
        raise NotImplementedError("this is read once: nothing computed from it is to be kept")


def _require_pixels(file: Path | io.BytesIO, most: int) -> None:
    """Only the first bytes are read for this: a small file can claim to be a picture that fills the memory."""
    with Image.open(file, formats=FORMATS) as image:
        width, height = image.size
    if width * height > most:
        raise UnreadablePicture(
            f"the picture has {width:,} x {height:,} pixels, the limit is {most / 1e6:.0f} million; make it smaller"
        )
    if isinstance(file, io.BytesIO):
        file.seek(0)


def _why(file: Path | io.BytesIO | Image.Image, error: Exception) -> str:
    if isinstance(file, Image.Image):
        return f"the picture is damaged ({error}); open it again"
    name = "this" if isinstance(file, io.BytesIO) else f"'{file}'"
    try:
        why = reason(file, error)
        n_bytes = len(file.getbuffer()) if isinstance(file, io.BytesIO) else file.stat().st_size
    except OSError:
        return f"there is no picture {name}; check the path"
    if why == "truncated":
        return f"{name} is cut off after {readable(n_bytes)}; save or send it again"
    return f"{name} is not a picture that can be read ({why}); give a {READABLE}"


def _prepare(encoder: Any) -> Callable[[Images], Codes]:
    """What makes the code of one picture: the network is made ready here, once, and not again for each picture."""
    from hashlens.encoding import encode_function
    from hashlens.export import network_of

    if isinstance(encoder, OnnxEncoder):
        return encoder.encode
    try:
        network, size, on_features = network_of(encoder, None)
    except (UsageError, AttributeError):  # nothing that runs alone; it has its own way
        return encode_function(encoder)
    from hashlens.hashers.base import Hasher
    from hashlens.networks.inference import choose_device, choose_precision, forward_function, prepare_cpu

    prepare_cpu()
    wanted = (choose_device(), "auto", False)
    if not on_features:
        wanted = (choose_device(encoder.training.device), encoder.training.precision, encoder.training.mirror)
    device, precision, mirror = wanted
    example = np.zeros((1, size, size, 3), np.uint8)
    forward = forward_function(network, example, device, choose_precision(precision, device))

    def codes_of(images: Images) -> Codes:
        picture = images.read([0], size)
        outputs = forward(picture)
        if mirror:
            outputs = (outputs + forward(np.ascontiguousarray(picture[:, :, ::-1]))) / 2
        if on_features:
            outputs = Hasher.project(encoder, outputs.astype(np.float16).astype(np.float32))
        return Codes.from_relaxed(outputs)

    return codes_of


def _ties(distances: np.ndarray, histogram: np.ndarray) -> dict[str, int] | None:
    if not len(distances):
        return None
    last = int(distances[-1])
    return {"distance": last, "shown": int((distances == last).sum()), "total": int(histogram[last])}


def queries(source: str) -> Iterator[tuple[str, Any]]:
    """What the command line is given, by name: a picture, a code, each picture of a folder, or - for standard input."""
    if source == "-":
        import sys

        yield "standard input", sys.stdin.buffer.read()
    elif Path(source).is_dir():
        from hashlens.data.folder import find_pictures

        for name in find_pictures(Path(source)):
            yield (Path(source) / name).as_posix(), Path(source) / name
    else:
        yield source, source


def describe_answer(name: str, answer: dict[str, Any]) -> str:
    """The answer as text, a line for each picture found."""
    index, hits, ties = answer["index"], answer["hits"], answer["ties"]
    times = "  ".join(f"{key} {value:.1f} ms" for key, value in answer["timing_ms"].items() if key != "items")
    exact = "exact" if index["exact"] else "approximate"
    code = f"{index['n_bits']} bits {grouped(answer['query']['code'])}"
    lines = [f"{name} · {code} · {times} · {index['n']:,} pictures, {exact}"]
    if not hits:
        return "\n".join([*lines, _nothing(answer)])
    labels = [", ".join(hit["labels"] or []) for hit in hits]
    width = max(len("label"), *map(len, labels)) if any(labels) else 0
    lines.append(" rank  bits apart  " + (f"{'label':<{width}}  " if width else "") + "path")
    for rank, (hit, label) in enumerate(zip(hits, labels, strict=True), 1):
        lines.append(f"{rank:>5}  {hit['distance']:>10}  " + (f"{label:<{width}}  " if width else "") + hit["path"])
    if ties["total"] > ties["shown"]:
        d = ties["distance"]
        lines[-1] += f"        {ties['total'] - ties['shown']:,} more at distance {d} (show: --radius {d})"
    return "\n".join(lines)


def _nothing(answer: dict[str, Any]) -> str:
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


def write_page(path: Path, answers: Sequence[tuple[str, Any, dict[str, Any]]], pictures: Pictures) -> None:
    """Write answers, each with its name and what was searched for, as one HTML file that needs no network."""
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


def _small(query: Any) -> Image.Image | None:
    if isinstance(query, str) and not Path(query).is_file():
        return None
    with quiet_pillow():
        image = decode(io.BytesIO(query) if isinstance(query, bytes) else Path(query), THUMBNAIL)[0]
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.BICUBIC)
    return image
