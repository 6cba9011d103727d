"""Two ranks of one thread against one process of one thread: speed of training, and MAP on CIFAR-10.

    python -m benchmarks.ranks speed [--rounds 5] [--images 3840] [--batch 256] [--sampling class-codes]
    python -m benchmarks.ranks map [--folder runs] [--epochs N] [--database 5000]
    python -m benchmarks.ranks hosts [--folder runs] [--epochs N]

`speed` fits DTSH in turns in one process and by two ranks, and compares the time of a step on the same global batch.
With `in-batch` triplets, batch norms have the statistics of the whole batch, so that ranks meet at each of them; with
`class-codes` these stay fixed. What a step costs whatever its size (gradients, optimiser) is not divided by ranks.
Where other work is on the cores (see load_average), seconds tell little; the processor time of rank 0 is the least that
a step can take. `map` makes the same run, setting 1 at 32 bits, in both ways; rerun it to resume.
With `--database`, runs that have a model are not evaluated on all 59,000 images: both models are compared on
the queries and that many images, spread over the database. `hosts` makes that run with a rank in each of two network
namespaces, which are like two machines with a cable between them. All figures go to benchmarks/results/ranks.json.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from hashlens import DTSH, Training, make_protocol, open_source
from hashlens.codes.encoder import Encoder
from hashlens.files import write_json
from hashlens.machine import machine
from hashlens.ranks import joined
from hashlens.results.metrics import evaluate_codes
from hashlens.results.runs import load_codes

FILE = Path(__file__).parent / "results" / "ranks.json"
STARTS = {"one": [], "two": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "map", "hosts", "steps"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=3_840)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--sampling", default="in-batch", choices=("in-batch", "class-codes"))
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--database", type=int)
    given = parser.parse_args()
    if given.what == "steps":
        return steps(given.images, given.batch, given.sampling)
    found: dict[str, Any] = {}
    with suppress(FileNotFoundError):
        found = json.loads(FILE.read_text(encoding="utf-8"))
    if given.what == "speed":
        measured = speed(given.rounds, given.images, given.batch, given.sampling)
        made = found.get("speed", {}) | {given.sampling: measured}
    elif given.what == "map":
        made = maps(given)
    else:
        made = map_of_hosts(given)
    write_json(FILE, found | {"machine": machine() | {"threads": 1}, given.what: made})
    print(json.dumps(made, indent=2))


def run(start: list[str], *arguments: Any) -> str:
    """The standard output of a module, run by one process or by torchrun, with one thread for each rank."""
    one_thread = {"OMP_NUM_THREADS": "1", "HASHLENS_THREADS": "1"}
    command = [sys.executable, *start, "-m", *map(str, arguments)]
    return subprocess.run(command, env=os.environ | one_thread, stdout=subprocess.PIPE, text=True, check=True).stdout


def steps(n: int, batch_size: int, sampling: str) -> None:
    """What each process runs: two epochs on n images; prints the times of their steps."""
    with joined() as ranks:
        source = open_source("cifar10")
        assert source.labels is not None
        rows = make_protocol(source).train[:n]
        clock = []

        def tick() -> bool:
            clock.append((time.perf_counter(), time.process_time()))
            return False

        hasher = DTSH(32, sampling=sampling, training=Training(epochs=2, batch_size=batch_size))
        hasher.fit(source.images[rows], source.labels[rows], stop=tick)
        if ranks.first:
            print(json.dumps(np.diff(clock, axis=0).T.tolist()))


def speed(rounds: int, images: int, batch_size: int, sampling: str) -> dict[str, Any]:
    times: dict[str, list[np.ndarray]] = {name: [] for name in STARTS}
    for _ in range(rounds):
        for name, start in STARTS.items():
            how = ("--images", images, "--batch", batch_size, "--sampling", sampling)
            output = run(start, "benchmarks.ranks", "steps", *how)
            times[name].append(np.array(json.loads(output)))
    found: dict[str, Any] = {"batch": batch_size, "rounds": rounds, "load_average": os.getloadavg()[0]}
    for name, some in times.items():
        seconds, cpu = np.concatenate(some, axis=1)
        found[name] = {
            "seconds_per_step": float(np.median(seconds)),
            "fastest_seconds_per_step": float(np.quantile(seconds, 0.05)),
            "cpu_seconds_per_step": float(np.median(cpu)),
        }
    return found | {f"ratio_of_{key}": found["one"][key] / found["two"][key] for key in found["one"]}


def maps(given: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, start in STARTS.items():
        out = given.folder / f"ranks-{name}"
        if given.database and (out / "model").exists():
            found[name] = map_of_some(out, given.database)
            continue
        if not (out / "result.json").exists():
            options = ["--epochs", given.epochs] if given.epochs else []
            new = ["cifar10", "--bits", 32, "--out", out, *options]
            run(start, "hashlens", "train", *(["--resume", out] if out.exists() else new))
        result = json.loads((out / "result.json").read_text(encoding="utf-8"))
        found[name] = {key: result[key] for key in ("map", "epochs", "seconds")}
        found[name]["map_tie_aware"] = result["metrics"]["map_tie_aware"]
    return found | {"difference": found["two"]["map"] - found["one"]["map"]}


def map_of_hosts(given: argparse.Namespace) -> dict[str, Any]:
    """The run of `map` with rank 0 on one host and rank 1 on another, each in a folder of its own."""
    folders = [given.folder / f"ranks-host-{number}" for number in (0, 1)]
    options = ["--epochs", given.epochs] if given.epochs else []
    with two_hosts() as hosts:
        started = []
        for number, (prefix, interface, _) in enumerate(hosts):
            folders[number].mkdir(parents=True, exist_ok=True)
            where = ["--nnodes=2", f"--node-rank={number}", f"--master-addr={hosts[0][2]}", "--nproc-per-node=1"]
            train = ["-m", "hashlens", "train", "cifar10", "--bits", 32, "--out", "run", *options]
            command = [*prefix, sys.executable, "-m", "torch.distributed.run", *where, *map(str, train)]
            own = {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1", "HASHLENS_THREADS": "1"}
            started.append(subprocess.Popen(command, env=os.environ | own, cwd=folders[number]))
        if any(process.wait() for process in started):
            sys.exit("error: a rank failed")
    result = json.loads((folders[0] / "run" / "result.json").read_text(encoding="utf-8"))
    there = [(folder / "run").exists() for folder in folders]
    found = {key: result[key] for key in ("map", "epochs", "seconds")} | {"ranks": result["machine"]["ranks"]}
    return found | {"map_tie_aware": result["metrics"]["map_tie_aware"], "run_folders": sum(there)}


@contextmanager
def two_hosts() -> Iterator[list[tuple[list[str], str, str]]]:
    """Two network namespaces with a cable between them: [(what comes before a command, its interface, its address)].

    PermissionError where these are not allowed.
    """

    def ip(*arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
        if done.returncode:
            raise PermissionError(f"network namespaces cannot be made here: {done.stderr.strip()}")

    names = [f"hl{os.getpid()}{side}" for side in "ab"]
    if shutil.which("ip") is None:
        raise PermissionError("network namespaces cannot be made here: there is no ip command")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", names[0], "type", "veth", "peer", "name", names[1])
        hosts = []
        for number, name in enumerate(names, start=1):
            address = f"10.231.77.{number}"
            ip("link", "set", name, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
            hosts.append((["ip", "netns", "exec", name], name, address))
        yield hosts
    finally:
        for name in names:
            with suppress(PermissionError):
                ip("netns", "del", name)


def map_of_some(out: Path, n: int) -> dict[str, Any]:
    """MAP of a model on all queries and n images of the database."""
    source = open_source("cifar10")
    assert source.labels is not None
    protocol = make_protocol(source)
    chosen = np.linspace(0, len(protocol.database) - 1, n).astype(int)
    if (out / "codes").exists():
        query, database, *labels = load_codes(out)
        database, labels = database[chosen], [labels[0], labels[1][chosen]]
    else:
        encoder = Encoder.load(out)
        rows = protocol.query, protocol.database[chosen]
        query, database = (encoder.codes(source.images[some]) for some in rows)
        labels = [source.labels[some] for some in rows]
    scores = evaluate_codes(query, database, *labels)
    return {"database": n, "map": scores["map"], "map_tie_aware": scores["map_tie_aware"]}


if __name__ == "__main__":
    main()
