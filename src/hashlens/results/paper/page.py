"""Page: the sections of targets in, REPRODUCTION.md, env.json and result.json out.

Sections are plain values saved as JSON, so that the page shows all targets that were run so far.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hashlens.files import write_json, write_text
from hashlens.machine import machine, versions
from hashlens.results.paper.outcomes import Outcome
from hashlens.results.published import PAPER
from hashlens.schema import parse_json

TITLE = "Reproduction"
ABOUT = {
    "smoke": "Smoke: a few digits and little training show that every part works. **The numbers mean nothing.**",
    "small": "Small: the real data with few lengths, one seed and short training. Orders hold, numbers are low.",
    "full": "Full: everything, with the methods' default training, unless the commands say otherwise.",
}


@dataclass
class Section:
    target: str
    title: str
    scale: str
    outcomes: list[Outcome] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)  # name of the files: the table as Markdown
    figures: dict[str, str] = field(default_factory=dict)  # name of the files: what is shown, for screen readers
    notes: list[str] = field(default_factory=list)
    splits: list[dict[str, Any]] = field(default_factory=list)  # of each part: names, counts and hash
    command: str = ""  # the command that repeats it


def save_section(section: Section, out: Path) -> None:
    write_json(out / "sections" / f"{section.target}.json", asdict(section))


def load_section(target: str, out: Path) -> Section | None:
    """The saved section; None if missing or damaged, so that its target is run again."""
    try:
        saved = parse_json((out / "sections" / f"{target}.json").read_bytes())
        outcomes = [Outcome(**outcome) for outcome in saved.pop("outcomes")]
        return Section(**saved, outcomes=outcomes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_pages(out: Path, sections: Sequence[Section]) -> dict[str, Any]:
    """Write all files made from all sections; returns the contents of result.json."""
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
        "tables": [f"tables/{name}.csv" for section in sections for name in section.tables],
        "figures": [f"figures/{name}.svg" for section in sections for name in section.figures],
    }
    write_json(out / "result.json", result)
    write_text(out / "REPRODUCTION.md", markdown(sections, environment["machine"]))
    return result


def markdown(sections: Sequence[Section], facts: Mapping[str, Any]) -> str:
    """The page as text; `facts` describe the machine."""
    lines = [f"# {TITLE}", "", f"{PAPER}.", ""]
    lines += [ABOUT[name] for name in dict.fromkeys(section.scale for section in sections)]
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    lines += ["", f"On {facts['cpu']}, {threads}; versions, splits and their hashes are in env.json."]
    lines += ["", "## What holds", ""]
    lines += [f"- {outcome}" for section in sections for outcome in section.outcomes] or ["Nothing was checked."]
    for section in sections:
        lines += ["", f"## {section.title}", "", f"Target `{section.target}`, scale {section.scale}.", ""]
        lines += ["```", section.command, "```", ""] if section.command else []
        lines += [f"- {outcome}" for outcome in section.outcomes]
        for name, words in section.figures.items():
            words = words.replace("[", "(").replace("]", ")")  # brackets would end them
            lines += ["", f"![{words}](figures/{name}.png)"]
        for table in section.tables.values():
            lines += ["", table.rstrip()]
        lines += ["", *(f"- {note}" for note in section.notes)] if section.notes else []
    return "\n".join(lines) + "\n"
