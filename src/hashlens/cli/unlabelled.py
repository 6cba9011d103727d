"""The commands for images without labels: duplicates, groups, refine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from hashlens.cli.options import JSON, QUIET, interruptible, show
from hashlens.cli.search import IMAGES, INDEX, KEPT, MODEL, PAGE
from hashlens.errors import require
from hashlens.files import quoted, require_kind
from hashlens.progress import Progress, counted

app = typer.Typer()


class FindByDefault(typer.core.TyperGroup):
    """`duplicates SOURCE` means `duplicates find SOURCE`, and `duplicates --help` explains that."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["find", *args]
        return super().parse_args(ctx, args)


duplicates = typer.Typer(cls=FindByDefault)
app.add_typer(
    duplicates,
    name="duplicates",
    help="Find identical files, copies and look-alikes: hashlens duplicates SOURCE",
)

HTML = Annotated[Path | None, Option(help="Write a page with thumbnails to this file.")]
TABLE_HEAD = b"group,kind,keep"
LABELS_HEAD = b"path,label"


@duplicates.command()
def find(
    source: INDEX,
    against: Annotated[
        str | None, Option(help="Other images: find only their duplicates in SOURCE; these images are never moved.")
    ] = None,
    radius: Annotated[
        int | None,
        Option(min=-1, help="Maximum Hamming distance of look-alikes; -1: none.", show_default="a seventh of the bits"),
    ] = None,
    html: HTML = None,
    csv: Annotated[Path | None, Option("--csv", help="Write a table of all groups to this file.")] = None,
    move_to: Annotated[
        Path | None,
        Option(help="Move identical files and copies to this folder, all but those to keep; undo brings them back."),
    ] = None,
    model: MODEL = None,
    kept: KEPT = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Find identical files, copies and look-alikes, and suggest which image to keep. Nothing is ever deleted.

    `duplicates SOURCE` is short for `duplicates find SOURCE`.
    `duplicates ignore GROUP` remembers that the images of a group are not duplicates.
    `duplicates undo LIST` brings back what --move-to moved.
    """
    from hashlens.duplicates.find import describe, find_duplicates
    from hashlens.duplicates.move import move_duplicates, require_outside
    from hashlens.duplicates.page import write_page, write_table

    if html is not None:
        require("jinja2", why="--html")
        require_kind(html, PAGE, "page")
    if csv is not None:
        require_kind(csv, TABLE_HEAD, "table of duplicates")
    if move_to is not None:
        require_outside(move_to, source, *([against] if against else []))
    say = Progress(quiet)
    with interruptible() as stop:
        result = find_duplicates(source, model, against=against, radius=radius, at=kept, progress=say, stop=stop)
        if html is not None:
            write_page(html, result)
        if csv is not None:
            write_table(csv, result.groups)
        found, lines = result.to_dict(), [describe(result)]
        if move_to is not None:
            moved = move_duplicates(result, move_to, stop)
            found["moved"] = {
                "list": str(moved.listed),
                "paths": moved.paths,
                "videos": moved.videos,
                "left": moved.left,
            }
            videos = f" and {counted(len(moved.videos), 'video')} of live photos" if moved.videos else ""
            lines += [f"\nmoved    {counted(len(moved.paths), 'image')}{videos} to {move_to}"]
            lines += [f"left     {path}: {why}" for path, why in moved.left]
            lines += [f"undo     hashlens duplicates undo {quoted(moved.listed)}"]
    show(found, as_json, *lines)
    for what, file in (("page", html), ("table", csv)):
        if file is not None:
            say.say(f"{what:<8} {file}")
    if html is None and move_to is None and result.groups and not as_json:
        say.say(f"next     hashlens duplicates {quoted(source)} --html duplicates.html")


@duplicates.command()
def ignore(
    groups: Annotated[list[str], Argument(metavar="GROUP...", help="Names of groups, such as 3f9a1c20.")],
    as_json: JSON = False,
) -> None:
    """Remember that the images of these groups are not duplicates: they are no longer listed."""
    from hashlens.duplicates.find import ignore as ignore_groups

    n = ignore_groups(groups)
    show({"ignored": groups, "total": n}, as_json, f"ignored  {counted(len(groups), 'group')}; {n:,} in all")


@duplicates.command()
def undo(
    listed: Annotated[Path, Argument(metavar="LIST", help="The list that --move-to wrote.")],
    as_json: JSON = False,
) -> None:
    """Move all files of a list back to where they were."""
    from hashlens.duplicates.move import undo as undo_moves

    restored, left = undo_moves(listed)
    lines = [f"restored {counted(restored, 'file')}", *(f"left     {path}: {why}" for path, why in left)]
    show({"restored": restored, "left": [list(entry) for entry in left]}, as_json, *lines)
    if left:
        raise typer.Exit(3)


@app.command()
def groups(
    source: INDEX,
    n: Annotated[
        int | None, Option("--n", min=1, help="Number of groups.", show_default="root of half the images, at most 64")
    ] = None,
    html: HTML = None,
    csv: Annotated[
        Path | None, Option("--csv", help="Write paths and groups to this table, which train takes as labels.")
    ] = None,
    model: MODEL = None,
    kept: KEPT = None,
    seed: Annotated[int, Option(min=0, help="Seed of the clustering.")] = 0,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Sort images without labels into groups that look alike. Correct the table that --csv writes, then train on it."""
    require("sklearn", why="groups")
    from hashlens.groups import find_groups, write_labels, write_page

    if html is not None:
        require("jinja2", why="--html")
        require_kind(html, PAGE, "page")
    if csv is not None:
        require_kind(csv, LABELS_HEAD, "table of paths and labels")
    say = Progress(quiet)
    with interruptible() as stop:
        found = find_groups(source, n, model, seed=seed, at=kept, progress=say, stop=stop)
    if html is not None:
        write_page(html, found)
    if csv is not None:
        write_labels(csv, found)
    how = "; --n sets their number" if found.chosen else ""
    lines = [f"{source}  {counted(found.n_images, 'image')} in {counted(len(found.groups), 'group')}{how}"]
    lines += [f"  {found.name(number)}  {len(paths):>7,}  {paths[0]}" for number, paths in enumerate(found.groups)]
    show(found.to_dict(), as_json, *lines)
    for what, file in (("page", html), ("table", csv)):
        if file is not None:
            say.say(f"{what:<8} {file}")
    if csv is not None:
        say.say(f"next     correct the labels in {csv}, then: hashlens train {quoted(csv)}")
    else:
        say.say(f"next     hashlens groups {quoted(source)} --html groups.html --csv groups.csv")


@app.command()
def refine(
    source: INDEX,
    undo: Annotated[
        bool,
        Option("--undo", help="Go back to the codes from before all clicks; the clicks are kept.", show_default=False),
    ] = False,
    model: MODEL = None,
    images: IMAGES = None,
    kept: KEPT = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Learn from clicks: results that were marked "more like this" and "less like this" on the page of serve.

    Only the hash layer learns, with DTSH's loss on the clicks; where they say nothing, distances stay as they were.
    Each click is held out in turn, and the codes are replaced only if the new ones agree better with held-out clicks.
    """
    from hashlens.clicks.refine import refine as learn

    with interruptible() as stop:
        found = learn(source, model, undo=undo, at=kept, images=images, progress=Progress(quiet), stop=stop)
    after = ""
    if found.changed:
        again = f"hashlens refine {quoted(source)}" + (f" --index {quoted(kept)}" if kept else "")
        after = f"next     {again}" if undo else f"undo     {again} --undo"
    show(found.to_dict(), as_json, found.sentence, after)
