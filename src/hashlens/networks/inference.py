"""Fast forward passes: a trained module in, a function from batches to outputs out.

Batch norms are folded into the convolutions before them. On a CPU the folded network runs in onnxruntime, which is
quicker than eager torch there; on a GPU, or with bfloat16 on a CPU that has instructions for it, it runs in torch.
"""

from __future__ import annotations

import copy
import ctypes
import platform
from collections.abc import Callable
from threading import Lock

import numpy as np
import torch
from torch import fx, nn

from hashlens.errors import UsageError
from hashlens.networks.onnx_graph import UnsupportedModule, to_onnx
from hashlens.networks.preprocessing import Normalise
from hashlens.networks.session import one_core_session
from hashlens.threads import n_threads

Forward = Callable[[np.ndarray], np.ndarray]


def choose_device(device: str = "auto") -> str:
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("there is no GPU that torch can use here; leave out --device, or use cpu")
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
            return one_core_session(to_onnx(folded, example).SerializeToString())
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
        whole = isinstance(m, nn.Conv2d | nn.AdaptiveAvgPool2d | Normalise) or getattr(m, "untraceable", False)
        return whole or super().is_leaf_module(m, name)


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
