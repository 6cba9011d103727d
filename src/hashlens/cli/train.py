"""The commands that learn: demo, train, evaluate."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import hashlens
from hashlens.cli.options import (
    COLUMN,
    FROM_FILE,
    JSON,
    QUIET,
    SEED,
    TABLES,
    given,
    interruptible,
    open_source_of,
    typed,
)
from hashlens.errors import UsageError
from hashlens.files import quoted, require_own
from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.data import Source
    from hashlens.hashers.base import Hasher

app = typer.Typer()
RUN = ("split.json",)  # what a run begins with


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("hashlens-demo"),
    bits: Annotated[int, typer.Option(help="Length of the codes.")] = 32,
    seed: SEED = 0,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Train DTSH on CIFAR-10 and look at what it finds: the paper's setting 1, in minutes."""
    from hashlens.data import open_source
    from hashlens.errors import DownloadError

    progress = Progress(quiet)
    require_own(out, RUN, "run")
    progress.say(f"hashlens {hashlens.__version__} · demo · results go to {out}/")
    name = "cifar10"
    try:
        source = open_source(name, from_file=from_file, progress=progress.say)
        _weights_or_say_why()
    except DownloadError as error:
        if from_file is not None:
            raise
        progress.say(f"{error.message}\nusing scikit-learn's digits instead, which need no download")
        name = "digits"
        source = open_source(name)
    config = _config(name, None, seed, "dtsh", {"n_bits": bits, "random_state": seed})
    result = _run(source, config, out, progress, replace=True)
    _finish(result, out, as_json, "hashlens train path/to/your/folder   (one folder of pictures for each class)")


@app.command()
def train(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Argument(help="cifar10, digits, a table (.csv) of paths and labels, or a folder.")
    ] = None,
    method: Annotated[str, typer.Option(help="See: hashlens methods")] = "dtsh",
    bits: Annotated[int, typer.Option(help="Length of the codes.")] = 48,
    seed: SEED = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", show_default="runs/SOURCE-METHOD-BITS")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="cifar10-1, cifar10-2, nuswide-1 or nuswide-2 (the paper's), mirflickr, unseen, or split."),
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="efficientnet-lite0/1/2, resnet50, alexnet, cnn-f, small-cnn or hf:NAME.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the backbone: imagenet-vgg-f.mat for cnn-f.")] = None,
    features: Annotated[
        str | None, typer.Option(help="For methods on features: gist, or the backbone that makes them.")
    ] = None,
    image_size: Annotated[int | None, typer.Option(min=1, help="Pixels a side; more is slower and better.")] = None,
    frozen_blocks: Annotated[int | None, typer.Option(help="Leading blocks that are not trained.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training pictures.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pictures a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the pretrained blocks.")] = None,
    head_lr: Annotated[float | None, typer.Option(help="Learning rate of the hash layer.")] = None,
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Codes of a picture and its mirror image together: slower and better.")
    ] = False,
    windows: Annotated[
        int | None, typer.Option(help="Cut training pictures at so many random places too: slower and better.")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Margin of dtsh in bits.", show_default="half the bits")] = None,
    lambda_: Annotated[float | None, typer.Option("--lambda", help="Weight of the quantisation term.")] = None,
    sampling: Annotated[
        str | None,
        typer.Option(help="Triplets from labels: in-batch, or published: the authors' memory bank."),
    ] = None,
    head: Annotated[str | None, typer.Option(help="linear, layers or divide-and-encode.")] = None,
    triplets: Annotated[
        Path | None, typer.Option(help="Learn from this file instead of labels: query, positive, negative a line.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="published: the authors' released configuration.")] = None,
    quirk: Annotated[
        str | None, typer.Option(help="transposed-test-batch: CIFAR-10 with the slip of the authors' code.")
    ] = None,
    path_column: COLUMN = None,
    label_column: COLUMN = None,
    split_column: COLUMN = None,
    separator: Annotated[str | None, typer.Option(help="Between the labels of a picture.", **TABLES)] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    from_file: FROM_FILE = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Learn a hasher from labelled pictures, encode them and print MAP."""
    from hashlens.runs import load_config

    progress = Progress(quiet)
    if resume is not None:
        others = set(typed(context)) - {"resume", "from_file", "as_json", "quiet"}
        if others:
            raise UsageError("--resume takes everything from the run's folder; leave out the source and other options")
        config, out = load_config(resume), resume
        if (out / "result.json").exists():
            raise UsageError(f"{out} holds a finished run; there is nothing to continue")
    else:
        if source is None:
            raise UsageError("say what to train on: hashlens train cifar10, or hashlens train path/to/folder")
        training = {
            "epochs": epochs,
            "batch_size": batch_size,
            "lr": lr,
            "head_lr": head_lr,
            "mirror": mirror or None,
            "windows": windows,
            "device": device,
        }
        params = {
            "alpha": alpha,
            "lambda_": lambda_,
            "sampling": sampling,
            "head": head,
            "backbone": backbone,
            "weights": None if weights is None else str(weights),
            "features": features,
            "image_size": image_size,
            "frozen_blocks": frozen_blocks,
            "training": given(training) or None,
        }
        columns = {"path": path_column, "labels": label_column, "split": split_column, "separator": separator}
        asked = {
            "triplets": None if triplets is None else str(triplets),
            "preset": preset,
            "quirk": quirk,
            "columns": given(columns) or None,
        }
        params = {"n_bits": bits, "random_state": seed} | given(params)
        config = _config(source, protocol, seed, method, params) | given(asked)
        out = out or Path("runs") / f"{Path(source).resolve().name}-{method}-{bits}"
        require_own(out, RUN, "run")
        if (out / "cells").exists():
            raise UsageError(f"{out} is the folder of a comparison; choose another --out")
        if (out / "result.json").exists():
            raise UsageError(f"{out} holds a finished run; choose another --out or remove that folder")
        if (out / "checkpoint.safetensors").exists() and load_config(out) != json.loads(json.dumps(config)):
            raise UsageError(
                f"{out} holds another run that was stopped; go on with it by hashlens train --resume {quoted(out)}, or"
                " choose another --out"
            )
    _make(config)  # wrong options are found before any work
    result = _run(open_source_of(config, from_file, progress), config, out, progress)
    _finish(result, out, as_json, f"hashlens encode path/to/pictures --model {quoted(out / 'model')} --out codes")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    topk: Annotated[int | None, typer.Option(help="Cut the ranking at this many results.")] = None,
    as_json: JSON = False,
) -> None:
    """Score the saved codes of a run again, under every definition of MAP in use."""
    from hashlens.evaluation import evaluate_run

    rows = evaluate_run(run, topk)
    if as_json:
        print(json.dumps(rows))
        return
    print(f"{run}: the same codes under {len(rows['definitions'])} definitions of MAP")
    for name, row in rows["definitions"].items():
        print(f"  {name:<18} {row['map']:.4f}   {row['definition']}")
    print(
        f"precision within 2 bits {rows['precision_radius_2']:.4f}"
        f" ({rows['empty_radius_2']:.1%} of the queries find nothing there and count 0)"
    )


def _config(source: str, protocol: str | None, seed: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"source": source, "protocol": protocol, "seed": seed, "method": method, "params": params}


def _make(config: dict[str, Any], n_train: int = 5_000) -> Hasher:
    """The hasher that is asked for; the rates of the authors' preset depend on the number of training pictures."""
    from inspect import signature

    from hashlens.hashers import hasher_class
    from hashlens.hashers.deep.training import Training

    params, method = dict(config["params"]), config["method"]
    if params["n_bits"] < 1:
        raise UsageError(f"--bits must be a whole number from 1 up, not {params['n_bits']}")
    cls = hasher_class(method)
    known = signature(cls).parameters
    if unknown := [name for name in params if name not in known]:
        option = next(iter(params["training"])) if unknown[0] == "training" else unknown[0].strip("_")
        raise UsageError(f"{method} has no option --{option.replace('_', '-')}; leave it out")
    if "triplets" in config and "triplets" not in signature(cls.fit).parameters:
        raise UsageError(f"{method} does not learn from triplets; leave out --triplets, or choose --method dtsh")
    if "preset" in config:
        if config["preset"] != "published" or not hasattr(cls, "published"):
            raise UsageError(f"there is no preset '{config['preset']}' for {method}; dtsh and dpsh have published")
        return cls.published(params.pop("n_bits"), n_train, **params)
    if "training" in params:
        params["training"] = Training(**params["training"])
    return cls(**params)


def _run(
    source: Source, config: dict[str, Any], out: Path, progress: Progress, replace: bool = False
) -> dict[str, Any]:
    from hashlens import runs
    from hashlens.data import make_protocol
    from hashlens.files import alone_in, storage_errors

    for warning in source.warnings:
        progress.say(f"note: {warning}")
    if source.skipped:
        progress.say(f"note: {len(source.skipped):,} pictures are left out; see {out / 'skipped.csv'}")
    protocol = make_protocol(source, config["protocol"], config["seed"])
    hasher = _make(config, len(protocol.train))
    progress.say(
        f"{config['method'].upper()}, {hasher.n_bits} bits, seed {config['seed']}:"
        f" {len(protocol.train):,} training pictures, {len(protocol.query):,} queries,"
        f" {len(protocol.database):,} database → {out}/"
    )
    progress.say(f"stop with Ctrl-C, it is safe; continue with: hashlens train --resume {quoted(out)}")
    if replace:
        with storage_errors(out):
            (out / "checkpoint.safetensors").unlink(missing_ok=True)
    command = shlex.join(["hashlens", *sys.argv[1:]])
    with alone_in(out), interruptible() as stop:
        return runs.run(source, protocol, hasher, out, config=config, commands=[command], progress=progress, stop=stop)


def _weights_or_say_why() -> None:
    from hashlens.networks.weights import pretrained_weights

    pretrained_weights("efficientnet-lite0")


def _finish(result: dict[str, Any], out: Path, as_json: bool, following: str) -> None:
    from hashlens.runs import headline

    if as_json:
        print(json.dumps(result))
        return
    print(headline(result))
    print(f"picture  {out / 'results.png'}\nreport   {out / 'report.html'}\nmodel    {out / 'model'}")
    print(f"next     {following}")
