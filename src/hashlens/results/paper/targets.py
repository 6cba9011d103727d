"""Targets: a plan in, a section with tables, figures and checked outcomes out, as listed in TARGETS.

Ablations take their default from the cells of the tables, and the retrieval figure has no cells of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hashlens.results.compare import Cell, Comparison, cell_codes
from hashlens.results.figures import ablation_figure, in_words
from hashlens.results.paper.outcomes import Outcome, falls_at_ends, leads, more_is_better, reaches
from hashlens.results.paper.page import Section
from hashlens.results.paper.parts import PORT, Part, Plan, merge
from hashlens.results.retrieval import nearest, retrieval_figure
from hashlens.results.tables import length_name, map_table, row_label, signed, table_markdown, write_tables

Done = Sequence[tuple[Part, Comparison]]


@dataclass(frozen=True)
class Target:
    title: str
    parts: Callable[[Plan], list[Part]]
    show: Callable[[Section, Plan, Done], None]  # fills the section


def run_target(name: str, plan: Plan, command: str) -> Section:
    target = TARGETS[name]
    done = [(part, plan.run(part)) for part in target.parts(plan)]
    splits = [{"data": c.result["source"], **split} for part, c in done if part.splits for split in c.result["splits"]]
    section = Section(name, target.title, plan.scale.name, splits=splits, command=command)
    target.show(section, plan, done)
    return section


def show_tables(section: Section, plan: Plan, done: Done) -> None:
    """One table per part; those without data say so."""
    for part, found in done:
        name = f"{section.target}-{part.folder}"
        _add_table(section, plan, found, name, f"{section.title}: {part.title}")
        if part.protocol:
            where, maps = f"{section.target}, {part.title}: ", _by_label(found, "map")
            section.outcomes.append(leads("DTSH", maps, _p_against_dtsh(found), where))
            if part.genuine and part.paper:
                section.outcomes.append(reaches(_by_label(found, "printed"), maps, where))
    if section.target == "table2":
        section.notes.append(f"features: {plan.scale.network}; the paper's are of CNN-F")
    if section.target != "table3" and isinstance(plan.data.mirflickr, str):
        section.notes.append(plan.data.mirflickr)


def show_alpha(section: Section, plan: Plan, done: Done) -> None:
    n = plan.scale.alpha_bits
    section.title += f", {length_name(n)}"
    claim = f"a larger margin alpha is better after the same number of epochs ({n} bits)"
    for points in _ablation(section, plan, done[0][1], plan.scale.alphas, "alpha {:g}", "alpha, bits").values():
        section.outcomes.append(more_is_better(claim, points))


def show_lambda(section: Section, plan: Plan, done: Done) -> None:
    ends = f"{min(plan.scale.lambdas):g} and {max(plan.scale.lambdas):g}"
    for line, points in _ablation(section, plan, done[0][1], plan.scale.lambdas, "lambda {:g}", "lambda").items():
        claim = f"MAP is lower at lambda {ends} than at 100 ({line})"
        section.outcomes.append(falls_at_ends(claim, points, 100))


def show_sizes(section: Section, plan: Plan, done: Done) -> None:
    n = plan.scale.size_bits
    section.title += f", {length_name(n)}"
    label, sizes = "{:,} training images", plan.scale.sizes
    merged = merge({label.format(size): found for size, (_, found) in zip(sizes, done, strict=True)})
    for points in _ablation(section, plan, merged, sizes, label, "training images").values():
        section.outcomes.append(more_is_better(f"more training images are better ({n} bits)", points))
    section.notes += [
        "the same queries and database for all; smaller training sets are part of larger ones",
        "few images are seen in more epochs than many, unless --epochs is given",
    ]


def show_examples(section: Section, plan: Plan, done: Done) -> None:
    """The first query of each of the first classes, whatever its score, and the results of DTSH and DPSH."""
    part, found = done[0]
    n = part.bits[0]
    shown = {}
    for method in ("dtsh", "dpsh"):
        row = found.row(method)
        if row["lengths"][str(n)]["map"] is None:
            section.notes = [f"no figure: {sentence}" for sentence in row["lengths"][str(n)]["errors"]]
            return
        codes = cell_codes(found.out, Cell(row["features"], method, n, 0))  # type: ignore[arg-type]
        shown[method.upper()] = nearest(*codes, part.source, part.protocol)[: plan.scale.examples]  # type: ignore[arg-type]
    pairs = list(zip(*shown.values(), strict=True))
    rows = [
        replace(row, query_label=f"{row.query_label}: {method}")
        for pair in pairs
        for method, row in zip(shown, pair, strict=True)
    ]
    title = f"{part.title}, {length_name(n)}: what DTSH and DPSH find"
    retrieval_figure(rows, *_figure_files(plan, section.target), title=title)
    counted = [
        f"{pair[0].query_label}: "
        + ", ".join(f"{method} {sum(row.right or [])}" for method, row in zip(shown, pair, strict=True))
        for pair in pairs
    ]
    nearby = max(len(row.images) for row in rows)
    section.figures[section.target] = f"{title}. Right images among the {nearby} nearest: {'; '.join(counted)}."
    section.notes.append("queries are the first of each class in the split's order, not chosen; seed 0")


def show_port(section: Section, plan: Plan, done: Done) -> None:
    """The effect on MAP of each of the six differences between the released DTSH and its port."""
    from hashlens.hashers.deep.dtsh_port import DIFFERENCES

    found, n = done[0][1], plan.scale.port_bits
    labels = {
        method: f"difference {' and '.join(map(str, changed))}: {DIFFERENCES[changed[-1]]}"
        for method, changed in PORT.items()
        if changed
    }
    labels |= {"dtsh-released": "the authors' released code", "dtsh-port": "differences 1 to 6 together"}
    finished = [row["method"] for row in found.result["rows"] if row["lengths"][str(n)]["map"] is not None]
    for method in finished if "dtsh-released" in finished else ():
        if method != "dtsh-released":
            test = found.significance(method, "dtsh-released", n)
            interval = f"95 % of resampled queries {signed(test.low)} to {signed(test.high)}"
            detail = f"{signed(test.difference)} MAP, {interval}, p = {test.p:.2g}"
            section.outcomes.append(Outcome(f"MAP changes with the port's {labels[method]}", test.different, detail))
    title = "DTSH and its well-known port, one difference at a time"
    _add_table(section, plan, found, section.target, title, labels)
    section.notes += [
        "both on the network of these runs, without its frozen blocks, not on the whole of CNN-F or AlexNet",
        "the port's clamp of T to [-100, 50], outside of which it has no gradient, is not among the six",
    ]


def show_unseen(section: Section, plan: Plan, done: Done) -> None:
    """Retrieval among classes that were not trained on."""
    part, found = done[0]
    assert part.protocol is not None
    maps, p = _by_label(found, "map"), _p_against_dtsh(found)
    both = {name: lengths for name, lengths in maps.items() if name in ("DTSH", "ClassifierCode")}
    claim = "on unseen classes DTSH is above the code of a classifier"
    section.outcomes += [
        leads("DTSH", maps, p, f"{section.target}, {part.title}: "),
        replace(leads("DTSH", both, p), claim=claim),
    ]
    _add_table(section, plan, found, section.target, part.title)
    section.notes += [
        part.protocol.description,
        "methods without labels learn from the database, that is from images of these classes; the others do not",
    ]


TARGETS = {
    "table1": Target("Table 1, networks and hand-crafted features", Plan.table1, show_tables),
    "table2": Target("Table 2, methods on features of a network", Plan.table2, show_tables),
    "table3": Target("Table 3, networks trained on the whole database", Plan.table3, show_tables),
    "alpha": Target("Margin alpha", Plan.alpha, show_alpha),
    "lambda": Target("Weight lambda of the quantisation term", Plan.lambda_, show_lambda),
    "train-size": Target("Number of training images", Plan.sizes, show_sizes),
    "examples": Target("Retrieval examples", Plan.examples, show_examples),
    "port": Target("The port's six differences", Plan.port, show_port),
    "unseen": Target("Unseen classes", Plan.unseen, show_unseen),
}


def _ablation(
    section: Section, plan: Plan, found: Comparison, values: Sequence[float], label: str, x_label: str
) -> dict[str, list[tuple[float, float]]]:
    """A table and a figure of one setting changed at a time; returns the values and their MAP by length."""
    name, lines = section.target, {}
    methods = found.result["methods"]
    for n in found.result["bits"]:
        rows = [found.row(method)["lengths"][str(n)] for method in methods]
        pairs = zip(map(float, values), rows, strict=True)
        lines[length_name(n)] = [(x, at["map"], at["map_deviation"] or 0.0) for x, at in pairs if at["map"] is not None]
    labels = {method: label.format(x) for method, x in zip(methods, values, strict=True)}
    _add_table(section, plan, found, name, section.title, labels)
    if drawn := {line: points for line, points in lines.items() if points}:
        ablation_figure(section.title, x_label, drawn, *_figure_files(plan, name))
        section.figures[name] = in_words(section.title, drawn)
    return {line: [(x, y) for x, y, _ in points] for line, points in lines.items()}


def _add_table(
    section: Section, plan: Plan, found: Comparison, name: str, title: str, labels: Mapping[str, str] | None = None
) -> None:
    """Add a table to the section, and write it as tables/NAME.md, .tex and .csv."""
    table = map_table(found.result, labels)
    section.tables[name] = table_markdown(table, title)
    write_tables(plan.out / "tables" / name, table, title, found.result)


def _figure_files(plan: Plan, name: str) -> list[Path]:
    return [plan.out / "figures" / f"{name}.{kind}" for kind in ("png", "svg", "pdf")]


def _by_label(found: Comparison, key: str) -> dict[str, dict[str, Any]]:
    """By label and length: our MAP or the printed number, if there is one."""
    return {
        row_label(row): {n: at[key] for n, at in row["lengths"].items() if at[key] is not None}
        for row in found.result["rows"]
    }


def _p_against_dtsh(found: Comparison) -> Callable[[str, str], float]:
    """A function that returns p of the paired test against DTSH for a row's label and a length."""
    return lambda label, n: found.significance("dtsh", label, int(n)).p
