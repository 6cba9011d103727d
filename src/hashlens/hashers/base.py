"""Hasher: the contract of every method. `fit` learns, `project` gives real values, `encode` gives codes."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import escape
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError

import hashlens
from hashlens.codes import Codes
from hashlens.codes.bits import require_levels
from hashlens.codes.model import CONFIG, FORMAT, WEIGHTS, ModelFolder
from hashlens.data.images import as_images
from hashlens.data.labels import Labels, require_differences
from hashlens.errors import DataError, HashlensError, MismatchError, StorageError, UsageError
from hashlens.features.extractor import Extractor, is_features
from hashlens.files import replacing
from hashlens.progress import Progress
from hashlens.schema import SHA256, TEXT, conform, optional
from hashlens.settings import (
    changed,
    check,
    describe,
    did_you_mean,
    find_setting,
    from_json,
    require_arguments,
    setting,
    to_json,
)

SECOND = ("second_mean", "second_projection")  # the learned attributes of the second code, see second.py
# raised by code that expects valid files when it meets invalid ones
WRONG = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, RuntimeError, MemoryError)


def require_variation(X: np.ndarray) -> None:
    if not (X - X[0]).any():
        raise DataError("all rows of features are equal, so there is nothing to learn; pass features that vary")


def never() -> bool:
    return False


if TYPE_CHECKING:  # scikit-learn has no types, and a subclass of an untyped class accepts any argument

    class ScikitLearn:
        n_features_in_: int

        def get_params(self, deep: bool = True) -> dict[str, Any]: ...
        def set_params(self, **params: Any) -> Self: ...
        def set_output(self, *, transform: str | None = None) -> Self: ...
        def fit_transform(self, X: Any, y: Any = None, **how: Any) -> Any: ...
        def get_feature_names_out(self, input_features: Any = None) -> np.ndarray: ...
        def __sklearn_tags__(self) -> Any: ...
else:

    class ScikitLearn(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
        pass


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
class Declared:
    """Subclasses are dataclasses without a decorator."""

    def __init_subclass__(cls, **how: Any) -> None:
        dataclass(cls, kw_only=True, eq=False, repr=False)
        super().__init_subclass__(**how)


class Hasher(Declared, ScikitLearn):
    """A method implements `_fit`, `_project`, `_state` and `_restore`; everything else is here, once.

    A method is a dataclass: its settings are fields, which the constructor only stores (scikit-learn's convention, so
    `clone` and `get_params` work). Names of learned attributes end in an underscore.
    """

    name: ClassVar[str] = "hasher"  # its row in METHODS; by default the name of the class in lower case
    supervised: ClassVar[bool] = True
    needs_pairs: ClassVar[bool] = True  # whether fitting needs at least two images that share a label
    takes: ClassVar[str] = "features"
    deterministic: ClassVar[bool] = False  # whether random_state changes nothing

    n_bits: int = field(default=48, kw_only=False, metadata=setting(48, "code length in bits", low=1).metadata)
    random_state: int = setting(0, "seed of everything random in fit", low=0)
    second_bits: int = setting(
        0, "length of a second code, from the features under the hash layer, that orders ties; 0: none", low=0
    )

    def __init_subclass__(cls, **how: Any) -> None:
        cls.name = vars(cls).get("name", cls.__name__.lower())
        super().__init_subclass__(**how)

    def __new__(cls, *n_bits: int, **settings: Any) -> Self:
        require_arguments(cls, settings)  # with a clearer message than Python's
        return super().__new__(cls)

    @classmethod
    def preset(cls, name: str | None, n_bits: int, n_train: int = 5_000) -> Self:
        """The method with its default settings or, for the preset "published", its paper's."""
        if name is None:
            return cls(n_bits)
        published: Any = getattr(cls, "published", None)
        if name != "published" or published is None:
            has = "methods on features, dtsh and dpsh have published"
            raise UsageError(f"there is no preset '{name}' for {cls.name}; {has}")
        return published(n_bits, n_train)

    def set_params(self, **params: Any) -> Self:
        """As in scikit-learn; `training__epochs=3` changes one setting of `training`."""
        for name in list(params):
            part, nested, inner = name.partition("__")
            whole: Any = params.get(part, getattr(self, part, None))
            if nested and hasattr(whole, "__dataclass_fields__"):
                find_setting(type(whole), inner)
                params[part] = replace(whole, **{inner: params.pop(name)})
        require_arguments(type(self), params)
        return super().set_params(**params)

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        run: Path | None = None,
        progress: Progress | bool = False,
        stop: Callable[[], bool] = never,
        **unknown: Any,
    ) -> Self:
        """Learn from images or features X and, where the method is supervised, labels y.

        Images that come with labels (a torch Dataset or DataLoader, a Source) need no y. Methods that train a network
        write checkpoints to the folder `run` and ask `stop` after each step; other methods take seconds or minutes and
        do neither.
        """
        self._refuse_wrong_use(unknown)
        progress = Progress.of(progress)
        X = as_rows(X)
        if y is None and self.supervised and not is_features(X):
            X = as_images(X)
            y = X.labels  # X is a data set, a loader or a source
        X = self._prepare(X, progress)
        labels = self._targets(y, len(X), progress) if self.supervised else None
        return self._learn(X, labels, run=run, progress=progress, stop=stop)

    def _targets(self, y: Any, n: int, progress: Progress) -> Any:
        """The labels of n images, checked."""
        if y is None:
            raise UsageError(
                f"{type(self).__name__} learns from labels: it requires y to be passed, but the target y is None"
            )
        labels = Labels.of(y)
        if len(labels) != n:
            raise DataError(f"there are {n:,} images but {len(labels):,} labels; each image needs its own")
        require_differences(labels, self.needs_pairs)
        return labels

    def _refuse_wrong_use(self, unknown: dict[str, Any]) -> None:
        """Raise errors before an earlier fit is overwritten."""
        for name in unknown:
            if name in {one.name for one in describe(type(self))}:
                raise UsageError(f"'{name}' is a setting; pass it to {type(self).__name__}(...), not to fit")
            fits = [vars(cls)["fit"] for cls in type(self).__mro__ if "fit" in vars(cls)]
            keys = {key for fit in fits for key in signature(fit).parameters}
            known = sorted(keys - {"self", "X", "y", "how", "unknown"})
            raise UsageError(f"fit has no keyword '{name}'{did_you_mean(name, known)}; it has {', '.join(known)}")
        check(self)
        require_levels(self.n_bits, self.second_bits)

    def _prepare(self, X: Any, progress: Progress) -> Any:
        return self._validate(X)

    def _learn(self, X: Any, labels: Labels | None, **how: Any) -> Self:
        self._forget()
        try:
            self._fit(X, labels, **how)
        except BaseException:
            self._forget()  # leave no half-fitted model
            raise
        self.n_bits_ = self.n_bits
        return self

    def project(self, X: Any, *, progress: Progress | bool = False, shared: bool = False) -> np.ndarray:
        """Real values before the sign, (n, n_bits); for `shared` see `Encoder.relaxed`."""
        return self._encoded("relaxed", X, progress, shared)

    def encode(self, X: Any, *, progress: Progress | bool = False, shared: bool = False) -> Codes:
        """Codes of images or features, with their second codes if `second_bits` says so."""
        return self._encoded("codes", X, progress, shared)

    def _encoded(self, what: str, X: Any, progress: Progress | bool, shared: bool) -> Any:
        from hashlens.codes.encoder import Encoder

        encoder = Encoder.of(self)
        X = as_rows(X)
        X = X if is_features(X) else as_images(X)
        n = X.shape[0] if is_features(X) else len(X)
        with Progress.of(progress).bar("codes", n) as advance:
            return getattr(encoder, what)(X, advance, shared=shared)

    def extractor(self) -> Extractor | None:
        """Turns images into the input of `_project`; None if the model was trained on features."""
        return None

    def require_fitted(self) -> None:
        if not self.is_fitted():
            raise NotFittedError(f"this {type(self).__name__} is not fitted; call fit first")
        if self.n_bits != (fitted := getattr(self, "n_bits_", self.n_bits)):
            raise UsageError(
                f"this {type(self).__name__} was fitted with {fitted} bits, not {self.n_bits}; fit it again"
            )

    def transform(self, X: Any) -> np.ndarray:
        """(n, n_bits): the codes as -1 and 1, for scikit-learn."""
        return self.encode(X).signs()

    def score(self, X: Any, y: Any) -> float:
        """Tie-aware MAP with each row as a query and all others as the database."""
        from hashlens.results.metrics import MapDefinition, evaluate_ranking

        codes, labels = self.encode(X), Labels.of(y)
        ranking = evaluate_ranking(codes, codes, labels, labels)
        ranking.items[:, 0] -= 1  # a row is not its own neighbour
        ranking.hits[:, 0] -= labels.matrix().any(axis=1)
        return ranking.mean_average_precision(MapDefinition("expected"))

    def __repr__(self, N_CHAR_MAX: int = 0) -> str:  # scikit-learn passes a number of characters
        settings = {"n_bits": self.n_bits} | changed(self)
        given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        return f"{type(self).__name__}({given}) [{'fitted' if self.is_fitted() else 'not fitted'}]"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"

    def _repr_mimebundle_(self, **how: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    @property
    def _n_features_out(self) -> int:
        return self.n_bits

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self.supervised
        tags.transformer_tags.preserves_dtype = []
        return tags

    def save(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, with checksums; no pickle."""
        from safetensors.numpy import save_file

        self.require_fitted()
        config, arrays = self._state()
        folder = Path(folder)
        with replacing(folder / WEIGHTS) as temporary:
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary)
        header = {"hashlens": hashlens.__version__, "method": self.name, "class": class_path(type(self))}
        ModelFolder(folder).write_config(header | {"params": to_json(self)} | config, [WEIGHTS])

    @classmethod
    def load(cls, folder: str | Path, **given: Any) -> Self:
        """The hasher that `save` wrote to `folder`; `given` has settings that cannot be saved: your backbone.

        The files may be untrusted, so everything in them is checked before use.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load as load_arrays

        folder, model = Path(folder), ModelFolder(Path(folder))
        for name in given:
            find_setting(cls, name)
        try:
            config = model.config()
            arrays = load_arrays(model.content(WEIGHTS))
            if config["method"] != cls.name:
                raise MismatchError(
                    f"{folder} contains a {config['method']} model, not {cls.name}; use hashlens.load(folder)"
                )
            hasher = cls._with_settings(config["params"], given)
            _require_sound(arrays)
            hasher._restore(config, arrays)
            hasher.n_bits_ = hasher.n_bits
            hasher._require_second()
            hasher._require_same_state(config, arrays)
            hasher._require_codes()
        except HashlensError:
            raise
        except (OSError, *WRONG, SafetensorError) as error:
            why = " ".join(str(error).split())[:200] or type(error).__name__
            raise DataError(f"the model in {folder} is missing or damaged ({why}); train or copy it again") from error
        if "format" not in config:  # written by a version without checksums
            with suppress(StorageError):
                model.write_config(config, [WEIGHTS])
        return hasher

    @classmethod
    def _with_settings(cls, params: Any, given: dict[str, Any]) -> Self:
        """A hasher with settings from a file, each checked to be in range."""
        try:
            hasher = cls(**from_json(cls, conform(params, dict, "params")) | given)
            check(hasher)
        except UsageError as error:
            raise ValueError(error.message) from error
        return hasher

    def _require_same_state(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Refuse files with anything that `save` would not have written."""
        state, again = self._state()
        header = {"hashlens": TEXT, "method": TEXT, "class": TEXT, "params": dict}
        schema = header | {optional("format"): FORMAT, optional("files"): {WEIGHTS: SHA256}}
        saved = {optional(name): json.loads(json.dumps(value)) for name, value in state.items()}
        conform(config, schema | saved, CONFIG)
        again = {name: np.ascontiguousarray(array) for name, array in again.items()}  # in the layout that `save` writes
        described = [{name: (a.shape, a.dtype) for name, a in some.items()} for some in (arrays, again)]
        if described[0] != described[1]:
            wrong = min(
                name for name in arrays.keys() | again.keys() if described[0].get(name) != described[1].get(name)
            )
            raise ValueError(f"{wrong} is not the array that it should be")

    def _require_codes(self) -> None:
        """Refuse a model that does not turn its input into codes of n_bits."""
        X = np.random.default_rng(0).standard_normal((32, self._n_projected))
        with np.errstate(all="ignore"):
            shape = self._project(self._validate(X)).shape
        if shape != (32, self.n_bits):
            raise ValueError(f"it gives {shape[1:]} numbers for a code of {self.n_bits} bits")

    def _require_second(self) -> None:
        """Refuse a second code that does not fit the features or the settings."""
        found = [getattr(self, f"{name}_", np.empty(0)).shape for name in SECOND]
        d, n = self.n_features_in_, self.second_bits
        if found != ([(d,), (d, n)] if n else [(0,), (0,)]):
            raise ValueError(f"its second code is not one of {n} bits")
        require_levels(self.n_bits, n)

    @property
    def second_bits_(self) -> int:
        """The length of the learned second code; 0 without one."""
        return self.second_projection_.shape[1] if hasattr(self, "second_projection_") else 0

    def _learn_second(self, features: np.ndarray) -> None:
        """Learn `second_mean_` (d,) and `second_projection_` (d, second_bits) from features under the hash layer."""
        from hashlens.hashers.second import learn_second

        if self.second_bits:
            learned = learn_second(features, self.second_bits, self.random_state)
            self.second_mean_, self.second_projection_ = (array.astype(features.dtype) for array in learned)

    def _project_both(self, X: np.ndarray) -> np.ndarray:
        """Real values of the code, followed by those of the second code, (n, n_bits + second_bits_).

        X is the output of `extractor`: features, or a network's outputs for both codes.
        """
        n = self._n_projected
        first = self._project(X[:, :n])
        if not self.second_bits_:
            return first
        second = X[:, n:] if X.shape[1] > n else (X - self.second_mean_) @ self.second_projection_
        return np.concatenate([first, second], axis=1)

    @property
    def _n_projected(self) -> int:
        """Number of columns that `_project` expects."""
        return self.n_features_in_

    def is_fitted(self) -> bool:
        return bool(self._learned())

    __sklearn_is_fitted__ = is_fitted  # for check_is_fitted, which mistakes lambda_ for a learned attribute

    def _learned(self) -> list[str]:
        params = self.get_params(deep=False)  # lambda_ is a setting despite its underscore
        return [name for name in vars(self) if name.endswith("_") and name not in params]

    def _forget(self) -> None:
        for name in self._learned():
            delattr(self, name)

    def _validate(self, X: Any) -> Any:
        """Features as a finite float array (n, d)."""
        if sparse.issparse(X):
            raise DataError("the features are a sparse matrix, which no method reads; pass X.toarray()")
        X = np.asarray(X)
        if X.ndim != 2 or X.dtype.kind not in "fiub" or X.size == 0:
            what = f"an array of shape {X.shape} and type {X.dtype}"
            raise DataError(f"features must be real numbers in rows, (n, d) with n > 0 and d > 0, not {what}")
        if not np.isfinite(X).all():
            raise DataError("the features contain NaN or infinite values; remove those rows first")
        return X

    def _fit(self, X: Any, labels: Any) -> None:
        """`labels` are `Labels`, or None where the method is not supervised."""
        raise NotImplementedError

    def _project(self, X: np.ndarray) -> np.ndarray:
        """Real values (n, n_bits) for features, or for the outputs of `extractor` on images."""
        raise NotImplementedError

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Everything learned, as JSON and as arrays."""
        raise NotImplementedError

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        raise NotImplementedError


def as_rows(X: Any) -> Any:
    """A data frame, a tensor or lists of numbers as an array (n, d); anything else, such as images, unchanged."""
    listed = isinstance(X, list) and X and isinstance(X[0], list | tuple)
    array = np.asarray(X) if listed or hasattr(X, "__array__") else np.empty(0)
    return array if array.ndim == 2 else X


def _require_sound(arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if not re.fullmatch(r"[A-Za-z0-9_.]{1,200}", name) or array.dtype.kind not in "fiub":
            raise ValueError(f"it has an array called {name[:60]!r} of type {array.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} has values that are not finite")


def class_path(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
