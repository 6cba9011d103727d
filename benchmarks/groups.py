"""How many groups `hashlens groups` should make of photos whose classes are known.

    python -m benchmarks.groups DATA     # → benchmarks/results/groups.json

DATA is a folder with grocery81 and birds100, unpacked. Subsets of their classes or images are clustered into each of
NUMBERS groups; a rule for choosing the number is judged by how well the groups agree with the classes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, silhouette_score

import hashlens
from hashlens.groups import FEW, bits_of, usual_number

RESULT = Path(__file__).parent / "results" / "groups.json"
NUMBERS = sorted({round(2 ** (step / 2)) for step in range(2, 13)})  # 2 to 64
FOLDERS = [  # data, classes, most images
    ("grocery81", 5, None),
    ("grocery81", 10, None),
    ("grocery81", 81, 320),
    ("grocery81", 81, None),
    ("birds100", 5, None),
    ("birds100", 10, None),
    ("birds100", 100, 320),
    ("birds100", 100, None),
]


def measure(bits: np.ndarray, classes: np.ndarray) -> dict[str, Any]:
    usual = usual_number(len(bits), len(bits))
    agreement, silhouette = {}, {}
    for n in sorted({*NUMBERS, usual}):
        if n <= len(bits) // FEW:
            groups = KMeans(n, n_init=4, random_state=0).fit_predict(bits)
            agreement[n] = float(adjusted_mutual_info_score(classes, groups))
            silhouette[n] = float(silhouette_score(bits, groups))
    by_silhouette, best = (max(scores, key=scores.__getitem__) for scores in (silhouette, agreement))
    chosen = {"usual": usual, "silhouette": by_silhouette, "best": best}
    return {
        "n_images": len(bits),
        "chosen": {how: {"n": n, "agreement": agreement[n]} for how, n in chosen.items()},
        "agreement": agreement,
        "silhouette": silhouette,
    }


def main(data: Path) -> None:
    rows, codes = [], {}
    for name, n_classes, most in FOLDERS:
        files = sorted((data / name).rglob("*.jpg"))
        classes = np.array([file.parent.name for file in files])
        if name not in codes:
            codes[name] = bits_of(hashlens.general().encode(list(map(str, files))))
        rng = np.random.default_rng(1)
        drawn = np.flatnonzero(np.isin(classes, rng.permutation(np.unique(classes))[:n_classes]))
        drawn = np.sort(rng.permutation(drawn)[:most])
        row = {"data": name, "n_classes": len(np.unique(classes[drawn]))}
        rows.append(row | measure(codes[name][drawn], classes[drawn]))
        print(row, rows[-1]["chosen"], flush=True)
    RESULT.write_text(json.dumps({"seed": 1, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    main(parser.parse_args().data)
