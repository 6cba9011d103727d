"""The codes folder: whole shards or none, whatever happens, and damage that is named."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hashlens.codes.folder as codes_folder
from hashlens.codes import Codes
from hashlens.codes.folder import (
    CodesFolder,
    content_hash,
    open_together,
    parquet,
    shards_in_order,
    write_codes,
)
from hashlens.codes.model import ModelFolder
from hashlens.errors import DataError, MismatchError, StorageError, UsageError
from hashlens.files import alone_in

MODEL = {"fingerprint": "9f3c" * 16, "name": "mine"}
OTHER = {"fingerprint": "77ab" * 16, "name": "theirs"}


def some_codes(n, seed=0, n_bits=12):
    return Codes.from_relaxed(np.random.default_rng(seed).standard_normal((n, n_bits)))


def some_items(n, first=0, labels=True):
    columns = {"path": [f"photos/{i:03d}.jpg" for i in range(first, first + n)]}
    if labels:
        columns["labels"] = [["cat"] if i % 2 else ["cat", "dog"] for i in range(first, first + n)]
    return pa.table(columns | {"size": list(range(n)), "mtime": list(range(n))})


def make(path, sizes=(5, 3), done=True, **how):
    """Shards of so many codes, each with one more image that cannot be read."""
    folder = CodesFolder.create(path, **({"n_bits": 12, "model": MODEL} | how))
    folder.extend(LISTED)
    for number, n in enumerate(sizes):
        write(folder, number, n)
    if done:
        folder.finish()
    return folder


LISTED = pa.table({"path": [f"photos/{i:03d}.jpg" for i in range(20)]})


def write(folder, number, n):
    rows = slice(10 * number, 10 * number + 10)
    folder.append(
        rows, some_codes(n, number), some_items(n, 10 * number), [(f"photos/{rows.stop - 1:03d}.jpg", "truncated")]
    )


def contents(path):
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_what_is_written_is_read(tmp_path):
    make(tmp_path / "run" / "codes" / "database")
    for place in (tmp_path / "run" / "codes" / "database", tmp_path / "run"):  # of a run too
        folder = CodesFolder.open(place)
        assert (folder.path, folder.n_bits, folder.model, len(folder), folder.done) == (
            tmp_path / "run" / "codes" / "database", 12, MODEL, 8, True,
        )  # fmt: skip
    for number, (codes, items) in enumerate(folder):
        assert codes.equals(some_codes((5, 3)[number], number))
        assert items.equals(some_items(len(codes), 10 * number))
    codes, items = folder.concatenated()
    assert codes.equals(Codes.concatenate([some_codes(5, 0), some_codes(3, 1)]))
    assert items["path"].to_pylist()[4:6] == ["photos/004.jpg", "photos/010.jpg"]
    assert folder.skipped() == [("photos/009.jpg", "truncated"), ("photos/019.jpg", "truncated")]
    assert not folder.damaged()


def test_layout_on_disk(tmp_path):
    make(tmp_path)
    shards = [f"shard-{start:09d}.{kind}" for start in (0, 10) for kind in ("codes.npy", "items.parquet")]
    assert sorted(contents(tmp_path)) == ["list.parquet", "manifest.json", *shards, "skipped.csv"]
    packed = np.load(tmp_path / shards[0])
    assert packed.dtype == np.uint8 and packed.shape == (5, 2)
    schema = pq.read_schema(tmp_path / shards[1])
    assert schema.names == ["path", "labels", "size", "mtime"]
    assert schema.field("labels").type == pa.list_(pa.string())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["model"] == MODEL and manifest["shards"][1]["n"] == 3
    assert (tmp_path / "skipped.csv").read_text() == (
        "path,reason\nphotos/009.jpg,truncated\nphotos/019.jpg,truncated\n"
    )


def test_write_codes_replaces_an_existing_folder(tmp_path):
    for _ in range(2):  # one that is there is replaced
        write_codes(tmp_path, some_codes(2), pa.table({"path": ["a.jpg", "b.jpg"]}), MODEL)
    folder = CodesFolder.open(tmp_path)
    assert folder.done and len(folder) == 2
    codes, items = folder.concatenated()
    assert codes.equals(some_codes(2))
    assert items.to_pylist()[1] == {"path": "b.jpg", "size": None, "mtime": None}


def test_a_resumed_folder_equals_one_written_at_once(tmp_path):
    make(tmp_path / "a")
    begun = make(tmp_path / "b", sizes=(5,), done=False)
    again = CodesFolder.create(tmp_path / "b", n_bits=12, model=MODEL)
    again.extend(LISTED)
    write(again, 1, 3)
    again.finish()
    assert len(begun.shards) == 1 and contents(tmp_path / "a") == contents(tmp_path / "b")


def test_equal_tables_are_equal_bytes():
    whole = some_items(50)
    pieces = pa.concat_tables([whole.slice(0, 7), whole.slice(7, 20), whole.slice(27)])
    assert pieces["path"].num_chunks == 3 and parquet(pieces) == parquet(whole)
    assert parquet(whole.replace_schema_metadata({"made": "today"})) == parquet(whole)
    assert parquet(whole.slice(10, 5)) == parquet(some_items(50).take(list(range(10, 15))))


@pytest.mark.parametrize("sizes", [(0,), (0, 4)])
def test_shards_without_codes(tmp_path, sizes):
    folder = make(tmp_path, sizes)
    codes, items = CodesFolder.open(tmp_path).concatenated()
    assert len(codes) == len(items) == len(folder) == sum(sizes) and codes.packed.shape[1] == 2
    assert not folder.damaged()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", range(20))
def test_a_process_that_dies_at_any_step(tmp_path, monkeypatch, moment):
    """Every rename and every sync of the disk is a step; after it nothing more happens."""
    folder = make(tmp_path / "codes", sizes=(5,), done=False)
    steps = iter(range(100))

    def dying(function):
        def step(*arguments, **how):
            if next(steps) >= moment:
                raise Killed
            return function(*arguments, **how)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", dying(Path.replace))
        patch.setattr(os, "fsync", dying(os.fsync))
        patch.setattr(Path, "unlink", dying(Path.unlink))  # a dead process does not tidy up
        try:
            write(folder, 1, 3)
            folder.finish()
            died = False
        except Killed:
            died = True
    assert died == (moment < 19)
    found = CodesFolder.open(tmp_path / "codes")
    assert not found.damaged()
    assert [len(codes) for codes, _ in found] in ([5], [5, 3])
    again = CodesFolder.create(tmp_path / "codes", n_bits=12, model=MODEL)
    if len(again.shards) == 1:
        write(again, 1, 3)
    again.finish()
    make(tmp_path / "whole")
    assert contents(tmp_path / "codes") == contents(tmp_path / "whole")


def test_the_manifest_comes_last_and_everything_is_synced(tmp_path, monkeypatch):
    folder = make(tmp_path, sizes=(), done=False)
    steps = []
    replace, fsync = Path.replace, os.fsync
    monkeypatch.setattr(Path, "replace", lambda a, b: steps.append(Path(b).name) or replace(a, b))
    monkeypatch.setattr(os, "fsync", lambda handle: steps.append(kind(handle)) or fsync(handle))

    def kind(handle):
        return "folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file"  # noqa: PTH112

    write(folder, 0, 2)
    codes, items = "shard-000000000.codes.npy", "shard-000000000.items.parquet"
    assert steps == [
        "file", codes, "file", items, "file", "skipped.csv", "folder", "file", "manifest.json", "folder",
    ]  # fmt: skip


def test_stray_files_are_removed_only_when_opened_for_writing(tmp_path):
    make(tmp_path, done=False)
    strays = [".shard-000000020.codes.npy.ab12.tmp", "shard-000000020.codes.npy", "shard-000000070.items.parquet"]
    for name in strays:
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")
    CodesFolder.open(tmp_path)
    assert all((tmp_path / name).exists() for name in strays)
    folder = CodesFolder.create(tmp_path, n_bits=12, model=MODEL)
    assert not any((tmp_path / name).exists() for name in strays)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(folder) == 8


@pytest.mark.parametrize("name", ["shard-000000010.codes.npy", "shard-000000010.items.parquet"])
@pytest.mark.parametrize("harm", ["change", "cut", "remove", "empty"])
def test_a_damaged_shard_is_named(tmp_path, name, harm):
    folder = make(tmp_path)
    file = tmp_path / name
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    {
        "change": lambda: file.write_bytes(content),
        "cut": lambda: file.write_bytes(content[:-2]),
        "remove": file.unlink,
        "empty": lambda: file.write_bytes(b""),
    }[harm]()
    with pytest.raises(DataError, match=rf"{name} is damaged .*hashlens encode"):
        [shard.load() for shard in folder.shards]
    assert [shard.name for shard, _ in folder.damaged()] == ["shard-000000010"]
    with pytest.raises(DataError, match=rf"{name} is damaged"):
        list(folder)


def test_a_dropped_shard_is_made_again(tmp_path):
    make(tmp_path / "whole", shard_size=10)
    folder = make(tmp_path / "codes", shard_size=10)
    folder.drop(folder.shards[:1])
    assert not CodesFolder.open(tmp_path / "codes").done and folder.missing() == [slice(0, 10)]
    write(folder, 0, 5)
    folder.finish()
    assert contents(tmp_path / "codes") == contents(tmp_path / "whole")


def test_the_list_only_grows(tmp_path):
    folder = make(tmp_path, shard_size=8)
    assert folder.missing() == []
    assert folder.extend(LISTED) == 0 and folder.done
    more = pa.table({"path": ["photos/new.jpg", *LISTED["path"].to_pylist()[5:], "photos/zoo.jpg"]})
    assert folder.extend(more) == 2 and not folder.done
    again = CodesFolder.open(tmp_path)
    assert again.listed()["path"].to_pylist()[19:] == ["photos/019.jpg", "photos/new.jpg", "photos/zoo.jpg"]
    assert again.missing() == [slice(20, 22)]
    again.drop(again.shards[:1])
    assert again.missing() == [slice(0, 8), slice(8, 10), slice(20, 22)]


@pytest.mark.parametrize("killed_at", ["_write", "write_sealed"])
def test_a_list_that_outgrew_the_manifest_is_read_up_to_it(tmp_path, monkeypatch, killed_at):
    """A process that was killed before or after it wrote the list."""
    folder = make(tmp_path)
    whole = contents(tmp_path)
    labelled = pa.table({"path": ["photos/other.jpg"], "new": ["a column"]})
    own, calls = getattr(codes_folder, killed_at), []

    def killed(*given):
        calls.append(given)
        return own(*given) if killed_at == "write_sealed" and len(calls) == 1 else 1 / 0

    with monkeypatch.context() as patch:
        patch.setattr(codes_folder, killed_at, killed)
        with pytest.raises(ZeroDivisionError):
            folder.extend(labelled)
    assert (contents(tmp_path)["list.parquet"] == whole["list.parquet"]) == (killed_at == "_write")
    again = CodesFolder.open(tmp_path)
    assert again.listed().equals(LISTED)
    assert again.extend(labelled) == 1 and CodesFolder.open(tmp_path).listed()["new"].to_pylist()[-1] == "a column"
    (tmp_path / "manifest.json").write_bytes(whole["manifest.json"])
    (tmp_path / "list.parquet").write_bytes(b"rust")
    with pytest.raises(DataError, match=r"list\.parquet is damaged"):
        CodesFolder.open(tmp_path).listed()
    pq.write_table(LISTED.slice(1), tmp_path / "list.parquet")
    with pytest.raises(DataError, match="has changed since it was written"):
        CodesFolder.open(tmp_path).listed()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"model": OTHER}, r"made with mine 9f3c9f3c…, you gave theirs 77ab77ab….*cannot be mixed: use the same model"),
        ({"source": "elsewhere"}, "started with the source photos, not elsewhere; choose another --out"),
        ({"shard_size": 7}, "started with --shard-size 65536, not 7"),
        ({"part": (2, 3)}, "started with --part 1/1, not 2/3"),
    ],
)
def test_create_refuses_another_model_source_or_part(tmp_path, how, words):
    make(tmp_path, source="photos")
    before = contents(tmp_path)
    with pytest.raises(MismatchError, match=words) as caught:
        CodesFolder.create(tmp_path, **({"n_bits": 12, "model": MODEL, "source": "photos"} | how))
    assert caught.value.exit_code == 4
    assert contents(tmp_path) == before


def test_wrong_shards_are_refused(tmp_path):
    folder = make(tmp_path, done=False)
    before = contents(tmp_path)
    with pytest.raises(DataError, match="3 codes and 2 images"):
        folder.append(slice(20, 23), some_codes(3), some_items(2))
    assert contents(tmp_path) == before


def test_open_refuses_folders_without_codes(tmp_path):
    with pytest.raises(DataError, match="nowhere has no codes"):
        CodesFolder.open(tmp_path / "nowhere")
    for text in ("{", "[]", "{}", '{"format": "hashlens codes folder 2"}'):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DataError, match=r"manifest\.json is damaged"):
            CodesFolder.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "hashlens codes folder 9"}')
    with pytest.raises(MismatchError, match="codes folder 9"):
        CodesFolder.open(tmp_path)


def test_create_refuses_a_folder_of_other_files(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"contains other files \(holiday.jpg\)"):
        CodesFolder.create(tmp_path, n_bits=12, model=MODEL)
    assert list(contents(tmp_path)) == ["holiday.jpg"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="choose another"):
        CodesFolder.create(tmp_path / "file", n_bits=12, model=MODEL)


def test_a_full_disk_leaves_whole_shards(tmp_path, monkeypatch):
    folder = make(tmp_path, sizes=(5,), done=False)
    before = contents(tmp_path)
    write_bytes = Path.write_bytes

    def full(path, content):
        if "items" in path.name:
            write_bytes(path, content[:10])
            raise OSError(errno.ENOSPC, "no space left on device")
        return write_bytes(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(StorageError, match="the disk is full"):
            write(folder, 1, 3)
    assert not CodesFolder.open(tmp_path).damaged()
    again = CodesFolder.create(tmp_path, n_bits=12, model=MODEL)
    assert contents(tmp_path) == before
    write(again, 1, 3)
    assert len(again) == 8


def test_a_second_writer_is_refused(tmp_path):
    code = (
        f"from hashlens.files import alone_in; from pathlib import Path\nwith alone_in(Path({str(tmp_path)!r})): pass"
    )
    with alone_in(tmp_path):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "Busy: another process is writing to" in done.stderr
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# A list, and parts of it.


def make_parts(path, n_parts=3, n=35, size=10, only=None, **how):
    """A list of n images in shards of 10, the codes of image i being those of seed i."""
    images = pa.table({"path": [f"photos/{i:03d}.jpg" for i in range(n)]})
    folders = []
    for i in only or range(1, n_parts + 1):
        given = {"n_bits": 12, "model": MODEL, "source": "photos", "shard_size": size}
        folder = CodesFolder.create(path / f"part-{i}-of-{n_parts}", **(given | {"part": (i, n_parts)} | how))
        folder.extend(images)
        for rows in folder.missing():
            codes = Codes.concatenate([some_codes(1, seed) for seed in range(rows.start, rows.stop)])
            folder.append(rows, codes, images[rows])
        folder.finish()
        folders.append(folder)
    return folders


@pytest.mark.parametrize("n_parts", [2, 3, 6])
def test_parts_make_the_whole(tmp_path, n_parts):
    make_parts(tmp_path / "parts", n_parts)
    (whole,) = make_parts(tmp_path / "whole", 1)
    folders = open_together([tmp_path / "parts"])
    assert [folder.part[0] for folder in folders] == list(range(1, n_parts + 1))
    assert [shard.start for shard in shards_in_order(folders)] == [0, 10, 20, 30]
    for shard, (codes, items) in zip(shards_in_order(folders), whole, strict=True):
        assert shard.load()[0].equals(codes) and shard.load()[1].equals(items)
    files = {}
    for folder in folders:
        files |= {name: content for name, content in contents(folder.path).items() if name.startswith("shard")}
    assert files == {name: content for name, content in contents(whole.path).items() if name.startswith("shard")}


def test_separate_folders_stay_in_the_order_given(tmp_path):
    make(tmp_path / "b", sizes=(2,))
    make(tmp_path / "a", sizes=(3, 1))
    shards = shards_in_order(open_together([tmp_path / "b", tmp_path / "a"]))
    assert [(shard.folder.name, shard.start) for shard in shards] == [("b", 0), ("a", 0), ("a", 10)]


def test_missing_or_different_parts_are_refused(tmp_path):
    make_parts(tmp_path, only=(1, 3))
    with pytest.raises(DataError, match="is part 1/3 of photos, and part 2/3 is missing"):
        open_together([tmp_path])
    make_parts(tmp_path, only=(2,), n=36)
    with pytest.raises(MismatchError, match="different lists"):
        open_together([tmp_path])
    with pytest.raises(UsageError, match="name at least one"):
        open_together([])
    make(tmp_path / "other", model=OTHER)
    with pytest.raises(MismatchError, match="cannot be mixed"):
        open_together([tmp_path / "part-1-of-3", tmp_path / "other"])


def test_an_unfinished_folder_is_refused(tmp_path):
    folder = make(tmp_path, sizes=(5,), done=False, shard_size=4)
    assert folder.missing() == [slice(10, 14), slice(14, 18), slice(18, 20)]
    with pytest.raises(DataError, match="not finished, 3 shards are missing; rerun the same hashlens encode command"):
        open_together([tmp_path])


# Models.


def test_the_fingerprint_of_a_model(tmp_path):
    model = tmp_path / "runs" / "photos-dtsh-48" / "model"
    model.mkdir(parents=True)
    with pytest.raises(DataError, match="is not a model"):
        ModelFolder.resolve(model)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    first = ModelFolder(model).describe()
    assert first["name"] == "photos-dtsh-48" and len(first["fingerprint"]) == 64
    (model / "README.md").write_text("a card")
    (model / "model.onnx").write_bytes(b"the same model, for other programs")
    assert ModelFolder(model).describe() == first
    copy = tmp_path / "mine"
    model.rename(copy)
    assert ModelFolder(copy).describe() == {"fingerprint": first["fingerprint"], "name": "mine"}
    (copy / "model.safetensors").write_bytes(b"weightz")
    changed = ModelFolder(copy).fingerprint
    (copy / "config.json").write_text('{"hashlens": "9.9", "class": "elsewhere:DTSH"}')  # makes the same codes
    assert ModelFolder(copy).fingerprint == changed
    (copy / "config.json").write_text('{"n_bits": 8}')
    assert len({first["fingerprint"], changed, ModelFolder(copy).fingerprint}) == 3
    (copy / "config.json").write_text("[]")
    with pytest.raises(DataError, match="is damaged"):
        ModelFolder(copy).describe()


def test_reading_needs_no_torch():
    code = "import sys, hashlens.codes.encode; assert not {'torch', 'numba', 'sklearn'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_list_is_known_by_its_content():
    """Not by the bytes of a file, which differ from version to version of the library that writes it."""
    images = some_items(12)
    assert content_hash(images) == content_hash(pa.concat_tables([images[:7], images[7:]]))
    assert content_hash(images) != content_hash(images.take([1, 0, *range(2, 12)])) != content_hash(images[:11])
