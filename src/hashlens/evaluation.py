"""Evaluation: the folder of a run in, its saved codes scored under every definition of MAP out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hashlens.codes import Codes
from hashlens.data import open_source
from hashlens.data.protocols import Protocol
from hashlens.errors import MismatchError, UsageError
from hashlens.runs import columns_of, load_config, load_result


def evaluate_run(run: Path, topk: int | None = None) -> dict[str, Any]:
    from hashlens.metrics import DEFINITIONS, evaluate_ranking

    config = load_config(run)
    saved = load_result(run)["map"]
    if saved is None:
        raise UsageError(f"the pictures of {run} have no labels, so it has no MAP; see triplets_right in result.json")
    protocol = Protocol.load(run / "split.json")
    labels = open_source(config["source"], columns=columns_of(config)).labels
    protocol.check(len(labels))
    query = Codes.load(run / "codes" / "query.safetensors")
    database = Codes.load(run / "codes" / "database.safetensors")
    if (len(query), len(database)) != (len(protocol.query), len(protocol.database)):
        raise MismatchError(f"the codes in {run} do not belong to its split; run the training again")
    given = labels[protocol.query], labels[protocol.database]
    ranking = evaluate_ranking(query, database, *given, topk=protocol.topk)
    if abs(ranking.mean_average_precision(DEFINITIONS["paper"]) - saved) > 1e-9:  # rows now mean other pictures
        raise MismatchError(
            f"{config['source']} is not what it was when {run} was made: its pictures or labels have changed, so the"
            " codes do not belong to them; train again"
        )
    if topk is not None and topk != protocol.topk:
        ranking = evaluate_ranking(query, database, *given, topk=topk)
    topk = topk if topk is not None else protocol.topk
    precision, empty = ranking.lookup(2)
    return {
        "definitions": {
            name: {"map": ranking.mean_average_precision(definition), "definition": definition.describe(topk)}
            for name, definition in DEFINITIONS.items()
        },
        "topk": topk,
        "precision_radius_2": precision,
        "empty_radius_2": empty,
        "n_query": len(query),
        "n_database": len(database),
    }
