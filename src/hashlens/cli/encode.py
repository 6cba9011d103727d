"""The commands that turn images into codes or features, or look at them: encode, export, features, data check."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from hashlens.addresses import place
from hashlens.cli.options import (
    COLUMNS,
    FROM_FILE,
    JSON,
    QUIET,
    SEED,
    SOURCE,
    chosen_columns,
    interruptible,
    open_source_of,
    show,
)
from hashlens.data.sources import AT_ADDRESSES, KINDS
from hashlens.errors import UsageError
from hashlens.files import quoted
from hashlens.progress import Progress, counted

app = typer.Typer()
data_app = typer.Typer(
    help=f"Look at data before training.\n\nA source is {KINDS}; {AT_ADDRESSES}.",
    no_args_is_help=True,
)
app.add_typer(data_app, name="data")
NPY = b"\x93NUMPY"  # the first bytes of an array file


@app.command()
def encode(
    source: SOURCE,
    model: Annotated[Path, Option(help="Folder of a run, a model or an exported model; or general.")] = Path("general"),
    out: Annotated[str, Option(help="Folder for the codes; may be an address such as s3://bucket/codes.")] = "codes",
    part: Annotated[
        str, Option(help="3/16: encode only every 16th shard, starting with the 3rd, into OUT/part-3-of-16.")
    ] = "1/1",
    shard_size: Annotated[int, Option(min=1, help="Images per shard; a shard is written as a whole.")] = 65_536,
    on: Annotated[
        str, Option(help="local, or ray: on a Ray cluster, or on all cores of this machine if there is none.")
    ] = "local",
    columns: COLUMNS = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Turn images into codes with a trained model or the general one. Rerun the same command to resume."""
    from hashlens.codes.encode import encode_source, parse_part
    from hashlens.codes.encoder import Encoder

    if on not in ("local", "ray"):
        raise UsageError(f"--on must be local or ray, got {on}")
    with interruptible() as stop:
        encoder = Encoder.load(model)
        encoder.require_images()  # before anything is written
        result = encode_source(
            encoder,
            source,
            place(out),
            Progress(quiet),
            columns=chosen_columns(columns),
            shard_size=shard_size,
            part=parse_part(part),
            stop=stop,
            ray_model=model if on == "ray" else None,
        )
    unread, skipped = counted(result["n_skipped"], "image"), place(result["out"]) / "skipped.csv"
    show(
        result,
        as_json,
        f"{counted(result['n'], 'code')} of {counted(result['n_bits'], 'bit')} in {result['out']}",
        f"{unread} could not be read: see {skipped}" if result["n_skipped"] else "",
        f"next     hashlens index build {quoted(out)} --out index",
    )


@app.command()
def export(
    model: Annotated[Path, Argument(help="Folder of a run or its model.")],
    out: Annotated[Path, Option(help="Folder for the exported model.")] = Path("exported"),
    images: Annotated[
        str | None,
        Option(help="Images to check with.", show_default="CIFAR-10, if cached; with --int8, the images of the run"),
    ] = None,
    int8: Annotated[
        bool,
        Option(
            "--int8", help="Compute in 8 bits: twice as fast; the result is another model with nearly the same codes."
        ),
    ] = False,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Write a model as ONNX, so that it encodes without torch, and check that its codes are the same.

    With --int8 a few bits differ: the share of equal bits is printed and, if the images have labels, the MAP of both
    models. Some of the images calibrate the model and the others check it; for a run, these are its training images
    and its queries.
    """
    from hashlens.codes.export import export_onnx, require_exportable
    from hashlens.data import open_source
    from hashlens.data.images import as_images
    from hashlens.data.kinds.cifar10 import is_cached

    progress = Progress(quiet)
    require_exportable(model, out)
    calibrate = None
    if images is None and int8 and (model / "split.json").is_file():
        given, calibrate = _images_of_run(model, progress)
    elif images is None and (int8 or not is_cached()):
        why = "calibrated and " if int8 else ""
        raise UsageError(f"the exported model is {why}checked on images; name some with --images")
    else:
        given = as_images(open_source(images or "cifar10", progress=progress.say, labels="optional"))
    result = export_onnx(model, out, given, progress, int8=int8, calibrate=calibrate)
    crops = f" and {result['n_crops']:,} random crops of them" if result.get("n_crops") else ""
    another = "note: not all bits are equal, so this is another model: its codes do not mix with those of the original"
    show(
        result,
        as_json,
        f"{out}/model.onnx  {result['bytes'] / 1e6:.1f} MB, for uint8 RGB images of {result['image_size']} pixels",
        f"check    {result['bits_equal']:.4%} of {result['n_checked']:,} bits are equal,"
        f" on {counted(result['n_images'], 'image')}{crops}",
        f"MAP      {result['map']:.4f} in 8 bits, {result['map_float']:.4f} in floats: half of these images are"
        " queries, the others the database"
        if result.get("map") is not None
        else "",
        f"{counted(result['n_skipped'], 'image')} could not be read and were skipped" if result["n_skipped"] else "",
        "" if result["same_model"] else another,
        f"next     hashlens encode path/to/images --model {quoted(out)} --out codes",
    )


def _images_of_run(run: Path, progress: Progress) -> tuple[Any, Any]:
    """The queries of a run, with labels, and the images that it was trained on."""
    from hashlens.data.protocols import Protocol
    from hashlens.results.runs import load_config

    source = open_source_of(load_config(run), None, progress)
    protocol = Protocol.load(run / "split.json")
    asked = protocol.query if len(protocol.query) else protocol.database
    queries = source.images[asked]
    queries.labels = None if source.labels is None else source.labels[asked]
    return queries, source.images[protocol.train if len(protocol.train) else protocol.database]


@app.command()
def features(
    source: SOURCE,
    kind: Annotated[
        str, Option(help="gist, deep, a backbone, perhaps with an image size (resnet50@112), or nuswide-1134.")
    ] = "deep",
    out: Annotated[Path, Option(help="File to write: an (n, d) float32 array.")] = Path("features.npy"),
    columns: COLUMNS = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Turn images into fixed features, for train and compare (hashlens train features.npy) or other programs.

    A table beside the file (.parquet) names the image of each row, with its labels.
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
        f"{counted(len(found), 'row')} of {counted(found.shape[1], 'feature')} in {out}, their images in {table}",
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
