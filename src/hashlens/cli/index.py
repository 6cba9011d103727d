"""The commands of the index: build, add, remove, compact, verify, copy, plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hashlens.cli.options import JSON, QUIET, without_secrets
from hashlens.errors import UsageError
from hashlens.files import quoted
from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.index.folder import IndexFolder

app = typer.Typer()
index_app = typer.Typer(help="Make codes searchable, and keep them so.", no_args_is_help=True)
app.add_typer(index_app, name="index")

INDEX = Annotated[Path, typer.Argument(help="Folder of the index.")]
CODES = Annotated[list[Path], typer.Argument(help="Folders of codes that hashlens encode wrote.")]


@index_app.command()
def build(
    codes: CODES,
    out: Annotated[Path, typer.Option(help="Folder of the new index.")] = Path("index"),
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Make an index of codes. Stopped or killed, the same command goes on."""
    from hashlens.index.folder import IndexFolder
    from hashlens.shards import open_together

    folders = open_together(codes)
    if (out / "index.json").exists():
        index = IndexFolder.open(out)
    else:
        index = IndexFolder.create(out, folders[0].n_bits, folders[0].model)
    _add(index, codes, False, Progress(quiet), as_json)


@index_app.command()
def add(
    index: INDEX,
    codes: CODES,
    again: Annotated[bool, typer.Option("--again", help="Add also what was removed from the index.")] = False,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Add codes to an index; pictures that are in it, with the same path and code, or were removed, are left out."""
    from hashlens.index.folder import IndexFolder

    _add(IndexFolder.open(index), codes, again, Progress(quiet), as_json)


def _add(index: IndexFolder, codes: list[Path], again: bool, progress: Progress, as_json: bool) -> None:
    from hashlens.shards import open_together, require_complete, shards_in_order

    folders = open_together(codes)
    require_complete(folders)
    index.require_model(folders[0].model["fingerprint"])
    added = 0
    shards = shards_in_order(folders)
    with progress.bar("codes", sum(shard.n for shard in shards)) as advance:
        for shard in shards:
            shard.require_whole()
            codes_of, items = shard.load()
            added += len(index.add(codes_of, items, only_new=True, again=again))
            advance(shard.n)
    result = {"added": added, "n": len(index), "n_bits": index.n_bits, "index": str(index.path)}
    if as_json:
        print(json.dumps(result))
        return
    known = sum(shard.n for shard in shards) - added
    why = "were there already" if again or not index.has_removed else "were there already or had been removed"
    print(f"{added:,} codes added to {index.path}" + (f", {known:,} {why}" if known else ""))
    print(f"{len(index):,} pictures of {index.n_bits} bits\nnext     hashlens search {quoted(index.path)} picture.jpg")


@index_app.command()
def remove(
    index: INDEX,
    ids: Annotated[str | None, typer.Option(help="Between commas.")] = None,
    path: Annotated[str | None, typer.Option(help="A pattern such as '*/cache/*'; quote it.")] = None,
    label: Annotated[str | None, typer.Option(help="All pictures that have this label.")] = None,
    as_json: JSON = False,
) -> None:
    """Remove pictures from an index by id, path or label; their files are not touched."""
    from hashlens.index.folder import IndexFolder

    if (ids is not None) + (path is not None) + (label is not None) != 1:
        raise UsageError("say which to remove by one of --ids, --path and --label")
    folder = IndexFolder.open(index)
    wanted: Any
    if ids is not None:
        wanted = _numbers(ids)
    else:
        wanted = folder.ids_like(path) if path is not None else folder.ids_with(label or "")
    result = {"removed": folder.remove(wanted), "n": len(folder), "index": str(index)}
    print(json.dumps(result) if as_json else f"{result['removed']:,} removed, {len(folder):,} left in {index}")


@index_app.command()
def compact(index: INDEX, as_json: JSON = False) -> None:
    """Give back the room of removed pictures and join small parts; ids stay the same."""
    from hashlens.index.folder import IndexFolder

    folder = IndexFolder.open(index)
    result = {"reclaimed": folder.compact(), "n": len(folder), "index": str(index)}
    print(
        json.dumps(result) if as_json else f"the room of {result['reclaimed']:,} pictures is free, {len(folder):,} left"
    )


@index_app.command()
def verify(index: INDEX, as_json: JSON = False) -> None:
    """Compare every file of an index with its checksum."""
    from hashlens.index.folder import IndexFolder

    folder = IndexFolder.open(index)
    result = {"files": folder.verify(), "n": len(folder), "index": str(index)}
    print(
        json.dumps(result)
        if as_json
        else f"{result['files']:,} files are as they were written, {len(folder):,} pictures"
    )


@index_app.command()
def copy(
    index: INDEX,
    engine: Annotated[str, typer.Option(help="milvus, pgvector or faiss (approximate).")],
    to: Annotated[str, typer.Option(help="Its address, connection or folder.")],
    collection: Annotated[str | None, typer.Option(help="One of several in the same milvus or pgvector.")] = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Copy the codes and ids of an index to a search engine. Stopped or killed, the same command goes on."""
    from contextlib import closing

    from hashlens.index.engines import copy_index, open_engine
    from hashlens.index.folder import IndexFolder

    folder = IndexFolder.open(index)
    with closing(open_engine(engine, folder.n_bits, to, collection=collection)) as there:
        result = copy_index(folder, there, Progress(quiet))
    if as_json:
        print(json.dumps(result | {"n_bits": folder.n_bits, "engine": engine, "index": str(index)}))
        return
    known = f", {result['known']:,} were there already" if result["known"] else ""
    print(f"{result['added']:,} codes copied to {engine}{known}")
    if result["n"] > len(folder):
        print(f"{result['n'] - len(folder):,} that are no longer in {index} are still there")
    place = f"--engine {engine} --at {without_secrets(to)}"
    place += f" --collection {quoted(collection)}" if collection else ""
    print(f"next     hashlens search {quoted(index)} picture.jpg {place}")


@index_app.command("plan")
def plan_(
    n: Annotated[str, typer.Option(help="Number of pictures, such as 1000000 or 1e9.")],
    bits: Annotated[int, typer.Option(help="Length of the codes.")] = 48,
    as_json: JSON = False,
) -> None:
    """Tell what an index of that size needs before any work is done."""
    from hashlens.index.plan import describe_plan, plan

    try:
        number = int(float(n))
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--n takes a number such as 1000000 or 1e9, not {n}") from error
    found = plan(number, bits)
    print(json.dumps(found) if as_json else describe_plan(found))


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isascii() and word.isdigit() and len(word) < 19 for word in words):
        raise UsageError(f"--ids takes whole numbers between commas, such as 3,17, not {text}")
    return [int(word) for word in words]
