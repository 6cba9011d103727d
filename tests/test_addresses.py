"""Images and codes at addresses, on real servers: the same codes as from files, whatever fails on the way."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import stores
from hashlens import addresses
from hashlens.addresses import Address, below, is_address
from hashlens.codes.encode import encode_source
from hashlens.codes.encoder import Encoder
from hashlens.codes.folder import CodesFolder, open_together
from hashlens.data import images as images_module
from hashlens.data import open_source, readable
from hashlens.errors import DataError, DownloadError, StorageError, UsageError
from hashlens.hashers.shallow.lsh import LSH
from hashlens.progress import Progress

QUIET = Progress(quiet=True)


@pytest.fixture(scope="module")
def encoder():
    rng = np.random.default_rng(1)
    return Encoder.of(LSH(12, features="gist").fit([rng.integers(0, 256, (20, 16, 3), np.uint8) for _ in range(30)]))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A folder of buckets, which is also on this disk: photos with classes, some bad files, a tar file and a table."""
    root = tmp_path_factory.mktemp("store")
    rng = np.random.default_rng(0)
    for name in ("cats", "wild dogs"):
        (root / "bucket" / "photos" / name).mkdir(parents=True)
        for i in range(8):
            image = Image.fromarray(rng.integers(0, 256, (20, 16, 3), np.uint8))
            image.save(root / "bucket" / "photos" / name / f"{i}.png")
    (root / "bucket" / "photos" / "cats" / "bad.png").write_bytes(b"not an image")
    (root / "bucket" / "photos" / "cats" / "empty.png").write_bytes(b"")
    (root / "bucket" / "photos" / "notes.md").write_bytes(b"no image, and not meant as one")
    with tarfile.open(root / "bucket" / "shard-00.tar", "w") as archive:
        archive.add(root / "bucket" / "photos", "photos")
    lines = ["path,label", "photos/cats/0.png,cat", "photos/cats/gone.png,cat", "photos/wild dogs/1.png,dog"]
    (root / "bucket" / "table.csv").write_text("\n".join(lines), encoding="utf-8")
    (root / "bucket" / "list.txt").write_text("photos/cats/0.png\nphotos/cats/gone.png\n", encoding="utf-8")
    (root / "codes").mkdir()
    return root


@pytest.fixture(scope="module")
def endpoint(store):
    with stores.s3(store) as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(addresses, "FIRST_WAIT", 0.01)
    addresses._file_system.cache_clear()


def use(monkeypatch, endpoint, **others):
    for name, value in (stores.credentials(endpoint) | others).items():
        monkeypatch.setenv(name, value)
    addresses._file_system.cache_clear()


@pytest.fixture
def s3(endpoint, monkeypatch):
    use(monkeypatch, endpoint)
    return endpoint


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.startswith(".")}


def rows(folder, root):
    """Path below `root`, label, size, hash and code of each image."""
    codes, items = CodesFolder.open(folder).concatenated()
    paths = [path.removeprefix(f"{root}/") for path in items["path"].to_pylist()]
    labels = items["labels"].to_pylist() if "labels" in items.column_names else [None] * len(items)
    facts = [items[name].to_pylist() for name in ("size", "hash") if name in items.column_names]
    return list(zip(paths, labels, *facts, [row.tobytes() for row in codes.packed], strict=True))


def test_what_is_an_address():
    assert is_address("s3://bucket/x") and is_address("abfs://x")
    assert not any(map(is_address, ("photos", "C:/photos", "/a://b", "", None, Path("s3://x"))))
    address = Address("s3://bucket/photos/1.jpg/")
    assert (str(address), address.name, address.stem, address.suffix) == (
        "s3://bucket/photos/1.jpg",
        "1.jpg",
        "1",
        ".jpg",
    )
    assert str(address.parent / "2.jpg") == "s3://bucket/photos/2.jpg"
    assert str(below(Path("/here"), "s3://bucket/1.jpg")) == "s3://bucket/1.jpg"
    assert below(Path("/here"), "1.jpg") == Path("/here/1.jpg")


def test_a_folder_in_s3_has_the_codes_of_the_folder_on_disk(encoder, store, s3, tmp_path):
    local, far = tmp_path / "local", tmp_path / "far"
    encode_source(encoder, str(store / "bucket" / "photos"), local, QUIET, shard_size=6)
    found = encode_source(encoder, "s3://bucket/photos", far, QUIET, shard_size=6)
    assert found == {"n": 16, "n_bits": 12, "n_skipped": 2, "out": str(far)}
    for file in local.glob("*.codes.npy"):
        assert (far / file.name).read_bytes() == file.read_bytes()
    assert rows(far, "s3://bucket/photos") == rows(local, store / "bucket" / "photos")
    skipped = [("s3://bucket/photos/cats/bad.png", "not an image"), ("s3://bucket/photos/cats/empty.png", "zero bytes")]
    assert CodesFolder.open(far).skipped() == skipped


def test_errors_of_the_store_change_nothing_and_codes_can_be_written_there(encoder, store, s3, tmp_path, monkeypatch):
    encode_source(encoder, "s3://bucket/photos", tmp_path / "whole", QUIET, shard_size=4)
    with stores.faulty(s3, 0.3) as (bad, counts):
        use(monkeypatch, bad)
        before = addresses.tried_again
        stops = iter(range(100))
        with pytest.raises(KeyboardInterrupt):  # ended in the middle

            def stop():
                if next(stops) == 3:
                    raise KeyboardInterrupt
                return False

            encode_source(encoder, "s3://bucket/photos", Address("s3://codes/far"), QUIET, shard_size=4, stop=stop)
        assert 0 < len(CodesFolder.open("s3://codes/far").shards) < 5
        Address("s3://codes/far/shard-999999999.codes.npy").write_bytes(b"of a process that was killed")
        encode_source(encoder, "s3://bucket/photos", Address("s3://codes/far"), QUIET, shard_size=4)
        (folder,) = open_together(["s3://codes/far"])
    assert counts["500"] and counts["dropped"] and counts["cut"]
    assert addresses.tried_again > before
    assert len(folder) == 16
    assert contents(store / "codes" / "far") == contents(tmp_path / "whole")


def test_parts_at_an_address(encoder, s3):
    for part in ((1, 2), (2, 2)):
        encode_source(encoder, "s3://bucket/photos", Address("s3://codes/parts"), QUIET, shard_size=4, part=part)
    assert [folder.part for folder in open_together(["s3://codes/parts"])] == [(1, 2), (2, 2)]
    with pytest.raises(DataError, match="has no codes"):
        open_together(["s3://codes/none"])


SOURCES = {
    "shard-00.tar": (16, 2),
    "shard-{00..00}.tar": (16, 2),
    "shard-*.tar": (16, 2),
    "table.csv": (2, 1),
    "list.txt": (1, 1),
    "photos/**/*.png": (16, 2),
    "photos/cats/0.png": (1, 0),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_kind_of_source(encoder, store, s3, tmp_path, name):
    found = encode_source(encoder, f"s3://bucket/{name}", tmp_path / "far", QUIET)
    assert (found["n"], found["n_skipped"]) == SOURCES[name]
    if name != "list.txt":  # whose paths are relative to the current folder on disk
        encode_source(encoder, str(store / "bucket" / name), tmp_path / "local", QUIET)
        assert rows(tmp_path / "far", "s3://bucket") == rows(tmp_path / "local", store / "bucket")


def test_a_list_on_disk_of_images_in_a_store(encoder, store, s3, tmp_path):
    (tmp_path / "images.csv").write_text("path,label\ns3://bucket/photos/cats/0.png,cat\n", encoding="utf-8")
    encode_source(encoder, str(tmp_path / "images.csv"), tmp_path / "codes", QUIET)
    assert rows(tmp_path / "codes", "s3://bucket")[0][:2] == ("photos/cats/0.png", ["cat"])
    image = "s3://bucket/photos/cats/0.png"
    assert (
        encoder.encode([image]).packed == encoder.encode([store / "bucket" / "photos" / "cats" / "0.png"]).packed
    ).all()


def test_images_that_appear_later_are_encoded(encoder, store, s3, tmp_path):
    Address("s3://bucket/later.csv").write_bytes(b"path\nphotos/cats/0.png\nphotos/later.png\n")
    assert encode_source(encoder, "s3://bucket/later.csv", tmp_path / "codes", QUIET)["n_skipped"] == 1
    later = store / "bucket" / "photos" / "later.png"
    Address("s3://bucket/photos/later.png").write_bytes((later.parent / "cats" / "1.png").read_bytes())
    found = encode_source(encoder, "s3://bucket/later.csv", tmp_path / "codes", QUIET)
    Address("s3://bucket/photos/later.png").unlink()
    assert (found["n"], found["n_skipped"]) == (2, 0)


def test_training_reads_from_an_address(store, s3, tmp_path, monkeypatch):
    monkeypatch.setenv("HASHLENS_CACHE", str(tmp_path))
    source = readable(open_source("s3://bucket/photos"))
    assert (source.labels.names, len(source)) == (("cats", "wild dogs"), 16)
    assert sorted(why for _, why in source.skipped) == ["not an image", "zero bytes"]
    assert source.images.fingerprint() == source.images.fingerprint()
    assert len(source.images.marks()) == 16 and "gone" not in source.images.marks()


def test_an_image_above_the_limit_is_not_read(encoder, s3, tmp_path, monkeypatch):
    monkeypatch.setattr(images_module, "MAX_BYTES", 100)
    with pytest.raises(DataError, match=r"no image .* can be read .*more than 0 MB"):
        encode_source(encoder, "s3://bucket/photos/cats/0.png", tmp_path / "codes", QUIET)


@pytest.mark.parametrize(
    "address, environment, error, sentence",
    [
        ("s3://bucket/photos", {"AWS_SECRET_ACCESS_KEY": "wrong-one"}, StorageError, "refuses access .*credentials"),
        ("s3://bucket/photos", {"AWS_ACCESS_KEY_ID": "wrong-one"}, StorageError, "refuses access .*credentials"),
        ("s3://bucket/photos/cats/0.png", {"AWS_ACCESS_KEY_ID": "wrong-one"}, StorageError, "refuses access"),
        ("s3://bucket/photos", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, DownloadError, "tried 3 times .*network"),
        ("s3://nowhere/photos", {}, DataError, "s3://nowhere/photos not found; check the address"),
        ("s3://bucket/nothing", {}, DataError, "no images in s3://bucket/nothing"),
        ("s3://bucket/none-{0..1}.tar", {}, DataError, "2 of 2 are missing"),
        ("s3://bucket/none.csv", {}, DataError, r"cannot read s3://bucket/none.csv \(no such file\)"),
        ("s3://me:wrong-one@bucket/photos", {}, UsageError, "has a password"),
        ("s3:///photos", {}, UsageError, "names no bucket"),
        ("nope://bucket/photos", {}, UsageError, "nope:// is not known"),
        ("hdfs://namenode/photos", {}, UsageError, "needs libhdfs and Java"),
    ],
)
def test_one_sentence(encoder, endpoint, tmp_path, monkeypatch, address, environment, error, sentence):
    use(monkeypatch, endpoint, **environment)
    with pytest.raises(error, match=sentence) as raised:
        encode_source(encoder, address, tmp_path / "codes", QUIET)
    assert "wrong-one" not in raised.value.message and stores.SECRET not in raised.value.message
    assert not any(file.suffix == ".npy" for file in tmp_path.glob("codes/*"))


def test_where_nothing_can_be_written(encoder, s3):
    with pytest.raises(UsageError, match="can only be read"):
        encode_source(encoder, "s3://bucket/photos", Address("https://localhost/codes"), QUIET)
    with pytest.raises(UsageError, match="contains other files"):
        encode_source(encoder, "s3://bucket/photos", Address("s3://bucket/photos"), QUIET)


def test_a_store_that_is_gone_ends_the_command_and_the_next_one_resumes(encoder, store, tmp_path, monkeypatch):
    monkeypatch.setattr(addresses, "TRIES", 2)
    with stores.s3(store) as endpoint:
        use(monkeypatch, endpoint)
        source = open_source("s3://bucket/photos", labels="optional")
        assert source.images.data(0)
    with pytest.raises(DownloadError, match="tried 2 times"):
        source.images.image(0)
    with stores.s3(store) as endpoint:
        use(monkeypatch, endpoint)
        assert encode_source(encoder, "s3://bucket/photos", tmp_path / "codes", QUIET)["n"] == 16


def test_other_stores_need_their_own_software(monkeypatch):
    import fsspec

    def missing(protocol):
        raise ImportError

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(UsageError, match=r"gs:// needs gcsfs; run: pip install gcsfs"):
        Address("gs://bucket/photos").names()
    with pytest.raises(UsageError, match=r's3:// needs s3fs; run: pip install "hashlens\[remote\]"'):
        Address("s3://bucket/photos").names()


def test_parts_of_a_tar_file_share_requests(monkeypatch):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for i in range(50):
            content = os.urandom(1000)
            member = tarfile.TarInfo(f"{i}.png")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    Address("memory://shards/0.tar").write_bytes(made.getvalue())
    asked = []
    part = Address.part
    monkeypatch.setattr(Address, "part", lambda self, *at: asked.append(at) or part(self, *at))
    images = open_source("memory://shards/0.tar", labels="optional").images
    listing = len(asked)
    with images.ahead(np.arange(50)):
        found = [images.data(row) for row in range(50)]
    assert listing <= 2 and len(asked) == listing + 1
    assert found == [images.data(row) for row in range(50)]


def run(code, **environment):
    """In a process of its own, which reads its environment when it starts."""
    command = [sys.executable, "-c", "from pathlib import Path\nfrom hashlens.addresses import Address\n" + code]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    return (done.stdout + done.stderr.strip().rpartition("\n")[2]).strip()


@pytest.mark.skipif(stores.NGINX is None, reason="nginx is not installed")
def test_https_with_ranges_and_listings(store, tmp_path):
    code = """
from hashlens.data import open_source
import numpy as np
root = URL
for name in ("photos", "shard-00.tar", "table.csv"):
    source = open_source(f"{root}/{name}", labels="optional")
    good = []
    with source.images.ahead(np.arange(len(source))):
        for row in range(len(source)):
            good += [source.labels.sets()[row]] if source.images.why_unreadable(row) is None else []
    print(name, len(good), len(source), sorted(set(map(tuple, good))))
print(Address(f"{root}/shard-00.tar").part(257, 5), Address(f"{root}/none").exists())
print(Address(f"{root}/table.csv").stat().st_size)
for name in ("private/x.jpg", "none.jpg"):
    print(open_source(f"{root}/{name}", labels="optional").images.why_unreadable(0))
"""
    with stores.nginx(store / "bucket", tmp_path) as (url, certificate):
        said = run(f"URL = {url!r}\n" + code, SSL_CERT_FILE=str(certificate))
        refused = run(f"Address({url!r} + '/table.csv').read_bytes()")
    size = (store / "bucket" / "table.csv").stat().st_size
    assert said.splitlines() == [
        "photos 16 18 [('cats',), ('wild dogs',)]",
        "shard-00.tar 16 18 [('cats',), ('wild dogs',)]",
        "table.csv 2 3 [('cat',), ('dog',)]",
        "b'ustar' False",
        str(size),
        "permission denied",
        "no such file",
    ]
    assert "cannot be read, tried 3 times (ClientConnectorCertificateError)" in refused


def test_sftp_with_a_key_and_a_known_host(store, tmp_path, encoder):
    import asyncssh

    ssh = tmp_path / ".ssh"
    ssh.mkdir(mode=0o700)
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(ssh / "id_ed25519")
    key.write_public_key(ssh / "authorized_keys")
    code = (
        "\na = Address(URL)\nprint(len(a.names()), len((a / 'cats/0.png').read_bytes()), (a / 'cats/0.png').part(1, 3))"
    )
    with stores.sftp(store / "bucket" / "photos", ssh / "authorized_keys") as port:
        url = f"URL = 'sftp://me@127.0.0.1:{port}/'"
        stranger = run(url + code, HOME=str(tmp_path))
        scanned = run(
            "import asyncio, asyncssh\n"
            f"key = asyncio.run(asyncssh.get_server_host_key('127.0.0.1', {port}))\n"
            "print(key.export_public_key().decode())"
        )
        (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {scanned}\n", encoding="utf-8")
        known = run(url + code, HOME=str(tmp_path))
    n_bytes = (store / "bucket" / "photos" / "cats" / "0.png").stat().st_size
    assert "refuses access (HostKeyNotVerifiable)" in stranger
    assert known == f"19 {n_bytes} b'PNG'"
