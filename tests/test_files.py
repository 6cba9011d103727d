"""Files: whole or not there at all, and errors of the disk as sentences."""

import errno
import hashlib
import json
import os
import stat
from collections import namedtuple
from pathlib import Path

import pytest

from hashlens import files
from hashlens.errors import Damaged, HashlensError, StorageError
from hashlens.files import cache_dir, replacing, require_room, sha256, storage_errors, write_json, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_replacing_moves_the_file_at_the_end(tmp_path):
    path = tmp_path / "new" / "folder" / "a.txt"
    with replacing(path) as temporary:
        temporary.write_text("one")
        assert temporary.parent == path.parent and not path.exists()  # same disk, so that the move is atomic
    assert path.read_text() == "one" and names(path.parent) == ["a.txt"]
    with replacing(path) as temporary:
        temporary.write_text("two")
        assert path.read_text() == "one"
    assert path.read_text() == "two" and names(path.parent) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("existing", [True, False])
def test_an_exception_leaves_things_as_they_were(tmp_path, error, existing):
    path = tmp_path / "a.txt"
    if existing:
        path.write_text("old")
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise error
    assert names(tmp_path) == (["a.txt"] if existing else [])
    assert not existing or path.read_text() == "old"


def test_a_disk_that_fills_up_on_the_way(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(StorageError, match=r"cannot write .*a\.txt: the disk is full"), replacing(path) as temporary:
        temporary.write_text("half")
        raise OSError(errno.ENOSPC, "no space left on device")
    assert names(tmp_path) == ["a.txt"] and path.read_text() == "old"


def test_concurrent_writers_use_different_temporary_files(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as first, replacing(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first" and names(tmp_path) == ["a.txt"]  # the last to finish


@pytest.mark.skipif(os.name == "nt", reason="permission bits are POSIX's")
def test_permission_bits(tmp_path):
    write_text(tmp_path / "a.txt", "x")
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o644  # others may read it


def test_text_and_json(tmp_path):
    write_text(tmp_path / "a.txt", "Zürich\n")
    assert (tmp_path / "a.txt").read_bytes() == "Zürich\n".encode()
    value = {"b": [1, 2.5, None], "a": "ü"}
    write_json(tmp_path / "a.json", value)
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert (
        json.loads(text) == value and text.endswith("}\n") and '"ü"' in text and text.index('"b"') < text.index('"a"')
    )
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"b": object()})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == value


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "quota is used up"),
        (errno.EACCES, "permission denied"),
        (errno.EPERM, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.ENOTDIR, "a part of the path is a file"),
        (errno.EEXIST, "exists"),
    ],
)
def test_storage_errors(code, sentence):
    expected = f"^cannot write some/place: .*{sentence}.*;"
    with pytest.raises(StorageError, match=expected) as caught, storage_errors(Path("some/place")):
        raise OSError(code, "words of the system")
    assert caught.value.exit_code == 6
    assert caught.value.__cause__.errno == code


def test_a_disk_that_numpy_found_full(tmp_path):
    """It gives no number of the error."""
    with pytest.raises(StorageError, match="the disk is full"), storage_errors(tmp_path):
        raise OSError("601 requested and 207 written")


def test_other_errors_are_not_hidden():
    for error in (OSError(errno.EIO, "input/output error"), ValueError("mine")):
        with pytest.raises(type(error)) as caught, storage_errors(Path("a")):
            raise error
        assert caught.value is error


def test_a_file_in_the_path(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "a.txt", tmp_path / "file" / "folder" / "a.txt"):
        with pytest.raises(StorageError, match="choose another"):
            write_text(path, "y")
    assert names(tmp_path) == ["file"]


def test_a_folder_in_the_way(tmp_path):
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(StorageError, match="exists"):
        write_text(tmp_path / "a.txt", "y")
    assert names(tmp_path) == ["a.txt"]


def test_require_room(tmp_path, monkeypatch):
    asked = []
    usage = namedtuple("usage", "total used free")

    def disk_usage(path):
        asked.append(path)
        return usage(10**9, 10**9 - 5 * 10**6, 5 * 10**6)

    monkeypatch.setattr(files.shutil, "disk_usage", disk_usage)
    require_room(tmp_path / "not" / "yet", 5 * 10**6, "the features")
    assert asked == [tmp_path]
    with pytest.raises(
        StorageError, match=r"not enough disk space for the features in .*yet: 1,200.0 MB needed, 5.0 MB free"
    ):
        require_room(tmp_path / "not" / "yet", 12 * 10**8, "the features")


def test_sha256(tmp_path):
    (tmp_path / "a").write_bytes(b"abc" * 100_000)
    assert sha256(tmp_path / "a") == hashlib.sha256(b"abc" * 100_000).hexdigest()


def test_cache_dir(monkeypatch):
    monkeypatch.setenv("HASHLENS_CACHE", "here/or/there")
    assert cache_dir() == Path("here/or/there")
    monkeypatch.delenv("HASHLENS_CACHE")
    assert cache_dir().is_absolute() and "hashlens" in cache_dir().parts


def test_new_files_follow_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        write_text(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    with pytest.raises(StorageError, match="the name is too long"):
        write_text(tmp_path / ("n" * 300), "x")


def test_an_empty_cache_variable_is_ignored(monkeypatch):
    monkeypatch.setenv("HASHLENS_CACHE", "")
    assert cache_dir().is_absolute()


def test_errors_are_one_line_that_no_terminal_obeys():
    for given, shown in (
        ("it has\n\nno end\n", "it has no end"),
        ("a\x1b[31m\x07.jpg\r\n is missing", "a\\x1b[31m\\x07.jpg  is missing"),
        ("café-\udcff.jpg", "café-\\udcff.jpg"),
    ):
        error = HashlensError(given)
        assert error.message == str(error) == shown
    damaged = Damaged(Path("a\nb"), "is gone")
    assert damaged.message == "a b is gone" and damaged.path == Path("a\nb")
