"""Checks of what every method must do, for each row of METHODS and, with `check_hasher`, for your own class."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from hashlens.codes import Codes
from hashlens.errors import DataError, UsageError
from hashlens.hashers.base import Hasher
from hashlens.settings import describe

Make = Callable[..., Hasher]  # makes a new 12-bit hasher; with learning=True, one that may train for longer


def check_hasher(hasher: type[Hasher] | Hasher, **settings: Any) -> None:
    """Check your own class, or an instance of it; an AssertionError says what is wrong.

    Each check fits a few times, with 12 bits on 200 rows of 16 features: pass `settings` that make this fast.
    """
    cls = hasher if isinstance(hasher, type) else type(hasher)
    if isinstance(hasher, Hasher):
        settings = hasher.get_params(deep=False) | settings

    def make(learning: bool = False, **params: Any) -> Hasher:
        return cls(**settings | {"n_bits": 12} | params)

    X, y = clusters()
    for check in CHECKS:
        try:
            check(make, X.copy(), y.copy())
        except Exception as error:
            about = check.__name__.removeprefix("check_").replace("_", " ")
            raise AssertionError(f"{cls.__name__} fails the check '{about}': {error!r}") from error


def clusters() -> tuple[np.ndarray, np.ndarray]:
    """200 rows of four overlapping clusters in 16 dimensions, and their classes."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(4), 50))
    return rng.normal(size=(4, 16))[y] + 0.8 * rng.normal(size=(200, 16)), y


def map_of(codes: Codes, y: np.ndarray, n_queries: int = 50) -> float:
    """Tie-aware MAP with the first rows as queries against all others."""
    from hashlens.results.metrics import evaluate_codes

    query = np.arange(len(y)) < n_queries
    return evaluate_codes(codes[query], codes[~query], y[query], y[~query])["map_tie_aware"]


@contextmanager
def refused(kind: type[Exception], words: str = "") -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert words in str(error), f"'{words}' is not in the message '{error}'"
    else:
        raise AssertionError(f"expected {kind.__name__}: {words}")


def check_settings(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    """The constructor only stores settings; each has a help text; fit does not change them."""
    cls: Any = type(make())
    names = list(make().get_params(deep=False))
    values = {name: object() for name in names}
    assert vars(cls(**values)) == values
    assert all(one.help for one in describe(cls)), "declare settings by setting(default, help)"
    hasher = make()
    before = dict(hasher.get_params())
    X_before, y_before = X.copy(), y.copy()
    assert hasher.fit(X, y) is hasher
    hasher.encode(X)
    assert all(hasher.get_params()[name] is value for name, value in before.items())
    assert np.array_equal(X, X_before) and np.array_equal(y, y_before)


def check_not_fitted(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    hasher = make()
    assert not hasher.is_fitted()
    uses: list[Callable[[Any], Any]] = [hasher.encode, hasher.project, hasher.transform, hasher.save]
    for use in uses:
        with refused(NotFittedError, "call fit first"):
            use(X)


def check_wrong_keyword_leaves_the_model(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    hasher = make().fit(X, y)
    codes = hasher.encode(X)
    with refused(UsageError, "fit has no keyword 'progres' (did you mean 'progress'?)"):
        hasher.fit(X, y, progres=True)
    with refused(UsageError, "'random_state' is a setting"):
        hasher.fit(X, y, random_state=1)
    with refused(UsageError, "n_bits must be >= 1, got 0"):
        hasher.set_params(n_bits=0).fit(X, y)
    assert hasher.set_params(n_bits=12).encode(X).equals(codes)


def check_same_seed_same_codes(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    first = make(random_state=3).fit(X, y).project(X)
    assert np.array_equal(first, make(random_state=3).fit(X, y).project(X))
    other = make(random_state=4).fit(X, y).project(X)
    assert np.array_equal(first, other) == make().deterministic, "`deterministic` says whether the seed matters"


def check_global_random_state(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    """NumPy's global random state is neither read nor changed; tests of deep methods check torch's."""
    np.random.seed(5)  # noqa: NPY002 (the old global state is what must not move)
    first = make().fit(X, y).project(X)
    assert np.random.random() == np.random.RandomState(5).random()  # noqa: NPY002
    assert np.array_equal(first, make().fit(X, y).project(X))


def check_rows_are_encoded_alone(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    hasher = make().fit(X, y)
    codes = hasher.encode(X)
    for rows in (np.arange(3, 40), np.arange(200)[::-1], np.array([7]), np.array([5, 5, 199])):
        assert hasher.encode(X[rows]).equals(codes[rows])
    assert np.array_equal(hasher.transform(X), codes.signs())


def check_refit_forgets(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    once = make().fit(X, y)
    again = make().fit(-X[:150, :9], y[:150]).fit(X, y)
    assert np.array_equal(once.project(X), again.project(X))
    assert vars(once).keys() == vars(again).keys()


def check_number_of_bits(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    for n_bits in (1, 40):
        hasher = make(n_bits=n_bits).fit(X, y)
        codes, u = hasher.encode(X), hasher.project(X)
        assert (len(codes), codes.n_bits, u.shape) == (200, n_bits, (200, n_bits))
        assert np.array_equal(codes.signs(), np.where(u > 0, 1, -1))


def check_float32_and_float64_agree(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    single, double = (make().fit(X.astype(kind), y) for kind in (np.float32, np.float64))
    assert single.encode(X).equals(double.encode(X))
    assert single.encode(X.astype(np.float32)).equals(single.encode(X))


def check_labels(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    """Labels may be (n,) numbers, strings or (n, c) sets; unsupervised methods ignore them."""
    codes = make().fit(X, y).encode(X)
    if not make().supervised:
        assert make().fit(X).encode(X).equals(codes)
        assert make().fit(X, 3 - y).encode(X).equals(codes)
        return
    assert make().fit(X, np.array(list("abcd"))[y]).encode(X).equals(codes)
    assert map_of(make(learning=True).fit(X, np.eye(4, dtype=int)[y]).encode(X), y) > 0.6
    with refused(UsageError, "learns from labels"):
        make().fit(X)
    for length in (0, 199, 201):
        with refused(DataError, f"200 images but {length} labels"):
            make().fit(X, np.resize(y, length))


def check_bad_features_are_refused(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    hasher = make().fit(X, y)
    for bad in (np.nan, np.inf):
        wrong = X.copy()
        wrong[17, 3] = bad
        for use in (lambda x: make().fit(x, y), hasher.encode):
            with refused(DataError, "NaN or infinite"):
                use(wrong)
    with refused(DataError, "16 columns"):
        hasher.encode(X[:, :15])
    with refused(DataError, "n > 0"):
        hasher.encode(X[:0])


def check_clone_and_repr(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    hasher = make(random_state=9).fit(X, y)
    copy = clone(hasher)
    assert not copy.is_fitted() and copy.get_params() == hasher.get_params()
    assert repr(copy).startswith(f"{type(hasher).__name__}(n_bits=12, ") and repr(copy).endswith(") [not fitted]")
    assert repr(hasher).endswith(" [fitted]") and escape(repr(hasher)) in hasher._repr_html_()
    assert copy.fit(X, y).encode(X).equals(hasher.encode(X))


def check_save_then_load(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    from hashlens.hashers.methods import load

    hasher = make(random_state=2).fit(X, y)
    with TemporaryDirectory() as folder:
        first, again = Path(folder) / "model", Path(folder) / "again"
        hasher.save(first)
        assert sorted(path.name for path in first.iterdir()) == ["config.json", "model.safetensors"]
        for loaded in (load(first), type(hasher).load(first)):
            assert type(loaded) is type(hasher) and loaded.get_params() == hasher.get_params()
            assert np.array_equal(loaded.project(X), hasher.project(X))
        loaded.save(again)
        for file in ("config.json", "model.safetensors"):
            assert (again / file).read_bytes() == (first / file).read_bytes()


def check_map_beats_chance(make: Make, X: np.ndarray, y: np.ndarray) -> None:
    """MAP beats chance by far and, with labels, random projections too."""
    rng = np.random.default_rng(1)
    hasher = make(learning=True).fit(X[50:], y[50:])
    own = map_of(hasher.encode(X), y)
    chance = map_of(Codes.from_relaxed(rng.normal(size=(200, 12))), y)
    assert own > chance + 0.2, f"MAP is {own:.3f}, by chance {chance:.3f}"
    if hasher.supervised:
        projections = [map_of(Codes.from_relaxed(X @ rng.normal(size=(16, 12))), y) for _ in range(5)]
        assert own > max(projections) + 0.05, f"MAP is {own:.3f}, of random projections {max(projections):.3f}"


CHECKS: list[Callable[[Make, np.ndarray, np.ndarray], None]] = [
    check for name, check in list(globals().items()) if name.startswith("check_") and name != "check_hasher"
]
