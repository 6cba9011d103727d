"""The command line: one command a stage; results on standard output, progress on standard error."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import hashlens
from hashlens.errors import HashlensError, StorageError, UsageError
from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.data import Source
    from hashlens.hashers.base import Hasher

app = typer.Typer(
    help="Similar-image search with short binary codes. Start with: hashlens demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

JSON = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")]
SEED = Annotated[int, typer.Option(min=0, help="Of the split, the initial weights and the order of pictures.")]
FROM_FILE = Annotated[
    Path | None, typer.Option(help="An archive of CIFAR-10 that you have: cifar-10-python.tar.gz or -binary.")
]


def main() -> None:
    """Run a command; a mistake of the user's is one sentence on stderr and a non-zero exit code, never a traceback."""
    # torch's threads spin for some microseconds when they wait, then sleep: sleeping at once costs a fifth of the
    # training speed, spinning for long takes the cores from whatever else runs
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    try:
        app()
    except HashlensError as error:
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("stopped; run the same command again to start over", file=sys.stderr)
        sys.exit(130)
    except MemoryError:
        print("error: not enough memory; try a smaller --image-size or fewer pictures", file=sys.stderr)
        sys.exit(StorageError.exit_code)
    except BrokenPipeError:  # the reader of our output has gone
        sys.stderr.close()
        sys.exit(141)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"hashlens {hashlens.__version__}")
        raise typer.Exit


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
    source: Annotated[
        str | None, typer.Argument(help="cifar10, digits, or a folder with one folder of pictures a class.")
    ] = None,
    method: Annotated[str, typer.Option(help="See: hashlens methods")] = "dtsh",
    bits: Annotated[int, typer.Option(help="Length of the codes.")] = 48,
    seed: SEED = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the run.  [default: runs/SOURCE-METHOD-BITS]")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="cifar10-1, cifar10-2 (the paper's settings) or split (any source).")
    ] = None,
    backbone: Annotated[str, typer.Option(help="auto, efficientnet-lite0/1/2 or small-cnn.")] = "auto",
    image_size: Annotated[int | None, typer.Option(help="Pixels a side; more is slower and better.")] = None,
    frozen_blocks: Annotated[int | None, typer.Option(help="Leading blocks that are not trained.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training pictures.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pictures a step.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the pretrained blocks.")] = None,
    head_lr: Annotated[float | None, typer.Option(help="Learning rate of the hash layer.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Margin in bits.  [default: half the bits]")] = None,
    lambda_: Annotated[float, typer.Option("--lambda", help="Weight of the quantisation term.")] = 100.0,
    triplets: Annotated[str, typer.Option(help="in-batch, or published: the authors' memory bank.")] = "in-batch",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    from_file: FROM_FILE = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Learn a hasher from labelled pictures, encode them and print MAP."""
    from hashlens.data import open_source
    from hashlens.runs import load_config

    progress = Progress(quiet)
    if resume is not None:
        if source is not None:
            raise UsageError("--resume takes everything from the run's folder; leave out the source and other options")
        config, out = load_config(resume), resume
        source = config["source"]
    else:
        if source is None:
            raise UsageError("say what to train on: hashlens train cifar10, or hashlens train path/to/folder")
        training = {
            "epochs": epochs,
            "batch_size": batch_size,
            "lr": lr,
            "head_lr": head_lr,
            "device": device,
        }
        params = {
            "n_bits": bits,
            "alpha": alpha,
            "lambda_": lambda_,
            "triplets": triplets,
            "backbone": backbone,
            "image_size": image_size,
            "frozen_blocks": frozen_blocks,
            "random_state": seed,
            "training": {name: value for name, value in training.items() if value is not None},
        }
        config = _config(source, protocol, seed, method, params)
        out = out or Path("runs") / f"{Path(source).resolve().name}-{method}-{bits}"
        if (out / "result.json").exists():
            raise UsageError(f"{out} holds a finished run; choose another --out or remove that folder")
    _make(config)  # wrong options are found before any work
    data = open_source(source, from_file=from_file, progress=progress.say)
    result = _run(data, config, out, progress)
    _finish(result, out, as_json, f"hashlens encode path/to/pictures --model {out / 'model'} --out codes")


@app.command()
def encode(
    source: Annotated[str, typer.Argument(help="A folder of pictures (class folders or not), cifar10 or digits.")],
    model: Annotated[Path, typer.Option(help="Folder of a model, such as runs/NAME/model.")],
    out: Annotated[Path, typer.Option(help="Folder for codes.safetensors and items.csv.")] = Path("codes"),
    as_json: JSON = False,
    quiet: QUIET = False,
) -> None:
    """Turn pictures into codes with a trained model."""
    from hashlens.encoding import encode_source
    from hashlens.hashers import load

    progress = Progress(quiet)
    result = encode_source(load(model), source, out, progress)
    if as_json:
        print(json.dumps(result))
    else:
        print(
            f"{result['n']:,} codes of {result['n_bits']} bits in {out}/codes.safetensors, their pictures in items.csv"
        )
        if result["n_skipped"]:
            print(f"{result['n_skipped']:,} pictures could not be read: see {out}/skipped.csv")


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


@app.command()
def methods(as_json: JSON = False) -> None:
    """List the methods."""
    from dataclasses import asdict

    from hashlens.hashers import METHODS

    if as_json:
        print(json.dumps({name: asdict(method) for name, method in METHODS.items()}))
        return
    for name, method in METHODS.items():
        labels = "labels" if method.supervised else "no labels"
        print(f"{name:<10} {labels:<10} {method.takes:<9} {method.summary} ({method.paper})")


@app.command()
def doctor(as_json: JSON = False) -> None:
    """Tell what this machine has: the first thing to paste into a bug report."""
    from hashlens.doctor import diagnose

    facts = diagnose()
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        print(f"{name:<10} {text}")


def _config(source: str, protocol: str | None, seed: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"source": source, "protocol": protocol, "seed": seed, "method": method, "params": params}


def _make(config: dict[str, Any]) -> Hasher:
    from hashlens.hashers import hasher_class
    from hashlens.hashers.deep.training import Training

    if config["params"]["n_bits"] < 1:
        raise UsageError(f"--bits must be a whole number from 1 up, not {config['params']['n_bits']}")
    params = dict(config["params"])
    if "training" in params:
        params["training"] = Training(**params["training"])
    return hasher_class(config["method"])(**params)


def _run(
    source: Source, config: dict[str, Any], out: Path, progress: Progress, replace: bool = False
) -> dict[str, Any]:
    from hashlens import runs
    from hashlens.data import make_protocol

    for warning in source.warnings:
        progress.say(f"note: {warning}")
    if source.skipped:
        progress.say(
            f"note: {len(source.skipped):,} pictures cannot be read and are left out; see {out / 'skipped.csv'}"
        )
    protocol = make_protocol(source, config["protocol"], config["seed"])
    hasher = _make(config)
    progress.say(
        f"{config['method'].upper()}, {hasher.n_bits} bits, seed {config['seed']}:"
        f" {len(protocol.train):,} training pictures, {len(protocol.query):,} queries,"
        f" {len(protocol.database):,} database → {out}/"
    )
    progress.say(f"stop with Ctrl-C, it is safe; continue with: hashlens train --resume {out}")
    if replace:
        (out / "checkpoint.safetensors").unlink(missing_ok=True)
    command = " ".join(["hashlens", *sys.argv[1:]])
    with _interruptible() as stop:
        return runs.run(source, protocol, hasher, out, config=config, commands=[command], progress=progress, stop=stop)


def _weights_or_say_why() -> None:
    from hashlens.networks.weights import pretrained_weights

    pretrained_weights("efficientnet-lite0")


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Within, the first Ctrl-C is a request to save and stop; the second stops at once."""
    asked = False

    def ask(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        print("finishing the step and saving; press Ctrl-C again to stop at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _finish(result: dict[str, Any], out: Path, as_json: bool, following: str) -> None:
    from hashlens.runs import headline

    if as_json:
        print(json.dumps(result))
        return
    print(headline(result))
    print(f"picture  {out / 'results.png'}\nreport   {out / 'report.html'}\nmodel    {out / 'model'}")
    print(f"next     {following}")
