"""A client of the search service

Starts `hashlens serve` for a folder, sends an image over HTTP as any program would, and prints the answer. Standard
library only.

    python examples/search_service_client.py photos/ query.jpg
"""

import json
import re
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path

import numpy as np
from PIL import Image


def ask(address: str, image: Path, k: int = 5) -> dict:
    """POST /v1/search with the image as multipart/form-data."""
    line = uuid.uuid4().hex
    head = f'--{line}\r\nContent-Disposition: form-data; name="k"\r\n\r\n{k}\r\n'
    head += f'--{line}\r\nContent-Disposition: form-data; name="image"; filename="query"\r\n\r\n'
    body = head.encode() + image.read_bytes() + f"\r\n--{line}--\r\n".encode()
    request = urllib.request.Request(f"{address}/v1/search", body)
    request.add_header("Content-Type", f"multipart/form-data; boundary={line}")
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def made_photos(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (12, 4, 4, 3), np.uint8)):
        Image.fromarray(pixels).resize((64, 64)).save(folder / f"{i}.png")
    return folder


photos = Path(sys.argv[1]) if sys.argv[1:] else made_photos(Path("served-photos"))
query = Path(sys.argv[2]) if sys.argv[2:] else photos / "7.png"
command = [sys.executable, "-m", "hashlens", "serve", str(photos), "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    ready = server.stdout.readline()  # ready  12 images … http://127.0.0.1:43210
    address = re.search(r"http://\S+", ready)[0].rstrip("/")
    for hit in ask(address, query)["hits"]:
        print(f"{hit['distance']:4} bits  id {hit['id']:3}  {Path(hit['path']).name}")
    server.terminate()
