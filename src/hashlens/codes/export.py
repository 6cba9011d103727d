"""Export: a trained model in, a folder out that makes the same codes without torch.

EXPORTED/
  config.json       code length, image size, how images are read, the original model
  model.onnx        uint8 images (n, size, size, 3) RGB in; relaxed outputs (n, n_bits) or features (n, d) out, and, if
                    the model has a second code, those of it (n, second_bits) as a second output
  hasher/           for methods whose projection is not linear: what turns the features into relaxed outputs

A linear projection is part of the graph, so that neither torch nor scikit-learn is needed. With int8 the network
computes in 8 bits (int8.py), about twice as fast, but as a different model, whose codes do not mix with the original's.
"""

from __future__ import annotations

import hashlib
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import hashlens
from hashlens.checksums import write_sealed
from hashlens.codes import Codes
from hashlens.codes.encoder import Encoder
from hashlens.codes.model import CONFIG, EXPORTED, MODEL, WEIGHTS, ModelFolder
from hashlens.data.images import Images, as_images
from hashlens.data.labels import Labels, relevant
from hashlens.errors import DataError, MismatchError, UsageError, require
from hashlens.features.extractor import Extractor
from hashlens.features.networks.onnx_reader import safe_session
from hashlens.files import replacing, sha256
from hashlens.machine import work_ahead
from hashlens.progress import Progress
from hashlens.schema import SHA256, TEXT, conform, optional, whole

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
    optional("int8"): {
        "calibrated_on": whole(1, 2**31),
        "n_images": whole(1, 2**31),
        "bits_equal": float,
        "map": (None, float),
        "map_float": (None, float),
    },
}
CHECKED_BITS = 100_000  # minimum number to compare
RESIZE = "turned upright by EXIF, shorter side to size (Pillow's BICUBIC), center crop"
ENOUGH = 0.999  # share of bits that must equal the model's
ENOUGH_INT8, MEASURED = 0.9, 2_000  # the same in 8 bits, and the most images to measure it on


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
    """Refuse early what would fail later."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):  # a failed export would delete its contents
        raise UsageError(f"{out} exists and is not empty; choose another --out")
    folder = ModelFolder.resolve(model)
    if folder.exported:
        raise UsageError(f"{folder.path} is already an exported model; pass the folder of a run or its model")
    require("torch", "onnx", why="export")
    return folder


def export(
    model: Path | str,
    out: Path | str,
    images: Any,
    *,
    int8: bool = False,
    calibrate: Any = None,
    progress: Progress | bool = False,
) -> dict[str, Any]:
    """Write a model to the folder `out`, so that it encodes without torch, and check its codes on `images`.

    With `int8` the network computes in 8 bits, with ranges measured on the images `calibrate` (by default, on some of
    `images`). The result has the share of equal bits and, if the images have labels, the MAP of both models.

    >>> hashlens.export("runs/pets", "pets-int8", hashlens.open_source("photos"), int8=True)
    """
    given = None if calibrate is None else as_images(calibrate)
    return export_onnx(Path(model), Path(out), as_images(images), Progress.of(progress), int8=int8, calibrate=given)


def export_onnx(
    model: Path, out: Path, images: Images, progress: Progress, *, int8: bool = False, calibrate: Images | None = None
) -> dict[str, Any]:
    """Write the model as ONNX and compare its bits with the model's own.

    If all of at least 100,000 bits are equal, it counts as the same model, with the same fingerprint; if some differ,
    as a different model; if more than one in a thousand differs, nothing is written. In 8 bits it is always a different
    model.
    """
    from hashlens.codes.int8 import calibrating

    folder = require_exportable(model, out)
    hasher: Any = hashlens.load(folder.path)
    encoder = Encoder.of(hasher, folder.describe())
    if int8 and calibrate is None:
        images, calibrate = _parted(images)
    some = None
    if int8 and calibrate is not None:
        spread = calibrating(calibrate)
        some = _readable(spread, len(spread))[0]
    content, beside = _graph(hasher, encoder, folder.path, some)
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
            "mirror": encoder.mirror,  # outputs are the mean over the image and its mirror image
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
        exported = Encoder.load(out)
        if some is not None:
            check = {"calibrated_on": len(some), **compare_maps(encoder, exported, images, progress)}
            enough, advice = ENOUGH_INT8, "calibrate it with images like its training images, or omit --int8"
            measured = ("calibrated_on", "n_images", "bits_equal", "map", "map_float")
            write_sealed(out / CONFIG, facts | {"int8": {name: check[name] for name in measured}})
        else:
            check = compare_bits(encoder, exported, images, progress)
            enough, advice = ENOUGH, "please report this with the output of hashlens doctor"
        if check["bits_equal"] < enough:
            raise MismatchError(
                f"only {check['bits_equal']:.2%} of the bits equal those of {model}, {enough:.1%} are needed; nothing"
                f" was exported: {advice}"
            )
        if check["same_model"]:
            write_sealed(out / CONFIG, facts | {"model": folder.describe()})
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    lengths = {"n_bits": encoder.n_bits, "second_bits": encoder.second_bits}
    return {"out": str(out), **lengths, "bytes": len(content), "image_size": encoder.size, **check}


def compare_bits(ours: Encoder, exported: Encoder, images: Images, progress: Progress) -> dict[str, Any]:
    """How many bits of two models are equal, on the images and as many random crops of them as needed."""
    from hashlens.hashers.deep.inputs import Windows

    n_bits = ours.n_bits + ours.second_bits
    n_wanted = -(-CHECKED_BITS // n_bits)
    images, n_skipped = _readable(images, n_wanted)
    n_equal = n_checked = 0
    with progress.bar("check", 2 * n_wanted) as advance:
        for seed in count():
            some: Images = images[: n_wanted - n_checked]
            view = Windows(some, seed, noise=16) if seed else some  # noise, because few images have few different crops
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


def compare_maps(ours: Encoder, exported: Encoder, images: Images, progress: Progress) -> dict[str, Any]:
    """How many bits of two models are equal on the images and, if these have labels, the MAP of both.

    Every second image is a query; the others are searched.
    """
    labels = images.labels
    rows = np.arange(len(images))[:: -(-len(images) // MEASURED)]
    some, n_skipped = _readable(images[rows], len(rows))
    with progress.bar("check", 2 * len(some)) as advance:
        floats, codes = (encoder.codes(some, advance) for encoder in (ours, exported))
    maps: dict[str, float | None] = {"map": None, "map_float": None}
    if labels is not None and not n_skipped:
        own = (labels if isinstance(labels, Labels) else Labels.of(labels))[rows]
        query, database = slice(0, None, 2), slice(1, None, 2)
        if len(some) > 1 and relevant(own[query], own[database]).any():
            maps = {"map": _map(codes, own), "map_float": _map(floats, own)}
    signs = [_signs(one) for one in (floats, codes)]
    return {
        "n_images": len(some),
        "n_skipped": n_skipped,
        "n_checked": signs[0].size,
        "bits_equal": float((signs[0] == signs[1]).mean()),
        **maps,
        "same_model": False,
    }


def _map(codes: Codes, labels: Labels) -> float:
    from hashlens.results.metrics import evaluate_codes

    query, database = slice(0, None, 2), slice(1, None, 2)
    return evaluate_codes(codes[query], codes[database], labels[query], labels[database])["map_tie_aware"]


def _parted(images: Images) -> tuple[Images, Images]:
    """Images to measure with, and a quarter of all to calibrate with."""
    if len(images) < 2:
        raise DataError("int8 needs at least two images, to calibrate and to check with; pass more with --images")
    others = np.arange(len(images)) % 4 != 0
    measured = images[others]
    if images.labels is not None:
        measured.labels = (images.labels if isinstance(images.labels, Labels) else Labels.of(images.labels))[others]
    return measured, images[~others]


def _signs(codes: Codes) -> np.ndarray:
    """The signs of both codes, side by side."""
    return np.concatenate([one.signs() for one in (codes, codes.second) if one is not None], axis=1)


def _readable(images: Images, n: int) -> tuple[Images, int]:
    """The first n readable images, and how many unreadable ones came before them."""
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
        raise DataError(f"the exported model cannot be checked without images ({why}); pass others with --images")
    return images[rows], len(reasons)


def _graph(hasher: Any, encoder: Encoder, model: Path, calibrate: Images | None) -> tuple[bytes, bool]:
    """The ONNX file, and whether it ends at the features; in 8 bits if `calibrate` has images."""
    from hashlens.codes.int8 import in_8_bits
    from hashlens.features.networks.inference import fold
    from hashlens.features.networks.onnx_graph import UnsupportedModule, to_onnx
    from hashlens.hashers.deep.base import DeepHasher
    from hashlens.hashers.shallow.base import LinearHasher

    if encoder.extractor is None:
        raise UsageError(f"{model} was trained on features, not on images; there is no network to export")
    if encoder.extractor.module is None:
        raise UsageError(f"{model} has no network and runs without torch already; use it without exporting")
    project, size = type(hasher)._project, encoder.extractor.size
    if isinstance(hasher, DeepHasher) and project is not DeepHasher._project:
        raise UsageError(f"{hasher.name} makes its codes outside the network; it cannot be exported")
    try:
        graph = to_onnx(fold(encoder.extractor.module), np.zeros((1, size, size, 3), np.uint8))
    except UnsupportedModule as error:
        raise UsageError(f"this network has a layer that cannot be written as ONNX ({error})") from error
    if calibrate is not None:
        graph = in_8_bits(graph, calibrate)
    if project is LinearHasher._project:
        append_projection(graph.graph, hasher.mean_, hasher.projection_)
        if hasher.second_bits_:
            append_second(graph.graph, hasher.second_mean_, hasher.second_projection_)
    beside = project not in (DeepHasher._project, LinearHasher._project)
    return graph.SerializeToString(), beside


def append_projection(graph: Any, mean: np.ndarray, projection: np.ndarray, kept: type[np.number] = np.float64) -> None:
    """Append (x - mean) W in double precision, as `LinearHasher` computes it; W may be `kept` in fewer bits."""
    from onnx import TensorProto, helper, numpy_helper

    next(node for node in graph.node if "output" in node.output).output[0] = "features"
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
    """Append the projection of the second code, after `append_projection`."""
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
