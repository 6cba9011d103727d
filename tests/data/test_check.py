"""data check: the report says exactly what is there, what is not, and what the split will be."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from hashlens.data import images, make_protocol, open_source, readable
from hashlens.data.check import SHOWN, check_source, describe_check
from hashlens.data.images import FileImages
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
        "images": 10,
        "per_image": 1.0,
        "unlabelled": 0,
        "per_class": {"cats": 6, "dogs": 4},
    }
    assert report["skipped"] == [] and report["warnings"] == []
    nothing: dict = {key: [] for key in ("groups", "near_identical", "different_labels", "query_in_database")}
    assert report["duplicates"] == nothing
    protocol = make_protocol(open_source(photos))
    assert report["split"]["sha256"] == protocol.fingerprint()
    assert (report["split"]["name"], report["split"]["query"], report["split"]["train"]) == ("split", 2, 8)
    assert json.loads(json.dumps(report)) == report
    text = describe_check(report)
    for words in (
        "10 images · 2 labels · one label each",
        "smallest 12 × 10, median 12 × 10, largest 33 × 20",
        "from 4 (dogs) to 6 (cats) per label, ratio 1.5",
        "split, seed 0: 2 queries",
        "skipped     none",
        "duplicates  none",
        f"hashlens train {photos}",
    ):
        assert words in text


def test_seed_and_protocol_are_those_of_the_split(photos):
    assert check_source(photos, seed=3)["split"]["sha256"] == make_protocol(open_source(photos), seed=3).fingerprint()
    assert "cifar10-1 is for CIFAR-10" in check_source(photos, protocol="cifar10-1")["split"]["error"]
    with pytest.raises(UsageError, match="unknown protocol 'nonsense'"):
        check_source(photos, protocol="nonsense")


def test_classes_without_a_query_are_said(photos):
    for row in range(2):
        noise(photos / "owls" / f"{row}.png", 80 + row)
    report = check_source(photos)
    (note,) = report["warnings"]
    assert note.startswith("classes without a query: 1 of 3, first owls") and f"note        {note}" in describe_check(
        report
    )
    assert "split, seed 0: 2 queries from 2 of 3 classes" in describe_check(report)


def test_bad_images_are_named(photos):
    noise(photos / "cats" / "3.png", 3, size=(200, 150))
    (photos / "cats" / "3.png").write_bytes((photos / "cats" / "3.png").read_bytes()[:-400])
    (photos / "dogs" / "0.png").write_text("hello")
    report = check_source(photos)
    assert report["skipped"] == [
        {"path": "cats/3.png", "reason": "truncated"},
        {"path": "dogs/0.png", "reason": "not an image"},
    ]
    assert report["sizes"]["count"] == 8
    text = describe_check(report)
    assert "skipped     2: 1 truncated, 1 not an image" in text
    assert "cats/3.png  truncated" in text and "dogs/0.png  not an image" in text


def test_copies(photos):
    shutil.copy(photos / "cats" / "1.png", photos / "cats" / "copy.png")
    shutil.copy(photos / "cats" / "2.png", photos / "dogs" / "cat.png")
    shutil.copy(photos / "cats" / "1.png", photos / "cats" / "third.png")
    report = check_source(photos)
    groups = [["cats/1.png", "cats/copy.png", "cats/third.png"], ["cats/2.png", "dogs/cat.png"]]
    found = report["duplicates"]
    assert found["groups"] == found["near_identical"] == groups
    assert found["different_labels"] == [{"cats/2.png": "cats", "dogs/cat.png": "dogs"}]
    text = describe_check(report)
    assert "duplicates  3\n" in text and "cats/1.png = cats/copy.png = cats/third.png" in text
    assert "label noise groups of near-identical images with different labels: 1; correct the labels" in text
    assert "cats/2.png (cats) = dogs/cat.png (dogs)" in text


def test_queries_with_a_copy_in_the_database_are_counted(photos, tmp_path):
    shutil.copy(photos / "cats" / "1.png", photos / "cats" / "copy.png")
    lines = ["path,label,split", "cats/1.png,cat,query", "cats/copy.png,cat,train", "dogs/1.png,dog,train"]
    (photos / "t.csv").write_text("\n".join(lines))
    report = check_source(photos / "t.csv")
    assert report["duplicates"]["query_in_database"] == ["cats/1.png"] and report["split"]["name"] == "given"
    assert "queries with a copy in the database, which inflates MAP: 1; remove the copies" in describe_check(report)


def scene(path, seed, size=(120, 90), change=None, **options):
    """A smooth picture like a photo: a few coloured waves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0 : size[1], 0 : size[0]] / 90
    waves = [np.sin(rng.uniform(1, 8) * x + rng.uniform(1, 8) * y + rng.uniform(0, 6)) for _ in range(9)]
    pixels = np.clip(128 + 40 * np.stack([sum(waves[c::3]) for c in range(3)], axis=2), 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    (change(image) if change else image).save(path, **options)


def test_near_identical_images_are_found_whatever_their_size_and_format(tmp_path):
    for row in range(8):
        scene(tmp_path / "a" / f"{row}.png", row)
    scene(tmp_path / "a" / "small.png", 1, change=lambda image: image.resize((61, 47)))
    scene(tmp_path / "b" / "poor.jpg", 2, quality=40)
    scene(tmp_path / "b" / "same.bmp", 2)
    scene(tmp_path / "b" / "mirrored.png", 3, change=lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    scene(tmp_path / "b" / "cut.png", 4, change=lambda image: image.crop((30, 20, 120, 90)))
    scene(tmp_path / "b" / "grey.png", 5, change=lambda image: image.convert("L"))
    report = check_source(tmp_path)
    found = report["duplicates"]
    assert found["groups"] == []
    assert found["near_identical"] == [["a/1.png", "a/small.png"], ["a/2.png", "b/poor.jpg", "b/same.bmp"]]
    assert found["different_labels"] == [{"a/2.png": "a", "b/poor.jpg": "b", "b/same.bmp": "b"}]
    assert "duplicates  none; near-identical: 3\n" in describe_check(report)


def test_near_identical_images_against_a_loop_over_pairs():
    from hashlens.data.duplicates import COLOURS, RADIUS, _signatures, near_identical

    whole = open_source("digits").images[:400]
    rises, colours = _signatures(whole, slice(0, 400))
    alike = {
        (i, j)
        for i in range(400)
        for j in range(i + 1, 400)
        if (rises[i] != rises[j]).sum() <= RADIUS and np.abs(colours[i].astype(float) - colours[j]).mean() <= COLOURS
    }
    groups = near_identical(whole)
    assert alike <= {(i, j) for rows in groups for i in rows for j in rows if i < j}
    assert {row for rows in groups for row in rows} == {row for pair in alike for row in pair}
    assert near_identical(whole[:0]) == []


def test_a_miniature_of_nuswide_says_exactly_which_are_missing(nuswide):
    gone = ["dir0/0004_7004.jpg", "dir1/0011_7011.jpg", "dir1/0039_7039.jpg"]
    for name in gone:
        (nuswide / "Flickr" / name).unlink()
    report = check_source(nuswide)
    assert report["skipped"] == [{"path": name, "reason": "missing"} for name in gone]
    assert report["sizes"]["count"] == 29 and report["labels"]["count"] == 21
    assert "nuswide-1 draws 100 images per label" in report["split"]["error"]
    text = describe_check(report)
    assert "skipped     3: 3 missing" in text and all(f"{name}  missing" in text for name in gone)
    assert "next" not in text
    assert check_source(nuswide, protocol="split")["split"]["name"] == "split"


def test_nuswide_without_images_is_told_from_its_labels(nuswide):
    shutil.rmtree(nuswide / "Flickr")
    report = check_source(nuswide)
    assert report["sizes"] == {"count": 0} and report["labels"]["images"] == 32
    assert len(report["skipped"]) == 32
    text = describe_check(report)
    assert f"… and {32 - SHOWN} more; --json lists all" in text and "no images found" in text


def test_nuswide_has_no_split_of_its_own(nuswide):
    shutil.rmtree(nuswide / "Flickr")
    assert "no split of its own" in check_source(nuswide, protocol="given")["split"]["error"]


def test_the_split_of_the_real_ground_truth(real_ground_truth):
    report = check_source(real_ground_truth)
    assert report["labels"]["count"] == 21 and report["labels"]["images"] == 195_834
    split = report["split"]
    assert (split["name"], split["query"], split["train"], split["database"]) == ("nuswide-1", 2100, 10_500, 193_734)
    assert "2,100 queries (100 per concept), 193,734 searched, 10,500 of them" in describe_check(report)


def test_label_sets_in_memory_and_in_tables(photos):
    (photos / "t.csv").write_text("path,tags\ncats/1.png,a;b\ncats/2.png,\ndogs/1.png,b\n")
    report = check_source(photos / "t.csv")
    assert report["labels"]["per_class"] == {"a": 1, "b": 2} and report["labels"]["unlabelled"] == 1
    assert "label sets, 1.0 labels per image" in describe_check(report)
    assert "1 without a label" in describe_check(report)
    digits = check_source("digits")
    assert digits["sizes"]["count"] == 1797 and digits["sizes"]["largest"] == [8, 8]
    assert digits["labels"]["count"] == 10


def test_what_was_good_is_not_decoded_again(photos, empty_cache, monkeypatch):
    lines = []
    readable(open_source(photos), lines.append)
    assert any("checking 10 images" in line for line in lines)
    again = []
    source = readable(open_source(photos), again.append)
    assert again == [] and len(source.images) == 10
    noise(photos / "cats" / "new.png", 8)
    (photos / "cats" / "5.png").write_text("hello")
    source = readable(open_source(photos), again.append)
    assert again == [f"checking 2 images in {photos}"]
    assert source.skipped == [("cats/5.png", "not an image")]
    assert readable(open_source(photos)).skipped == [("cats/5.png", "not an image")]


def test_a_memory_that_cannot_be_kept_or_read_is_done_without(photos, empty_cache):
    empty_cache.write_text("a file where a folder should be")
    lines, source = [], open_source(photos)
    assert len(readable(source, lines.append)) == 10
    assert any("not cached" in line for line in lines)
    empty_cache.unlink()
    readable(source)
    (memory,) = (empty_cache / "readable").iterdir()
    for damaged in ("[1]", "{", '{"cats/1.png": 3}'):
        memory.write_text(damaged)
        assert len(readable(source)) == 10


def test_check_finds_what_the_memory_hides(photos, empty_cache, monkeypatch):
    monkeypatch.setattr(FileImages, "marks", lambda images: ["always the same"] * len(images))
    readable(open_source(photos))
    contents = (photos / "cats" / "2.png").read_bytes()
    (photos / "cats" / "2.png").write_bytes(b"\0" * len(contents))
    assert readable(open_source(photos)).skipped == []
    assert check_source(photos)["skipped"] == [{"path": "cats/2.png", "reason": "not an image"}]


def test_forbidden_files_are_tried_again(photos, empty_cache, monkeypatch):
    decode = images.decode

    def forbidden(file, at_least):  # as chmod 0 would make it, but for root too
        if file == photos / "cats" / "1.png":
            raise PermissionError
        return decode(file, at_least)

    with monkeypatch.context() as patch:
        patch.setattr(images, "decode", forbidden)
        assert readable(open_source(photos)).skipped == [("cats/1.png", "permission denied")]
    assert readable(open_source(photos)).skipped == []


def test_bad_sources_are_the_same_errors_as_elsewhere(tmp_path):
    with pytest.raises(DataError, match="not found; "):
        check_source(tmp_path / "gone")
