"""The commands of the index, from codes to a search that can be repeated, and what they refuse."""

import json
import shutil

import numpy as np
import pytest
from made_index import add_shard
from PIL import Image

from hashlens import Codes, cli
from hashlens.codes.folder import CodesFolder

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
        add_shard(folder, Codes.from_relaxed(rng.normal(size=(40, 48))), [f"{part}/{i}.jpg" for i in range(40)])
    folder.finish()
    return tmp_path / "codes"


def test_build_add_remove_compact_verify(run, codes, tmp_path, rng):
    index = tmp_path / "index"
    code, out = run("index", "build", codes, "--out", index, "--quiet")
    assert code == 0 and out.startswith("80 codes added") and "next     hashlens search" in out
    code, out = run("index", "build", codes, "--out", index, "--quiet")  # again: nothing twice
    assert code == 0 and out.startswith("0 codes added") and "80 were there already or had been removed" in out
    more = CodesFolder.create(tmp_path / "more", n_bits=48, model=MODEL)
    add_shard(more, Codes.from_relaxed(rng.normal(size=(5, 48))), [f"c/{i}.jpg" for i in range(5)])
    more.finish()
    assert json.loads(run("index", "add", index, tmp_path / "more", "--json", "--quiet")[1])["n"] == 85
    assert json.loads(run("index", "remove", index, "--path", "a/1*", "--json")[1])["removed"] == 11
    assert json.loads(run("index", "remove", index, "--ids", "0, 84,84", "--json")[1]) == {
        "removed": 2,
        "n": 72,
        "index": str(index),
    }
    assert json.loads(run("index", "compact", index, "--json")[1])["reclaimed"] == 13
    assert json.loads(run("index", "verify", index, "--json")[1]) == {"files": 9, "n": 72, "index": str(index)}
    code, out = run("index", "add", index, codes, "--quiet")
    assert code == 0 and out.startswith("0 codes added") and "80 were there already or had been removed" in out
    assert json.loads(run("index", "add", index, codes, "--again", "--json", "--quiet")[1])["added"] == 12


def test_copy_to_an_engine(run, codes, tmp_path):
    index = tmp_path / "index"
    run("index", "build", codes, "--out", index, "--quiet")
    command = ["index", "copy", index, "--engine", "faiss", "--to", tmp_path / "there", "--quiet"]
    following = f"next     hashlens search {index} image.jpg --engine faiss --at {tmp_path / 'there'}\n"
    assert run(*command) == (0, f"80 codes copied to faiss\n{following}")
    assert run(*command) == (0, f"0 codes copied to faiss, 80 were already there\n{following}")
    assert "80 codes compared: all are the same" in run(*command, "--verify")[1]
    run("index", "remove", index, "--ids", "3")
    assert f"faiss still has codes that were removed from {index}: 1\n" in run(*command)[1]
    assert json.loads(run(*command, "--json")[1])["engine"] == "faiss"
    assert run("index", "copy", index, "--engine", "elastic", "--to", "x")[0] == 2
    out = run(*command, "--set", "n_probe=32")[1]
    assert out.endswith(f"--at {tmp_path / 'there'} --set n_probe=32\n")
    assert run(*command, "--set", "n_probe=0") == (2, "n_probe must be >= 1, got 0\n")


def test_radius_tables(run, codes, tmp_path):
    index = tmp_path / "index"
    run("index", "build", codes, "--out", index, "--radius-tables", "--quiet")
    assert json.loads(run("index", "verify", index, "--json")[1])["files"] == 2 + 2 * 7
    assert json.loads(run("index", "tables", index, "--drop", "--json")[1]) == {
        "radius_tables": False,
        "n": 80,
        "index": str(index),
    }
    assert json.loads(run("index", "verify", index, "--json")[1])["files"] == 2 + 2 * 5
    assert run("index", "tables", index) == (0, f"radius tables of {index} written\n")
    run("index", "build", codes, "--out", index, "--radius-tables", "--quiet")
    assert json.loads(run("index", "verify", index, "--json")[1])["files"] == 2 + 2 * 7


def test_plan(run):
    code, out = run("index", "plan", "--n", "1e9", "--bits", 48)
    assert code == 0 and "6.0 GB and 16.0 GB" in out and "milvus" in out and "extrapolated: folder" in out
    without = json.loads(run("index", "plan", "--n", "1e9", "--second-bits", "0", "--json")[1])
    assert without["bytes"]["second"] == 0 and set(without["ways"]) == {"folder", "milvus", "pgvector"}
    assert run("index", "plan", "--n", "1e6", "--second-bits", "-1")[0] == 2
    assert json.loads(run("index", "plan", "--n", "1000", "--json")[1])["n"] == 1000
    assert run("index", "plan", "--n", "many") == (2, "--n must be a whole number such as 1000000 or 1e9, got many\n")


def test_what_is_refused(run, codes, tmp_path, rng):
    index = tmp_path / "index"
    assert run("index", "add", index, codes)[0] == 3  # no index
    run("index", "build", codes, "--out", index, "--quiet")
    other = CodesFolder.create(tmp_path / "other", n_bits=48, model={"fingerprint": "cd" * 32, "name": "other"})
    add_shard(other, Codes.from_relaxed(rng.normal(size=(5, 48))), [f"c/{i}.jpg" for i in range(5)])
    code, out = run("index", "add", index, tmp_path / "other")
    assert code == 3 and "not finished" in out
    other.finish()
    code, out = run("index", "add", index, tmp_path / "other")
    assert code == 4 and "was made with test abababab" in out
    assert run("index", "remove", index)[0] == 2 and run("index", "remove", index, "--ids", "x")[0] == 2
    assert run("index", "build", tmp_path / "nothing", "--out", tmp_path / "i")[0] == 3
    path = index / "part-00001.blocks.npy"
    content = path.read_bytes()
    path.write_bytes(content[:128] + bytes([content[128] ^ 1]) + content[129:])
    code, out = run("index", "verify", index)
    assert code == 3 and "part-00001.blocks.npy is damaged" in out
    code, out = run("index", "repair", index, "--codes", codes, "--quiet")
    assert code == 0 and out.startswith("repaired: part-00001.blocks.npy\nnext     hashlens index verify ")
    assert run("index", "verify", index)[1].startswith("intact: ")


def test_wrong_options_are_one_sentence(run, codes, tmp_path):
    index = tmp_path / "index"
    run("index", "build", codes, "--out", index, "--quiet")
    for words, sentence in (
        (("--ids", "99999999999999999999"), "--ids takes comma-separated whole numbers"),
        (("--ids", "-3"), "--ids takes comma-separated whole numbers"),
        (("--label", "\udcff"), "the label is not valid text"),
        (("--path", "\udcff*"), "the pattern is not valid text"),
    ):
        code, out = run("index", "remove", index, *words)
        assert code == 2 and sentence in out, words
    assert json.loads(run("index", "remove", index, "--path", "*/1*", "--json")[1])["removed"] == 22
    next(index.glob("*.items.arrow")).unlink()
    code, out = run("index", "verify", index)
    assert code == 3 and "is missing; repair it with: hashlens index repair" in out


def test_a_damaged_shard_is_not_added(run, codes, tmp_path):
    file = codes / "shard-000000040.codes.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    code, out = run("index", "build", codes, "--out", tmp_path / "index", "--quiet")
    assert code == 3 and "shard-000000040.codes.npy is damaged" in out and "has changed since it was written" in out


def test_the_same_images_are_added_once_whoever_wrote_their_table(run, codes, tmp_path, monkeypatch):
    """Another version of the library writes other bytes for the same table."""
    from hashlens.codes import folder as shards

    index = tmp_path / "index"
    run("index", "build", codes, "--out", index, "--quiet")
    whole = shards.parquet
    monkeypatch.setattr(shards, "parquet", lambda table: whole(table).replace(b"parquet-cpp", b"parquet-CPP"))
    again = CodesFolder.create(tmp_path / "again", n_bits=48, model=MODEL)
    for part in CodesFolder.open(codes):
        add_shard(again, *part)
    again.finish()
    files = [(place / "shard-000000000.items.parquet").read_bytes() for place in (codes, tmp_path / "again")]
    assert files[0] != files[1]
    assert json.loads(run("index", "add", index, tmp_path / "again", "--json", "--quiet")[1])["added"] == 0


def test_codes_are_searched_without_an_index(codes, tmp_path):
    """Whether as a folder or as the database of a run, they have the same ids and paths."""
    from hashlens.search import Searcher, open_index

    run = tmp_path / "run"
    shutil.copytree(codes, run / "codes" / "database")
    answers = [Searcher(open_index(path)).search(45, k=7) for path in (codes, run)]
    assert answers[0]["hits"] == answers[1]["hits"] and answers[0]["hits"][0]["path"] == "b/5.jpg"
    (codes / "manifest.json").write_text("{")
    with pytest.raises(cli.HashlensError, match=r"manifest.json is damaged"):
        open_index(codes)
    for nothing, why in ((tmp_path, "no images in"), (tmp_path / "nowhere", "not found")):
        with pytest.raises(cli.HashlensError, match=why):
            open_index(nothing)
    (tmp_path / "run" / "config.json").touch()
    shutil.rmtree(run / "codes")
    with pytest.raises(cli.HashlensError, match="has no index and no codes; build one with"):
        open_index(run)


def test_the_codes_of_a_run_are_indexed_and_searched(run, tmp_path, rng, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for row in range(40):
        place = tmp_path / "photos" / ("cat", "dog")[row % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 100, (12, 10, 3)) + 100 * (row % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{row:02d}.png")
    method = ["--method", "itq", "--features", "gist", "--bits", "8"]
    code, out = run("train", "photos", *method, "--out", "r2", "--quiet")
    assert code == 0, out
    query = str(tmp_path / "photos" / "cat" / "00.png")
    assert run("index", "build", "r2", "--out", "index", "--quiet")[0] == 0
    found = []
    for place in ("index", "r2"):  # the model is found by its name; paths are absolute
        code, out = run("search", place, query, "-k", "3", "--json")
        assert code == 0, out
        found.append(json.loads(out.splitlines()[-1]))
    assert found[0]["hits"] == found[1]["hits"] and found[0]["hits"][0]["path"].startswith(str(tmp_path))
    code, out = run("evaluate", "r2", "--json")
    assert code == 0 and json.loads(out.splitlines()[-1])["definitions"]
