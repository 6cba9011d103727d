"""Page: the sections in a folder in; REPRODUCTION.md, report.html, env.json and result.json out."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hashlens.comparison.tables import MARK, table_markdown
from hashlens.files import write_json, write_text
from hashlens.published import PAPER
from hashlens.report import Plot, write_reproduction
from hashlens.reproduction.sections import Drawing, Section
from hashlens.runs import machine, versions

SCALES = {
    "smoke": "Smoke: a few digits and a moment of training show that every part works. **The numbers mean nothing.**",
    "small": "Small: the real data with few lengths, one seed and short training. Orders hold, numbers are low.",
    "full": "Full: everything, with the training that the methods have by default, unless the commands say otherwise.",
}
TITLE = "The paper again"


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
    write_reproduction(
        out / "report.html",
        title=TITLE,
        paper=PAPER,
        scales=[SCALES[name].replace("**", "") for name in _scales(sections)],
        sections=[_for_page(out, section) for section in sections],
        environment=environment,
        mark=MARK,
        commands=commands,
    )
    return result


def markdown(sections: Sequence[Section], facts: Mapping[str, Any]) -> str:
    """The page as text; `facts` are those of the machine."""
    lines = [f"# {TITLE}", "", f"{PAPER}.", ""]
    lines += [f"{SCALES[name]}" for name in _scales(sections)]
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    lines += ["", f"On {facts['cpu']}, {threads}; versions, splits and their hashes are in env.json."]
    lines += ["", "## What holds", ""]
    lines += [f"- {outcome}" for section in sections for outcome in section.outcomes] or ["Nothing was checked."]
    for section in sections:
        lines += ["", f"## {section.title}", "", f"Target `{section.target}`, scale {section.scale}.", ""]
        lines += ["```", section.command, "```", ""] if section.command else []
        lines += [f"- {outcome}" for outcome in section.outcomes]
        for drawing in section.drawings:
            lines += ["", f"![{_plain(drawing.words)}](figures/{drawing.name}.png)"]
        for named in section.tables:
            lines += ["", table_markdown(named.table, named.title).rstrip()]
        lines += ["", *(f"- {note}" for note in section.notes)] if section.notes else []
    return "\n".join(lines) + "\n"


def _scales(sections: Sequence[Section]) -> list[str]:
    return list(dict.fromkeys(section.scale for section in sections))


def _plain(text: str) -> str:
    """For the words of a picture: brackets would end them."""
    return text.replace("[", "(").replace("]", ")")


def _for_page(out: Path, section: Section) -> dict[str, Any]:
    return {
        "target": section.target,
        "title": section.title,
        "scale": section.scale,
        "outcomes": section.outcomes,
        "tables": section.tables,
        "notes": section.notes,
        "plots": [
            Plot(drawing.title, drawing.svg, drawing.columns, drawing.rows)
            for drawing in section.drawings
            if drawing.svg
        ],
        "pictures": [_picture(out, drawing) for drawing in section.drawings if not drawing.svg],
    }


def _picture(out: Path, drawing: Drawing) -> dict[str, str]:
    data = base64.b64encode((out / "figures" / f"{drawing.name}.png").read_bytes()).decode("ascii")
    return {"title": drawing.title, "words": drawing.words, "uri": f"data:image/png;base64,{data}"}
