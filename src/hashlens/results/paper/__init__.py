"""Reproduction: the name of a table or figure of the paper in, the same on available data out.

OUT/
  REPRODUCTION.md                all targets that were run so far, and which of the paper's statements hold
  tables/                        NAME.md, .tex and .csv: ours, printed, difference, comparable or not
  figures/                       NAME.svg, .pdf and .png
  result.json, env.json          what holds; versions, machine, commands, splits
  sections/                      one JSON file per target, from which the page is made
  comparisons/                   the cells, each computed once

Every number is a cell of `compare`: finished cells are kept, so rerunning the same command resumes.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hashlens.errors import UsageError
from hashlens.hashers.methods import hasher_class
from hashlens.progress import Progress
from hashlens.results.paper.data import Data, choose_scale
from hashlens.results.paper.page import Section, load_section, save_section, write_pages
from hashlens.results.paper.parts import Plan
from hashlens.results.paper.targets import TARGETS, run_target

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
    splits: int = 1,
    settings: Mapping[str, Any] | None = None,
    nuswide: Path | None = None,
    mirflickr: Path | None = None,
    from_file: Path | None = None,
    command: str = "",
    progress: Progress | bool | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run a target, or "all", at a scale and write tables, figures and the page to `out`; returns its result.json.

    `methods` restricts the tables to these; `bits`, `seeds` and `epochs` replace those of the scale; `splits` is the
    number of random splits; `settings` are for the methods that train a network, such as backbone. `command` is the
    command that repeats it.
    """
    if target not in (*TARGETS, ALL):
        raise UsageError(f"there is no target '{target}'; choose one of {', '.join(TARGETS)} or {ALL}")
    progress = Progress.of(progress)
    chosen = choose_scale(scale, bits, seeds, epochs, splits)
    for method in methods:
        hasher_class(method)  # refuses unknown methods
    data = Data(chosen, nuswide, mirflickr, from_file, progress.say)
    plan = Plan(data, chosen, methods, target != ALL, out, settings, progress, stop)
    try:
        for name in TARGETS if target == ALL else [target]:
            progress.say(f"{name}, scale {chosen.name}")
            section = run_target(name, plan, command)
            save_section(section, out)
            for outcome in section.outcomes:
                progress.say(f"  {outcome}")
    finally:  # show finished targets even after a stop or failure
        if sections := finished_sections(out):
            result = write_pages(out, sections)
    return result


def finished_sections(out: Path) -> list[Section]:
    return [section for name in TARGETS if (section := load_section(name, out)) is not None]
