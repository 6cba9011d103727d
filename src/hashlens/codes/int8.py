"""Int8: a float network as ONNX in, the same network in 8 bits out, about twice as fast on a CPU.

Activations have 8 bits and weights of dense layers 7, so that sums of two products fit in 16 bits and CPUs with and
without VNNI compute the same integers. Ranges are measured on some images. Weights of 1 x 1 layers are rounded one by
one, and later weights compensate for the error of each (Frantar et al., GPTQ, ICLR 2023). Pixels enter the first layer
unchanged. Pooling, linear layers and everything after them stay in floats.
"""

from __future__ import annotations

import logging
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hashlens.errors import UsageError
from hashlens.machine import blocks

if TYPE_CHECKING:
    from hashlens.data.images import Images

CALIBRATED, ROUNDED_BY = 256, 64  # most images for finding ranges, and for rounding weights
AT_ONCE = 8  # images
MOST, MOST_ALONE = 64, 127  # largest weight in steps; the second in depthwise layers, which sum no pairs
DAMPING = 0.01  # added to a covariance, as a fraction of its mean variance
PIXELS = 1_600  # sampled from AT_ONCE images for a covariance
KINDS = ("Conv", "Add", "Clip", "Relu", "MaxPool")  # layers that compute in 8 bits


def calibrating(images: Images, n: int = CALIBRATED) -> Images:
    """At most n of the images, spread over all."""
    return images[:: max(1, len(images) // n)][:n]


def in_8_bits(model: Any, images: Images, *, windows: bool = True) -> Any:
    """The network with its convolutions in 8 bits; `images` serve to measure the ranges of activations.

    Without `windows`, errors of weights are compensated in 1 x 1 layers only, as in the general model.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    size = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = (
                images.read(np.arange(part.start, part.stop), size) for part in blocks(len(images), AT_ONCE)
            )

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"input": batch}

    if not _convolutions(model):
        raise UsageError("this network has no convolutions, the only layers that are computed in 8 bits; omit --int8")
    whole_bytes = {"axis": 0, "quant_type": QuantType.QInt8, "symmetric": True, "reduce_range": False}
    # the quantiser would otherwise give depthwise layers 7 bits too
    depthwise = {node.input[1]: [whole_bytes] for node in _convolutions(model) if _groups(node) > 1}
    rounded = {
        name: [{**whole_bytes, "rmin": -127 * scale, "rmax": 127 * scale} for scale in scales]
        for name, scales in _round_weights(model, images[:ROUNDED_BY], windows).items()
    }
    before = _before_first_layer(model)
    step = _step_of_pixels(model, before)
    exact = {}
    if step is not None:
        scale, zero = step
        exact[before[-1].output[0]] = [
            {"quant_type": QuantType.QUInt8, "scale": np.array(scale), "zero_point": np.array(zero)}
        ]
    else:
        for node in before:  # these stay in floats; nodes can only be excluded by name
            node.name = node.output[0]
    with tempfile.TemporaryDirectory() as folder:
        floats, made = (f"{folder}/{name}.onnx" for name in ("float", "int8"))
        onnx.save(model, floats)
        how = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True}
        how |= {"reduce_range": True, "op_types_to_quantize": list(KINDS)}
        how |= {"nodes_to_exclude": [node.name for node in before if node.name]}
        how |= {"extra_options": {"TensorQuantOverrides": exact | depthwise | rounded}}
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)  # it advises folding batch norms, which is done already
        try:
            quantize_static(floats, made, Reader(), **how)
        finally:
            logging.disable(level)
        model = onnx.load(made)
    if step is not None:
        _give_pixels(model.graph, before[-1].output[0])
    del model.graph.value_info[:]
    return model


def _convolutions(model: Any) -> list[Any]:
    return [node for node in model.graph.node if node.op_type == "Conv"]


def _groups(node: Any) -> int:
    return next((int(one.i) for one in node.attribute if one.name == "group"), 1)


def _before_first_layer(model: Any) -> list[Any]:
    """The nodes between the pixels and the first convolution."""
    end = next(i for i, node in enumerate(model.graph.node) if node.op_type == "Conv")
    return list(model.graph.node[:end])


def _step_of_pixels(model: Any, before: list[Any]) -> tuple[np.float32, np.uint8] | None:
    """What a step of 1 in a pixel means for the first layer, and which value is its 0, if the same for all pixels."""
    from onnx import numpy_helper

    constants = {one.name: one for one in model.graph.initializer}
    if [node.op_type for node in before] != ["Transpose", "Cast", "Mul", "Add"]:
        return None
    scale, shift = (numpy_helper.to_array(constants[node.input[1]]) for node in before[2:])
    if scale.size > 1 or shift.size > 1:
        return None
    zero = -shift.item() / scale.item()
    if not (0 <= zero <= 255 and abs(zero - round(zero)) < 0.02):
        return None
    return np.float32(scale.item()), np.uint8(round(zero))


def _give_pixels(graph: Any, floats: str) -> None:
    """Remove the conversion of pixels to `floats` and back: the first layer takes pixels directly."""
    made_by = {node.output[0]: node for node in graph.node}
    first = next(node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == floats)
    turn = next(node for node in graph.node if node.op_type == "Transpose")
    replaced, name = [first], floats
    while name != turn.output[0]:  # walk from the floats back
        replaced.append(made_by[name])
        name = made_by[name].input[0]
    for node in replaced:
        graph.node.remove(node)
    turn.output[0] = first.output[0]
    remove_unused(graph)


def remove_unused(graph: Any) -> None:
    """Remove constants that are no longer used."""
    used = {name for node in graph.node for name in node.input}
    for one in [one for one in graph.initializer if one.name not in used]:
        graph.initializer.remove(one)


def _round_weights(model: Any, images: Images, windows: bool) -> dict[str, np.ndarray]:
    """Round the weights of layers to a grid; returns the steps (n_outputs,) float32 of each layer by name.

    Without `windows`, only 1 x 1 layers.
    """
    from onnx import numpy_helper

    constants = {one.name: one for one in model.graph.initializer}
    layers = []
    for node in _convolutions(model):
        n_outputs, n_inputs, *window = constants[node.input[1]].dims
        dense, depthwise = _groups(node) == 1, _groups(node) == n_outputs and n_inputs == 1
        if len(node.input) == 3 and (dense or depthwise) and (windows or (dense and window == [1, 1])):
            layers.append((node, _Window(node.input[0], (window[0], window[1]), depthwise)))
    found = {}
    all_moments = _moments(model, [window for _, window in layers], images)
    for (node, window), (mean, covariance) in zip(layers, all_moments, strict=True):
        weights, bias = (constants[name] for name in node.input[1:])
        before = numpy_helper.to_array(weights)
        W = before.astype(np.float64).reshape(len(before), -1)
        most = MOST_ALONE if window.depthwise else MOST
        largest = np.abs(W).max(1)
        steps = (np.where(largest > 0, largest, 1) / most).astype(np.float32)
        if window.depthwise:
            each = zip(W[:, None], covariance, steps, strict=True)
            R = np.concatenate([_rounded(w, C, step, most) for w, C, step in each])
            shift = ((W - R) * mean).sum(1)
        else:
            R = _rounded(W, covariance, steps, most)
            shift = (W - R) @ mean
        b = numpy_helper.to_array(bias) + shift  # keeps the means of the outputs
        for constant, value in ((weights, R.reshape(before.shape)), (bias, b)):
            constant.CopyFrom(numpy_helper.from_array(value.astype(np.float32), constant.name))
        found[weights.name] = steps
    return found


class _Window(NamedTuple):
    """The window of a tensor that a layer takes at once."""

    tensor: str
    sides: tuple[int, int]
    depthwise: bool

    def some(self, maps: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Some windows of maps (n, channels, h, w): (m, k), or (m, channels, k) if channels are separate."""
        if self.sides == (1, 1):
            x = np.moveaxis(maps, 1, 3).reshape(-1, maps.shape[1])
            return rng.permutation(x)[:PIXELS].astype(np.float64)
        margins = [(0, 0), (0, 0), *((side // 2, side // 2) for side in self.sides)]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(maps, margins), self.sides, (2, 3))
        n, _, h, w = windows.shape[:4]
        images, rows, columns = np.unravel_index(rng.choice(n * h * w, min(PIXELS, n * h * w), False), (n, h, w))
        x = windows[images, :, rows, columns].astype(np.float64)
        return x.reshape(*x.shape[:2], -1) if self.depthwise else x.reshape(len(x), -1)


def _moments(model: Any, windows: list[_Window], images: Images) -> list[tuple[np.ndarray, np.ndarray]]:
    """Mean (..., k) and covariance (..., k, k) of windows over some images."""
    import onnx
    import onnxruntime

    if not windows:
        return []
    whole = onnx.ModelProto.FromString(model.SerializeToString())
    names = list(dict.fromkeys(window.tensor for window in windows))
    whole.graph.output.extend(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    size = whole.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    session = onnxruntime.InferenceSession(whole.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    sums: list[list[Any]] = [[0, 0.0, 0.0] for _ in windows]
    for rows in blocks(len(images), AT_ONCE):
        batch = images.read(np.arange(rows.start, rows.stop), size)
        maps = dict(zip(names, session.run(names, {"input": batch}), strict=True))
        for window, total in zip(windows, sums, strict=True):
            x = window.some(maps[window.tensor], rng)
            products = np.einsum("ncj,nck->cjk", x, x, optimize=True) if window.depthwise else x.T @ x
            total[:] = total[0] + len(x), total[1] + x.sum(0), total[2] + products
    return [(mean := first / n, second / n - mean[..., None] * mean[..., None, :]) for n, first, second in sums]


def _rounded(W: np.ndarray, covariance: np.ndarray, steps: np.ndarray, most: int) -> np.ndarray:
    """W (n_outputs, k) in whole steps of each output; later weights compensate for the error of each."""
    order = np.argsort(-np.diag(covariance))  # the inputs that vary most come first
    left, C = W[:, order].copy(), covariance[np.ix_(order, order)]
    C += (DAMPING * np.diag(C).mean() or 1.0) * np.eye(len(C))  # 1 if the inputs do not vary at all
    U = np.linalg.cholesky(np.linalg.inv(C)).T
    R = np.empty_like(W)
    for k, column in enumerate(order):
        R[:, column] = np.clip(np.round(left[:, k] / steps), -most, most) * steps
        left[:, k + 1 :] -= np.outer((left[:, k] - R[:, column]) / U[k, k], U[k, k + 1 :])
    return R
