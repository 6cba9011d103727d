"""Average precisions of the same queries under two methods in; whether their difference may be chance out.

Two methods are asked the same queries, so each query gives one difference. If the methods were alike, every difference
could as well have had the other sign: the p value is the part of all choices of signs whose mean is at least as far
from 0 as the one that was found (a paired permutation test, two-sided, over drawn choices). It asks about the mean,
which MAP is, and supposes no shape of the differences. The interval is that of the mean over queries drawn again with
replacement (bootstrap). Both speak of other queries from the same pictures, not of other training sets or seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hashlens.errors import DataError, MismatchError

LEVEL = 0.05
DRAWS = 9_999
CHUNK = 500  # draws at a time: memory does not grow with their number


@dataclass(frozen=True)
class Comparison:
    difference: float  # mean of first - second
    p: float
    low: float  # of the middle 95 % of resampled means
    high: float
    n: int  # queries

    @property
    def different(self) -> bool:
        return self.p <= LEVEL


def compare_queries(first: np.ndarray, second: np.ndarray, draws: int = DRAWS, seed: int = 0) -> Comparison:
    """Compare two lists of average precisions, one value a query; a query that either leaves out (NaN) is left out."""
    first, second = np.asarray(first, float), np.asarray(second, float)
    if first.shape != second.shape or first.ndim != 1:
        raise MismatchError(
            f"average precisions of shapes {first.shape} and {second.shape} are not of the same queries; score both"
            " methods on one split"
        )
    differences = first - second
    differences = differences[~np.isnan(differences)]
    n = len(differences)
    if n == 0:
        raise DataError("no query has an average precision under both methods; check the labels")
    mean = float(differences.mean())
    rng = np.random.default_rng(seed)
    # sums in another order differ in the last digits, and an equal sum is as far from 0
    least = abs(mean) * (1 - 1e-9)
    extreme = sum(int((np.abs(means) >= least).sum()) for means in _with_signs(differences, draws, rng))
    resampled = np.concatenate(list(_with_replacement(differences, max(1, draws // 5), rng)))
    low, high = np.quantile(resampled, [0.025, 0.975])
    # the signs that were found are one of the choices
    return Comparison(mean, (1 + extreme) / (1 + draws), float(low), float(high), n)


def _with_signs(differences: np.ndarray, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    n = len(differences)
    for start in range(0, draws, CHUNK):
        rows = min(CHUNK, draws - start)
        bits = np.frombuffer(rng.bytes(rows * -(-n // 8)), np.uint8).reshape(rows, -1)
        signs = np.unpackbits(bits, axis=1, count=n).astype(np.float64) * 2 - 1
        yield signs @ differences / n


def _with_replacement(differences: np.ndarray, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    n = len(differences)
    for start in range(0, draws, CHUNK):
        rows = min(CHUNK, draws - start)
        yield differences[rng.integers(0, n, (rows, n))].mean(axis=1)
