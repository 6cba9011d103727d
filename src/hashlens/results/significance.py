"""Significance: average precisions of the same queries under two methods in, whether they differ by chance out.

Both methods answer the same queries, so each query gives one difference. If the methods were equal, every difference
could as well have the other sign: p is the share of sign choices whose mean is at least as far from 0 as the observed
one (a two-sided paired permutation test). It tests the mean, which MAP is, and assumes no distribution of the
differences. The interval is a bootstrap of the mean over the queries. Both describe other queries from the same images,
not other training sets or seeds; queries of several splits are pooled, so an image may be a query twice.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hashlens.errors import DataError, MismatchError

LEVEL = 0.05
DRAWS = 9_999
BATCH = 500  # draws per block, so that memory does not grow with their number


@dataclass(frozen=True)
class PairedTest:
    difference: float  # mean of first - second
    p: float
    low: float  # bounds of the 95 % interval of the difference
    high: float
    n: int  # queries

    @property
    def different(self) -> bool:
        return self.p <= LEVEL


def paired_test(first: np.ndarray, second: np.ndarray, draws: int = DRAWS, seed: int = 0) -> PairedTest:
    """Compare two lists of average precisions, one value per query; a query that is NaN in either is left out."""
    from scipy import stats

    first, second = np.asarray(first, float), np.asarray(second, float)
    if first.shape != second.shape or first.ndim != 1:
        raise MismatchError(
            f"average precisions of shapes {first.shape} and {second.shape} are not of the same queries; score both"
            " methods on one split"
        )
    differences = (first - second)[~np.isnan(first - second)]
    if len(differences) == 0:
        raise DataError("no query has an average precision under both methods; check the labels")
    mean = float(differences.mean())
    if len(differences) == 1:
        return PairedTest(mean, 1.0, mean, mean, 1)

    def distance(sample: np.ndarray, axis: int) -> Any:
        return np.abs(sample.mean(axis=axis))

    how: dict[str, Any] = {"vectorized": True, "batch": BATCH, "rng": seed}
    test = stats.permutation_test(
        (differences,), distance, permutation_type="samples", alternative="greater", n_resamples=draws, **how
    )
    drawn = stats.bootstrap((differences,), np.mean, n_resamples=max(1, draws // 5), method="percentile", **how)
    low, high = map(float, drawn.confidence_interval)
    return PairedTest(mean, float(test.pvalue), low, high, len(differences))
