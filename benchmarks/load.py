"""Load test: several clients query a served index of random codes at once; measures latency and memory growth.

    python -m benchmarks.load [--n 1000000] [--clients 8] [--seconds 60] [--server http://127.0.0.1:8000] [--write]

The index is made in a temporary folder and served by a separate process on this machine. With --server a running server
is queried instead, by ids that it has. With --write the figures also go to benchmarks/results/speed/load.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parent / "results" / "speed" / "load.json"

SERVE = """
import sys
from pathlib import Path
from hashlens.index.folder import IndexFolder
from hashlens.search import Searcher
from hashlens.server.process import serve
from hashlens.server.serving import Serving, listen
sock = listen("127.0.0.1", 8000)
searcher = Searcher(IndexFolder.open(Path(sys.argv[1])))
serve(searcher, Serving(port=sock.getsockname()[1]), sock, lambda text: print(text, flush=True))
"""


def make_index(folder: Path, n: int, n_bits: int, seed: int = 0) -> None:
    import pyarrow as pa

    from hashlens.codes import Codes
    from hashlens.index.folder import IndexFolder

    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 256, (n, -(-n_bits // 8)), np.uint8)
    if n_bits % 8:
        bits[:, -1] &= 0xFF ^ (0xFF >> (n_bits % 8))
    index = IndexFolder.create(folder, n_bits, {"fingerprint": "0" * 64, "name": "random"})
    index.add(Codes(bits, n_bits), pa.table({"path": [f"images/{i:09d}.jpg" for i in range(n)]}))


def ask(address: str, n: int, seconds: float, seed: int, times: list[float], errors: list[str]) -> None:
    """One client: it sends the next query when the last one is answered."""
    rng = np.random.default_rng(seed)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        body = json.dumps({"id": int(rng.integers(n)), "k": 20}).encode()
        request = urllib.request.Request(f"{address}/v1/search", body, {"Content-Type": "application/json"})
        start = time.perf_counter()
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                if len(json.load(response)["hits"]) != min(20, n):
                    errors.append("too few hits")
        except (OSError, ValueError, urllib.error.URLError) as error:
            errors.append(str(error))
            continue
        times.append(time.perf_counter() - start)


def load(address: str, clients: int, seconds: float) -> dict[str, Any]:
    """Run all clients for `seconds`; returns their measurements, and the server's memory before and after."""
    n = json.load(urllib.request.urlopen(f"{address}/v1/info"))["n"]
    for number in range(3):  # allocations of the first queries are not growth
        ask(address, n, 1.0, number, [], [])
    before = memory(address)
    times: list[float] = []
    errors: list[str] = []
    threads = [threading.Thread(target=ask, args=(address, n, seconds, 100 + i, times, errors)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    milliseconds = np.array(times) * 1000
    return {
        "n": n,
        "clients": clients,
        "answers": len(times),
        "per_second": round(len(times) / seconds, 1),
        "p50_ms": round(float(np.percentile(milliseconds, 50)), 2),
        "p99_ms": round(float(np.percentile(milliseconds, 99)), 2),
        "errors": len(errors),
        "first_error": errors[0] if errors else None,
        "memory_before": before,
        "memory_after": memory(address),
    }


def memory(address: str) -> int:
    with urllib.request.urlopen(f"{address}/metrics") as response:
        lines = response.read().decode().splitlines()
    return next(int(float(line.split()[1])) for line in lines if line.startswith("process_resident_memory_bytes"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--bits", type=int, default=48)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--server", help="Address of a running server.")
    parser.add_argument("--write", action="store_true", help="Keep the figures for docs.")
    options = parser.parse_args()
    if options.server:
        found = load(options.server, options.clients, options.seconds)
    else:
        found = load_own(options.n, options.bits, options.clients, options.seconds)
    text = json.dumps(found, indent=2)
    print(text)
    if options.write:
        FILE.write_text(text + "\n", encoding="utf-8")


def load_own(n: int, n_bits: int, clients: int, seconds: float) -> dict[str, Any]:
    """The same for an index of random codes, made and served here."""
    with tempfile.TemporaryDirectory() as folder:
        make_index(Path(folder) / "index", n, n_bits)
        command = [sys.executable, "-c", SERVE, str(Path(folder) / "index")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                return load(server.stdout.readline().split()[-1], clients, seconds)
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
