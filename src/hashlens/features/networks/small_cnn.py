"""A small convolutional network for tiny images: normalised images (b, 3, 16, 16) in, features (b, 128) out."""

from itertools import pairwise

from torch import nn

from hashlens.features.networks import Network


def build(name: str) -> nn.Sequential:
    """The network as a flat sequence of blocks, with random weights."""
    widths = [3, 32, 64, 128]
    blocks = [
        nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        )
        for inputs, outputs in pairwise(widths)
    ]
    return nn.Sequential(*blocks, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))


NETWORK = Network("small-cnn", 16, build, {"mean": 0.5, "std": 0.5}, flip=False)
