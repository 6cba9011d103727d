"""The commands that look at data: features, data check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hashlens.cli.options import COLUMN, FROM_FILE, JSON, QUIET, SEED, TABLES
from hashlens.progress import Progress

app = typer.Typer()
data_app = typer.Typer(help="Look at data before training.", no_args_is_help=True)
app.add_typer(data_app, name="data")
NPY = b"\x93NUMPY"  # how a file of an array begins


@app.command()
def features(
    source: Annotated[str, typer.Argument(help="cifar10, digits, a table (.csv) of paths and labels, or a folder.")],
    kind: Annotated[str, typer.Option(help="gist, deep, or a backbone, also with a size: resnet50@112.")] = "deep",
    out: Annotated[Path, typer.Option(help="Where to write them: (n, d) float32.")] = Path("features.npy"),
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Turn pictures into fixed features, one row each, for methods on features or for other programs."""
    import numpy as np

    from hashlens.data import open_source
    from hashlens.features import backbone_of, picture_features
    from hashlens.files import replacing, require_kind, require_room, write_csv

    paths, skipped = out.with_suffix(".paths.csv"), out.with_suffix(".skipped.csv")
    require_kind(out, NPY, "file of features")
    for listed in (paths, skipped):
        require_kind(listed, b"path", "list of pictures")
    progress = Progress(quiet)
    opened = open_source(source, from_file=from_file, progress=progress.say, labelled=False)
    for warning in opened.warnings:
        progress.say(f"note: {warning}")
    found = picture_features(opened.images, backbone_of(kind), progress=progress)
    require_room(out.parent, found.nbytes, "the features")
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.save(file, found)
    write_csv(paths, ["path"], ([name] for name in opened.images.names))
    result = {"n": len(found), "n_features": found.shape[1], "kind": backbone_of(kind), "out": str(out)}
    result |= {"paths": str(paths), "n_skipped": len(opened.skipped)}
    if opened.skipped:
        write_csv(skipped, ["path", "reason"], opened.skipped)
    if as_json:
        print(json.dumps(result))
        return
    print(f"{len(found):,} rows of {found.shape[1]} features in {out}, their pictures in {paths}")
    if opened.skipped:
        print(f"{len(opened.skipped):,} pictures could not be read: see {skipped}")


@data_app.command()
def check(
    source: Annotated[str, typer.Argument(help="cifar10, digits, a table (.csv) of paths and labels, or a folder.")],
    protocol: Annotated[str | None, typer.Option(help="The split to describe.", show_default="that of train")] = None,
    seed: SEED = 0,
    path_column: COLUMN = None,
    label_column: COLUMN = None,
    split_column: COLUMN = None,
    separator: Annotated[str | None, typer.Option(help="Between the labels of a picture.", **TABLES)] = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Tell what training would see: sizes, balance, unreadable and duplicate pictures, and the split."""
    from hashlens.data import Columns
    from hashlens.data.check import check_source, describe_check

    report = check_source(
        source,
        from_file=from_file,
        columns=Columns(path_column, label_column, split_column, separator),
        protocol=protocol,
        seed=seed,
        progress=Progress(quiet).say,
    )
    print(json.dumps(report) if as_json else describe_check(report))
