"""MIRFLICKR-25K: the official layout, 24 labels, images without one left out."""

import numpy as np
import pytest
from made_images import greys, opened

from hashlens.data import make_protocol, open_source
from hashlens.data.kinds.mirflickr import is_mirflickr
from hashlens.data.protocols import MIRFLICKR_LABELS
from hashlens.errors import DataError

LABELLED = [number for number in range(1, 30) if number != 7]


def test_images_and_labels_belong_together(mirflickr):
    assert is_mirflickr(mirflickr)
    source = opened(mirflickr)
    assert source.name == "mirflickr25k" and source.labels.names == MIRFLICKR_LABELS
    assert greys(source) == LABELLED  # by number: im10 after im9, not after im1
    for place, number in enumerate(LABELLED):
        expected = {MIRFLICKR_LABELS[number % 24]} | ({"animals"} if number == 5 else set())
        assert set(source.labels.describe(place).split(", ")) == expected
    assert source.skipped == [] and source.notes == ["images without a label are left out: 2"]


def test_the_official_names_of_the_folders(mirflickr):
    (mirflickr / "mirflickr").mkdir()
    for path in mirflickr.glob("im*.jpg"):
        path.rename(mirflickr / "mirflickr" / path.name)
    (mirflickr / "annotations").rename(mirflickr / "mirflickr25k_annotations_v080")
    assert greys(opened(mirflickr)) == LABELLED


def test_missing_and_unreadable_images_are_listed(mirflickr):
    (mirflickr / "im4.jpg").unlink()
    (mirflickr / "im30.jpg").unlink()  # it has no label, so nobody misses it
    (mirflickr / "im2.jpg").write_text("hello")
    source = opened(mirflickr)
    assert source.skipped == [("im4.jpg", "missing"), ("im2.jpg", "not an image")]
    assert greys(source) == [number for number in LABELLED if number not in (2, 4)]
    assert "images left out, missing: 1, first im4.jpg" in source.warnings


def test_damaged_copies_get_a_sentence(mirflickr):
    sky = mirflickr / "annotations" / "sky.txt"
    for contents in ("12\nx\n", "-3\n", "12345678\n"):
        sky.write_text(contents)
        with pytest.raises(DataError, match=r"sky\.txt contains '.*' instead of the number of an image"):
            opened(mirflickr)
    sky.unlink()
    with pytest.raises(DataError, match=r"cannot read .*sky\.txt"):
        opened(mirflickr)
    for path in mirflickr.glob("im?.jpg"):
        path.write_text("x")
    for path in mirflickr.glob("im??.jpg"):
        path.unlink()
    sky.write_text("")
    with pytest.raises(DataError, match=r"8 of 8 images in .* cannot be used"):
        opened(mirflickr)


def test_other_folders_are_not_taken_for_it(mirflickr):
    (mirflickr / "annotations").rename(mirflickr / "notes")
    assert not is_mirflickr(mirflickr)
    with pytest.raises(DataError, match="no labels"):
        opened(mirflickr)


def test_a_part_of_the_set_is_too_small_for_its_protocol(mirflickr):
    source = opened(mirflickr)
    with pytest.raises(DataError, match=r"needs 7,000 labelled images, got 28; .*use the protocol split"):
        make_protocol(source)


def test_all_of_mirflickr(real_mirflickr):
    source = open_source(real_mirflickr)
    assert len(source.images) == 24_581 and source.skipped == []
    assert source.warnings == ["images without a label are left out: 419"]
    assert source.labels.values.any(axis=1).all()
    assert 3.7 < source.labels.values.sum(axis=1).mean() < 3.85
    assert source.images.names[0] == "im1.jpg" and source.images.names[-1].startswith("im2")
    protocol = make_protocol(source)
    assert (protocol.name, protocol.topk) == ("mirflickr", 5000)
    assert (len(protocol.query), len(protocol.database), len(protocol.train)) == (2000, 22_581, 5000)
    assert not np.isin(protocol.query, protocol.database).any() and np.isin(protocol.train, protocol.database).all()
    assert source.images.read([0, 24_580], 32).shape == (2, 32, 32, 3)
