"""Runs: a source, a protocol and a hasher in; a folder with model, codes, scores and figures out.

RUN/
  config.json       what was asked for; enough to resume or repeat the run
  split.json        the rows used for training, as queries and as database, with their hash
  metrics.csv       one row per epoch; curves.png shows it
  model/            config.json and model.safetensors
  codes/            codes folders query and database, with paths and labels: hashlens index build RUN
  result.json       scores, seconds, versions, machine
  results.png       queries and their nearest images; report.html has everything in one file
  skipped.csv       images that could not be read, each with its reason
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.codes import Codes
from hashlens.codes.folder import CodesFolder, write_codes
from hashlens.codes.model import ModelFolder
from hashlens.data import Source
from hashlens.data.labels import Labels
from hashlens.data.protocols import Protocol
from hashlens.data.triplets import clean_triplets, read_triplets, split_triplets, triplets_right
from hashlens.errors import DataError, UsageError
from hashlens.files import quoted, require_room, storage_errors, write_csv, write_json
from hashlens.machine import machine, versions
from hashlens.progress import Progress, duration
from hashlens.results.figures import curves_figure
from hashlens.results.metrics import DEFINITIONS, evaluate_codes, evaluate_with_ranking
from hashlens.results.published import NOT_COMPARABLE, published
from hashlens.results.report import write_report
from hashlens.results.retrieval import Neighbours, nearest, retrieval_figure
from hashlens.results.tables import length_name, split_text

if TYPE_CHECKING:
    from hashlens.hashers.base import Hasher


def run(
    source: Source,
    protocol: Protocol,
    hasher: Hasher,
    out: Path,
    *,
    config: dict[str, Any],
    triplets: tuple[np.ndarray, np.ndarray] | None = None,
    commands: list[str],
    progress: Progress,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train on the protocol's training rows, encode queries and database, score, and write all files to `out`.

    `triplets` are what `read_triplets_of` gives: to train on instead of labels, and held out.
    """
    started = time.monotonic()
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    require_room(out, 200_000_000, "a run")
    protocol.save(out / "split.json")
    write_json(out / "config.json", config)
    write_csv(out / "skipped.csv", ["path", "reason"], source.skipped)

    seconds: dict[str, float] = {}
    rows = learning_rows(hasher, protocol)
    supervision: dict[str, Any] = {} if source.labels is None else {"y": source.labels[rows]}
    if triplets is not None:
        supervision = {"triplets": triplets[0]}
    hasher.fit(source.images[rows], **supervision, run=out, progress=progress, stop=stop)
    seconds["train"] = time.monotonic() - started
    hasher.save(out / "model")

    clock = time.monotonic()
    database = hasher.encode(source.images[protocol.database], progress=progress)
    query = hasher.encode(source.images[protocol.query]) if len(protocol.query) else database[:0]
    save_codes(out, query, database, source, protocol)
    seconds["encode"] = time.monotonic() - clock

    clock = time.monotonic()
    scores: dict[str, Any] = {}
    if len(query):
        labels = source.labels[protocol.query], source.labels[protocol.database]
        scores = evaluate_codes(query, database, *labels, topk=protocol.topk)
    if triplets is not None:
        named, places = np.unique(triplets[1], return_inverse=True)
        codes = hasher.encode(source.images[named])
        scores["triplets_right"] = triplets_right(*(codes[role] for role in places.reshape(-1, 3).T))
    seconds["evaluate"] = time.monotonic() - clock
    seconds["total"] = time.monotonic() - started

    history = getattr(hasher, "history_", [])
    result = {
        "method": hasher.name,
        "n_bits": hasher.n_bits,
        "source": source.name,
        "map": scores.get("map"),
        "paper": published(protocol.name, hasher.name, hasher.n_bits, learned_on(hasher), len(protocol.database)),
        "metrics": scores,
        "protocol": protocol_facts(protocol),
        "backbone": getattr(hasher, "backbone_", None),
        "image_size": getattr(hasher, "image_size_", None),
        "epochs": len(history) or None,
        "n_skipped": len(source.skipped),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "config": config,
        "versions": versions(),
        "machine": machine(),
    }
    if find_spec("matplotlib") and find_spec("jinja2"):
        _draw(out, result, nearest(query, database, source, protocol), history, commands)
    else:
        progress.say('note: results.png and report.html are not written; they need pip install "hashlens[report]"')
    write_json(out / "result.json", result)
    (out / "checkpoint.safetensors").unlink(missing_ok=True)  # no longer needed
    return result


def read_triplets_of(
    path: Path, source: Source, protocol: Protocol, say: Callable[[str], object]
) -> tuple[np.ndarray, np.ndarray]:
    """Triplets to train on, as places among the training rows, and those held out."""
    # duplicates and meaningless ones go first, so that none is both trained on and held out
    given, notes = clean_triplets(read_triplets(path, source.images), len(source.images))
    for note in notes:
        say(f"note: {note}")
    return split_triplets(given, protocol.train, protocol.seed, say)


def save_codes(out: Path, query: Codes, database: Codes, source: Source, protocol: Protocol) -> None:
    """Codes folders of the queries and of the database, with paths and labels, for the model in `out`."""
    table = source.table.select([name for name in source.table.column_names if name != "split"])
    model = ModelFolder.resolve(out).describe()
    for role, codes, rows in (("query", query, protocol.query), ("database", database, protocol.database)):
        write_codes(out / "codes" / role, codes, table.take(rows), model, source.name)


def load_codes(run: Path) -> tuple[Codes, Codes, Labels, Labels]:
    """Codes and labels of the queries and of the database."""
    (query, asked), (database, searched) = (
        CodesFolder.open(run / "codes" / role).concatenated() for role in ("query", "database")
    )
    sets = asked["labels"].to_pylist() + searched["labels"].to_pylist()
    labels = Labels.of_sets(sets, multi=any(len(names) != 1 for names in sets))
    return query, database, labels[: len(query)], labels[len(query) :]


def learning_rows(hasher: Hasher, protocol: Protocol) -> np.ndarray:
    """The rows that a method is fitted on: supervised ones have only the training rows, because labels are scarce."""
    return protocol.train if hasher.supervised else protocol.database


def learned_on(hasher: Hasher) -> str:
    """The backbone of a network that was trained, or the name of the fixed features."""
    return getattr(hasher, "backbone_", "") or getattr(hasher, "features", "")


def protocol_facts(protocol: Protocol) -> dict[str, Any]:
    return {
        "name": protocol.name,
        "seed": protocol.seed,
        "n_train": len(protocol.train),
        "n_query": len(protocol.query),
        "n_database": len(protocol.database),
        "split_hash": protocol.fingerprint(),
    }


def headline(result: dict[str, Any]) -> str:
    """MAP with its definition and, where there is one, the paper's number."""
    scores = result["metrics"]
    lines = []
    if "map" in scores:
        lines.append(f"MAP {scores['map']:.4f}   {scores['definition']}")
        lines.append(f"    {scores['map_tie_aware']:.4f}   tie-aware: expected over all orders of equal distances")
    if "triplets_right" in scores:
        lines.append(f"triplets {scores['triplets_right']:.1%} right of those held out of training")
    if paper := result["paper"]:
        but = "" if paper["comparable"] else f" ({NOT_COMPARABLE})"
        lines.append(f"    {paper['map']:.3f}    the paper, {paper['source']}{but}")
    return "\n".join([*lines, f"{split_text(result['protocol'])} · {duration(result['seconds']['total'])}"])


def load_config(out: Path) -> dict[str, Any]:
    """What a run was asked for."""
    try:
        config = json.loads((out / "config.json").read_text(encoding="utf-8"))
        if config.keys() >= {"source", "protocol", "seed", "method", "params"}:
            return config
    except (OSError, ValueError, AttributeError):
        pass
    raise DataError(
        f"{out} is not a run folder (its config.json is missing, damaged or of something else);"
        " give one made by hashlens train"
    )


def load_result(out: Path) -> dict[str, Any]:
    try:
        return json.loads((out / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{out} has no result yet; finish it with: hashlens train --resume {quoted(out)}") from error
    except ValueError as error:
        raise DataError(f"{out / 'result.json'} is damaged; train again") from error


def evaluate_run(run: Path, topk: int | None = None, **numbers: Sequence[int]) -> dict[str, Any]:
    """Score the saved codes of a run again, under every definition of MAP; `numbers` as in `evaluate_codes`."""
    load_config(run)
    if load_result(run)["map"] is None:
        raise UsageError(f"the images of {run} have no labels, so it has no MAP; see triplets_right in result.json")
    protocol = Protocol.load(run / "split.json")
    scores, ranking = evaluate_with_ranking(load_codes(run), protocol.topk if topk is None else topk, numbers)
    definitions = {
        name: {"map": ranking.mean_average_precision(definition), "definition": definition.describe(ranking.topk)}
        for name, definition in DEFINITIONS.items()
    }
    return {"definitions": definitions, **scores}


def _draw(
    out: Path, result: dict[str, Any], neighbours: list[Neighbours], history: list[Any], commands: list[str]
) -> None:
    title = f"{result['method'].upper()}, {length_name(result['n_bits'])}, {result['source']}"
    score = "" if result["map"] is None else f": MAP {result['map']:.3f}"
    retrieval_figure(neighbours, out / "results.png", title=title + score)
    if history:
        curves_figure(history, out / "curves.png")
    write_report(
        out / "report.html", title=title, result=result, neighbours=neighbours, history=history, commands=commands
    )
