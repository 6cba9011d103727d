"""Export: a trained model in, a folder out that makes the same codes without torch.

EXPORTED/
  config.json       what it is: code length, image size, how images are read, the model that it equals
  model.onnx        uint8 images (n, size, size, 3) RGB in; relaxed outputs (n, n_bits) or features (n, d) out, and, if
                    the model has a second code, those of it (n, second_bits) as a second output
  hasher/           for methods whose projection is not linear: what turns the features into relaxed outputs

A linear projection is part of the graph, so that neither torch nor scikit-learn is needed.
"""

from __future__ import annotations

import hashlib
import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import hashlens
from hashlens.checksums import write_sealed
from hashlens.codes import Codes
from hashlens.codes.encoder import Encoder
from hashlens.codes.model import CONFIG, EXPORTED, MODEL, WEIGHTS, ModelFolder
from hashlens.errors import DataError, MismatchError, UsageError, require
from hashlens.features.extractor import Extractor
from hashlens.features.networks.onnx_reader import safe_session
from hashlens.files import replacing, sha256
from hashlens.machine import work_ahead
from hashlens.progress import Progress
from hashlens.schema import SHA256, TEXT, conform, optional, whole

if TYPE_CHECKING:
    from hashlens.data.images import Images

FORMAT = "hashlens onnx 2"
SCHEMA = {
    "format": FORMAT,
    "hashlens": TEXT,
    "method": TEXT,
    "hasher": ({}, {CONFIG: SHA256, WEIGHTS: SHA256}),
    "n_bits": whole(1, 65_536),
    optional("second_bits"): whole(1, 65_536),  # absent without a second code
    "model": (None, MODEL),
    "sha256": SHA256,
    "input": {
        "name": "input",
        "shape": ["n", whole(8, 4096), whole(8, 4096), 3],
        "type": "uint8",
        "size": whole(8, 4096),
        "color": "RGB",
        "resize": TEXT,
        "normalization": TEXT,
        "mirror": bool,
    },
    "output": TEXT,
}
CHECKED_BITS = 100_000  # compared at least
RESIZE = "turned upright by EXIF, shorter side to size (Pillow's BICUBIC), center crop"
ENOUGH = 0.999  # share of the bits that must equal those of the model


def load_exported(folder: ModelFolder) -> Encoder:
    with folder.damage_errors():
        facts = folder.config()
        if conform(facts.get("format"), TEXT, "format") != FORMAT:
            raise DataError(f"{folder.path} is not a model exported by this version; export it again")
        conform(facts, SCHEMA, CONFIG)
        for name, expected in facts["hasher"].items():
            folder.content(f"hasher/{name}", expected)
        content = folder.content(EXPORTED, facts["sha256"])
        hasher = hashlens.load(folder.path / "hasher") if facts["hasher"] else None
        size, n_bits = facts["input"]["size"], facts["n_bits"]
        if facts["input"]["shape"] != ["n", size, size, 3]:
            raise ValueError(f"its input is {facts['input']['shape']}, not {size} pixels wide and high")
        second_bits = facts.get("second_bits", 0)
        if hasher is not None and (hasher.n_bits, hasher.second_bits_) != (n_bits, second_bits):
            raise ValueError(f"hasher/ makes codes of {hasher.n_bits} bits, not of {n_bits}")
        width = hasher._n_projected if hasher is not None else n_bits + second_bits
        forward = safe_session(content, (1, size, size, 3), width)
        extractor = Extractor(lambda: forward, size, lambda: facts["sha256"])
        claimed = facts["model"] is not None
        how = {"hasher": hasher, "mirror": facts["input"]["mirror"], "model": folder.describe(), "claimed": claimed}
        encoder = Encoder(extractor, n_bits, second_bits=second_bits, **how)
        folder.seal()
        return encoder


def require_exportable(model: Path, out: Path) -> ModelFolder:
    """Refuse at once what would be refused later."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):  # its contents would be deleted if this fails
        raise UsageError(f"{out} exists and is not empty; choose another --out")
    folder = ModelFolder.resolve(model)
    if folder.exported:
        raise UsageError(f"{folder.path} is already an exported model; give the folder of a run or of its model")
    require("torch", "onnx", why="export")
    return folder


def export_onnx(model: Path, out: Path, images: Images, progress: Progress) -> dict[str, Any]:
    """Write the model as ONNX and compare its bits with the model's own.

    If all of at least 100,000 are equal, it is the same model and shares its fingerprint; if some differ, it is another
    model; if more than one in a thousand differs, nothing is written.
    """
    folder = require_exportable(model, out)
    hasher: Any = hashlens.load(folder.path)
    encoder = Encoder.of(hasher, folder.describe())
    content, beside = _graph(hasher, encoder, folder.path)
    facts = {
        "format": FORMAT,
        "hashlens": hashlens.__version__,
        "method": hasher.name,
        "hasher": {},  # its files and their checksums
        "n_bits": encoder.n_bits,
        "model": None,
        "sha256": hashlib.sha256(content).hexdigest(),
        "input": {
            "name": "input",
            "shape": ["n", encoder.size, encoder.size, 3],
            "type": "uint8",
            "size": encoder.size,
            "color": "RGB",
            "resize": RESIZE,
            "normalization": "inside the network",
            "mirror": encoder.mirror,  # the output is the mean of that of the image and that of its mirror image
        },
        "output": "features for hasher/" if beside else "relaxed outputs: bit 1 where > 0, first bit highest",
    }
    if encoder.second_bits:
        facts["second_bits"] = encoder.second_bits
    try:
        with replacing(out / EXPORTED) as temporary:
            temporary.write_bytes(content)
        if beside:
            hasher.save(out / "hasher")
            facts["hasher"] = {file.name: sha256(file) for file in sorted((out / "hasher").iterdir())}
        write_sealed(out / CONFIG, facts)
        check = compare_bits(encoder, Encoder.load(out), images, progress)
        if check["bits_equal"] < ENOUGH:
            raise MismatchError(
                f"only {check['bits_equal']:.2%} of the bits equal those of {model}, {ENOUGH:.1%} are needed; nothing"
                " was exported: please report this with the output of hashlens doctor"
            )
        if check["same_model"]:
            write_sealed(out / CONFIG, facts | {"model": folder.describe()})
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    lengths = {"n_bits": encoder.n_bits, "second_bits": encoder.second_bits}
    return {"out": str(out), **lengths, "bytes": len(content), "image_size": encoder.size, **check}


def compare_bits(ours: Encoder, exported: Encoder, images: Images, progress: Progress) -> dict[str, Any]:
    """How many bits of two models are equal, on the images and as many random crops of them as are needed."""
    from hashlens.hashers.deep.inputs import Windows

    n_bits = ours.n_bits + ours.second_bits
    n_wanted = -(-CHECKED_BITS // n_bits)
    images, n_skipped = _readable(images, n_wanted)
    n_equal = n_checked = 0
    with progress.bar("check", 2 * n_wanted) as advance:
        for seed in count():
            some: Images = images[: n_wanted - n_checked]
            view = Windows(some, seed, noise=16) if seed else some  # few images have few different crops
            signs = [_signs(encoder.codes(view, advance)) for encoder in (ours, exported)]
            n_equal += int((signs[0] == signs[1]).sum())
            n_checked += len(some)
            if n_checked == n_wanted:
                break
    n_bits *= n_checked
    return {
        "n_images": len(images),
        "n_skipped": n_skipped,
        "n_crops": n_checked - len(images),
        "n_checked": n_bits,
        "bits_equal": n_equal / n_bits,
        "same_model": n_equal == n_bits,
    }


def _signs(codes: Codes) -> np.ndarray:
    """Of both codes, side by side."""
    return np.concatenate([one.signs() for one in (codes, codes.second) if one is not None], axis=1)


def _readable(images: Images, n: int) -> tuple[Images, int]:
    """The first n images that can be read, and how many before them cannot."""
    rows, reasons = [], []
    for row, why in enumerate(work_ahead(images.why_unreadable, range(len(images)))):
        if why:
            reasons.append(why)
        else:
            rows.append(row)
        if len(rows) == n:
            break
    if not rows:
        why = f"none of {len(reasons):,} can be read, first: {reasons[0]}" if reasons else "there are none"
        raise DataError(f"the exported model cannot be checked without images ({why}); name others with --images")
    return images[rows], len(reasons)


def _graph(hasher: Any, encoder: Encoder, model: Path) -> tuple[bytes, bool]:
    """The ONNX file, and whether it ends at the features."""
    from hashlens.features.networks.inference import fold
    from hashlens.features.networks.onnx_graph import UnsupportedModule, to_onnx
    from hashlens.hashers.deep.base import DeepHasher
    from hashlens.hashers.shallow.base import LinearHasher

    if encoder.extractor is None:
        raise UsageError(f"{model} was trained on features, not on images; there is no network to export")
    if encoder.extractor.module is None:
        raise UsageError(f"{model} has no network and runs without torch as it is; use it without exporting")
    project, size = type(hasher)._project, encoder.extractor.size
    if isinstance(hasher, DeepHasher) and project is not DeepHasher._project:
        raise UsageError(f"{hasher.name} makes its codes outside the network; it cannot be exported")
    try:
        graph = to_onnx(fold(encoder.extractor.module), np.zeros((1, size, size, 3), np.uint8))
    except UnsupportedModule as error:
        raise UsageError(f"this network has a layer that cannot be written as ONNX ({error})") from error
    if project is LinearHasher._project:
        append_projection(graph.graph, hasher.mean_, hasher.projection_)
        if hasher.second_bits_:
            append_second(graph.graph, hasher.second_mean_, hasher.second_projection_)
    beside = project not in (DeepHasher._project, LinearHasher._project)
    return graph.SerializeToString(), beside


def append_projection(
    graph: Any, mean: np.ndarray, projection: np.ndarray, kept: type[np.floating] = np.float64
) -> None:
    """(x - mean) W in double precision, as `LinearHasher` computes it; W may be `kept` in fewer bits."""
    from onnx import TensorProto, helper, numpy_helper

    graph.node[-1].output[0] = "features"
    graph.initializer.extend(
        numpy_helper.from_array(value, name)
        for name, value in (("mean", mean.astype(np.float64)), ("projection", projection.astype(kept)))
    )
    graph.node.extend(
        [
            helper.make_node("Cast", ["features"], ["double"], to=TensorProto.DOUBLE),
            helper.make_node("Sub", ["double", "mean"], ["centred"]),
            helper.make_node("Cast", ["projection"], ["weights"], to=TensorProto.DOUBLE),
            helper.make_node("MatMul", ["centred", "weights"], ["output"]),
        ]
    )
    graph.output[0].CopyFrom(helper.make_tensor_value_info("output", TensorProto.DOUBLE, None))


def append_second(graph: Any, mean: np.ndarray, projection: np.ndarray) -> None:
    """The same for the second code, after `append_projection`."""
    from onnx import TensorProto, helper, numpy_helper

    graph.initializer.extend(
        numpy_helper.from_array(value.astype(np.float64), name)
        for name, value in (("second_mean", mean), ("second_projection", projection))
    )
    graph.node.extend(
        [
            helper.make_node("Sub", ["double", "second_mean"], ["second_centred"]),
            helper.make_node("MatMul", ["second_centred", "second_projection"], ["second"]),
        ]
    )
    graph.output.append(helper.make_tensor_value_info("second", TensorProto.DOUBLE, None))
