"""Page: what the targets have to show in; REPRODUCTION.md, env.json and result.json out.

Sections are plain values that are kept as JSON, so that the page shows all targets that were run so far.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hashlens.files import write_csv, write_json, write_text
from hashlens.machine import machine, versions
from hashlens.results import tables
from hashlens.results.figures import Drawing
from hashlens.results.paper.outcomes import Outcome
from hashlens.results.published import PAPER
from hashlens.results.tables import Entry, Table

TITLE = "Reproduction"
ABOUT = {
    "smoke": "Smoke: a few digits and little training show that every part works. **The numbers mean nothing.**",
    "small": "Small: the real data with few lengths, one seed and short training. Orders hold, numbers are low.",
    "full": "Full: everything, with the methods' default training, unless the commands say otherwise.",
}


@dataclass(frozen=True)
class NamedTable:
    """A table with its title; `name` is that of its files."""

    name: str
    title: str
    table: Table


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
    command: str = ""  # what to type to repeat it


def save_section(section: Section, out: Path) -> None:
    write_json(out / "sections" / f"{section.target}.json", asdict(section))


def load_section(target: str, out: Path) -> Section | None:
    """None if there is none yet or its file is damaged: then its target is run again."""
    try:
        saved = json.loads((out / "sections" / f"{target}.json").read_text(encoding="utf-8"))
        named = [NamedTable(**{**table, "table": _table(table["table"])}) for table in saved.pop("tables")]
        outcomes = [Outcome(**outcome) for outcome in saved.pop("outcomes")]
        drawings = [Drawing(**drawing) for drawing in saved.pop("drawings")]
        return Section(**saved, tables=named, outcomes=outcomes, drawings=drawings)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _table(saved: dict[str, Any]) -> Table:
    groups = [[[Entry(**entry) for entry in row] for row in group] for group in saved.pop("groups")]
    return Table(**saved, groups=groups)


def write_table(out: Path, named: NamedTable, result: Mapping[str, Any]) -> None:
    """tables/NAME.md, .tex and .csv."""
    write_text(out / "tables" / f"{named.name}.md", tables.table_markdown(named.table, named.title))
    write_text(out / "tables" / f"{named.name}.tex", tables.table_latex(named.table, named.title))
    write_csv(out / "tables" / f"{named.name}.csv", *tables.csv_table(result))


def write_pages(out: Path, sections: Sequence[Section]) -> dict[str, Any]:
    """Write everything that is made of all sections; gives what is in result.json."""
    environment = {"versions": versions(), "machine": machine()}
    commands = list(dict.fromkeys(section.command for section in sections if section.command))
    splits = {section.target: section.splits for section in sections}
    write_json(out / "env.json", environment | {"commands": commands, "splits": splits})
    result = {
        "scales": {section.target: section.scale for section in sections},
        "outcomes": [
            {"target": section.target, **asdict(outcome), "sentence": str(outcome)}
            for section in sections
            for outcome in section.outcomes
        ],
        "tables": [f"tables/{named.name}.csv" for section in sections for named in section.tables],
        "figures": [f"figures/{drawing.name}.svg" for section in sections for drawing in section.drawings],
    }
    write_json(out / "result.json", result)
    write_text(out / "REPRODUCTION.md", markdown(sections, environment["machine"]))
    return result


def markdown(sections: Sequence[Section], facts: Mapping[str, Any]) -> str:
    """The page as text; `facts` are those of the machine."""
    lines = [f"# {TITLE}", "", f"{PAPER}.", ""]
    lines += [ABOUT[name] for name in _scales(sections)]
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    lines += ["", f"On {facts['cpu']}, {threads}; versions, splits and their hashes are in env.json."]
    lines += ["", "## What holds", ""]
    lines += [f"- {outcome}" for section in sections for outcome in section.outcomes] or ["Nothing was checked."]
    for section in sections:
        lines += ["", f"## {section.title}", "", f"Target `{section.target}`, scale {section.scale}.", ""]
        lines += ["```", section.command, "```", ""] if section.command else []
        lines += [f"- {outcome}" for outcome in section.outcomes]
        for drawing in section.drawings:
            words = drawing.words.replace("[", "(").replace("]", ")")  # brackets would end them
            lines += ["", f"![{words}](figures/{drawing.name}.png)"]
        for named in section.tables:
            lines += ["", tables.table_markdown(named.table, named.title).rstrip()]
        lines += ["", *(f"- {note}" for note in section.notes)] if section.notes else []
    return "\n".join(lines) + "\n"


def _scales(sections: Sequence[Section]) -> list[str]:
    return list(dict.fromkeys(section.scale for section in sections))
