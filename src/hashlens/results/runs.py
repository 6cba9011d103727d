"""Runs: a source, a protocol and a hasher in, a folder with model, codes, scores and figures out.

RUN/
  config.json       the request; enough to resume or repeat the run
  split.json        the rows used for training, as queries and as database, with their hash
  metrics.csv       one row per epoch; curves.png shows it
  model/            config.json and model.safetensors
  codes/            codes folders query and database, with paths and labels: hashlens index build RUN
  result.json       scores, seconds, versions, machine
  splits/           with several splits: the scores of the others; model, codes and figures are from the first
  results.png       queries and their nearest images; report.html has everything in one file
  skipped.csv       images that could not be read, each with its reason
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.codes import Codes
from hashlens.codes.encoder import Encoder
from hashlens.codes.folder import CodesFolder, write_codes
from hashlens.codes.model import ModelFolder
from hashlens.data import Source
from hashlens.data.labels import Labels
from hashlens.data.protocols import Protocol
from hashlens.data.triplets import clean_triplets, read_triplets, split_triplets, triplets_right
from hashlens.errors import DataError, Stopped, UsageError, to_install
from hashlens.files import quoted, require_room, storage_errors, write_csv, write_json
from hashlens.machine import blocks, machine, versions
from hashlens.progress import Progress, counted, duration
from hashlens.ranks import current
from hashlens.results.figures import curves_figure
from hashlens.results.metrics import DEFINITIONS, columns_of_metrics, evaluate_codes, evaluate_with_ranking, mean_scores
from hashlens.results.published import NOT_COMPARABLE, published
from hashlens.results.report import write_report
from hashlens.results.retrieval import Neighbours, nearest, retrieval_figure
from hashlens.results.tables import length_name, map_text, split_text
from hashlens.schema import conform, parse_json

if TYPE_CHECKING:
    from hashlens.hashers.base import Hasher

MEET = 512  # images that a rank encodes between synchronisations


def run(
    source: Source,
    protocol: Protocol,
    hasher: Hasher,
    out: Path,
    *,
    config: dict[str, Any],
    triplets: tuple[np.ndarray, np.ndarray] | None = None,
    more_splits: Sequence[Protocol] = (),
    commands: list[str],
    progress: Progress,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Train on the protocol's training rows, encode queries and database, score, and write all files to `out`.

    `triplets` are the result of `read_triplets_of`: for training instead of labels, and held out. On `more_splits` the
    same method is trained and scored again. Several ranks train and encode together, but only the first scores, writes
    and returns a result.
    """
    untrained = [_copy(hasher) for _ in more_splits]
    started = time.monotonic()
    ranks = current()
    asked = {name: value for name, value in config.items() if name not in ("source", "triplets")}  # paths may differ
    ranks.require_same(**asked, split=protocol.fingerprint())
    if ranks.first:
        with storage_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        require_room(out, 200_000_000, "a run")
        protocol.save(out / "split.json")
        write_json(out / "config.json", config)
        write_csv(out / "skipped.csv", ["path", "reason"], source.skipped)

    seconds: dict[str, float] = {}
    how: dict[str, Any] = {"progress": progress, "stop": stop}
    _fit(hasher, source, protocol, None if triplets is None else triplets[0], run=out, **how)
    seconds["train"] = time.monotonic() - started
    if ranks.first:
        hasher.save(out / "model")

    clock = time.monotonic()
    query, database = _encode(hasher, source, protocol, progress)
    if not ranks.first:
        return None
    save_codes(out, query, database, source, protocol)
    seconds["encode"] = time.monotonic() - clock

    clock = time.monotonic()
    scores = _score(query, database, source, protocol)
    if triplets is not None:
        named, places = np.unique(triplets[1], return_inverse=True)
        codes = hasher.encode(source.images[named])
        scores["triplets_right"] = triplets_right(*(codes[role] for role in places.reshape(-1, 3).T))
    seconds["evaluate"] = time.monotonic() - clock
    seconds["total"] = time.monotonic() - started

    history = getattr(hasher, "history_", [])
    result: dict[str, Any] = {
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
        "machine": machine() | ({"ranks": ranks.size} if ranks.size > 1 else {}),
    }
    if more_splits:
        result["splits"] = [_split_result(protocol, scores, seconds)]
        for number, (other, copy) in enumerate(zip(more_splits, untrained, strict=True), start=1):
            progress.say(f"split {number + 1} of {len(more_splits) + 1}, seed {other.seed}")
            result["splits"].append(_run_split(copy, source, other, out / "splits" / str(number), **how))
        result["over_splits"] = mean_scores([split["metrics"] for split in result["splits"]])
    if find_spec("matplotlib"):
        _draw(out, result, nearest(query, database, source, protocol), history, commands)
    else:
        progress.say(f"note: results.png and report.html are not written; they need {to_install('report')}")
    write_json(out / "result.json", result)
    (out / "checkpoint.safetensors").unlink(missing_ok=True)  # no longer needed
    return result


def _copy(hasher: Hasher) -> Any:
    """A hasher with the same settings, not fitted."""
    from sklearn.base import clone

    return clone(hasher)


def _fit(hasher: Any, source: Source, protocol: Protocol, triplets: np.ndarray | None = None, **how: Any) -> None:
    rows = learning_rows(hasher, protocol)
    supervision: dict[str, Any] = {} if source.labels is None else {"y": source.labels[rows]}
    if triplets is not None:
        supervision = {"triplets": triplets}
    hasher.fit(source.images[rows], **supervision, **how)


def _encode(hasher: Hasher, source: Source, protocol: Protocol, progress: Progress) -> tuple[Codes, Codes]:
    """Codes of the queries and of the database; each rank encodes a part.

    Ranks synchronise after every few images, so that a slow one on a busy machine is not taken for lost.
    """
    ranks = current()

    def codes(rows: np.ndarray, progress: Progress | bool = False) -> Codes:
        if ranks.size == 1:
            return hasher.encode(source.images[rows], progress=progress)
        encoder, found = Encoder.of(hasher), []
        with Progress.of(progress).bar("codes", len(rows)) as advance:
            for block in blocks(len(rows), MEET * ranks.size):
                found.append(together(encoder, rows[block]))
                advance(len(found[-1]))
        return Codes.concatenate(found)

    def together(encoder: Encoder, rows: np.ndarray) -> Codes:
        mine = rows[ranks.part(len(rows))]
        found = encoder.encode(source.images[mine if len(mine) else rows[:1]])[: len(mine)]
        whole = replace(found, packed=ranks.gathered(found.packed), second=None)
        if found.second is None:
            return whole
        return replace(whole, second=replace(found.second, packed=ranks.gathered(found.second.packed)))

    database = codes(protocol.database, progress)
    return codes(protocol.query) if len(protocol.query) else database[:0], database


def _score(query: Codes, database: Codes, source: Source, protocol: Protocol) -> dict[str, Any]:
    """The scores; empty without queries."""
    if not len(query):
        return {}
    labels = source.labels[protocol.query], source.labels[protocol.database]
    return evaluate_codes(query, database, *labels, topk=protocol.topk, learned=protocol.learned)


def _run_split(
    hasher: Hasher, source: Source, protocol: Protocol, folder: Path, progress: Progress, stop: Callable[[], bool]
) -> dict[str, Any]:
    """The scores of one more split, kept in FOLDER.json, so that a resumed run does not train it again."""
    kept = folder.with_name(f"{folder.name}.json")
    try:
        saved = parse_json(kept.read_bytes())
        if saved["protocol"] == protocol_facts(protocol):
            return saved
    except (OSError, ValueError, KeyError, TypeError):
        pass
    started = time.monotonic()
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        _fit(hasher, source, protocol, run=folder, progress=progress, stop=stop)
    except Stopped as error:  # it names the folder of the split
        again = f"hashlens train --resume {quoted(folder.parent.parent)}"
        raise Stopped(f"stopped and saved in split {int(folder.name) + 1}; resume with: {again}") from error
    seconds = {"train": time.monotonic() - started}
    scores = _score(*_encode(hasher, source, protocol, progress), source, protocol)
    found = _split_result(protocol, scores, seconds | {"total": time.monotonic() - started})
    write_json(kept, found)
    shutil.rmtree(folder, ignore_errors=True)  # no longer needed
    return found


def _split_result(protocol: Protocol, scores: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
    return {
        "protocol": protocol_facts(protocol),
        "metrics": {key: scores[key] for key in columns_of_metrics()},
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
    }


def read_triplets_of(
    path: Path, source: Source, protocol: Protocol, say: Callable[[str], object]
) -> tuple[np.ndarray, np.ndarray]:
    """Triplets for training, as positions among the training rows, and held-out ones."""
    # duplicates and invalid ones are removed first, so that none is both trained on and held out
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
    """The rows a method is fitted on: supervised methods get only the training rows, because labels are scarce."""
    return protocol.train if hasher.supervised else protocol.database


def learned_on(hasher: Hasher) -> str:
    """The backbone of a trained network, or the name of the fixed features."""
    return getattr(hasher, "backbone_", "") or getattr(hasher, "features", "")


def protocol_facts(protocol: Protocol) -> dict[str, Any]:
    return {
        "name": protocol.name,
        "seed": protocol.seed,
        "n_train": len(protocol.train),
        "n_query": len(protocol.query),
        "n_database": len(protocol.database),
        "split_hash": protocol.fingerprint(),
    } | ({"notes": list(protocol.notes)} if protocol.notes else {})


def headline(result: dict[str, Any]) -> str:
    """MAP with its definition, of a random ranking, among unlearned images and, if known, in the paper."""
    scores = result["metrics"]
    lines = []
    if over := result.get("over_splits"):
        maps = [f"MAP {map_text(over)}"]
        if over["map_unlearned"] is not None:
            maps.append(f"among unlearned images {map_text(over, 'map_unlearned')}")
        n = len(result["splits"])
        lines.append(f"{', '.join(maps)}   mean ± standard deviation over {n} splits")
        lines.append("The model, its codes and figures, and the numbers below are from the first split.")
    if "map" in scores:
        lines.append(f"MAP {scores['map']:.4f}   {scores['definition']}")
        lines.append(f"    {scores['map_tie_aware']:.4f}   tie-aware: expectation over all orders of equal distances")
        if scores.get("map_both") is not None:
            lines.append(f"    {scores['map_both']:.4f}   ties ordered by the second code (search --by both)")
            lines.append(f"    {scores['map_second']:.4f}   by the second code alone (search --by second)")
        lines.append(f"    {scores['map_random']:.4f}   a random ranking")
        if math.isclose(scores["map_tie_aware"], scores["map_random"]):
            lines.append("    note: no better than random, as if all codes were equal; train longer (--epochs)")
        if scores["map_unlearned"] is None:
            lines.append("    –        among unlearned images: no two share a label; add images")
        else:
            among = f"among {counted(scores['n_unlearned'], 'image')} not used in training"
            lines.append(
                f"    {scores['map_unlearned']:.4f}   {among}, tie-aware; a random ranking"
                f" {scores['map_unlearned_random']:.4f}"
            )
    if "triplets_right" in scores:
        lines.append(f"triplets {scores['triplets_right']:.1%} of held-out triplets right")
    if paper := result["paper"]:
        but = "" if paper["comparable"] else f" ({NOT_COMPARABLE})"
        lines.append(f"    {paper['map']:.3f}    the paper, {paper['source']}{but}")
    return "\n".join([*lines, f"{split_text(result['protocol'])} · {duration(result['seconds']['total'])}"])


def load_config(out: Path) -> dict[str, Any]:
    """The request of a run (config.json)."""
    try:
        config = parse_json((out / "config.json").read_bytes())
        if config.keys() >= {"source", "protocol", "seed", "method", "params"}:
            return config
    except (OSError, ValueError, AttributeError):
        pass
    raise DataError(
        f"{out} is not a run folder (its config.json is missing, damaged or from something else);"
        " give one made by hashlens train"
    )


def load_result(out: Path) -> dict[str, Any]:
    try:
        result = conform(parse_json((out / "result.json").read_bytes()), dict)
        conform(result.get("map", ""), (None, int, float), "map")
        return result
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
    cut = protocol.topk if topk is None else topk
    scores, ranking = evaluate_with_ranking(load_codes(run), cut, protocol.learned, numbers)
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
