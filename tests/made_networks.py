"""Weights for networks whose published ones would have to be downloaded."""

from functools import cache

import torch

from hashlens.features.networks.efficientnet_lite import build


@cache
def random_weights(name):
    """Random weights whose batch norms fit noise, so that different images have different features."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = build(name)
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None  # the statistics of one batch
        with torch.no_grad():
            network.train()(torch.randn(16, 3, 32, 32))
        return network.state_dict()
