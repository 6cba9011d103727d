"""Folds: training rows in, rows to learn from and held-out rows out, with near-duplicates always on the same side.

Near-duplicates are near-identical images (see duplicates.py) or, among features, rows with a cosine similarity above
`ALIKE` after subtracting the mean of all rows; near-duplicates of near-duplicates stay together too. If that would join
more than a tenth of all rows, as with few columns, only equal rows count. Every fold has its share of each class; an
image with several labels counts for its rarest label.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
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
        labels, groups = self.labels, near_duplicates(self.images)
        strata = labels.values
        if labels.multi:
            strata = np.where(strata, labels.counts(), len(labels) + 1).argmin(axis=1)
        try:
            return _cuts(labels, strata, groups, n, seed)
        except ValueError as error:  # also a DataError
            fewer = ""
            with suppress(ValueError):
                _cuts(labels, strata, groups, 2, seed)
                fewer = " or use fewer folds, such as 2"
            most = np.unique(np.unique([strata, groups], axis=1)[0], return_counts=True)[1].max()
            raise DataError(
                f"{counted(len(labels), 'training image')}, at most {most} per class if near-duplicates count once,"
                f" cannot be cut into {n} folds that each have similar and different ones; add images per class{fewer}"
            ) from error


def _cuts(
    labels: Labels, strata: np.ndarray, groups: np.ndarray, n: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """n pairs of rows, or a ValueError if a fold would have nothing to learn or to score."""
    from sklearn.model_selection import StratifiedGroupKFold

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about classes with fewer images than folds
        cuts = list(StratifiedGroupKFold(n, shuffle=True, random_state=seed).split(strata, strata, groups))
    for learned, held in cuts:
        require_differences(labels[learned])
        if not (labels[held].counts() * labels[learned].counts()).any():
            raise DataError("no held-out image has a class that is learned")
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
    n, most = len(rows), max(2, len(rows) / 10)
    groups = np.arange(n)
    for part in blocks(n, 1024):
        alike = rows[part] @ rows.T > ALIKE
        joins_too_many = alike.sum(axis=1).max() > most
        if not joins_too_many:
            row, other = alike.nonzero()
            ends = groups[part][row], groups[other]
            graph = sparse.coo_array((np.ones(len(row), np.float32), ends), shape=(n, n))
            groups = connected_components(graph, directed=False)[1][groups]
            joins_too_many = np.bincount(groups).max() > most
        if joins_too_many:  # however the rest is joined
            return np.unique(given, axis=0, return_inverse=True)[1]
    return groups
