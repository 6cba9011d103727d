"""Finding duplicates: three headings, what to keep, what is remembered; moving away and back."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_photos import make_photos
from PIL import Image

from hashlens import LSH, find_duplicates
from hashlens.duplicates import looks, move
from hashlens.duplicates.find import ignore
from hashlens.errors import DataError, Stopped, StorageError, UsageError
from hashlens.files import sha256


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    images = np.stack([np.asarray(photo) for photo in make_photos(8)])
    LSH(n_bits=64, features="gist").fit(images).save(place / "lsh")
    return place / "lsh"


@pytest.fixture
def photos(tmp_path, empty_cache):
    """Eight photos; one is there twice, of one there is a small copy, of one a mirrored and a framed copy."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for number, photo in enumerate(make_photos(8)):
        photo.save(folder / f"{number}.jpg", quality=92)
        os.utime(folder / f"{number}.jpg", (1_600_000_000 + number, 1_600_000_000 + number))
    shutil.copy(folder / "0.jpg", folder / "more" / "same.jpg")
    with Image.open(folder / "1.jpg") as image:
        image.resize((80, 60)).save(folder / "more" / "small.jpg")
    with Image.open(folder / "2.jpg") as image:
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "more" / "mirrored.png")
        framed = Image.new("RGB", (220, 170), "white")
        framed.paste(image, (30, 25))
        framed.save(folder / "more" / "framed.png")
    return folder


def named(groups, folder):
    return [[Path(image.path).relative_to(folder).as_posix() for image in group.images] for group in groups]


def test_three_headings_and_what_to_keep(photos, model):
    (photos / "broken.jpg").write_bytes(b"nothing")
    found = find_duplicates(photos, model, radius=0)
    assert found.to_dict()["unreadable"] == [str(photos / "broken.jpg")] and found.n_images == 12
    assert named(found.of("identical"), photos) == [["0.jpg", "more/same.jpg"]]
    assert named(found.of("copies"), photos) == [
        ["1.jpg", "more/small.jpg"],
        ["2.jpg", "more/framed.png", "more/mirrored.png"],
    ]
    assert [group.why for group in found.of("copies")] == ["largest", "less border, oldest"]
    assert found.n_images == 12
    assert json.loads(json.dumps(found.to_dict()))["groups"][0]["keep"] == str(photos / "0.jpg")


def test_look_alikes_are_those_with_near_codes_and_never_copies(photos, model):
    every = find_duplicates(photos, model, radius=64)
    assert len(every.of("look-alikes")) == 1  # every code is within all bits
    assert len(every.of("look-alikes")[0].images) == 8  # the copies stay with their photos
    assert len(every.of("copies")) == 2
    assert find_duplicates(photos, model, radius=-1).of("look-alikes") == []


def test_against_finds_only_what_both_folders_have(photos, model, tmp_path):
    other = tmp_path / "library"
    other.mkdir()
    with Image.open(photos / "3.jpg") as image:
        image.rotate(90, expand=True).save(other / "a.jpg")
    shutil.copy(photos / "4.jpg", other / "b.jpg")
    found = find_duplicates(photos, model, against=other, radius=-1)
    assert [[Path(image.path).name for image in group.images] for group in found.groups] == [
        ["b.jpg", "4.jpg"],
        ["a.jpg", "3.jpg"],
    ]
    assert all(group.why.startswith("in the other folder") for group in found.groups)
    shutil.copy(photos / "4.jpg", other / "c.jpg")  # several on each side are one group
    shutil.copy(photos / "4.jpg", photos / "5.jpg")
    (same,) = find_duplicates(photos, model, against=other, radius=-1).of("identical")
    assert sorted(Path(image.path).name for image in same.images) == ["4.jpg", "5.jpg", "b.jpg", "c.jpg"]
    with pytest.raises(UsageError, match="in common"):
        find_duplicates(photos, model, against=photos)


def test_ignored_groups_do_not_come_back(photos, model):
    first, second = find_duplicates(photos, model, radius=-1).of("copies")
    assert ignore([first.name]) == 1
    again = find_duplicates(photos, model, radius=-1)
    assert again.of("copies") == [second] and again.n_ignored == 1
    # a new copy of one of them is still found, without the one that was rejected
    with Image.open(photos / "1.jpg") as image:
        image.transpose(Image.Transpose.ROTATE_180).save(photos / "turned.png")
    assert "turned.png" in str(named(find_duplicates(photos, model, radius=-1).of("copies"), photos))
    (same,) = again.of("identical")
    assert ignore([same.name, same.name]) == 2
    assert not find_duplicates(photos, model, radius=-1).of("identical")
    with pytest.raises(UsageError, match="no group 12345678"):
        ignore(["12345678"])


def test_groups_that_are_ignored_at_the_same_time_are_all_kept(photos, model):
    names = [group.name for group in find_duplicates(photos, model, radius=-1).groups]
    code = "import sys; from hashlens.duplicates.find import ignore; ignore(sys.argv[1:])"
    running = [subprocess.Popen([sys.executable, "-c", code, name]) for name in names]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert not find_duplicates(photos, model, radius=-1).groups


def test_a_request_to_stop_is_heard_at_every_step(photos, model):
    before = find_duplicates(photos, model)
    with pytest.raises(Stopped, match="rerun the same command"):
        find_duplicates(photos, model, radius=-1, stop=lambda: True)  # while small images are compared
    (photos / "1.jpg").unlink(), (photos / "2.jpg").unlink()  # no copies are left to compare
    with pytest.raises(Stopped, match="rerun the same command"):
        find_duplicates(photos, model, stop=lambda: True)  # while near codes are found
    assert len(find_duplicates(photos, model).groups) <= len(before.groups)


def test_only_changed_images_are_looked_at_again(photos, model, monkeypatch):
    seen = []
    real = looks.look_at
    monkeypatch.setattr(looks, "look_at", lambda image: seen.append(image.size) or real(image))
    before = find_duplicates(photos, model, radius=-1)
    assert len(seen) == 12
    assert find_duplicates(photos, model, radius=-1) == before and len(seen) == 12
    Image.new("RGB", (50, 40)).save(photos / "5.jpg")
    assert len(find_duplicates(photos, model, radius=-1).groups) == 3 and len(seen) == 13


def test_a_stopped_search_resumes(photos, model, monkeypatch, tmp_path):
    from hashlens.errors import Stopped
    from hashlens.index.library import index_of
    from hashlens.progress import Progress

    index = index_of(photos, model)
    paths = sorted(str(path) for path in photos.rglob("*.*"))
    monkeypatch.setattr(looks, "blocks", lambda n, size: [slice(i, min(i + 4, n)) for i in range(0, n, 4)])
    with pytest.raises(Stopped, match="8 images left"):
        looks.looks_of(index, paths, Progress(quiet=True), lambda: True)
    seen, real = [], looks.look_at
    monkeypatch.setattr(looks, "look_at", lambda image: seen.append(image) or real(image))
    assert looks.looks_of(index, paths, Progress(quiet=True))["digest"].any(axis=1).all()
    assert len(seen) == 8


def state(*folders):
    return {
        path: sha256(path)
        for folder in folders
        for path in sorted(folder.rglob("*.*"))
        if path.suffix in (".jpg", ".png")
    }


@pytest.mark.parametrize("links", [True, False])
def test_what_is_moved_comes_back(photos, model, tmp_path, monkeypatch, links):
    """On the same disk, and where files must be copied."""
    if not links:
        monkeypatch.setattr(os, "link", lambda *a, **k: (_ for _ in ()).throw(OSError(errno.EXDEV, "other disk")))
    before = state(photos)
    times = {path: path.stat().st_mtime_ns for path in before}
    found = find_duplicates(photos, model, radius=64)
    away = tmp_path / "away"
    moved = move.move_duplicates(found, away)
    assert sorted(Path(path).name for path in moved.paths) == ["framed.png", "mirrored.png", "same.jpg", "small.jpg"]
    assert not moved.left and len(state(photos)) == 8 and len(state(away)) == 4
    assert not find_duplicates(photos, model, radius=-1).groups
    assert move.undo(moved.listed) == (4, [])
    assert state(photos) == before and times == {path: path.stat().st_mtime_ns for path in before}
    assert state(away) == {} and move.undo(moved.listed) == (0, [])


def test_a_live_photo_moves_with_its_video_and_comes_back(photos, model, tmp_path):
    for name in ("more/same.MOV", "more/small.mov", "more/framed.mp4", "more/framed.txt", "0.mov"):
        (photos / name).write_bytes(name.encode())
    shutil.copy(photos / "5.jpg", photos / "more" / "framed.jpg")  # of the same name, and leaves too
    away = tmp_path / "away"
    away.mkdir()
    (away / "same.MOV").write_bytes(b"mine")
    moved = move.move_duplicates(find_duplicates(photos, model, radius=-1), away)
    names = sorted(path.name for path in away.iterdir() if path.suffix != ".json" and not path.name.startswith("."))
    assert " ".join(names) == (
        "framed.jpg framed.mp4 framed.png mirrored.png same-2.MOV same-2.jpg same.MOV small.jpg small.mov"
    )
    assert sorted(Path(path).name for path in moved.videos) == ["framed.mp4", "same.MOV", "small.mov"]
    assert not (photos / "more" / "same.MOV").exists() and (photos / "0.mov").exists()
    assert move.undo(moved.listed) == (8, [])
    assert (photos / "more" / "same.MOV").read_bytes() == b"more/same.MOV"
    assert (away / "same.MOV").read_bytes() == b"mine"


def test_a_video_stays_with_the_other_image_of_its_name(photos, model, tmp_path):
    with Image.open(photos / "3.jpg") as image:
        image.resize((80, 60)).save(photos / "3.png")
    (photos / "3.mov").write_bytes(b"video")
    moved = move.move_duplicates(find_duplicates(photos, model, radius=-1), tmp_path / "away")
    assert str(photos / "3.png") in moved.paths and not moved.videos and (photos / "3.mov").exists()


def test_of_equal_images_the_live_photo_is_kept(photos, model):
    (photos / "more" / "same.mov").write_bytes(b"video")
    (same,) = find_duplicates(photos, model, radius=-1).of("identical")
    assert (Path(same.images[0].path).name, same.why) == ("same.jpg", "live photo")


def test_a_file_that_cannot_leave_is_nowhere_twice(photos, model, tmp_path, monkeypatch):
    (photos / "more" / "small.mov").write_bytes(b"video")
    real = Path.unlink

    def refuses(path, **options):
        if path == photos / "more" / "small.mov":
            raise PermissionError(errno.EACCES, "Permission denied")
        real(path, **options)

    monkeypatch.setattr(Path, "unlink", refuses)
    with pytest.raises(StorageError, match=r"small.mov away: permission denied.*1 image moved before, undo: hashlens"):
        move.move_duplicates(find_duplicates(photos, model, radius=-1), tmp_path / "away")
    assert (photos / "more" / "small.jpg").exists() and (photos / "more" / "small.mov").exists()
    assert [path.name for path in (tmp_path / "away").glob("s*")] == ["same.jpg"]


@pytest.mark.parametrize("links", [True, False])
def test_a_kill_at_any_step_loses_nothing(photos, model, tmp_path, monkeypatch, links):
    """Each operation on files fails once, as if the process had been killed there; undo restores all."""
    found, before = find_duplicates(photos, model, radius=-1), state(photos)
    real = {name: getattr(Path, name) for name in ("unlink", "replace")} | {"link": os.link}

    class Killed(BaseException):
        pass

    for step in range(40):
        calls = []

        def dies(name, step=step, calls=calls):
            def call(*arguments, **options):
                calls.append(name)
                if len(calls) > step:
                    raise Killed
                if name == "link" and not links:
                    raise OSError(errno.EXDEV, "other disk")
                return real[name](*arguments, **options)

            return call

        away = tmp_path / f"away{step}"
        with monkeypatch.context() as patch:
            for name in ("unlink", "replace"):
                patch.setattr(Path, name, dies(name))
            patch.setattr(os, "link", dies("link"))
            try:
                move.move_duplicates(found, away)
                finished = True
            except Killed:
                finished = False
        contents = set(state(photos, away).values())
        assert contents >= set(before.values()), f"lost at step {step}"
        if listed := list(away.glob("moved-*.json")):
            assert not move.undo(listed[0])[1]
        assert state(photos) == before
        if finished:
            break
    assert finished and step > 8


def test_nothing_is_overwritten(photos, model, tmp_path):
    away = tmp_path / "away"
    away.mkdir()
    (away / "same.jpg").write_bytes(b"mine")
    found = find_duplicates(photos, model, radius=-1)
    listed = move.move_duplicates(found, away).listed
    assert (away / "same.jpg").read_bytes() == b"mine" and (away / "same-2.jpg").exists()
    (photos / "more" / "same.jpg").write_bytes(b"new")
    restored, left = move.undo(listed)
    assert restored == 3 and "another file is there now" in left[0][1]
    assert (photos / "more" / "same.jpg").read_bytes() == b"new" and (away / "same-2.jpg").exists()
    with pytest.raises(FileExistsError):
        move._linked(photos / "0.jpg", photos / "1.jpg")


def test_what_changed_since_the_search_stays(photos, model, tmp_path):
    found = find_duplicates(photos, model, radius=-1)
    (photos / "0.jpg").unlink()  # the one to keep
    with Image.open(photos / "7.jpg") as image:
        image.save(photos / "more" / "small.jpg")
    moved = move.move_duplicates(found, tmp_path / "away")
    assert sorted(Path(path).name for path in moved.paths) == ["framed.png", "mirrored.png"]
    assert [why.rpartition(" ")[2] for _, why in moved.left] == ["gone", "changed"]


def test_links_stay(photos, model, tmp_path):
    (photos / "link.jpg").symlink_to("more/same.jpg")
    (photos / "hard.jpg").hardlink_to(photos / "3.jpg")
    found = find_duplicates(photos, model, radius=-1)
    moved = move.move_duplicates(found, tmp_path / "away")
    assert sorted(Path(path).name for path in moved.paths) == ["framed.png", "mirrored.png", "small.jpg"]
    assert {Path(path).name for path, _ in moved.left} == {"link.jpg", "same.jpg"}
    assert (photos / "link.jpg").is_file()


def test_one_file_by_several_names_is_no_duplicate(photos, model):
    (photos / "a.jpg").symlink_to("3.jpg")
    (photos / "hard.jpg").hardlink_to(photos / "4.jpg")
    found = find_duplicates(photos, model, radius=0)
    assert named(found.of("identical"), photos) == [["0.jpg", "more/same.jpg"]] and len(found.groups) == 3
    shutil.copy(photos / "3.jpg", photos / "b.jpg")
    group = find_duplicates(photos, model, radius=-1).of("identical")[-1]
    assert Path(group.images[0].path).name == "3.jpg"  # not the link, which is older and has a short name


def test_the_command(hashlens, photos, model, tmp_path):
    page, table = tmp_path / "d.html", tmp_path / "d.csv"
    code, out, err = hashlens(
        "duplicates", photos, "--model", model, "--radius", "-1", "--html", page, "--csv", table, "-q"
    )
    assert code == 0 and not err
    for heading in ("identical (", "copies (", "look-alikes ("):
        assert heading in out
    html = page.read_text()
    assert html.count("<img") == 7 and "keep: largest" in html and "http" not in html.replace("http-equiv", "")
    assert table.read_text().splitlines()[0].startswith("group,kind,keep,why,path")
    assert len(table.read_text().splitlines()) == 8
    code, out, _ = hashlens("duplicates", photos, "--model", model, "--move-to", tmp_path / "away", "--json", "-q")
    moved = json.loads(out)["moved"]
    assert code == 0 and len(moved["paths"]) == 4
    code, out, _ = hashlens("duplicates", "undo", moved["list"])
    assert (code, out) == (0, "restored 4 files\n")
    name = json.loads(hashlens("duplicates", photos, "--model", model, "--json", "-q")[1])["groups"][0]["name"]
    assert hashlens("duplicates", "ignore", name)[0] == 0


def test_wrong_use(hashlens, photos, model, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.html").write_text("mine")
    with_model = ("--model", model)
    for arguments, code, words in (
        (("duplicates", tmp_path / "empty", *with_model), 3, "no images"),
        (("duplicates", tmp_path / "nowhere", *with_model), 3, "not found"),
        (("duplicates", photos, *with_model, "--move-to", photos / "away"), 2, "is inside"),
        (("duplicates", photos, *with_model, "--html", tmp_path / "note.html"), 2, "is not a page"),
        (("duplicates", photos, *with_model, "--radius", "-2"), 2, "radius"),
        (("duplicates", "ignore", "nothing"), 2, "no group nothing"),
        (("duplicates", "undo", tmp_path / "nowhere.json"), 2, "not found"),
        (("duplicates", "undo", tmp_path / "note.html"), 3, "not a list"),
        (("duplicates", "find"), 2, "Missing argument"),
    ):
        found, out, err = hashlens(*arguments)
        assert found == code and words in err and "Traceback" not in err and not out, (arguments, err, out)
    assert (tmp_path / "note.html").read_text() == "mine"


def test_a_damaged_list_of_ignored_groups_is_never_replaced(photos, model, empty_cache):
    group = find_duplicates(photos, model, radius=-1).groups[0]
    file = empty_cache / "state" / "duplicates-ignored.json"
    file.parent.mkdir()
    file.write_text("[")
    with pytest.raises(DataError, match="is damaged"):
        ignore([group.name])
    with pytest.raises(DataError, match="is damaged"):
        find_duplicates(photos, model, radius=-1)
    assert file.read_text() == "["
