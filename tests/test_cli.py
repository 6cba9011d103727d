"""The command line as a user meets it: what works, and one sentence and an exit code for what does not."""

import csv
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from hashlens import cli
from hashlens.data import make_protocol, open_source
from hashlens.hashers.deep.training import Stopped


@pytest.fixture
def hashlens(monkeypatch, capsys):
    """Run a command; gives exit code, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["hashlens", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return run


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
    """Class folders of small colour pictures that can be told apart."""
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


SMALL = ["--backbone", "small-cnn", "--bits", "12", "--epochs", "3", "--batch-size", "16"]


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


def test_train_encode_evaluate_on_a_folder(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos")
    (photos / "circle" / "broken.jpg").write_bytes(b"not a picture")
    run = tmp_path / "run"
    code, out, err = hashlens("train", photos, *SMALL, "--out", run, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["map"] == result["metrics"]["map"]
    assert 0 < result["map"] <= 1
    assert result["protocol"]["n_train"] == result["protocol"]["n_database"] == 33
    assert result["n_skipped"] == 1
    assert json.loads((run / "result.json").read_text()) == result
    assert rows_of(run / "skipped.csv")[0]["path"] == "circle/broken.jpg"
    assert len(rows_of(run / "metrics.csv")) == 3
    for picture in ("results.png", "curves.png"):
        with Image.open(run / picture) as image:
            assert image.size[0] > 300
    assert (run / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert sorted(p.name for p in (run / "model").iterdir()) == ["config.json", "model.safetensors"]
    assert not (run / "checkpoint.safetensors").exists()

    refused(hashlens("train", photos, *SMALL, "--out", run), 2, "finished run")

    codes = tmp_path / "codes"
    code, out, err = hashlens("encode", photos, "--model", run / "model", "--out", codes, "--json")
    assert code == 0, err
    assert json.loads(out) == {"n": 36, "n_bits": 12, "n_skipped": 1, "out": str(codes)}
    assert len(rows_of(codes / "items.csv")) == 36

    code, out, err = hashlens("evaluate", run, "--json")
    assert code == 0, err
    definitions = json.loads(out)["definitions"]
    assert definitions["paper"]["map"] == pytest.approx(result["map"])
    assert definitions["tie-aware"]["map"] == pytest.approx(result["metrics"]["map_tie_aware"])
    refused(hashlens("evaluate", run, "--topk", 0), 2, "topk")


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
        (["train", "cifar100"], 2, ["cifar10"]),
        (["train", "digits", "--bits", "0"], 2, ["bits", "0"]),
        (["train", "digits", "--bits", "-4"], 2, ["bits", "-4"]),
        (["train", "digits", "--method", "dtsx"], 2, ["dtsx", "dtsh"]),
        (["train", "digits", "--backbone", "resnet"], 2, ["resnet", "efficientnet-lite0"]),
        (["train", "digits", "--epochs", "0"], 2, ["epochs", "0"]),
        (["train", "digits", "--lr", "0"], 2, ["lr"]),
        (["train", "digits", "--triplets", "some"], 2, ["triplets", "published"]),
        (["train", "digits", "--protocol", "cifar10-3"], 2, ["cifar10-3", "cifar10-1"]),
        (["train", "digits", "--protocol", "cifar10-1"], 3, ["cifar10"]),
        (["train", "digits", "--frozen-blocks", "99"], 2, ["99"]),
        (["train", "digits", "--from-file", "x.tgz"], 2, ["--from-file"]),
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
    refused(hashlens("train", empty), 3, "no pictures")
    loose = tmp_path / "loose"
    loose.mkdir()
    Image.new("RGB", (8, 8)).save(loose / "a.png")
    refused(hashlens("train", loose), 3, "class")
    refused(hashlens("train", make_folder(tmp_path / "one", ["cats"]), "--out", tmp_path / "r"), 3, "class")
    assert not (tmp_path / "r").exists()


def test_no_room_on_disk(hashlens, tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    refused(hashlens("train", "digits", *SMALL, "--out", tmp_path / "run"), 6, "no room", "MB")


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
    options = ["train", str(photos), "--backbone", "small-cnn", "--bits", "8", "--epochs", "12", "--batch-size", "8"]
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

    code, _, err = hashlens("train", "--resume", run, "--json")
    assert code == 0, err
    whole, stopped = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "stopped"))
    assert whole.read_bytes() == stopped.read_bytes()
    assert len(rows_of(run / "metrics.csv")) == 12


def test_resume_with_the_checkpoint_of_another_model(hashlens, tmp_path):
    photos = make_folder(tmp_path / "photos")
    run = tmp_path / "run"

    assert hashlens("train", photos, *SMALL, "--out", tmp_path / "other")[0] == 0
    run.mkdir()
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    hasher = cli._make(config | {"params": config["params"] | {"n_bits": 16}})
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
    assert "torch" in hashlens("doctor")[1]
    assert hashlens("--version")[1].startswith("hashlens ")
