"""ShallowHasher: what all methods on fixed features share. Pictures are turned into features first, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from hashlens.data.labels import Labels
from hashlens.errors import DataError, UsageError
from hashlens.features import DEEP
from hashlens.hashers.base import Hasher, is_features
from hashlens.progress import Progress


@dataclass(kw_only=True, eq=False, repr=False)
class ShallowHasher(Hasher):
    """X may be features, a float array (n, d), or pictures, whose `features` are "gist" or those of a backbone."""

    takes: ClassVar[str] = "features"

    features: str = DEEP

    def fit(self, X: Any, y: Any = None, *, progress: Progress | None = None, **how: Any) -> Self:
        """Learn from pictures or features X and, where the method is supervised, labels y."""
        del how  # a fit of seconds or minutes is neither saved nor continued on the way
        super().fit(self._to_features(X, progress), y)
        self.takes_pictures_ = not is_features(X)
        return self

    def project(self, X: Any, *, progress: Progress | None = None, **how: Any) -> np.ndarray:
        """Real values before the sign, (n, n_bits)."""
        if not self.is_fitted():
            return super().project(X)
        if self.takes_pictures_ == is_features(X):
            expected = f"pictures, by their {self.features} features" if self.takes_pictures_ else "features"
            raise DataError(f"this model was trained on {expected}; give it the same")
        X = self._to_features(X, progress)
        if X.shape[1] != self.n_features_in_:
            raise DataError(f"this model was trained on features with {self.n_features_in_} columns, not {X.shape[1]}")
        return super().project(X, **how)

    def _to_features(self, X: Any, progress: Progress | None) -> np.ndarray:
        if is_features(X):
            return X
        from hashlens.data.images import as_images
        from hashlens.features import picture_features

        images = as_images(X)
        if len(images) == 0:
            raise DataError("there are no pictures; give at least one")
        return picture_features(images, self.features, progress=progress)

    def _learn(self, X: np.ndarray, labels: Labels | None, **how: Any) -> Self:
        if not (X - X[0]).any():
            raise DataError("all rows of features are equal: there is nothing to tell apart; give features that vary")
        super()._learn(X, labels, **how)
        self.n_features_in_ = X.shape[1]
        return self

    def _validate(self, X: Any) -> np.ndarray:
        return super()._validate(X).astype(np.float64)

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Everything learnt is an array whose name ends in an underscore."""
        config = {"takes_pictures": self.takes_pictures_, "n_features": self.n_features_in_}
        learnt = {name: getattr(self, name) for name in self._learnt()}
        return config, {name[:-1]: value for name, value in learnt.items() if isinstance(value, np.ndarray)}

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.takes_pictures_, self.n_features_in_ = config["takes_pictures"], config["n_features"]
        for name, value in arrays.items():
            setattr(self, f"{name}_", value)


class LinearHasher(ShallowHasher):
    """A method whose codes are sgn((x - mean) W); it learns `mean_` (d,) and `projection_` (d, n_bits)."""

    mean_: np.ndarray
    projection_: np.ndarray

    def _fit(self, X: np.ndarray, labels: Labels | None) -> None:
        self.mean_ = X.mean(0)
        self.projection_ = np.ascontiguousarray(self._learn_projection(X - self.mean_, labels))

    def _learn_projection(self, X: np.ndarray, labels: Labels | None) -> np.ndarray:
        """W for centred features."""
        raise NotImplementedError

    def _project(self, X: np.ndarray) -> np.ndarray:
        return (X - self.mean_) @ self.projection_


class KernelHasher(ShallowHasher):
    """A method whose codes are sgn((k(x) - mean) W), where k(x) are the similarities of x to `n_anchors` training rows.

    k(x) = exp(-|x - anchor|^2 / (2 width)); with fewer training rows than anchors, all of them are anchors.
    """

    n_anchors: int
    anchors_: np.ndarray  # (m, d)
    width_: np.ndarray  # (), in units of squared distance
    mean_: np.ndarray  # (m,)
    projection_: np.ndarray  # (m, n_bits)

    def _fit(self, X: np.ndarray, labels: Labels | None) -> None:
        if self.n_anchors < 1:
            raise UsageError(f"n_anchors must be 1 or more, not {self.n_anchors}")
        self.anchors_ = draw_rows(X, self.n_anchors, self.random_state)
        self.width_ = np.array(self._choose_width(squared_distances(X, self.anchors_)))
        K = self._kernel(X)
        self.mean_ = K.mean(0)
        self.projection_ = np.ascontiguousarray(self._learn_projection(X, K - self.mean_, labels))

    def _choose_width(self, squared: np.ndarray) -> float:
        """From the squared distances of all training rows to all anchors; their mean, as in KSH's released code."""
        return float(squared.mean())

    def _learn_projection(self, X: np.ndarray, K: np.ndarray, labels: Labels | None) -> np.ndarray:
        """W (m, n_bits) for features X and their centred similarities K (n, m)."""
        raise NotImplementedError

    def _kernel(self, X: np.ndarray) -> np.ndarray:
        return np.exp(squared_distances(X, self.anchors_) / (-2 * self.width_))

    def _project(self, X: np.ndarray) -> np.ndarray:
        return (self._kernel(X) - self.mean_) @ self.projection_


def draw_rows(X: np.ndarray, n: int, random_state: int) -> np.ndarray:
    """n rows of X, each at most once; all rows, in order, where there are no more."""
    if n >= len(X):
        return X.copy()
    return X[np.sort(np.random.default_rng(random_state).choice(len(X), n, replace=False))]


def squared_distances(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """(n, m): |x - y|^2 for all rows x and y."""
    found = np.square(X).sum(1)[:, None] + np.square(Y).sum(1) - 2 * X @ Y.T
    return np.maximum(found, 0, out=found)  # rounding may leave a little less than nothing
