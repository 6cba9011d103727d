"""Images in S3 behind a failing network: are the codes the same as from files on disk?

    python -m benchmarks.remote SCRATCH [--images 5000] [--errors 0.02]

Images of CIFAR-10 are written as PNG files, in a folder per class, and encoded three times: from the disk; from a real
S3 server (rclone) that serves the same folder; and from there through a proxy that breaks some of all requests, reads
and writes (status 500, a dropped connection, or half an answer), with the codes folder in S3 as well. The model is LSH
on GIST, because only reading is tested. The result goes to benchmarks/results/remote.json.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import stores
from hashlens import make_protocol, open_source
from hashlens.codes.folder import CodesFolder
from hashlens.files import write_json
from hashlens.hashers.shallow.lsh import LSH

FILE = Path(__file__).parent / "results" / "remote.json"
SHARD = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--errors", type=float, default=0.02)
    given = parser.parse_args()
    result = measure(given.scratch, given.images, given.errors)
    write_json(FILE, result)
    print(json.dumps(result, indent=2))


def write_images(folder: Path, n: int) -> None:
    """Images of CIFAR-10 in a folder per class, and a model of them beside it."""
    source = open_source("cifar10")
    assert source.labels is not None
    rows = make_protocol(source).database[:n]
    names = source.labels.sets()
    for row in rows.tolist():
        file = folder / names[row][0] / f"{row:05d}.png"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(source.images.image(row))).save(file)
    if not (folder.parent / "model").exists():
        LSH(48, features="gist").fit(source.images[rows[:200]]).save(folder.parent / "model")


def encode(source: str, model: Path, out: str, environment: dict[str, str], shard: int = SHARD) -> dict[str, Any]:
    start = time.perf_counter()
    command = [sys.executable, "-m", "hashlens", "encode", source, "--model", str(model), "--out", out, "--json"]
    done = subprocess.run(
        [*command, "--shard-size", str(shard)], env=os.environ | environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    again = [line.rpartition(" ")[2] for line in done.stderr.splitlines() if "tried again" in line]
    return json.loads(done.stdout) | {
        "seconds": round(time.perf_counter() - start, 1),
        "tried_again": int(again[0].replace(",", "")) if again else 0,
    }


def measure(scratch: Path, n: int, errors: float) -> dict[str, Any]:
    store = scratch / "store"
    write_images(store / "images", n)
    model, images = store / "model", store / "images"
    (store / "codes").mkdir(exist_ok=True)
    result: dict[str, Any] = {"images": n, "errors": errors, "shard_size": SHARD}
    result["disk"] = encode(str(images), model, str(scratch / "disk"), {})
    with stores.s3(store) as endpoint:
        result["s3"] = encode("s3://images", model, str(scratch / "s3"), stores.credentials(endpoint))
        with stores.faulty(endpoint, errors) as (bad, counts):
            result["spoiled"] = encode("s3://images", model, "s3://codes/spoiled", stores.credentials(bad))
            result["requests"] = dict(counts)
    whole, spoiled = (
        {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".")}
        for folder in (scratch / "s3", store / "codes" / "spoiled")
    )
    result["files"] = len(whole)
    result["files_equal"] = sum(whole[name] == spoiled.get(name) for name in whole)
    result["codes_equal_to_disk"] = all(
        file.read_bytes() == spoiled[file.name] for file in (scratch / "disk").glob("*.npy")
    )
    result["images_equal_to_disk"] = facts(scratch / "disk", str(images)) == facts(scratch / "s3", "s3://images")
    for name in ("disk", "s3", "spoiled"):
        del result[name]["out"]
    return result


def facts(folder: Path, root: str) -> list[Any]:
    """Name, labels, size and hash of each image that has a code."""
    _, items = CodesFolder.open(folder).concatenated()
    names = [path.removeprefix(f"{root}/") for path in items["path"].to_pylist()]
    return list(zip(names, *(items[column].to_pylist() for column in ("labels", "size", "hash")), strict=True))


if __name__ == "__main__":
    main()
