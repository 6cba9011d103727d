"""Kill a command at random moments and check that rerunning it gives the same files as an undisturbed run.

    python -m benchmarks.crash [encode] [add] [remove] [--moments 20] [--seed 0]

A case prepares a folder and has a command that can be rerun until it succeeds. The command runs once without
interruption; then, each time in a fresh copy, it is killed (SIGKILL) somewhere between its first write and its end, the
files it left are checked, and it is rerun. Every file it writes must be the same, byte for byte. Moments are chosen by
the numbers in file names, and by time only between two of them, so that they are spread evenly on a busy machine too;
early moments are more frequent, because exiting takes longer than writing.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from hashlens.codes import MANIFEST, Codes
from hashlens.codes.folder import CodesFolder
from hashlens.hashers.methods import make_hasher
from hashlens.index.folder import IndexFolder

N_IMAGES = 300
N_CODES, N_SHARDS = 2_000, 30  # codes per shard, and shards to add; joined parts are still too small for a tree
MODEL = {"fingerprint": "0" * 64, "name": "crash"}


@dataclass(frozen=True)
class Case:
    prepare: Callable[[Path], None]  # prepare the command's input
    command: list[str]  # the arguments of hashlens, run in that folder
    folder: str  # the folder it writes
    check: Callable[[Path], str]  # raises if the files of a killed command are unusable, else describes them


def prepare_encode(place: Path) -> None:
    """Images, some of them unreadable, and a model that encodes a few hundred per second."""
    rng = np.random.default_rng(0)
    (place / "photos").mkdir()
    for i in range(N_IMAGES):
        Image.fromarray(rng.integers(0, 256, (40, 32, 3), np.uint8)).save(place / "photos" / f"{i:04d}.png")
        if i % 50 == 7:
            (place / "photos" / f"{i:04d}.png").write_bytes(b"not an image")
    pixels = [rng.integers(0, 256, (32, 32, 3), np.uint8) for _ in range(50)]
    make_hasher("lsh", n_bits=48, features="gist").fit(pixels).save(place / "hasher")


def check_codes(folder: Path) -> str:
    if not (folder / MANIFEST).exists():
        return "nothing yet"
    codes = CodesFolder.open(folder)
    assert not codes.damaged()
    n = sum(len(part) for part, _ in codes)
    return f"{len(codes.shards)} complete shards, {n} codes"


def shard(number: int) -> tuple[Codes, pa.Table]:
    packed = np.random.default_rng(number).integers(0, 256, (N_CODES, 6), np.uint8)
    return Codes(packed, 48), pa.table({"path": [f"{number:02d}/{i:05d}.jpg" for i in range(N_CODES)]})


def prepare_add(place: Path) -> None:
    """An index that is not empty, and codes to add to it."""
    IndexFolder.create(place / "index", 48, MODEL).add(*shard(0))
    codes = CodesFolder.create(place / "codes", n_bits=48, model=MODEL, shard_size=N_CODES)
    for number in range(1, N_SHARDS + 1):
        first, (packed, items) = codes.list["n"], shard(number)
        codes.extend(items)
        codes.append(slice(first, first + len(items)), packed, items)
    codes.finish()


def prepare_remove(place: Path) -> None:
    """An index from which something was removed before."""
    index = IndexFolder.create(place / "index", 48, MODEL)
    for number in range(N_SHARDS):
        index.add(*shard(number))
    index.remove(np.arange(0, N_CODES * N_SHARDS, 7))


def check_index(folder: Path) -> str:
    index = IndexFolder.open(folder)
    index.verify()
    codes, ids = next(index.batches(2))
    paths = [item["path"] for item in index.lookup(index.search(codes[ids == 1], 1)[1]).values()]
    assert paths == ["00/00001.jpg"]
    return f"{index.verify()} intact files, {len(index):,} codes"


CASES = {
    "add": Case(prepare_add, ["index", "add", "index", "codes", "--quiet"], "index", check_index),
    "remove": Case(prepare_remove, ["index", "remove", "index", "--path", "*[05].jpg"], "index", check_index),
    "encode": Case(
        prepare_encode,
        ["encode", "photos", "--model", "hasher", "--out", "codes", "--shard-size", "10", "--quiet"],
        "codes",
        check_codes,
    ),
}


def start(case: Case, place: Path) -> tuple[subprocess.Popen[bytes], float]:
    """Start the command; returns it and the time of its first write."""
    before = names(place / case.folder)
    process = subprocess.Popen([sys.executable, "-m", "hashlens", *case.command], cwd=place, stdout=subprocess.DEVNULL)
    while process.poll() is None and names(place / case.folder) == before:
        time.sleep(0.0005)
    return process, time.monotonic()


def kill(process: subprocess.Popen[bytes], folder: Path, number: int, seconds: float) -> bool:
    """Kill the process that many seconds after files reach that number; returns whether it was still running."""
    while process.poll() is None and highest(folder) < number:
        time.sleep(0.001)
    time.sleep(seconds)
    process.kill()
    return process.wait() < 0


def names(folder: Path) -> set[str]:
    """The number of all files, including temporary ones; fast enough to notice the first."""
    return {entry.name for entry in os.scandir(folder)} if folder.exists() else set()


def highest(folder: Path) -> int:
    """The highest number in a file name of the folder; it grows even when files are joined."""
    return max((int(number) for name in names(folder) for number in re.findall(r"-(\d+)\.", name)), default=0)


def contents(folder: Path) -> dict[str, bytes]:
    found = {}
    for file in folder.rglob("*") if folder.exists() else ():
        try:
            found[file.relative_to(folder).as_posix()] = file.read_bytes()
        except (FileNotFoundError, IsADirectoryError):  # a temporary file was renamed meanwhile
            continue
    return found


def finish(process: subprocess.Popen[bytes]) -> float:
    if process.wait():
        raise SystemExit(f"the command ended with exit code {process.returncode}")
    return time.monotonic()


def run(name: str, moments: int, seed: int, place: Path) -> bool:
    """Whether the command survived kills at all moments."""
    case, rng = CASES[name], random.Random(seed)
    prepared, whole = place / "prepared", place / "whole"
    prepared.mkdir()
    case.prepare(prepared)
    shutil.copytree(prepared, whole)
    process, first_write = start(case, whole)
    seconds = finish(process) - first_write
    expected = contents(whole / case.folder)
    print(f"{name}: {len(expected)} files, written within {seconds:.2f} s", flush=True)
    n_before = highest(prepared / case.folder)
    n_new = max(1, highest(whole / case.folder) - n_before)
    n_good = 0
    for number in range(moments):
        trial = place / "trial"
        shutil.copytree(prepared, trial)
        process, _ = start(case, trial)
        at = n_before + rng.randrange(n_new)
        killed = kill(process, trial / case.folder, at, rng.random() ** 3 * seconds / n_new)
        left = case.check(trial / case.folder)
        finish(start(case, trial)[0])
        good = contents(trial / case.folder) == expected
        n_good += good
        when = f"killed at number {at}" if killed else "ended before it was killed"
        print(f"  {number + 1:>3}  {when}: {left}; then {'the same bytes' if good else 'OTHER BYTES'}", flush=True)
        shutil.rmtree(trial)
    print(f"{name}: {n_good} of {moments} ended with the same bytes")
    return n_good == moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if unknown := [name for name in asked.cases if name not in CASES]:
        parser.error(f"there is no case {unknown[0]}; choose from {', '.join(CASES)}")
    results = []
    for name in asked.cases or CASES:
        with tempfile.TemporaryDirectory() as place:
            results.append(run(name, asked.moments, asked.seed, Path(place)))
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
