"""Fast forward passes: a trained module in, a function from batches to outputs out.

Batch norms are folded into the convolutions before them. On a CPU the folded network runs in onnxruntime, which is
quicker than eager torch there; on a GPU, or with bfloat16 on a CPU that has instructions for it, it runs in torch.
"""

from __future__ import annotations

import copy
import ctypes
import operator
import platform
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from hashlens.threads import n_threads

Forward = Callable[[np.ndarray], np.ndarray]


class Normalise(nn.Module):
    """Pictures (b, h, w, 3) uint8 to (b, 3, h, w) float, minus the mean, divided by the deviation."""

    def __init__(self, mean: float, std: float):
        super().__init__()
        self.scale = 1 / (255 * std)
        self.shift = -mean / std

    def extra_repr(self) -> str:  # part of what cached features depend on
        return f"{self.scale}, {self.shift}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 3, 1, 2).float().mul(self.scale).add(self.shift)


def choose_device(device: str = "auto") -> str:
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def choose_precision(precision: str = "auto", device: str = "cpu") -> str:
    """bfloat16 where the hardware computes with it; elsewhere it is emulated and many times slower."""
    if precision != "auto":
        return precision
    if device == "cpu":
        native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    else:
        native = torch.cuda.is_bf16_supported()
    return "bfloat16" if native else "float32"


def set_layout(module: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Change the order in which the weights of convolutions lie in memory; channels last is quicker on CPUs."""
    return module.to(memory_format=layout)  # type: ignore[call-overload]


def prepare_cpu() -> None:
    """Set the number of threads, and keep freed memory instead of returning it to the system after every operation.

    Large tensors are otherwise mapped and unmapped at each step; the page faults cost half of the time.
    """
    torch.set_num_threads(n_threads())
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # from malloc.h
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
        libc.mallopt(top_pad, 64 << 20)


def forward_function(
    module: nn.Module, example: np.ndarray, device: str = "cpu", precision: str = "float32"
) -> Forward:
    """`module` in evaluation mode as a function from arrays to float32 arrays; `example` has the shape of one batch.

    It may be called from several threads at once: on a CPU each call keeps one core busy.
    """
    folded = fold(module)
    if device == "cpu" and precision == "float32":
        try:
            return _onnx_function(to_onnx(folded, example))
        except (ImportError, UnsupportedModule):  # eager torch does the same, more slowly
            pass
    set_layout(folded.to(device), torch.channels_last)

    one_at_a_time = Lock()  # torch itself uses all cores

    def forward(batch: np.ndarray) -> np.ndarray:
        with (
            one_at_a_time,
            torch.inference_mode(),
            torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"),
        ):
            return folded(torch.from_numpy(batch).to(device)).float().cpu().numpy()

    return forward


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, name: str) -> bool:
        return isinstance(m, nn.Conv2d | nn.AdaptiveAvgPool2d | Normalise) or super().is_leaf_module(m, name)


def fold(module: nn.Module) -> fx.GraphModule:
    """A copy in evaluation mode, each batch norm folded into the convolution before it."""
    module = copy.deepcopy(module).cpu().float().eval()
    graph = _Tracer().trace(module)
    traced = fx.GraphModule(module, graph)
    for node in list(graph.nodes):
        if node.op != "call_module" or not isinstance(norm := traced.get_submodule(node.target), nn.BatchNorm2d):
            continue
        before = node.args[0]
        conv = traced.get_submodule(before.target) if before.op == "call_module" else None
        if isinstance(conv, nn.Conv2d) and len(before.users) == 1:
            assert norm.running_mean is not None and norm.running_var is not None
            scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
            bias = torch.zeros_like(scale) if conv.bias is None else conv.bias
            conv.weight = nn.Parameter(conv.weight * scale[:, None, None, None], requires_grad=False)
            conv.bias = nn.Parameter(norm.bias + (bias - norm.running_mean) * scale, requires_grad=False)
            node.replace_all_uses_with(before)
            graph.erase_node(node)
    graph.lint()
    traced.recompile()
    return traced


class UnsupportedModule(Exception):
    """A layer that the ONNX writer does not know."""


def to_onnx(folded: fx.GraphModule, example: np.ndarray) -> Any:
    """The folded network as an ONNX model with a free batch dimension."""
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(value: Any) -> str:
        array = value.detach().numpy() if isinstance(value, torch.Tensor) else value
        constants.append(numpy_helper.from_array(np.ascontiguousarray(array), f"c{len(constants)}"))
        return constants[-1].name

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, list(inputs), [f"t{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def layer(m: nn.Module, x: str) -> str:
        if isinstance(m, nn.Conv2d):
            inputs = [x, constant(m.weight)] + ([] if m.bias is None else [constant(m.bias)])
            padding = {"pads": [*m.padding, *m.padding]} if type(m) is nn.Conv2d else {"auto_pad": "SAME_UPPER"}
            return add("Conv", *inputs, kernel_shape=m.kernel_size, strides=m.stride, group=m.groups, **padding)
        if isinstance(m, nn.ReLU6):
            return add("Clip", x, constant(np.float32(0)), constant(np.float32(6)))
        if isinstance(m, nn.ReLU):
            return add("Relu", x)
        if isinstance(m, nn.MaxPool2d):
            size, stride = [m.kernel_size] * 2, [m.stride] * 2
            return add("MaxPool", x, kernel_shape=size, strides=stride, ceil_mode=int(m.ceil_mode))
        if isinstance(m, nn.AdaptiveAvgPool2d) and m.output_size == 1:
            return add("GlobalAveragePool", x)
        if isinstance(m, nn.Flatten):
            return add("Flatten", x)
        if isinstance(m, nn.Linear):
            return add("Gemm", x, constant(m.weight), constant(m.bias), transB=1)
        if isinstance(m, nn.Identity | nn.Dropout):
            return x
        if isinstance(m, Normalise):
            floats = add("Cast", add("Transpose", x, perm=[0, 3, 1, 2]), to=TensorProto.FLOAT)
            return add("Add", add("Mul", floats, constant(np.float32(m.scale))), constant(np.float32(m.shift)))
        raise UnsupportedModule(type(m).__name__)

    names: dict[fx.Node, str] = {}
    for node in folded.graph.nodes:
        if node.op == "placeholder":
            names[node] = "input"
        elif node.op == "call_module":
            names[node] = layer(folded.get_submodule(node.target), names[node.args[0]])
        elif node.op == "call_function" and node.target is operator.add:
            names[node] = add("Add", names[node.args[0]], names[node.args[1]])
        elif node.op == "output":
            nodes.append(helper.make_node("Identity", [names[node.args[0]]], ["output"]))
        else:
            raise UnsupportedModule(str(node.target))
    kind = helper.np_dtype_to_tensor_dtype(example.dtype)
    graph = helper.make_graph(
        nodes,
        "hashlens",
        [helper.make_tensor_value_info("input", kind, ["batch", *example.shape[1:]])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _onnx_function(model: Any) -> Forward:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return lambda batch: session.run(None, {"input": batch})[0]
