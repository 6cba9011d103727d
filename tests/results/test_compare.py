"""Small comparisons from end to end on digits: finished cells, failures, tables, plots and the report."""

import csv
import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image
from test_report import Page

import hashlens
from hashlens import DTSH, Training, make_hasher
from hashlens.data import Source, make_protocol, open_source
from hashlens.data.protocols import Protocol
from hashlens.errors import DataError, DownloadError, MismatchError, Stopped, StorageError, UsageError
from hashlens.hashers.methods import METHODS, Method
from hashlens.hashers.shallow.itq import ITQ
from hashlens.hashers.shallow.lsh import LSH
from hashlens.results import compare as comparison
from hashlens.results import figures
from hashlens.results.compare import Variant, cell_codes, compare
from hashlens.results.metrics import evaluate_codes
from hashlens.results.published import NOT_COMPARABLE, PAPER
from hashlens.results.significance import paired_test
from hashlens.results.tables import (
    as_text,
    csv_table,
    escape_latex,
    map_table,
    method_name,
    table_latex,
    table_markdown,
    title_of,
)

SENTENCE = "this method & that_one fail; use 100 % of another"
seen = []


class Seeing(LSH):
    """A supervised method that remembers how many rows it was fitted on."""

    name, supervised = "seeing", True

    def _learn_projection(self, X, labels):
        seen.append((len(X), len(labels)))
        return super()._learn_projection(X, labels)


class Failing(LSH):
    name = "failing"

    def _learn_projection(self, X, labels):
        raise DataError(SENTENCE)


@pytest.fixture(autouse=True)
def two_more_methods(monkeypatch):
    for cls in (Seeing, Failing):
        learns_from = "features and labels" if cls.supervised else "features"
        monkeypatch.setitem(METHODS, cls.name, Method(f"test_compare:{cls.__name__}", learns_from, "", ""))
    monkeypatch.setitem(sys.modules, "hashlens.hashers.test_compare", sys.modules[__name__])


def pixels(source, kind):
    """Small stand-ins for features: two kinds that differ."""
    X = source.images._array[source.images._rows].reshape(len(source.images), -1).astype(np.float32)
    return X if kind == "gist" else X[:, :40]


@pytest.fixture(scope="module")
def digits():
    whole = open_source("digits")
    return Source("digits", whole.images[:400], whole.labels[np.arange(400)])


@pytest.fixture(autouse=True)
def drawing(request, monkeypatch):
    """Figures take most of the time, so they are drawn only for tests that ask for them with `drawn`."""
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr(figures, "write_figures", lambda out, result: [])


@pytest.fixture
def drawn():
    return None


@pytest.fixture
def asked(monkeypatch, digits):
    """Features are pixels; gives the list of (kind, number of images) that were asked for."""
    kinds = []

    def features(images, kind, *, progress=None):
        kinds.append((kind, len(images)))
        return pixels(digits, kind)

    monkeypatch.setattr(comparison, "image_features", features)
    return kinds


def run(digits, out, methods=("lsh", "itq"), bits=(8, 16), features=("gist",), seeds=2, **more):
    return compare(digits, methods, bits, features=features, seeds=seeds, out=out, **more).result


def cells(out):
    return sorted(path.stem for path in (out / "cells").glob("*.json"))


def score(query, database, source, split):
    labels = source.labels[split.query], source.labels[split.database]
    return evaluate_codes(query, database, *labels, split.topk, split.learned)


def row_of(result, method, features="gist"):
    return next(row for row in result["rows"] if (row["method"], row["features"]) == (method, features))


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_comparison_from_end_to_end(digits, asked, drawn, tmp_path):
    out = tmp_path / "out"
    result = run(digits, out, features=("gist", "cnn-f", "gist"), commands=["hashlens compare digits"])
    assert asked == [("gist", 400), ("cnn-f", 400)], "each kind once, of the whole source"
    assert len(cells(out)) == 2 * 2 * 2 * 2
    assert {"gist-lsh-8-0", "cnn-f-itq-16-1"} <= set(cells(out))
    assert (result["n_cells"], result["n_finished"], result["n_failed"]) == (16, 16, 0)
    assert json.loads((out / "result.json").read_text()) == result

    assert [(row["features"], row["method"]) for row in result["rows"]] == [
        ("gist", "itq"),
        ("gist", "lsh"),
        ("cnn-f", "itq"),
        ("cnn-f", "lsh"),
    ], "the kinds as asked, the best first in each"
    at = row_of(result, "lsh")["lengths"]["8"]
    saved = [json.loads((out / "cells" / f"gist-lsh-8-{seed}.json").read_text()) for seed in (0, 1)]
    maps = [cell["map"] for cell in saved]
    assert at["map"] == pytest.approx(np.mean(maps)) and at["map_deviation"] == pytest.approx(np.std(maps, ddof=1))
    assert at["map_deviation"] > 0 and at["n_seeds"] == 2
    assert np.shape(at["pr_curve"]["recall"]) == (9,) and at["pr_curve"]["recall"][-1] == pytest.approx(1)
    assert at["seconds"]["fit"] > 0 and at["seconds"]["encode"] > 0
    cell = saved[1]
    assert (cell["method"], cell["features"], cell["n_bits"], cell["seed"]) == ("lsh", "gist", 8, 1)
    assert cell["params"] == {"n_bits": 8, "features": "gist", "random_state": 1, "second_bits": 0}
    assert cell["split_hash"] == make_protocol(digits).fingerprint()
    assert {"map_tie_aware", "precision_radius_2", "pr_curve"} <= set(cell["metrics"])
    assert cell["versions"]["numpy"] and cell["machine"]["threads"] == 1

    table = rows_of(out / "table.csv")
    assert len(table) == 8 and {"source", "method", "map", "map_tie_aware", "empty_radius_2", "p"} <= set(table[0])
    assert [row["p"] == "" for row in table] == [True, True, *[False] * 6], "the best of each length has none"
    assert all(0 < float(row["p"]) <= 1 for row in table if row["p"])
    assert float(table[2]["map"]) == pytest.approx(at["map"], abs=1e-6)
    for name in ("map", "precision-recall"):
        with Image.open(out / f"{name}.png") as image:
            assert min(image.size) > 500 and np.asarray(image.convert("L")).min() < 128
        root = ElementTree.fromstring((out / f"{name}.svg").read_text())
        words = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {"ITQ", "LSH"} <= words and any("cnn-f" in (word or "") for word in words)
    assert {path.name for path in out.iterdir()} == {
        *("cells", "split.json", "skipped.csv", "table.csv", "table.md", "table.tex", "report.html", "result.json"),
        *("map.png", "map.svg", "precision-recall.png", "precision-recall.svg"),
    }


def test_a_cell_is_what_fitting_and_scoring_by_hand_gives(digits, asked, tmp_path):
    run(digits, tmp_path, methods=["itq"], bits=[8], seeds=2)
    split, X = make_protocol(digits), pixels(digits, "gist")
    hasher = make_hasher("itq", n_bits=8, random_state=1).fit(X[split.database])
    scores = score(hasher.encode(X[split.query]), hasher.encode(X[split.database]), digits, split)
    assert json.loads((tmp_path / "cells" / "gist-itq-8-1.json").read_text())["metrics"] == scores


def test_labels_are_seen_of_the_training_rows_only(digits, asked, tmp_path):
    rows = np.arange(400)
    split = Protocol("given", rows[:100], rows[300:], rows[:300])
    source = Source("digits", digits.images, digits.labels, split=split)
    seen.clear()
    result = run(source, tmp_path, methods=["seeing", "lsh"], bits=[8], seeds=1)
    assert seen == [(100, 100)]
    assert (result["protocol"]["name"], result["protocol"]["n_train"]) == ("given", 100)
    X = pixels(digits, "gist")
    on_database = LSH(8).fit(X[:300])
    scores = score(on_database.encode(X[300:]), on_database.encode(X[:300]), source, split)
    assert row_of(result, "lsh")["lengths"]["8"]["map"] == scores["map"], "without labels, the whole database"


def test_finished_cells_are_not_computed_again(digits, asked, tmp_path, monkeypatch):
    first = run(digits, tmp_path, bits=[8])
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    pages = [(tmp_path / name).read_text() for name in ("table.tex", "report.html")]
    asked.clear()
    again = run(digits, tmp_path, bits=[8])
    assert not asked and again["rows"] == first["rows"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == written
    assert [(tmp_path / name).read_text() for name in ("table.tex", "report.html")] == pages

    more = run(digits, tmp_path, bits=[8, 12], seeds=2)
    assert asked == [("gist", 400)] and len(cells(tmp_path)) == 8
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert row_of(more, "itq")["lengths"]["8"] == row_of(first, "itq")["lengths"]["8"]
    fewer = run(digits, tmp_path, methods=["lsh"], bits=[12], seeds=1)
    assert [row["method"] for row in fewer["rows"]] == ["lsh"] and fewer["bits"] == [12]


@pytest.mark.parametrize("text", ["", '{"map": 0.9', "[]", "{}", "cut", "missing curve"])
def test_a_damaged_cell_is_computed_again(digits, asked, tmp_path, capsys, text):
    from hashlens.progress import Progress

    before = run(digits, tmp_path, methods=["lsh"], bits=[8])
    path = tmp_path / "cells" / "gist-lsh-8-1.json"
    cell = json.loads(path.read_text())
    if text == "missing curve":
        del cell["metrics"]["pr_curve"]
        text = json.dumps(cell)
    path.write_text(path.read_text()[:300] if text == "cut" else text)
    after = run(digits, tmp_path, methods=["lsh"], bits=[8], progress=Progress())
    assert row_of(after, "lsh")["lengths"]["8"]["map"] == row_of(before, "lsh")["lengths"]["8"]["map"]
    assert json.loads(path.read_text())["metrics"]["pr_curve"]
    said = capsys.readouterr().err
    assert f"{path} is damaged" in said and "1/1 lsh on gist, 8 bits, seed 1: MAP" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split_seed": 1}, "split_hash was"),
        ({"settings": {"n_iterations": 3}}, "n_iterations was 50, now 3"),
        ({"labels": True}, "data_hash was"),
        ({"topk": 10}, "topk was None, now 10"),
    ],
)
def test_a_cell_made_with_different_settings_is_refused(digits, asked, tmp_path, change, words):
    run(digits, tmp_path, methods=["itq"], bits=[8], seeds=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    source, change = digits, dict(change)
    if "topk" in change:
        change["protocol"] = replace(make_protocol(digits), topk=change.pop("topk"))
    if change.pop("labels", False):
        # two images of one role exchange their classes: the split's rows stay the same
        values = digits.labels.values.copy()
        split = make_protocol(digits)
        a, b = split.query[0], next(row for row in split.query if values[row] != values[split.query[0]])
        values[[a, b]] = values[[b, a]]
        source = Source("digits", digits.images, type(digits.labels)(values, digits.labels.names), split=split)
    with pytest.raises(MismatchError, match=words) as error:
        run(source, tmp_path, methods=["itq"], bits=[8], seeds=1, **change)
    assert "gist-itq-8-0.json" in error.value.message and "choose another --out" in error.value.message
    assert "\n" not in error.value.message
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_failing_method_does_not_stop_the_others(digits, asked, tmp_path, monkeypatch):
    result = run(digits, tmp_path, methods=["failing", "lsh"])
    assert (result["n_finished"], result["n_failed"]) == (4, 4)
    assert all(name.startswith("gist-lsh") for name in cells(tmp_path))
    assert [row["method"] for row in result["rows"]] == ["lsh", "failing"], "what has no number is last"
    at = row_of(result, "failing")["lengths"]["8"]
    assert (at["map"], at["errors"], at["n_seeds"]) == (None, [SENTENCE], 0)
    text = as_text(result)
    assert re.search(r"^Failing +failed +failed +failed +failed +–$", text, re.MULTILINE)
    assert f"failed: Failing on gist at 8, 16 bits: {SENTENCE}" in text
    assert f"failed: Failing on gist at 8, 16 bits: {SENTENCE}" in (tmp_path / "table.md").read_text()
    assert [row["error"] for row in rows_of(tmp_path / "table.csv")] == ["", "", SENTENCE, SENTENCE]
    assert r"\& that\_one fail; use 100 \% of another" in (tmp_path / "table.tex").read_text()
    assert SENTENCE in Page(tmp_path / "report.html").text

    monkeypatch.setattr(Failing, "_learn_projection", LSH._learn_projection)
    asked.clear()
    repaired = run(digits, tmp_path, methods=["failing", "lsh"])
    assert (repaired["n_finished"], repaired["n_failed"]) == (8, 0), "a failure is not kept"


def test_too_little_memory_is_a_failure_and_a_full_disk_is_the_end(digits, asked, tmp_path, monkeypatch):
    def fail_with(error):
        def learn(self, X, labels):
            raise error

        monkeypatch.setattr(Failing, "_learn_projection", learn)

    fail_with(MemoryError())
    result = run(digits, tmp_path, methods=["failing", "lsh"], bits=[8])
    assert "not enough memory" in row_of(result, "failing")["lengths"]["8"]["errors"][0]
    assert result["n_finished"] == 2
    fail_with(StorageError("the disk is full"))
    with pytest.raises(StorageError):
        run(digits, tmp_path / "other", methods=["failing", "lsh"], bits=[8])
    fail_with(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):  # a mistake of ours is not hidden
        run(digits, tmp_path / "another", methods=["failing"], bits=[8])


def test_features_that_fail_are_tried_once(digits, asked, tmp_path, monkeypatch):
    tried = []

    def features(images, kind, *, progress=None):
        tried.append(kind)
        if kind == "cnn-f":
            raise DownloadError("no weights here")
        return pixels(digits, kind)

    monkeypatch.setattr(comparison, "image_features", features)
    result = run(digits, tmp_path, features=["cnn-f", "gist"])
    assert tried == ["cnn-f", "gist"]
    assert (result["n_finished"], result["n_failed"]) == (8, 8)
    assert row_of(result, "itq", "cnn-f")["lengths"]["16"]["errors"] == ["no weights here"]


def test_when_everything_fails_there_is_a_result_and_no_table(digits, asked, tmp_path):
    result = run(digits, tmp_path, methods=["failing"])
    assert (result["n_finished"], result["n_failed"], result["definition"]) == (0, 4, None)
    assert SENTENCE in as_text(result)
    assert not (tmp_path / "table.csv").exists()


def test_rerunning_a_stopped_comparison_resumes(digits, asked, tmp_path):
    whole = run(digits, tmp_path / "whole")
    out, polls = tmp_path / "out", []

    def stop():
        polls.append(None)
        return len(polls) > 3

    with pytest.raises(Stopped, match="3 of 8 cells finished") as stopped:
        run(digits, out, stop=stop)
    assert stopped.value.exit_code == 130
    assert cells(out) == ["gist-lsh-16-0", "gist-lsh-8-0", "gist-lsh-8-1"]
    half = json.loads((out / "result.json").read_text())
    assert row_of(half, "itq")["mean_map"] is None and row_of(half, "lsh")["lengths"]["16"]["n_seeds"] == 1
    assert as_text(half).count("–") == 5 and "failed" not in as_text(half)

    result = run(digits, out)
    assert cells(out) == cells(tmp_path / "whole")

    def numbers(result):
        return [[at["map"] for at in row["lengths"].values()] for row in result["rows"]]

    assert numbers(result) == numbers(whole)


def test_a_network_is_trained_once_for_all_features_and_resumes_from_its_checkpoint(digits, asked, tmp_path):
    settings = {"training": Training(epochs=4, batch_size=60)}

    def go(out, **more):
        return run(
            digits, out, methods=["lsh", "dtsh"], bits=[8], features=["gist", "cnn-f"], settings=settings, **more
        )

    whole = go(tmp_path / "whole", seeds=1)
    assert cells(tmp_path / "whole") == ["cnn-f-lsh-8-0", "gist-lsh-8-0", "small-cnn-dtsh-8-0"]
    row = row_of(whole, "dtsh", "small-cnn")
    assert row["takes"] == "images" and row["lengths"]["8"]["map"] > 0.12
    cell = json.loads((tmp_path / "whole" / "cells" / "small-cnn-dtsh-8-0.json").read_text())
    assert cell["params"]["training"]["epochs"] == 4

    out, polls = tmp_path / "out", []

    def stop():
        polls.append(None)
        return len(polls) > 5  # three cells are begun, and the third polls after every step

    with pytest.raises(Stopped, match="2 of 3 cells") as stopped:
        go(out, seeds=1, stop=stop)
    assert "hashlens train" not in stopped.value.message, "that resumes runs, not comparisons"
    assert (out / "training" / "small-cnn-dtsh-8-0" / "checkpoint.safetensors").exists()
    result = go(out, seeds=1)
    assert row_of(result, "dtsh", "small-cnn")["lengths"]["8"]["map"] == row["lengths"]["8"]["map"]
    assert not (out / "training" / "small-cnn-dtsh-8-0").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": ["itqq"]}, "itqq"),
        ({"methods": []}, "nothing to compare"),
        ({"methods": [3]}, "cannot compare 3; give names of methods"),
        ({"methods": [dict]}, "cannot compare"),
        ({"bits": ["12"]}, "bits must be integers >= 1, got 12"),
        ({"bits": [0, 8]}, "got 0, 8"),
        ({"bits": []}, "got none"),
        ({"seeds": 0}, "seeds"),
        ({"features": []}, "lsh learns from features"),
        ({"features": ["gisst"]}, "gisst.*gist, deep"),
        ({"settings": {"image_size": 3}}, "none of lsh, itq has the setting 'image_size'"),
        ({"settings": {"training": Training(epochs=3)}}, "has the setting 'epochs'"),
        ({"methods": [Variant("other", "itq", {"n_iteration": 1})]}, "did you mean 'n_iterations'"),
        (
            {"against": "itq", "features": ["gist", "cnn-f"]},
            "'itq' is ambiguous; choose from ITQ on gist, ITQ on cnn-f",
        ),
    ],
)
def test_wrong_use_is_found_before_any_work(digits, asked, tmp_path, change, words):
    with pytest.raises(UsageError, match=words):
        run(digits, tmp_path / "out", **change)
    assert not asked and not (tmp_path / "out").exists()


def test_run_folders_and_images_without_labels_are_refused(digits, asked, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="is a run folder"):
        run(digits, tmp_path)
    rows = np.arange(400)
    unlabelled = Source("photos", digits.images, digits.labels, split=Protocol("unlabelled", rows, rows[:0], rows))
    with pytest.raises(UsageError, match="photos has no labels"):
        run(unlabelled, tmp_path / "out")


def test_deep_is_another_word_for_the_default_network(digits, asked, tmp_path):
    result = run(digits, tmp_path, methods=["lsh"], bits=[8], features=["deep", "efficientnet-lite0"], seeds=1)
    assert cells(tmp_path) == ["efficientnet-lite0-lsh-8-0"] and result["features"] == ["efficientnet-lite0"]


def test_features_of_nuswide_come_from_its_folder(digits, asked, tmp_path, monkeypatch):
    from hashlens.features import nuswide

    def read(root, names, train, *, progress=None):
        asked.append((root, len(names), len(train)))
        return pixels(digits, "gist")

    monkeypatch.setattr(nuswide, "nuswide_features", read)
    options = {"methods": ["lsh"], "bits": [8], "features": ["nuswide-1134"], "seeds": 1}
    result = run(digits, tmp_path / "a", **options)
    assert "come with NUS-WIDE" in row_of(result, "lsh", "nuswide-1134")["lengths"]["8"]["errors"][0]
    images = digits.images[np.arange(400)]
    images.root = tmp_path / "NUS-WIDE"
    source = Source("nuswide", images, digits.labels)
    assert run(source, tmp_path / "b", **options)["n_finished"] == 1
    assert asked == [(tmp_path / "NUS-WIDE", 400, len(make_protocol(digits).train))]


def test_the_name_of_a_file_holds_no_slash():
    assert comparison.Cell("hf:org/model_1.5", "itq", 8, 0).name == "hf_org_model_1.5-itq-8-0"


def test_the_name_of_a_file_is_short_and_its_own():
    names = {comparison.Cell("gist", f"{'é' * 200}{end}", 8, 0).name for end in ("a", "b")}
    assert len(names) == 2 and all(len(name.encode()) <= 150 for name in names)


# Tables, from a made result: two kinds of features, three methods, printed numbers of both sorts, a failure.


def at(value, deviation=0.001, printed=None, errors=()):
    measured = ("map", "map_tie_aware", "precision_radius_2", "empty_radius_2")
    curve = {"recall": [0.0, 0.2, 0.6, 1.0], "precision": [0.0, 0.9, 0.5, 0.1]}
    return {
        "n_seeds": 0 if value is None else 3,
        **dict.fromkeys(measured, value),
        "map_deviation": None if value is None else deviation,
        "pr_curve": None if value is None else curve,
        "seconds": dict.fromkeys(("fit", "encode"), None if value is None else 0.0213),
        "errors": list(errors),
        "printed": printed,
    }


def printed(value, comparable):
    return {"map": value, "source": "table 1, GIST_512", "comparable": comparable}


@pytest.fixture
def made():
    rows = [
        ("gist", "ksh", {"12": at(0.3004, printed=printed(0.303, True)), "64": at(0.3)}, 12.3),
        ("gist", "itq", {"12": at(0.1616, printed=printed(0.162, True)), "64": at(None, errors=["50 % & a_b"])}, 2.04),
        ("resnet50", "itq", {"12": at(0.2996, printed=printed(0.237, False)), "64": at(0.29996)}, 1234.5),
    ]
    return {
        "source": "my_data",
        "definition": "MAP@all, ties in database order",
        "methods": ["itq", "ksh"],
        "bits": [12, 64],
        "seeds": [0, 1, 2],
        "rows": [
            {
                "features": features,
                "method": method,
                "takes": "features",
                "supervised": method == "ksh",
                "mean_map": 0.2,
                "fit_seconds": seconds,
                "lengths": lengths,
            }
            for features, method, lengths, seconds in rows
        ],
        "protocol": {"name": "cifar10-1", "seed": 0, "n_train": 5000, "n_query": 1000, "n_database": 59000},
    }


def test_the_table_on_screen(made):
    head, rows, notes = as_text(made).split("\n\n")[0], *as_text(made).split("\n\n", 1)[1].split("\n\n* ")
    assert head == "my_data, protocol cifar10-1, seed 0: 5,000 training, 1,000 queries, 59,000 database"
    assert rows.splitlines() == [
        "method       12 bits  printed       64 bits  train, s",
        "gist",
        "KSH     0.300 ±0.001*   0.303  0.300 ±0.001*       12",
        "ITQ     0.162 ±0.001    0.162        failed         2",
        "",
        "resnet50",
        "ITQ     0.300 ±0.001*   0.237† 0.300 ±0.001*    1,234",
    ], "numbers that look equal are equally best"
    assert notes.splitlines() == [
        "best at its length",
        "MAP@all, ties in database order",
        "mean ± standard deviation over 3 seeds of the methods; the split is the same for all",
        "train: seconds of training, mean over lengths and seeds; computing fixed features is not counted",
        f"printed: {PAPER}; table 1, GIST_512",
        f"† printed for {NOT_COMPARABLE}",
        "failed: ITQ on gist at 64 bits: 50 % & a_b",
    ]


def test_markdown_is_a_table_with_the_best_in_bold(made):
    made["rows"][2]["features"] = "a|b"
    lines = table_markdown(map_table(made), title_of(made)).splitlines()
    assert lines[2] == "| features | method | learns from | 12 bits | printed | difference | 64 bits | train, s |"
    assert lines[3] == "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    assert lines[4] == "| gist | KSH | features, labels | **0.300 ±0.001** | 0.303 | −0.003 | **0.300 ±0.001** | 12 |"
    assert lines[6].startswith("| a\\|b | ITQ | features | **0.300 ±0.001** | 0.237† | +0.063 |")
    assert lines[-1] == "- failed: ITQ on gist at 64 bits: 50 % & a_b"


def test_latex_is_escaped_and_closed(made):
    text = table_latex(map_table(made), title_of(made))
    assert r"\caption{my\_data, protocol cifar10-1" in text
    assert r"\begin{tabular}{lllrrrrr}" in text
    assert r"gist & KSH & features, labels & \textbf{0.300 $\pm$0.001} & 0.303 & $-$0.003 & \textbf{0.300" in text
    assert r"& 0.237$^\dagger$ &" in text and r"50 \% \& a\_b" in text and r"GIST\_512" in text
    assert text.count(r"\midrule") == 2, "below the head and between kinds of features"
    assert text.index(r"\toprule") < text.index(r"\bottomrule")
    assert re.findall(r"\\begin\{(\w+)\}", text) == re.findall(r"\\end\{(\w+)\}", text)[::-1]
    for line in text.splitlines():
        if line.endswith(r"\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == 7
    assert text.isascii()


def test_latex_signs():
    assert escape_latex(r"a_b & 5% #1 {x} $y ~ ^ \z ±–…") == (
        r"a\_b \& 5\% \#1 \{x\} \$y \textasciitilde{} \textasciicircum{} \textbackslash{}z $\pm$--\dots{}"
    )


def test_the_table_marks_methods_not_different_from_the_best_or_another(made):
    for row, p in zip(made["rows"], (None, 0.2, 0.05), strict=True):
        row["lengths"]["12"]["p"] = p
    texts = [row[3].text for group in map_table(made).groups for row in group]
    assert texts == ["0.300 ±0.001", "0.162 ±0.001 ≈", "0.300 ±0.001"]
    assert any(note.startswith("≈ not different from the best (p > 0.05 in a paired") for note in map_table(made).notes)
    made["against"] = "ksh"
    assert any("not different from KSH" in note for note in map_table(made).notes)


def test_csv_has_full_numbers_and_sources(made):
    columns, values = csv_table(made)
    rows = [dict(zip(columns, row, strict=True)) for row in values]
    assert len(rows) == 6
    first, failed, other = rows[0], rows[3], rows[4]
    assert (first["method"], first["bits"], first["map"], first["fit_seconds"]) == ("ksh", "12", "0.3004", "0.0213")
    assert (first["printed_map"], first["printed_source"], first["printed_comparable"]) == (
        "0.303",
        "table 1, GIST_512",
        "true",
    )
    assert (failed["map"], failed["map_deviation"], failed["error"]) == ("", "", "50 % & a_b")
    assert failed["printed_map"] == failed["printed_comparable"] == ""
    assert (other["printed_map"], other["printed_comparable"]) == ("0.237", "false")


def test_without_printed_numbers_and_with_one_seed_the_table_is_narrower(made):
    made["seeds"] = [0]
    for row in made["rows"]:
        row["lengths"] = {n: {**at, "printed": None, "map_deviation": None} for n, at in row["lengths"].items()}
    table = map_table(made)
    assert table.columns == ["features", "method", "learns from", "12 bits", "64 bits", "train, s"]
    assert table.groups[0][0][3].text == "0.300"
    assert not any("printed" in note or "deviation" in note for note in table.notes)


def test_methods_are_told_apart_without_colour():
    names = [name for name in METHODS if not METHODS[name].path.startswith("test_")]
    styles = [figures.series_style(place, name) for place, name in enumerate(names)]
    looks = {(str(style["marker"]), str(style["linestyle"])) for style in styles}
    assert len(looks) == len(names) > 20
    assert method_name("fasth") == "FastH"


def test_printed_numbers_reach_every_output(digits, asked, tmp_path):
    rows = np.arange(400)
    split = Protocol("cifar10-1", rows[:300], rows[300:], rows[:300])
    source = Source("digits", digits.images, digits.labels, split=split)
    evil = "hashlens compare '<script>'"
    result = run(source, tmp_path, methods=["itq"], bits=[12], features=["gist", "resnet50"], seeds=1, commands=[evil])
    assert row_of(result, "itq")["lengths"]["12"]["printed"]["comparable"] is True
    assert row_of(result, "itq", "resnet50")["lengths"]["12"]["printed"] == {
        "map": 0.237,
        "source": "table 2 (from the DPSH article), features of CNN-F",
        "comparable": False,
    }
    assert [row["printed_map"] for row in rows_of(tmp_path / "table.csv")] == ["0.162", "0.237"]
    assert "0.237†" in (tmp_path / "table.md").read_text()
    page = Page(tmp_path / "report.html")
    assert "0.162" in page.text and "0.237 †" in page.text and NOT_COMPARABLE in page.text
    assert evil in page.text and "<script" not in page.source
    assert "Split hash " + split.fingerprint() in page.text and "Methods itq" in page.text


def test_equal_results_are_equal_figures_and_rows_without_numbers_are_left_out(made, drawn, tmp_path):
    for folder in ("a", "b"):
        plots = figures.write_figures(tmp_path / folder, made)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["map.png", "map.svg", "precision-recall.png", "precision-recall.svg"]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    assert "ITQ on gist 0.162 at 12 bits; " in plots[0].svg
    assert "currentColor" in plots[0].svg and "#010203" not in plots[0].svg


def test_the_report_is_one_file_with_words_for_its_plots(digits, asked, drawn, tmp_path):
    run(digits, tmp_path, seeds=1)
    page = Page(tmp_path / "report.html")
    assert page.source.startswith("<!DOCTYPE html>")
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/"))
    drawings = [a for a in page.all("svg") if a.get("role") == "img"]
    assert len(drawings) == 2
    assert re.match(r"MAP against the number of bits: ITQ on gist 0\.\d+ at 8 bits, 0\.", drawings[0]["aria-label"])
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["aria-labelledby"] for a in page.all("section")} <= set(ids)
    assert page.source.count("<strong>") == 4, "the best of two lengths, and of both among unlearned images"
    assert "map_tie_aware" in page.text and "MAP@all" in page.text
    assert all(a.get("scope") in ("row", "col") for a in page.all("th"))


def test_a_network_is_the_same_whatever_else_is_left_to_do(digits, asked, tmp_path):
    """The last cell of a comparison that was stopped is that of one that was not."""
    settings = {"training": Training(epochs=1, batch_size=60), "frozen_blocks": 1}
    how = {"methods": ["dtsh"], "seeds": 1, "settings": settings}
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    run(digits, straight, bits=[8, 12], **how)
    run(digits, stopped, bits=[8, 12], **how)
    (stopped / "cells" / "small-cnn-dtsh-12-0.json").unlink()
    run(digits, stopped, bits=[8, 12], **how)
    files = [(out / "cells" / "small-cnn-dtsh-12-0.json").read_text() for out in (straight, stopped)]
    assert json.loads(files[0])["metrics"] == json.loads(files[1])["metrics"]


# The Python face: arrays, instances and own classes; the Comparison object; the model that is kept.


class Mine(LSH):
    """A user's own method, which METHODS does not have."""

    name = "mine"


@pytest.fixture(scope="module")
def on_arrays(digits):
    X = pixels(digits, "gist")
    methods = ["lsh", ITQ(n_iterations=3), Mine, DTSH(training=Training(epochs=1))]
    return compare((X, digits.labels.values), methods, bits=[8, 16], seeds=2), X


def test_compare_takes_arrays_instances_and_own_classes(on_arrays, digits):
    comparison, X = on_arrays
    assert set(comparison.result["methods"]) == {"lsh", "itq(n_iterations=3)", "mine", "dtsh(epochs=1)"}
    assert comparison.result["features"] == ["given"] and comparison.out is None
    split = make_protocol(Source("arrays", digits.images, digits.labels))
    hasher = ITQ(8, n_iterations=3, random_state=1).fit(X[split.database])
    scores = score(hasher.encode(X[split.query]), hasher.encode(X[split.database]), digits, split)
    own = [ap for cell, ap in comparison.average_precisions.items() if str(cell).startswith("itq") and cell.n_bits == 8]
    assert own[1].mean() == pytest.approx(scores["map"])
    images = compare((np.zeros((40, 8, 8, 3), np.uint8) + np.arange(40, dtype=np.uint8)[:, None, None, None],
                      np.arange(40) % 2), [DTSH(backbone="small-cnn", training=Training(epochs=1))], [8])  # fmt: skip
    assert images.result["rows"][0]["features"] == "small-cnn"


def test_a_comparison_shows_itself(on_arrays):
    comparison, _ = on_arrays
    assert repr(comparison) == as_text(comparison.result) and "itq(n_iterations=3)" in repr(comparison)
    page = comparison._repr_html_()
    assert page.count("<tr>") == 5 and "<strong>" in page and "<script" not in page
    assert json.loads(comparison.to_json()) == comparison.result
    axes = comparison.plot()
    assert len(axes.texts) == 4 and axes.get_legend() is None and axes.get_ylabel() == "MAP"  # labels at the lines
    given = plt.figure().add_subplot()
    assert comparison.plot(given) is given and len(given.get_legend().get_texts()) == 4
    plt.close(axes.figure)
    plt.close(given.figure)


def test_frames_need_pandas_and_say_so(on_arrays, monkeypatch):
    comparison, _ = on_arrays
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    frame = comparison.to_frame()
    assert len(frame) == 8 and {record["bits"] for record in frame} == {8, 16}
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        comparison.to_frame()


def test_significance_is_the_paired_test_of_the_mean_over_seeds(on_arrays):
    comparison, _ = on_arrays

    def mean(method, *lengths):
        found = comparison.average_precisions.items()
        return np.mean([ap for cell, ap in found if cell.method == method and cell.n_bits in lengths], axis=0)

    found = comparison.significance("LSH", "mine", 8)
    assert found == paired_test(mean("lsh", 8), mean("mine", 8)) and found.difference == 0
    assert comparison.significance("DTSH(epochs=1)", "lsh") == paired_test(
        mean("dtsh(epochs=1)", 8, 16), mean("lsh", 8, 16)
    )
    best = max(comparison.result["rows"], key=lambda row: row["lengths"]["8"]["map"])
    for row in comparison.result["rows"]:
        p = row["lengths"]["8"]["p"]
        assert p is None if row is best else p == comparison.significance(best["method"], row["method"], 8).p
    with pytest.raises(UsageError, match="'ksh' is not compared here; choose from"):
        comparison.significance("ksh", "lsh")
    with pytest.raises(UsageError, match="not finished at 9 bits"):
        comparison.significance("lsh", "mine", 9)


def test_several_splits(digits, asked, tmp_path):
    one = run(digits, tmp_path, bits=[8], seeds=1)
    result = run(digits, tmp_path, bits=[8], seeds=1, splits=3)
    assert cells(tmp_path) == sorted(
        f"gist-{method}-8-0{split}" for method in ("itq", "lsh") for split in ("", "-split-1", "-split-2")
    )
    splits = [make_protocol(digits, seed=seed) for seed in range(3)]
    assert [split["split_hash"] for split in result["splits"]] == [split.fingerprint() for split in splits]
    assert result["protocol"] == result["splits"][0] == one["protocol"]
    assert Protocol.load(tmp_path / "split-2.json").fingerprint() == splits[2].fingerprint()
    X, at = pixels(digits, "gist"), row_of(result, "itq")["lengths"]["8"]
    by_hand = []
    for split in splits:
        hasher = make_hasher("itq", n_bits=8, random_state=0).fit(X[split.database])
        by_hand.append(score(hasher.encode(X[split.query]), hasher.encode(X[split.database]), digits, split))
    for key in ("map", "map_unlearned"):
        values = [scores[key] for scores in by_hand]
        assert [cell[key] for cell in at["cells"]] == values
        assert at[key] == pytest.approx(np.mean(values)) and at[f"{key}_deviation"] == np.std(values, ddof=1) > 0
    assert [(cell["split"], cell["seed"]) for cell in at["cells"]] == [(0, 0), (1, 0), (2, 0)]
    assert (at["n_splits"], at["n_seeds"]) == (3, 1)
    text = as_text(result)
    assert "3 splits, seeds 0 to 2" in text and "± standard deviation over 3 splits" in text
    assert "the queries of all splits" in text and re.search(
        r"^ITQ +0\.\d+ ±0\.\d+\* +0\.\d+ ±0\.\d+", text, re.MULTILINE
    )
    assert [row["splits"] for row in rows_of(tmp_path / "table.csv")] == ["3", "3"]


def test_paired_tests_are_over_the_queries_of_all_splits(digits, asked, monkeypatch):
    found = compare(digits, ["lsh", "itq"], [8, 16], features=["gist"], seeds=2, splits=2)

    def pooled(method, splits=(0, 1)):
        ap = {(c.split, c.n_bits, c.seed): v for c, v in found.average_precisions.items() if c.method == method}
        return np.concatenate(
            [np.mean([ap[split, bits, seed] for bits in (8, 16) for seed in (0, 1)], axis=0) for split in splits]
        )

    test = found.significance("itq", "lsh")
    assert test == paired_test(pooled("itq"), pooled("lsh")) and test.n == 80
    # a method that fails on one split is compared on the other
    kept = {cell: ap for cell, ap in found.average_precisions.items() if cell.method == "lsh" or cell.split == 1}
    part = comparison.Comparison(found.result, kept)
    assert part.significance("itq", "lsh") == paired_test(pooled("itq", [1]), pooled("lsh", [1]))
    kept = {cell: ap for cell, ap in found.average_precisions.items() if (cell.method == "lsh") == (cell.split == 1)}
    apart = comparison.Comparison(found.result, kept)
    apart.add_p_values()
    assert all(row["lengths"]["8"]["p"] is None for row in apart.result["rows"])


def test_splits_that_cannot_be_made_are_refused(digits, asked):
    split = make_protocol(digits)
    with pytest.raises(UsageError, match="pass that, or a list of protocols"):
        compare(digits, ["lsh"], [8], features=["gist"], splits=2, protocol=split)
    with pytest.raises(UsageError, match=r"digits has one split only .*: omit --splits; .* --protocol split"):
        compare(Source("digits", digits.images, digits.labels, split=split), ["lsh"], [8], splits=2, features=["gist"])
    with pytest.raises(UsageError, match="splits must be >= 1, got 0"):
        compare(digits, ["lsh"], [8], features=["gist"], splits=0)
    given = [split, make_protocol(digits, seed=5)]
    result = compare(digits, ["lsh"], [8], features=["gist"], protocol=given).result
    assert [one["seed"] for one in result["splits"]] == [0, 5]


def test_few_labels_in_a_comparison(digits, asked):
    seen.clear()
    result = compare(digits, ["seeing"], [8], features=["gist"], protocol="few-4").result
    assert seen == [(40, 40)] and result["protocol"]["n_train"] == 40
    assert result["rows"][0]["lengths"]["8"]["map_unlearned"] is not None


def test_features_of_an_instance_come_before_those_of_the_comparison(digits, asked):
    comparison = compare(digits, ["lsh", ITQ(features="cnn-f")], [8], features=["gist"])
    assert [(row["method"], row["features"]) for row in comparison.result["rows"]] == [
        ("lsh", "gist"),
        ("itq(features=cnn-f)", "cnn-f"),
    ]


def test_rows_of_several_features_are_named_with_them(digits, asked, tmp_path):
    comparison = compare(digits, ["lsh", "itq"], [8], features=["gist", "cnn-f"], against="LSH on gist")
    assert comparison.row("itq on cnn-f")["features"] == "cnn-f"
    assert comparison.result["rows"][1]["lengths"]["8"]["p"] is None, "LSH on gist itself"
    with pytest.raises(UsageError, match="'itq' is ambiguous; choose from ITQ on gist, ITQ on cnn-f"):
        comparison.significance("itq", "lsh")


@pytest.mark.parametrize("method", [ITQ(features="small-cnn"), DTSH(training=Training(epochs=2))])
def test_the_kept_model_encodes_images(digits, tmp_path, method):
    source = Source("digits", digits.images[:120], digits.labels[np.arange(120)])
    how = {"features": ["small-cnn"], "out": tmp_path, "report": False}
    compare(source, [method], [8], **how)
    comparison = compare(source, [method], [8, 12], keep=True, **how)  # the cell of 8 bits is finished
    best = max(comparison.average_precisions, key=lambda cell: comparison.average_precisions[cell].mean())
    model = hashlens.load(tmp_path / "model")
    codes = model.encode(source.images[make_protocol(source).database])
    assert codes.equals(cell_codes(tmp_path, best)[1])


def test_own_backbones_of_one_class_are_told_apart(digits, tmp_path):
    from torch import manual_seed, nn

    class Net(nn.Linear):
        sign = 1

        def forward(self, images):
            return self.sign * super().forward(images.flatten(1))

    def hasher(seed, sign=1):
        manual_seed(seed)
        module = Net(3 * 16 * 16, 8)
        module.sign = sign
        return DTSH(backbone=module, image_size=16, training=Training(epochs=1))

    source = Source("digits", digits.images[:60], digits.labels[np.arange(60)])
    how = {"bits": [8], "out": tmp_path, "report": False}
    result = compare(source, [hasher(0), hasher(1)], **how).result
    assert result["n_finished"] == 2
    assert result["methods"] == [f"dtsh(backbone=own:Net, image_size=16, epochs=1){end}" for end in ("", " #2")]
    rows = compare(source, [hasher(0), hasher(1)], **how).result["rows"]
    assert rows == result["rows"], "the same modules again"
    for other in (hasher(2), hasher(0, sign=-1)):  # other weights, and another function of the same weights
        with pytest.raises(MismatchError, match="backbone_hash was"):
            compare(source, [other], **how)
