"""The committed comparisons: runs the commands below that have no file in benchmarks/results/comparison yet.

    python -m benchmarks.comparisons [NAME ...]

Cells are kept in bench/NAME, so that rerunning resumes. Images that cannot be downloaded are expected in the folder
named by the variable DATA, as mirflickr25k/, birds100/, grocery81/ and voc2007/; comparisons without their images are
skipped. Networks on CIFAR-10 are compared by benchmarks.reproduction.
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
FEATURES = f"dtsh,dpsh,cnnh,ninh,dsrh,dsch,drsch,dlbhc,classifier,{QUICK},ksh"
SLOW_FEATURES = "mlh,cghash,dh,dh-supervised"
MIRFLICKR = "mirflickr25k"
VIT = ["--backbone", "vit-tiny", "--image-size"]
# data like a user's: many classes with few images, near-duplicates, several labels per image
OWN = {"birds100": ["birds100"], "grocery81": ["grocery81"], "voc2007": ["voc2007/voc2007.csv", "--protocol", "split"]}
# voc2007 has several labels per image; the classifier's codes are useless for unseen classes, as birds100 shows
UNSEEN = {"birds100": "dtsh,itq,ccaitq,ksh,classifier", "grocery81": "dtsh,itq,ccaitq,ksh"}
CIFAR10_VIT = ["cifar10", "--methods", "dtsh", "--bits", "32", "--splits", "3", "--epochs", "6"]
LENGTHS = ["--bits", "16,48"]
SPLITS = [*LENGTHS, "--splits", "3"]
# the classifier trains as long as DTSH, with the same blocks and settings
SAME = ["frozen_blocks=16", "images=45000", "lr=0.002", "weight_decay=0.1", "adapt=0"]
MIXUP = {"birds100": "mixup=0.2", "grocery81": "mixup=0.2", "voc2007": "mixup=0"}

# name of the result: arguments of hashlens compare
RUNS = {
    "cifar10-images": ["cifar10", "--methods", "dtsh", "--bits", "12,24,32,48", "--splits", "3"],
    # blocks and rates were chosen on rows cut from the training rows, at 128 and 160 pixels (benchmarks.trials)
    "cifar10-vit-128": [*CIFAR10_VIT, *VIT, "128", "--frozen-blocks", "6", "--set", "lr=0.0003"],
    "cifar10-vit-224": [*CIFAR10_VIT, *VIT, "224", "--frozen-blocks", "6", "--set", "lr=0.0002"],
    "cifar10-gist": ["cifar10", "--methods", QUICK, "--features", "gist", "--seeds", "3", "--preset", "published"],
    "cifar10-gist-slow": ["cifar10", "--methods", SLOW, "--features", "gist", "--preset", "published"],
    # methods of table 1 whose defaults differ from the published settings
    "cifar10-gist-tuned": ["cifar10", "--methods", "sdh,lfh", "--features", "gist", "--bits", "12,48"],
    "cifar10-gist-tuned-slow": ["cifar10", "--methods", "ksh,splh,fasth", "--features", "gist", "--bits", "12,48"],
    "cifar10-gist-networks": ["cifar10", "--methods", "semantic,dh,dh-supervised", "--features", "gist"],
    "cifar10-deep": ["cifar10", "--methods", f"lsh,{TABLE1}", "--features", "deep"],
    "cifar10-resnet50": ["cifar10", "--methods", TABLE1, "--features", "resnet50@112"],
    "mirflickr": [MIRFLICKR, "--methods", "dtsh,itq,lsh", "--features", "deep", "--bits", "12,48", "--splits", "3"],
    "mirflickr-vit": [MIRFLICKR, "--methods", "dtsh", "--bits", "48", *VIT, "160", "--set", "lr=0.0003"],
    "mirflickr-shallow": [MIRFLICKR, "--methods", f"{QUICK},{SLOW}", "--features", "deep"],
    "mirflickr-networks": [MIRFLICKR, "--methods", NETWORKS, "--features", "deep", "--frozen-blocks", "15"],
    **{
        f"{name}-images": [*own, "--methods", "dtsh,classifier", *SPLITS]
        + [word for setting in [*SAME, MIXUP[name]] for word in ("--set", f"classifier.{setting}")]
        for name, own in OWN.items()
    },
    **{
        f"{name}-{kind}": [f"{name}.npy", "--methods", methods, *splits, "--protocol", "split"]
        for kind, methods, splits in (
            ("features", FEATURES, SPLITS),
            ("features-slow", SLOW_FEATURES, LENGTHS),  # minutes each: one split
            ("features-fasth", "fasth", LENGTHS),
            ("features-semantic", "semantic", LENGTHS),
        )
        for name in OWN
    },
    **{
        f"{name}-unseen": [*OWN[name], "--methods", methods, *SPLITS, "--protocol", "unseen"]
        for name, methods in UNSEEN.items()
    },
}


def place_of(word: str, data: Path) -> Path | None:
    """The path of images or features named by a word of a command; None if it names none."""
    if word.endswith(".npy"):
        return CELLS / word
    return data / word if word == MIRFLICKR or word in {own[0] for own in OWN.values()} else None


def main() -> None:
    names = sys.argv[1:] or list(RUNS)
    if unknown := [name for name in names if name not in RUNS]:
        sys.exit(f"error: there is no comparison {unknown[0]}; choose from {', '.join(RUNS)}")
    data = Path(os.environ.get("DATA", "data"))
    for name in names:
        if (HERE / f"{name}.json").exists():
            print(f"{name} exists", flush=True)
            continue
        command = ["hashlens", "compare", *RUNS[name]]
        source = place_of(command[2], data)
        images = data / OWN[source.stem][0] if source and source.suffix == ".npy" else source
        if images and not images.exists():
            print(f"{name} needs {images}; the variable DATA says where: skipped", flush=True)
            continue
        print(" ".join(command), flush=True)
        if source and source != images and not source.exists():
            _hashlens("features", f"{images}", "--out", f"{source}")
        out = CELLS / name
        _hashlens(*command[1:2], f"{source or command[2]}", *command[3:], "--out", f"{out}")
        result = json.loads((out / "result.json").read_text(encoding="utf-8")) | {"command": " ".join(command)}
        if source:
            result["source"] = name.partition("-")[0] if source.stem in OWN else MIRFLICKR  # wherever it is
        write_text(HERE / f"{name}.json", json.dumps(result, indent=1) + "\n")


def _hashlens(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "hashlens", *arguments], check=True)


if __name__ == "__main__":
    main()
