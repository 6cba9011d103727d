"""Commands on data: features, data check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from hashlens.cli.options import COLUMNS, FROM_FILE, JSON, QUIET, SEED, SOURCE, chosen_columns, show
from hashlens.files import quoted
from hashlens.progress import Progress, counted

app = typer.Typer()
data_app = typer.Typer(help="Look at data before training.", no_args_is_help=True)
app.add_typer(data_app, name="data")
NPY = b"\x93NUMPY"  # the first bytes of an array file


@app.command()
def features(
    source: SOURCE,
    kind: Annotated[
        str, Option(help="gist, deep, a backbone, with a size if you like (resnet50@112), or nuswide-1134.")
    ] = "deep",
    out: Annotated[Path, Option(help="File to write, (n, d) float32.")] = Path("features.npy"),
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
    if opened.skipped:
        write_csv(skipped, ["path", "reason"], opened.skipped)
    result = {"n": len(found), "n_features": found.shape[1], "kind": kind, "out": str(out)}
    show(
        result | {"table": str(table), "n_skipped": len(opened.skipped)},
        as_json,
        f"{counted(len(found), 'row')} of {counted(found.shape[1], 'feature')} in {out}, the images in {table}",
        f"{counted(len(opened.skipped), 'image')} could not be read: see {skipped}" if opened.skipped else "",
        f"next     hashlens compare {quoted(out)} --methods itq,ksh",
    )


@data_app.command()
def check(
    source: SOURCE,
    protocol: Annotated[str | None, Option(help="The split to describe.", show_default="that of train")] = None,
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
    show(report, as_json, describe_check(report))
