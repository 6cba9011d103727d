"""Fast forward passes: a trained module in, a function from batches to outputs out.

Batch norms are folded into the convolutions before them. On a CPU the folded network runs in onnxruntime, which is
faster than eager torch there; on a GPU, or with layers that the ONNX writer does not support, it runs in torch.
"""

import copy
import ctypes
import platform
from threading import Lock

import numpy as np
import torch
from torch import fx, nn

from hashlens.errors import UsageError
from hashlens.features.extractor import BATCH, Forward, in_blocks, one_core_session
from hashlens.features.networks.normalise import Normalise
from hashlens.features.networks.onnx_graph import UnsupportedModule, to_onnx
from hashlens.machine import n_threads


def choose_device(device: str = "auto") -> str:
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("torch finds no GPU here; omit --device, or use cpu")
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def set_layout(module: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Change the memory layout of convolution weights; channels last is faster on CPUs."""
    return module.to(memory_format=layout)  # type: ignore[call-overload]


def prepare_cpu() -> None:
    """Set the number of threads, and keep freed memory instead of returning it to the system after every operation.

    Otherwise large tensors are mapped and unmapped at each step, and page faults take half of the time.
    """
    torch.set_num_threads(n_threads())
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # from malloc.h
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
        libc.mallopt(top_pad, 64 << 20)


def forward_function(module: nn.Module, example: np.ndarray, device: str = "cpu") -> Forward:
    """`module` in evaluation mode as a function from arrays to float32 arrays; `example` has the shape of one batch.

    It may be called from several threads at once: on a CPU each call keeps one core busy.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # TF32 has 10 bits, float32 has 23
    try:
        folded: nn.Module = fold(module)
    except UnsupportedModule:
        folded = evaluated(module)
    if device == "cpu":
        try:
            if isinstance(folded, fx.GraphModule):
                return one_core_session(to_onnx(folded, example).SerializeToString())
        except (ImportError, UnsupportedModule):  # fall back to eager torch, which is slower
            pass
    set_layout(folded.to(device), torch.channels_last)

    one_at_a_time = Lock()  # torch itself uses all cores

    def forward(batch: np.ndarray) -> np.ndarray:
        with one_at_a_time, torch.inference_mode():
            return folded(torch.from_numpy(batch).to(device)).float().cpu().numpy()

    # torch's choice of kernels depends on the number of images, and kernels round differently
    return lambda batch: in_blocks(forward, batch, BATCH[device])


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, name: str) -> bool:
        whole = isinstance(m, nn.Conv2d | nn.AdaptiveAvgPool2d | Normalise) or getattr(m, "untraceable", False)
        return whole or super().is_leaf_module(m, name)


def evaluated(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode, in float32 on the CPU."""
    return copy.deepcopy(module).cpu().float().eval()


def fold(module: nn.Module) -> fx.GraphModule:
    """A copy in evaluation mode, each batch norm folded into the convolution before it."""
    module = evaluated(module)
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # a user's module may raise anything
        raise UnsupportedModule(f"{type(module).__name__} cannot be traced: {error}") from error
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
