"""Sections: what a target has to show, as plain values that are kept as JSON, so that the page shows all targets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hashlens.comparison.tables import Entry, Table
from hashlens.files import write_json
from hashlens.reproduction.outcomes import Outcome


@dataclass(frozen=True)
class NamedTable:
    """A table with its title; `name` is that of its files."""

    name: str
    title: str
    table: Table


@dataclass(frozen=True)
class Drawing:
    """A figure that lies in figures/NAME.svg, .pdf and .png; `svg` is the one for the page, empty for pictures."""

    name: str
    title: str
    words: str  # what it shows, for those who do not see it
    svg: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    target: str
    title: str
    scale: str
    outcomes: list[Outcome] = field(default_factory=list)
    tables: list[NamedTable] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    splits: list[dict[str, Any]] = field(default_factory=list)  # of each part: names, counts and hash
    command: str = ""  # what to type to get it again


def save_section(section: Section, out: Path) -> None:
    write_json(out / "sections" / f"{section.target}.json", asdict(section))


def load_section(target: str, out: Path) -> Section | None:
    """None if there is none yet or its file is damaged: then its target is run again."""
    try:
        saved = json.loads((out / "sections" / f"{target}.json").read_text(encoding="utf-8"))
        tables = [NamedTable(**{**table, "table": _table(table["table"])}) for table in saved.pop("tables")]
        outcomes = [Outcome(**outcome) for outcome in saved.pop("outcomes")]
        drawings = [Drawing(**drawing) for drawing in saved.pop("drawings")]
        return Section(**saved, tables=tables, outcomes=outcomes, drawings=drawings)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _table(saved: dict[str, Any]) -> Table:
    groups = [[[Entry(**entry) for entry in row] for row in group] for group in saved.pop("groups")]
    return Table(**saved, groups=groups)
