"""Trees in an index: the answers stay the same, whatever is added and removed, and fewer codes are read."""

import threading

import numpy as np
import pyarrow as pa
import pytest

from hashlens import Codes
from hashlens.errors import DataError
from hashlens.index import memory
from hashlens.index.folder import IndexFolder
from hashlens.index.memory import HammingIndex
from hashlens.index.repair import repair
from hashlens.index.tree import STEPS, WAYS, Tree, step_of
from hashlens.kernels import View, available, kernels

pytestmark = pytest.mark.skipif(available() == ["numpy"], reason="there was no compiler")


def class_codes(rng, n, n_bits=48, n_classes=10, noise=0.04):
    """Codes as training gives them: a few flipped bits around the code of each class."""
    centres = np.random.default_rng(1).random((n_classes, n_bits)) < 0.5
    return Codes.from_relaxed((centres[rng.integers(0, n_classes, n)] ^ (rng.random((n, n_bits)) < noise)) - 0.5)


def always(monkeypatch):
    """Use trees wherever there is one."""

    def try_out(tree, rows, n_bits):
        tree.most = dict.fromkeys(WAYS, 10**9)
        return True

    monkeypatch.setattr(Tree, "try_out", try_out)


def assert_same(found, wanted):
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_answers_stay_the_same_after_every_change(rng, monkeypatch):
    always(monkeypatch)
    plain, index = HammingIndex(48), HammingIndex(48)
    query = class_codes(rng, 40)
    for change in range(3):
        codes = class_codes(rng, 30_000)
        gone = rng.choice(30_000 * (change + 1), 2_000, replace=False)
        for one in (plain, index):
            one.add(codes)
            one.remove(gone)
        index.build_trees()
        assert len(index.parts) == change + 1 and all(part.tree for part in index.parts)
        for k in (1, 7, 500, 5_000):
            assert_same(index.search(query, k), plain.search(query, k))
        assert_same(index.search(query[0], 10), plain.search(query[0], 10))


def test_few_blocks_are_read(rng):
    index = HammingIndex(48)
    index.add(class_codes(rng, 50_000, noise=0.02))
    (part,) = index.parts
    part.tree = Tree.build(part)
    assert part.tree.n_distinct < len(part) / 4 and part.tree.nbytes < 2 * part.blocks.nbytes
    queries = class_codes(rng, 20).packed
    distances, ids = np.empty((20, 10), np.int32), np.empty((20, 10), np.int64)
    assert 0 < kernels().nearest(View([part]), queries, 48, distances, ids) < 20 * len(part.blocks) / 10
    assert kernels().nearest(View([part], trees=False), queries, 48, distances, ids) == 0


def test_many_queries_build_a_tree_in_the_background(rng, monkeypatch):
    monkeypatch.setattr(memory, "QUERIES_OF_A_TREE", 50)
    index = HammingIndex(48)
    index.add(class_codes(rng, 40_000))
    query = class_codes(rng, 30)
    before = index.search(query, 20)
    assert not index.parts[0].tried
    others = set(threading.enumerate())  # of servers and engines of earlier tests, which never end
    index.search(query, 20)
    for thread in set(threading.enumerate()) - others:
        thread.join(30)
    assert index.parts[0].tried
    assert_same(index.search(query, 20), before)


def test_queries_unlike_the_codes_end_its_use(rng, monkeypatch):
    """Random queries are far from all classes: most blocks are read, more than the codes themselves needed."""
    always(monkeypatch)
    index = HammingIndex(48)
    index.add(class_codes(rng, 40_000))
    index.build_trees()
    (part,) = index.parts
    part.tree.most = dict.fromkeys(part.tree.most, len(part.blocks) / 3)
    for _ in range(10):
        index.search(class_codes(rng, 10), 5)
    assert (step_of(5), False) in part.tree.most
    random = Codes(rng.integers(0, 256, (10, 6), np.uint8), 48)
    before = index.search(random, 5)
    for _ in range(20):
        index.search(random, 5)
    assert (step_of(5), False) not in part.tree.most and (step_of(5), True) in part.tree.most
    assert_same(index.search(random, 5), before)


def test_a_tree_that_is_never_faster_is_dropped(rng, monkeypatch):
    monkeypatch.setattr("hashlens.index.tree.FASTER", 0.0)
    index = HammingIndex(64)
    index.add(Codes(rng.integers(0, 256, (25_000, 8), np.uint8), 64))
    index.build_trees()
    assert index.parts[0].tried and index.parts[0].tree is None


def test_small_indexes_and_numpy_have_none(rng, monkeypatch):
    small, large = HammingIndex(48), HammingIndex(48)
    small.add(class_codes(rng, 500))
    large.add(class_codes(rng, 25_000))
    small.build_trees()
    monkeypatch.setenv("HASHLENS_KERNELS", "numpy")
    large.build_trees()
    assert small.parts[0].tree is None and large.parts[0].tree is None


def test_steps():
    assert [step_of(k) for k in (1, 2, 10, 11, 1_000, 1_001)] == [0, 1, 1, 2, 3, len(STEPS)]


@pytest.fixture
def folder(tmp_path, rng, monkeypatch):
    """An index on disk with a tree, and the same codes without one."""
    always(monkeypatch)
    index, plain = (
        IndexFolder.create(tmp_path / "index", 44, {"fingerprint": "ab" * 32, "name": "test"}),
        HammingIndex(44),
    )

    def add(n):
        codes = class_codes(rng, n, 44)
        index.add(codes, pa.table({"path": [f"{i}.jpg" for i in range(n)]}))
        plain.add(codes)

    add(25_000)
    return index, plain, add


def test_an_index_keeps_its_trees(folder, rng):
    index, plain, add = folder
    query = class_codes(rng, 30, 44)
    add(21_000)
    add(100)  # too few
    for one in (index, plain):
        one.remove(np.arange(0, 46_000, 5))
    again = IndexFolder.open(index.path)
    assert [part.tree is not None for part in again.parts] == [True, True, False]
    assert not again.parts[0].tree.arrays[0].flags.writeable and again.parts[0].tried  # mapped, not copied
    for k in (1, 10, 3_000):
        assert_same(again.search(query, k), plain.search(query, k))
    assert_same(again.within(query[0], 3)[0], plain.within(query[0], 3)[0])
    n_files = again.verify()
    again.compact()
    assert len(list(index.path.glob("*.tree.npy"))) == 1 and again.verify() < n_files
    assert_same(again.search(query, 10), plain.search(query, 10))


def test_a_tree_that_was_not_faster_is_not_tried_again(folder, monkeypatch):
    index, _, add = folder
    monkeypatch.setattr(Tree, "try_out", lambda *given: False)
    add(20_000)
    first, second = IndexFolder.open(index.path).parts
    assert first.tree is not None and second.tree is None and second.tried


def test_a_damaged_tree_is_noticed_and_repaired(folder, rng):
    index, plain, _ = folder
    (path,) = index.path.glob("*.tree.npy")
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"tree.npy is damaged.*hashlens index repair"):
        IndexFolder.open(index.path)
    assert repair(index.path)["repaired"] == [path.name]
    again, query = IndexFolder.open(index.path), class_codes(rng, 30, 44)
    assert again.parts[0].tree is not None
    assert_same(again.search(query, 10), plain.search(query, 10))


@pytest.mark.parametrize("wrong", ["starts", "places", "bits"])
def test_a_tree_that_kernels_could_not_trust_is_refused(folder, wrong):
    """Even if its checksum is right."""
    (part,), n_bits = folder[0].parts, 44
    tree = Tree.from_flat(part.tree.flat(), len(part), n_bits, part.tree.facts())
    assert tree.most == part.tree.most and tree.radius == part.tree.radius
    facts = tree.facts()
    if wrong == "bits":
        tree.arrays[1][0, -1, 0] |= 1
    else:
        tree.arrays[5 if wrong == "starts" else 6][7] = len(part) + 5
    with pytest.raises(ValueError, match="past bit 44" if wrong == "bits" else "points outside of the codes"):
        Tree.from_flat(tree.flat(), len(part), n_bits, facts)
