"""The smoke scale from end to end, once; then the checked statements, the saved files, and missing data."""

import csv
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from hashlens.data import Source, open_source
from hashlens.data.protocols import NUSWIDE_CONCEPTS, folder_split, unseen_classes
from hashlens.errors import Stopped, UsageError
from hashlens.hashers.deep.training import Training
from hashlens.hashers.methods import METHODS
from hashlens.results import compare as comparison
from hashlens.results import paper as reproduction
from hashlens.results.compare import Cell, Variant, cell_codes, compare
from hashlens.results.compare.cells import plan_cells
from hashlens.results.metrics import evaluate_codes
from hashlens.results.paper import reproduce
from hashlens.results.paper.data import SCALES, Data, choose_scale
from hashlens.results.paper.outcomes import Outcome, falls_at_ends, leads, more_is_better, reaches
from hashlens.results.paper.page import Section, load_section, save_section
from hashlens.results.paper.parts import PORT, Part, Plan, not_run
from hashlens.results.paper.targets import TARGETS
from hashlens.results.published import published
from hashlens.results.tables import csv_table, map_table

COMMAND = "hashlens reproduce all --scale smoke"


@pytest.fixture(scope="module")
def smoke(tmp_path_factory, session_cache):
    """Everything at the smoke scale: the folder and what reproduce gave."""
    out = tmp_path_factory.mktemp("repro")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASHLENS_CACHE", str(session_cache))
        patch.setenv("HASHLENS_OFFLINE", "1")
        return out, reproduce("all", "smoke", out, command=COMMAND)


def rows_of(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_every_method_target_table_and_figure(smoke):
    out, result = smoke
    assert list(result["scales"]) == list(TARGETS) and json.loads((out / "result.json").read_text()) == result
    cells = [json.loads(path.read_text()) for path in out.glob("comparisons/*/cells/*.json")]
    assert set(METHODS) <= {cell["method"] for cell in cells}
    assert not [row for path in (out / "tables").glob("*.csv") for row in rows_of(path) if row["error"]]
    assert {path.name for path in out.iterdir()} == {
        *("REPRODUCTION.md", "result.json", "env.json"),
        *("tables", "figures", "sections", "comparisons"),
    }
    sizes = rows_of(out / "tables" / "train-size.csv")
    assert [row["n_train"] for row in sizes] == ["100", "300"] and all(row["map"] for row in sizes)
    tables = {path.stem for path in (out / "tables").iterdir()}
    assert {"table1-digits-1", "table1-nuswide-1", "table2-digits-1", "table3-digits-2", "port", "unseen"} <= tables
    for name in tables:
        assert {path.suffix for path in (out / "tables").glob(f"{name}.*")} == {".md", ".tex", ".csv"}
    for name in ("alpha", "lambda", "train-size", "examples"):
        with Image.open(out / "figures" / f"{name}.png") as image:
            assert min(image.size) > 500
        ElementTree.fromstring((out / "figures" / f"{name}.svg").read_text())
        assert (out / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_tables_have_paper_ours_difference_and_whether_it_is_comparable(smoke):
    out, _ = smoke
    rows = {(row["method"], row["bits"]): row for row in rows_of(out / "tables" / "table1-digits-1.csv")}
    dtsh = rows["dtsh", "12"]
    assert float(dtsh["printed_map"]) == 0.710 and dtsh["printed_comparable"] == "false", "digits are not CIFAR-10"
    assert rows["dlbhc", "12"]["printed_map"] == "" and rows["dlbhc", "12"]["map"]
    best = [row for row in rows.values() if row["p"] == ""]
    assert len(best) == 1 and float(best[0]["map"]) == max(float(row["map"]) for row in rows.values())
    assert all(0 < float(row["p"]) <= 1 for row in rows.values() if row is not best[0])
    absent = rows_of(out / "tables" / "table1-nuswide-1.csv")
    assert all(row["map"] == "" for row in absent)
    assert float(absent[0]["printed_map"]) == 0.773 and len(absent) == 11
    text = (out / "tables" / "table1-digits-1.md").read_text()
    assert "| small-cnn | DTSH | images, labels |" in text and "0.710†" in text and "paired permutation" in text
    assert f"| {float(dtsh['map']) - 0.710:+.3f} |".replace("-", "−") in text, "the difference"
    assert "\\begin{tabular}" in (out / "tables" / "table1-digits-1.tex").read_text()
    assert "- not run: the smoke scale has digits only" in (out / "tables" / "table3-nuswide-2.md").read_text()


def test_the_pages_say_what_holds(smoke):
    out, result = smoke
    text = (out / "REPRODUCTION.md").read_text()
    assert COMMAND in text and "mean nothing" in text
    claims = [outcome["claim"] for outcome in result["outcomes"]]
    for words in ("larger margin alpha", "lambda 0.1 and 1000", "more training images", "DTSH is above", "unseen"):
        assert any(words in claim for claim in claims), words
    assert all(claim in text for claim in claims)
    assert re.search(r"larger margin alpha .*: (holds here|does not hold here) \(", text)
    for name, words in (("alpha", "at 6"), ("lambda", "at 1000"), ("train-size", "at 300"), ("examples", "DPSH")):
        assert re.search(rf"!\[[^\]]*{words}[^\]]*\]\(figures/{name}.png\)", text), name
    environment = json.loads((out / "env.json").read_text())
    assert environment["versions"]["numpy"] and environment["commands"] == [COMMAND]
    assert len(environment["splits"]["train-size"]) == 2 and len(environment["splits"]["table1"][0]["split_hash"]) == 64


def test_the_same_command_again_computes_nothing(smoke, monkeypatch):
    out, result = smoke
    before = {path: path.read_bytes() for path in (out / "tables").iterdir()}

    def compute(*arguments):
        raise AssertionError("a finished cell is computed again")

    monkeypatch.setattr(comparison._Work, "run", compute)
    assert reproduce("all", "smoke", out, command=COMMAND) == result
    assert {path: path.read_bytes() for path in (out / "tables").iterdir()} == before


def test_targets_share_cells(smoke):
    out, _ = smoke
    cells = {path.stem for path in (out / "comparisons" / "smoke-digits-1" / "cells").glob("*.json")}
    assert {"small-cnn-dtsh-12-0", "small-cnn-dtsh-alpha-0-12-0", "small-cnn-dtsh-lambda-1000-12-0"} <= cells
    assert not {"small-cnn-dtsh-alpha-6-12-0", "small-cnn-dtsh-lambda-100-12-0"} & cells, "the default is plain DTSH"
    assert {f"small-cnn-{name}-12-0" for name in PORT} <= cells
    assert not (out / "comparisons" / "smoke-digits-1-train-300").exists(), "setting 1's own size"
    assert not list(out.glob("comparisons/*/report.html")), "the pages are at the top"


def test_what_is_kept_of_a_cell_gives_its_map(smoke):
    out, _ = smoke
    folder = out / "comparisons" / "smoke-digits-1"
    data = Data(SCALES["smoke"])
    saved = json.loads((folder / "cells" / "small-cnn-dpsh-12-0.json").read_text())
    codes = cell_codes(folder, Cell("small-cnn", "dpsh", 12, 0))
    labels = (data.source.labels[rows] for rows in (data.setting1[0].query, data.setting1[0].database))
    assert evaluate_codes(*codes, *labels)["map"] == saved["map"]


def test_a_stopped_reproduction_resumes(tmp_path, smoke):
    out = tmp_path / "out"
    cells = out / "comparisons" / "smoke-digits-1" / "cells"
    reproduce("alpha", "smoke", out, command="first")
    n = len(list(cells.glob("*.json")))

    with pytest.raises(Stopped):
        reproduce("lambda", "smoke", out, command="second", stop=lambda: len(list(cells.glob("*.json"))) > n)
    assert len(list(cells.glob("*.json"))) == n + 1
    text = (out / "REPRODUCTION.md").read_text()
    assert "## Margin alpha" in text and "## Weight lambda" not in text, "finished targets are shown"
    reproduce("lambda", "smoke", out, command="second")
    text = (out / "REPRODUCTION.md").read_text()
    assert "## Margin alpha" in text and "## Weight lambda" in text
    assert "```\nfirst\n```" in text and "```\nsecond\n```" in text, "each with its own command"
    for name in ("alpha", "lambda"):
        again, first = (rows_of(folder / "tables" / f"{name}.csv") for folder in (out, smoke[0]))
        assert [(row["method"], row["map"], row["p"]) for row in again] == [
            (row["method"], row["map"], row["p"]) for row in first
        ]


def test_some_methods_of_a_table(tmp_path):
    reproduce("table3", "smoke", tmp_path, methods=["dpsh", "dtsh"])
    ours, theirs = (rows_of(tmp_path / "tables" / f"table3-{name}.csv") for name in ("digits-2", "nuswide-2"))
    for rows in (ours, theirs):
        assert [row["method"] for row in rows] == ["dtsh", "dpsh"]


def test_wrong_use_is_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="no method 'dtsj'"):
        reproduce("table3", "smoke", tmp_path, methods=["dtsh", "dtsj"])
    with pytest.raises(UsageError, match="has no itq; it has dtsh, dpsh"):
        reproduce("table3", "smoke", tmp_path, methods=["itq"])
    with pytest.raises(UsageError, match="no target 'table9'; choose one of table1"):
        reproduce("table9", "smoke", tmp_path)
    with pytest.raises(UsageError, match="no scale 'huge'; choose one of smoke, small, full"):
        reproduce("table1", "huge", tmp_path)
    assert not list(tmp_path.iterdir())
    changed = choose_scale("full", bits=[32], seeds=1, epochs=2)
    assert (changed.bits, changed.bits_table3, changed.seeds, changed.epochs) == ((32,), (32,), 1, 2)


ALPHA = "a larger margin is better"


@pytest.mark.parametrize(
    ("points", "holds", "words"),
    [
        ([(0, 0.5), (8, 0.6), (16, 0.7)], True, "0.500 at 0, 0.600 at 8, 0.700 at 16"),
        ([(16, 0.7), (0, 0.5), (8, 0.698)], True, "0.500 at 0"),
        ([(0, 0.5), (8, 0.702), (16, 0.7)], True, "0.700 at 16"),
        ([(0, 0.5), (8, 0.75), (16, 0.7)], False, "falls by 0.050 from 8 to 16"),
        ([(0, 0.7), (16, 0.5)], False, "falls by 0.200 from 0 to 16"),
        ([(0, 0.7), (16, 0.702)], False, "differs by +0.002 only"),
        ([(16, 0.7)], None, "0.700 at 16"),
        ([], None, "no numbers"),
    ],
)
def test_more_is_better(points, holds, words):
    outcome = more_is_better(ALPHA, points)
    assert outcome.holds is holds and words in outcome.detail
    verdict = {True: "holds here", False: "does not hold here", None: "cannot be told here"}[holds]
    assert str(outcome).startswith(f"{ALPHA}: {verdict} (")


@pytest.mark.parametrize(
    ("points", "holds", "words"),
    [
        ([(0.1, 0.5), (1, 0.8), (100, 0.7), (1000, 0.4)], True, "0.400 at 1000"),
        ([(0.1, 0.7), (100, 0.7), (1000, 0.4)], False, "0.1 costs 0.000 against 100"),
        ([(0.1, 0.5), (100, 0.7), (1000, 0.72)], False, "1000 gains 0.020 against 100"),
        ([(0.1, 0.5), (100, 0.7)], None, "0.500"),
        ([(0.1, 0.5), (10, 0.9), (1000, 0.7)], None, "0.900"),
    ],
)
def test_falls_at_ends(points, holds, words):
    outcome = falls_at_ends("both ends are worse", points, 100)
    assert outcome.holds is holds and words in outcome.detail


def test_leading_and_reaching_the_printed_numbers():
    maps = {"DTSH": {"12": 0.8, "24": 0.9}, "DPSH": {"12": 0.7, "24": 0.95}, "ITQ on gist": {"12": 0.1}}
    outcome = leads("DTSH", maps)
    assert outcome.holds is False and outcome.detail == "at 24 bits DPSH 0.950 against 0.900"
    p = {("DPSH", "12"): 0.3, ("DPSH", "24"): 0.01, ("ITQ on gist", "12"): 0.001}
    assert leads("DTSH", maps, lambda name, n: p[name, n]).detail == (
        "at 24 bits DPSH 0.950 (p = 0.01) against 0.900; at 12 bits not different from it: DPSH"
    )
    assert leads("DPSH", {"DTSH": {"24": 0.9}, "DPSH": {"24": 0.95}}).holds is True
    assert leads("DTSH", {"DTSH": {"12": 0.8}}).holds is None and leads("DTSH", {}).holds is None

    def number(value, comparable=True):
        return {"map": value, "comparable": comparable}

    printed = {"DTSH": {"12": number(0.71)}, "DPSH": {"12": number(0.713), "24": number(0.727, False)}}
    outcome = reaches(printed, maps)
    assert outcome.holds is False and outcome.detail == (
        "DPSH 0.700 for 0.713 at 12 bits; 3 numbers, 1 of them printed for other features, another network or other"
        " images than here"
    )
    assert reaches({"DTSH": {"12": number(0.8)}}, maps) == Outcome(outcome.claim, True, "1 number")
    assert reaches({}, maps).holds is None


def test_rows_that_are_not_run_have_the_printed_numbers():
    reason = "not run: images not found"
    absent = Part("NUS-WIDE", "x", reason, (), ["dtsh", "itq"], (12, 48), ("nuswide-1134",), "nuswide-1")
    table = map_table(not_run(absent).result)
    assert [entry.text for entry in table.groups[0][0]][1:-1] == [
        *("DTSH", "images, labels", "–", "0.773", "", "–", "0.824", "")
    ]
    assert table.notes[0] == reason and len(csv_table(not_run(absent).result)[1]) == 4


def test_printed_numbers_are_comparable_on_the_papers_data_only():
    source = open_source("digits")
    part = Part("", "x", source, [folder_split(source.labels)], ["dtsh"], (12,), (), "cifar10-1")
    row = {"method": "dtsh", "features": "cnn-f"}
    assert part.printed(row, 12)["comparable"] and not replace(part, genuine=False).printed(row, 12)["comparable"]
    assert replace(part, paper=None).printed(row, 12) is None


def test_nuswide_without_images_is_not_run(tmp_path):
    assert "--nuswide" in Data(SCALES["full"]).nuswide and "--mirflickr" in Data(SCALES["full"]).mirflickr
    with pytest.raises(UsageError, match="is not NUS-WIDE"):
        Data(SCALES["full"], nuswide_folder=tmp_path).nuswide  # noqa: B018
    with pytest.raises(UsageError, match="is not MIRFLICKR"):
        Data(SCALES["full"], mirflickr_folder=tmp_path).mirflickr  # noqa: B018
    n = 21 * 620
    folder = tmp_path / "Groundtruth" / "AllLabels"
    folder.mkdir(parents=True)
    for c, concept in enumerate(NUSWIDE_CONCEPTS):
        (folder / f"Labels_{concept}.txt").write_text("".join(f"{int(row % 21 == c)}\n" for row in range(n)))
    (tmp_path / "ImageList").mkdir()
    (tmp_path / "ImageList" / "Imagelist.txt").write_text("".join(f"a\\{row:05d}_{row}.jpg\n" for row in range(n)))
    reason = Data(SCALES["full"], nuswide_folder=tmp_path).nuswide
    assert reason.startswith("not run: ") and "\n" not in reason


def test_plans_of_all_scales_are_complete():
    """What would be run on real data, without running it: methods, settings and printed numbers exist."""
    digits = open_source("digits")
    split = folder_split(digits.labels)
    for scale in SCALES.values():
        plan = Plan(Data(SCALES["smoke"]), scale)
        for part in (*plan.alpha(), *plan.lambda_(), *plan.port(), *plan.examples(), *plan.unseen()):
            assert part.methods and part.bits
            for variant in part.variants:
                plan_cells(digits.images, {variant.name: variant}, part.bits, part.features, 1, 1, 1, {})
    full = SCALES["full"]
    for method in ("dtsh", "dpsh", "drsch", "dsch", "dsrh"):
        assert all(published("cifar10-2", method, n, "cnn-f") for n in full.bits_table3)
    assert full.alpha_bits / 2 in full.alphas and 100 in full.lambdas and 5_000 in full.sizes
    plan = Plan(Data(SCALES["smoke"]), full)
    assert plan.table1()[0].methods[:4] == ["dtsh", "dpsh", "ninh", "cnnh"], "the paper's order"
    assert plan.table1()[0].methods[-7:] == ["fasth", "sdh", "ksh", "lfh", "splh", "itq", "sh"]
    assert plan.table3()[0].methods == ["dtsh", "dpsh", "drsch", "dsch", "dsrh"]
    part = Part("", "x", digits, [split], ["dtsh", "itq"], (12, 24), ("gist",))
    assert plan.settings_of(part) == {"sampling": "in-batch"}
    small = Plan(Data(SCALES["smoke"]), SCALES["small"], settings={"backbone": "alexnet"})
    assert small.settings_of(part) == {"sampling": "in-batch", "backbone": "alexnet", "epochs": 3}
    others = Part("", "x", digits, [split], ["dpsh", "itq"], (12, 24), ("gist",))
    assert small.settings_of(others) == {"backbone": "alexnet", "epochs": 3}


def test_sections_are_kept_as_they_are(tmp_path):
    section = Section("alpha", "Alpha", "smoke", [Outcome("x", None, "y")], {}, {}, ["a note"], [{"data": "digits"}])
    save_section(section, tmp_path)
    assert load_section("alpha", tmp_path) == section
    assert load_section("lambda", tmp_path) is None
    (tmp_path / "sections" / "alpha.json").write_text('{"target": "alpha"}')
    assert load_section("alpha", tmp_path) is None and reproduction.finished_sections(tmp_path) == []


def small_source():
    whole = open_source("digits")
    return Source("digits", whole.images[:200], whole.labels[np.arange(200)])


def test_compare_takes_a_protocol_and_variants(tmp_path):
    source = small_source()
    split = unseen_classes(source.labels)
    methods = ["dtsh", Variant("dtsh-far", "dtsh", {"alpha": 9.0, "training": Training(epochs=2)})]
    how = {"protocol": split, "settings": {"epochs": 1}, "out": tmp_path}
    result = compare(source, methods, [8], report=False, **how).result
    assert result["methods"] == ["dtsh", "dtsh-far"] and result["protocol"]["name"] == "unseen"
    assert not (tmp_path / "table.csv").exists()
    params = {
        name: json.loads((tmp_path / "cells" / f"small-cnn-{name}-8-0.json").read_text())["params"]
        for name in result["methods"]
    }
    assert params["dtsh"]["alpha"] is None and params["dtsh-far"]["alpha"] == 9
    assert (params["dtsh"]["training"]["epochs"], params["dtsh-far"]["training"]["epochs"]) == (1, 2)
    path = tmp_path / "cells" / "small-cnn-dtsh-8-0.safetensors"
    path.unlink()
    again = compare(source, methods, [8], **how).result
    assert path.exists() and again["n_finished"] == 2, "a cell without its codes is computed again"
    assert "dtsh-far" in (tmp_path / "table.md").read_text()


def test_a_network_without_weights_gives_the_same_features_each_time(tmp_path, monkeypatch):
    import torch

    from hashlens.features.extractor import image_features

    images = small_source().images[:20]
    found = []
    for folder in ("one", "other"):  # not read from the cache
        before = torch.get_rng_state()
        monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / folder))
        found.append(image_features(images, "small-cnn"))
        assert torch.equal(torch.get_rng_state(), before), "the user's random numbers are untouched"
        torch.rand(1)
    assert np.array_equal(*found) and found[0].std() > 0


def test_networks_share_what_frozen_blocks_give(tmp_path, monkeypatch):
    """With `keep`, images go through the frozen blocks once, whatever the method and the length."""
    from hashlens import make_hasher
    from hashlens.features import extractor

    source = small_source()
    passes = []
    kept = extractor.kept

    def counted(key, n, batches, *arguments, **how):
        def computed():
            passes.append(n)
            yield from batches

        return kept(key, n, computed(), *arguments, **how)

    monkeypatch.setattr(extractor, "kept", counted)
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    how = {"frozen_blocks": 2, "training": Training(epochs=1)}
    kinds = [("dtsh", 8), ("dpsh", 12), ("dtsh", 8)]
    hashers = [make_hasher(name, n_bits=n, **how).fit(source.images, source.labels) for name, n in kinds]
    trained = len(passes)
    assert trained == 1, "the same blocks and images"
    codes = [hasher.encode(source.images[:50], shared=True) for hasher in hashers]
    assert passes[trained:] == [50]
    plain = hashers[0].encode(source.images[:50])
    assert codes[0].equals(plain) and codes[0].equals(codes[2]) and codes[1].n_bits == 12
    del passes[:]
    for rows in (np.arange(50)[::-1], np.arange(10, 70)):  # two splits of the same images
        assert hashers[0].encode(source.images.part(rows), shared=True).equals(hashers[0].encode(source.images[rows]))
    assert passes == [len(source.images)]


def test_parts_on_several_splits():
    data = Data(choose_scale("smoke", splits=2))
    plan = Plan(data, data.scale)
    for part in (plan.table1()[0], plan.table3()[0], *plan.sizes(), *plan.unseen()):
        assert [split.seed for split in part.splits] == [0, 1]
        assert part.splits[0].fingerprint() != part.splits[1].fingerprint()
    small, usual = plan.sizes()
    assert [len(split.train) for split in small.splits] == [100, 100] and usual.folder == plan.table1()[0].folder
