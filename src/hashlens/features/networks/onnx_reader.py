"""ONNX reader: the bytes of an untrusted ONNX file in, a session out, after checking that it can only compute.

A graph may have only the operators that onnx_graph.py, export.py and onnxruntime's quantiser write, no subgraphs, no
functions, and no tensors in other files. Protobuf is read here, field by field, because the package `onnx` may not be
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hashlens.features.extractor import Forward, one_core_session

OPERATORS = {
    *("Add", "AveragePool", "Cast", "Clip", "Conv", "Flatten", "Gather", "Gemm", "GlobalAveragePool", "Identity"),
    *("DequantizeLinear", "LRN", "MatMul", "QuantizeLinear", "ReduceSum", "MaxPool", "Mul", "Relu", "Softmax", "Sub"),
    *("Div", "Erf", "LayerNormalization", "Reshape", "Sqrt", "Tanh", "Transpose"),
}
# field: name, for all fields that we write; any other field is refused
MODEL = {
    1: "ir_version",
    2: "producer",
    3: "producer",
    4: "domain",
    5: "model_version",
    7: "graph",
    8: "opset",
    14: "note",
}
NOTE = {1: "name", 2: "value"}
GRAPH = {1: "node", 2: "name", 5: "initializer", 11: "input", 12: "output"}
NODE = {1: "input", 2: "output", 3: "name", 4: "operator", 5: "attribute"}
ATTRIBUTE = {1: "name", 2: "float", 3: "int", 4: "text", 7: "floats", 8: "ints", 20: "type"}
FLOAT, INT8, HALF, DOUBLE = 1, 3, 10, 11  # types of tensors
TENSOR = {1: "dims", 2: "type", 4: "floats", 5: "ints", 7: "longs", 8: "name", 9: "raw", 10: "doubles"}


def safe_session(content: bytes, shape: tuple[int, ...], width: int) -> Forward:
    """A function from uint8 batches to rows of `width` numbers; a ValueError if the file is anything else.

    `shape` is the shape of one image, (1, size, size, 3).
    """
    _require_plain(content)
    forward = one_core_session(content)
    try:
        found = forward(np.zeros((2, *shape[1:]), np.uint8))
    except Exception as error:  # onnxruntime's own errors have no common class
        raise ValueError(f"its graph does not run: {' '.join(str(error).split())[:150]}") from error
    if found.shape != (2, width) or found.dtype.kind != "f":
        raise ValueError(f"its graph gives {found.dtype} {found.shape[1:]} per image, not {width} numbers")
    return forward


def _require_plain(content: bytes) -> None:
    graphs = 0
    for name, value in _fields(content, MODEL, "a model"):
        if name == "note" and not bytes(dict(_fields(value, NOTE, "a note")).get("name", b"")).startswith(b"onnx."):
            raise ValueError("it has notes that the quantiser does not write")
        if name == "graph":
            graphs += 1
            _require_plain_graph(value)
        if name == "domain" and value:
            raise ValueError("its operators are not the usual ones")
    if graphs != 1:
        raise ValueError(f"it has {graphs} graphs")


def _require_plain_graph(content: Any) -> None:
    for name, value in _fields(content, GRAPH, "a graph"):
        if name == "node":
            for inner, text in _fields(value, NODE, "a node"):
                if inner == "operator" and bytes(text).decode(errors="replace") not in OPERATORS:
                    raise ValueError(f"it has the operator {bytes(text)[:40].decode(errors='replace')}")
                if inner == "attribute":
                    list(_fields(text, ATTRIBUTE, "an attribute"))
        elif name == "initializer":
            list(_fields(value, TENSOR, "a tensor"))


def _fields(content: Any, known: dict[int, str], what: str) -> Iterator[tuple[str, Any]]:
    """The fields of a protobuf message: integers as integers, everything else as bytes."""
    for field, value, _ in _pieces(content, what):
        if field not in known:
            raise ValueError(f"{what} has the field {field}, which we do not write")
        yield known[field], value


def _pieces(content: Any, what: str) -> Iterator[tuple[int, Any, memoryview]]:
    """Number and value of each field of a protobuf message, and all its bytes."""
    if not isinstance(content, bytes | memoryview):
        raise ValueError(f"{what} is not a message")
    view, at = memoryview(content), 0
    while at < len(view):
        start = at
        tag, at = _number(view, at)
        field, kind = tag >> 3, tag & 7
        value: Any
        if kind == 0:
            value, at = _number(view, at)
        elif kind in (1, 5):
            n = 8 if kind == 1 else 4
            value, at = view[at : at + n], at + n
        elif kind == 2:
            n, at = _number(view, at)
            value, at = view[at : at + n], at + n
        else:
            raise ValueError(f"{what} has a field of kind {kind}")
        if at > len(view):
            raise ValueError(f"{what} is cut short")
        yield field, value, view[start:at]


def _number(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at >= len(view):
            raise ValueError("it is cut short")
        byte, at = view[at], at + 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at
    raise ValueError("it has a number that is too long")


def multiply_outputs(content: bytes, A: np.ndarray) -> bytes:
    """The same file with u A (A is square) in place of its outputs u; a ValueError if u is not from a linear layer.

    Only the weights of that layer change. Weights stored in 8 or 16 bits get 32: rounded again, they would not give the
    signs of u A.
    """
    _require_plain(content)
    graph = dict(_fields(content, MODEL, "a model"))["graph"]
    nodes, tensors = [], {}
    for name, value in _fields(graph, GRAPH, "a graph"):
        if name == "node":
            nodes.append(_Node(value))
        elif name == "initializer":
            fields = list(_fields(value, TENSOR, "a tensor"))
            tensors[bytes(dict(fields)["name"]).decode()] = fields
    made_by = {name: node for node in nodes for name in node.outputs}
    layer = made_by.get("output")  # a second output has the second code, which is unchanged
    while layer is not None and layer.operator == "Identity":
        layer = made_by.get(layer.inputs[0])
    if layer is None or layer.operator not in ("MatMul", "Gemm"):
        raise ValueError("its last layer is not a linear one")
    transposed = layer.operator == "Gemm" and layer.integers.get("transB", 0) == 1
    changed: dict[str, bytes] = {}
    for place, given in enumerate(layer.inputs[1:], 1):
        name = _before_cast(given, made_by)
        if sum(node.inputs.count(name) for node in nodes) > 1:
            raise ValueError(f"{name} is used by another layer too")
        array = _array(tensors, name)
        turned = array.T if place == 1 and transposed else array
        if turned.shape[-1] != len(A):
            raise ValueError(f"its last layer gives {turned.shape[-1]} numbers")
        product = turned.astype(np.float64) @ A
        changed[name] = _tensor(name, product.T if turned is not array else product, array.dtype.itemsize == 8)

    def new_tensor(old: Any) -> bytes:
        return changed.get(bytes(dict(_fields(old, TENSOR, "a tensor"))["name"]).decode(), bytes(old))

    return _with_new(content, 7, lambda graph: _with_new(graph, 5, new_tensor))


def _before_cast(name: str, made_by: dict[str, _Node]) -> str:
    """The constant that a layer computes with, which may be stored in fewer bits."""
    while name in made_by and made_by[name].operator == "Cast" and made_by[name].integers.get("to") in (FLOAT, DOUBLE):
        name = made_by[name].inputs[0]
    return name


def _with_new(content: Any, wanted: int, new: Callable[[Any], bytes]) -> bytes:
    """The message with all submessages in field `wanted` replaced."""
    pieces = _pieces(content, "a message")
    return b"".join(_field(number, new(value)) if number == wanted else bytes(all_) for number, value, all_ in pieces)


def _tensor(name: str, array: np.ndarray, double: bool) -> bytes:
    fields: list[tuple[int, int | bytes]] = [(1, n) for n in array.shape]
    raw = np.ascontiguousarray(array, "<f8" if double else "<f4").tobytes()
    fields += [(2, DOUBLE if double else FLOAT), (8, name.encode()), (9, raw)]
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _digits(number << 3) + _digits(value)
    return _digits(number << 3 | 2) + _digits(len(value)) + value


def _digits(value: int) -> bytes:
    """The encoding that `_number` reads."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


class _Node:
    def __init__(self, content: Any):
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.integers: dict[str, int] = {}
        self.operator = ""
        for name, value in _fields(content, NODE, "a node"):
            if name == "input":
                self.inputs.append(bytes(value).decode())
            elif name == "output":
                self.outputs.append(bytes(value).decode())
            elif name == "operator":
                self.operator = bytes(value).decode()
            elif name == "attribute":
                fields = dict(_fields(value, ATTRIBUTE, "an attribute"))
                if isinstance(fields.get("int"), int):
                    self.integers[bytes(fields["name"]).decode()] = fields["int"]


def _array(tensors: dict[str, Any], name: str) -> np.ndarray:
    """The values of a constant."""
    if name not in tensors:
        raise ValueError(f"{name} is not a constant")
    fields = dict(tensors[name])
    kinds: dict[Any, str] = {FLOAT: "<f4", INT8: "i1", HALF: "<f2", DOUBLE: "<f8"}
    if fields.get("type") not in kinds or "raw" not in fields:
        raise ValueError(f"{name} is not an array of numbers")
    dims: list[int] = []
    for what, value in tensors[name]:
        if what == "dims":
            dims += [value] if isinstance(value, int) else _packed(value)
    return np.frombuffer(fields["raw"], kinds[fields["type"]]).reshape(dims)


def _packed(view: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(view):
        value, at = _number(view, at)
        found.append(value)
    return found
