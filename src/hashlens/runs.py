"""Runs: a source, a protocol and a hasher in; a folder with model, codes, scores and pictures out.

RUN/
  config.json       what was asked for; enough to continue or repeat the run
  split.json        the rows used for training, as queries and as database, with their hash
  metrics.csv       one row an epoch; curves.png shows it
  model/            config.json and model.safetensors
  codes/            query.safetensors and database.safetensors
  result.json       scores, seconds, versions, machine
  results.png       queries and their nearest pictures; report.html has everything in one file
  skipped.csv       pictures that could not be read, each with its reason
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import hashlens
from hashlens.errors import DataError, UsageError
from hashlens.files import quoted, require_room, storage_errors, write_csv, write_json
from hashlens.progress import Progress, duration
from hashlens.published import NOT_COMPARABLE, published

if TYPE_CHECKING:
    from hashlens.codes import Codes
    from hashlens.data import Columns, Source
    from hashlens.data.protocols import Protocol
    from hashlens.figures import Neighbours
    from hashlens.hashers.base import Hasher

EXAMPLES, NEAREST = 10, 10  # rows and columns of the picture of results


def run(
    source: Source,
    protocol: Protocol,
    hasher: Hasher,
    out: Path,
    *,
    config: dict[str, Any],
    commands: list[str],
    progress: Progress,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train on the protocol's training rows, encode queries and database, score, and write all files to `out`."""
    started = time.monotonic()
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    require_room(out, 200_000_000, "a run")
    protocol.save(out / "split.json")
    write_json(out / "config.json", config)
    write_csv(out / "skipped.csv", ["path", "reason"], source.skipped)

    seconds: dict[str, float] = {}
    rows = learning_rows(hasher, protocol)
    supervision: dict[str, Any] = {"y": source.labels[rows]}
    held_out = None
    if "triplets" in config:
        from hashlens.data.triplets import clean_triplets, read_triplets, split_triplets, triplets_right

        # first what says nothing or says it twice, so that nothing is both learnt and held out
        given, notes = clean_triplets(read_triplets(Path(config["triplets"]), source.images), len(source.images))
        for note in notes:
            progress.say(f"note: {note}")
        learnt, held_out = split_triplets(given, rows, protocol.seed, progress.say)
        supervision = {"triplets": learnt}
    hasher.fit(source.images[rows], **supervision, run=out, progress=progress, stop=stop)
    seconds["train"] = time.monotonic() - started
    hasher.save(out / "model")

    clock = time.monotonic()
    database = hasher.encode(source.images[protocol.database], progress=progress)
    database.save(out / "codes" / "database.safetensors")
    query = hasher.encode(source.images[protocol.query]) if len(protocol.query) else database[:0]
    query.save(out / "codes" / "query.safetensors")
    seconds["encode"] = time.monotonic() - clock

    clock = time.monotonic()
    scores = score(query, database, source, protocol) if len(query) else {}
    if held_out is not None:
        named, places = np.unique(held_out, return_inverse=True)
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
        "paper": published(protocol.name, hasher.name, hasher.n_bits, learnt_on(hasher), len(protocol.database)),
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
    neighbours = nearest(query, database, source, protocol)
    _draw(out, result, neighbours, history, commands)
    write_json(out / "result.json", result)
    (out / "checkpoint.safetensors").unlink(missing_ok=True)  # its work is done
    return result


def learning_rows(hasher: Hasher, protocol: Protocol) -> np.ndarray:
    """The rows that a method is fitted on: labels are scarce, so supervised ones have the training rows only."""
    return protocol.train if hasher.supervised else protocol.database


def learnt_on(hasher: Hasher) -> str:
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


def score(query: Codes, database: Codes, source: Source, protocol: Protocol) -> dict[str, Any]:
    from hashlens.metrics import evaluate_codes

    labels = source.labels
    return evaluate_codes(query, database, labels[protocol.query], labels[protocol.database], topk=protocol.topk)


def nearest(query: Codes, database: Codes, source: Source, protocol: Protocol) -> list[Neighbours]:
    """The nearest pictures of a few queries: the first query of each of the first classes, whatever its score.

    Without queries, a few pictures of the database are asked for, and found pictures are not called right or wrong.
    """
    from hashlens.data.labels import relevant
    from hashlens.figures import Neighbours
    from hashlens.hamming import distances

    labelled = len(query) > 0
    asked = protocol.query if labelled else protocol.database
    query = query if labelled else database
    labels = source.labels[asked]
    kinds = [labels.describe(row) for row in range(len(labels))]
    rows = sorted({kind: row for row, kind in reversed(list(enumerate(kinds)))}.values())[:EXAMPLES]
    rows += [row for row in range(len(labels)) if row not in rows][: EXAMPLES - len(rows)]
    found = []
    for row in rows:
        apart = distances(query[row], database)[0]
        order = np.argsort(apart, kind="stable")
        order = order[protocol.database[order] != asked[row]][:NEAREST]
        places = protocol.database[order]
        found.append(
            Neighbours(
                query=source.images.thumbnail(int(asked[row])),
                query_label=labels.describe(row) if labelled else source.images.names[asked[row]],
                images=[source.images.thumbnail(int(place)) for place in places],
                labels=[source.labels.describe(int(p)) if labelled else source.images.names[p] for p in places],
                distances=apart[order].tolist(),
                right=relevant(labels[[row]], source.labels[places])[0].tolist() if labelled else None,
                n_bits=query.n_bits,
            )
        )
    return found


def headline(result: dict[str, Any]) -> str:
    """MAP with its definition and, where there is one, the paper's number."""
    scores = result["metrics"]
    lines = []
    if "map" in scores:
        lines.append(f"MAP {scores['map']:.4f}   {scores['definition']}")
        lines.append(f"    {scores['map_tie_aware']:.4f}   tie-aware: expected over every order of equal distances")
    if "triplets_right" in scores:
        lines.append(f"triplets {scores['triplets_right']:.1%} right of those held out of training")
    if paper := result["paper"]:
        but = "" if paper.get("comparable", True) else f" ({NOT_COMPARABLE})"
        lines.append(f"    {paper['map']:.3f}    the paper, {paper['source']}{but}")
    p, counts = result["protocol"], result["seconds"]
    lines.append(
        f"protocol {p['name']}, seed {p['seed']}: {p['n_train']:,} training, {p['n_query']:,} queries,"
        f" {p['n_database']:,} database · {duration(counts['total'])}"
    )
    return "\n".join(lines)


def load_config(out: Path) -> dict[str, Any]:
    """What a run was asked for."""
    try:
        config = json.loads((out / "config.json").read_text(encoding="utf-8"))
        if config.keys() >= {"source", "protocol", "seed", "method", "params"}:
            return config
    except (OSError, ValueError, AttributeError):
        pass
    raise DataError(f"{out} is not the folder of a run (its config.json is missing or damaged, or is something else's)")


def columns_of(config: dict[str, Any]) -> Columns | None:
    """The columns that were named for a table."""
    from hashlens.data import Columns

    return Columns(**config["columns"]) if "columns" in config else None


def load_result(out: Path) -> dict[str, Any]:
    try:
        return json.loads((out / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{out} has no result yet; finish it with: hashlens train --resume {quoted(out)}") from error
    except ValueError as error:
        raise DataError(f"{out / 'result.json'} is damaged; run the training again") from error


def versions() -> dict[str, str]:
    names = ["numpy", "numba", "pillow", "scikit-learn", "onnxruntime", "onnx", "torch"]
    found = {"hashlens": hashlens.__version__, "python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    from hashlens.threads import n_threads

    return {"cpu": _cpu_name(), "threads": n_threads(), "system": f"{platform.system()} {platform.machine()}"}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def _draw(
    out: Path, result: dict[str, Any], neighbours: list[Neighbours], history: list[Any], commands: list[str]
) -> None:
    from hashlens.figures import curves_figure, retrieval_figure
    from hashlens.report import write_report

    title = f"{result['method'].upper()}, {result['n_bits']} bits, {result['source']}"
    score = "" if result["map"] is None else f": MAP {result['map']:.3f}"
    retrieval_figure(neighbours, out / "results.png", title=title + score)
    if history:
        curves_figure(history, out / "curves.png")
    write_report(
        out / "report.html",
        title=title,
        result=result,
        neighbours=neighbours,
        metrics=history,
        commands=commands,
    )
