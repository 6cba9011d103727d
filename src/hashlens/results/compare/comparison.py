"""Comparison: finished cells in, their table, plot, data frame and paired tests out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.data.protocols import Protocol
from hashlens.errors import UsageError
from hashlens.machine import machine, versions
from hashlens.results import tables
from hashlens.results.compare.cells import Cell, Variant
from hashlens.results.figures import plot_map
from hashlens.results.metrics import columns_of_metrics, mean_scores
from hashlens.results.published import published
from hashlens.results.runs import protocol_facts
from hashlens.results.significance import PairedTest, paired_test

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Comparison:
    """Methods compared on the same splits, shown as a table; `result` has everything as plain JSON values."""

    def __init__(self, result: dict[str, Any], average_precisions: Mapping[Cell, np.ndarray], out: Path | None = None):
        self.result, self.average_precisions, self.out = result, average_precisions, out
        self.test = cache(self._test)

    def __repr__(self) -> str:
        return tables.as_text(self.result)

    def _repr_html_(self) -> str:
        table = tables.map_table(self.result)
        notes = "".join(f"<li>{note}</li>" for note in map(tables.html.escape, table.notes))
        return tables.table_html(table, tables.title_of(self.result)) + f"<ul>{notes}</ul>"

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot MAP against the number of bits, a line per method and kind of features; returns the matplotlib axes."""
        return plot_map(self.result, axes)

    def to_frame(self) -> Any:
        """A pandas data frame with a row per method, kind of features and length."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise UsageError("to_frame needs pandas; install it with: pip install pandas") from error
        return pandas.DataFrame(list(tables.records(self.result)))

    def to_json(self) -> str:
        return json.dumps(self.result)

    def significance(self, a: str, b: str, n_bits: int | None = None) -> PairedTest:
        """Paired test of method `a` against `b` over the queries, at one length or, by default, the mean of all.

        Name a method that was run on several kinds of features with them: "ITQ on gist".
        """
        lengths = tuple(self.result["bits"] if n_bits is None else [n_bits])
        return self.test(_key(self.row(a)), _key(self.row(b)), lengths)

    def row(self, method: str) -> dict[str, Any]:
        """The row of a method, by its name or label."""
        return find_row(self.result["rows"], method)

    def _test(self, a: tuple[str, str], b: tuple[str, str], lengths: Sequence[int]) -> PairedTest:
        """Paired test over the queries of all splits that both have finished."""
        first, second = (self._mean_average_precisions(key, lengths) for key in (a, b))
        both = sorted(first.keys() & second.keys())
        if not both:
            bits = ", ".join(map(str, lengths))
            raise UsageError(f"{a[1]} on {a[0]} or {b[1]} on {b[0]} is not finished at {bits} bits")
        a_queries, b_queries = (np.concatenate([of[split] for split in both]) for of in (first, second))
        return paired_test(a_queries, b_queries)

    def _mean_average_precisions(self, key: tuple[str, str], lengths: Sequence[int]) -> dict[int, np.ndarray]:
        """By split, (q,): each query's mean over lengths and seeds; without splits that lack a length."""
        found: dict[int, list[Cell]] = {}
        for cell in self.average_precisions:
            if (cell.features, cell.method) == key and cell.n_bits in lengths:
                found.setdefault(cell.split, []).append(cell)
        return {
            split: np.mean([self.average_precisions[cell] for cell in cells], axis=0)
            for split, cells in found.items()
            if {cell.n_bits for cell in cells} == set(lengths)
        }

    def add_p_values(self, against: str | None = None) -> None:
        """Add "p" of the paired test against a method (default: the best) at each length; None for that method."""
        self.result["against"] = against
        for n in map(str, self.result["bits"]):
            rows = [row for row in self.result["rows"] if row["lengths"][n]["map"] is not None]
            best = max(rows, key=lambda row: row["lengths"][n]["map"], default=None)
            base = self.row(against) if against else best
            for row in self.result["rows"]:
                tested = base is not None and base in rows and row in rows and row is not base
                try:
                    row["lengths"][n]["p"] = self.test(_key(row), _key(base), (int(n),)).p if base and tested else None
                except UsageError:  # both have finished no common split
                    row["lengths"][n]["p"] = None


def find_row(rows: Sequence[dict[str, Any]], method: str) -> dict[str, Any]:
    """The row of a method, by its name or label."""

    def names(row: Mapping[str, Any]) -> list[str]:
        return [row["method"].lower(), tables.method_name(row["method"]).lower(), tables.row_label(row).lower()]

    found = [row for row in rows if method.lower() in names(row)]
    if len(found) != 1:
        known = ", ".join(tables.row_label(row) for row in found or rows)
        raise UsageError(f"'{method}' is {'ambiguous' if found else 'not compared here'}; choose from {known}")
    return found[0]


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return row["features"], row["method"]


def rows_of(cells: Iterable[Cell], variants: Mapping[str, Variant]) -> list[dict[str, Any]]:
    """The rows of a comparison without their numbers: each method on each kind of features."""
    rows = []
    for features, method in dict.fromkeys((cell.features, cell.method) for cell in cells):
        cls = variants[method].hasher_class
        rows.append({"features": features, "method": method, "supervised": cls.supervised, "takes": cls.takes})
    return rows


def summarise(
    cells: Sequence[Cell],
    finished: Mapping[Cell, dict[str, Any]],
    failed: Mapping[Cell, str],
    variants: Mapping[str, Variant],
    source: str,
    splits: Sequence[Protocol],
) -> dict[str, Any]:
    """The table as JSON: rows by kind of features, and the best mean MAP first within each."""
    bits, split = list(dict.fromkeys(cell.n_bits for cell in cells)), splits[0]
    rows = rows_of(cells, variants)
    for row in rows:
        own = [cell for cell in cells if (cell.features, cell.method) == _key(row)]
        lengths = {}
        for n_bits in bits:
            here = [cell for cell in own if cell.n_bits == n_bits]
            lengths[str(n_bits)] = {
                **summarise_cells([finished[cell] for cell in here if cell in finished]),
                "errors": list(dict.fromkeys(failed[cell] for cell in here if cell in failed)),
                "printed": published(split.name, row["method"], n_bits, row["features"], len(split.database)),
            }
        row["mean_map"] = _mean([at["map"] for at in lengths.values() if at["map"] is not None])
        row["fit_seconds"] = _mean([finished[cell]["seconds"]["fit"] for cell in own if cell in finished])
        row["lengths"] = lengths
    kinds = list(dict.fromkeys(row["features"] for row in rows))
    rows.sort(key=lambda row: (kinds.index(row["features"]), -(row["mean_map"] or 0)))
    return {
        "source": source,
        "definition": next((cell["metrics"]["definition"] for cell in finished.values()), None),
        "methods": list(variants),
        "features": kinds,
        "bits": bits,
        "seeds": list(dict.fromkeys(cell.seed for cell in cells)),
        "rows": rows,
        "n_cells": len(cells),
        "n_finished": len(finished),
        "n_failed": len(failed),
        "protocol": protocol_facts(split),
        "splits": [protocol_facts(split) for split in splits],
        "versions": versions(),
        "machine": machine(),
    }


def summarise_cells(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the splits and seeds of one length, the deviations, and the numbers of each."""
    metrics = [cell["metrics"] for cell in cells]
    curves = [[scores["pr_curve"][name] for scores in metrics] for name in ("precision", "recall")]
    precision, recall = (np.mean(curve, axis=0).tolist() if curve else [] for curve in curves)
    return {
        "n_seeds": len({cell["seed"] for cell in cells}),
        "n_splits": len({cell["split"] for cell in cells}),
        **mean_scores(metrics),
        "cells": [
            {
                "split": cell["split"],
                "seed": cell["seed"],
                **{key: cell["metrics"][key] for key in columns_of_metrics()},
            }
            for cell in cells
        ],
        "pr_curve": {"precision": precision, "recall": recall} if cells else None,
        "seconds": {name: _mean([cell["seconds"][name] for cell in cells]) for name in ("fit", "encode")},
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
