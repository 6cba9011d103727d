"""The commands that learn: demo, train, tune."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

import hashlens
from hashlens.cli import options
from hashlens.cli.options import (
    BITS,
    COLUMNS,
    DATA,
    FROM_FILE,
    JSON,
    LEARNING,
    PROTOCOL,
    QUIET,
    SEED,
    SOURCE,
    SPLITS,
    given,
)
from hashlens.errors import UsageError, require
from hashlens.features.networks import BACKBONES
from hashlens.files import quoted, require_own
from hashlens.progress import Progress, counted
from hashlens.ranks import Ranks, current

if TYPE_CHECKING:
    from hashlens.data import Source
    from hashlens.hashers.base import Hasher

app = typer.Typer()
RUN = ("split.json",)  # what a run begins with
NAMED = (
    "backbone",
    "features",
    "image_size",
    "frozen_blocks",
    "epochs",
    "precision",
    "device",
)  # settings with options
OF_IMAGES = ("backbone", "weights", "features", "image_size", "frozen_blocks")
USUAL_SECOND = 128  # bits of the second code, sixteen bytes per image
DEEP = ("torch", "sklearn", "matplotlib")  # what training a network and its report need


@app.command()
def demo(
    out: Annotated[Path, Option(help="Folder for the results.")] = Path("hashlens-demo"),
    bits: BITS = 32,
    seed: SEED = 0,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Train DTSH on CIFAR-10 (the paper's setting 1) and show what it finds, in minutes."""
    from hashlens.data import open_source
    from hashlens.errors import DownloadError
    from hashlens.features.networks.weights import pretrained_weights

    require(*DEEP, why="demo")
    progress = Progress(quiet)
    require_own(out, RUN, "a run")
    progress.say(f"hashlens {hashlens.__version__} · demo · results go to {out}/")
    name = "cifar10"
    try:
        source = open_source(name, from_file=from_file, progress=progress.say)
        pretrained_weights("efficientnet-lite0")
    except DownloadError as error:
        if from_file is not None:
            raise
        progress.say(f"{error.message}\nusing scikit-learn's digits instead, which need no download")
        name = "digits"
        source = open_source(name)
    values = {"n_bits": bits, "random_state": seed, "second_bits": USUAL_SECOND}
    config = _config(name, None, seed, "dtsh", values)
    result = _run(source, config, out, progress, replace=True)
    _finish(result, out, as_json, "hashlens train path/to/your/folder   (one folder of images per class)")


METHOD = Annotated[str, Option(help="See: hashlens methods")]
BACKBONE = Annotated[str | None, Option(help=f"{BACKBONES}.", rich_help_panel=LEARNING)]
WEIGHTS = Annotated[
    Path | None, Option(help="Weights of the backbone: imagenet-vgg-f.mat for cnn-f.", rich_help_panel=LEARNING)
]
FEATURES = Annotated[str | None, Option(help="For methods on features: gist, or a backbone.", rich_help_panel=LEARNING)]
IMAGE_SIZE = Annotated[
    int | None, Option(help="Image side in pixels; larger is slower and better.", rich_help_panel=LEARNING)
]
FROZEN_BLOCKS = Annotated[
    int | None, Option(help="Number of leading blocks that are not trained.", rich_help_panel=LEARNING)
]
EPOCHS = Annotated[int | None, Option(help="Training epochs.", rich_help_panel=LEARNING)]
SECOND_BITS = Annotated[
    int | None,
    Option(
        min=0,
        help="Length of a second code in bits, which orders ties; 0: none.",
        show_default="128",
        rich_help_panel=LEARNING,
    ),
]
PRECISION = Annotated[
    str | None, Option(help="Arithmetic of training: auto, float32 or bfloat16.", rich_help_panel=LEARNING)
]
SET = Annotated[
    list[str] | None,
    Option(
        "--set", metavar="NAME=VALUE", help="Any other setting; see: hashlens methods NAME", rich_help_panel=LEARNING
    ),
]
DEVICE = Annotated[str | None, Option(help="auto, cpu or cuda.", rich_help_panel=LEARNING)]


@app.command()
def train(
    context: typer.Context,
    source: SOURCE = "",
    method: METHOD = "dtsh",
    bits: BITS = 48,
    seed: SEED = 0,
    out: Annotated[Path | None, Option(help="Folder of the run.", show_default="runs/SOURCE-METHOD-BITS")] = None,
    protocol: PROTOCOL = None,
    splits: SPLITS = 1,
    backbone: BACKBONE = None,
    weights: WEIGHTS = None,
    features: FEATURES = None,
    image_size: IMAGE_SIZE = None,
    frozen_blocks: FROZEN_BLOCKS = None,
    epochs: EPOCHS = None,
    second_bits: SECOND_BITS = None,
    precision: PRECISION = None,
    chosen: SET = None,
    tune: Annotated[
        str | None,
        Option(metavar="TIME", help="Choose settings first, in this much time, such as 10m; see: hashlens tune --help"),
    ] = None,
    triplets: Annotated[
        Path | None,
        Option(help="Learn from a file of query,positive,negative lines instead of labels.", rich_help_panel=DATA),
    ] = None,
    preset: Annotated[
        str | None, Option(help="published: the settings of the method's paper.", rich_help_panel=LEARNING)
    ] = None,
    quirk: Annotated[
        str | None, Option(help="transposed-test-batch: a bug of the authors' CIFAR-10 code.", rich_help_panel=DATA)
    ] = None,
    columns: COLUMNS = None,
    device: DEVICE = None,
    from_file: FROM_FILE = None,
    resume: Annotated[Path | None, Option(help="Resume the run in this folder.")] = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Train a hasher on labelled images, encode them and print MAP.

    Several processes train one model: torchrun --nproc-per-node=2 -m hashlens train ...; see docs/scale-out.md.
    """
    from hashlens.results.runs import load_config

    ranks = current()
    progress = Progress(quiet or not ranks.first)
    if resume is not None:
        if set(options.typed(context)) - {"resume", "from_file", "as_json", "quiet"}:
            raise UsageError("--resume takes everything from the run's folder; omit the source and other options")
        config, out = json.loads(ranks.from_first(lambda: json.dumps(load_config(resume)).encode())), resume
        typed = config
    else:
        config, typed = _asked(context.params)
        if tune is not None:
            if ranks.size > 1:
                raise UsageError("--tune runs in one process; run hashlens tune without torchrun first")
            if splits > 1:
                raise UsageError("--tune would see the queries of the other splits; omit --splits")
            if triplets or preset:
                what = "--triplets" if triplets else "--preset"
                raise UsageError(f"--tune chooses settings by labels, which {what} does without; omit one of the two")
            return _tune(config, typed, out, from_file, progress, as_json, time=tune)
        out = out or _usual_folder(config, source)
    _require_ranks(ranks, config)
    if ranks.first:
        _require_free(out, config, resumed=resume is not None)
    opened = _open(typed, out, from_file, progress)
    result = _run(opened, config, out, progress, triplets=typed.get("triplets"))
    if result is not None:
        _finish(result, out, as_json, _following(opened, out))


def _open(config: dict[str, Any], out: Path, from_file: Path | None, progress: Progress) -> Source:
    """The source, with its notes shown before any work."""
    from hashlens.features.extractor import is_features

    source = options.open_source_of(config, from_file, progress)
    if is_features(source.images) and (unused := [name for name in OF_IMAGES if name in config["params"]]):
        raise UsageError(f"{unused[0]} is for images, but {source.name} has features, which stay as they are; omit it")
    for warning in source.warnings:
        progress.say(f"note: {warning}")
    if source.skipped:
        progress.say(f"note: skipping {counted(len(source.skipped), 'image')}; see {out / 'skipped.csv'}")
    return source


def _require_free(out: Path, config: dict[str, Any], resumed: bool) -> None:
    """Refuse a folder that contains something else, or a run that is finished."""
    from hashlens.results.runs import load_config

    if not resumed:
        require_own(out, RUN, "a run")
        if (out / "cells").exists():
            raise UsageError(f"{out} is the folder of a comparison; choose another --out")
        if (out / "checkpoint.safetensors").exists() and load_config(out) != json.loads(json.dumps(config)):
            raise UsageError(
                f"{out} contains another, stopped run; resume it with hashlens train --resume {quoted(out)}, or"
                " choose another --out"
            )
    _require_unfinished(out)


def _require_ranks(ranks: Ranks, config: dict[str, Any]) -> None:
    """Refuse what several ranks cannot do together."""
    from hashlens.hashers.methods import METHODS

    if ranks.size == 1:
        return
    if not METHODS[config["method"]].deep:
        raise UsageError(f"{config['method']} is not trained in steps that ranks can share; run it without torchrun")
    if "splits" in config:
        raise UsageError("--splits trains one split after the other, in one process; omit it, or run without torchrun")


@app.command()
def tune(
    context: typer.Context,
    source: SOURCE,
    method: METHOD = "dtsh",
    tries: Annotated[
        int | None,
        Option(help="Maximum number of settings to try, the defaults first.", show_default="20, or 200 with --time"),
    ] = None,
    time: Annotated[
        str | None,
        Option(help="Time for trying settings, such as 10m or 1h30m; training with the best comes afterwards."),
    ] = None,
    folds: Annotated[int, Option(help="Number of folds of the training images, each held out once.")] = 3,
    bits: BITS = 48,
    seed: SEED = 0,
    out: Annotated[Path | None, Option(help="Folder of the run.", show_default="runs/SOURCE-METHOD-BITS-tuned")] = None,
    protocol: PROTOCOL = None,
    backbone: BACKBONE = None,
    weights: WEIGHTS = None,
    features: FEATURES = None,
    image_size: IMAGE_SIZE = None,
    frozen_blocks: FROZEN_BLOCKS = None,
    epochs: EPOCHS = None,
    second_bits: SECOND_BITS = None,
    precision: PRECISION = None,
    chosen: SET = None,
    columns: COLUMNS = None,
    device: DEVICE = None,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Choose the settings of a method on training images only, then train with the best. Rerun to continue.

    Settings given here are not tuned. For those that are, see: hashlens methods NAME.
    """
    config, typed = _asked(context.params)
    _tune(config, typed, out, from_file, Progress(quiet), as_json, tries=tries, time=time, folds=folds)


def _asked(params: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration of a run, and the same with files as they were typed, for errors."""
    from hashlens.codes.bits import MOST_LEVELS
    from hashlens.hashers.methods import METHODS, hasher_class
    from hashlens.settings import checked, parse

    source, method = params["source"], params["method"]
    if not source:
        raise UsageError("say what to train on: hashlens train cifar10, or hashlens train path/to/folder")
    if method in METHODS and METHODS[method].deep:
        require(*DEEP, why=method)
    cls = hasher_class(method)
    weights, triplets = params["weights"], params.get("triplets")
    values = {"n_bits": params["bits"], "random_state": params["seed"], "weights": weights and str(weights)}
    values = checked(cls, given(values | {name: params[name] for name in NAMED}))
    values |= parse(cls, params["chosen"] or [])
    second_bits = params["second_bits"]
    if second_bits is None:  # codes that are too long for one have no ties
        second_bits = USUAL_SECOND if (params["bits"] + 1) * (USUAL_SECOND + 1) <= MOST_LEVELS else 0
    if second_bits:
        values = {"second_bits": second_bits} | values
    if values.get("weights"):  # also with --set
        values["weights"] = options.full_path(Path(values["weights"]))
    asked = {
        "triplets": options.full_path(triplets),
        "splits": splits if (splits := params.get("splits", 1)) > 1 else None,
        "preset": params.get("preset"),
        "quirk": params.get("quirk"),
        "columns": given(vars(options.chosen_columns(params["columns"]))) or None,
    }
    config = _config(source, params["protocol"], params["seed"], method, values) | given(asked)
    _require_possible(cls, config)
    return config, config | given({"source": source, "triplets": triplets})


def _usual_folder(config: dict[str, Any], source: str) -> Path:
    return Path("runs") / f"{Path(source).resolve().name}-{config['method']}-{config['params']['n_bits']}"


def _require_unfinished(out: Path) -> None:
    if (out / "result.json").exists():
        raise UsageError(f"{out} contains a finished run; choose another --out, or remove that folder to train again")


def _following(source: Source, out: Path) -> str:
    from hashlens.features.extractor import is_features

    if is_features(source.images):  # no command computes them for other images
        return f"hashlens evaluate {quoted(out)}"
    return f"hashlens encode path/to/images --model {quoted(out / 'model')} --out codes"


def _tune(
    config: dict[str, Any],
    typed: dict[str, Any],
    out: Path | None,
    from_file: Path | None,
    progress: Progress,
    as_json: bool,
    *,
    time: str | None,
    tries: int | None = None,
    **how: Any,
) -> None:
    """Choose settings, then run with them in the same folder."""
    from hashlens.data import make_protocol
    from hashlens.data.folds import TrainingRows
    from hashlens.files import alone_in
    from hashlens.progress import seconds_of
    from hashlens.results import tune
    from hashlens.results.runs import load_config

    budget = None if time is None else seconds_of(time)
    require("optuna", why="tuning")
    usual = _usual_folder(config, typed["source"])
    out = out or usual.with_name(f"{usual.name}-tuned")
    require_own(out, ("tries.jsonl",), "a tuning run")
    if tune.finished(out, tries, budget):
        _require_unfinished(out)
    source = _open(typed, out, from_file, progress)
    protocol = make_protocol(source, config["protocol"], config["seed"])
    for note in protocol.notes:
        progress.say(f"note: {note}")
    hasher = _make(config, len(protocol.train))
    rows = TrainingRows.of(source, protocol)  # all that tuning gets to see
    with alone_in(out), options.interruptible() as stop:
        found = tune.search(
            rows, hasher, fixed=config["params"], tries=tries, time=budget, seed=config["seed"],
            out=out, progress=progress, stop=stop, **how,
        )  # fmt: skip
    progress.say(f"found {found}")
    config = config | {"params": config["params"] | found.settings, "tuning": found.summary()}
    same = (out / "config.json").exists() and load_config(out) == json.loads(json.dumps(config))
    result = _run(source, config, out, progress, replace=not same)
    _finish(result | {"tries": found.tries}, out, as_json, _following(source, out), f"tuned    {found}")


def _config(source: str, protocol: str | None, seed: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    from hashlens.data.sources import absolute

    return {"source": absolute(source), "protocol": protocol, "seed": seed, "method": method, "params": params}


def _require_possible(cls: type[Hasher], config: dict[str, Any]) -> None:
    """Before any work."""
    from inspect import signature

    from hashlens.features.extractor import GIST, feature_size
    from hashlens.features.networks import network_info
    from hashlens.features.nuswide import NUSWIDE

    backbone = config["params"].get("backbone", "auto")
    if backbone != "auto":
        network_info(backbone)
    features = config["params"].get("features", getattr(cls, "features", GIST))
    if features == NUSWIDE:
        raise UsageError(
            f"{NUSWIDE} features come from NUS-WIDE's files, so a model could not encode new images; write them"
            f" with hashlens features {quoted(config['source'])} --kind {NUSWIDE} and train on that file"
        )
    if features != GIST and not config["source"].endswith(".npy"):  # a file of features
        require("torch", why=f"training on {features} features")
        feature_size(features)
    if "triplets" in config and "triplets" not in signature(cls.fit).parameters:
        raise UsageError(f"{cls.name} does not learn from triplets; omit --triplets, or choose --method dtsh")
    if "triplets" in config and "splits" in config:
        raise UsageError("--splits needs labels; omit --splits or --triplets")
    cls.preset(config.get("preset"), config["params"]["n_bits"])


def _make(config: dict[str, Any], n_train: int) -> Hasher:
    """The hasher that is asked for; the rates of the authors' preset depend on the number of training images."""
    from hashlens.hashers.methods import hasher_class
    from hashlens.settings import apply

    cls: Any = hasher_class(config["method"])
    return apply(cls.preset(config.get("preset"), config["params"]["n_bits"], n_train), config["params"])


def _run(
    source: Source,
    config: dict[str, Any],
    out: Path,
    progress: Progress,
    *,
    triplets: str | Path | None = None,
    replace: bool = False,
) -> Any:
    """Its result; None on all ranks but the first."""
    from hashlens.data import make_protocols
    from hashlens.files import alone_in, storage_errors
    from hashlens.results import runs
    from hashlens.results.tables import split_text

    protocol, *more_splits = make_protocols(source, config["protocol"], config["seed"], config.get("splits", 1))
    for note in protocol.notes if "tuning" not in config else ():  # said before tuning
        progress.say(f"note: {note}")
    hasher = _make(config, len(protocol.train))
    split = split_text(runs.protocol_facts(protocol), 1 + len(more_splits))
    progress.say(f"{config['method'].upper()}, {counted(hasher.n_bits, 'bit')}, {split} → {out}/")
    pairs = None if triplets is None else runs.read_triplets_of(Path(triplets), source, protocol, progress.say)
    progress.say(f"Ctrl-C stops and saves; resume with: hashlens train --resume {quoted(out)}")
    if replace:
        with storage_errors(out):
            (out / "checkpoint.safetensors").unlink(missing_ok=True)
    with alone_in(out) if current().first else nullcontext(), options.interruptible() as stop:
        return runs.run(
            source, protocol, hasher, out,
            config=config, triplets=pairs, more_splits=more_splits,
            commands=[options.command_line()], progress=progress, stop=stop,
        )  # fmt: skip


def _finish(result: dict[str, Any], out: Path, as_json: bool, following: str, tuned: str = "") -> None:
    from hashlens.results.runs import headline

    names = {"figure": "results.png", "report": "report.html", "tries": "tries.jsonl", "model": "model"}
    written = [f"{what:<8} {out / name}" for what, name in names.items() if (out / name).exists()]
    options.show(result, as_json, headline(result), tuned, *written, f"next     {following}")
