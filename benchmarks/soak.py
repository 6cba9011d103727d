"""Soak test: everything at once, for as long as you like; nothing may be answered wrongly and nothing lost.

    python -m benchmarks.soak [--seconds 300] [--clients 16] [--kills 5] [--full 2] [--seed 0] [--write]

An index of small images is made on a disk of its own (a tmpfs of 200 MB, where that is allowed) and served by `hashlens
serve`. Clients search by id, code and image and check every answer against codes that they know; one adds and removes
images and remembers what was acknowledged; others send hostile images, or open connections and do not use them.
Meanwhile the server process is killed with SIGKILL, every third time with its supervisor, and the disk is filled. With
--write the figures also go to benchmarks/results/speed/soak.json. Exits with 1 if something was wrong or lost.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from benchmarks.hostile import hostile_images
from hashlens.codes import Codes
from hashlens.codes.encoder import Encoder
from hashlens.codes.model import ModelFolder
from hashlens.hashers.methods import make_hasher
from hashlens.index.folder import IndexFolder

FILE = Path(__file__).parent / "results" / "speed" / "soak.json"
TOKEN = "soak-" + "w" * 27
N_BITS, SIDE, K = 48, 40, 20
DISK = 200_000_000


def image_file(seed: int) -> bytes:
    """A PNG that is different for every seed."""
    rng = np.random.default_rng(seed)
    pixels = np.kron(rng.integers(0, 256, (5, 5, 3), np.uint8), np.ones((SIDE // 5, SIDE // 5, 1), np.uint8))
    pixels[0, 0] = seed % 256, seed // 256 % 256, seed // 65_536 % 256
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def prepare(folder: Path, n: int) -> Codes:
    """A model, n images and their index; gives their codes."""
    (folder / "images").mkdir()
    paths = [folder / "images" / f"{i:05d}.png" for i in range(n)]
    for i, path in enumerate(paths):
        path.write_bytes(image_file(i))
    pixels = np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), np.uint8)
    make_hasher("lsh", n_bits=N_BITS, features="gist").fit(list(pixels)).save(folder / "model")
    codes = Encoder.load(folder / "model").codes(paths)
    index = IndexFolder.create(folder / "index", N_BITS, ModelFolder(folder / "model").describe())
    index.add(codes, pa.table({"path": [path.as_posix() for path in paths]}))
    return codes


@contextlib.contextmanager
def own_disk(folder: Path) -> Iterator[bool]:
    """A small disk at `folder`; whether that was allowed."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    allowed = sys.platform.startswith("linux") and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield allowed
    finally:
        if allowed:
            subprocess.run(["umount", "-l", str(folder)], check=True)


class Server:
    """hashlens serve, started again whenever it ends."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.down: list[tuple[float, float]] = []  # when it did not answer, on purpose
        self.port = 0
        self.log = (folder.parent / "server.log").open("ab")
        self.start()

    def start(self) -> None:
        options = ["--port", self.port or 0, "--add-to", self.folder / "added", "--allow-anyone"]
        command = ["serve", self.folder / "index", "--model", self.folder / "model", *options]
        environment = os.environ | {"HASHLENS_WRITE_TOKEN": TOKEN}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hashlens", *map(str, command)],
            stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready"), (self.folder.parent / "server.log").read_text()[-2_000:]
        self.port = int(line.rsplit(":", 1)[1])
        self.address = f"http://127.0.0.1:{self.port}"

    def kill(self, supervisor_too: bool) -> None:
        start = time.monotonic()
        for pid in children(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if supervisor_too:
            self.process.kill()
            self.process.wait()
            self.start()
        while time.monotonic() < start + 120:
            with contextlib.suppress(OSError, ValueError):
                if json.load(urllib.request.urlopen(f"{self.address}/readyz", timeout=5))["ready"]:
                    break
            time.sleep(0.1)
        self.down.append((start, time.monotonic()))

    def stop(self) -> float:
        """Seconds until it has ended."""
        start = time.monotonic()
        self.process.terminate()
        self.process.wait(30)
        self.log.close()
        return time.monotonic() - start

    def memory(self) -> int:
        pids, total = [self.process.pid], 0
        while pids:
            pid = pids.pop()
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
                pids += children(pid)
        return total


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Soak:
    def __init__(self, server: Server, codes: Codes, pause: float):
        self.server, self.codes, self.pause = server, codes, pause
        self.packed = codes.packed
        self.stop = threading.Event()
        self.seconds: dict[str, list[tuple[float, float]]] = {"id": [], "code": [], "image": []}  # (start, end)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.added: dict[int, str] = {}  # acknowledged: id -> path
        self.removed: set[int] = set()
        self._lock = threading.Lock()

    def request(self, path: str, body: bytes, kind: str, method: str = "POST", timeout: float = 60) -> tuple[int, Any]:
        """Status and answer; 0 if the connection broke."""
        headers = {"Content-Type": kind, "Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(self.server.address + path, body or None, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                content = response.read()
                return response.status, json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (OSError, ValueError):
            return 0, None

    def client(self, rng: random.Random, kinds: tuple[str, ...] = ("id", "code", "image")) -> None:
        while not self.stop.wait(rng.expovariate(1 / self.pause) if self.pause else 0):
            kind, base = rng.choice(kinds), rng.randrange(len(self.codes))
            asked: dict[str, Any] = {"id": base} if kind == "id" else {"code": self.packed[base].tobytes().hex()}
            body, media = json.dumps(asked | {"k": K}).encode(), "application/json"
            if kind == "image":
                body, media = form(image_file(base))
            start = time.monotonic()
            status, answer = self.request("/v1/search", body, media)
            end = time.monotonic()
            self.note(f"search {status}", start, end)
            if status == 500:
                self.wrong.append(f"{kind} {base}: {answer.decode()}")
            if status == 200:
                self.seconds[kind].append((start, end))
                if found := self.why_wrong(base, answer):
                    self.wrong.append(f"{kind} {base}: {found}")

    def why_wrong(self, base: int, answer: dict[str, Any]) -> str:
        """Compared with what is known: the images that were there from the start are never removed."""
        code = self.packed[base]
        if bytes.fromhex(answer["query"]["code"]) != code.tobytes():
            return "another code"
        hits = [(hit["distance"], hit["id"]) for hit in answer["hits"]]
        if hits != sorted(hits) or len(hits) != K:
            return "not in order, or not as many as asked"
        distances = np.bitwise_count(self.packed ^ code).sum(1)
        for hit in answer["hits"]:
            own = np.frombuffer(bytes.fromhex(hit["code"]), np.uint8)
            if np.bitwise_count(own ^ code).sum() != hit["distance"]:
                return f"image {hit['id']} is at another distance"
            if hit["id"] < len(self.codes) and (own != self.packed[hit["id"]]).any():
                return f"image {hit['id']} has another code"
        nearer = set(np.flatnonzero(distances < hits[-1][0]).tolist()) - {id_ for _, id_ in hits}
        return f"image {min(nearer)} is missing" if nearer else ""

    def writer(self, rng: random.Random) -> None:
        number = 1_000_000
        while not self.stop.wait(rng.expovariate(2)):
            alive = [id_ for id_ in self.added if id_ not in self.removed]
            start = time.monotonic()
            if alive and rng.random() < 0.4:
                id_ = rng.choice(alive)
                status, _ = self.request(f"/v1/images/{id_}", b"", "", "DELETE")
                with self._lock:
                    if status == 204:
                        self.removed.add(id_)
                    else:
                        self.added.pop(id_)  # it may be gone or not
                self.note(f"remove {status}", start, time.monotonic())
            else:
                number += 1
                status, item = self.request("/v1/images", *form(image_file(number)))
                with self._lock:
                    if status in (200, 201):
                        self.added[item["id"]] = item["path"]
                self.note(f"add {status}", start, time.monotonic())
            if status == 500:
                self.wrong.append("a change caused a server error")

    def lost(self) -> list[str]:
        """Acknowledged changes that the index on disk does not have."""
        with self._lock:
            added, removed = dict(self.added), set(self.removed)
            index = IndexFolder.open(self.server.folder / "index")
        items = index.lookup(list(added) or [0])
        there = {id_ for id_ in added if id_ not in removed}
        lost = [f"added {id_}" for id_ in there if items.get(id_, {}).get("path") != added[id_]]
        lost += [f"file of {id_}" for id_ in there if not Path(added[id_]).exists()]
        return lost + [f"removed {id_}" for id_ in removed if id_ in items]

    def hostile(self, rng: random.Random) -> None:
        images = list(hostile_images().items())
        while not self.stop.wait(rng.expovariate(2)):
            name, content = rng.choice(images)
            start = time.monotonic()
            status, _ = self.request("/v1/search", *form(content))
            self.note(f"hostile {status}", start, time.monotonic())
            if status == 500:
                self.wrong.append(f"{name} caused a server error")

    def slow(self, rng: random.Random) -> None:
        """Connections that send nothing, half a header, or a body drop by drop."""
        starts = (b"", b"GET /v1/in", b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n")
        opened: list[socket.socket] = []
        while not self.stop.wait(0.2):
            with contextlib.suppress(OSError):
                connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=5)
                connection.sendall(rng.choice(starts))
                opened.append(connection)
                self.counts["slow connections"] += 1
            for connection in opened:
                with contextlib.suppress(OSError):
                    connection.sendall(b"x")
            while len(opened) > 60:
                opened.pop(0).close()
        for connection in opened:
            connection.close()

    def note(self, what: str, start: float, end: float) -> None:
        """Count an answer; broken connections while the server was down are expected."""
        with self._lock:
            self.counts[what] += 1
        if what.endswith(" 0"):
            time.sleep(1)
            if not any(start < up + 10 and end > down - 2 for down, up in [*self.server.down, self.going_down]):
                self.wrong.append(f"{what}: the connection broke")

    going_down: tuple[float, float] = (0.0, 0.0)

    def disturb(self, rng: random.Random, end: float, kills: int, fills: int) -> None:
        """Kill the server and fill the disk, evenly spread; check after each that nothing was lost."""
        events = ["kill"] * kills + ["fill"] * fills
        rng.shuffle(events)
        start = time.monotonic()
        for number, event in enumerate(events):
            moment = start + (end - start) * (number + rng.random()) / len(events)
            if self.stop.wait(max(0.0, moment - time.monotonic())):
                return
            if event == "kill":
                self.going_down = (time.monotonic(), time.monotonic() + 200)
                self.server.kill(supervisor_too=number % 3 == 2)
                self.going_down = (0.0, 0.0)
            else:
                fill = self.server.folder / "fill"
                with contextlib.suppress(OSError), fill.open("wb", buffering=0) as file:
                    while True:
                        file.write(b"\0" * 2**16)
                self.stop.wait(10)
                fill.unlink()
            self.wrong += self.lost()
            print(f"  {event} {number + 1} of {len(events)}: {dict(self.counts)}", file=sys.stderr)


def form(content: bytes) -> tuple[bytes, str]:
    boundary = base64.b16encode(random.randbytes(12)).decode()
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    return head.encode() + content + f"\r\n--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def percentiles(times: list[tuple[float, float]], down: list[tuple[float, float]]) -> dict[str, float]:
    """Of the searches while the server was up, in ms."""
    up = [b - a for a, b in times if not any(a < after + 2 and b > before - 1 for before, after in down)]
    values = np.percentile(np.array(up or [0.0]) * 1_000, (50, 99))
    return {"p50_ms": round(float(values[0]), 1), "p99_ms": round(float(values[1]), 1)}


def soak(folder: Path, seconds: float, clients: int, kills: int, fills: int, seed: int, n: int, pause: float) -> Any:
    codes = prepare(folder, n)
    server = Server(folder)
    try:
        run = Soak(server, codes, pause)
        _run_for(run, 15, [lambda: run.client(random.Random(seed), ("id",))])
        idle = percentiles(run.seconds["id"], [])
        _run_for(run, 5, [lambda: run.client(random.Random(seed), ("image",))])
        before = server.memory()
        run = Soak(server, codes, pause)
        rngs = [random.Random(f"{seed} {i}") for i in range(clients + 4)]
        tasks: list[Callable[[], None]] = [lambda rng=rng: run.client(rng) for rng in rngs[4:]]  # type: ignore[misc]
        end = time.monotonic() + seconds
        tasks += [lambda: run.writer(rngs[0]), lambda: run.hostile(rngs[1]), lambda: run.slow(rngs[2])]
        tasks += [lambda: run.disturb(rngs[3], end, kills, fills)]
        _run_for(run, seconds, tasks)
        lost = run.lost()
        _run_for(Soak(server, codes, pause), 5, [lambda: None])
        after = server.memory()
        IndexFolder.open(folder / "index").verify()
        by_id = percentiles(run.seconds["id"], server.down)
        found = {
            "seconds": seconds, "clients": clients, "images": n, "kills": len(server.down), "disk_filled": fills,
            "counts": dict(sorted(run.counts.items())), "wrong": len(run.wrong), "first_wrong": run.wrong[:5],
            "lost": len(lost), "acknowledged": len(run.added) + len(run.removed),
            "idle": idle, "by_id": by_id, "p99_ratio": round(by_id["p99_ms"] / idle["p99_ms"], 1),
            "by_code": percentiles(run.seconds["code"], server.down),
            "by_image": percentiles(run.seconds["image"], server.down),
            "memory_before": before, "memory_after": after,
        }  # fmt: skip
    finally:
        stopped = server.stop()
    if run.wrong or lost:
        print((folder.parent / "server.log").read_text(encoding="utf-8")[-10_000:], file=sys.stderr)
    return found | {"seconds_to_stop": round(stopped, 1)}


def _run_for(run: Soak, seconds: float, tasks: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    run.stop.set()
    for thread in threads:
        thread.join()
    run.stop.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--full", type=int, default=2, help="How often the disk is filled.")
    parser.add_argument("--n", type=int, default=2_000, help="Images in the index.")
    parser.add_argument("--pause", type=float, default=0.5, help="Mean seconds between two requests of a client.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="Keep the figures for docs.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "disk"
        folder.mkdir()
        with own_disk(folder) as has_disk:
            if not has_disk:
                print("note: no disk of its own could be mounted, so none is filled", file=sys.stderr)
            fills = options.full if has_disk else 0
            given = options.seconds, options.clients, options.kills, fills, options.seed, options.n, options.pause
            found = soak(folder, *given)
    text = json.dumps(found, indent=2)
    print(text)
    if options.write:
        FILE.write_text(text + "\n", encoding="utf-8")
    raise SystemExit(bool(found["wrong"] or found["lost"]))


if __name__ == "__main__":
    main()
