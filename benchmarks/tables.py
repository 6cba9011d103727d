"""The tables of README and docs, made from benchmarks/results.

python -m benchmarks.tables           print them
python -m benchmarks.tables --write   put them between their markers; the tests fail when they are stale
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from hashlens.progress import duration

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md"]

SETTINGS = {"cifar10-1": "CIFAR-10, setting 1", "cifar10-2": "CIFAR-10, setting 2"}


def load() -> dict[str, dict[str, Any]]:
    paths = sorted(RESULTS.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def dtsh() -> str:
    """Every committed DTSH run beside the paper's number."""
    rows = [
        "| protocol | bits | pixels | MAP | tie-aware | paper (CNN-F) | time, 2 cores | command |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for result in sorted(load().values(), key=lambda r: (r["protocol"]["name"], r["image_size"], r["n_bits"])):
        paper = f"{result['paper']['map']:.3f}" if result["paper"] else "–"
        rows.append(
            f"| {SETTINGS[result['protocol']['name']]} | {result['n_bits']} | {result['image_size']} |"
            f" **{result['map']:.3f}** | {result['metrics']['map_tie_aware']:.3f} | {paper} |"
            f" {duration(result['seconds']['total'])} | `{result['command']}` |"
        )
    return "\n".join(rows)


TABLES = {"dtsh": dtsh}


def filled(text: str) -> str:
    """`text` with every table between `<!-- table NAME -->` and `<!-- end -->` made anew."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table (\S+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


if __name__ == "__main__":
    for page in PAGES:
        if "--write" in sys.argv:
            page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    print("\n\n".join(make() for make in TABLES.values()))
