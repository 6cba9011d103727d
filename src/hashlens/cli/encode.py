"""The commands that use a trained model: encode, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hashlens.cli.options import COLUMNS, JSON, QUIET, SOURCE, chosen_columns, interruptible
from hashlens.errors import UsageError
from hashlens.files import quoted
from hashlens.progress import Progress

app = typer.Typer()


@app.command()
def encode(
    source: SOURCE,
    model: Annotated[Path, typer.Option(help="Folder of a run, of its model, or of an exported model.")],
    out: Annotated[Path, typer.Option(help="Folder for the codes.")] = Path("codes"),
    part: Annotated[
        str, typer.Option(help="3/16: only every 16th shard, starting with the 3rd, in OUT/part-3-of-16.")
    ] = "1/1",
    shard_size: Annotated[int, typer.Option(min=1, help="Images per shard; a shard is written as a whole.")] = 65_536,
    on: Annotated[str, typer.Option(help="local, or ray: on a Ray cluster (or all cores, without one).")] = "local",
    columns: COLUMNS = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Turn images into codes with a trained model. Rerun the same command to resume."""
    from hashlens.codes.encode import encode_source, parse_part
    from hashlens.codes.encoder import Encoder

    if on not in ("local", "ray"):
        raise UsageError(f"--on must be local or ray, got {on}")
    with interruptible() as stop:
        result = encode_source(
            Encoder.load(model),
            source,
            out,
            Progress(quiet),
            columns=chosen_columns(columns),
            shard_size=shard_size,
            part=parse_part(part),
            stop=stop,
            ray_model=model if on == "ray" else None,
        )
    if as_json:
        print(json.dumps(result))
        return
    print(f"{result['n']:,} codes of {result['n_bits']} bits in {result['out']}")
    if result["n_skipped"]:
        print(f"{result['n_skipped']:,} images could not be read: see {Path(result['out']) / 'skipped.csv'}")
    print(f"next     hashlens index build {quoted(out)} --out index")


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Folder of a run or of its model.")],
    out: Annotated[Path, typer.Option(help="Folder for the exported model.")] = Path("exported"),
    images: Annotated[
        str | None,
        typer.Option(help="Source of images to check with.", show_default="CIFAR-10, if it is in the cache"),
    ] = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Write a model as ONNX, so that it encodes without torch, and check that its codes are the same."""
    from hashlens.codes.export import export_onnx, require_exportable
    from hashlens.data import open_source
    from hashlens.data.kinds.cifar10 import is_cached

    progress = Progress(quiet)
    require_exportable(model, out)
    if images is None and not is_cached():
        raise UsageError("the exported model is checked with images; name some with --images")
    source = open_source(images or "cifar10", progress=progress.say, labels="optional")
    result = export_onnx(model, out, source.images, progress)
    if as_json:
        print(json.dumps(result))
        return
    print(f"{out}/model.onnx  {result['bytes'] / 1e6:.1f} MB, for uint8 RGB images of {result['image_size']} pixels")
    crops = f" and {result['n_crops']:,} random crops of them" if result["n_crops"] else ""
    print(
        f"check    {result['bits_equal']:.4%} of {result['n_checked']:,} bits are equal,"
        f" on {result['n_images']:,} images{crops}"
    )
    if result["n_skipped"]:
        print(f"images skipped, because they cannot be read: {result['n_skipped']:,}")
    if not result["same_model"]:
        print("note: not all bits are equal, so this is another model: its codes do not mix with those of the original")
    print(f"next     hashlens encode path/to/images --model {quoted(out)} --out codes")
