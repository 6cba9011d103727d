"""Features: computed once, under a name that changes with everything they depend on."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from made_networks import random_weights
from torch import nn

from hashlens import files
from hashlens.data.images import ArrayImages
from hashlens.errors import StorageError, UsageError
from hashlens.features.extractor import BATCH, Extractor, extractor, feature_size, image_features, in_blocks
from hashlens.features.networks import inference, weights
from hashlens.features.networks.inference import Normalise
from hashlens.progress import Progress

N = 70  # more than one batch


def make_blocks(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(Normalise(0.5, 0.5), nn.Conv2d(3, 4, 3), nn.ReLU()).eval()


def extract(blocks, images, size, *, flip=False, dtype=np.float16, progress=None):
    return Extractor.of_network(blocks, size).cached(images, flip=flip, dtype=dtype, progress=progress)


@pytest.fixture
def pixels(rng):
    return rng.integers(0, 256, (N, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def folder(empty_cache):
    return empty_cache / "features"


def files_in(folder):
    """Without those that have the checksums of the others."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".json") if folder.exists() else []


class Recording(ArrayImages):
    """Images that remember which rows were read, and may break at a later batch."""

    error: BaseException | None = None

    def read(self, rows, size):
        self.reads = [*getattr(self, "reads", []), np.array(rows)]
        if self.error and rows[0] > 0:
            raise self.error
        return super().read(rows, size)


@pytest.mark.parametrize("flip", [False, True])
def test_extract_equals_eager_torch(pixels, folder, flip):
    assert BATCH["cpu"] < N
    blocks = make_blocks()
    features = extract(blocks, ArrayImages(pixels), 8, flip=flip)
    view = np.ascontiguousarray(pixels[:, :, ::-1]) if flip else pixels
    with torch.inference_mode():
        expected = blocks(torch.from_numpy(view)).numpy()
    assert features.dtype == np.float16 and features.shape == (N, 4, 6, 6)
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-3)
    assert len(files_in(folder)) == 1 and not features.flags.writeable


def test_images_of_another_size(rng, folder):
    pixels = rng.integers(0, 256, (5, 12, 9, 3), dtype=np.uint8)
    blocks = make_blocks()
    with torch.inference_mode():
        expected = blocks(torch.from_numpy(ArrayImages(pixels).read(np.arange(5), 8))).numpy()
    np.testing.assert_allclose(extract(blocks, ArrayImages(pixels), 8), expected, rtol=1e-3, atol=1e-3)


def test_the_second_time_nothing_is_computed(pixels, folder, monkeypatch):
    first = np.array(extract(make_blocks(), ArrayImages(pixels), 8))

    def refuse(*args):
        raise AssertionError("computed again")

    monkeypatch.setattr(inference, "forward_function", refuse)
    images = Recording(pixels.copy())  # equal images in another place
    assert np.array_equal(extract(make_blocks(), images, 8), first)
    assert not hasattr(images, "reads")
    with pytest.raises(AssertionError, match="computed again"):
        extract(make_blocks(seed=1), images, 8)


@pytest.mark.parametrize("harm", [b"", b"junk", None], ids=["empty", "junk", "cut"])
def test_a_damaged_file_is_made_again(pixels, folder, capsys, harm):
    first = np.array(extract(make_blocks(), ArrayImages(pixels), 8))
    (file,) = folder.glob("*.npy")
    file.write_bytes(file.read_bytes()[:-100] if harm is None else harm)
    assert np.array_equal(extract(make_blocks(), ArrayImages(pixels), 8, progress=Progress()), first)
    assert "instead of" in (said := capsys.readouterr().err) and said.count("; features are computed again") == 1


@pytest.mark.parametrize("kind", ["npy", "json"])
def test_a_changed_file_is_made_again(pixels, folder, capsys, kind):
    first = np.array(extract(make_blocks(), ArrayImages(pixels), 8))
    (file,) = folder.glob(f"*.{kind}")
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    assert np.array_equal(extract(make_blocks(), ArrayImages(pixels), 8, progress=Progress()), first)
    assert f"note: {file} is damaged (" in capsys.readouterr().err


def test_what_a_version_without_checksums_computed_is_used(pixels, folder, monkeypatch):
    first = np.array(extract(make_blocks(), ArrayImages(pixels), 8))
    (file,), (facts,) = folder.glob("*.npy"), folder.glob("*.json")
    file.rename(file.with_name(file.name.replace(".values", "")))
    facts.unlink()
    monkeypatch.setattr(inference, "forward_function", None)
    assert np.array_equal(extract(make_blocks(), ArrayImages(pixels), 8), first)
    assert sorted(path.name for path in folder.iterdir()) == sorted([file.name, facts.name])


def test_an_edited_forward_is_computed_again(pixels, folder):
    class Power(nn.Module):
        def forward(self, x):
            return x.flatten(1).float() ** self.exponent

    Power.exponent = 1
    first = extract(nn.Sequential(Power()), ArrayImages(pixels), 8, dtype=np.float32)
    assert np.array_equal(extract(nn.Sequential(Power()), ArrayImages(pixels), 8, dtype=np.float32), first)
    assert len(files_in(folder)) == 1
    Power.exponent = 2
    assert np.array_equal(extract(nn.Sequential(Power()), ArrayImages(pixels), 8, dtype=np.float32), first**2)


def test_float32_is_not_shortened_on_a_gpu():
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    inference.forward_function(make_blocks(), np.zeros((1, 8, 8, 3), np.uint8))
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32


def test_the_name_changes_with_everything(pixels, folder):
    nudged = make_blocks()
    nudged[1].bias.data[2] += 1e-4
    same_weights = nn.Sequential(Normalise(0.5, 0.5), make_blocks()[1], nn.ReLU6()).eval()
    one_pixel = pixels.copy()
    one_pixel[3, 2, 1, 0] ^= 1
    calls = [
        (make_blocks(), pixels, 8, {}),
        (nudged, pixels, 8, {}),
        (same_weights, pixels, 8, {}),
        (make_blocks(), pixels, 9, {}),
        (make_blocks(), pixels, 8, {"flip": True}),
        (make_blocks(), pixels, 8, {"dtype": np.float32}),
        (make_blocks(), one_pixel, 8, {}),
        (make_blocks(), pixels[::-1], 8, {}),
        (make_blocks(), pixels[:-1], 8, {}),
    ]
    for number, (blocks, images, size, options) in enumerate(calls, 1):
        for _ in range(2):
            extract(blocks, ArrayImages(images), size, **options)
            assert len(files_in(folder)) == number


def test_the_name_changes_with_the_normalisation(pixels, folder):
    blocks = make_blocks()
    extract(blocks, ArrayImages(pixels), 8)
    blocks[0] = Normalise(0.4, 0.5)
    extract(blocks, ArrayImages(pixels), 8)
    assert len(files_in(folder)) == 2


@pytest.mark.parametrize("error", [RuntimeError("unreadable"), KeyboardInterrupt()], ids=repr)
def test_an_interrupted_extraction_leaves_nothing(pixels, folder, error):
    images = Recording(pixels)
    images.error = error
    with pytest.raises(type(error)):
        extract(make_blocks(), images, 8)
    assert files_in(folder) == []
    images.error = None
    with torch.inference_mode():
        expected = make_blocks()(torch.from_numpy(pixels)).numpy()
    np.testing.assert_allclose(extract(make_blocks(), images, 8), expected, rtol=1e-3, atol=1e-3)


def test_no_room(pixels, folder, monkeypatch):
    usage = namedtuple("usage", "total used free")
    needed = N * 4 * 6 * 6 * 2
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage(10**9, 10**9, needed - 1))
    with pytest.raises(StorageError, match=r"not enough disk space for the features in .*HASHLENS_CACHE"):
        extract(make_blocks(), ArrayImages(pixels), 8)
    assert files_in(folder) == []
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage(10**9, 10**9, needed))
    extract(make_blocks(), ArrayImages(pixels), 8)
    assert len(files_in(folder)) == 1


def test_a_kind_may_name_the_image_size(pixels):
    assert feature_size("resnet50") == ("resnet50", 144) and feature_size("resnet50@112") == ("resnet50", 112)
    usual, larger = (image_features(ArrayImages(pixels), kind) for kind in ("small-cnn", "small-cnn@32"))
    assert usual.shape == larger.shape == (N, 128) and not np.allclose(usual, larger)
    assert np.array_equal(image_features(ArrayImages(pixels), "small-cnn@16"), usual)
    for wrong, sentence in (("small-cnn@4", "between 8 and 4,096 pixels"), ("small-cnm@16", "'small-cnm' not found")):
        with pytest.raises(UsageError, match=sentence):
            image_features(ArrayImages(pixels), wrong)


@pytest.mark.parametrize("kind", ["gist", "small-cnn", "efficientnet-lite0@64"])
def test_an_image_does_not_depend_on_its_neighbours(rng, kind, monkeypatch):
    monkeypatch.setattr(weights, "pretrained_weights", random_weights)
    found = extractor(kind)
    images = rng.integers(0, 256, (11, found.size, found.size, 3), np.uint8)
    alone = np.concatenate([found(images[i : i + 1]) for i in range(11)])
    assert alone.dtype == np.float32 and alone.ndim == 2 and len(alone) == 11
    for batch in (2, 3, 8, 11):
        together = np.concatenate([found(images[i : i + batch]) for i in range(0, 11, batch)])
        assert np.array_equal(together, alone), batch


def test_a_network_that_onnx_cannot_express_does_not_depend_on_neighbours_either(rng, monkeypatch):
    monkeypatch.setattr(inference, "to_onnx", lambda *args: (_ for _ in ()).throw(inference.UnsupportedModule("layer")))
    network = Extractor.of_network(nn.Sequential(*make_blocks(), nn.Flatten(), nn.Linear(4 * 30 * 30, 16)).eval(), 32)
    images = rng.integers(0, 256, (11, 32, 32, 3), np.uint8)
    assert np.array_equal(network(images), np.concatenate([network(images[i : i + 1]) for i in range(11)]))


def test_a_stem_changes_nothing(pixels):
    network = nn.Sequential(*make_blocks(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(80, 6)).eval()
    whole, parts = Extractor.of_network(network, 8), Extractor.of_network(network, 8, cut=3)
    assert np.array_equal(whole(pixels), parts(pixels))
    maps = parts.stem.cached(ArrayImages(pixels))
    assert maps.dtype == np.float32 and np.array_equal(parts.forward(maps[:9]), whole(pixels[:9]))


def test_blocks_are_filled_up():
    sizes = []

    def double(rows):
        sizes.append(len(rows))
        return 2 * rows

    rows = np.arange(10.0).reshape(10, 1)
    assert np.array_equal(in_blocks(double, rows, 4), 2 * rows) and sizes == [4, 4, 4]
