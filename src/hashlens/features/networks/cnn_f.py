"""CNN-F, also called VGG-F: images (b, h, h, 3) in, the 4096 outputs of its layer 19 (fc7) out.

K. Chatfield et al., "Return of the devil in the details", BMVC 2014: the network of the DTSH paper. The weights are in
the authors' MatConvNet file, which exists in two generations; its fields are read by name. Images are RGB from 0 to
255, resized to 224 x 224 without rounding as MATLAB does, minus the average image of the file. There is no dropout,
because the file has none and DTSH trains it unchanged.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hashlens.errors import DataError
from hashlens.features.networks import Network
from hashlens.features.networks.normalise import Normalise
from hashlens.files import cache_dir

SIZE = 224
FILE = "imagenet-vgg-f.mat"
ADVICE = f"pass {FILE} from MatConvNet's page of pretrained models"
MEAN = (123.68, 116.779, 103.939)  # of ImageNet's images, for a network trained from scratch
Facts = dict[str, tuple[str, ...]]  # allowed values of each field of a layer


def _conv(stride: int = 1, pad: int = 0) -> Facts:
    return {"type": ("conv",), "stride": (str(stride),), "pad": (str(pad),)}


RELU: Facts = {"type": ("relu",)}
NORM: Facts = {"type": ("normalize", "lrn")}
# torch's `ceil_mode` is one more pixel at the bottom and right, so that no pixel is left over
POOL: Facts = {"type": ("pool",), "stride": ("2",), "pad": ("0", "0 1 0 1"), "pool": ("3",), "method": ("max",)}
# MatConvNet's layers, and the values of missing fields
LAYERS = {"conv1": _conv(4), "relu1": RELU, "norm1": NORM, "pool1": POOL}
LAYERS |= {"conv2": _conv(1, 2), "relu2": RELU, "norm2": NORM, "pool2": POOL}
LAYERS |= {"conv3": _conv(1, 1), "relu3": RELU, "conv4": _conv(1, 1), "relu4": RELU}
LAYERS |= {"conv5": _conv(1, 1), "relu5": RELU, "pool5": POOL}
LAYERS |= {"fc6": _conv(), "relu6": RELU, "fc7": _conv(), "relu7": RELU}
MISSING = {"stride": "1", "pad": "0", "method": "max"}
KERNELS = {"conv1": 11, "conv2": 5, "conv3": 3, "conv4": 3, "conv5": 3, "fc6": 6, "fc7": 1}


@dataclass(frozen=True)
class Plan:
    """The differences between files: outputs of the seven convolutions, and options of the other layers."""

    channels: tuple[int, ...] = (64, 256, 256, 256, 256, 4096, 4096)
    # (size, alpha, beta, k) as torch defines them: alpha is MatConvNet's times the size
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


class CNNF(Network):
    """CNN-F from a saved network's description, from the authors' file, or random."""

    def blocks(self, pretrained: bool, weights: Path | None, description: dict[str, Any] | None) -> nn.Sequential:
        if description is not None:
            return nn.Sequential(Normalise.from_description(description), *build(Plan(**description["layers"])))
        if not pretrained:
            return nn.Sequential(_preprocessing(np.array(MEAN)), *build(Plan()))
        path = weights or cache_dir() / "weights" / FILE
        if weights is None and not path.exists():
            raise DataError(
                f"the weights of {self.name} are missing; {ADVICE} with --weights, or put it into {path.parent}"
            )
        return load_mat(path)

    def describe(self, blocks: nn.Module) -> dict[str, Any]:
        modules = list(blocks.modules())
        plan = Plan(
            tuple(len(m.weight) for m in modules if isinstance(m, nn.Conv2d | nn.Linear)),
            tuple((m.size, m.alpha, m.beta, m.k) for m in modules if isinstance(m, nn.LocalResponseNorm)),
            tuple(m.ceil_mode for m in modules if isinstance(m, nn.MaxPool2d)),
        )
        return super().describe(blocks) | {"layers": asdict(plan)}


def load_mat(path: Path) -> nn.Sequential:
    """Preprocessing and blocks from the authors' file, which also decides the number of channels."""
    content = _read(path)
    layers = content["layers"].ravel() if "layers" in content else np.empty(0)
    if len(layers) < len(LAYERS):
        raise DataError(f"{path} is not CNN-F: it has {len(layers)} layers, expected {len(LAYERS)}; {ADVICE}")
    weights: list[tuple[np.ndarray, np.ndarray]] = []
    norms, ceil_modes, inputs = [], [], 3
    for number, (name, layer) in enumerate(zip(LAYERS, layers, strict=False), start=1):
        try:
            _check(LAYERS[name], layer)
            if name in KERNELS:
                weights.append(_weights(KERNELS[name], layer, inputs))
                inputs = weights[-1][0].shape[3]
            elif LAYERS[name] is NORM:
                norms.append(_norm(layer))
            elif LAYERS[name] is POOL:
                ceil_modes.append(_text(layer, "pad") != "0")
        except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            raise DataError(f"{path} is not CNN-F: layer {number} ({name}) {error}; {ADVICE}") from error
    average = _average(path, content)
    blocks = build(Plan(tuple(kernel.shape[3] for kernel, _ in weights), tuple(norms), tuple(ceil_modes)))
    targets = [m for m in blocks.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for target, (kernel, bias) in zip(targets, weights, strict=True):
            # from (height, width, inputs, outputs) to torch's order, which `Flatten` before fc6 also has
            turned = np.ascontiguousarray(kernel.transpose(3, 2, 0, 1), np.float32)
            target.weight.copy_(torch.from_numpy(turned).reshape(target.weight.shape))
            assert target.bias is not None
            target.bias.copy_(torch.from_numpy(bias.astype(np.float32).ravel()))
    return nn.Sequential(_preprocessing(average), *blocks)


def _preprocessing(average: np.ndarray) -> Normalise:
    """`average` is an image (224, 224, 3) or three numbers."""
    return Normalise(np.broadcast_to(average, (SIZE, SIZE, 3)).transpose(2, 0, 1), 1.0, divided_by=1, size=SIZE)


def _read(path: Path) -> dict[str, np.ndarray]:
    from scipy.io import loadmat

    if not path.is_file():
        raise DataError(f"{path} not found; {ADVICE}")
    try:
        return loadmat(path, appendmat=False, variable_names=["layers", "meta", "normalization"])
    except NotImplementedError as error:
        raise DataError(f"{path} is in MATLAB's format 7.3; load it in MATLAB and save it again with '-v7'") from error
    except Exception as error:  # scipy raises nearly anything on a damaged file
        raise DataError(f"{path} is not a whole .mat file ({type(error).__name__}: {error}); {ADVICE}") from error


def _field(struct: Any, name: str) -> Any:
    """A field of a MATLAB struct, which scipy reads as an array of one record; None if it is absent."""
    names = getattr(getattr(struct, "dtype", None), "names", None) or ()
    return np.asarray(struct[name]).ravel()[0] if name in names else None


def _text(layer: Any, name: str) -> str:
    """A word, or numbers; a single number if all are equal, as for both directions of a stride."""
    values = np.ravel(_field(layer, name))
    if not values.size or values[0] is None:
        return MISSING.get(name, "unknown")
    texts = [value if isinstance(value, str) else f"{value:g}" for value in values.tolist()]
    return texts[0] if len({*texts}) == 1 else " ".join(texts)


def _check(expected: Facts, layer: Any) -> None:
    for name, accepted in expected.items():
        if (found := _text(layer, name)) not in accepted:
            raise ValueError(f"has {name} '{found}', expected '{accepted[0]}'")


def _weights(size: int, layer: Any, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Kernel (height, width, inputs, outputs) and bias, from either generation of the file."""
    pair = _field(layer, "weights")
    kernel, bias = (
        (_field(layer, "filters"), _field(layer, "biases")) if pair is None else (list(np.ravel(pair)) + [None] * 2)[:2]
    )
    shape = tuple(np.shape(kernel)) if kernel is not None else ()
    if len(shape) != 4 or shape[:3] != (size, size, inputs):
        found = " x ".join(map(str, shape)) or "none"
        raise ValueError(f"has weights of shape {found}, expected {size} x {size} x {inputs} x outputs")
    if bias is None or np.size(bias) != shape[3]:
        raise ValueError(f"has {0 if bias is None else np.size(bias)} biases for {shape[3]} outputs")
    return np.asarray(kernel), np.asarray(bias)


def _norm(layer: Any) -> tuple[float, ...]:
    """MatConvNet's [size, kappa, alpha, beta] in torch's terms, where alpha is divided by the size."""
    values = np.ravel(_field(layer, "param"))
    if len(values) != 4 or values[0] % 2 != 1:
        raise ValueError(f"has the unexpected param '{_text(layer, 'param')}'")
    size, kappa, alpha, beta = map(float, values)
    return (int(size), size * alpha, beta, kappa)


def _average(path: Path, content: dict[str, np.ndarray]) -> np.ndarray:
    meta = content.get("meta")
    settings = content.get("normalization") if meta is None else _field(meta, "normalization")
    average = _field(settings, "averageImage")
    if average is None or np.shape(average) not in ((SIZE, SIZE, 3), (1, 1, 3), (1, 3), (3, 1)):
        found = "none" if average is None else " x ".join(map(str, np.shape(average)))
        raise DataError(f"{path} is not CNN-F: its average image is {found}, not {SIZE} x {SIZE} x 3; {ADVICE}")
    return np.asarray(average, np.float32).reshape(-1 if np.size(average) == 3 else (SIZE, SIZE, 3))


NETWORK = CNNF("cnn-f", SIZE, frozen=5, flip=False, resizes=True, read_file=load_mat)
