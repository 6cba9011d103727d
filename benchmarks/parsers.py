"""Change files at random and read them: any file from outside must give a value or a one-sentence error.

    python -m benchmarks.parsers [NAME ...] [--seconds 600] [--turn 60] [--jobs 2] [--record FILE]

Hypothesis changes a valid file: bits, bytes, pieces moved or left out, odd words, any JSON anywhere in JSON. Checksums
are updated to match, as an attacker would do. Each parser runs in a separate process, so that a crash is noticed. A
file that causes anything but a value or a one-sentence error is kept in tests/found/NAME, and tests/test_fuzz.py reads
all of these.

The record (benchmarks/results/fuzz.json) says for each parser how many changed files were read, in how many seconds of
CPU time, with how many seeds, counted from 0, and what was found. A run continues where the record ends, so that no
seed is tried twice: the parsers with the least seconds get the next turn, until each has had --seconds. It can be
stopped and restarted at any time; only interrupted turns are lost.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import random
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from hashlens.checksums import describe_file, write_sealed
from hashlens.codes import Codes
from hashlens.errors import HashlensError
from hashlens.files import write_text

ROOT = Path(__file__).parent
FOUND = ROOT.parent / "tests" / "found"
FILE = ROOT / "results" / "fuzz.json"
MODEL = {"fingerprint": "ab" * 32, "name": "test"}
N_BITS, SECOND_BITS, N = 12, 20, 8
LAST = "last-tried"
STEP = 100  # files per seed
PATIENCE = 300  # CPU seconds beyond the plan, after which a turn counts as hanging
WORDS = [
    *(b"\0", b"\n", b"\r", b'"', b"'", b",", b";", b"\t", b"|", b" ", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(b"NaN", b"-1", b"1e999", b"9" * 30, b"null", b"{}", b"[]", b"[" * 5_000, b"../../x", b"C:\\", b"\xff" * 8),
    *(b"\x80" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"x" * 140_000, b"\xf0\x9f\x90\x88", b"\x1b[31m"),
]
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)


@dataclass(frozen=True)
class Parser:
    make: Callable[[Path], Any]  # makes valid files
    names: tuple[str, ...]  # patterns of the files to change
    read: Callable[[Path], Any]  # reads everything in the files of the folder
    agree: Callable[[Path, str], Any] = lambda folder, name: None  # updates checksums after a change


def places_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*at, key)
        yield from places_in(one, (*at, key))


@st.composite
def changed(draw: Any, content: bytes) -> bytes:
    """The content of a file with a random change."""
    if content[:1] in b"{[" and draw(st.integers(0, 3)):
        with suppress(ValueError):
            value = json.loads(content)
            if places := list(places_in(value)):
                *at, last = draw(st.sampled_from(places))
                inner = value
                for key in at:
                    inner = inner[key]
                inner[last] = draw(JUNK)
                return json.dumps(value).encode()
    return mutated(content, random.Random(draw(st.integers(0, 2**62))))  # drawing each byte would take far longer


def mutated(content: bytes, rng: random.Random) -> bytes:
    found = bytearray(content)
    for _ in range(rng.randint(1, 5)):
        place, n = rng.randint(0, len(found)), rng.choice((1, 2, 4, 8, 64))
        kind = rng.choice(("flip", "set", "insert", "delete", "copy", "cut", "word", "word"))
        if kind == "flip" and place < len(found):
            found[place] ^= 1 << rng.randrange(8)
        elif kind == "set":
            found[place : place + n] = rng.randbytes(n)
        elif kind == "insert":
            found[place:place] = rng.randbytes(n)
        elif kind == "delete":
            del found[place : place + n]
        elif kind == "copy":
            start = rng.randint(0, len(found))
            found[place:place] = found[start : start + n]
        elif kind == "cut":
            del found[place:]
        elif kind == "word":
            word = rng.choice(WORDS)
            found[place : place + rng.choice((0, len(word)))] = word
    return bytes(found)


def attempt(parser: Parser, folder: Path, name: str, content: bytes) -> str | None:
    """Read the file with that content; returns the traceback of an unexpected error, if any."""
    (folder / name).write_bytes(content)
    try:
        with suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError, OSError):  # it cannot agree
            parser.agree(folder, name)
        parser.read(folder)
    except HashlensError as error:
        if "\n" in error.message or "\r" in error.message:
            return f"a sentence of several lines: {error.message!r}"
    except Exception:
        return traceback.format_exc()
    return None


def prepare(parser: Parser, folder: Path) -> dict[str, bytes]:
    """The files to change and their contents, after reading them unchanged."""
    parser.make(folder)
    os.environ["HASHLENS_CACHE"] = str(folder / "cache")
    parser.read(folder)
    names = [path for pattern in parser.names for path in sorted(folder.glob(pattern))]
    assert names, parser.names
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in names}


def fuzz(
    name: str, folder: Path, n: int, first: int, seconds: float = float("inf"), told: Callable[..., Any] | None = None
) -> tuple[int, list[str]]:
    """Try n changed files, or as many as the time allows, from this seed on; returns their number and the failures.

    Files of failures are kept, but only the first for each line of code. `told` is called for each seed.
    """
    parser, failures, n_done = PARSERS[name], [], 0
    places: list[list[str]] = []
    contents = prepare(parser, folder)
    everything = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    start, last = time.process_time(), folder.parent / LAST
    while n_done < n and (n_done == 0 or time.process_time() < start + seconds):

        @seed(first + n_done // STEP)
        @settings(
            max_examples=min(STEP, n - n_done), database=None, deadline=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(data=st.data())
        def run(data: Any) -> None:
            file = data.draw(st.sampled_from(sorted(contents)))
            content = data.draw(changed(contents[file]))
            last.write_bytes(json.dumps(file).encode() + b"\n" + content)  # in case reading it ends this process
            found = attempt(parser, folder, file, content)
            if found is not None and (place := found.split("\n")[-4:-2]) not in places:
                places.append(place)
                failures.append(f"{keep(name, file, content)}: {found}")
            for path, before in everything.items():
                if not path.exists() or path.stat().st_size != len(before) or path.read_bytes() != before:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(before)

        run()
        n_done += min(STEP, n - n_done)
        if told:
            told(
                examples=n_done, seeds=-(-n_done // STEP), failures=failures,
                seconds=round(time.process_time() - start, 1),
            )  # fmt: skip
    return n_done, failures


def keep(name: str, file: str, content: bytes) -> Path:
    """Save a file as NAME/digest-FILE, where tests find it."""
    path = FOUND / name / f"{hashlib.sha256(content).hexdigest()[:12]}-{file.replace('/', '~')}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# contents of files


def images(folder: Path, n: int = 4) -> list[str]:
    """Write small images; returns their names."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for i in range(n):
        Image.new("RGB", (8, 8), (i, 9, 200)).save(folder / "images" / f"{i}.png")
    return [f"images/{i}.png" for i in range(n)]


def table(folder: Path, name: str) -> None:
    paths, labels = images(folder), ["cat", "dog|tree", "cat;dog", ""]
    rows = {"path": paths, "labels": labels, "split": ["train", "query", "database", "val"]}
    if name.endswith("parquet"):
        pq.write_table(pa.table(rows), folder / name)
        return
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t" if name.endswith("tsv") else ",")
    writer.writerow(rows)
    writer.writerows(zip(*rows.values(), strict=True))
    (folder / name).write_text(text.getvalue())


def open_it(folder: Path, name: str) -> None:
    """Open a source as encode and train do."""
    from hashlens.data.sources import open_source

    here = Path.cwd()
    os.chdir(folder)
    try:
        if not name.endswith(".npy"):  # .npy is for train only
            open_source(name, labels="optional")
        source = open_source(name, labels="required")
        _ = source.labels.values, source.table.to_pylist()
    finally:
        os.chdir(here)


def source(name: str, make: Callable[[Path], Any], *others: str) -> Parser:
    return Parser(make, (name, *others), lambda folder: open_it(folder, name))


def make_tar(folder: Path) -> None:
    with tarfile.open(folder / "images.tar", "w") as archive:
        for name in images(folder):
            archive.add(folder / name, f"{'cat' if '1' in name else 'dog'}/{Path(name).name}")


def make_features(folder: Path) -> None:
    paths = images(folder)
    np.save(folder / "features.npy", np.zeros((4, 3), np.float32))
    labels = pa.array([["cat"], ["dog"], ["cat"], ["dog"]], pa.list_(pa.string()))
    pq.write_table(pa.table({"path": paths, "labels": labels}), folder / "features.parquet")


def make_index(folder: Path) -> None:
    from hashlens.index.folder import IndexFolder

    rng = np.random.default_rng(0)
    index = IndexFolder.create(folder / "index", N_BITS, MODEL, radius_tables=True, second_bits=SECOND_BITS)
    labels = pa.array([["cat", "dog", "tree"][: i % 4] or None for i in range(N)], pa.list_(pa.string()))
    items = pa.table({"path": [f"/photos/{i}.jpg" for i in range(N)], "labels": labels})
    first, second = (Codes.from_relaxed(rng.normal(size=(N, n_bits))) for n_bits in (N_BITS, SECOND_BITS))
    codes = Codes(first.packed, N_BITS, second)
    index.add(codes[: N // 2], items[: N // 2])
    index.remove([1])
    index.compact()
    index.add(codes[N // 2 :], items[N // 2 :], only_new=True)  # only_new writes keys
    index.remove([2])


def read_index(folder: Path) -> None:
    from hashlens.search import Searcher, open_index

    searcher = Searcher(open_index(folder))
    for id_ in searcher.index.examples(3):
        searcher.search(id_, k=N, histogram=True)
        searcher.search(id_, radius=2)
        if searcher.index.second_bits:
            searcher.search(id_, k=N, by="both")
    for label in searcher.index.labels(3):
        searcher.search(searcher.index.examples(1)[0], label=label)
    _ = searcher.index.roots


def read_and_add(folder: Path) -> None:
    """Search, and check whether an image is known."""
    from hashlens.index.folder import IndexFolder

    read_index(folder)
    index = IndexFolder.open(folder)
    known = Codes(np.zeros((1, 2), np.uint8), N_BITS, Codes(np.zeros((1, 3), np.uint8), SECOND_BITS))
    index.add(known, pa.table({"path": ["/photos/3.jpg"]}), only_new=True)


def agree_index(folder: Path, name: str) -> None:
    """Update the manifest with the checksums of the current files."""
    place = folder / "index"
    facts = json.loads((place / "index.json").read_bytes())
    facts.pop("checksum", None)
    for part in facts["parts"]:
        for whole, sums in (("items.arrow", "items.sums"), ("keys.npy", "keys.sums")):
            if whole in name and part["name"] in name and sums in part["files"]:
                from hashlens.index.items import write_sums

                write_sums(place / f"{part['name']}.{sums}", place / f"{part['name']}.{whole}")
                part["files"][sums] = describe_file(place / f"{part['name']}.{sums}")
        for kind in part["files"]:
            if f"{part['name']}.{kind}" in name:
                part["files"][kind] = describe_file(place / f"{part['name']}.{kind}")
    for kind in ("removed", "forgotten"):
        if facts[kind] and facts[kind]["name"] in name:
            facts[kind] |= describe_file(place / facts[kind]["name"])
    write_sealed(place / "index.json", facts)


def make_codes(folder: Path) -> None:
    from hashlens.codes.folder import write_codes

    items = pa.table({"path": [f"/photos/{i}.jpg" for i in range(N)]})
    write_codes(folder / "codes", Codes(np.zeros((N, 2), np.uint8), N_BITS), items, MODEL)


def read_codes(folder: Path) -> None:
    from hashlens.codes.folder import CodesFolder

    read_index(folder / "codes")
    codes = CodesFolder.open(folder / "codes")
    codes.listed()
    codes.skipped()


def agree_codes(folder: Path, name: str) -> None:
    place = folder / "codes"
    facts = json.loads((place / "manifest.json").read_bytes())
    facts.pop("checksum", None)
    for shard in facts["shards"]:
        for kind in ("codes.npy", "items.parquet"):
            content = (place / f"shard-{shard['start']:09d}.{kind}").read_bytes()
            shard[f"{kind.split('.')[0]}_sha256"] = hashlib.sha256(content).hexdigest()
    if name.endswith("list.parquet"):
        facts["list"]["files"] = [hashlib.sha256((folder / name).read_bytes()).hexdigest()]
    write_sealed(place / "manifest.json", facts)


def model(kind: str) -> Parser:
    """A model of a family, with checksums of weights and config.json that match."""

    def make(folder: Path) -> None:
        from hashlens import DTSH, Training
        from hashlens.codes.export import export_onnx
        from hashlens.data.images import as_images
        from hashlens.hashers.methods import make_hasher
        from hashlens.progress import Progress

        rng = np.random.default_rng(0)
        X, y, pixels = rng.normal(size=(60, 16)), np.arange(60) % 3, rng.integers(0, 256, (60, 24, 24, 3), np.uint8)
        training = Training(epochs=1, batch_size=30, device="cpu")
        if kind == "onnx":
            deep = DTSH(8, backbone="small-cnn", image_size=16, training=training).fit(pixels, y)
            deep.save(folder / "trained")
            export_onnx(folder / "trained", folder / "model", as_images(pixels), Progress(quiet=True))
        elif kind == "dtsh":
            DTSH(8, training=training).fit(X, y).save(folder / "model")
        else:
            options = {"n_trees": 3} if kind == "fasth" else {}
            make_hasher(kind, n_bits=8, **options).fit(X, y).save(folder / "model")

    def read(folder: Path) -> None:
        from hashlens.codes.encoder import Encoder

        encoder = Encoder.load(folder / "model")
        given = np.zeros((2, 16)) if encoder.extractor is None else [np.full((24, 24, 3), 7, np.uint8)]
        encoder.codes(given)

    def agree(folder: Path, name: str) -> None:
        from hashlens.codes.model import ModelFolder

        place = folder / "model"
        config = json.loads((place / "config.json").read_bytes())
        config.pop("checksum", None)
        if "sha256" in config and name.endswith("onnx"):
            config["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if "files" in config and not name.endswith("config.json"):
            ModelFolder(place).write_config(config, list(config["files"]))
        else:
            write_sealed(place / "config.json", config)

    return Parser(make, ("model/*",), read, agree)


def make_nuswide(folder: Path) -> None:
    from hashlens.data.kinds.nuswide import LISTS, TRUTH
    from hashlens.data.protocols import NUSWIDE_CONCEPTS

    (folder / TRUTH).mkdir(parents=True)
    (folder / "ImageList").mkdir()
    for number, concept in enumerate(NUSWIDE_CONCEPTS):
        bits = "".join(f"{(i + number) % 2}\n" for i in range(4))
        (folder / TRUTH / f"Labels_{concept}.txt").write_text(bits)
    (folder / "ImageList" / LISTS[0]).write_text("".join(f"{name}\n" for name in images(folder)))


def read_nuswide(folder: Path) -> None:
    from hashlens.data.kinds.nuswide import read_ground_truth

    read_ground_truth(folder)


def make_mirflickr(folder: Path) -> None:
    from hashlens.data.kinds.mirflickr import ANNOTATIONS, MIRFLICKR_LABELS

    (folder / "flickr" / ANNOTATIONS[0]).mkdir(parents=True)
    for i in range(1, 5):
        Image.new("RGB", (8, 8)).save(folder / "flickr" / f"im{i}.jpg")
    for number, label in enumerate(MIRFLICKR_LABELS):
        text = "".join(f"{i}\r\n" for i in range(1, 5) if (i + number) % 2)
        (folder / "flickr" / ANNOTATIONS[0] / f"{label}.txt").write_text(text)


def written(name: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(text)


def read_triplets(folder: Path) -> None:
    from hashlens.data.images import ArrayImages
    from hashlens.data.triplets import read_triplets as read

    read(folder / "triplets.csv", ArrayImages(np.zeros((9, 4, 4, 3), np.uint8)))


def read_clicks(folder: Path) -> None:
    from hashlens.clicks.file import append_clicks
    from hashlens.clicks.file import read_clicks as read

    read(folder)
    append_clicks(folder, [("a.jpg", "b.jpg", "c.jpg")])


def make_tokens(folder: Path) -> None:
    (folder / "tokens").write_text(f"# ours\n{'r' * 20} read 2999-12-31\n{'w' * 20} write\n")
    (folder / "tokens").chmod(0o600)


def read_tokens(folder: Path) -> None:
    from hashlens.server.access import Access
    from hashlens.server.access import read_tokens as read

    Access(tokens=tuple(read(folder / "tokens")))


def make_moved(folder: Path) -> None:
    from hashlens.duplicates import move

    entry = {"from": str(folder / "a.jpg"), "to": str(folder / "b.jpg"), "sha256": "ab" * 32}
    listed = {"format": move.FORMAT, "source": str(folder), "moved": [entry]}
    (folder / "moved.json").write_text(json.dumps(listed))


def read_moved(folder: Path) -> None:
    from hashlens.duplicates.move import read_list

    read_list(folder / "moved.json")


def read_ignored(folder: Path) -> None:
    from hashlens.duplicates.find import _ignored_groups, _seen

    _ignored_groups()
    _seen()


def make_ignored(folder: Path) -> None:
    from hashlens.duplicates.find import IGNORED, SEEN

    state = folder / "cache" / "state" / IGNORED
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps([{"name": "cat-1", "sha256": ["ab" * 32]}]))
    (folder / "cache" / SEEN).write_text(json.dumps({"cat-1": ["ab" * 32]}))


def make_split(folder: Path) -> None:
    from hashlens.data.protocols import Protocol

    rows = [np.arange(i, i + 3) for i in (0, 3, 6)]
    Protocol("made", *rows, seed=0, description="for tests").save(folder / "split.json")


def read_split(folder: Path) -> None:
    from hashlens.data.protocols import Protocol

    Protocol.load(folder / "split.json")


def agree_split(folder: Path, name: str) -> None:
    from hashlens.data.protocols import ROLES, Protocol

    saved = json.loads((folder / name).read_bytes())
    rows = Protocol(**{key: saved[key] for key in ("name", "topk", "seed", "description", *ROLES)})
    (folder / name).write_text(json.dumps(saved | {"sha256": rows.fingerprint()}))


def make_run(folder: Path) -> None:
    config = {"source": "digits", "protocol": "default", "seed": 0, "method": "itq", "params": {"n_bits": 12}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "result.json").write_text(json.dumps({"map": 0.5, "source": "digits", "method": "itq", "n_bits": 12}))
    make_split(folder)


def read_run(folder: Path) -> None:
    from hashlens.results.runs import evaluate_run

    try:
        evaluate_run(folder)
    except HashlensError as error:  # no codes
        if "codes" not in error.message:
            raise


def make_tries(folder: Path) -> None:
    search = {"rho": [1e-4, 10.0]}
    asked = {"method": "ccaitq", "settings": {}, "search": search, "folds": 3, "seed": 0, "images": "0" * 64}
    first = {"number": 0, "settings": {"rho": 0.1}, "state": "complete", "score": 0.5, "folds": [0.5, 0.5, 0.5]}
    first |= {"steps": {"3": 0.5, "9": 0.5}, "rungs": {"completed_rung_0": 0.5}, "seconds": 1.5}
    (folder / "tuning.json").write_text(json.dumps({"asked": asked, "seconds": 1.5}))
    (folder / "tries.jsonl").write_text(json.dumps(first) + "\n")


def read_tries(folder: Path) -> None:
    from hashlens import CCAITQ
    from hashlens.results.tune import _Record

    _Record(folder, {"method": "ccaitq"}, CCAITQ)


def compare_again(folder: Path) -> None:
    """Compare again: existing cells are read, damaged ones computed again."""
    from hashlens.results.compare import compare

    X, y = np.random.default_rng(0).normal(size=(60, 8)), np.arange(60) % 3
    compare((X, y), ["lsh"], [8], out=folder / "out", report=False, progress=False)


def make_section(folder: Path) -> None:
    from hashlens.results.paper.outcomes import Outcome
    from hashlens.results.paper.page import Section, save_section

    save_section(Section("map", "MAP", "small", [Outcome("it holds", True, "0.5")], {"a": "| |"}), folder)


def read_section(folder: Path) -> None:
    from hashlens.results.paper.page import load_section

    load_section("map", folder)


def make_skipped(folder: Path) -> None:
    (folder / "skipped.csv").write_text("path,reason,size,mtime\na.jpg,damaged,5,7\n")


def read_skipped(folder: Path) -> None:
    from hashlens.index.library import _skipped

    _skipped(folder)


def make_lists(folder: Path) -> None:
    from hashlens.index.engines.faiss import ApproximateIndex

    lists = ApproximateIndex(N_BITS, folder / "lists")
    lists.add(Codes.from_relaxed(np.random.default_rng(0).normal(size=(200, N_BITS))))
    lists.flush()


def read_lists(folder: Path) -> None:
    from hashlens.index.engines.faiss import ApproximateIndex

    ApproximateIndex(N_BITS, folder / "lists").search(Codes(np.zeros((1, 2), np.uint8), N_BITS), 5)


def make_checkpoint(folder: Path) -> None:
    """Train one step, then stop; resumes from a checkpoint if there is one."""
    from hashlens import DPSH, Training
    from hashlens.errors import Stopped

    rng = np.random.default_rng(1)
    hasher = DPSH(8, training=Training(epochs=4, batch_size=10, device="cpu"))
    with suppress(Stopped):
        hasher.fit(rng.normal(size=(30, 16)), np.arange(30) % 3, run=folder / "run", stop=lambda: True)


def read_code(folder: Path) -> None:
    from hashlens.search.queries import is_code, parse_code

    text = (folder / "code").read_bytes().decode("utf-8", "surrogateescape")
    is_code(text)
    parse_code(text, N_BITS)
    parse_code(text, N_BITS, 20)


def make_pictures(folder: Path) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8))
    for kind in ("jpeg", "png", "webp", "gif", "tiff", "bmp"):
        image.save(folder / f"a.{kind}")
    image.save(folder / "progressive.jpeg", progressive=True, exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0")


def read_pictures(folder: Path) -> None:
    """Decode images like the server, which has a sentence for each image that cannot be decoded."""
    from hashlens.search.queries import QueryImage

    for path in sorted(folder.iterdir()):
        if path.is_file():
            with suppress(HashlensError):
                QueryImage(path.read_bytes(), 10_000).image(0, 16)


def read_mirflickr(folder: Path) -> None:
    open_it(folder, "flickr")


PARSERS: dict[str, Parser] = {
    "csv": source("a.csv", lambda folder: table(folder, "a.csv")),
    "tsv": source("a.tsv", lambda folder: table(folder, "a.tsv")),
    "parquet": source("a.parquet", lambda folder: table(folder, "a.parquet")),
    "features": source("features.npy", make_features, "features.parquet"),
    "list": Parser(
        lambda folder: (folder / "a.txt").write_text("\n".join(images(folder))), ("a.txt",),
        lambda folder: open_list(folder),
    ),
    "tar": source("images.tar", make_tar),
    "nuswide": Parser(make_nuswide, ("*/*.txt", "*/*/*.txt"), read_nuswide),
    "mirflickr": Parser(make_mirflickr, ("flickr/*/*.txt",), read_mirflickr),
    "images": Parser(make_pictures, ("*.*",), read_pictures),
    "triplets": Parser(written("triplets.csv", "query,positive,negative\n0,1,2\n3,4,5\n"), ("*.csv",), read_triplets),
    "clicks": Parser(written("clicks.csv", 'query,positive,negative\na,b,c\n"d,e",f,g\n'), ("*.csv",), read_clicks),
    "tokens": Parser(make_tokens, ("tokens",), read_tokens),
    "moved": Parser(make_moved, ("moved.json",), read_moved),
    "ignored": Parser(make_ignored, ("cache/**/*.json",), read_ignored),
    "split": Parser(make_split, ("split.json",), read_split, agree_split),
    "run": Parser(make_run, ("config.json", "result.json"), read_run),
    "tries": Parser(make_tries, ("tuning.json", "tries.jsonl"), read_tries),
    "cells": Parser(compare_again, ("out/cells/*",), compare_again),
    "section": Parser(make_section, ("sections/*.json",), read_section),
    "skipped": Parser(make_skipped, ("skipped.csv",), read_skipped),
    "code": Parser(written("code", "9f30"), ("code",), read_code),
    "index": Parser(make_index, ("index/*.json",), lambda folder: read_index(folder / "index"), agree_index),
    "items": Parser(
        make_index, ("index/*.arrow", "index/*.sums"), lambda folder: read_index(folder / "index"),
        agree_index,
    ),
    "parts": Parser(make_index, ("index/*.npy",), lambda folder: read_and_add(folder / "index"), agree_index),
    "codes": Parser(make_codes, ("codes/*.json", "codes/*.npy", "codes/*.parquet"), read_codes, agree_codes),
    "lists": Parser(make_lists, ("lists/lists.json",), read_lists),
    "model itq": model("itq"),
    "model ksh": model("ksh"),
    "model fasth": model("fasth"),
    "model dtsh": model("dtsh"),
    "model onnx": model("onnx"),
    "checkpoint": Parser(make_checkpoint, ("run/checkpoint.safetensors",), make_checkpoint),
}  # fmt: skip


def open_list(folder: Path) -> None:
    from hashlens.data.sources import open_source

    here = Path.cwd()
    os.chdir(folder)
    try:
        _ = open_source("a.txt", labels="optional").table.to_pylist()
    finally:
        os.chdir(here)


def turn(name: str, seconds: float, first: int) -> dict[str, Any]:
    """Fuzz one parser from a seed on, in a separate process; a crash or a hang is a failure of the current seed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "files"
        folder.mkdir()
        command = [sys.executable, "-m", "benchmarks.parsers", name, "--here", str(folder)]
        command += ["--seconds", str(seconds), "--first", str(first)]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            how = f"exit code {subprocess.run(command, stdout=out, stderr=errors).returncode}"
            out.seek(0), errors.seek(0)
            lines, why = out.read().splitlines(), errors.read()[-2_000:]
        found = json.loads(lines[-1]) if lines else dict(examples=0, seeds=0, seconds=0.0, failures=[])
        if how != "exit code 0":
            if not (folder.parent / LAST).exists():
                raise SystemExit(f"{name}: {how} before the first changed file: {why}")
            file, _, content = (folder.parent / LAST).read_bytes().partition(b"\n")
            found["failures"].append(f"{keep(name, json.loads(file), content)}: {how}: {why}")
            found["seeds"] += 1
        return found


def read_record(path: Path) -> dict[str, dict[str, Any]]:
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    none = {"examples": 0, "seeds": 0, "seconds": 0.0, "found": []}
    return {name: known.get(name, none) for name in sorted(PARSERS)}


def add_to_record(path: Path, name: str, found: dict[str, Any]) -> None:
    record = read_record(path)
    before = record[name]
    new = [Path(failure.split(": ")[0]).name for failure in found["failures"]]
    sums = {what: round(before[what] + found[what], 1) for what in ("examples", "seeds", "seconds")}
    record[name] = {**sums, "found": sorted({*before["found"], *new})}
    write_text(path, json.dumps(record, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PARSERS)}; all by default")
    parser.add_argument("--seconds", type=float, default=600, help="of a core that each parser has had in the end")
    parser.add_argument("--turn", type=float, default=60, help="seconds after which the record is written")
    parser.add_argument("--jobs", type=int, default=1, help="parsers at a time")
    parser.add_argument("--record", type=Path, default=FILE)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(options.seconds) + PATIENCE,) * 2)
        fuzz(
            options.names[0], options.here, sys.maxsize, options.first, options.seconds,
            lambda **found: print(json.dumps(found), flush=True),
        )  # fmt: skip
        return
    raise SystemExit(run_turns(options))


def run_turns(options: argparse.Namespace) -> bool:
    """Take turns until each parser has had its seconds; returns whether any failed."""
    failed, under_way = False, dict[Future[dict[str, Any]], str]()
    with ThreadPoolExecutor(options.jobs) as pool:  # each turn is a separate process
        while True:
            record = read_record(options.record)
            waiting = [name for name in options.names or PARSERS if name not in under_way.values()]
            for name in sorted(waiting, key=lambda one: record[one]["seconds"])[: options.jobs - len(under_way)]:
                if (left := options.seconds - record[name]["seconds"]) > 0:
                    under_way[pool.submit(turn, name, min(left, options.turn), record[name]["seeds"])] = name
            if not under_way:
                return failed
            for done in wait(under_way, return_when=FIRST_COMPLETED).done:
                name, found = under_way.pop(done), done.result()
                add_to_record(options.record, name, found)
                print(
                    f"{name}: {found['examples']:,} files in {found['seconds']:,} s, {len(found['failures'])} failures"
                )
                for failure in found["failures"]:
                    print(f"  {failure}")
                sys.stdout.flush()
                failed |= bool(found["failures"])


if __name__ == "__main__":
    main()
