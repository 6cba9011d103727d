"""The plan: what it promises is what codes and tables take."""

import numpy as np
import pytest

from hashlens import Codes
from hashlens.errors import UsageError
from hashlens.index.memory import HammingIndex
from hashlens.index.plan import describe_plan, plan, readable


@pytest.mark.parametrize("n_bits", [12, 48, 64, 100])
def test_memory_is_as_planned(n_bits, rng):
    n = 5000
    index = HammingIndex(n_bits)
    index.add(Codes.from_relaxed(rng.normal(size=(n, n_bits))))
    index.build_tables()
    (part,) = index.parts
    ways = plan(n, n_bits)["ways"]
    assert ways["scan"]["memory"] == part.blocks.nbytes
    tables = part.tables.starts.nbytes + part.tables.places.nbytes
    assert ways["scan + tables"]["memory"] == part.blocks.nbytes + tables


def test_it_reads_well():
    text = describe_plan(plan(10**9, 48))
    assert text.startswith("1,000,000,000 images x 48 bits, 6 bytes per code")
    assert (
        "6.0 GB of memory   82.0 GB on disk" in text
        and "up to radius 7, tables are faster" in text
        and "16.4 TB" in text
        and "milvus" in text
    )
    assert "milvus" not in describe_plan(plan(10**6, 48))
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
