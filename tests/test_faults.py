"""The fault tester (benchmarks/faults.py), with few faults: nothing wrong, and it notices what is."""

import numpy as np
import pytest

from benchmarks import faults


@pytest.fixture(autouse=True)
def import_from_here(monkeypatch):
    """Readers are processes of their own."""
    import os
    import sys

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def test_no_fault_is_answered_from():
    result = faults.run(60, 3)
    assert result["wrong"] == [] and result["detected, file named"] > 30
    assert sum(result["kinds"].values()) == 60 and set(result["kinds"]) == set(faults.KINDS)


def careless(path):
    return faults.digest(np.frombuffer((path / "config.json").read_bytes()[-400:], np.uint8).tolist())


def test_a_reader_that_does_not_check_is_caught(monkeypatch):
    """In this process, since a process of its own would not see the change."""

    class Here:
        def ask(self, name, path):
            try:
                return "answer", careless(path)
            except Exception as error:
                return "traceback", str(error)

        def close(self):
            pass

    monkeypatch.setattr(faults, "Reader", Here)
    result = faults.run(12, 0, only=("trees",))
    assert result["silent differences"] > 0 and len(result["wrong"]) == result["silent differences"]
