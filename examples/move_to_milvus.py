"""Move an index to Milvus

An index folder in; the same codes in a Milvus collection out, with every answer compared. Without an address it uses
Milvus Lite, a file (`pip install ".[milvus-lite]"`, not on Windows).

    python examples/move_to_milvus.py http://localhost:19530
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import hashlens
from hashlens.index.engines import open_engine

where = sys.argv[1] if sys.argv[1:] else "codes.db"
photos = Path("photos-for-milvus")
photos.mkdir(exist_ok=True)
for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (30, 4, 4, 3), np.uint8)):
    Image.fromarray(pixels).resize((64, 64)).save(photos / f"{i:02}.png")

run = lambda *words: subprocess.run([sys.executable, "-m", "hashlens", *words], check=True)  # noqa: E731
run("encode", str(photos), "--out", "milvus-codes", "--quiet")
run("index", "build", "milvus-codes", "--out", "milvus-index", "--quiet")
run("index", "copy", "milvus-index", "--engine", "milvus", "--to", where, "--verify")

here = hashlens.open_searcher("milvus-index")
there = hashlens.open_searcher("milvus-index", engine=open_engine("milvus", here.index.n_bits, where))
for name in ("03.png", "17.png"):
    ours, theirs = (found.search(photos / name, k=5)["hits"] for found in (here, there))
    same = [(hit["id"], hit["distance"]) for hit in ours] == [(hit["id"], hit["distance"]) for hit in theirs]
    print(f"{name}: {[hit['id'] for hit in theirs]}, {'the same as the index' if same else 'NOT the same'}")
    assert same
