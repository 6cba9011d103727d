"""The committed reproduction of the paper: runs the commands below and copies their output to docs/reproduction.

    python -m benchmarks.reproduction [TARGET ...]

Cells are kept in bench/reproduction, so that rerunning resumes and finished cells are not computed again. All
networks are EfficientNet-Lite0, whose last 3 of 18 blocks are trained, with one seed: many hours on two cores.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CELLS = Path("bench") / "reproduction"
DOCS = Path(__file__).parent.parent / "docs" / "reproduction"

# name of the target: the rest of its command
SAME = ["--scale", "full", "--seeds", "1", "--frozen-blocks", "15"]
RUNS = {
    "table1": SAME,
    "table2": [*SAME, "--methods", "dtsh,sh,itq,splh,lfh,sdh,ksh,fasth"],
    "table3": SAME,
    "alpha": SAME,
    "lambda": SAME,
    "train-size": SAME,
    "examples": SAME,
    # the authors' rates need their 100 epochs (with 10, MAP was 0.20): hours if more than the hash layer is trained
    "port": ["--scale", "full", "--seeds", "1", "--frozen-blocks", "18"],
    "unseen": [*SAME, "--bits", "12,48"],
}


def main() -> None:
    names = sys.argv[1:] or list(RUNS)
    if unknown := [name for name in names if name not in RUNS]:
        sys.exit(f"error: there is no target {unknown[0]}; choose from {', '.join(RUNS)}")
    for name in names:
        command = ["reproduce", name, *RUNS[name], "--out", f"{CELLS}"]
        print(" ".join(["hashlens", *command]), flush=True)
        subprocess.run([sys.executable, "-m", "hashlens", *command], check=True)
    # leave out large cells and the report, which repeats the rest; photographs only as PNG
    left_out = shutil.ignore_patterns(".hashlens.lock", "comparisons", "report.html", "examples.svg", "examples.pdf")
    shutil.copytree(CELLS, DOCS, dirs_exist_ok=True, ignore=left_out)


if __name__ == "__main__":
    main()
