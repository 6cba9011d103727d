"""Heads: features of an image in, one real value per bit out.

All weights start like the authors' hash layer, normally distributed with deviation 0.01.
"""

import numpy as np
import torch
from torch import nn

HEADS = {
    "linear": "one linear layer, as in the paper",
    "layers": "two linear layers with a ReLU between them",
    "divide-and-encode": "each bit sees its own 50 values, as in NINH",
}
HASH_LAYER_STD = 0.01
HIDDEN = 1024  # units between the two layers
PER_BIT = 50  # units per bit of divide-and-encode
# chosen on rows held out of training; results change little near these values
SHARPNESS = 64.0  # of the softmax over classes: the score of a class whose code agrees in all bits
PULL = 0.4  # weight of a certain class's code; higher helps seen classes, lower unseen ones
SHRINKAGE = 9.0  # ridge of the regression of short codes on long ones


class OwnValues(nn.Module):
    """(b, n_bits * per_bit) to (b, n_bits): one linear unit per bit, over that bit's own values."""

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
    """A linear layer that learns on standardised features; `dense` is the same layer for raw features."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, features: torch.Tensor, weights: np.ndarray, bias: np.ndarray):
        """Standardise by the statistics of `features`; start from `weights` (d, n) and `bias` (n,)."""
        super().__init__(*weights.shape)
        scale = features.std(0, correction=0)
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("scale", torch.where(scale > 1e-6, scale, 1.0))
        with torch.no_grad():
            self.weight.copy_(torch.from_numpy(weights.T))
            self.bias.copy_(torch.from_numpy(bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward((x - self.mean) / self.scale)

    def dense(self) -> nn.Linear:
        layer = nn.Linear(self.in_features, self.out_features)
        weight = (self.weight.detach() / self.scale).double()
        layer.weight = nn.Parameter(weight.float())
        layer.bias = nn.Parameter((self.bias.detach() - weight @ self.mean.double()).float())
        return layer


class FromLongCode(nn.Module):
    """Learns a longer code and derives the bits from it: W tanh(u) + PULL sum_c p_c code_c.

    p is the softmax of how well tanh(u) agrees with the long codes of the classes, code_c is the short code of class c,
    and W is the regression of the short codes on the long ones. With few bits, the codes of many classes are crowded,
    so an image between two classes can get the code of a third; a long code tells which of the two is nearer. During
    training the module outputs the long code.
    """

    def __init__(self, n_features: int, n_long: int, n_classes: int, n_bits: int):
        super().__init__()
        self.long: nn.Linear = nn.Linear(n_features, n_long)
        self.tanh, self.softmax = nn.Tanh(), nn.Softmax(1)
        self.agreement = nn.Linear(n_long, n_classes, bias=False)
        self.codes = nn.Linear(n_classes, n_bits, bias=False)
        self.direct = nn.Linear(n_long, n_bits, bias=False)
        for fixed in (self.agreement, self.codes, self.direct):
            fixed.requires_grad_(False)

    def start(self, long: Standardised, long_codes: np.ndarray, codes: np.ndarray) -> None:
        """Start from a layer `long` and the codes of the classes, (n_classes, n_long) and (n_classes, n_bits)."""
        self.long = long
        n_long = long_codes.shape[1]
        gram = long_codes.T.astype(np.float64) @ long_codes
        weights = np.linalg.solve(gram + SHRINKAGE * np.eye(n_long), long_codes.T @ codes)
        for layer, values in (
            (self.agreement, SHARPNESS / n_long * long_codes),
            (self.codes, PULL * codes.T),
            (self.direct, weights.T),
        ):
            layer.weight.copy_(torch.from_numpy(values))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.long(x)
        if self.training:
            return u
        bits = self.tanh(u)
        return self.direct(bits) + self.codes(self.softmax(self.agreement(bits)))


def plain(head: nn.Module) -> nn.Module:
    """The head with its standardised layers rewritten as layers on raw features."""
    if isinstance(head, Standardised):
        return head.dense()
    for name, layer in head.named_children():
        if isinstance(layer, Standardised):
            setattr(head, name, layer.dense())
    return head


class BothCodes(nn.Module):
    """The outputs of the hash layer followed by those of the second code (hashers/second.py)."""

    def __init__(self, first: nn.Module, mean: np.ndarray, projection: np.ndarray):
        super().__init__()
        self.first = first
        self.second = nn.Linear(*projection.shape)
        weight, bias = projection.T, -mean.astype(np.float64) @ projection.astype(np.float64)
        self.second.weight = nn.Parameter(torch.from_numpy(weight.astype(np.float32)))
        self.second.bias = nn.Parameter(torch.from_numpy(bias.astype(np.float32)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.first(x), self.second(x)], 1)


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
