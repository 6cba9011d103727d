"""Encoding on a Ray cluster whose actors and driver are killed: the same bytes as on one machine.

    python -m benchmarks.on_ray SCRATCH [--images 20000] [--actors 2]

Images of CIFAR-10 are written as PNG files and encoded twice by `hashlens encode`: in one process, and on a real Ray
cluster of two nodes (`ray start`) on this machine. There an actor is killed with SIGKILL at a fifth, two fifths and
seven tenths of the work, the command itself (Ray's driver) at three fifths, after which it is restarted, and a node
with all its processes at four fifths. The model is LSH on GIST, because the model is not what is tested. Images and the
codes of one process are kept in SCRATCH, so the same command resumes with the cluster. The result goes to
benchmarks/results/on-ray.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

from benchmarks.remote import encode, write_images
from benchmarks.stores import free_port
from hashlens.files import write_json
from hashlens.machine import machine

FILE = Path(__file__).parent / "results" / "on-ray.json"
SHARDS = 20
KILLS = (
    (0.2, "actor"),
    (0.4, "actor"),
    (0.6, "driver"),
    (0.7, "actor"),
    (0.8, "node"),
)  # at which share of the work
SETTINGS = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
Killed = list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--actors", type=int, default=2)
    given = parser.parse_args()
    result = measure(given.scratch.absolute(), given.images, given.actors)
    sizes = json.loads(FILE.read_text(encoding="utf-8"))["sizes"] if FILE.exists() else {}
    write_json(FILE, {"sizes": sizes | {str(given.images): result}, "machine": machine()})
    print(json.dumps(result, indent=2))


def measure(scratch: Path, n: int, n_actors: int) -> dict[str, Any]:
    images, shard, here, there = scratch / f"images-{n}", n // SHARDS, scratch / f"here-{n}", scratch / f"there-{n}"
    write_images(images, n)
    one = encode(str(images), scratch / "model", str(here), SETTINGS, shard)
    rmtree(there, ignore_errors=True)
    command = [sys.executable, "-m", "hashlens", "encode", str(images), "--model", str(scratch / "model")]
    command += ["--out", str(there), "--shard-size", str(shard), "--on", "ray", "--json"]
    with cluster(n_actors) as (head, address), node(1, "--address", address) as second:  # leave one core to Ray
        start = time.perf_counter()
        many, killed = encode_and_kill(command, there, head, second, address)
        seconds = time.perf_counter() - start
    files = {file.name: file.read_bytes() for file in here.iterdir() if not file.name.startswith(".")}
    equal = [(there / name).exists() and (there / name).read_bytes() == content for name, content in files.items()]
    others = {file.name for file in there.iterdir() if not file.name.startswith(".")} - files.keys()
    return {
        "images": n,
        "codes": {"one machine": one["n"], "ray": many["n"]},
        "actors": n_actors,
        "shard_size": shard,
        "killed": killed,
        "files": len(files),
        "files_equal": sum(equal),
        "other_files": sorted(others),
        "seconds": round(seconds, 1),
    }


@contextmanager
def cluster(n_cores: int) -> Iterator[tuple[int, str]]:
    """The process of the first node of a Ray cluster on this machine, and the address of the cluster."""
    address = f"127.0.0.1:{free_port()}"
    ports = ["--port", address.rpartition(":")[2], "--include-dashboard", "false"]
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,
        node(n_cores, "--head", *ports, "--temp-dir", folder) as head,
    ):
        yield head, address


@contextmanager
def node(n_cores: int, *how: str) -> Iterator[int]:
    """The process of a node of a Ray cluster."""
    command = [str(Path(sys.executable).with_name("ray")), "start", *how, "--block", "--num-cpus", str(n_cores)]
    command += ["--node-ip-address", "127.0.0.1", "--object-store-memory", "200000000"]
    started = subprocess.Popen(
        command, env=os.environ | SETTINGS, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert started.stdout is not None
        if not any("Ray runtime started" in line for line in started.stdout):
            raise SystemExit("the Ray cluster did not start; Ray waits for 30 seconds, which a busy machine may need")
        yield started.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)  # with all its processes; a node keeps no data
        started.communicate()


def encode_and_kill(
    command: list[str], out: Path, head: int, second: int, address: str
) -> tuple[dict[str, Any], Killed]:
    """Run the command until it succeeds, killing as in KILLS; returns its result, and what was killed when."""
    killed: Killed = []

    def started() -> subprocess.Popen[str]:
        environment = os.environ | SETTINGS | {"RAY_ADDRESS": address}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    driver = started()
    while driver.poll() is None:
        time.sleep(0.05)
        share, what = KILLS[len(killed)] if len(killed) < len(KILLS) else (2.0, "")
        done = len(list(out.glob("shard-*.codes.npy")))
        if done < share * SHARDS:
            continue
        if what == "actor" and (found := actors(head) + actors(second)):
            os.kill(found[0], signal.SIGKILL)
            killed.append({"what": what, "of": len(found), "shards": done})
        elif what == "node" and (found := actors(second)):
            os.killpg(second, signal.SIGKILL)
            killed.append({"what": what, "of": 2, "actors": len(found), "shards": done})
        elif what == "driver":
            driver.kill()
            driver.communicate()
            driver = started()
            killed.append({"what": what, "shards": done})
    said = driver.communicate()[0]
    if driver.returncode or len(killed) < len(KILLS):
        raise SystemExit(f"the command ended with {driver.returncode}; {len(killed)} of {len(KILLS)} were killed")
    return json.loads(said), killed


def actors(ancestor: int) -> list[int]:
    """The encoding processes among all that this one has started."""
    found = []
    for child in Path(f"/proc/{ancestor}/task/{ancestor}/children").read_text().split():
        with suppress(FileNotFoundError):  # it has ended
            if b"_RayActor" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
            found += actors(int(child))
    return found


if __name__ == "__main__":
    main()
