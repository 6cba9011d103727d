"""A damaged index is repaired from its copies, its codes or its images, and answers as before."""

import json

import numpy as np
import pyarrow as pa
import pytest
from made_index import add_shard, make_index

from hashlens import Codes
from hashlens.checksums import write_sealed
from hashlens.codes.folder import CodesFolder
from hashlens.errors import DataError
from hashlens.files import sha256
from hashlens.index.folder import IndexFolder
from hashlens.index.repair import repair

MODEL = {"fingerprint": "ab" * 32, "name": "test"}


@pytest.fixture
def codes(tmp_path, rng):
    folder = CodesFolder.create(tmp_path / "codes", n_bits=48, model=MODEL, shard_size=100)
    for start in (0, 100):
        paths = [f"/photos/{i}.jpg" for i in range(start, start + 100)]
        labels = pa.array([["cat", "dog"][: i % 3] or None for i in range(100)], pa.list_(pa.string()))
        table = pa.table({"path": paths, "labels": labels})
        add_shard(folder, Codes.from_relaxed(rng.normal(size=(100, 48))), table)
    folder.finish()
    return folder


@pytest.fixture
def index(codes, tmp_path):
    index = IndexFolder.create(tmp_path / "index", 48, MODEL, radius_tables=True)
    for pair in codes:
        index.add(*pair)
    index.remove([3, 150])
    index.compact()
    index.remove([7])
    index.add(*next(iter(codes)))
    return index


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def everything(index):
    return {id_: item for id_, item in index.lookup(np.arange(1000)).items()}


@pytest.mark.parametrize(
    "name",
    [
        "index.json",
        "index.json.copy",
        "removed-00002.npy",
        "removed-00002.npy.copy",
        "forgotten-00001.npy",
        "part-00002.ids.npy",
        "part-00002.ids.npy.copy",
        "part-00002.blocks.npy",
        "part-00003.blocks.npy",
        "part-00003.items.arrow",
        "part-00003.items.sums",
        "part-00002.starts.npy",
        "part-00002.places.npy",
    ],
)
@pytest.mark.parametrize("harm", ["flip", "unlink"])
def test_every_file(index, codes, name, harm):
    before = everything(index)
    flip(index.path / name) if harm == "flip" else (index.path / name).unlink()
    found = repair(index.path, [codes.path])
    assert found["repaired"] == [name] and found["lost"] == 0
    again = IndexFolder.open(index.path)
    again.verify()
    assert everything(again) == before
    assert len(again.within(codes.shards[0].load()[0][:1], 0)[0][1]) == 2
    assert repair(index.path)["repaired"] == []


def test_codes_that_were_made_again_from_images(tmp_path):
    made = make_index(tmp_path)
    before = everything(IndexFolder.open(made.index))
    flip(made.index / "part-00001.blocks.npy")
    (made.images / "digit" / "003.jpg").unlink()
    found = repair(made.index)
    assert found["repaired"] == ["part-00001.blocks.npy"] and found["lost"] == 1
    after = everything(IndexFolder.open(made.index))
    assert after == {id_: item for id_, item in before.items() if "digit/003" not in item["path"]}


def test_what_cannot_be_repaired_is_one_sentence(index):
    flip(index.path / "part-00003.items.arrow")
    with pytest.raises(DataError, match=r"name the folder of its codes: hashlens index repair .* --codes CODES"):
        repair(index.path)
    for name in ("removed-00002.npy", "removed-00002.npy.copy"):
        flip(index.path / name)
    with pytest.raises(DataError, match="it is not known which images were removed"):
        repair(index.path)
    for name in ("index.json", "index.json.copy"):
        flip(index.path / name)
    with pytest.raises(DataError, match=r"so is its copy\); build the index again"):
        repair(index.path)


def as_version(index, version):
    """The files that a version before checksums of blocks wrote."""
    facts = json.loads((index.path / "index.json").read_text())
    del facts["checksum"]
    for part in facts["parts"]:
        files = part.pop("files")
        del part["batches"]
        kinds = [kind for kind in files if not kind.endswith((".sums", ".copy"))]
        if version == 3:
            own = next(
                own for own, one in zip(index.parts, index.facts["parts"], strict=True) if one["name"] == part["name"]
            )
            np.save(index.path / f"{part['name']}.pieces.npy", own.codes(np.arange(len(own))).view(np.uint16).T.copy())
            (index.path / f"{part['name']}.blocks.npy").unlink()
            kinds[kinds.index("blocks.npy")] = "pieces.npy"
        part["sha256"] = {kind: sha256(index.path / f"{part['name']}.{kind}") for kind in kinds}
    for kind in ("removed", "forgotten"):
        if one := facts[kind]:
            facts[kind] = {"name": one["name"], "n": one["n"], "sha256": sha256(index.path / one["name"])}
    for path in [*index.path.glob("*.sums"), *index.path.glob("*.copy")]:
        path.unlink()
    (index.path / "index.json").write_text(json.dumps(facts | {"format": f"hashlens index {version}"}))


@pytest.mark.parametrize(("version", "kind"), [(3, "pieces"), (4, "blocks")])
def test_an_older_index_is_verified_and_upgraded_once(index, version, kind):
    before = everything(index)
    as_version(index, version)
    flip(index.path / f"part-00002.{kind}.npy")
    with pytest.raises(DataError, match=rf"part-00002.{kind}.npy is damaged"):
        IndexFolder.open(index.path)
    flip(index.path / f"part-00002.{kind}.npy")
    assert everything(IndexFolder.open(index.path)) == before
    assert json.loads((index.path / "index.json").read_text())["format"] == "hashlens index 6"
    again = IndexFolder.open(index.path)
    again.verify()
    again.remove([20])
    again.compact()
    assert everything(again) == {id_: item for id_, item in before.items() if id_ != 20}
    assert not list(index.path.glob("*.pieces.npy"))


def test_an_older_index_in_a_folder_that_cannot_be_written_is_read(index, monkeypatch):
    before = everything(index)
    as_version(index, 4)
    content = (index.path / "index.json").read_bytes()
    monkeypatch.setattr("hashlens.index.folder.copy_file", lambda *given: (_ for _ in ()).throw(PermissionError))
    assert everything(IndexFolder.open(index.path)) == before
    assert (index.path / "index.json").read_bytes() == content


def test_an_index_of_a_later_version(index):
    write_sealed(index.path / "index.json", {"format": "hashlens index 99"})
    with pytest.raises(Exception, match="has the format 'hashlens index 99', this version reads 'hashlens index 6'"):
        IndexFolder.open(index.path)
