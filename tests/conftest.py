"""What all tests share: a cache of their own, one thread, no network, and small clusters to learn."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

# before torch and numba are imported: on a busy machine two threads are many times slower than one
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HASHLENS_THREADS"] = "1"

HERE = Path(__file__).parent
LONGEST = [  # files that take a quarter of a minute or more
    "results/test_paper.py",
    "test_golden.py",
    "clicks/test_refine.py",
    "hashers/test_common.py",
    "cli/test_cli.py",
    "index/test_conformance.py",
    "server/test_hostile.py",
    "test_ranks.py",
    "test_base_install.py",
    "hashers/test_spectral.py",
    "codes/test_export.py",
    "server/test_engine.py",
    "results/test_tune.py",
    "hashers/test_deep_images.py",
    "test_faults.py",
    "codes/test_ray.py",
    "index/test_index_folder.py",
    "index/test_library.py",
    "test_addresses.py",
    "index/test_merging.py",
    "test_strangers.py",
]


def pytest_configure(config):
    """Tests of a checkout that was not installed compile the kernels themselves; without a compiler numpy is used."""
    from hashlens.kernels import build

    if not build.library().exists() and not hasattr(config, "workerinput"):
        with suppress(OSError):
            build.compile_core()


def pytest_collection_modifyitems(items):
    """The longest files first: at the end, one worker would still be busy with one of them and the others idle."""
    places = {HERE / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def surroundings(request, monkeypatch, session_cache):
    """Nothing that a user has downloaded or computed is read or written, unless a test is about the real thing."""
    if not {"real_cache", "real_weights"} & set(request.fixturenames):
        monkeypatch.setenv("HASHLENS_CACHE", str(session_cache))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture
def real_cache(monkeypatch):
    """The user's own cache, for tests that are skipped where it does not hold what they need."""
    from hashlens.files import cache_dir

    monkeypatch.setenv("HASHLENS_OFFLINE", "1")
    return cache_dir()


@pytest.fixture
def real_weights():
    """The published weights of a network, downloaded into the user's own cache if they are not there."""
    from hashlens.errors import DownloadError
    from hashlens.features.networks.weights import pretrained_weights

    def get(name):
        try:
            return pretrained_weights(name)
        except DownloadError as error:
            pytest.skip(error.message)

    return get


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HASHLENS_OFFLINE", "1")
    return tmp_path / "cache"


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def clusters():
    """200 rows of four overlapping clusters in 16 dimensions and their classes: (X float64, y)."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(4), 50))
    centres = rng.normal(size=(4, 16))
    return centres[y] + 0.8 * rng.normal(size=(200, 16)), y


@pytest.fixture
def hashlens(monkeypatch, capsys):
    """Run a command; gives exit code, stdout, stderr."""

    from hashlens.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["hashlens", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run
