"""Hugging Face datasets on disk; without the package, one sentence."""

import io
import json
import sys

import datasets
import pytest
from made_images import described, greys
from PIL import Image

from hashlens.data import Columns, make_protocol, open_source, readable
from hashlens.data.check import check_source
from hashlens.data.images import as_images
from hashlens.data.kinds.huggingface import is_huggingface
from hashlens.errors import DataError, UsageError

# the package and what it loads warn of things that are none of our business
pytestmark = pytest.mark.filterwarnings("ignore")


def png(grey):
    file = io.BytesIO()
    Image.new("RGB", (12, 10), (grey, grey, grey)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


@pytest.fixture
def save(tmp_path):
    """A function that saves parts {name: {column: cells}} as a dataset; one part called "" is saved undivided."""

    def write(parts, **types):
        features = {"image": datasets.Image(), **types}

        def made(columns):
            known = {name: features[name] for name in columns if name in features}
            whole = datasets.Dataset.from_dict(columns)
            return whole.cast(datasets.Features({**whole.features, **known}))

        root = tmp_path / "saved"
        if list(parts) == [""]:
            made(parts[""]).save_to_disk(str(root))
        else:
            datasets.DatasetDict({name: made(columns) for name, columns in parts.items()}).save_to_disk(str(root))
        return root

    return write


def test_classes_and_parts(save):
    parts = {
        "train": {"image": [png(1), png(2), png(3)], "label": [0, 1, 1]},
        "test": {"image": [png(4), png(5)], "label": [1, 0]},
    }
    root = save(parts, label=datasets.ClassLabel(names=["cat", "dog"]))
    assert is_huggingface(root)
    source = open_source(root)
    assert source.name == "saved" and greys(source) == [1, 2, 3, 4, 5]
    assert described(source) == ["cat", "dog", "dog", "dog", "cat"] and not source.labels.multi
    assert source.images.names[3] == "test/00000"
    protocol = make_protocol(source)
    assert protocol is source.split and protocol.query.tolist() == [3, 4] and protocol.train.tolist() == [0, 1, 2]
    some = source.images[[4, 0]]
    assert some.names == ("test/00001", "train/00000") and some.read([0], 4)[0, 0, 0, 0] == 5
    assert some.fingerprint() != source.images[[0, 4]].fingerprint()
    alone = some.alone()
    assert len(alone._dataset) == 2 and alone.read([0, 1], 4).tolist() == some.read([0, 1], 4).tolist()
    assert len({one.fingerprint() for one in (alone, some, source.images[:2], source.images[[0, 4]].alone())}) == 4
    assert open_source(root).images.fingerprint() == source.images.fingerprint()


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["cat", "dog", "cat"], ["cat", "dog", "cat"]),
        (["a;b", "b", ""], ["a, b", "b", "no label"]),
        ([["b", "a"], ["b"], []], ["a, b", "b", "no label"]),
        ([3, 4, 3], ["3", "4", "3"]),
        ([[1, 0, 1], [0, 0, 0], [0, 0, 1]], ["0, 2", "no label", "2"]),
    ],
)
def test_kinds_of_labels(save, cells, expected):
    source = open_source(save({"": {"image": [png(1), png(2), png(3)], "tags": cells}}))
    assert described(source) == expected and source.split is None


def test_lists_of_classes(save):
    cells = [[0, 1], [], [1]]
    kind = datasets.Sequence(datasets.ClassLabel(names=["cat", "dog"]))
    source = open_source(save({"": {"image": [png(1), png(2), png(3)], "labels": cells}}, labels=kind))
    assert described(source) == ["cat, dog", "no label", "dog"]


def test_bad_images_and_rows_without_label_are_listed(save):
    cut = {"bytes": png(3)["bytes"][:-30], "path": None}
    images = [png(1), None, {"bytes": b"hello", "path": None}, cut, png(5), png(6), png(7), png(8), png(9)]
    source = readable(open_source(save({"": {"image": images, "label": [*"abababa", None, "b"]}})))
    assert source.skipped == [
        ("00007", "no label"),
        ("00001", "no such file"),
        ("00002", "not an image"),
        ("00003", "truncated"),
    ]
    assert greys(source) == [1, 5, 6, 7, 9] and described(source) == ["a", "a", "b", "a", "b"]
    assert "images left out, truncated: 1, first 00003" in source.warnings


def test_a_part_without_labels(save):
    parts = {
        "train": {"image": [png(1), png(2), png(3)], "label": [0, 1, 1]},
        "validation": {"image": [png(4), png(5)], "label": [1, -1]},
        "test": {"image": [png(6)]},
    }
    source = open_source(save(parts, label=datasets.ClassLabel(names=["cat", "dog"])))
    assert source.skipped == [("validation/00001", "no label"), ("test/00000", "no label")]
    assert source.split.query.tolist() == [3] and source.split.train.tolist() == [0, 1, 2]


def test_columns_by_name(save):
    root = save({"": {"image": [png(1), png(2)], "kind": ["a", "b"]}})
    with pytest.raises(DataError, match=r"2 images but no labels.*choose the column of labels with --column labels="):
        open_source(root)
    with pytest.raises(UsageError, match="no column 'lab'; choose one"):
        open_source(root, columns=Columns(labels="lab"))
    with pytest.raises(UsageError, match=r"choose a column of images in .*: image, not 'kind'"):
        open_source(root, columns=Columns(path="kind"))
    assert described(open_source(root, columns=Columns(path="image", labels="kind"))) == ["a", "b"]


def test_other_bad_datasets(save, tmp_path):
    with pytest.raises(DataError, match="only one class found"):
        open_source(save({"": {"image": [png(1), png(2)], "label": ["a", "a"]}}))
    for path in (tmp_path / "saved").glob("*.arrow"):
        path.write_bytes(b"x")
    with pytest.raises(DataError, match="cannot be read as a Hugging Face dataset"):
        open_source(tmp_path / "saved")


def test_parts_that_are_not_a_split(save):
    parts = {name: {"image": [png(1), png(2)], "label": ["a", "b"]} for name in ("red", "blue")}
    source = open_source(save(parts))
    assert source.split is None and any("red, blue are not a split" in line for line in source.warnings)


def test_check(save):
    root = save({"": {"image": [png(1), png(2), png(1), png(3)], "label": ["a", "b", "a", "a"]}})
    report = check_source(root)
    assert report["sizes"]["count"] == 4 and report["duplicates"]["groups"] == [["00000", "00002"]]


def test_without_the_package(tmp_path, monkeypatch):
    (tmp_path / "state.json").write_text(json.dumps({}))
    assert not is_huggingface(tmp_path)
    (tmp_path / "dataset_info.json").write_text(json.dumps({}))
    assert is_huggingface(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r'pip install "hashlens\[datasets\]"'):
        open_source(tmp_path)


def test_images_of_another_column_are_other_images(save):
    columns = {"image": [png(10), png(20)], "back": [png(30), png(40)], "label": ["a", "b"]}
    root = save({"": columns}, back=datasets.Image())
    front, back = (open_source(root, columns=Columns(path=name)) for name in ("image", "back"))
    assert greys(front) == [10, 20] and greys(back) == [30, 40]
    assert front.images.fingerprint() != back.images.fingerprint()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_dataset_that_was_saved_for_another_package(tmp_path, kind):
    whole = datasets.Dataset.from_dict({"image": [png(10), png(20), png(30)], "label": [3, 4, 3]})
    whole.cast_column("image", datasets.Image()).with_format(kind).save_to_disk(str(tmp_path / "saved"))
    assert described(open_source(tmp_path / "saved")) == ["3", "4", "3"]


def test_rows_of_two_classes(save):
    images = [png(grey) for grey in (10, 20, 30)]
    source = open_source(save({"": {"image": images, "label": [[0, 1], [1, 0], [1, 0]]}}))
    assert described(source) == ["1", "0", "0"]


def test_a_dataset_in_memory():
    whole = datasets.Dataset.from_dict({"image": [png(10), png(20), png(30)], "label": ["a", "b", "a"]})
    images = as_images(whole.cast_column("image", datasets.Image()))
    assert images.read(slice(None), 4)[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert images.labels.values.tolist() == [0, 1, 0]
