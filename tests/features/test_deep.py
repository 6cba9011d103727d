"""Features: computed once, under a name that changes with everything they depend on."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

from hashlens import files
from hashlens.data.images import ArrayImages
from hashlens.errors import StorageError, UsageError
from hashlens.features.batches import BATCH
from hashlens.features.deep import deep_features, extract, feature_size
from hashlens.networks import inference
from hashlens.networks.inference import Normalise
from hashlens.progress import Progress

N = 70  # more than one batch


def make_blocks(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(Normalise(0.5, 0.5), nn.Conv2d(3, 4, 3), nn.ReLU()).eval()


@pytest.fixture
def pixels(rng):
    return rng.integers(0, 256, (N, 8, 8, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def folder(empty_cache):
    return empty_cache / "features"


def files_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


class Recording(ArrayImages):
    """Pictures that remember which rows were read, and may break at a later batch."""

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


def test_pictures_of_another_size(rng, folder):
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
    images = Recording(pixels.copy())  # equal pictures in another place
    assert np.array_equal(extract(make_blocks(), images, 8), first)
    assert not hasattr(images, "reads")
    with pytest.raises(AssertionError, match="computed again"):
        extract(make_blocks(seed=1), images, 8)


@pytest.mark.parametrize("harm", [b"", b"junk", None], ids=["empty", "junk", "cut"])
def test_a_damaged_file_is_made_again(pixels, folder, capsys, harm):
    first = np.array(extract(make_blocks(), ArrayImages(pixels), 8))
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-100] if harm is None else harm)
    assert np.array_equal(extract(make_blocks(), ArrayImages(pixels), 8, progress=Progress()), first)
    assert "is damaged; features are computed again" in capsys.readouterr().err


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
        (make_blocks(), pixels, 8, {"precision": "bfloat16"}),
        (make_blocks(), one_pixel, 8, {}),
        (make_blocks(), pixels[::-1], 8, {}),
        (make_blocks(), pixels[:-1], 8, {}),
    ]
    for number, (blocks, pictures, size, options) in enumerate(calls, 1):
        for _ in range(2):
            extract(blocks, ArrayImages(pictures), size, **options)
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
    with pytest.raises(StorageError, match=r"no room for the features in .*HASHLENS_CACHE"):
        extract(make_blocks(), ArrayImages(pixels), 8)
    assert files_in(folder) == []
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: usage(10**9, 10**9, needed))
    extract(make_blocks(), ArrayImages(pixels), 8)
    assert len(files_in(folder)) == 1


def test_a_kind_may_say_the_size_of_the_pictures(pixels):
    assert feature_size("resnet50") == ("resnet50", 144) and feature_size("resnet50@112") == ("resnet50", 112)
    usual, larger = (deep_features(ArrayImages(pixels), kind) for kind in ("small-cnn", "small-cnn@32"))
    assert usual.shape == larger.shape == (N, 128) and not np.allclose(usual, larger)
    assert np.array_equal(deep_features(ArrayImages(pixels), "small-cnn@16"), usual)
    for wrong, sentence in (("small-cnn@4", "8 to 4,096 pixels"), ("small-cnm@16", "no backbone 'small-cnm'")):
        with pytest.raises(UsageError, match=sentence):
            deep_features(ArrayImages(pixels), wrong)
