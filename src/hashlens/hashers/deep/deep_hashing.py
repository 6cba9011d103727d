"""Deep Hashing and its supervised variant: features in, the signs of a few layers of tanh units out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hashlens.data.labels import Labels, relevant
from hashlens.errors import UsageError
from hashlens.hashers.deep.feature_network import FeatureNetwork, dense_layers
from hashlens.hashers.shallow.itq import principal_directions

# units of the two layers before the code, as the paper has them for 16, 32 and 64 bits
PAPER_BITS, PAPER_WIDTHS = (16, 32, 64), ((60, 80, 100), (30, 50, 80))


@dataclass(kw_only=True, eq=False, repr=False)
class DeepHashing(FeatureNetwork):
    """Deep hashing, without labels.

    V. E. Liong, J. Lu, G. Wang, P. Moulin, J. Zhou, "Deep Hashing for Compact Binary Codes Learning", CVPR 2015.

    With h the outputs of the last of three layers of tanh units, minimises over n rows the sum of |sgn(h) - h|^2 / 2,
    less lambda1/2 times the mean of |h|^2, plus lambda2/2 times the sum over layers of |W W' - I|^2, plus lambda3/2
    times the squares of all weights and biases: little loss by the sign, bits that vary, and layers whose rows are
    orthogonal. The first layer starts as principal directions, the others as identities.

    Parameters
    ----------
    lambda1, lambda2, lambda3 : the paper's 100, 0.001 and 0.001.
    epochs : None: as many as show it a million rows, from 10 to 200.

    Differences from the paper: Adam on batches in place of gradient descent on all rows; layers for lengths between the
    paper's 16, 32 and 64 bits by interpolation. Features are centred and divided by one number, so that what the first
    layer gives at the start has variance 1 on average. The first term is a sum over rows and the second a mean, as they
    are printed: over thousands of rows lambda1 = 100 weighs little.
    """

    name = "dh"
    supervised = False

    lambda1: float = 100.0
    lambda2: float = 0.001
    lambda3: float = 0.001
    epochs: int | None = None

    @property
    def _widths(self) -> list[int]:
        between = [round(np.interp(self.n_bits, PAPER_BITS, widths)) for widths in PAPER_WIDTHS]
        return [*(max(width, self.n_bits) for width in between), self.n_bits]

    def _scale(self, X: np.ndarray) -> np.ndarray:
        first = X @ principal_directions(X, min(self._widths[0], X.shape[1]))
        return np.sqrt(np.square(first).mean())

    def _activation(self) -> nn.Module:
        return nn.Tanh()

    def _learn_network(self, x: torch.Tensor, labels: Labels | None) -> nn.Sequential:
        if any(value < 0 for value in (self.lambda1, self.lambda2, self.lambda3)):
            raise UsageError("lambda1, lambda2 and lambda3 must not be negative")
        network = dense_layers([x.shape[1], *self._widths], nn.Tanh())
        start(network, x)
        loss = DeepHashingLoss(network, len(x), self.lambda1, self.lambda2, self.lambda3, self._alpha)
        self._train(network, loss, x, labels, self.epochs)
        return network

    @property
    def _alpha(self) -> float:
        return 0.0


@dataclass(kw_only=True, eq=False, repr=False)
class SupervisedDeepHashing(DeepHashing):
    """Deep hashing with labels ("SDH" in its paper, a name that Supervised Discrete Hashing has here).

    V. E. Liong, J. Lu, G. Wang, P. Moulin, J. Zhou, "Deep Hashing for Compact Binary Codes Learning", CVPR 2015.

    As DeepHashing, with one term more inside the second: alpha times the mean of |h - h'|^2 over pairs of rows that
    share no label, less the mean over pairs that share one.

    Parameters
    ----------
    alpha : the paper's 1.
    lambda1, lambda2, lambda3, epochs : as in DeepHashing.

    Differences from the paper: as in DeepHashing; and the pairs are those of a batch.
    """

    name = "dh-supervised"
    supervised = True

    alpha: float = 1.0

    @property
    def _alpha(self) -> float:
        return self.alpha


def start(network: nn.Sequential, x: torch.Tensor) -> None:
    """Principal directions, then identities; noughts where there are no more of either."""
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    directions = principal_directions(x.double().numpy(), layers[0].out_features)
    largest = np.take_along_axis(directions, np.abs(directions).argmax(0)[None], 0)
    directions = np.where(largest < 0, -directions, directions)  # a direction may point either way; always the same
    with torch.no_grad():
        layers[0].weight.copy_(torch.from_numpy(directions.T.copy()))
        for layer in layers[1:]:
            layer.weight.copy_(torch.eye(*layer.weight.shape))
        for layer in layers:
            layer.bias.zero_()


class DeepHashingLoss(nn.Module):
    """The objective divided by the number of rows, estimated on a batch."""

    def __init__(self, network: nn.Sequential, n: int, lambda1: float, lambda2: float, lambda3: float, alpha: float):
        super().__init__()
        self.layers = tuple(layer for layer in network if isinstance(layer, nn.Linear))  # they belong to the network
        self.n, self.lambda1, self.lambda2, self.lambda3, self.alpha = n, lambda1, lambda2, lambda3, alpha

    def forward(
        self, u: torch.Tensor, labels: Labels | None, rows: np.ndarray
    ) -> tuple[torch.Tensor, dict[str, float]]:
        h = u.tanh()
        signs = torch.where(h > 0, 1.0, -1.0)
        lost = (signs - h).square().sum(1).mean() / 2
        spread = h.square().sum(1).mean()
        if self.alpha and labels is not None:
            spread = spread + self.alpha * between_less_within(h, labels)
        rules = h.new_zeros(())
        for layer in self.layers:
            W, c = layer.weight, layer.bias
            apart = (W @ W.T - torch.eye(len(W), dtype=W.dtype)).square().sum()
            rules = rules + self.lambda2 / 2 * apart + self.lambda3 / 2 * (W.square().sum() + c.square().sum())
        return lost - self.lambda1 / (2 * self.n) * spread + rules / self.n, {}


def between_less_within(h: torch.Tensor, labels: Labels) -> torch.Tensor:
    """Mean squared distance of the pairs that share no label, less that of the pairs that share one."""
    squares = h.square().sum(1)
    distances = squares[:, None] + squares - 2 * h @ h.T
    alike = torch.from_numpy(relevant(labels, labels))
    alike, others = (pairs & ~torch.eye(len(h), dtype=torch.bool) for pairs in (alike, ~alike))
    means = [distances[pairs].mean() if pairs.any() else h.new_zeros(()) for pairs in (others, alike)]
    return means[0] - means[1]
