"""Damage files at random and check that no wrong answer, traceback or crash follows.

    python -m benchmarks.faults [--index INDEX] [--faults 2000] [--seed 0] [--out FILE]

Each fault flips a bit, cuts a file short, zeroes some bytes or swaps two files of an index, a codes folder, a model, an
exported model, lists of faiss, a cache of features or of looks, or a checkpoint. Then everything is read from the
folder: searches for all hits by code, id, radius and label, whether images are known, the same after an addition that
joins parts, codes of images and features, the end of the training. The answer must be the same as before the fault, or
one sentence that names the file. Readers run in a separate process, so that a crash is noticed. INDEX may be the folder
of any index; it is copied. Without it, a small one is made, with three parts, ids, removed images, keys, second codes
and radius tables. A run continues where FILE ends, if that has the same seed and fewer faults.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from hashlens.codes import Codes
from hashlens.errors import HashlensError
from hashlens.files import write_json

KINDS = ("flip", "cut", "zero", "swap")
N_BITS, SECOND_BITS, N, N_MORE = 20, 30, 300, 600
SECONDS = 600  # most seconds for a reader, even on a busy machine
MODEL = {"fingerprint": "0" * 64, "name": "faults"}


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def random_codes(n: int, seed: int, n_bits: int = N_BITS, second_bits: int = SECOND_BITS) -> Codes:
    rng = np.random.default_rng(seed)
    first = Codes.from_relaxed(rng.normal(size=(n, n_bits)))
    return replace(first, second=Codes.from_relaxed(rng.normal(size=(n, second_bits)))) if second_bits else first


def ask_index(path: Path) -> str:
    """Everything that can be read from an index, and again after joining its parts."""
    from hashlens.index.folder import IndexFolder

    before = ask_codes(path)
    index = IndexFolder.open(path)
    items = pa.concat_tables(part.items().table() for part in index.parts)
    codes = Codes.concatenate([codes for codes, _ in index.batches(N)])
    known = index.add(codes[: len(index)], items.take(pa.array(np.concatenate(_alive(index)))), only_new=True)
    more = random_codes(N_MORE, 9, index.n_bits, index.second_bits)
    added = index.add(more, pa.table({"path": [f"/more/{i:04d}.jpg" for i in range(N_MORE)]}), only_new=True)
    return digest([before, known.tolist(), added.tolist(), ask_codes(path)])


def _alive(index: Any) -> list[np.ndarray]:
    starts = np.cumsum([0, *map(len, index.parts)])
    return [start + part.still() for start, part in zip(starts, index.parts, strict=False)]


def ask_codes(path: Path) -> str:
    """Everything that can be read from an index or a codes folder."""
    from hashlens.search import Searcher, open_index

    searcher = Searcher(open_index(path))
    index = searcher.index
    codes = [random_codes(1, seed, index.n_bits, index.second_bits) for seed in range(3)]
    asked: list[dict[str, Any]] = [{"query": code, "k": len(index)} for code in codes]
    asked += [{"query": id_, "k": len(index)} for id_ in index.examples(4)]
    asked += [{"query": code, "radius": radius} for code in codes for radius in (0, 2, index.n_bits // 2)]
    asked += [{"query": codes[0], "k": len(index), "label": label} for label in index.labels(3)]
    answers = [searcher.search(**one, histogram=True) for one in asked]
    for answer in answers:
        del answer["timing_ms"]
    return digest([answers, index.roots, index.labels()])


def ask_model(path: Path) -> str:
    """The codes of some images."""
    from hashlens.codes.encoder import Encoder

    rng = np.random.default_rng(1)
    images = [Image.fromarray(rng.integers(0, 256, (24, 24, 3), np.uint8)) for _ in range(9)]
    return digest(Encoder.load(path).codes(images).packed.tolist())


def ask_trees(path: Path) -> str:
    """The codes of some features."""
    from hashlens.codes.encoder import Encoder

    return digest(Encoder.load(path).codes(np.random.default_rng(1).normal(size=(50, 16))).packed.tolist())


def ask_cache(path: Path) -> str:
    """Features, which are computed again if the cache cannot be used."""
    from hashlens.data.images import ArrayImages
    from hashlens.features.extractor import Extractor

    os.environ["HASHLENS_CACHE"] = str(path)
    pixels = np.random.default_rng(1).integers(0, 256, (40, 8, 8, 3), np.uint8)
    found = Extractor(lambda: lambda batch: batch.reshape(len(batch), -1).astype(np.float32), 8, lambda: "faults")
    return hashlib.sha256(found.cached(ArrayImages(pixels)).tobytes()).hexdigest()


def ask_lists(path: Path) -> str:
    """Everything that faiss holds."""
    from hashlens.index.engines.faiss import ApproximateIndex

    rng = np.random.default_rng(1)
    lists = ApproximateIndex(N_BITS, path)
    if not len(lists):  # make it first
        lists.add(Codes.from_relaxed(rng.normal(size=(N, N_BITS))))
        lists.flush()
    distances, ids = lists.search(Codes.from_relaxed(rng.normal(size=(3, N_BITS))), N)
    return digest([distances.tolist(), ids.tolist()])


def ask_looks(path: Path) -> str:
    """Looks of two images, which are computed again if the cache cannot be used."""
    import sklearn.datasets

    from hashlens.duplicates.looks import looks_of
    from hashlens.index.catalog import Catalog
    from hashlens.progress import Progress

    os.environ["HASHLENS_CACHE"] = str(path)
    images = Path(sklearn.datasets.__file__).parent / "images"
    paths = [(images / name).as_posix() for name in ("china.jpg", "flower.jpg")]
    index = Catalog(Path("/faults"), N_BITS, MODEL)
    index.add(Codes(np.zeros((2, -(-N_BITS // 8)), np.uint8), N_BITS), pa.table({"path": paths}))
    return hashlib.sha256(looks_of(index, paths, Progress(quiet=True)).tobytes()).hexdigest()


def ask_checkpoint(path: Path, stop: Callable[[], bool] = lambda: False) -> str:
    """The model at the end of a resumed training."""
    from hashlens import DTSH, Training

    rng = np.random.default_rng(1)
    hasher = DTSH(8, training=Training(epochs=2, batch_size=50, device="cpu"))
    hasher.fit(rng.normal(size=(150, 16)), np.arange(150) % 3, run=path, stop=stop)
    return digest(hasher.encode(rng.normal(size=(50, 16))).packed.tolist())


ASK: dict[str, Callable[[Path], str]] = {
    "index": ask_index,
    "codes": ask_codes,
    "model": ask_model,
    "exported": ask_model,
    "trees": ask_trees,
    "lists": ask_lists,
    "cache": ask_cache,
    "looks": ask_looks,
    "checkpoint": ask_checkpoint,
}


def make(place: Path, index: Path | None) -> None:
    """One folder of each kind."""
    from hashlens import DTSH, Training
    from hashlens.codes.export import export_onnx
    from hashlens.codes.folder import CodesFolder
    from hashlens.data.images import as_images
    from hashlens.errors import Stopped
    from hashlens.hashers.shallow.fasth import FastH
    from hashlens.index.folder import IndexFolder
    from hashlens.progress import Progress

    rng = np.random.default_rng(0)
    how = {"n_bits": N_BITS, "second_bits": SECOND_BITS, "model": MODEL}
    codes = CodesFolder.create(place / "codes", **how, shard_size=N // 3)
    labels = pa.array([["cat", "dog", "tree"][: i % 4] or None for i in range(N)], pa.list_(pa.string()))
    table = pa.table({"path": [f"/photos/{i:04d}.jpg" for i in range(N)], "labels": labels})
    codes.extend(table)
    for rows in codes.missing():
        codes.append(rows, random_codes(rows.stop - rows.start, rows.start), table[rows.start : rows.stop])
    codes.finish()
    if index is None:
        made = IndexFolder.create(place / "index", N_BITS, MODEL, second_bits=SECOND_BITS, radius_tables=True)
        first, *others = codes
        made.add(*first, only_new=True)
        made.remove([1, 50])
        made.compact()
        for shard in others:
            made.add(*shard, only_new=True)
        made.remove([2, 150])
    else:
        shutil.copytree(index, place / "index")
    images = rng.integers(0, 256, (60, 24, 24, 3), np.uint8)
    training = Training(epochs=1, batch_size=30, device="cpu")
    deep = DTSH(N_BITS, backbone="small-cnn", image_size=16, training=training).fit(images, np.arange(60) % 3)
    deep.save(place / "model")
    export_onnx(place / "model", place / "exported", as_images(images), Progress(quiet=True))
    FastH(8, n_trees=5).fit(rng.normal(size=(60, 16)), np.arange(60) % 3).save(place / "trees")
    for name in ("lists", "cache", "looks"):
        ASK[name](place / name)
    steps = iter([False, False, False])
    with suppress(Stopped):
        ask_checkpoint(place / "checkpoint", lambda: next(steps, True))


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".hashlens.lock")


def damage(kind: str, path: Path, folder: Path, rng: random.Random) -> list[Path]:
    """Damage a folder; returns the changed files."""
    content = bytearray(path.read_bytes())
    if kind == "swap":
        others = [other for other in files_of(folder) if other.read_bytes() != content]
        if others:
            other = rng.choice(others)
            path.write_bytes(other.read_bytes())
            other.write_bytes(content)
            return [path, other]
        kind = "flip"
    before = bytes(content)
    while content == before:
        if kind == "flip":
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del content[rng.randrange(len(content)) :]
        else:
            start = rng.randrange(len(content))
            end = min(len(content), start + rng.choice((1, 16, 512, 4096, 65_536)))
            content[start:end] = bytes(end - start)
    path.write_bytes(content)
    return [path]


def reader(connection: Connection) -> None:
    """Answer (kind of folder, its path) until there are no more."""
    while (task := connection.recv()) is not None:
        name, path = task
        try:
            connection.send(("answer", ASK[name](path)))
        except HashlensError as error:
            connection.send(("sentence", error.message))
        except BaseException:
            connection.send(("traceback", traceback.format_exc()))


class Reader:
    """A process that reads, restarted whenever it dies."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=reader, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, name: str, path: Path) -> tuple[str, str]:
        try:
            self.connection.send((name, path))
            if self.connection.poll(SECONDS):
                return self.connection.recv()
            self.process.kill()
            found = ("crash", f"no answer within {SECONDS} seconds")
        except (EOFError, OSError):
            self.process.join()
            found = ("crash", f"exit code {self.process.exitcode}")
        self._start()
        return found

    def close(self) -> None:
        self.connection.send(None)
        self.process.join(SECONDS)


def run(
    n: int,
    seed: int,
    index: Path | None = None,
    only: tuple[str, ...] = tuple(ASK),
    before: dict[str, Any] | None = None,
    save: Callable[[dict[str, Any]], Any] = lambda result: None,
) -> dict[str, Any]:
    """Make n faults; returns the number of each outcome per kind of folder, and all failures.

    `before` is the result of an interrupted run of the same faults; the result so far is saved every 50 faults.
    """
    told = before or {"folders": {}, "kinds": {}, "wrong": [], "faults": 0}
    outcomes: dict[str, Counter[str]] = {name: Counter(told["folders"].get(name, {})) for name in only}
    kinds, wrong = Counter(told["kinds"]), list(told["wrong"])

    def result(done: int) -> dict[str, Any]:
        total = sum(outcomes.values(), Counter[str]())
        return {
            "faults": done,
            "seed": seed,
            "kinds": dict(sorted(kinds.items())),
            "detected, file named": total["sentence"],
            "same answer": total["same answer"],
            "silent differences": total["silent difference"],
            "file not named": total["file not named"],
            "tracebacks": total["traceback"],
            "crashes": total["crash"],
            "folders": {name: dict(sorted(found.items())) for name, found in outcomes.items()},
            "wrong": wrong,
        }

    with tempfile.TemporaryDirectory() as temporary:
        place, now = Path(temporary) / "made", Path(temporary) / "now"
        make(place, index)
        asking = Reader()
        answers = {}
        for name in only:
            shutil.copytree(place / name, now)
            outcome, answers[name] = asking.ask(name, now)
            if outcome != "answer":
                raise SystemExit(f"{name} cannot be read before it is damaged: {answers[name]}")
            shutil.rmtree(now)
        choices = [(name, file.relative_to(place / name)) for name in only for file in files_of(place / name)]
        for number in range(told["faults"], n):
            rng = random.Random(f"{seed} {number}")
            name, file = rng.choice(choices)
            kind = rng.choice(KINDS)
            kinds[kind] += 1
            shutil.copytree(place / name, now)
            changed = damage(kind, now / file, now, rng)
            outcome, text = asking.ask(name, now)
            if outcome == "answer":
                outcome = "same answer" if text == answers[name] else "silent difference"
            elif outcome == "sentence" and not any(path.name in text for path in changed):
                outcome = "file not named"
            outcomes[name][outcome] += 1
            if outcome not in ("same answer", "sentence"):
                wrong.append(f"{number}: {kind} {name}/{file}: {outcome}: {text.strip()[-400:]}")
            shutil.rmtree(now)
            if (number + 1) % 50 == 0:
                save(result(number + 1))
        asking.close()
    return result(n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--faults", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    before = json.loads(given.out.read_text(encoding="utf-8")) if given.out and given.out.exists() else None
    if before and (before["seed"] != given.seed or before["faults"] >= given.faults):
        before = None

    def save(result: dict[str, Any]) -> None:
        if given.out:
            write_json(given.out, result)

    result = run(given.faults, given.seed, given.index, before=before, save=save)
    save(result)
    print(json.dumps(result, indent=2))
    raise SystemExit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
