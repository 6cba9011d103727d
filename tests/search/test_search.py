"""Search: the same codes as encoding makes, every kind of query, ties, radii, labels, models, text and page."""

import io
import json
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import typer
from made_index import N_BITS, make_index
from PIL import Image

from hashlens import DTSH, Codes, Training
from hashlens.checksums import write_sealed
from hashlens.cli import app
from hashlens.codes.encoder import Encoder
from hashlens.codes.model import ModelFolder
from hashlens.data.thumbnails import thumbnail
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.index import memory
from hashlens.index.folder import IndexFolder
from hashlens.search import EmptyIndex, NoSuchImage, Searcher, UnreadableImage, open_searcher
from hashlens.search.answers import describe_answer, write_page
from hashlens.search.queries import parse_code, queries


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_index(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def searcher(made):
    return open_searcher(made.index, made.model)


def slowly(index, code):
    """Distances to all images that are there, by bits, and their ids."""
    own = np.unpackbits(code.packed[0])[: index.n_bits]
    (codes, ids), *more = index.batches(10**6)
    for others, their_ids in more:
        codes, ids = Codes.concatenate([codes, others]), np.append(ids, their_ids)
    return (np.unpackbits(codes.packed, axis=1)[:, : index.n_bits] != own).sum(axis=1), ids


def test_every_image_of_the_index_finds_itself(made, searcher):
    """Read from a file, from bytes or given as a image by id: the code is that of the index."""
    for id_ in (0, 25, 59):
        item = searcher.item(id_)
        path, expected = Path(item["path"]), item["code"]
        for query in (path, path.read_bytes(), str(path), id_, expected, parse_code(expected, N_BITS)):
            answer = searcher.search(query, k=60)
            assert answer["query"]["code"] == expected
            assert next(hit["distance"] for hit in answer["hits"] if hit["id"] == id_) == 0
    with Image.open(path) as image:
        image.load()
    for query in (image, np.asarray(image)):
        assert searcher.search(query)["query"] == {
            "code": searcher.search(path)["query"]["code"],
            "width": 96,
            "height": 72,
        }
    with pytest.raises(DataError, match=r"an image must have the shape \(h, w, 3\)"):
        searcher.search(np.zeros((2, 96, 72, 3), np.uint8))
    assert searcher.search(path)["query"] == {"code": expected, "path": path.as_posix(), "width": 96, "height": 72}
    assert searcher.search(59)["query"]["labels"] == ["digit"]


def test_answers_are_those_of_a_slow_search(searcher, rng):
    for _ in range(10):
        code = Codes.from_relaxed(rng.normal(size=(1, N_BITS)))
        distances, ids = slowly(searcher.index, code)
        order = np.lexsort((ids, distances))
        assert searcher.search(code, k=13)["histogram"] is None
        answer = searcher.search(code, k=13, histogram=True)
        assert [(hit["distance"], hit["id"]) for hit in answer["hits"]] == [(distances[i], ids[i]) for i in order[:13]]
        assert answer["histogram"] == np.bincount(distances, minlength=N_BITS + 1).tolist()
        last = distances[order[12]]
        shown = sum(hit["distance"] == last for hit in answer["hits"])
        assert answer["ties"] == {"distance": last, "shown": shown, "total": (distances == last).sum()}
        radius = int(np.sort(distances)[20])
        within = searcher.search(code, radius=radius)["hits"]
        assert [hit["id"] for hit in within] == [ids[i] for i in order if distances[i] <= radius] and len(within) > 20
        assert searcher.search(code, k=5, radius=radius)["hits"] == within[:5]
    assert len(searcher.search(code)["hits"]) == 10  # where nothing is asked for
    assert len(searcher.search(code, k=1_000)["hits"]) == 60
    json.dumps(answer)  # plain data


def test_small_radii_are_answered_from_tables(made, searcher, tmp_path, monkeypatch):
    """With and without k, the same answer."""
    folder = IndexFolder.open(shutil.copytree(made.index, tmp_path / "index"))
    folder.set_radius_tables(True)
    monkeypatch.setattr(memory, "is_cheaper", lambda n, n_bytes, radius: radius < 4)
    looked_up = Searcher(folder)
    for how in ({"radius": 3}, {"radius": 3, "k": 5}):
        assert looked_up.index.looks_up(how["radius"])
        answer, plain = (one.search(7, **how, histogram=True) | {"timing_ms": 0} for one in (looked_up, searcher))
        assert answer == plain and answer["histogram"]
    for how in ({"radius": 4}, {"k": 5}, {"radius": 3, "label": "flower"}):
        assert looked_up.search(7, **how) | {"timing_ms": 0} == searcher.search(7, **how) | {"timing_ms": 0}


def test_only_images_with_a_label(searcher):
    answer = searcher.search(0, k=100, label="flower", histogram=True)
    assert len(answer["hits"]) == sum(answer["histogram"]) == 20
    assert {hit["labels"][0] for hit in answer["hits"]} == {"flower"}
    assert len(searcher.search(0, radius=N_BITS, label="flower")["hits"]) == 20
    none = searcher.search(0, label="nothing of the kind", histogram=True)
    assert none["hits"] == [] and none["ties"] is None and "no image has that label" in describe_answer("0", none)
    with pytest.raises(UsageError, match="the label is not valid text"):
        searcher.search(0, label="\ud800")
    assert set(searcher.index.labels()) == {"palace", "flower", "digit"} and len(searcher.index.labels(2)) == 2
    assert len(searcher.index.examples()) == 6


def test_removed_images_are_not_found(made, tmp_path, rng):
    index = IndexFolder.create(tmp_path / "index", 12, {"fingerprint": "ab" * 32, "name": "none"})
    empty = Searcher(index)
    with pytest.raises(EmptyIndex, match="no images; add some"):
        empty.search("abc0")
    empty.warm_up()
    assert index.labels() == index.examples() == index.roots == []
    index.add(Codes.from_relaxed(rng.normal(size=(9, 12))), pa.table({"path": [f"{i}.jpg" for i in range(9)]}))
    index.remove([4])
    searcher = Searcher(IndexFolder.open(tmp_path / "index"))
    searcher.warm_up()
    answer = searcher.search(3, k=20, histogram=True)
    assert {hit["id"] for hit in answer["hits"]} == {0, 1, 2, 3, 5, 6, 7, 8} and sum(answer["histogram"]) == 8
    assert 4 not in searcher.index.examples() and searcher.index.labels() == []
    assert "label" not in describe_answer("3", answer)
    for id_ in (4, 9, -1, 10**12, 10**30):
        with pytest.raises(NoSuchImage, match=f"no image {id_}; it was removed, or never added"):
            searcher.search(id_)
    with pytest.raises(UsageError, match="no model for images is loaded"):
        searcher.search(b"image")


def test_codes_in_hex(searcher):
    assert parse_code("9F3C 21a0 77e4", 48).packed.tolist() == [[159, 60, 33, 160, 119, 228]]
    for text, why in (
        ("abc", "6 hex digits"),
        ("abcd", "6 hex digits are needed, got 4"),
        ("zz", "6 hex"),
        ("abcdef", "must be 0"),
    ):
        with pytest.raises(UsageError, match=why):
            parse_code(text, N_BITS)
    for typed in ("ab cd e0", "ABC DE0", " abcde0"):
        assert searcher.search(typed)["query"]["code"] == "abcde0" and list(queries(typed)) == [(typed, typed)]
    with pytest.raises(UsageError, match="6 hex digits are needed"):
        searcher.search("abcd")
    for wrong in (parse_code("abcd", 16), Codes(np.zeros((2, 3), np.uint8), N_BITS)):
        with pytest.raises(MismatchError, match="contains codes of 20 bits; search for one such code at a time"):
            searcher.search(wrong)
    for wrong in (True, 1.5, None, [1]):
        with pytest.raises(UsageError, match="pass an image, an id or a code"):
            searcher.search(wrong)


@pytest.mark.parametrize("how", [{"k": 0}, {"k": -5}, {"k": 1.5}, {"k": "ten"}, {"radius": -1}, {"radius": 0.5}])
def test_wrong_numbers(searcher, how):
    with pytest.raises(UsageError, match="must be"):
        searcher.search(0, **how)


def test_no_file_cannot_be_repaired(searcher, tmp_path):
    for path, why in ((tmp_path / "none.jpg", "no such file"), (tmp_path, "a folder")):
        with pytest.raises(UnreadableImage, match=f"{why}; check the path"):
            searcher.search(path)


def test_unreadable_images(made, searcher, tmp_path):
    whole = (made.images / "palace" / "000.jpg").read_bytes()
    (tmp_path / "text.jpg").write_text("not an image")
    for query, why in (
        (tmp_path / "text.jpg", r"cannot read the image .*text.jpg: not a JPEG, PNG, .* file; repair or remove it"),
        (tmp_path / "nowhere.jpg", r"nowhere.jpg: no such file"),
        (tmp_path, "image"),
        (b"", "zero bytes"),
        (b"text", "cannot read the image given: not a JPEG"),
        (whole[: len(whole) // 2], "truncated"),
    ):
        with pytest.raises(UnreadableImage, match=why) as caught:
            searcher.search(query)
        assert "\n" not in caught.value.message
    small = open_searcher(made.index, made.exported, max_pixels=96 * 72 - 1)
    with pytest.raises(UnreadableImage, match=r"0\.007 megapixels, limit 0\.007"):
        small.search(whole)


def test_the_model_must_be_that_of_the_index(made, tmp_path, monkeypatch):
    exported = open_searcher(made.index, made.exported)
    answers = [
        s.search(made.images / "digit" / "003.jpg")["query"]["code"]
        for s in (exported, open_searcher(made.index, made.model))
    ]
    assert answers[0] == answers[1]
    with pytest.raises(
        UsageError, match=r"was made with the model made .{8}…, which was not found; pass its folder with --model"
    ):
        open_searcher(shutil.copytree(made.index, tmp_path / "far" / "index"))  # no models near it
    monkeypatch.chdir(made.model.parents[2])
    known = IndexFolder.open(made.index).model
    assert ModelFolder.find(known, made.index).path == Path("runs/made/model")
    assert open_searcher(made.index).takes_images
    renamed = tmp_path / "renamed"
    shutil.copytree(made.model, renamed / "model")
    shadow = shutil.copytree(made.model, tmp_path / "here" / "made")
    (shadow / "config.json").write_text('{"another": "model"}')
    monkeypatch.chdir(shadow.parent)
    for near in (renamed, renamed / "index", renamed / "codes" / "database"):
        assert ModelFolder.find(known, near).path == renamed / "model"
    assert ModelFolder.find(known, made.index).path == made.model
    other = tmp_path / "other"
    other.mkdir()
    for file in made.exported.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    facts = json.loads((other / "config.json").read_text())
    del facts["checksum"]
    write_sealed(other / "config.json", facts | {"model": {"fingerprint": "cd" * 32, "name": "x"}})
    with pytest.raises(MismatchError, match="you gave x cdcdcdcd"):
        open_searcher(made.index, other)
    (other / "config.json").write_text("{")
    with pytest.raises(DataError, match="damaged"):
        open_searcher(made.index, other)
    longer = type("Longer", (), {"n_bits": 64})()
    with pytest.raises(MismatchError, match="has codes of 20 bits, this model makes 64"):
        Searcher(IndexFolder.open(made.index), longer)


def test_a_method_on_features_and_one_with_its_own_way(made, tmp_path):
    """ITQ on GIST has no network: it goes its own way, and gives the codes that encode makes."""
    from hashlens.data.images import as_images
    from hashlens.hashers.shallow.itq import ITQ

    paths = sorted(made.images.rglob("*.jpg"))
    hasher = ITQ(8, features="gist").fit(as_images(paths))
    codes = hasher.encode(as_images(paths))
    index = IndexFolder.create(tmp_path / "index", 8, {"fingerprint": "ab" * 32, "name": "none"})
    index.add(codes, pa.table({"path": [str(path) for path in paths]}))
    assert Searcher(index, Encoder.of(hasher)).search(paths[7])["query"]["code"] == codes[7].packed.tobytes().hex()


def test_a_trained_model_as_it_is(made, tmp_path):
    """The network is prepared once, and its codes are still those that the model itself makes, mirrored or not."""
    paths = sorted(map(str, made.images.rglob("*.jpg")))
    training = Training(epochs=1, batch_size=30)
    hasher = DTSH(64, backbone="small-cnn", image_size=24, sampling="in-batch", training=training)
    hasher.fit(paths, np.arange(60) // 20)
    plain = hasher.encode(paths)
    hasher.training = replace(hasher.training, mirror=True)
    mirrored = hasher.encode(paths)
    rows = np.flatnonzero((plain.packed != mirrored.packed).any(axis=1))[:3]
    assert len(rows)
    index = IndexFolder.create(tmp_path / "index", 64, {"fingerprint": "ab" * 32, "name": "none"})
    index.add(mirrored, pa.table({"path": paths}))
    for codes, mirror in ((plain, False), (mirrored, True)):
        hasher.training = replace(hasher.training, mirror=mirror)
        searcher = Searcher(index, Encoder.of(hasher))
        found = [searcher.search(Path(paths[row]))["query"]["code"] for row in rows]
        assert found == [codes[row].packed.tobytes().hex() for row in rows.tolist()]


def test_many_hits_without_labels_are_listed_at_once(searcher):
    answer = searcher.search(0, k=1)
    hit = answer["hits"][0] | {"labels": None}
    start = time.process_time()
    header, *rows = describe_answer("x", answer | {"hits": [hit] * 20_000}).splitlines()[1:]
    assert time.process_time() - start < 2
    assert header.split() == ["rank", "bits", "apart", "path"] and len(rows) == 20_000


def test_text(searcher):
    answer = searcher.search(0, k=3, histogram=True)
    text = describe_answer("palace.jpg", answer)
    first, header, *rows = text.splitlines()
    assert first.startswith("palace.jpg · 20 bits ") and first.endswith(" · 60 images, exact")
    assert header.split() == ["rank", "bits", "apart", "label", "path"] and len(rows) == 3
    assert rows[0].split()[:3] == ["1", "0", rows[0].split()[2]]
    ties = answer["ties"]
    more = (
        f"{ties['total'] - ties['shown']} more at distance {ties['distance']} (show them: --radius {ties['distance']})"
    )
    assert (more in rows[-1]) == (ties["total"] > ties["shown"])
    code = Codes.from_signs(-parse_code(searcher.item(0)["code"], N_BITS).signs())
    nearest = next(d for d, n in enumerate(searcher.search(code, histogram=True)["histogram"]) if n)
    if nearest:
        assert f"the nearest is {nearest} bits away" in describe_answer(
            "x", searcher.search(code, radius=nearest - 1, histogram=True)
        )


def test_queries_of_the_command_line(made, tmp_path, monkeypatch):
    """A code, an image or paths on standard input, and every kind of source; as stored, so that the codes are those
    that encoding the same source gives."""
    assert list(queries("abcdef")) == [("abcdef", "abcdef")]
    flowers = sorted((made.images / "flower").glob("*.jpg"))
    wanted = [(path.as_posix(), path) for path in flowers]
    assert list(queries(str(made.images / "flower"))) == list(queries(str(made.images / "flower" / "*.jpg"))) == wanted
    assert list(queries(str(flowers[3]))) == wanted[3:4]
    for content, expected in (
        (flowers[0].read_bytes(), [("standard input", flowers[0].read_bytes())]),
        ("\n".join(map(str, flowers[:2])).encode(), wanted[:2]),
    ):
        monkeypatch.setattr(sys, "stdin", type("In", (), {"buffer": io.BytesIO(content)}))
        assert list(queries("-")) == expected
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        archive.add(flowers[5], "x/5.jpg")
    assert list(queries(str(tmp_path / "s.tar"))) == [(f"{tmp_path}/s.tar::x/5.jpg", flowers[5].read_bytes())]
    name, image = next(queries("digits"))
    assert name.startswith("digits/") and image.size == (8, 8)
    with pytest.raises(DataError, match=r"^image nowhere.jpg not found; check the path$"):
        list(queries("nowhere.jpg"))


def test_the_page_is_one_file(made, searcher, tmp_path):
    hostile = "<script>alert(1)</script>"
    query = made.images / "palace" / "000.jpg"
    answers = [
        (hostile, query, searcher.search(query)),
        ("abcde0", "abcde0", searcher.search("abcde0", radius=0, histogram=True)),
    ]
    answers[0][2]["hits"][1]["path"] = "gone.jpg"
    assert write_page(tmp_path / "out.html", answers, searcher.index) == 1
    text = (tmp_path / "out.html").read_text()
    assert text.count("data:image/jpeg") == 1 + 9 and "file moved" in text and "20 bits" in text
    assert "<script" not in text and "&lt;script&gt;" in text and "http" not in text.replace("http-equiv", "")
    assert "bits away" in text


def test_thumbnails_stay_inside_the_recorded_folders(made, tmp_path, rng):
    secret = tmp_path / "secret.png"
    Image.new("RGB", (50, 30), "red").save(secret)
    photos = tmp_path / "photos"
    for name in ("a", "b"):
        (photos / name).mkdir(parents=True)
        Image.new("RGB", (500, 300), "blue").save(photos / name / "1.png")
    (photos / "a" / "link.png").symlink_to(secret)
    index = IndexFolder.create(tmp_path / "index", 12, {"fingerprint": "ab" * 32, "name": "none"})
    paths = [str(photos / name) for name in ("a/1.png", "b/1.png", "a/link.png", "a/../b/1.png", "a/../../secret.png")]
    index.add(Codes.from_relaxed(rng.normal(size=(5, 12))), pa.table({"path": paths}))
    assert index.roots == [f"{photos}/"]
    assert thumbnail(index, paths[0], 100).size == (100, 60)
    assert thumbnail(index, paths[3], 100) is not None
    for outside in (paths[2], paths[4], str(secret), "/etc/passwd", str(photos), "", "a\0b"):
        assert thumbnail(index, outside, 100) is None
    moved = photos.rename(tmp_path / "moved")
    assert thumbnail(index, paths[0], 100) is None
    assert thumbnail(index, paths[0], 100, moved).size == (100, 60)
    assert thumbnail(index, paths[3], 100, moved) is not None
    for outside in (paths[2], paths[4], str(secret), "/etc/passwd"):
        assert thumbnail(index, outside, 100, moved) is None


def test_thumbnails_from_tar_files(tmp_path, rng):
    file = io.BytesIO()
    Image.new("RGB", (80, 40), "green").save(file, "PNG")
    with tarfile.open(tmp_path / "s.tar", "w") as archive:
        for name in ("x/1.png", "x/2.png"):
            member = tarfile.TarInfo(name)
            member.size = len(file.getvalue())
            archive.addfile(member, io.BytesIO(file.getvalue()))
    index = IndexFolder.create(tmp_path / "index", 12, {"fingerprint": "ab" * 32, "name": "none"})
    paths = [f"{tmp_path}/s.tar::x/{i}.png" for i in (1, 2)]
    index.add(Codes.from_relaxed(rng.normal(size=(2, 12))), pa.table({"path": paths}))
    assert index.roots == [f"{tmp_path}/"]
    assert thumbnail(index, paths[1], 20).size == (20, 10)
    assert thumbnail(index, f"{tmp_path}/s.tar::x/3.png", 20) is None


def test_without_torch(made):
    """A fresh process in which torch cannot be imported searches with the exported model."""
    code = f"""
import sys
sys.modules["torch"] = None
from pathlib import Path
from hashlens.search import open_searcher
import hashlens.server.serving
searcher = open_searcher({str(made.index)!r}, {str(made.exported)!r})
answer = searcher.search(Path({str(made.images / "palace" / "000.jpg")!r}))
print(answer["hits"][0]["distance"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_the_first_answer_waits_for_no_import_that_it_does_not_need(made):
    """Each of these takes a tenth of a second or more."""
    query = made.images / "palace" / "000.jpg"
    code = f"""
import sys
from hashlens.cli import app
app(["search", {str(made.index)!r}, {str(query)!r}, "--model", {str(made.exported)!r}], standalone_mode=False)
slow = ("torch", "sklearn", "pandas", "pyarrow.parquet", "pyarrow.compute", "matplotlib", "fastapi")
print([name for name in slow if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_nearest_may_come_from_an_engine(made, searcher, tmp_path, capsys):
    """What it finds is what the folder finds; what was removed from the folder since is left out."""
    index, place = tmp_path / "index", f"{tmp_path / 'lists'}"
    shutil.copytree(made.index, index)
    app(["index", "copy", f"{index}", "--engine", "faiss", "--to", place, "--quiet"], standalone_mode=False)
    query = searcher.item(7)["path"]

    def search(*asked):
        capsys.readouterr()
        app(["search", f"{index}", query, "--model", f"{made.model}", "--json", *asked], standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    there = ["--engine", "faiss", "--at", place]
    answer, own = search("-k", "9", *there), searcher.search(Path(query), k=9)
    assert answer["hits"] == own["hits"] and answer["index"] == own["index"] | {"exact": False}
    assert answer["histogram"] is None and answer["ties"]["total"] is None, "it tells of what it finds only"
    nearest = [hit["id"] for hit in own["hits"]]
    IndexFolder.open(index).remove(nearest[:1])
    for asked in (["-k", "9"], ["--radius", f"{own['hits'][-1]['distance']}"]):
        assert [hit["id"] for hit in search(*asked, *there)["hits"]][:8] == nearest[1:]
    assert len(search("-k", "9", *there)["hits"]) == 9, "the next one takes its place"
    for wrong, sentence in ((there[2:], "choose one with --engine"), (there[:2], "the engine faiss needs a place")):
        with pytest.raises(UsageError, match=sentence):
            search(*wrong)


def test_changes_of_another_process_count_from_the_next_search_on(made, tmp_path):
    index = tmp_path / "index"
    shutil.copytree(made.index, index)
    searcher = open_searcher(index, made.model)
    held = searcher.now()
    before = searcher.search(3, k=60)
    other = IndexFolder.open(index)
    other.remove(np.arange(20))  # all palaces
    other.compact()
    with pytest.raises(NoSuchImage):
        searcher.search(3)
    assert [hit["id"] for hit in searcher.search(25, k=60)["hits"] if hit["id"] < 20] == []
    assert searcher.now().index.labels() == ["flower", "digit"] and len(searcher.now().index) == 40
    assert held._search(3, 60, None, None)["hits"] == before["hits"], "whoever holds an answer keeps its index"
    shutil.rmtree(index)
    IndexFolder.create(index, N_BITS, {"fingerprint": "ab" * 32, "name": "another"})
    for _ in range(2):
        assert len(searcher.search(25, k=60)["hits"]) == 40  # from the one before
        assert "was rebuilt with another model; restart with that model" in searcher.stale


def test_labels_of_removed_images_are_gone(made, tmp_path):
    index = tmp_path / "index"
    shutil.copytree(made.index, index)
    IndexFolder.open(index).remove(np.arange(20))
    assert open_searcher(index, made.model).index.labels() == ["flower", "digit"]


def test_queries_that_no_file_can_be(searcher, tmp_path):
    with pytest.raises(UsageError, match="hex digits are needed"):
        searcher.search("ab" * 300)  # longer than any name of a file
    assert [name for name, _ in queries("ab" * 300)] == ["ab" * 300]
    assert len(searcher.search(0, radius=10**30)["hits"]) == 60


def test_an_engine_without_codes_is_refused(made, tmp_path):
    with pytest.raises(UsageError, match=r"has no codes there; copy them with: hashlens index copy .*typo"):
        app(
            ["search", f"{made.index}", "00000", "--engine", "faiss", "--at", f"{tmp_path / 'typo'}"],
            standalone_mode=False,
        )
    assert not (tmp_path / "typo").exists()


def test_an_interrupted_copy_keeps_what_it_sent(made, tmp_path, monkeypatch):
    from hashlens.index import engines

    monkeypatch.setattr(engines, "BATCH", 10)
    folder, place = IndexFolder.open(made.index), f"{tmp_path / 'lists'}"
    engine = engines.open_engine("faiss", N_BITS, place)
    add, calls = engine.add, []

    def interrupted(codes, ids):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return add(codes, ids=ids)

    monkeypatch.setattr(engine, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engines.copy_index(folder, engine)
    assert engines.copy_index(folder, engines.open_engine("faiss", N_BITS, place)) == {
        "added": 30,
        "known": 30,
        "n": 60,
    }


def test_a_folder_without_a_readable_image(made, tmp_path):
    (tmp_path / "a.jpg").write_text("no")
    with pytest.raises(UnreadableImage, match=r"a.jpg: not a JPEG"):
        app(["search", f"{made.index}", f"{tmp_path}", "--model", f"{made.model}"], standalone_mode=False)


def test_a_page_replaces_only_a_page(made, searcher, tmp_path, capsys):
    query = tmp_path / "query.jpg"
    shutil.copy(made.images / "palace" / "000.jpg", query)
    before = query.read_bytes()
    command = ["search", f"{made.index}", f"{query}", "--model", f"{made.model}", "--html"]
    with pytest.raises(UsageError, match=r"query\.jpg exists and is not a page"):
        app([*command, f"{query}"], standalone_mode=False)
    assert query.read_bytes() == before
    for _ in range(2):
        app([*command, f"{tmp_path / 'page.html'}"], standalone_mode=False)
    assert "data:image" in (tmp_path / "page.html").read_text()
    with pytest.raises(typer.BadParameter, match="nope"):
        app([*command, f"{tmp_path / 'page.html'}", "--images", "nope"], standalone_mode=False)


def test_names_do_not_steer_the_terminal(searcher):
    answer = searcher.search(3)
    answer["hits"][0] |= {"path": "a\x1b[2J.jpg", "labels": ["x\ny"]}
    text = describe_answer("q\x07.jpg", answer)
    assert "\x1b" not in text and "\x07" not in text and "a\\x1b[2J.jpg" in text and "x\\ny" in text


def test_searches_do_not_wait_while_this_process_changes_the_index(made, tmp_path):
    """They are answered from the index before, which the change has not replaced yet."""
    shutil.copytree(made.index, tmp_path / "index")
    searcher = open_searcher(tmp_path / "index", made.model)
    with searcher.loading:  # as a writer does it
        searcher.changing = True
        IndexFolder.open(tmp_path / "index").remove([3])
        assert searcher.index.changed() and searcher.search(3)["query"]["id"] == 3
        searcher.changing = False  # as another thread that opens the index anew
        assert searcher.index.changed() and searcher.search(3)["query"]["id"] == 3
    with pytest.raises(NoSuchImage):
        searcher.search(3)
