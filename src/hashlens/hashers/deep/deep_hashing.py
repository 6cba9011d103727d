"""Deep Hashing and its supervised variant: features in, the signs of a few layers of tanh units out."""

from typing import Any, Self

import numpy as np
import torch
from torch import nn

from hashlens.data.labels import Labels
from hashlens.hashers.deep.feature_network import FeatureNetwork, dense_layers, linear_layers
from hashlens.hashers.losses import Loss, same_class, squared_distances
from hashlens.hashers.shallow.spectral import principal_directions
from hashlens.settings import setting

# units of the two layers before the code, in the paper for 16, 32 and 64 bits
PAPER_BITS, PAPER_WIDTHS = (16, 32, 64), ((60, 80, 100), (30, 50, 80))


class DeepHashing(FeatureNetwork):
    """Deep hashing, without labels.

    V. E. Liong, J. Lu, G. Wang, P. Moulin, J. Zhou, "Deep Hashing for Compact Binary Codes Learning", CVPR 2015.

    With h the outputs of the last of three layers of tanh units, minimises the mean over rows of |sgn(h) - h|^2 / 2,
    minus lambda1/2 times the mean of |h|^2, plus lambda2/2 times the sum over layers of |W W' - I|^2, plus lambda3/2
    times the squares of all weights and biases: a small quantisation loss, bits that vary, and layers whose rows are
    orthogonal. The first layer starts as principal directions, the others as identities.

    Differences from the paper: Adam on batches instead of gradient descent on all rows; layers for lengths between the
    paper's 16, 32 and 64 bits by interpolation. Features are centred and divided by one number, so that the initial
    outputs of the first layer have variance 1 on average. The first term is a mean over rows, where the paper prints a
    sum: next to it, the other terms would count less the more rows there are. The weights are the paper's for 5,000
    rows; `published` adapts them to your number of rows.
    """

    name = "dh"
    supervised = False

    lambda1: float = setting(0.02, "weight of the variance of bits; paper: 100 / rows", low=0)
    lambda2: float = setting(2e-7, "weight of orthogonal rows; paper: 0.001 / rows", low=0)
    lambda3: float = setting(2e-7, "weight decay; paper: 0.001 / rows", low=0)

    @classmethod
    def published(cls, n_bits: int = 48, n_train: int = 5_000, **changes: Any) -> Self:
        """The paper's weights, for `n_train` rows."""
        theirs = {"lambda1": 100 / n_train, "lambda2": 0.001 / n_train, "lambda3": 0.001 / n_train}
        return super().published(n_bits, n_train, **theirs | changes)

    @property
    def _widths(self) -> list[int]:
        between = [round(np.interp(self.n_bits, PAPER_BITS, widths)) for widths in PAPER_WIDTHS]
        return [*(max(width, self.n_bits) for width in between), self.n_bits]

    def _scale(self, X: np.ndarray) -> np.ndarray:
        first = X @ principal_directions(X, min(self._widths[0], X.shape[1]))
        return np.sqrt(np.square(first).mean())

    def _learn_network(self, x: torch.Tensor, labels: Labels | None) -> nn.Sequential:
        network = dense_layers([x.shape[1], *self._widths], nn.Tanh)
        start(network, x)
        alpha = getattr(self, "alpha", 0.0)  # only the supervised variant has it
        loss = DeepHashingLoss(network, self.lambda1, self.lambda2, self.lambda3, alpha)
        self._train(network, loss, x, labels, self.epochs)
        return network


class SupervisedDeepHashing(DeepHashing):
    """Deep hashing with labels ("SDH" in its paper; here that name means Supervised Discrete Hashing).

    V. E. Liong, J. Lu, G. Wang, P. Moulin, J. Zhou, "Deep Hashing for Compact Binary Codes Learning", CVPR 2015.

    As DeepHashing, with one more term inside the second: alpha times the mean of |h - h'|^2 over pairs of rows that
    share no label, minus the mean over pairs that share one.

    Differences from the paper: as in DeepHashing; and pairs are formed inside a batch. lambda1 and lambda2 are larger,
    because otherwise the labels hardly count.
    """

    name = "dh-supervised"
    supervised = True

    lambda1: float = setting(1.0, "weight of the variance of bits; paper: 100 / rows", low=0)
    lambda2: float = setting(100.0, "weight of orthogonal rows; paper: 0.001 / rows", low=0)
    alpha: float = setting(1.0, "weight of the labels; paper: 1", low=0)


def start(network: nn.Sequential, x: torch.Tensor) -> None:
    """Start the first layer as principal directions and the others as identities, padded with zeros."""
    layers = linear_layers(network)
    directions = principal_directions(x.double().numpy(), layers[0].out_features)
    with torch.no_grad():
        layers[0].weight.copy_(torch.from_numpy(directions.T.copy()))
        for layer in layers[1:]:
            layer.weight.copy_(torch.eye(*layer.weight.shape))
        for layer in layers:
            layer.bias.zero_()


class DeepHashingLoss(Loss):
    """The objective, estimated on a batch."""

    def __init__(self, network: nn.Sequential, lambda1: float, lambda2: float, lambda3: float, alpha: float):
        layers = tuple(linear_layers(network))
        super().__init__(layers[-1].out_features)
        self.layers = layers  # a tuple, so that their weights stay the network's alone
        self.lambda1, self.lambda2, self.lambda3, self.alpha = lambda1, lambda2, lambda3, alpha
        self.needs_labels = alpha != 0

    def compute(self, u: torch.Tensor, labels: Any, rows: Any) -> tuple[torch.Tensor, None]:
        h = u.tanh()
        signs = torch.where(h > 0, 1.0, -1.0)
        quantisation = (signs - h).square().sum(1).mean() / 2
        spread = h.square().sum(1).mean()
        if self.alpha:
            spread = spread + self.alpha * between_less_within(h, labels)
        regulariser = h.new_zeros(())
        for layer in self.layers:
            W, c = layer.weight, layer.bias
            apart = (W @ W.T - torch.eye(len(W), dtype=W.dtype)).square().sum()
            decay = W.square().sum() + c.square().sum()
            regulariser = regulariser + self.lambda2 / 2 * apart + self.lambda3 / 2 * decay
        return quantisation - self.lambda1 / 2 * spread + regulariser, None


def between_less_within(h: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean squared distance of the pairs that share no label, minus that of the pairs that share one."""
    distances, alike = squared_distances(h), same_class(labels, labels)
    alike, others = (pairs & ~torch.eye(len(h), dtype=torch.bool) for pairs in (alike, ~alike))
    means = [distances[pairs].mean() if pairs.any() else h.new_zeros(()) for pairs in (others, alike)]
    return means[0] - means[1]
