"""ViT-Tiny: normalised images (b, 3, h, w) in, the class token (b, 192) after the last block out.

A. Dosovitskiy et al., "An image is worth 16 x 16 words", ICLR 2021; weights of A. Steiner et al., "How to train your
ViT?", TMLR 2022, as the package `timm` publishes them on the Hugging Face Hub (vit_tiny_patch16_224, trained on
ImageNet-21k, then on ImageNet). Images may have any size: positions are interpolated between those of 14 x 14 patches.

The last block computes the class token only, because nothing else is used.
"""

import hashlib
from collections import OrderedDict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from hashlens.data.download import offline
from hashlens.data.resize import bicubic
from hashlens.errors import DataError, DownloadError, require
from hashlens.features.networks import Network
from hashlens.files import cache_dir

WIDTH, HEADS, DEPTH, PATCH, GRID = 192, 3, 12, 16, 14
EPS = 1e-6
REPOSITORY, FILE = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "model.safetensors"
# of names and values as `_contents` writes them, because the same weights may be packed differently
SHA256 = "23cf9aeb6ee677991366c2cab9b74e12ab7ad25461e15cecd99b9c49dd412ceb"


class Tokens(nn.Module):
    """Patches to tokens (b, 1 + patches, width) with their positions; the first is the class token."""

    untraceable = True  # it writes itself, see onnx_graph.py

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.zeros(1, 1 + GRID * GRID, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x)
        return F.pad(x.flatten(2).transpose(1, 2), (0, 0, 1, 0)) + self.added(*x.shape[2:])

    def added(self, rows: int, columns: int) -> torch.Tensor:
        """The addend of the tokens, (1, 1 + rows * columns, width); for the class token it is the token itself."""
        first, rest = self.positions.split([1, GRID * GRID], 1)
        if (rows, columns) != (GRID, GRID):
            down, across = (torch.from_numpy(bicubic(GRID, n)).to(rest.device) for n in (rows, columns))
            rest = (down @ rest.mT.unflatten(2, (GRID, GRID)) @ across.T).flatten(2).mT
        return torch.cat([self.class_token + first, rest], 1)

    def write_onnx(self, graph: Any, x: str, shape: torch.Size) -> str:
        rows, columns = (n // PATCH for n in shape[2:])
        x = graph.reshape(graph.convolution(self.patches, x), 0, WIDTH, rows * columns)
        x = graph.add("Transpose", x, perm=[0, 2, 1])
        # the first token times zero is the place of the class token
        places, mask = np.arange(-1, rows * columns).clip(0), np.ones((1 + rows * columns, 1), np.float32)
        mask[0] = 0
        x = graph.add("Mul", graph.add("Gather", x, graph.constant(places), axis=1), graph.constant(mask))
        return graph.add("Add", x, graph.constant(self.added(rows, columns)))


class ClassToken(nn.Module):
    """The first token alone, (b, 1, width)."""

    untraceable = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :1]

    def write_onnx(self, graph: Any, x: str, shape: torch.Size) -> str:
        return graph.add("Gather", x, graph.constant(np.array([0])), axis=1)


class Attention(nn.Module):
    """Attention of every token, or only of the class token, to all tokens."""

    untraceable = True

    def __init__(self, last: bool):
        super().__init__()
        self.qkv, self.proj, self.last = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q[:, :, :1] if self.last else q, k, v)
        return self.proj(found.transpose(1, 2).flatten(2))

    def write_onnx(self, graph: Any, x: str, shape: torch.Size) -> str:
        all_three = graph.reshape(graph.linear(self.qkv, x), 0, shape[1], 3, HEADS, WIDTH // HEADS)
        all_three = graph.add("Transpose", all_three, perm=[2, 0, 3, 1, 4])
        q, k, v = (graph.add("Gather", all_three, graph.constant(np.array(i)), axis=0) for i in range(3))
        if self.last:
            q = graph.add("Gather", q, graph.constant(np.array([0])), axis=2)
        q = graph.add("Mul", q, graph.constant(np.float32((WIDTH // HEADS) ** -0.5)))
        weights = graph.add("Softmax", graph.add("MatMul", q, graph.add("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
        found = graph.add("Transpose", graph.add("MatMul", weights, v), perm=[0, 2, 1, 3])
        return graph.linear(self.proj, graph.reshape(found, 0, 1 if self.last else shape[1], WIDTH))


class Block(nn.Module):
    def __init__(self, last: bool = False):
        super().__init__()
        self.kept = ClassToken() if last else nn.Identity()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDTH, EPS), Attention(last), nn.LayerNorm(WIDTH, EPS)
        fc1, fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.mlp = nn.Sequential(OrderedDict(fc1=fc1, gelu=nn.GELU(), fc2=fc2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.kept(x) + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def build(name: str) -> nn.Sequential:
    last = nn.Sequential(Block(last=True), nn.LayerNorm(WIDTH, EPS), nn.Flatten())
    return nn.Sequential(Tokens(), *(Block() for _ in range(DEPTH - 1)), last)


# prefixes of timm's tensor names that differ from ours
NAMES = {"patch_embed.proj": "0.patches", "cls_token": "0.class_token", "pos_embed": "0.positions"}
NAMES |= {f"blocks.{i}": f"{i + 1}" for i in range(DEPTH - 1)}
NAMES |= {f"blocks.{DEPTH - 1}": f"{DEPTH}.0", "norm": f"{DEPTH}.1"}


def from_published(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """timm's state dict under our names; its classifier is dropped."""
    state = {}
    for key, value in theirs.items():
        start = next((start for start in NAMES if f"{key}.".startswith(f"{start}.")), None)
        if start is not None:
            state[NAMES[start] + key.removeprefix(start)] = value
    return state


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """A safetensors file with timm's names."""
    from safetensors.torch import load_file

    try:
        state = from_published(load_file(path))
        with torch.device("meta"):
            build("vit-tiny").load_state_dict(state, assign=True)  # compares names and shapes
    except Exception as error:  # the reader raises nearly anything on a damaged file
        reason = " ".join(str(error).split())[:250] or type(error).__name__
        raise DataError(
            f"{path} cannot be read as the weights of timm's vit_tiny_patch16_224 ({reason}); pass the {FILE} of"
            f" {REPOSITORY} on the Hugging Face Hub"
        ) from error
    return {key: value.float() for key, value in state.items()}


def _published() -> Path:
    """The published file, verified: in our cache or in the Hub's, to which it is downloaded if necessary."""
    path = cache_dir() / "weights" / f"{Path(REPOSITORY).name}.safetensors"
    remedy = f"get {FILE} of {REPOSITORY} from the Hugging Face Hub and pass it with --weights, or keep it as {path}"
    if not path.exists():
        require("huggingface_hub", why="vit-tiny without --weights FILE")
        try:
            path = Path(import_module("huggingface_hub").hf_hub_download(REPOSITORY, FILE, local_files_only=offline()))
        except Exception as error:  # its own errors, and those of its network libraries
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise DownloadError(f"the weights of vit-tiny could not be downloaded ({reason}); {remedy}") from error
    if _contents(read_weights(path)) != SHA256:
        raise DownloadError(f"{path} has not the published weights of vit-tiny (SHA-256 differs); {remedy}")
    return path


def _contents(state: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(name.encode() + value.numpy().astype("<f4").tobytes())
    return digest.hexdigest()


class ViT(Network):
    """ViT-Tiny with the weights of a file, or the published ones."""

    def blocks(self, pretrained: bool, weights: Path | None, description: dict[str, Any] | None) -> nn.Sequential:
        if pretrained and weights is None:
            weights = _published()
        return super().blocks(pretrained, weights, description)


NETWORK = ViT("vit-tiny", 224, build, {"mean": 0.5, "std": 0.5}, frozen=9, bfloat16=True, read_file=read_weights)
