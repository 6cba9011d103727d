"""Encoding: any source, interruption or bad image, and always the same folder; row i of the codes is image i."""

import errno
import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import time
import zlib
from collections import Counter, namedtuple
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hashlens import files
from hashlens.codes import Codes
from hashlens.codes import encode as encoding
from hashlens.codes.encode import parse_part
from hashlens.codes.encoder import Encoder
from hashlens.codes.folder import CodesFolder, open_together, shards_in_order
from hashlens.data import Columns, open_source
from hashlens.data import images as images_module
from hashlens.errors import DataError, MismatchError, Stopped, StorageError, UsageError
from hashlens.hashers.shallow.itq import ITQ
from hashlens.hashers.shallow.lsh import LSH
from hashlens.progress import Progress

QUIET = Progress(quiet=True)


def encode_source(encoder, *arguments, model=None, **how):
    if model is not None:
        encoder = Encoder.load(model)
    elif not hasattr(encoder, "codes"):
        encoder = Encoder.of(encoder)
    return encoding.encode_source(encoder, *arguments, **how)


def colours(seed, size=(20, 16)):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8))


def make_photos(root, n=10, classes=("cats", "dogs")):
    """n images per class, PNG and JPEG in turn."""
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(n):
            colours(100 * number + i).save(root / name / f"{i:02d}.{('png', 'jpg')[i % 2]}")
    return root


@pytest.fixture(scope="module")
def hasher(tmp_path_factory, session_cache):
    """LSH on GIST: real features and no network to load."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASHLENS_CACHE", str(session_cache))
        return LSH(12, features="gist").fit([np.asarray(colours(1_000 + i)) for i in range(30)])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_photos(tmp_path_factory.mktemp("photos") / "photos")


class Said(Progress):
    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def read(path):
    codes, items = CodesFolder.open(path).concatenated()
    return codes, items["path"].to_pylist()


def contents(path, pattern="**/*"):
    return {file.name: file.read_bytes() for file in sorted(path.glob(pattern)) if file.is_file()}


def aligned(path, hasher):
    """Row i of the codes is the code of image i, encoded alone."""
    codes, paths = read(path)
    assert len(codes) == len(paths) > 0
    assert codes.equals(hasher.encode(paths))
    return paths


# Sources.


def test_a_folder_with_classes(hasher, photos, tmp_path):
    result = encode_source(hasher, str(photos), tmp_path / "codes", QUIET, shard_size=8)
    assert result == {"n": 20, "n_bits": 12, "n_skipped": 0, "out": str(tmp_path / "codes")}
    paths = aligned(tmp_path / "codes", hasher)
    assert paths == sorted(str(path) for path in photos.glob("*/*"))
    folder = CodesFolder.open(tmp_path / "codes")
    assert folder.done and not folder.damaged()
    assert [shard.n for shard in folder.shards] == [8, 8, 4]
    items = folder.concatenated()[1].to_pylist()
    assert {tuple(item["labels"]) for item in items} == {("cats",), ("dogs",)}
    for item in items:
        status = Path(item["path"]).stat()
        assert Path(item["path"]).parent.name == item["labels"][0]
        assert (item["size"], item["mtime"]) == (status.st_size, status.st_mtime_ns)


def test_a_folder_without_classes_and_one_with_both(hasher, tmp_path):
    loose = tmp_path / "loose"
    loose.mkdir()
    colours(1).save(loose / "b.png")
    colours(2).save(loose / "a.png")
    encode_source(hasher, str(loose), tmp_path / "codes", QUIET)
    assert aligned(tmp_path / "codes", hasher) == [str(loose / "a.png"), str(loose / "b.png")]
    assert "labels" not in CodesFolder.open(tmp_path / "codes").concatenated()[1].column_names
    (loose / "deep" / "er").mkdir(parents=True)
    colours(3).save(loose / "deep" / "er" / "c.png")
    encode_source(hasher, str(loose), tmp_path / "both", QUIET)
    items = CodesFolder.open(tmp_path / "both").concatenated()[1].to_pylist()
    assert [item["labels"] for item in items] == [[], [], ["deep"]]


def test_paths_are_absolute(hasher, photos, tmp_path, monkeypatch):
    for folder, source in ((photos.parent, "photos"), (photos, "."), (photos, "*/*.*")):
        monkeypatch.chdir(folder)
        encode_source(hasher, source, tmp_path / "codes", QUIET)
        assert aligned(tmp_path / "codes", hasher)[0] == str(photos / "cats/00.png")
        shutil.rmtree(tmp_path / "codes")


def list_of(photos, tmp_path, monkeypatch):
    text = "\n".join(str(path) for path in reversed(sorted(photos.glob("*/*.*")))) + "\n\n"
    (tmp_path / "list.txt").write_text(text)
    return str(tmp_path / "list.txt")


def windows_list_of(photos, tmp_path, monkeypatch):
    paths = sorted(photos.glob("*/*.*"))
    (tmp_path / "list.txt").write_bytes(
        b"\xef\xbb\xbf" + b"".join(f"{path}\r\n".encode() for path in [*paths, paths[0]])
    )
    return str(tmp_path / "list.txt")


def standard_input_of(photos, tmp_path, monkeypatch):
    text = "\n".join(str(path) for path in photos.glob("*/*.*"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return "-"


def paths_of(photos, tmp_path, monkeypatch):
    return [str(path) for path in photos.glob("*/*.*")]


def pattern_of(photos, tmp_path, monkeypatch):
    return f"{photos}/**/*.[pj]*"


def table_of(photos, tmp_path, monkeypatch):
    rows = "".join(f"{path}\n" for path in sorted(photos.glob("*/*.*")))
    (tmp_path / "table.csv").write_text("path\n" + rows)
    return str(tmp_path / "table.csv")


@pytest.mark.parametrize(
    "source", [list_of, windows_list_of, standard_input_of, paths_of, pattern_of, table_of], ids=lambda f: f.__name__
)
def test_other_ways_to_name_the_same_images(hasher, photos, tmp_path, monkeypatch, source):
    encode_source(hasher, str(photos), tmp_path / "folder", QUIET)
    encode_source(hasher, source(photos, tmp_path, monkeypatch), tmp_path / "other", QUIET)
    codes, paths = read(tmp_path / "folder")
    others, other_paths = read(tmp_path / "other")
    assert paths == other_paths and codes.equals(others)


def test_a_table_keeps_its_order_and_labels(hasher, photos, tmp_path):
    (photos / "table.csv").write_text(
        "file;tags\ndogs/03.jpg;beach|sunset\ncats/00.png;\ncats/02.PNG;beach\ncats/99.png;beach\n"
    )
    said = Said()
    result = encode_source(hasher, str(photos / "table.csv"), tmp_path / "codes", said, columns=Columns(labels="tags"))
    (photos / "table.csv").unlink()
    assert (result["n"], result["n_skipped"]) == (3, 1)
    items = CodesFolder.open(tmp_path / "codes").concatenated()[1].to_pylist()
    assert [Path(item["path"]).name for item in items] == ["03.jpg", "00.png", "02.png"]
    assert [item["labels"] for item in items] == [["beach", "sunset"], [], ["beach"]]
    aligned(tmp_path / "codes", hasher)
    assert CodesFolder.open(tmp_path / "codes").skipped() == [(str(photos / "cats/99.png"), "missing")]
    assert any("letter case" in line for line in said.lines)


class Rough:
    """An encoder that is no hasher: the mean of each row of a small image."""

    n_bits, second_bits = 8, 0
    model = {"fingerprint": "ab" * 32, "name": "rough"}  # noqa: RUF012

    def codes(self, images, advance=None):
        return Codes.from_relaxed(images.read(np.arange(len(images)), 8).mean((2, 3)) - 100)


def test_a_data_set_by_name(tmp_path):
    assert encode_source(Rough(), "digits", tmp_path / "codes", QUIET, shard_size=1_000)["n"] == 1_797
    codes, items = CodesFolder.open(tmp_path / "codes").concatenated()
    assert items.slice(1_000, 1).to_pylist() == [{"path": "digits/1000", "labels": ["1"], "size": None, "mtime": None}]
    assert codes.equals(Rough().codes(open_source("digits").images))


def test_one_image(hasher, photos, tmp_path):
    encode_source(hasher, str(photos / "cats" / "00.png"), tmp_path, QUIET)
    assert aligned(tmp_path, hasher) == [str(photos / "cats" / "00.png")]


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("nowhere", DataError, "nowhere not found; check the path"),
        ("nowhere/*.jpg", DataError, "no image matches nowhere/"),
        ("nowhere/{0..3}.tar", DataError, r"4 of 4 are missing, first nowhere/0.tar"),
        ("nowhere/*.tar", DataError, "nothing matches"),
        ("{3..1}.tar", UsageError, "smaller number first"),
        ("nowhere.txt", DataError, "nowhere.txt not found"),
        ("nowhere.csv", DataError, "nowhere.csv not found"),
        ([], DataError, "contains no paths"),
        (
            ["a.jpg", "b.jpg"],
            DataError,
            r"no path in the list can be read \(first of 2: a.jpg, no such file.*relative to the current folder",
        ),
        (["x\0y.jpg"], DataError, "no path in the list can be read"),
    ],
)
def test_unusable_sources_are_refused(hasher, tmp_path, monkeypatch, source, error, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        encode_source(hasher, source, tmp_path / "codes", QUIET)
    assert not (tmp_path / "codes").exists()


def test_columns_are_for_tables(hasher, photos, tmp_path):
    with pytest.raises(UsageError, match="columns is only for huggingface and table"):
        encode_source(hasher, str(photos), tmp_path / "codes", QUIET, columns=Columns(path="file"))
    assert encode_source(hasher, str(photos), tmp_path / "codes", QUIET, columns=Columns())["n"] == 20


def test_empty_lists(hasher, tmp_path, monkeypatch):
    (tmp_path / "list.txt").write_text("\n  \n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"list\.txt contains no paths; give one per line"):
        encode_source(hasher, str(tmp_path / "list.txt"), tmp_path / "codes", QUIET)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(DataError, match="standard input contains no paths"):
        encode_source(hasher, "-", tmp_path / "codes", QUIET)
    with pytest.raises(DataError, match="it is empty"):
        encode_source(hasher, str(tmp_path / "empty"), tmp_path / "codes", QUIET)


def test_a_list_with_missing_files(hasher, photos, tmp_path):
    good = [str(photos / "cats" / "00.png"), str(photos / "dogs" / "01.jpg")]
    result = encode_source(hasher, [*good, "nowhere.jpg", str(photos / "cats")], tmp_path, QUIET)
    assert (result["n"], result["n_skipped"]) == (2, 2)
    assert aligned(tmp_path, hasher) == good
    assert dict(CodesFolder.open(tmp_path).skipped()) == {
        str(photos / "cats"): "not a file",
        str(Path("nowhere.jpg").absolute()): "no such file",
    }


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_names_that_are_not_utf8(hasher, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in (b"caf\xe9.png", "café 日本\n.png".encode()):
        colours(1).save(os.fsdecode(bytes(photos) + b"/" + name))
    result = encode_source(hasher, str(photos), tmp_path / "codes", QUIET)
    assert (result["n"], result["n_skipped"]) == (1, 1)
    assert aligned(tmp_path / "codes", hasher) == [str(photos / "café 日本\n.png")]
    ((path, why),) = CodesFolder.open(tmp_path / "codes").skipped()
    assert path.endswith(r"caf\udce9.png") and why == "name is not UTF-8"


# Tar files.


def tar(path, members):
    """(name, bytes, or an image's seed) one after the other; returns where each begins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        starts = []
        for name, content in members:
            if isinstance(content, int):
                file = io.BytesIO()
                colours(content).save(file, "PNG")
                content = file.getvalue()
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1_700_000_000
            starts.append(archive.offset)
            archive.addfile(member, io.BytesIO(content))
    return starts


def test_tar_files_in_their_order(hasher, tmp_path):
    tar(tmp_path / "s" / "000.tar", [("z/b.png", 1), ("notes.txt", b"no image"), ("a.PNG", 2), ("b.cls", b"7")])
    tar(tmp_path / "s" / "001.tar", [("a.png", 3), ("a.png", 4)])
    expected = hasher.encode([np.asarray(colours(seed)) for seed in (1, 2, 3, 4)])
    for number, source in enumerate(["s/{000..001}.tar", "s/*.tar"]):
        encode_source(hasher, f"{tmp_path}/{source}", tmp_path / f"codes{number}", QUIET, shard_size=3)
        codes, items = CodesFolder.open(tmp_path / f"codes{number}").concatenated()
        assert codes.equals(expected)
        names = [path.removeprefix(f"{tmp_path}/s/") for path in items["path"].to_pylist()]
        assert names == ["000.tar::z/b.png", "000.tar::a.PNG", "001.tar::a.png", "001.tar::a.png"]
        assert items["size"].to_pylist()[0] > 100 and set(items["mtime"].to_pylist()) == {1_700_000_000 * 10**9}


def test_names_in_a_tar_file_are_only_names(hasher, tmp_path):
    target = tmp_path / "target.png"
    names = ["../target.png", str(target), "a/../../target.png", "c::d.tar::e.png", "link.png"]
    tar(tmp_path / "in" / "x.tar", [(name, seed) for seed, name in enumerate(names[:-1])])
    with tarfile.open(tmp_path / "in" / "x.tar", "a") as archive:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    before = sorted(tmp_path.rglob("*"))
    encode_source(hasher, f"{tmp_path}/in/x.tar", tmp_path / "codes", QUIET)
    codes, paths = read(tmp_path / "codes")
    assert [path.split("x.tar::", 1)[1] for path in paths] == names[:-1]
    assert codes.equals(hasher.encode([np.asarray(colours(seed)) for seed in range(4)]))
    assert [path for path in sorted(tmp_path.rglob("*")) if "codes" not in path.parts] == before


def test_broken_tar_files(hasher, tmp_path):
    members = [(f"{i}.png", i) for i in range(4)]
    good = tmp_path / "0.tar"
    second = io.BytesIO()
    colours(1).save(second, "PNG")
    second = second.getvalue() + bytes(600)  # with something behind it that nobody needs
    starts = tar(good, [members[0], ("1.png", second), ("text.jpg", b"not an image"), ("none.png", b""), members[3]])
    whole = good.read_bytes()
    harmed = bytearray(whole)
    harmed[starts[1] + 100 : starts[1] + 200] = b"\xff" * 100  # the second header
    (tmp_path / "1.tar").write_bytes(harmed)
    (tmp_path / "2.tar").write_bytes(whole[: starts[1] + 512 + len(second) - 9])  # ends within the second member
    (tmp_path / "3.tar").write_bytes(whole[: starts[1] + 100])  # ends within the second header
    (tmp_path / "4.tar").write_bytes(b"no tar file at all" * 100)
    (tmp_path / "5.tar").write_bytes(b"")
    result = encode_source(hasher, f"{tmp_path}/?.tar", tmp_path / "codes", QUIET)
    codes, paths = read(tmp_path / "codes")
    inside = [path.removeprefix(f"{tmp_path}/") for path in paths]
    assert inside == ["0.tar::0.png", "0.tar::1.png", "0.tar::3.png", "1.tar::0.png", "2.tar::0.png", "3.tar::0.png"]
    assert codes.equals(hasher.encode([np.asarray(colours(seed)) for seed in (0, 1, 3, 0, 0, 0)]))
    skipped = {path.removeprefix(f"{tmp_path}/"): why for path, why in CodesFolder.open(tmp_path / "codes").skipped()}
    assert skipped.pop("0.tar::text.jpg") == "not an image"
    assert skipped.pop("0.tar::none.png") == "zero bytes"
    assert skipped.pop("2.tar::1.png") == "truncated"
    assert sorted(skipped) == ["1.tar", "2.tar", "3.tar", "4.tar", "5.tar"]
    assert all(why.startswith("the rest of this tar file cannot be read") for why in skipped.values())
    assert result["n_skipped"] == 8
    with pytest.raises(DataError, match="no images in"):
        encode_source(hasher, f"{tmp_path}/4.tar", tmp_path / "none", QUIET)


# Bad images.


def make_every_kind(root):
    """Images of every kind that has made trouble somewhere: those that can be read, and why the others cannot."""
    root.mkdir()
    whole = io.BytesIO()
    colours(1, (64, 64)).save(whole, "JPEG")
    colours(2).save(root / "animated.gif", save_all=True, append_images=[colours(3), colours(4)])
    exif = Image.Exif()
    exif[0x0112] = 6
    colours(5).save(root / "turned.jpg", exif=exif)
    colours(6).save(root / "bad-exif.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff broken")
    colours(7).convert("CMYK").save(root / "cmyk.jpg")
    colours(8).convert("P").save(root / "palette.png", transparency=3)
    Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20) * 150).save(root / "deep.png")
    colours(9).convert("1").save(root / "bilevel.tif")
    colours(10).convert("RGBA").save(root / "alpha.webp")
    Image.new("RGB", (1, 1)).save(root / "pixel.bmp")
    good = sorted(path.name for path in root.iterdir())
    (root / "truncated.jpg").write_bytes(whole.getvalue()[:900])
    (root / "zero.jpg").write_bytes(b"")
    (root / "text.jpg").write_text("not an image")
    (root / "page.png").write_text("<html>404</html>")
    (root / "cut.png").write_bytes((root / "deep.png").read_bytes()[:60])
    bomb = bytearray((root / "deep.png").read_bytes())
    bomb[16:24] = struct.pack(">II", 20_000, 20_000)  # what its header claims
    bomb[29:33] = struct.pack(">I", zlib.crc32(bomb[12:29]))
    (root / "bomb.png").write_bytes(bomb)
    (root / "dangling.jpg").symlink_to(root / "nowhere.jpg")
    bad = {
        "truncated.jpg": "truncated",
        "zero.jpg": "zero bytes",
        "text.jpg": "not an image",
        "page.png": "not an image",
        "bomb.png": "400 megapixels, limit 89",
        "dangling.jpg": "gone",
    }
    return good, bad


@pytest.mark.parametrize("shard_size", [4, 100])
def test_every_kind_of_bad_image(hasher, tmp_path, shard_size):
    good, bad = make_every_kind(tmp_path / "photos")
    result = encode_source(hasher, str(tmp_path / "photos"), tmp_path / "codes", QUIET, shard_size=shard_size)
    assert [Path(path).name for path in aligned(tmp_path / "codes", hasher)] == good
    skipped = {Path(path).name: why for path, why in CodesFolder.open(tmp_path / "codes").skipped()}
    assert skipped.pop("cut.png")  # in Pillow's words
    assert skipped == bad
    assert result["n_skipped"] == len(bad) + 1


def test_nothing_can_be_read(hasher, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in "abc":
        (photos / f"{name}.jpg").write_text("no")
    for _ in range(2):
        with pytest.raises(DataError, match=r"no image of .*photos can be read \(3 tried, .*not an image"):
            encode_source(hasher, str(photos), tmp_path / "codes", QUIET, shard_size=2)
    assert (tmp_path / "codes" / "skipped.csv").read_text().count("no") >= 3
    colours(1).save(photos / "b.jpg")
    result = encode_source(hasher, str(photos), tmp_path / "codes", QUIET, shard_size=2)
    assert (result["n"], result["n_skipped"]) == (1, 2), "a repaired image is read by the same command"


class Wrapped:
    """An encoder that is no hasher, and does something before each shard."""

    def __init__(self, hasher, before):
        self.encoder, self.before = Encoder.of(hasher), before
        self.n_bits, self.second_bits, self.model = hasher.n_bits, 0, self.encoder.model

    def codes(self, images, advance=None):
        self.before(images)
        return self.encoder.codes(images, advance)


def test_images_that_vanish_or_break_meanwhile(hasher, tmp_path):
    photos = make_photos(tmp_path / "photos")

    def harm(images):
        if images.names[0].endswith("cats/08.png"):
            (photos / "cats" / "09.jpg").unlink()
            (photos / "dogs" / "01.jpg").write_bytes(b"overwritten")

    result = encode_source(Wrapped(hasher, harm), str(photos), tmp_path / "codes", QUIET, shard_size=8)
    assert (result["n"], result["n_skipped"]) == (18, 2)
    aligned(tmp_path / "codes", hasher)
    assert CodesFolder.open(tmp_path / "codes").skipped() == [
        (str(photos / "cats" / "09.jpg"), "gone"),
        (str(photos / "dogs" / "01.jpg"), "not an image"),
    ]


def test_each_image_is_decoded_once_and_nothing_is_kept_in_the_cache(hasher, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    decode, seen = images_module.decode, Counter()
    monkeypatch.setattr(images_module, "decode", lambda file, size: seen.update([str(file)]) or decode(file, size))
    sizes = []
    wrapped = Wrapped(hasher, lambda images: sizes.append(len(images)))
    encode_source(wrapped, str(photos), tmp_path / "codes", QUIET, shard_size=6)
    assert seen == dict.fromkeys((str(path) for path in photos.glob("*/*")), 1)
    assert sizes == [6, 6, 6, 2]  # never more than a shard at once
    assert not (tmp_path / "cache").exists()


def test_other_methods(photos, tmp_path, session_cache):
    from hashlens import DTSH, Training

    images = [np.asarray(colours(i, (16, 16))) for i in range(24)]
    deep = DTSH(8, backbone="small-cnn", training=Training(epochs=1, batch_size=8)).fit(images, np.arange(24) % 3)
    itq = ITQ(8, features="gist").fit(images)
    for hasher in (deep, itq):
        out = tmp_path / hasher.name
        encode_source(hasher, str(photos), out, QUIET, shard_size=9)
        aligned(out, hasher)
        assert CodesFolder.open(out).model["name"] == f"{hasher.name}-8"
    features = LSH(8).fit(np.random.default_rng(0).standard_normal((20, 5)))
    with pytest.raises(DataError, match="this model was trained on features"):
        encode_source(features, str(photos), tmp_path / "none", QUIET)


def test_features_of_a_network(photos, tmp_path, monkeypatch):
    """The same as those that are kept in the cache, without keeping them there."""
    import torch

    from hashlens.features import networks

    build_blocks = networks.build_blocks

    def seeded(name):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return build_blocks(name)

    monkeypatch.setattr(networks, "build_blocks", seeded)
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    hasher = LSH(64, features="small-cnn").fit([np.asarray(colours(i)) for i in range(20)])
    before = contents(tmp_path / "cache")
    encode_source(hasher, str(photos), tmp_path / "codes", QUIET, shard_size=9)
    assert contents(tmp_path / "cache") == before and len(before) == 2  # with its checksum
    aligned(tmp_path / "codes", hasher)


def test_more_threads_give_the_same(hasher, photos, tmp_path, monkeypatch):
    encode_source(hasher, str(photos), tmp_path / "one", QUIET, shard_size=7)
    monkeypatch.setenv("HASHLENS_THREADS", "3")
    encode_source(hasher, str(photos), tmp_path / "three", QUIET, shard_size=7)
    assert contents(tmp_path / "one") == contents(tmp_path / "three")


# Interruptions.


class Interrupted(Exception):
    pass


def interrupt_after(hasher, n):
    """An encoder that fails at the shard after n."""
    shards = iter(range(100))

    def before(images):
        if next(shards) == n:
            raise Interrupted

    return Wrapped(hasher, before)


@pytest.fixture
def whole(hasher, photos, tmp_path):
    (photos / "cats" / "broken.jpg").write_bytes(b"no image")
    encode_source(hasher, str(photos), tmp_path / "whole", QUIET, shard_size=4)
    yield contents(tmp_path / "whole")
    (photos / "cats" / "broken.jpg").unlink()


@pytest.mark.parametrize("n", [0, 1, 3, 5])
def test_the_same_command_resumes(hasher, photos, tmp_path, whole, n):
    source, out = str(photos), tmp_path / "codes"
    with pytest.raises(Interrupted):
        encode_source(interrupt_after(hasher, n), source, out, QUIET, shard_size=4)
    found = CodesFolder.open(out)
    assert not found.damaged()
    assert (len(found.shards), found.done) == (n, False)
    sizes, said = [], Said()
    encode_source(Wrapped(hasher, lambda images: sizes.append(len(images))), source, out, said, shard_size=4)
    assert sizes == [4, 4, 4, 4, 4, 1][n:]
    assert contents(out) == whole
    assert not n or any(f"resume  {n} shards found and verified, {6 - n} to go" in line for line in said.lines)
    # and once more: nothing is left to do
    assert encode_source(interrupt_after(hasher, 0), source, out, QUIET, shard_size=4)["n"] == 20
    assert contents(out) == whole


def test_asked_to_stop(hasher, photos, tmp_path, whole, monkeypatch):
    source, out = str(photos), tmp_path / "codes"
    asked = []
    slow = Wrapped(hasher, lambda images: asked.append(images.names[0]))
    with pytest.raises(Stopped, match=r"2 shards are complete in .*rerun the same command to resume") as caught:
        encode_source(slow, source, out, QUIET, shard_size=4, stop=lambda: len(asked) == 2)
    assert caught.value.exit_code == 130  # the second was nearly done, and so is finished
    monkeypatch.setattr(encoding, "FINISH_SECONDS", -1)
    asked.clear()
    with pytest.raises(Stopped, match="0 shards are complete"):
        encode_source(slow, source, tmp_path / "b", QUIET, shard_size=16, stop=lambda: len(asked) == 1)
    assert encode_source(hasher, source, out, QUIET, shard_size=4)["n"] == 20
    assert contents(out) == whole


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from hashlens.codes.encode import encode_source
from hashlens.codes.encoder import Encoder
from hashlens.features import gist
from hashlens.progress import Progress

model, source, out, seconds, n = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
encoder, rng, killed = Encoder.load(model), random.Random(0), 0
while True:
    child = os.fork()  # of a process that has imported everything and has no threads yet
    if child == 0:
        encode_source(encoder, source, out, Progress(quiet=True), shard_size=4)
        os._exit(0)
    if killed < n:
        time.sleep(seconds * rng.random())
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    killed += os.WIFSIGNALED(status)
    if os.WIFEXITED(status):
        print(killed)
        sys.exit(os.WEXITSTATUS(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments(hasher, photos, tmp_path):
    """benchmarks/crash.py does it to the command, more often."""
    hasher.save(tmp_path / "model")
    started = time.monotonic()
    encode_source(hasher, str(photos), tmp_path / "whole", QUIET, model=tmp_path / "model", shard_size=4)
    seconds = time.monotonic() - started
    arguments = [tmp_path / "model", photos, tmp_path / "codes", seconds / 3, 8]
    done = subprocess.run([sys.executable, "-c", KILLER, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3
    assert contents(tmp_path / "codes") == contents(tmp_path / "whole")


def test_a_damaged_shard_is_made_again(hasher, photos, tmp_path, whole):
    out, said = tmp_path / "whole", Said()
    (out / "shard-000000008.items.parquet").write_bytes(b"rust")
    (out / "shard-000000016.codes.npy").unlink()
    encode_source(hasher, str(photos), out, said, shard_size=4)
    assert contents(out) == whole
    assert [line.split(": making ")[1] for line in said.lines if ": making " in line] == [
        "shard-000000008 again, 3 images",
        "shard-000000016 again, 4 images",
    ]


def test_another_model_or_length(hasher, photos, tmp_path):
    out = tmp_path / "codes"
    encode_source(hasher, str(photos), out, QUIET)
    before = contents(out)
    images = [np.asarray(colours(i)) for i in range(8)]
    with pytest.raises(MismatchError, match=r"made with lsh-12 .{8}…, you gave lsh-12 .{8}…; codes of two models"):
        encode_source(LSH(12, features="gist", random_state=1).fit(images), str(photos), out, QUIET)
    with pytest.raises(MismatchError, match="codes of two models cannot be mixed"):
        encode_source(LSH(16, features="gist").fit(images), str(photos), out, QUIET)
    with pytest.raises(MismatchError, match="was started with the source"):
        encode_source(hasher, str(photos / "cats"), out, QUIET)
    assert contents(out) == before


def test_a_source_is_known_by_its_absolute_path(hasher, tmp_path, monkeypatch):
    here, there = (make_photos(tmp_path / name / "photos", 2).parent for name in ("here", "there"))
    monkeypatch.chdir(here)
    encode_source(hasher, "photos", tmp_path / "codes", QUIET)
    assert encode_source(hasher, str(here / "photos"), tmp_path / "codes", QUIET)["n"] == 4
    monkeypatch.chdir(there)
    with pytest.raises(MismatchError, match=r"started with the source .*here/photos, not .*there/photos"):
        encode_source(hasher, "photos", tmp_path / "codes", QUIET)


def test_the_name_of_the_model_is_that_of_its_run(hasher, photos, tmp_path):
    hasher.save(tmp_path / "runs" / "pets" / "model")
    encode_source(hasher, str(photos), tmp_path / "a", QUIET, model=tmp_path / "runs" / "pets" / "model")
    assert CodesFolder.open(tmp_path / "a").model["name"] == "pets"
    encode_source(hasher, str(photos), tmp_path / "a", QUIET)  # known by what it is, not by where it was


def test_a_source_that_changes_between_runs(hasher, tmp_path):
    photos = make_photos(tmp_path / "photos")
    out = tmp_path / "codes"
    with pytest.raises(Interrupted):
        encode_source(interrupt_after(hasher, 2), str(photos), out, QUIET, shard_size=4)
    listed = sorted(str(path) for path in photos.glob("*/*"))
    (photos / "cats" / "00.png").unlink()  # its code is there
    (photos / "dogs" / "09.jpg").unlink()
    colours(1).save(photos / "cats" / "new.png")
    said = Said()
    result = encode_source(hasher, str(photos), out, said, shard_size=4)
    assert (result["n"], result["n_skipped"]) == (20, 1)
    assert read(out)[1] == [*listed[:-1], str(photos / "cats" / "new.png")]
    assert CodesFolder.open(out).skipped() == [(listed[-1], "gone")]
    assert "note: images added since the last run: 1" in said.lines


def test_a_folder_that_is_done_takes_up_new_images(hasher, tmp_path):
    photos = make_photos(tmp_path / "photos")
    out = tmp_path / "codes"
    encode_source(hasher, str(photos), out, QUIET, shard_size=8)
    first, before = read(out)[1], contents(out)
    (photos / "cats" / "01.png").unlink(missing_ok=True)  # its code stays
    for i in range(10):
        colours(50 + i).save(photos / "cats" / f"new{i}.png")
    (photos / "cats" / "new-broken.png").write_bytes(b"no image")
    said = Said()
    with pytest.raises(Interrupted):
        encode_source(interrupt_after(hasher, 1), str(photos), out, said, shard_size=8)
    assert "note: images added since the last run: 11" in said.lines
    colours(70).save(photos / "dogs" / "later.png")
    result = encode_source(hasher, str(photos), out, QUIET, shard_size=8)
    assert (result["n"], result["n_skipped"]) == (31, 1)
    added = [str(photos / "cats" / f"new{i}.png") for i in range(10)]
    assert read(out)[1] == [*first, *added, str(photos / "dogs" / "later.png")]
    assert all(contents(out)[name] == content for name, content in before.items() if "shard" in str(name))
    codes = read(out)[0]
    np.testing.assert_array_equal(codes.packed[len(first) :], hasher.encode(read(out)[1][len(first) :]).packed)
    before, said = contents(out), Said()
    encode_source(hasher, str(photos), out, said, shard_size=8)  # nothing is new, and what is broken is known
    assert contents(out) == before and any("0 to go: 31 codes" in line for line in said.lines)


def test_damage_of_a_folder_that_took_more_images(hasher, tmp_path):
    photos = make_photos(tmp_path / "photos")
    out = tmp_path / "codes"
    encode_source(hasher, str(photos), out, QUIET, shard_size=8)
    colours(50).save(photos / "cats" / "new.png")
    encode_source(hasher, str(photos), out, QUIET, shard_size=8)
    codes, paths = read(out)
    damage(out, 8)
    assert encode_source(hasher, str(photos), out, QUIET, shard_size=8)["n"] == len(paths)
    again, same = read(out)
    assert same == paths and again.equals(codes)
    assert not CodesFolder.open(out).damaged()


def damage(out, start):
    file = out / f"shard-{start:09d}.codes.npy"
    assert file.exists()
    file.write_bytes(b"damaged")


def test_a_damaged_shard_whose_images_are_gone_is_refused(hasher, tmp_path):
    photos, out = make_photos(tmp_path / "photos"), tmp_path / "codes"
    (photos / "cats" / "01.jpg").write_bytes(b"not an image")  # has no code that could be lost
    encode_source(hasher, str(photos), out, QUIET, shard_size=8)
    (photos / "cats" / "01.jpg").unlink()
    damage(out, 0)
    assert encode_source(hasher, str(photos), out, QUIET, shard_size=8)["n"] == 19
    (photos / "cats" / "00.png").rename(tmp_path / "moved.png")
    damage(out, 0)
    before = contents(out)
    with pytest.raises(
        DataError, match=r"shard-000000000.codes.npy is damaged .* images are gone \(1, first .*cats/00.png\); restore"
    ):
        encode_source(hasher, str(photos), out, QUIET, shard_size=8)
    assert contents(out) == before
    (tmp_path / "moved.png").rename(photos / "cats" / "00.png")
    assert encode_source(hasher, str(photos), out, QUIET, shard_size=8)["n"] == 19


def test_damage_in_an_older_shard_while_new_images_are_encoded(hasher, tmp_path):
    photos, out = make_photos(tmp_path / "photos"), tmp_path / "codes"
    encode_source(hasher, str(photos), out, QUIET, shard_size=8)
    for i in range(10):
        colours(50 + i).save(photos / "cats" / f"new{i}.png")
    with pytest.raises(Interrupted):
        encode_source(interrupt_after(hasher, 1), str(photos), out, QUIET, shard_size=8)
    damage(out, 8)
    assert encode_source(hasher, str(photos), out, QUIET, shard_size=8)["n"] == 30
    codes, paths = read(out)
    assert sorted(paths) == sorted(str(path) for path in photos.glob("*/*"))
    np.testing.assert_array_equal(codes.packed, hasher.encode(paths).packed)


def test_a_dropped_shard_and_new_images(hasher, tmp_path):
    """As after a crash between the discovery of damage and its repair."""
    photos, out = make_photos(tmp_path / "photos"), tmp_path / "codes"
    encode_source(hasher, str(photos), out, QUIET, shard_size=8)
    folder = CodesFolder.open(out)
    folder.drop(folder.shards[:1])
    colours(50).save(photos / "cats" / "new.png")
    assert encode_source(hasher, str(photos), out, QUIET, shard_size=8)["n"] == 21
    assert sorted(read(out)[1]) == sorted(str(path) for path in photos.glob("*/*"))


def test_a_skipped_image_is_retried_when_its_file_changes(hasher, photos, tmp_path):
    paths = [str(tmp_path / name) for name in ("broken.png", "late.png")]
    colours(1).save(tmp_path / "good.png")
    Path(paths[0]).write_bytes(b"no image")
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join([str(tmp_path / "good.png"), *paths]))
    out = tmp_path / "codes"
    for _ in range(2):
        result = encode_source(hasher, str(listed), out, QUIET)
        assert (result["n"], result["n_skipped"]) == (1, 2)
    time.sleep(0.02)
    for number, path in enumerate(paths):
        colours(number).save(path)
    result = encode_source(hasher, str(listed), out, QUIET)
    assert (result["n"], result["n_skipped"]) == (3, 0) and CodesFolder.open(out).skipped() == []
    assert encode_source(hasher, str(listed), out, QUIET) == result


def test_a_repaired_image_of_a_folder_gets_its_code(hasher, tmp_path):
    photos, out = make_photos(tmp_path / "photos"), tmp_path / "codes"
    (photos / "cats" / "00.png").write_bytes(b"no image")
    assert encode_source(hasher, str(photos), out, QUIET)["n_skipped"] == 1
    time.sleep(0.02)
    colours(7).save(photos / "cats" / "00.png")
    result = encode_source(hasher, str(photos), out, QUIET)
    assert (result["n"], result["n_skipped"]) == (20, 0)


def test_another_list_adds_to_the_first(hasher, photos, tmp_path):
    paths = sorted(str(path) for path in photos.glob("*/*"))
    out = tmp_path / "codes"
    with pytest.raises(Interrupted):
        encode_source(interrupt_after(hasher, 1), paths[:5], out, QUIET, shard_size=2)
    assert encode_source(hasher, paths[1:6], out, QUIET, shard_size=2)["n"] == 6
    assert encode_source(hasher, paths[3:8], out, QUIET, shard_size=2)["n"] == 8
    assert read(out)[1] == paths[:8]
    aligned(out, hasher)


def test_a_tar_file_is_added(hasher, tmp_path):
    tar(tmp_path / "0.tar", [(f"{i}.png", i) for i in range(4)])
    encode_source(hasher, f"{tmp_path}/*.tar", tmp_path / "codes", QUIET, shard_size=3)
    tar(tmp_path / "1.tar", [(f"{i}.png", i) for i in range(4, 9)])
    with pytest.raises(Interrupted):
        encode_source(interrupt_after(hasher, 1), f"{tmp_path}/*.tar", tmp_path / "codes", QUIET, shard_size=3)
    assert encode_source(hasher, f"{tmp_path}/*.tar", tmp_path / "codes", QUIET, shard_size=3)["n"] == 9
    codes, _ = read(tmp_path / "codes")
    np.testing.assert_array_equal(codes.packed, hasher.encode([np.asarray(colours(i)) for i in range(9)]).packed)


def test_tar_files_that_change_between_runs(hasher, tmp_path):
    tar(tmp_path / "x.tar", [(f"{i}.png", i) for i in range(4)])
    with pytest.raises(Interrupted):
        encode_source(interrupt_after(hasher, 1), f"{tmp_path}/x.tar", tmp_path / "codes", QUIET, shard_size=2)
    tar(tmp_path / "x.tar", [(f"{i}.png", i) for i in range(1, 5)])
    with pytest.raises(MismatchError, match="a tar file has changed since"):
        encode_source(hasher, f"{tmp_path}/x.tar", tmp_path / "codes", QUIET, shard_size=2)


def test_two_commands_at_once(hasher, photos, tmp_path):
    def again(images):
        with pytest.raises(UsageError, match="another process is writing"):
            encode_source(hasher, str(photos), tmp_path / "codes", QUIET)

    encode_source(Wrapped(hasher, again), str(photos), tmp_path / "codes", QUIET)


# Parts.


@pytest.mark.parametrize("n_parts", [2, 3, 7])
def test_parts_make_the_whole(hasher, photos, tmp_path, whole, n_parts):
    out = tmp_path / "codes"
    results = [
        encode_source(hasher, str(photos), out, QUIET, shard_size=4, part=(i, n_parts))
        for i in reversed(range(1, n_parts + 1))
    ]
    assert sum(result["n"] for result in results) == 20 and sum(result["n_skipped"] for result in results) == 1
    assert contents(out, "*/shard-*") == {name: content for name, content in whole.items() if name.startswith("shard")}
    folders = open_together([out])
    codes, items = zip(*(shard.load() for shard in shards_in_order(folders)), strict=True)
    expected, paths = read(tmp_path / "whole")
    assert Codes.concatenate(codes).equals(expected)
    assert [path for table in items for path in table["path"].to_pylist()] == paths


def test_an_unreadable_image_is_counted_once_over_all_parts(hasher, photos, tmp_path):
    paths = [*map(str, sorted(photos.glob("*/*"))[:6]), "nowhere.jpg"]
    how = {"out": tmp_path, "progress": QUIET, "shard_size": 2}
    results = [encode_source(hasher, paths, part=(i, 3), **how) for i in (1, 2, 3)]
    assert [(result["n"], result["n_skipped"]) for result in results] == [(2, 1), (2, 0), (2, 0)]


def test_wrong_parts(hasher, photos, tmp_path):
    assert parse_part(" 3/16 ") == (3, 16)
    for text in ("1", "a/b", "-1/2"):
        with pytest.raises(UsageError, match="the third of sixteen"):
            parse_part(text)
    for part in ((0, 4), (3, 2), (1, 0)):
        with pytest.raises(UsageError, match=f"part {part[0]} of {part[1]} does not exist"):
            encode_source(hasher, str(photos), tmp_path / "codes", QUIET, part=part)
    with pytest.raises(UsageError, match="shard_size must be >= 1, got 0"):
        encode_source(hasher, str(photos), tmp_path / "codes", QUIET, shard_size=0)
    encode_source(hasher, str(photos), tmp_path / "codes", QUIET)
    with pytest.raises(UsageError, match="not made in parts"):
        encode_source(hasher, str(photos), tmp_path / "codes", QUIET, part=(1, 2))
    encode_source(hasher, str(photos), tmp_path / "parts", QUIET, part=(1, 2))
    with pytest.raises(UsageError, match=r"contains other files \(part-1-of-2\)"):
        encode_source(hasher, str(photos), tmp_path / "parts", QUIET)


# The disk.


def test_a_disk_that_fills_up(hasher, photos, tmp_path, whole, monkeypatch):
    write_bytes = Path.write_bytes

    def full(path, content):
        if "shard-000000012.items" in path.name:
            raise OSError(errno.ENOSPC, "no space left on device")
        return write_bytes(path, content)

    out = tmp_path / "codes"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(StorageError, match=r"the disk is full.*\(3 shards are complete and safe\)"):
            encode_source(hasher, str(photos), out, QUIET, shard_size=4)
    assert not CodesFolder.open(out).damaged()
    assert len(CodesFolder.open(out).shards) == 3
    encode_source(hasher, str(photos), out, QUIET, shard_size=4)
    assert contents(out) == whole


def test_missing_disk_space_is_reported_before_the_work(hasher, photos, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage(10**6, 10**6, 100))
    with pytest.raises(StorageError, match="not enough disk space for the codes"):
        encode_source(interrupt_after(hasher, 0), str(photos), tmp_path / "codes", QUIET)


def test_progress(hasher, photos, tmp_path, whole):
    said = Said()
    encode_source(hasher, str(photos), tmp_path / "codes", said, shard_size=4)
    assert said.lines[0] == f"encode  21 images of {photos} → {tmp_path / 'codes'}/   12 bits, 2 bytes each"
    assert any(line.startswith("images skipped: 1") and "broken.jpg (not an image)" in line for line in said.lines)
    assert said.lines[-1].startswith("images  21/21")


def test_a_missing_file_whose_name_is_not_utf8(hasher, photos, tmp_path):
    """A list may name what is not there in bytes that are not UTF-8."""
    (tmp_path / "list.txt").write_bytes(f"{photos}/cats/00.png\n".encode() + b"gone\xe9.jpg\n")
    result = encode_source(hasher, str(tmp_path / "list.txt"), tmp_path / "codes", QUIET)
    assert (result["n"], result["n_skipped"]) == (1, 1)
    assert CodesFolder.open(tmp_path / "codes").skipped() == [(f"{Path.cwd()}/gone\\udce9.jpg", "no such file")]


def test_a_tar_file_that_loops(tmp_path):
    """A negative size leads tarfile back to the same header."""
    member = tarfile.TarInfo("a.png")
    member.size = 0
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 10 + b"\xfe\x00"  # -512
    header[148:156] = b"        "
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    (tmp_path / "neg.tar").write_bytes(bytes(header) + bytes(1024))
    with pytest.raises(DataError, match=r"no images in .*neg.tar \(.*damaged"):
        open_source(tmp_path / "neg.tar", labels="optional")


def test_links_in_a_tar_file_are_listed_as_skipped(tmp_path):
    colours(1).save(tmp_path / "a.png")
    os.link(tmp_path / "a.png", tmp_path / "b.png")
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "a.png", "a.png")
        archive.add(tmp_path / "b.png", "b.png")
    found = open_source(tmp_path / "x.tar", labels="optional")
    assert found.table["path"].to_pylist() == [f"{tmp_path}/x.tar::a.png"]
    assert found.skipped == [("x.tar::b.png", "a link; give the file itself")]


def test_a_table_of_paths_needs_a_first_line(tmp_path):
    for i in range(2):
        colours(i).save(tmp_path / f"{i}.png")
    (tmp_path / "t.csv").write_text("0.png\n1.png\n")
    with pytest.raises(UsageError, match="no column called path"):
        open_source(tmp_path / "t.csv", labels="optional")
    (tmp_path / "t.csv").write_text("path\n.\\0.png\n1.png\n")
    assert len(open_source(tmp_path / "t.csv", labels="optional").table) == 2
