"""The committed results: runs the commands below that have no file in benchmarks/results yet.

    python -m benchmarks.results [NAME ...]

Each run starts from images: cached outputs of frozen blocks are deleted first, so that times are honest.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from hashlens.data import make_protocol, open_source
from hashlens.files import cache_dir, write_text

HERE = Path(__file__).parent / "results"
LENGTHS = (12, 24, 32, 48)

# name of the result: arguments of hashlens train
RUNS = {
    **{f"cifar10-1-dtsh-{n}": ["cifar10", "--bits", f"{n}"] for n in LENGTHS},
    "cifar10-1-dtsh-32-long": [
        *("cifar10", "--bits", "32"),
        *(
            "--image-size",
            "224",
            "--frozen-blocks",
            "11",
            "--epochs",
            "16",
            "--set",
            "windows=3",
            "--set",
            "mirror=true",
        ),
    ],
    "cifar10-2-dtsh-48": ["cifar10", "--bits", "48", "--protocol", "cifar10-2", "--image-size", "160"],
    "cifar10-1-dtsh-32-resnet50": ["cifar10", "--bits", "32", "--backbone", "resnet50", "--image-size", "96"],
    # blocks and rate as in the comparison cifar10-vit-224
    "cifar10-1-dtsh-32-vit": [
        *("cifar10", "--bits", "32", "--backbone", "vit-tiny", "--frozen-blocks", "6", "--epochs", "6"),
        *("--set", "lr=0.0002"),
    ],
    "cifar10-1-dtsh-32-triplets": ["cifar10", "--bits", "32", "--triplets", "triplets.csv"],
}


def draw_triplets(path: Path, per_query: int = 200) -> None:
    """Triplets of the training images of CIFAR-10, setting 1, drawn from its labels."""
    source = open_source("cifar10")
    rows = make_protocol(source).train
    classes = source.labels.values[rows]
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        for row, own in zip(rows, classes, strict=True):
            alike = rows[(classes == own) & (rows != row)]
            positives, negatives = (rng.choice(r, per_query) for r in (alike, rows[classes != own]))
            file.writelines(f"{row},{p},{n}\n" for p, n in zip(positives, negatives, strict=True))


def main() -> None:
    names = sys.argv[1:] or list(RUNS)
    if unknown := [name for name in names if name not in RUNS]:
        sys.exit(f"error: there is no run {unknown[0]}; choose from {', '.join(RUNS)}")
    for name in names:
        path = HERE / f"{name}.json"
        if path.exists():
            print(f"{name} exists", flush=True)
            continue
        command = ["hashlens", "train", *RUNS[name]]
        shutil.rmtree(cache_dir() / "features", ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            print(" ".join(command), flush=True)
            if "--triplets" in command:
                draw_triplets(Path(folder) / "triplets.csv")
            triplets = f"{folder}/triplets.csv"
            arguments = [triplets if word == "triplets.csv" else word for word in command[1:]]
            done = subprocess.run(
                [sys.executable, "-m", "hashlens", *arguments, "--out", f"{folder}/run", "--json"],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
        result = json.loads(done.stdout.replace(triplets, "triplets.csv")) | {"command": " ".join(command)}
        write_text(path, json.dumps(result, indent=1) + "\n")
        print(f"{name}: MAP {result['map']:.4f} in {result['seconds']['total']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
