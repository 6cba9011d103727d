"""Protocols: sizes, disjoint sets, same seed same split, and a file that cannot be altered unnoticed."""

import json

import numpy as np
import pytest

from hashlens.data.labels import Labels
from hashlens.data.protocols import (
    MIRFLICKR_LABELS,
    NUSWIDE_CONCEPTS,
    PROTOCOLS,
    Protocol,
    draw_per_label,
    given_split,
    with_training_size,
)
from hashlens.errors import DataError


def single(values):
    values = np.asarray(values, np.int64)
    return Labels(values, tuple(f"c{c}" for c in range(values.max() + 1)))


@pytest.fixture(scope="module")
def cifar10():
    return single(np.random.default_rng(5).permutation(np.repeat(np.arange(10), 6000)))


@pytest.mark.parametrize(("name", "counts"), [("cifar10-1", (5000, 1000, 59000)), ("cifar10-2", (50000, 10000, 50000))])
def test_cifar10_counts(cifar10, name, counts):
    protocol = PROTOCOLS[name](cifar10, 0)
    protocol.check(60000)
    assert (len(protocol.train), len(protocol.query), len(protocol.database)) == counts
    for rows, count in zip((protocol.train, protocol.query, protocol.database), counts, strict=True):
        assert (np.bincount(cifar10.values[rows]) == count // 10).all()
    assert np.isin(protocol.train, protocol.database).all()
    assert len(np.union1d(protocol.query, protocol.database)) == 60000
    assert protocol.topk is None


def test_the_seed_determines_the_split(cifar10):
    first, again, other = (PROTOCOLS["cifar10-1"](cifar10, seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    assert np.array_equal(first.database, again.database)
    assert len(np.intersect1d(first.query, other.query)) < 100


def test_the_split_does_not_change_between_versions():
    # results are compared by this hash, so numpy or we must not change the splits silently
    labels = single(np.repeat(np.arange(10), 6000))
    assert PROTOCOLS["cifar10-1"](labels, 0).fingerprint()[:16] == "4bc7927ce307b110"
    assert PROTOCOLS["cifar10-2"](labels, 0).fingerprint()[:16] == "bf2fe94b8175fae5"


def test_database_order_favours_no_class(cifar10):
    classes = cifar10.values[PROTOCOLS["cifar10-1"](cifar10, 0).database]
    places = [np.flatnonzero(classes == c).mean() for c in range(10)]
    assert np.ptp(places) < 0.05 * len(classes)  # grouped by class it would be 0.9


def test_cifar10_refuses_other_data():
    with pytest.raises(DataError, match=r"30 images in 3 other classes.*split"):
        PROTOCOLS["cifar10-1"](single(np.repeat(np.arange(3), 10)), 0)


def rows(name="p", train=(0, 1, 2), query=(3, 4), database=(0, 1, 2, 5), **more):
    return Protocol(name, np.array(train), np.array(query), np.array(database), **more)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"database": [0, 1, 1, 1]}, r"database rows of p are repeated \(2\)"),
        ({"query": [2, 5, 7], "train": []}, r"query rows of p are also database rows \(2\)"),
        ({"train": [0, 4], "database": [0]}, r"query rows of p are also train rows \(1\)"),
        ({"train": [-1]}, "train row -1 of p is negative"),
        ({"train": [0.0, 1.0]}, "must be integers"),
        ({"train": [[0, 1]]}, "must be integers"),
        ({"topk": 0}, "topk of p must be >= 1"),
    ],
)
def test_wrong_rows_are_refused(wrong, message):
    with pytest.raises(DataError, match=message):
        rows(**wrong)


def test_rows_past_the_end_are_refused():
    rows().check(6)
    with pytest.raises(DataError, match="database row 5 of p is past the end of a source of 5 images"):
        rows().check(5)


def test_rows_are_a_frozen_copy():
    given = np.array([3, 4])
    protocol = Protocol("p", np.array([0]), given, np.array([0]))
    given[0] = 0
    assert protocol.query.tolist() == [3, 4]
    with pytest.raises(ValueError, match="read-only"):
        protocol.query[0] = 1


def test_fingerprint_knows_roles_and_order():
    hashes = {
        rows().fingerprint(),
        rows(train=[1, 0, 2]).fingerprint(),
        rows(train=[0, 1], database=[2, 5]).fingerprint(),
        rows(train=[0], database=[1, 2, 5]).fingerprint(),
        rows(query=[3]).fingerprint(),
    }
    assert len(hashes) == 5
    assert rows(name="q", seed=9, topk=3).fingerprint() in hashes


@pytest.mark.parametrize("name", ["cifar10-1", "cifar10-2"])
def test_save_and_load(tmp_path, cifar10, name):
    protocol = PROTOCOLS[name](cifar10, 3)
    path = tmp_path / "run" / "split.json"
    protocol.save(path)
    loaded = Protocol.load(path)
    for field in ("name", "seed", "topk", "description"):
        assert getattr(loaded, field) == getattr(protocol, field)
    for role in ("train", "query", "database"):
        assert np.array_equal(getattr(loaded, role), getattr(protocol, role))
        assert getattr(loaded, role).dtype == np.int64
    assert path.stat().st_size < 1_000_000
    assert json.loads(path.read_text())["counts"]["query"] == len(protocol.query)


def test_altered_or_foreign_files_are_refused(tmp_path):
    path = tmp_path / "split.json"
    rows(topk=2).save(path)
    saved = path.read_text()
    path.write_text(saved.replace('"query": [3,4]', '"query": [4,3]'))
    assert path.read_text() != saved
    with pytest.raises(DataError, match="changed or damaged"):
        Protocol.load(path)
    for wrong in (
        saved[:-10],
        "[1, 2]",
        "{}",
        saved.replace("sha256", "md5"),
        saved.replace('"topk": 2', '"topk": "2"'),
        saved.replace('"query": [3,4]', '"query": [[3],[4,5]]'),
    ):
        path.write_text(wrong)
        with pytest.raises(DataError, match="not a split file"):
            Protocol.load(path)
    with pytest.raises(DataError, match=r"split file .* not found"):
        Protocol.load(tmp_path / "gone.json")


def test_split_takes_a_tenth_of_each_class():
    counts = [1, 2, 3, 14, 16, 100, 1000]
    labels = single(np.repeat(np.arange(7), counts))
    protocol = PROTOCOLS["split"](labels, 0)
    assert np.bincount(labels.values[protocol.query], minlength=7).tolist() == [0, 0, 1, 1, 2, 10, 100]
    assert "114 queries from 5 of 7 classes, one or about a tenth of each; 1,022 trained" in protocol.description
    assert np.array_equal(protocol.train, protocol.database)
    assert len(np.union1d(protocol.query, protocol.database)) == sum(counts)
    assert (
        PROTOCOLS["split"](labels, 0).fingerprint()
        == protocol.fingerprint()
        != PROTOCOLS["split"](labels, 1).fingerprint()
    )


def test_split_of_label_sets():
    rng = np.random.default_rng(0)
    values = rng.random((3000, 8)) < [0.0004, 0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.5]
    values[:3] = False
    values[0, 0] = True  # a class of its own
    values[1:, 0] = False
    labels = Labels(values, tuple("abcdefgh"))
    protocol = PROTOCOLS["split"](labels, 0)
    total, queries = values.sum(axis=0), values[protocol.query].sum(axis=0)
    assert queries[0] == 0
    quota = np.where(total < 3, 0, np.maximum(1, np.round(total / 10)))
    assert (queries <= quota).all() and (queries >= 0.6 * quota).all()
    assert values[protocol.query].any(axis=1).all()  # no query without a label
    assert np.isin([1, 2], protocol.database).all()
    assert len(protocol.query) + len(protocol.database) == 3000


@pytest.mark.parametrize("name", ["split", "few-2"])
def test_classes_too_small_for_a_query_are_said(name):
    (note,) = PROTOCOLS[name](single(np.repeat(np.arange(13), [200] + 12 * [2])), 0).notes
    assert note.startswith(
        "classes without a query: 12 of 13, first c1, because each needs three images; MAP says nothing"
    )
    assert "add images, or choose queries in a column split" in note
    assert PROTOCOLS[name](single([0, 0, 0, 1, 1, 1, 3, 3, 3]), 0).notes == (), "a class without images needs no query"


def test_labels_whose_images_all_have_a_rarer_one_have_no_query():
    values = np.zeros((40, 4), bool)
    values[:, 0], values[:3, 1], values[[0, 1], 2], values[2, 3] = True, True, True, True
    (note,) = PROTOCOLS["split"](Labels(values, tuple("abcd")), 0).notes
    assert "classes without a query: 3 of 4, first b, because each needs three images without a rarer label" in note


def test_unseen_says_who_learned_from_the_searched_images(cifar10):
    (note,) = PROTOCOLS["unseen"](cifar10, 0).notes
    assert note.startswith("methods without labels learn from the images that are searched")


def test_split_needs_a_class_of_three():
    with pytest.raises(DataError, match=r"largest has 2"):
        PROTOCOLS["split"](single([0, 0, 1, 1, 2]), 0)
    # three images of one label, but each carries a label of its own too
    values = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]], bool)
    with pytest.raises(DataError, match="fewer than three"):
        PROTOCOLS["split"](Labels(values, tuple("abcd")), 0)


@pytest.fixture(scope="module")
def concepts():
    """20,000 images with labels as uneven as those of NUS-WIDE; some have none."""
    rng = np.random.default_rng(1)
    values = rng.random((20_000, 21)) < np.linspace(0.05, 0.3, 21)[rng.permutation(21)]
    values[::10] = False
    return Labels(values, NUSWIDE_CONCEPTS)


@pytest.mark.parametrize(("name", "topk"), [("nuswide-1", 5000), ("nuswide-2", 50_000)])
def test_nuswide_counts(concepts, name, topk):
    protocol = PROTOCOLS[name](concepts, 0)
    labelled = np.flatnonzero(concepts.values.any(axis=1))
    assert len(labelled) < 20_000
    assert len(protocol.query) == 2100 and len(protocol.database) == len(labelled) - 2100
    assert len(protocol.train) == (10_500 if name == "nuswide-1" else len(protocol.database))
    assert np.array_equal(np.union1d(protocol.query, protocol.database), labelled)
    assert np.isin(protocol.train, protocol.database).all()
    assert protocol.topk == topk
    assert (
        PROTOCOLS[name](concepts, 0).fingerprint()
        == protocol.fingerprint()
        != PROTOCOLS[name](concepts, 1).fingerprint()
    )


def test_both_settings_of_nuswide_have_the_same_queries(concepts):
    assert np.array_equal(PROTOCOLS["nuswide-1"](concepts, 4).query, PROTOCOLS["nuswide-2"](concepts, 4).query)


def test_images_without_a_label_do_not_change_the_split(concepts):
    labelled = np.flatnonzero(concepts.values.any(axis=1))
    whole, part = (PROTOCOLS["nuswide-1"](labels, 2) for labels in (concepts, concepts[labelled]))
    for role in ("train", "query", "database"):
        assert np.array_equal(labelled[getattr(part, role)], getattr(whole, role))


def test_rare_labels_draw_first():
    # otherwise the frequent label could take the images of the two rare ones
    values = np.zeros((12, 3), bool)
    values[:, 1] = True
    values[:3, 2] = True
    values[3:7, 0] = True
    rng = np.random.default_rng(0)
    free = np.ones(12, bool)
    for _ in range(20):
        drawn = draw_per_label(Labels(values, tuple("abc")), 3, free, rng, "p")
        assert free.all()  # what was given is not changed
        assert len(set(drawn.tolist())) == 9
        assert set(drawn[:3].tolist()) == {0, 1, 2}  # c has 3 images
        assert set(drawn[3:6].tolist()) <= {3, 4, 5, 6}  # a has 4
    free[2] = False
    with pytest.raises(DataError, match="p draws 3 images per label, but only 2 with 'c'"):
        draw_per_label(Labels(values, tuple("abc")), 3, free, rng, "p")


def test_mirflickr_counts():
    rng = np.random.default_rng(0)
    labels = Labels(rng.random((9000, 24)) < 0.1, MIRFLICKR_LABELS)
    n = int(labels.values.any(axis=1).sum())
    protocol = PROTOCOLS["mirflickr"](labels, 0)
    assert (len(protocol.query), len(protocol.database), len(protocol.train)) == (2000, n - 2000, 5000)
    assert labels.values[np.union1d(protocol.query, protocol.database)].any(axis=1).all()
    assert np.isin(protocol.train, protocol.database).all() and protocol.topk == 5000
    assert PROTOCOLS["mirflickr"](labels, 1).fingerprint() != protocol.fingerprint()


def test_multi_label_splits_do_not_change_between_versions():
    # as above: published numbers are compared by these
    rows = np.arange(30_000)
    nuswide = Labels(rows[:, None] % np.arange(3, 24) == 0, NUSWIDE_CONCEPTS)
    mirflickr = Labels(rows[:9000, None] % np.arange(2, 26) == 0, MIRFLICKR_LABELS)
    assert PROTOCOLS["nuswide-1"](nuswide, 0).fingerprint()[:16] == "06a05badd68476c7"
    assert PROTOCOLS["nuswide-2"](nuswide, 0).fingerprint()[:16] == "92c3f705164f0f67"
    assert PROTOCOLS["mirflickr"](mirflickr, 0).fingerprint()[:16] == "f215354e03945b20"


@pytest.mark.parametrize("name", ["nuswide-1", "nuswide-2", "mirflickr"])
def test_protocols_of_data_sets_refuse_others(name):
    for labels in (single([0, 0, 1, 1]), Labels(np.ones((4, 2), bool), ("a", "b"))):
        with pytest.raises(DataError, match=rf"{name} is for .*4 images in 2 other classes: use the protocol split"):
            PROTOCOLS[name](labels, 0)


@pytest.mark.parametrize(
    ("words", "train", "query", "database"),
    [
        ("train test train", [0, 2], [1], [0, 2]),
        ("train query database", [0], [1], [0, 2]),
        ("Gallery QUERIES db", [0, 2], [1], [0, 2]),
        ("train val train", [0, 2], [1], [0, 2]),
        ("train val test", [0], [2], [0, 1]),
    ],
)
def test_words_of_a_given_split(words, train, query, database):
    protocol = given_split(words.split(), "x.csv")
    assert (protocol.train.tolist(), protocol.query.tolist()) == (train, query)
    assert sorted(protocol.database) == database
    assert protocol.name == "given" and "the split of x.csv: 1 query, 2 searched" in protocol.description


@pytest.mark.parametrize("words", ["train train", "test query", "val dev"])
def test_a_given_split_needs_queries_and_others(words):
    assert given_split(words.split(), "x") is None


def test_the_database_of_a_given_split_is_shuffled():
    protocol = given_split(["test"] + ["train"] * 100, "x")
    assert sorted(protocol.database) == list(range(1, 101)) != protocol.database.tolist()


def test_unseen_classes_of_cifar10(cifar10):
    protocol = PROTOCOLS["unseen"](cifar10, 0)
    protocol.check(60000)
    assert (len(protocol.train), len(protocol.query), len(protocol.database)) == (3500, 300, 17700)
    learned, asked, searched = (
        np.unique(cifar10.values[rows]) for rows in (protocol.train, protocol.query, protocol.database)
    )
    assert len(learned) == 7 and np.array_equal(asked, searched) and not np.intersect1d(learned, asked).size
    assert (np.bincount(cifar10.values[protocol.query], minlength=10)[asked] == 100).all()
    assert (np.bincount(cifar10.values[protocol.train], minlength=10)[learned] == 500).all()
    assert ", ".join(cifar10.names[c] for c in asked) in protocol.description
    again, other = (PROTOCOLS["unseen"](cifar10, seed) for seed in (0, 1))
    assert again.fingerprint() == protocol.fingerprint() != other.fingerprint()
    chosen = {tuple(np.unique(cifar10.values[PROTOCOLS["unseen"](cifar10, seed).query])) for seed in range(8)}
    assert len(chosen) > 3, "the seed draws the classes"
    classes = cifar10.values[protocol.database]
    places = [np.flatnonzero(classes == c).mean() for c in asked]
    assert np.ptp(places) < 0.05 * len(classes), "the order of the database favours no class"


def test_unseen_classes_of_small_data():
    labels = single(np.repeat(np.arange(6), [30, 30, 30, 30, 2, 8]))
    protocol = PROTOCOLS["unseen"](labels, 0)
    asked = np.unique(labels.values[protocol.query])
    assert len(asked) == 2 and 4 not in asked, "a class of two cannot give queries and a database"
    assert 4 in labels.values[protocol.train]
    for c in asked:
        n = (labels.values == c).sum()
        assert (labels.values[protocol.query] == c).sum() == max(1, n // 10)
    with pytest.raises(DataError, match=r"only 3 of the classes.*split"):
        PROTOCOLS["unseen"](single(np.repeat(np.arange(5), [9, 9, 9, 2, 2])), 0)
    with pytest.raises(DataError, match="sets of labels"):
        PROTOCOLS["unseen"](Labels(np.ones((9, 4), bool), tuple("abcd")), 0)


def test_training_sizes_share_queries_and_database_and_are_nested(cifar10):
    base = PROTOCOLS["cifar10-1"](cifar10, 2)
    sizes = {n: with_training_size(base, cifar10, n) for n in (1000, 5000, 50000)}
    for n, protocol in sizes.items():
        protocol.check(60000)
        assert len(protocol.train) == n and protocol.name == f"cifar10-1-train-{n}"
        assert (np.bincount(cifar10.values[protocol.train]) == n // 10).all()
        assert np.array_equal(protocol.query, base.query) and np.array_equal(protocol.database, base.database)
        assert np.isin(protocol.train, base.database).all()
    assert np.isin(sizes[1000].train, sizes[5000].train).all() and np.isin(sizes[5000].train, sizes[50000].train).all()
    assert sizes[5000].fingerprint() == base.fingerprint(), "setting 1's own size is setting 1"
    uneven = with_training_size(base, cifar10, 1003)
    assert sorted(np.bincount(cifar10.values[uneven.train])) == [100] * 7 + [101] * 3
    with pytest.raises(DataError, match=r"5,901 training images per class, but .* has 5,900"):
        with_training_size(base, cifar10, 59010)
    with pytest.raises(DataError, match="at least 2"):
        with_training_size(base, cifar10, 0)


def test_other_splits_do_not_change_between_versions():
    rng = np.random.default_rng(7)
    cifar10 = single(np.random.default_rng(5).permutation(np.repeat(np.arange(10), 6000)))
    classes, sets = single(rng.integers(0, 7, 300)), Labels(rng.random((400, 6)) < 0.2, tuple("abcdef"))
    made = {
        "29dea5a538795d31": PROTOCOLS["unseen"](cifar10, 3),
        "a8d63b6d74669dad": PROTOCOLS["split"](classes, 3),
        "af29804d9ce2b834": PROTOCOLS["split"](sets, 3),
        "e4aadb420d769db2": with_training_size(PROTOCOLS["cifar10-1"](cifar10, 3), cifar10, 1234),
        "51bc6ae84759db60": given_split(["train", "test", "db", "val"] * 20, "x"),
    }
    assert [protocol.fingerprint()[:16] for protocol in made.values()] == list(made)


def test_few_labels_share_queries_and_database_and_are_nested():
    labels = single(np.random.default_rng(1).permutation(np.repeat(np.arange(4), [2, 6, 40, 100])))
    base, few = PROTOCOLS["split"](labels, 3), {n: PROTOCOLS[f"few-{n}"](labels, 3) for n in (1, 2, 4, 8)}
    available = np.bincount(labels.values[base.train])
    for n, protocol in few.items():
        assert protocol.name == f"few-{n}" and f"{n} per class" in protocol.description
        assert np.bincount(labels.values[protocol.train]).tolist() == np.minimum(n, available).tolist()
        assert np.isin(protocol.train, base.train).all()
        assert np.array_equal(protocol.query, base.query) and np.array_equal(protocol.database, base.database)
        assert np.array_equal(
            protocol.database[protocol.learned], base.database[np.isin(base.database, protocol.train)]
        )
    assert all(np.isin(few[n].train, few[2 * n].train).all() for n in (1, 2, 4))
    assert few[2].fingerprint() != PROTOCOLS["few-2"](labels, 4).fingerprint()


def test_few_labels_of_label_sets():
    labels = Labels(np.random.default_rng(2).random((600, 5)) < [0.01, 0.05, 0.2, 0.5, 0.9], tuple("abcde"))
    base, few = PROTOCOLS["split"](labels, 0), {n: PROTOCOLS[f"few-{n}"](labels, 0) for n in (1, 2, 4, 8)}
    available = labels.values[base.train].sum(axis=0)
    for n, protocol in few.items():
        found = labels.values[protocol.train].sum(axis=0)
        assert (found >= np.minimum(n, available)).all()
        for row in protocol.train:  # each is needed by a label, at the time that it is chosen
            assert labels.values[row].any()
        assert len(protocol.train) <= np.minimum(n, available).sum()
    assert all(np.isin(few[n].train, few[2 * n].train).all() for n in (1, 2, 4))
