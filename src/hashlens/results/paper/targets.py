"""Targets: a plan in; a section with tables, figures and checked outcomes out, by the table TARGETS.

The parts of a target are listed first, so that the time can be estimated before any work; then they are run and shown.
An ablation's default is the cell of the tables, and the retrieval figure has no cells of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hashlens.results.compare import Cell, Comparison, cell_codes
from hashlens.results.figures import Drawing
from hashlens.results.paper.figures import ablation_drawing, examples_drawing
from hashlens.results.paper.outcomes import Outcome, falls_at_ends, leads, more_is_better, reaches
from hashlens.results.paper.page import NamedTable, Section, write_table
from hashlens.results.paper.parts import PORT, Part, Plan, merge
from hashlens.results.runs import nearest
from hashlens.results.tables import map_table, row_label, signed

Done = Sequence[tuple[Part, Comparison]]


@dataclass(frozen=True)
class Target:
    title: str
    parts: Callable[[Plan], list[Part]]
    show: Callable[[str, str, Plan, Done], Section]


def run_target(name: str, plan: Plan) -> Section:
    target = TARGETS[name]
    done = [(part, plan.run(part)) for part in target.parts(plan)]
    splits = [{"data": c.result["source"], **c.result["protocol"]} for part, c in done if part.protocol]
    return replace(target.show(name, target.title, plan, done), splits=splits)


def show_tables(name: str, title: str, plan: Plan, done: Done) -> Section:
    """One table per part; those without data say so."""
    tables, outcomes = [], []
    for part, found in done:
        tables.append(_table(plan, f"{name}-{part.folder}", f"{title}: {part.title}", found))
        if part.protocol:
            where = f"{name}, {part.title}: "
            outcomes.append(leads("DTSH", our_maps(found), p_against(found, "dtsh"), where))
            if part.genuine and part.paper:
                outcomes.append(reaches(printed_maps(found), our_maps(found), where))
    notes = [f"features: {plan.scale.network}; the paper's are of CNN-F"] if name == "table2" else []
    missing = plan.data.mirflickr
    notes += [missing] if name != "table3" and isinstance(missing, str) else []
    return Section(name, title, plan.scale.name, outcomes, tables, [], notes)


def show_alpha(name: str, title: str, plan: Plan, done: Done) -> Section:
    n = plan.scale.alpha_bits
    claim = f"a larger margin alpha is better after the same number of epochs ({n} bits)"
    names = {x: plan.alpha(x).name for x in plan.scale.alphas}
    return _ablation(
        name,
        f"{title}, {n} bits",
        "alpha, bits",
        names,
        plan,
        done[0][1],
        lambda _, points: more_is_better(claim, points),
    )


def show_lambda(name: str, title: str, plan: Plan, done: Done) -> Section:
    ends = f"{min(plan.scale.lambdas):g} and {max(plan.scale.lambdas):g}"

    def check(line: str, points: Sequence[tuple[float, float]]) -> Outcome:
        return falls_at_ends(f"MAP is lower at lambda {ends} than at 100 ({line})", points, 100)

    names = {x: plan.lambda_(x).name for x in plan.scale.lambdas}
    return _ablation(name, title, name, names, plan, done[0][1], check, log_x=True)


def show_sizes(name: str, title: str, plan: Plan, done: Done) -> Section:
    n = plan.scale.size_bits
    names: dict[float, str] = {size: f"{size:,} training images" for size in plan.scale.sizes}
    merged = merge({name: found for name, (_, found) in zip(names.values(), done, strict=True)})
    claim = f"more training images are better ({n} bits)"
    section = _ablation(
        name,
        f"{title}, {n} bits",
        "training images",
        names,
        plan,
        merged,
        lambda _, points: more_is_better(claim, points),
        log_x=True,
        labels={},
    )
    notes = [
        "the same queries and database for all; smaller training sets are part of larger ones",
        "few images are seen in more epochs than many, unless --epochs is given",
    ]
    return replace(section, notes=notes)


def show_examples(name: str, title: str, plan: Plan, done: Done) -> Section:
    """The first query of each of the first classes, whatever its score, and what DTSH and DPSH find."""
    part, found = done[0]
    n = part.bits[0]
    shown = {}
    for method in ("dtsh", "dpsh"):
        row = found.row(method)
        if row["lengths"][str(n)]["map"] is None:
            reasons = [f"no figure: {sentence}" for sentence in row["lengths"][str(n)]["errors"]]
            return Section(name, title, plan.scale.name, notes=reasons)
        codes = cell_codes(plan.folder(part), Cell(row["features"], method, n, 0))
        shown[method.upper()] = nearest(*codes, part.source, part.protocol)[: plan.scale.examples]  # type: ignore[arg-type]
    caption = f"{part.title}, {n} bits: what DTSH and DPSH find"
    note = "queries are the first of each class in the split's order, not chosen; seed 0"
    drawing = examples_drawing(plan.out, name, caption, shown)
    return Section(name, title, plan.scale.name, drawings=[drawing], notes=[note])


def show_port(name: str, title: str, plan: Plan, done: Done) -> Section:
    """What each of the six differences between the released DTSH and its port does to MAP."""
    from hashlens.hashers.deep.dtsh_port import DIFFERENCES

    found, n = done[0][1], plan.scale.port_bits
    labels = {
        method: f"difference {' and '.join(map(str, changed))}: {DIFFERENCES[changed[-1]]}"
        for method, changed in PORT.items()
        if changed
    }
    labels |= {"dtsh-released": "the authors' released code", "dtsh-port": "differences 1 to 6 together"}
    finished = [row["method"] for row in found.result["rows"] if row["lengths"][str(n)]["map"] is not None]
    outcomes = []
    for method in finished if "dtsh-released" in finished else ():
        if method != "dtsh-released":
            test = found.significance(method, "dtsh-released", n)
            interval = f"95 % of resampled queries {signed(test.low)} to {signed(test.high)}"
            detail = f"{signed(test.difference)} MAP, {interval}, p = {test.p:.2g}"
            outcomes.append(Outcome(f"MAP changes with the port's {labels[method]}", test.different, detail))
    notes = [
        "both on the network of these runs, without its frozen blocks, not on the whole of CNN-F or AlexNet",
        "the port's clamp of T to [-100, 50], outside of which it has no gradient, is not among the six",
    ]
    table = _table(plan, name, "DTSH and its well-known port, one difference at a time", found, labels)
    return Section(name, title, plan.scale.name, outcomes, [table], [], notes)


def show_unseen(name: str, title: str, plan: Plan, done: Done) -> Section:
    """Retrieval among classes that were not trained on."""
    part, found = done[0]
    assert not isinstance(part.source, str) and part.protocol is not None
    maps, p = our_maps(found), p_against(found, "dtsh")
    both = {name: lengths for name, lengths in maps.items() if name in ("DTSH", "ClassifierCode")}
    claim = "on unseen classes DTSH is above the code of a classifier"
    outcomes = [leads("DTSH", maps, p, f"{name}, {part.title}: "), replace(leads("DTSH", both, p), claim=claim)]
    labels = part.source.labels[part.protocol.query]
    chance = float(((labels.counts() / len(labels)) ** 2).sum())
    notes = [
        part.protocol.description,
        f"a random order has a MAP of about {chance:.2f}",
        "methods without labels learn from the database, that is from images of these classes; the others do not",
    ]
    return Section(name, title, plan.scale.name, outcomes, [_table(plan, name, part.title, found)], [], notes)


TARGETS = {
    "table1": Target("Table 1, networks and hand-crafted features", Plan.table1, show_tables),
    "table2": Target("Table 2, methods on features of a network", Plan.table2, show_tables),
    "table3": Target("Table 3, networks trained on the whole database", Plan.table3, show_tables),
    "alpha": Target("Margin alpha", Plan.alphas, show_alpha),
    "lambda": Target("Weight lambda of the quantisation term", Plan.lambdas, show_lambda),
    "train-size": Target("Number of training images", Plan.sizes, show_sizes),
    "examples": Target("Retrieval examples", Plan.examples, show_examples),
    "port": Target("The port's six differences", Plan.port, show_port),
    "unseen": Target("Unseen classes", Plan.unseen, show_unseen),
}


def _ablation(
    name: str,
    title: str,
    x_label: str,
    names: Mapping[float, str],
    plan: Plan,
    found: Comparison,
    check: Callable[[str, Sequence[tuple[float, float]]], Outcome],
    *,
    log_x: bool = False,
    labels: Mapping[str, str] | None = None,
) -> Section:
    """One thing changed at a time, on the same queries and database."""
    lines = {}
    for n in found.result["bits"]:
        by_x = {float(x): found.row(method)["lengths"][str(n)] for x, method in names.items()}
        points = [(x, at["map"], at["map_deviation"] or 0.0) for x, at in by_x.items() if at["map"] is not None]
        lines[f"{n} bits"] = points
    outcomes = [check(line, [(x, y) for x, y, _ in points]) for line, points in lines.items()]
    labels = {method: f"{name} {x:g}" for x, method in names.items()} if labels is None else labels
    table = _table(plan, name, title, found, labels)
    drawn = {line: points for line, points in lines.items() if points}
    drawings: list[Drawing] = [ablation_drawing(plan.out, name, title, x_label, drawn, log_x)] if drawn else []
    return Section(name, title, plan.scale.name, outcomes, [table], drawings)


def _table(plan: Plan, name: str, title: str, found: Comparison, labels: Mapping[str, str] | None = None) -> NamedTable:
    named = NamedTable(name, title, map_table(found.result, labels))
    write_table(plan.out, named, found.result)
    return named


def our_maps(found: Comparison) -> dict[str, dict[str, float]]:
    """By label and length."""
    return {
        row_label(row): {n: at["map"] for n, at in row["lengths"].items() if at["map"] is not None}
        for row in found.result["rows"]
    }


def printed_maps(found: Comparison) -> dict[str, dict[str, Any]]:
    """By label and length: the paper's number."""
    return {
        row_label(row): {n: at["printed"] for n, at in row["lengths"].items() if at["printed"]}
        for row in found.result["rows"]
    }


def p_against(found: Comparison, method: str) -> Callable[[str, str], float]:
    """p of a row, by its label, and a length in the paired test against a method."""
    return lambda label, n: found.significance(method, label, int(n)).p
