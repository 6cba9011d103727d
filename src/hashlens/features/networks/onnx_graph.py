"""ONNX writer: a traced network in evaluation mode in, an ONNX model with a free batch dimension out."""

import operator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from hashlens.data.resize import bicubic
from hashlens.features.networks.normalise import Normalise

OUTPUTS = ("output", "second")  # names: the hash layer, and the second code


class UnsupportedModule(Exception):
    """A layer, or a layer option, that the ONNX writer does not support."""


def to_onnx(folded: fx.GraphModule, example: np.ndarray) -> Any:
    """The folded network as an ONNX model; `example` has the shape of one batch."""
    try:
        return _Writer(folded, example).model()
    except KeyError as error:  # an input that is not a layer's output, such as the 1 in x + 1
        raise UnsupportedModule(f"an operation on {error}") from error


class _Writer:
    def __init__(self, folded: fx.GraphModule, example: np.ndarray):
        self.folded, self.example = folded, example
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def model(self) -> Any:
        from onnx import TensorProto, helper

        names: dict[fx.Node, str] = {}
        joined: list[str] = []
        for node in self.folded.graph.nodes:
            if node.op == "placeholder":
                names[node] = "input"
            elif node.op == "call_module":
                names[node] = self.layer(self.folded.get_submodule(node.target), names[node.args[0]], node.args[0])
            elif node.op == "call_function" and node.target is operator.add:
                names[node] = self.add("Add", names[node.args[0]], names[node.args[1]])
            elif node.op == "call_function" and node.target is torch.cat and next(iter(node.users)).op == "output":
                joined = [names[one] for one in node.args[0]]  # the first and the second code
            elif node.op == "output":
                ends = joined or [names[node.args[0]]]
                for end, name in zip(ends, OUTPUTS, strict=False):
                    self.nodes.append(helper.make_node("Identity", [end], [name]))
            else:
                raise UnsupportedModule(str(node.target))
        kind = helper.np_dtype_to_tensor_dtype(self.example.dtype)
        graph = helper.make_graph(
            self.nodes,
            "hashlens",
            [helper.make_tensor_value_info("input", kind, ["batch", *self.example.shape[1:]])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in OUTPUTS[: len(ends)]],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        array = value.detach().numpy() if isinstance(value, torch.Tensor) else value
        name = f"c{len(self.constants)}"
        # `ascontiguousarray` would turn a single number into an array of one
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(op, list(inputs), [f"t{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]

    @cached_property
    def shapes(self) -> dict[fx.Node, torch.Size]:
        """Shapes of all tensors in the network, for layers that depend on the size of their input."""
        from torch.fx.passes.shape_prop import ShapeProp

        with torch.inference_mode():
            ShapeProp(self.folded).propagate(torch.from_numpy(self.example))
        return {node: node.meta["tensor_meta"].shape for node in self.folded.graph.nodes if "tensor_meta" in node.meta}

    def layer(self, m: nn.Module, x: str, source: fx.Node) -> str:
        if isinstance(m, nn.Conv2d):
            return self.convolution(m, x)
        if isinstance(m, nn.ReLU6):
            return self.add("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))
        if isinstance(m, nn.ReLU):
            return self.add("Relu", x)
        if isinstance(m, nn.MaxPool2d | nn.AvgPool2d):
            return self.pooling(m, x)
        if isinstance(m, nn.AdaptiveAvgPool2d):
            return self.adaptive_pooling(m, x, source)
        # for even sizes torch's window is longer at the front, ONNX's at the back
        if isinstance(m, nn.LocalResponseNorm) and m.size % 2:
            return self.add("LRN", x, size=m.size, alpha=m.alpha, beta=m.beta, bias=m.k)
        if isinstance(m, nn.Flatten) and (m.start_dim, m.end_dim) == (1, -1):
            return self.add("Flatten", x)
        if isinstance(m, nn.Linear):
            return self.linear(m, x, flat=len(self.shapes[source]) == 2)
        if isinstance(m, nn.Tanh):
            return self.add("Tanh", x)
        if isinstance(m, nn.Softmax) and m.dim == 1:
            return self.add("Softmax", x, axis=1)
        if isinstance(m, nn.GELU) and m.approximate == "none":
            half = self.add("Mul", x, self.constant(np.float32(0.5)))
            spread = self.add("Erf", self.add("Div", x, self.constant(np.float32(2**0.5))))
            return self.add("Mul", half, self.add("Add", spread, self.constant(np.float32(1))))
        if isinstance(m, nn.LayerNorm) and len(m.normalized_shape) == 1 and m.bias is not None:
            return self.add("LayerNormalization", x, self.constant(m.weight), self.constant(m.bias), epsilon=m.eps)
        if isinstance(m, nn.Identity | nn.Dropout):
            return x
        if isinstance(m, Normalise):
            return self.preprocessing(m, x)
        if callable(dense := getattr(m, "dense", None)):  # a layer that can be written as a dense one
            return self.layer(dense(), x, source)
        if callable(write := getattr(m, "write_onnx", None)):  # a layer that writes itself
            return write(self, x, self.shapes[source])
        raise UnsupportedModule(str(m))

    def linear(self, m: nn.Linear, x: str, flat: bool = False) -> str:
        """`flat` inputs are rows; others have more dimensions."""
        if flat:
            bias = [] if m.bias is None else [self.constant(m.bias)]
            return self.add("Gemm", x, self.constant(m.weight), *bias, transB=1)
        x = self.add("MatMul", x, self.constant(m.weight.T))
        return x if m.bias is None else self.add("Add", x, self.constant(m.bias))

    def reshape(self, x: str, *shape: int) -> str:
        """Reshape x; 0 keeps a dimension."""
        return self.add("Reshape", x, self.constant(np.array(shape)))

    def convolution(self, m: nn.Conv2d, x: str) -> str:
        auto_pad = getattr(m, "auto_pad", None)  # a convolution with its own padding rule
        if auto_pad is None and (type(m) is not nn.Conv2d or isinstance(m.padding, str) or m.padding_mode != "zeros"):
            raise UnsupportedModule(str(m))
        inputs = [x, self.constant(m.weight)] + ([] if m.bias is None else [self.constant(m.bias)])
        padding = {"auto_pad": auto_pad} if auto_pad else {"pads": [*m.padding, *m.padding]}
        shape = {"kernel_shape": m.kernel_size, "strides": m.stride, "dilations": m.dilation, "group": m.groups}
        return self.add("Conv", *inputs, **shape, **padding)

    def pooling(self, m: nn.MaxPool2d | nn.AvgPool2d, x: str) -> str:
        pads = _pair(m.padding) * 2
        shape = {"kernel_shape": _pair(m.kernel_size), "strides": _pair(m.stride), "pads": pads}
        if isinstance(m, nn.MaxPool2d):
            # torch drops a last window that starts in the padding, ONNX does not
            if m.return_indices or (m.ceil_mode and any(pads)):
                raise UnsupportedModule(str(m))
            return self.add("MaxPool", x, ceil_mode=int(m.ceil_mode), dilations=_pair(m.dilation), **shape)
        if m.ceil_mode or m.divisor_override is not None:
            raise UnsupportedModule(str(m))
        return self.add("AveragePool", x, count_include_pad=int(m.count_include_pad), **shape)

    def adaptive_pooling(self, m: nn.AdaptiveAvgPool2d, x: str, source: fx.Node) -> str:
        rows, columns = _pair(m.output_size)
        if rows == columns == 1:
            return self.add("GlobalAveragePool", x)
        if rows is None or columns is None:
            raise UnsupportedModule(str(m))
        height, width = self.shapes[source][-2:]
        return self.products(x, _means(height, rows), _means(width, columns))

    def products(self, x: str, down: np.ndarray, across: np.ndarray) -> str:
        """Resize both dimensions, each by a matrix (new size, old size)."""
        if down.shape[0] == down.shape[1] and across.shape[0] == across.shape[1]:
            return x
        return self.add("MatMul", self.add("MatMul", self.constant(down), x), self.constant(across.T))

    def preprocessing(self, m: Normalise, x: str) -> str:
        from onnx import TensorProto

        x = self.add("Transpose", x, perm=[0, 3, 1, 2])
        if m.colour == "BGR":
            x = self.add("Gather", x, self.constant(np.array([2, 1, 0])), axis=1)
        x = self.add("Cast", x, to=TensorProto.FLOAT)
        if m.size is not None:
            x = self.products(x, *(bicubic(n, m.size) for n in self.example.shape[1:3]))
        return self.add("Add", self.add("Mul", x, self.constant(m.scale)), self.constant(m.shift))


def _pair(value: Any) -> list[Any]:
    return [value, value] if isinstance(value, int) else list(value)


def _means(size: int, target: int) -> np.ndarray:
    """(target, size): each row averages one window of adaptive pooling; windows may overlap."""
    matrix = np.zeros((target, size), np.float32)
    for row in range(target):
        part = slice(row * size // target, -(-(row + 1) * size // target))
        matrix[row, part] = 1 / (part.stop - part.start)
    return matrix
