"""The summary of a comparison: finished cells in; the table's numbers, means over the seeds, as JSON out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.published import published
from hashlens.runs import machine, protocol_facts, versions

if TYPE_CHECKING:
    from hashlens.comparison.cells import Cell, Variant
    from hashlens.data import Source
    from hashlens.data.protocols import Protocol

MEANS = ("map", "map_tie_aware", "precision_radius_2", "empty_radius_2")


def summarise(
    cells: Sequence[Cell],
    finished: Mapping[Cell, dict[str, Any]],
    failed: Mapping[Cell, str],
    variants: Mapping[str, Variant],
    source: Source,
    split: Protocol,
) -> dict[str, Any]:
    """The table as JSON: rows by kind of features, and the best mean MAP first within each."""
    rows: list[dict[str, Any]] = []
    for features, method in dict.fromkeys((cell.features, cell.method) for cell in cells):
        lengths = {}
        for n_bits in dict.fromkeys(cell.n_bits for cell in cells):
            seeds = [c for c in cells if (c.features, c.method, c.n_bits) == (features, method, n_bits)]
            lengths[str(n_bits)] = {
                **summarise_seeds([finished[cell] for cell in seeds if cell in finished]),
                "errors": list(dict.fromkeys(failed[cell] for cell in seeds if cell in failed)),
                "printed": published(split.name, method, n_bits, features, len(split.database)),
            }
        maps = [at["map"] for at in lengths.values() if at["map"] is not None]
        fits = [finished[c]["seconds"]["fit"] for c in finished if (c.features, c.method) == (features, method)]
        rows.append(
            {
                "features": features,
                "method": method,
                "supervised": variants[method].hasher_class.supervised,
                "takes": variants[method].hasher_class.takes,
                "mean_map": _mean(maps),
                "fit_seconds": _mean(fits),
                "lengths": lengths,
            }
        )
    kinds = list(dict.fromkeys(row["features"] for row in rows))
    rows.sort(key=lambda row: (kinds.index(row["features"]), -(row["mean_map"] or 0)))
    return {
        "source": source.name,
        "definition": next((cell["metrics"]["definition"] for cell in finished.values()), None),
        "methods": list(variants),
        "features": kinds,
        "bits": list(dict.fromkeys(cell.n_bits for cell in cells)),
        "seeds": list(dict.fromkeys(cell.seed for cell in cells)),
        "rows": rows,
        "n_cells": len(cells),
        "n_finished": len(finished),
        "n_failed": len(failed),
        "n_skipped": len(source.skipped),
        "protocol": protocol_facts(split),
        "versions": versions(),
        "machine": machine(),
    }


def summarise_seeds(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the cells of one length, and the deviation of MAP where there are two or more."""
    metrics = [cell["metrics"] for cell in cells]
    maps = [scores["map"] for scores in metrics]
    curves = [[scores["pr_curve"][name] for scores in metrics] for name in ("precision", "recall")]
    precision, recall = (np.mean(curve, axis=0).tolist() if curve else [] for curve in curves)
    return {
        "n_seeds": len(cells),
        **{name: _mean([scores[name] for scores in metrics]) for name in MEANS},
        "map_deviation": float(np.std(maps, ddof=1)) if len(maps) > 1 else None,
        "pr_curve": {"precision": precision, "recall": recall} if cells else None,
        "seconds": {name: _mean([cell["seconds"][name] for cell in cells]) for name in ("fit", "encode")},
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
