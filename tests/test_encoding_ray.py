"""Encoding on a local Ray: the same bytes as without it. In a process of its own, as Ray's warnings are not ours."""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from hashlens.encoding import encode_source
from hashlens.encoding_ray import encode_on_ray
from hashlens.errors import UsageError
from hashlens.hashers.shallow.lsh import LSH
from hashlens.progress import Progress

QUIET = Progress(quiet=True)
HAS_RAY = importlib.util.find_spec("ray") is not None

CODE = """
import sys
from pathlib import Path
import ray
from hashlens.encoding_ray import encode_on_ray
from hashlens.errors import UsageError

source, model, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
print(encode_on_ray(source, model, out, shard_size=8))
print(encode_on_ray(source, model, out, shard_size=8))
try:
    encode_on_ray("digits", model, out)
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
    (tmp_path / "photos" / "cats" / "3.png").write_bytes(b"no picture")
    return tmp_path / "photos"


@pytest.mark.skipif(not HAS_RAY, reason='Ray is not installed: pip install "ray[data]"')
def test_the_same_folder_as_without_ray(photos, tmp_path):
    rng = np.random.default_rng(1)
    hasher = LSH(12, features="gist").fit([rng.integers(0, 256, (20, 16, 3), np.uint8) for _ in range(30)])
    hasher.save(tmp_path / "model")
    whole = tmp_path / "whole"
    encode_source(hasher, str(photos), whole, QUIET, model=tmp_path / "model", shard_size=8)
    # what a killed run would have left: one of the three shards
    out = tmp_path / "codes"
    with pytest.raises(KeyboardInterrupt):
        shards = iter(range(9))
        encode_source(hasher, str(photos), out, QUIET, model=tmp_path / "model", shard_size=8, stop=_after(shards, 2))
    environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    arguments = [str(photos), str(tmp_path / "model"), str(out)]
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    first, second, refused = done.stdout.splitlines()[-3:]
    assert first == second == str({"n": 19, "n_bits": 12, "n_skipped": 1, "out": str(out)})
    assert refused == "digits is in the memory of one machine; encode it with hashlens encode"
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


def test_without_ray_it_is_a_sentence(photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r'needs Ray: pip install "ray\[data\]"'):
        encode_on_ray(str(photos), tmp_path / "model", tmp_path / "codes")
