"""Folds: every training row is held back once, near-duplicates stay together, and no other row can be reached."""

import numpy as np
import pytest
from PIL import Image
from scipy.sparse.csgraph import connected_components

from hashlens.data import Source, make_protocol, open_source
from hashlens.data.folds import ALIKE, TrainingRows, near_duplicates
from hashlens.data.images import ArrayImages, FileImages, as_images
from hashlens.data.labels import Labels
from hashlens.errors import DataError
from hashlens.features.extractor import extractor
from hashlens.machine import blocks


def rows_of(X, y):
    return TrainingRows("made", X, Labels.of(y))


def test_each_row_is_held_back_once_and_each_class_in_every_fold(clusters):
    X, y = clusters
    cuts = rows_of(X, y).folds(4)
    assert np.array_equal(np.sort(np.concatenate([held for _, held in cuts])), np.arange(len(y)))
    for learned, held in cuts:
        assert not np.intersect1d(learned, held).size and len(learned) + len(held) == len(y)
        assert all(abs(np.bincount(y[held], minlength=4) - 50 / 4) < 3)
    again, other = rows_of(X, y).folds(4), rows_of(X, y).folds(4, seed=1)
    assert all(
        np.array_equal(a, b) for cut, same in zip(cuts, again, strict=True) for a, b in zip(cut, same, strict=True)
    )
    assert not np.array_equal(cuts[0][1], other[0][1])


def test_near_duplicates_of_features_are_on_one_side(rng):
    base = rng.normal(size=(60, 64))
    X = np.concatenate([base, base[:20] + 0.05 * rng.normal(size=(20, 64))])
    y = np.concatenate([np.arange(60) % 3, np.arange(20) % 3])
    groups = near_duplicates(X)
    assert len(set(groups)) == 60 and np.array_equal(groups[:20], groups[60:])
    for _, held in rows_of(X, y).folds(3):
        assert {row + 60 for row in held if row < 20} == {row for row in held if row >= 60}


def test_near_duplicates_of_images_are_on_one_side(rng, tmp_path):
    pictures = [Image.fromarray(rng.integers(0, 256, (6, 6, 3), np.uint8)).resize((90, 60)) for _ in range(12)]
    for i, picture in enumerate(pictures):
        picture.save(tmp_path / f"{i:02d}.png")
    pictures[3].resize((64, 48)).save(tmp_path / "smaller.jpg", quality=60)
    pictures[5].point(lambda value: value * 0.97).save(tmp_path / "darker.png")
    names = sorted(path.name for path in tmp_path.iterdir())
    groups = dict(zip(names, near_duplicates(FileImages(tmp_path, names)), strict=True))
    assert groups["smaller.jpg"] == groups["03.png"] and groups["darker.png"] == groups["05.png"]
    assert len(set(groups.values())) == 12


def test_two_columns_say_too_little_for_near_duplicates(rng):
    X = rng.normal(size=(40, 2))
    X[7] = X[8]
    groups = near_duplicates(X)
    assert groups[7] == groups[8] and len(set(groups)) == 39


def joined_at_once(X):
    """Near-duplicates of features from all pairs at once."""
    given = X.astype(np.float32)
    rows = given - given.mean(0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    groups = connected_components(rows @ rows.T > ALIKE, directed=False)[1]
    return groups if np.bincount(groups).max() <= len(X) / 10 else np.unique(given, axis=0, return_inverse=True)[1]


@pytest.mark.parametrize("n_columns", [2, 6, 8, 10, 32])  # with 8, some groups are joined over blocks
def test_near_duplicates_are_joined_over_blocks(rng, n_columns):
    X = rng.normal(size=(2500, n_columns))
    X[1500:2000] = X[:500] + 0.01 * rng.normal(size=(500, n_columns))
    assert np.array_equal(near_duplicates(X), joined_at_once(X))


def test_it_stops_when_too_many_rows_are_joined(rng, monkeypatch):
    used = []
    monkeypatch.setattr(
        "hashlens.data.folds.blocks", lambda n, size: (used.append(part) or part for part in blocks(n, size))
    )
    assert len(set(near_duplicates(rng.normal(size=(5000, 2))))) == 5000 and len(used) == 1


def test_single_labels_need_no_matrix_of_all_classes(clusters, monkeypatch):
    monkeypatch.setattr(Labels, "matrix", None)
    assert len(rows_of(*clusters).folds(3)) == 3


def test_an_image_with_several_labels_counts_for_the_rarest(rng):
    y = np.stack([np.arange(60) % 3 > 0, np.arange(60) % 2 == 0, np.arange(60) < 6], axis=1)
    for _, held in rows_of(rng.normal(size=(60, 32)), y).folds(3):
        assert y[held, 2].sum() == 2


@pytest.mark.parametrize(
    ("y", "n", "message"),
    [
        ([0, 1, 2, 3], 3, "4 training images, at most 1 per class .* into 3 folds .*; add images per class$"),
        ([0, 0, 1, 1], 2, "at most 2 per class .* into 2 folds .*; add images per class$"),
        (np.arange(40) // 2, 3, "at most 2 per class .* into 3 folds .*; add images per class$"),
        ([0] * 5 + [1], 3, "at most 5 per class .* into 3 folds .*; add images per class$"),
        (np.arange(40) // 10, 12, "at most 10 per class .* into 12 folds .* or use fewer folds, such as 2$"),
    ],
)
def test_too_few_rows_are_one_true_sentence(rng, y, n, message):
    rows = rows_of(rng.normal(size=(len(y), 32)), y)
    with pytest.raises(DataError, match=message) as raised:
        rows.folds(n)
    if "fewer folds" in raised.value.message:
        assert len(rows.folds(2)) == 2
    elif n > 2:
        with pytest.raises(DataError):
            rows.folds(2)


def test_near_duplicates_count_once_in_the_message(rng):
    X = np.repeat(rng.normal(size=(40, 64)), 5, axis=0)  # not over a tenth of all rows
    with pytest.raises(DataError, match="200 training images, at most 1 per class if near-duplicates count once"):
        rows_of(X, np.arange(200) // 5).folds(3)


def test_training_rows_hold_nothing_else():
    source = open_source("digits")
    split = make_protocol(source)
    rows = TrainingRows.of(source, split)
    assert len(rows.images) == len(rows.labels) == len(split.train) < len(source)
    assert len(rows.images._array) == len(split.train)  # a copy, not a view of all images
    assert np.array_equal(rows.images.read(slice(3), 8), source.images[split.train[:3]].read(slice(3), 8))
    features = np.arange(12.0).reshape(6, 2)
    split = make_protocol(Source("made", features, Labels.of([0, 0, 0, 1, 1, 1])))
    held = TrainingRows.of(Source("made", features, Labels.of([0, 0, 0, 1, 1, 1])), split).images
    assert held.base is None and np.array_equal(held, features[split.train])


def test_images_alone_and_parts_of_them(rng):
    pixels = rng.integers(0, 256, (6, 8, 8, 3), np.uint8)
    for images in (ArrayImages(pixels), as_images(list(pixels)), as_images([Image.fromarray(one) for one in pixels])):
        alone = images[[1, 4]].alone()
        assert len(alone._array) == 2 and np.array_equal(alone.read([0, 1], 8), pixels[[1, 4]])
    part = ArrayImages(pixels).part(np.array([2, 0]))
    assert part.whole is not None and part[[1]].whole is None
    assert np.array_equal(part.read([0, 1], 8), pixels[[2, 0]])


def test_what_is_cached_for_parts_is_computed_once(rng, empty_cache):
    images = ArrayImages(rng.integers(0, 256, (6, 16, 16, 3), np.uint8))
    rows = np.array([4, 1, 2])
    found = extractor("gist").cached(images.part(rows))
    assert np.array_equal(found, extractor("gist").cached(images[rows]))
    extractor("gist").cached(images.part(rows[:2]))
    assert len(list((empty_cache / "features").glob("*.npy"))) == 2  # of all six images, and of the selection
