"""ShallowHasher: what all methods on fixed features share. Pictures are turned into features first, once."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from hashlens.data.labels import Labels
from hashlens.errors import DataError
from hashlens.hashers.base import Hasher
from hashlens.progress import Progress


class ShallowHasher(Hasher):
    """X may be features, a float array (n, d), or pictures, whose features are those of the backbone `features`."""

    takes: ClassVar[str] = "features"

    features: str

    def fit(self, X: Any, y: Any = None, *, progress: Progress | None = None, **how: Any) -> Self:
        """Learn from pictures or features X and, where the method is supervised, labels y."""
        del how  # a fit of seconds or minutes is neither saved nor continued on the way
        super().fit(self._to_features(X, progress), y)
        self.takes_pictures_ = not _is_features(X)
        return self

    def project(self, X: Any, *, progress: Progress | None = None, **how: Any) -> np.ndarray:
        """Real values before the sign, (n, n_bits)."""
        if self.is_fitted() and self.takes_pictures_ == _is_features(X):
            expected = f"pictures, by their {self.features} features" if self.takes_pictures_ else "features"
            raise DataError(f"this model was trained on {expected}; give it the same")
        return super().project(self._to_features(X, progress) if self.is_fitted() else X, **how)

    def _to_features(self, X: Any, progress: Progress | None) -> np.ndarray:
        if _is_features(X):
            return X
        from hashlens.data.images import as_images
        from hashlens.features import deep_features

        images = as_images(X)
        if len(images) == 0:
            raise DataError("there are no pictures; give at least one")
        return deep_features(images, self.features, progress=progress)

    def _validate(self, X: Any) -> np.ndarray:
        return super()._validate(X).astype(np.float64)


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
        if X.shape[1] != len(self.mean_):
            raise DataError(f"this model was trained on features with {len(self.mean_)} columns, not {X.shape[1]}")
        return (X - self.mean_) @ self.projection_

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"takes_pictures": self.takes_pictures_}, {"mean": self.mean_, "projection": self.projection_}

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.takes_pictures_ = config["takes_pictures"]
        self.mean_, self.projection_ = arrays["mean"], arrays["projection"]


def _is_features(X: Any) -> bool:
    return isinstance(X, np.ndarray) and X.ndim == 2
