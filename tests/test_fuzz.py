"""Parsers of files from outside (benchmarks/parsers.py): whatever is in a file, a value or one sentence comes out.

HASHLENS_FUZZ=N tries N changed files for each; what was ever found is in tests/found and tried again.
"""

import os

import pytest

from benchmarks import parsers

N = int(os.environ.get("HASHLENS_FUZZ", "20"))
SLOW = {"checkpoint": 10, "model onnx": 4, "model dtsh": 4}  # times as long as others
FOUND = sorted(path.relative_to(parsers.FOUND).as_posix() for path in parsers.FOUND.rglob("*") if path.is_file())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path))
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.mark.parametrize("name", parsers.PARSERS)
def test_changed_files(name, folder):
    n, failures = parsers.fuzz(name, folder, -(-N // SLOW.get(name, 1)), 0)
    assert failures == [] and n >= 1


@pytest.mark.parametrize("found", FOUND)
def test_what_was_found_once(found, folder):
    name, file = found.split("/")
    parser = parsers.PARSERS[name]
    parsers.prepare(parser, folder)
    content = (parsers.FOUND / found).read_bytes()
    assert parsers.attempt(parser, folder, file.partition("-")[2].replace("~", "/"), content) is None


def test_a_reader_that_raises_anything_else_is_caught(folder, monkeypatch, tmp_path):
    def read(path):
        if b"," not in (path / "a.csv").read_bytes():
            raise KeyError("a comma")

    monkeypatch.setattr(parsers, "FOUND", tmp_path / "found")
    make = parsers.written("a.csv", "1,2\n")
    monkeypatch.setitem(parsers.PARSERS, "made", parsers.Parser(make, ("a.csv",), read))
    n, failures = parsers.fuzz("made", folder, 100, 0)
    assert n == 100 and len(failures) == 1 and "KeyError: 'a comma'" in failures[0]
    assert len(list((tmp_path / "found" / "made").iterdir())) == 1


def test_a_run_goes_on_where_the_record_ends(tmp_path, monkeypatch, capsys):
    turns = []

    def turn(name, seconds, first):
        turns.append((name, seconds, first))
        failures = [f"{tmp_path}/ab12-code: KeyError: it"] if name == "code" and first == 0 else []
        return {"examples": 200, "seeds": 2, "seconds": 5.0, "failures": failures}

    record = tmp_path / "fuzz.json"
    monkeypatch.setattr(parsers, "turn", turn)
    for seconds in ("6", "12"):
        monkeypatch.setattr(
            "sys.argv", ["", "code", "csv", "--seconds", seconds, "--turn", "5", "--record", str(record)]
        )
        with pytest.raises(SystemExit):
            parsers.main()
    assert turns[:4] == [("code", 5, 0), ("csv", 5, 0), ("code", 1, 2), ("csv", 1, 2)]
    assert turns[4:] == [("code", 2, 4), ("csv", 2, 4)]  # no seed twice, and not longer than was asked for
    found = parsers.read_record(record)
    assert found["code"] == {"examples": 600, "seeds": 6, "seconds": 15, "found": ["ab12-code"]}
    assert found.keys() == parsers.PARSERS.keys() and found["tsv"]["seeds"] == 0


def test_a_turn_counts_seeds_from_the_first(tmp_path):
    found = parsers.turn("code", 0.01, 7)
    assert (found["examples"], found["seeds"], found["failures"]) == (parsers.STEP, 1, [])
