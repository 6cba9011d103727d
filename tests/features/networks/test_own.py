"""A module of the user's own as backbone: training, freezing, saving and loading."""

import json
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import hashlens
from hashlens import DTSH, Training
from hashlens.errors import DataError, MismatchError, UsageError
from hashlens.features.networks import IMAGENET, NETWORKS, Network, network_info
from hashlens.features.networks.normalise import Normalise

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 10, 10, 3), dtype=np.uint8)
Y = np.arange(24) % 3
TRAINING = Training(epochs=2, batch_size=8)


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))


class Branching(nn.Module):
    """Neither a sequence, nor traceable."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(300, 7)

    def forward(self, x):
        assert x.shape[1:] == (3, 10, 10) and x.dtype == torch.float32
        return self.layer(x.flatten(1)) if x.mean() < 100 else x.flatten(1)[:, :7]


class Scaled(Branching):
    def forward(self, x):
        return 2 * super().forward(x)


def make(module, **settings):
    return DTSH(8, **{"backbone": module, "image_size": 10, "training": TRAINING} | settings)


def test_it_takes_normalised_images_unless_it_normalises_itself():
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(x.clone())
            return x.flatten(1)

    make(Spy(), training=Training(epochs=1, flip=False)).fit(PIXELS, Y)
    row = seen[1][0].permute(1, 2, 0) * torch.tensor(IMAGENET["std"]) + torch.tensor(IMAGENET["mean"])
    assert (np.abs(row.numpy() * 255 - PIXELS).max((1, 2, 3)) < 1e-3).sum() == 1
    seen.clear()
    own = make(nn.Sequential(Normalise(0.0, 1.0, divided_by=1), Spy()), training=Training(epochs=1, flip=False))
    own.fit(PIXELS, Y)
    assert any(np.array_equal(seen[1][0].permute(1, 2, 0).numpy(), image) for image in PIXELS)
    assert [type(module).__name__ for module in own.network_] == ["Normalise", "Spy", "FromLongCode"]


@pytest.mark.parametrize(("module", "n_blocks"), [(blocks(), 3), (Branching(), 1)], ids=["sequence", "one block"])
def test_training_saving_and_loading(tmp_path, module, n_blocks):
    before = {name: value.clone() for name, value in module.state_dict().items()}
    hasher = make(module).fit(PIXELS, Y)
    assert len(hasher.network_) == 1 + n_blocks + 1 and hasher.frozen_blocks_ == 0
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items()), "it is copied"
    trained = dict(hasher.network_[1 : 1 + n_blocks].named_parameters())
    start = dict(make(module).fit(PIXELS, Y).network_[1 : 1 + n_blocks].named_parameters())
    assert all(torch.equal(value, start[name]) for name, value in trained.items()), "the seed decides everything"
    assert not torch.equal(next(iter(trained.values())), next(iter(before.values())))
    hasher.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["backbone"] == config["params"]["backbone"] == f"own:{type(module).__name__}"
    for load in (DTSH.load, hashlens.load):
        loaded = load(tmp_path, backbone=type(module)() if n_blocks == 1 else blocks())
        assert loaded.encode(PIXELS).equals(hasher.encode(PIXELS))
        with pytest.raises(
            UsageError, match=rf"\({type(module).__name__}\); load it with DTSH.load\(folder, backbone="
        ):
            load(tmp_path)
        with pytest.raises(MismatchError, match=r"takes the weights of .* but computes something else"):
            load(tmp_path, backbone=Scaled() if n_blocks == 1 else nn.Sequential(blocks()[0], nn.GELU(), *blocks()[2:]))
        with pytest.raises(DataError, match="its weights do not fit"):
            load(tmp_path, backbone=nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten()))
    with pytest.raises(UsageError, match="dtsh has no setting 'backbon'"):
        DTSH.load(tmp_path, backbon=module)


@pytest.mark.parametrize("frozen", [1, 3])
def test_leading_blocks_can_be_frozen(empty_cache, frozen):
    hasher = make(blocks(), frozen_blocks=frozen).fit(PIXELS, Y)
    for ours, theirs in zip(hasher.network_[1 : 1 + frozen], blocks(), strict=False):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    with pytest.raises(UsageError, match="own:Sequential has 3 blocks; cannot freeze 4 of them"):
        make(blocks(), frozen_blocks=4).fit(PIXELS, Y)


def test_wrong_use():
    with pytest.raises(UsageError, match="needs image_size"):
        make(blocks(), image_size=None).fit(PIXELS, Y)
    with pytest.raises(UsageError, match=r"own:Conv2d must output features of shape \(b, d\), got \(1, 4, 8, 8\)"):
        make(nn.Conv2d(3, 4, 3)).fit(PIXELS, Y)
    with pytest.raises(UsageError, match=r"own:Linear cannot take images of 10 pixels; try another image_size \("):
        make(nn.Linear(4, 4)).fit(PIXELS, Y)
    with pytest.raises(UsageError, match="own:Sequential takes no weights file"):
        make(blocks(), weights="x.pth").fit(PIXELS, Y)
    assert network_info(blocks()).name == "own:Sequential"


def test_a_new_network_is_a_module_and_a_row(monkeypatch):
    toy = ModuleType("hashlens.features.networks.toy")
    toy.NETWORK = Network("toy", 10, lambda name: blocks(), IMAGENET, flip=False)
    monkeypatch.setitem(sys.modules, toy.__name__, toy)
    monkeypatch.setitem(NETWORKS, "toy", ("toy:NETWORK", "a toy"))
    hasher = DTSH(8, backbone="toy", training=TRAINING).fit(PIXELS, Y)
    assert (hasher.image_size_, hasher.n_features_in_, hasher.encode(PIXELS).n_bits) == (10, 6, 8)
