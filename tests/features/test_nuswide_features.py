"""NUS-WIDE's published features: each image gets its own rows, whatever the order of the files."""

from pathlib import Path

import numpy as np
import pytest

from hashlens.data.protocols import NUSWIDE_CONCEPTS
from hashlens.errors import DataError, UsageError
from hashlens.features import nuswide
from hashlens.features.nuswide import BLOCKS, nuswide_features, read_features, scaled, source_features
from hashlens.progress import Progress

N, N_TRAIN = 40, 25
COLUMNS = sum(BLOCKS.values())
ENDS = np.cumsum(list(BLOCKS.values()))


def name(number):
    return f"dir{number % 2}/{number:04d}_{7000 + number}.jpg"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch, empty_cache):
    monkeypatch.setattr(nuswide, "CHUNK", 7)
    return empty_cache


@pytest.fixture
def values(rng):
    """Features of images 0 … 39; the published ones have six decimals, words are counts."""
    found = np.round(rng.normal(size=(N, COLUMNS)), 6)
    found[:, -500:] = rng.poisson(0.5, (N, 500))
    return found


@pytest.fixture
def root(tmp_path, values, rng):
    """The official layout. The lists are in another order than the images' numbers, and so are the tables."""
    root = tmp_path / "NUS-WIDE"
    (root / "Low_Level_Features").mkdir(parents=True)
    (root / "ImageList").mkdir()
    order = rng.permutation(N)
    for part, numbers in (("Train", order[:N_TRAIN]), ("Test", order[N_TRAIN:])):
        listed = "".join(name(i).replace("/", "\\") + "\r\n" for i in numbers)
        (root / "ImageList" / f"{part}Imagelist.txt").write_bytes(listed.encode())
        for stem, block in zip(BLOCKS, np.split(values, ENDS[:-1], axis=1), strict=True):
            style = "%d" if "int" in stem else "%.6f"
            lines = (" ".join(style % value for value in block[i]) + " \r\n" for i in numbers)
            (root / "Low_Level_Features" / stem.format(part=part)).write_bytes("".join(lines).encode())
    return root


def test_the_columns_are_those_of_the_publication():
    assert COLUMNS == 1134
    assert [stem.format(part="Test") for stem in BLOCKS] == [
        "Test_Normalized_CH.dat",
        "Test_Normalized_CORR.dat",
        "Test_Normalized_EDH.dat",
        "Test_Normalized_WT.dat",
        "Test_Normalized_CM55.dat",
        "BoW_Test_int.dat",
    ]


def test_rows_follow_the_images(root, values, rng):
    chosen = rng.permutation(N)[:30]
    found = read_features(root, [name(i) for i in chosen])
    assert found.dtype == np.float32 and found.shape == (30, 1134)
    np.testing.assert_allclose(found, values[chosen], rtol=1e-6)


def test_a_source_of_all_images_with_a_concept(root, values):
    truth = root / "Groundtruth" / "AllLabels"
    truth.mkdir(parents=True)
    for c, concept in enumerate(NUSWIDE_CONCEPTS):
        (truth / f"Labels_{concept}.txt").write_text(
            "".join(f"{int(row % 5 > 0 and row % 21 == c)}\n" for row in range(N))
        )
    (root / "ImageList" / "Imagelist.txt").write_text("\n".join(map(name, range(N))))
    source, found = source_features(str(root), Progress(quiet=True))
    rows = [row for row in range(N) if row % 5]
    assert [Path(path).name for path in source.table["path"].to_pylist()] == [Path(name(row)).name for row in rows]
    assert [labels[0] for labels in source.table["labels"].to_pylist()] == [NUSWIDE_CONCEPTS[row % 21] for row in rows]
    np.testing.assert_allclose(found, scaled(values[rows].astype(np.float32), np.arange(len(rows))), atol=1e-5)
    with pytest.raises(UsageError, match="come with NUS-WIDE, and digits is not its folder"):
        source_features("digits", Progress(quiet=True))


def test_images_may_be_ids_or_lie_elsewhere_or_come_twice(root, values):
    found = read_features(root, ["7003", "C:/other/7004.jpeg", "dir1/0003_7003.jpg", name(39)])
    np.testing.assert_allclose(found, values[[3, 4, 3, 39]], rtol=1e-6)


def test_files_may_lie_in_other_folders(root, values):
    (root / "Low_Level_Features" / "BoW_Train_int.dat").rename(root / "BoW_Train_int.dat")
    (root / "deeper").mkdir()
    (root / "Low_Level_Features").rename(root / "deeper" / "Low_Level_Features")
    np.testing.assert_allclose(read_features(root, [name(5)]), values[[5]], rtol=1e-6)


def test_blank_lines_at_the_end_are_no_rows(root, values):
    path = root / "Low_Level_Features" / "Train_Normalized_EDH.dat"
    path.write_bytes(path.read_bytes() + b"\r\n \r\n")
    np.testing.assert_allclose(read_features(root, [name(i) for i in range(N)]), values, rtol=1e-6)


def test_read_once(root, monkeypatch):
    images = [name(i) for i in range(N)]
    first = np.array(read_features(root, images))

    def refuse(*args, **options):
        raise AssertionError("read again")

    monkeypatch.setattr(np, "loadtxt", refuse)
    assert np.array_equal(read_features(root, images), first)
    with pytest.raises(AssertionError, match="read again"):
        read_features(root, images[::-1])
    path = root / "Low_Level_Features" / "Test_Normalized_WT.dat"
    path.write_bytes(path.read_bytes().replace(b" ", b"  "))
    with pytest.raises(AssertionError, match="read again"):
        read_features(root, images)


def test_scale_is_learned_from_the_training_rows(root, values):
    train = np.arange(3, 21)
    found = nuswide_features(root, [name(i) for i in range(N)], train)
    assert found.dtype == np.float32
    words = values[:, -500:] / values[:, -500:].sum(axis=1, keepdims=True)
    for start, end in zip([0, *ENDS[:-2]], ENDS[:-1], strict=True):
        block = values[:, start:end]
        expected = (block - block[train].mean(axis=0)) / block[train].std(axis=0) / np.sqrt(end - start)
        np.testing.assert_allclose(found[:, start:end], expected, rtol=1e-4, atol=1e-5)
    varying = words[:, np.ptp(words[train], axis=0) > 0]
    expected = (varying - varying[train].mean(axis=0)) / varying[train].std(axis=0) / np.sqrt(varying.shape[1])
    np.testing.assert_allclose(found[:, ENDS[-2] :], expected, rtol=1e-4, atol=1e-5)


def test_all_blocks_weigh_the_same(values):
    values[:, 10] *= 1000
    found = scaled(values, np.arange(N))
    for block in np.split(found, ENDS[:-1], axis=1):
        assert block.astype(float).var(axis=0).sum() == pytest.approx(1, rel=1e-4)


def test_columns_without_variation_are_left_out(values):
    values[:20, [0, 70]] = 0.1
    whole, part = scaled(values, np.arange(N)), scaled(values, np.arange(20))
    assert np.isfinite(part).all()
    constant = (values[:20, -500:] == values[:1, -500:]).all(axis=0).sum()
    assert part.shape[1] == 1134 - 2 - constant and whole.shape[1] == 1134
    expected = (values[:, 1] - values[:20, 1].mean()) / values[:20, 1].std() / np.sqrt(63)
    np.testing.assert_allclose(part[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_image_without_words(values):
    values[4, -500:] = 0
    found = scaled(values, np.arange(N))
    assert np.isfinite(found).all()
    words = values[:, -500:] / np.maximum(values[:, -500:].sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(found[4, -500:], -words.mean(axis=0) / words.std(axis=0) / np.sqrt(500), rtol=1e-3)


def without_last_row(text):
    return "\n".join(text.splitlines()[:-1])


def without_first_column(text):
    return "\n".join(line.split(" ", 1)[1] for line in text.splitlines())


def with_one_number_more_in_one_row(text):
    return text.replace("\r\n", " 1\r\n", 1)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (
            "Low_Level_Features/Train_Normalized_CH.dat",
            None,
            r"Train_Normalized_CH\.dat not found in .*Low_Level_Features;",
        ),
        ("Low_Level_Features/BoW_Test_int.dat", None, r"BoW_Test_int\.dat not found in .*Low_Level_Features;"),
        ("ImageList/TestImagelist.txt", None, r"TestImagelist\.txt not found in .*ImageList;"),
        (
            "Low_Level_Features/Train_Normalized_CH.dat",
            without_last_row,
            r"CH\.dat does not fit .*TrainImagelist.txt after row 21 \(it has fewer rows",
        ),
        ("ImageList/TrainImagelist.txt", without_last_row, r"Train_Normalized_CH\.dat does not fit .*it has more rows"),
        ("Low_Level_Features/BoW_Test_int.dat", without_first_column, "499 numbers per row, expected 500"),
        ("Low_Level_Features/BoW_Test_int.dat", with_one_number_more_in_one_row, "does not fit .*number of columns"),
        ("Low_Level_Features/Test_Normalized_WT.dat", lambda text: "x" + text, "could not convert string"),
        ("Low_Level_Features/Test_Normalized_WT.dat", lambda text: "é" + text, "could not convert string"),
        ("Low_Level_Features/Test_Normalized_WT.dat", lambda text: "nan " + text.split(" ", 1)[1], "NaN or infinite"),
    ],
)
def test_damaged_copies_get_a_sentence(root, small_chunks, file, damage, message):
    path = root / file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes().decode()).encode())
    with pytest.raises(DataError, match=message) as caught:
        read_features(root, [name(i) for i in range(20)])
    assert "\n" not in caught.value.message and caught.value.message.count(". ") <= 1
    assert not list((small_chunks / "features").glob("*")) if (small_chunks / "features").exists() else True


@pytest.mark.parametrize("image", ["dir1/0003_9999.jpg", "holiday.jpg", ""])
def test_unknown_images(root, image):
    with pytest.raises(DataError, match=rf"1 of 3 images are not in NUS-WIDE's lists \(first: {image}\)"):
        read_features(root, [name(1), image, name(2)])


def test_nothing_asked_for(root, values):
    with pytest.raises(DataError, match="no images given"):
        read_features(root, [])
    with pytest.raises(DataError, match="no training rows"):
        scaled(values, np.arange(0))
