"""Vision backbones of the `transformers` package: "hf:" and a name or folder in, preprocessing and blocks out.

A model made of embeddings, a list of layers and perhaps a norm (ViT, DeiT, DINOv2, CLIP, ResNet, ConvNeXt) is split
into these; the split is tried on one image and kept only if it gives the output of the whole model. Any other model is
one block. Features are the class token of the last layer if there is one, else the mean over all pixels.

Differences from the model's own image processor: the shorter side of images is resized to the crop size, not to a
larger size that is then cropped.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hashlens.data.download import offline
from hashlens.errors import DataError, HashlensError, require
from hashlens.features.networks import HUGGING_FACE, Network
from hashlens.features.networks.normalise import Normalise

SIZE = 224  # if neither the model nor its image processor specifies it
TRAINED_LAYERS = 2  # by default the last ones


class Part(nn.Module):
    """One or more of the model's own modules in sequence; if a module has several outputs, the first is used."""

    untraceable = True  # it may branch on the values or shapes of its input

    def __init__(self, *modules: nn.Module):
        super().__init__()
        self.parts = nn.ModuleList(modules)
        self.missing = [_required(module) for module in modules]
        self.config: dict[str, Any] | None = None

    def extra_repr(self) -> str:  # modules do not show all of the configuration
        if self.config is None:
            return ""
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()[:16]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part, missing in zip(self.parts, self.missing, strict=True):
            out = part(x, *missing)
            x = out[0] if isinstance(out, tuple) else out
        return x


def _required(module: nn.Module) -> list[None]:
    """A None for each required argument besides the input: CLIP's layers require a mask."""
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


class HuggingFace(Network):
    """A model from a saved network's description, or as published."""

    def completed(self) -> Network:
        with _reading(self.name):
            config = _vision(_pretrained("AutoConfig", self.name))
            size = _size(_processor(self.name), config)
        layers = getattr(config, "num_hidden_layers", None)
        frozen = layers + 1 - TRAINED_LAYERS if layers else len(getattr(config, "depths", []))
        return replace(self, size=size, frozen=max(0, frozen))

    def blocks(self, pretrained: bool, weights: Path | None, description: dict[str, Any] | None) -> nn.Sequential:
        transformers, name = _transformers(), self.name
        with _reading(name):
            if description is not None:
                config = transformers.AutoConfig.for_model(**description["config"])
                preprocessing = Normalise.from_description(description)
            else:
                config = _pretrained("AutoConfig", name)
                preprocessing = _preprocessing(_processor(name), _vision(config))
            made = transformers.AutoModel.from_config
            model = _pretrained("AutoModel", name, use_safetensors=True) if pretrained else made(config)
            model = getattr(model, "vision_model", model).float().eval()
            blocks = _split(model, preprocessing.size or SIZE)
        blocks[0].config = json.loads(_vision(model.config).to_json_string(use_diff=False))
        return nn.Sequential(preprocessing, *blocks)

    def describe(self, blocks: nn.Module) -> dict[str, Any]:
        config = next(part.config for part in blocks.children() if isinstance(part, Part))
        return super().describe(blocks) | {"config": config}


def _split(model: nn.Module, size: int) -> list[Part]:
    """The model as blocks that give the same features, or as one block; ValueError if it takes no images."""
    first = getattr(model, "embeddings", getattr(model, "embedder", None))
    class_token = hasattr(first, "cls_token") or hasattr(first, "class_embedding")
    whole = Whole(model, Pooling(class_token))
    image = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    try:
        with torch.inference_mode():
            expected = whole(image)
    except Exception as error:  # a model for something else may raise anything
        raise ValueError(f"it computes no image features: {error}") from error
    encoder = getattr(model, "encoder", model)
    layers = next((found for found in _named(encoder, "layer", "layers", "stages")), None)
    if first is None or not isinstance(layers, nn.ModuleList):
        return [whole]
    with torch.inference_mode():
        for norms in [*([norm] for norm in _named(model, "layernorm", "norm", "post_layernorm")), []]:
            parts = [
                Part(first, *_named(model, "pre_layrnorm", "pre_layernorm")),  # sic, in CLIP
                *(Part(layer) for layer in layers),
                Pooling(class_token, *norms),
            ]
            try:
                features = nn.Sequential(*parts)(image)
            except Exception:  # a part needs more than its input, or the parts do not fit together
                return [whole]
            if features.shape == expected.shape and torch.allclose(features, expected, rtol=1e-3, atol=1e-4):
                return parts
    return [whole]


def _named(model: nn.Module, *names: str) -> list[nn.Module]:
    return [module for name in names if isinstance(module := getattr(model, name, None), nn.Module)]


def _vision(config: Any) -> Any:
    """The configuration of the vision half, if the model is for text and images."""
    return getattr(config, "vision_config", config)


def _preprocessing(settings: dict[str, Any], config: Any) -> Normalise:
    plain = not settings.get("do_normalize", True)
    if not plain and not all(value > 0 for value in settings["image_std"]):
        raise ValueError(f"its image_std is {settings['image_std']}")
    return Normalise(
        0.0 if plain else tuple(settings["image_mean"]),
        1.0 if plain else tuple(settings["image_std"]),
        colour="BGR" if settings.get("do_flip_channel_order") else "RGB",
        divided_by=round(1 / settings.get("rescale_factor", 1 / 255), 6) if settings.get("do_rescale", True) else 1,
        # position embeddings are made for one size
        size=_size(settings, config) if hasattr(config, "image_size") else None,
    )


def _size(settings: dict[str, Any], config: Any) -> int:
    """The image resolution that the image processor gives to the model."""
    size = settings.get("crop_size") if settings.get("do_center_crop") else settings.get("size")
    if isinstance(size, dict):
        size = size.get("height", size.get("shortest_edge"))
    return size or getattr(config, "image_size", None) or SIZE


def _processor(name: str) -> dict[str, Any]:
    return _pretrained("ImageProcessingMixin", name, "get_image_processor_dict")[0]


def _pretrained(kind: str, name: str, method: str = "from_pretrained", **how: Any) -> Any:
    """The object that `transformers` reads from the name or folder; code that comes with a model is never run."""
    read = getattr(getattr(_transformers(), kind), method)
    return read(name.removeprefix(HUGGING_FACE), local_files_only=offline(), trust_remote_code=False, **how)


def _transformers() -> Any:
    require("transformers", why="a backbone that starts with hf:")
    return import_module("transformers")


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn whatever `transformers` raises for a missing or unsuitable model into one sentence, without its warnings."""
    log = _transformers().logging
    before = log.get_verbosity()
    log.set_verbosity_error()  # mainly that the classifier is dropped
    try:
        yield
    except HashlensError:
        raise
    except Exception as error:  # it raises nearly anything for a damaged or unsuitable model
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise DataError(
            f"the backbone {name} cannot be loaded ({reason}); after hf: write the name of a vision model on the hub,"
            " or a folder with its config.json, preprocessor_config.json and model.safetensors"
        ) from error
    finally:
        log.set_verbosity(before)
