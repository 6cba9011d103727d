"""Milvus and PostgreSQL under load, killed and restarted: there must be no wrong answer and no loss.

    python -m benchmarks.engine_load [milvus] [pgvector] [--seconds 600] [--clients 16] [--kills 2] [--pause 0.05]
        [--write]

An index of 20,000 random codes is built on a real server. Clients, each with its own connection, search, add and remove
images; a quarter of them search through `hashlens serve`, which must answer 200 or, while the server is down, 503 with
Retry-After. Meanwhile the server is killed with SIGKILL and restarted. Every answer is compared with the clients'
knowledge: distances, order, no image whose removal was acknowledged before, and no acknowledged image missing. Milvus
shows other clients' writes within its bounded staleness of 5 seconds, PostgreSQL at once. Unacknowledged writes may be
there or not. At the end every acknowledged write is looked up. With --write the figures go to
benchmarks/results/engine-load.json. Exits with 1 if something was wrong or lost.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.engine_servers import SERVERS, Server
from hashlens.codes import Codes
from hashlens.codes.model import ModelFolder
from hashlens.errors import StorageError, Unreachable
from hashlens.files import write_json
from hashlens.hashers.methods import make_hasher
from hashlens.index.engines import open_server
from hashlens.index.engines.server import Engine
from hashlens.machine import blocks, machine

FILE = Path(__file__).parent / "results" / "engine-load.json"
N_BITS, N_BASE, K, MOST = 48, 20_000, 20, 200_000
STALENESS = {"milvus": 5.5, "pgvector": 0.0}  # seconds
DOWN_SECONDS = 5
NEVER = np.inf


def path_of(id_: int) -> str:
    return f"/load/{id_:09d}.jpg"


class Known:
    """The clients' knowledge of every image: its code, and when its changes were begun and acknowledged."""

    def __init__(self, base: np.ndarray):
        self.packed = np.zeros((MOST, base.shape[1]), np.uint8)
        self.packed[: len(base)] = base
        self.adding, self.added, self.removing, self.removed = (np.full(MOST, NEVER) for _ in range(4))
        self.adding[: len(base)] = self.added[: len(base)] = -NEVER
        self.n = len(base)
        self._lock = threading.Lock()

    def new(self, code: np.ndarray) -> int:
        with self._lock:
            id_, self.n = self.n, self.n + 1
        self.packed[id_] = code
        self.adding[id_] = time.monotonic()
        return id_

    def why_wrong(self, code: np.ndarray, hits: list[tuple[int, int]], start: float, end: float, late: float) -> str:
        """What is wrong with the (distance, id) pairs of an answer requested at `start` and received at `end`."""
        n = self.n
        distances = np.bitwise_count(self.packed[:n] ^ code).sum(1, dtype=np.int64)
        if hits != sorted(hits) or len(hits) != K or len({id_ for _, id_ in hits}) != K:
            return f"not in order, or not as many as asked: {hits}"
        for distance, id_ in hits:
            if id_ >= n or distances[id_] != distance:
                return f"image {id_} is at another distance"
            if self.adding[id_] > end:
                return f"image {id_} was not there yet"
            if self.removed[id_] < start - late:
                return f"image {id_} was removed {start - self.removed[id_]:.2f} s before"
        last = hits[-1]
        must = (self.added[:n] < start - late) & (self.removing[:n] > end)
        nearer = (distances < last[0]) | ((distances == last[0]) & (np.arange(n) < last[1]))
        missing = set(np.flatnonzero(must & nearer).tolist()) - {id_ for _, id_ in hits}
        if missing:
            one = min(missing)
            return f"image {one} is missing, added {start - self.added[one]:.2f} s before"
        return ""


class Load:
    def __init__(self, name: str, server: Server, known: Known, late: float, pause: float):
        self.name, self.server, self.known, self.late, self.pause = name, server, known, late, pause
        self.stop = threading.Event()
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, list[float]] = {"search": [], "add": [], "remove": [], "serve": []}
        self.wrong: list[str] = []
        self.outages: list[float] = []
        self._lock = threading.Lock()

    def note(self, kind: str, outcome: str, start: float) -> None:
        with self._lock:
            self.counts[f"{kind} {outcome}"] += 1
            if outcome == "done":
                self.seconds[kind].append(time.monotonic() - start)

    def query(self, rng: random.Random) -> np.ndarray:
        """The code of some image with a few bits changed."""
        code = self.known.packed[rng.randrange(self.known.n)].copy()
        for _ in range(rng.randrange(6)):
            code[rng.randrange(len(code))] ^= 1 << rng.randrange(8)
        return code

    def client(self, seed: int) -> None:
        rng, own = random.Random(seed), list[int]()
        engine: Engine | None = None
        while not self.stop.wait(rng.expovariate(1 / self.pause)):
            kind, start = rng.choices(("search", "add", "remove"), (6, 3, 1 if own else 0))[0], time.monotonic()
            try:
                engine = engine or open_server(self.name, self.server.where)
                getattr(self, kind)(engine, rng, own)
                self.note(kind, "done", start)
            except Unreachable:
                self.note(kind, "refused", start)
                self.stop.wait(0.5)
            except Exception as error:
                self.wrong.append(f"{kind}: {error!r}"[:500])
        if engine is not None:
            engine.close()

    def search(self, engine: Engine, rng: random.Random, own: list[int]) -> None:
        code, start = self.query(rng), time.monotonic()
        distances, ids = engine.search(Codes(code[None], N_BITS), K)
        hits = list(zip(distances[0].tolist(), ids[0].tolist(), strict=True))
        if why := self.known.why_wrong(code, hits, start, time.monotonic(), self.late):
            self.wrong.append(f"search: {why}")

    def add(self, engine: Engine, rng: random.Random, own: list[int]) -> None:
        code = self.query(rng)
        id_ = self.known.new(code)
        items = pa.table({"path": [path_of(id_)], "labels": [[f"client {threading.get_ident()}"]]})
        engine.add(Codes(code[None], N_BITS), items, ids=[id_])
        self.known.added[id_] = time.monotonic()
        own.append(id_)

    def remove(self, engine: Engine, rng: random.Random, own: list[int]) -> None:
        id_ = own.pop(rng.randrange(len(own)))
        self.known.removing[id_] = time.monotonic()
        engine.remove([id_])
        self.known.removed[id_] = time.monotonic()

    def visitor(self, seed: int, address: str) -> None:
        """Searches through `hashlens serve`."""
        rng = random.Random(seed)
        while not self.stop.wait(rng.expovariate(1 / self.pause)):
            code, start = self.query(rng), time.monotonic()
            body = json.dumps({"code": code.tobytes().hex(), "k": K}).encode()
            request = urllib.request.Request(f"{address}/v1/search", body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=120) as response:
                    answer = json.load(response)
            except urllib.error.HTTPError as error:
                with error:
                    detail = error.read()
                if error.code != 503 or not error.headers["Retry-After"]:
                    self.wrong.append(f"serve: {error.code} {detail!r}"[:500])
                self.note("serve", f"{error.code}", start)
                self.stop.wait(0.5)
                continue
            hits = [(hit["distance"], hit["id"]) for hit in answer["hits"]]
            why = self.known.why_wrong(code, hits, start, time.monotonic(), self.late)
            if not why and any(hit["path"] != path_of(hit["id"]) for hit in answer["hits"]):
                why = "an image has the path of another"
            if why:
                self.wrong.append(f"serve: {why}")
            self.note("serve", "done", start)

    def interrupt(self) -> None:
        """Kill the server, restart it, and wait until it answers."""
        start = time.monotonic()
        self.server.kill()
        time.sleep(DOWN_SECONDS)
        self.server.start()
        n = self.counts["search done"], self.counts["serve done"]
        while not self.stop.wait(0.2):
            if self.counts["search done"] > n[0] and self.counts["serve done"] > n[1]:
                break
        self.outages.append(round(time.monotonic() - start, 1))

    def lost(self) -> list[str]:
        """Acknowledged writes that the server does not have."""
        known = self.known
        engine = open_server(self.name, self.server.where)
        must = np.flatnonzero((known.added[: known.n] < NEVER) & (known.removing[: known.n] == NEVER))
        lost = []
        for rows in blocks(len(must), 5_000):
            found = engine.lookup(must[rows])
            for id_ in must[rows].tolist():
                item = found.get(id_, {"code": "", "path": ""})
                if (item["code"], item["path"]) != (known.packed[id_].tobytes().hex(), path_of(id_)):
                    lost.append(f"added {id_}")
        gone = np.flatnonzero(known.removed[: known.n] < NEVER)
        lost += [f"removed {id_}" for id_ in engine.contains(gone).tolist()]
        engine.close()
        return lost


def serve(name: str, where: str, folder: Path) -> tuple[subprocess.Popen[str], str]:
    command = ["serve", "--engine", name, "--at", where, "--model", str(folder / "model"), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hashlens", *command],
        stdout=subprocess.PIPE,
        stderr=(folder / "serve.log").open("wb"),
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready"), (folder / "serve.log").read_text()[-2_000:]
    return process, line.split()[-1]


def run(name: str, folder: Path, seconds: float, clients: int, kills: int, pause: float) -> dict[str, Any]:
    base = np.random.default_rng(0).integers(0, 256, (N_BASE, N_BITS // 8), np.uint8)
    pixels = np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), np.uint8)
    make_hasher("lsh", n_bits=N_BITS, features="gist", random_state=0).fit(list(pixels)).save(folder / "model")
    with SERVERS[name](folder / "server") as server:
        for attempt in range(20):
            try:
                engine = open_server(name, server.where, n_bits=N_BITS, model=ModelFolder(folder / "model").describe())
                break
            except StorageError:  # the server has just started
                if attempt == 19:
                    raise
                time.sleep(2)
        engine.add(Codes(base, N_BITS), pa.table({"path": [path_of(id_) for id_ in range(N_BASE)]}))
        engine.flush()
        engine.close()
        process, address = serve(name, server.where, folder)
        load = Load(name, server, Known(base), STALENESS[name], pause)
        n_visitors = clients // 4
        threads = [threading.Thread(target=load.client, args=(seed,)) for seed in range(clients - n_visitors)]
        threads += [threading.Thread(target=load.visitor, args=(seed + 1_000, address)) for seed in range(n_visitors)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for kill in range(kills):
            time.sleep(max(0.0, start + seconds * (kill + 1) / (kills + 1) - time.monotonic()))
            load.interrupt()
            print(f"{name}: killed; it answered again after {load.outages[-1]} s", flush=True)
        time.sleep(max(0.0, start + seconds - time.monotonic()))
        load.stop.set()
        for thread in threads:
            thread.join()
        process.terminate()
        process.wait(30)
        lost = load.lost()
        print(f"{name}: {len(load.wrong)} wrong, {len(lost)} lost, {dict(load.counts)}", flush=True)
    times = {kind: np.percentile(found, [50, 99]) for kind, found in load.seconds.items() if found}
    return {
        "seconds": round(time.monotonic() - start),
        "clients": clients,
        "pause": pause,
        "images": N_BASE,
        "counts": dict(sorted(load.counts.items())),
        "wrong": len(load.wrong),
        "acknowledged": load.counts["add done"] + load.counts["remove done"],
        "lost": len(lost),
        "outages": load.outages,
        "ms": {kind: {"p50": round(1e3 * p50, 1), "p99": round(1e3 * p99, 1)} for kind, (p50, p99) in times.items()},
        "said": [*load.wrong, *lost][:20],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", metavar="engine", help=", ".join(SERVERS))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.05, help="mean seconds between two requests of a client")
    parser.add_argument("--write", action="store_true", help=f"also write {FILE.name}")
    asked = parser.parse_args()
    if unknown := [name for name in asked.engines if name not in SERVERS]:
        parser.error(f"there is no engine {unknown[0]}; choose from {', '.join(SERVERS)}")
    failed = False
    for name in asked.engines or SERVERS:
        with tempfile.TemporaryDirectory() as folder:
            found = run(name, Path(folder).resolve(), asked.seconds, asked.clients, asked.kills, asked.pause)
        print(name, json.dumps(found), flush=True)
        failed |= bool(found["wrong"] or found["lost"])
        if asked.write:
            before = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
            write_json(FILE, before | {name: found, "machine": machine()})
    sys.exit(failed)


if __name__ == "__main__":
    main()
