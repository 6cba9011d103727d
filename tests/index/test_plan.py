"""The plan: its constants are those of the committed measurements, and what it promises is what indexes take."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hashlens import Codes
from hashlens.errors import UsageError
from hashlens.index import plan as module
from hashlens.index.folder import IndexFolder
from hashlens.index.memory import HammingIndex
from hashlens.index.plan import describe_plan, engine_constants, fitted, folder_at, plan, readable

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def read(name):
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def rounded(constants):
    return {name: float(f"{value:.4g}") for name, value in constants.items()}


def test_its_constants_are_measured():
    assert rounded(fitted(list(read("big.json")["sizes"].values()))) == module.FOLDER
    measured = read("engines.json")
    found = {name: rounded(engine_constants(list(measured[name].values()))) for name in ("milvus", "pgvector")}
    assert found == module.ENGINES


def test_what_it_said_of_the_largest_size_was_written_before_and_is_near():
    found = read("big.json")
    said = found["predicted"]
    before = [row for row in found["sizes"].values() if row["n"] < said["n"]]
    assert said["constants"] == fitted(before)  # of the sizes before alone
    if str(said["n"]) not in found["sizes"]:
        pytest.skip("the largest size has not been measured yet")
    largest = found["sizes"][str(said["n"])]
    assert said["build_seconds"] == pytest.approx(largest["build"]["cpu"], rel=0.25)
    assert said["disk"] == pytest.approx(sum(largest["disk"].values()), rel=0.25)
    resident = max(largest[when]["all"] for when in ("memory_searched", "memory_scanned"))  # as `fitted` counts it
    assert said["memory"] == pytest.approx(resident, rel=0.25)


@pytest.mark.parametrize(("n_bits", "second_bits"), [(12, 0), (48, 128), (100, 64)])
def test_bytes_are_as_planned(n_bits, second_bits, rng):
    n = 5000
    index = HammingIndex(n_bits, second_bits=second_bits)
    second = Codes.from_relaxed(rng.normal(size=(n, second_bits))) if second_bits else None
    index.add(Codes(Codes.from_relaxed(rng.normal(size=(n, n_bits))).packed, n_bits, second))
    index.build_tables()
    (part,) = index.parts
    size = plan(n, n_bits, second_bits)["bytes"]
    assert size["codes"] == part.blocks.nbytes
    assert size["second"] == (part.second.nbytes if second_bits else 0)
    assert size["radius_tables"] == part.tables.starts.nbytes + part.tables.places.nbytes


def test_the_disk_of_a_small_index_is_as_planned(tmp_path, rng):
    """One with second codes, which the measurements have not, and without a tree."""
    n = 15_000
    second = Codes.from_relaxed(rng.normal(size=(n, 128)))
    codes = Codes(Codes.from_relaxed(rng.normal(size=(n, 48))).packed, 48, second)
    index = IndexFolder.create(tmp_path / "index", 48, {"fingerprint": "ab" * 32, "name": "test"}, second_bits=128)
    paths = [f"/mnt/archive/photos/2024/{i // 1000}/IMG_{i:012d}.jpg" for i in range(n)]
    index.add(codes, pa.table({"path": paths}), only_new=True)
    taken = sum(path.stat().st_size for path in index.path.iterdir())
    constants = module.FOLDER | {"tree_bytes": 0}
    assert folder_at(n, 48, 128, constants)["disk"] - 4 * n == pytest.approx(taken, rel=0.1)


def test_the_second_code_counts():
    without, with_it = plan(10**9, 64), plan(10**9, 64, 128)
    for name in without["ways"]:
        more = with_it["ways"][name]["disk"] - without["ways"][name]["disk"]
        assert more == pytest.approx(16e9)
    assert with_it["ways"]["folder"]["memory"] - without["ways"]["folder"]["memory"] == pytest.approx(16e9)


def test_it_says_how_far_it_extrapolates():
    found = plan(10**10, 64, 128)
    reached = {"folder": module.FOLDER["measured_to"]}
    reached |= {name: engine["measured_to"] for name, engine in module.ENGINES.items()}
    assert {name: way["beyond"] for name, way in found["ways"].items()} == {
        name: 10**10 / n for name, n in reached.items()
    }
    ways = found["ways"]
    assert ways["milvus"]["machines"] > 1 and ways["pgvector"]["machines"] is None
    assert ways["folder"]["machines"] == 1 and ways["folder"]["memory"] <= 0.75 * ways["folder"]["machine_memory"]
    text = describe_plan(found)
    assert (
        f"extrapolated: folder {10**10 / reached['folder']:,.0f} times beyond {reached['folder']:,.0f}, milvus" in text
    )
    assert "80.0 GB and 160 GB" in text and "163.8 TB" in text
    assert "use the index folder on one machine of 512 GB, or --engine milvus on" in text  # PostgreSQL is too big
    small = describe_plan(plan(10**5, 48))
    assert "extrapolated" not in small and "second" not in small and "use the index folder" in small
    json.dumps(found)


def test_more_images_cost_more():
    before = plan(10**5, 48)["ways"]
    for n in (10**6, 10**7, 10**8, 10**9):
        now = plan(n, 48)["ways"]
        for name, way in now.items():
            for what in ("memory", "disk", "build_seconds", "query_seconds", "scan_seconds"):
                assert way[what] > before[name][what], (n, name, what)
        before = now


def test_what_servers_share():
    """A query is shared by all cores of the machines that a server needs; one core reads a folder alone."""
    ways = plan(10**10, 64)["ways"]
    cores = module.MACHINE["cores"]
    assert ways["milvus"]["shared_seconds"] * cores * ways["milvus"]["machines"] == ways["milvus"]["scan_seconds"]
    assert ways["folder"]["shared_seconds"] == ways["folder"]["scan_seconds"]
    assert ways["pgvector"]["shared_seconds"] is None  # too big
    one = plan(10**8, 64)["ways"]["pgvector"]
    assert one["shared_seconds"] * cores == one["scan_seconds"]


def test_sizes_are_readable():
    assert [readable(x) for x in (5, 1500, 123_456, 8e6, np.float64(2e12))] == [
        "5 B",
        "1.5 kB",
        "123 kB",
        "8.0 MB",
        "2.0 TB",
    ]


def test_nothing_to_plan():
    for n, n_bits in ((0, 48), (10, 0), (-1, 5)):
        with pytest.raises(UsageError, match="must be >= 1"):
            plan(n, n_bits)
    with pytest.raises(UsageError, match=r"n must be <= 1e\+12, got 1e\+30"):
        plan(10**30, 48)
    with pytest.raises(UsageError, match="second-bits must be >= 0, got -1"):
        plan(10, 48, -1)
