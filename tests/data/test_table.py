"""Tables: every row ends up with its image or in the list of those skipped, and every bad input gets a sentence."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_images import described, greys, opened, paint

from hashlens.data import Columns, make_protocol, open_source
from hashlens.data.kinds.table import split_labels
from hashlens.errors import DataError, UsageError


@pytest.fixture
def table(tmp_path):
    """A function that writes a table beside the images a/0.png … a/7.png, whose greys are 10 … 17."""
    for row in range(8):
        paint(tmp_path / "a" / f"{row}.png", 10 + row)

    def write(text, name="pets.csv", encoding="utf-8"):
        (tmp_path / name).write_bytes(text.encode(encoding))
        return tmp_path / name

    return write


PETS = "path,label\na/3.png,dog\na/0.png,cat\na/5.png,dog\na/1.png,cat\n"


def test_single_labels_in_the_order_of_the_table(table):
    source = open_source(table(PETS))
    assert source.name == "pets" and not source.labels.multi
    assert list(source.images.names) == ["a/3.png", "a/0.png", "a/5.png", "a/1.png"]
    assert greys(source) == [13, 10, 15, 11]
    assert described(source) == ["dog", "cat", "dog", "cat"]
    assert source.split is None and source.skipped == [] and source.warnings == []


@pytest.mark.parametrize(
    ("text", "name", "encoding"),
    [
        (PETS.replace("\n", "\r\n"), "pets.csv", "utf-8-sig"),
        (PETS.replace(",", "\t"), "pets.tsv", "utf-8"),
        (PETS.replace(",", "\t"), "PETS.CSV", "utf-16"),
        (PETS.replace(",", ";"), "pets.csv", "utf-8"),
        (PETS.replace("path,label", " File ,CLASS"), "pets.csv", "utf-8"),
        (PETS.replace("a/", "a\\"), "pets.csv", "utf-8"),
        (PETS.replace("a/", "./a/") + "\n\n,\n", "pets.csv", "utf-8"),
    ],
)
def test_the_ways_that_programs_write_tables(table, text, name, encoding):
    source = open_source(table(text, name, encoding))
    assert greys(source) == [13, 10, 15, 11] and described(source) == ["dog", "cat", "dog", "cat"]


def test_parquet(table, tmp_path):
    rows = {
        "path": ["a/3.png", "a/0.png", "a/5.png"],
        "tags": [["dog", "wolf"], ["cat"], []],
        "split": ["train", "test", "db"],
    }
    pq.write_table(pa.table(rows), tmp_path / "pets.parquet")
    source = opened(tmp_path / "pets.parquet")
    assert greys(source) == [13, 10, 15] and described(source) == ["dog, wolf", "cat", "no label"]
    assert source.split.query.tolist() == [1]
    pq.write_table(
        pa.table({"file": ["a/1.png", "a/2.png"], "sea": [True, False], "sun": [0, 1]}), tmp_path / "b.parquet"
    )
    assert described(opened(tmp_path / "b.parquet")) == ["sea", "sun"]
    (tmp_path / "c.parquet").write_text("x")
    with pytest.raises(DataError, match="as a Parquet table"):
        opened(tmp_path / "c.parquet")


def test_several_labels_make_sets_and_rows_without_one_stay(table):
    source = opened(table("image,tags\na/0.png,beach;sunset\na/1.png,\na/2.png,sunset | sea | sunset\n"))
    assert source.labels.multi and source.labels.names == ("beach", "sea", "sunset")
    assert described(source) == ["beach, sunset", "no label", "sea, sunset"]
    assert any(
        "images without a label: 1; each counts as an image with none of the" in line for line in source.warnings
    )


def test_columns_of_0_and_1(table):
    source = opened(table("path,sea,split,sun\na/0.png,1,train,0\na/1.png,1,test,1\na/2.png,0,train,0\n"))
    assert source.labels.names == ("sea", "sun")
    assert source.labels.values.tolist() == [[True, False], [True, True], [False, False]]
    single = opened(table("path,sea,sun\na/0.png,1,0\na/1.png,0,1.0\n"))
    assert not single.labels.multi and described(single) == ["sea", "sun"]


def test_a_comma_separates_only_if_told_to(table):
    path = table('path,labels\na/0.png,"Paris, France"\na/1.png,sea\n')
    source = opened(path)
    assert source.labels.names == ("Paris, France", "sea") and not source.labels.multi
    assert any("'Paris, France' is one label" in line for line in source.warnings)
    apart = opened(path, columns=Columns(separator=","))
    assert apart.labels.names == ("France", "Paris", "sea") and apart.labels.multi
    assert not any("comma" in line for line in apart.warnings)


def test_columns_by_other_names(table):
    path = table("Bild,label,Art\na/0.png,x,cat dog\na/1.png,x,dog\n")
    source = open_source(path, columns=Columns(path="bild", labels="Art", separator=" "))
    assert described(source) == ["cat, dog", "dog"]


def test_missing_files_are_listed(table, tmp_path):
    (tmp_path / "a" / "6.png").write_text("hello")
    source = opened(table(PETS + "a/9.png,dog\na/6.png,cat\nb/0.png,owl\n"))
    assert source.skipped == [("a/9.png", "missing"), ("b/0.png", "missing"), ("a/6.png", "not an image")]
    assert greys(source) == [13, 10, 15, 11]
    text = "\n".join(source.warnings)
    assert "images left out, missing: 2, first a/9.png" in text
    assert "images left out, not an image: 1, first a/6.png" in text
    assert "class 'owl' has no image" in text


def test_letter_case_is_said_and_the_image_used(table, tmp_path):
    paint(tmp_path / "B" / "Cat.JPG", 90)
    if (tmp_path / "b" / "cat.jpg").exists():
        pytest.skip("this file system does not tell letter case apart")
    source = opened(table(PETS + "b/cat.jpg,cat\n"))
    assert list(source.images.names)[-1] == "B/Cat.JPG" and greys(source)[-1] == 90 and not source.skipped
    assert any("b/cat.jpg is B/Cat.JPG" in line and "letter case" in line for line in source.warnings)
    paint(tmp_path / "B" / "cat.JPG", 91)
    source = opened(table(PETS + "b/cat.jpg,cat\n"))
    assert source.skipped == [("b/cat.jpg", "missing; B/Cat.JPG and B/cat.JPG differ from it in letter case")]


def test_two_spellings_of_one_file_are_one_image(table):
    for other in ("A/3.png", "./a/3.png", "a\\3.png"):
        source = opened(table(PETS + f"{other},dog\n"))
        assert len(source.images) == 4 and not source.labels.multi
        assert any("more than one row: 1" in line for line in source.warnings)


def test_absolute_paths_and_paths_upwards(table, tmp_path):
    paint(tmp_path / "else" / "x.png", 77)
    (tmp_path / "tables").mkdir()
    path = table(f"path,label\n{tmp_path}/else/x.png,cat\n../a/0.png,dog\n", "tables/t.csv")
    assert greys(opened(path)) == [77, 10]


def test_rows_without_label_or_path_are_skipped_in_single_labels(table):
    source = opened(table(PETS + "a/7.png,\n,dog\n"))
    assert source.skipped == [("a/7.png", "no label")]
    assert "rows without a path are left out: 1, first line 7" in source.warnings
    assert len(source.images) == 4 and not source.labels.multi


def test_many_rows_without_a_label_are_told_what_to_do(table):
    assert opened(table(PETS + "a/7.png,\n")).warnings == [
        "images left out, no label: 1, first a/7.png; that is 20%: fill in their labels in the table, or choose another"
        " column with --column labels=COLUMN"
    ]


def test_rows_of_the_same_image_are_joined(table):
    source = opened(table(PETS + "a/3.png,dog\n"))
    assert len(source.images) == 4 and not source.labels.multi
    assert any("more than one row: 1" in line and "a/3.png: dog" in line for line in source.warnings)
    source = opened(table(PETS + "a/3.png,wolf\n"))
    assert source.labels.multi and described(source)[0] == "dog, wolf"


def test_the_split_column(table):
    rows = ["train", "query", " Test", "DATABASE", "train", "val"]
    text = "path,label,split\n" + "".join(f"a/{i}.png,{'cd'[i % 2]},{word}\n" for i, word in enumerate(rows))
    source = opened(table(text))
    protocol = make_protocol(source, seed=5)
    assert protocol is source.split and protocol.name == "given" and "pets" in protocol.description
    assert protocol.query.tolist() == [1, 2] and protocol.train.tolist() == [0, 4]
    assert sorted(protocol.database) == [0, 3, 4, 5]
    assert make_protocol(source, "given").query.tolist() == [1, 2]
    assert make_protocol(source, "split").name == "split"


def test_the_split_counts_only_images_that_are_there(table):
    source = opened(
        table("path,label,split\na/9.png,c,test\na/0.png,c,train\na/1.png,d,test\na/2.png,d,train\na/3.png,d,train\n")
    )
    assert source.split.query.tolist() == [1] and source.split.train.tolist() == [0, 2, 3]


def test_a_split_column_without_queries_is_not_a_split(table):
    source = opened(table("path,label,split\na/0.png,c,train\na/1.png,d,train\n"))
    assert source.split is None and any("has no queries" in line for line in source.warnings)


@pytest.mark.parametrize(
    ("text", "columns", "kind", "message"),
    [
        ("", None, DataError, "has no images; name the columns"),
        ("path,label\n", None, DataError, "has no images; .* add a line"),
        ("a/0.png,cat\na/1.png,dog\n", None, UsageError, r"first line has a/0\.png, cat\).*--column path="),
        ("path,animal\na/0.png,cat\n", None, UsageError, r"\(but path, animal\).*line 2 has 'cat'.*--column labels="),
        ("path\na/0.png\n", None, DataError, "1 image but no labels.*fill in a column called label"),
        (PETS, Columns(labels="lable"), UsageError, "no column 'lable' among path, label; did you mean label"),
        (PETS, Columns(path="x"), UsageError, "no column 'x' .* choose one with --column path="),
        (PETS, Columns(split="fold"), UsageError, "no column 'fold'"),
        ("path,label,Path\na/0.png,c,a\n", None, DataError, "the column 'path' occurs twice"),
        ("path,label\na/0.png,cat,dog\n", None, DataError, "line 2 of .* has 3 cells and the first line has 2"),
        ("path,label\na/0.png\n", None, DataError, "line 2 of .* has 1 cells"),
        ("path,label\na/0.png,\na/1.png,\n", None, DataError, "2 images but no labels.*fill in a column"),
        ("path,label\na/0.png,x\na/1.png,\na/2.png,\n", None, DataError, "2 no label.*: fill in their labels"),
        ("path,label\na/0.png,cat\na/1.png,cat\n", None, DataError, "only one class found .* cat with 2 images"),
        ("path,label\nx.png,c\ny.png,d\na/1.png,d\n", None, DataError, r"2 of the 3 .* missing \(first: x\.png\)"),
        ("path,label,split\na/0.png,c,fold1\n", None, DataError, "line 2 .* 'fold1' .*'split'; write one of train"),
        ("path,label,split\na/0.png,c,train\na/0.png,c,test\n", None, DataError, "'train' in line 2 .*'test' in line"),
        ("path,sea,sun\na/0.png,1,-1\n", None, UsageError, "line 2 has '-1' under 'sun'"),
        ("path,label\n,cat\n,dog\n", None, DataError, "no row of .* has a path"),
    ],
)  # fmt: skip
def test_bad_tables_get_a_sentence(table, text, columns, kind, message):
    with pytest.raises(kind, match=message) as error:
        open_source(table(text), columns=columns)
    assert type(error.value) is kind and "\n" not in error.value.message


def test_other_encodings_and_absent_files(table, tmp_path):
    with pytest.raises(DataError, match=r"as text .*0xfc in position 11.*UTF-8"):
        open_source(table("path,label\nü.png,cat\n", encoding="latin-1"))
    with pytest.raises(DataError, match=r"gone\.csv not found"):
        open_source(str(tmp_path / "gone.csv"))
    with pytest.raises(DataError, match=r"line 2 of .* is malformed"):
        open_source(table('path,label\na/0.png,"' + "x" * 200_000 + '"\n'))


def test_columns_are_refused_where_there_are_none(tmp_path):
    paint(tmp_path / "cats" / "1.png", 1)
    with pytest.raises(UsageError, match="columns is only for huggingface and table"):
        open_source(tmp_path, columns=Columns(labels="x"))
    with pytest.raises(UsageError, match="columns is only for huggingface and table"):
        open_source("digits", columns=Columns(labels="x"))


def test_a_folder_may_be_called_like_a_table(tmp_path):
    for row in range(2):
        paint(tmp_path / "pets.csv" / "ab"[row] / "1.png", row)
    assert open_source(tmp_path / "pets.csv").labels.names == ("a", "b")


def test_split_labels():
    assert split_labels("a| b ;;a") == ("a", "b")
    assert split_labels(" ") == ()
    assert split_labels("a;b", "/") == ("a;b",)
