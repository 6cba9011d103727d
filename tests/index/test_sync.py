"""An index follows its images, and a new one takes the place of the old in one step."""

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from made_index import N_BITS, make_images, make_index
from PIL import Image

from hashlens import DTSH, Training
from hashlens.codes.encoder import Encoder
from hashlens.codes.model import ModelFolder
from hashlens.data import open_source
from hashlens.errors import UsageError
from hashlens.index.changes import find_changes, sync
from hashlens.index.folder import IndexFolder
from hashlens.search import open_searcher


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    place = tmp_path_factory.mktemp("sync")
    return place, make_index(place)


@pytest.fixture
def made(session, tmp_path):
    """Images with an index that is up to date with them."""
    shutil.copytree(session[0], tmp_path / "x", dirs_exist_ok=True)
    place = tmp_path / "x"
    index = IndexFolder.create(place / "synced", N_BITS, ModelFolder(place / "runs/made/model").describe())
    return place, index


def brought_up(place, index, **how):
    encoder = Encoder.load(place / "runs/made/model")
    return sync(index, open_source(str(place / "images"), labels="optional"), lambda: encoder, **how)


def test_an_index_follows_its_images(made):
    place, index = made
    images = place / "images"
    assert brought_up(place, index) == {"added": 60, "changed": 0, "deleted": 0, "unreadable": 0}
    before = index.lookup(range(100))
    assert brought_up(place, index) == {"added": 0, "changed": 0, "deleted": 0, "unreadable": 0}
    Image.open(images / "digit" / "001.jpg").rotate(90).save(images / "digit" / "000.jpg")
    (images / "digit" / "002.jpg").unlink()
    shutil.copy(images / "palace" / "000.jpg", images / "digit" / "100.jpg")
    (images / "flower" / "000.jpg").write_bytes(b"no image any more")
    (images / "flower" / "bad.jpg").write_bytes(b"no image")
    changes = find_changes(index, open_source(str(images), labels="optional"))
    assert changes.counted() == {"added": 2, "changed": 2, "deleted": 1} and len(index) == 60
    assert brought_up(place, index) == {"added": 1, "changed": 1, "deleted": 1, "unreadable": 2}
    again = IndexFolder.open(index.path)
    after = {item["path"]: item for item in again.lookup(range(100)).values()}
    assert len(after) == len(again) == 59
    name = (images / "digit" / "000.jpg").as_posix()
    fresh = Encoder.load(place / "runs/made/model").codes([name]).packed[0].tobytes().hex()
    assert after[name]["code"] == fresh and after[name]["id"] >= 60
    for item in before.values():
        if "/digit/00" not in item["path"] and "flower/000" not in item["path"]:
            assert after[item["path"]] == item
    again.compact()
    assert brought_up(place, again)["added"] == 0 and again.verify()
    again.remove([again.examples(1)[0]])
    assert brought_up(place, again)["added"] == 1 and len(again) == 59  # the source says what is there


def test_second_codes_follow_too(tmp_path):
    paths = sorted(make_images(tmp_path / "images", 12))
    how = {"backbone": "small-cnn", "image_size": 24, "sampling": "in-batch"}
    hasher = DTSH(12, second_bits=24, training=Training(epochs=1, batch_size=18), **how)
    hasher.fit(paths, np.arange(36) // 12).save(tmp_path / "model")
    encoder = Encoder.load(tmp_path / "model")
    index = IndexFolder.create(tmp_path / "index", 12, ModelFolder(tmp_path / "model").describe(), second_bits=24)

    def follow():
        return sync(index, open_source(str(tmp_path / "images"), labels="optional"), lambda: encoder)

    assert follow()["added"] == 36
    shutil.copy(paths[1], paths[0])
    Path(paths[2]).unlink()
    shutil.copy(paths[3], tmp_path / "images" / "new.jpg")
    assert follow() == {"added": 1, "changed": 1, "deleted": 1, "unreadable": 0}
    items = {item["path"]: item for item in IndexFolder.open(index.path).lookup(range(100)).values()}
    codes = encoder.codes(list(items))
    assert [item["code"] for item in items.values()] == [row.tobytes().hex() for row in codes.packed]
    assert [item["second"] for item in items.values()] == [row.tobytes().hex() for row in codes.second.packed]


def test_a_clock_that_goes_back(made):
    place, index = made
    brought_up(place, index)
    path = place / "images" / "digit" / "003.jpg"
    Image.new("RGB", (96, 72), "red").save(path)
    os.utime(path, (1, 1))
    assert brought_up(place, index) == {"added": 0, "changed": 1, "deleted": 0, "unreadable": 0}
    assert brought_up(place, index)["changed"] == 0


def test_a_touched_image_is_not_encoded_again(made, monkeypatch):
    place, index = made
    brought_up(place, index)
    index.remove([7])  # removed images stay removed
    before, source = index.lookup(range(100)), open_source(str(place / "images"), labels="optional")
    touched = [source.table["path"][row].as_py() for row in (3, 4, 50)]
    for path, when in zip(touched, (10**9, 2**63 + 5, -(10**12)), strict=True):  # long ago, long after, before 1970
        os.utime(path, ns=(when, when))
    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "codes", lambda *given, **how: pytest.fail("an image was encoded again"))
        changes = find_changes(index, source)
        assert changes.touched == {3: 10**9, 4: 2**63 - 1, 50: -(10**12)} and changes.changed == []
        sync(index, source, lambda: pytest.fail("the model was loaded"), changes=changes._replace(added=[]))
    again = IndexFolder.open(index.path)
    assert again.lookup(range(100)) == before and again.verify() and len(again.parts) == len(index.parts)
    monkeypatch.setattr("hashlens.index.changes.hash_of_file", lambda path: pytest.fail("its time is not known"))
    assert find_changes(again, source).touched == {}
    again.compact()
    assert find_changes(again, source).touched == {} and again.verify()


def test_the_same_size_is_not_the_same_content(made):
    place, index = made
    brought_up(place, index)
    path = place / "images" / "digit" / "003.jpg"
    size, content = path.stat().st_size, (place / "images" / "digit" / "004.jpg").read_bytes()
    path.write_bytes((content + b"\0" * size)[:size])  # what follows the end of a JPEG is ignored
    os.utime(path, (1, 1))
    assert brought_up(place, index)["changed"] == 1
    path.chmod(0)
    os.utime(path, (2, 2))
    try:
        expected = 1 if not os.access(path, os.R_OK) else 0
        assert len(find_changes(index, open_source(str(place / "images"), labels="optional")).changed) == expected
    finally:
        path.chmod(0o644)


def test_an_image_whose_hash_is_not_known_is_encoded_again_once(made):
    """As after an update: the index knows sizes and times, but no hashes."""
    place, index = made
    brought_up(place, index)
    (part,) = index.parts
    older = IndexFolder.create(place / "older", N_BITS, index.model)
    older.add(index._joined()[0], part.items().table().drop_columns(["hash"]))
    assert brought_up(place, older) == {"added": 0, "changed": 0, "deleted": 0, "unreadable": 0}
    path = place / "images" / "digit" / "003.jpg"
    for changed in (1, 0):
        os.utime(path, (changed, changed))
        assert brought_up(place, older)["changed"] == changed


def test_an_index_that_does_not_know_sizes_is_encoded_again_once(made):
    place, _ = made
    index = IndexFolder.open(place / "index")
    paths = {item["path"] for item in index.lookup(range(100)).values()}
    for path in paths:
        assert "/sync" in path  # of the folder that it was copied from
    assert brought_up(place, index) == {"added": 60, "changed": 0, "deleted": 60, "unreadable": 0}
    assert brought_up(place, index)["changed"] == 0


def test_commands(made, hashlens):
    place, index = made
    command = ("index", "sync", index.path, place / "images", "--quiet")
    code, out, _ = hashlens(*command, "--dry-run")
    assert code == 0 and out.startswith("to do: 60 added, 0 changed, 0 deleted; 0 in ") and len(index) == 0
    code, out, _ = hashlens(*command)
    assert code == 0 and out.startswith("60 added, 0 changed, 0 deleted, 0 unreadable; 60 in ")
    code, out, _ = hashlens("index", "promote", index.path, place / "index")
    assert code == 0 and "now holds the 60 images" in out
    assert len(IndexFolder.open(place / "index")) == 60
    assert hashlens("index", "promote", index.path, index.path)[0] == 2


def test_another_model_takes_over_while_searches_go_on(made, monkeypatch):
    place, _ = made
    monkeypatch.chdir(place)
    index = IndexFolder.open(place / "index")
    index.remove([3])
    paths = [path.as_posix() for path in sorted((place / "images").rglob("*.jpg"))]
    other = DTSH(12, backbone="small-cnn", image_size=24, training=Training(epochs=1, batch_size=30))
    other.fit(paths, np.arange(60) % 3).save(place / "runs" / "other" / "model")
    model = ModelFolder(place / "runs" / "other" / "model").describe()
    new = IndexFolder.create(place / "new", 12, model, radius_tables=True)
    encoder = Encoder.load(place / "runs" / "other")
    sync(new, open_source(str(place / "images"), labels="optional"), lambda: encoder)
    new.remove([5])
    searcher = open_searcher(place / "index", place / "runs" / "made")
    found, failures, done = [], [], threading.Event()

    def search():
        while not done.is_set():
            try:
                found.append(searcher.search(paths[0], k=5)["index"]["n_bits"])
            except Exception as error:
                failures.append(error)

    thread = threading.Thread(target=search)
    thread.start()
    while len(found) < 3:
        pass
    index.promote(new)
    while 12 not in found and not failures:
        pass
    done.set()
    thread.join()
    assert not failures and found == sorted(found, reverse=True) and {20, 12} == set(found)
    assert searcher.search(paths[0])["hits"][0]["distance"] == 0 and len(index) == 59
    again = IndexFolder.open(place / "index")
    assert again.verify() and again.lookup([7]) == new.lookup([7]) and again.model == model
    assert not again.lookup([5]) and again.looks_up(0) == new.looks_up(0)
    shutil.rmtree(place / "new")
    assert again.add(encoder.codes(paths[:1]), new.parts[0].items().table().slice(0, 1)).tolist() == [60]
    with pytest.raises(UsageError, match="which was not found"):
        shutil.rmtree(place / "runs" / "other")
        open_searcher(place / "index")
