"""Wrong input to every command: one sentence, the documented exit code, no traceback, and nothing written."""

import shutil
import sys
from pathlib import Path

import pytest
from made_images import three_classes

from hashlens import cli

SMALL = ["--backbone", "small-cnn", "--image-size", "16", "--bits", "12", "--epochs", "1", "--quiet"]


def run(*arguments):
    """Exit code of a command."""
    before, sys.argv = sys.argv, ["hashlens", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code or 0
    finally:
        sys.argv = before
    return 0


@pytest.fixture(scope="module")
def place(tmp_path_factory, session_cache):
    """A folder with images, a run, codes, an index, and models that do not belong to them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASHLENS_CACHE", str(session_cache))
        patch.setenv("HASHLENS_OFFLINE", "1")
        root = tmp_path_factory.mktemp("place")
        patch.chdir(root)
        three_classes(root / "photos", 12, 80, 120)
        shutil.copytree("photos/circle", "flat")
        shutil.copytree("photos/circle", "one/circle")
        Path("empty").mkdir()
        Path("note.txt").write_text("photos/nothing.jpg\n")
        Path("broken.jpg").write_bytes(b"\xff\xd8\xff not an image")
        Path("bad.csv").write_text("a,b\n1,2\n")
        Path("gone.csv").write_text("path,labels\nx.jpg,a\ny.jpg,b\n")
        Path("triplets.csv").write_text("0,0\n")
        assert run("train", "photos", *SMALL, "--out", "run") == 0
        assert run("train", "photos", *SMALL, "--seed", "1", "--out", "other") == 0
        assert run("encode", "photos", "--model", "run", "--out", "codes", "--quiet") == 0
        assert run("index", "build", "codes", "--out", "index", "--quiet") == 0
        assert run("features", "photos", "--kind", "gist", "--out", "gist.npy", "--quiet") == 0
        assert run("train", "gist.npy", "--method", "itq", "--bits", "8", "--out", "on-features", "--quiet") == 0
        shutil.copytree("run/model", "damaged")
        Path("damaged/model.safetensors").write_bytes(b"nothing")
        shutil.copytree("index", "torn")
        Path("torn/index.json").write_text("{}")
    return root


WRONG = [  # what is typed, exit code, words of the sentence
    # sources
    ("train cifar1O", 3, "did you mean cifar10"),
    ("train nowhere", 3, "error: nowhere not found"),
    ("train flat", 3, "no labels"),
    ("train one", 3, "only one class"),
    ("train empty", 3, "no images"),
    ("train note.txt", 3, "note.txt"),
    ("train bad.csv", 2, "bad.csv"),
    ("train gone.csv", 3, "gone.csv"),
    ("train", 2, "train"),
    ("train digits --column labels=x", 2, "columns"),
    ("train photos --from-file x.tar.gz", 2, "from_file"),
    ("train photos --quirk transposed-test-batch", 2, "quirk"),
    ("encode nowhere --model run", 3, "nowhere not found"),
    ("features empty", 3, "no images"),
    ("data check nowhere", 3, "nowhere not found"),
    ("compare flat --methods itq", 3, "no labels"),
    # methods and settings
    ("train photos --method dtsj", 2, "did you mean 'dtsh'"),
    ("train photos --bits 0", 2, "must be >= 1, got 0"),
    ("train photos --set alpah=3", 2, "did you mean 'alpha'"),
    ("train photos --set epochs=many", 2, "epochs must be"),
    ("train photos --set epochs", 2, "name=value"),
    ("train photos --method ksh --set n_anchors=0", 2, "n_anchors must be >= 1, got 0"),
    ("train photos --method itq --backbone resnet50", 2, "backbone"),
    ("train photos --backbone lenet", 2, "backbone 'lenet' not found"),
    ("train photos --method itq --features lenet", 2, "backbone 'lenet' not found"),
    ("train gist.npy --backbone resnet50", 2, "backbone is for images, but gist has features"),
    ("tune gist.npy --method ksh --features gist", 2, "features is for images, but gist has features"),
    ("train photos --preset best", 2, "preset"),
    ("train photos --method itq --triplets triplets.csv", 2, "triplets"),
    ("train photos --protocol weekly", 2, "unknown protocol"),
    ("train photos --triplets nowhere.csv", 3, "nowhere.csv (No such file or directory); check the path"),
    ("train photos --triplets triplets.csv", 3, "line 1 of triplets.csv has 2 entries"),
    ("train photos --protocol weekly", 2, "unknown protocol"),
    ("train photos --precision float8", 2, "precision must be"),
    ("train photos --out photos", 2, "contains other files"),
    ("train --resume empty", 3, "empty"),
    ("train --resume run", 2, "finished"),
    ("train photos --bit 12", 2, "--bits"),
    ("methods dtsj", 2, "did you mean 'dtsh'"),
    ("compare photos --methods itq,kshh", 2, "did you mean 'ksh'"),
    ("compare photos --methods itq --set ksh.n_anchors=3", 2, "ksh"),
    ("compare photos --methods itq --features lenet", 2, "lenet"),
    ("compare photos --methods itq --bits twelve", 2, "--bits"),
    ("reproduce table9", 2, "table9"),
    ("reproduce table1 --scale huge", 2, "huge"),
    ("evaluate nowhere", 3, "nowhere"),
    ("evaluate index", 3, "index"),
    # models
    ("encode photos --model photos --out new", 3, "photos is not a model"),
    ("encode photos --model damaged --out new", 3, "damaged"),
    ("encode photos --model nowhere --out new", 3, "nowhere is not a model"),
    ("encode photos --model other --out codes", 4, "codes"),
    ("encode photos --model run --out photos", 2, "contains other files"),
    ("encode photos --model on-features --out new", 3, "trained on features"),
    ("encode photos --model run --out codes --shard-size 5", 4, "started with --shard-size 65536, not 5"),
    ("encode photos --model run --part 3/2 --out new", 2, "part"),
    ("encode photos --model run --on mars --out new", 2, "mars"),
    ("export photos --out new", 3, "photos is not a model"),
    ("export run --out photos", 2, "photos"),
    # indexes and queries
    ("index build photos --out new", 3, "photos"),
    ("index build codes --out photos", 2, "contains other files (circle) and is not the folder of an index"),
    ("index add index nowhere", 3, "nowhere"),
    ("index remove index", 2, "--ids"),
    ("index remove index --ids two", 2, "--ids"),
    ("index verify torn", 3, "torn"),
    ("index verify codes", 3, "codes has codes but no index; build one with: hashlens index build codes"),
    ("index plan --n lots", 2, "lots"),
    ("index plan --n 1.5", 2, "--n must be a whole number such as 1000000 or 1e9, got 1.5"),
    ("index plan --n inf", 2, "--n must be a whole number"),
    ("index plan --n 1e30", 2, "n must be <= 1e+12, got 1e+30"),
    ("index copy index --engine oracle --to x", 2, "oracle"),
    (
        "index copy index --engine faiss --to new --set probe=3",
        2,
        "faiss has no setting 'probe' (did you mean 'n_probe'",
    ),
    ("index copy index --engine faiss --to photos", 2, "is not the folder of a faiss index; choose another --to"),
    ("search query.jpg photos", 2, "run: hashlens search photos query.jpg"),
    ("search index nowhere.jpg", 3, "nowhere.jpg"),
    ("search index broken.jpg", 3, "broken.jpg"),
    ("search index abc", 2, "hex digits"),
    ("search empty flat/00.png", 3, "no images in empty or its folders (it is empty"),
    ("search note.txt flat/00.png", 3, "no path in note.txt can be read"),
    ("search broken.jpg flat/00.png", 3, "no image of"),
    ("search - flat/00.png", 2, "standard input"),
    ("search flat flat/00.png --index photos", 2, "contains other files"),
    ("search flat flat/00.png --index index", 4, "choose another --index"),
    ("search flat flat/00.png --model nowhere", 3, "or general"),
    ("search flat flat/00.png --model on-features", 3, "trained on features"),
    ("search index flat/00.png --index other", 2, "omit --index"),
    ("search nowhere flat/00.png", 3, "nowhere"),
    ("search index flat/00.png --model other", 4, "other"),
    ("search index flat/00.png -k 0", 2, "-k"),
    ("search index flat/00.png --at x", 2, "--engine"),
    ("search 00000 --engine pgvector --at postgresql://anne:secret@127.0.0.1:1/x", 6, "PostgreSQL does not answer"),
    ("search 00000 --engine milvus --at http://anne:secret@127.0.0.1:1", 6, "Milvus at http://127.0.0.1:1 failed"),
    ("index remove --ids 1 --engine pgvector --at anne:secret@127.0.0.1", 2, "that is no connection to PostgreSQL"),
    ("search index flat/00.png --html broken.jpg", 2, "broken.jpg"),
    ("serve nowhere", 3, "nowhere"),
    ("serve index --model other", 4, "other"),
    ("frobnicate", 2, "frobnicate"),
]


def snapshot(root):
    files = {path: path.stat().st_mtime_ns if path.is_file() else 0 for path in root.rglob("*")}
    return {path.relative_to(root).as_posix(): time for path, time in files.items()}


@pytest.mark.parametrize(("typed", "code", "words"), WRONG, ids=[row[0] for row in WRONG])
def test_one_sentence_and_nothing_written(place, monkeypatch, capsys, typed, code, words):
    monkeypatch.chdir(place)
    monkeypatch.setenv("HASHLENS_OFFLINE", "1")
    before = snapshot(place)
    capsys.readouterr()
    got = run(*typed.split())
    out, err = capsys.readouterr()
    sentence = err.strip().splitlines()[-1]
    assert (got, out) == (code, ""), err
    assert sentence.startswith("error: ") and words in sentence
    assert "Traceback" not in err and err.count("error: ") == 1 and "secret" not in err
    assert snapshot(place) == before
