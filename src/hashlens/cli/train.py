"""The commands that learn: demo, train."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import hashlens
from hashlens.cli.options import (
    COLUMNS,
    FROM_FILE,
    JSON,
    QUIET,
    SEED,
    SOURCE,
    chosen_columns,
    given,
    interruptible,
    open_source_of,
    typed,
)
from hashlens.errors import UsageError, require
from hashlens.features.networks import BACKBONES
from hashlens.files import quoted, require_own
from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.data import Source
    from hashlens.hashers.base import Hasher

app = typer.Typer()
RUN = ("split.json",)  # what a run begins with
DEEP = ("torch", "sklearn", "matplotlib", "jinja2")  # what training a network and its report need


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("hashlens-demo"),
    bits: Annotated[int, typer.Option(help="Code length in bits.")] = 32,
    seed: SEED = 0,
    from_file: FROM_FILE = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Train DTSH on CIFAR-10 and look at what it finds: the paper's setting 1, in minutes."""
    from hashlens.data import open_source
    from hashlens.errors import DownloadError
    from hashlens.features.networks.weights import pretrained_weights

    require(*DEEP, why="demo")
    progress = Progress(quiet)
    require_own(out, RUN, "run")
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
    config = _config(name, None, seed, "dtsh", {"n_bits": bits, "random_state": seed})
    result = _run(source, config, out, progress, replace=True)
    _finish(result, out, as_json, "hashlens train path/to/your/folder   (one folder of images per class)")


@app.command()
def train(
    context: typer.Context,
    source: SOURCE = "",
    method: Annotated[str, typer.Option(help="See: hashlens methods")] = "dtsh",
    bits: Annotated[int, typer.Option(help="Code length in bits.")] = 48,
    seed: SEED = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.", show_default="runs/SOURCE-METHOD-BITS")] = None,
    protocol: Annotated[
        str | None,
        typer.Option(help="cifar10-1, cifar10-2, nuswide-1 or nuswide-2 (the paper's), mirflickr, unseen, or split."),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help=f"{BACKBONES}.")] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of the backbone: imagenet-vgg-f.mat for cnn-f.")] = None,
    features: Annotated[
        str | None, typer.Option(help="For methods on features: gist, or the backbone that computes them.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Image side in pixels; larger is slower and more accurate.")
    ] = None,
    frozen_blocks: Annotated[int | None, typer.Option(help="Leading blocks that are not trained.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Training epochs.")] = None,
    precision: Annotated[str | None, typer.Option(help="Arithmetic of training: float32 or bfloat16.")] = None,
    chosen: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; see: hashlens methods NAME"),
    ] = None,
    triplets: Annotated[
        Path | None, typer.Option(help="Learn from this file instead of labels: query, positive, negative per line.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="published: the authors' released configuration.")] = None,
    quirk: Annotated[
        str | None, typer.Option(help="transposed-test-batch: CIFAR-10 with the bug of the authors' code.")
    ] = None,
    columns: COLUMNS = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    from_file: FROM_FILE = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Learn a hasher from labelled images, encode them and print MAP."""
    from hashlens.hashers.methods import METHODS, hasher_class
    from hashlens.results.runs import load_config
    from hashlens.settings import checked, parse

    progress = Progress(quiet)
    if resume is not None:
        others = set(typed(context)) - {"resume", "from_file", "as_json", "quiet"}
        if others:
            raise UsageError("--resume takes everything from the run's folder; omit the source and other options")
        config, out = load_config(resume), resume
        source = config["source"]
        if (out / "result.json").exists():
            raise UsageError(f"{out} contains a finished run; there is nothing to resume")
    else:
        if not source:
            raise UsageError("say what to train on: hashlens train cifar10, or hashlens train path/to/folder")
        named = ("backbone", "features", "image_size", "frozen_blocks", "epochs", "precision", "device")
        options = {"n_bits": bits, "random_state": seed} | {name: context.params[name] for name in named}
        options["weights"] = None if weights is None else str(weights)
        if method in METHODS and METHODS[method].deep:
            require(*DEEP, why=method)
        cls = hasher_class(method)
        params = checked(cls, given(options)) | parse(cls, chosen or [])
        asked = {
            "triplets": None if triplets is None else str(triplets),
            "preset": preset,
            "quirk": quirk,
            "columns": given(vars(chosen_columns(columns))) or None,
        }
        config = _config(source, protocol, seed, method, params) | given(asked)
        _require_possible(cls, config)
        out = out or Path("runs") / f"{Path(source).resolve().name}-{method}-{bits}"
        require_own(out, RUN, "run")
        if (out / "cells").exists():
            raise UsageError(f"{out} is the folder of a comparison; choose another --out")
        if (out / "result.json").exists():
            raise UsageError(f"{out} contains a finished run; choose another --out or remove that folder")
        if (out / "checkpoint.safetensors").exists() and load_config(out) != json.loads(json.dumps(config)):
            raise UsageError(
                f"{out} contains another run that was stopped; resume it with hashlens train --resume {quoted(out)}, or"
                " choose another --out"
            )
    # an error names the source as it was typed; the run remembers where it is
    result = _run(open_source_of(config | {"source": source}, from_file, progress), config, out, progress)
    _finish(result, out, as_json, f"hashlens encode path/to/images --model {quoted(out / 'model')} --out codes")


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
            f"{NUSWIDE} features are read from NUS-WIDE's files, so a model could not encode new images; write them"
            f" with hashlens features {quoted(config['source'])} --kind {NUSWIDE} and train on that file"
        )
    if features != GIST and not config["source"].endswith(".npy"):  # a file of features
        require("torch", why=f"training on {features} features")
        feature_size(features)
    if "triplets" in config and "triplets" not in signature(cls.fit).parameters:
        raise UsageError(f"{cls.name} does not learn from triplets; omit --triplets, or choose --method dtsh")
    if "preset" in config and (config["preset"] != "published" or not hasattr(cls, "published")):
        raise UsageError(f"there is no preset '{config['preset']}' for {cls.name}; dtsh and dpsh have published")


def _make(config: dict[str, Any], n_train: int) -> Hasher:
    """The hasher that is asked for; the rates of the authors' preset depend on the number of training images."""
    from hashlens.hashers.methods import hasher_class
    from hashlens.settings import apply

    cls: Any = hasher_class(config["method"])
    hasher = cls.published(config["params"]["n_bits"], n_train) if "preset" in config else cls()
    return apply(hasher, config["params"])


def _run(
    source: Source, config: dict[str, Any], out: Path, progress: Progress, replace: bool = False
) -> dict[str, Any]:
    from hashlens.data import make_protocol
    from hashlens.files import alone_in, storage_errors
    from hashlens.results import runs

    for warning in source.warnings:
        progress.say(f"note: {warning}")
    if source.skipped:
        progress.say(f"note: {len(source.skipped):,} images are skipped; see {out / 'skipped.csv'}")
    protocol = make_protocol(source, config["protocol"], config["seed"])
    hasher = _make(config, len(protocol.train))
    progress.say(
        f"{config['method'].upper()}, {hasher.n_bits} bits, seed {config['seed']}:"
        f" {len(protocol.train):,} training images, {len(protocol.query):,} queries,"
        f" {len(protocol.database):,} database → {out}/"
    )
    triplets = runs.read_triplets_of(config, source, protocol, progress.say)
    progress.say(f"Ctrl-C stops and saves; resume with: hashlens train --resume {quoted(out)}")
    if replace:
        with storage_errors(out):
            (out / "checkpoint.safetensors").unlink(missing_ok=True)
    command = shlex.join(["hashlens", *sys.argv[1:]])
    with alone_in(out), interruptible() as stop:
        return runs.run(
            source, protocol, hasher, out,
            config=config, triplets=triplets, commands=[command], progress=progress, stop=stop,
        )  # fmt: skip


def _finish(result: dict[str, Any], out: Path, as_json: bool, following: str) -> None:
    from hashlens.results.runs import headline

    if as_json:
        print(json.dumps(result))
        return
    print(headline(result))
    for what, name in (("figure", "results.png"), ("report", "report.html"), ("model", "model")):
        if (out / name).exists():
            print(f"{what:<8} {out / name}")
    print(f"next     {following}")
