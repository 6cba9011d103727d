"""ViT-Tiny: the output of the transformers package for the same weights, other sizes, ONNX, files of weights."""

import json
from itertools import product

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from hashlens.data.images import ArrayImages
from hashlens.errors import DataError, DownloadError
from hashlens.features.networks import build_blocks, describe_network, vit
from hashlens.features.networks.inference import fold, forward_function
from hashlens.features.networks.onnx_graph import to_onnx
from hashlens.features.networks.onnx_reader import safe_session
from hashlens.features.networks.vit import NETWORK, build, read_weights
from hashlens.hashers.deep.dtsh import DTSH
from hashlens.hashers.deep.training import Training

# parts of names of the transformers package, and timm's
NAMES = {"embeddings.cls_token": "cls_token", "embeddings.position_embeddings": "pos_embed"}
INNER = {
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layers.": "blocks.",
    "attention.o_proj": "attn.proj",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "layernorm.": "norm.",
}


def images(n, size, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def theirs():
    """A random model of the transformers package, and its weights under timm's names."""
    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.ViTConfig(**sizes, layer_norm_eps=1e-6, image_size=224, patch_size=16)
        model = transformers.ViTModel(config, add_pooling_layer=False).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # norms and tokens that do something
                parameter.add_(0.05 * torch.randn_like(parameter))
    own = {NAMES.get(key, key): value for key, value in model.state_dict().items()}
    state = {}
    for key, value in own.items():
        for old, new in INNER.items():
            key = key.replace(old, new)
        state[key] = value
    for i, what in product(range(12), ("weight", "bias")):
        three = [state.pop(f"blocks.{i}.attention.{one}_proj.{what}") for one in "qkv"]
        state[f"blocks.{i}.attn.qkv.{what}"] = torch.cat(three)
    state |= {"head.weight": torch.zeros(1000, 192), "head.bias": torch.zeros(1000)}
    return model, {key: value.detach().clone() for key, value in state.items()}


@pytest.fixture(scope="module")
def path(theirs, tmp_path_factory):
    path = tmp_path_factory.mktemp("vit") / "model.safetensors"
    safetensors.torch.save_file(theirs[1], path)
    return path


@pytest.fixture(scope="module")
def network(path):
    return build_blocks("vit-tiny", weights=path).eval()


@pytest.mark.parametrize("size", [224, 160])
def test_features_are_those_of_transformers(theirs, network, size):
    x = images(2, size)
    pixels = torch.from_numpy((x / 127.5 - 1).astype(np.float32)).permute(0, 3, 1, 2)
    with torch.inference_mode():
        expected = theirs[0](pixel_values=pixels, interpolate_pos_encoding=size != 224).last_hidden_state[:, 0]
        found = network(torch.from_numpy(x))
    # positions of another size: theirs interpolate without the low pass that shrinking an image needs
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 if size == 224 else 0.5)
    if size != 224:
        assert torch.corrcoef(torch.stack([found.flatten(), expected.flatten()]))[0, 1] > 0.98


def test_shapes_and_numbers_of_parameters():
    blocks = build("vit-tiny")
    assert len(blocks) == 13 and NETWORK.frozen == 9
    assert sum(p.numel() for p in blocks.parameters()) == 5_717_416 - 193 * 1000  # of timm's, without its classifier


@pytest.mark.parametrize("size", [64, 100])
@pytest.mark.parametrize("cut", [0, 1, 12])
def test_onnx_equals_eager(network, size, cut):
    x = images(3, size)
    with torch.inference_mode():
        expected = network(torch.from_numpy(x)).numpy()
        inner = network[:cut](torch.from_numpy(x)).numpy()
    to_onnx(fold(network[cut:]), inner[:1])
    np.testing.assert_allclose(forward_function(network[cut:], inner[:1])(inner), expected, rtol=1e-3, atol=1e-4)
    if cut == 0:
        content = to_onnx(fold(network), x[:1]).SerializeToString()
        np.testing.assert_allclose(safe_session(content, (1, size, size, 3), 192)(x), expected, rtol=1e-3, atol=1e-4)


def test_a_model_is_trained_saved_and_loaded(path, tmp_path, empty_cache):
    x, labels = images(24, 32), np.arange(24) % 3
    model = DTSH(8, backbone="vit-tiny", weights=str(path), image_size=32, training=Training(epochs=1, batch_size=8))
    model.fit(ArrayImages(x), labels)
    assert model.frozen_blocks_ == 11  # the last two blocks are trained
    model.save(tmp_path / "model")
    again = DTSH.load(tmp_path / "model")  # without the file of weights
    assert np.array_equal(again.encode(x).packed, model.encode(x).packed)
    pretrained = build_blocks("vit-tiny", weights=path)
    assert torch.equal(again.network_[3].mlp.fc1.weight, pretrained[3].mlp.fc1.weight)
    assert not torch.equal(again.network_[12].mlp.fc1.weight, pretrained[12].mlp.fc1.weight)


def test_a_saved_network_needs_no_file(network):
    description = json.loads(json.dumps(describe_network("vit-tiny", network)))
    again = build_blocks("vit-tiny", pretrained=False, description=description).eval()
    again.load_state_dict(network.state_dict())
    x = torch.from_numpy(images(1, 64))
    with torch.inference_mode():
        assert torch.equal(again(x), network(x))


def test_files_that_do_not_fit(theirs, tmp_path):
    path = tmp_path / "vit.safetensors"
    with pytest.raises(DataError, match=r"vit.safetensors cannot be read .*; pass the model.safetensors of timm/vit"):
        read_weights(path)
    path.write_bytes(b"text")
    with pytest.raises(DataError, match="cannot be read as the weights of timm's vit_tiny_patch16_224"):
        read_weights(path)
    safetensors.torch.save_file({key: value for key, value in theirs[1].items() if "blocks.3" not in key}, path)
    with pytest.raises(DataError, match=r"Missing key\(s\) in state_dict: .4\.norm1\.weight"):
        read_weights(path)
    safetensors.torch.save_file(theirs[1] | {"pos_embed": torch.zeros(1, 65, 192)}, path)
    with pytest.raises(DataError, match=r"size mismatch .*\[1, 65, 192\].*\[1, 197, 192\]"):
        read_weights(path)


def test_the_published_file_is_verified(path, empty_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(DownloadError, match=r"could not be downloaded .*pass it with --weights, or keep it as"):
        build_blocks("vit-tiny")
    kept = empty_cache / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(path.read_bytes())
    with pytest.raises(DownloadError, match=r"safetensors has not the published weights .*SHA-256 differs"):
        build_blocks("vit-tiny")
    monkeypatch.setattr(vit, "SHA256", vit._contents(read_weights(path)))
    assert torch.equal(build_blocks("vit-tiny")[1].positions, build_blocks("vit-tiny", weights=path)[1].positions)


def test_the_real_weights(real_cache):
    try:
        network = build_blocks("vit-tiny").eval()
    except DownloadError as error:
        pytest.skip(error.message)
    positions = network[1].positions[0, 1:]
    alike = torch.nn.functional.cosine_similarity(positions[:, None], positions[None], dim=2)
    beside = alike.diagonal(1)[torch.arange(195) % 14 != 13].mean()
    assert beside > 0.5 and beside > alike.mean() + 0.3  # neighbours are alike
