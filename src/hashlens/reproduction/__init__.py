"""Reproduction: the name of a table or figure of the paper in; it again, on data that are there, out.

OUT/
  REPRODUCTION.md, report.html   all targets that were run so far, with what holds of the paper's statements
  tables/                        NAME.md, .tex and .csv: paper, ours, difference, comparable or not
  figures/                       NAME.svg, .pdf and .png
  result.json, env.json          what holds; versions, machine, commands, splits
  sections/                      one JSON file a target, from which the page is made
  comparisons/                   the cells, each computed once

Every number is a cell of `comparison.compare`: what is finished is kept, so the same command goes on where it was
stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashlens.errors import UsageError
from hashlens.progress import Progress, duration

if TYPE_CHECKING:
    from hashlens.reproduction.sections import Section

TARGETS = ("table1", "table2", "table3", "alpha", "lambda", "train-size", "examples", "port", "unseen")
ALL = "all"


def reproduce(
    target: str,
    scale: str,
    out: Path,
    *,
    methods: Sequence[str] = (),
    bits: Sequence[int] | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    settings: Mapping[str, Any] | None = None,
    nuswide: Path | None = None,
    mirflickr: Path | None = None,
    from_file: Path | None = None,
    command: str = "",
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run a target, or "all", at a scale and write tables, figures and the page to `out`; gives its result.json.

    `methods` are those of the tables to run, if not all of them; `bits`, `seeds` and `epochs` replace those of the
    scale; `settings` are parameters of the methods that train a network, such as backbone. `command` is what to type to
    get the same again.
    """
    from hashlens.hashers import hasher_class
    from hashlens.reproduction import targets
    from hashlens.reproduction.data import Data
    from hashlens.reproduction.parts import Runner
    from hashlens.reproduction.scales import choose_scale
    from hashlens.reproduction.sections import save_section

    if target not in (*TARGETS, ALL):
        raise UsageError(f"there is no target '{target}'; choose one of {', '.join(TARGETS)} or {ALL}")
    progress = progress or Progress(quiet=True)
    chosen = choose_scale(scale, bits, seeds, epochs)
    for method in methods:
        hasher_class(method)  # or an error that names those that there are
    plan = targets.Plan(
        Data(chosen, nuswide, mirflickr, from_file, progress.say), chosen, methods, strict=target != ALL
    )
    runner = Runner(chosen, out, dict(settings or {}), progress, stop)
    names = TARGETS if target == ALL else (target,)
    _tell_time(names, plan, runner)
    try:
        for name in names:
            progress.say(f"{name}, scale {chosen.name}")
            section = replace(targets.TARGETS[name](plan, runner), command=command)
            save_section(section, out)
            for outcome in section.outcomes:
                progress.say(f"  {outcome}")
    finally:  # what is finished is shown also if this is stopped or fails
        sections = finished_sections(out)
        if sections:
            result = write(out, sections)
    return result


def write(out: Path, sections: Sequence[Section]) -> dict[str, Any]:
    from hashlens.reproduction.page import write_pages

    return write_pages(out, sections)


def finished_sections(out: Path) -> list[Section]:
    from hashlens.reproduction.sections import load_section

    return [section for name in TARGETS if (section := load_section(name, out)) is not None]


def _tell_time(names: Sequence[str], plan: Any, runner: Any) -> None:
    """Before any work: roughly how long, target by target. Cells that targets share are counted once for each."""
    from hashlens.reproduction.targets import parts_of

    rough = {name: sum(runner.rough_seconds(part) for part in parts_of(name, plan)) for name in names}
    for name, seconds in rough.items():
        runner.progress.say(f"{name:<11} about {duration(seconds)}")
    runner.progress.say(
        f"together about {duration(sum(rough.values()))}: a rough guess from a few measured times on two cores, without"
        " downloads and fixed features; targets share cells, and what is finished is kept, so stop when you like"
    )
