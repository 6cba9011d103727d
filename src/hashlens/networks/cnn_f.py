"""CNN-F, also called VGG-F: pictures (b, h, h, 3) in, the 4096 outputs of its layer 19 (fc7) out.

K. Chatfield et al., "Return of the devil in the details", BMVC 2014: the network of the DTSH paper. The weights are in
the authors' file for MatConvNet, of which there are two generations; its fields are read by name. Pictures are RGB from
0 to 255, resized to 224 x 224 without rounding as MATLAB does, less the average picture of the file. There is no
dropout, since the file has none and DTSH trains it as it is.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hashlens.errors import DataError
from hashlens.files import cache_dir
from hashlens.networks.preprocessing import Normalise

SIZE = 224
FILE = "imagenet-vgg-f.mat"
ADVICE = f"give {FILE} from MatConvNet's page of pretrained models"
MEAN = (123.68, 116.779, 103.939)  # of ImageNet's pictures, for a network that is trained from scratch


@dataclass(frozen=True)
class Layer:
    """One of MatConvNet's layers; `pads` are the ways in which it may be padded at top, bottom, left and right."""

    name: str
    kind: str
    kernel: int = 1
    stride: int = 1
    pads: tuple[tuple[int, ...], ...] = ((0, 0, 0, 0),)


# a pixel more at the bottom and right, so that no pixel is left over, is torch's `ceil_mode`
POOL_PADS = ((0, 0, 0, 0), (0, 1, 0, 1))
LAYERS = (
    Layer("conv1", "conv", 11, stride=4),
    Layer("relu1", "relu"),
    Layer("norm1", "normalize"),
    Layer("pool1", "pool", 3, stride=2, pads=POOL_PADS),
    Layer("conv2", "conv", 5, pads=((2, 2, 2, 2),)),
    Layer("relu2", "relu"),
    Layer("norm2", "normalize"),
    Layer("pool2", "pool", 3, stride=2, pads=POOL_PADS),
    Layer("conv3", "conv", 3, pads=((1, 1, 1, 1),)),
    Layer("relu3", "relu"),
    Layer("conv4", "conv", 3, pads=((1, 1, 1, 1),)),
    Layer("relu4", "relu"),
    Layer("conv5", "conv", 3, pads=((1, 1, 1, 1),)),
    Layer("relu5", "relu"),
    Layer("pool5", "pool", 3, stride=2, pads=POOL_PADS),
    Layer("fc6", "conv", 6),
    Layer("relu6", "relu"),
    Layer("fc7", "conv", 1),
    Layer("relu7", "relu"),
)


@dataclass(frozen=True)
class Plan:
    """What may differ from file to file: outputs of the seven convolutions, and options of the other layers."""

    channels: tuple[int, ...] = (64, 256, 256, 256, 256, 4096, 4096)
    # (size, alpha, beta, k) as torch counts them: alpha is MatConvNet's times the size
    norms: tuple[tuple[float, ...], ...] = ((5, 5e-4, 0.75, 2.0), (5, 5e-4, 0.75, 2.0))
    ceil_modes: tuple[bool, ...] = (True, False, False)


def build(plan: Plan) -> nn.Sequential:
    """The network as a flat sequence of blocks, conv1 to conv5, fc6 and fc7, with random weights."""
    conv1, conv2, conv3, conv4, conv5, fc6, fc7 = plan.channels
    norm1, norm2 = (nn.LocalResponseNorm(int(size), *rest) for size, *rest in plan.norms)
    pool1, pool2, pool5 = (nn.MaxPool2d(3, 2, ceil_mode=ceil) for ceil in plan.ceil_modes)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, conv1, 11, stride=4), nn.ReLU(inplace=True), norm1, pool1),
        nn.Sequential(nn.Conv2d(conv1, conv2, 5, padding=2), nn.ReLU(inplace=True), norm2, pool2),
        nn.Sequential(nn.Conv2d(conv2, conv3, 3, padding=1), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Conv2d(conv3, conv4, 3, padding=1), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Conv2d(conv4, conv5, 3, padding=1), nn.ReLU(inplace=True), pool5),
        nn.Sequential(nn.Flatten(), nn.Linear(conv5 * 6 * 6, fc6), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Linear(fc6, fc7), nn.ReLU(inplace=True)),
    )


def build_network(
    name: str, pretrained: bool, weights: Path | None, description: dict[str, Any] | None
) -> nn.Sequential:
    """Preprocessing and blocks: from a saved network's description, from the authors' file, or random."""
    if description is not None:
        return nn.Sequential(Normalise.from_description(description), *build(Plan(**description["layers"])))
    if not pretrained:
        return nn.Sequential(_preprocessing(np.array(MEAN)), *build(Plan()))
    path = weights or cache_dir() / "weights" / FILE
    if weights is None and not path.exists():
        raise DataError(
            f"the weights of {name} are not here; {ADVICE}, with --weights or by putting it into {path.parent}"
        )
    return load_mat(path)


def describe(blocks: nn.Module) -> dict[str, Any]:
    modules = list(blocks.modules())
    plan = Plan(
        tuple(len(m.weight) for m in modules if isinstance(m, nn.Conv2d | nn.Linear)),
        tuple((m.size, m.alpha, m.beta, m.k) for m in modules if isinstance(m, nn.LocalResponseNorm)),
        tuple(m.ceil_mode for m in modules if isinstance(m, nn.MaxPool2d)),
    )
    return {"layers": asdict(plan)}


def load_mat(path: Path) -> nn.Sequential:
    """Preprocessing and blocks from the authors' file; the number of channels is taken from the file too."""
    content = _read(path)
    layers = content["layers"].ravel() if "layers" in content else np.empty(0)
    if len(layers) < len(LAYERS):
        raise DataError(f"{path} is not CNN-F: it has {len(layers)} layers where {len(LAYERS)} are needed; {ADVICE}")
    weights: list[tuple[np.ndarray, np.ndarray]] = []
    norms, ceil_modes, inputs = [], [], 3
    for number, (expected, layer) in enumerate(zip(LAYERS, layers, strict=False), start=1):
        try:
            _check(expected, layer)
            if expected.kind == "conv":
                weights.append(_weights(expected, layer, inputs))
                inputs = weights[-1][0].shape[3]
            elif expected.kind == "normalize":
                norms.append(_norm(layer))
            elif expected.kind == "pool":
                ceil_modes.append(_pads(layer) == (0, 1, 0, 1))
        except _Differs as difference:
            raise DataError(
                f"{path} is not CNN-F: its layer {number} ({expected.name}) {difference}; {ADVICE}"
            ) from difference
        except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            raise DataError(
                f"{path} is damaged: its layer {number} ({expected.name}) cannot be read ({error}); {ADVICE}"
            ) from error
    average = _average(path, content)
    blocks = build(Plan(tuple(kernel.shape[3] for kernel, _ in weights), tuple(norms), tuple(ceil_modes)))
    targets = [m for m in blocks.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for target, (kernel, bias) in zip(targets, weights, strict=True):
            # (height, width, inputs, outputs) to torch's order, which is also that of `Flatten` before fc6
            turned = np.ascontiguousarray(kernel.transpose(3, 2, 0, 1), np.float32)
            target.weight.copy_(torch.from_numpy(turned).reshape(target.weight.shape))
            assert target.bias is not None
            target.bias.copy_(torch.from_numpy(bias.astype(np.float32).ravel()))
    return nn.Sequential(_preprocessing(average), *blocks)


def _preprocessing(average: np.ndarray) -> Normalise:
    """`average` is a picture (224, 224, 3) or three numbers."""
    picture = np.broadcast_to(average, (SIZE, SIZE, 3)).transpose(2, 0, 1)
    return Normalise(picture, 1.0, divided_by=1, size=SIZE)


class _Differs(Exception):
    """How a layer differs from that of CNN-F; the end of a sentence that begins with the layer."""


def _read(path: Path) -> dict[str, np.ndarray]:
    from scipy.io import loadmat

    try:
        with path.open("rb") as file:
            header = file.read(128)
    except OSError as error:
        raise DataError(f"{path} cannot be opened ({error.strerror}); {ADVICE}") from error
    if header.startswith((b"MATLAB 7.3", b"\x89HDF")):
        raise DataError(f"{path} is in MATLAB's format 7.3; load it in MATLAB and save it again with '-v7'")
    if not header.startswith(b"MATLAB 5.0"):
        raise DataError(f"{path} is not a .mat file; {ADVICE}")
    try:
        return loadmat(path, variable_names=["layers", "meta", "normalization"])
    except Exception as error:  # a damaged file makes scipy raise nearly anything
        raise DataError(f"{path} is truncated or damaged ({type(error).__name__}); download it again") from error


def _field(struct: Any, name: str) -> np.ndarray | None:
    """A field of a MATLAB struct, which scipy gives as an array of one record; None if there is none."""
    names = getattr(getattr(struct, "dtype", None), "names", None) or ()
    return np.asarray(struct[name]).ravel()[0] if name in names else None


def _numbers(layer: Any, name: str, default: float) -> tuple[float, ...]:
    value = _field(layer, name)
    return (default,) if value is None or np.size(value) == 0 else tuple(float(x) for x in np.ravel(value))


def _word(layer: Any, name: str, default: str) -> str:
    value = _field(layer, name)
    return default if value is None or np.size(value) == 0 else str(np.ravel(value)[0])


def _pads(layer: Any) -> tuple[int, ...]:
    pads = tuple(int(n) for n in _numbers(layer, "pad", 0))
    return pads * 4 if len(pads) == 1 else pads


def _check(expected: Layer, layer: Any) -> None:
    kind = _word(layer, "type", "nothing known").replace("lrn", "normalize")  # it has two names
    if kind != expected.kind:
        raise _Differs(f"is of type '{kind}' where '{expected.kind}' is expected")
    if kind in ("conv", "pool"):
        _require("stride", _numbers(layer, "stride", 1), expected.stride)
        if (pads := _pads(layer)) not in expected.pads:
            raise _Differs(f"has another padding ({_in_words(pads)})")
    if kind == "pool":
        _require("window", _numbers(layer, "pool", 0), expected.kernel)
        if (method := _word(layer, "method", "max")) != "max":
            raise _Differs(f"pools by '{method}' where 'max' is expected")


def _require(what: str, found: tuple[float, ...], expected: float) -> None:
    """One number for both directions, or one for each."""
    if {*found} != {expected}:
        raise _Differs(f"has another {what} ({_in_words(found)} where {expected} is expected)")


def _in_words(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:g}" for value in values)


def _weights(expected: Layer, layer: Any, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Kernel (height, width, inputs, outputs) and bias, from either generation of the file."""
    pair = _field(layer, "weights")
    kernel, bias = (
        (_field(layer, "filters"), _field(layer, "biases")) if pair is None else (list(np.ravel(pair)) + [None] * 2)[:2]
    )
    shape = tuple(np.shape(kernel)) if kernel is not None else ()
    if len(shape) != 4 or shape[:3] != (expected.kernel, expected.kernel, inputs):
        found = " x ".join(map(str, shape)) or "none"
        raise _Differs(
            f"has weights of shape {found} where {expected.kernel} x {expected.kernel} x {inputs} x outputs is expected"
        )
    if bias is None or np.size(bias) != shape[3]:
        raise _Differs(f"has {0 if bias is None else np.size(bias)} biases for {shape[3]} outputs")
    return np.asarray(kernel), np.asarray(bias)


def _norm(layer: Any) -> tuple[float, ...]:
    """MatConvNet's [size, kappa, alpha, beta] in torch's terms, where alpha is divided by the size."""
    values = _numbers(layer, "param", 0)
    if len(values) != 4 or values[0] % 2 != 1:
        raise _Differs(f"has other parameters ({_in_words(values)})")
    size, kappa, alpha, beta = values
    return (int(size), size * alpha, beta, kappa)


def _average(path: Path, content: dict[str, np.ndarray]) -> np.ndarray:
    meta = content.get("meta")
    settings = content.get("normalization") if meta is None else _field(meta, "normalization")
    average = _field(settings, "averageImage")
    if average is None or np.shape(average) not in ((SIZE, SIZE, 3), (1, 1, 3), (1, 3), (3, 1)):
        found = "none" if average is None else " x ".join(map(str, np.shape(average)))
        raise DataError(f"{path} is not CNN-F: its average picture is {found}, not {SIZE} x {SIZE} x 3; {ADVICE}")
    return np.asarray(average, np.float32).reshape(-1 if np.size(average) == 3 else (SIZE, SIZE, 3))
