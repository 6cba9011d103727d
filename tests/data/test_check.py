"""data check: the report says exactly what is there, what is not, and what the split will be."""

import json
import os
import shutil

import pytest
from PIL import Image, PngImagePlugin

from hashlens.data import make_protocol, open_source
from hashlens.data.check import SHOWN, check_source, describe_check
from hashlens.data.folder import check_once, forget_checks
from hashlens.errors import DataError, UsageError


def noise(path, seed, size=(12, 10), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.frombytes("RGB", size, bytes((i * 7 + seed * 31) % 256 for i in range(size[0] * size[1] * 3))).save(
        path, **options
    )


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    for row in range(6):
        noise(root / "cats" / f"{row}.png", row)
    for row in range(4):
        noise(root / "dogs" / f"{row}.png", 50 + row, size=(33 - row, 20))
    return root


def test_a_good_folder(photos):
    report = check_source(photos)
    total = sum(path.stat().st_size for path in photos.rglob("*.png"))
    assert report["sizes"] == {
        "count": 10,
        "smallest": [12, 10],
        "median": [12, 10],
        "largest": [33, 20],
        "bytes": total,
    }
    assert report["labels"] == {
        "count": 2,
        "several": False,
        "pictures": 10,
        "per_picture": 1.0,
        "unlabelled": 0,
        "per_class": {"cats": 6, "dogs": 4},
    }
    assert report["skipped"] == [] and report["warnings"] == []
    assert report["duplicates"] == {"files": [], "pixels": [], "different_labels": [], "query_in_database": 0}
    protocol = make_protocol(open_source(photos))
    assert report["split"]["sha256"] == protocol.fingerprint()
    assert (report["split"]["name"], report["split"]["query"], report["split"]["train"]) == ("split", 2, 8)
    assert json.loads(json.dumps(report)) == report
    text = describe_check(report)
    for words in (
        "10 pictures · 2 labels · one label each",
        "smallest 12 × 10, median 12 × 10, largest 33 × 20",
        "from 4 (dogs) to 6 (cats) a label, ratio 1.5",
        "split, seed 0: 2 queries",
        "skipped     none",
        "duplicates  none",
        f"hashlens train {photos}",
    ):
        assert words in text


def test_seed_and_protocol_are_those_of_the_split(photos):
    assert check_source(photos, seed=3)["split"]["sha256"] == make_protocol(open_source(photos), seed=3).fingerprint()
    assert "cifar10-1 is for CIFAR-10" in check_source(photos, protocol="cifar10-1")["split"]["error"]
    with pytest.raises(UsageError, match="no protocol 'nonsense'"):
        check_source(photos, protocol="nonsense")


def test_bad_pictures_are_named(photos):
    noise(photos / "cats" / "3.png", 3, size=(200, 150))
    (photos / "cats" / "3.png").write_bytes((photos / "cats" / "3.png").read_bytes()[:-400])
    (photos / "dogs" / "0.png").write_text("hello")
    report = check_source(photos)
    assert report["skipped"] == [
        {"path": "cats/3.png", "reason": "truncated"},
        {"path": "dogs/0.png", "reason": "not a picture"},
    ]
    assert report["sizes"]["count"] == 8
    text = describe_check(report)
    assert "skipped     2: 1 truncated, 1 not a picture" in text
    assert "cats/3.png  truncated" in text and "dogs/0.png  not a picture" in text


def test_copies(photos):
    shutil.copy(photos / "cats" / "1.png", photos / "cats" / "copy.png")
    shutil.copy(photos / "cats" / "2.png", photos / "dogs" / "cat.png")
    written = PngImagePlugin.PngInfo()
    written.add_text("Comment", "the same picture")
    noise(photos / "dogs" / "again.png", 51, size=(32, 20), pnginfo=written)
    noise(photos / "dogs" / "other.png", 99, size=(32, 20))
    report = check_source(photos)["duplicates"]
    assert report["files"] == [["cats/1.png", "cats/copy.png"], ["cats/2.png", "dogs/cat.png"]]
    assert report["pixels"] == [["dogs/1.png", "dogs/again.png"]]
    assert report["different_labels"] == [["cats/2.png", "dogs/cat.png"]]
    text = describe_check(check_source(photos))
    assert "3 (groups of the same file: 2, of the same pixels: 1); groups under different labels: 1" in text
    assert "cats/2.png = dogs/cat.png" in text
    shutil.copy(photos / "dogs" / "1.png", photos / "dogs" / "third.png")
    text = describe_check(check_source(photos))
    assert "4 (groups of the same file: 3, of the same pixels: 1)" in text, "each copy is counted once"


def test_jpegs_that_look_alike_when_small_are_not_copies(tmp_path):
    # at an eighth of the size both are plain grey; decoded in full they differ
    for row, label in enumerate(("a", "b")):
        image = Image.new("L", (16, 16), 128)
        for x in range(16):
            for y in range(16):
                image.putpixel((x, y), 128 + (40 if (x + y + row) % 2 else -40))
        (tmp_path / "j" / label).mkdir(parents=True)
        image.save(tmp_path / "j" / label / "1.jpg", quality=95)
    assert check_source(tmp_path / "j")["duplicates"]["pixels"] == []


def test_queries_with_a_copy_in_the_database_are_counted(photos, tmp_path):
    shutil.copy(photos / "cats" / "1.png", photos / "cats" / "copy.png")
    lines = ["path,label,split", "cats/1.png,cat,query", "cats/copy.png,cat,train", "dogs/1.png,dog,train"]
    (photos / "t.csv").write_text("\n".join(lines))
    report = check_source(photos / "t.csv")
    assert report["duplicates"]["query_in_database"] == 1 and report["split"]["name"] == "given"
    assert "queries with a copy in the database, which flatters MAP: 1" in describe_check(report)


def test_a_miniature_of_nuswide_says_exactly_which_are_missing(nuswide):
    gone = ["dir0/0004_7004.jpg", "dir1/0011_7011.jpg", "dir1/0039_7039.jpg"]
    for name in gone:
        (nuswide / "Flickr" / name).unlink()
    report = check_source(nuswide)
    assert report["skipped"] == [{"path": name, "reason": "missing"} for name in gone]
    assert report["sizes"]["count"] == 29 and report["labels"]["count"] == 21
    assert "nuswide-1 draws 100 pictures for each label" in report["split"]["error"]
    text = describe_check(report)
    assert "skipped     3: 3 missing" in text and all(f"{name}  missing" in text for name in gone)
    assert "next" not in text
    assert check_source(nuswide, protocol="split")["split"]["name"] == "split"


def test_nuswide_without_pictures_is_told_from_its_labels(nuswide):
    shutil.rmtree(nuswide / "Flickr")
    report = check_source(nuswide)
    assert report["sizes"] == {"count": 0} and report["labels"]["pictures"] == 32
    assert len(report["skipped"]) == 32
    text = describe_check(report)
    assert f"… and {32 - SHOWN} more; --json lists all" in text and "no picture is there" in text


def test_nuswide_has_no_split_of_its_own(nuswide):
    shutil.rmtree(nuswide / "Flickr")
    assert "without a split of its own" in check_source(nuswide, protocol="given")["split"]["error"]


def test_the_split_of_the_real_ground_truth(real_ground_truth):
    report = check_source(real_ground_truth)
    assert report["labels"]["count"] == 21 and report["labels"]["pictures"] == 195_834
    split = report["split"]
    assert (split["name"], split["query"], split["train"], split["database"]) == ("nuswide-1", 2100, 10_500, 193_734)
    assert "2,100 queries (100 a concept), 193,734 searched, 10,500 of them" in describe_check(report)


def test_label_sets_in_memory_and_in_tables(photos):
    (photos / "t.csv").write_text("path,tags\ncats/1.png,a;b\ncats/2.png,\ndogs/1.png,b\n")
    report = check_source(photos / "t.csv")
    assert report["labels"]["per_class"] == {"a": 1, "b": 2} and report["labels"]["unlabelled"] == 1
    assert "label sets, 1.0 labels a picture" in describe_check(report)
    assert "1 without a label" in describe_check(report)
    digits = check_source("digits")
    assert digits["sizes"]["count"] == 1797 and digits["sizes"]["largest"] == [8, 8]
    assert digits["labels"]["count"] == 10


def test_what_was_good_is_not_decoded_again(photos, empty_cache, monkeypatch):
    lines = []
    open_source(photos, progress=lines.append)
    assert any("checking 10 pictures" in line for line in lines)
    again = []
    source = open_source(photos, progress=again.append)
    assert again == [] and len(source.images) == 10
    noise(photos / "cats" / "new.png", 8)
    (photos / "cats" / "5.png").write_text("hello")
    source = open_source(photos, progress=again.append)
    assert again == [f"checking 2 pictures in {photos}"]
    assert source.skipped == [("cats/5.png", "not a picture")]
    assert open_source(photos).skipped == [("cats/5.png", "not a picture")]


def test_a_memory_that_cannot_be_kept_or_read_is_done_without(photos, empty_cache):
    empty_cache.parent.joinpath("cache").write_text("a file where a folder should be")
    lines = []
    good, bad = check_once(["cats/1.png"], photos, lines.append)
    assert good == {"cats/1.png": (12, 10)} and not bad
    assert any("not kept for the next time" in line for line in lines)
    empty_cache.unlink()
    check_once(["cats/1.png"], photos)
    (memory,) = (empty_cache / "readable").iterdir()
    for damaged in ("[1]", "{", '{"cats/1.png": 3}'):
        memory.write_text(damaged)
        assert check_once(["cats/1.png"], photos)[0] == {"cats/1.png": (12, 10)}
    forget_checks(photos)
    assert not memory.exists()


def test_check_finds_what_the_memory_hides(photos, empty_cache, monkeypatch):
    from hashlens.data import folder

    monkeypatch.setattr(folder, "_mark", lambda path: "always the same")
    open_source(photos)
    contents = (photos / "cats" / "2.png").read_bytes()
    (photos / "cats" / "2.png").write_bytes(b"\0" * len(contents))
    assert open_source(photos).skipped == []
    assert check_source(photos)["skipped"] == [{"path": "cats/2.png", "reason": "not a picture"}]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_forbidden_files_are_tried_again(photos, empty_cache):
    (photos / "cats" / "1.png").chmod(0)
    assert open_source(photos).skipped == [("cats/1.png", "permission denied")]
    (photos / "cats" / "1.png").chmod(0o644)
    assert open_source(photos).skipped == []


def test_bad_sources_are_the_same_errors_as_elsewhere(tmp_path):
    with pytest.raises(DataError, match="there is no folder"):
        check_source(tmp_path / "gone")
