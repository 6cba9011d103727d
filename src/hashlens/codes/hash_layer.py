"""The hash layer of a model: a model and a matrix A in, a model with relaxed outputs u A instead of u out.

Everything below the layer is unchanged. With an exported model this needs neither torch nor the package `onnx`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

import hashlens
from hashlens.checksums import write_sealed
from hashlens.codes.model import CONFIG, EXPORTED, ModelFolder
from hashlens.errors import UsageError
from hashlens.features.networks.onnx_reader import multiply_outputs
from hashlens.files import replacing


def write_changed(model: ModelFolder, A: np.ndarray, out: Path) -> ModelFolder:
    """Write the changed model to the folder `out`; it is a different model, with its own fingerprint."""
    if model.exported:
        _change_exported(model, A, out)
    else:
        _change_trained(model, A, out)
    return ModelFolder(out)


def _refused(model: ModelFolder) -> UsageError:
    return UsageError(f"the model in {model.path} does not end in a linear layer, so it cannot learn from clicks")


def _change_exported(model: ModelFolder, A: np.ndarray, out: Path) -> None:
    facts = model.config()
    if facts.get("hasher"):
        raise _refused(model)
    try:
        content = multiply_outputs(model.content(EXPORTED, facts["sha256"]), A)
    except ValueError as error:
        raise _refused(model) from error
    with replacing(out / EXPORTED) as temporary:
        temporary.write_bytes(content)
    changed = {"hashlens": hashlens.__version__, "model": None, "sha256": hashlib.sha256(content).hexdigest()}
    write_sealed(out / CONFIG, facts | changed)


def _change_trained(model: ModelFolder, A: np.ndarray, out: Path) -> None:
    hasher: Any = hashlens.load(model.path)
    if hasattr(hasher, "projection_") and hasher.projection_.shape[-1:] == A.shape[:1]:
        from hashlens.hashers.shallow.base import LinearHasher

        if type(hasher)._project is not LinearHasher._project:
            raise _refused(model)
        hasher.projection_ = np.ascontiguousarray(hasher.projection_ @ A)
    else:
        _change_network(model, hasher, A)
    hasher.save(out)


def _change_network(model: ModelFolder, hasher: Any, A: np.ndarray) -> None:
    import torch

    from hashlens.hashers.deep.base import DeepHasher
    from hashlens.hashers.deep.heads import FromLongCode

    if not isinstance(hasher, DeepHasher) or type(hasher)._project is not DeepHasher._project:
        raise _refused(model)
    head = hasher.network_[-1]
    last: list[Any] = [head[-1] if isinstance(head, torch.nn.Sequential) else head]
    if isinstance(head, FromLongCode):  # the bits are the sum of two layers
        last = [head.direct, head.codes]
    if any(type(layer) is not torch.nn.Linear or layer.out_features != len(A) for layer in last):
        raise _refused(model)
    with torch.no_grad():
        for layer in last:
            layer.weight.copy_(torch.from_numpy(A.T @ layer.weight.double().numpy()))
            if layer.bias is not None:
                layer.bias.copy_(torch.from_numpy(layer.bias.double().numpy() @ A))
