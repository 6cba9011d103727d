"""The commands that search: search, serve."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from hashlens.cli.options import JSON, QUIET, interruptible, without_secrets
from hashlens.data.sources import SOURCES
from hashlens.errors import UsageError
from hashlens.files import quoted, require_kind
from hashlens.index import ENGINES
from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.search import Searcher

app = typer.Typer()

INDEX = Annotated[
    str, Argument(help=f"Folder of an index, of codes or of a run; or images: {', '.join(SOURCES.values())}.")
]
MODEL = Annotated[
    Path | None,
    Option(
        help="Folder of a model or exported model, or general.", show_default="that of the index; of images, general"
    ),
]
KEPT = Annotated[
    Path | None, Option("--index", help="Of images: folder to keep their codes in.", show_default="in the user's cache")
]
IMAGES = Annotated[
    Path | None,
    Option(exists=True, file_okay=False, help="Folder of the images, if moved.", show_default="as in the index"),
]
ENGINE = Annotated[str | None, Option(help=f"Search in {', '.join(ENGINES)} instead; see: index copy")]
AT = Annotated[str | None, Option(help="Address, connection or folder of the engine.")]
SET = Annotated[
    list[str] | None, Option("--set", metavar="NAME=VALUE", help="Setting of the engine, such as n_probe=32.")
]
LIMITS: dict[str, Any] = {"rich_help_panel": "Limits"}
PAGE = b"<!doctype html"  # how a page begins


@app.command()
def search(
    index: INDEX,
    query: Annotated[str, Argument(help="A code, or any SOURCE of images, such as query.jpg; see: hashlens encode -h")],
    k: Annotated[int | None, Option("-k", min=1, help="Number of hits.", show_default="10, with --radius all")] = None,
    radius: Annotated[int | None, Option(min=0, help="Maximum Hamming distance.")] = None,
    label: Annotated[str | None, Option(help="Search only images with this label.")] = None,
    model: MODEL = None,
    engine: ENGINE = None,
    at: AT = None,
    settings: SET = None,
    html: Annotated[Path | None, Option(help="Write the results with thumbnails to this file.")] = None,
    images: IMAGES = None,
    kept: KEPT = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Find the nearest images of an index, or of a folder or any other source of images.

    The codes of images are kept and brought up to date by each call. With --json, several queries give one object per
    line.
    """
    from hashlens.search import UnreadableImage
    from hashlens.search.answers import describe_answer, write_page
    from hashlens.search.queries import queries

    if html is not None:
        require_kind(html, PAGE, "page")
    searcher = _open(index, model, engine, at, settings, kept, Progress(quiet))
    answers, n_read, skipped = [], 0, []
    for name, asked in queries(query, lambda line: print(line, file=sys.stderr)):
        try:
            answer = searcher.search(asked, k, radius, label)
        except UnreadableImage as error:
            skipped.append(error)
            continue
        n_read += 1
        print(json.dumps({"name": name, **answer}) if as_json else describe_answer(name, answer))
        if html is not None:
            answers.append((name, asked, answer))
    if skipped and not n_read:
        raise skipped[0]
    for unreadable in skipped:
        print(f"skipped: {unreadable.message}", file=sys.stderr)
    if html is not None:
        n_missing = write_page(html, answers, searcher.index, images)
        print(f"page     {html}", file=sys.stderr)
        if n_missing:
            note = f"note: missing or unreadable images: {n_missing:,}; if they moved, give their folder with --images"
            print(note, file=sys.stderr)


@app.command()
def serve(
    index: INDEX,
    model: MODEL = None,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 accepts remote connections.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65_535, help="If it is taken, the next free one is used.")] = 8000,
    images: IMAGES = None,
    engine: ENGINE = None,
    at: AT = None,
    settings: SET = None,
    max_upload: Annotated[float, Option(min=0.001, max=1e6, help="Megabytes per image.", **LIMITS)] = 20,
    max_pixels: Annotated[float, Option(min=0.001, max=1e6, help="Million pixels per image.", **LIMITS)] = 89,
    max_k: Annotated[int, Option(min=1, help="Results per search.", **LIMITS)] = 1_000,
    timeout: Annotated[float, Option(min=0.001, help="Seconds per request.", **LIMITS)] = 30,
    max_waiting: Annotated[int, Option(min=0, help="Requests waiting for a thread.", **LIMITS)] = 64,
    thumbnail_cache: Annotated[float, Option(min=0, help="Megabytes of thumbnails in memory.", **LIMITS)] = 64,
    kept: KEPT = None,
) -> None:
    """Serve the search page and its HTTP interface on this machine, for an index or for images."""
    from hashlens.server.limits import Limits
    from hashlens.server.serving import serve as serve_until_stopped

    million = 1_000_000
    limits = Limits(
        max_upload=int(max_upload * million),
        max_pixels=int(max_pixels * million),
        max_k=max_k,
        timeout=timeout,
        max_waiting=max_waiting,
        thumbnail_cache=int(thumbnail_cache * million),
    )
    progress = Progress()
    searcher = _open(index, model, engine, at, settings, kept, progress)
    ready = partial(print, flush=True)
    serve_until_stopped(searcher, host, port, limits=limits, images=images, say=progress.say, ready=ready)


def _open(
    source: str,
    model: Path | None,
    name: str | None,
    at: str | None,
    settings: list[str] | None,
    kept: Path | None,
    progress: Progress,
) -> Searcher:
    """The index, or that of the images, with its model, and with the engine if one is named."""
    from hashlens.index.engines import open_engine
    from hashlens.search import open_index, open_searcher

    with interruptible() as stop:
        index = open_index(source, model, at=kept, progress=progress, stop=stop)
    if name is None:
        if at is not None or settings:
            raise UsageError("--at and --set are settings of an engine; name it with --engine")
        return open_searcher(index, model)
    engine = open_engine(name, index.n_bits, at or "", settings or ())
    if not len(engine):
        raise UsageError(
            f"the engine {name} has no codes there; copy them with: hashlens index copy {quoted(index.path)} --engine"
            f" {name} --to {without_secrets(at or '')}"
        )
    return open_searcher(index, model, engine=engine)
