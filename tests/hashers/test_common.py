"""What every method must do: our checks and scikit-learn's, each on each row of METHODS."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import hashlens
from hashlens import DTSH, METHODS, Training, check_hasher, make_hasher
from hashlens.checksums import read_sealed, write_sealed
from hashlens.errors import DataError, UsageError
from hashlens.hashers.checks import CHECKS, map_of
from hashlens.hashers.methods import hasher_class
from hashlens.hashers.shallow.base import LinearHasher
from hashlens.hashers.shallow.itq import ITQ
from hashlens.settings import setting

SMALL = {  # for methods that have a training loop, grow many trees, or draw some of the rows
    "training": Training(epochs=5, batch_size=25, head_lr=0.1),
    "n_trees": 30,
    "n_anchors": 60,
    "hidden": (24,),
    "epochs": 10,
    "pretraining_epochs": 5,
    "noise": 1.0,
}


LEARNING = SMALL | {"epochs": 150}  # where it matters that something is learned
TINY = SMALL | {"training": Training(epochs=1), "n_trees": 2, "n_epochs": 1, "epochs": 1}  # where nothing is learned


def make(name, settings=SMALL, **params):
    known = hasher_class(name)().get_params(deep=False)
    return make_hasher(name, **{"n_bits": 12} | {k: v for k, v in settings.items() if k in known} | params)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_method(name, check, clusters):
    check(lambda learning=False, **params: make(name, LEARNING if learning else SMALL, **params), *clusters)


@pytest.mark.parametrize("name", METHODS)
def test_the_table_says_what_the_class_says(name):
    cls, row = hasher_class(name), METHODS[name]
    assert (cls.name, cls.supervised, cls.takes) == (name, row.supervised, row.takes)
    assert "Differences from the paper:" in cls.__doc__


@pytest.mark.parametrize("name", [name for name in METHODS if hasattr(hasher_class(name), "published")])
def test_published_settings_can_be_changed(name):
    cls = hasher_class(name)
    assert cls.published(16, 1000).n_bits == 16 and cls.published(random_state=3).random_state == 3
    assert cls.preset("published", 16, 1000).get_params()["n_bits"] == 16


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].path.startswith("deep.")])
def test_the_global_random_state_of_torch_is_untouched(name, clusters):
    torch.manual_seed(6)
    make(name, TINY).fit(*clusters)
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(6))


SENTENCE = "refused, with a sentence of its own that says what to do"
SCIKIT_LEARN_FAILURES = {
    "check_complex_data": SENTENCE,
    "check_fit2d_predict1d": SENTENCE,
    "check_n_features_in_after_fitting": SENTENCE,
    "check_estimators_empty_data_messages": SENTENCE,
    "check_dtype_object": "numbers that are kept as Python objects are refused, not converted",
}
OF_SOME = {
    "check_fit2d_1sample": (lambda cls: not cls.supervised, SENTENCE),
    "check_parameters_default_constructible": (lambda cls: cls.takes == "images", "how to train is an object, frozen"),
}


def expected_failures(hasher):
    some = {check: reason for check, (applies, reason) in OF_SOME.items() if applies(type(hasher))}
    return SCIKIT_LEARN_FAILURES | some


@parametrize_with_checks(
    [make(name, TINY).set_params(n_bits=4) for name in METHODS],
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
def test_scikit_learns_own_checks(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it, those with array API dispatch would be skipped
    check(estimator)


@pytest.fixture(scope="module")
def apart():
    """400 rows of four clusters far apart in 16 dimensions, and their classes."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(4), 100))
    return 3 * rng.normal(size=(4, 16))[y] + 0.5 * rng.normal(size=(400, 16)), y


@pytest.mark.parametrize("name", METHODS)
def test_clusters_far_apart(name, apart):
    """Supervised methods get them right, the others beat codes by chance (whose MAP is about 1/4)."""
    X, y = apart
    own = map_of(make(name, LEARNING).set_params(n_bits=16).fit(X[100:], y[100:]).encode(X), y)
    assert own > (0.95 if METHODS[name].supervised else 0.45)


@pytest.mark.parametrize("name", METHODS)
def test_awkward_rows(name, clusters):
    """Repeated rows and columns that never change are no trouble; rows that are all equal are, for fixed features."""
    X, y = clusters
    X = np.hstack([X, np.full((200, 2), 7.0)])
    X[100:150] = X[50:100]  # some images twice, now and then with another label
    codes = make(name, LEARNING).fit(X, y).encode(X)
    assert len(np.unique(codes.packed, axis=0)) > 3
    assert codes[100:150].equals(codes[50:100])
    few = make(name).fit(X[:20], y[:20])  # fewer rows than anchors, and hardly more than bits
    assert few.encode(X).n_bits == 12
    with pytest.raises(DataError, match="only one class" if METHODS[name].supervised else "all rows"):
        make(name).fit(np.ones((50, 16)), np.zeros(50, int))
    if METHODS[name].takes == "features":
        with pytest.raises(DataError, match="all rows of features are equal"):
            make(name).fit(np.ones((50, 16)), np.arange(50) % 2)


def test_unknown_method():
    with pytest.raises(UsageError, match=r"there is no method 'dtsj' .did you mean 'dtsh'"):
        make_hasher("dtsj")


# As a step of scikit-learn.


class Mine(LinearHasher):
    """A method of a user: one class, one function, one setting."""

    supervised = False
    scale: float = setting(1.0, "length of the projections", above=0)

    def _learn_projection(self, X, labels):
        return self.scale * np.random.default_rng(self.random_state).standard_normal((X.shape[1], self.n_bits))


class Careless(Mine):
    def _learn_projection(self, X, labels):
        return np.random.standard_normal((X.shape[1], self.n_bits))  # noqa: NPY002


def test_a_class_of_ones_own(clusters, tmp_path):
    check_hasher(Mine)
    check_hasher(Mine, scale=2.0)
    check_hasher(Mine(24, scale=2.0).fit(clusters[0]))
    for careless in (Careless, Careless(24)):
        with pytest.raises(AssertionError, match="Careless fails the check 'same seed same codes'"):
            check_hasher(careless)
    Mine(8).fit(clusters[0]).save(tmp_path)
    config = read_sealed(tmp_path / "config.json")
    write_sealed(tmp_path / "config.json", config | {"class": config["class"].replace(":Mine", ":Gone")})
    with pytest.raises(UsageError, match="import that class first"):
        hashlens.load(tmp_path)
    assert Mine.load(tmp_path).encode(clusters[0]).equals(Mine(8).fit(clusters[0]).encode(clusters[0]))


@pytest.mark.parametrize("hasher", [ITQ(8), DTSH(8, training=Training(epochs=2, head_lr=0.1))], ids=["itq", "dtsh"])
def test_pipeline_and_grid_search(hasher, clusters):
    X, y = clusters
    pipeline = make_pipeline(StandardScaler(), hasher).set_output(transform="pandas")
    frame = pipeline.fit_transform(X, y)
    assert frame.shape == (200, 8) and set(np.unique(frame)) <= {-1, 1}
    assert list(frame.columns) == [f"{type(hasher).__name__.lower()}{i}" for i in range(8)]
    search = GridSearchCV(pipeline, {f"{hasher.name}__n_bits": [2, 12]}, cv=2).fit(X, y)
    assert search.best_params_ == {f"{hasher.name}__n_bits": 12} and 0.5 < search.best_score_ <= 1


def test_score_leaves_each_row_out_of_its_own_ranking(clusters):
    X, y = clusters
    hasher = ITQ(6).fit(X)
    codes, rows = hasher.encode(X), np.arange(200)
    alone = [hashlens.evaluate_codes(codes[[i]], codes[rows != i], y[[i]], y[rows != i]) for i in rows]
    assert hasher.score(X, y) == pytest.approx(np.mean([scores["map_tie_aware"] for scores in alone]))


def test_one_image_per_class_teaches_methods_that_need_no_pairs():
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((20, 32))
    X, y = np.repeat(centres, 10, axis=0) + 0.3 * rng.standard_normal((200, 32)), np.arange(20).repeat(10)
    alone = (X[::10].astype(np.float32), y[::10])
    able = [name for name in METHODS if METHODS[name].supervised and not hasher_class(name).needs_pairs]
    assert able == ["dlbhc", "classifier", "ccaitq", "ksh", "sdh"]
    for name in able:
        codes = hashlens.make_hasher(name, n_bits=24, random_state=0).fit(*alone).encode(X.astype(np.float32))
        assert hashlens.evaluate_codes(codes, codes, y, y)["map_tie_aware"] > 0.8, name
    codes = hashlens.make_hasher("dtsh", n_bits=24).fit(*alone).encode(X.astype(np.float32))  # from codes of classes
    assert hashlens.evaluate_codes(codes, codes, y, y)["map_tie_aware"] > 0.8
    with pytest.raises(DataError, match="no class has two images"):
        hashlens.make_hasher("dtsh", n_bits=24, sampling="in-batch").fit(*alone)
