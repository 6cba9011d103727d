"""Hasher: the contract of every method. `fit` learns, `project` gives real values, `encode` gives codes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

import hashlens
from hashlens.codes import Codes
from hashlens.data.labels import Labels, require_differences
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.files import replacing, write_json


@dataclass(kw_only=True, eq=False, repr=False)
class Hasher(BaseEstimator):
    """A method writes `_fit`, `_project`, `_state` and `_restore`; everything else is here, once.

    A method is a dataclass: its settings are fields, which the constructor stores and does nothing else (scikit-learn's
    convention, so `clone` and `get_params` work). What is learnt ends in an underscore.
    """

    name: ClassVar[str]  # its row in METHODS
    supervised: ClassVar[bool] = True
    takes: ClassVar[str] = "features"

    n_bits: int = field(default=48, kw_only=False)
    random_state: int = 0

    def fit(self, X: Any, y: Any = None, **how: Any) -> Self:
        """Learn from pictures or features X and, where the method is supervised, labels y."""
        X = self._validate(X)
        labels = None
        if self.supervised:
            if y is None:
                raise UsageError(f"{type(self).__name__} learns from labels: call fit(X, y)")
            labels = Labels.of(y)
            if len(labels) != len(X):
                raise DataError(f"there are {len(X):,} pictures but {len(labels):,} labels; each picture needs its own")
            require_differences(labels)
        return self._learn(X, labels, **how)

    def _learn(self, X: Any, labels: Labels | None, **how: Any) -> Self:
        if not isinstance(self.n_bits, int | np.integer) or self.n_bits < 1:
            raise UsageError(f"the number of bits must be a whole number from 1 up, not {self.n_bits}")
        if not isinstance(self.random_state, int | np.integer) or self.random_state < 0:
            raise UsageError(f"random_state must be a whole number from 0 up, not {self.random_state}")
        self._forget()
        try:
            self._fit(X, labels, **how)
        except BaseException:
            self._forget()  # half of a model is none
            raise
        return self

    def project(self, X: Any, **how: Any) -> np.ndarray:
        """Real values before the sign, (n, n_bits)."""
        if not self.is_fitted():
            raise NotFittedError(f"this {type(self).__name__} has learnt nothing yet: call fit first")
        return self._project(self._validate(X), **how)

    def encode(self, X: Any, **how: Any) -> Codes:
        """Codes of pictures or features."""
        return Codes.from_relaxed(self.project(X, **how))

    def save(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors; no pickle."""
        from safetensors.numpy import save_file

        if not self.is_fitted():
            raise NotFittedError(f"this {type(self).__name__} has learnt nothing yet: call fit first")
        config, arrays = self._state()
        folder = Path(folder)
        with replacing(folder / "model.safetensors") as temporary:
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary)
        header = {"hashlens": hashlens.__version__, "method": self.name, "params": self._params_as_json()}
        write_json(folder / "config.json", header | config)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The hasher that `save` wrote to `folder`."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            arrays = load_file(folder / "model.safetensors")
            if config["method"] != cls.name:
                raise MismatchError(
                    f"{folder} holds a {config['method']} model, not {cls.name}; use hashlens.load(folder)"
                )
            hasher = cls(**cls._params_from_json(config["params"]))
            hasher._restore(config, arrays)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise DataError(f"the model in {folder} is missing or damaged ({error}); train or copy it again") from error
        return hasher

    def is_fitted(self) -> bool:
        return bool(self._learnt())

    __sklearn_is_fitted__ = is_fitted  # for its check_is_fitted, which takes lambda_ for something learnt

    def _learnt(self) -> list[str]:
        params = self.get_params(deep=False)  # lambda_ is one
        return [name for name in vars(self) if name.endswith("_") and name not in params]

    def _forget(self) -> None:
        for name in self._learnt():
            delattr(self, name)

    def _params_as_json(self) -> dict[str, Any]:
        params = self.get_params(deep=False)
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}

    @classmethod
    def _params_from_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        return params

    def _validate(self, X: Any) -> Any:
        """Features as a finite float array (n, d)."""
        if sparse.issparse(X):
            raise DataError("the features are a sparse matrix, which no method reads; give X.toarray()")
        X = np.asarray(X)
        if X.ndim != 2 or X.dtype.kind not in "fiub" or X.size == 0:
            what = f"an array of shape {X.shape} and type {X.dtype}"
            raise DataError(f"features must be real numbers in rows, (n, d) with n > 0 and d > 0, not {what}")
        if not np.isfinite(X).all():
            raise DataError("the features contain NaN or infinite values; remove those rows first")
        return X

    def _fit(self, X: Any, labels: Labels | None) -> None:
        raise NotImplementedError

    def _project(self, X: Any) -> np.ndarray:
        raise NotImplementedError

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What was learnt, as JSON and as arrays."""
        raise NotImplementedError

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        raise NotImplementedError


def is_features(X: Any) -> bool:
    """Whether X is rows of numbers and not pictures."""
    return (isinstance(X, np.ndarray) and X.ndim == 2) or sparse.issparse(X)
