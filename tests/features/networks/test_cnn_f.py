"""CNN-F: shapes, a slow numpy forward pass on made files of both generations, preprocessing, files that do not fit."""

import json
import struct

import numpy as np
import pytest
import torch
from made_cnn_f import WIDTHS, made_average, made_layers, write_mat
from PIL import Image
from scipy.io import loadmat, savemat
from torch import nn

from hashlens.data.images import ArrayImages
from hashlens.errors import DataError
from hashlens.features.extractor import Extractor
from hashlens.features.networks import build_blocks, describe_network
from hashlens.features.networks.cnn_f import NETWORK, Plan, build, load_mat
from hashlens.features.networks.inference import fold, forward_function
from hashlens.features.networks.onnx_graph import to_onnx

NARROW = Plan(WIDTHS)
GENERATIONS = ["new", "old"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mat")
    return {g: write_mat(folder / f"{g}.mat", made_layers(g), g) for g in GENERATIONS}


def images(n, size=224, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


# An independent forward pass: (h, w, channels) in float64, straight from MatConvNet's definitions.


def slow_conv(x, kernel, bias, stride, pad):
    x = np.pad(x, ((pad, pad), (pad, pad), (0, 0)))
    size = len(kernel)
    out = np.empty(((x.shape[0] - size) // stride + 1, (x.shape[1] - size) // stride + 1, kernel.shape[3]))
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            window = x[i * stride : i * stride + size, j * stride : j * stride + size]
            out[i, j] = np.tensordot(window, kernel, 3) + bias
    return out


def slow_norm(x, param):
    size, kappa, alpha, beta = param
    out = np.empty_like(x)
    for c in range(x.shape[2]):
        near = x[:, :, max(0, c - int(size) // 2) : c + int(size) // 2 + 1]
        out[:, :, c] = x[:, :, c] / (kappa + alpha * (near**2).sum(2)) ** beta
    return out


def slow_pool(x, pad):
    top, bottom, left, right = np.broadcast_to(pad, 4)
    x = np.pad(x, ((top, bottom), (left, right), (0, 0)), constant_values=-np.inf)
    rows, columns = (x.shape[0] - 3) // 2 + 1, (x.shape[1] - 3) // 2 + 1
    return np.array(
        [[x[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max((0, 1)) for j in range(columns)] for i in range(rows)]
    )


def slow_forward(layers, x):
    """All 19 outputs for one image."""
    outputs = []
    for layer in layers[:19]:
        if layer["type"] == "conv":
            kernel, bias = layer["weights"][0] if "weights" in layer else (layer["filters"], layer["biases"])
            stride, pad = np.ravel(layer["stride"])[0], np.ravel(layer["pad"])[0]
            x = slow_conv(x, kernel.astype(float), bias.ravel(), int(stride), int(pad))
        elif layer["type"] == "relu":
            x = np.maximum(x, 0)
        elif layer["type"] == "pool":
            x = slow_pool(x, layer["pad"])
        else:
            x = slow_norm(x, layer["param"])
        outputs.append(x)
    return outputs


@pytest.mark.parametrize("generation", GENERATIONS)
def test_activations_are_those_of_the_definition(files, generation):
    network = load_mat(files[generation]).eval()
    x = images(2)
    slow = [slow_forward(made_layers(generation), image - made_average().astype(float)) for image in x]
    with torch.inference_mode():
        out = network[0](torch.from_numpy(x))
        for block, last in zip(network[1:], (4, 8, 10, 12, 15, 17, 19), strict=True):
            out = block(out)
            for ours, layers in zip(out, slow, strict=True):
                expected = layers[last - 1].transpose(2, 0, 1)
                assert expected.max() > 0.1  # there is something to compare
                np.testing.assert_allclose(ours.reshape(expected.shape), expected, rtol=1e-3, atol=1e-3)
    assert out.shape == (2, 20) and (out >= 0).all()


def test_both_generations_are_the_same_network(files):
    new, old = (load_mat(files[g]) for g in GENERATIONS)
    assert str(new) == str(old)
    assert all(torch.equal(value, old.state_dict()[key]) for key, value in new.state_dict().items())


def test_shapes_and_numbers_of_parameters():
    """METHODS 1.8, for the real widths; nothing is computed."""
    with torch.device("meta"):
        blocks = build(Plan())
        x = torch.empty(1, 3, 224, 224)
    convolutions = [m for m in blocks.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    counts = [sum(p.numel() for p in m.parameters()) for m in convolutions]
    assert counts == [23_296, 409_856, 590_080, 590_080, 590_080, 37_752_832, 16_781_312]
    assert sum(counts) == sum(p.numel() for p in blocks.parameters()) == 56_737_536
    shapes = []
    for layer in (layer for block in blocks for layer in block if not isinstance(layer, nn.Flatten)):
        if isinstance(layer, nn.Linear):
            x = x.flatten(1)
        x = layer(x)
        shapes.append(tuple(x.shape[1:]))
    assert len(shapes) == 19
    assert shapes == [
        (64, 54, 54), (64, 54, 54), (64, 54, 54), (64, 27, 27),
        (256, 27, 27), (256, 27, 27), (256, 27, 27), (256, 13, 13),
        (256, 13, 13), (256, 13, 13), (256, 13, 13), (256, 13, 13), (256, 13, 13), (256, 13, 13), (256, 6, 6),
        (4096,), (4096,), (4096,), (4096,),
    ]  # fmt: skip
    assert not any(isinstance(m, nn.Dropout) for m in blocks.modules())
    assert (NETWORK.size, NETWORK.frozen, NETWORK.flip) == (224, 5, False)


def test_pool1_on_a_ramp():
    """54 to 27: the last window has one row and column less, and nothing is shifted."""
    pool = build(NARROW)[0][3]
    ramp = torch.arange(54 * 54, dtype=torch.float32).reshape(1, 1, 54, 54)
    out = pool(ramp)[0, 0]
    last = np.minimum(2 * np.arange(27) + 2, 53)
    assert np.array_equal(out, 54 * last[:, None] + last[None])


def test_norm_of_the_real_file():
    """Alpha is not divided by the five channels."""
    x = torch.randn(1, 8, 3, 3, generator=torch.Generator().manual_seed(0)) * 80
    expected = slow_norm(x[0].permute(1, 2, 0).double().numpy(), (5, 2, 1e-4, 0.75))
    np.testing.assert_allclose(build(NARROW)[0][2](x)[0].permute(1, 2, 0), expected, rtol=1e-4)


# Preprocessing.


def test_the_average_image_is_subtracted(files):
    x = images(2)
    out = load_mat(files["new"])[0](torch.from_numpy(x))
    assert out.dtype == torch.float32
    assert np.array_equal(out.permute(0, 2, 3, 1), x.astype(np.float32) - made_average())


@pytest.mark.parametrize("size", [32, 100, 256])
def test_other_sizes_are_resized_without_rounding(files, size):
    x = images(2, size)
    out = load_mat(files["new"])[0](torch.from_numpy(x)).permute(0, 2, 3, 1).numpy() + made_average()
    for i in range(2):
        for c in range(3):
            channel = Image.fromarray(x[i, :, :, c].astype(np.float32))
            expected = np.asarray(channel.resize((224, 224), Image.Resampling.BICUBIC))
            np.testing.assert_allclose(out[i, :, :, c], expected, atol=1e-3)
    if size == 32:
        assert out.min() < -1 and out.max() > 256 and not np.allclose(out, out.round())


def test_three_numbers_do_for_an_average(tmp_path):
    path = write_mat(tmp_path / "a.mat", made_layers(), average=np.array([[[120.0, 110.0, 100.0]]], np.float32))
    x = images(1)
    assert np.array_equal(
        load_mat(path)[0](torch.from_numpy(x)).permute(0, 2, 3, 1), x.astype(np.float32) - np.float32([120, 110, 100])
    )


# Use: ONNX, frozen blocks, saving.


@pytest.mark.parametrize("size", [224, 32])
def test_onnx_equals_eager(files, size):
    network = load_mat(files["new"]).eval()
    x = images(3, size)
    with torch.inference_mode():
        expected = network(torch.from_numpy(x)).numpy()
    to_onnx(fold(network), x[:1])  # it can be written
    np.testing.assert_allclose(forward_function(network, x[:1])(x), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("frozen", [1, 5, 7])
def test_leading_blocks_can_be_kept(files, empty_cache, frozen):
    network = load_mat(files["old"]).eval()
    x = images(3, 48)
    maps = Extractor.of_network(network[: 1 + frozen], 48).cached(ArrayImages(x), dtype=np.float16)
    with torch.inference_mode():
        expected = network(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(
            network[1 + frozen :](torch.from_numpy(maps.astype(np.float32))), expected, rtol=0.02, atol=0.05
        )


def test_a_saved_network_needs_no_file(files, tmp_path):
    path = tmp_path / "copy.mat"
    path.write_bytes(files["new"].read_bytes())
    network = build_blocks("cnn-f", weights=path).eval()
    path.unlink()
    description = json.loads(json.dumps(describe_network("cnn-f", network)))
    assert (description["colour"], description["size"], description["divided_by"]) == ("RGB", 224, 1)
    assert description["layers"]["channels"] == [*WIDTHS] and description["layers"]["ceil_modes"] == [
        True,
        False,
        False,
    ]
    again = build_blocks("cnn-f", pretrained=False, weights=path, description=description).eval()
    assert str(again) == str(network)
    assert again[0].shift.shape == (3, 224, 224)
    again.load_state_dict(network.state_dict())
    x = torch.from_numpy(images(2, 64))
    with torch.inference_mode():
        assert torch.equal(again(x), network(x))


def test_without_a_file(files, empty_cache):
    with pytest.raises(
        DataError, match=r"weights of cnn-f are missing; pass imagenet-vgg-f.mat .*--weights, or put it"
    ):
        build_blocks("cnn-f")
    folder = empty_cache / "weights"
    folder.mkdir(parents=True)
    (folder / "imagenet-vgg-f.mat").write_bytes(files["new"].read_bytes())
    assert torch.equal(build_blocks("cnn-f")[1][0].weight, load_mat(files["new"])[1][0].weight)


# Files that do not fit: one sentence with what to do.


def changed(number, **fields):
    """Layers of which number `number`, from 1, has other fields; a field that is None is left out."""
    layers = made_layers("old")
    layer = layers[number - 1] | fields
    layers[number - 1] = {name: value for name, value in layer.items() if value is not None}
    return layers


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (made_layers()[:7], "it has 7 layers, expected 19"),
        (changed(1, filters=zeros(7, 7, 3, 96), biases=zeros(1, 96)), r"layer 1 \(conv1\) has weights of shape 7 x 7"),
        (
            changed(5, filters=zeros(5, 5, 4, 12)),
            r"\(conv2\) has weights of shape 5 x 5 x 4 x 12, expected 5 x 5 x 8 x",
        ),
        (changed(9, biases=zeros(1, 7)), r"layer 9 \(conv3\) has 7 biases for 10 outputs"),
        (changed(9, biases=None), r"\(conv3\) has 0 biases"),
        (changed(16, filters=None), r"layer 16 \(fc6\) has weights of shape none"),
        (changed(1, stride=2.0), r"\(conv1\) has stride '2', expected '4'"),
        (changed(1, stride=[4.0, 2.0]), r"\(conv1\) has stride '4 2', expected '4'"),
        (changed(5, pad=[2, 2, 1, 1]), r"layer 5 \(conv2\) has pad '2 2 1 1', expected '2'"),
        (changed(4, pad=1.0), r"layer 4 \(pool1\) has pad '1', expected '0'"),
        (changed(4, pool=[2.0, 2.0]), r"\(pool1\) has pool '2', expected '3'"),
        (changed(8, method="avg"), r"layer 8 \(pool2\) has method 'avg', expected 'max'"),
        (changed(3, param=[5.0, 2.0]), r"layer 3 \(norm1\) has the unexpected param '5 2'"),
        (changed(3, param=[4.0, 2.0, 1e-4, 0.75]), r"\(norm1\) has the unexpected param '4 2"),
        (changed(3, type="pool"), r"layer 3 \(norm1\) has type 'pool', expected 'normalize'"),
        (changed(3, type=None), r"layer 3 \(norm1\) has type 'unknown'"),
    ],
    ids=lambda value: value.replace("\\", "")[:40] if isinstance(value, str) else "",
)
def test_another_network(tmp_path, layers, message):
    path = write_mat(tmp_path / "other.mat", layers, "old")
    with pytest.raises(
        DataError, match=rf"other.mat is not CNN-F: .*{message}.*; pass imagenet-vgg-f.mat from"
    ) as error:
        load_mat(path)
    assert "\n" not in error.value.message and error.value.exit_code == 3


def test_a_file_of_something_else(tmp_path):
    path = tmp_path / "x.mat"
    savemat(path, {"x": np.eye(3)})
    with pytest.raises(DataError, match=r"it has 0 layers, expected 19; pass imagenet-vgg-f.mat"):
        load_mat(path)
    savemat(path, {"layers": np.ones((1, 30))})
    with pytest.raises(DataError, match=r"layer 1 \(conv1\) has type 'unknown'"):
        load_mat(path)
    records = np.zeros((1, 25), [("name", object), ("type", object)])  # how MatConvNet keeps a network that is a graph
    records["name"], records["type"] = "conv1", "dagnn.Conv"
    savemat(path, {"layers": records})
    with pytest.raises(DataError, match=r"layer 1 \(conv1\) has type 'dagnn.Conv', expected 'conv'"):
        load_mat(path)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_no_average_image(tmp_path, generation):
    path = write_mat(tmp_path / "a.mat", made_layers(generation), generation, average=np.ones((200, 200, 3)))
    with pytest.raises(DataError, match="its average image is 200 x 200 x 3, not 224 x 224 x 3; pass"):
        load_mat(path)
    savemat(path, {"layers": loadmat(path)["layers"]})
    with pytest.raises(DataError, match="its average image is none"):
        load_mat(path)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("part", [0.02, 0.3, 0.7, 0.99])
def test_truncated(tmp_path, part, compressed):
    path = write_mat(tmp_path / "cut.mat", made_layers(), compressed=compressed)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(DataError, match=r"cut.mat is not (a whole .mat file|CNN-F).*; pass image"):
        load_mat(path)


def test_no_mat_file(tmp_path):
    path = tmp_path / "x.mat"
    with pytest.raises(DataError, match=r"x.mat not found; pass imagenet-vgg-f.mat"):
        load_mat(path)
    for content in (b"", b"<html>not found</html>" * 20, struct.pack("<100I", *range(100))):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x.mat is not (a whole .mat file|CNN-F).*; pass imagenet-vgg-f.mat"):
            load_mat(path)
    path.write_bytes(
        b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM".ljust(388) + b"\x89HDF\r\n\x1a\n"
    )
    with pytest.raises(DataError, match=r"MATLAB's format 7.3; load it in MATLAB and save it again with '-v7'"):
        load_mat(path)


def test_the_real_file(real_cache):
    path = real_cache / "weights" / "imagenet-vgg-f.mat"
    if not path.exists():
        pytest.skip(f"{path} is not here; it is the authors' file, from MatConvNet's page of pretrained models")
    network = load_mat(path).eval()
    assert sum(p.numel() for p in network.parameters()) == 56_737_536
    with torch.inference_mode():
        out = network(torch.from_numpy(images(2)))
    assert out.shape == (2, 4096) and (out >= 0).all() and out.std() > 0
