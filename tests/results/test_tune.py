"""Tuning: finds better settings on training rows alone, records every try, and continues where it was stopped."""

import json
import shutil

import numpy as np
import pytest
from made_images import three_classes

from hashlens import CCAITQ, DTSH, ITQ, KSH, LinearHasher, Training, load, setting, tune
from hashlens.data import make_protocol, open_source
from hashlens.data.folds import TrainingRows
from hashlens.data.images import UnreadableImage
from hashlens.data.labels import Labels
from hashlens.errors import DataError, MismatchError, Stopped, UsageError
from hashlens.hashers.second import learn_second
from hashlens.results.metrics import DEFINITIONS, evaluate_ranking
from hashlens.results.tune import Tuning, search


class Blurred(LinearHasher):
    """Directions of the class means, spoiled by noise: the less of it, the better."""

    noise: float = setting(3.0, "noise added to the directions", low=0, search=(0.01, 10.0))
    turns: int = setting(1, "of no effect", low=1, search=(1, 4))
    kind: str = setting("plain", "fails if it is odd", choices=("plain", "odd"), search=["plain", "odd"])

    def _learn_projection(self, X, labels):
        if self.kind == "odd":
            raise DataError("odd")
        rng = np.random.default_rng(self.random_state)
        means = labels.matrix().T @ X / labels.counts()[:, None]
        W = (means / np.linalg.norm(means, axis=1)[:, None]).T @ rng.normal(size=(len(means), self.n_bits))
        return W + self.noise * rng.normal(size=W.shape)


def lines(folder):
    return [json.loads(line) for line in (folder / "tries.jsonl").read_text().splitlines()]


def without_seconds(tries):
    return [{key: value for key, value in one.items() if key != "seconds"} for one in json.loads(json.dumps(tries))]


def test_it_finds_what_is_better_and_says_by_how_much(clusters, tmp_path):
    found = tune(clusters, Blurred(8), tries=15, out=tmp_path)
    first, best = found.tries[0], found.best
    assert first["settings"] == {"noise": 3.0, "turns": 1, "kind": "plain"} and first["state"] == "complete"
    assert best["score"] > first["score"] + 0.1 and found.settings["noise"] < 1
    assert found.hasher.noise == found.settings["noise"] and found.hasher.is_fitted()
    assert found.hasher.score(*clusters) > Blurred(8).fit(*clusters).score(*clusters)
    assert f"--set noise={found.settings['noise']}" in str(found)
    assert without_seconds(found.tries) == without_seconds(lines(tmp_path))
    assert np.array_equal(load(tmp_path / "model").encode(clusters[0]).packed, found.hasher.encode(clusters[0]).packed)


@pytest.mark.parametrize(("folds", "number"), [([0.52, 0.51, 0.53], 1), ([0.6, 0.47, 0.49], 0)])
def test_defaults_stay_unless_the_gain_is_more_than_chance(folds, number):
    tries = [
        {"number": i, "settings": {"width": width}, "state": "complete", "score": np.mean(scores), "folds": scores}
        for i, (width, scores) in enumerate([(0.5, [0.5, 0.5, 0.5]), (0.1, folds)])
    ]
    found = Tuning(KSH(8), tries)
    assert tries[1]["score"] > tries[0]["score"] and found.best["number"] == number
    assert found.settings == tries[number]["settings"]
    assert ("the defaults stay" in str(found)) == (number == 0)


def scored(*folds, **how):
    """A try with these scores of its folds."""
    return {"state": "complete", "score": np.mean(folds), "folds": folds, "seconds": 0, **how}


@pytest.mark.parametrize("state", ["complete", "pruned"])
@pytest.mark.parametrize(("n_others", "number"), [(1, 1), (2, 1), (12, 0)])
def test_the_more_tries_the_larger_must_the_gain_be(state, n_others, number):
    gain = 0.5 + 1.5 / 3**0.5 * 0.01  # 1.5 standard errors of these folds
    tries = [scored(0.5, 0.5, 0.5), scored(gain - 0.01, gain, gain + 0.01)]
    tries += [scored(0.39, 0.4, 0.41, state=state) for _ in range(n_others - 1)]
    found = Tuning(KSH(8), [{"number": i, "settings": {}, **one} for i, one in enumerate(tries)])
    assert found.best["number"] == number


def test_a_try_with_equal_gains_by_luck_is_not_better_than_the_spread_of_the_others():
    tries = [scored(0.5, 0.5, 0.5), scored(0.51, 0.51, 0.51), scored(0.4, 0.5, 0.6), scored(0.6, 0.3, 0.5)]
    assert Tuning(KSH(8), [{"number": i, "settings": {}, **one} for i, one in enumerate(tries)]).best["number"] == 0


def test_tries_that_failed_do_not_count():
    tries = [scored(0.5, 0.5, 0.5), scored(0.51, 0.52, 0.53), *[{"state": "failed", "score": None}] * 100]
    assert Tuning(KSH(8), [{"number": i, "settings": {}, **one} for i, one in enumerate(tries)]).best["number"] == 1


def test_the_defaults_alone_are_not_called_the_best_of_one_try(clusters):
    assert "only they were tried, so allow more tries" in str(tune(clusters, Blurred(8), tries=1))


def test_bad_tries_are_stopped_after_one_fold_and_failed_ones_recorded(clusters):
    tries = tune(clusters, Blurred(8), tries=15).tries
    states = {state: [one for one in tries if one["state"] == state] for state in ("complete", "pruned", "failed")}
    assert all(len(one["folds"]) == 3 and one["score"] == np.mean(one["folds"]) for one in states["complete"])
    assert states["pruned"] and all(len(one["folds"]) == 1 for one in states["pruned"])
    worst = min((one for one in tries if one["score"]), key=lambda one: one["score"])
    assert worst["state"] == "pruned" and worst["settings"]["noise"] > 1
    assert states["failed"] and all(one["reason"] == "odd" and one["score"] is None for one in states["failed"])


def test_lines_say_what_a_score_is_of(clusters, capsys):
    found = tune(clusters, Blurred(8), tries=15, progress=True)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("try ")]
    for one, line in zip(found.tries, said, strict=True):
        ends = {
            "complete": "MAP {score:.4f} over 3 folds,",
            "pruned": "fold 1: {score:.4f}, stopped early,",
            "failed": "failed: odd,",
        }
        assert line.startswith(f"try {one['number'] + 1}/15: " + ends[one["state"]].format(**one))
    tune(clusters, DTSH(8, training=Training(epochs=6)), tries=4, progress=True)
    assert "fold 1, few epochs: 0." in capsys.readouterr().err


def test_tries_learn_no_second_code_and_the_model_does(clusters, monkeypatch):
    plain, learned = tune(clusters, Blurred(8), tries=2), []
    monkeypatch.setattr(
        "hashlens.hashers.second.learn_second", lambda X, *how: learned.append(X) or learn_second(X, *how)
    )
    found = tune(clusters, Blurred(8, second_bits=16), tries=2)
    assert len(learned) == 1 and found.hasher.second_bits_ == 16
    assert without_seconds(found.tries) == without_seconds(plain.tries)


def test_the_score_is_the_tie_aware_map_of_held_back_rows(clusters):
    X, y = clusters
    first = tune(clusters, CCAITQ(8), tries=1).tries[0]
    for score, (learned, held) in zip(first["folds"], TrainingRows("", X, Labels.of(y)).folds(3), strict=True):
        hasher = CCAITQ(8).fit(X[learned], y[learned])
        ranking = evaluate_ranking(hasher.encode(X[held]), hasher.encode(X[learned]), y[held], y[learned])
        assert score == ranking.mean_average_precision(DEFINITIONS["tie-aware"])


def test_a_stopped_search_continues_and_ends_the_same(clusters, tmp_path):
    whole = tune(clusters, Blurred(8), tries=9, out=tmp_path / "whole")
    with pytest.raises(Stopped, match=r"stopped after 4 tries, kept in .*; rerun the same command"):
        tune(clusters, Blurred(8), tries=9, out=tmp_path / "cut", stop=lambda: len(lines_so_far(tmp_path / "cut")) >= 4)
    assert len(lines(tmp_path / "cut")) == 4
    tune(clusters, Blurred(8), tries=6, out=tmp_path / "cut")
    found = tune(clusters, Blurred(8), tries=9, out=tmp_path / "cut")
    assert without_seconds(found.tries) == without_seconds(whole.tries)
    assert tune(clusters, Blurred(8), tries=9, seed=1).tries[1] != whole.tries[1]
    for other in (Blurred(12), CCAITQ(8)):
        with pytest.raises(MismatchError, match=r"were made with other .*; choose another --out"):
            tune(clusters, other, out=tmp_path / "cut")


@pytest.mark.parametrize(
    ("line", "change", "why"),
    [
        (1, None, "it is null"),
        (1, {}, "state is null"),
        (0, {"state": "pruned"}, 'state is "pruned"'),
        (0, {"number": 1}, "number is 1"),
        (1, {"folds": [1]}, "folds has 1 items instead of 3"),
        (1, {"score": None}, "score is null"),
        (1, {"settings": {"noise": 1.0}}, "turns is missing"),
        (1, {"settings": {"noise": "x", "turns": 1, "kind": "plain"}}, "noise must be a number"),
        (1, {"settings": {"noise": -1.0, "turns": 1, "kind": "plain"}}, "noise must be >= 0"),
        (1, {"steps": {"x": 0.5}}, "unknown entry"),
        (1, {"rungs": {"other": 0.5}}, "unknown entry"),
        (1, {"state": []}, "state is"),
        (1, {"more": 1}, "unknown entry"),
    ],
)
def test_damaged_tries_are_one_sentence(clusters, tmp_path, line, change, why):
    tune(clusters, Blurred(8), tries=1, out=tmp_path)
    made = [lines(tmp_path)[0] | {"number": number} for number in range(2)]
    made[line] = made[line] | change if change else change
    (tmp_path / "tries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))
    with pytest.raises(DataError, match=rf"the tries in .* are damaged \(.*{why}.*\); choose another --out"):
        tune(clusters, Blurred(8), tries=3, out=tmp_path)
    (tmp_path / "tuning.json").write_text('{"seconds": 1}')
    with pytest.raises(DataError, match=r"are damaged \(asked is missing\)"):
        tune(clusters, Blurred(8), tries=3, out=tmp_path)


def lines_so_far(folder):
    return lines(folder) if (folder / "tries.jsonl").exists() else []


def test_networks_are_tried_with_a_third_of_their_epochs_first(clusters):
    found = tune(clusters, DTSH(8, training=Training(epochs=6)), tries=4)
    assert set(found.tries[0]["settings"]) == {
        "alpha",
        "lambda_",
        "sampling",
        "head_lr",
        "weight_decay",
    }  # no lr: no blocks
    assert list(found.tries[0]["steps"]) == [1, 3, 9] and found.tries[0]["settings"]["alpha"] is None
    assert any(list(one["steps"]) == [1] and not one["folds"] for one in found.tries)
    assert len(found.hasher.history_) == 6  # the winner has all of them


def test_what_is_given_stays(clusters):
    found = tune(clusters, Blurred(8, noise=0.5), tries=3)
    assert all(set(one["settings"]) == {"turns", "kind"} for one in found.tries) and found.hasher.noise == 0.5


def test_several_labels(rng):
    y = rng.random((90, 4)) < 0.4
    X = y @ rng.normal(size=(4, 24)) + 0.3 * rng.normal(size=(90, 24))
    found = tune((X, y), "ccaitq", tries=4)
    assert found.best["score"] >= found.tries[0]["score"] > 0.5


def test_time_is_a_limit(clusters, monkeypatch):
    assert len(tune(clusters, Blurred(8), time="1h", tries=2).tries) == 2
    found = tune(clusters, Blurred(8), time=1e-6)
    assert found.tries == [] and found.hasher.is_fitted() and "the defaults stay" in str(found)
    clock = iter(range(10_000))
    monkeypatch.setattr("hashlens.results.tune.monotonic", lambda: next(clock))
    assert 1 < len(tune(clusters, Blurred(8), time=40).tries) < 20


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"method": "ksj"}, "there is no method 'ksj' .did you mean 'ksh'"),
        ({"method": "lsh"}, "lsh has no settings to tune; choose another method"),
        ({"method": Blurred(8, noise=1.0, turns=2, kind="odd")}, "all settings of blurred that can be tuned are set"),
        ({"tries": 0}, "tries must be >= 1, got 0"),
        ({"folds": 1}, "folds must be >= 2, got 1"),
        ({"folds": 70}, "cannot be cut into 70 folds"),
        ({"time": 0}, "time must be > 0, got 0"),
        ({"time": "soon"}, "write a time like 90s, 10m or 1h30m, got 'soon'"),
        ({"time": "10mm"}, "write a time like"),
        ({"time": ""}, "write a time like"),
        ({"time": float("nan")}, "time must be a number, got nan"),
        ({"tries": 1.5}, "tries must be an integer, got 1.5"),
        ({"folds": 2.5}, "folds must be an integer, got 2.5"),
        ({"seed": -1}, "seed must be >= 0 .*, got -1"),
        ({"seed": 2**32}, "seed must be .*, got 4294967296"),
        ({"protocol": "split"}, "protocol is for a source"),
    ],
)
def test_wrong_use_is_one_sentence(clusters, tmp_path, how, message):
    with pytest.raises((UsageError, DataError), match=message):
        tune(clusters, **{"method": "ccaitq", "out": tmp_path / "new", **how})
    assert not (tmp_path / "new").exists()


def test_wrong_rows_are_one_sentence(clusters, tmp_path):
    X, y = clusters
    for rows, message in (
        ((X, y[1:]), "200 images and 199 labels"),
        ((X[:3], y[:3]), "images"),
        ((X, 0 * y), "one class"),
    ):
        with pytest.raises(DataError, match=message):
            tune(rows, "ccaitq", out=tmp_path / "new")
    with pytest.raises(DataError, match="NaN"):
        tune((np.where(X > 2, np.nan, X), y), "ccaitq", out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("how", [{"seed": -1}, {"folds": 2.5}, {"time": float("nan")}, {"tries": 1.5}])
def test_wrong_limits_are_refused_before_a_source_is_opened(how):
    with pytest.raises(UsageError, match=next(iter(how))):
        tune("nowhere", **how)


def test_data_of_another_form_are_one_sentence(clusters):
    X, y = clusters
    for data, kind in (([X, y], "list"), (X, "ndarray"), ((X, y, y), "tuple"), ((X,), "tuple"), (None, "NoneType")):
        with pytest.raises(UsageError, match=rf"pass \(X, y\), or a source .* not {kind}"):
            tune(data)


def test_numbers_of_numpy_are_limits_too(clusters):
    assert len(tune(clusters, "ccaitq", tries=np.int64(1), folds=np.int64(2), seed=np.int64(3)).tries[0]["folds"]) == 2


def test_without_optuna(clusters, monkeypatch):
    monkeypatch.setattr("hashlens.errors.find_spec", lambda module: None if module == "optuna" else module)
    with pytest.raises(UsageError, match=r'tuning needs optuna; run: pip install "hashlens\[tune\]"'):
        tune(clusters, "ccaitq")


@pytest.fixture
def photos(tmp_path):
    return three_classes(tmp_path / "photos", 15, 120, 60)


@pytest.mark.parametrize(
    "method", [CCAITQ(8, features="gist"), DTSH(8, backbone="small-cnn", image_size=16, training=Training(epochs=3))]
)
def test_queries_cannot_be_read(photos, method, tmp_path, monkeypatch):
    source = open_source(photos)
    split = make_protocol(source)
    before = tune(source, method, protocol=split, tries=3)

    for row in split.query:
        file = source.images.file(int(row))
        file.unlink() if row % 2 else file.write_bytes(b"not an image")
    with pytest.raises(UnreadableImage):
        source.images[split.query].read([0], 16)  # whoever asks for a query gets an error
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))  # nor is one in the cache
    after = tune(source, method, protocol=split, tries=3)
    assert without_seconds(after.tries) == without_seconds(before.tries)
    images = source.images[split.train]
    assert np.array_equal(after.hasher.encode(images).packed, before.hasher.encode(images).packed)


def test_wrong_labels_of_queries_change_nothing(photos):
    source = open_source(photos)
    split = make_protocol(source)
    hasher = CCAITQ(8, features="gist")
    before = search(TrainingRows.of(source, split), hasher, tries=2).tries
    source.labels.values[split.query] = 0
    assert without_seconds(search(TrainingRows.of(source, split), hasher, tries=2).tries) == without_seconds(before)


@pytest.fixture
def hashlens(hashlens, monkeypatch, photos):
    monkeypatch.chdir(photos.parent)
    return hashlens


GIST = ["--method", "ccaitq", "--features", "gist", "--bits", "8"]


def test_the_winner_is_a_run_like_any_other(hashlens, tmp_path):
    code, out, err = hashlens("tune", "photos", *GIST, "--tries", 3)
    assert code == 0, err
    run = tmp_path / "runs" / "photos-ccaitq-8-tuned"
    assert "try 3/3" in err and "of 3 tries" in out and "next     hashlens encode" in out
    assert "tries    runs/photos-ccaitq-8-tuned/tries.jsonl" in out
    config = json.loads((run / "config.json").read_text())
    tries = [one for one in lines(run) if one["state"] == "complete"]
    best = max(tries, key=lambda one: one["score"]) if "best of 3 tries" in out else tries[0]  # or the defaults stay
    assert config["params"]["rho"] == best["settings"]["rho"] and config["tuning"]["score"] == best["score"]
    assert hashlens("evaluate", run)[0] == 0
    assert hashlens("search", run, "photos/circle/00.png")[0] == 0
    assert hashlens("encode", "photos", "--model", run / "model", "--out", "codes")[0] == 0

    code, _, err = hashlens("tune", "photos", *GIST, "--tries", 3)
    assert code == 2 and "contains a finished run" in err
    code, _, err = hashlens("tune", "photos", *GIST, "--tries", 3, "--seed", 1)
    assert code == 2 and "contains a finished run" in err
    code, out, err = hashlens("tune", "photos", *GIST, "--tries", 5, "--json")
    assert code == 0 and "3 tries already made" in err
    assert len(json.loads(out)["tries"]) == json.loads(out)["config"]["tuning"]["n_tries"] == 5


def test_train_can_tune_first(hashlens, tmp_path):
    code, out, err = hashlens("train", "photos", *GIST, "--tune", "3s", "--out", "run", "--json")
    assert code == 0, err
    assert json.loads(out)["config"]["tuning"]["score"] > 0 and (tmp_path / "run" / "model").exists()
    code, _, err = hashlens("train", "photos", *GIST, "--tune", "3s", "--out", "run")
    assert code == 2 and "contains a finished run" in err


def test_stopped_training_of_the_winner_is_resumed(hashlens, tmp_path, monkeypatch):
    asked = ["tune", "photos", "--backbone", "small-cnn", "--image-size", 16, "--bits", 8, "--epochs", 3, "--tries", 2]
    assert hashlens(*asked, "--out", "whole")[0] == 0
    shutil.copytree("whole", "cut")
    for name in ("result.json", "config.json", "split.json"):
        (tmp_path / "cut" / name).unlink()
    shutil.rmtree("cut/model")
    assert hashlens(*asked, "--out", "cut")[0] == 0
    whole, cut = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "cut"))
    assert whole.read_bytes() == cut.read_bytes()


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    [
        ("tune nowhere", 3, "nowhere not found"),
        ("tune photos --method ksj", 2, "did you mean 'ksh'"),
        ("tune photos --method lsh --features gist", 2, "lsh has no settings to tune"),
        (
            "tune photos --method ccaitq --features gist --set rho=1",
            2,
            "all settings of ccaitq that can be tuned are set",
        ),
        ("tune photos --method ccaitq --features gist --time soon", 2, "write a time like 90s"),
        ("tune photos --method ccaitq --features gist --tries 0", 2, "tries must be >= 1"),
        ("tune photos --method ccaitq --features gist --folds 50", 3, "cannot be cut into 50 folds"),
        ("tune photos --out photos", 2, "contains other files"),
        ("train photos --tune soon", 2, "write a time like 90s"),
        ("train photos --tune 1m --preset published", 2, "--preset"),
    ],
)
def test_wrong_commands_are_one_sentence(hashlens, tmp_path, typed, code, words):
    before = sorted(tmp_path.rglob("*"))
    got, out, err = hashlens(*typed.split())
    assert (got, out) == (code, "") and "Traceback" not in err, err
    assert err.strip().splitlines()[-1].startswith("error: ") and words in err
    assert sorted(tmp_path.rglob("*")) == before


def test_methods_say_what_is_tuned(hashlens):
    assert "tuned from 0.0001 to 10" in hashlens("methods", "ccaitq")[1]
    settings = {one["name"]: one for one in json.loads(hashlens("methods", "ksh", "--json")[1])["settings"]}
    assert settings["width"]["search"] == [0.05, 2.0] and settings["n_anchors"]["search"] is None


def test_a_method_without_labels_is_scored_by_labels(clusters):
    class Turned(ITQ):
        n_iterations: int = setting(50, "iterations", low=0, search=(0, 50))

    assert tune(clusters, Turned(8), tries=2).best["score"] > 0.4
