"""The committed comparisons: runs the commands below that have no file in benchmarks/results/comparison yet.

    python -m benchmarks.comparisons [NAME ...]

Cells are kept in bench/NAME, so that rerunning resumes. A comparison on MIRFLICKR-25K needs its folder in the variable
MIRFLICKR and is skipped without it. Networks on CIFAR-10 are compared by benchmarks.reproduction.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hashlens.files import write_text

HERE = Path(__file__).parent / "results" / "comparison"
CELLS = Path("bench")

TABLE1 = "sh,itq,splh,lfh,sdh,ksh,fasth"
NETWORKS = "dtsh,dpsh,ninh,cnnh,dsrh,dsch,drsch,dlbhc,classifier,semantic,dh,dh-supervised"
QUICK = "lsh,sikh,sh,bre,itq,isohash,agh,dgh,sgh,ccaitq,splh,lfh,sdh,rsh"
SLOW = "mlh,ksh,fasth,cghash"
MIRFLICKR = "mirflickr25k"

# name of the result: arguments of hashlens compare
RUNS = {
    "cifar10-gist": ["cifar10", "--methods", QUICK, "--features", "gist", "--seeds", "3", "--preset", "published"],
    "cifar10-gist-slow": ["cifar10", "--methods", SLOW, "--features", "gist", "--preset", "published"],
    "cifar10-gist-tuned": ["cifar10", "--methods", TABLE1, "--features", "gist"],
    "cifar10-gist-networks": ["cifar10", "--methods", "semantic,dh,dh-supervised", "--features", "gist"],
    "cifar10-deep": ["cifar10", "--methods", f"lsh,{TABLE1}", "--features", "deep"],
    "cifar10-resnet50": ["cifar10", "--methods", TABLE1, "--features", "resnet50@112"],
    "mirflickr": [MIRFLICKR, "--methods", "dtsh,itq,lsh", "--features", "deep"],
    "mirflickr-shallow": [MIRFLICKR, "--methods", f"{QUICK},{SLOW}", "--features", "deep"],
    "mirflickr-networks": [MIRFLICKR, "--methods", NETWORKS, "--features", "deep", "--frozen-blocks", "15"],
}


def main() -> None:
    names = sys.argv[1:] or list(RUNS)
    if unknown := [name for name in names if name not in RUNS]:
        sys.exit(f"error: there is no comparison {unknown[0]}; choose from {', '.join(RUNS)}")
    for name in names:
        if (HERE / f"{name}.json").exists():
            print(f"{name} exists", flush=True)
            continue
        command = ["hashlens", "compare", *RUNS[name]]
        place = os.environ.get("MIRFLICKR", "")
        if MIRFLICKR in command and not place:
            print(f"{name} needs the folder of MIRFLICKR-25K in the variable MIRFLICKR: skipped", flush=True)
            continue
        print(" ".join(command), flush=True)
        arguments = [place if word == MIRFLICKR else word for word in command[1:]]
        out = CELLS / name
        subprocess.run([sys.executable, "-m", "hashlens", *arguments, "--out", f"{out}"], check=True)
        result = json.loads((out / "result.json").read_text(encoding="utf-8")) | {"command": " ".join(command)}
        if MIRFLICKR in command:
            result["source"] = MIRFLICKR  # whatever the folder is called
        write_text(HERE / f"{name}.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
