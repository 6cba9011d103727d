"""The index of a source: up to date after each call, only what changed is encoded, nothing is lost on the way."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_images import paint
from PIL import Image

import hashlens as package
from hashlens.codes.encoder import Encoder
from hashlens.codes.hash_layer import write_changed
from hashlens.codes.model import GENERAL, ModelFolder
from hashlens.data import images as data_images
from hashlens.errors import Busy, DataError, MismatchError, Stopped, StorageError, UsageError
from hashlens.files import alone_in
from hashlens.index import library
from hashlens.index.library import LOCK, index_of


@pytest.fixture
def photos(tmp_path, empty_cache):
    """Twelve images in two folders, each with a grey of its own."""
    for row in range(12):
        paint(tmp_path / "photos" / ("a", "b")[row % 2] / f"{row:02d}.png", 20 * row)
    return tmp_path / "photos"


@pytest.fixture
def encoded(monkeypatch):
    """The paths that were encoded, call by call."""
    seen = []
    codes = Encoder.codes

    def noted(self, images, *others, **options):
        seen.extend(Path(name).name for name in images.names)
        return codes(self, images, *others, **options)

    monkeypatch.setattr(Encoder, "codes", noted)
    return seen


def ids(index):
    """The id of each file name."""
    wanted = [id_ for _, some in index.batches(10**6) for id_ in some]
    return {Path(item["path"]).name: id_ for id_, item in index.lookup(wanted).items()}


def test_only_what_changed_is_encoded(photos, encoded):
    before = sorted((path, path.stat().st_mtime_ns) for path in photos.rglob("*"))
    first = index_of(photos)
    assert len(first) == 12 and len(encoded) == 12
    assert sorted((path, path.stat().st_mtime_ns) for path in photos.rglob("*")) == before  # nothing written there
    encoded.clear()
    assert ids(index_of(photos)) == ids(first) and not encoded
    paint(photos / "new.png", 250)
    paint(photos / "a" / "04.png", 3)
    os.utime(photos / "a" / "04.png", ns=(10**18, 10**18))
    (photos / "b" / "01.png").unlink()
    after = index_of(photos)
    assert sorted(encoded) == ["04.png", "new.png"] and len(after) == 12
    same = ids(first).keys() - {"01.png", "04.png"}
    assert {name: ids(after)[name] for name in same} == {name: ids(first)[name] for name in same}
    answer = package.search_folder(photos).search(photos / "a" / "04.png", k=1)
    assert answer["hits"][0]["distance"] == 0 and answer["hits"][0]["path"].endswith("a/04.png")
    assert answer["index"]["model"]["name"] == "general"


def test_unreadable_images_are_told_and_not_tried_again(photos, encoded, capsys):
    for name in ("x.jpg", "y.jpg", "z.jpg"):
        (photos / name).write_text("no image")
    assert len(index_of(photos, progress=True)) == 12
    said = capsys.readouterr().err
    assert "images that cannot be read: 3, first" in said and "x.jpg (not an image)" in said and "skipped.csv" in said
    encoded.clear()
    index_of(photos)
    assert not encoded
    paint(photos / "y.jpg", 99)
    (photos / "z.jpg").unlink()
    index = index_of(photos)
    assert encoded == ["y.jpg"] and len(index) == 13
    assert "x.jpg" in (text := (index.path / "skipped.csv").read_text()) and "y.jpg" not in text and "z.jpg" not in text
    for path in photos.rglob("*.png"):
        path.write_bytes(b"")
    (photos / "y.jpg").write_bytes(b"")
    for _ in range(2):  # the second call tries nothing again
        with pytest.raises(DataError, match=r"no image of .*photos can be read \(14 tried, first .*: zero bytes\)"):
            index_of(photos)


def test_an_image_that_was_forbidden_is_tried_again(photos, monkeypatch):
    """Its size and mtime stay the same when the permission is given."""
    index_of(photos)
    paint(photos / "mine.png", 250)

    def forbidden(file):  # as chmod 0 would make it, but for root too
        if file.name == "mine.png":
            raise PermissionError(errno.EACCES, "Permission denied")
        return content(file)

    content = data_images._content
    with monkeypatch.context() as patch:
        patch.setattr(data_images, "_content", forbidden)
        index = index_of(photos)
        assert len(index) == 12 and "permission denied" in (index.path / "skipped.csv").read_text()
    assert len(index_of(photos)) == 13 and "mine.png" not in (index.path / "skipped.csv").read_text()


def test_a_folder_without_permission_is_named(photos, monkeypatch):
    stat = Path.stat

    def forbidden(path, **options):
        if path.parent == photos:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", forbidden)
    with pytest.raises(DataError, match=r"photos cannot be read \(permission denied\); check the permissions"):
        index_of(photos)


def test_what_was_done_before_a_stop_stays(photos, encoded, monkeypatch):
    monkeypatch.setattr(library, "STEP", 5)
    with pytest.raises(Stopped, match="stopped; 7 images left to encode; rerun the same command to resume"):
        index_of(photos, stop=lambda: True)
    assert len(encoded) == 5
    assert len(index_of(photos)) == 12 and len(encoded) == 12


def test_a_crash_in_the_middle_loses_only_the_last_step(photos, encoded, monkeypatch):
    monkeypatch.setattr(library, "STEP", 4)
    monkeypatch.setattr(library, "SAVE_SECONDS", 0)
    codes = Encoder.codes

    def crashing(self, images, *others, **options):
        if "08.png" in [Path(name).name for name in images.names]:
            raise KeyboardInterrupt
        return codes(self, images, *others, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "codes", crashing)
        with pytest.raises(KeyboardInterrupt):
            index_of(photos)
    done = len(encoded)
    assert done == 4 and len(index_of(photos)) == 12 and len(encoded) == 12


def test_many_small_updates_do_not_pile_up(photos):
    for row in range(18):
        paint(photos / f"more-{row}.png", row)
        index = index_of(photos)
    assert len(index) == 12 + row + 1 and len(index.parts) <= 7
    assert ids(index).keys() == {path.name for path in photos.rglob("*.png")}


def test_two_processes(photos, capsys):
    first = index_of(photos)
    paint(photos / "new.png", 250)
    with alone_in(first.path, LOCK):
        assert len(index_of(photos, progress=True)) == 12  # what is there is searched meanwhile
        assert "another process is updating the codes" in capsys.readouterr().err
    empty = photos.parent / "kept"
    with alone_in(empty, LOCK), pytest.raises(Busy, match="another process is writing to"):
        index_of(photos, at=empty)
    assert len(index_of(photos)) == 13


def test_a_damaged_cache_is_made_again(photos, capsys):
    index = index_of(photos)
    (index.path / "index.json").write_text("{")
    assert len(index_of(photos, progress=True)) == 12
    assert "note: encoding all images again" in capsys.readouterr().err


def test_an_index_of_ones_own_choice(photos, tmp_path, empty_cache):
    kept = tmp_path / "kept"
    assert len(index_of(photos, at=kept)) == 12 and (kept / "index.json").exists()
    assert not (empty_cache / "libraries").exists()
    with pytest.raises(
        MismatchError, match=r"kept is the index of .*photos, not of .*photos/a; choose another --index"
    ):
        index_of(photos / "a", at=kept)
    with pytest.raises(UsageError, match="contains other files"):
        index_of(photos, at=photos)
    (kept / "index.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        index_of(photos, at=kept)


def test_labels_of_a_table_are_kept_up_to_date(photos, tmp_path, encoded):
    table = tmp_path / "photos.csv"
    table.write_text("path,labels\nphotos/a/00.png,dark\nphotos/b/11.png,light\n")
    assert sorted(index_of(table).labels()) == ["dark", "light"]
    encoded.clear()
    table.write_text("path,labels\nphotos/a/00.png,dark\nphotos/b/11.png,bright\n")
    assert sorted(index_of(table).labels()) == ["bright", "dark"] and encoded == ["11.png"]
    listed = tmp_path / "photos.parquet"
    paths = [str(photos / name) for name in ("a/00.png", "a/00.png", "b/11.png")]
    pq.write_table(pa.table({"path": paths, "labels": ["dark", "dark", "light"]}), listed)
    assert ids(index_of(listed)).keys() == {"00.png", "11.png"}


def test_a_folder_that_cannot_be_read_now_is_not_forgotten(photos, monkeypatch, capsys):
    index_of(photos)
    scandir = os.scandir

    def forbidden(path):  # as chmod 0 would make it, but for root too
        if Path(path) == photos / "b":
            raise PermissionError
        return scandir(path)

    paint(photos / "new.png", 250)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", forbidden)
        assert len(index_of(photos, progress=True)) == 13
    assert "images left out, folder cannot be read (permission denied): 1, first b" in capsys.readouterr().err
    shutil.rmtree(photos / "b")
    assert len(index_of(photos)) == 7


def test_a_full_disk(photos, monkeypatch):
    index_of(photos)
    paint(photos / "new.png", 250)
    with monkeypatch.context() as patch:
        patch.setattr("hashlens.files.free_bytes", lambda folder: 10)
        with pytest.raises(StorageError, match=r"not enough disk space .* set HASHLENS_CACHE"):
            index_of(photos)
    assert len(index_of(photos)) == 13


def test_an_image_that_goes_while_it_is_read(photos, monkeypatch):
    """It was listed; it is told as gone, and forgotten by the next call."""
    codes = Encoder.codes

    def slow(self, images, *others, **options):
        (photos / "a" / "00.png").unlink(missing_ok=True)
        return codes(self, images, *others, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "codes", slow)
        index = index_of(photos)
    assert len(index) == 11 and "00.png,gone" in (index.path / "skipped.csv").read_text()
    assert len(index_of(photos)) == 11 and "00.png" not in (index.path / "skipped.csv").read_text()


def test_a_folder_that_changes_while_it_is_scanned(photos, encoded, monkeypatch):
    """Images come, change and move between two steps: this call has what it could read, the next one all of it."""
    n_steps = []
    monkeypatch.setattr(library, "STEP", 4)
    codes = Encoder.codes

    def changing(self, images, *others, **options):
        n_steps.append(len(images))
        if len(n_steps) == 1:
            paint(photos / "a" / "new.png", 205)
            paint(photos / "b" / "11.png", 15)
            (photos / "b" / "09.png").rename(photos / "b" / "moved.png")
        return codes(self, images, *others, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "codes", changing)
        assert len(index_of(photos)) == 11 and len(n_steps) == 3
    encoded.clear()
    index = index_of(photos)
    assert sorted(encoded) == ["moved.png", "new.png"]  # 11.png had changed before it was read
    assert set(ids(index)) == {path.name for path in photos.rglob("*.png")} and len(index) == 13
    hit = package.search_folder(photos).search(photos / "b" / "11.png", k=1)["hits"][0]
    assert hit["distance"] == 0 and hit["path"] == str(photos / "b" / "11.png")
    encoded.clear()
    assert len(index_of(photos)) == 13 and not encoded


@pytest.mark.parametrize("command", ["search", "duplicates", "groups"])
def test_ctrl_c_in_the_first_scan(photos, command, tmp_path):
    """A real signal to a real process, once it has begun to encode; the same command resumes."""
    for row in range(300):
        paint(photos / f"{row:03d}.png", row % 256)
    words = ["search", photos, photos / "000.png", "--json"] if command == "search" else [command, photos, "--json"]
    typed = [sys.executable, "-m", "hashlens", *map(str, words), *(["--n", "2"] if command == "groups" else [])]
    process = subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline().startswith("encode  312 images")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    last = err.splitlines()[-1]
    assert process.returncode == 130 and out == "" and "Traceback" not in err
    assert re.fullmatch(r"stopped; (184|56) images left to encode; rerun the same command to resume", last)
    done = subprocess.run(typed, capture_output=True, text=True, check=True, timeout=300)
    left = last.split()[1]
    assert f"{left} new of 312 images" in done.stderr and json.loads(done.stdout)


def test_from_the_command_line(photos, hashlens, tmp_path):
    query = photos / "a" / "06.png"
    code, out, err = hashlens("search", photos, query, "-k", "2")
    assert code == 0 and "encode  12 images" in err and f"{query}" in out.splitlines()[2]
    assert hashlens("search", photos, query, "--quiet", "--json")[2] == ""
    code, out, err = hashlens("search", photos, query, "--model", "general", "--index", tmp_path / "kept", "--quiet")
    assert code == 0 and (tmp_path / "kept" / "index.json").exists()
    assert hashlens("search", tmp_path / "kept", query)[0] == 0
    assert "omit --index" in hashlens("search", tmp_path / "kept", query, "--index", tmp_path / "other")[2]
    (tmp_path / "one").mkdir()
    shutil.copy(query, tmp_path / "one")
    assert hashlens("search", tmp_path / "one", query)[1].splitlines()[2].split()[:2] == ["1", "0"]
    (tmp_path / "empty").mkdir()
    code, _, err = hashlens("search", tmp_path / "empty", query)
    assert code == 3 and err.startswith("error: no images in") and "it is empty" in err
    code, _, err = hashlens("search", "-", query)
    assert code == 2 and "standard input" in err
    code, out, _ = hashlens("encode", photos, "--out", tmp_path / "codes", "--quiet")
    assert code == 0 and "12 codes of" in out


def test_the_general_model_is_one_like_any_other():
    encoder = package.general()
    found = ModelFolder.find(encoder.model, Path()).describe()
    assert encoder.model == found | {"probe": encoder.probe} and found == ModelFolder.resolve("general").describe()
    assert encoder.model["name"] == "general" and sum(file.stat().st_size for file in GENERAL.iterdir()) < 8e6
    red, again, blue = (Image.new("RGB", (50, 40), colour) for colour in ("red", "red", "blue"))
    codes = encoder.encode([red, again, blue])
    assert codes[0].equals(codes[1]) and not codes[0].equals(codes[2])


def test_the_general_model_can_be_refined(tmp_path):
    """Its projection is kept in 8 bits, in which products would not fit."""
    encoder = package.general()
    A = np.eye(encoder.n_bits)
    A[:, 0], A[1, 0] = -A[:, 0], 0.5
    write_changed(ModelFolder(GENERAL), A, tmp_path / "refined")
    images = [Image.effect_mandelbrot((60, 60), (-2, -1.5, 1, 1.5), 20 + 10 * n).convert("RGB") for n in range(2)]
    u, changed = encoder.relaxed(images), Encoder.load(tmp_path / "refined").relaxed(images)
    assert np.allclose(changed, u @ A, rtol=1e-5, atol=1e-5 * np.abs(u).max())
