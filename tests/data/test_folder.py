"""Folders: labels stay with their images, and every bad input gets a sentence."""

import os
import subprocess
import sys

import numpy as np
import pytest
from made_images import greys, huge_png, opened, paint
from PIL import Image

from hashlens.data import make_protocol, open_source
from hashlens.data.kinds.folder import find_images
from hashlens.errors import DataError, UsageError


@pytest.fixture
def photos(tmp_path):
    """Two classes; the grey of each image tells which it is."""
    root = tmp_path / "photos"
    for row in range(4):
        paint(root / "cats" / f"{row}.png", 10 + row)
        paint(root / "dogs" / f"{row}.JPG", 110 + row, quality=100)
    return root


def test_rows_of_images_and_labels_belong_together(photos):
    paint(photos / "cats" / "deep" / "er" / "x.bmp", 14)
    (photos / "cats" / "1.png").write_bytes(b"")
    source = opened(photos)
    assert source.name == "photos" and source.labels.names == ("cats", "dogs")
    assert list(source.images.names) == [
        "cats/0.png",
        "cats/2.png",
        "cats/3.png",
        "cats/deep/er/x.bmp",
        *[f"dogs/{row}.JPG" for row in range(4)],
    ]
    assert greys(source) == [10, 12, 13, 14, 110, 111, 112, 113]
    assert source.labels.values.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert source.skipped == [("cats/1.png", "zero bytes")]
    assert len(make_protocol(source).query) == 2


def test_a_folder_may_be_called_like_a_data_set(photos, monkeypatch):
    photos.rename(photos.parent / "cifar10")
    monkeypatch.chdir(photos.parent)
    assert make_protocol(open_source("./cifar10")).name == "split"


def test_odd_images_are_read(photos):
    cats = photos / "cats"
    Image.new("CMYK", (9, 9), (0, 0, 0, 155)).save(cats / "cmyk.jpg", quality=100)
    Image.fromarray(np.full((9, 9), 257 * 100, np.uint16)).save(cats / "deep.png")
    frames = [Image.new("L", (9, 9), grey) for grey in (100, 200, 50)]
    frames[0].save(cats / "moving.gif", save_all=True, append_images=frames[1:])
    paint(cats / "exif.jpg", 100, quality=100, exif=b"Exif\0\0MM\0*\xff\xff\xff\xffrubbish")
    Image.new("1", (9, 9), 1).save(cats / "one.tif")
    Image.new("RGBA", (9, 9), (0, 0, 0, 0)).save(cats / "clear.webp", lossless=True)
    source = opened(photos)
    assert not source.skipped
    grey = dict(zip(source.images.names, greys(source), strict=True))
    for name in ("cmyk.jpg", "deep.png", "moving.gif", "exif.jpg"):
        assert abs(grey[f"cats/{name}"] - 100) <= 2, name
    assert grey["cats/one.tif"] == grey["cats/clear.webp"] == 255


def test_bad_images_are_skipped_with_a_reason(photos):
    dogs = photos / "dogs"
    whole = (photos / "dogs" / "0.JPG").read_bytes()
    (dogs / "cut.jpg").write_bytes(whole[:-30])
    (dogs / "empty.jpg").touch()
    (dogs / "text.jpg").write_text("hello")
    (dogs / "huge.png").write_bytes(huge_png(20000, 20000))
    (dogs / "link.jpg").symlink_to("nowhere.jpg")
    source = opened(photos)
    assert source.skipped == [
        ("dogs/cut.jpg", "truncated"),
        ("dogs/empty.jpg", "zero bytes"),
        ("dogs/huge.png", "400 megapixels, limit 89"),
        ("dogs/link.jpg", "no such file"),
        ("dogs/text.jpg", "not an image"),
    ]
    assert greys(source) == [10, 11, 12, 13, 110, 111, 112, 113]
    assert "images left out, zero bytes: 1, first dogs/empty.jpg" in source.warnings


def test_mostly_unreadable_is_an_error(photos):
    for row in range(9):
        (photos / "cats" / f"bad{row}.jpg").write_text("hello")
    with pytest.raises(DataError, match=r"9 of 17 images .* \(9 not an image; first: cats/bad0\.jpg\)"):
        opened(photos)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no images in .*it is empty"),
        (["a/1.txt", "a/b/2.txt", "c/README"], r"no images in .*\(\.txt × 2, no extension × 1"),
        (["1.png", "2.png"], r"has 2 images but no labels.*folder of its own, as cats/1\.jpg"),
        (["a/1.png", "a/2.png"], "only one class found in .*: a with 2 images"),
        ([".hidden/1.png", "a/.1.png"], "no images"),
    ],
)
def test_folders_without_classes(tmp_path, files, message):
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            paint(path, 1)
        else:
            path.write_text("x")
    with pytest.raises(DataError, match=message) as error:
        opened(tmp_path)
    assert error.value.exit_code == 3


def test_paths_that_are_not_folders(tmp_path):
    with pytest.raises(DataError, match=r"not found; check the path"):
        open_source(str(tmp_path / "gone"))
    (tmp_path / "file.zip").touch()
    with pytest.raises(DataError, match="has 1 image but no labels"):
        open_source(tmp_path / "file.zip")


def test_one_class_left_after_the_unreadable_ones(photos):
    for path in (photos / "dogs").iterdir():
        path.write_text("x")
    with pytest.raises(DataError, match="only one class found"):
        opened(photos)


def test_warnings(photos):
    paint(photos / "owl" / "1.png", 50)
    (photos / "fox").mkdir()
    (photos / ".git").mkdir()
    paint(photos / "loose.png", 60)
    source = opened(photos)
    text = "\n".join(source.warnings)
    assert "class 'fox' has no image" in text
    assert "classes with a single image: 1 (owl); no other image shares their label: add images, or remove" in text
    assert "images left out, no label: 1, first loose.png" in text
    assert len(source.warnings) == 3
    assert source.labels.names == ("cats", "dogs", "owl") and len(source.images) == 9


def test_many_loose_images_are_told_what_to_do(photos):
    for row in range(2):
        paint(photos / f"loose{row}.png", 60 + row)
    assert opened(photos).warnings == [
        "images left out, no label: 2, first loose0.png; that is 20%: put each class in a folder of its own, as"
        " cats/1.jpg and dogs/2.jpg"
    ]


@pytest.mark.parametrize(
    "names",
    [
        ["2018", "2019", "2020"],
        ["2019-05", "2019-06"],
        ["May 2020", "june_2020", "Sept. 2020"],
        ["20190501", "20190502"],
        ["01.05.2019", "2.5.2019"],
        ["12 May 2020", "May 13, 2020", "2020 Jun"],
        ["2019", "2020", "people"],
    ],
)
def test_folders_of_dates_are_warned_about(tmp_path, names):
    for row, name in enumerate(names):
        paint(tmp_path / name / "1.png", row)
        paint(tmp_path / name / "2.png", 50 + row)
    (warning,) = opened(tmp_path).warnings
    assert "most classes look like dates" in warning and "sort them into folders by what they show" in warning


@pytest.mark.parametrize(
    "names",
    [
        ["0", "1", "7", "12"],
        ["n02084071", "n02085620"],
        ["marten", "mayfly", "octopus", "decoy"],
        ["2019", "cats", "dogs"],
        ["2 cats", "20 dogs"],
        ["1234", "3019", "201913"],
        ["001.Albatross", "002.May_Bird"],
    ],
)
def test_other_folders_are_not_dates(tmp_path, names):
    for row, name in enumerate(names):
        paint(tmp_path / name / "1.png", row)
        paint(tmp_path / name / "2.png", 50 + row)
    assert opened(tmp_path).warnings == []


def test_links_are_followed_but_not_in_circles(photos, tmp_path):
    paint(tmp_path / "elsewhere" / "1.png", 77)
    (photos / "zebra").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (photos / "cats" / "up").symlink_to(photos, target_is_directory=True)
    (photos / "cats" / "self").symlink_to("self")
    assert find_images(photos).images == [
        *[f"cats/{row}.png" for row in range(4)],
        *[f"dogs/{row}.JPG" for row in range(4)],
        "zebra/1.png",
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_not_waited_for(photos):
    os.mkfifo(photos / "cats" / "pipe.jpg")
    assert len(opened(photos).images) == 8


def test_importing_the_package_of_data_is_cheap():
    code = "import sys, hashlens.data; print([m for m in ('PIL', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_names_that_are_not_text_are_skipped(photos):
    """A class or a file may be named in bytes that are not UTF-8."""
    try:
        (photos / "caf\udce9").mkdir()
    except (OSError, UnicodeEncodeError):
        pytest.skip("this disk has no such names")
    paint(photos / "caf\udce9" / "1.png", 50)
    paint(photos / "cats" / "\udce9.png", 51)
    source = opened(photos)
    assert source.labels.names == ("cats", "dogs") and len(source.images) == 8
    assert source.skipped == [
        ("caf\\udce9/1.png", "name is not UTF-8"),
        ("cats/\\udce9.png", "name is not UTF-8"),
    ]


def test_one_folder_is_enough_where_no_labels_are_needed(photos, tmp_path):
    paint(tmp_path / "one" / "inside" / "1.png", 20)
    paint(tmp_path / "one" / "2.png", 30)
    source = open_source(tmp_path / "one", labels="optional")
    assert list(source.images.names) == ["2.png", "inside/1.png"] and source.table["labels"].to_pylist() == [
        [],
        ["inside"],
    ]
    assert open_source(tmp_path / "one" / "inside", labels="optional").labels is None
    assert open_source(photos, labels="optional").labels.names == ("cats", "dogs")


def test_paths_that_cannot_be(tmp_path):
    with pytest.raises(UsageError, match="~nobody-of-this-name/images cannot be expanded"):
        open_source("~nobody-of-this-name/images")


def test_what_photo_folders_hold_besides_images(photos):
    """RAW files and the videos of live photos are counted; thumbnails and bins of the system are not looked into."""
    for name in ("cats/0.CR2", "cats/1.nef", "dogs/0.MOV", "dogs/alone.mp4", "dogs/notes.txt"):
        (photos / name).write_bytes(b"\0")
    for folder in ("cats/@eaDir/0.png", ".thumbnails", "$RECYCLE.BIN", "__MACOSX/cats"):
        paint(photos / folder / "thumb.jpg", 200)
    paint(photos / "cats" / "._0.jpg", 200)
    source = open_source(photos)
    assert len(source) == 8 and source.labels.names == ("cats", "dogs")
    assert source.warnings == [
        "RAW files left out: 2; only the images beside them are used",
        "videos of live photos left out: 1; their images are used",
    ]


def test_heic_photos(photos):
    """They are images where the extra is installed; elsewhere they are counted, and a message says what is missing."""
    heif = pytest.importorskip("pillow_heif")
    paint(photos / "cats" / "turned.png", 60, size=(40, 20))
    with Image.open(photos / "cats" / "turned.png") as image:
        exif = image.getexif()
        exif[274] = 6  # turned by 90 degrees
        heif.register_heif_opener()
        image.save(photos / "cats" / "z.HEIC", "HEIF", exif=exif.tobytes(), quality=100)
    (photos / "cats" / "turned.png").unlink()
    source = opened(photos)
    assert len(source) == 9 and not source.skipped
    row = list(source.images.names).index("cats/z.HEIC")
    assert source.images.image(row).size == (20, 40) and abs(greys(source)[row] - 60) <= 3
    code = f"""
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *others: None if name == "pillow_heif" else find(name, *others)
from hashlens.data import open_source
from hashlens.data.images import FileImages, UnreadableImage
source = open_source({str(photos)!r})
print(len(source), source.warnings)
try:
    FileImages({str(photos)!r}, ["cats/z.HEIC"]).image(0)
except UnreadableImage as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told, refused = done.stdout.splitlines()
    assert told.startswith("8 [") and "HEIC photos left out: 1; to read them, run: pip install" in told
    assert 'z.HEIC: a HEIC photo; to read those, run: pip install "hashlens[heif]"' in refused


def test_linked_folders_are_read_once(photos):
    """Ten folders that link to each other would be millions of paths."""
    for one in range(10):
        paint(photos / f"n{one}" / "1.png", one)
        for other in range(10):
            (photos / f"n{one}" / f"to{other}").symlink_to(photos / f"n{other}", target_is_directory=True)
    (photos / "again").symlink_to(photos / "cats", target_is_directory=True)
    found = find_images(photos).images
    assert len(found) == 18 and "cats/0.png" in found and "n9/1.png" in found


def test_a_folder_that_cannot_be_read(photos, monkeypatch):
    """It stops training, which would lack a class; elsewhere it is left out and told."""
    scandir = os.scandir

    def forbidden(path):  # as chmod 0 would make it, but for root too
        if os.fspath(path).rstrip("/").endswith("dogs"):
            raise PermissionError
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(DataError, match=r"permission denied to read the folder .*dogs; allow it or move the folder"):
        open_source(photos)
    source = open_source(photos, labels="optional")
    assert len(source) == 4 and source.skipped == [("dogs", "folder cannot be read (permission denied)")]
