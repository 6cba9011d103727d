"""Labels: every accepted form, every refusal, and who is relevant to whom."""

import numpy as np
import pytest

from hashlens.data.labels import Labels, relevant
from hashlens.errors import DataError, MismatchError, UsageError


def test_class_numbers_are_kept():
    labels = Labels.of([7, 2, 2])
    assert labels.values.dtype == np.int64
    assert labels.values.tolist() == [7, 2, 2]
    assert labels.names == tuple("01234567")
    assert (labels.multi, labels.n_classes, len(labels)) == (False, 8, 3)
    assert labels.counts().tolist() == [0, 0, 2, 0, 0, 0, 0, 1]
    assert labels.describe(0) == "7"


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, np.float64, bool])
def test_any_dtype_of_whole_numbers(dtype):
    assert Labels.of(np.array([1, 0, 1], dtype)).values.tolist() == [1, 0, 1]


def test_strings_are_numbered_in_sorted_order():
    for values in (["dog", "cat", "dog"], np.array(["dog", "cat", "dog"], object)):
        labels = Labels.of(values)
        assert labels.values.tolist() == [1, 0, 1]
        assert labels.names == ("cat", "dog")
        assert labels.describe(0) == "dog"


def test_given_names_number_the_strings():
    labels = Labels.of(["dog"], names=["dog", "cat"])
    assert labels.values.tolist() == [0]
    assert labels.n_classes == 2
    with pytest.raises(MismatchError, match="'cow' is not among"):
        Labels.of(["dog", "cow"], names=["dog", "cat"])


def test_given_names_name_the_numbers():
    assert Labels.of([1, 0], names=["cat", "dog"]).describe(0) == "dog"
    assert Labels.of([[1, 1], [0, 1]], names=["cat", "dog"]).describe(0) == "cat, dog"
    with pytest.raises(MismatchError, match="class number 2 needs more than 2 names"):
        Labels.of([2], names=["cat", "dog"])
    with pytest.raises(MismatchError, match="3 label columns but 2 names"):
        Labels.of([[1, 0, 1]], names=["cat", "dog"])


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32])
def test_label_sets(dtype):
    labels = Labels.of(np.array([[1, 0, 1], [0, 0, 0]], dtype))
    assert labels.values.dtype == bool
    assert (labels.multi, labels.n_classes, len(labels)) == (True, 3, 2)
    assert labels.counts().tolist() == [1, 0, 1]
    assert labels.describe(0) == "0, 2"
    assert labels.describe(1) == "no label"


def test_labels_pass_through():
    labels = Labels.of([0, 1])
    assert Labels.of(labels) is labels
    with pytest.raises(UsageError, match="already have names"):
        Labels.of(labels, names=["a", "b"])


def test_rows():
    for values in ([3, 1, 4, 1], [[1, 0], [0, 1], [1, 1], [0, 0]]):
        labels = Labels.of(values)
        for rows in (slice(1, 3), [3, 0], np.array([True, False, False, True]), slice(0, 0)):
            np.testing.assert_array_equal(labels[rows].values, np.array(values)[rows])
            assert labels[rows].names == labels.names
        assert len(labels[2]) == len(labels[np.int64(2)]) == 1
        assert labels[2].describe(0) == labels.describe(2)


def test_no_rows():
    assert len(Labels.of([])) == 0
    assert Labels.of(np.zeros((0, 3))).n_classes == 3


@pytest.mark.parametrize(
    "values, message",
    [
        ([0.0, np.nan], r"labels are NaN or infinite \(1\)"),
        ([[0.0, np.nan]], "NaN"),
        ([np.inf], "infinite"),
        ([0, -1], "class number -1 is negative"),
        ([0.5], "0.5 is not a whole number"),
        ([10**9], "as strings"),
        ([[0, 2]], "only 0 and 1"),
        ([[1], [0]], r"\(2, 1\); give \(n,\) class numbers"),
        (np.zeros((2, 2, 2)), "shape"),
        (3, "shape"),
        ([[0, 1], [0]], "different lengths"),
        ([["cat", "dog"]], "give whole numbers"),
        ([None, "cat"], "give whole numbers"),
    ],
)
def test_refused(values, message):
    with pytest.raises(DataError, match=message):
        Labels.of(values)


def test_the_constructor_takes_only_its_two_forms():
    for values in (np.zeros(2, np.int32), np.zeros((2, 2), np.int64), np.zeros((2, 2, 2), bool)):
        with pytest.raises(DataError, match=r"use Labels\.of"):
            Labels(values, ("a", "b"))


def test_relevant_single():
    assert relevant(Labels.of([0, 5]), Labels.of([5, 1, 0])).tolist() == [
        [False, False, True],
        [True, False, False],
    ]


@pytest.mark.parametrize("c", [2, 64, 70])
def test_relevant_sets(c):
    rng = np.random.default_rng(0)
    query, database = rng.random((6, c)) < 1.5 / c, rng.random((9, c)) < 1.5 / c
    slow = [[bool(set(np.flatnonzero(a)) & set(np.flatnonzero(b))) for b in database] for a in query]
    assert {True, False} == {value for row in slow for value in row}
    assert relevant(Labels.of(query), Labels.of(database)).tolist() == slow


def test_an_item_without_label_is_relevant_to_none():
    assert not relevant(Labels.of([[0, 0]]), Labels.of([[0, 0], [1, 1]])).any()


def test_incomparable_labels_are_refused():
    with pytest.raises(MismatchError, match="same form"):
        relevant(Labels.of([0, 1]), Labels.of([[0, 1]]))
    with pytest.raises(MismatchError, match="2 columns and database labels 3"):
        relevant(Labels.of([[0, 1]]), Labels.of([[0, 1, 0]]))


def test_strings_numbered_apart_are_refused():
    # without the check, class 0 would be "cat" on one side and "bird" on the other, and match
    with pytest.raises(MismatchError, match="class 0 is 'cat' in the query and 'bird' in the database"):
        relevant(Labels.of(["cat", "dog"]), Labels.of(["bird", "cat"]))
    names = ["bird", "cat", "dog"]
    result = relevant(Labels.of(["cat", "dog"], names), Labels.of(["bird", "cat"], names))
    assert result.tolist() == [[False, True], [False, False]]
    assert relevant(Labels.of([1], names), Labels.of([0, 1])).tolist() == [[False, True]]


def test_classes_without_items_can_be_left_out():
    single = Labels.of([4, 1, 4]).present()
    assert single.names == ("1", "4") and single.values.tolist() == [1, 0, 1]
    several = Labels.of([[0, 1, 0], [0, 0, 0], [1, 1, 0]], names=["a", "b", "c"]).present()
    assert several.names == ("a", "b") and several.values.tolist() == [[False, True], [False, False], [True, True]]
