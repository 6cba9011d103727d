"""The commands that search: encode, export, search, serve."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hashlens.cli.options import COLUMN, JSON, QUIET, TABLES, interruptible, without_secrets
from hashlens.errors import UsageError
from hashlens.files import quoted, require_kind
from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.index.engines import Engine

app = typer.Typer()

INDEX = Annotated[Path, typer.Argument(help="Folder of an index, made by: hashlens index build")]
MODEL = Annotated[
    Path | None, typer.Option(help="Folder of the model, trained or exported.", show_default="the one the index names")
]
PICTURES = Annotated[
    Path | None, typer.Option(help="Where relative paths of pictures start.", show_default="the folder you are in")
]
ENGINE = Annotated[
    str | None, typer.Option(help="Search there and not in the folder: milvus, pgvector or faiss; see: index copy")
]
AT = Annotated[str | None, typer.Option(help="Address, connection or folder of the engine.")]
PAGE = b"<!doctype html"  # how a page begins
COLLECTION = Annotated[str | None, typer.Option(help="One of several in the same milvus or pgvector.")]


@app.command()
def encode(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder, a pattern, a list of paths (.txt, or - for standard input), a table (.csv), tar files"
            ' such as "shards/{000..099}.tar", cifar10 or digits.'
        ),
    ],
    model: Annotated[Path, typer.Option(help="Folder of a model, such as runs/NAME/model, or of an exported one.")],
    out: Annotated[Path, typer.Option(help="Folder for the codes.")] = Path("codes"),
    part: Annotated[
        str, typer.Option(help="3/16: only every 16th shard, from the 3rd on, in OUT/part-3-of-16.")
    ] = "1/1",
    shard_size: Annotated[int, typer.Option(help="Pictures a shard; a shard is written as a whole.")] = 65_536,
    path_column: COLUMN = None,
    label_column: COLUMN = None,
    separator: Annotated[str | None, typer.Option(help="Between the labels of a picture.", **TABLES)] = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Turn pictures into codes with a trained model; the same command again goes on where it ended."""
    from hashlens.data import Columns
    from hashlens.encoding import encode_source, parse_part
    from hashlens.export import load_encoder

    with interruptible() as stop:
        result = encode_source(
            load_encoder(model),
            source,
            out,
            Progress(quiet),
            model=model,
            columns=Columns(path_column, label_column, None, separator),
            shard_size=shard_size,
            part=parse_part(part),
            stop=stop,
        )
    if as_json:
        print(json.dumps(result))
        return
    print(f"{result['n']:,} codes of {result['n_bits']} bits in {result['out']}")
    if result["n_skipped"]:
        print(f"{result['n_skipped']:,} pictures could not be read: see {Path(result['out']) / 'skipped.csv'}")
    print(f"next     hashlens index build {quoted(out)} --out index")


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Folder of a model, such as runs/NAME/model.")],
    out: Annotated[Path, typer.Option(help="Folder of the exported model.")] = Path("exported"),
    format: Annotated[str, typer.Option(help="onnx, the only one so far.")] = "onnx",
    pictures: Annotated[
        Path | None,
        typer.Option(help="A folder of pictures to check with.", show_default="256 of CIFAR-10, if it is here"),
    ] = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Write a model so that it encodes without torch; refused unless its bits are the same."""
    from hashlens.data import open_source
    from hashlens.data.cifar10 import is_cached
    from hashlens.export import export_onnx, require_exportable

    if format != "onnx":
        raise UsageError(f"there is no format '{format}'; onnx is the only one")
    progress = Progress(quiet)
    require_exportable(model, out)
    if pictures is None and not is_cached():
        raise UsageError("the exported model is checked with pictures; give a folder of them with --pictures")
    source = open_source(str(pictures) if pictures else "cifar10", progress=progress.say, labelled=False)
    result = export_onnx(model, out, source.images[:256], progress)
    if as_json:
        print(json.dumps(result))
        return
    speed = result["pictures_per_second"]
    print(
        f"{out}/model.onnx  {result['bytes'] / 1e6:.1f} MB · uint8 RGB pictures of {result['image_size']} pixels a side"
    )
    print(f"check on {result['n_pictures']} pictures: {result['bits_equal']:.3%} of the bits are equal")
    print(f"pictures a second: torch {speed['torch']:.0f}, onnx {speed['onnx']:.0f}")
    print(f"next     hashlens encode path/to/pictures --model {quoted(out)} --out codes")


@app.command()
def search(
    index: INDEX,
    query: Annotated[str, typer.Argument(help="A picture, a folder of them, - for one on standard input, or a code.")],
    k: Annotated[int | None, typer.Option("-k", min=1, help="How many.", show_default="10, with --radius all")] = None,
    radius: Annotated[int | None, typer.Option(min=0, help="All pictures at most so many bits away.")] = None,
    label: Annotated[str | None, typer.Option(help="Only pictures that have this label.")] = None,
    model: MODEL = None,
    engine: ENGINE = None,
    at: AT = None,
    collection: COLLECTION = None,
    html: Annotated[Path | None, typer.Option(help="Write the results with small pictures to this file.")] = None,
    pictures: PICTURES = None,
    as_json: JSON = False,
) -> None:
    """Find the nearest pictures of an index. With --json a folder gives one object a line."""
    from hashlens.search import UnreadablePicture, open_searcher
    from hashlens.search.answers import describe_answer, write_page
    from hashlens.search.queries import is_folder, queries
    from hashlens.thumbnails import Pictures

    if html is not None:
        require_kind(html, PAGE, "page")
    searcher = open_searcher(index, model, engine=_engine(index, engine, at, collection))
    small = None if html is None else Pictures(searcher.index, pictures)
    searcher.warm_up()  # so that the times are those of searching, not of compiling
    answers, n_read = [], 0
    for name, asked in queries(query):
        try:
            answer = searcher.search(asked, k, radius, label)
        except UnreadablePicture as error:
            if not is_folder(query):
                raise
            print(f"skipped: {error.message}", file=sys.stderr)
            continue
        n_read += 1
        print(json.dumps({"name": name, **answer}) if as_json else describe_answer(name, answer))
        if small is not None:
            answers.append((name, asked, answer))
    if not n_read:
        raise UnreadablePicture(f"no picture in {query} can be read; give another folder")
    if html is not None and small is not None:
        n_missing = write_page(html, answers, small)
        print(f"page     {html}", file=sys.stderr)
        if n_missing:
            print(
                f"note: {n_missing:,} pictures are not shown: they are not below {small.base}, or cannot be read;"
                " --pictures says where their paths start",
                file=sys.stderr,
            )


@app.command()
def serve(
    index: INDEX,
    model: MODEL = None,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 lets the network in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="If it is taken, the next free one is used.")] = 8000,
    max_upload: Annotated[float, typer.Option(min=0.001, max=1_000_000, help="Megabytes of one picture.")] = 20,
    pictures: PICTURES = None,
    engine: ENGINE = None,
    at: AT = None,
    collection: COLLECTION = None,
) -> None:
    """Open the search page and its HTTP interface on this machine."""
    from hashlens.search import open_searcher
    from hashlens.server.app import Limits
    from hashlens.server.serving import serve as serve_until_stopped

    serve_until_stopped(
        open_searcher(index, model, engine=_engine(index, engine, at, collection)),
        host,
        port,
        limits=Limits(max_upload=int(max_upload * 1e6)),
        pictures=pictures,
        say=Progress().say,
        ready=lambda line: print(line, flush=True),
    )


def _engine(index: Path, name: str | None, at: str | None, collection: str | None) -> Engine | None:
    """Where to search, if not in the folder itself."""
    from hashlens.index.engines import open_engine
    from hashlens.index.folder import IndexFolder

    if name is None:
        if at is not None or collection is not None:
            raise UsageError("--at and --collection belong to an engine; say which with --engine")
        return None
    engine = open_engine(name, IndexFolder.open(index).n_bits, at or "", collection=collection)
    if not len(engine):
        raise UsageError(
            f"the engine {name} has no codes there; copy them with: hashlens index copy {quoted(index)} --engine {name}"
            f" --to {without_secrets(at or '')}"
        )
    return engine
