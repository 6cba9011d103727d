"""FeatureNetwork: what the networks on fixed features share. Features in, a few dense layers and their codes out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from hashlens.data.labels import Labels
from hashlens.errors import UsageError
from hashlens.hashers.deep.inputs import FeatureInputs
from hashlens.hashers.deep.training import Training, train
from hashlens.hashers.shallow.base import ShallowHasher
from hashlens.networks.inference import prepare_cpu

ROWS = 1_000_000  # seen in training where the number of epochs is left to us
BATCH, LEARNING_RATE = 100, 3e-3


class FeatureNetwork(ShallowHasher):
    """A method writes `_scale`, which says by what to divide the centred features, and `_learn_network`.

    The network's last module is a linear layer with one unit a bit: the code is the sign of what it gives.
    """

    epochs: int | None

    mean_: np.ndarray  # (d,)
    scale_: np.ndarray  # (d,) or ()
    network_: nn.Sequential

    def _scale(self, X: np.ndarray) -> np.ndarray:
        """For centred rows X."""
        raise NotImplementedError

    def _learn_network(self, x: torch.Tensor, labels: Labels | None) -> nn.Sequential:
        """For centred and scaled rows x; the seed of torch is set."""
        raise NotImplementedError

    def _fit(self, X: np.ndarray, labels: Labels | None) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise UsageError(f"epochs must be 1 or more, not {self.epochs}")
        prepare_cpu()
        self.mean_ = X.mean(0)
        scale = np.asarray(self._scale(X - self.mean_))
        self.scale_ = np.where(scale > 1e-12, scale, 1.0)  # a feature that never changes stays 0
        with torch.random.fork_rng():
            torch.manual_seed(self.random_state)
            self.network_ = self._learn_network(self._prepared(X), labels).eval()

    def _prepared(self, X: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(((X - self.mean_) / self.scale_).astype(np.float32))

    def _train(
        self, network: nn.Module, loss: nn.Module, x: torch.Tensor, labels: Labels | None, epochs: int | None
    ) -> list[dict[str, float]]:
        """The training loop of all networks, on these rows."""
        epochs = epochs or min(200, max(10, ROWS // len(x)))
        how = Training(epochs, BATCH, lr=LEARNING_RATE, head_lr=LEARNING_RATE, weight_decay=0)
        inputs = FeatureInputs(x.numpy())
        return train(network, loss, inputs, labels, how, seed=self.random_state, device="cpu", precision="float32")

    def _project(self, X: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.network_(self._prepared(X)).numpy()

    def _state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        config, arrays = super()._state()
        layers = [layer for layer in self.network_ if isinstance(layer, nn.Linear)]
        widths = [layer.out_features for layer in layers]
        weights = {f"network.{name}": value.numpy() for name, value in self.network_.state_dict().items()}
        return config | {"widths": widths}, arrays | weights

    def _restore(self, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        own, prefix = {name: value for name, value in arrays.items() if "." not in name}, "network."
        super()._restore(config, own)
        self.network_ = dense_layers([self.n_features_in_, *config["widths"]], self._activation())
        weights = {name.removeprefix(prefix): torch.from_numpy(arrays[name]) for name in arrays.keys() - own.keys()}
        try:
            self.network_.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError("its weights do not fit its configuration") from error
        self.network_.eval()

    @classmethod
    def _params_from_json(cls, params: dict[str, Any]) -> dict[str, Any]:
        lists = {name: tuple(value) for name, value in params.items() if isinstance(value, list)}
        return params | lists  # JSON has no tuples

    def _activation(self) -> nn.Module:
        """Between layers."""
        raise NotImplementedError


def dense_layers(widths: list[int], activation: nn.Module) -> nn.Sequential:
    """Linear layers from each width to the next, with the activation between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), activation]
    return nn.Sequential(*layers[:-1])
