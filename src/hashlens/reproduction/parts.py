"""Parts: what a target asks for in; a comparison that was run, with its numbers by method and length, out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.comparison import Cell, Variant, compare, kept_codes
from hashlens.comparison.tables import method_name
from hashlens.data import Source
from hashlens.data.protocols import Protocol
from hashlens.hashers.deep.training import Training
from hashlens.progress import Progress
from hashlens.reproduction.scales import FROZEN, Scale, rough_seconds
from hashlens.significance import Comparison, compare_queries


@dataclass(frozen=True, eq=False)
class Part:
    """One comparison of a target: methods on one split."""

    title: str
    folder: str  # where its cells are; parts on the same split share one
    source: Source
    protocol: Protocol
    methods: Sequence[str | Variant]
    bits: tuple[int, ...]
    features: tuple[str, ...] = ()
    paper: str | None = None  # the protocol under which printed numbers are found
    genuine: bool = True  # whether the data are those of the printed numbers


@dataclass(frozen=True, eq=False)
class Absent:
    """Rows of a table whose data are not there."""

    title: str
    paper: str
    methods: Sequence[str]
    bits: tuple[int, ...]
    features: tuple[str, ...]
    reason: str


@dataclass(frozen=True, eq=False)
class Done:
    """A part that was run: its result, and what was kept of its cells."""

    part: Part
    result: dict[str, Any]
    folder: Path
    _tests: dict[tuple[Any, ...], Comparison] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """By kind of features and, within, as the methods were asked for."""
        places = {name: place for place, name in enumerate(self.result["methods"])}
        kinds = {kind: place for place, kind in enumerate(self.part.features)}
        return sorted(
            self.result["rows"],
            key=lambda row: (row["takes"] != "images", kinds.get(row["features"], 0), places[row["method"]]),
        )

    def row(self, method: str) -> dict[str, Any]:
        return next(row for row in self.rows if row["method"] == method)

    def cells(self, row: Mapping[str, Any], n: str) -> list[Cell]:
        """The finished cells of a row at a length, one a seed."""
        seeds = [Cell(row["features"], row["method"], int(n), seed) for seed in self.result["seeds"]]
        return [cell for cell in seeds if (self.folder / "cells" / f"{cell.name}.json").exists()]

    def average_precision(self, row: Mapping[str, Any], n: str) -> np.ndarray:
        """(q,): of each query, mean over the seeds."""
        return np.mean([kept_codes(self.folder, cell).average_precision for cell in self.cells(row, n)], axis=0)

    def test(self, first: Mapping[str, Any], second: Mapping[str, Any], n: str) -> Comparison:
        """Paired over the queries."""
        key = *((row["features"], row["method"]) for row in (first, second)), n
        if key not in self._tests:
            self._tests[key] = compare_queries(self.average_precision(first, n), self.average_precision(second, n))
        return self._tests[key]

    def p_against(self, method: str) -> Callable[[str, str], float]:
        """p of a row, by its label, and a length in the test against a method."""
        rows = {row_label(row): row for row in self.rows}
        return lambda label, n: self.test(self.row(method), rows[label], n).p


def row_label(row: Mapping[str, Any]) -> str:
    """A method, with the features where it learns from fixed ones."""
    name = method_name(row["method"])
    return name if row["takes"] == "images" else f"{name} on {row['features']}"


@dataclass(frozen=True, eq=False)
class Runner:
    """How parts are run: everything that is the same for all of them."""

    scale: Scale
    out: Path
    settings: Mapping[str, Any]  # for methods that train a network
    progress: Progress
    stop: Callable[[], bool] = lambda: False

    def folder(self, part: Part) -> Path:
        return self.out / "comparisons" / f"{self.scale.name}-{part.folder}"

    def run(self, part: Part) -> Done:
        self.progress.say(f"{part.title}: {part.protocol.description}")
        result = compare(
            part.source,
            part.protocol,
            part.methods,
            part.bits,
            part.features,
            self.scale.seeds,
            self.folder(part),
            settings=self._settings(part),
            progress=self.progress,
            stop=self.stop,
            keep=True,
            report=False,
        )
        return Done(part, result, self.folder(part))

    def _settings(self, part: Part) -> dict[str, Any]:
        """Those that one of the methods has: a part of methods on features alone has none."""
        if not any(_class(method).takes == "images" for method in part.methods):
            return {}
        epochs = {} if self.scale.epochs is None else {"training": Training(epochs=self.scale.epochs)}
        return {**self.settings, **epochs}

    def rough_seconds(self, part: Part) -> float:
        """How long what is missing may take: from a short table of measured seconds, only an order of magnitude."""
        split, tiny = part.protocol, self.scale.data == "digits"
        total, networks = 0.0, 0
        for method in part.methods:
            cls, name = _class(method), method if isinstance(method, str) else method.name
            trained = cls.takes == "images"
            own = {} if isinstance(method, str) else method.settings
            how = own.get("training", Training(epochs=self.scale.epochs))
            seconds = rough_seconds(
                name,
                cls.takes,
                len(split.train) if cls.supervised else len(split.database),
                len(split.query) + len(split.database),
                how.n_epochs(len(split.train)),
                tiny,
            )
            missing = self._missing(part, name, 1 if trained else max(1, len(part.features)))
            total += seconds * missing
            networks += missing * trained
        coded = len(split.query) + len(split.database) + 2 * len(split.train)
        return total + (coded * FROZEN if networks and not tiny else 0)

    def _missing(self, part: Part, name: str, kinds: int) -> int:
        """Cells without a file. Which features a network's are called is not known here, so names are matched."""
        cells = self.folder(part) / "cells"
        asked = [(n, seed) for n in part.bits for seed in range(self.scale.seeds)]
        return sum(max(0, kinds - len(list(cells.glob(f"*-{name}-{n}-{seed}.json")))) for n, seed in asked)


def _class(method: str | Variant) -> Any:
    from hashlens.hashers import hasher_class

    return hasher_class(method) if isinstance(method, str) else method.hasher_class
