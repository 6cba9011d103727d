"""Vision backbones of the `transformers` package: "hf:" and a name or folder in, preprocessing and blocks out.

A model whose parts are embeddings, a list of layers and perhaps a norm (ViT, DeiT, DINOv2, CLIP, ResNet, ConvNeXt) is
split into these; the split is tried on one picture and kept only if it gives what the whole model gives. Any other
model is one block. Features are the class token of the last layer where there is one, else the mean over all pixels.

Differences from the model's own image processor: pictures are scaled by their shorter side to the size of the crop, not
to a larger one that is then cropped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hashlens.errors import DataError, HashlensError, UsageError
from hashlens.networks import HUGGING_FACE, NetworkInfo
from hashlens.networks.preprocessing import Normalise

SIZE = 224  # where neither the model nor its image processor says anything
TRAINED_LAYERS = 2  # the last ones, by default


class Part(nn.Module):
    """One or more of the model's own modules, one after the other; of several outputs the first is taken."""

    untraceable = True  # it may branch on the values or shapes of what it is given

    def __init__(self, *modules: nn.Module):
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self.missing = [_required(module) for module in modules]
        self.config: dict[str, Any] | None = None

    def extra_repr(self) -> str:  # not all of the configuration shows in the modules
        if self.config is None:
            return ""
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()[:16]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, missing in zip(self.parts, self.missing, strict=True):
            out = part(x, *missing)
            x = out[0] if isinstance(out, tuple) else out
        return x


def _required(module: nn.Module) -> list[None]:
    """For what a module cannot be called without, beside its input: CLIP's layers want to be told of no mask."""
    parameters = [*signature(module.forward).parameters.values()][1:]
    return [None for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]


class Pooling(Part):
    """Outputs of the last layer, (b, tokens, d) or (b, d, h, w), to features (b, d)."""

    def __init__(self, class_token: bool, *norms: nn.Module):
        super().__init__(*norms)
        self.class_token = class_token

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        if x.ndim == 4:
            return x.mean((2, 3))
        return x[:, 0] if self.class_token else x.mean(1)


class Whole(Part):
    """A model that cannot be split."""

    def __init__(self, model: nn.Module, pooling: Pooling):
        super().__init__(model)
        self.pooling = pooling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pooling(self.parts[0](pixel_values=x).last_hidden_state)


def info(name: str) -> NetworkInfo:
    with _reading(name):
        config = _vision(_transformers().AutoConfig.from_pretrained(_where(name), **_how()), "vision_config")
        size = _size(_processor(name), config)
    widths = [getattr(config, "hidden_size", None), *(getattr(config, "hidden_sizes", None) or [])]
    layers = getattr(config, "num_hidden_layers", None)
    frozen = layers + 1 - TRAINED_LAYERS if layers else len(getattr(config, "depths", []))
    return NetworkInfo(
        "hugging_face",
        size,
        next((width for width in reversed(widths) if isinstance(width, int)), 0),
        True,
        max(0, frozen),
        True,
        f"{config.model_type} of the transformers package",
    )


def build_network(
    name: str, pretrained: bool, weights: Path | None, description: dict[str, Any] | None
) -> nn.Sequential:
    """Preprocessing and blocks: from a saved network's description, or as published."""
    transformers = _transformers()
    with _reading(name):
        if description is not None:
            config = transformers.AutoConfig.for_model(**description["config"])
            preprocessing = Normalise.from_description(description)
        else:
            config = transformers.AutoConfig.from_pretrained(_where(name), **_how())
            preprocessing = _preprocessing(_processor(name), _vision(config, "vision_config"))
        if pretrained:
            model = transformers.AutoModel.from_pretrained(_where(name), use_safetensors=True, **_how())
        else:
            model = transformers.AutoModel.from_config(config)
        model = _vision(model, "vision_model").float().eval()
        blocks = _split(model, preprocessing.size or SIZE)
    blocks[0].config = json.loads(_vision(model.config, "vision_config").to_json_string(use_diff=False))
    return nn.Sequential(preprocessing, *blocks)


def describe(blocks: nn.Module) -> dict[str, Any]:
    return {"config": next(part.config for part in blocks.children() if isinstance(part, Part))}


def _split(model: nn.Module, size: int) -> list[Part]:
    """The model as blocks that give the same features, or as one block; ValueError if it takes no pictures."""
    first = getattr(model, "embeddings", getattr(model, "embedder", None))
    class_token = hasattr(first, "cls_token") or hasattr(first, "class_embedding")
    whole = Whole(model, Pooling(class_token))
    picture = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        with torch.inference_mode():
            expected = whole(picture)
    except Exception as error:  # whatever a model for something else may raise
        raise ValueError(f"it makes no features of a picture: {error}") from error
    encoder = getattr(model, "encoder", model)
    lists = [getattr(encoder, attribute, None) for attribute in ("layer", "layers", "stages")]
    layers = next((found for found in lists if isinstance(found, nn.ModuleList)), None)
    if first is None or layers is None:
        return [whole]
    with torch.inference_mode():
        for norms in [*([norm] for norm in _named(model, "layernorm", "norm", "post_layernorm")), []]:
            parts = [
                Part(first, *_named(model, "pre_layrnorm", "pre_layernorm")),  # spelt so in CLIP
                *(Part(layer) for layer in layers),
                Pooling(class_token, *norms),
            ]
            try:
                features = nn.Sequential(*parts)(picture)
            except Exception:  # it needs more than its input, or the parts do not follow each other
                return [whole]
            if features.shape == expected.shape and torch.allclose(features, expected, rtol=1e-3, atol=1e-4):
                return parts
    return [whole]


def _named(model: nn.Module, *names: str) -> list[nn.Module]:
    return [module for name in names if isinstance(module := getattr(model, name, None), nn.Module)]


def _vision(thing: Any, attribute: str) -> Any:
    """Of a model for text and pictures, the half for pictures."""
    return getattr(thing, attribute, thing)


def _preprocessing(settings: dict[str, Any], config: Any) -> Normalise:
    plain = not settings.get("do_normalize", True)
    if not plain and not all(value > 0 for value in settings["image_std"]):
        raise ValueError(f"its pictures are divided by {settings['image_std']}")
    return Normalise(
        0.0 if plain else tuple(settings["image_mean"]),
        1.0 if plain else tuple(settings["image_std"]),
        colour="BGR" if settings.get("do_flip_channel_order") else "RGB",
        divided_by=round(1 / settings.get("rescale_factor", 1 / 255), 6) if settings.get("do_rescale", True) else 1,
        # position embeddings are made for one size
        size=_size(settings, config) if hasattr(config, "image_size") else None,
    )


def _size(settings: dict[str, Any], config: Any) -> int:
    """Pixels a side of what the image processor gives to the model."""
    size = settings.get("crop_size") if settings.get("do_center_crop") else settings.get("size")
    if isinstance(size, dict):
        size = size.get("height", size.get("shortest_edge"))
    return size or getattr(config, "image_size", None) or SIZE


def _processor(name: str) -> dict[str, Any]:
    settings, _ = _transformers().ImageProcessingMixin.get_image_processor_dict(_where(name), **_how())
    return settings


def _transformers() -> Any:
    try:
        return import_module("transformers")
    except ImportError as error:
        raise UsageError(
            "backbones that begin with hf: need the transformers package; run pip install 'hashlens[transformers]'"
        ) from error


def _where(name: str) -> str:
    return name.removeprefix(HUGGING_FACE)


def _how() -> dict[str, bool]:
    """No code of a model's own is run, whatever anybody answers."""
    offline = os.environ.get("HASHLENS_OFFLINE", "0") not in ("", "0")
    return {"local_files_only": offline, "trust_remote_code": False}


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn whatever `transformers` raises on a missing or foreign model into one sentence, and keep it quiet."""
    log = _transformers().logging
    before = log.get_verbosity()
    log.set_verbosity_error()  # that a classifier is left out, above all
    try:
        yield
    except HashlensError:
        raise
    except Exception as error:  # a damaged or foreign model makes it raise nearly anything
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"the backbone {name} cannot be loaded ({reason}); after hf: give the name of a vision model on the hub,"
            " or a folder with its config.json, preprocessor_config.json and model.safetensors"
        ) from error
    finally:
        log.set_verbosity(before)
