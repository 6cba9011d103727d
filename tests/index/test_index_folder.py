"""The index on disk: opened again it answers the same, whatever was added, removed, compacted, broken or damaged."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest

import hashlens.index.folder
from hashlens import Codes
from hashlens.errors import Damaged, DataError, MismatchError, UsageError
from hashlens.files import alone_in
from hashlens.index import memory
from hashlens.index.folder import IndexFolder
from hashlens.index.keys import image_keys
from hashlens.index.memory import HammingIndex, Part
from hashlens.index.radius import Tables

MODEL = {"fingerprint": "ab" * 32, "name": "test"}


def made(rng, n, n_bits=48, start=0):
    codes = Codes.from_relaxed(rng.normal(size=(n, n_bits)))
    paths = [f"{'cache' if i % 3 == 0 else 'photos'}/{i}.jpg" for i in range(start, start + n)]
    labels = [["cat", "dog"][: i % 3] or None for i in range(start, start + n)]
    return codes, pa.table({"path": paths, "labels": pa.array(labels, pa.list_(pa.string()))})


@pytest.fixture
def folder(tmp_path, rng):
    """Three parts of 100 codes, ids 0 to 299."""
    index = IndexFolder.create(tmp_path / "index", 48, MODEL)
    for start in (0, 100, 200):
        assert index.add(*made(rng, 100, start=start)).tolist() == list(range(start, start + 100))
    return index


def answers(folder, query):
    return [*folder.search(query, 20), *(np.concatenate(pair) for pair in folder.within(query, 18))]


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.path.iterdir()}


@pytest.mark.parametrize("n_bits", [12, 48, 64, 128])
def test_opened_again_it_is_the_same_as_in_memory(n_bits, tmp_path, rng):
    index = IndexFolder.create(tmp_path, n_bits, MODEL)
    codes, items = made(rng, 250, n_bits)
    index.add(codes[:100], items[:100])
    index.add(codes[100:], items[100:])
    memory = HammingIndex(n_bits)
    memory.add(codes)
    query = Codes.from_relaxed(rng.normal(size=(5, n_bits)))
    again = IndexFolder.open(tmp_path)
    assert len(again) == 250 and isinstance(again.parts[0].blocks.base, np.memmap)
    assert_same(again.search(query, 30), memory.search(query, 30))
    code = codes[137].packed.tobytes().hex()
    item = {"id": 137, "path": "photos/137.jpg", "labels": ["cat", "dog"][: 137 % 3], "code": code}
    assert again.lookup([250, 137, 137]) == {137: item} and again.lookup([]) == {}


def test_remove_and_compact(folder, rng):
    query = Codes.from_relaxed(rng.normal(size=(6, 48)))
    assert folder.remove([5, 150, 151, 299, 7000, 5]) == 4
    assert folder.remove([5]) == 0 and len(folder) == 296
    before = answers(folder, query)
    assert not np.isin([5, 150, 151, 299], before[1]).any()
    assert_same(answers(IndexFolder.open(folder.path), query), before)
    assert list(folder.lookup([150, 152])) == [152]

    size = sum(len(content) for name, content in files(folder).items() if "blocks" in name)
    assert folder.compact() == 4
    assert len(folder.facts["parts"]) == 1 and folder.facts["removed"] is None
    assert sum(len(content) for name, content in files(folder).items() if "blocks" in name) < size
    for index in (folder, IndexFolder.open(folder.path)):
        assert_same(answers(index, query), before)
        assert [item["path"] for item in index.lookup([151, 152]).values()] == ["photos/152.jpg"]
    assert folder.compact() == 0
    assert folder.add(*made(rng, 2)).tolist() == [300, 301]  # an id is never used again
    assert folder.remove(np.arange(1000)) == 298 and folder.compact() == 298 and len(folder) == 0
    assert folder.add(*made(rng, 1)).tolist() == [302]


def test_an_image_is_added_once(folder, rng):
    codes, items = made(rng, 10)
    assert folder.add(codes, items, only_new=True).tolist() == list(range(300, 310))
    assert len(folder.add(codes, items, only_new=True)) == 0
    other = IndexFolder.open(folder.path)
    assert len(other.add(codes[3:], items[3:], only_new=True)) == 0 and len(other) == 310
    more, more_items = made(rng, 5, start=10)
    both = Codes.concatenate([codes, more, more]), pa.concat_tables([items, more_items, more_items])
    assert other.add(*both, only_new=True).tolist() == list(range(310, 315))
    assert [item["path"] for item in other.lookup([310, 314]).values()] == ["photos/10.jpg", "photos/14.jpg"]
    assert len(other.add(codes, items)) == 10  # when asked to, twice


def test_what_was_removed_can_be_added_again(folder, rng):
    codes, items = made(rng, 10)
    folder.add(codes, items, only_new=True)
    folder.remove([303, 307])
    assert len(folder.add(codes, items, only_new=True)) == 0  # not by mistake
    assert folder.add(codes, items, only_new=True, again=True).tolist() == [310, 311]
    folder.remove([310])
    assert folder.compact() == 3 and folder.facts["removed"] is None
    for index in (folder, IndexFolder.open(folder.path)):
        assert len(index.add(codes, items, only_new=True)) == 0
    assert folder.add(codes, items, only_new=True, again=True).tolist() == [312]
    assert folder.lookup([312])[312].items() >= items.slice(3, 1).to_pylist()[0].items()
    folder.remove([301])
    folder.compact()
    assert len(IndexFolder.open(folder.path).add(codes, items, only_new=True)) == 0
    assert folder.verify() == 2 + 7 + 2  # index.json, the part with ids and keys, forgotten ones; three have a copy


def test_a_removed_path_stays_out_with_another_code(folder, rng):
    codes, items = made(rng, 10, start=1000)
    folder.add(codes, items, only_new=True)
    folder.remove([303, 307])
    folder.replace([305], codes[:1], items.slice(5, 1))  # changed, not removed
    for _ in range(2):
        other, _ = made(rng, 10)
        assert len(folder.add(codes, items, only_new=True)) == 0
        added = folder.add(other, items, only_new=True)
        assert len(added) == 8  # all but 3 and 7
        folder.remove(added)
        folder.compact()
    assert len(folder.add(other[3:4], items.slice(3, 1), only_new=True, again=True)) == 1


def test_known_images_are_hashed_once(folder, rng, monkeypatch):
    n_keys = []
    own = image_keys
    monkeypatch.setattr(hashlens.index.folder, "image_keys", lambda *given: n_keys.append(len(given[0])) or own(*given))
    shards = [made(rng, 20, start=start) for start in range(0, 100, 20)]
    for shard in [*shards, *shards]:
        folder.add(*shard, only_new=True)
    assert len(folder) == 400 and sum(n_keys) == 300 + 2 * 100
    folder.remove(np.arange(10))
    n_keys.clear()
    for shard in shards:
        assert not len(IndexFolder.open(folder.path, to_add=True).add(*shard, only_new=True))
    assert sum(n_keys) == 100 + 5 * 10  # what is in the index is on disk; what was removed is hashed by path too


def test_another_code_of_a_path_and_another_path_of_a_code_are_new(folder, rng):
    codes, items = made(rng, 10)
    folder.add(codes, items, only_new=True)
    other_paths = pa.table({"path": [f"elsewhere/{i}.jpg" for i in range(10)]})
    assert len(folder.add(made(rng, 10)[0], items, only_new=True)) == 10
    assert len(folder.add(codes, other_paths, only_new=True)) == 10


def test_radius_tables_are_part_of_the_index(folder, rng, monkeypatch):
    """On disk with checksums, kept by every change, used where they are cheaper, and gone when dropped."""
    query = Codes.from_relaxed(rng.normal(size=(6, 48)))
    before = answers(folder, query)
    looked_up, within = [], Tables.within
    monkeypatch.setattr(Tables, "within", lambda *given: looked_up.append(1) or within(*given))
    monkeypatch.setattr(memory, "is_cheaper", lambda n, n_bytes, radius: radius <= 18)
    assert not folder.looks_up(18)
    folder.set_radius_tables(True)
    assert folder.verify() == 2 + 3 * 5 and folder.looks_up(18) and not folder.looks_up(19)
    assert_same(answers(folder, query), before)
    assert len(looked_up) == 6 * 3
    reader = IndexFolder.open(folder.path)
    assert isinstance(reader.parts[0].tables.places.base, np.memmap)
    folder.add(*made(rng, 10))
    assert folder.looks_up(18) and folder.verify() == 2 + 4 * 5
    folder.remove([5])
    folder.compact()
    again = IndexFolder.open(folder.path)
    assert again.looks_up(18) and again.verify() == 2 + 7 + 2  # with ids, and the keys of what was removed
    plain = HammingIndex(48, [Part(part.blocks, part.n, part._ids) for part in again.parts])
    assert_same(answers(again, query), answers(plain, query))
    again.set_radius_tables(False)
    assert not again.looks_up(0) and again.verify() == 2 + 5 + 2 and not list(again.path.glob("*places*"))
    assert_same(answers(reader, query), before)  # who has them open keeps them
    created = IndexFolder.create(folder.path.parent / "created", 48, MODEL, radius_tables=True)
    created.add(*made(rng, 10))
    path = created.path / "part-00000.places.npy"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(DataError, match=r"part-00000.places.npy is damaged"):
        created.verify()


def test_damage_is_not_rewritten(folder, rng):
    path = folder.path / "part-00000.blocks.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for change in (folder.compact, lambda: IndexFolder.open(folder.path)):
        with pytest.raises(DataError, match=r"part-00000.blocks.npy is damaged"):
            change()
    for _ in range(5):
        folder.add(*made(rng, 100))  # the 8th part of this size: they would be joined
    with pytest.raises(DataError, match=r"part-00000.blocks.npy is damaged"):
        folder.add(*made(rng, 100))
    assert path.read_bytes() == data


def test_find_ids(folder):
    assert folder.ids_with("dog").tolist() == [i for i in range(300) if i % 3 == 2]
    assert folder.ids_with("cow").tolist() == []
    folder.remove([3])
    assert folder.ids_like("cache/*").tolist() == [i for i in range(300) if i % 3 == 0 and i != 3]
    assert folder.ids_like("*/1?.jpg").tolist() == list(range(10, 20))
    assert folder.ids_like("1").tolist() == []


def test_damage_is_named(folder):
    assert folder.verify() == 2 + 3 * 3
    path = folder.path / "part-00001.blocks.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"part-00001.blocks.npy is damaged"):
        IndexFolder.open(folder.path)
    path.write_bytes(data[:50])
    with pytest.raises(DataError, match="is damaged"):
        IndexFolder.open(folder.path)
    path.unlink()
    with pytest.raises(DataError, match=r"part-00001.blocks.npy is missing; repair it with: hashlens index repair"):
        IndexFolder.open(folder.path)


def test_damaged_items_are_noticed_when_they_are_touched(folder):
    path = folder.path / "part-00000.items.arrow"
    content = path.read_bytes()
    at = content.index(b"photos/1.jpg")
    path.write_bytes(content[:at] + b"q" + content[at + 1 :])
    opened = IndexFolder.open(folder.path)
    assert len(opened.lookup([103])) == 1
    for touch in (lambda: opened.lookup([3]), lambda: opened.ids_with("cat"), lambda: opened.roots):
        with pytest.raises(DataError, match=r"part-00000.items.arrow is damaged \(block 0 has changed"):
            touch()
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"part-00000.items.arrow is damaged \(it has 7 bytes instead"):
        IndexFolder.open(folder.path)


def test_what_is_refused(folder, rng, tmp_path):
    with pytest.raises(MismatchError, match="holds codes of 48 bits, these have 32"):
        folder.add(*made(rng, 3, 32))
    codes, items = made(rng, 3)
    with pytest.raises(DataError, match="2 codes and 3 items"):
        folder.add(codes[:2], items)
    with pytest.raises(DataError, match="already contains an index"):
        IndexFolder.create(folder.path, 48, MODEL)
    with pytest.raises(DataError, match="has no index and no codes; build one with"):
        IndexFolder.open(tmp_path / "elsewhere")
    (folder.path / "index.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        IndexFolder.open(folder.path)


def test_a_change_that_fails_leaves_the_index_as_it_was(folder, rng, monkeypatch):
    before = files(folder)
    monkeypatch.setattr("hashlens.index.folder.write_facts", lambda *a: 1 / 0)  # as if stopped just before the end
    for change in (
        lambda: folder.add(*made(rng, 5)),
        lambda: folder.remove([1]),
        lambda: folder.set_radius_tables(True),
        folder.compact,
    ):
        with pytest.raises(ZeroDivisionError):
            change()
        opened = IndexFolder.open(folder.path)
        assert len(opened) == len(folder) == 300 and opened.verify() == 11
        assert files(folder) == before  # nothing is left behind


CHANGES = """
import sys
import numpy as np, pyarrow as pa
from pathlib import Path
from hashlens import Codes
from hashlens.index.folder import IndexFolder
index = IndexFolder.open(Path(sys.argv[1]))
rng = np.random.default_rng(1)
for part in range(30):
    codes = Codes.from_relaxed(rng.normal(size=(50, 48)))
    index.add(codes, pa.table({"path": [f"{part}-{i}.jpg" for i in range(50)]}), only_new=True)
    index.remove(index.ids_like(f"old/{part}-1*.jpg"))
print("done")
"""


def test_killed_at_any_moment_the_same_command_resumes(tmp_path):
    """Nothing lost, nothing twice: the index ends as it does without interruption."""
    codes = Codes.from_relaxed(np.random.default_rng(2).normal(size=(30 * 50, 48)))

    def start(name):
        if not (tmp_path / name / "index.json").exists():
            old = pa.table({"path": [f"old/{i % 30}-{i // 30}.jpg" for i in range(30 * 50)]})
            IndexFolder.create(tmp_path / name, 48, MODEL).add(codes, old)
        return subprocess.Popen([sys.executable, "-c", CHANGES, tmp_path / name], stdout=subprocess.PIPE, text=True)

    assert start("whole").communicate()[0] == "done\n"
    rng = np.random.default_rng(0)
    killed = 0
    for _ in range(6):
        process = start("broken")
        folder = tmp_path / "broken"
        while process.poll() is None and not list(folder.glob("part-00001*")):
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        IndexFolder.open(folder).verify()
    assert start("broken").communicate()[0] == "done\n" and killed > 0
    whole, broken = (IndexFolder.open(tmp_path / name) for name in ("whole", "broken"))
    assert len(whole) == len(broken) == 30 * (50 + 39)
    for name in ("parts", "next_id", "n_bits"):
        assert whole.facts[name] == broken.facts[name]
    assert json.dumps(whole.facts["removed"]["n"]) == json.dumps(broken.facts["removed"]["n"])
    np.testing.assert_array_equal(*(index._load_numbered("removed") for index in (whole, broken)))


def test_two_processes_take_turns(folder, rng):
    """Each knows what the other did before it changes anything, so nothing is lost and no id is given twice."""
    other = IndexFolder.open(folder.path)
    assert folder.add(*made(rng, 5)).tolist() == [300, 301, 302, 303, 304]
    assert other.add(*made(rng, 4)).tolist() == [305, 306, 307, 308]
    assert folder.remove([0, 308]) == 2 and other.remove([0, 1, 308]) == 1
    assert folder.compact() == 3 and other.compact() == 0
    assert len(IndexFolder.open(folder.path)) == len(other) == 306


def test_a_locked_index_is_not_changed(folder, rng):
    before = files(folder)
    with alone_in(folder.path):
        for change in (lambda: folder.add(*made(rng, 2)), lambda: folder.remove([1]), folder.compact):
            with pytest.raises(UsageError, match="another process is writing to"):
                change()
    assert files(folder) == before


def test_leftovers_of_a_crash_are_deleted_even_if_nothing_changes(folder):
    before = files(folder)
    for name in ("removed-00007.npy", ".index.json.x.tmp", "part-00009.blocks.npy"):
        (folder.path / name).write_bytes(b"half")
    assert folder.remove([999]) == 0
    assert files(folder) == before


def test_foreign_files_are_left_alone(tmp_path, rng):
    """An index in a folder that has other things must not delete them."""
    for name in (".gitignore", ".part-of-mine"):
        (tmp_path / name).write_text("mine")
    index = IndexFolder.create(tmp_path, 48, MODEL)
    for name in ("part-2.docx", "removed-things.txt", "part-00000.blocks.npy.bak"):
        (tmp_path / name).write_text("mine")
    index.add(*made(rng, 10))
    index.remove([1])
    index.compact()
    mine = {path.name for path in tmp_path.iterdir() if path.read_bytes() == b"mine"}
    assert mine == {".gitignore", ".part-of-mine", "part-2.docx", "removed-things.txt", "part-00000.blocks.npy.bak"}
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"contains other files \(a.txt\) and is no"):
        IndexFolder.create(tmp_path / "letters", 48, MODEL)


def test_two_processes_cannot_create_one_index(tmp_path):
    with alone_in(tmp_path / "index"), pytest.raises(UsageError, match="another process is writing"):
        IndexFolder.create(tmp_path / "index", 48, MODEL)


@pytest.mark.parametrize("pattern", ["*/1*.jpg", "cache/*", "*a*c*2*", "*/[12]?.jpg", "[!c]*", "[z-a]*"])
def test_patterns_are_those_of_the_shell(folder, pattern):
    import fnmatch

    paths = [item["path"] for item in folder.lookup(range(300)).values()]
    expected = [i for i, path in enumerate(paths) if fnmatch.fnmatchcase(path, pattern)]
    assert folder.ids_like(pattern).tolist() == expected and bool(expected) == (pattern != "[z-a]*")


def test_changes_of_others_are_noticed(folder, rng):
    other = IndexFolder.open(folder.path)
    assert not other.changed() and not folder.changed()
    folder.remove([5])
    assert other.changed() and not folder.changed()
    other.add(*made(rng, 3))
    assert not other.changed() and folder.changed()


def test_all_parts_stay_mapped_after_another_has_compacted(tmp_path, rng):
    index = IndexFolder.create(tmp_path, 48, MODEL)
    for start in range(140):
        index.add(*made(rng, 1, start=start))
    reader = IndexFolder.open(tmp_path)
    before = IndexFolder.open(tmp_path).lookup(range(140))
    index.compact()
    assert len(before) == 140 and reader.lookup(range(140)) == before


def test_names_of_parts_are_never_used_again(folder, rng):
    """A name used again would show new images under the old ids, to whoever has the old part mapped."""
    before = {part["name"] for part in folder.facts["parts"]}
    folder.remove(range(300))
    folder.compact()
    folder.add(*made(rng, 10, start=300))
    assert not before & {part["name"] for part in folder.facts["parts"]}


def test_parts_that_are_known_are_not_read_again(folder, rng):
    before = IndexFolder.open(folder.path)
    folder.remove([5, 150])
    folder.add(*made(rng, 10, start=300))
    after = IndexFolder.open(folder.path, before)
    assert [new.blocks is old.blocks for new, old in zip(after.parts[:3], before.parts, strict=True)] == [True] * 3
    assert [part.items is old.items for part, old in zip(after.parts, before.parts, strict=False)] == [True] * 3
    assert len(after) == 308 and len(before) == 300 and not after.lookup([5, 150]) and len(before.lookup([5, 150])) == 2
    query = made(rng, 3)[0]
    assert_same(answers(after, query), answers(IndexFolder.open(folder.path), query))
    folder.compact()
    compacted = IndexFolder.open(folder.path, after)
    assert_same(answers(compacted, query), answers(IndexFolder.open(folder.path), query))


def test_parts_of_a_damaged_index_are_read_again(folder):
    before = IndexFolder.open(folder.path)
    path = folder.path / "part-00001.blocks.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    assert len(IndexFolder.open(folder.path, before)) == 300  # nothing says that it is damaged
    with pytest.raises(Damaged, match=r"part-00001.blocks.npy is damaged") as caught:
        before.compare_files()
    before.damage = caught.value
    with pytest.raises(Damaged):
        IndexFolder.open(folder.path, before)
