"""How much a plain `pip install hashlens` downloads: the wheel and all base dependencies, by file.

python -m benchmarks.size --write    → benchmarks/results/size.json
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "benchmarks" / "results" / "size.json"
LIMIT = 120_000_000  # bytes


def dependencies() -> list[str]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]


def measure() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        pip = [sys.executable, "-m", "pip", "--quiet"]
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", place, str(ROOT)], check=True)
        wheel = next(Path(place).glob("*.whl"))
        subprocess.run([*pip, "download", "--dest", place, str(wheel)], check=True)
        files = {path.name: path.stat().st_size for path in sorted(Path(place).iterdir())}
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return {"bytes": sum(files.values()), "system": system, "dependencies": dependencies(), "files": files}


if __name__ == "__main__":
    found = measure()
    print(json.dumps(found, indent=1))
    if "--write" in sys.argv:
        RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
