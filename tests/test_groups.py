"""Groups of images without labels, and the way from them to a trained model."""

import csv
import json

import numpy as np
import pytest
from made_images import three_classes

from hashlens import LSH, find_groups, open_source
from hashlens.errors import Stopped, UsageError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """36 images of three colours in one flat folder, and a model."""
    place = tmp_path_factory.mktemp("groups")
    three_classes(place / "classes", 12, 80, 150)
    (place / "photos").mkdir()
    for path in (place / "classes").rglob("*.png"):
        path.rename(place / "photos" / f"{path.parent.name}-{path.name}")
    images = open_source(place / "photos", labels="optional").images
    LSH(n_bits=32, features="gist").fit(images.read(slice(None), 24)).save(place / "lsh")
    return place


def test_the_number_of_groups_is_given_or_chosen(made):
    found = find_groups(made / "photos", 5, made / "lsh")
    assert len(found.groups) == 5 and found.n_images == 36 and not found.chosen
    assert [len(group) for group in found.groups] == sorted(map(len, found.groups), reverse=True)
    chosen = find_groups(made / "photos", model=made / "lsh")
    assert chosen.chosen and len(chosen.groups) == 4  # the root of 36 / 2
    assert find_groups(made / "photos", model=made / "lsh") == chosen  # the same again
    with pytest.raises(UsageError, match="--n must be from 1 to"):
        find_groups(made / "photos", 37, made / "lsh")


def test_a_request_to_stop_is_heard(made):
    find_groups(made / "photos", 2, made / "lsh")
    for n in (None, 3):
        with pytest.raises(Stopped, match="rerun the same command"):
            find_groups(made / "photos", n, made / "lsh", stop=lambda: True)


@pytest.mark.parametrize("fitted", [50_000, 30])
def test_groups_are_those_of_separate_codes(tmp_path, rng, monkeypatch, fitted):
    """Three far codes, each with a few bits flipped: three groups, by an index that has only codes.

    They are the same if they are found on half of the images, and the others are added some at a time.
    """
    import pyarrow as pa

    from hashlens import Codes
    from hashlens.index.folder import IndexFolder

    centres = rng.integers(0, 2, (3, 64))
    bits = np.repeat(centres, 20, axis=0) ^ (rng.random((60, 64)) < 0.05)
    index = IndexFolder.create(tmp_path / "index", 64, {"name": "none", "fingerprint": "0" * 64})
    index.add(
        Codes.from_relaxed(bits.astype(bool)), pa.table({"path": [f"/images/{row:02d}.jpg" for row in range(60)]})
    )
    monkeypatch.setattr("hashlens.groups.FITTED", fitted)
    monkeypatch.setattr("hashlens.groups.AT_ONCE", 7)
    found = find_groups(tmp_path / "index", 3)
    assert sorted(sorted(group) for group in found.groups) == [
        [f"/images/{row:02d}.jpg" for row in range(start, start + 20)] for start in (0, 20, 40)
    ]


def test_from_no_labels_to_a_trained_model(hashlens, made, tmp_path):
    page, table = tmp_path / "g.html", tmp_path / "g.csv"
    code, out, err = hashlens(
        "groups", made / "photos", "--model", made / "lsh", "--n", "3", "--html", page, "--csv", table, "--json"
    )
    assert code == 0 and json.loads(out)["n_groups"] == 3 and "hashlens train" in err
    assert page.read_text().count("<img") == 36
    with table.open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:  # a person corrects the labels
        row["label"] = row["path"].rpartition("/")[2].partition("-")[0]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("path", "label"))
        writer.writeheader()
        writer.writerows(rows)
    small = ["--backbone", "small-cnn", "--image-size", "16", "--bits", "12", "--epochs", "1", "--quiet"]
    code, _, err = hashlens("train", table, *small, "--out", tmp_path / "run")
    assert code == 0, err
    config = json.loads((tmp_path / "run" / "result.json").read_text())
    assert config["protocol"]["n_train"] > 0
    # the corrected table is not replaced by other text, and a table of groups is
    assert hashlens("groups", made / "photos", "--model", made / "lsh", "--n", "2", "--csv", table, "-q")[0] == 0
    (tmp_path / "mine.csv").write_text("a,b\n")
    code, _, err = hashlens("groups", made / "photos", "--model", made / "lsh", "--csv", tmp_path / "mine.csv")
    assert code == 2 and "choose another name" in err
