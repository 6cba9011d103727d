"""Heads: features of a picture in, one real value for each bit out.

All weights start as the authors' hash layer does, from a normal distribution with deviation 0.01.
"""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

from hashlens.errors import UsageError

HEADS = {
    "linear": "one linear layer, as in the paper",
    "layers": "two linear layers with a ReLU between them",
    "divide-and-encode": "each bit sees 50 values of its own, as in NINH",
}
HASH_LAYER_STD = 0.01
HIDDEN = 1024  # values between the two layers
PER_BIT = 50  # values that a bit of divide-and-encode sees


class OwnValues(nn.Module):
    """(b, n_bits * per_bit) to (b, n_bits): one linear unit for each bit, over the values that belong to it."""

    untraceable = True  # to be seen as one layer by whoever writes the network down

    def __init__(self, n_bits: int, per_bit: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_bits, per_bit))
        self.bias = nn.Parameter(torch.empty(n_bits))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.unflatten(1, self.weight.shape) * self.weight).sum(2) + self.bias

    def dense(self) -> nn.Linear:
        """The same as a full layer, with zeros where a bit does not look."""
        n_bits, per_bit = self.weight.shape
        layer = nn.Linear(n_bits * per_bit, n_bits)
        layer.weight = nn.Parameter(torch.block_diag(*self.weight.detach()))
        layer.bias = nn.Parameter(self.bias.detach())
        return layer


Layer = TypeVar("Layer", bound=nn.Linear | OwnValues)


def build_head(kind: str, n_features: int, n_bits: int) -> nn.Module:
    if kind == "linear":
        head: nn.Module = nn.Linear(n_features, n_bits)
    elif kind == "layers":
        head = nn.Sequential(nn.Linear(n_features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_bits))
    elif kind == "divide-and-encode":
        head = nn.Sequential(nn.Linear(n_features, n_bits * PER_BIT), nn.ReLU(), OwnValues(n_bits, PER_BIT))
    else:
        raise UsageError(f"there is no head '{kind}'; choose one of {', '.join(HEADS)}")
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=HASH_LAYER_STD)
    return head


def keep_bits(head: nn.Module, bits: torch.Tensor) -> nn.Module:
    """A copy of the head that gives only these bits, in this order."""
    if isinstance(head, nn.Linear):
        return _rows(head, bits)
    assert isinstance(head, nn.Sequential)
    first, between, last = head
    assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear | OwnValues)
    if isinstance(last, OwnValues):  # the values that only the other bits saw are left out
        first = _rows(first, (bits[:, None] * PER_BIT + torch.arange(PER_BIT)).flatten())
    return nn.Sequential(copy.deepcopy(first), between, _rows(last, bits))


def _rows(layer: Layer, rows: torch.Tensor) -> Layer:
    part = copy.deepcopy(layer)
    part.weight = nn.Parameter(layer.weight.detach()[rows])
    part.bias = nn.Parameter(layer.bias.detach()[rows])
    if isinstance(part, nn.Linear):
        part.out_features = len(rows)
    return part
