"""The second code: the order of ties in every index, and both codes in step through all that can happen to an index."""

import numpy as np
import pyarrow as pa
import pytest

from hashlens import Codes, HammingIndex
from hashlens.codes.folder import CodesFolder, write_codes
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.index.catalog import Catalog
from hashlens.index.engines import copy_index, open_engine
from hashlens.index.folder import IndexFolder
from hashlens.index.repair import repair
from hashlens.kernels import Rows, View, available, to_blocks
from hashlens.kernels.compiled import Compiled
from hashlens.kernels.in_numpy import Numpy
from hashlens.search import Searcher, open_index

MODEL = {"fingerprint": "ab" * 32, "name": "test"}
N_BITS, SECOND_BITS = 11, 37  # neither whole bytes; few first codes, so that most distances tie


def made(n, seed=0, n_bits=N_BITS, second_bits=SECOND_BITS):
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 2, (6, n_bits)) * 2 - 1
    first = centres[rng.integers(0, 6, n)] * np.where(rng.random((n, n_bits)) < 0.03, -1, 1)
    return Codes(Codes.from_signs(first).packed, n_bits, Codes.from_relaxed(rng.normal(size=(n, second_bits))))


def apart(a, b):
    return (a.signs()[:, None] != b.signs()).sum(axis=2)


def slowly(query, codes, ids, k, by):
    """Distances and ids, one query at a time, by sorting."""
    first, second = apart(query, codes), apart(query.second, codes.second)
    keys = {"first": (ids, first), "both": (ids, second, first), "second": (ids, second)}[by]
    found = [np.lexsort([key if key.ndim == 1 else key[row] for key in keys])[:k] for row in range(len(query))]
    shown = second if by == "second" else first
    return [shown[row][order] for row, order in enumerate(found)], [ids[order] for order in found]


def items_of(n, start=0):
    return pa.table({"path": [f"{start + i:05d}.jpg" for i in range(n)]})


def require_right(index, codes, ids, among=None):
    query = made(7, seed=9)
    kept = np.isin(ids, among) if among is not None else np.ones(len(ids), bool)
    for by in ("first", "both", "second"):
        for k in (1, 10, 200):
            distances, found = index.search(query, k, by=by, among=among)
            expected = slowly(query, codes[kept], ids[kept], k, by)
            for row in range(len(query)):
                n = len(expected[1][row])
                assert found[row, :n].tolist() == expected[1][row].tolist()
                assert distances[row, :n].tolist() == expected[0][row].tolist()
                assert (found[row, n:] == -1).all() and (distances[row, n:] == -1).all()
        radius = 20 if by == "second" else 3
        for (near, near_ids), (d, i) in zip(
            index.within(query, radius, by=by, among=among),
            zip(*slowly(query, codes[kept], ids[kept], None, by), strict=True),
            strict=True,
        ):
            assert near_ids.tolist() == i[d <= radius].tolist()
            assert near.tolist() == d[d <= radius].tolist()


@pytest.mark.parametrize("kernel", available())
def test_every_kernel_orders_by_both(kernel, monkeypatch):
    monkeypatch.setenv("HASHLENS_KERNELS", kernel)
    codes, ids = made(900), np.arange(900)
    index = HammingIndex(N_BITS, second_bits=SECOND_BITS)
    index.add(codes[:500])
    index.add(codes[500:])
    require_right(index, codes, ids)
    index.remove(ids[::3])
    left = ids[ids % 3 > 0]
    require_right(index, codes[left], left)
    require_right(index, codes[left], left, among=left[::4])


@pytest.mark.parametrize(("n_bits", "second_bits"), [(1, 1), (8, 300), (48, 128), (256, 128), (300, 64)])
@pytest.mark.parametrize("kernel", [name for name in available() if name != "numpy"])
def test_kernels_agree_at_every_length_and_share(kernel, n_bits, second_bits):
    codes, query = made(700, 1, n_bits, second_bits), made(3, 2, n_bits, second_bits)
    rows = Rows(to_blocks(codes.packed), 700, 5)
    rows.second, rows.alive = to_blocks(codes.second.packed), np.random.default_rng(0).random(700) < 0.8
    how = {"seconds": query.second.packed, "second_bits": second_bits}
    for share, k in ((0, 1), (1, 30), (2, 800)):
        found = []
        for one in (Numpy(), Compiled(kernel)):
            distances, ids = np.empty((3, k), np.int32), np.empty((3, k), np.int64)
            one.nearest(View([rows], trees=False), query.packed, n_bits, distances, ids, share, 3, **how)
            found.append((distances, ids))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_array_equal(found[0][1], found[1][1])


def test_several_threads_and_many_queries(monkeypatch):
    monkeypatch.setattr("hashlens.index.memory.SHARED", 1_000)
    monkeypatch.setattr("hashlens.index.memory.n_threads", lambda: 3)
    codes, ids = made(3_000), np.arange(3_000)
    index = HammingIndex(N_BITS, second_bits=SECOND_BITS)
    index.add(codes)
    require_right(index, codes, ids)
    many = made(600, seed=4)
    distances, found = index.search(many, 5, by="both")
    expected = slowly(many, codes, ids, 5, "both")
    assert found.tolist() == np.array(expected[1]).tolist()
    assert distances.tolist() == np.array(expected[0]).tolist()


def test_both_codes_stay_in_step(tmp_path):
    codes, ids = made(300), np.arange(300)
    index = IndexFolder.create(tmp_path / "index", N_BITS, MODEL, second_bits=SECOND_BITS)
    index.add(codes[:200], items_of(200), only_new=True)
    index.add(codes[100:], items_of(200, 100), only_new=True)  # half of them are there
    require_right(IndexFolder.open(index.path), codes, ids)
    index.remove(ids[:50])
    again = IndexFolder.open(index.path)
    require_right(again, codes[50:], ids[50:])
    index.compact()
    require_right(index, codes[50:], ids[50:])
    new = made(20, seed=5)
    index.replace(ids[50:60], new, items_of(20, 900))
    both, every = Codes.concatenate([codes[60:], new]), np.append(ids[60:], np.arange(300, 320))
    require_right(IndexFolder.open(index.path), both, every)
    assert index.verify() == 2 + 2 * 4 + 2 + 4  # facts; codes, second, items, sums; removed and forgotten; ids, twice
    item = index.lookup([300])[300]
    assert item["second"] == new.second.packed[0].tobytes().hex()

    plain = IndexFolder.create(tmp_path / "plain", N_BITS, MODEL)
    plain.add(codes, items_of(300))  # drops the second code
    index.promote(plain)
    assert IndexFolder.open(index.path).second_bits == 0
    plain.promote(IndexFolder.open(tmp_path / "plain"))
    with pytest.raises(UsageError, match="holds no second codes, so it cannot be searched by both"):
        index.search(codes[:1], 3, by="both")
    with pytest.raises(UsageError, match="by must be one of first, both, second, got 'third'"):
        index.search(codes[:1], 3, by="third")


def test_codes_without_a_second_one_are_refused(tmp_path):
    index = IndexFolder.create(tmp_path, N_BITS, MODEL, second_bits=SECOND_BITS)
    with pytest.raises(MismatchError, match="holds second codes of 37 bits, these codes have none"):
        index.add(made(3).first, items_of(3))
    index.add(made(3), items_of(3))
    with pytest.raises(MismatchError, match="the query has none"):
        index.search(made(3).first, 1, by="both")
    with pytest.raises(UsageError, match="of codes of at most 507 bits, these have 600"):
        IndexFolder.create(tmp_path / "other", 600, MODEL, second_bits=128)
    with pytest.raises(DataError, match="3 codes and 2 second codes"):
        Codes(made(3).packed, N_BITS, made(2).second)


@pytest.mark.parametrize("part", [0, 1])
def test_damage_is_noticed_and_repaired(tmp_path, part):
    codes, ids = made(150), np.arange(150)
    index = IndexFolder.create(tmp_path / "index", N_BITS, MODEL, second_bits=SECOND_BITS)
    index.add(codes[:100], items_of(100))
    index.add(codes[100:], items_of(50, 100))
    write_codes(tmp_path / "codes", codes, items_of(150), MODEL)
    file = index.path / f"part-{part:05d}.second.npy"
    content = bytearray(file.read_bytes())
    content[-50] ^= 4
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"second\.npy is damaged .* repair it with: hashlens index repair"):
        IndexFolder.open(index.path)
    assert repair(index.path, [tmp_path / "codes"])["second_lost"] is False
    require_right(IndexFolder.open(index.path), codes, ids)

    file = next(index.path.glob("*.second.npy"))
    file.unlink()
    write_codes(tmp_path / "few", codes[:20], items_of(20), MODEL)
    found = repair(index.path, [tmp_path / "few"])
    assert found["second_lost"] and found["lost"] == 0
    left = IndexFolder.open(index.path)
    assert (len(left), left.second_bits) == (150, 0)
    assert left.search(codes[:1], 1)[0][0, 0] == 0


def test_a_codes_folder_holds_both(tmp_path):
    codes = made(40)
    write_codes(tmp_path, codes, items_of(40), MODEL)
    folder = CodesFolder.open(tmp_path)
    assert folder.concatenated()[0].equals(codes)
    assert open_index(tmp_path).second_bits == SECOND_BITS
    with pytest.raises(MismatchError, match="has second codes of 37 bits, these of 0"):
        folder.append(slice(40, 80), codes.first, items_of(40, 40))
    file = tmp_path / "shard-000000000.second.npy"
    file.write_bytes(file.read_bytes()[:-1])
    assert [shard.name for shard, _ in folder.damaged()] == ["shard-000000000"]
    with pytest.raises(DataError, match=r"second\.npy is damaged \(it has changed"):
        folder.concatenated()


def test_an_engine_orders_ties_too(tmp_path):
    """It holds the first codes alone; the index knows the second ones of what it finds."""
    codes, ids = made(400), np.arange(400)
    index = IndexFolder.create(tmp_path / "index", N_BITS, MODEL, second_bits=SECOND_BITS)
    index.add(codes, items_of(400))
    engine = open_engine("faiss", N_BITS, str(tmp_path / "lists"), ["n_probe=4096"])  # all lists: exact
    copy_index(index, engine)
    index.remove([3, 5, 8])
    kept = np.isin(ids, [3, 5, 8], invert=True)
    searcher, query = Searcher(index, engine=engine), made(1, seed=3)
    answer = searcher.search(query, 15, by="both")
    assert [hit["id"] for hit in answer["hits"]] == slowly(query, codes[kept], ids[kept], 15, "both")[1][0].tolist()
    assert answer["by"] == "both"
    assert searcher.search(query, 15)["by"] == "first"
    with pytest.raises(UsageError, match="an engine holds only first codes"):
        searcher.search(query, 15, by="second")


def test_answers_say_by_what(tmp_path):
    codes, ids = made(100), np.arange(100)
    index = Catalog(tmp_path, N_BITS, MODEL, second_bits=SECOND_BITS)
    index.add(codes, items_of(100))
    searcher = Searcher(index)
    answer = searcher.search(7, 20)
    assert (answer["by"], answer["n_bits"], answer["index"]["second_bits"]) == ("both", N_BITS, SECOND_BITS)
    assert [hit["id"] for hit in answer["hits"]] == slowly(codes[7], codes, ids, 20, "both")[1][0].tolist()
    assert answer["hits"][0]["second_distance"] == 0
    distances = [(hit["distance"], hit["second_distance"], hit["id"]) for hit in answer["hits"]]
    assert distances == sorted(distances)
    both = answer["query"]["code"] + answer["query"]["second"]
    assert searcher.search(both, 20)["hits"] == answer["hits"]  # a code in hex, followed by the second
    assert searcher.search(answer["query"]["code"], 20)["by"] == "first"
    with pytest.raises(UsageError, match="this query has no second code, so it cannot be searched by second"):
        searcher.search(answer["query"]["code"], 20, by="second")
    second = searcher.search(7, 20, by="second", histogram=True)
    assert [hit["id"] for hit in second["hits"]] == slowly(codes[7], codes, ids, 20, "second")[1][0].tolist()
    assert second["n_bits"] == SECOND_BITS and len(second["histogram"]) == SECOND_BITS + 1
    within = [hit["distance"] for hit in searcher.search(7, radius=15, by="second")["hits"]]
    assert within == sorted(d for d in apart(codes.second[7], codes.second)[0].tolist() if d <= 15)
