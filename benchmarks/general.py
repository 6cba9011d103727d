"""The model that comes with the package: made, its settings chosen, and measured.

    python -m benchmarks.general DATA choose     # → benchmarks/results/tuning/general.json
    python -m benchmarks.general DATA make       # → src/hashlens/codes/general/
    python -m benchmarks.general DATA measure    # → benchmarks/results/general.json

DATA is a folder with birds100, grocery81, voc2007 and mirflickr25k, unpacked.

The network is EfficientNet-Lite0 in 8 bits: activations have 8, weights 7, so that sums of two products fit in 16 bits
and CPUs with and without VNNI compute the same integers. Pooled features are sums of integers too, exact in float32.
The projection compares images as the network's own ImageNet classifier does: with W its weights, the distance of two
images is that of their W x. ITQ turns the principal directions of W x over unlabelled photos into bits.

Photos: MIRFLICKR-25K numbers 1 to 10,000 calibrate the network and make the projection; on 10,001 to 12,500 settings
are chosen. No other image has a part in the model; 12,501 to 25,000, birds100, grocery81 and voc2007 are for `measure`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import hashlens
from hashlens import Codes, HammingIndex, Labels, open_source
from hashlens.codes.encoder import Encoder
from hashlens.codes.export import FORMAT, RESIZE, append_projection
from hashlens.codes.model import CONFIG, EXPORTED, GENERAL, ModelFolder
from hashlens.data.images import Images
from hashlens.data.labels import relevant
from hashlens.features.extractor import Extractor, extractor, one_core_session
from hashlens.files import write_json
from hashlens.hashers.shallow.itq import quantising_rotation
from hashlens.hashers.shallow.spectral import principal_directions, random_rotation
from hashlens.machine import machine, versions

NETWORK = "efficientnet-lite0"
SIZE, N_BITS = 160, 256
FIT, CHOICE, REPORTED = range(1, 10_001), range(10_001, 12_501), range(12_501, 25_001)  # numbers of MIRFLICKR images
CALIBRATED = 256  # images of FIT
NEAREST = 8
RESULTS = Path(__file__).parent / "results"


def flickr(data: Path, numbers: range) -> tuple[Images, Labels]:
    """The labelled ones of these images."""
    source = open_source(data / "mirflickr25k")
    rows = [row for row, name in enumerate(source.images.names) if int(re.findall(r"\d+", name)[-1]) in numbers]
    return source.images[rows], source.labels[rows]


# --- making ---------------------------------------------------------------------------------------------------------


@cache
def classifier() -> np.ndarray:
    """The weights (1000, 1280) of the ImageNet classifier on top of the network, less their mean."""
    import torch

    from hashlens.features.networks.weights import published_file

    with published_file(NETWORK) as path:
        W = torch.load(path, map_location="cpu", weights_only=True)["_fc.weight"].numpy().astype(np.float64)
    return W - W.mean(0)


def network(size: int) -> Any:
    """The float network as an ONNX graph."""
    from hashlens.features.networks import build_blocks
    from hashlens.features.networks.inference import fold
    from hashlens.features.networks.onnx_graph import to_onnx

    return to_onnx(fold(build_blocks(NETWORK).eval()), np.zeros((1, size, size, 3), np.uint8))


def quantised(size: int, images: Images) -> tuple[Any, float]:
    """The network in 8 bits, whose outputs are sums (n, 1280) of integers over all pixels; and their unit."""
    import onnx
    from onnx import helper, numpy_helper
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.batches = (images.read(np.arange(i, i + 8), size) for i in range(0, len(images) // 8 * 8, 8))

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"input": batch}

    whole = network(size)
    nodes = {node.op_type: node for node in reversed(whole.graph.node)}  # the first of each kind
    pixels = nodes["Add"].output[0]
    constants = {one.name: numpy_helper.to_array(one) for one in whole.graph.initializer}
    scale = np.float32(constants[nodes["Mul"].input[1]].item())
    zero = np.uint8(round(-constants[nodes["Add"].input[1]].item() / scale))  # of a pixel; off by 0.01
    # the sums of products of depthwise layers are not computed in pairs, so their weights may have all 8 bits
    depthwise = {
        node.input[1]: [{"axis": 0, "quant_type": QuantType.QInt8, "symmetric": True, "reduce_range": False}]
        for node in whole.graph.node
        if node.op_type == "Conv" and helper.get_node_attr_value(node, "group") > 1
    }
    exact = {pixels: [{"quant_type": QuantType.QUInt8, "scale": np.array(scale), "zero_point": np.array(zero)}]}
    with tempfile.TemporaryDirectory() as folder:
        before, after = (f"{folder}/{name}.onnx" for name in ("float", "int8"))
        onnx.save(whole, before)
        quantize_static(
            before, after, Reader(), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, per_channel=True,
            reduce_range=True, op_types_to_quantize=["Conv", "Add", "Clip"],
            extra_options={"TensorQuantOverrides": exact | depthwise},
        )  # fmt: skip
        model = onnx.load(after)
    return _integers_at_both_ends(model, pixels)


def _integers_at_both_ends(model: Any, pixels: str) -> tuple[Any, float]:
    """Give pixels to the first layer as they are, and pool the integers of the last one."""
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    made_by = {node.output[0]: node for node in graph.node}
    constants = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    first = next(node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == pixels)
    turn = next(node for node in graph.node if node.op_type == "Transpose")
    pool = next(node for node in graph.node if node.op_type == "GlobalAveragePool")
    last = made_by[pool.input[0]]  # DequantizeLinear
    assert last.op_type == "DequantizeLinear", last.op_type
    replaced, name = [first, last], pixels
    while name != turn.output[0]:  # from the pixels back
        replaced.append(made_by[name])
        name = made_by[name].input[0]
    name = last.output[0]
    while found := next((node for node in graph.node if name in node.input), None):  # from the last layer on
        replaced.append(found)
        name = found.output[0]
    for node in replaced:
        graph.node.remove(node)
    turn.output[0] = first.output[0]
    axes = numpy_helper.from_array(np.array([2, 3]), "pixels")
    graph.initializer.append(axes)
    graph.node.extend(
        [
            helper.make_node("Cast", [last.input[0]], ["whole"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["whole", "pixels"], ["output"], keepdims=0),
        ]
    )
    used = {name for node in graph.node for name in node.input}
    for one in [one for one in graph.initializer if one.name not in used]:
        graph.initializer.remove(one)
    while graph.output:
        graph.output.pop()
    graph.output.append(helper.make_tensor_value_info("output", TensorProto.FLOAT, None))
    del graph.value_info[:]
    return model, float(constants[last.input[1]])


def outputs(graph: Any, images: Images, size: int) -> np.ndarray:
    """What a graph gives for all images."""
    found = Extractor(lambda: one_core_session(graph.SerializeToString()), size, lambda: "")
    step = found.batch
    return np.concatenate(
        [found(images.read(np.arange(i, min(i + step, len(images))), size)) for i in range(0, len(images), step)]
    )


def projection(sums: np.ndarray, n_bits: int, *, metric: str = "classifier", rotation: str = "itq") -> np.ndarray:
    """(1280, n_bits): from centred sums to relaxed codes."""
    A = classifier().T if metric == "classifier" else np.eye(sums.shape[1])
    X = (sums - sums.mean(0)) @ A
    directions = principal_directions(X, n_bits)
    V = X @ directions
    R = quantising_rotation(V, 50, 0) if rotation == "itq" else random_rotation(n_bits, np.random.default_rng(0))
    return A @ directions @ R


def make(data: Path) -> None:
    fit, _ = flickr(data, FIT)
    graph, _ = quantised(SIZE, fit[:: len(fit) // CALIBRATED])
    sums = outputs(graph, fit, SIZE).astype(np.float64)
    P = projection(sums, N_BITS)
    P /= np.abs(P).max()
    append_projection(graph.graph, sums.mean(0).astype(np.float32), P.astype(np.float32))
    content = graph.SerializeToString()
    GENERAL.mkdir(exist_ok=True)
    (GENERAL / EXPORTED).write_bytes(content)
    facts = {
        "format": FORMAT, "hashlens": hashlens.__version__, "method": "general", "hasher": {}, "n_bits": N_BITS,
        "model": None, "sha256": hashlib.sha256(content).hexdigest(),
        "input": {
            "name": "input", "shape": ["n", SIZE, SIZE, 3], "type": "uint8", "size": SIZE, "color": "RGB",
            "resize": RESIZE, "normalization": "inside the network", "mirror": False,
        },
        "output": "relaxed outputs: bit 1 where > 0, first bit highest",
    }  # fmt: skip
    write_json(GENERAL / CONFIG, facts)
    print(f"{GENERAL}: {len(content) / 1e6:.2f} MB, {ModelFolder(GENERAL).fingerprint}")


# --- measuring ------------------------------------------------------------------------------------------------------


def precision(order: np.ndarray, labels: Labels) -> float:
    """Mean share of the nearest that share a label with the query; `order` (n, NEAREST) has rows of others."""
    right = [relevant(labels[[row]], labels[order[row]])[0].mean() for row in range(len(order))]
    return float(np.mean(right))


def by_cosine(X: np.ndarray) -> np.ndarray:
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    similarity = X @ X.T
    np.fill_diagonal(similarity, -2)
    return np.argsort(-similarity, axis=1, kind="stable")[:, :NEAREST]


def by_code(codes: Codes) -> np.ndarray:
    """The nearest as a search gives them, without the query."""
    index = HammingIndex(codes.n_bits)
    index.add(codes)
    ids = index.search(codes, NEAREST + 1)[1]
    others = ids != np.arange(len(ids))[:, None]
    others[others.all(1), -1] = False
    return ids[others].reshape(len(ids), NEAREST)


def choose(data: Path) -> None:
    fit, _ = flickr(data, FIT)
    held, labels = flickr(data, CHOICE)
    tries: list[dict[str, Any]] = []

    def note(score: float, **how: Any) -> None:
        tries.append(how | {"precision_at_8": round(score, 4)})
        print(tries[-1], flush=True)

    for size in (112, 136, 160, 192):
        start = time.process_time()
        X = outputs(network(size), held, size)
        note(precision(by_cosine(X), labels), what="float cosine", size=size, cpu_ms=ms(start, len(held)))
    graph, _ = quantised(SIZE, fit[:: len(fit) // CALIBRATED])
    start = time.process_time()
    theirs = outputs(graph, held, SIZE).astype(np.float64)
    note(precision(by_cosine(theirs), labels), what="8 bits, cosine", size=SIZE, cpu_ms=ms(start, len(held)))
    sums = outputs(graph, fit, SIZE).astype(np.float64)
    for metric in ("features", "classifier"):
        for rotation in ("random", "itq"):
            for n_bits in (64, 128, 192, 256):
                P = projection(sums, n_bits, metric=metric, rotation=rotation)
                codes = Codes.from_relaxed((theirs - sums.mean(0)) @ P)
                note(precision(by_code(codes), labels), metric=metric, rotation=rotation, n_bits=n_bits)
    facts = {"images": "MIRFLICKR-25K, 10,001 to 12,500; projections made on 1 to 10,000", "n": len(held)}
    chosen = {"size": SIZE, "n_bits": N_BITS, "metric": "classifier", "rotation": "itq"}
    _write(RESULTS / "tuning" / "general.json", facts | {"tries": tries, "chosen": chosen})


def ms(start: float, n: int) -> float:
    return round(1000 * (time.process_time() - start) / n, 2)


def measure(data: Path) -> None:
    sources = {name: open_source(data / name) for name in ("birds100", "grocery81")}
    sources["voc2007"] = open_source(data / "voc2007" / "voc2007.csv")
    sets = {name: (source.images, source.labels) for name, source in sources.items()}
    sets["mirflickr"] = flickr(data, REPORTED)
    encoder, rows = Encoder.load(GENERAL), {}
    whole = network(SIZE)
    for name, (images, labels) in sets.items():
        exact = precision(by_cosine(outputs(whole, images, SIZE)), labels)
        ours = precision(by_code(encoder.codes(images)), labels)
        rows[name] = {"n": len(images), "float_cosine": exact, "general": ours, "ratio": ours / exact}
        print(name, rows[name], flush=True)
    _write(RESULTS / "general.json", {"precision_at_8": rows, "speed": speed(sets["birds100"][0], encoder, whole)})


def speed(images: Images, encoder: Encoder, whole: Any, n: int = 256, rounds: int = 5) -> dict[str, Any]:
    """CPU milliseconds per image, in turns: from files, and of the network alone; the least of all rounds."""
    ways = {
        "float, 136 pixels": extractor("deep"),
        f"float, {SIZE} pixels": Extractor(lambda: one_core_session(whole.SerializeToString()), SIZE, lambda: ""),
        f"general, {SIZE} pixels": encoder.require_images(),
    }
    found: dict[str, dict[str, float]] = {name: {"from_files": np.inf, "network": np.inf} for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            read = spent = 0.0
            for i in range(0, n, way.batch):
                start = time.process_time()
                batch = images.read(np.arange(i, i + way.batch), way.size)
                middle = time.process_time()
                way(batch)
                read, spent = read + middle - start, spent + time.process_time() - middle
            each = {"from_files": 1000 * (read + spent) / n, "network": 1000 * spent / n}
            found[name] = {what: min(found[name][what], value) for what, value in each.items()}
    print(found, flush=True)
    *floats, ours = found.values()
    ratios = {what: [round(one[what] / ours[what], 2) for one in floats] for what in ours}
    return {"cpu_ms": found, "times_faster_than_floats": ratios, "threads": 1}


def _write(path: Path, facts: dict[str, Any]) -> None:
    path.write_text(json.dumps(facts | {"versions": versions(), "machine": machine()}, indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("what", choices=["choose", "make", "measure"])
    asked = parser.parse_args()
    {"choose": choose, "make": make, "measure": measure}[asked.what](asked.data)


if __name__ == "__main__":
    main()
