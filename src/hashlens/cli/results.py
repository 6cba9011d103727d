"""The commands that score and compare: evaluate, compare, reproduce."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from hashlens.cli import options
from hashlens.cli.options import (
    COLUMNS,
    FROM_FILE,
    JSON,
    LEARNING,
    PROTOCOL,
    QUIET,
    SOURCE,
    SPLITS,
    given,
    listed,
    numbers,
    show,
)
from hashlens.files import alone_in, quoted, require_own
from hashlens.progress import Progress

app = typer.Typer()

# of all methods that train a network
BACKBONE = Annotated[str | None, Option(help="Network that deep methods train.", rich_help_panel=LEARNING)]
WEIGHTS = Annotated[
    Path | None, Option(help="Weights of the backbone, such as imagenet-vgg-f.mat.", rich_help_panel=LEARNING)
]
IMAGE_SIZE = Annotated[int | None, Option(help="Image side in pixels, for deep methods.", rich_help_panel=LEARNING)]
FROZEN_BLOCKS = Annotated[
    int | None, Option(help="Leading blocks that deep methods do not train.", rich_help_panel=LEARNING)
]
EPOCHS = Annotated[int | None, Option(help="Training epochs of deep methods.", rich_help_panel=LEARNING)]


@app.command()
def evaluate(
    run: Annotated[Path, Argument(help="Folder of a finished run.")],
    topk: Annotated[int | None, Option(help="Cut the ranking at this many results.")] = None,
    radius: Annotated[str | None, Option(help="Comma-separated Hamming radii; default 2.")] = None,
    precision_at: Annotated[str | None, Option(help="Comma-separated N; default 100,500,1000.")] = None,
    recall_at: Annotated[str | None, Option(help="Comma-separated N.")] = None,
    as_json: JSON = False,
) -> None:
    """Score the saved codes of a run again, under every definition of MAP in use."""
    from hashlens.results.metrics import titled
    from hashlens.results.runs import evaluate_run

    asked = given({"radius": radius, "precision_at": precision_at, "recall_at": recall_at})
    at = {name: numbers(text, f"--{name.replace('_', '-')}") for name, text in asked.items()}
    result = evaluate_run(run, topk, **at)
    lines = [f"{run}: the same codes under {len(result['definitions'])} definitions of MAP"]
    for name, row in result["definitions"].items():
        lines.append(f"  {name:<18} {row['map']:.4f}   {row['definition']}")
    for key, metric, title, explained in titled(result):
        if metric.key != "map":
            lines.append(f"{title:<29} {result[key]:.4f}   {explained}")
    show(result, as_json, *lines)


@app.command()
def compare(
    context: typer.Context,
    source: SOURCE,
    methods: Annotated[str, Option(help="Comma-separated; see: hashlens methods")],
    bits: Annotated[str, Option(help="Code lengths, comma-separated.")] = "12,24,32,48",
    features: Annotated[
        str,
        Option(
            help="For methods on features: gist, deep (efficientnet-lite0), nuswide-1134, or resnet50@112.",
            rich_help_panel=LEARNING,
        ),
    ] = "deep",
    seeds: Annotated[int, Option(help="Number of seeds per method and split.")] = 1,
    splits: SPLITS = 1,
    out: Annotated[Path | None, Option(help="Folder to write to.", show_default="comparisons/SOURCE")] = None,
    protocol: PROTOCOL = None,
    seed: Annotated[int, Option(min=0, help="Seed of the first split.")] = 0,
    against: Annotated[
        str | None, Option(help="Method that the tests compare the others with.", show_default="the best")
    ] = None,
    keep: Annotated[bool, Option("--keep", help="Keep the best model, for hashlens encode photos --model OUT")] = False,
    backbone: BACKBONE = None,
    weights: WEIGHTS = None,
    image_size: IMAGE_SIZE = None,
    frozen_blocks: FROZEN_BLOCKS = None,
    epochs: EPOCHS = None,
    chosen: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="[METHOD.]NAME=VALUE",
            help="Change a setting; see: hashlens methods NAME",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    preset: Annotated[
        str | None, Option(help="published: the settings of the methods' papers.", rich_help_panel=LEARNING)
    ] = None,
    columns: COLUMNS = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Compare methods by MAP, beside printed numbers: tables, plots and a report. Rerun the same command to resume."""
    from hashlens.features.nuswide import NUSWIDE
    from hashlens.hashers.methods import hasher_class
    from hashlens.results.compare import GIVEN, Variant
    from hashlens.results.compare import compare as compare_methods
    from hashlens.settings import parse_for

    progress, names = Progress(quiet), listed(methods)
    config = {"source": source, "columns": vars(options.chosen_columns(columns))}
    own = parse_for({name: hasher_class(name) for name in names}, chosen or [])
    lengths = numbers(bits, "--bits")
    out = out or Path("comparisons") / Path(source).resolve().name
    require_own(out, ["split.json"], "a comparison")
    opened = options.open_source_of(config, from_file, progress)
    for warning in opened.warnings:
        progress.say(f"note: {warning}")
    with alone_in(out), options.interruptible() as stop:
        comparison = compare_methods(
            opened,
            [Variant(name, name, own[name], preset) for name in names],
            lengths,
            features=listed(features),
            seeds=seeds,
            splits=splits,
            protocol=protocol,
            split_seed=seed,
            settings=_settings(context) | given({"epochs": epochs}),
            against=against,
            out=out,
            keep=keep,
            commands=[options.command_line()],
            progress=progress,
            stop=stop,
        )
    lines, result = [str(comparison)], comparison.result
    if result["n_finished"]:
        lines += [f"report   {out / 'report.html'}", f"tables   {out}/table.csv, table.md, table.tex"]
        lines += [f"model    {out / 'model'}"] if keep else []
        if keep and not {GIVEN, NUSWIDE} & set(result["features"]):  # no command computes those for other images
            lines.append(f"next     hashlens encode path/to/images --model {quoted(out)} --out codes")
    show(result, as_json, *lines)
    if not result["n_finished"]:
        raise typer.Exit(1)


@app.command()
def reproduce(
    context: typer.Context,
    target: Annotated[
        str, Argument(help="table1, table2, table3, alpha, lambda, train-size, examples, port, unseen, or all.")
    ],
    scale: Annotated[str, Option(help="smoke: a test on digits, minutes; small: hours; full: days.")] = "small",
    out: Annotated[Path, Option(help="Folder for tables, figures and pages.")] = Path("repro"),
    methods: Annotated[str | None, Option(help="Only these methods of the tables, comma-separated.")] = None,
    bits: Annotated[str | None, Option(help="Other code lengths for the tables, comma-separated.")] = None,
    seeds: Annotated[int | None, Option(help="Another number of seeds.")] = None,
    splits: SPLITS = 1,
    epochs: EPOCHS = None,
    backbone: BACKBONE = None,
    weights: WEIGHTS = None,
    image_size: IMAGE_SIZE = None,
    frozen_blocks: FROZEN_BLOCKS = None,
    nuswide: Annotated[Path | None, Option(help="Folder of NUS-WIDE, as published.")] = None,
    mirflickr: Annotated[Path | None, Option(help="Folder of MIRFLICKR-25K, which stands in for it.")] = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Rebuild the tables and figures of the paper, beside its printed numbers. Rerun the same command to resume."""
    from hashlens.results.paper import reproduce as run_targets

    require_own(out, ["comparisons"], "a reproduction")
    with alone_in(out), options.interruptible() as stop:
        result = run_targets(
            target,
            scale,
            out,
            methods=listed(methods or ""),
            bits=None if bits is None else numbers(bits, "--bits"),
            seeds=seeds,
            epochs=epochs,
            splits=splits,
            settings=_settings(context),
            nuswide=nuswide,
            mirflickr=mirflickr,
            from_file=from_file,
            command=options.command_line(),
            progress=Progress(quiet),
            stop=stop,
        )
    sentences = [outcome["sentence"] for outcome in result["outcomes"]]
    show(result, as_json, *sentences, f"page     {out / 'REPRODUCTION.md'}", f"tables   {out / 'tables'}")


def _settings(context: typer.Context) -> dict[str, Any]:
    """Those of methods that train a network."""
    named = {name: context.params[name] for name in ("backbone", "image_size", "frozen_blocks")}
    return given(named | {"weights": options.full_path(context.params["weights"])})
