"""What every method must do, as fifteen checks; each runs on each row of METHODS."""

import inspect

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import hashlens
from hashlens import METHODS, Codes, Training, evaluate_codes, make_hasher
from hashlens.errors import DataError, UsageError

SMALL = {  # for methods that have a training loop, grow many trees, or draw some of the rows
    "training": Training(epochs=5, batch_size=25, head_lr=0.1),
    "n_trees": 30,
    "n_anchors": 60,
    "hidden": (24,),
    "epochs": 10,
    "pretraining_epochs": 5,
    "noise": 1.0,
}


LEARNING = SMALL | {"epochs": 150}  # where it matters that something is learnt
TINY = SMALL | {"training": Training(epochs=1), "n_trees": 2, "n_epochs": 1, "epochs": 1}  # where nothing is learnt


def make(name, settings=SMALL, **params):
    parameters = inspect.signature(hashlens.hashers.hasher_class(name)).parameters
    return make_hasher(name, **{k: v for k, v in settings.items() if k in parameters}, n_bits=12, **params)


def map_of(codes, y):
    query = np.arange(len(y)) < 50
    return evaluate_codes(codes[query], codes[~query], y[query], y[~query])["map_tie_aware"]


def check_fit_returns_self(name, X, y):
    hasher = make(name)
    assert hasher.fit(X, y) is hasher


def check_constructor_stores_arguments(name, X, y):
    cls = hashlens.hashers.hasher_class(name)
    parameters = [p for p in inspect.signature(cls).parameters if p != "n_bits"]
    values = {p: object() for p in parameters}
    n_bits = object()
    hasher = cls(n_bits, **values)
    assert vars(hasher) == {"n_bits": n_bits, **values}
    assert cls.name == name and METHODS[name].path.endswith(f":{cls.__name__}")
    assert (cls.supervised, cls.takes) == (METHODS[name].supervised, METHODS[name].takes)


def check_fit_leaves_parameters_and_data(name, X, y):
    hasher = make(name)
    before = dict(hasher.get_params())
    X_before, y_before = X.copy(), y.copy()
    hasher.fit(X, y).encode(X)
    assert all(hasher.get_params()[k] is v for k, v in before.items())
    assert np.array_equal(X, X_before) and np.array_equal(y, y_before)


def check_encode_before_fit_raises(name, X, y):
    hasher = make(name)
    assert not hasher.is_fitted()
    for use in (hasher.encode, hasher.project, hasher.save):
        with pytest.raises(NotFittedError, match="call fit first"):
            use(X)


def check_same_seed_same_codes(name, X, y):
    first = make(name, random_state=3).fit(X, y)
    assert np.array_equal(first.project(X), make(name, random_state=3).fit(X, y).project(X))
    other = make(name, random_state=4).fit(X, y).project(X)
    assert np.array_equal(first.project(X), other) == (name in DRAW_NOTHING)


def check_global_random_state_is_untouched(name, X, y):
    np.random.seed(5)  # noqa: NPY002 (the old global state is what must not move)
    torch.manual_seed(6)
    first = make(name).fit(X, y).project(X)
    assert np.random.random() == np.random.RandomState(5).random()  # noqa: NPY002
    assert torch.rand(1) == torch.rand(1, generator=torch.Generator().manual_seed(6))
    assert np.array_equal(first, make(name).fit(X, y).project(X))  # nor does it matter


def check_rows_are_encoded_alone(name, X, y):
    hasher = make(name).fit(X, y)
    codes = hasher.encode(X)
    for rows in (np.arange(3, 40), np.arange(200)[::-1], np.array([7]), np.array([5, 5, 199])):
        assert hasher.encode(X[rows]).equals(codes[rows])


def check_refit_forgets(name, X, y):
    once = make(name).fit(X, y)
    again = make(name).fit(-X[:150, :9], y[:150]).fit(X, y)
    assert np.array_equal(once.project(X), again.project(X))
    assert vars(once).keys() == vars(again).keys()


def check_number_of_bits(name, X, y):
    for n_bits in (1, 12, 24, 32, 48):
        hasher = make(name).set_params(n_bits=n_bits).fit(X, y)
        codes = hasher.encode(X)
        assert isinstance(codes, Codes) and (len(codes), codes.n_bits) == (200, n_bits)
        assert hasher.project(X).shape == (200, n_bits)
        assert np.array_equal(codes.signs(), np.where(hasher.project(X) > 0, 1, -1))
    for wrong in (0, -3, 2.5, "12", None):
        with pytest.raises(UsageError, match="number of bits"):
            make(name).set_params(n_bits=wrong).fit(X, y)


def check_float32_and_float64_agree(name, X, y):
    single, double = (make(name).fit(X.astype(kind), y) for kind in (np.float32, np.float64))
    assert single.encode(X).equals(double.encode(X))
    assert single.encode(X.astype(np.float32)).equals(single.encode(X))


def check_labels(name, X, y):
    """(n,) numbers, strings and (n, c) sets are understood; unsupervised methods do not look at them."""
    codes = make(name).fit(X, y).encode(X)
    if not METHODS[name].supervised:
        assert make(name).fit(X).encode(X).equals(codes)
        assert make(name).fit(X, 3 - y).encode(X).equals(codes)
        return
    assert make(name).fit(X, np.array(list("abcd"))[y]).encode(X).equals(codes)
    sets = make(name, LEARNING).fit(X, np.eye(4, dtype=int)[y]).encode(X)
    assert map_of(sets, y) > 0.6
    with pytest.raises(UsageError, match="learns from labels"):
        make(name).fit(X)
    for length in (0, 199, 201):
        with pytest.raises(DataError, match=f"200 pictures but {length} labels"):
            make(name).fit(X, np.resize(y, length))


def check_bad_features_are_refused(name, X, y):
    hasher = make(name).fit(X, y)
    for bad in (np.nan, np.inf):
        wrong = X.copy()
        wrong[17, 3] = bad
        for use in (lambda x: make(name).fit(x, y), hasher.encode):
            with pytest.raises(DataError, match="NaN or infinite"):
                use(wrong)
    with pytest.raises(DataError, match="16 columns"):
        hasher.encode(X[:, :15])
    with pytest.raises(DataError, match="n > 0"):
        hasher.encode(X[:0])


def check_clone_and_repr(name, X, y):
    hasher = make(name, random_state=9).fit(X, y)
    copy = clone(hasher)
    assert not copy.is_fitted() and copy.get_params() == hasher.get_params()
    assert repr(copy).startswith(f"{type(hasher).__name__}(") and "n_bits=12" in repr(copy)
    assert copy.fit(X, y).encode(X).equals(hasher.encode(X))


def check_save_then_load(name, X, y, folder):
    hasher = make(name, random_state=2).fit(X, y)
    hasher.save(folder / "model")
    assert sorted(path.name for path in (folder / "model").iterdir()) == ["config.json", "model.safetensors"]
    for loaded in (hashlens.load(folder / "model"), type(hasher).load(folder / "model")):
        assert type(loaded) is type(hasher) and loaded.get_params() == hasher.get_params()
        assert np.array_equal(loaded.project(X), hasher.project(X))
    loaded.save(folder / "again")
    for file in ("config.json", "model.safetensors"):
        assert (folder / "again" / file).read_bytes() == (folder / "model" / file).read_bytes()


def check_map_beats_chance(name, X, y):
    rng = np.random.default_rng(1)
    own = map_of(make(name, LEARNING).fit(X[50:], y[50:]).encode(X), y)  # the queries are the first 50 rows
    chance = map_of(Codes.from_relaxed(rng.normal(size=(200, 12))), y)
    assert chance < 0.35 and own > chance + 0.2
    if METHODS[name].supervised:
        projections = [map_of(Codes.from_relaxed(X @ rng.normal(size=(16, 12))), y) for _ in range(5)]
        assert own > max(projections) + 0.05


DRAW_NOTHING = {"sh", "splh"}  # methods without any randomness: the seed changes nothing
CHECKS = [value for key, value in list(globals().items()) if key.startswith("check_")]
EXPECTED_FAILURES: dict[tuple[str, str], str] = {}  # (method, check): why


def test_there_are_fifteen_checks_and_expected_failures_exist():
    assert len(CHECKS) == 15
    names = {check.__name__ for check in CHECKS}
    assert all(method in METHODS and check in names for method, check in EXPECTED_FAILURES)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_method(name, check, clusters, tmp_path, request):
    reason = EXPECTED_FAILURES.get((name, check.__name__))
    if reason:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    extra = {"folder": tmp_path} if "folder" in inspect.signature(check).parameters else {}
    check(name, *clusters, **extra)


SENTENCE = "refused, with a sentence of its own that says what to do"
SCIKIT_LEARN_FAILURES = {
    "check_complex_data": SENTENCE,
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
def test_scikit_learns_own_checks(estimator, check):
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
    X[100:150] = X[50:100]  # some pictures twice, now and then with another label
    codes = make(name, LEARNING).fit(X, y).encode(X)
    assert len(np.unique(codes.packed, axis=0)) > 3
    assert codes[100:150].equals(codes[50:100])
    few = make(name).fit(X[:20], y[:20])  # fewer rows than anchors, and hardly more than bits
    assert few.encode(X).n_bits == 12
    with pytest.raises(DataError, match="all pictures are of one class" if METHODS[name].supervised else "all rows"):
        make(name).fit(np.ones((50, 16)), np.zeros(50, int))
    if METHODS[name].takes == "features":
        with pytest.raises(DataError, match="all rows of features are equal"):
            make(name).fit(np.ones((50, 16)), np.arange(50) % 2)


def test_unknown_method():
    with pytest.raises(UsageError, match="there is no method 'dtsj'; choose one of dtsh"):
        make_hasher("dtsj")
