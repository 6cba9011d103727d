"""Heads: features of an image in, one real value per bit out.

All weights start like the authors' hash layer, normally distributed with deviation 0.01.
"""

import numpy as np
import torch
from torch import nn

HEADS = {
    "linear": "one linear layer, as in the paper",
    "layers": "two linear layers with a ReLU between them",
    "divide-and-encode": "each bit sees 50 values of its own, as in NINH",
}
HASH_LAYER_STD = 0.01
HIDDEN = 1024  # units between the two layers
PER_BIT = 50  # units per bit of divide-and-encode


class OwnValues(nn.Module):
    """(b, n_bits * per_bit) to (b, n_bits): one linear unit per bit, over the values that belong to it."""

    untraceable = True  # exported as one layer

    def __init__(self, n_bits: int, per_bit: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_bits, per_bit))
        self.bias = nn.Parameter(torch.empty(n_bits))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.unflatten(1, self.weight.shape) * self.weight).sum(2) + self.bias

    def dense(self) -> nn.Linear:
        """The same as a dense layer, with zeros elsewhere."""
        n_bits, per_bit = self.weight.shape
        layer = nn.Linear(n_bits * per_bit, n_bits)
        layer.weight = nn.Parameter(torch.block_diag(*self.weight.detach()))
        layer.bias = nn.Parameter(self.bias.detach())
        return layer


class Standardised(nn.Linear):
    """A linear layer that learns on standardised features; `dense` is the same layer on features as they are."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, features: torch.Tensor, n_bits: int):
        super().__init__(features.shape[1], n_bits)
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("scale", features.std(0, correction=0).clamp(min=1e-6))

    def set(self, weights: np.ndarray, bias: np.ndarray) -> None:
        with torch.no_grad():
            self.weight.copy_(torch.from_numpy(weights.T))
            self.bias.copy_(torch.from_numpy(bias))

    def standardise(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.standardise(x))

    def dense(self) -> nn.Linear:
        layer = nn.Linear(self.in_features, self.out_features)
        weight = (self.weight.detach() / self.scale).double()
        layer.weight = nn.Parameter(weight.float())
        layer.bias = nn.Parameter((self.bias.detach() - weight @ self.mean.double()).float())
        return layer


def build_head(kind: str, n_features: int, n_bits: int) -> nn.Module:
    if kind == "linear":
        head: nn.Module = nn.Linear(n_features, n_bits)
    elif kind == "layers":
        head = nn.Sequential(nn.Linear(n_features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_bits))
    else:
        head = nn.Sequential(nn.Linear(n_features, n_bits * PER_BIT), nn.ReLU(), OwnValues(n_bits, PER_BIT))
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=HASH_LAYER_STD)
    return head
