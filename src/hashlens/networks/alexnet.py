"""AlexNet: normalised pictures (b, 3, h, w) in, the 4096 outputs of its layer fc7 out.

The layout is torchvision's (A. Krizhevsky, "One weird trick", 2014: no groups, no local response normalisation). The
published weights at hand are those of the five convolutions; a state dict of torchvision, `alexnet-owt-*.pth` or
the same as safetensors, has all. There is no dropout, as in the networks of the hashing papers.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hashlens.errors import DataError

PREPROCESSING = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
# torchvision's names of the layers, and ours
NAMES = {
    "features.0": "0.0",
    "features.3": "1.0",
    "features.6": "2.0",
    "features.8": "3.0",
    "features.10": "4.0",
    "classifier.1": "5.1",
    "classifier.4": "6.0",
}


def build(name: str) -> nn.Sequential:
    """The network as a flat sequence of blocks, conv1 to conv5, fc6 and fc7, with random weights."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        nn.Sequential(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        nn.Sequential(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True)),
        nn.Sequential(
            nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6)
        ),
        nn.Sequential(nn.Flatten(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(inplace=True)),
    )


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """A state dict of torchvision's AlexNet, .pth or .safetensors, under our names."""
    from safetensors.torch import load_file

    try:
        safe = path.suffix == ".safetensors"
        theirs = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
        found: dict[str, Any] = {key: theirs.get(key) for key in _keys()}
    except Exception as error:  # a damaged file makes both readers raise nearly anything
        reason = "no such file" if isinstance(error, FileNotFoundError) else type(error).__name__
        raise DataError(
            f"{path} cannot be read as a state dict ({reason});"
            " give a .pth or .safetensors file of torchvision's AlexNet"
        ) from error
    with torch.device("meta"):
        shapes = {key: tuple(value.shape) for key, value in build("alexnet").state_dict().items()}
    for key, value in found.items():
        expected = shapes[_keys()[key]]
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else "nothing"
        if shape != expected:
            raise DataError(
                f"{path} is not torchvision's AlexNet: as {key} it has {shape} where {expected} is expected;"
                " give another file, or none"
            )
    return {ours: found[key] for key, ours in _keys().items()}


def _keys() -> dict[str, str]:
    return {f"{theirs}.{what}": f"{ours}.{what}" for theirs, ours in NAMES.items() for what in ("weight", "bias")}


def read_published(path: Path) -> dict[str, torch.Tensor]:
    """The five convolutions from a pickle of arrays: kernels (height, width, inputs, outputs) and biases."""
    with path.open("rb") as file:
        layers = ArrayUnpickler(file).load()["AlexNet_0"]
    state = {}
    for i, ours in enumerate(list(NAMES.values())[:5]):
        layer = layers[f"Conv_{i}"]
        state[f"{ours}.weight"] = torch.from_numpy(np.ascontiguousarray(layer["kernel"].transpose(3, 2, 0, 1)))
        state[f"{ours}.bias"] = torch.from_numpy(np.ascontiguousarray(layer["bias"]))
    return state


class ArrayUnpickler(pickle.Unpickler):
    """Reads dictionaries of numpy arrays; every other global that a pickle may name is refused."""

    def find_class(self, module: str, name: str) -> Any:
        reconstruct = np.empty(0).__reduce__()[0]
        allowed = {"_reconstruct": reconstruct, "ndarray": np.ndarray, "dtype": np.dtype}
        if module.partition(".")[0] != "numpy" or name not in allowed:
            raise pickle.UnpicklingError(f"it wants to load {module}.{name}, which is no array")
        return allowed[name]
