"""Clicks: kept as triplets, learned from, checked, undone; with the general model on real photographs."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_photos import make_photos

import hashlens
from hashlens.clicks.file import CLICKS, append_clicks, read_clicks, triplets_of
from hashlens.clicks.learning import gaps, held_back, is_better, learn
from hashlens.codes.encoder import Encoder
from hashlens.codes.model import REFINED, ModelFolder
from hashlens.data.images import FileImages
from hashlens.data.triplets import read_triplets
from hashlens.errors import DataError, StorageError, UsageError
from hashlens.files import write_text
from hashlens.index.folder import IndexFolder

# --- the file --------------------------------------------------------------------------------------------------------


def test_marks_are_triplets(tmp_path):
    found = triplets_of("q", ["a", "b"], ["x"])
    assert found == [("q", "a", "x"), ("q", "b", "x")]
    assert read_clicks(tmp_path) == []
    assert append_clicks(tmp_path, found) == 2
    assert append_clicks(tmp_path, [('with, comma and "quote"', "ü", " b")]) == 3
    assert read_clicks(tmp_path) == [*found, ('with, comma and "quote"', "ü", " b")]


def test_train_takes_the_same_file(tmp_path):
    append_clicks(tmp_path, [("c.jpg", "a, b.jpg", "x.jpg")])
    rows = read_triplets(tmp_path / CLICKS, FileImages(tmp_path, ["a, b.jpg", "c.jpg", "x.jpg"]))
    assert rows.tolist() == [[1, 0, 2]]


@pytest.mark.parametrize(
    ("query", "more", "less", "words"),
    [
        ("q", [], ["a"], "mark at least one image as more like this"),
        ("q", ["a"], ["a"], "an image is marked twice"),
        ("q", ["q"], ["a"], "or is the query;"),
        ("q", ["a\nb"], ["c"], "line break"),
        ("q", list(map(str, range(101))), ["x"], "at most 100"),
    ],
)
def test_marks_that_say_nothing_are_refused(query, more, less, words):
    with pytest.raises(UsageError, match=words):
        triplets_of(query, more, less)


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path):
    append_clicks(tmp_path, [("q", "a", "b"), ("q", "c", "d")])
    content = (tmp_path / CLICKS).read_bytes()
    (tmp_path / CLICKS).write_bytes(content[:-2])
    assert read_clicks(tmp_path) == [("q", "a", "b")]
    assert append_clicks(tmp_path, [("r", "e", "f")]) == 2 or read_clicks(tmp_path)[-1] == ("r", "e", "f")
    assert read_clicks(tmp_path)[0] == ("q", "a", "b") and read_clicks(tmp_path)[-1] == ("r", "e", "f")
    (tmp_path / CLICKS).write_bytes(b'query,positive,negative\nq,a,b\nq,"with, com')  # within a quoted name
    assert append_clicks(tmp_path, [("r", "e", "f")]) == 2
    assert read_clicks(tmp_path) == [("q", "a", "b"), ("r", "e", "f")]
    (tmp_path / CLICKS).write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot read the clicks in"):
        read_clicks(tmp_path)


def test_a_line_without_end_is_named(tmp_path):
    (tmp_path / "clicks.csv").write_text("query,positive,negative\na,b,c\n" + "x" * 140_000 + "\n")
    with pytest.raises(DataError, match=r"line 3 of .*clicks.csv is malformed .*; remove that line"):
        read_clicks(tmp_path)


# --- learning --------------------------------------------------------------------------------------------------------


def classes(rng, n=240, n_bits=32, n_classes=6, noise=2.0):
    """Outputs whose first directions tell classes apart and whose others, louder, do not."""
    labels = rng.integers(0, n_classes, n)
    u = noise * rng.standard_normal((n, n_bits))
    u[:, :8] = rng.standard_normal((n_classes, 8))[labels] * 1.5 + 0.3 * rng.standard_normal((n, 8))
    rotation = np.linalg.qr(rng.standard_normal((n_bits, n_bits)))[0]
    return (u @ rotation).astype(np.float32), labels


def triplets(rng, labels, n):
    found = []
    for query in rng.permutation(len(labels))[:n]:
        same = np.flatnonzero((labels == labels[query]) & (np.arange(len(labels)) != query))
        found.append((query, rng.choice(same), rng.choice(np.flatnonzero(labels != labels[query]))))
    return np.array(found)


def test_what_is_learned_holds_for_other_queries(rng):
    u, labels = classes(rng)
    known, others = triplets(rng, labels, 120), triplets(np.random.default_rng(5), labels, 200)
    A = learn(u, known)
    assert gaps(u, others, A).mean() > gaps(u, others).mean() + 0.3
    before, after = held_back(u, known)
    assert np.array_equal(before, gaps(u, known)) and after.mean() > before.mean()


def test_the_likelihood_is_that_of_dtsh(rng):
    """At the result, torch's gradient of DTSH's loss on tanh(u) plus the weight of the change is nearly zero."""
    torch = pytest.importorskip("torch")
    from hashlens.clicks import learning

    u, labels = classes(rng, 80, 12)
    rows = triplets(rng, labels, learning.USUAL)
    scaled = torch.from_numpy(u.astype(np.float64) / np.abs(u).mean())
    A = torch.from_numpy(learn(u, rows)).requires_grad_()

    def loss(A):
        y = torch.tanh(scaled @ A)
        query, more, less = (y[role] for role in rows.T)
        gap = (query * (more - less)).sum(1) / 2 - learning.MARGIN * u.shape[1]
        C = scaled.T @ scaled / len(scaled)
        change = A - torch.eye(len(A))
        ridge = learning.RIDGE * torch.linalg.eigvalsh(C).mean() * torch.eye(len(A))
        return torch.nn.functional.softplus(-gap).mean() + learning.MU / 2 * (change * ((C + ridge) @ change)).sum()

    start = torch.eye(len(A), dtype=torch.float64).requires_grad_()
    loss(A).backward()
    loss(start).backward()
    assert loss(A) < loss(start) and A.grad.norm() < 0.05 * start.grad.norm()


def test_without_a_signal_hardly_anything_changes(rng):
    """One triplet leaves almost all bits of images far from it as they were."""
    u, labels = classes(rng, 400)
    A = learn(u, triplets(rng, labels, 1))
    assert ((u @ A > 0) != (u > 0)).mean() < 0.1


# --- refine ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Photos of two motifs, each in several crops, in one flat folder."""
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, photo in enumerate(make_photos(12)):
        for crop in range(4):
            box = (crop * 6, crop * 5, 120 + crop * 6, 90 + crop * 5)
            photo.crop(box).save(folder / f"{number:02d}-{crop}.jpg", quality=92)
    return folder


def motif(path):
    return path.rsplit("/", 1)[-1][:2]


def click(index, n, rng, upside_down=False):
    """Marks of one "more" and one "less" on the results of n queries."""
    paths = sorted(item["path"] for item in index.page(0, 1000))
    for query in rng.permutation(paths)[:n].tolist():
        same = [path for path in paths if motif(path) == motif(query) and path != query]
        other = [path for path in paths if motif(path) != motif(query)]
        more, less = str(rng.choice(same)), str(rng.choice(other))
        append_clicks(index.path, triplets_of(query, [less if upside_down else more], [more if upside_down else less]))


def codes_of(index):
    return {item["path"]: item["code"] for item in index.page(0, 1000)}


def test_refine_and_undo(photos, rng):
    searcher = hashlens.search_folder(photos)
    index, original = searcher.index, codes_of(searcher.index)
    few = hashlens.refine(photos)
    assert not few.changed and "there are no clicks yet" in few.sentence
    click(index, 4, rng)
    few = hashlens.refine(photos)
    assert not few.changed and "4 clicks on 4 queries are too few" in few.sentence
    assert codes_of(IndexFolder.open(index.path)) == original
    click(index, 30, rng)

    found = hashlens.refine(photos)
    assert found.changed and found.model == "general-refined-1" and found.bits_nearer > 0
    assert found.n_clicks <= 34 and found.n_images == 48 and "48 images have new codes" in found.sentence
    refined = IndexFolder.open(index.path)
    assert codes_of(refined) != original and refined.verify()
    # the refined model is an ordinary one: it makes the codes that were computed from kept outputs
    paths = sorted(original)
    encoder = Encoder.load(index.path / "general-refined-1")
    fresh = encoder.codes(FileImages("/", paths)).packed
    assert [code.tobytes().hex() for code in fresh] == [codes_of(refined)[path] for path in paths]
    # one that has the index open goes on with the new model, and so does whoever opens it again
    assert searcher.search(paths[0], k=1)["hits"][0]["distance"] == 0
    assert searcher.facts()["model"]["name"] == "general-refined-1"
    for model in (None, "general"):
        assert hashlens.search_folder(photos, model).search(paths[0], k=1)["hits"][0]["distance"] == 0

    # a new image is encoded with it
    (photos / "new.jpg").write_bytes((photos / "03-0.jpg").read_bytes())
    new = hashlens.search_folder(photos).search(str(photos / "03-0.jpg"), k=2)
    assert [hit["distance"] for hit in new["hits"]] == [0, 0]
    again = hashlens.refine(photos)
    assert again.n_images == 49 and again.model == ("general-refined-2" if again.changed else "general-refined-1")
    assert len(list(index.path.glob("*-refined-*"))) == 1

    undone = hashlens.refine(photos, undo=True)
    assert undone.changed and undone.model == "general" and not (index.path / REFINED).exists()
    before = codes_of(IndexFolder.open(index.path))
    assert {path: before[path] for path in original} == original
    assert before[str(photos / "new.jpg")] == original[str(photos / "03-0.jpg")]
    assert len(read_clicks(index.path)) == 34 and not list(index.path.glob("*-refined-*"))
    assert "nothing to undo" in hashlens.refine(photos, undo=True).sentence


def test_clicks_that_contradict_one_another_change_nothing(photos):
    index = hashlens.search_folder(photos).index
    before = codes_of(index)
    click(index, 12, np.random.default_rng(0))
    click(index, 12, np.random.default_rng(0), upside_down=True)
    found = hashlens.refine(photos)
    assert not found.changed and found.n_clicks == 0 and found.n_left_out == 24
    assert codes_of(IndexFolder.open(index.path)) == before and not (index.path / REFINED).exists()


def test_random_clicks_are_seen_through(rng):
    """Little can be learned from them, and held-back ones mostly say so; clicks with a meaning pass."""
    u, labels = classes(rng, n_bits=64, noise=1.2)
    passed = {"random": 0, "meant": 0}
    for seed in range(12):
        own = np.random.default_rng(seed)
        for name, given in (("random", labels[own.permutation(len(labels))]), ("meant", labels)):
            rows = triplets(own, given, 60)
            passed[name] += is_better(rows, *held_back(u, rows))
    assert passed["random"] <= 6 and passed["meant"] >= 10, passed


def test_what_is_not_better_is_not_taken(photos, rng, monkeypatch):
    index = hashlens.search_folder(photos).index
    before = codes_of(index)
    click(index, 25, rng)
    monkeypatch.setattr("hashlens.clicks.refine.is_better", lambda *given: False)
    found = hashlens.refine(photos)
    assert not found.changed and found.sentence.endswith("not clearly better, so nothing was changed")
    assert codes_of(IndexFolder.open(index.path)) == before and not (index.path / REFINED).exists()


def test_a_crash_before_the_index_is_replaced_leaves_it_as_it_was(photos, rng, monkeypatch):
    index = hashlens.search_folder(photos).index
    before = codes_of(index)
    click(index, 30, rng)

    def fail(*given):
        raise OSError("the plug was pulled")

    monkeypatch.setattr(IndexFolder, "recode", fail)
    with pytest.raises(OSError, match="plug"):
        hashlens.refine(photos)
    monkeypatch.undo()
    monkeypatch.setenv("HASHLENS_CACHE", str(photos.parent / "cache"))
    assert codes_of(hashlens.search_folder(photos).index) == before
    assert not list(index.path.glob("*-refined-*"))
    (index.path / "outputs.npy").write_bytes(b"damaged")  # made again
    assert hashlens.refine(photos).changed


def test_a_damaged_library_keeps_the_clicks(photos, rng):
    index = hashlens.search_folder(photos).index
    click(index, 5, rng)
    for name in ("index.json", "index.json.copy"):
        (index.path / name).write_bytes(b"{")
    assert len(hashlens.search_folder(photos).index) == 48
    assert len(read_clicks(index.path)) == 5


def test_on_the_command_line(photos, rng):
    index = hashlens.search_folder(photos).index
    click(index, 30, rng)

    def run(*given):
        command = [sys.executable, "-m", "hashlens", "refine", *map(str, given)]
        return subprocess.run(command, capture_output=True, text=True)

    done = run(photos, "--quiet")
    assert done.returncode == 0 and "held out in turn" in done.stdout and f"{photos} --undo" in done.stdout, done
    undone = run(photos, "--undo", "--json", "--quiet")
    assert json.loads(undone.stdout)["changed"] and undone.stderr == ""
    wrong = run(photos / "nowhere")
    assert wrong.returncode == 3 and wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1


def test_a_trained_model_learns_too(tmp_path, rng):
    """Both as it was trained and exported; one without a linear layer is refused."""
    from made_index import make_index

    from hashlens.codes.hash_layer import write_changed

    made = make_index(tmp_path)
    paths = sorted(path.as_posix() for path in made.images.rglob("*.jpg"))
    A = np.linalg.qr(rng.standard_normal((20, 20)))[0]
    for model in (made.model, made.exported):
        u = Encoder.load(model).relaxed(paths)
        changed = write_changed(ModelFolder.resolve(model), A, tmp_path / f"{model.parent.name}-changed")
        assert np.allclose(Encoder.load(changed.path).relaxed(paths), u.astype(float) @ A, atol=1e-4)
        assert changed.fingerprint != ModelFolder.resolve(model).fingerprint
    index = IndexFolder.open(made.index)
    for query in paths[2:32]:
        append_clicks(made.index, triplets_of(query, [paths[1]], [paths[59]]))
    found = hashlens.refine(made.index)
    assert found.n_clicks == 30 and found.index == str(made.index)
    if found.changed:
        assert hashlens.refine(made.index, undo=True).model == index.model["name"]
    kernel = hashlens.KSH(8, n_anchors=20, features="gist").fit(
        hashlens.open_source(made.images).images, [0, 1, 2] * 20
    )
    kernel.save(tmp_path / "ksh")
    with pytest.raises(UsageError, match="does not end in a linear layer"):
        write_changed(ModelFolder.resolve(tmp_path / "ksh"), np.eye(8), tmp_path / "never")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """An index of 60 images with codes of 20 bits, and clicks on it that any change passes."""
    from made_index import make_index

    made = make_index(tmp_path)
    paths = sorted(path.as_posix() for path in made.images.rglob("*.jpg"))
    for query in paths[2:32]:
        append_clicks(made.index, triplets_of(query, [paths[1]], [paths[59]]))
    monkeypatch.setattr("hashlens.clicks.refine.is_better", lambda *given: True)
    return made


def test_clicks_on_images_that_are_gone_are_left_out(small):
    index = IndexFolder.open(small.index)
    gone = {triplet[0] for triplet in read_clicks(small.index)[:3]}
    index.remove([item["id"] for item in index.page(0, 1000) if item["path"] in gone])
    found = hashlens.refine(small.index)
    assert found.n_images == 57 and found.n_clicks == 27 and found.n_left_out == 3


def test_a_full_disk_before_the_index_is_replaced_leaves_the_old_one(small, monkeypatch):
    name = IndexFolder.open(small.index).model["name"]

    def full(path, text):
        if path.name == "index.json":  # its copy has the new model by now
            raise OSError(errno.ENOSPC, "no space")
        write_text(path, text)

    with monkeypatch.context() as patch:
        patch.setattr("hashlens.checksums.write_text", full)
        with pytest.raises(StorageError, match="the disk is full"):
            hashlens.refine(small.index)
    assert IndexFolder.open(small.index).model["name"] == name
    assert hashlens.refine(small.index).model == f"{name}-refined-1"
    assert Encoder.load(small.index / f"{name}-refined-1").n_bits == 20
    assert hashlens.refine(small.index, undo=True).model == name


def test_an_index_without_images_is_undone_too(small):
    before = IndexFolder.open(small.index).model
    assert hashlens.refine(small.index).changed
    index = IndexFolder.open(small.index)
    index.remove([item["id"] for item in index.page(0, 1000)])
    assert hashlens.refine(small.index, undo=True).changed
    after = IndexFolder.open(small.index)
    assert len(after) == 0 and after.model == before and after.verify()


@pytest.mark.parametrize("compacted", [False, True])
def test_removed_images_stay_removed(small, compacted):
    """The codes of all images are replaced; nobody knows those of removed ones by the new model, but their paths."""
    from hashlens.data.sources import open_source

    index = IndexFolder.open(small.index)
    clicked = {name for triplet in read_clicks(small.index) for name in triplet}
    gone = [item for item in index.page(0, 100) if item["path"] not in clicked][:2]
    index.remove([item["id"] for item in gone])
    if compacted:
        index.compact()
    source = open_source(small.images, labels="optional")
    for undo in (False, True):
        assert hashlens.refine(small.index, undo=undo).changed
        index = IndexFolder.open(small.index)
        before = {item["path"] for item in index.page(0, 100)}
        assert len(before) == 58 and not before & {item["path"] for item in gone}
        encoder = Encoder.load(ModelFolder.find(index.model, index.path).path)
        assert len(index.add(encoder.codes(source.images), source.table, only_new=True)) == 0


def test_second_codes_stay(tmp_path, monkeypatch, empty_cache):
    """In the index of a folder, before and after it is refined, for images that come later too."""
    from made_index import make_images

    from hashlens.index.library import index_of

    paths = sorted(make_images(tmp_path / "images", 12))
    training = hashlens.Training(epochs=1, batch_size=18)
    hasher = hashlens.DTSH(
        12, second_bits=24, backbone="small-cnn", image_size=24, sampling="in-batch", training=training
    )
    hasher.fit(paths, np.arange(36) // 12).save(tmp_path / "model")
    monkeypatch.setattr("hashlens.clicks.refine.is_better", lambda *given: True)

    def seconds():
        index = index_of(tmp_path / "images", tmp_path / "model")
        return {item["path"]: item["second"] for item in index.page(0, 100)}

    before = seconds()
    index = index_of(tmp_path / "images", tmp_path / "model")
    for query in paths[2:32]:
        append_clicks(index.path, triplets_of(query, [paths[1]], [paths[35]]))
    assert len(before) == 36 and hashlens.refine(tmp_path / "images", tmp_path / "model").changed
    assert seconds() == before
    new = tmp_path / "images" / "new.jpg"
    new.write_bytes(Path(paths[3]).read_bytes())
    assert seconds() == before | {str(new): before[paths[3]]}
    answer = hashlens.search_folder(tmp_path / "images", tmp_path / "model").search(new, k=2)
    assert answer["by"] == "both" and {hit["distance"] for hit in answer["hits"]} == {0}
    assert hashlens.refine(tmp_path / "images", tmp_path / "model", undo=True).changed
    assert seconds() == before | {str(new): before[paths[3]]}
