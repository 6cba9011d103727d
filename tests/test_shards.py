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

from hashlens import shards
from hashlens.codes import Codes
from hashlens.errors import DataError, MismatchError, StorageError, UsageError
from hashlens.files import alone_in
from hashlens.shards import (
    CodesFolder,
    concatenate,
    describe_model,
    model_fingerprint,
    open_together,
    parquet,
    require_complete,
    shards_in_order,
)

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
    folder = CodesFolder.create(path, **({"n_bits": 12, "model": MODEL} | how))
    for number, n in enumerate(sizes):
        folder.append(some_codes(n, number), some_items(n, 10 * number), [(f"bad{number}.jpg", "truncated")])
    if done:
        folder.finish()
    return folder


def contents(path):
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_what_is_written_is_read(tmp_path):
    make(tmp_path / "codes")
    folder = CodesFolder.open(tmp_path / "codes")
    assert (folder.n_bits, folder.model, len(folder), folder.done, folder.n_skipped) == (12, MODEL, 8, True, 2)
    for number, (codes, items) in enumerate(folder):
        assert codes.equals(some_codes((5, 3)[number], number))
        assert items.equals(some_items(len(codes), 10 * number))
    codes, items = folder.concatenated()
    assert codes.equals(Codes.concatenate([some_codes(5, 0), some_codes(3, 1)]))
    assert items["path"].to_pylist()[4:6] == ["photos/004.jpg", "photos/010.jpg"]
    assert folder.skipped() == [("bad0.jpg", "truncated"), ("bad1.jpg", "truncated")]
    folder.verify()


def test_the_files_are_those_of_the_design(tmp_path):
    make(tmp_path)
    assert sorted(contents(tmp_path)) == [
        "manifest.json",
        "shard-00000.codes.npy",
        "shard-00000.items.parquet",
        "shard-00001.codes.npy",
        "shard-00001.items.parquet",
        "skipped.csv",
    ]
    packed = np.load(tmp_path / "shard-00000.codes.npy")
    assert packed.dtype == np.uint8 and packed.shape == (5, 2)
    schema = pq.read_schema(tmp_path / "shard-00000.items.parquet")
    assert schema.names == ["path", "labels", "size", "mtime"]
    assert schema.field("labels").type == pa.list_(pa.string())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["model"] == MODEL and manifest["shards"][1]["n"] == 3
    assert (tmp_path / "skipped.csv").read_text() == "path,reason\nbad0.jpg,truncated\nbad1.jpg,truncated\n"


def test_a_list_of_paths_will_do(tmp_path):
    folder = CodesFolder.create(tmp_path, n_bits=12, model=MODEL)
    folder.append(some_codes(2), ["a.jpg", "b.jpg"])
    _, items = folder.concatenated()
    assert items.to_pylist()[1] == {"path": "b.jpg", "size": None, "mtime": None}


def test_nothing_depends_on_the_time_or_the_way(tmp_path):
    make(tmp_path / "a")
    begun = make(tmp_path / "b", sizes=(5,), done=False)
    again = CodesFolder.create(tmp_path / "b", n_bits=12, model=MODEL)
    again.append(some_codes(3, 1), some_items(3, 10), [("bad1.jpg", "truncated")])
    again.finish()
    assert len(begun.shards) == 1 and contents(tmp_path / "a") == contents(tmp_path / "b")


def test_equal_tables_are_equal_bytes():
    whole = some_items(50)
    pieces = pa.concat_tables([whole.slice(0, 7), whole.slice(7, 20), whole.slice(27)])
    assert pieces["path"].num_chunks == 3 and parquet(pieces) == parquet(whole)
    assert parquet(whole.replace_schema_metadata({"made": "today"})) == parquet(whole)
    assert parquet(whole.slice(10, 5)) == parquet(some_items(50).take(list(range(10, 15))))


@pytest.mark.parametrize("sizes", [(), (0,), (0, 4)])
def test_no_codes(tmp_path, sizes):
    folder = make(tmp_path, sizes)
    codes, items = CodesFolder.open(tmp_path).concatenated()
    assert len(codes) == len(items) == len(folder) == sum(sizes) and codes.packed.shape[1] == 2
    folder.verify()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", range(19))
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
            folder.append(some_codes(3, 1), some_items(3, 10), [("bad1.jpg", "truncated")])
            folder.finish()
            died = False
        except Killed:
            died = True
    assert died == (moment < 18)
    found = CodesFolder.open(tmp_path / "codes")
    found.verify()
    assert [len(codes) for codes, _ in found] in ([5], [5, 3])
    again = CodesFolder.create(tmp_path / "codes", n_bits=12, model=MODEL)
    if len(again.shards) == 1:
        again.append(some_codes(3, 1), some_items(3, 10), [("bad1.jpg", "truncated")])
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

    folder.append(some_codes(2), some_items(2))
    codes, items = "shard-00000.codes.npy", "shard-00000.items.parquet"
    assert steps == ["file", codes, "file", items, "file", "folder", "file", "manifest.json", "folder"]


def test_what_was_left_behind_is_removed_by_a_writer_only(tmp_path):
    make(tmp_path, done=False)
    strays = [".shard-00002.codes.npy.ab12.tmp", "shard-00002.codes.npy", "shard-00007.items.parquet"]
    for name in strays:
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("mine")
    with (tmp_path / "skipped.csv").open("a") as file:
        file.write("bad2.jpg,its shard never cou")
    CodesFolder.open(tmp_path)
    assert all((tmp_path / name).exists() for name in strays)
    folder = CodesFolder.create(tmp_path, n_bits=12, model=MODEL)
    assert not any((tmp_path / name).exists() for name in strays)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    folder.append(some_codes(1), ["x.jpg"], [("bad3.jpg", "zero bytes")])
    assert folder.skipped()[1:] == [("bad1.jpg", "truncated"), ("bad3.jpg", "zero bytes")]


@pytest.mark.parametrize("name", ["shard-00001.codes.npy", "shard-00001.items.parquet"])
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
    with pytest.raises(DataError, match=rf"shard-00001 is damaged .*{name}.*hashlens encode"):
        folder.verify()
    assert [shard.name for shard, _ in folder.damaged()] == ["shard-00001"]
    if harm != "change":
        with pytest.raises(DataError, match=r"shard-00001 in .* is damaged"):
            list(folder)


def test_a_dropped_shard_is_made_again(tmp_path):
    make(tmp_path / "whole")
    folder = make(tmp_path / "codes")
    folder.drop(folder.shards[:1])
    assert not CodesFolder.open(tmp_path / "codes").done
    folder.append(some_codes(5, 0), some_items(5), [("bad0.jpg", "truncated")], number=0)
    folder.finish()
    assert contents(tmp_path / "codes") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"model": OTHER}, r"made with mine 9f3c9f3c…, you gave theirs 77ab77ab….*cannot be mixed.*--out"),
        ({"n_bits": 16}, "has codes of 12 bits, this model makes 16"),
        ({"source": "elsewhere"}, "has the codes of photos, not of elsewhere"),
        ({"shard_size": 7}, "in shards of 65,536"),
        ({"part": (2, 3)}, "part 1/1"),
    ],
)
def test_what_does_not_belong_together(tmp_path, how, words):
    make(tmp_path, source="photos")
    before = contents(tmp_path)
    with pytest.raises(MismatchError, match=words) as caught:
        CodesFolder.create(tmp_path, **({"n_bits": 12, "model": MODEL, "source": "photos"} | how))
    assert caught.value.exit_code == 4
    assert contents(tmp_path) == before


def test_wrong_shards_are_refused(tmp_path):
    folder = make(tmp_path, done=False)
    before = contents(tmp_path)
    with pytest.raises(MismatchError, match="12 bits, these have 16"):
        folder.append(some_codes(3, n_bits=16), some_items(3))
    with pytest.raises(DataError, match="3 codes and 2 pictures"):
        folder.append(some_codes(3), some_items(2))
    with pytest.raises(UsageError, match="shard 1 already"):
        folder.append(some_codes(3), some_items(3), number=1)
    assert contents(tmp_path) == before


def test_folders_that_hold_no_codes(tmp_path):
    with pytest.raises(DataError, match="there are no codes in"):
        CodesFolder.open(tmp_path / "nowhere")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        CodesFolder.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "hashlens codes folder 9"}')
    with pytest.raises(MismatchError, match="codes folder 9"):
        CodesFolder.open(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "hashlens codes folder 1"}')
    with pytest.raises(DataError, match="damaged"):
        CodesFolder.open(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(MismatchError, match="format"):
        CodesFolder.open(tmp_path)


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"holds other things \(holiday.jpg\)"):
        CodesFolder.create(tmp_path, n_bits=12, model=MODEL)
    assert list(contents(tmp_path)) == ["holiday.jpg"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="choose another place"):
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
        with pytest.raises(StorageError, match="no room on the disk"):
            folder.append(some_codes(3, 1), some_items(3, 10))
    CodesFolder.open(tmp_path).verify()
    again = CodesFolder.create(tmp_path, n_bits=12, model=MODEL)
    assert contents(tmp_path) == before
    again.append(some_codes(3, 1), some_items(3, 10))
    assert len(again) == 8


def test_two_writers(tmp_path):
    code = (
        f"from hashlens.files import alone_in; from pathlib import Path\nwith alone_in(Path({str(tmp_path)!r})): pass"
    )
    with alone_in(tmp_path):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "UsageError: another process is writing to" in done.stderr
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# A list, and parts of it.


def make_parts(path, n_parts=3, n=35, size=10, only=None, **how):
    """A list of n pictures in shards of 10, the codes of picture i being those of seed i."""
    pictures = pa.table({"path": [f"photos/{i:03d}.jpg" for i in range(n)]})
    folders = []
    for i in only or range(1, n_parts + 1):
        given = {"n_bits": 12, "model": MODEL, "source": "photos", "pictures": pictures, "shard_size": size}
        folder = CodesFolder.create(path / f"part-{i}-of-{n_parts}", **(given | {"part": (i, n_parts)} | how))
        for number in folder.missing():
            rows = range(number * size, min((number + 1) * size, n))
            codes = Codes.concatenate([some_codes(1, seed) for seed in rows])
            folder.append(codes, pictures["path"].to_pylist()[rows.start : rows.stop], number=number)
        folder.finish()
        folders.append(folder)
    return folders


@pytest.mark.parametrize("n_parts", [2, 3, 6])
def test_parts_make_the_whole(tmp_path, n_parts):
    make_parts(tmp_path / "parts", n_parts)
    (whole,) = make_parts(tmp_path / "whole", 1)
    folders = open_together([tmp_path / "parts"])
    require_complete(folders)
    assert [folder.part[0] for folder in folders] == list(range(1, n_parts + 1))
    assert [shard.number for shard in shards_in_order(folders)] == [0, 1, 2, 3]
    codes, items = concatenate(shards_in_order(folders), 12)
    expected, expected_items = whole.concatenated()
    assert codes.equals(expected) and items.equals(expected_items)
    files = {}
    for folder in folders:
        files |= {name: content for name, content in contents(folder.path).items() if name.startswith("shard")}
    assert files == {name: content for name, content in contents(whole.path).items() if name.startswith("shard")}


def test_separate_folders_stay_in_the_order_given(tmp_path):
    make(tmp_path / "b", sizes=(2,))
    make(tmp_path / "a", sizes=(3, 1))
    shards = shards_in_order(open_together([tmp_path / "b", tmp_path / "a"]))
    assert [(shard.folder.name, shard.number) for shard in shards] == [("b", 0), ("a", 0), ("a", 1)]


def test_parts_that_do_not_fit(tmp_path):
    make_parts(tmp_path, only=(1, 3))
    with pytest.raises(DataError, match="is part 1/3 of photos, and part 2/3 is not given"):
        require_complete(open_together([tmp_path]))
    make_parts(tmp_path, only=(2,), n=36)
    with pytest.raises(MismatchError, match="different lists"):
        require_complete(open_together([tmp_path]))
    with pytest.raises(UsageError, match="name at least one"):
        open_together([])
    make(tmp_path / "other", model=OTHER)
    with pytest.raises(MismatchError, match="cannot be mixed"):
        open_together([tmp_path / "part-1-of-3", tmp_path / "other"])
    CodesFolder.create(tmp_path / "longer", n_bits=16, model=OTHER)
    with pytest.raises(MismatchError, match=r"of 12 bits, .*longer of 16"):
        open_together([tmp_path / "part-1-of-3", tmp_path / "longer"])


def test_an_unfinished_folder(tmp_path):
    pictures = pa.table({"path": [f"{i}.jpg" for i in range(25)]})
    folder = CodesFolder.create(tmp_path, n_bits=12, model=MODEL, pictures=pictures, shard_size=10)
    folder.append(some_codes(10), pictures["path"].to_pylist()[:10])
    assert folder.missing() == [1, 2]
    with pytest.raises(DataError, match="not finished, 2 shards are missing"):
        require_complete([CodesFolder.open(tmp_path)])


def test_the_list_is_there_until_all_is_done(tmp_path):
    pictures = pa.table({"path": [f"{i}.jpg" for i in range(5)], "labels": [["a"], [], ["b", "c"], ["a"], ["a"]]})
    how = {"n_bits": 12, "model": MODEL, "source": "photos"}
    CodesFolder.create(tmp_path, pictures=pictures, **how)
    other = pictures.slice(1)
    folder = CodesFolder.create(tmp_path, pictures=other, **how)
    assert folder.changed(other) and not folder.changed(pictures)
    assert folder.pictures().equals(pictures)
    (tmp_path / "list.parquet").write_bytes(b"x")
    assert folder.pictures() is None
    folder = CodesFolder.create(tmp_path, pictures=pictures, **how)  # given again, so written again
    assert folder.pictures().equals(pictures)
    folder.append(some_codes(5), pictures)
    folder.finish()
    assert not (tmp_path / "list.parquet").exists()


# Models.


def test_the_fingerprint_of_a_model(tmp_path):
    model = tmp_path / "runs" / "photos-dtsh-48" / "model"
    model.mkdir(parents=True)
    with pytest.raises(DataError, match="holds no hashlens model"):
        model_fingerprint(model)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    first = describe_model(model)
    assert first["name"] == "photos-dtsh-48" and len(first["fingerprint"]) == 64
    (model / "README.md").write_text("a card")
    (model / "model.onnx").write_bytes(b"the same model, for other programs")
    assert describe_model(model) == first
    copy = tmp_path / "mine"
    model.rename(copy)
    assert describe_model(copy) == {"fingerprint": first["fingerprint"], "name": "mine"}
    (copy / "model.safetensors").write_bytes(b"weightz")
    changed = model_fingerprint(copy)
    (copy / "config.json").write_text("[]")
    assert len({first["fingerprint"], changed, model_fingerprint(copy)}) == 3


def test_reading_needs_no_torch():
    code = "import sys, hashlens.shards, hashlens.encoding; assert not {'torch', 'numba', 'sklearn'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_shard_numbers_may_outgrow_their_digits():
    assert shards.SHARD_FILE.fullmatch("shard-1234567.codes.npy")


def test_the_list_is_known_by_its_content(tmp_path, monkeypatch):
    """Not by the bytes of a file, which differ from version to version of the library that writes it."""
    pictures = some_items(12)
    how = {"n_bits": 12, "model": MODEL, "shard_size": 5, "source": "photos"}
    CodesFolder.create(tmp_path / "codes", pictures=pictures, **how)
    whole = shards.parquet
    monkeypatch.setattr(shards, "parquet", lambda table: whole(table).replace(b"parquet-cpp", b"parquet-CPP"))
    folder = CodesFolder.create(tmp_path / "codes", pictures=pictures, **how)
    assert not folder.changed(pictures) and folder.pictures().equals(pictures)
    assert not folder.changed(pa.concat_tables([pictures[:7], pictures[7:]]))
    assert folder.changed(pictures[:11]) and folder.changed(pictures.take([1, 0, *range(2, 12)]))


def test_what_was_skipped_is_listed_once_however_often_its_shard_is_made(tmp_path):
    how = {"n_bits": 12, "model": MODEL, "shard_size": 5, "source": "photos", "pictures": some_items(10)}
    folder = CodesFolder.create(tmp_path, **how)
    folder.append(some_codes(4), some_items(4), [("photos/004.jpg", "damaged")], 0)
    folder.append(some_codes(5), some_items(5, 5), [], 1)
    folder.drop(folder.shards[:1])
    again = CodesFolder.create(tmp_path, **how)  # another process, later
    again.append(some_codes(4), some_items(4), [("photos/004.jpg", "damaged")], 0)
    again.finish()
    assert again.skipped() == [("photos/004.jpg", "damaged")] and again.n_skipped == 1
    straight = CodesFolder.create(tmp_path / "straight", **how)
    straight.append(some_codes(4), some_items(4), [("photos/004.jpg", "damaged")], 0)
    straight.append(some_codes(5), some_items(5, 5), [], 1)
    straight.finish()
    (tmp_path / "straight").rename(tmp_path.parent / "straight")
    assert contents(tmp_path) == contents(tmp_path.parent / "straight")
