"""The commands that learn: demo, train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

import hashlens
from hashlens.cli import options
from hashlens.cli.options import BITS, COLUMNS, FROM_FILE, JSON, PROTOCOL, QUIET, SEED, SOURCE, given
from hashlens.errors import UsageError, require
from hashlens.features.networks import BACKBONES
from hashlens.files import quoted, require_own
from hashlens.progress import Progress, counted

if TYPE_CHECKING:
    from hashlens.data import Source
    from hashlens.hashers.base import Hasher

app = typer.Typer()
RUN = ("split.json",)  # what a run begins with
DEEP = ("torch", "sklearn", "matplotlib", "jinja2")  # what training a network and its report need


@app.command()
def demo(
    out: Annotated[Path, Option(help="Folder for the results.")] = Path("hashlens-demo"),
    bits: BITS = 32,
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
    method: Annotated[str, Option(help="See: hashlens methods")] = "dtsh",
    bits: BITS = 48,
    seed: SEED = 0,
    out: Annotated[Path | None, Option(help="Folder of the run.", show_default="runs/SOURCE-METHOD-BITS")] = None,
    protocol: PROTOCOL = None,
    backbone: Annotated[str | None, Option(help=f"{BACKBONES}.")] = None,
    weights: Annotated[Path | None, Option(help="Weights of the backbone: imagenet-vgg-f.mat for cnn-f.")] = None,
    features: Annotated[str | None, Option(help="For methods on features: gist, or a backbone.")] = None,
    image_size: Annotated[int | None, Option(help="Image side in pixels; larger is slower and better.")] = None,
    frozen_blocks: Annotated[int | None, Option(help="Leading blocks that are not trained.")] = None,
    epochs: Annotated[int | None, Option(help="Training epochs.")] = None,
    precision: Annotated[str | None, Option(help="Arithmetic of training: float32 or bfloat16.")] = None,
    chosen: Annotated[
        list[str] | None, Option("--set", metavar="NAME=VALUE", help="Any other setting; see: hashlens methods NAME")
    ] = None,
    triplets: Annotated[Path | None, Option(help="Learn from lines of query,positive,negative, not labels.")] = None,
    preset: Annotated[str | None, Option(help="published: the settings of the method's paper.")] = None,
    quirk: Annotated[str | None, Option(help="transposed-test-batch: a bug of the authors' CIFAR-10 code.")] = None,
    columns: COLUMNS = None,
    device: Annotated[str | None, Option(help="auto, cpu or cuda.")] = None,
    from_file: FROM_FILE = None,
    resume: Annotated[Path | None, Option(help="Resume the run in this folder.")] = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Learn a hasher from labelled images, encode them and print MAP."""
    from hashlens.features.extractor import is_features
    from hashlens.hashers.methods import METHODS, hasher_class
    from hashlens.results.runs import load_config
    from hashlens.settings import checked, parse

    progress = Progress(quiet)
    if resume is not None:
        if set(options.typed(context)) - {"resume", "from_file", "as_json", "quiet"}:
            raise UsageError("--resume takes everything from the run's folder; omit the source and other options")
        config, out = load_config(resume), resume
        typed = config
    else:
        if not source:
            raise UsageError("say what to train on: hashlens train cifar10, or hashlens train path/to/folder")
        named = ("backbone", "features", "image_size", "frozen_blocks", "epochs", "precision", "device")
        values = {"n_bits": bits, "random_state": seed, "weights": weights and str(weights)}
        if method in METHODS and METHODS[method].deep:
            require(*DEEP, why=method)
        cls = hasher_class(method)
        params = checked(cls, given(values | {name: context.params[name] for name in named})) | parse(cls, chosen or [])
        if params.get("weights"):  # also with --set
            params["weights"] = options.full_path(Path(params["weights"]))
        asked = {
            "triplets": options.full_path(triplets),
            "preset": preset,
            "quirk": quirk,
            "columns": given(vars(options.chosen_columns(columns))) or None,
        }
        config = _config(source, protocol, seed, method, params) | given(asked)
        # an error names files as they were typed; the run remembers where they are
        typed = config | given({"source": source, "triplets": triplets})
        _require_possible(cls, config)
        out = out or Path("runs") / f"{Path(source).resolve().name}-{method}-{bits}"
        require_own(out, RUN, "run")
        if (out / "cells").exists():
            raise UsageError(f"{out} is the folder of a comparison; choose another --out")
        if (out / "checkpoint.safetensors").exists() and load_config(out) != json.loads(json.dumps(config)):
            raise UsageError(
                f"{out} contains another run that was stopped; resume it with hashlens train --resume {quoted(out)}, or"
                " choose another --out"
            )
    if (out / "result.json").exists():
        raise UsageError(f"{out} contains a finished run; choose another --out, or remove that folder to train again")
    opened = options.open_source_of(typed, from_file, progress)
    result = _run(opened, config, out, progress, triplets=typed.get("triplets"))
    following = f"hashlens encode path/to/images --model {quoted(out / 'model')} --out codes"
    if is_features(opened.images):  # no command computes them for other images
        following = f"hashlens evaluate {quoted(out)}"
    _finish(result, out, as_json, following)


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
) -> dict[str, Any]:
    from hashlens.data import make_protocol
    from hashlens.files import alone_in, storage_errors
    from hashlens.results import runs
    from hashlens.results.tables import split_text

    for warning in source.warnings:
        progress.say(f"note: {warning}")
    if source.skipped:
        progress.say(f"note: skipping {counted(len(source.skipped), 'image')}; see {out / 'skipped.csv'}")
    protocol = make_protocol(source, config["protocol"], config["seed"])
    hasher = _make(config, len(protocol.train))
    split = split_text(runs.protocol_facts(protocol))
    progress.say(f"{config['method'].upper()}, {counted(hasher.n_bits, 'bit')}, {split} → {out}/")
    pairs = None if triplets is None else runs.read_triplets_of(Path(triplets), source, protocol, progress.say)
    progress.say(f"Ctrl-C stops and saves; resume with: hashlens train --resume {quoted(out)}")
    if replace:
        with storage_errors(out):
            (out / "checkpoint.safetensors").unlink(missing_ok=True)
    with alone_in(out), options.interruptible() as stop:
        return runs.run(
            source, protocol, hasher, out,
            config=config, triplets=pairs, commands=[options.command_line()], progress=progress, stop=stop,
        )  # fmt: skip


def _finish(result: dict[str, Any], out: Path, as_json: bool, following: str) -> None:
    from hashlens.results.runs import headline

    files = {"figure": out / "results.png", "report": out / "report.html", "model": out / "model"}
    written = [f"{what:<8} {path}" for what, path in files.items() if path.exists()]
    options.show(result, as_json, headline(result), *written, f"next     {following}")
