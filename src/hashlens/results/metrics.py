"""Metrics: codes and labels of queries and a database in, MAP, precision, recall and look-up numbers out.

A Hamming distance takes only n_bits + 1 values, so most of a ranking is ties, and "MAP" is not defined until
four things are fixed (`topk` and the three settings of `MapDefinition`). With rel_i 1 if the i-th item is
relevant and P(i) the share of relevant items among the first i, the average precision of a query is

    sum of P(i) rel_i over the first topk items, divided by `divisor`.

ties      "stable": database order inside a distance. "expected": the exact mean over all orders of ties.
          "best", "worst": the highest and lowest value that an order of ties can give.
divisor   "found": relevant items among the first topk (0 / 0 is 0), the papers' choice; not monotone: one
          more hit can lower it. "min": the smaller of topk and all relevant items. "all": all of them.
empty     "skip": a query without a relevant item in the database is left out of the mean. "skip-no-hit": so is one
          without a hit among the first topk (unless ties are "stable": in any order).
          "zero": none is left out.

The same `empty` applies to precision, recall and look-ups, where "skip-no-hit" acts as "skip".

Each pair of codes is compared once (`count_by_distance`): counts per distance are enough for everything but
the stable order, which is walked without sorting. Memory does not grow with queries times database.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hashlens.codes import Codes
from hashlens.codes.bits import require_codes
from hashlens.codes.hamming import count_by_distance, distances
from hashlens.data.labels import Labels, relevant, require_comparable
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.machine import in_threads

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
    """What "MAP" means, except for topk, which belongs to the protocol; see the module's docstring."""

    ties: str = "stable"
    divisor: str = "found"
    empty: str = "skip"

    def __post_init__(self) -> None:
        for name, known in (("ties", TIES), ("divisor", DIVISORS), ("empty", EMPTY)):
            value = getattr(self, name)
            if value not in known:
                raise UsageError(f"{name} must be one of {', '.join(known)}, got {value!r}")

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
    """Counts from ranking the database for q queries: enough for every metric, under every definition."""

    definition: MapDefinition
    topk: int | None
    at: tuple[int, ...]
    items: np.ndarray  # (q, n_bits + 1) int64, database items at each distance
    hits: np.ndarray  # (q, n_bits + 1) int64, the relevant ones among them
    stable_hits_at: np.ndarray  # (q, len(at)) int64, relevant items among the first N in the stable order
    stable_found: np.ndarray  # (q,) int64, the same for topk
    stable_sum: np.ndarray  # (q,) float64, sum of P(i) rel_i in the stable order
    unlearned: "Ranking | None" = None  # the same queries among items not used in training; see `_unlearned`
    both: "Ranking | None" = None  # ties ordered by the second code; only valid for the stable order
    second: "Ranking | None" = None  # by the second code alone

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

    def random(self) -> "Ranking":
        """The ranking by constant codes, all items at one distance: its tie-aware MAP is that of a random ranking."""
        return replace(self, items=self.items.sum(axis=1, keepdims=True), hits=self.hits.sum(axis=1, keepdims=True))

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

    def precision_recall(self) -> tuple[np.ndarray, np.ndarray]:
        """Precision and recall, each (n_bits + 1,), of all items within Hamming radius 0, 1, ..., n_bits.

        Counts of all queries are added up before dividing. Where nothing is retrieved, precision is 0.
        """
        retrieved, hits = (part[self.counted].sum(axis=0).cumsum() for part in (self.items, self.hits))
        return hits / np.maximum(1, retrieved), hits / np.maximum(1, hits[-1])

    def lookup(self, radius: int = 2) -> tuple[float, float]:
        """Mean precision of the items within `radius`, 0 if there are none, and the share of such queries."""
        if radius < 0:
            raise UsageError(f"radius must be >= 0, got {radius}")
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
    learned: np.ndarray | None = None,
) -> Ranking:
    """Rank the database by Hamming distance to each query; labels are anything `Labels.of` takes.

    `topk` (None: the whole database) cuts average precision, `at` lists the N of precision@N and recall@N. `learned`,
    a bool per database item, says which were trained on, and gives the ranking `unlearned` of the others.

    >>> ranking = evaluate_ranking(query, database, [0, 1], [1, 0, 0], **vars(DEFINITIONS["tie-aware"]))
    >>> ranking.mean_average_precision()
    """
    definition = MapDefinition(ties, divisor, empty)
    query_labels, database_labels = Labels.of(query_labels), Labels.of(database_labels)
    require_comparable(query_labels, database_labels)
    for name, codes, labels in (("query", query, query_labels), ("database", database, database_labels)):
        require_codes("MAP", codes)
        if len(codes) != len(labels):
            raise MismatchError(f"the {name} has {len(codes)} codes and {len(labels)} labels; give one label per code")
        if not len(codes):
            raise DataError(f"the {name} is empty; there is nothing to rank")
    # gnd[0:-1], the ports' "topk = -1 means all", silently loses the last item
    if topk is not None and topk < 1:
        raise UsageError(f"topk must be >= 1, or left out for the whole database, got {topk}")
    if learned is not None and np.shape(learned) != (len(database),):
        raise MismatchError(f"learned must be a bool for each of {len(database)} codes, got {np.shape(learned)}")
    for n in at:
        if not 1 <= n <= len(database):
            raise UsageError(f"precision and recall at N need N from 1 to {len(database)}, the database size, got {n}")

    k = min(topk or len(database), len(database))
    cutoffs = np.unique([*at, k])
    items, hits, found, precision_sum = count_by_distance(
        query, database, _label_words(query_labels), np.ascontiguousarray(_label_words(database_labels).T),
        query_labels.multi, cutoffs, k,
    )  # fmt: skip
    stable_hits_at = found[:, np.searchsorted(cutoffs, np.array(at, int))]
    stable_found = found[:, np.searchsorted(cutoffs, k)]
    unlearned = None
    if learned is not None:
        unlearned = _unlearned(query, database, query_labels, database_labels, ~np.asarray(learned, bool), topk)
    ranking = Ranking(definition, topk, tuple(at), items, hits, stable_hits_at, stable_found, precision_sum, unlearned)
    if query.second is None or database.second is None:
        return ranking
    how: dict[str, Any] = {"topk": topk, "ties": ties, "divisor": divisor, "empty": empty, "at": at}
    second = evaluate_ranking(query.second, database.second, query_labels, database_labels, **how)
    return replace(ranking, both=_by_both(ranking, query, database, query_labels, database_labels), second=second)


def _by_both(ranking: Ranking, query: Codes, database: Codes, query_labels: Labels, database_labels: Labels) -> Ranking:
    """The stable order where equal distances are ordered by the second code first, one query at a time."""
    asked, searched = query.second, database.second
    assert asked is not None and searched is not None
    k = min(ranking.topk or len(database), len(database))
    at = np.array([*ranking.at, k])
    found, sums = np.zeros((len(query), len(at)), np.int64), np.zeros(len(query))

    def work(row: int) -> None:
        apart = distances(query[row].first, database.first)[0].astype(np.int64) * (query.second_bits + 1)
        apart += distances(asked[row], searched)[0]
        hits = relevant(query_labels[[row]], database_labels)[0][np.argsort(apart, kind="stable")]
        so_far = hits.cumsum()
        found[row] = so_far[at - 1]
        sums[row] = (so_far[:k] / np.arange(1, k + 1))[hits[:k]].sum()

    in_threads(work, range(len(query)))
    return replace(ranking, stable_hits_at=found[:, :-1], stable_found=found[:, -1], stable_sum=sums)


def _unlearned(
    query: Codes, database: Codes, query_labels: Labels, database_labels: Labels, kept: np.ndarray, topk: int | None
) -> Ranking | None:
    """Rank for each query all items not used in training: the `kept` ones of the database and the other queries.

    The usual split trains on its whole database, whose codes a method can simply memorise. Holding out a part of it
    would take labelled images away from the user's model. Queries are held out anyway, so they search each other, at no
    cost. Each query is at distance 0 from itself and is subtracted there, which keeps the counts right for every
    definition but "stable". None if no query has a relevant item among them.
    """
    codes = Codes(np.concatenate([database.packed[kept], query.packed]), query.n_bits)
    labels = Labels(np.concatenate([database_labels.values[kept], query_labels.values]), database_labels.names)
    ranking = evaluate_ranking(query, codes, query_labels, labels, topk=topk, ties="expected")
    ranking.items[:, 0] -= 1
    ranking.hits[:, 0] -= query_labels.values.any(axis=1) if query_labels.multi else 1
    return ranking if ranking.n_relevant.any() else None


@dataclass(frozen=True)
class Metric:
    """One score of a ranking; a metric with an `argument` is computed for each number given under that name."""

    key: str
    title: str
    help: str
    function: Callable[..., float | None]  # takes a Ranking and, if there is an argument, its number
    argument: str = ""
    column: bool = True  # whether comparisons show it beside MAP


def _map(ties: str) -> Callable[[Ranking], float]:
    return lambda ranking: ranking.mean_average_precision(MapDefinition(ties))


def _random(ranking: Ranking) -> float:
    return ranking.random().mean_average_precision(MapDefinition("expected"))


def _among_unlearned(metric: Callable[[Ranking], float]) -> Callable[[Ranking], float | None]:
    return lambda ranking: metric(ranking.unlearned) if ranking.unlearned else None


def _both(ranking: Ranking) -> float | None:
    return ranking.both.mean_average_precision(MapDefinition("stable")) if ranking.both else None


def _second(ranking: Ranking) -> float | None:
    return ranking.second.mean_average_precision(MapDefinition("stable")) if ranking.second else None


def _at(name: str) -> Callable[[Ranking, int], float]:
    """Mean over all orders of ties."""
    return lambda ranking, n: getattr(ranking, name)("expected")[ranking.at.index(n)]


def _within(place: int) -> Callable[[Ranking, int], float]:
    return lambda ranking, n: ranking.lookup(n)[place]


# This table defines all reported scores: evaluate, tables, CSV and report. {n} is the number.
METRICS = (
    Metric("map", "MAP", "Mean average precision.", _map("stable")),
    Metric("map_tie_aware", "Tie-aware MAP", "Expected MAP over all orders of equal distances.", _map("expected")),
    Metric("map_random", "MAP of a random ranking", "Tie-aware MAP if all codes were equal.", _random),
    Metric(
        "map_unlearned",
        "MAP, unlearned",
        "Tie-aware MAP among images not used in training.",
        _among_unlearned(_map("expected")),
    ),
    Metric(
        "map_unlearned_random",
        "Random, unlearned",
        "MAP of a random ranking of those images.",
        _among_unlearned(_random),
    ),
    Metric("map_both", "MAP, both codes", "MAP with ties ordered by the second code.", _both, column=False),
    Metric("map_second", "MAP, second code", "MAP by the second code alone.", _second, column=False),
    Metric("map_best", "MAP, best ties", "MAP with ties in the best order.", _map("best"), column=False),
    Metric("map_worst", "MAP, worst ties", "MAP with ties in the worst order.", _map("worst"), column=False),
    Metric("precision_radius", "Precision within radius {n}", "Mean precision of look-ups.", _within(0), "radius"),
    Metric("empty_radius", "Nothing within radius {n}", "Share of queries that find nothing.", _within(1), "radius"),
    Metric("precision_at", "Precision at {n}", "Mean over all tie orders.", _at("precision_at"), "precision_at", False),
    Metric(
        "precision_both_at",
        "Precision at {n}, both codes",
        "With ties ordered by the second code.",
        lambda ranking, n: ranking.both and ranking.both.precision_at("stable")[ranking.at.index(n)],
        "precision_at",
        False,
    ),
    Metric("recall_at", "Recall at {n}", "Mean over all tie orders.", _at("recall_at"), "recall_at", False),
)
NUMBERS = {"radius": (2,), "precision_at": (100, 500, 1000), "recall_at": ()}


def titled(scores: Mapping[str, Any]) -> Iterator[tuple[str, Metric, str, str]]:
    """Key, metric, title and help of each number in `scores` that METRICS has, in its order."""
    for metric in METRICS:
        for key in (key for key, value in scores.items() if value is not None):
            n = key.removeprefix(metric.key).removeprefix("_")
            if key == metric.key or (metric.argument and key.startswith(metric.key) and n.isdecimal()):
                yield key, metric, metric.title.format(n=n), metric.help.format(n=n)


def columns_of_metrics() -> dict[str, str]:
    """Keys and titles of the metrics that comparisons show."""
    shown = [(metric, n) for metric in METRICS if metric.column for n in NUMBERS.get(metric.argument, [""])]
    return {f"{m.key}_{n}".rstrip("_"): m.title.format(n=n) for m, n in shown}


def evaluate_codes(
    query: Codes,
    database: Codes,
    query_labels: Labels | Any,
    database_labels: Labels | Any,
    topk: int | None = None,
    learned: np.ndarray | None = None,
    **numbers: Sequence[int],
) -> dict[str, Any]:
    """Every number that a report shows, as plain JSON values.

    "map" is the papers' definition and "definition" states it; the other maps differ in `ties` only. "map_unlearned" is
    None without `learned` (which database items were trained on), or if no two unlearned images share a label.
    `numbers` are those of METRICS, such as `radius=[2, 3]` or `recall_at=[100]`; by default NUMBERS, as far as the
    database reaches.
    """
    return evaluate_with_ranking((query, database, query_labels, database_labels), topk, learned, numbers)[0]


def evaluate_with_ranking(
    given: tuple[Codes, Codes, Any, Any],
    topk: int | None,
    learned: np.ndarray | None = None,
    numbers: Mapping[str, Sequence[int]] | None = None,
) -> tuple[dict[str, Any], Ranking]:
    """The result of `evaluate_codes`, and its ranking."""
    if unknown := set(numbers or ()) - set(NUMBERS):
        raise UsageError(f"there is no metric with the argument {unknown.pop()}; choose from {', '.join(NUMBERS)}")
    n_database = len(given[1])
    reached = {"precision_at": [n for n in NUMBERS["precision_at"] if n <= n_database]}
    numbers = {**NUMBERS, **reached, **(numbers or {})}
    at = sorted({*numbers["precision_at"], *numbers["recall_at"]})
    ranking = evaluate_ranking(*given, topk=topk, at=at, learned=learned)
    ap = ranking.average_precision()
    precision, recall = ranking.precision_recall()
    scores: dict[str, Any] = {}
    for metric in METRICS:
        asked = (
            [(f"{metric.key}_{n}", (n,)) for n in numbers[metric.argument]] if metric.argument else [(metric.key, ())]
        )
        for key, argument in asked:
            value = metric.function(ranking, *argument)
            scores[key] = None if value is None else float(value)
    scores |= {
        "definition": ranking.definition.describe(topk),
        "topk": topk,
        "n_query": len(ap),
        "n_query_left_out": int(np.isnan(ap).sum()),
        "n_database": n_database,
        "n_unlearned": ranking.unlearned and ranking.unlearned.n_database,
        "per_class_map": _per_class(ap, Labels.of(given[2])),
        "pr_curve": {"precision": precision.tolist(), "recall": recall.tolist()},
    }
    return scores, ranking


def mean_scores(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Means over several runs of the columns of comparisons, and the deviations of both MAPs for two or more runs."""

    def values(key: str) -> list[float]:
        return [scores[key] for scores in runs if scores[key] is not None]

    means = {key: float(np.mean(found)) if (found := values(key)) else None for key in columns_of_metrics()}
    for key in ("map", "map_unlearned"):
        means[f"{key}_deviation"] = float(np.std(found, ddof=1)) if len(found := values(key)) > 1 else None
    return means


def _per_class(ap: np.ndarray, labels: Labels) -> dict[str, float]:
    """Mean over the queries of each class; empty for label sets, where a query belongs to several."""
    if labels.multi:
        return {}
    kept = ~np.isnan(ap)
    n = np.bincount(labels.values[kept], minlength=labels.n_classes)
    total = np.bincount(labels.values[kept], ap[kept], minlength=labels.n_classes)
    return {labels.names[i]: float(total[i] / n[i]) for i in np.flatnonzero(n)}


def _require_some(kept: np.ndarray) -> np.ndarray:
    if not kept.any():
        raise DataError(f"none of {len(kept)} queries has a relevant item in the database; check the labels of both")
    return kept


def _label_words(labels: Labels) -> np.ndarray:
    if labels.multi:
        return Codes.from_relaxed(labels.values).words()  # a label set is packed like a code
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
