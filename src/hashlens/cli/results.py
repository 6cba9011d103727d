"""The commands that score and compare: evaluate, compare, reproduce."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hashlens.cli.options import (
    COLUMNS,
    FROM_FILE,
    JSON,
    QUIET,
    SOURCE,
    chosen_columns,
    given,
    interruptible,
    open_source_of,
)
from hashlens.errors import UsageError
from hashlens.files import alone_in, quoted, require_own
from hashlens.progress import Progress

app = typer.Typer()

# of all methods that train a network
BACKBONE = Annotated[str | None, typer.Option(help="Network of deep methods.")]
WEIGHTS = Annotated[Path | None, typer.Option(help="Weights of that backbone, such as imagenet-vgg-f.mat.")]
IMAGE_SIZE = Annotated[int | None, typer.Option(help="Image resolution for deep methods.")]
FROZEN_BLOCKS = Annotated[int | None, typer.Option(help="Leading blocks that deep methods do not train.")]
EPOCHS = Annotated[int | None, typer.Option(help="Training epochs of deep methods.")]


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    topk: Annotated[int | None, typer.Option(help="Cut the ranking at this many results.")] = None,
    radius: Annotated[
        str | None, typer.Option(help="Hamming radii of the look-ups, comma-separated; default 2.")
    ] = None,
    precision_at: Annotated[str | None, typer.Option(help="Comma-separated N; default 100,500,1000.")] = None,
    recall_at: Annotated[str | None, typer.Option(help="Comma-separated N.")] = None,
    as_json: JSON = False,
) -> None:
    """Score the saved codes of a run again, under every definition of MAP in use."""
    from hashlens.results.metrics import titled
    from hashlens.results.runs import evaluate_run

    numbers = given({"radius": radius, "precision_at": precision_at, "recall_at": recall_at})
    result = evaluate_run(run, topk, **{name: _numbers(text, name) for name, text in numbers.items()})
    if as_json:
        print(json.dumps(result))
        return
    print(f"{run}: the same codes under {len(result['definitions'])} definitions of MAP")
    for name, row in result["definitions"].items():
        print(f"  {name:<18} {row['map']:.4f}   {row['definition']}")
    for key, metric, title, explained in titled(result):
        if metric.key != "map":
            print(f"{title:<27} {result[key]:.4f}   {explained}")


@app.command()
def compare(
    source: SOURCE,
    methods: Annotated[str, typer.Option(help="Comma-separated; see: hashlens methods")],
    bits: Annotated[str, typer.Option(help="Code lengths, comma-separated.")] = "12,24,32,48",
    features: Annotated[
        str,
        typer.Option(
            help="For methods on features: gist, deep (efficientnet-lite0), nuswide-1134, or one like resnet50@112."
        ),
    ] = "deep",
    seeds: Annotated[int, typer.Option(help="Number of seeds per method; the split is fixed.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the comparison.", show_default="comparisons/SOURCE")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="cifar10-1, cifar10-2, nuswide-1 or nuswide-2 (the paper's), mirflickr, unseen, or split."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split.")] = 0,
    against: Annotated[
        str | None, typer.Option(help="Method that the paired tests compare with.", show_default="the best")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the best model in OUT/model: hashlens encode photos --model OUT")
    ] = False,
    backbone: BACKBONE = None,
    weights: WEIGHTS = None,
    image_size: IMAGE_SIZE = None,
    frozen_blocks: FROZEN_BLOCKS = None,
    epochs: EPOCHS = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="[METHOD.]NAME=VALUE", help="Change a setting; see: hashlens methods NAME"),
    ] = None,
    columns: COLUMNS = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Compare methods by MAP, beside printed numbers: tables, plots and a report. Rerun the same command to resume."""
    from hashlens.hashers.methods import hasher_class
    from hashlens.results.compare import Variant
    from hashlens.results.compare import compare as compare_methods
    from hashlens.settings import parse_for

    progress, lengths, names = Progress(quiet), _numbers(bits), _listed(methods)
    config = {"source": source, "columns": vars(chosen_columns(columns))}
    own = parse_for({name: hasher_class(name) for name in names}, chosen or [])
    out = out or Path("comparisons") / Path(source).resolve().name
    require_own(out, ["split.json"], "comparison")
    with alone_in(out), interruptible() as stop:
        comparison = compare_methods(
            open_source_of(config, from_file, progress),
            [Variant(name, name, own[name]) for name in names],
            lengths,
            features=_listed(features),
            seeds=seeds,
            protocol=protocol,
            split_seed=seed,
            settings=_settings(backbone, weights, image_size, frozen_blocks) | given({"epochs": epochs}),
            against=against,
            out=out,
            keep=keep,
            commands=[shlex.join(["hashlens", *sys.argv[1:]])],
            progress=progress,
            stop=stop,
        )
    print(comparison.to_json() if as_json else comparison)
    if not comparison.result["n_finished"]:
        raise typer.Exit(1)
    if not as_json:
        print(f"report   {out / 'report.html'}\ntables   {out}/table.csv, table.md, table.tex")
        if keep:
            print(
                f"model    {out / 'model'}\nnext     hashlens encode path/to/images --model {quoted(out)} --out codes"
            )


@app.command()
def reproduce(
    target: Annotated[
        str, typer.Argument(help="table1, table2, table3, alpha, lambda, train-size, examples, port, unseen, or all.")
    ],
    scale: Annotated[
        str, typer.Option(help="smoke: minutes, on digits, to see that it works; small: hours; full: days.")
    ] = "small",
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and pages.")] = Path("repro"),
    methods: Annotated[str | None, typer.Option(help="Only these methods of the tables, comma-separated.")] = None,
    bits: Annotated[str | None, typer.Option(help="Other code lengths for the tables, comma-separated.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Another number of seeds.")] = None,
    epochs: EPOCHS = None,
    backbone: BACKBONE = None,
    weights: WEIGHTS = None,
    image_size: IMAGE_SIZE = None,
    frozen_blocks: FROZEN_BLOCKS = None,
    nuswide: Annotated[Path | None, typer.Option(help="Folder of NUS-WIDE as published.")] = None,
    mirflickr: Annotated[Path | None, typer.Option(help="Folder of MIRFLICKR-25K, which stands in for it.")] = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Rebuild tables and figures of the paper beside its printed numbers. Rerun the same command to resume."""
    from hashlens.results.paper import reproduce as run_targets

    require_own(out, ["comparisons"], "reproduction")
    with alone_in(out), interruptible() as stop:
        result = run_targets(
            target,
            scale,
            out,
            methods=_listed(methods or ""),
            bits=None if bits is None else _numbers(bits),
            seeds=seeds,
            epochs=epochs,
            settings=_settings(backbone, weights, image_size, frozen_blocks),
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
    print(f"page     {out / 'REPRODUCTION.md'}\ntables   {out / 'tables'}")


def _settings(
    backbone: str | None, weights: Path | None, image_size: int | None, frozen_blocks: int | None
) -> dict[str, Any]:
    file = None if weights is None else str(weights)
    return given({"backbone": backbone, "weights": file, "image_size": image_size, "frozen_blocks": frozen_blocks})


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str, name: str = "bits") -> list[int]:
    try:
        return [int(word) for word in _listed(text)]
    except ValueError as error:
        option = name.replace("_", "-")
        raise UsageError(f"--{option} takes comma-separated whole numbers, such as 12,24, got {text!r}") from error
