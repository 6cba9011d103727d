"""The commands that compare methods: compare, reproduce."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hashlens.cli.options import COLUMN, FROM_FILE, JSON, QUIET, TABLES, given, interruptible, open_source_of
from hashlens.errors import UsageError
from hashlens.files import alone_in, require_own
from hashlens.progress import Progress

app = typer.Typer()


@app.command()
def compare(
    source: Annotated[str, typer.Argument(help="cifar10, digits, a table (.csv) of paths and labels, or a folder.")],
    methods: Annotated[str, typer.Option(help="Between commas; see: hashlens methods")],
    bits: Annotated[str, typer.Option(help="Lengths of the codes, between commas.")] = "12,24,32,48",
    features: Annotated[
        str,
        typer.Option(
            help="For methods on features: gist, deep (efficientnet-lite0), nuswide-1134, or one like resnet50@112."
        ),
    ] = "deep",
    seeds: Annotated[int, typer.Option(help="How many: 0, 1 and so on, of the methods; the split stays.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the comparison.", show_default="comparisons/SOURCE")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="cifar10-1, cifar10-2, nuswide-1 or nuswide-2 (the paper's), mirflickr, unseen, or split."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the split.")] = 0,
    backbone: Annotated[str | None, typer.Option(help="For methods that train a network.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of that backbone, such as imagenet-vgg-f.mat.")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Pixels a side, for those.")] = None,
    frozen_blocks: Annotated[int | None, typer.Option(help="Leading blocks not to train, for the same.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training pictures, for the same.")] = None,
    path_column: COLUMN = None,
    label_column: COLUMN = None,
    split_column: COLUMN = None,
    separator: Annotated[str | None, typer.Option(help="Between the labels of a picture.", **TABLES)] = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Compare methods by MAP, beside printed numbers: tables, plots and a report. What is finished is kept."""
    from hashlens import comparison
    from hashlens.comparison.tables import as_text

    progress, lengths = Progress(quiet), _lengths(bits)
    columns = {"path": path_column, "labels": label_column, "split": split_column, "separator": separator}
    config = {"source": source} | given({"columns": given(columns) or None})
    settings: dict[str, Any] = {
        "backbone": backbone,
        "weights": None if weights is None else str(weights),
        "image_size": image_size,
        "frozen_blocks": frozen_blocks,
    }
    if epochs is not None:
        from hashlens.hashers.deep.training import Training

        settings["training"] = Training(epochs=epochs)
    out = out or Path("comparisons") / Path(source).resolve().name
    require_own(out, ["split.json"], "comparison")
    with alone_in(out), interruptible() as stop:
        result = comparison.compare(
            open_source_of(config, from_file, progress),
            protocol,
            _listed(methods),
            lengths,
            _listed(features),
            seeds,
            out,
            split_seed=seed,
            settings=given(settings),
            commands=[shlex.join(["hashlens", *sys.argv[1:]])],
            progress=progress,
            stop=stop,
        )
    print(json.dumps(result) if as_json else as_text(result))
    if not result["n_finished"]:
        raise typer.Exit(1)
    if not as_json:
        print(f"report   {out / 'report.html'}\ntables   {out}/table.csv, table.md, table.tex")


@app.command()
def reproduce(
    target: Annotated[
        str, typer.Argument(help="table1, table2, table3, alpha, lambda, train-size, examples, port, unseen, or all.")
    ],
    scale: Annotated[
        str, typer.Option(help="smoke: minutes, on digits, to see that it works; small: hours; full: days.")
    ] = "small",
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and pages.")] = Path("repro"),
    methods: Annotated[
        str | None, typer.Option(help="Only these methods of the tables, between commas: they take time.")
    ] = None,
    bits: Annotated[str | None, typer.Option(help="Other lengths for the tables, between commas.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Another number of seeds.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Other passes over the training pictures.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Of all methods that train a network.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of that backbone, such as imagenet-vgg-f.mat.")] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Pixels a side, for the same.")] = None,
    frozen_blocks: Annotated[int | None, typer.Option(help="Leading blocks not to train, for the same.")] = None,
    nuswide: Annotated[Path | None, typer.Option(help="Folder of NUS-WIDE as published.")] = None,
    mirflickr: Annotated[Path | None, typer.Option(help="Folder of MIRFLICKR-25K, which stands in for it.")] = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Rebuild tables and figures of the paper beside its printed numbers. What is finished is kept."""
    from hashlens import reproduction

    settings = {
        "backbone": backbone,
        "weights": None if weights is None else str(weights),
        "image_size": image_size,
        "frozen_blocks": frozen_blocks,
    }
    require_own(out, ["comparisons"], "reproduction")
    with alone_in(out), interruptible() as stop:
        result = reproduction.reproduce(
            target,
            scale,
            out,
            methods=_listed(methods or ""),
            bits=None if bits is None else _lengths(bits),
            seeds=seeds,
            epochs=epochs,
            settings=given(settings),
            nuswide=nuswide,
            mirflickr=mirflickr,
            from_file=from_file,
            command=shlex.join(["hashlens", *sys.argv[1:]]),
            progress=Progress(quiet),
            stop=stop,
        )
    if as_json:
        print(json.dumps(result))
        return
    for outcome in result["outcomes"]:
        print(outcome["sentence"])
    print(f"page     {out / 'REPRODUCTION.md'}\nreport   {out / 'report.html'}\ntables   {out / 'tables'}")


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _lengths(text: str) -> list[int]:
    try:
        return [int(word) for word in _listed(text)]
    except ValueError as error:
        raise UsageError(f"--bits takes whole numbers between commas, such as 12,24,32,48, not {text}") from error
