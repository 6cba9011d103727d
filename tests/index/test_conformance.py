"""Every index keeps one contract: the same questions to each of them, and the answers are those of numpy."""

import importlib
import itertools
import os
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from benchmarks.engine_servers import Milvus, Postgres
from hashlens import Codes
from hashlens.errors import DataError, MismatchError, StorageError, Unreachable, UsageError
from hashlens.index import engines
from hashlens.index.engines import copy_index, open_engine, open_server, verify_copy
from hashlens.index.folder import IndexFolder
from hashlens.index.memory import HammingIndex
from hashlens.index.order import BY
from hashlens.search import Searcher

LENGTHS = (12, 48)
PLACES = {"milvus": ["milvus_lite", "milvus_server"], "pgvector": ["postgresql"], "faiss": ["folder"]}  # fixtures
BACK_ENDS = [place for engine in engines.ENGINES for place in PLACES[engine]]
QUICK = [place for place in BACK_ENDS if place != "milvus_server"]  # ten times slower than the same code in a file
CASES = [*itertools.product(["memory", *QUICK], LENGTHS), ("milvus_server", 48)]
MODEL = {"fingerprint": "ab" * 32, "name": "test"}


@pytest.fixture(scope="session")
def milvus_lite(tmp_path_factory):
    return str(tmp_path_factory.mktemp("milvus") / "codes.db")


@pytest.fixture(scope="session")
def milvus_server():
    """The address of our own Milvus server."""
    with tempfile.TemporaryDirectory() as folder, Milvus(Path(folder)) as server:
        yield server.where


@pytest.fixture(scope="session")
def postgresql():
    """The address of our own PostgreSQL server."""
    # not pytest's folder: as root the server runs as another user, who may not enter that
    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder)) as server:
        yield server.where


@pytest.fixture
def back_end(request, tmp_path):
    """A function that opens an index by the name of its back end, the same one when it is called again."""
    opened = []

    def open_(name, n_bits, collection):
        if name == "memory":
            return HammingIndex(n_bits)
        engine = next(engine for engine, places in PLACES.items() if name in places)
        if engine == "faiss":
            index = open_engine(engine, n_bits, f"{tmp_path / collection}", ["n_probe=1000000"])
        else:
            index = open_engine(engine, n_bits, request.getfixturevalue(name), [f"collection={collection}"])
        opened.append(index)
        return index

    yield open_
    for index in opened:
        index.close()


@pytest.fixture
def few_spare(monkeypatch):
    """Ties at the end of a result are met often."""
    for name in ("milvus", "faiss"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            monkeypatch.setattr(importlib.import_module(f"hashlens.index.engines.{name}"), "SPARE", 3)


def clustered(rng, n, n_bits, n_queries=0):
    """A few codes, many times, most with a bit or two changed, so that nearly every distance is that of many; queries
    of the same kind."""
    centres = rng.choice([-1, 1], size=(20, n_bits))
    flips = np.where(rng.random((n + n_queries, n_bits)) < 1 / n_bits, -1, 1)
    codes = Codes.from_signs(centres[rng.integers(0, 20, n + n_queries)] * flips)
    return codes[:n], codes[n:]


def expected(query, codes, ids, k):
    distances = (query.signs()[:, None] != codes.signs()[None]).sum(2)
    wanted = np.full((2, len(query), k), -1)
    for row, d in enumerate(distances):
        order = np.lexsort((ids, d))[:k]
        wanted[:, row, : len(order)] = d[order], ids[order]
    return wanted


def check_answers(index, query, codes, ids):
    """The answers of an index that holds exactly these."""
    assert len(index) == len(ids)
    n_bits = query.n_bits
    for k in (1, 40, len(ids) + 20):
        distances, found = index.search(query, k)
        assert distances.dtype == np.int32 and found.dtype == np.int64 and distances.shape == found.shape
        np.testing.assert_array_equal([distances, found], expected(query, codes, ids, k))
    apart, in_order = expected(query, codes, ids, len(ids))
    for radius in (0, 2, n_bits // 2, n_bits + 3):
        for row, (distances, found) in enumerate(index.within(query, radius)):
            assert distances.dtype == np.int32 and found.dtype == np.int64
            np.testing.assert_array_equal(distances, apart[row][apart[row] <= radius])
            np.testing.assert_array_equal(found, in_order[row][apart[row] <= radius])

    some = np.sort(ids)[::7]
    chosen = np.isin(ids, some)
    asked = [*some[::-1], some[0], 10**12]  # in any order, one twice, one that is not there
    wanted = expected(query, codes[chosen], ids[chosen], 15)
    np.testing.assert_array_equal(index.search(query, 15, among=asked), wanted)
    near = index.within(query, int(wanted[0, 0, 3]), among=asked)[0]
    np.testing.assert_array_equal(near[1], wanted[1, 0][: len(near[1])])
    assert (near[0] <= wanted[0, 0, 3]).all() and len(near[1]) >= 4
    nothing = index.search(query, 2, among=[])
    assert (np.array(nothing) == -1).all() and len(index.within(query, n_bits, among=[])[0][1]) == 0


def check_empty(index, query):
    assert len(index) == 0
    distances, ids = index.search(query, 4)
    assert distances.shape == ids.shape == (len(query), 4) and (distances == -1).all() and (ids == -1).all()
    assert [len(d) for d, _ in index.within(query, query.n_bits)] == [0] * len(query)
    assert len(index.add(query[:0])) == 0 and index.remove([1, 2]) == 0 and index.remove([]) == 0


def check_refusals(index, codes, taken, free):
    n_bits = codes.n_bits
    other = Codes.from_signs(np.ones((1, n_bits + 1)))
    for ask in (index.add, lambda c: index.search(c, 1), lambda c: index.within(c, 1)):
        with pytest.raises(MismatchError, match=f"holds codes of {n_bits} bits, these have {n_bits + 1}"):
            ask(other)
    for ids, reason in (
        ([free, taken], f"id {taken} is already in the index; remove it first"),
        ([free, free], "occurs twice"),
        ([-1, free], "must be >= 0"),
        ([0.5, 1.5], "integers"),
        ([free], "2 codes"),
    ):
        with pytest.raises(DataError, match=reason):
            index.add(codes[:2], ids=ids)
    with pytest.raises(UsageError, match="k must be an integer >= 1, got 0"):
        index.search(codes, 0)
    with pytest.raises(UsageError, match="radius must be an integer >= 0, got -1"):
        index.within(codes, -1)


@pytest.mark.parametrize(("name", "n_bits"), CASES)
def test_contract(name, n_bits, back_end, rng, few_spare):
    codes, query = clustered(rng, 700, n_bits, 3)
    ids = np.append(np.arange(300), rng.permutation(np.arange(1000, 9000))[:400])
    index = back_end(name, n_bits, f"contract_{n_bits}")
    check_empty(index, query)

    assert index.add(codes[:300]).tolist() == list(range(300))
    assert index.add(codes[300:], ids=ids[300:]).tolist() == ids[300:].tolist()
    check_answers(index, query, codes, ids)
    check_refusals(index, codes, taken=int(ids[400]), free=999)
    assert len(index) == 700 and index.exact == (name != "folder")

    gone = rng.permutation(ids)[:200]
    assert index.remove([*gone, gone[0], 10**12]) == 200 and index.remove(gone) == 0
    left = ~np.isin(ids, gone)
    check_answers(index, query, codes[left], ids[left])

    back = np.flatnonzero(~left)[:20]  # under their old ids, with other codes
    index.add(codes[back - 1], ids=ids[back])
    now = Codes.concatenate([codes[left], codes[back - 1]])
    check_answers(index, query, now, np.append(ids[left], ids[back]))

    np.testing.assert_array_equal(index.contains([*ids, 10**12]), np.sort(np.append(ids[left], ids[back])))
    if name == "memory":
        return
    index.flush()
    index.close()
    again = back_end(name, n_bits, f"contract_{n_bits}")
    check_answers(again, query, now, np.append(ids[left], ids[back]))
    present = max(ids[left].max(), ids[back].max())
    following = (present if name == "folder" else ids.max()) + 1  # a server never gives an id again
    assert again.add(codes[:2]).tolist() == [following, following + 1]
    with pytest.raises(MismatchError, match="choose another"):
        back_end(name, n_bits + 1, f"contract_{n_bits}")
    assert len(again) == 522


@pytest.mark.parametrize("n_bits", LENGTHS)
def test_a_folder_answers_as_every_engine(n_bits, rng, tmp_path):
    """It gives ids itself and takes paths with codes; its questions and answers are the same."""
    codes, query = clustered(rng, 700, n_bits, 3)
    folder = IndexFolder.create(tmp_path, n_bits, MODEL)
    for rows in (slice(0, 300), slice(300, 700)):
        folder.add(codes[rows], pa.table({"path": [f"{i}.jpg" for i in range(rows.start, rows.stop)]}))
    gone = rng.permutation(700)[:200]
    assert folder.remove(gone) == 200
    left = np.setdiff1d(np.arange(700), gone)
    for index in (folder, IndexFolder.open(tmp_path)):
        check_answers(index, query, codes[left], left)


@pytest.fixture
def folder(tmp_path, rng):
    """700 codes of 48 bits in two parts, ids 0 to 699, some removed."""
    codes, _ = clustered(rng, 700, 48)
    folder = IndexFolder.create(tmp_path / "index", 48, MODEL)
    for rows in (slice(0, 450), slice(450, 700)):
        folder.add(codes[rows], pa.table({"path": [f"{i}.jpg" for i in range(rows.start, rows.stop)]}))
    folder.remove(np.arange(90, 120))
    return folder


@pytest.mark.parametrize("name", QUICK)
def test_an_interrupted_copy_resumes(name, folder, back_end, rng, monkeypatch):
    monkeypatch.setattr(engines, "BATCH", 100)
    engine = back_end(name, 48, "copied")
    add, sent = engine.add, []

    def failing(codes, *items, ids):
        if len(sent) == 3:
            raise StorageError("the line is dead")
        sent.append(len(ids))
        return add(codes, *items, ids=ids)

    monkeypatch.setattr(engine, "add", failing)
    with pytest.raises(StorageError, match="dead"):
        copy_index(folder, engine)
    assert sent == [90, 80, 100] and len(engine) == 270
    monkeypatch.setattr(engine, "add", add)
    assert copy_index(folder, engine) == {"added": 400, "known": 270, "n": 670}
    assert copy_index(folder, engine) == {"added": 0, "known": 670, "n": 670}
    query, _ = clustered(rng, 5, 48)
    np.testing.assert_array_equal(engine.search(query, 30), folder.search(query, 30))

    other = IndexFolder.create(folder.path.parent / "other", 48, MODEL)
    other.add(clustered(rng, 10, 48)[0], pa.table({"path": ["x"] * 10}))
    with pytest.raises(MismatchError, match="the code of id 0 in the engine differs"):
        copy_index(other, engine)
    shorter = IndexFolder.create(folder.path.parent / "shorter", 12, MODEL)
    with pytest.raises(MismatchError, match="holds codes of 12 bits, the engine codes of 48"):
        copy_index(shorter, engine)


TOY = """
from dataclasses import InitVar, dataclass
from hashlens.index.memory import HammingIndex
from hashlens.index.order import BY
from hashlens.settings import check, setting

@dataclass(eq=False)
class ToyIndex(HammingIndex):
    n_bits: InitVar[int]
    where: InitVar[str]
    pace: int = setting(1, "how fast it runs", low=1)

    def __post_init__(self, n_bits, where):
        super().__init__(n_bits)
        check(self)
"""


SERVERS = [place for place in QUICK if place != "folder"]
LABELS = [None, [], ["a"], ["a", "b"], ['quo"te', "b"], ["é"]]


def labelled(rng, n, start=0, n_bits=12, second_bits=40):
    """Codes with second codes, and their items."""
    first, _ = clustered(rng, n, n_bits)
    codes = Codes(first.packed, n_bits, Codes.from_relaxed(rng.normal(size=(n, second_bits))))
    rows = range(start, start + n)
    items = {"path": [f"/photos/{row % 3}/{row:04d} 'é\\.jpg" for row in rows]}
    items["labels"] = pa.array([LABELS[row % len(LABELS)] for row in rows], pa.list_(pa.string()))
    items["size"], items["mtime"] = [row + 10 for row in rows], [2**60 + row for row in rows]
    return codes, pa.table(items | {"hash": [row - 2**62 for row in rows]})


def require_the_same(folder, server, query, whole=True):
    """What a search, a page and a change of the index ask, in all ways; `whole`: all of it fits into one answer."""
    ours, theirs = Searcher(folder), Searcher(server)
    for k, radius, label, by in itertools.product((3, 60, None), (None, 0, 4), (None, "a", 'quo"te', "none"), BY):
        how = {"k": k, "radius": radius, "label": label, "by": by, "histogram": True}
        expected, found = ours.search(query, **how), theirs.search(query, **how)
        if not whole:
            expected["histogram"] = found["histogram"] = None
        for answer in (expected, found):
            del answer["timing_ms"]
        assert found == expected, how
    if len(folder):
        some = folder.examples()
        assert theirs.search(some[0], 5)["hits"] == ours.search(some[0], 5)["hits"]
        assert server.lookup([*some, 10**12]) == folder.lookup(some)
    assert list(server.stamps()) == list(folder.stamps())
    assert server.page(3, 20) == folder.page(3, 20) and server.page(10**6, 5) == []
    assert sorted(server.labels()) == sorted(folder.labels()) and server.labels()[:2] == folder.labels()[:2]
    for label in ("a", "none"):
        assert server.ids_with(label).tolist() == folder.ids_with(label).tolist()
    assert server.ids_like("*/1/*").tolist() == folder.ids_like("*/1/*").tolist()


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_an_index_of_its_own(name, request, rng, tmp_path):
    """With the same changes it gives the same answers as a folder: distances, ids, ties, labels, both codes."""
    folder = IndexFolder.create(tmp_path / "index", 12, MODEL, second_bits=40)
    engine = next(engine for engine, places in PLACES.items() if name in places)
    where, settings = request.getfixturevalue(name), ["collection=of_its_own"]
    server = open_server(engine, where, settings, n_bits=12, second_bits=40, model=MODEL)
    codes, items = labelled(rng, 150)
    query, _ = labelled(rng, 1)
    both = (folder, server)
    assert [one.add(codes[:100], items[:100], only_new=True).tolist() for one in both] == [[*range(100)]] * 2
    for _ in range(2):  # the second time, nothing is new
        assert len({tuple(one.add(codes, items, only_new=True).tolist()) for one in both}) == 1
    require_the_same(folder, server, query)

    gone = rng.permutation(150)[:40]
    assert [one.remove([*gone, 10**6]) for one in both] == [40, 40]
    assert [len(one.add(codes, items, only_new=True)) for one in both] == [0, 0]  # removed ones stay removed
    again, _ = labelled(rng, 150)  # other codes under the same paths
    assert len({tuple(one.add(again[:60], items[:60], only_new=True).tolist()) for one in both}) == 1
    assert len({tuple(one.add(codes[gone[:5]], items.take(gone[:5]), only_new=True, again=True)) for one in both}) == 1
    new, more = labelled(rng, 6, start=500)
    left = np.setdiff1d(np.arange(150), gone)
    assert len({tuple(one.replace(left[:4], new, more).tolist()) for one in both}) == 1
    for one in both:
        one.set_mtimes({int(left[5]): 77, int(left[6]): 78})
    server.close()
    server = open_server(engine, where, settings)
    assert (server.n_bits, server.second_bits, server.model, server.exact) == (12, 40, MODEL, True)
    assert server.roots and all(root.startswith("/photos/") for root in server.roots)
    require_the_same(folder, server, query)

    with pytest.raises(MismatchError, match="holds second codes of 40 bits, these codes have none"):
        server.add(codes.first, items)
    with pytest.raises(MismatchError, match="was made with test abab"):
        open_server(engine, where, settings, n_bits=12, model={"fingerprint": "cd" * 32, "name": "other"})
    with pytest.raises(DataError, match="nowhere does not exist there; build it with: hashlens index build"):
        open_server(engine, where, ["collection=nowhere"])
    server._change_facts(format="hashlens engine 9")
    server.close()
    with pytest.raises(MismatchError, match="'hashlens engine 9', this version reads 'hashlens engine 2'; choose"):
        open_server(engine, where, settings)


def test_an_engine_is_a_module_and_a_row(folder, monkeypatch, tmp_path):
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    monkeypatch.setitem(engines.ENGINES, "toy", ("ToyIndex", "anywhere"))
    engine = open_engine("toy", 48, "here", ["pace=3"])
    assert engine.pace == 3 and copy_index(folder, engine)["n"] == 670
    for wrong, sentence in (("pace=0", "pace must be >= 1, got 0"), ("pase=3", "did you mean 'pace'")):
        with pytest.raises(UsageError, match=sentence):
            open_engine("toy", 48, "here", [wrong])


@pytest.mark.parametrize(("name", "package"), [("milvus", "pymilvus"), ("pgvector", "psycopg"), ("faiss", "faiss")])
def test_a_missing_package_is_a_sentence(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"hashlens.index.engines.{name}", raising=False)
    with pytest.raises(UsageError, match=rf'the engine {name} needs {package}; run: pip install "hashlens\[{name}\]"'):
        open_engine(name, 48, "somewhere")


@pytest.mark.parametrize("name", engines.ENGINES)
def test_what_open_engine_refuses(name, tmp_path):
    with pytest.raises(UsageError, match="unknown engine redis; choose one of milvus, pgvector, faiss"):
        open_engine("redis", 48, "somewhere")
    with pytest.raises(UsageError, match=f"the engine {name} needs a place: a"):
        open_engine(name, 48, "")
    with warnings.catch_warnings(), pytest.raises(UsageError, match="has no setting 'n_prob'"):
        warnings.simplefilter("ignore")
        open_engine(name, 48, f"{tmp_path}", ["n_prob=3"])


@pytest.mark.parametrize("name", ["milvus_lite", "milvus_server"])
def test_milvus_gives_more_than_one_answer_holds(name, back_end, rng, monkeypatch):
    codes, _ = clustered(rng, 400, 12)
    codes = Codes.concatenate([codes, codes[np.zeros(300, int)]])  # far more at one distance than are asked for
    index = back_end(name, 12, "paged")
    monkeypatch.setattr("hashlens.index.engines.milvus.MOST", 40)
    monkeypatch.setattr("hashlens.index.engines.milvus.SPARE", 3)
    monkeypatch.setattr("hashlens.index.engines.milvus.ROWS", 30)
    ids = rng.permutation(10_000)[:700]
    index.add(codes, ids=ids)
    query = codes[:2]
    for k in (1, 20, 40):
        np.testing.assert_array_equal(index.search(query, k), expected(query, codes, ids, k))
    asked, search = [], index._search
    monkeypatch.setattr(index, "_search", lambda *a, **b: asked.append(a) or search(*a, **b))
    index.search(codes[0], 1)
    assert len(asked) < 8  # not all of them are fetched to find the one with the lowest id
    distances, found = index.within(query, 12)[1]
    np.testing.assert_array_equal([distances, found], expected(query, codes, ids, 700)[:, 1])
    np.testing.assert_array_equal(index.search(query, 40, among=ids), expected(query, codes, ids, 40))
    with pytest.raises(UsageError, match="k must be <= 40 with Milvus, got 41"):
        index.search(query, 41)
    index.remove(ids[30:])
    np.testing.assert_array_equal(index.search(query, 50), expected(query, codes[:30], ids[:30], 50))


def test_what_milvus_refuses(tmp_path):
    with pytest.raises(UsageError, match="is not a valid collection"):
        open_engine("milvus", 48, "http://127.0.0.1:1", ["collection=a b"])
    with pytest.raises(UsageError, match=r"localhost:19530 is neither an address such as http"):
        open_engine("milvus", 48, "localhost:19530")
    with pytest.raises(StorageError, match=r"Milvus at http://127.0.0.1:1 failed") as error:
        open_engine("milvus", 48, "http://anne:secret@127.0.0.1:1")
    assert "secret" not in error.value.message and "\n" not in error.value.message


def test_milvus_in_a_file_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "milvus_lite", None)
    with pytest.raises(UsageError, match=r'needs milvus-lite 2.5; run: pip install "hashlens\[milvus-lite\]"'):
        open_engine("milvus", 48, "codes.db")


def test_postgresql_stays_exact_beside_an_approximate_index(back_end, rng):
    codes, query = clustered(rng, 700, 48, 3)
    index = back_end("postgresql", 48, "beside")
    index.add(codes)
    index._execute("CREATE INDEX ON {table} USING hnsw (code bit_hamming_ops)")
    index._execute("SET enable_seqscan = off")
    plan = str(index._ask("EXPLAIN SELECT id FROM {table} ORDER BY code <~> %(code)s::bit(48) LIMIT 9", code="0" * 48))
    assert "hnsw" in plan or "beside_code_idx" in plan  # an index that would be used if it could
    np.testing.assert_array_equal(index.search(query, 200), expected(query, codes, np.arange(700), 200))


def test_postgresql_is_found_again(back_end, rng):
    """A search does not notice that its connection was lost; a change says so, and did nothing."""
    codes, _ = clustered(rng, 20, 24)
    index, other = back_end("postgresql", 24, "lost"), back_end("postgresql", 24, "lost")
    index.add(codes)

    def lose():
        pid = index._connection().info.backend_pid
        other._execute("SELECT pg_terminate_backend(%(pid)s)", pid=pid)
        for _ in range(200):
            if not other._ask("SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s", pid=pid):
                break
            time.sleep(0.05)

    lose()
    assert index.search(codes, 1)[0].tolist() == [[0]] * 20
    lose()
    with pytest.raises(Unreachable, match="PostgreSQL does not answer"):
        index.remove([3])
    assert len(index) == 20 and index.remove([3]) == 1


def test_several_processes_write_to_postgresql(back_end, rng):
    """Each addition gets ids of its own, and none is lost."""
    codes, _ = clustered(rng, 40, 24)
    opened = [back_end("postgresql", 24, "several") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda row: opened[row % 4].add(codes[row]).tolist(), range(40)))
    assert sorted(id_ for one in ids for id_ in one) == list(range(40)) and len(opened[0]) == 40
    for row, (id_,) in enumerate(ids):
        assert opened[1].lookup([id_])[id_]["code"] == codes[row].packed.tobytes().hex()


def test_an_approximate_index_is_asked_for_and_measured(back_end, rng, postgresql):
    codes, query = clustered(rng, 3000, 48, 3)
    index = back_end("postgresql", 48, "approximate")
    index.add(codes)
    with pytest.raises(UsageError, match="index must be one of flat, hnsw with pgvector, got ivf"):
        index.set_index("ivf")
    with pytest.raises(UsageError, match="has no hnsw index; build it with: hashlens index build --index hnsw"):
        open_server("pgvector", postgresql, ["collection=approximate", "index=hnsw"])
    found = index.set_index("hnsw")
    assert found["index_kind"] == "hnsw" and 0.5 < found["recall"] <= 1 and not index.exact
    again = back_end("postgresql", 48, "approximate")
    assert not again.exact and again.kind == "hnsw"
    distances, ids = again.search(query, 10)
    assert (np.diff(distances, axis=1) >= 0).all() and (ids >= 0).all()
    right = expected(query, codes, np.arange(3000), 10)
    assert (distances <= right[0][:, -1:]).mean() > 0.5
    exact = open_server("pgvector", postgresql, ["collection=approximate", "index=flat"])
    np.testing.assert_array_equal(exact.search(query, 10), right)
    exact.close()
    assert index.set_index("flat") == {"index_kind": "flat", "recall": 1.0}


def test_what_postgresql_refuses(postgresql):
    for table in ("a b", 'x"; DROP TABLE y; --', "Upper", "", "a" * 64):
        with pytest.raises(UsageError, match="is not a valid collection"):
            open_engine("pgvector", 48, "host=127.0.0.1 port=1", [f"collection={table}"])
    for where, kind, sentence in (
        ("postgresql://anne:secret@127.0.0.1:1/x", Unreachable, "PostgreSQL does not answer"),
        ("anne:secret@127.0.0.1", UsageError, "that is no connection to PostgreSQL; give one such as"),
        ("postgresql://anne:secret@127.0.0.1/x?secret=1", UsageError, "that is no connection to PostgreSQL"),
    ):
        with pytest.raises(kind, match=sentence) as error:
            open_engine("pgvector", 48, where)
        assert "secret" not in error.value.message and "\n" not in error.value.message
    for change in ({"user": "nobody"}, {"dbname": "nowhere"}):
        with pytest.raises(
            StorageError, match=r"does not let us in .*does not exist.*; check user and database"
        ) as error:
            open_engine("pgvector", 48, make_conninfo(postgresql, **change))
        assert not isinstance(error.value, Unreachable)  # asking again is of no use
    with psycopg.connect(postgresql, autocommit=True) as connection:  # a user who needs a password
        connection.execute("DROP ROLE IF EXISTS anne")
        connection.execute("CREATE ROLE anne LOGIN PASSWORD 'right'")
        rules = Path(connection.execute("SHOW hba_file").fetchone()[0])
        before = rules.read_text()
        try:
            rules.write_text(f"local all anne scram-sha-256\n{before}")
            connection.execute("SELECT pg_reload_conf()")
            where = f"{make_conninfo(postgresql, user='anne', password='secret')}"
            for _ in range(100):
                with suppress(psycopg.Error):
                    psycopg.connect(where).close()
                    time.sleep(0.1)  # the rule is not read yet
                    continue
                break
            with pytest.raises(StorageError, match=r"does not let us in .*check the connection, PGPASSWORD") as error:
                open_engine("pgvector", 48, where)
            assert "secret" not in error.value.message
        finally:
            rules.write_text(before)
            connection.execute("SELECT pg_reload_conf()")


@pytest.mark.skipif(not os.environ.get("HASHLENS_LONG"), reason="starts a server of its own: make test-long")
def test_milvus_with_a_password(monkeypatch, rng):
    with tempfile.TemporaryDirectory() as folder, Milvus(Path(folder), authorization_enabled=True) as server:
        monkeypatch.setenv("MILVUS_TOKEN", "root:secret")
        for _ in range(60):
            try:
                with pytest.raises(StorageError, match="does not let us in; check MILVUS_TOKEN") as error:
                    open_engine("milvus", 48, server.where)
                break
            except AssertionError:  # it is still starting
                time.sleep(2)
        assert "secret" not in error.value.message
        monkeypatch.setenv("MILVUS_TOKEN", "root:Milvus")
        index = open_engine("milvus", 48, server.where, ["shards=2"])
        index.add(clustered(rng, 2000, 48)[0])
        assert index.set_index("ivf")["recall"] > 0.5 and not index.exact
        index.close()


def test_lists_find_most_of_the_nearest(rng):
    from hashlens.index.engines.faiss import ApproximateIndex

    codes, query = clustered(rng, 6000, 48, 50)
    scattered = Codes.from_relaxed(rng.normal(size=(3020, 48)))
    codes, query = Codes.concatenate([codes, scattered[:3000]]), Codes.concatenate([query, scattered[3000:]])
    exact = HammingIndex(48)
    exact.add(codes)
    few, all_ = ApproximateIndex(48, n_probe=1), ApproximateIndex(48, n_probe=10**6)
    usual = ApproximateIndex(48)
    farthest = exact.search(query, 10)[0][:, -1:]
    recall = {}
    for name, index in (("few", few), ("usual", usual), ("all", all_)):
        for rows in np.array_split(np.arange(len(codes)), 5):
            index.add(codes[rows], ids=rows)
        assert index.n_lists > 100  # learned again as codes were added
        distances, _ = index.search(query, 10)
        recall[name] = ((distances >= 0) & (distances <= farthest)).mean()
    assert recall["few"] < recall["all"] == 1 and recall["usual"] > 0.9
    np.testing.assert_array_equal(all_.search(query, 10), exact.search(query, 10))


def test_what_lists_refuse(tmp_path, rng):
    from hashlens.index.engines.faiss import ApproximateIndex

    with pytest.raises(UsageError, match="n_probe must be >= 1, got 0"):
        ApproximateIndex(48, n_probe=0)
    index = ApproximateIndex(48, tmp_path)
    index.add(clustered(rng, 100, 48)[0])
    index.flush()
    with pytest.raises(MismatchError, match="choose another folder"):
        ApproximateIndex(47, tmp_path)
    index.add(clustered(rng, 100, 48)[0])
    index.flush()
    (path,) = tmp_path.glob("lists-*.bin")  # of the first there is nothing left
    assert len(ApproximateIndex(48, tmp_path)) == 200
    stored = path.read_bytes()
    for damaged in (stored[:200], b"nothing", stored[:-1] + bytes([stored[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"{path.name} is damaged .*; delete that folder"):
            ApproximateIndex(48, tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=rf"{path.name} is missing; delete that folder"):
        ApproximateIndex(48, tmp_path)
    for text in (
        "[]",
        "{",
        '{"format": "hashlens lists 2"}',
        (tmp_path / "lists.json").read_text().replace("48", "47"),
    ):
        (tmp_path / "lists.json").write_text(text)
        with pytest.raises(DataError, match=r"lists.json is damaged .*; delete that folder"):
            ApproximateIndex(48, tmp_path)
    (tmp_path / "lists.json").write_text('{"format": "hashlens lists 1", "n_bits": 48}')
    with pytest.raises(MismatchError, match="of an older version; delete that folder"):
        ApproximateIndex(48, tmp_path)


@pytest.mark.parametrize("name", QUICK)
def test_a_copy_is_compared_code_by_code(name, folder, back_end):
    engine = back_end(name, 48, "compared")
    copy_index(folder, engine)
    assert verify_copy(folder, engine) == {"compared": 670}
    (wrong, ids), *_ = folder.batches(450)
    engine.remove([5])
    engine.add(Codes(~wrong[ids == 5].packed, 48), ids=[5])
    with pytest.raises(MismatchError, match="0 codes are missing and 1 differ, first that of id 5; copy"):
        verify_copy(folder, engine)
    engine.remove([5, 6])
    with pytest.raises(MismatchError, match="2 codes are missing and 0 differ; copy"):
        verify_copy(folder, engine)
