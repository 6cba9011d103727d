"""Parts that are joined: few of them, each rewritten seldom, and the same answers; additions read only what is new."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from hashlens import Codes
from hashlens.checksums import CheckedFile, compare_file, write_sealed
from hashlens.errors import Busy, DataError, StorageError
from hashlens.index import keys as keys_module
from hashlens.index import merging
from hashlens.index.folder import IndexFolder, read_facts
from hashlens.index.keys import Keys, arranged, image_keys
from hashlens.index.memory import HammingIndex, Part
from hashlens.index.merging import parts_to_join

MODEL = {"fingerprint": "ab" * 32, "name": "test"}


def made(rng, n, start=0, second_bits=0):
    second = Codes.from_relaxed(rng.normal(size=(n, second_bits))) if second_bits else None
    codes = Codes.from_relaxed(rng.normal(size=(n, 40)))
    labels = pa.array([["cat", "dog"][: i % 3] or None for i in range(start, start + n)], pa.list_(pa.string()))
    paths = [f"photos/{i}.jpg" for i in range(start, start + n)]
    return Codes(codes.packed, 40, second), pa.table({"path": paths, "labels": labels})


@pytest.fixture
def opened(monkeypatch):
    """The names of the files of which something is compared, and so read; all of them are mapped."""
    names = []

    def noting(own):
        def note(file, *given):
            names.append(file.path.name)
            return own(file, *given)

        return note

    for kind in ("whole", "by_blocks"):
        monkeypatch.setattr(CheckedFile, kind, noting(getattr(CheckedFile, kind)))
    return names


@pytest.mark.parametrize("shards", ["ones", "equal", "odd", "large after small", "random"])
def test_parts_stay_few_and_are_seldom_rewritten(shards, monkeypatch):
    monkeypatch.setattr(merging, "FULL", 4_096)
    rng = np.random.default_rng(0)
    sizes = {
        "ones": [1] * 5_000,
        "equal": [64] * 300,
        "odd": [37] * 500,
        "large after small": [1, 8, 64, 512] * 40,
        "random": rng.integers(1, 600, 200).tolist(),
    }[shards]
    parts, rewritten, most = [], 0, 0
    for size in sizes:
        parts.append(size)
        while some := parts_to_join(parts):
            assert all(one < 4_096 for one in parts[some])  # a full one stays as it is
            rewritten += sum(parts[some])
            parts[some] = [sum(parts[some])]
        most = max(most, sum(one < 4_096 for one in parts))
    assert sum(parts) == sum(sizes) and max(parts) < 2 * 4_096
    assert most <= 7 * 4 and rewritten <= 4 * sum(sizes)


def test_old_parts_are_joined_as_if_they_were_added_now():
    parts = [100] * 1_000
    while some := parts_to_join(parts):
        parts[some] = [sum(parts[some])]
    assert len(parts) < 20 and sum(parts) == 100_000
    assert parts_to_join([]) is parts_to_join([5]) is parts_to_join([5] * 7) is None


@pytest.mark.parametrize(("second_bits", "tables"), [(0, False), (24, False), (24, True)])
def test_answers_stay_the_same(second_bits, tables, tmp_path, rng):
    index = IndexFolder.create(tmp_path, 40, MODEL, second_bits=second_bits, radius_tables=tables)
    memory = HammingIndex(40, second_bits=second_bits)
    query = made(rng, 4, second_bits=second_bits)[0]
    by = "both" if second_bits else "first"
    for round_ in range(30):
        n = int(rng.integers(1, 130))
        codes, items = made(rng, n, int(index.facts["next_id"]), second_bits)
        gone = rng.integers(0, index.facts["next_id"] + 1, 3)
        for one, given in ((index, (codes, items)), (memory, (codes,))):
            one.add(*given)
            one.remove(gone)
        assert len(index) == len(memory) and len(index.parts) <= 14
        if round_ % 5 == 0:
            for own in (index, IndexFolder.open(tmp_path)):
                for found, wanted in zip(own.search(query, 9, by=by), memory.search(query, 9, by=by), strict=True):
                    np.testing.assert_array_equal(found, wanted)
                for found, wanted in zip(own.within(query, 12)[0], memory.within(query, 12)[0], strict=True):
                    np.testing.assert_array_equal(found, wanted)
    index.verify()
    assert {item["path"] for item in index.lookup(range(10_000)).values()} == {
        f"photos/{i}.jpg" for i in memory_ids(memory)
    }
    assert index.ids_with("dog").tolist() == [i for i in memory_ids(memory) if i % 3 == 2]
    index.compact()
    assert len(index.parts) == 1 and len(index) == len(memory)


def memory_ids(memory):
    return np.concatenate([ids for _, ids in memory.batches(1_000)]).tolist()


def test_an_addition_reads_no_codes_and_few_keys(tmp_path, rng, opened):
    index = IndexFolder.create(tmp_path, 40, MODEL)
    for start in range(0, 300, 100):
        index.add(*made(rng, 100, start), only_new=True)
    opened.clear()
    IndexFolder.open(tmp_path, to_add=True).add(*made(rng, 5, 300), only_new=True)
    assert {name.split(".", 1)[1] for name in opened} == {"keys.npy"}
    reader = IndexFolder.open(tmp_path)
    index.add(*made(rng, 5, 305))
    opened.clear()
    reader = IndexFolder.open(tmp_path, before=reader)
    assert set(opened) == {"part-00004.blocks.npy"}  # the others stay mapped
    opened.clear()
    reader.remove([7])
    assert not [name for name in opened if name.startswith("part-")]
    assert len(reader) == 309 and 7 not in reader.lookup(range(20)) and 7 in index.lookup(range(20))


def test_few_ids_are_looked_up_in_few_parts(tmp_path, rng, opened):
    index = IndexFolder.create(tmp_path, 40, MODEL)
    for start in range(0, 500, 100):
        index.add(*made(rng, 100, start))
    reader = IndexFolder.open(tmp_path)
    opened.clear()
    assert reader.lookup([205, 299])[299]["path"] == "photos/299.jpg"
    assert set(opened) == {"part-00002.items.arrow"}
    assert reader.lookup([-1, 500, 10**9]) == {} and reader.contains([-1, 4, 700]).tolist() == [4]


def test_an_interrupted_join_is_made_up_for(tmp_path, rng, monkeypatch):
    whole, broken = (IndexFolder.create(tmp_path / name, 40, MODEL) for name in ("whole", "broken"))
    shards = [made(rng, 20, start) for start in range(0, 240, 20)]
    for index in (whole, broken):
        for shard in shards[:7]:
            index.add(*shard, only_new=True)
    with monkeypatch.context() as patched:
        patched.setattr("hashlens.index.folder.parts_to_join", lambda sizes: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            broken._append = None  # not reached: what was interrupted comes first
            broken.add(*shards[7], only_new=True)
    del broken._append
    join, calls = IndexFolder._merge, []

    def killed(index):
        calls.append(len(index.facts["parts"]))
        if len(calls) > 1:
            raise KeyboardInterrupt
        join(index)

    monkeypatch.setattr(IndexFolder, "_merge", killed)
    with pytest.raises(KeyboardInterrupt):
        broken.add(*shards[7], only_new=True)  # it is in the index, but nothing was joined
    assert calls == [7, 8] and len(IndexFolder.open(broken.path).parts) == 8
    monkeypatch.undo()
    for index in (whole, IndexFolder.open(broken.path, to_add=True)):
        for shard in shards:
            index.add(*shard, only_new=True)
    contents = [{path.name: path.read_bytes() for path in index.path.iterdir()} for index in (whole, broken)]
    assert contents[0] == contents[1] and len(IndexFolder.open(whole.path).parts) == 5


def as_version_5(path):
    """Of files without keys."""
    for name in ("index.json", "index.json.copy"):
        facts = json.loads((path / name).read_text())
        write_sealed(path / name, {k: v for k, v in facts.items() if k != "checksum"} | {"format": "hashlens index 5"})


def test_an_index_without_keys_gets_them_once(tmp_path, rng):
    """That of version 5, or one to which nobody has added only what is new."""
    index = IndexFolder.create(tmp_path, 40, MODEL)
    shards = [made(rng, 50, start) for start in range(0, 200, 50)]
    for shard in shards[:3]:
        index.add(*shard)
    as_version_5(tmp_path)
    older = IndexFolder.open(tmp_path)
    assert len(older) == 150 and not list(tmp_path.glob("*.keys.npy"))
    assert [len(older.add(*shard, only_new=True)) for shard in shards] == [0, 0, 0, 50]
    assert len(list(tmp_path.glob("*.keys.npy"))) == 4 and read_facts(tmp_path)["format"] == "hashlens index 6"
    assert "5" not in (tmp_path / "index.json").read_text().split("format")[1][:22]
    older.verify()


@pytest.mark.parametrize("older", [False, True])
def test_joined_parts_keep_removed_paths_and_the_hashes_of_files(older, tmp_path, rng):
    """Also those of an index of version 5."""
    index = IndexFolder.create(tmp_path, 40, MODEL)
    shards = []
    for number in range(7):
        codes, items = made(rng, 20, 20 * number)
        for place, name in enumerate(("size", "mtime", "hash")):
            items = items.append_column(name, pa.array(np.arange(20) + 1_000 * number + 100 * place))
        shards.append((codes, items))
        index.add(codes, items, only_new=not older)
    index.remove([5, 45])
    if older:
        as_version_5(tmp_path)
    index = IndexFolder.open(tmp_path)
    index.set_mtimes({0: 7, 139: 8})
    index = IndexFolder.open(tmp_path, to_add=True)
    assert len(index.parts) == 7 and [len(index.add(*shard, only_new=True)) for shard in shards] == [0] * 7
    index.add(*made(rng, 20, 140), only_new=True)
    assert len(index.parts) == 1
    table = index.parts[0].items().table()
    stamps = {name: pa.concat_tables([items for _, items in shards])[name].to_pylist() for name in ("size", "hash")}
    assert {name: table[name].to_pylist()[:140] for name in stamps} == stamps
    mtimes = table["mtime"].to_pylist()
    assert [mtimes[id_] for id_ in (0, 1, 139, 140)] == [7, 101, 8, None]
    for _ in range(2):  # before and after the removed ones are reclaimed
        other, _ = made(rng, 20)
        assert len(index.add(other[5:6], shards[0][1].slice(5, 1), only_new=True)) == 0
        assert len(index.add(shards[2][0], shards[2][1], only_new=True)) == 0
        index.verify()
        index.compact()
    assert len(index.add(*shards[2], only_new=True, again=True)) == 1


def test_an_index_that_was_built_again_is_not_taken_for_the_one_before(tmp_path, rng):
    """Its part is the same, but another image was removed."""
    shard = made(rng, 50)
    opened = []
    for id_ in (3, 4):
        index = IndexFolder.create(tmp_path / "index", 40, MODEL)
        index.add(*shard)
        index.remove([id_])
        opened.append(IndexFolder.open(index.path, *opened))
        assert sorted(opened[-1].lookup([3, 4])) == [7 - id_]
        index.path.rename(tmp_path / f"before-{id_}")


@pytest.mark.parametrize("stretch", [4, 64, 8_192])
def test_keys_are_counted(stretch, tmp_path, rng, monkeypatch):
    monkeypatch.setattr(keys_module, "STRETCH", stretch)
    for n, n_asked in ((1, 5), (300, 3), (300, 400), (20_000, 10), (20_000, 9_000)):
        own = np.sort(rng.integers(-(n // 2), n // 2 + 1, n))
        path = tmp_path / f"part-{n:05d}.keys.npy"
        np.save(path, arranged(own))
        found = Keys(_file(path, tmp_path), n)
        asked = np.sort(rng.integers(-n, n, n_asked))
        counted = Counter(own.tolist())
        assert found.count(asked).tolist() == [counted[key] for key in asked.tolist()]
        assert found.all().tolist() == own.tolist()


def _file(path, folder):
    from hashlens.checksums import describe_file
    from hashlens.index.items import write_sums

    write_sums(folder / "sums", path)
    file = CheckedFile(path, describe_file(path), "repair it")
    file.by_blocks(CheckedFile(folder / "sums", describe_file(folder / "sums"), "repair it"))
    return file


def test_a_damaged_key_is_noticed_where_it_is_touched(tmp_path, rng):
    index = IndexFolder.create(tmp_path, 40, MODEL)
    codes, items = made(rng, 30_000)
    index.add(codes, items, only_new=True)
    keys = np.sort(image_keys(codes.packed, items.column("path")))
    path = tmp_path / "part-00000.keys.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # of the highest key
    path.write_bytes(content)
    index = IndexFolder.open(tmp_path, to_add=True)
    row = int(np.flatnonzero(image_keys(codes.packed, items.column("path")) == keys[5])[0])
    assert not len(index.add(codes[row : row + 1], items.slice(row, 1), only_new=True))
    with pytest.raises(DataError, match=r"part-00000.keys.npy is damaged \(block 4 has changed.*index repair"):
        index.add(codes, items, only_new=True)
    from hashlens.index.repair import repair

    assert repair(tmp_path)["repaired"] == ["part-00000.keys.npy"]
    assert not len(IndexFolder.open(tmp_path).add(codes, items, only_new=True))


def test_whoever_opens_an_index_while_another_joins_its_parts(tmp_path, rng, monkeypatch):
    """Files of the index that it has read about are deleted before they are mapped."""
    index = IndexFolder.create(tmp_path, 40, MODEL)
    for start in range(7):
        index.add(*made(rng, 1, start))
    own, calls = IndexFolder._map_part, []

    def late(reader, part, **how):
        if reader is not index and len(calls) < 2:
            calls.append(index.add(*made(rng, 1, index.facts["next_id"])))
        return own(reader, part, **how)

    with monkeypatch.context() as patched:
        patched.setattr(IndexFolder, "_map_part", late)
        reader = IndexFolder.open(tmp_path)
    assert len(calls) == 2 and len(reader) == 8 and len(reader.lookup(range(17))) == 8  # as it was in between
    index.compact()
    assert not (tmp_path / f"{reader.facts['parts'][0]['name']}.items.arrow").exists()
    assert [item["path"] for item in reader.lookup([3, 7]).values()] == ["photos/3.jpg", "photos/7.jpg"]
    unread = IndexFolder.open(tmp_path)  # whose items nobody has asked for
    index.remove([3])
    index.compact()
    assert unread.lookup([3])[3]["path"] == "photos/3.jpg" and unread.verify() == index.verify()


def test_files_that_are_deleted_by_others_are_not_damage(tmp_path, rng, monkeypatch):
    index = IndexFolder.create(tmp_path, 40, MODEL)
    index.add(*made(rng, 5))
    reader, compared = IndexFolder.open(tmp_path), []

    def compare(path, *given):
        compared.append(path.name)
        if len(compared) == 1:
            index.remove([2])
            index.compact()
        compare_file(path, *given)

    monkeypatch.setattr("hashlens.index.folder.compare_file", compare)
    reader.compare_files()
    assert index.facts["parts"][0]["name"] == "part-00001" and {*index._files()} <= {*compared}
    place = tmp_path / "part-00001.blocks.npy"
    place.write_bytes(place.read_bytes()[:-1] + b"\1")
    with pytest.raises(DataError, match=r"part-00001.blocks.npy is damaged"):
        reader.compare_files()


@pytest.mark.parametrize("kind", ["full", "damaged"])
def test_an_addition_stands_if_its_parts_cannot_be_joined(tmp_path, rng, monkeypatch, kind):
    index = IndexFolder.create(tmp_path, 40, MODEL)
    for start in range(7):
        index.add(*made(rng, 1, start), only_new=True)
    if kind == "full":
        monkeypatch.setattr(Part, "joined", lambda parts: os_error(28))
    else:
        place = tmp_path / "part-00003.items.arrow"
        content = place.read_bytes()
        place.write_bytes(content.replace(b"photos/3.jpg", b"photos/4.jpg"))
    assert index.add(*made(rng, 1, 7), only_new=True).tolist() == [7]
    assert len(index) == 8 and len(index.facts["parts"]) == 8
    if kind == "full":
        assert index.add(*made(rng, 1, 8), only_new=True).tolist() == [8]
        monkeypatch.undo()
        assert index.add(*made(rng, 1, 9), only_new=True).tolist() == [9] and len(index.facts["parts"]) == 3
        assert index.verify() and len(index.lookup(range(10))) == 10
    else:
        with pytest.raises(DataError, match=r"part-00003.items.arrow is damaged"):
            index.add(*made(rng, 1, 8), only_new=True)
        assert len(read_facts(tmp_path)["parts"]) == 8


def os_error(number):
    raise OSError(number, "it is full")


def test_a_full_disk_cannot_come_between_the_facts_and_their_copy(tmp_path, rng, monkeypatch):
    index = IndexFolder.create(tmp_path, 40, MODEL)
    index.add(*made(rng, 5))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr("hashlens.checksums.os.fsync", lambda handle: os_error(28))  # of the copy, which is first
    with pytest.raises(StorageError, match="the disk is full"):
        index.add(*made(rng, 5))
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before  # nothing is left behind


def test_an_index_that_is_damaged_while_it_is_open(tmp_path, rng):
    index = IndexFolder.create(tmp_path, 40, MODEL)
    index.add(*made(rng, 5))
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(DataError, match=r"index.json is damaged .*; repair it with: hashlens index repair"):
        index.add(*made(rng, 5))
    (tmp_path / "index.json").unlink()
    with pytest.raises(DataError, match=r"index.json is missing; repair it with: hashlens index repair"):
        index.remove([1])


def test_promoted_parts_whose_names_begin_alike(tmp_path, rng):
    index, new = (IndexFolder.create(tmp_path / name, 40, MODEL) for name in ("index", "new"))
    with new._alone(), new._change() as facts:
        facts["next_part"] = 10_000
    new.add(*made(rng, 50))
    with new._alone(), new._change() as facts:
        facts["next_part"] = 100_000
    new.add(*made(rng, 5, 50))
    assert [part["name"] for part in new.facts["parts"]] == ["part-10000", "part-100000"]
    index.promote(new)
    assert index.verify() == new.verify() and index.lookup(range(60)) == new.lookup(range(60))
    IndexFolder.open(new.path).compact()  # by another process
    before = {path.name: path.read_bytes() for path in index.path.iterdir()}
    with pytest.raises(Busy, match="is being changed by another process; rerun"):
        index.promote(new)
    assert {path.name: path.read_bytes() for path in index.path.iterdir()} == before
