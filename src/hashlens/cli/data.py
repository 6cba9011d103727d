"""Commands on data: features, data check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hashlens.cli.options import COLUMNS, FROM_FILE, JSON, QUIET, SEED, SOURCE, chosen_columns
from hashlens.data.sources import SOURCES
from hashlens.errors import counted
from hashlens.files import quoted
from hashlens.progress import Progress

app = typer.Typer()
data_app = typer.Typer(
    help=f"Look at data before training.\n\nA source is {', '.join(SOURCES.values())}.", no_args_is_help=True
)
app.add_typer(data_app, name="data")
NPY = b"\x93NUMPY"  # the first bytes of an array file


@app.command()
def features(
    source: SOURCE,
    kind: Annotated[
        str, typer.Option(help="gist, deep, a backbone, with a size if you like (resnet50@112), or nuswide-1134.")
    ] = "deep",
    out: Annotated[Path, typer.Option(help="File to write, (n, d) float32.")] = Path("features.npy"),
    columns: COLUMNS = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Turn images into fixed features, for train and compare (hashlens train features.npy) or other programs.

    Beside the file, a table (.parquet) says which image each row is of, with its labels.
    """
    import numpy as np
    import pyarrow.parquet as pq

    from hashlens.data import open_source, readable
    from hashlens.features.nuswide import NUSWIDE, source_features
    from hashlens.files import replacing, require_kind, require_room, write_csv

    table, skipped = out.with_suffix(".parquet"), out.with_suffix(".skipped.csv")
    require_kind(out, NPY, "file of features")
    require_kind(table, b"PAR1", "table of images")
    require_kind(skipped, b"path", "list of images")
    progress = Progress(quiet)
    if kind == NUSWIDE:
        opened, found = source_features(source, progress)
    else:
        from hashlens.features.extractor import image_features

        opened = open_source(
            source, labels="optional", columns=chosen_columns(columns), from_file=from_file, progress=progress.say
        )
        opened = readable(opened, progress.say)
        found = image_features(opened.images, kind, progress=progress)
    for warning in opened.warnings:
        progress.say(f"note: {warning}")
    require_room(out.parent, found.nbytes, "the features")
    with replacing(out) as temporary, temporary.open("wb") as file:
        np.save(file, found)
    with replacing(table) as temporary:
        pq.write_table(opened.table, temporary)
    result = {"n": len(found), "n_features": found.shape[1], "kind": kind, "out": str(out)}
    result |= {"table": str(table), "n_skipped": len(opened.skipped)}
    if opened.skipped:
        write_csv(skipped, ["path", "reason"], opened.skipped)
    if as_json:
        print(json.dumps(result))
        return
    print(f"{counted(len(found), 'row')} of {found.shape[1]} features in {out}, their images in {table}")
    if opened.skipped:
        print(f"{counted(len(opened.skipped), 'image')} could not be read: see {skipped}")
    print(f"next     hashlens compare {quoted(out)} --methods itq,ksh")


@data_app.command()
def check(
    source: SOURCE,
    protocol: Annotated[str | None, typer.Option(help="The split to describe.", show_default="that of train")] = None,
    seed: SEED = 0,
    columns: COLUMNS = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Show what training would see: sizes, balance, unreadable and duplicate images, and the split."""
    from hashlens.data.check import check_source, describe_check

    report = check_source(
        source,
        from_file=from_file,
        columns=chosen_columns(columns),
        protocol=protocol,
        seed=seed,
        progress=Progress(quiet).say,
    )
    print(json.dumps(report) if as_json else describe_check(report))
