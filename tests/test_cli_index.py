"""The commands of the index, from pictures to a search that can be repeated, and what they refuse."""

import json

import numpy as np
import pytest

from hashlens import Codes, cli
from hashlens.shards import CodesFolder

MODEL = {"fingerprint": "ab" * 32, "name": "test"}


@pytest.fixture
def run(capsys):
    def call(*words):
        code = 0
        try:
            cli.app([str(word) for word in words], standalone_mode=False)
        except cli.HashlensError as error:
            code = error.exit_code
            print(error.message)
        return code, capsys.readouterr().out

    return call


@pytest.fixture
def codes(tmp_path, rng):
    """Two shards of 40 codes."""
    folder = CodesFolder.create(tmp_path / "codes", n_bits=48, model=MODEL)
    for part in "ab":
        folder.append(Codes.from_relaxed(rng.normal(size=(40, 48))), [f"{part}/{i}.jpg" for i in range(40)])
    folder.finish()
    return tmp_path / "codes"


def test_build_add_remove_compact_verify(run, codes, tmp_path, rng):
    index = tmp_path / "index"
    code, out = run("index", "build", codes, "--out", index, "--quiet")
    assert code == 0 and out.startswith("80 codes added") and "next     hashlens search" in out
    code, out = run("index", "build", codes, "--out", index, "--quiet")  # again: nothing twice
    assert code == 0 and out.startswith("0 codes added") and "80 were there already" in out
    more = CodesFolder.create(tmp_path / "more", n_bits=48, model=MODEL)
    more.append(Codes.from_relaxed(rng.normal(size=(5, 48))), [f"c/{i}.jpg" for i in range(5)])
    more.finish()
    assert json.loads(run("index", "add", index, tmp_path / "more", "--json", "--quiet")[1])["n"] == 85
    assert json.loads(run("index", "remove", index, "--path", "a/1*", "--json")[1])["removed"] == 11
    assert json.loads(run("index", "remove", index, "--ids", "0, 84,84", "--json")[1]) == {
        "removed": 2,
        "n": 72,
        "index": str(index),
    }
    assert json.loads(run("index", "compact", index, "--json")[1])["reclaimed"] == 13
    assert json.loads(run("index", "verify", index, "--json")[1]) == {"files": 4, "n": 72, "index": str(index)}
    code, out = run("index", "add", index, codes, "--quiet")
    assert code == 0 and out.startswith("0 codes added") and "80 were there already or had been removed" in out
    assert json.loads(run("index", "add", index, codes, "--again", "--json", "--quiet")[1])["added"] == 12


def test_copy_to_an_engine(run, codes, tmp_path):
    pytest.importorskip("faiss")
    index = tmp_path / "index"
    run("index", "build", codes, "--out", index, "--quiet")
    command = ["index", "copy", index, "--engine", "faiss", "--to", tmp_path / "there", "--quiet"]
    following = f"next     hashlens search {index} picture.jpg --engine faiss --at {tmp_path / 'there'}\n"
    assert run(*command) == (0, f"80 codes copied to faiss\n{following}")
    assert run(*command) == (0, f"0 codes copied to faiss, 80 were there already\n{following}")
    run("index", "remove", index, "--ids", "3")
    assert "1 that are no longer in" in run(*command)[1]
    assert json.loads(run(*command, "--json")[1])["engine"] == "faiss"
    assert run("index", "copy", index, "--engine", "elastic", "--to", "x")[0] == 2


def test_plan(run):
    code, out = run("index", "plan", "--n", "1e9", "--bits", 48)
    assert code == 0 and "8.0 GB" in out
    assert json.loads(run("index", "plan", "--n", "1000", "--json")[1])["n"] == 1000
    assert run("index", "plan", "--n", "many") == (2, "--n takes a number such as 1000000 or 1e9, not many\n")


def test_what_is_refused(run, codes, tmp_path, rng):
    index = tmp_path / "index"
    assert run("index", "add", index, codes)[0] == 3  # no index
    run("index", "build", codes, "--out", index, "--quiet")
    other = CodesFolder.create(tmp_path / "other", n_bits=48, model={"fingerprint": "cd" * 32, "name": "other"})
    other.append(Codes.from_relaxed(rng.normal(size=(5, 48))), [f"c/{i}.jpg" for i in range(5)])
    code, out = run("index", "add", index, tmp_path / "other")
    assert code == 3 and "not finished" in out
    other.finish()
    code, out = run("index", "add", index, tmp_path / "other")
    assert code == 4 and "made with the model abababababab" in out
    assert run("index", "remove", index)[0] == 2 and run("index", "remove", index, "--ids", "x")[0] == 2
    assert run("index", "build", tmp_path / "nothing", "--out", tmp_path / "i")[0] == 3
    path = index / "part-00001.pieces.npy"
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    code, out = run("index", "verify", index)
    assert code == 3 and "part-00001.pieces.npy is damaged" in out
    assert np.load(path, mmap_mode="r").shape == (3, 40)


def test_bad_words_are_one_sentence(run, codes, tmp_path):
    index = tmp_path / "index"
    run("index", "build", codes, "--out", index, "--quiet")
    for words, sentence in (
        (("--ids", "99999999999999999999"), "--ids takes whole numbers"),
        (("--ids", "-3"), "--ids takes whole numbers"),
        (("--label", "\udcff"), "the label is not text"),
        (("--path", "\udcff*"), "the pattern is not text"),
    ):
        code, out = run("index", "remove", index, *words)
        assert code == 2 and sentence in out, words
    assert json.loads(run("index", "remove", index, "--path", "*/1*", "--json")[1])["removed"] == 22
    next(index.glob("*.items.arrow")).unlink()
    code, out = run("index", "verify", index)
    assert code == 3 and "cannot be read (No such file" in out


def test_a_damaged_shard_is_not_added(run, codes, tmp_path):
    file = codes / "shard-00001.codes.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    code, out = run("index", "build", codes, "--out", tmp_path / "index", "--quiet")
    assert code == 3 and "shard-00001 in" in out and "not as it was written" in out


def test_the_same_pictures_are_added_once_whoever_wrote_their_table(run, codes, tmp_path, monkeypatch):
    """Another version of the library writes other bytes for the same table."""
    from hashlens import shards

    index = tmp_path / "index"
    run("index", "build", codes, "--out", index, "--quiet")
    whole = shards.parquet
    monkeypatch.setattr(shards, "parquet", lambda table: whole(table).replace(b"parquet-cpp", b"parquet-CPP"))
    again = CodesFolder.create(tmp_path / "again", n_bits=48, model=MODEL)
    for part in CodesFolder.open(codes):
        again.append(*part)
    again.finish()
    files = [(place / "shard-00000.items.parquet").read_bytes() for place in (codes, tmp_path / "again")]
    assert files[0] != files[1]
    assert json.loads(run("index", "add", index, tmp_path / "again", "--json", "--quiet")[1])["added"] == 0
