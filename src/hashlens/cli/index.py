"""The commands of the index: build, add, remove, sync, promote, compact, tables, verify, repair, copy, plan."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from hashlens.cli.options import JSON, QUIET, numbers, show
from hashlens.cli.search import SET
from hashlens.errors import UsageError
from hashlens.files import quoted, without_secrets
from hashlens.index import ENGINES, NEAREST, SERVERS, TRIED
from hashlens.progress import Progress, counted

if TYPE_CHECKING:
    from hashlens.codes.folder import CodesFolder
    from hashlens.index.engines.server import Engine
    from hashlens.index.folder import IndexFolder

app = typer.Typer()
index_app = typer.Typer(help="Build and maintain an index.", no_args_is_help=True)
app.add_typer(index_app, name="index")

INDEX = Annotated[Path, Argument(help="Folder of the index.")]
PERHAPS = Annotated[Path | None, Argument(help="Folder of the index; omitted with --engine.", show_default=False)]
CODES = Annotated[list[str], Argument(help="Folders of codes (made by hashlens encode) or of runs, or addresses.")]
ENGINE = Annotated[
    str | None, Option(help=f"Keep the index on a server, {' or '.join(SERVERS)}, instead of in a folder.")
]
AT = Annotated[str | None, Option(help="; ".join(f"{name}: {ENGINES[name][1]}" for name in SERVERS))]
SHARDS = Annotated[
    int | None, Option(min=1, help="For a new Milvus collection: number of shards, which share the writes.")
]
REPLICAS = Annotated[int | None, Option(min=1, help="For a Milvus collection: number of replicas in memory.")]
KIND = Annotated[
    str | None, Option("--index", help="How the server searches: flat (exact), hnsw (pgvector) or ivf (milvus).")
]


@index_app.command()
def build(
    codes: CODES,
    out: Annotated[Path, Option(help="Folder of the new index.")] = Path("index"),
    radius_tables: Annotated[
        bool, Option("--radius-tables", help="Write tables that make search by radius faster.")
    ] = False,
    first_only: Annotated[
        bool, Option("--first-only", help="Leave out second codes: 16 bytes less per image.")
    ] = False,
    engine: ENGINE = None,
    at: AT = None,
    settings: SET = None,
    shards: SHARDS = None,
    replicas: REPLICAS = None,
    kind: KIND = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Build an index from codes, in a folder or on a server. Rerun the same command to resume."""
    from hashlens.codes.folder import open_together
    from hashlens.index.folder import IndexFolder

    folders = open_together(codes)
    if engine is not None:
        if radius_tables:
            raise UsageError("radius tables are for an index folder; omit --radius-tables")
        first = folders[0]
        new = {"n_bits": first.n_bits, "model": first.model}
        new["second_bits"] = 0 if first_only else first.second_bits
        with _server(engine, at, _settings(settings, shards, replicas), **new) as there:
            _add(there, folders, False, Progress(quiet), as_json, _place(engine, at, settings), kind)
        return
    _refuse_settings(at, settings, shards, replicas, kind)
    if (out / "index.json").exists():
        index = _open(out, to_add=True)
        if radius_tables:
            index.set_radius_tables(True)
    else:
        first, tables = folders[0], radius_tables
        second_bits = 0 if first_only else first.second_bits
        index = IndexFolder.create(out, first.n_bits, first.model, second_bits=second_bits, radius_tables=tables)
    _add(index, folders, False, Progress(quiet), as_json, quoted(index.path))


@index_app.command()
def add(
    places: Annotated[
        list[str],
        Argument(
            metavar="INDEX CODES...",
            help="Folder of the index (omitted with --engine); then folders of codes (made by hashlens encode) or of"
            " runs, or addresses.",
        ),
    ],
    again: Annotated[bool, Option("--again", help="Also add images that were removed from the index.")] = False,
    engine: ENGINE = None,
    at: AT = None,
    settings: SET = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Add codes to an index. Images that it already has (same path and code), or that were removed, are skipped."""
    from hashlens.codes.folder import open_together

    progress = Progress(quiet)
    if engine is not None:
        folders = open_together(places)
        with _server(engine, at, settings) as there:
            _add(there, folders, again, progress, as_json, _place(engine, at, settings))
        return
    _refuse_settings(at, settings)
    index, codes = Path(places[0]), places[1:]
    if not codes:
        raise UsageError(f"no codes to add to {index}; give their folder after the folder of the index")
    _add(_open(index, to_add=True), open_together(codes), again, progress, as_json, quoted(index))


def _add(
    index: IndexFolder | Engine,
    folders: list[CodesFolder],
    again: bool,
    progress: Progress,
    as_json: bool,
    place: str,
    kind: str | None = None,
) -> None:
    from hashlens.codes.folder import shards_in_order
    from hashlens.codes.model import ModelFolder

    ModelFolder.require_same(index.model, folders[0].model, index.path)
    added = 0
    shards = shards_in_order(folders)
    with progress.bar("codes", sum(shard.n for shard in shards)) as advance:
        for shard in shards:
            codes_of, items = shard.load()
            added += len(index.add(codes_of, items, only_new=True, again=again, trees=False))
            advance(shard.n)
    known = sum(shard.n for shard in shards) - added
    others = f", {known:,} were there already or had been removed" if known else ""
    found: dict[str, Any] = {"added": added, "n": len(index), "n_bits": index.n_bits, "index": str(index.path)}
    found |= _finish(index, kind)
    show(
        found,
        as_json,
        f"{counted(added, 'code')} added to {index.path}{others}",
        f"{counted(len(index), 'image')} of {counted(index.n_bits, 'bit')}",
        _recall(found),
        f"next     hashlens search {f'image.jpg {place}' if place.startswith('-') else f'{place} image.jpg'}",
    )


def _finish(index: IndexFolder | Engine, kind: str | None) -> dict[str, Any]:
    """What an addition ends with: trees, or the index of the server, whose recall is measured."""
    from hashlens.index.folder import IndexFolder

    if isinstance(index, IndexFolder):
        index.build_trees()
        return {}
    index.flush()
    if kind is not None:
        return index.set_index(kind)
    return {} if index.exact else {"index_kind": index.kind, "recall": index.recall()}


def _recall(found: dict[str, Any]) -> str:
    recall = found.get("recall")
    if recall is None:
        return ""
    return (
        f"{found['index_kind']} finds {recall:.1%} of the {NEAREST} nearest, measured with up to {TRIED} of its"
        " images as queries"
    )


@index_app.command()
def remove(
    index: PERHAPS = None,
    ids: Annotated[str | None, Option(help="Comma-separated ids.")] = None,
    path: Annotated[str | None, Option(help="All images whose path matches a pattern, in quotes: '*/cache/*'.")] = None,
    label: Annotated[str | None, Option(help="All images with this label.")] = None,
    engine: ENGINE = None,
    at: AT = None,
    settings: SET = None,
    as_json: JSON = False,
) -> None:
    """Remove images from an index by id, path or label; their files are not touched."""
    if (ids is not None) + (path is not None) + (label is not None) != 1:
        raise UsageError("give exactly one of --ids, --path and --label")
    with _opened(index, engine, at, settings) as there:
        if ids is not None:
            n = there.remove(numbers(ids, "--ids"))
        else:
            n = there.remove(there.ids_like(path) if path is not None else there.ids_with(label or ""))
        _show(there, as_json, f"removed {n:,}, {len(there):,} left in {there.path}", removed=n)


@index_app.command()
def compact(index: INDEX, as_json: JSON = False) -> None:
    """Reclaim the space of removed images and join small parts; ids stay the same."""
    folder = _open(index)
    n = folder.compact()
    _show(folder, as_json, f"reclaimed {n:,}, {len(folder):,} left in {index}", reclaimed=n)


@index_app.command("sync")
def sync_(
    places: Annotated[
        list[str],
        Argument(
            metavar="INDEX SOURCE",
            help="Folder of the index (omitted with --engine); then the images that it should hold: a folder, a list or"
            " a tar file.",
        ),
    ],
    model: Annotated[Path | None, Option(help="Model that made the codes, if the index cannot find it.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only count what has changed.")] = False,
    engine: ENGINE = None,
    at: AT = None,
    settings: SET = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Bring an index up to date with its images: encode new and changed ones, remove deleted ones.

    An image that was removed from the index but is still in the source comes back.
    """
    from functools import cache

    from hashlens.data.sources import open_source
    from hashlens.index.changes import find_changes, sync
    from hashlens.search import find_encoder

    if len(places) != (2 if engine is None else 1):
        raise UsageError("give the folder of the index and its images; with --engine, the images alone")
    index = None if engine else Path(places[0])
    progress = Progress(quiet)
    with _opened(index, engine, at, settings) as there:
        opened = open_source(places[-1], labels="optional", progress=progress.say)
        changes = find_changes(there, opened)
        if dry_run:
            found = changes.counted()
        else:
            encoder = cache(lambda: find_encoder(there, model))
            with progress.bar("images", len(changes.added) + len(changes.changed)) as advance:
                found = sync(there, opened, encoder, advance=advance, changes=changes)
        said = ", ".join(f"{n:,} {name}" for name, n in found.items())
        _show(there, as_json, f"{'to do: ' if dry_run else ''}{said}; {len(there):,} in {there.path}", **found)


@index_app.command()
def promote(
    new: Annotated[Path, Argument(help="Folder of the new index, perhaps of another model.")],
    index: Annotated[Path, Argument(help="Folder of the index in use.")],
    as_json: JSON = False,
) -> None:
    """Replace an index by a new one in one step; a running server goes on answering."""
    from hashlens.codes.model import ModelFolder

    if new.resolve() == index.resolve():
        raise UsageError(f"{new} and {index} are the same folder; give the new index, then the one in use")
    candidate, folder = _open(new), _open(index)
    candidate.verify()
    ModelFolder.find(candidate.model, index)  # a server that has the index open must find it too
    folder.promote(candidate)
    _show(folder, as_json, f"{index} now holds the {len(folder):,} images of {new}, which can be deleted")


@index_app.command()
def tables(
    index: INDEX,
    drop: Annotated[bool, Option("--drop", help="Delete the tables instead.")] = False,
    as_json: JSON = False,
) -> None:
    """Write tables that make search with a small --radius faster; later additions get them too."""
    folder = _open(index)
    folder.set_radius_tables(not drop)
    _show(folder, as_json, f"radius tables of {index} {'deleted' if drop else 'written'}", radius_tables=not drop)


@index_app.command()
def verify(index: INDEX, as_json: JSON = False) -> None:
    """Compare every file of an index with its checksum."""
    folder = _open(index)
    n = folder.verify()
    _show(folder, as_json, f"intact: {counted(n, 'file')}, {counted(len(folder), 'image')}", files=n)


@index_app.command("repair")
def repair_(
    index: INDEX,
    codes: Annotated[
        list[Path] | None, Option(help="Folder of the codes that the index was built from; may be repeated.")
    ] = None,
    model: Annotated[
        Path | None, Option(help="Model to encode images again with, if the index cannot find it.")
    ] = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Restore damaged files of an index from copies, from codes, or by encoding the images again."""
    from hashlens.index.repair import repair

    found = repair(index, codes or (), model, Progress(quiet))
    lost = (
        f"{counted(found['lost'], 'image')} could not be restored; they are no longer in the index"
        if found["lost"]
        else ""
    )
    sentence = f"repaired: {', '.join(found['repaired'])}" if found["repaired"] else "nothing is damaged"
    second = "second codes could not be restored: searches now use the first code only" if found["second_lost"] else ""
    show(found, as_json, sentence, lost, second, f"next     hashlens index verify {quoted(index)}")


def _open(path: Path, *, to_add: bool = False) -> IndexFolder:
    from hashlens.index.folder import IndexFolder

    return IndexFolder.open(path, to_add=to_add)


@contextmanager
def _server(engine: str, at: str | None, settings: list[str] | None, **new: Any) -> Iterator[Engine]:
    from hashlens.index.engines import open_server

    with closing(open_server(engine, at, settings or (), **new)) as there:
        yield there


@contextmanager
def _opened(
    index: Path | None, engine: str | None, at: str | None, settings: list[str] | None
) -> Iterator[IndexFolder | Engine]:
    """The index in a folder or on a server."""
    if engine is None:
        _refuse_settings(at, settings)
        if index is None:
            raise UsageError("name the folder of the index, or a server with --engine and --at")
        yield _open(index)
        return
    if index is not None:
        raise UsageError(f"the engine {engine} holds the whole index; omit {index}")
    with _server(engine, at, settings) as there:
        yield there


def _refuse_settings(at: str | None, *settings: Any) -> None:
    if at is not None or any(one is not None for one in settings):
        raise UsageError("--at, --set, --shards, --replicas and --index are for a server; choose one with --engine")


def _settings(settings: list[str] | None, shards: int | None, replicas: int | None) -> list[str]:
    more = {"shards": shards, "replicas": replicas}
    return [*(settings or ()), *(f"{name}={value}" for name, value in more.items() if value is not None)]


def _place(engine: str, at: str | None, settings: list[str] | None) -> str:
    """Of a server, as the next command names it."""
    named = "".join(f" --set {quoted(one)}" for one in settings or ())
    return f"--engine {engine} --at {without_secrets(at or '')}{named}"


def _show(folder: IndexFolder | Engine, as_json: bool, sentence: str, **facts: Any) -> None:
    show(facts | {"n": len(folder), "index": str(folder.path)}, as_json, sentence)


@index_app.command()
def copy(
    index: INDEX,
    engine: Annotated[str, Option(help=f"One of {', '.join(ENGINES)}.")],
    at: Annotated[
        str, Option("--at", "--to", help="; ".join(f"{name}: {place}" for name, (_, place) in ENGINES.items()))
    ],
    settings: SET = None,
    shards: SHARDS = None,
    replicas: REPLICAS = None,
    kind: KIND = None,
    verify: Annotated[
        bool, Option("--verify", help="Compare every code afterwards, instead of a few while copying.")
    ] = False,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Copy an index to a search engine: all of it to a server, codes and ids to faiss. Rerun to resume."""
    from hashlens.index.engines import copy_index, open_engine, verify_copy
    from hashlens.index.engines.server import Engine

    folder = _open(index)
    new: dict[str, Any] = {"second_bits": folder.second_bits, "model": folder.model}
    with closing(open_engine(engine, folder.n_bits, at, _settings(settings, shards, replicas), **new)) as there:
        result: dict[str, Any] = {**copy_index(folder, there, Progress(quiet))}
        if verify:
            result |= verify_copy(folder, there, Progress(quiet))
        if isinstance(there, Engine):
            result |= _finish(there, kind)
        elif kind is not None:
            raise UsageError(f"--index is for {' and '.join(SERVERS)}; omit it")
    known = f", {result['known']:,} were already there" if result["known"] else ""
    more = result["n"] - len(folder)
    place = _place(engine, at, settings)
    show(
        result | {"n_bits": folder.n_bits, "engine": engine, "index": str(index)},
        as_json,
        f"{counted(result['added'], 'code')} copied to {engine}{known}",
        f"{counted(len(folder), 'code')} compared: all are the same" if verify else "",
        f"{engine} still has codes that were removed from {index}: {more:,}" if more > 0 else "",
        _recall(result),
        f"next     hashlens search {'' if engine in SERVERS else f'{quoted(index)} '}image.jpg {place}",
    )


@index_app.command("plan")
def plan_(
    n: Annotated[str, Option(help="Number of images, such as 1000000 or 1e9.")],
    bits: Annotated[int, Option(help="Length of the codes.")] = 48,
    second_bits: Annotated[int, Option(help="Length of the second codes; 0: none.")] = 128,
    as_json: JSON = False,
) -> None:
    """Show what an index of a given size costs in a folder and in each engine: memory, disk, time, machines."""
    from hashlens.index.plan import describe_plan, plan

    try:
        number = float(n)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise UsageError(f"--n must be a whole number such as 1000000 or 1e9, got {n}")
    found = plan(int(number), bits, second_bits)
    show(found, as_json, describe_plan(found))
