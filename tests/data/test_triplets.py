"""Explicit triplets: files and arrays, and what is wrong with some of them."""

import numpy as np
import pytest

from hashlens.data.images import ArrayImages, FileImages
from hashlens.data.triplets import clean_triplets, read_triplets
from hashlens.errors import DataError

NAMES = ["cat/1.jpg", "cat/2.jpg", "dog/a b.jpg", "dog/2.jpg"]


@pytest.fixture
def images(rng):
    return ArrayImages(rng.integers(0, 256, (4, 8, 8, 3), dtype=np.uint8), names=NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "query,positive,negative\ncat/1.jpg,cat/2.jpg,dog/a b.jpg\n2,3,0\n",
        "cat/1.jpg\tcat/2.jpg\tdog/a b.jpg\r\n\r\n2\t3\t0",
        "﻿cat/1.jpg, cat/2.jpg, dog/a b.jpg\n dog/a b.jpg ,dog/2.jpg, 0",
        "0 1 2\n2  3 0\n",
    ],
)
def test_reading(tmp_path, images, text):
    path = tmp_path / "triplets.csv"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_triplets(path, images).tolist() == [[0, 1, 2], [2, 3, 0]]


def test_files_with_and_without_their_folder(tmp_path):
    path = tmp_path / "triplets.csv"
    path.write_text("photos/cat/1.jpg,cat/2.jpg,photos/dog/2.jpg\n")
    assert read_triplets(path, FileImages("photos", NAMES)).tolist() == [[0, 1, 3]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("0,1\n", "line 1 .* has 2 entries"),
        ("0,1,2\n0,1,4\n", "line 2 .* names row 4, but there are 4 images"),
        ("0,1,bird.jpg", "line 1 .* names 'bird.jpg', which is not among the images"),
        ("0,1,-1", "names '-1'"),
    ],
)
def test_bad_files(tmp_path, images, text, expected):
    path = tmp_path / "triplets.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=expected):
        read_triplets(path, images)
    with pytest.raises(DataError, match=r"cannot read the triplet file .*No such file"):
        read_triplets(tmp_path / "none", images)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(DataError, match="cannot read the triplet file"):
        read_triplets(tmp_path / "binary", images)


def test_cleaning():
    given = [[0, 1, 2], [3, 3, 1], [0, 1, 2], [1, 0, 3], [1, 3, 0], [2, 0, 2], [4, 1, 1], [4, 1, 0], [1, 2, 3]]
    rows, notes = clean_triplets(given, 5)
    assert rows.tolist() == [[0, 1, 2], [4, 1, 0], [1, 2, 3]]
    assert len(notes) == 3
    assert "triplets left out because an image is named twice in them: 3" in notes[0] and "3, 3, 1" in notes[0]
    assert "triplets left out because they repeat others: 1" in notes[1]
    assert "triplets left out because others say the opposite: 2" in notes[2]
    assert clean_triplets(rows, 5)[1] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([[0, 1, 5]], r"triplets with images outside rows 0 to 4: 1, first triplet 0: \[0, 1, 5\]"),
        ([[0, 1, 2], [-1, 1, 2]], "first triplet 1"),
        ([[0, 1]], r"rows of three integers .* \(1, 2\)"),
        ([[0.5, 1, 2]], "rows of three integers"),
        ([], "rows of three integers"),
        ([[0, 1, 2], [0, 2, 1]], "no triplet can be trained on: .*opposite"),
    ],
)
def test_bad_triplets(given, expected):
    with pytest.raises(DataError, match=expected):
        clean_triplets(given, 5)


@pytest.mark.parametrize("word", ["9" * 5_000, '"' + "a" * 140_000 + '"'])
def test_words_that_are_too_long(tmp_path, images, word):
    (tmp_path / "t.csv").write_text(f"0,1,2\n{word},1,2\n")
    with pytest.raises(DataError, match="line 2 of") as error:
        read_triplets(tmp_path / "t.csv", images)
    assert len(error.value.message) < 400
