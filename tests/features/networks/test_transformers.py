"""Backbones of the transformers package: tiny random models in local folders, split, frozen, saved, and refused."""

import io
import json
import sys

import numpy as np
import pytest
import torch
import transformers

from hashlens.data.images import ArrayImages
from hashlens.errors import DataError, UsageError
from hashlens.features.extractor import Extractor
from hashlens.features.networks import build_blocks, describe_network, network_info
from hashlens.features.networks.inference import forward_function

VIT = {
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
CONVOLUTIONAL = {"embedding_size": 8, "hidden_sizes": [8, 12, 16, 20], "depths": [1, 1, 2, 1]}
PROCESSOR = {
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.25, 0.3],
    "do_normalize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "size": {"height": 32, "width": 32},
}


def make_folder(folder, config, processor=PROCESSOR):
    """As `save_pretrained` leaves it: config.json, model.safetensors, preprocessor_config.json."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and tokens that do something
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return f"hf:{folder}", model


def make_vit(folder, **changes):
    return make_folder(folder, transformers.ViTConfig(**VIT | changes))


def images(n, size=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, size, size, 3), dtype=np.uint8)


def normalised(x):
    pixels = (x / 255 - PROCESSOR["image_mean"]) / PROCESSOR["image_std"]
    return torch.from_numpy(pixels.astype(np.float32)).permute(0, 3, 1, 2)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for use in (network_info, build_blocks):
        with pytest.raises(UsageError, match=r'hf: needs transformers; run: pip install "hashlens\[trans'):
            use("hf:google/vit-base-patch16-224")


def test_a_vit_is_split(tmp_path):
    name, model = make_vit(tmp_path)
    info = network_info(name)
    assert (info.size, info.frozen) == (32, 3)
    network = build_blocks(name).eval()
    assert len(network) == 1 + 1 + 4 + 1  # preprocessing, embeddings, layers, norm and pooling
    x = images(3)
    with torch.inference_mode():
        hidden = model(normalised(x)).last_hidden_state
        out = network(torch.from_numpy(x))
    assert out.shape == (3, 24) and out.std() > 0.01
    np.testing.assert_allclose(out, hidden[:, 0], atol=1e-4)


@pytest.mark.parametrize("kind", ["Dinov2", "DeiT", "CLIPVision"])
def test_relatives_of_vit_are_split(tmp_path, kind):
    name, model = make_folder(tmp_path, getattr(transformers, f"{kind}Config")(**VIT))
    network = build_blocks(name).eval()
    assert len(network) == 1 + 1 + 4 + 1
    x = images(2)
    with torch.inference_mode():
        expected = model(pixel_values=normalised(x)).last_hidden_state[:, 0]
        np.testing.assert_allclose(network(torch.from_numpy(x)), expected, atol=1e-4)


def test_a_convolutional_model_is_split_into_stages(tmp_path):
    name, model = make_folder(tmp_path, transformers.ResNetConfig(**CONVOLUTIONAL))
    info = network_info(name)
    assert info.frozen == 4
    network = build_blocks(name).eval()
    assert len(network) == 1 + 1 + 4 + 1 and network[0].size is None
    for size in (32, 48):  # it takes any
        x = images(2, size)
        with torch.inference_mode():
            expected = model(normalised(x)).last_hidden_state.mean((2, 3))
            np.testing.assert_allclose(network(torch.from_numpy(x)), expected, atol=1e-4)


def test_a_model_of_another_build_is_one_block(tmp_path):
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=12, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    name, model = make_folder(tmp_path, config)
    network = build_blocks(name).eval()
    assert len(network) == 2
    x = images(2)
    with torch.inference_mode():
        expected = model(normalised(x)).last_hidden_state.mean(1)
        np.testing.assert_allclose(network(torch.from_numpy(x)), expected, atol=1e-4)


def test_preprocessing_is_that_of_the_image_processor(tmp_path):
    config = transformers.ViTConfig(**VIT)
    cropped = PROCESSOR | {
        "do_center_crop": True,
        "crop_size": {"height": 32, "width": 32},
        "size": {"shortest_edge": 40},
    }
    plain = PROCESSOR | {"do_normalize": False, "do_flip_channel_order": True}
    raw = PROCESSOR | {"do_rescale": False, "size": 32}
    x = images(2)
    not_divided = (x - np.array(PROCESSOR["image_mean"])) / PROCESSOR["image_std"]
    for kind, processor, expected in (
        ("cropped", cropped, normalised(x)),
        ("plain", plain, x[..., ::-1].transpose(0, 3, 1, 2) / 255),
        ("raw", raw, not_divided.transpose(0, 3, 1, 2)),
    ):
        name, _ = make_folder(tmp_path / kind, config, processor)
        assert network_info(name).size == 32
        np.testing.assert_allclose(build_blocks(name)[0](torch.from_numpy(x)), expected, rtol=1e-5, atol=1e-5)


def test_images_of_another_size_are_resized(tmp_path):
    name, _ = make_vit(tmp_path)
    network = build_blocks(name).eval()
    with torch.inference_mode():
        assert network(torch.from_numpy(images(2, 20))).shape == (2, 24)


def test_frozen_blocks_and_the_quick_forward_pass(tmp_path, empty_cache):
    name, _ = make_vit(tmp_path / "model")
    network = build_blocks(name).eval()
    x = images(5)
    with torch.inference_mode():
        expected = network(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(forward_function(network, x[:1])(x), expected, atol=1e-4)
    cut = 1 + network_info(name).frozen
    maps = Extractor.of_network(network[:cut], 32).cached(ArrayImages(x), dtype=np.float16)
    assert maps.shape == (5, 17, 24)  # 16 patches and the class token
    with torch.inference_mode():
        np.testing.assert_allclose(network[cut:](torch.from_numpy(maps.astype(np.float32))), expected, atol=0.02)
    trained = network[cut:].train()
    trained(torch.from_numpy(maps.astype(np.float32))).square().sum().backward()
    assert all(p.grad is not None for p in trained.parameters())
    assert all(p.grad is None for p in network[:cut].parameters())


@pytest.mark.parametrize("kind", ["vit", "resnet", "swin"])
def test_a_saved_network_needs_no_folder(tmp_path, kind):
    configs = {
        "vit": transformers.ViTConfig(**VIT),
        "resnet": transformers.ResNetConfig(**CONVOLUTIONAL),
        "swin": transformers.SwinConfig(
            image_size=32, patch_size=4, embed_dim=12, depths=[1, 1], num_heads=[2, 2], window_size=4
        ),
    }
    name, _ = make_folder(tmp_path, configs[kind])
    network = build_blocks(name).eval()
    for path in tmp_path.iterdir():
        path.unlink()
    description = json.loads(json.dumps(describe_network(name, network)))
    again = build_blocks(name, pretrained=False, description=description).eval()
    again.load_state_dict(network.state_dict())
    x = torch.from_numpy(images(2))
    with torch.inference_mode():
        assert torch.equal(again(x), network(x))
    assert str(again) == str(network)
    assert describe_network(name, again) == description


def test_what_features_depend_on_shows(tmp_path):
    """Another number of heads has the same weights and modules."""
    shown = {str(build_blocks(make_vit(tmp_path / str(heads), num_attention_heads=heads)[0])) for heads in (2, 3)}
    assert len(shown) == 2


def test_models_that_cannot_be_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("HASHLENS_OFFLINE", "1")
    message = r"the backbone hf:{} cannot be loaded \(.*\); after hf: write the name of a vision model"
    for use in (network_info, build_blocks):
        with pytest.raises(DataError, match=message.format("nobody/nothing")) as error:
            use("hf:nobody/nothing")
        assert "\n" not in error.value.message
        with pytest.raises(DataError, match=message.format(tmp_path)):
            use(f"hf:{tmp_path}")
    name, _ = make_vit(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(DataError, match=r"with its config.json, preprocessor_config.json and model.safetensors"):
        build_blocks(name)


def test_damaged_models_are_one_sentence(tmp_path):
    def change(**facts):
        path = tmp_path / "preprocessor_config.json"
        path.write_text(json.dumps(PROCESSOR | facts))

    name, _ = make_vit(tmp_path)
    for harm in (
        lambda: change(image_std=[0, 0, 0]),
        lambda: change(image_mean=None),
        lambda: (change(), (tmp_path / "model.safetensors").write_bytes(b"junk")),
        lambda: (tmp_path / "model.safetensors").write_bytes(b""),
    ):
        harm()
        with pytest.raises(DataError, match="cannot be loaded") as error:
            build_blocks(name)
        assert "\n" not in error.value.message


def test_neither_code_nor_pickles_of_a_model_are_run(tmp_path, monkeypatch):
    name, model = make_vit(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(DataError, match="cannot be loaded"):
        build_blocks(name)
    own = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "mine"}
    own["auto_map"] = {"AutoConfig": "code.Mine", "AutoModel": "code.Model"}
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / "code.py").write_text("import pathlib\npathlib.Path('ran').write_text('')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(DataError, match="cannot be loaded"):
        build_blocks(name)
    assert not (tmp_path / "ran").exists()


def test_a_file_of_weights_is_refused(tmp_path):
    with pytest.raises(UsageError, match="takes no weights file"):
        build_blocks("hf:x", weights=tmp_path / "x.pth")
