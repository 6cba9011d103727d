"""Semantic Hashing: features in, the middle units of an autoencoder out, as bits."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hashlens.data.labels import Labels
from hashlens.hashers.deep.feature_network import FeatureNetwork, dense_layers, linear_layers
from hashlens.hashers.losses import Loss
from hashlens.settings import setting

DEVIATION = 0.01  # of the initial weights of a machine


class SemanticHashing(FeatureNetwork):
    """A deep autoencoder with noisy units in the middle.

    R. Salakhutdinov, G. Hinton, "Semantic Hashing", International Journal of Approximate Reasoning 50, 2009.

    Each layer is first learned as a restricted Boltzmann machine on the outputs of the one below (contrastive
    divergence of one step). Then the stack is unrolled into an autoencoder that minimises the squared reconstruction
    error, with noise added to the input of the middle units, always the same for the same row: this drives them away
    from 1/2. A bit is 1 where its unit is above 1/2.

    Differences from the paper: its features are word counts, for which the lowest machine is a constrained Poisson
    model and the error a cross-entropy; here features are any numbers, scaled to mean 0 and deviation 1, so the lowest
    machine has Gaussian units. Adam instead of momentum and conjugate gradients, and no weight decay. Bits are cut at
    1/2; the authors cut at 0.1, because with noise most units of documents ended up there.
    """

    name = "semantic"
    supervised = False
    activation = nn.Sigmoid

    hidden: tuple[int, ...] = setting((512, 256), "units of the layers between the features and the code", low=1)
    noise: float = setting(4.0, "standard deviation of the noise added to the code layer; paper: 4", low=0)
    pretraining_epochs: int | None = setting(
        None, "epochs per Boltzmann machine; none: 10 to 200, about a million rows in total; 0: no pretraining", low=0
    )

    def _scale(self, X: np.ndarray) -> np.ndarray:
        return X.std(0)

    def _learn_network(self, x: torch.Tensor, labels: Labels | None) -> nn.Sequential:
        widths = [x.shape[1], *self.hidden, self.n_bits]
        encoder, decoder = dense_layers(widths, nn.Sigmoid), dense_layers(widths[::-1], nn.Sigmoid)
        generator = torch.Generator().manual_seed(self.random_state)
        values = x
        for i, (up, down) in enumerate(zip(linear_layers(encoder), linear_layers(decoder)[::-1], strict=True)):
            machine = BoltzmannMachine(up, values, gaussian=i == 0, generator=generator)
            if self.pretraining_epochs != 0:
                self._train(nn.Sequential(up), machine, values, None, self.pretraining_epochs)
            with torch.no_grad():
                down.weight.copy_(up.weight.T)
                down.bias.copy_(machine.visible_bias)
                values = up(values).sigmoid()
        noise = self.noise * torch.randn(len(x), self.n_bits, generator=generator)
        self._train(encoder, Reconstruction(decoder, x, noise), x, None, self.epochs)
        return encoder


class BoltzmannMachine(Loss):
    """The loss that trains the linear layer `up` as a restricted Boltzmann machine on `values` (n, d).

    Its gradient is one-step contrastive divergence: the free energy of the data minus that of its reconstruction. Units
    below are 0 to 1, or Gaussian with deviation 1.
    """

    needs_labels, needs_rows = False, True
    values: torch.Tensor

    def __init__(self, up: nn.Linear, values: torch.Tensor, gaussian: bool, generator: torch.Generator):
        super().__init__(up.out_features)
        nn.init.normal_(up.weight, std=DEVIATION)
        nn.init.zeros_(up.bias)
        self.visible_bias = nn.Parameter(torch.zeros(up.in_features))
        self.register_buffer("values", values, persistent=False)
        self.layer = (up,)  # a tuple, so that its weights stay the network's alone
        self.gaussian, self.generator = gaussian, generator

    def compute(self, u: torch.Tensor, labels: Any, rows: np.ndarray) -> tuple[torch.Tensor, None]:
        return (self.free_energy(self.values[rows]) - self.free_energy(self.reconstruct(u))).mean(), None

    @torch.no_grad()
    def reconstruct(self, u: torch.Tensor) -> torch.Tensor:
        """The layer below, reconstructed from units sampled with their probabilities."""
        on = torch.bernoulli(u.sigmoid(), generator=self.generator)
        below = on @ self.layer[0].weight + self.visible_bias
        return below if self.gaussian else below.sigmoid()

    def free_energy(self, v: torch.Tensor) -> torch.Tensor:
        own = (v - self.visible_bias).square().sum(1) / 2 if self.gaussian else -v @ self.visible_bias
        return own - functional.softplus(self.layer[0](v)).sum(1)


class Reconstruction(Loss):
    """Mean squared error of the rows `x` that the decoder reconstructs from noisy units."""

    needs_labels, needs_rows = False, True
    x: torch.Tensor
    noise: torch.Tensor

    def __init__(self, decoder: nn.Module, x: torch.Tensor, noise: torch.Tensor):
        super().__init__(noise.shape[1])
        self.decoder = decoder
        self.register_buffer("x", x, persistent=False)
        self.register_buffer("noise", noise, persistent=False)

    def compute(self, u: torch.Tensor, labels: Any, rows: np.ndarray) -> tuple[torch.Tensor, None]:
        return functional.mse_loss(self.decoder((u + self.noise[rows]).sigmoid()), self.x[rows]), None
