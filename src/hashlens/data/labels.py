"""Labels: class numbers, names or 0/1 matrices in, relevance out: two items are relevant if they share a label."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hashlens.errors import DataError, MismatchError, UsageError

MAX_CLASSES = 1_000_000  # larger numbers are surely ids


@dataclass(frozen=True, eq=False)
class Labels:
    """One class number, or a set of classes, for each of n items."""

    values: np.ndarray  # (n,) int64 class numbers, or (n, c) bool
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if (self.values.dtype, self.values.ndim) not in ((np.int64, 1), (np.bool_, 2)):
            raise DataError(f"labels are {self.values.dtype} {self.values.shape}; use Labels.of")
        if self.multi and self.values.shape[1] != len(self.names):
            raise MismatchError(
                f"{self.values.shape[1]} label columns but {len(self.names)} names; give each column one name"
            )
        if not self.multi and self.values.min(initial=0) < 0:
            raise DataError(f"class number {self.values.min()} is negative; number classes from 0")
        if not self.multi and self.values.max(initial=-1) >= len(self.names):
            raise MismatchError(f"class number {self.values.max()} needs more than {len(self.names)} names; add them")

    @classmethod
    def of(cls, values: Any, names: Sequence[str] | None = None) -> Labels:
        """Labels from class numbers, strings, or an (n, c) array of 0 and 1.

        Without `names`, strings are numbered in sorted order: a query and a database with different classes need the
        same `names`.

        >>> Labels.of(["dog", "cat", "dog"]).values.tolist()
        [1, 0, 1]
        """
        if isinstance(values, Labels):
            if names is not None and tuple(names) != values.names:
                raise UsageError("these labels already have names; give the plain values to rename them")
            return values
        try:
            values = np.asarray(values)
        except ValueError as error:
            raise DataError(f"labels have rows of different lengths ({error}); give 0/1 columns") from error
        if values.dtype.kind == "O" and all(isinstance(value, str) for value in values.flat):
            values = values.astype(str)
        if values.ndim == 1 and values.dtype.kind == "U":
            return cls.of_sets([[value] for value in values.tolist()], names, multi=False)
        if values.dtype.kind not in "biuf":
            raise DataError(f"labels are {values.dtype}; give whole numbers, strings or a 0/1 matrix")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise DataError(f"labels are NaN or infinite ({(~np.isfinite(values)).sum():,}); leave those items out")
        if values.ndim == 1:
            return cls._of_numbers(values, names)
        if values.ndim != 2 or values.shape[1] == 1:
            raise DataError(f"labels have shape {values.shape}; give (n,) class numbers or an (n, c) 0/1 matrix")
        if len(wrong := values[(values != 0) & (values != 1)]):
            raise DataError(f"a label matrix must contain only 0 and 1, got {wrong[0]}")
        return cls(values.astype(bool), tuple(map(str, range(values.shape[1]) if names is None else names)))

    @classmethod
    def of_sets(cls, sets: Sequence[Sequence[str]], names: Sequence[str] | None = None, multi: bool = True) -> Labels:
        """Labels from the class names of each item; single labels if every item has one, unless `multi`."""
        names = tuple(sorted({name for labels in sets for name in labels}) if names is None else names)
        number = {name: c for c, name in enumerate(names)}
        unknown = sorted({name for labels in sets for name in labels} - number.keys())
        if unknown:
            raise MismatchError(f"label {unknown[0]!r} is not among the {len(names)} names; add it")
        if not multi and all(sets):
            return cls(np.array([number[labels[0]] for labels in sets], np.int64), names)
        values = np.zeros((len(sets), len(names)), bool)
        for row, labels in enumerate(sets):
            values[row, [number[name] for name in labels]] = True
        return cls(values, names)

    @classmethod
    def _of_numbers(cls, values: np.ndarray, names: Sequence[str] | None) -> Labels:
        numbers = values.astype(np.int64)
        if (numbers != values).any():
            raise DataError(f"label {values[numbers != values][0]} is not a whole number; round or give strings")
        highest = int(numbers.max()) if len(numbers) else -1
        if highest >= MAX_CLASSES:
            raise DataError(f"class number {highest} is over {MAX_CLASSES - 1}; give the labels as strings instead")
        return cls(numbers, tuple(map(str, range(highest + 1) if names is None else names)))

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

    def sets(self) -> list[list[str]]:
        """The class names of each item."""
        if not self.multi:
            return [[self.names[c]] for c in self.values]
        return [[self.names[c] for c in np.flatnonzero(row)] for row in self.values]

    def counts(self) -> np.ndarray:
        """(n_classes,) int64: the number of items per class."""
        if self.multi:
            return self.values.sum(axis=0, dtype=np.int64)
        return np.bincount(self.values, minlength=self.n_classes).astype(np.int64)

    def present(self) -> Labels:
        """The same labels without the classes that no item has."""
        some = self.counts() > 0
        names = tuple(name for name, has in zip(self.names, some, strict=True) if has)
        return Labels(self.values[:, some] if self.multi else (np.cumsum(some) - 1)[self.values], names)

    def having(self, c: int) -> np.ndarray:
        """(n,) bool: the items of class c."""
        return self.values[:, c] if self.multi else self.values == c

    def matrix(self) -> np.ndarray:
        """(n, n_classes) float64 of 0 and 1."""
        if self.multi:
            return self.values.astype(np.float64)
        return (self.values[:, None] == np.arange(self.n_classes)).astype(np.float64)


MONTHS = (
    r"(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sep(t|tember)?|oct(ober)?|nov(ember)?"
    r"|dec(ember)?)"
)
DAY, MONTH, YEAR = r"(0?[1-9]|[12]\d|3[01])", rf"(0?[1-9]|1[0-2]|{MONTHS})", r"(19|20)\d\d"
GAP = r"[-_. ,]*"
DATE = re.compile(
    rf"{YEAR}({GAP}{MONTH}({GAP}{DAY})?)?|({DAY}{GAP})?{MONTH}{GAP}{YEAR}|{MONTH}{GAP}{DAY}{GAP}{YEAR}|{MONTHS}", re.I
)


def is_date(name: str) -> bool:
    """Whether a class is named after a year, a month or a day, as folders of photos often are.

    >>> [is_date(name) for name in ("2019", "2019-05", "May 2020", "20190501", "7", "n02084071", "2 cats")]
    [True, True, True, True, False, False, False]
    """
    return DATE.fullmatch(name.strip()) is not None


def require_differences(labels: Labels, pairs: bool = True) -> None:
    """Refuse labels without two different images or, where `pairs` are needed, without two similar ones."""
    counts = labels.counts()
    if (counts > 0).sum() < 2:
        raise DataError("the labels have only one class; learning needs at least two")
    if counts.max() == len(labels):
        raise DataError(
            f"all images share the label '{labels.names[int(counts.argmax())]}'; learning needs images that differ"
        )
    if pairs and counts.max() < 2:
        raise DataError("no class has two images; learning needs pairs of similar images")


def require_comparable(query: Labels, database: Labels) -> None:
    """Refuse labels whose class numbers have different meanings."""
    if query.multi != database.multi:
        raise MismatchError(
            "queries have single labels and the database label sets, or the reverse; give both in the same form"
        )
    if query.multi and query.n_classes != database.n_classes:
        raise MismatchError(
            f"query labels have {query.n_classes} columns and database labels {database.n_classes};"
            " give both the same classes"
        )
    # numbering strings separately for query and database could silently match dogs with cats
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
    """(q, d) bool: whether a query and a database item share at least one label."""
    require_comparable(query, database)
    if not query.multi:
        return query.values[:, None] == database.values
    # float32 because numpy multiplies integer matrices without BLAS
    return query.values.astype(np.float32) @ database.values.T.astype(np.float32) > 0
