"""Export: a trained model in, a folder out that makes the same codes without torch.

EXPORTED/
  config.json       what it is: code length, picture size, what to do with pictures, fingerprint of the model
  model.onnx        uint8 pictures (n, size, size, 3) RGB in; relaxed outputs, or features, (n, d) float32 out
  hasher/           only for methods on features: what turns them into codes
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import hashlens
from hashlens.codes import Codes
from hashlens.data.images import as_images
from hashlens.errors import DataError, HashlensError, MismatchError, UsageError
from hashlens.features.batches import forward_batches, mean_of_views
from hashlens.files import replacing, sha256, write_json
from hashlens.networks.session import one_core_session
from hashlens.progress import Progress
from hashlens.shards import describe_model, model_fingerprint
from hashlens.threads import blocks

if TYPE_CHECKING:
    from hashlens.data.images import Images

FORMAT = "hashlens onnx 1"
ENOUGH = 0.999  # of the bits must be those of the model that was exported


class OnnxEncoder:
    """An exported model: pictures in, codes out, by onnxruntime alone."""

    def __init__(self, folder: Path | str):
        folder = Path(folder)
        try:
            facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            if facts.get("format") != FORMAT:
                raise DataError(f"{folder} holds no exported model; make one with: hashlens export MODEL")
            self.n_bits: int = facts["n_bits"]
            self.image_size: int = facts["input"]["size"]
            self.model: dict[str, str] = facts["model"]
            self.mirror: bool = facts["input"]["mirror"]
            if sha256(folder / "model.onnx") != facts["sha256"]:
                raise DataError(f"{folder / 'model.onnx'} is not as it was written; export the model again")
            self._forward = one_core_session(str(folder / "model.onnx"))
            self._hasher = hashlens.load(folder / "hasher") if facts["method_on_features"] else None
        except HashlensError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"the exported model in {folder} is damaged ({error}); export it again") from error

    def encode(self, X: Any, *, progress: Progress | None = None) -> Codes:
        """Codes of pictures: a uint8 array, paths, PIL pictures."""
        images = as_images(X)

        def view(flip: bool) -> Iterator[tuple[slice, np.ndarray]]:
            return forward_batches(self._forward, images, self.image_size, flip=flip)

        with (progress or Progress(quiet=True)).bar("codes", len(images) * (1 + self.mirror)) as advance:
            u = mean_of_views(view, len(images), self.mirror, advance)
        return Codes.from_relaxed(u) if self._hasher is None else self._hasher.encode(u)


def load_encoder(folder: Path | str) -> Any:
    """What encodes pictures: an exported model, or a hasher."""
    folder = Path(folder)
    if (folder / "model.onnx").exists():
        return OnnxEncoder(folder)
    try:
        return hashlens.load(folder)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            f'the model in {folder} needs torch: pip install "hashlens[train]", or export it on a machine that has it'
            " (hashlens export) and use that"
        ) from error


def require_exportable(model: Path, out: Path) -> None:
    """Refuse at once what would be refused later."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):  # what is in it would go if this fails
        raise UsageError(f"{out} is there already and not empty; choose another --out")
    if (model / "model.onnx").exists():
        raise UsageError(f"{model} is an exported model already; give the folder 'model' of a run")
    model_fingerprint(model)  # or an error that says what is not there


def export_onnx(model: Path, out: Path, pictures: Images, progress: Progress) -> dict[str, Any]:
    """Write the model as ONNX; refused unless it gives the same bits for these pictures."""
    require_exportable(model, out)
    hasher = hashlens.load(model)
    network, size, on_features = network_of(hasher, model)
    content = _onnx(network, size)
    mirror = not on_features and hasher.training.mirror
    facts = {
        "format": FORMAT,
        "hashlens": hashlens.__version__,
        "method": hasher.name,
        "method_on_features": on_features,
        "n_bits": hasher.n_bits,
        "model": describe_model(model),
        "sha256": hashlib.sha256(content).hexdigest(),
        "input": {
            "name": "input",
            "shape": ["n", size, size, 3],
            "type": "uint8",
            "size": size,
            "colour": "RGB",
            "resize": "turned as its EXIF says, shorter side to size (Pillow's BICUBIC), centre crop",
            "normalisation": "inside the network",
            "mirror": mirror,  # the output is the mean of that of the picture and that of its mirror image
        },
        "output": "features for hasher/" if on_features else "relaxed outputs: bit 1 where > 0, first bit highest",
    }
    try:
        with replacing(out / "model.onnx") as temporary:
            temporary.write_bytes(content)
        if on_features:
            hasher.takes_pictures_ = False
            hasher.save(out / "hasher")
            hasher.takes_pictures_ = True
        write_json(out / "config.json", facts)
        check = _compare(OnnxEncoder(out), hasher, network, size, on_features, pictures, progress)
        if check["bits_equal"] < ENOUGH:
            raise MismatchError(
                f"only {check['bits_equal']:.2%} of the bits are those of {model}, {ENOUGH:.1%} are needed; nothing was"
                " exported: please report this with the output of hashlens doctor"
            )
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    return {"out": str(out), "n_bits": hasher.n_bits, "bytes": len(content), "image_size": size, **check}


def _compare(
    encoder: OnnxEncoder, hasher: Any, network: Any, size: int, on_features: bool, pictures: Images, progress: Progress
) -> dict[str, Any]:
    """How many bits of the pictures are equal, and pictures a second: torch as it is, and the exported model."""
    encoder.encode(pictures[:1])  # the first call is slower
    start = time.perf_counter()
    codes = encoder.encode(pictures, progress=progress)
    exported = time.perf_counter() - start
    start = time.perf_counter()
    u = mean_of_views(lambda flip: _eager(network, size, pictures, flip), len(pictures), encoder.mirror)
    eager = time.perf_counter() - start
    if on_features:
        from hashlens.hashers.base import Hasher

        u = Hasher.project(hasher, u)
    return {
        "n_pictures": len(pictures),
        "bits_equal": float((codes.signs() == np.where(u > 0, 1, -1)).mean()),
        "pictures_per_second": {"torch": round(len(pictures) / eager, 1), "onnx": round(len(pictures) / exported, 1)},
    }


def _eager(network: Any, size: int, pictures: Images, flip: bool) -> Iterator[tuple[slice, np.ndarray]]:
    """Outputs by torch's own forward pass, batch norms and all: nothing of what made the ONNX file."""
    import torch

    for rows in blocks(len(pictures), 32):
        batch = pictures.read(np.arange(rows.start, rows.stop), size)
        with torch.inference_mode():
            yield rows, network(torch.from_numpy(batch[:, :, ::-1].copy() if flip else batch)).numpy()


def network_of(hasher: Any, model: Path | None) -> tuple[Any, int, bool]:
    """The network in evaluation mode, its picture size, and whether its outputs are features."""
    if hasher.takes == "images":
        if hasher.backbone_ == "none":
            raise UsageError(f"{model} was trained on features, not on pictures; there is no network to export")
        if getattr(hasher, "_n_outputs", hasher.n_bits) != hasher.n_bits:
            raise UsageError(f"{hasher.name} makes its codes outside the network; it cannot be exported")
        return hasher.network_.eval(), hasher.image_size_, False
    if not hasher.takes_pictures_ or hasher.features == "gist":
        raise UsageError(f"{model} has no network and runs without torch as it is; use it without exporting")
    from hashlens.features.deep import feature_network

    return *feature_network(hasher.features), True


def _onnx(network: Any, size: int) -> bytes:
    from hashlens.networks.inference import fold
    from hashlens.networks.onnx_graph import UnsupportedModule, to_onnx

    try:
        return to_onnx(fold(network), np.zeros((1, size, size, 3), np.uint8)).SerializeToString()
    except UnsupportedModule as error:
        raise UsageError(f"this network has a layer that cannot be written as ONNX ({error})") from error
