"""The embedded index: its answers against plain numpy, ties, removal, ids, filters, and what it refuses."""

import numpy as np
import pytest

from hashlens import Codes
from hashlens.errors import MismatchError, UsageError
from hashlens.index import memory
from hashlens.index.memory import HammingIndex
from hashlens.index.radius import Tables

LENGTHS = (1, 7, 12, 24, 32, 48, 64, 65, 100, 127, 128, 200, 255, 256, 497)


def random_codes(rng, n, n_bits):
    return Codes.from_relaxed(rng.normal(size=(n, n_bits)))


def apart(query, database):
    return (query.signs()[:, None] != database.signs()[None]).sum(2)


def expected(query, database, ids, k):
    """(distance, id) order by numpy's own sort, padded with -1."""
    d = apart(query, database)
    order = np.array([np.lexsort((ids, row))[:k] for row in d])
    pad = ((0, 0), (0, max(0, k - len(ids))))
    return (
        np.pad(np.take_along_axis(d, order, 1), pad, constant_values=-1),
        np.pad(ids[order], pad, constant_values=-1),
    )


def assert_same(found, wanted):
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("n_bits", LENGTHS)
def test_nearest_is_that_of_numpy(n_bits, threads, rng, monkeypatch):
    monkeypatch.setenv("HASHLENS_THREADS", threads)
    monkeypatch.setattr(memory, "SHARED", 0 if threads == "3" else memory.SHARED)
    database, query = random_codes(rng, 1500, n_bits), random_codes(rng, 70, n_bits)
    index = HammingIndex(n_bits)
    assert index.add(database).tolist() == list(range(1500))
    for k in (1, 10, 700, 1500, 1600):
        assert_same(index.search(query, k), expected(query, database, np.arange(1500), k))
    assert_same(index.search(query[0], 5), expected(query[0], database, np.arange(1500), 5))


@pytest.mark.parametrize("n_bits", LENGTHS)
def test_within_a_radius(n_bits, rng):
    database, query = random_codes(rng, 900, n_bits), random_codes(rng, 5, n_bits)
    index = HammingIndex(n_bits)
    index.add(database[:300])
    index.add(database[300:])
    d = apart(query, database)
    for radius in (0, 2, n_bits // 2, n_bits):
        for row, (distances, ids) in enumerate(index.within(query, radius)):
            places = np.flatnonzero(d[row] <= radius)
            order = np.lexsort((places, d[row, places]))
            np.testing.assert_array_equal(ids, places[order])
            np.testing.assert_array_equal(distances, d[row, places[order]])


@pytest.mark.parametrize("n_bits", LENGTHS)
def test_tables_find_the_same_as_the_scan(n_bits, rng, monkeypatch):
    monkeypatch.setattr(memory, "is_cheaper", lambda *given: True)  # use them even where reading all codes is faster
    centres = random_codes(rng, 6, n_bits).signs()
    flips = np.where(rng.random((3000, n_bits)) < min(0.5, 2 / n_bits), -1, 1)
    codes = Codes.from_signs(centres[rng.integers(0, 6, 3000)] * flips)
    index = HammingIndex(n_bits)
    index.add(codes[:2000])
    index.add(codes[2000:])
    index.remove(np.arange(0, 3000, 7))
    plain = index.within(codes[:20], 2), index.within(codes[:20], 5)
    index.build_tables()
    looked_up = []
    within = Tables.within
    monkeypatch.setattr(Tables, "within", lambda *a: looked_up.append(1) or within(*a))
    for radius, expected_ones in zip((2, 5), plain, strict=True):
        for found, wanted in zip(index.within(codes[:20], radius), expected_ones, strict=True):
            assert_same(found, wanted)
    assert len(looked_up) == 80 and any(len(ids) > 10 for _, ids in plain[0])


def test_ids_in_any_order_and_removal(rng):
    """Ids given out of order, in many small additions, some removed and one put back: still (distance, id)."""
    index = HammingIndex(12)  # few bits: nearly everything ties
    codes = random_codes(rng, 800, 12)
    ids = rng.permutation(5000)[:800]
    for part in np.array_split(np.arange(800), 50):
        np.testing.assert_array_equal(index.add(codes[part], ids[part]), ids[part])
    query = random_codes(rng, 9, 12)
    assert_same(index.search(query, 40), expected(query, codes, ids, 40))

    gone = ids[rng.permutation(800)[:300]]
    assert index.remove(np.append(gone, [9999, gone[0]])) == 300 and len(index) == 500
    assert index.remove(gone) == 0
    left = ~np.isin(ids, gone)
    assert_same(index.search(query, 40), expected(query, codes[left], ids[left], 40))
    assert_same(index.search(query, 600), expected(query, codes[left], ids[left], 600))
    for distances, found in index.within(query, 12):
        assert len(distances) == 500 and set(found) == set(ids[left])

    back = np.flatnonzero(ids == gone[0])
    index.add(codes[back], ids[back])
    left[back] = True
    assert_same(index.search(query, 501), expected(query, codes[left], ids[left], 501))
    following = index.add(codes[:2])
    assert following.tolist() == [ids[left].max() + 1, ids[left].max() + 2]


def test_only_codes_are_taken(rng):
    with pytest.raises(UsageError, match="takes Codes, got ndarray"):
        HammingIndex(48).search(random_codes(rng, 2, 48).packed, 1)


@pytest.mark.parametrize("n_bits", [12, 48, 64, 100, 200])
def test_the_histogram_counts_every_distance(n_bits, rng):
    index = HammingIndex(n_bits)
    codes = random_codes(rng, 9_001, n_bits)
    index.add(codes[:5_000])
    index.add(codes[5_000:])

    def expected(rows):
        return np.bincount(apart(codes[7], codes[rows])[0], minlength=n_bits + 1)

    np.testing.assert_array_equal(index.histogram(codes[7]), expected(np.arange(9_001)))
    some = rng.choice(9_001, 500, replace=False)
    np.testing.assert_array_equal(index.histogram(codes[7], among=some), expected(some))
    index.remove(some)
    left = np.setdiff1d(np.arange(9_001), some)
    np.testing.assert_array_equal(index.histogram(codes[7]), expected(left))
    assert index.histogram(codes[7], among=some).sum() == 0
    assert HammingIndex(n_bits).histogram(codes[7]).sum() == 0
    with pytest.raises(MismatchError, match="from one code, got 2"):
        index.histogram(codes[:2])
