"""The commands that search: search, serve."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from hashlens.cli.options import JSON, QUIET, interruptible
from hashlens.data.formats import EXTENSIONS
from hashlens.data.sources import KINDS
from hashlens.errors import UsageError
from hashlens.files import quoted, require_kind
from hashlens.index import ENGINES, SERVERS
from hashlens.progress import Progress

app = typer.Typer()

INDEX_HELP = f"Folder of an index, codes or a run; or images: {KINDS}."
INDEX = Annotated[str, Argument(help=INDEX_HELP)]
MODEL = Annotated[
    Path | None,
    Option(help="Folder of a model or exported model, or general.", show_default="the index's; for images, general"),
]
KEPT = Annotated[
    Path | None,
    Option(
        "--index",
        help="If the first argument is images: folder to keep their codes in.",
        show_default="in the user's cache",
    ),
]
IMAGES = Annotated[
    Path | None,
    Option(exists=True, file_okay=False, help="Folder of the images, if they moved.", show_default="as in the index"),
]
ENGINE = Annotated[str | None, Option(help=f"Search in {', '.join(ENGINES)}; see: hashlens index build, index copy")]
AT = Annotated[str | None, Option(help="Address, connection or folder of the engine.")]
SET = Annotated[
    list[str] | None, Option("--set", metavar="NAME=VALUE", help="Setting of the engine, such as n_probe=32.")
]
ACCESS: dict[str, Any] = {"rich_help_panel": "Access"}
LIMITS: dict[str, Any] = {"rich_help_panel": "Limits"}
PAGE = b"<!doctype html"  # how a page begins


@app.command()
def search(
    index: Annotated[
        str, Argument(help=f"{INDEX_HELP} Omitted with --engine {' or '.join(SERVERS)}.", show_default=False)
    ],
    query: Annotated[
        str | None,
        Argument(
            help="A code, or any SOURCE of images, such as query.jpg; see: hashlens encode -h", show_default=False
        ),
    ] = None,
    k: Annotated[int | None, Option("-k", min=1, help="Number of hits.", show_default="10, with --radius all")] = None,
    radius: Annotated[int | None, Option(min=0, help="Maximum Hamming distance.")] = None,
    label: Annotated[str | None, Option(help="Search only images with this label.")] = None,
    by: Annotated[
        str | None,
        Option(
            help="first: the first code; both: ties ordered by the second code; second: the second code alone, for"
            " unseen classes.",
            show_default="both where there are second codes, else first",
        ),
    ] = None,
    model: MODEL = None,
    engine: ENGINE = None,
    at: AT = None,
    settings: SET = None,
    html: Annotated[Path | None, Option(help="Write a page with thumbnails of the results to this file.")] = None,
    images: IMAGES = None,
    kept: KEPT = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Find the nearest images of an index, or of a folder or any other source of images.

    The codes of images are kept, and each call updates them. With --json, several queries print one object per line.
    """
    from hashlens.search import UnreadableImage
    from hashlens.search.answers import describe_answer, write_page
    from hashlens.search.opening import open_named
    from hashlens.search.queries import queries

    if html is not None:
        require_kind(html, PAGE, "page")
    named: str | None = index
    if query is None:
        if engine is None:
            raise UsageError(f"say what to search {index} for, such as query.jpg")
        named, query = None, index
    elif Path(index).suffix.lower() in EXTENSIONS and Path(query).is_dir():
        raise UsageError(
            f"{index} is an image and {query} a folder; run: hashlens search {quoted(query)} {quoted(index)}"
        )
    with interruptible() as stop:
        searcher = open_named(named, model, engine, at, settings or (), kept, progress=Progress(quiet), stop=stop)
    with closing(searcher):
        answers, n_read, skipped = [], 0, []
        for name, asked in queries(query, lambda line: print(line, file=sys.stderr)):
            try:
                answer = searcher.search(asked, k, radius, label, histogram=True, by=by)
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
                note = (
                    f"note: missing or unreadable images: {n_missing:,}; if they moved, pass their folder with --images"
                )
                print(note, file=sys.stderr)


@app.command()
def serve(
    index: Annotated[
        str | None, Argument(help=f"{INDEX_HELP} Omitted with --engine {' or '.join(SERVERS)}.", show_default=False)
    ] = None,
    model: MODEL = None,
    host: Annotated[str, Option(help="Address to listen on; 0.0.0.0 accepts remote connections.")] = "127.0.0.1",
    port: Annotated[
        int, Option(min=0, max=65_535, help="Port to listen on; if it is taken, the next free one is used.")
    ] = 8000,
    images: IMAGES = None,
    engine: ENGINE = None,
    at: AT = None,
    settings: SET = None,
    access_log: Annotated[
        str | None, Option(metavar="FILE", help="One line of JSON per request; - for standard output.")
    ] = None,
    token: Annotated[
        list[str] | None, Option(envvar="HASHLENS_TOKEN", help="Secret that clients send to search.", **ACCESS)
    ] = None,
    write_token: Annotated[
        list[str] | None,
        Option(
            envvar="HASHLENS_WRITE_TOKEN",
            help="Secret that clients send to search, add, remove and mark images.",
            **ACCESS,
        ),
    ] = None,
    token_file: Annotated[
        Path | None, Option(help="Tokens, one per line: TOKEN read|write [YYYY-MM-DD].", **ACCESS)
    ] = None,
    allow_anyone: Annotated[
        bool, Option("--allow-anyone", help="Let anyone search, without a token.", **ACCESS)
    ] = False,
    add_to: Annotated[
        Path | None, Option(file_okay=False, help="Folder for images that clients add.", **ACCESS)
    ] = None,
    hostname: Annotated[
        list[str] | None, Option(help="Name by which clients call this server; other names are refused.", **ACCESS)
    ] = None,
    cors: Annotated[
        list[str] | None,
        Option(
            metavar="ORIGIN", help="Another site whose pages may send requests, such as https://a.example.", **ACCESS
        ),
    ] = None,
    proxy: Annotated[
        str | None,
        Option(metavar="ADDRESS", help="Address of a reverse proxy whose X-Forwarded-For is trusted.", **ACCESS),
    ] = None,
    certfile: Annotated[Path | None, Option(help="Certificate for TLS, in PEM format.", **ACCESS)] = None,
    keyfile: Annotated[Path | None, Option(help="Key of the certificate, if it is in another file.", **ACCESS)] = None,
    max_upload: Annotated[float, Option(min=0.001, max=1e6, help="Megabytes per image.", **LIMITS)] = 20,
    max_pixels: Annotated[float, Option(min=0.001, max=1e6, help="Million pixels per image.", **LIMITS)] = 25,
    decode_seconds: Annotated[float, Option(min=0.1, help="Seconds of CPU time to decode an image.", **LIMITS)] = 5,
    max_k: Annotated[int, Option(min=1, help="Results per search.", **LIMITS)] = 1_000,
    timeout: Annotated[float, Option(min=0.001, help="Seconds per request.", **LIMITS)] = 30,
    max_waiting: Annotated[int, Option(min=0, help="Requests waiting for a thread.", **LIMITS)] = 64,
    max_connections: Annotated[int, Option(min=1, help="Connections at once.", **LIMITS)] = 1_000,
    per_address: Annotated[int, Option(min=1, help="Connections, and requests, at once per client.", **LIMITS)] = 100,
    thumbnail_cache: Annotated[float, Option(min=0, help="Megabytes of thumbnails in memory.", **LIMITS)] = 64,
    scrub_seconds: Annotated[
        float, Option(min=0, help="Seconds between checks of the index against its checksums; 0: never.", **LIMITS)
    ] = 600,
    kept: KEPT = None,
) -> None:
    """Serve the search page and its HTTP interface, for an index or for images.

    Clients on other machines need a token.
    """
    from hashlens.server.access import Access, as_tokens
    from hashlens.server.limits import Limits
    from hashlens.server.serving import (
        Named,
        Serving,
        host_names,
        is_loopback,
        listen,
        require_access,
        require_certificate,
    )
    from hashlens.server.supervisor import supervise

    million = 1_000_000
    limits = Limits(
        max_upload=int(max_upload * million),
        max_pixels=int(max_pixels * million),
        decode_seconds=decode_seconds,
        max_k=max_k,
        timeout=timeout,
        max_waiting=max_waiting,
        max_connections=max_connections,
        per_address=per_address,
        thumbnail_cache=int(thumbnail_cache * million),
        scrub_seconds=scrub_seconds,
    )

    def serving() -> Serving:
        """Read again whenever a server process starts: tokens and certificates change."""
        tokens = as_tokens(token or (), write_token or (), token_file)
        names = host_names(host, tuple(hostname or ()))
        alone = is_loopback(host) and not tokens and proxy is None
        access = Access(names, tokens, allow_anyone or not tokens, tuple(cors or ()), anyone_clicks=alone)
        require_access(host, access, allow_anyone)
        require_certificate(certfile, keyfile)
        return Serving(
            host, found, limits, access, images, add_to, certfile, keyfile, proxy=proxy, access_log=access_log
        )

    found = port
    serving()  # refused before anything is opened
    sock, say = listen(host, port), Progress().say
    found = sock.getsockname()[1]
    if found != port and port:
        say(f"port {port} is taken; using {found}")
    if allow_anyone and not is_loopback(host):
        say(f"warning: anyone who can reach {host} may search")
    if images is None and not is_loopback(host):
        say(
            "note: images are shown from the folders that the index names; --images FOLDER shows only images below"
            " FOLDER"
        )
    named = Named(index, model, engine, at, tuple(settings or ()), kept)
    with sock:
        supervise(named, serving, sock, say=say, ready=partial(print, flush=True))
