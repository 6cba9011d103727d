"""ShallowHasher, the base of methods on fixed features: it first turns images into features."""

from typing import Any, ClassVar, Self

import numpy as np
from scipy import linalg

from hashlens.data.images import as_images
from hashlens.data.labels import Labels
from hashlens.errors import MismatchError
from hashlens.features.extractor import DEEP, Extractor, extractor, image_features, is_features
from hashlens.hashers.base import Hasher, as_rows, require_variation
from hashlens.progress import Progress
from hashlens.ranks import ALONE, Ranks
from hashlens.schema import conform, whole
from hashlens.settings import describe, setting


class ShallowHasher(Hasher):
    """X is features, a float array (n, d), or images, from which `features` ("gist" or a backbone) are computed."""

    takes: ClassVar[str] = "features"

    features: str = setting(DEEP, "features computed from images: gist, or the name of a backbone")

    @classmethod
    def published(cls, n_bits: int = 48, n_train: int = 5_000, **changes: Any) -> Self:
        """The settings for the paper's tables, with your `changes`; few depend on the number of training rows."""
        theirs = {one.name: one.published for one in describe(cls) if one.published is not ...}
        return cls(n_bits, **theirs | changes)

    def fit(self, X: Any, y: Any = None, **how: Any) -> Self:
        """Learn from images or features X and, where the method is supervised, labels y."""
        X = as_rows(X)
        super().fit(X, y, **how)
        self.takes_images_ = not is_features(X)
        if self.takes_images_:
            self.probe_ = extractor(self.features).probe  # saved like the other learned arrays
        return self

    def _prepare(self, X: Any, progress: Progress) -> np.ndarray:
        if not is_features(X):
            X = image_features(as_images(X), self.features, progress=progress, ranks=self._ranks)
        return self._validate(X)

    @property
    def _ranks(self) -> Ranks:
        """The processes that fit this model together."""
        return ALONE

    def extractor(self) -> Extractor | None:
        if not self.takes_images_:
            return None
        found = extractor(self.features)
        if not found.gives(getattr(self, "probe_", None)):
            raise MismatchError(
                f"the features {self.features} are not those that this {type(self).__name__} was fitted on: their"
                " network has other weights or other code now; restore it, or fit again"
            )
        return found

    def _learn(self, X: np.ndarray, labels: Labels | None, **how: Any) -> Self:
        require_variation(X)
        super()._learn(X, labels)
        self._learn_second(X)
        self.n_features_in_ = X.shape[1]
        return self

    def _validate(self, X: Any) -> np.ndarray:
        return super()._validate(X).astype(np.float64)

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Everything learned is an array whose name ends in an underscore."""
        config = {"takes_images": self.takes_images_, "n_features": self.n_features_in_}
        learned = {name: getattr(self, name) for name in self._learned()}
        return config, {name[:-1]: value for name, value in learned.items() if isinstance(value, np.ndarray)}

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.takes_images_ = conform(config["takes_images"], bool, "takes_images")
        self.n_features_in_ = conform(config["n_features"], whole(1, 2**24), "n_features")
        if taken := {"n_bits", "takes_images", "n_features_in", "second_bits"} & arrays.keys():
            raise ValueError(f"it has an array called {min(taken)}")
        for name, value in arrays.items():
            setattr(self, f"{name}_", value)


class LinearHasher(ShallowHasher):
    """A method whose codes are sgn((x - mean) W); it learns `mean_` (d,) and `projection_` (d, n_bits)."""

    def _fit(self, X: np.ndarray, labels: Any) -> None:
        self.mean_ = X.mean(0)
        self.projection_ = np.ascontiguousarray(self._learn_projection(X - self.mean_, labels))

    def _learn_projection(self, X: np.ndarray, labels: Any) -> np.ndarray:
        """W for centred features."""
        raise NotImplementedError

    def _project(self, X: np.ndarray) -> np.ndarray:
        return (X - self.mean_) @ self.projection_


class KernelHasher(ShallowHasher):
    """A method whose codes are sgn((k(x) - mean) W), where k(x) are the similarities of x to `n_anchors` training rows.

    k(x) = exp(-|x - anchor|^2 / (2 s)), where s is `width` times the mean of |x - anchor|^2 over the training rows.
    With fewer training rows than anchors, all of them are anchors.
    """

    n_anchors: int = setting(1000, "number of anchors", low=1)
    width: float = setting(1.0, "kernel width relative to the mean squared distance to anchors", above=0)

    def _fit(self, X: np.ndarray, labels: Any) -> None:
        self.anchors_ = draw_rows(X, self.n_anchors, self.random_state)  # (m, d)
        self.width_ = np.array(self.width * squared_distances(X, self.anchors_).mean())
        K = self._kernel(X)
        self.mean_ = K.mean(0)  # (m,)
        self.projection_ = np.ascontiguousarray(self._learn_projection(X, K - self.mean_, labels))

    def _learn_projection(self, X: np.ndarray, K: np.ndarray, labels: Any) -> np.ndarray:
        """W (m, n_bits) for features X and their centred similarities K (n, m)."""
        raise NotImplementedError

    def _kernel(self, X: np.ndarray) -> np.ndarray:
        return np.exp(squared_distances(X, self.anchors_) / (-2 * self.width_))

    def _project(self, X: np.ndarray) -> np.ndarray:
        return (self._kernel(X) - self.mean_) @ self.projection_


def signs(u: np.ndarray) -> np.ndarray:
    return np.where(u > 0, 1.0, -1.0)


def ridge(X: np.ndarray, Y: np.ndarray, weight: float) -> np.ndarray:
    """(d, c): the W that minimises ||X W - Y||^2 + weight ||W||^2."""
    return linalg.solve(X.T @ X + weight * np.eye(X.shape[1]), X.T @ Y, assume_a="pos")


def draw_rows(X: np.ndarray, n: int, random_state: int) -> np.ndarray:
    """n rows of X, each at most once; all rows, in order, where there are no more."""
    if n >= len(X):
        return X.copy()
    return X[np.sort(np.random.default_rng(random_state).choice(len(X), n, replace=False))]


def squared_distances(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """(n, m): |x - y|^2 for all rows x and y."""
    found = np.square(X).sum(1)[:, None] + np.square(Y).sum(1) - 2 * X @ Y.T
    return np.maximum(found, 0, out=found)  # rounding may leave slightly negative values
