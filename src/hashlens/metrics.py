"""Codes and labels of queries and a database in; MAP, precision, recall and look-up numbers out.

A Hamming distance takes only n_bits + 1 values, so most of a ranking is ties, and "MAP" means little until
four things are said (`topk` and the three settings of `MapDefinition`). With rel_i 1 if the i-th item is
relevant and P(i) the share of relevant items among the first i, the average precision of a query is

    sum of P(i) rel_i over the first topk items, divided by `divisor`.

ties      "stable": database order inside a distance. "expected": the exact mean over all orders of ties.
          "best", "worst": the highest and lowest value that an order of ties can give.
divisor   "found": relevant items among the first topk (0 / 0 is 0), the papers' choice; not monotone: one
          more hit can lower it. "min": the smaller of topk and all relevant items. "all": all of them.
empty     "skip": a query without a relevant item in the database leaves the mean. "skip-no-hit": so does one
          without a hit among the first topk (where ties are not "stable": without one in any order).
          "zero": none leaves.

The same `empty` rules precision, recall and look-ups, where "skip-no-hit" acts as "skip".

Everything comes from one look at each pair of codes (`hamming.count_by_distance`): counts per distance are
enough for all but the stable order, which is walked without sorting. Memory does not grow with queries times
database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.data.labels import Labels, require_comparable
from hashlens.errors import DataError, MismatchError, UsageError

TIES = {
    "stable": "ties in database order",
    "expected": "mean over all orders of ties",
    "best": "best order of ties",
    "worst": "worst order of ties",
}
DIVISORS = {
    "found": "divided by relevant items found",
    "min": "divided by the smaller of topk and relevant items",
    "all": "divided by all relevant items",
}
EMPTY = {
    "skip": "queries without relevant item left out",
    "skip-no-hit": "queries without hit left out",
    "zero": "queries without hit count 0",
}


@dataclass(frozen=True)
class MapDefinition:
    """What "MAP" means, but for topk, which belongs to the protocol; the module's docstring has the words."""

    ties: str = "stable"
    divisor: str = "found"
    empty: str = "skip"

    def __post_init__(self) -> None:
        for name, known in (("ties", TIES), ("divisor", DIVISORS), ("empty", EMPTY)):
            value = getattr(self, name)
            if value not in known:
                raise UsageError(f"{name} is {value!r}; choose one of {', '.join(known)}")

    def describe(self, topk: int | None = None) -> str:
        """One line for a report, such as "MAP@5000, ties in database order, ..."."""
        cut = "all" if topk is None else topk
        return f"MAP@{cut}, {TIES[self.ties]}, {DIVISORS[self.divisor]}, {EMPTY[self.empty]}"


# DeepHash-pytorch and HashNet sort with an unstable argsort, whose tie order nobody can reproduce; the stable
# order stands in for it. DeepHash-pytorch's topK = -1 also drops the last-ranked item, which is
# topk=len(database) - 1 here. trec_eval orders ties by document name, which codes do not have.
DEFINITIONS = {
    "paper": MapDefinition("stable", "found", "skip"),
    "tie-aware": MapDefinition("expected", "found", "skip"),
    "deephash-pytorch": MapDefinition("stable", "found", "zero"),
    "hashnet": MapDefinition("stable", "found", "skip-no-hit"),
    "trec": MapDefinition("stable", "all", "zero"),
}


@dataclass(frozen=True, eq=False)
class Ranking:
    """What remains of ranking the database for q queries: enough for every number, under every definition."""

    definition: MapDefinition
    topk: int | None
    at: tuple[int, ...]
    items: np.ndarray  # (q, n_bits + 1) int64, database items at each distance
    hits: np.ndarray  # (q, n_bits + 1) int64, the relevant ones among them
    stable_hits_at: np.ndarray  # (q, len(at)) int64, relevant items among the first N in the stable order
    stable_found: np.ndarray  # (q,) int64, the same for topk
    stable_sum: np.ndarray  # (q,) float64, sum of P(i) rel_i in the stable order

    @property
    def n_database(self) -> int:
        return int(self.items[0].sum())

    @property
    def n_relevant(self) -> np.ndarray:
        """(q,) int64 relevant database items of each query."""
        return self.hits.sum(axis=1)

    @property
    def counted(self) -> np.ndarray:
        """(q,) bool: the queries that precision, recall and look-ups are averaged over."""
        return _require_some((self.n_relevant > 0) | (self.definition.empty == "zero"))

    def average_precision(self, definition: MapDefinition | None = None) -> np.ndarray:
        """(q,) float64; NaN marks a query that `definition` (default: the ranking's own) leaves out."""
        definition = definition or self.definition
        k = min(self.topk or self.n_database, self.n_database)
        divisor = {"all": self.n_relevant, "min": np.minimum(k, self.n_relevant)}.get(definition.divisor)
        if definition.ties == "stable":
            found = self.stable_found
            ap = self.stable_sum / np.maximum(1, found if divisor is None else divisor)
        else:
            found = _hits_within(self.items, self.hits, k, "best")
            ap = _average_precision(self.items, self.hits, k, definition.ties, divisor)
        if definition.empty == "skip":
            ap[self.n_relevant == 0] = np.nan
        elif definition.empty == "skip-no-hit":
            ap[found == 0] = np.nan
        return ap

    def mean_average_precision(self, definition: MapDefinition | None = None) -> float:
        ap = self.average_precision(definition)
        return float(ap[_require_some(~np.isnan(ap))].mean())

    def hits_at(self, ties: str | None = None) -> np.ndarray:
        """(q, len(at)) relevant items among the first N, for each N in `at`."""
        ties = MapDefinition(ties or self.definition.ties).ties
        if ties == "stable":
            return self.stable_hits_at
        columns = [_hits_within(self.items, self.hits, n, ties) for n in self.at]
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.items), 0))

    def precision_at(self, ties: str | None = None) -> np.ndarray:
        """(len(at),) share of relevant items among the first N, mean over queries."""
        return (self.hits_at(ties) / np.array(self.at, float))[self.counted].mean(axis=0)

    def recall_at(self, ties: str | None = None) -> np.ndarray:
        """(len(at),) share of the relevant items that are among the first N, mean over queries."""
        return (self.hits_at(ties) / np.maximum(1, self.n_relevant)[:, None])[self.counted].mean(axis=0)

    def precision_recall(self, average: str = "micro") -> tuple[np.ndarray, np.ndarray]:
        """Precision and recall, each (n_bits + 1,), of all items within Hamming radius 0, 1, ..., n_bits.

        "micro" adds up the counts of all queries before dividing, "macro" is the mean of each query's values.
        Where nothing is retrieved, precision is 0.
        """
        if average not in ("micro", "macro"):
            raise UsageError(f"average is {average!r}; choose micro or macro")
        retrieved = self.items[self.counted].cumsum(axis=1)
        hits = self.hits[self.counted].cumsum(axis=1)
        if average == "micro":
            retrieved, hits = retrieved.sum(axis=0, keepdims=True), hits.sum(axis=0, keepdims=True)
        precision = hits / np.maximum(1, retrieved)
        recall = hits / np.maximum(1, hits[:, -1:])
        return precision.mean(axis=0), recall.mean(axis=0)

    def lookup(self, radius: int = 2) -> tuple[float, float]:
        """Mean precision of the items within `radius`, 0 if there are none, and the share of such queries."""
        if radius < 0:
            raise UsageError(f"radius is {radius}; give 0 or more")
        retrieved = self.items[self.counted, : radius + 1].sum(axis=1)
        hits = self.hits[self.counted, : radius + 1].sum(axis=1)
        return float((hits / np.maximum(1, retrieved)).mean()), float((retrieved == 0).mean())


def evaluate_ranking(
    query: Codes,
    database: Codes,
    query_labels: Labels | Any,
    database_labels: Labels | Any,
    *,
    topk: int | None = None,
    ties: str = "stable",
    divisor: str = "found",
    empty: str = "skip",
    at: Sequence[int] = (),
) -> Ranking:
    """Rank the database by Hamming distance to each query; labels are anything `Labels.of` takes.

    `topk` (None: the whole database) cuts average precision, `at` lists the N of precision@N and recall@N.

    >>> ranking = evaluate_ranking(query, database, [0, 1], [1, 0, 0], **vars(DEFINITIONS["tie-aware"]))
    >>> ranking.mean_average_precision()
    """
    from hashlens import hamming  # numba, slow to import

    definition = MapDefinition(ties, divisor, empty)
    query_labels, database_labels = Labels.of(query_labels), Labels.of(database_labels)
    require_comparable(query_labels, database_labels)
    for name, codes, labels in (("query", query, query_labels), ("database", database, database_labels)):
        if len(codes) != len(labels):
            raise MismatchError(f"the {name} has {len(codes)} codes and {len(labels)} labels; give one for each")
        if not len(codes):
            raise DataError(f"the {name} is empty; there is nothing to rank")
    # gnd[0:-1], the ports' "topk = -1 means all", silently loses the last item
    if topk is not None and topk < 1:
        raise UsageError(f"topk is {topk}; give 1 or more, or leave it out for the whole database")
    for n in at:
        if not 1 <= n <= len(database):
            raise UsageError(f"precision at {n} is not defined; give 1 to {len(database)}, the database's size")

    k = min(topk or len(database), len(database))
    cutoffs = np.unique([*at, k])
    items, hits, found, precision_sum = hamming.count_by_distance(
        query, database, _label_words(query_labels), np.ascontiguousarray(_label_words(database_labels).T),
        query_labels.multi, cutoffs, k,
    )  # fmt: skip
    stable_hits_at = found[:, np.searchsorted(cutoffs, np.array(at, int))]
    stable_found = found[:, np.searchsorted(cutoffs, k)]
    return Ranking(definition, topk, tuple(at), items, hits, stable_hits_at, stable_found, precision_sum)


def evaluate_codes(
    query: Codes,
    database: Codes,
    query_labels: Labels | Any,
    database_labels: Labels | Any,
    topk: int | None = None,
) -> dict[str, Any]:
    """Every number a report shows, as plain JSON values.

    "map" is the papers' definition and "definition" says it in words; the other maps differ in `ties` only.
    "precision_at" is the mean over all orders of ties and leaves out N beyond the database's size.
    """
    at = [n for n in (100, 500, 1000) if n <= len(database)]
    ranking = evaluate_ranking(query, database, query_labels, database_labels, topk=topk, at=at)
    ap = ranking.average_precision()
    precision, recall = ranking.precision_recall()
    precision_radius_2, empty_radius_2 = ranking.lookup(2)
    return {
        "map": ranking.mean_average_precision(),
        "map_tie_aware": ranking.mean_average_precision(MapDefinition("expected")),
        "map_best": ranking.mean_average_precision(MapDefinition("best")),
        "map_worst": ranking.mean_average_precision(MapDefinition("worst")),
        "definition": ranking.definition.describe(topk),
        "topk": topk,
        "precision_at": dict(zip(map(str, at), ranking.precision_at("expected").tolist(), strict=True)),
        "precision_at_ties": TIES["expected"],
        "precision_radius_2": precision_radius_2,
        "empty_radius_2": empty_radius_2,
        "n_query": len(query),
        "n_query_left_out": int(np.isnan(ap).sum()),
        "n_database": len(database),
        "per_class_map": _per_class(ap, Labels.of(query_labels)),
        "pr_curve": {"precision": precision.tolist(), "recall": recall.tolist()},
    }


def average_precisions(
    query: Codes, database: Codes, query_labels: Labels | Any, database_labels: Labels | Any, topk: int | None = None
) -> np.ndarray:
    """(q,) float64: of each query, whose mean is the "map" of `evaluate_codes`; NaN where a query is left out."""
    return evaluate_ranking(query, database, query_labels, database_labels, topk=topk).average_precision()


def _per_class(ap: np.ndarray, labels: Labels) -> dict[str, float]:
    """Mean of the queries of each class; empty for label sets, where a query belongs to several."""
    if labels.multi:
        return {}
    kept = ~np.isnan(ap)
    n = np.bincount(labels.values[kept], minlength=labels.n_classes)
    total = np.bincount(labels.values[kept], ap[kept], minlength=labels.n_classes)
    return {labels.names[i]: float(total[i] / n[i]) for i in np.flatnonzero(n)}


def _require_some(kept: np.ndarray) -> np.ndarray:
    if not kept.any():
        raise DataError(f"none of {len(kept)} queries has a relevant item to find; check the labels of both sides")
    return kept


def _label_words(labels: Labels) -> np.ndarray:
    if labels.multi:
        return Codes.from_relaxed(labels.values).words()  # a set of labels packs like a code
    return labels.values.astype(np.uint64)[:, None]


def _hits_within(items: np.ndarray, hits: np.ndarray, k: int, ties: str) -> np.ndarray:
    """(q,) relevant items among the first k, from counts per distance."""
    taken = np.clip(k - (items.cumsum(axis=1) - items), 0, items)  # items of each distance that are in the top k
    if ties == "expected":
        return (taken * hits / np.maximum(1, items)).sum(axis=1)
    if ties == "best":
        return np.minimum(hits, taken).sum(axis=1)
    return np.maximum(0, taken - (items - hits)).sum(axis=1)


def _average_precision(
    items: np.ndarray, hits: np.ndarray, k: int, ties: str, divisor: np.ndarray | None
) -> np.ndarray:
    """(q,) average precision at k from counts per distance; `divisor` None is the number found.

    Distances that lie wholly inside the top k are summed in closed form (`_tied_sum`). At most one distance
    is cut by k. There, the number of hits x inside the top k is hypergeometric and, given x, their order is
    again uniform; so the sum over x of weight times value is exact even where the divisor depends on x.
    """
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, k + 1))])  # harmonic[n] = 1 + 1/2 + ... + 1/n
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, items.sum(axis=1).max() + 1)))])
    before, hits_before = items.cumsum(axis=1) - items, hits.cumsum(axis=1) - hits
    whole = before + items <= k
    sums = np.zeros(items.shape)
    sums[whole] = _tied_sum(items[whole], hits[whole], before[whole], hits_before[whole], ties, harmonic)
    total = sums.sum(axis=1)
    ap = total / np.maximum(1, (hits * whole).sum(axis=1) if divisor is None else divisor)

    cut = (before < k) & ~whole
    for i, d in np.argwhere(cut):
        n, r, m = items[i, d], hits[i, d], k - before[i, d]
        x = np.arange(max(0, m - (n - r)), min(r, m) + 1)
        value = total[i] + _tied_sum(m, x, before[i, d], hits_before[i, d], ties, harmonic)
        value /= np.maximum(1, hits_before[i, d] + x if divisor is None else divisor[i])
        if ties == "expected":
            log_weight = -log_factorial[x] - log_factorial[r - x]
            log_weight -= log_factorial[m - x] + log_factorial[n - r - m + x]
            weight = np.exp(log_weight - log_weight.max())
            ap[i] = value @ weight / weight.sum()
        else:
            ap[i] = value.max() if ties == "best" else value.min()
    return ap


def _tied_sum(n: Any, r: Any, before: Any, hits_before: Any, ties: str, harmonic: np.ndarray) -> np.ndarray:
    """Sum of P(i) rel_i over n tied items, r of them relevant, after `before` items with `hits_before` hits.

    Closed forms, with H the harmonic numbers: sum over i = 1..n of 1 / (N + i) is H(N + n) - H(N), and of
    (a + i) / (N + i) is n - (N - a) (H(N + n) - H(N)).
    """
    if ties == "expected":
        # E[P(N + i) rel_i] = r/n (R0 + 1 + (i - 1) (r - 1) / (n - 1)) / (N + i)
        span = harmonic[before + n] - harmonic[before]
        climb = (r - 1) / np.maximum(1, n - 1) * (n - (before + 1) * span)
        return r / np.maximum(1, n) * ((hits_before + 1) * span + climb)
    start = before if ties == "best" else before + n - r  # where the relevant items stand in one row
    return r - (start - hits_before) * (harmonic[start + r] - harmonic[start])
