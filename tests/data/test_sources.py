"""Sources: one grammar for every kind, labels where there are any, and paths that are the same from any folder."""

import io
import sys
import tarfile
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from hashlens.data import SOURCES, Source, make_protocol, open_source, readable
from hashlens.data.images import ArrayImages
from hashlens.data.labels import Labels
from hashlens.data.sources import Kind, absolute
from hashlens.errors import DataError, UsageError

NAMES = [f"{label}/{i}.png" for label in ("cats", "dogs") for i in range(3)]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Six images in two classes below tmp_path, where the test runs; image i has the grey 10 i."""
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate(NAMES):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (10 * i,) * 3).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


def folder_of(photos, monkeypatch):
    return "photos"


def pattern_of(photos, monkeypatch):
    return "photos/**/*.png"


def table_of(photos, monkeypatch):
    rows = "".join(f"photos/{name},{name[:4]}\n" for name in NAMES)
    (photos.parent / "t.csv").write_text(f"path,label\n{rows}")
    return "t.csv"


def parquet_of(photos, monkeypatch):
    rows = {"path": [f"photos/{name}" for name in NAMES], "label": [name[:4] for name in NAMES]}
    pq.write_table(pa.table(rows), photos.parent / "t.parquet")
    return "t.parquet"


def tar_of(photos, monkeypatch):
    for shard in range(2):
        with tarfile.open(photos.parent / f"{shard}.tar", "w") as archive:
            for name in NAMES[3 * shard : 3 * shard + 3]:
                archive.add(photos / name, name)
    return "{0..1}.tar"


def list_of(photos, monkeypatch):
    (photos.parent / "l.txt").write_text("\n".join(f"photos/{name}" for name in NAMES))
    return "l.txt"


def standard_input_of(photos, monkeypatch):
    text = "\n".join(f"photos/{name}" for name in NAMES)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return "-"


LABELLED = [folder_of, pattern_of, table_of, parquet_of, tar_of]


@pytest.mark.parametrize("form", [*LABELLED, list_of, standard_input_of], ids=lambda form: form.__name__)
def test_every_kind_has_the_same_images_and_labels(photos, monkeypatch, form):
    name = form(photos, monkeypatch)
    source = open_source(name, labels="optional")
    assert source.images.read(slice(None), 9)[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]
    assert (source.labels.values.tolist() if form in LABELLED else source.labels) == (
        [0, 0, 0, 1, 1, 1] if form in LABELLED else None
    )
    paths = source.table["path"].to_pylist()
    inside = [f"{photos.parent}/{i // 3}.tar::{name}" for i, name in enumerate(NAMES)]
    assert paths == (inside if form is tar_of else [str(photos / name) for name in NAMES])
    monkeypatch.chdir("/")
    assert np.array_equal(source.reader(source.table.slice(2, 2)).read([0, 1], 9)[:, 0, 0, 0], [20, 30])
    if form in LABELLED:  # the others have been read, or lie below the folder that the command runs in
        again = readable(open_source(source.address))
        assert again.table["path"].to_pylist() == paths and again.labels.names == ("cats", "dogs")


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("photos/cats", "put each class in a folder of its own"),
        ("photos/cats/*.png", "a pattern over class folders"),
        ("photos/cats/0.png", "give a table"),
        ("l.txt", "give a table"),
    ],
)
def test_where_labels_are_needed_it_says_how_to_give_them(photos, monkeypatch, name, how):
    list_of(photos, monkeypatch)
    assert open_source(name, labels="optional").labels is None
    with pytest.raises(DataError, match=f"images? but no labels, which are needed here; .*{how}"):
        open_source(name)


def test_images_without_a_label_are_left_out_where_labels_are_needed(photos):
    Image.new("RGB", (9, 9)).save(photos / "loose.png")
    assert len(open_source("photos", labels="optional")) == 7
    source = open_source("photos")
    assert len(source) == 6 and source.skipped == [("loose.png", "no label")] and not source.labels.multi
    assert source.skipped_paths() == [(str(photos / "loose.png"), "no label")]


def test_one_name_from_any_folder(photos):
    assert absolute("photos") == str(photos) and absolute("cifar10") == "cifar10" and absolute("-") == "-"


def test_a_new_kind_is_one_module_and_one_row(monkeypatch):
    """The recipe of CONTRIBUTING: what a module of data/kinds exports is all that commands need."""

    def opened(asked):
        pixels = np.arange(12, dtype=np.uint8).repeat(64).reshape(12, 8, 8)
        return Source("toy", ArrayImages(pixels), Labels.of(np.arange(12) % 2))

    module = ModuleType("hashlens.data.kinds.toy")
    module.KIND = Kind(matches=lambda text, path: text == "toy", open=opened, protocol="unseen", named=True)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(SOURCES, "toy", "a toy")
    source = readable(open_source("toy"))
    assert source.address == absolute("toy") == "toy"
    assert len(source) == 12 and source.table["labels"].to_pylist()[:2] == [["0"], ["1"]]
    with pytest.raises(DataError, match="the protocol unseen"):
        make_protocol(source)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("photo", "photos"), ("photos/cat", "photos/cats"), ("lists.txt", "list.txt"), ("cifar100", "cifar10")],
)
def test_a_missing_source_names_a_similar_one(photos, typed, hint):
    (photos.parent / "list.txt").write_text("photos/cats/0.png")
    with pytest.raises(DataError) as error:
        open_source(typed)
    assert error.value.message == f"{typed} not found; did you mean {hint}? (all sources: hashlens data --help)"


def test_features_without_their_table_name_it(tmp_path):
    np.save(tmp_path / "f.npy", np.zeros((4, 2), np.float32))
    with pytest.raises(
        DataError, match=r"f\.parquet, the table of .* f\.npy, is missing; copy it there, or write both"
    ):
        open_source(tmp_path / "f.npy")
    (tmp_path / "f.parquet").write_text("x")
    with pytest.raises(DataError, match="were not written by hashlens features"):
        open_source(tmp_path / "f.npy")


@pytest.mark.parametrize("folder", ["photos", "./photos", "data/2024/photos"])
def test_a_tar_file_of_one_folder_has_the_classes_of_the_folder(photos, folder):
    with tarfile.open("photos.tar", "w") as archive:
        archive.add("photos", folder)
    source = open_source("photos.tar")
    assert source.labels.names == ("cats", "dogs") and source.labels.counts().tolist() == [3, 3]
    Image.new("RGB", (9, 9)).save(photos / "loose.png")
    with tarfile.open("photos.tar", "w") as archive:
        archive.add("photos")
    assert open_source("photos.tar").labels.names == ("cats", "dogs")
    with tarfile.open("cats.tar", "w") as archive:
        archive.add("photos/cats", "cats")
    assert open_source("cats.tar", labels="optional").labels.names == ("cats",)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_names_of_names_without_end_are_one_sentence(photos, kind):
    header = tarfile.TarInfo("cats")
    header.type, header.size = kind, 11
    one = header.tobuf() + b"11 path=cat".ljust(tarfile.BLOCKSIZE, b"\0")
    (photos.parent / "photos.tar").write_bytes(2_000 * one)
    with pytest.raises(DataError, match=r"no images in photos\.tar \(the rest .* \(a header is damaged\)\)"):
        open_source("photos.tar")


@pytest.mark.parametrize("blank", ["", "  "])
def test_an_empty_name_is_not_the_current_folder(photos, blank):
    with pytest.raises(UsageError, match=r"the source is empty; name one, or give \. for the current folder"):
        open_source(blank, labels="optional")
