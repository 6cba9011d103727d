"""Semantic Hashing: features in, the few units in the middle of an autoencoder out as bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hashlens.data.labels import Labels
from hashlens.errors import UsageError
from hashlens.hashers.deep.feature_network import FeatureNetwork, dense_layers

DEVIATION = 0.01  # of the weights that a machine starts with


@dataclass(kw_only=True, eq=False, repr=False)
class SemanticHashing(FeatureNetwork):
    """A deep autoencoder with noisy units in the middle.

    R. Salakhutdinov, G. Hinton, "Semantic Hashing", International Journal of Approximate Reasoning 50, 2009.

    Each layer is first learnt as a restricted Boltzmann machine on the outputs of the one below (contrastive divergence
    of one step). Then the stack is unrolled into an autoencoder and minimises the squared error of the reconstruction,
    with noise added to what the units in the middle receive, the same each time for the same row: they only get
    through it by being far from 1/2. The bit is whether a unit is above 1/2.

    Parameters
    ----------
    hidden : units of the layers between the features and the code.
    noise : deviation of the noise; the paper's 4.
    pretraining_epochs, epochs : for each machine, and for the autoencoder; None: as many as show it a million rows,
        from 10 to 200. 0 for the machines is an autoencoder that starts at random.

    Differences from the paper: its features are counts of words, for which the lowest machine is a constrained Poisson
    model and the error a cross-entropy; here they are numbers of any kind, scaled to mean 0 and deviation 1, so the
    lowest machine has Gaussian units. Adam in place of momentum and of conjugate gradients, and no weight decay. Bits
    are cut at 1/2; the authors cut at 0.1, where noise had left most units of documents.
    """

    name = "semantic"
    supervised = False

    hidden: tuple[int, ...] = (512, 256)
    noise: float = 4.0
    pretraining_epochs: int | None = None
    epochs: int | None = None

    def _scale(self, X: np.ndarray) -> np.ndarray:
        return X.std(0)

    def _activation(self) -> nn.Module:
        return nn.Sigmoid()

    def _learn_network(self, x: torch.Tensor, labels: Labels | None) -> nn.Sequential:
        if any(width < 1 for width in self.hidden):
            raise UsageError(f"hidden layers must have 1 unit or more, not {self.hidden}")
        if self.noise < 0:
            raise UsageError(f"noise must not be negative, not {self.noise:g}")
        if self.pretraining_epochs is not None and self.pretraining_epochs < 0:
            raise UsageError(f"pretraining_epochs must not be negative, not {self.pretraining_epochs}")
        widths = [x.shape[1], *self.hidden, self.n_bits]
        encoder, decoder = dense_layers(widths, nn.Sigmoid()), dense_layers(widths[::-1], nn.Sigmoid())
        generator = torch.Generator().manual_seed(self.random_state)
        layers = [layer for layer in encoder if isinstance(layer, nn.Linear)]
        mirrored = [layer for layer in decoder if isinstance(layer, nn.Linear)][::-1]
        values = x
        for i, (up, down) in enumerate(zip(layers, mirrored, strict=True)):
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


class BoltzmannMachine(nn.Module):
    """The loss by which the linear layer `up` becomes a restricted Boltzmann machine on `values` (n, d).

    Its gradient is that of contrastive divergence with one step: the free energy of what is seen, less that of what the
    machine makes of it. Units below are 0 to 1, or Gaussian with deviation 1.
    """

    values: torch.Tensor

    def __init__(self, up: nn.Linear, values: torch.Tensor, gaussian: bool, generator: torch.Generator):
        super().__init__()
        nn.init.normal_(up.weight, std=DEVIATION)
        nn.init.zeros_(up.bias)
        self.visible_bias = nn.Parameter(torch.zeros(up.in_features))
        self.register_buffer("values", values, persistent=False)
        self.layer = (up,)  # its weights belong to the network
        self.gaussian, self.generator = gaussian, generator

    def forward(
        self, u: torch.Tensor, labels: Labels | None, rows: np.ndarray
    ) -> tuple[torch.Tensor, dict[str, float]]:
        seen = self.values[rows]
        made = self.reconstruct(u)
        return (self.free_energy(seen) - self.free_energy(made)).mean(), {}

    @torch.no_grad()
    def reconstruct(self, u: torch.Tensor) -> torch.Tensor:
        """What units that are on at random, by their chances, say of the layer below."""
        on = torch.bernoulli(u.sigmoid(), generator=self.generator)
        below = on @ self.layer[0].weight + self.visible_bias
        return below if self.gaussian else below.sigmoid()

    def free_energy(self, v: torch.Tensor) -> torch.Tensor:
        own = (v - self.visible_bias).square().sum(1) / 2 if self.gaussian else -v @ self.visible_bias
        return own - functional.softplus(self.layer[0](v)).sum(1)


class Reconstruction(nn.Module):
    """Mean squared error of the rows `x` that the decoder makes of noisy units."""

    x: torch.Tensor
    noise: torch.Tensor

    def __init__(self, decoder: nn.Module, x: torch.Tensor, noise: torch.Tensor):
        super().__init__()
        self.decoder = decoder
        self.register_buffer("x", x, persistent=False)
        self.register_buffer("noise", noise, persistent=False)

    def forward(
        self, u: torch.Tensor, labels: Labels | None, rows: np.ndarray
    ) -> tuple[torch.Tensor, dict[str, float]]:
        made = self.decoder((u + self.noise[rows]).sigmoid())
        return functional.mse_loss(made, self.x[rows]), {}
