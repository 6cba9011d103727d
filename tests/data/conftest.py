"""Small copies of published data sets in their own layouts, and the real ones where they are at hand."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from made_images import paint

from hashlens.data.protocols import MIRFLICKR_LABELS, NUSWIDE_CONCEPTS

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def nuswide(tmp_path):
    """40 lines, every fifth without a concept: row i has the concept i % 21; image i has the grey i."""
    root = tmp_path / "NUS-WIDE"
    columns = {name: np.zeros(40, int) for name in (*NUSWIDE_CONCEPTS, "zebra", "toy")}
    for row in range(40):
        if row % 5:
            columns[NUSWIDE_CONCEPTS[row % 21]][row] = 1
    for c in NUSWIDE_CONCEPTS:
        columns[c][[1, 2]] = 1  # so that each is more frequent than those that do not count
    columns["zebra"][3] = 1
    for name, column in columns.items():
        path = root / "Groundtruth" / "AllLabels" / f"Labels_{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(b"%d\r\n" % value for value in column))
    (root / "ImageList").mkdir()
    (root / "ImageList" / "Imagelist.txt").write_bytes(
        b"".join(b"dir%d\\%04d_%d.jpg\r\n" % (i % 2, i, 7000 + i) for i in range(40))
    )
    for i in range(40):
        paint(root / "Flickr" / f"dir{i % 2}" / f"{i:04d}_{7000 + i}.jpg", i, quality=100)
    return root


@pytest.fixture
def mirflickr(tmp_path):
    """Images 1 … 30, of which 7 and 30 have no label; image i has the grey i."""
    root = tmp_path / "flickr25k"
    for number in range(1, 31):
        paint(root / f"im{number}.jpg", number, quality=100)
    annotations = root / "annotations"
    annotations.mkdir()
    for c, label in enumerate(MIRFLICKR_LABELS):
        numbers = [n for n in range(30) if n % 24 == c and n not in (0, 7)] + ([5] if c == 0 else [])
        (annotations / f"{label}.txt").write_text("".join(f"{n}\r\n" for n in numbers))
    (annotations / "baby_r1.txt").write_text("7\n")
    (annotations / "README.txt").write_text("about this")
    return root


def unpacked(archive, folder):
    """Our own archives, written member by member: extractall takes three times as long for 25,000 files."""
    if not archive.exists():
        pytest.skip(f"{archive.name} is not at hand")
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isdir():
                (folder / member.name).mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                (folder / member.name).parent.mkdir(parents=True, exist_ok=True)
                (folder / member.name).write_bytes(tar.extractfile(member).read())
    return folder


@pytest.fixture(scope="session")
def real_ground_truth(tmp_path_factory):
    """The real labels of NUS-WIDE, without images."""
    folder = unpacked(SHARED / "nuswide-groundtruth.tar.xz", tmp_path_factory.mktemp("nuswide"))
    return next(folder.rglob("Groundtruth")).parent


@pytest.fixture(scope="session")
def real_mirflickr(tmp_path_factory):
    """All 25,000 images of MIRFLICKR-25K at 128 pixels, with their labels."""
    folder = unpacked(SHARED / "mirflickr25k-128px.tar", tmp_path_factory.mktemp("mirflickr"))
    return next(folder.rglob("annotations")).parent
