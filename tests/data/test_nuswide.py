"""NUS-WIDE: the official layout, the 21 concepts, and exactly those images missing that are."""

import numpy as np
import pytest
from made_images import greys, opened

from hashlens.data import make_protocol
from hashlens.data.kinds.nuswide import is_nuswide, read_ground_truth
from hashlens.data.protocols import NUSWIDE_CONCEPTS, PROTOCOLS, Protocol
from hashlens.errors import DataError


def test_images_and_labels_belong_together(nuswide):
    assert is_nuswide(nuswide)
    source = opened(nuswide)
    rows = [row for row in range(40) if row % 5]
    assert source.name == "nuswide" and source.labels.names == NUSWIDE_CONCEPTS
    assert greys(source) == rows
    assert source.images.names[0] == "dir1/0001_7001.jpg"
    for place, row in enumerate(rows):
        expected = set(NUSWIDE_CONCEPTS) if row in (1, 2) else {NUSWIDE_CONCEPTS[row % 21]}
        assert set(source.labels.describe(place).split(", ")) == expected
    assert source.skipped == []
    assert source.warnings == ["images with none of the 21 concepts are left out: 8"]


def test_missing_and_unreadable_images_are_listed(nuswide):
    (nuswide / "Flickr" / "dir0" / "0004_7004.jpg").unlink()
    (nuswide / "Flickr" / "dir1" / "0039_7039.jpg").unlink()
    (nuswide / "Flickr" / "dir0" / "0010_7010.jpg").unlink()  # it has no concept, so nobody misses it
    (nuswide / "Flickr" / "dir0" / "0008_7008.jpg").write_bytes(b"")
    source = opened(nuswide)
    assert source.skipped == [
        ("dir0/0004_7004.jpg", "missing"),
        ("dir1/0039_7039.jpg", "missing"),
        ("dir0/0008_7008.jpg", "zero bytes"),
    ]
    assert greys(source) == [row for row in range(40) if row % 5 and row not in (4, 8, 39)]
    assert "images left out, missing: 2, first dir0/0004_7004.jpg" in source.warnings


def test_the_list_may_hold_flickr_ids(nuswide):
    (nuswide / "ImageList" / "Imagelist.txt").unlink()
    (nuswide / "ImageList" / "flickr_ids.txt").write_text("".join(f"{7000 + i}\n" for i in range(40)))
    (nuswide / "Flickr" / "dir1" / "0003_7003.jpg").rename(nuswide / "Flickr" / "7003.jpg")
    (nuswide / "Flickr" / "dir0" / "0006_7006.jpg").unlink()
    source = opened(nuswide)
    assert greys(source) == [row for row in range(40) if row % 5 and row != 6]
    assert source.skipped == [("7006", "missing")]


def test_folders_in_another_letter_case(nuswide):
    (nuswide / "Flickr" / "dir0").rename(nuswide / "Flickr" / "Dir0")
    source = opened(nuswide)
    assert len(source.images) == 32 and not source.skipped
    if not (nuswide / "Flickr" / "dir0").exists():
        assert any("letter case in ImageList" in line for line in source.warnings)


def test_without_images_the_labels_are_there(nuswide):
    import shutil

    shutil.rmtree(nuswide / "Flickr")
    labels, images = read_ground_truth(nuswide)
    assert labels.values.shape == (40, 21) and images[3] == "dir1/0003_7003.jpg"
    with pytest.raises(DataError, match=r"none of the 32 images of NUS-WIDE is below .*dir1/0001_7001\.jpg"):
        opened(nuswide)


def truth(name):
    return f"Groundtruth/AllLabels/Labels_{name}.txt"


@pytest.mark.parametrize(
    ("file", "contents", "message"),
    [
        (truth("sky"), None, r"Groundtruth/AllLabels/Labels_sky\.txt not found;"),
        (truth("sky"), "0\n" * 39, r"Labels_sky\.txt in .* has 39 lines and others 40"),
        (truth("sky"), "0\n" * 39 + "2\n", r"Labels_sky\.txt must contain only lines of 0 or 1"),
        ("ImageList/Imagelist.txt", "a.jpg\n", "lists 1 image and the ground truth has 40 lines"),
        ("ImageList/Imagelist.txt", None, r"Imagelist\.txt not found; unpack ImageList\.zip"),
    ],
)
def test_damaged_copies_get_a_sentence(nuswide, file, contents, message):
    if contents is None:
        (nuswide / file).unlink()
    else:
        (nuswide / file).write_text(contents)
    with pytest.raises(DataError, match=message):
        opened(nuswide)


def test_a_part_of_the_set_is_too_small_for_the_paper(nuswide):
    source = opened(nuswide)
    with pytest.raises(DataError, match=r"nuswide-1 draws 100 images per label, .*use the protocol split"):
        make_protocol(source)
    assert make_protocol(source, "split").name == "split"


def test_ground_truth_of_the_authors(real_ground_truth, tmp_path):
    labels, images = read_ground_truth(real_ground_truth)
    assert len(labels) == len(images) == 269_648
    assert labels.counts().min() >= 5000
    labelled = np.flatnonzero(labels.values.any(axis=1))
    assert len(labelled) == 195_834

    first, second = (PROTOCOLS[name](labels, 0) for name in ("nuswide-1", "nuswide-2"))
    assert (len(first.query), len(first.train), len(first.database)) == (2100, 10_500, 193_734)
    assert (len(second.query), len(second.train), len(second.database)) == (2100, 193_734, 193_734)
    assert (first.topk, second.topk) == (5000, 50_000)
    for protocol in (first, second):
        assert not np.isin(protocol.query, protocol.database).any()
        assert np.isin(protocol.train, protocol.database).all()
        assert np.array_equal(np.union1d(protocol.query, protocol.database), labelled)
    assert np.array_equal(first.query, second.query)
    assert (labels.values[first.query].sum(axis=0) >= 100).all()
    assert (labels.values[first.train].sum(axis=0) >= 500).all()

    first.save(tmp_path / "split.json")
    assert Protocol.load(tmp_path / "split.json").fingerprint() == first.fingerprint()
    # the images alone, numbered anew, give the same split
    again = PROTOCOLS["nuswide-1"](labels[labelled], 0)
    for role in ("train", "query", "database"):
        assert np.array_equal(labelled[getattr(again, role)], getattr(first, role))
