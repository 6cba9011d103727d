"""Soak test: everything at once, for as long as you like; there must be no wrong answer and no loss.

    python -m benchmarks.soak [--seconds 300] [--clients 16] [--kills 5] [--full 2] [--promotes 2] [--seed 0] [--write]

An index of small images is made on a separate disk (a tmpfs of 200 MB, if allowed) and served by `hashlens serve`.
Clients search by id, code and image and check every answer against known codes; one adds and removes images over HTTP,
adds, changes, touches and deletes files and runs `hashlens index sync`, builds an index with another model and runs
`hashlens index promote`, and remembers what was acknowledged; others send hostile images, or open connections without
using them. Meanwhile the server process is killed with SIGKILL, every third time with its supervisor, and the disk is
filled. A separate process times searches by id, before and during all this; clients and commands, which could run on
other machines, have a lower priority. With --write the figures also go to benchmarks/results/speed/soak.json. Exits
with 1 if something was wrong or lost.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import itertools
import json
import multiprocessing
import os
import random
import shutil
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from benchmarks.hostile import hostile_images
from hashlens.codes import Codes
from hashlens.codes.encode import stamps_of
from hashlens.codes.encoder import Encoder
from hashlens.codes.folder import STAMPS
from hashlens.codes.model import ModelFolder
from hashlens.hashers.methods import make_hasher
from hashlens.index.changes import marks_in
from hashlens.index.folder import IndexFolder

FILE = Path(__file__).parent / "results" / "speed" / "soak.json"
TOKEN = "soak-" + "w" * 27
N_BITS, SIDE, K = 48, 40, 20
DISK = 200_000_000
SYNC_SECONDS, IDLE_SECONDS = 30, 60
ACKNOWLEDGED = ("add 201", "remove 204", "sync done", "promote done")


def image_file(seed: int) -> bytes:
    """A PNG that is different for every seed."""
    rng = np.random.default_rng(seed)
    pixels = np.kron(rng.integers(0, 256, (5, 5, 3), np.uint8), np.ones((SIDE // 5, SIDE // 5, 1), np.uint8))
    pixels[0, 0] = seed % 256, seed // 256 % 256, seed // 65_536 % 256
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@dataclass
class Model:
    name: str
    fingerprint: str
    encoder: Encoder
    packed: np.ndarray  # codes of the images present from the start


def prepare(folder: Path, n: int) -> list[Model]:
    """Two models, n images and their index, made by the first model."""
    (folder / "images").mkdir()
    paths = [folder / "images" / f"{i:05d}.png" for i in range(n)]
    for i, path in enumerate(paths):
        path.write_bytes(image_file(i))
    models = []
    for number, name in enumerate(("first", "second")):
        pixels = np.random.default_rng(number).integers(0, 256, (50, 32, 32, 3), np.uint8)
        make_hasher("lsh", n_bits=N_BITS, features="gist", random_state=number).fit(list(pixels)).save(folder / name)
        encoder = Encoder.load(folder / name)
        models.append(Model(name, encoder.model["fingerprint"], encoder, encoder.codes(paths).packed))
    index = IndexFolder.create(folder / "index", N_BITS, ModelFolder(folder / "first").describe())
    names = [path.as_posix() for path in paths]
    stamps = np.array([stamps_of(name) for name in names])
    items = {"path": names} | {name: stamps[:, at] for at, name in enumerate(STAMPS)}
    index.add(Codes(models[0].packed, N_BITS), pa.table(items))
    return models


@contextlib.contextmanager
def own_disk(folder: Path) -> Iterator[bool]:
    """Mount a small disk at `folder`; yields whether that was allowed."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    allowed = sys.platform.startswith("linux") and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield allowed
    finally:
        if allowed:
            subprocess.run(["umount", "-l", str(folder)], check=True)


class Server:
    """hashlens serve, restarted whenever it ends."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.down: list[tuple[float, float]] = []  # periods of deliberate downtime
        self.port = 0
        self.log = (folder.parent / "server.log").open("ab")
        self.start()

    def start(self) -> None:
        options = ["--port", self.port or 0, "--add-to", self.folder / "later", "--allow-anyone"]
        command = ["serve", self.folder / "index", *options, "--scrub-seconds", 5]
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
        """Stop the server; returns the seconds it took."""
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
    def __init__(self, server: Server, models: list[Model], pause: float, promotes: int = 0):
        self.server, self.models, self.pause, self.promotes = server, models, pause, promotes
        self.n = len(models[0].packed)
        self.stop = threading.Event()
        self.seconds: dict[str, list[tuple[float, float]]] = {"id": [], "code": [], "image": []}
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.there: dict[str, int] = {}  # acknowledged: path -> id
        self.gone: set[str] = set()  # acknowledged: removed paths
        self._lock = threading.Lock()
        self._changing = threading.Lock()  # held from before a change until it is recorded

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
            kind, base = rng.choice(kinds), rng.randrange(self.n)
            packed = rng.choice(self.models).packed
            asked: dict[str, Any] = {"id": base} if kind == "id" else {"code": packed[base].tobytes().hex()}
            body, media = json.dumps(asked | {"k": K}).encode(), "application/json"
            if kind == "image":
                body, media = form(image_file(base))
            start = time.monotonic()
            status, answer = self.request("/v1/search", body, media)
            end = time.monotonic()
            self.note(f"search {status}", start, end)
            if status not in (0, 200, 503):
                self.wrong.append(f"{kind} {base}: {answer.decode()}")
            if status == 200:
                self.seconds[kind].append((start, end))
                if found := self.why_wrong(base, answer, packed[base] if kind == "code" else None):
                    self.wrong.append(f"{kind} {base}: {found}")

    def why_wrong(self, base: int, answer: dict[str, Any], code: np.ndarray | None) -> str:
        """What is wrong with an answer, given that images present from the start are never removed."""
        model = answer["index"]["model"]["fingerprint"]
        packed = next(one.packed for one in self.models if one.fingerprint == model)
        code = packed[base] if code is None else code
        if bytes.fromhex(answer["query"]["code"]) != code.tobytes():
            return "another code"
        hits = [(hit["distance"], hit["id"]) for hit in answer["hits"]]
        if hits != sorted(hits) or len(hits) != K:
            return "not in order, or not as many as asked"
        distances = np.bitwise_count(packed ^ code).sum(1)
        for hit in answer["hits"]:
            own = np.frombuffer(bytes.fromhex(hit["code"]), np.uint8)
            if np.bitwise_count(own ^ code).sum() != hit["distance"]:
                return f"image {hit['id']} is at another distance"
            if hit["id"] < self.n and (own != packed[hit["id"]]).any():
                return f"image {hit['id']} has another code"
        nearer = set(np.flatnonzero(distances < hits[-1][0]).tolist()) - {id_ for _, id_ in hits}
        return f"image {min(nearer)} is missing" if nearer else ""

    def writer(self, rng: random.Random, end: float) -> None:
        """Everything that changes the index, one after the other."""
        start = time.monotonic()
        promotes = [start + (end - start) * (i + 0.5) / self.promotes for i in range(self.promotes)]
        numbers, next_sync = itertools.count(1_000_000), start + 5
        while not self.stop.wait(rng.expovariate(2)):
            now = time.monotonic()
            with self._changing:
                if promotes and now > promotes[0]:
                    promotes.pop(0)
                    self.promote()
                elif now > next_sync:
                    self.sync(rng, numbers)
                    next_sync = time.monotonic() + SYNC_SECONDS
                else:
                    self.change(rng, numbers)

    def change(self, rng: random.Random, numbers: Iterator[int]) -> None:
        """Add or remove an image over HTTP."""
        added = [path for path in self.there if "/later/" in path]
        start = time.monotonic()
        if added and rng.random() < 0.4:
            path = rng.choice(added)
            status, _ = self.request(f"/v1/images/{self.there.pop(path)}", b"", "", "DELETE")
            if status == 204:  # otherwise it may or may not be gone
                self.gone.add(path)
            self.note(f"remove {status}", start, time.monotonic())
        else:
            status, item = self.request("/v1/images", *form(image_file(next(numbers))))
            if status in (200, 201):
                self.there[item["path"]] = item["id"]
            self.note(f"add {status}", start, time.monotonic())
        if status == 500:
            self.wrong.append("a change caused a server error")

    def sync(self, rng: random.Random, numbers: Iterator[int]) -> None:
        """Add, change, touch and delete files, and sync the index with them."""
        folder = self.server.folder / "photos"
        folder.mkdir(exist_ok=True)
        mine = sorted(path for path in folder.glob("*.png") if path.as_posix() in self.there)
        changed, touched, deleted = rng.sample(mine, 3) if len(mine) > 9 else (None, None, None)
        new = [folder / f"{next(numbers)}.png" for _ in range(2)]
        try:
            for path in (*new, *filter(None, [changed])):
                path.write_bytes(image_file(next(numbers)))
        except OSError:  # the disk is full, so the file is not an image
            for path in new:
                path.unlink(missing_ok=True)
            new = []
        before = dict(self.there)
        if touched is not None and deleted is not None:
            os.utime(touched, (1, rng.randrange(10**9)))  # a time long ago
            deleted.unlink()
            self.there.pop(deleted.as_posix())
            self.there.pop(touched.as_posix())
        wanted = [*self.base(), *self.there, *(path.as_posix() for path in (*new, *filter(None, [touched])))]
        if not self.command("sync", "index", "sync", "index", self.listed(wanted)):
            for path in (*new, *filter(None, [changed])):
                self.there.pop(path.as_posix(), None)
                path.unlink(missing_ok=True)  # it may or may not be in the index
            return
        if deleted is not None:
            self.gone.add(deleted.as_posix())
        index = self.noted(wanted)
        if touched is not None and self.there.get(touched.as_posix()) != before[touched.as_posix()]:
            self.wrong.append(f"{touched} was encoded again though only its time has changed")
        fresh = [path for path in (*new, *filter(None, [changed])) if path.as_posix() in self.there]
        (model,) = [one for one in self.models if one.fingerprint == index.model["fingerprint"]]
        for path in fresh:
            code = index.lookup([self.there[path.as_posix()]])[self.there[path.as_posix()]]["code"]
            if bytes.fromhex(code) != model.encoder.codes([path]).packed[0].tobytes():
                self.wrong.append(f"{path} has the code of another image")

    def promote(self) -> None:
        """Promote an index with the other model."""
        now = IndexFolder.open(self.server.folder / "index").model["fingerprint"]
        (other,) = [model for model in self.models if model.fingerprint != now]
        wanted = [*self.base(), *self.there]
        for name in ("codes", "new"):
            shutil.rmtree(self.server.folder / name, ignore_errors=True)
        if (
            self.command("encode", "encode", self.listed(wanted), "--model", other.name, "--out", "codes")
            and self.command("build", "index", "build", "codes", "--out", "new")
            and self.command("promote", "index", "promote", "new", "index")
        ):
            self.noted(wanted)

    def base(self) -> list[str]:
        return [path.as_posix() for path in sorted((self.server.folder / "images").iterdir())]

    def listed(self, paths: list[str]) -> str:
        place = self.server.folder.parent / "list.txt"  # on a disk that is never full
        place.write_text("".join(f"{path}\n" for path in paths), encoding="utf-8")
        return str(place)

    def command(self, what: str, *arguments: str) -> bool:
        """Run hashlens; returns whether it succeeded."""
        for _ in range(20):
            command = [sys.executable, "-m", "hashlens", *arguments, "--quiet"][: None if what != "promote" else -1]
            done = subprocess.run(command, cwd=self.server.folder, capture_output=True, text=True)
            if "another process is writing" not in done.stderr:  # the server joins parts in the background
                break
            time.sleep(0.5)
        with self._lock:
            self.counts[f"{what} {'done' if done.returncode == 0 else done.returncode}"] += 1
        if done.returncode not in (0, 6):  # 6: the disk is full
            self.wrong.append(f"{what}: {done.stderr[-500:]}")
        return done.returncode == 0

    def noted(self, wanted: list[str]) -> IndexFolder:
        """Record the ids of images after a successful command."""
        index = IndexFolder.open(self.server.folder / "index")
        ids = {path: one.ids for path, one in marks_in(index).items()}
        self.there = {path: ids[path][-1] for path in wanted[self.n :] if path in ids}
        self.wrong += [f"{path} is missing after a command" for path in wanted if path not in ids]
        self.wrong += [f"{path} is there twice" for path, several in ids.items() if len(several) > 1]
        if [ids.get(path) for path in wanted[: self.n]] != [[i] for i in range(self.n)]:
            self.wrong.append("images that were there from the start have other ids")
        return index

    def lost(self) -> list[str]:
        """Acknowledged changes missing in the index on disk."""
        with self._changing:
            index = IndexFolder.open(self.server.folder / "index")
            items = index.lookup(list(self.there.values()) or [0])
            lost = [f"added {path}" for path, id_ in self.there.items() if items.get(id_, {}).get("path") != path]
            lost += [f"file {path}" for path in self.there if not Path(path).exists()]
            return lost + [f"removed {path}" for path in self.gone & marks_in(index).keys()]

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
        """Open connections that send nothing, half a header, or a body byte by byte."""
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
    """Percentiles of search times while the server was up, in ms."""
    up = [b - a for a, b in times if not any(a < after + 2 and b > before - 1 for before, after in down)]
    values = np.percentile(np.array(up or [0.0]) * 1_000, (50, 99))
    return {"p50_ms": round(float(values[0]), 1), "p99_ms": round(float(values[1]), 1)}


class Timer:
    """A process that only searches by id, and measures the time."""

    def __init__(self, address: str, n: int):
        context = multiprocessing.get_context("spawn")
        self._stop, (self._found, theirs) = context.Event(), context.Pipe(duplex=False)
        self._process = context.Process(target=_take_times, args=(address, n, self._stop, theirs), daemon=True)
        self._process.start()

    def end(self) -> list[tuple[float, float]]:
        """The start and end of each search that was answered."""
        self._stop.set()
        found = self._found.recv()
        self._process.join()
        return found


def _take_times(address: str, n: int, stop: Any, found: Any) -> None:
    rng, times = random.Random(0), []
    while not stop.wait(rng.expovariate(10)):
        body = json.dumps({"id": rng.randrange(n), "k": K}).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        start = time.monotonic()
        with contextlib.suppress(OSError):
            request = urllib.request.Request(f"{address}/v1/search", body, headers)
            with urllib.request.urlopen(request, timeout=60) as response:
                response.read()
            times.append((start, time.monotonic()))
    found.send(times)


def soak(
    folder: Path, seconds: float, clients: int, kills: int, fills: int, promotes: int, seed: int, n: int, pause: float
) -> Any:
    models = prepare(folder, n)
    server = Server(folder)
    try:
        run = Soak(server, models, pause)
        warm_up = [lambda i=i: run.client(random.Random(i)) for i in range(clients)]  # type: ignore[misc]
        _run_for(run, 10, warm_up)
        timer = Timer(server.address, n)
        time.sleep(IDLE_SECONDS)
        idle = percentiles(timer.end(), [])
        before, load_before = server.memory(), os.getloadavg()[0]
        timer = Timer(server.address, n)
        run = Soak(server, models, pause, promotes)
        rngs = [random.Random(f"{seed} {i}") for i in range(clients + 4)]
        tasks: list[Callable[[], None]] = [lambda rng=rng: run.client(rng) for rng in rngs[4:]]  # type: ignore[misc]
        end = time.monotonic() + seconds
        tasks += [lambda: run.writer(rngs[0], end), lambda: run.hostile(rngs[1]), lambda: run.slow(rngs[2])]
        tasks = [nice(task) for task in tasks]
        tasks += [lambda: run.disturb(rngs[3], end, kills, fills)]
        _run_for(run, seconds, tasks)
        by_id = percentiles(timer.end(), server.down)
        lost = run.lost()
        _run_for(Soak(server, models, pause), 5, [lambda: None])
        after = server.memory()
        IndexFolder.open(folder / "index").verify()
        found = {
            "seconds": seconds, "clients": clients, "images": n, "kills": len(server.down), "disk_filled": fills,
            "counts": dict(sorted(run.counts.items())), "wrong": len(run.wrong), "first_wrong": run.wrong[:5],
            "lost": len(lost), "first_lost": lost[:5],
            "acknowledged": sum(run.counts[what] for what in ACKNOWLEDGED),
            "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
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


def nice(task: Callable[[], None]) -> Callable[[], None]:
    """A task that runs, with its commands, at a lower priority than the server."""

    def run() -> None:
        if sys.platform == "linux":  # where threads have their own priority
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        task()

    return run


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
    parser.add_argument("--promotes", type=int, default=2, help="How often another model takes over.")
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
            disturbed = options.kills, fills, options.promotes
            found = soak(folder, options.seconds, options.clients, *disturbed, options.seed, options.n, options.pause)
    text = json.dumps(found, indent=2)
    print(text)
    if options.write:
        FILE.write_text(text + "\n", encoding="utf-8")
    raise SystemExit(bool(found["wrong"] or found["lost"]))


if __name__ == "__main__":
    main()
