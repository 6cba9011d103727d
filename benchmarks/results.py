"""The committed results: runs the commands below that have no file in benchmarks/results yet.

    python -m benchmarks.results [NAME ...]

Each run starts from pictures: the cached outputs of frozen blocks are deleted before it, so that its time is honest.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hashlens.files import cache_dir

HERE = Path(__file__).parent / "results"

# name of the result: arguments of hashlens train
RUNS = {
    "cifar10-1-dtsh-12": ["cifar10", "--bits", "12"],
    "cifar10-1-dtsh-24": ["cifar10", "--bits", "24"],
    "cifar10-1-dtsh-32": ["cifar10", "--bits", "32"],
    "cifar10-1-dtsh-48": ["cifar10", "--bits", "48"],
    "cifar10-1-dtsh-32-long": ["cifar10", "--bits", "32", "--image-size", "224", "--epochs", "12"],
    "cifar10-2-dtsh-48": ["cifar10", "--bits", "48", "--protocol", "cifar10-2"],
}


def main() -> None:
    names = sys.argv[1:] or list(RUNS)
    if unknown := [name for name in names if name not in RUNS]:
        sys.exit(f"error: there is no run {unknown[0]}; choose from {', '.join(RUNS)}")
    for name in names:
        path = HERE / f"{name}.json"
        if path.exists():
            print(f"{name} is there", flush=True)
            continue
        shutil.rmtree(cache_dir() / "features", ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            command = ["hashlens", "train", *RUNS[name]]
            print(" ".join(command), flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "hashlens", *command[1:], "--out", f"{folder}/run", "--json"],
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
        result = json.loads(done.stdout) | {"command": " ".join(command)}
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: MAP {result['map']:.4f} in {result['seconds']['total']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
