"""Folds: training rows in, rows to learn from and held-out rows out, with near-duplicates always on the same side.

Near-duplicates are near-identical images (see duplicates.py) or, among features, rows with a cosine similarity above
`ALIKE` after subtracting the mean of all rows; near-duplicates of near-duplicates stay together too. If that would join
more than a tenth of all rows, as with few columns, only equal rows count. Every fold has its share of each class; an
image with several labels counts for its rarest label.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from hashlens.data.duplicates import near_identical
from hashlens.data.images import Images
from hashlens.data.labels import Labels, require_differences
from hashlens.data.protocols import Protocol
from hashlens.data.sources import Source
from hashlens.errors import DataError
from hashlens.machine import blocks
from hashlens.progress import counted

ALIKE = 0.95


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Images or features for training, with their labels. No other row can be reached from here."""

    name: str
    images: Any
    labels: Labels

    @classmethod
    def of(cls, source: Source, protocol: Protocol) -> TrainingRows:
        """The training rows of a source: neither its queries nor the rest of its database."""
        chosen: Any = source.images[protocol.train]
        images = chosen.alone() if isinstance(chosen, Images) else np.array(chosen)
        return cls(source.name, images, source.labels[protocol.train])

    def folds(self, n: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
        """n pairs of (rows to learn from, held-out rows); each row is held out once."""
        from sklearn.model_selection import StratifiedGroupKFold

        few = f"{counted(len(self.labels), 'training image')} cannot be cut into {n} folds that each have"
        labels, groups = self.labels, near_duplicates(self.images)
        has, counts = labels.matrix() > 0, labels.counts()
        strata = np.where(has, counts, len(labels) + 1).argmin(axis=1)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about classes with fewer images than folds
                cuts = list(StratifiedGroupKFold(n, shuffle=True, random_state=seed).split(strata, strata, groups))
            for learned, held in cuts:
                require_differences(labels[learned])
                if not (has[held] & has[learned].any(axis=0)).any():
                    raise DataError("no held-out image has a class that is learned")
        except ValueError as error:  # also a DataError
            raise DataError(f"{few} similar and different ones; add images per class or use fewer folds") from error
        return cuts


def near_duplicates(images: Any) -> np.ndarray:
    """(n,) the group number of each row; most groups are a single row."""
    if isinstance(images, Images):
        groups = np.arange(len(images))
        for group in near_identical(images):
            groups[group] = group[0]
        return groups
    from scipy import sparse
    from scipy.sparse.csgraph import connected_components

    given = np.asarray(images, np.float32)
    rows = given - given.mean(0)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    alike = [sparse.csr_array(rows[part] @ rows.T > ALIKE) for part in blocks(len(rows), 1024)]
    groups = connected_components(sparse.vstack(alike), directed=False)[1]
    if np.bincount(groups).max() > max(2, len(rows) / 10):
        groups = np.unique(given, axis=0, return_inverse=True)[1]
    return groups
