"""Class numbers, class names or 0/1 label matrices in, `Labels` out, and who is relevant to whom.

Two items are relevant to each other if they share at least one label; this file is the only one that knows
how single labels and label sets differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hashlens.errors import DataError, MismatchError, UsageError

MAX_CLASSES = 1_000_000  # a larger class number is surely an id, and would need as many names


@dataclass(frozen=True, eq=False)
class Labels:
    """One class number, or a set of classes, for each of n items."""

    values: np.ndarray  # (n,) int64 class numbers, or (n, c) bool
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.multi:
            if self.values.dtype != bool or self.values.ndim != 2:
                raise DataError(f"labels are {self.values.dtype} {self.values.shape}; use Labels.of")
            if self.values.shape[1] != len(self.names):
                raise MismatchError(f"{self.values.shape[1]} label columns have {len(self.names)} names; give one each")
        elif self.values.dtype != np.int64:
            raise DataError(f"labels are {self.values.dtype} {self.values.shape}; use Labels.of")
        elif len(self.values) and self.values.min() < 0:
            raise DataError(f"class number {self.values.min()} is negative; number classes from 0")
        elif len(self.values) and self.values.max() >= len(self.names):
            raise MismatchError(
                f"class number {self.values.max()} has no name among {len(self.names)}; give more names"
            )

    @classmethod
    def of(cls, values: Any, names: Sequence[str] | None = None) -> Labels:
        """Labels from class numbers (kept as they are), strings, or an (n, c) array of 0 and 1.

        Without `names`, strings are numbered in sorted order and numbers are named after themselves; strings
        of a query and a database that may not hold the same classes need the same `names`.

        >>> Labels.of(["dog", "cat", "dog"]).values.tolist()
        [1, 0, 1]
        """
        if isinstance(values, Labels):
            if names is not None and tuple(names) != values.names:
                raise UsageError("these labels have names already; give the plain values to name them anew")
            return values
        try:
            values = np.asarray(values)
        except ValueError as error:
            raise DataError(
                f"labels have rows of different lengths ({error}); give 0/1 columns, one a class"
            ) from error
        if values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat):
            values = values.astype(str)
        if values.ndim == 1 and values.dtype.kind == "U":
            return cls._of_strings(values, names)
        if values.dtype.kind not in "biuf":
            raise DataError(f"labels are {values.dtype}; give whole numbers, strings or a 0/1 matrix")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(f"{(~np.isfinite(values)).sum()} labels are NaN or infinite; leave those items out")
        if values.ndim == 1:
            return cls._of_numbers(values, names)
        if values.ndim == 2:
            return cls._of_matrix(values, names)
        raise DataError(f"labels have shape {values.shape}; give (n,) class numbers or an (n, c) 0/1 matrix")

    @classmethod
    def _of_strings(cls, values: np.ndarray, names: Sequence[str] | None) -> Labels:
        names = sorted(set(values.tolist())) if names is None else list(names)
        number = {name: i for i, name in enumerate(names)}
        unknown = sorted(set(values.tolist()) - number.keys())
        if unknown:
            raise MismatchError(f"label {unknown[0]!r} is not among the {len(names)} given names; add it")
        return cls(np.array([number[value] for value in values.tolist()], np.int64), tuple(names))

    @classmethod
    def _of_numbers(cls, values: np.ndarray, names: Sequence[str] | None) -> Labels:
        numbers = values.astype(np.int64)
        if (numbers != values).any():
            raise DataError(f"label {values[numbers != values][0]} is not a whole number; round or give strings")
        highest = int(numbers.max()) if len(numbers) else -1
        if highest >= MAX_CLASSES:
            raise DataError(f"class number {highest} is over {MAX_CLASSES - 1}; give the labels as strings instead")
        return cls(numbers, tuple(map(str, range(highest + 1) if names is None else names)))

    @classmethod
    def _of_matrix(cls, values: np.ndarray, names: Sequence[str] | None) -> Labels:
        if values.shape[1] == 1:
            raise DataError(f"labels have shape {values.shape}; use values[:, 0] for class numbers")
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            raise DataError(f"a label matrix holds {values[wrong][0]}; only 0 and 1 are allowed, one column a class")
        return cls(values.astype(bool), tuple(map(str, range(values.shape[1]) if names is None else names)))

    @property
    def multi(self) -> bool:
        """Whether an item may have several labels, or none."""
        return self.values.ndim != 1

    @property
    def n_classes(self) -> int:
        return len(self.names)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> Labels:
        """The labels of some rows: a slice, an array of row numbers, a bool mask, or one number."""
        if isinstance(rows, int | np.integer):
            rows = np.array([rows])
        return Labels(self.values[rows], self.names)

    def describe(self, row: int) -> str:
        if not self.multi:
            return self.names[self.values[row]]
        return ", ".join(self.names[i] for i in np.flatnonzero(self.values[row])) or "no label"

    def counts(self) -> np.ndarray:
        """(n_classes,) int64: how many items have each class."""
        if self.multi:
            return self.values.sum(axis=0, dtype=np.int64)
        return np.bincount(self.values, minlength=self.n_classes).astype(np.int64)

    def matrix(self) -> np.ndarray:
        """(n, n_classes) float64 of 0 and 1: which classes each item has."""
        if self.multi:
            return self.values.astype(np.float64)
        return (self.values[:, None] == np.arange(self.n_classes)).astype(np.float64)


def require_differences(labels: Labels) -> None:
    """Refuse labels that say nothing: nothing that belongs together, or nothing to tell apart."""
    counts = labels.counts()
    if (counts > 0).sum() < 2:
        raise DataError("all pictures are of one class; learning needs at least two classes to tell apart")
    if counts.max() == len(labels):
        raise DataError(
            f"all pictures share the label '{labels.names[int(counts.argmax())]}'; learning needs pictures that differ"
        )
    if counts.max() < 2:
        raise DataError("no class has two pictures; learning needs pairs of pictures that belong together")


def require_comparable(query: Labels, database: Labels) -> None:
    """Refuse two sets of labels whose class numbers cannot mean the same."""
    if query.multi != database.multi:
        raise MismatchError("one side has single labels and the other label sets; give both in the same form")
    if query.multi and query.n_classes != database.n_classes:
        raise MismatchError(
            f"query labels have {query.n_classes} columns and database labels {database.n_classes};"
            " give both the same classes"
        )
    # strings numbered separately for query and database would match dogs with cats without a sound
    if _numbered(query.names) or _numbered(database.names):
        return
    for number, (ours, theirs) in enumerate(zip(query.names, database.names, strict=False)):
        if ours != theirs:
            raise MismatchError(
                f"class {number} is {ours!r} in the query and {theirs!r} in the database;"
                " make both with the same names: Labels.of(values, names)"
            )


def _numbered(names: tuple[str, ...]) -> bool:
    return all(name == str(i) for i, name in enumerate(names))


def relevant(query: Labels, database: Labels) -> np.ndarray:
    """(q, d) bool: whether query and database item share at least one label."""
    require_comparable(query, database)
    if not query.multi:
        return query.values[:, None] == database.values
    # float32 because numpy multiplies integer matrices without BLAS
    return query.values.astype(np.float32) @ database.values.T.astype(np.float32) > 0
