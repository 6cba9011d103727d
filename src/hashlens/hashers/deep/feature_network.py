"""FeatureNetwork, the base of networks on fixed features: features in, a few dense layers and their codes out."""

from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from scipy.special import expit
from torch import nn

from hashlens.data.labels import Labels
from hashlens.features.networks.inference import prepare_cpu
from hashlens.hashers.deep.inputs import ArrayInputs
from hashlens.hashers.deep.training import Training, train
from hashlens.hashers.losses import Loss
from hashlens.hashers.shallow.base import ShallowHasher
from hashlens.ranks import Ranks, current
from hashlens.settings import setting, to_json

ROWS = 1_000_000  # rows seen in training if epochs is not set
BATCH, LEARNING_RATE = 100, 3e-3
ACTIVATIONS: dict[type[nn.Module], Callable[[np.ndarray], np.ndarray]] = {nn.Tanh: np.tanh, nn.Sigmoid: expit}


class FeatureNetwork(ShallowHasher):
    """A method implements `_scale`, the divisor of the centred features, and `_learn_network`.

    The network is linear layers with `activation` between them; the code is the sign of the last layer's outputs.
    Everything learned is kept as arrays: `mean_`, `scale_`, and the layers' `weight0_`, `bias0_`, `weight1_` ...
    """

    activation: ClassVar[type[nn.Module]] = nn.Tanh
    epochs: int | None = setting(None, "training epochs; none: 10 to 200, about a million rows in total", low=1)

    def _scale(self, X: np.ndarray) -> np.ndarray:
        """The divisor for centred rows X."""
        raise NotImplementedError

    def _learn_network(self, x: torch.Tensor, labels: Labels | None) -> nn.Sequential:
        """Learn from centred and scaled rows x; torch is already seeded."""
        raise NotImplementedError

    @property
    def _ranks(self) -> Ranks:
        return current()

    def _fit(self, X: np.ndarray, labels: Labels | None) -> None:
        if self._ranks.size > 1:
            data = X.tobytes() + (b"" if labels is None else labels.values.tobytes())
            self._ranks.require_same(**to_json(self), data=sha256(data).hexdigest()[:16])
        prepare_cpu()
        self.mean_ = X.mean(0)
        scale = np.asarray(self._scale(X - self.mean_))
        self.scale_ = np.where(scale > 1e-12, scale, 1.0)  # constant features stay 0
        with torch.random.fork_rng():
            torch.manual_seed(self.random_state)
            network = self._learn_network(torch.from_numpy(self._prepared(X)), labels)
        for i, layer in enumerate(linear_layers(network)):
            setattr(self, f"weight{i}_", layer.weight.detach().numpy())
            setattr(self, f"bias{i}_", layer.bias.detach().numpy())

    def _prepared(self, X: np.ndarray) -> np.ndarray:
        return ((X - self.mean_) / self.scale_).astype(np.float32)

    def _train(
        self, network: nn.Module, loss: Loss, x: torch.Tensor, labels: Labels | None, epochs: int | None
    ) -> list[dict[str, float]]:
        """Run the common training loop on rows x."""
        epochs = epochs or min(200, max(10, ROWS // len(x)))
        how = Training(epochs=epochs, batch_size=BATCH, lr=LEARNING_RATE, head_lr=LEARNING_RATE, weight_decay=0)
        return train(network, loss, ArrayInputs([x.numpy()]), labels, how, seed=self.random_state)

    def _project(self, X: np.ndarray) -> np.ndarray:
        x, i = self._prepared(X), 0
        while hasattr(self, f"weight{i}_"):
            x = ACTIVATIONS[self.activation](x) if i else x
            x = x @ getattr(self, f"weight{i}_").T + getattr(self, f"bias{i}_")
            i += 1
        return x


def dense_layers(widths: list[int], activation: type[nn.Module]) -> nn.Sequential:
    """Linear layers from each width to the next, with the activation in between."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def linear_layers(network: nn.Sequential) -> list[nn.Linear]:
    return [layer for layer in network if isinstance(layer, nn.Linear)]
