"""Metrics against slow, obvious loops over sorted lists and over every order of ties."""

import itertools
import json

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from hashlens.codes import Codes
from hashlens.codes.hamming import BLOCK, distances
from hashlens.data.labels import Labels, relevant
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.results import metrics
from hashlens.results.metrics import (
    DEFINITIONS,
    DIVISORS,
    EMPTY,
    METRICS,
    TIES,
    MapDefinition,
    Metric,
    evaluate_codes,
    evaluate_ranking,
    mean_scores,
    titled,
)

N_BITS = [1, 7, 8, 12, 24, 48, 64, 65, 128]


def thermometer(values, n_bits=None):
    """Codes at distance `values` from the code of 0: that many leading bits are set."""
    n_bits = n_bits or max(1, *values)
    return Codes.from_relaxed((np.arange(n_bits) < np.array(values)[:, None]).astype(float))


def one_query(levels, relevance, **settings):
    """The ranking of items at distances `levels`, of which `relevance` (0/1) are relevant."""
    n_bits = max(1, *levels)
    return evaluate_ranking(thermometer([0], n_bits), thermometer(levels, n_bits), [1], np.array(relevance), **settings)


def random_data(n_bits, n_query=9, n_database=120, n_classes=4, sets=False, seed=0):
    rng = np.random.default_rng(seed)
    query = Codes.from_relaxed(rng.standard_normal((n_query, n_bits)))
    database = Codes.from_relaxed(rng.standard_normal((n_database, n_bits)))
    if sets:
        labels = [Labels.of(rng.random((n, n_classes)) < 1 / n_classes) for n in (n_query, n_database)]
    else:
        labels = [Labels.of(rng.integers(0, n_classes, n)) for n in (n_query, n_database)]
    return query, database, *labels


def slow_ap(ranked, topk, divisor):
    """Average precision of one ranked list of 0/1, straight from the definition."""
    n_relevant, k = sum(ranked), min(topk or len(ranked), len(ranked))
    found, total = 0, 0.0
    for i, rel in enumerate(ranked[:k], start=1):
        if rel:
            found += 1
            total += found / i
    by = {"found": found, "min": min(k, n_relevant), "all": n_relevant}[divisor]
    return total / by if by else 0.0


def tie_orders(levels, relevance):
    """Every ranked list of 0/1 that orders of ties can give, each as often as it comes up."""
    groups = [[r for d, r in zip(levels, relevance, strict=True) if d == level] for level in sorted(set(levels))]
    for parts in itertools.product(*map(itertools.permutations, groups)):
        yield [rel for part in parts for rel in part]


def slow_stable_lists(query, database, query_labels, database_labels):
    order = np.argsort(distances(query, database), axis=1, kind="stable")
    return np.take_along_axis(relevant(query_labels, database_labels), order, axis=1).astype(int).tolist()


# hand-worked cases


def test_hand_worked_average_precision():
    ranking = one_query([1, 2, 3, 4, 5, 6], [1, 0, 1, 0, 0, 1])
    for ties in TIES:
        assert ranking.mean_average_precision(MapDefinition(ties)) == pytest.approx((1 + 2 / 3 + 3 / 6) / 3)


def test_perfect_and_reversed_rankings():
    assert one_query([1, 1, 2, 2], [1, 1, 0, 0]).mean_average_precision() == 1
    reversed_ap = one_query([1, 2, 3, 4], [0, 0, 1, 1]).mean_average_precision()
    assert reversed_ap == pytest.approx((1 / 3 + 2 / 4) / 2)


def test_found_can_fall_with_one_more_hit():
    # PEERS 5.3, DeepHash-pytorch issue 33: [+ - +] scores less than [+ - -]
    two = one_query([1, 2, 3, 4], [1, 0, 1, 1], topk=3)
    one = one_query([1, 2, 3, 4], [1, 0, 0, 1], topk=3)
    assert two.mean_average_precision() == pytest.approx(5 / 6)
    assert one.mean_average_precision() == 1
    for divisor in ("min", "all"):
        definition = MapDefinition(divisor=divisor)
        assert two.mean_average_precision(definition) > one.mean_average_precision(definition)


def test_divisors():
    # 4 relevant items, 2 of them in the top 3
    ranking = one_query([1, 2, 3, 4, 5], [1, 0, 1, 1, 1], topk=3)
    values = {divisor: ranking.mean_average_precision(MapDefinition(divisor=divisor)) for divisor in DIVISORS}
    assert values == pytest.approx({"found": (5 / 3) / 2, "min": (5 / 3) / 3, "all": (5 / 3) / 4})


def test_ties_in_database_order():
    # PEERS 5.1: the same codes stored in another order give another stable MAP and the same expected one
    first = one_query([1, 1, 1, 1], [1, 1, 0, 0])
    last = one_query([1, 1, 1, 1], [0, 0, 1, 1])
    assert first.mean_average_precision() == 1
    assert last.mean_average_precision() == pytest.approx((1 / 3 + 2 / 4) / 2)
    for ties in ("expected", "best", "worst"):
        definition = MapDefinition(ties)
        assert first.mean_average_precision(definition) == last.mean_average_precision(definition)


@pytest.mark.parametrize("topk", [0, -1])
def test_topk_below_one_is_refused(topk):
    # PEERS 5.5: gnd[0:-1] silently drops the last-ranked item
    with pytest.raises(UsageError, match=f"topk must be >= 1.*got {topk}"):
        one_query([1, 2], [1, 1], topk=topk)


def test_the_ports_minus_one_is_one_item_less():
    relevance = [1, 0, 0, 1]
    port = one_query([1, 2, 3, 4], relevance, topk=len(relevance) - 1)
    assert port.mean_average_precision(DEFINITIONS["deephash-pytorch"]) == 1
    assert one_query([1, 2, 3, 4], relevance).mean_average_precision() == pytest.approx(3 / 4)


def test_queries_without_a_hit():
    # PEERS 5.4: AP 1, no hit in the top 2 though one relevant item further down, and no relevant item at all
    database = thermometer([1, 2, 3, 4])
    query = thermometer([0, 0, 0], 4)
    ranking = evaluate_ranking(query, database, [0, 1, 2], [0, 3, 3, 1], topk=2)
    values = {empty: ranking.mean_average_precision(MapDefinition(empty=empty)) for empty in EMPTY}
    assert values == pytest.approx({"skip": 1 / 2, "skip-no-hit": 1, "zero": 1 / 3})
    assert np.isnan(ranking.average_precision()).tolist() == [False, False, True]
    assert ranking.mean_average_precision(DEFINITIONS["paper"]) == pytest.approx(1 / 2)
    assert ranking.mean_average_precision(DEFINITIONS["hashnet"]) == pytest.approx(1)
    assert ranking.mean_average_precision(DEFINITIONS["deephash-pytorch"]) == pytest.approx(1 / 3)
    assert ranking.mean_average_precision(DEFINITIONS["trec"]) == pytest.approx(1 / 3)


def test_no_query_has_anything_to_find():
    ranking = one_query([1, 2], [0, 0])
    with pytest.raises(DataError, match="none of 1 queries"):
        ranking.mean_average_precision()
    with pytest.raises(DataError, match="none of 1 queries"):
        ranking.precision_recall()
    assert ranking.mean_average_precision(MapDefinition(empty="zero")) == 0


def test_radius_two_counts_an_empty_ball_as_zero():
    # distances 0, 2, 3 from one query (one of two hits); the other query is far from all
    codes = thermometer([0, 8, 0, 2, 3], 8)
    ranking = evaluate_ranking(codes[:2], codes[2:], [0, 0], [0, 1, 0])
    assert ranking.lookup(2) == (pytest.approx(1 / 4), 1 / 2)
    assert ranking.lookup(0) == (pytest.approx(1 / 2), 1 / 2)
    assert ranking.lookup(99) == (pytest.approx(2 / 3), 0)
    with pytest.raises(UsageError, match="radius"):
        ranking.lookup(-1)


def test_recall_is_a_share_and_no_hit_rate():
    # PEERS 5.9: FIRe calls "at least one hit" recall
    ranking = one_query([1, 2, 3, 4], [1, 0, 0, 1], at=[1, 4])
    assert ranking.recall_at().tolist() == [0.5, 1]
    assert ranking.precision_at().tolist() == [1, 0.5]


def test_a_query_without_relevant_items_does_not_change_the_curves():
    # PEERS 5.9: it would pull precision down though no code could have found anything
    database = thermometer([1, 2])
    both = evaluate_ranking(thermometer([0, 0], 2), database, [0, 1], [0, 0], at=[1])
    alone = evaluate_ranking(thermometer([0], 2), database, [0], [0, 0], at=[1])
    np.testing.assert_array_equal(both.precision_recall(), alone.precision_recall())
    assert both.precision_at() == alone.precision_at() == 1
    counted = evaluate_ranking(thermometer([0, 0], 2), database, [0, 1], [0, 0], at=[1], empty="zero")
    assert counted.precision_at() == counted.recall_at() * 2 == 0.5


# against slow loops


@pytest.mark.parametrize("n_bits", N_BITS)
@pytest.mark.parametrize("sets", [False, True])
@pytest.mark.parametrize("topk", [None, 1, 17, 120, 1000])
def test_stable_against_sorting(n_bits, sets, topk):
    data = random_data(n_bits, sets=sets, seed=n_bits)
    lists = slow_stable_lists(*data)
    ranking = evaluate_ranking(*data, topk=topk, at=[50, 3, 120])
    for divisor in DIVISORS:
        ap = ranking.average_precision(MapDefinition("stable", divisor, "zero"))
        np.testing.assert_allclose(ap, [slow_ap(ranked, topk, divisor) for ranked in lists], atol=1e-12)
    hits = [[sum(ranked[:n]) for n in (50, 3, 120)] for ranked in lists]
    np.testing.assert_array_equal(ranking.hits_at("stable"), hits)


@pytest.mark.parametrize("n_classes", [3, 64, 65, 200])
def test_many_label_columns(n_classes):
    data = random_data(12, n_classes=n_classes, sets=True)
    np.testing.assert_array_equal(evaluate_ranking(*data).n_relevant, relevant(*data[2:]).sum(axis=1))


def test_more_queries_than_a_block():
    query, database, query_labels, database_labels = random_data(12, n_query=2 * BLOCK + 3)
    whole = evaluate_ranking(query, database, query_labels, database_labels).average_precision()
    for row in (0, BLOCK, 2 * BLOCK + 2):
        alone = evaluate_ranking(query[row], database, query_labels[row], database_labels)
        assert alone.average_precision() == whole[row]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("divisor", DIVISORS)
def test_ties_against_every_order(seed, divisor):
    rng = np.random.default_rng(seed)
    levels = sorted(rng.integers(1, 4, 7).tolist())
    relevance = rng.integers(0, 2, 7)
    relevance[rng.integers(7)] = 1
    for topk in (None, 1, 2, 3, 4, 5, 6, 7):
        values = [slow_ap(ranked, topk, divisor) for ranked in tie_orders(levels, relevance)]
        ranking = one_query(levels, relevance, topk=topk)
        found = {ties: ranking.mean_average_precision(MapDefinition(ties, divisor)) for ties in TIES}
        assert found["expected"] == pytest.approx(np.mean(values))
        assert found["best"] == pytest.approx(max(values))
        assert found["worst"] == pytest.approx(min(values))
        assert min(values) - 1e-12 <= found["stable"] <= max(values) + 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_hits_at_n_against_every_order(seed):
    rng = np.random.default_rng(seed)
    levels, relevance = sorted(rng.integers(1, 4, 7).tolist()), rng.integers(0, 2, 7)
    at = list(range(1, 8))
    ranking = one_query(levels, relevance, at=at)
    counts = np.array([np.cumsum(ranked) for ranked in tie_orders(levels, relevance)])
    np.testing.assert_allclose(ranking.hits_at("expected")[0], counts.mean(axis=0))
    np.testing.assert_array_equal(ranking.hits_at("best")[0], counts.max(axis=0))
    np.testing.assert_array_equal(ranking.hits_at("worst")[0], counts.min(axis=0))


def test_expected_against_random_orders():
    # larger than enumeration allows; the mean of stable MAP over shuffled databases
    query, database, query_labels, database_labels = random_data(8, n_query=20, n_database=200)
    rng = np.random.default_rng(1)
    for topk in (None, 30):
        ranking = evaluate_ranking(query, database, query_labels, database_labels, topk=topk)
        shuffled = []
        for _ in range(300):
            order = rng.permutation(len(database))
            again = evaluate_ranking(query, database[order], query_labels, database_labels[order], topk=topk)
            shuffled.append(again.mean_average_precision())
        error = np.std(shuffled) / np.sqrt(len(shuffled))
        expected = ranking.mean_average_precision(DEFINITIONS["tie-aware"])
        assert abs(np.mean(shuffled) - expected) < 4 * error
        assert error < 0.002


def test_closed_form_of_methods_part_5():
    n, r, before, hits_before = 5, 3, 4, 2
    levels, relevance = [1, 2, 3, 4] + [5] * n, [1, 0, 1, 0] + [1] * r + [0] * (n - r)
    group = sum(r / n * (hits_before + 1 + (i - 1) * (r - 1) / (n - 1)) / (before + i) for i in range(1, n + 1))
    expected = (1 + 2 / 3 + group) / (hits_before + r)
    assert one_query(levels, relevance, ties="expected").mean_average_precision() == pytest.approx(expected)


def test_scikit_learn_agrees_without_ties():
    rng = np.random.default_rng(0)
    levels, relevance = rng.permutation(60) + 1, rng.integers(0, 2, 60)
    expected = average_precision_score(relevance, -levels)
    for ties in TIES:
        assert one_query(levels, relevance, ties=ties).mean_average_precision() == pytest.approx(expected)


@pytest.mark.parametrize("n_bits", N_BITS)
def test_radius_curves_against_loops(n_bits):
    data = random_data(n_bits, seed=3)
    distance, same = distances(*data[:2]), relevant(*data[2:])
    ranking = evaluate_ranking(*data)
    curves = np.zeros((2, n_bits + 1))
    mean_precision = np.zeros(n_bits + 1)
    for radius in range(n_bits + 1):
        within = distance <= radius
        hits, retrieved, n_relevant = (within & same).sum(axis=1), within.sum(axis=1), same.sum(axis=1)
        mean_precision[radius] = np.mean([h / r if r else 0 for h, r in zip(hits, retrieved, strict=True)])
        curves[:, radius] = (
            hits.sum() / retrieved.sum() if retrieved.sum() else 0,
            hits.sum() / n_relevant.sum(),
        )
    np.testing.assert_allclose(ranking.precision_recall(), curves)
    assert ranking.lookup(2)[0] == pytest.approx(mean_precision[min(2, n_bits)])
    assert ranking.lookup(2)[1] == (distance.min(axis=1) > 2).mean()
    recall = ranking.precision_recall()[1]
    assert (np.diff(recall) >= 0).all()
    assert recall[-1] == pytest.approx(1)


# laws


@pytest.mark.parametrize("n_bits", N_BITS)
@pytest.mark.parametrize("topk", [None, 40])
def test_the_names_of_bits_do_not_matter(n_bits, topk):
    query, database, *labels = random_data(n_bits)
    before = evaluate_codes(query, database, *labels, topk=topk)
    order = np.random.default_rng(0).permutation(n_bits)
    for change in (lambda signs: -signs, lambda signs: signs[:, order]):
        changed = [Codes.from_signs(change(codes.signs())) for codes in (query, database)]
        assert evaluate_codes(*changed, *labels, topk=topk) == before


@pytest.mark.parametrize("n_bits", N_BITS)
@pytest.mark.parametrize("topk", [None, 1, 40])
def test_best_and_worst_enclose_the_others(n_bits, topk):
    ranking = evaluate_ranking(*random_data(n_bits), topk=topk)
    for divisor in DIVISORS:
        ap = {ties: ranking.average_precision(MapDefinition(ties, divisor)) for ties in TIES}
        for ties in ("stable", "expected"):
            assert (ap["worst"] <= ap[ties] + 1e-12).all()
            assert (ap[ties] <= ap["best"] + 1e-12).all()


def test_topk_of_the_database_is_no_topk():
    data = random_data(12)
    for definition in DEFINITIONS.values():
        values = {evaluate_ranking(*data, topk=k).mean_average_precision(definition) for k in (None, 120, 500)}
        assert len(values) == 1


def test_random_codes_score_the_prior():
    data = random_data(48, n_query=100, n_database=3000, n_classes=10)
    result = evaluate_codes(*data)
    assert result["map"] == pytest.approx(0.1, abs=0.01)
    assert result["map_tie_aware"] == pytest.approx(0.1, abs=0.01)
    assert result["precision_at_1000"] == pytest.approx(0.1, abs=0.01)


def test_a_zero_output_ranks_like_a_negative_one():
    # PEERS 5.2: sign(0) = 0 would give half distances and another ranking
    u = np.random.default_rng(0).integers(-1, 2, (40, 12)).astype(float)
    labels = np.arange(40) % 3
    zero, negative = Codes.from_relaxed(u), Codes.from_relaxed(np.where(u == 0, -1, u))
    assert evaluate_codes(zero, zero, labels, labels) == evaluate_codes(negative, negative, labels, labels)


def test_precision_of_large_ties():
    # the closed forms subtract harmonic numbers; all 200,000 items in one tie, then one item behind them
    n = 200_000
    relevance = np.arange(n + 1) % 2 == 0
    ranking = one_query([1] * n + [2], relevance, ties="expected")
    i = np.arange(1, n + 1)
    r = n // 2
    total = (r / n * (1 + (i - 1) * (r - 1) / (n - 1)) / i).sum() + (r + 1) / (n + 1)
    assert ranking.mean_average_precision() == pytest.approx(total / (r + 1), abs=1e-12)


# chance, and images that were not learned from


@pytest.mark.parametrize("topk", [None, 1, 3, 5])
@pytest.mark.parametrize("divisor", DIVISORS)
def test_a_random_ranking_against_every_order(topk, divisor):
    levels, relevance = [0, 1, 1, 2, 3, 3], [1, 0, 1, 0, 1, 0]
    ranking = one_query(levels, relevance, topk=topk).random()
    slow = np.mean([slow_ap(order, topk, divisor) for order in itertools.permutations(relevance)])
    assert ranking.mean_average_precision(MapDefinition("expected", divisor)) == pytest.approx(slow)


@pytest.mark.parametrize("sets", [False, True])
@pytest.mark.parametrize("topk", [None, 20])
def test_chance_is_the_tie_aware_map_of_constant_codes(sets, topk):
    query, database, *labels = random_data(12, sets=sets)
    result = evaluate_codes(query, database, *labels, topk=topk)
    constant = [Codes.from_relaxed(np.ones((len(codes), 12))) for codes in (query, database)]
    assert result["map_random"] == pytest.approx(evaluate_codes(*constant, *labels, topk=topk)["map_tie_aware"])


@pytest.mark.parametrize("sets", [False, True])
@pytest.mark.parametrize("topk", [None, 7])
@pytest.mark.parametrize("share", [0, 0.6, 1])
def test_unlearned_against_a_loop_that_leaves_each_query_out(sets, topk, share):
    query, database, asked, searched = random_data(6, n_query=25, n_classes=6, sets=sets)
    learned = np.random.default_rng(1).random(len(database)) < share
    result = evaluate_codes(query, database, asked, searched, topk=topk, learned=learned)
    signs = np.concatenate([database.signs()[~learned], query.signs()])
    values = np.concatenate([searched.values[~learned], asked.values])
    aps, chances = [], []
    for i in range(len(query)):
        others = np.delete(np.arange(len(signs)), (~learned).sum() + i)
        alone = query[[i]], Codes.from_signs(signs[others]), asked[[i]], Labels(values[others], asked.names)
        if relevant(*alone[2:]).any():
            one = evaluate_codes(*alone, topk=topk)
            aps.append(one["map_tie_aware"])
            chances.append(one["map_random"])
    assert result["map_unlearned"] == pytest.approx(np.mean(aps))
    assert result["map_unlearned_random"] == pytest.approx(np.mean(chances))
    assert result["n_unlearned"] == (~learned).sum() + len(query) - 1
    usual = evaluate_codes(query, database, asked, searched, topk=topk)
    assert usual["map_unlearned"] is None and usual == result | {
        key: None for key in ("map_unlearned", "map_unlearned_random", "n_unlearned")
    }


def test_memorised_codes_score_low_among_unlearned_images():
    # the whole database has perfect codes, and queries have random ones: only the second number tells
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(8), 20)
    own = Codes.from_relaxed(rng.standard_normal((8, 32)))
    query = own[np.arange(8).repeat(4)]
    noise = Codes.from_relaxed(rng.standard_normal((32, 32)))
    labels = np.arange(8).repeat(4)
    assert evaluate_codes(query, own[y], labels, y, learned=np.ones(160, bool))["map_unlearned"] == 1
    result = evaluate_codes(noise, own[y], labels, y, learned=np.ones(160, bool))
    assert result["map_unlearned"] == pytest.approx(result["map_unlearned_random"], abs=0.06)


def test_without_two_unlearned_images_of_a_class_there_is_no_number():
    codes = thermometer([0, 1, 2, 3])
    result = evaluate_codes(codes[:2], codes, [0, 1], [0, 1, 0, 1], learned=np.ones(4, bool))
    assert result["map_unlearned"] is result["map_unlearned_random"] is result["n_unlearned"] is None
    assert "map_unlearned" not in {key for key, *_ in titled(result)}
    with pytest.raises(MismatchError, match=r"learned must be a bool for each of 4 codes, got \(3,\)"):
        evaluate_codes(codes[:2], codes, [0, 1], [0, 1, 0, 1], learned=np.ones(3, bool))


def test_means_and_deviations_of_several_runs():
    runs = [evaluate_codes(*random_data(8, seed=seed), learned=np.ones(120, bool)) for seed in range(3)]
    means = mean_scores(runs)
    for key in ("map", "map_unlearned"):
        values = [scores[key] for scores in runs]
        assert means[key] == pytest.approx(sum(values) / 3)
        deviation = (sum((value - sum(values) / 3) ** 2 for value in values) / 2) ** 0.5
        assert means[f"{key}_deviation"] == pytest.approx(deviation)
    assert mean_scores(runs[:1])["map_deviation"] is None
    assert mean_scores([runs[0] | {"map_unlearned": None}])["map_unlearned"] is None


# evaluate_codes and refusals


def test_evaluate_codes_is_plain_json():
    data = random_data(12, n_database=600)
    result = json.loads(json.dumps(evaluate_codes(*data, topk=50), allow_nan=False))
    ranking = evaluate_ranking(*data, topk=50, at=[100, 500])
    assert result["map"] == ranking.mean_average_precision()
    assert result["map_worst"] <= result["map_tie_aware"] <= result["map_best"]
    assert result["definition"] == (
        "MAP@50, ties in database order, divided by relevant items found, queries without relevant item left out"
    )
    assert evaluate_codes(*data)["definition"].startswith("MAP@all, ")
    assert result["topk"] == 50
    assert [result[f"precision_at_{n}"] for n in (100, 500)] == ranking.precision_at("expected").tolist()
    assert (result["n_query"], result["n_query_left_out"], result["n_database"]) == (9, 0, 600)
    assert len(result["pr_curve"]["precision"]) == len(result["pr_curve"]["recall"]) == 13
    ap, classes = ranking.average_precision(), data[2].values
    assert result["per_class_map"] == pytest.approx({str(c): ap[classes == c].mean() for c in np.unique(classes)})


def test_other_numbers_and_a_new_metric(monkeypatch):
    data = random_data(12, n_database=600)
    monkeypatch.setattr(metrics, "METRICS", (*METRICS, Metric("toy", "Toy", "A half.", lambda r, n: n / 2, "radius")))
    result = evaluate_codes(*data, radius=[0, 3], precision_at=[5], recall_at=[5, 600])
    ranking = evaluate_ranking(*data, at=[5, 600], ties="expected")
    assert (result["precision_radius_3"], result["empty_radius_3"]) == ranking.lookup(3)
    assert [result["recall_at_5"], result["recall_at_600"]] == ranking.recall_at().tolist() and result[
        "recall_at_600"
    ] == 1
    assert result["precision_at_5"] == ranking.precision_at()[0] and "precision_at_600" not in result
    assert result["toy_3"] == 1.5 and "precision_radius_2" not in result
    words = {key: (title, explained) for key, _, title, explained in titled(result)}
    assert words["toy_0"] == ("Toy", "A half.") and words["recall_at_5"][0] == "Recall at 5"
    assert set(words) == {key for key, value in result.items() if isinstance(value, float)}
    with pytest.raises(UsageError, match="no metric with the argument radii; choose from radius"):
        evaluate_codes(*data, radii=[2])


def test_evaluate_codes_of_label_sets():
    result = evaluate_codes(*random_data(12, sets=True))
    assert result["per_class_map"] == {}
    assert 0 < result["map"] <= 1


def test_left_out_queries_are_counted():
    database = thermometer([1, 2])
    result = evaluate_codes(thermometer([0, 0], 2), database, ["a", "b"], Labels.of(["a", "a"], ["a", "b"]))
    assert (result["n_query"], result["n_query_left_out"]) == (2, 1)
    assert result["per_class_map"] == {"a": 1.0}


@pytest.mark.parametrize("setting", ["ties", "divisor", "empty"])
def test_unknown_settings_are_refused(setting):
    with pytest.raises(UsageError, match=f"{setting} must be one of .*, got 'other'"):
        one_query([1, 2], [1, 0], **{setting: "other"})
    with pytest.raises(UsageError, match="ties"):
        one_query([1, 2], [1, 0], at=[1]).precision_at("other")


@pytest.mark.parametrize("n", [0, -1, 3])
def test_precision_beyond_the_database_is_refused(n):
    with pytest.raises(UsageError, match=f"from 1 to 2, the database size, got {n}"):
        one_query([1, 2], [1, 0], at=[n])


def test_mismatched_inputs_are_refused():
    query, database, query_labels, database_labels = random_data(12)
    with pytest.raises(MismatchError, match="9 codes and 8 labels"):
        evaluate_ranking(query, database, query_labels[:8], database_labels)
    with pytest.raises(MismatchError, match="120 codes and 1 labels"):
        evaluate_ranking(query, database, query_labels, database_labels[0])
    with pytest.raises(MismatchError, match="12 and of 16 bits"):
        evaluate_ranking(query, random_data(16)[1], query_labels, database_labels)
    with pytest.raises(UsageError, match="MAP takes Codes, got ndarray; make them with Codes"):
        evaluate_codes(query.signs(), database.signs(), query_labels, database_labels)
    with pytest.raises(DataError, match="the query is empty"):
        evaluate_ranking(query[:0], database, query_labels[:0], database_labels)
    with pytest.raises(DataError, match="the database is empty"):
        evaluate_ranking(query, database[:0], query_labels, database_labels[:0])


def test_ties_ordered_by_the_second_code(rng):
    """The order of (distance, second distance, row), by sorting; the first code's own MAP does not change."""

    def codes(n):
        second = Codes.from_relaxed(rng.normal(size=(n, 20)))
        return Codes(Codes.from_relaxed(rng.normal(size=(n, 3))).packed, 3, second)

    query, database = codes(12), codes(150)
    labels = rng.integers(0, 3, 12), rng.integers(0, 3, 150)
    scores = evaluate_codes(query, database, *labels, precision_at=[10])
    plain = evaluate_codes(query.first, database.first, *labels, precision_at=[10])
    assert scores["map"] == plain["map"] and plain["map_both"] is None and plain["map_second"] is None
    alone = evaluate_codes(query.second, database.second, *labels)
    assert scores["map_second"] == alone["map"]
    ap, precision = [], []
    for row in range(12):
        first = (query.signs()[row] != database.signs()).sum(axis=1)
        second = (query.second.signs()[row] != database.second.signs()).sum(axis=1)
        hits = labels[1][np.lexsort((np.arange(150), second, first))] == labels[0][row]
        ap.append(np.mean([hits[: i + 1].mean() for i in np.flatnonzero(hits)]))
        precision.append(hits[:10].mean())
    assert scores["map_both"] == pytest.approx(np.mean(ap))
    assert scores["precision_both_at_10"] == pytest.approx(np.mean(precision))
