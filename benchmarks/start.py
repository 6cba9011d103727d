"""CPU seconds that a new process needs: bare imports, `hashlens --help`, and `hashlens search` for an image.

    python -m benchmarks.start [--write]

The least of several runs. The index has a million codes; the model is an exported one. With --write the figures also go
to benchmarks/results/speed/start.json, for a table in the docs.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from hashlens.files import write_json
from hashlens.machine import machine

FILE = Path(__file__).parent / "results" / "speed" / "start.json"
RUNS = 7
BARE = "import numpy, onnxruntime, PIL.Image"
CODES = 1_000_000


def cpu_seconds(*command: str, runs: int = RUNS) -> float:
    """The least CPU time of a command, including system calls."""
    times = []
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def prepare(folder: Path) -> None:
    """Make an exported model, an index of a million codes as from that model, and a query."""
    import pyarrow as pa
    from PIL import Image

    from hashlens import DTSH, Codes, Training
    from hashlens.codes.export import export_onnx
    from hashlens.codes.model import ModelFolder
    from hashlens.data.images import as_images
    from hashlens.index.folder import IndexFolder
    from hashlens.progress import Progress

    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (24, 32, 32, 3), np.uint8), np.repeat(np.arange(3), 8)
    DTSH(48, backbone="small-cnn", training=Training(epochs=1, batch_size=8)).fit(images, labels).save(folder / "model")
    export_onnx(folder / "model", folder / "exported", as_images(images), Progress(quiet=True))
    described = ModelFolder.resolve(folder / "exported").describe()
    index = IndexFolder.create(folder / "index", 48, described)
    paths = pa.table({"path": [f"photos/{i:07d}.jpg" for i in range(CODES)]})
    index.add(Codes(rng.integers(0, 256, (CODES, 6), np.uint8), 48), paths)
    Image.fromarray(images[0]).resize((640, 480)).save(folder / "query.jpg")


def main() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "HASHLENS_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # write bytecode once, as pip does, regardless of the caller's environment
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        prepare(folder)
        search = ["-m", "hashlens", "search", str(folder / "index"), str(folder / "query.jpg")]
        found = {
            "bare": cpu_seconds("-c", BARE),
            "help": cpu_seconds("-m", "hashlens", "--help"),
            "search": cpu_seconds(*search, "--model", str(folder / "exported")),
        }
    print(f"bare imports ({BARE.removeprefix('import ')})  {found['bare']:.2f} s of CPU")
    print(f"hashlens --help   {found['help']:.2f} s")
    print(f"hashlens search   {found['search']:.2f} s, {found['search'] - found['bare']:.2f} s above the bare imports")
    if "--write" in sys.argv:
        write_json(FILE, json.loads(json.dumps(found)) | {"machine": machine()})


if __name__ == "__main__":
    main()
