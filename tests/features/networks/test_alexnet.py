"""AlexNet: shapes, published convolutions, a user's file of weights, adaptive pooling in ONNX."""

import hashlib
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from hashlens.errors import DataError
from hashlens.features.networks import alexnet, build_blocks, describe_network
from hashlens.features.networks.alexnet import NAMES, NETWORK, ArrayUnpickler, build, read_published, read_weights
from hashlens.features.networks.inference import fold, forward_function
from hashlens.features.networks.onnx_graph import to_onnx

CONVOLUTIONS = {
    "features.0": (64, 3, 11, 11),
    "features.3": (192, 64, 5, 5),
    "features.6": (384, 192, 3, 3),
    "features.8": (256, 384, 3, 3),
    "features.10": (256, 256, 3, 3),
}


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return build_blocks("alexnet", pretrained=False).eval()


@pytest.fixture(scope="module")
def theirs(network):
    """A state dict with torchvision's names."""
    state = nn.Sequential(*network[1:]).state_dict()
    names = {f"{ours}.{what}": f"{name}.{what}" for name, ours in NAMES.items() for what in ("weight", "bias")}
    return {names[key]: value for key, value in state.items()} | {"classifier.6.weight": torch.zeros(10, 4096)}


def images(n, size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def test_shapes_and_numbers_of_parameters():
    with torch.device("meta"):
        blocks = build("alexnet")
        x = torch.empty(1, 3, 224, 224)
    counts = [sum(p.numel() for p in m.parameters()) for m in blocks.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert counts == [23_296, 307_392, 663_936, 884_992, 590_080, 37_752_832, 16_781_312]
    shapes = []
    for block in blocks:
        x = block(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [
        (64, 27, 27), (192, 13, 13), (384, 13, 13), (256, 13, 13), (256, 6, 6), (4096,), (4096,)
    ]  # fmt: skip
    assert NETWORK.frozen == 5
    assert not any(isinstance(m, nn.Dropout) for m in blocks.modules())


def test_preprocessing(network):
    x = images(2, 9)
    expected = (x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(network[0](torch.from_numpy(x)).permute(0, 2, 3, 1), expected, atol=1e-5)


@pytest.mark.parametrize("size", [64, 150, 224, 300])
def test_onnx_equals_eager_at_any_size(network, size):
    """Maps of 1, 3, 6 and 8 pixels are pooled to 6."""
    x = images(2, size)
    small = nn.Sequential(*network[:6], nn.Flatten())
    with torch.inference_mode():
        expected = small(torch.from_numpy(x)).numpy()
    to_onnx(fold(small), x[:1])
    np.testing.assert_allclose(forward_function(small, x[:1])(x), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_weights_of_the_user(network, theirs, tmp_path, kind):
    path = tmp_path / f"alexnet.{kind}"
    if kind == "pth":
        torch.save(theirs, path)
    else:
        safetensors.torch.save_file(theirs, path)
    loaded = build_blocks("alexnet", weights=path)
    assert loaded.state_dict().keys() == network.state_dict().keys()
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in loaded.state_dict().items())


def test_files_that_do_not_fit(theirs, tmp_path):
    path = tmp_path / "alexnet.pth"
    with pytest.raises(DataError, match=r"alexnet.pth cannot be read .*\(.*No such file.*\); pass its .pth"):
        read_weights(path)
    for content in (b"", b"text", pickle.dumps(print)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read as the weights of .*; pass its .pth"):
            read_weights(path)
    first = {key: theirs[key] for key in ("features.0.weight", "features.0.bias", "features.3.weight")}
    torch.save(first, path)
    with pytest.raises(DataError, match=r"torchvision's AlexNet \('features.3.bias' is missing\)"):
        read_weights(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match="cannot be read as the weights"):
        read_weights(path)
    torch.save(theirs | {"features.0.weight": torch.zeros(96, 3, 11, 11)}, path)
    with pytest.raises(DataError, match=r"size mismatch .*\[96, 3, 11, 11\].*\[64, 3, 11, 11\]"):
        read_weights(path)


# The published convolutions.


@pytest.fixture
def published(monkeypatch, tmp_path, empty_cache):
    """An installed package with a made pickle in the published layout, whose checksum is known; gives its arrays."""
    rng = np.random.default_rng(0)
    arrays = {}
    for i, shape in enumerate(CONVOLUTIONS.values()):
        kernel = rng.normal(0, 0.05, shape).astype(np.float32)
        # a view with other strides, as a transposed array is pickled
        arrays[f"Conv_{i}"] = {"kernel": kernel.transpose(2, 3, 1, 0), "bias": rng.normal(size=shape[0]).astype("f4")}
    source = NETWORK.published
    path = tmp_path / "site" / source.package / source.member
    path.parent.mkdir(parents=True)
    (tmp_path / "site" / source.package / "__init__.py").touch()
    path.write_bytes(pickle.dumps({"AlexNet_0": arrays, "NetLinLayer_0": {"kernel": np.ones(3)}}))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(alexnet, "NETWORK", replace(NETWORK, published=replace(source, sha256=digest)))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return arrays


def test_published_convolutions_and_random_rest(published):
    torch.manual_seed(0)
    first = build_blocks("alexnet")
    second = build_blocks("alexnet")
    for i in range(5):
        layer = first[1 + i][0]
        kernel = published[f"Conv_{i}"]["kernel"]
        assert layer.weight[2, 1, 0, 2] == kernel[0, 2, 1, 2] and layer.weight[0, 0, 2, 1] == kernel[2, 1, 0, 0]
        assert np.array_equal(layer.weight.detach(), kernel.transpose(3, 2, 0, 1))
        assert np.array_equal(layer.bias.detach(), published[f"Conv_{i}"]["bias"])
        assert torch.equal(second[1 + i][0].weight, layer.weight)
    assert not torch.equal(first[6][1].weight, second[6][1].weight)


class Evil:
    def __reduce__(self):
        return print, ("this must not be run",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Evil()),
        pickle.dumps({"AlexNet_0": Evil()}),
        pickle.dumps(np.random.default_rng),
        b"cos\ndtype\n.",  # a name that arrays have, of another module
    ],
)
def test_a_pickle_cannot_run_code(tmp_path, capsys, content):
    path = tmp_path / "x.ckpt"
    path.write_bytes(content)
    with pytest.raises(pickle.UnpicklingError, match="wants to load"):
        read_published(path)
    assert capsys.readouterr().out == ""


def test_arrays_are_unpickled_whole(tmp_path):
    expected = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    path = tmp_path / "x.pkl"
    for protocol in (3, 4):
        path.write_bytes(pickle.dumps({"a": expected}, protocol))
        with path.open("rb") as file:
            assert np.array_equal(ArrayUnpickler(file).load()["a"], expected)


def test_a_saved_network_needs_no_file(network):
    description = json.loads(json.dumps(describe_network("alexnet", network)))
    again = build_blocks("alexnet", pretrained=False, description=description).eval()
    again.load_state_dict(network.state_dict())
    x = torch.from_numpy(images(1, 64))
    with torch.inference_mode():
        assert torch.equal(again(x), network(x)) and str(again) == str(network)


def test_the_real_weights(real_weights):
    state = real_weights("alexnet")
    assert {tuple(state[f"{NAMES[name]}.weight"].shape) for name in CONVOLUTIONS} == {*CONVOLUTIONS.values()}
    blocks = nn.Sequential(*build_blocks("alexnet")[1:]).state_dict()
    assert all(torch.equal(blocks[key], value) for key, value in state.items())
    first = state["0.0.weight"]
    assert torch.isfinite(first).all() and 0.05 < first.std() < 0.2
