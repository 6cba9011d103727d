"""Encoding on a local Ray: the same bytes as without it. In a process of its own, as Ray's warnings are not ours.

With HASHLENS_LONG=1 (make test-long) an actor is killed in the middle.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from ray_environment import ray_environment

from hashlens.codes.encode import encode_source
from hashlens.codes.encoder import Encoder
from hashlens.errors import UsageError
from hashlens.hashers.shallow.lsh import LSH
from hashlens.progress import Progress

QUIET = Progress(quiet=True)

CODE = """
import os, sys, threading, time
from pathlib import Path
import psutil
import ray
from hashlens.codes.encode import encode_source
from hashlens.codes.encoder import Encoder
from hashlens.errors import UsageError
from hashlens.progress import Progress

source, model, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
wanted = int(sys.argv[4])  # actors to kill
ray.init(num_cpus=3 if wanted else 2, include_dashboard=False, log_to_driver=False, logging_level="error")
how = {"out": out, "progress": Progress(quiet=True), "shard_size": 8, "ray_model": model}
killed = []

def kill_one():
    while len(killed) < wanted:
        for process in psutil.Process().children(recursive=True):
            try:
                if len(killed) < wanted and "_RayActor" in " ".join(process.cmdline()):
                    process.kill()
                    killed.append(process.pid)
            except psutil.Error:
                pass
        time.sleep(0.2)

threading.Thread(target=kill_one, daemon=True).start()
print(encode_source(Encoder.load(model), source, **how))
print("killed", len(killed))
print(encode_source(Encoder.load(model), source, **how))
try:
    encode_source(Encoder.load(model), "digits", **how)
except UsageError as error:
    print(error.message)
"""


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(rng.integers(0, 256, (20, 16, 3), np.uint8)).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "photos" / "cats" / "3.png").write_bytes(b"not an image")
    return tmp_path / "photos"


def test_the_same_folder_as_without_ray(photos, tmp_path):
    rng = np.random.default_rng(1)
    hasher = LSH(12, features="gist").fit([rng.integers(0, 256, (20, 16, 3), np.uint8) for _ in range(30)])
    hasher.save(tmp_path / "model")
    encoder = Encoder.load(tmp_path / "model")
    whole = tmp_path / "whole"
    encode_source(encoder, str(photos), whole, QUIET, shard_size=8)
    # what a killed run would have left: one of the three shards
    out = tmp_path / "codes"
    with pytest.raises(KeyboardInterrupt):
        shards = iter(range(9))
        encode_source(encoder, str(photos), out, QUIET, shard_size=8, stop=_after(shards, 2))
    n_killed = 1 if os.environ.get("HASHLENS_LONG") else 0
    arguments = [str(photos), str(tmp_path / "model"), str(out), str(n_killed)]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, env=ray_environment()
    )
    assert done.returncode == 0, done.stderr
    first, killed, second, refused = done.stdout.splitlines()[-4:]
    assert killed == f"killed {n_killed}"
    assert first == second == str({"n": 19, "n_bits": 12, "n_skipped": 1, "out": str(out)})
    assert refused == "digits is in the memory of one machine; encode it without --on ray"
    assert {file.name: file.read_bytes() for file in out.iterdir()} == {
        file.name: file.read_bytes() for file in whole.iterdir()
    }


def _after(shards, n):
    """Asked before each shard and after each batch: interrupts before the shard after n."""

    def stop():
        if next(shards) >= n:
            raise KeyboardInterrupt
        return False

    return stop


def test_a_missing_ray_is_named_with_its_extra(photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r'needs ray; run: pip install "hashlens\[ray\]"'):
        encode_source(None, str(photos), tmp_path / "codes", QUIET, ray_model=tmp_path / "model")
    assert not (tmp_path / "codes").exists()


def test_a_cluster_that_is_not_there(photos, tmp_path):
    rng = np.random.default_rng(1)
    LSH(12, features="gist").fit([rng.integers(0, 256, (20, 16, 3), np.uint8) for _ in range(30)]).save(tmp_path / "m")
    command = ["encode", str(photos), "--model", str(tmp_path / "m"), "--out", str(tmp_path / "codes"), "--on", "ray"]
    environment = os.environ | {"RAY_ADDRESS": "127.0.0.1:1", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run([sys.executable, "-m", "hashlens", *command], capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "error: cannot reach Ray at 127.0.0.1:1" in done.stderr and "ray start --head" in done.stderr
    assert "Traceback" not in done.stderr
