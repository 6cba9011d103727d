"""The command line as a user meets it: what works, and one sentence and an exit code for what does not."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from made_cnn_f import made_layers, write_mat
from PIL import Image

from hashlens.cli import options as cli_options
from hashlens.cli import train as cli_train
from hashlens.codes.folder import CodesFolder, open_together
from hashlens.data import make_protocol, open_source
from hashlens.data.kinds import cifar10
from hashlens.errors import Stopped
from hashlens.files import LOCK, alone_in
from hashlens.hashers.methods import make_hasher


def refused(result, code, *words):
    """One sentence on stderr that has these words, nothing on stdout, no traceback."""
    got, out, err = result
    sentence = err.strip().splitlines()[-1]
    assert got == code, err
    assert out == ""
    assert sentence.startswith("error: ")
    assert "Traceback" not in err
    for word in words:
        assert word in sentence


def make_folder(root, classes=("circle", "square", "stripe"), n=12):
    """Class folders of small colour images that can be told apart."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(n):
            pixels = rng.integers(0, 80, (24, 24, 3), np.uint8)
            pixels[..., number % 3] += 120
            Image.fromarray(pixels).save(root / name / f"{i:02d}.png")
    return root


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


SMALL = ["--backbone", "small-cnn", "--bits", "12", "--epochs", "3", "--set", "batch_size=16"]


def test_import_and_help_load_neither_torch_nor_numba():
    code = (
        "import sys, hashlens; from hashlens.cli import main\n"
        "sys.argv = ['hashlens', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numba', 'sklearn', 'matplotlib', 'onnxruntime'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "demo" in done.stdout


def test_train_encode_evaluate_on_a_folder(hashlens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = make_folder(tmp_path / "photos")
    (photos / "circle" / "broken.jpg").write_bytes(b"not an image")
    run = tmp_path / "run"
    code, out, err = hashlens("train", "photos", *SMALL, "--out", run, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["map"] == result["metrics"]["map"]
    assert 0 < result["map"] <= 1
    assert result["protocol"]["n_train"] == result["protocol"]["n_database"] == 33
    assert result["n_skipped"] == 1
    assert json.loads((run / "result.json").read_text()) == result
    assert rows_of(run / "skipped.csv")[0]["path"] == "circle/broken.jpg"
    assert len(rows_of(run / "metrics.csv")) == 3
    for figure in ("results.png", "curves.png"):
        with Image.open(run / figure) as image:
            assert image.size[0] > 300
    assert (run / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(p.name for p in (run / "model").iterdir()) == ["config.json", "model.safetensors"]
    assert not (run / "checkpoint.safetensors").exists()

    refused(hashlens("train", photos, *SMALL, "--out", run), 2, "finished run")

    codes = tmp_path / "codes"
    code, out, err = hashlens("encode", photos, "--model", run / "model", "--out", codes, "--json")
    assert code == 0, err
    assert json.loads(out) == {"n": 36, "n_bits": 12, "n_skipped": 1, "out": str(codes)}
    folder = CodesFolder.open(codes)
    assert not folder.damaged()
    assert len(folder) == 36 and folder.skipped() == [(str(photos / "circle" / "broken.jpg"), "not an image")]

    monkeypatch.chdir("/")  # a run knows where its images are
    code, out, err = hashlens("evaluate", run, "--json")
    assert code == 0, err
    definitions = json.loads(out)["definitions"]
    assert definitions["paper"]["map"] == pytest.approx(result["map"])
    assert definitions["tie-aware"]["map"] == pytest.approx(result["metrics"]["map_tie_aware"])
    refused(hashlens("evaluate", run, "--topk", 0), 2, "topk")
    refused(hashlens("evaluate", run, "--radius", "two"), 2, "--radius takes comma-separated whole numbers")
    code, out, err = hashlens("evaluate", run, "--topk", 5, "--radius", "3,4", "--recall-at", 10)
    assert code == 0 and all(words in out for words in ("MAP@5", "Precision within radius 4", "Recall at 10 ")), err
    shutil.move(photos, tmp_path / "elsewhere")
    assert json.loads(hashlens("evaluate", run, "--json")[1])["map"] == pytest.approx(result["map"]), "labels are kept"
    refused(hashlens("train", "--resume", run), 2, "finished run")
    refused(hashlens("train", "--resume", run / "model"), 3, "is not a run folder")


def test_a_printed_map_has_its_definition(hashlens, tmp_path):
    _, out, _ = hashlens("train", make_folder(tmp_path / "p"), *SMALL, "--out", tmp_path / "run", "--quiet")
    first, second, *_ = out.splitlines()
    assert first.startswith("MAP 0.") or first.startswith("MAP 1.")
    assert "ties in database order" in first
    assert "tie-aware" in second
    assert out.splitlines()[-1].startswith("next ")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["train"], 2, ["say what to train on"]),
        (["train", "no/such/folder"], 3, ["no/such/folder"]),
        (["train", "cifar100"], 3, ["did you mean cifar10"]),
        (["train", "digits", "--bits", "0"], 2, ["bits", "0"]),
        (["train", "digits", "--bits", "-4"], 2, ["bits", "-4"]),
        (["train", "digits", "--method", "dtsx"], 2, ["dtsx", "dtsh"]),
        (["train", "digits", "--backbone", "resnet"], 2, ["resnet", "efficientnet-lite0"]),
        (["train", "digits", "--epochs", "0"], 2, ["epochs", "0"]),
        (["train", "digits", "--set", "lr=0"], 2, ["lr must be > 0, got 0"]),
        (["train", "digits", "--set", "sampling=some"], 2, ["sampling", "published"]),
        (["train", "digits", "--protocol", "cifar10-3"], 2, ["cifar10-3", "cifar10-1"]),
        (["train", "digits", "--protocol", "cifar10-1"], 3, ["cifar10"]),
        (["train", "digits", "--frozen-blocks", "99"], 2, ["99"]),
        (["train", "digits", "--from-file", "x.tgz"], 2, ["from_file"]),
        (["train", "--resume", "nowhere"], 3, ["nowhere"]),
        (["encode", "digits", "--model", "nowhere"], 3, ["nowhere"]),
        (["evaluate", "nowhere"], 3, ["nowhere"]),
    ],
)
def test_wrong_use_is_one_sentence(hashlens, tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    refused(hashlens(*arguments), code, *words)


def test_bad_folders_are_one_sentence(hashlens, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(hashlens("train", empty), 3, "no images")
    loose = tmp_path / "loose"
    loose.mkdir()
    Image.new("RGB", (8, 8)).save(loose / "a.png")
    refused(hashlens("train", loose), 3, "class")
    refused(hashlens("train", make_folder(tmp_path / "one", ["cats"]), "--out", tmp_path / "r"), 3, "class")
    assert not (tmp_path / "r").exists()


def test_no_room_on_disk(hashlens, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    refused(hashlens("train", "digits", *SMALL, "--out", tmp_path / "run"), 6, "not enough disk space", "MB")


def test_out_is_a_file(hashlens, tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(hashlens("train", "digits", *SMALL, "--out", tmp_path / "file" / "run"), 6, "not a folder")
    assert (tmp_path / "file").read_text() == "mine"


def test_no_network(hashlens, tmp_path, monkeypatch):
    monkeypatch.setenv("HASHLENS_OFFLINE", "1")
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    refused(hashlens("train", "cifar10", "--out", tmp_path / "run"), 7, "--from-file")
    photos = make_folder(tmp_path / "photos")
    refused(hashlens("train", photos, "--out", tmp_path / "run"), 7, "pip install", "small-cnn")


def test_demo_without_network_uses_digits(hashlens, tmp_path, monkeypatch):
    monkeypatch.setenv("HASHLENS_OFFLINE", "1")
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    code, out, err = hashlens("demo", "--out", tmp_path / "demo", "--json")
    assert code == 0, err
    assert "digits instead" in err
    assert json.loads(out)["source"] == "digits"
    assert json.loads(out)["map"] > 0.9
    assert (tmp_path / "demo" / "results.png").exists()


def test_ctrl_c_saves_and_resume_ends_the_same(hashlens, tmp_path, monkeypatch):
    monkeypatch.setenv("HASHLENS_THREADS", "1")  # sums in another order would differ in the last bit
    photos = make_folder(tmp_path / "photos", n=40)
    options = [
        "train",
        str(photos),
        "--backbone",
        "small-cnn",
        "--bits",
        "8",
        "--epochs",
        "12",
        "--set",
        "batch_size=8",
    ]
    assert hashlens(*options, "--out", tmp_path / "whole", "--json")[0] == 0

    run = tmp_path / "stopped"
    command = [sys.executable, "-m", "hashlens", *options, "--out", str(run)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (run / "metrics.csv").exists() and time.monotonic() < deadline:  # after the first epoch
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"hashlens train --resume {run}" in err
    assert "Traceback" not in err
    assert not (run / "result.json").exists()

    for other in (["--epochs", "3"], ["--method", "lsh", "--features", "gist"]):  # neither may spoil what was stopped
        refused(hashlens("train", photos, "--bits", "8", *other, "--out", run), 2, f"train --resume {run}")
    code, _, err = hashlens("train", "--resume", run, "--json")
    assert code == 0, err
    whole, stopped = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "stopped"))
    assert whole.read_bytes() == stopped.read_bytes()
    assert len(rows_of(run / "metrics.csv")) == 12


SHALLOW = ["--method", "itq", "--features", "gist", "--bits", "8"]


def test_several_splits_with_one_query_per_class(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos", n=9)
    code, out, err = hashlens("train", photos, *SHALLOW, "--splits", 2, "--out", tmp_path / "run")
    assert code == 0, err
    assert "over 2 splits" in out and "among unlearned images: no two share a label" in out


def test_codes_that_are_all_equal_are_said(hashlens, tmp_path):
    features = tmp_path / "f.npy"
    photos = make_folder(tmp_path / "photos")
    assert hashlens("features", photos, "--kind", "gist", "--out", features)[0] == 0
    values = np.load(features)
    values[1:] = values[0] * 1e-3  # one image differs from all others
    np.save(features, values)
    _, out, _ = hashlens("train", features, "--method", "itq", "--bits", 1, "--out", tmp_path / "run")
    assert "note: no better than random" in out, out


def test_train_on_several_splits(hashlens, tmp_path):
    photos, run = make_folder(tmp_path / "photos", n=30), tmp_path / "run"
    code, out, err = hashlens("train", photos, *SHALLOW, "--splits", 3, "--out", run)
    assert code == 0 and "split 3 of 3, seed 2" in err, err
    assert "mean ± standard deviation over 3 splits" in out and "from the first split" in out
    page = (run / "report.html").read_text()
    assert "MAP, 3 splits" in page and "MAP, unlearned, 3 splits" in page and "MAP of a random ranking" in page
    result = json.loads((run / "result.json").read_text())
    for number in range(3):
        alone = ["--seed", number, "--set", "random_state=0", "--out", tmp_path / f"alone{number}", "--json"]
        single = json.loads(hashlens("train", photos, *SHALLOW, *alone)[1])
        split = result["splits"][number]
        assert split["protocol"] == single["protocol"]
        assert split["metrics"] == {key: single["metrics"][key] for key in split["metrics"]}
    first = [(folder / "model" / "model.safetensors").read_bytes() for folder in (run, tmp_path / "alone0")]
    assert first[0] == first[1] and result["map"] == result["splits"][0]["metrics"]["map"]
    for key in ("map", "map_unlearned"):
        values = [split["metrics"][key] for split in result["splits"]]
        assert result["over_splits"][key] == pytest.approx(np.mean(values))
        assert result["over_splits"][f"{key}_deviation"] == pytest.approx(np.std(values, ddof=1))
    refused(hashlens("train", photos, *SHALLOW, "--splits", 0, "--out", tmp_path / "x"), 2, "--splits")
    (photos / "t.csv").write_text(
        "path,label,split\n"
        + "".join(
            f"{name}/{i:02d}.png,{name},{'query' if i < 3 else 'train'}\n"
            for name in ("circle", "square")
            for i in range(9)
            if (photos / name / f"{i:02d}.png").exists()
        )
    )
    given = hashlens("train", photos / "t.csv", *SHALLOW, "--splits", 2, "--out", tmp_path / "x")
    refused(given, 2, "has one split only")
    assert not (tmp_path / "x").exists()


def test_several_splits_resume_where_they_were_stopped(hashlens, tmp_path, monkeypatch):
    monkeypatch.setenv("HASHLENS_THREADS", "1")
    photos, run = make_folder(tmp_path / "photos", n=20), tmp_path / "run"
    options = ["train", photos, *SMALL, "--splits", 3]
    whole = json.loads(hashlens(*options, "--out", tmp_path / "whole", "--json")[1])

    @contextmanager
    def stop_in_the_third():
        yield lambda: (run / "splits" / "2" / "metrics.csv").exists()

    with monkeypatch.context() as patch:
        patch.setattr(cli_options, "interruptible", stop_in_the_third)
        code, _, err = hashlens(*options, "--out", run)
    assert code == 130 and f"stopped and saved in split 3; resume with: hashlens train --resume {run}" in err
    assert not (run / "result.json").exists() and (run / "splits" / "1.json").exists()
    written = (run / "splits" / "1.json").stat().st_mtime_ns
    code, out, err = hashlens("train", "--resume", run, "--json")
    assert code == 0, err
    assert (run / "splits" / "1.json").stat().st_mtime_ns == written, "not trained again"
    assert [split["metrics"] for split in json.loads(out)["splits"]] == [split["metrics"] for split in whole["splits"]]
    assert sorted(path.name for path in (run / "splits").iterdir()) == ["1.json", "2.json"]


def test_a_run_says_what_chance_gives_and_what_it_does_on_unlearned_images(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos", n=30)
    code, out, err = hashlens("train", photos, *SHALLOW, "--out", tmp_path / "a")
    assert code == 0 and " a random ranking\n" in out and "not used in training" in out, err
    few = make_folder(tmp_path / "few", n=5)
    code, out, err = hashlens("train", few, *SHALLOW, "--out", tmp_path / "b")
    assert code == 0 and "among unlearned images: no two share a label" in out, err
    code, out, err = hashlens("train", photos, *SHALLOW, "--protocol", "few-2", "--out", tmp_path / "c", "--json")
    n_classes = len(list(photos.iterdir()))
    assert code == 0 and json.loads(out)["protocol"]["n_train"] == 2 * n_classes, err
    photos.rename(tmp_path / "by-year")
    for number, folder in enumerate(sorted((tmp_path / "by-year").iterdir())):
        folder.rename(folder.with_name(str(2019 + number)))
    _, _, err = hashlens("train", tmp_path / "by-year", *SHALLOW, "--out", tmp_path / "d")
    assert "note: most classes look like dates (2019, 2020" in err


def test_resume_with_the_checkpoint_of_another_model(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos")
    run = tmp_path / "run"

    assert hashlens("train", photos, *SMALL, "--out", tmp_path / "other")[0] == 0
    run.mkdir()
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    hasher = cli_train._make(config | {"params": config["params"] | {"n_bits": 16}}, 30)
    source = open_source(photos)
    protocol = make_protocol(source)
    with pytest.raises(Stopped):
        hasher.fit(source.images[protocol.train], source.labels[protocol.train], run=run, stop=lambda: True)
    (run / "config.json").write_text(json.dumps(config))
    refused(hashlens("train", "--resume", run), 4, "n_bits was 16, now 12")


def test_methods_and_doctor(hashlens):
    code, out, _ = hashlens("methods", "--json")
    assert code == 0
    assert "dtsh" in json.loads(out)
    code, out, _ = hashlens("doctor", "--json")
    assert code == 0
    assert set(json.loads(out)) >= {"versions", "machine", "training", "cache", "disk"}
    assert "dtsh" in hashlens("methods")[1]
    code, out, _ = hashlens("methods", "ksh")
    assert code == 0 and "CVPR 2012" in out and "Differences from the paper" in out and "n_anchors=3000" in out
    settings = {one["name"]: one for one in json.loads(hashlens("methods", "dtsh", "--json")[1])["settings"]}
    assert settings["epochs"]["default"] is None and settings["epochs"]["range"] == ">= 1"
    refused(hashlens("methods", "ksj"), 2, "there is no method 'ksj' (did you mean 'ksh'?)")


def test_a_method_on_features_has_epochs_too(hashlens, tmp_path):
    options = ["--method", "dh", "--features", "gist", "--bits", "8", "--epochs", "1", "--set", "lambda1=10"]
    code, out, err = hashlens("train", make_folder(tmp_path / "photos"), *options, "--out", tmp_path / "r", "--json")
    assert code == 0, err
    assert json.loads(out)["config"]["params"] == {
        "n_bits": 8, "random_state": 0, "features": "gist", "epochs": 1, "lambda1": 10.0, "second_bits": 128,
    }  # fmt: skip
    assert "torch" in hashlens("doctor")[1]
    assert hashlens("--version")[1].startswith("hashlens ")


# Triplets, tables, presets, quirks, heads and methods on features.


def write_triplets(path, names, rng, n=400):
    """Triplets of images whose class is the first word of their name."""
    kind = np.array([name.replace("-", "/").split("/")[0] for name in names])
    q, p, m = rng.integers(0, len(names), (3, 30 * n))
    good = np.flatnonzero((kind[q] == kind[p]) & (kind[q] != kind[m]) & (q != p))[:n]
    path.write_text("".join(f"{names[q[i]]},{names[p[i]]},{names[m[i]]}\n" for i in good))
    return path


def test_triplets_of_labelled_images(hashlens, tmp_path, rng, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = make_folder(tmp_path / "photos")
    triplets = write_triplets(tmp_path / "t.csv", open_source(photos).images.names, rng)
    run = tmp_path / "run"
    code, out, err = hashlens("train", photos, *SMALL, "--epochs", 8, "--triplets", "t.csv", "--out", run, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["map"] > 0.5 and result["metrics"]["triplets_right"] > 0.7
    assert "triplets left out because they name images outside the training set" in err  # the queries of the split
    assert result["config"]["triplets"] == str(triplets)
    (run / "result.json").unlink()
    monkeypatch.chdir("/")
    code, again, err = hashlens("train", "--resume", run, "--json")
    assert code == 0 and json.loads(again)["metrics"] == result["metrics"], err
    triplets.write_text(triplets.read_text() * 2)
    code, again, err = hashlens(
        "train", photos, *SMALL, "--epochs", 8, "--triplets", triplets, "--out", tmp_path / "again", "--json"
    )
    assert code == 0 and "because they repeat others" in err
    same = json.loads(again)["metrics"]
    assert same["triplets_right"] == result["metrics"]["triplets_right"], "none is both learned and held out"


def test_triplets_of_a_folder_without_classes(hashlens, tmp_path, rng):
    photos = make_folder(tmp_path / "photos")
    loose = tmp_path / "loose"
    loose.mkdir()
    for path in photos.glob("*/*.png"):
        path.rename(loose / f"{path.parent.name}-{path.name}")
    triplets = write_triplets(tmp_path / "t.csv", open_source(loose, labels="optional").images.names, rng)
    run = tmp_path / "run"
    code, out, err = hashlens("train", loose, *SMALL, "--epochs", 8, "--triplets", triplets, "--out", run, "--quiet")
    assert code == 0, err
    assert out.startswith("triplets ") and "MAP" not in out
    result = json.loads((run / "result.json").read_text())
    assert result["map"] is None and result["metrics"]["triplets_right"] > 0.7
    with Image.open(run / "results.png") as image:
        assert image.size[0] > 500
    page = (run / "report.html").read_text()
    assert "Held-out triplets right" in page and "same label as the query" not in page
    refused(hashlens("train", loose, *SMALL, "--out", tmp_path / "r"), 3, "no labels")
    refused(hashlens("evaluate", run), 2, "so it has no MAP")


def test_bad_triplets_are_one_sentence(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos")
    options = [*SMALL, "--out", tmp_path / "run", "--triplets", tmp_path / "t.csv"]
    refused(hashlens("train", photos, *options), 3, "cannot read the triplet file")
    (tmp_path / "t.csv").write_text("circle/00.png,circle/01.png,bird.png\n")
    refused(hashlens("train", photos, *options), 3, "line 1", "bird.png")
    refused(hashlens("train", photos, "--method", "itq", *options[8:]), 2, "itq does not learn from triplets")


@pytest.mark.parametrize("head", ["layers", "divide-and-encode"])
def test_heads(hashlens, tmp_path, head):
    photos = make_folder(tmp_path / "photos")
    code, out, err = hashlens("train", photos, *SMALL, "--set", f"head={head}", "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["config"]["params"]["head"] == head
    code, _, err = hashlens("encode", photos, "--model", tmp_path / "run" / "model", "--out", tmp_path / "codes")
    assert code == 0, err


def test_a_table_with_a_split(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos")
    lines = ["photo,kind,part"]
    for number, path in enumerate(sorted(photos.glob("*/*.png"))):
        part = "query" if number % 6 == 0 else "train"
        lines.append(f"photos/{path.parent.name}/{path.name},{path.parent.name}|shape{number % 2},{part}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines))
    columns = ["--column", "path=photo", "--column", "labels=kind", "--column", "split=part"]
    code, out, err = hashlens("train", table, *columns, *SMALL, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    assert json.loads(out)["protocol"]["n_query"] == 6
    refused(hashlens("train", table, *SMALL, "--out", tmp_path / "r"), 2, "--column path=", "photo, kind, part")

    code, out, err = hashlens("data", "check", table, *columns, "--json")
    assert code == 0, err
    assert json.loads(out)["labels"]
    code, out, err = hashlens("data", "check", photos)
    assert code == 0 and "circle" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--preset", "fast"], ["no preset 'fast'"]),
        (["--method", "ninh", "--preset", "published"], ["no preset 'published' for ninh"]),
        (["--method", "itq", "--set", "alpha=3"], ["itq has no setting 'alpha'", "hashlens methods itq"]),
        (["--method", "lsh", "--epochs", "3"], ["lsh has no setting 'epochs'"]),
        (["--quirk", "transposed-test-batch"], ["for cifar10", "digits"]),
        (["--set", "head=cubic"], ["head must be one of linear, layers, divide-and-encode"]),
        (["--backbone", "small-cnn", "--weights", "x.mat"], ["small-cnn takes no weights file"]),
        (["--column", "labels=x"], ["digits"]),
        (["--column", "tags=x"], ["--column takes path="]),
    ],
)
def test_what_does_not_fit_is_one_sentence(hashlens, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    refused(hashlens("train", "digits", *arguments), 2, *words)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*/result.json"))


def test_the_published_preset_on_a_made_file(hashlens, tmp_path, monkeypatch):
    """CNN-F in the authors' layout but narrow, CIFAR-10's size but few images, their rates and schedule."""
    monkeypatch.chdir(tmp_path)
    mat = tmp_path / "imagenet-vgg-f.mat"
    write_mat(mat, made_layers())
    photos = make_folder(tmp_path / "photos", n=20)
    options = ["--preset", "published", "--weights", mat.name, "--bits", 8, "--epochs", 2, "--set", "batch_size=8"]
    options += ["--set", "lr=1e-4", "--set", "head_lr=1e-4"]  # theirs, for so few images, would be far too large
    code, out, err = hashlens("train", photos, *options, "--out", tmp_path / "run", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert (result["backbone"], result["epochs"]) == ("cnn-f", 2)
    assert result["config"]["params"]["weights"] == str(mat), "a run is resumed from any folder"
    model = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    params = model["params"]
    assert (params["sampling"], params["frozen_blocks"]) == ("published", 0)
    assert (params["lambda_"], params["alpha"]) == (100, None)
    training = params["training"]
    assert training["lr"] == training["head_lr"] == 1e-4
    assert training["weight_decay"] == pytest.approx(5e-4 * result["protocol"]["n_train"] / 45_000)
    assert (training["optimizer"], training["schedule"], training["step_epochs"]) == ("sgd", "step", 20)
    assert training["flip"] is False and training["last_batch"] == "keep"
    mat.unlink()  # the weights have travelled with the model
    code, _, err = hashlens("encode", photos, "--model", tmp_path / "run" / "model", "--out", tmp_path / "codes")
    assert code == 0, err


def test_the_quirk_mirrors_the_test_batch_alone(monkeypatch, rng):
    pixels = rng.integers(0, 256, (60, 4, 4, 3), dtype=np.uint8)
    monkeypatch.setattr(cifar10, "_read_cache", lambda say: (pixels, np.arange(60) % 10))
    plain, odd = (open_source("cifar10", quirk=quirk).images for quirk in (None, "transposed-test-batch"))
    assert np.array_equal(odd.read(np.arange(50), 4), plain.read(np.arange(50), 4))
    for row in range(50, 60):
        assert np.array_equal(odd.read([row], 4)[0], plain.read([row], 4)[0].swapaxes(0, 1))


def test_encode_goes_on_and_makes_parts(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos")
    images = open_source(photos).images
    for seed in (0, 1):
        make_hasher("lsh", n_bits=12, features="gist", random_state=seed).fit(images).save(tmp_path / f"model{seed}")
    command = ["encode", photos, "--model", tmp_path / "model0", "--shard-size", 10]
    code, out, err = hashlens(*command, "--out", tmp_path / "codes")
    assert code == 0, err
    assert out.startswith("36 codes of 12 bits in ") and "hashlens index build" in out
    code, again, err = hashlens(*command, "--out", tmp_path / "codes")
    assert code == 0 and again == out
    assert "4 shards found and verified, 0 to go" in err
    for part in ("1/2", "2/2"):
        assert hashlens(*command, "--out", tmp_path / "parts", "--part", part, "--quiet")[0] == 0
    folders = open_together([tmp_path / "parts"])
    assert sum(map(len, folders)) == 36
    refused(hashlens(*command, "--out", tmp_path / "parts", "--part", "3/2"), 2, "part 3 of 2 does not exist")
    refused(hashlens(*command, "--out", tmp_path / "codes", "--column", "labels=x"), 2, "columns is only for")
    command[3] = tmp_path / "model1"
    refused(hashlens(*command, "--out", tmp_path / "codes"), 4, "model0", "model1", "cannot be mixed")


def test_ctrl_c_in_encode_keeps_whole_shards(tmp_path):
    photos = make_folder(tmp_path / "photos")
    make_hasher("lsh", n_bits=12, features="gist").fit(open_source(photos).images).save(tmp_path / "model")
    command = [sys.executable, "-m", "hashlens", "encode", photos, "--model", tmp_path / "model", "--shard-size", "1"]
    process = subprocess.Popen(
        [*map(str, command), "--out", str(tmp_path / "codes")], stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not (tmp_path / "codes" / "shard-000000002.codes.npy").exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "rerun the same command to resume" in err and "Traceback" not in err
    folder = CodesFolder.open(tmp_path / "codes")
    assert not folder.damaged()
    assert 2 <= len(folder) < 36


def test_features_say_which_images_they_are_of(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos", n=3)
    (photos / "circle" / "broken.jpg").write_bytes(b"not an image")
    out = tmp_path / "f.npy"
    code, said, err = hashlens("features", photos, "--kind", "gist", "--out", out)
    assert code == 0 and "\n1 image could not be read" in said and "broken.jpg" in err
    items = pq.read_table(tmp_path / "f.parquet").to_pylist()
    assert len(items) == len(np.load(out)) == 9
    assert all(Path(item["path"]).parent == photos / item["labels"][0] for item in items)
    assert rows_of(tmp_path / "f.skipped.csv") == [{"path": "circle/broken.jpg", "reason": "not an image"}]
    for command, *how in (("train", "--method"), ("compare", "--keep", "--methods")):
        code, said, err = hashlens(command, out, *how, "lsh", "--bits", "8", "--out", tmp_path / command)
        assert code == 0 and "MAP" in said and "hashlens encode" not in said, "the model takes no images" + err
    assert hashlens("evaluate", tmp_path / "train")[0] == 0
    refused(hashlens("encode", out, "--model", tmp_path / "train" / "model"), 3, "trained on features")
    refused(hashlens("data", "check", out), 2, "contains features")
    out.write_bytes(out.read_bytes()[:-100])
    refused(hashlens("train", out, "--out", tmp_path / "other"), 3, "were not written by hashlens features")
    refused(hashlens("train", photos, "--method", "lsh", "--features", "nuswide-1134"), 2, "train on that file")


def test_things_that_are_not_there_are_one_sentence(hashlens, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    photos = make_folder(tmp_path / "photos", n=4)
    refused(hashlens("train", photos, *SMALL, "--device", "cuda", "--out", tmp_path / "a"), 2, "no GPU")
    refused(hashlens("data", "check", "~nobody-of-this-name/x"), 2, "no such home folder")
    refused(hashlens("data", "check", tmp_path / ("n" * 300)), 6, "File name too long")


def test_two_runs_in_one_folder(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos", n=4)
    with alone_in(tmp_path / "run"):
        refused(hashlens("train", photos, *SMALL, "--out", tmp_path / "run"), 2, "another process is writing")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]


def test_help_says_what_is_done_if_nothing_is_said(hashlens):
    for command, words in (
        ("search", "10, with --radius all"),
        ("train", "runs/SOURCE-METHOD-BITS"),
        ("serve", "as in the index"),
    ):
        assert words in " ".join(hashlens(command, "--help")[1].replace("│", " ").split())


def test_folders_and_files_of_others_are_left_alone(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos")
    other = tmp_path / "my things"
    other.mkdir()
    (other / "config.json").write_text("{}")
    (other / "report.html").write_text("mine")
    for command in (
        ["train", photos, *SMALL],
        ["compare", photos, "--methods", "lsh", "--bits", "8", "--features", "gist"],
        ["reproduce", "alpha", "--scale", "smoke"],
        ["demo"],
    ):
        refused(hashlens(*command, "--out", other), 2, "contains other files (config.json) and is no", "--out")
    refused(hashlens("features", photos, "--kind", "gist", "--out", other / "report.html"), 2, "not a file of features")
    assert {path.name: path.read_text() for path in other.iterdir()} == {"config.json": "{}", "report.html": "mine"}


def test_resume_takes_no_other_options(hashlens, tmp_path):
    for others in (["--bits", "48"], ["--epochs", "2"], ["photos"]):
        refused(hashlens("train", "--resume", tmp_path, *others), 2, "--resume takes everything from the run's folder")


def test_commands_to_paste_are_quoted(hashlens, tmp_path):
    photos, run = make_folder(tmp_path / "photos"), tmp_path / "my run"
    code, out, err = hashlens("train", photos, *SMALL, "--out", run)
    assert code == 0 and f"--model '{run / 'model'}'" in out and f"--resume '{run}'" in err


def test_export_does_not_fetch_anything(hashlens, tmp_path, monkeypatch):
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    refused(hashlens("export", tmp_path / "nowhere", "--out", tmp_path / "a"), 3, "is not a model")
    photos = make_folder(tmp_path / "photos")
    assert hashlens("train", photos, *SMALL, "--out", tmp_path / "run")[0] == 0
    refused(hashlens("export", tmp_path / "run" / "model", "--out", tmp_path / "a"), 2, "--images")
    command = ["export", tmp_path / "run" / "model", "--out", tmp_path / "a", "--images", photos]
    assert hashlens(*command)[0] == 0
    refused(
        hashlens("export", tmp_path / "a", "--out", tmp_path / "b", "--images", photos), 2, "already an exported model"
    )
    refused(
        hashlens("export", tmp_path / "run" / "model", "--out", tmp_path / "c", "--int8"), 2, "calibrated", "--images"
    )


def test_int8_is_calibrated_by_the_run_and_searched_like_any_model(hashlens, tmp_path):
    photos, run, small = make_folder(tmp_path / "photos"), tmp_path / "run", tmp_path / "small"
    assert hashlens("train", photos, *SMALL, "--out", run)[0] == 0
    code, out, err = hashlens("export", run, "--out", small, "--int8")
    assert code == 0 and "bits are equal" in out and "another model" in out and "WARNING" not in err, err
    query = next((photos / "circle").iterdir())
    assert hashlens("encode", photos, "--model", small, "--out", tmp_path / "codes")[0] == 0
    assert hashlens("index", "build", tmp_path / "codes", "--out", tmp_path / "index")[0] == 0
    code, out, err = hashlens("search", tmp_path / "index", query, "--model", small, "-k", "1", "--json")
    assert code == 0 and query.name in out, err
    refused(hashlens("search", tmp_path / "index", query, "--model", run / "model"), 4, "cannot be mixed")


def test_a_run_and_the_winner_of_a_comparison_are_searched(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos")
    query = next((photos / "circle").iterdir())
    run, out = tmp_path / "runs" / "pets", tmp_path / "comparison"
    assert hashlens("train", photos, *SMALL, "--out", run, "--quiet")[0] == 0
    settings = ["--set", "dtsh.epochs=1", "--set", "lsh.features=small-cnn", "--backbone", "small-cnn"]
    options = ["--methods", "dtsh,lsh", "--bits", "8", "--features", "small-cnn", "--against", "lsh", *settings]
    code, text, err = hashlens("compare", photos, *options, "--keep", "--out", out)
    assert code == 0 and f"hashlens encode path/to/images --model {out}" in text, err
    result = json.loads((out / "result.json").read_text())
    assert result["against"] == "lsh" and sum(row["lengths"]["8"]["p"] is not None for row in result["rows"]) == 1
    cell = json.loads((out / "cells" / "small-cnn-dtsh-8-0.json").read_text())
    assert cell["params"]["training"]["epochs"] == 1
    for folder in (run, out):
        index = tmp_path / f"index-{folder.name}"
        code, text, err = hashlens("index", "build", folder, "--out", index, "--json")
        assert code == 0 and json.loads(text)["n"] == 33, err
        for place in (folder, index):
            code, text, err = hashlens("search", place, query, "--model", folder, "--json")
            assert code == 0 and "circle" in text, err
        code, text, err = hashlens("encode", photos, "--model", folder, "--out", tmp_path / f"codes-{folder.name}")
        assert code == 0, err
    refused(
        hashlens("compare", photos, *options, "--set", "itq.x=1", "--out", out), 2, "'itq'", "not a method compared"
    )
    refused(hashlens("compare", photos, *options, "--set", "dtsh.epoch=1", "--out", out), 2, "did you mean 'epochs'")
    refused(hashlens("compare", photos, *options, "--against", "ksh", "--out", out), 2, "'ksh' is not compared here")


def test_help_of_duplicates_has_its_options(hashlens):
    """The usual `duplicates SOURCE` is the subcommand find: whoever asks for help wants its options."""
    code, told, _ = hashlens("duplicates", "--help")
    assert code == 0 and all(option in told for option in ("--against", "--move-to", "--html", "duplicates undo LIST"))
    assert told == hashlens("duplicates", "find", "--help")[1]
