"""Targets: the data and a runner in; a section with tables, figures and checked outcomes out, one function a target.

Each target first lists its parts (`parts_of`), so that the time can be told before any work; then it runs them. Parts
on the same split share their cells: an ablation's default is the cell of the tables, and the retrieval figure has none
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from hashlens.comparison import Variant, kept_codes
from hashlens.data import Source, make_protocol
from hashlens.errors import UsageError
from hashlens.hashers import METHODS
from hashlens.reproduction.data import Data
from hashlens.reproduction.figures import Line, ablation_drawing, examples_drawing
from hashlens.reproduction.outcomes import Outcome, falls_at_ends, leads, more_is_better, reaches
from hashlens.reproduction.parts import Absent, Done, Part, Runner
from hashlens.reproduction.scales import Scale
from hashlens.reproduction.sections import NamedTable, Section
from hashlens.reproduction.tables import (
    absent_table,
    map_table,
    our_maps,
    printed_maps,
    signed,
    sizes_table,
    write_table,
)
from hashlens.runs import nearest, protocol_facts

# in the order of the paper's tables
DEEP_TABLE1 = ("dtsh", "dpsh", "ninh", "cnnh")
SHALLOW = ("fasth", "sdh", "ksh", "lfh", "splh", "itq", "sh")
DEEP_TABLE3 = ("dtsh", "dpsh", "drsch", "dsch", "dsrh")
UNSEEN = ("dtsh", "dpsh", "dlbhc", "classifier", "ccaitq", "sdh", "itq", "lsh")
GIST, NUSWIDE_FEATURES = "gist", "nuswide-1134"
STAND_IN = "MIRFLICKR-25K in place of NUS-WIDE"


class Plan:
    """Parts that several targets share; with `only`, the tables have no other methods than these.

    If it is `strict`, a table must have all of them.
    """

    def __init__(self, data: Data, scale: Scale, only: Sequence[str] = (), strict: bool = False):
        self.data, self.scale, self.only, self.strict = data, scale, only, strict

    def asked(self, methods: Sequence[str]) -> tuple[str, ...]:
        if self.strict and (others := [method for method in self.only if method not in methods]):
            raise UsageError(f"this target has no {others[0]}; it has {', '.join(methods)}")
        chosen = tuple(method for method in methods if not self.only or method in self.only)
        if not chosen:
            raise UsageError(f"this target has none of {', '.join(self.only)}; it has {', '.join(methods)}")
        return chosen

    def setting1(
        self,
        methods: Sequence[str | Variant],
        bits: tuple[int, ...],
        features: tuple[str, ...] = (),
        paper: str | None = None,
    ) -> Part:
        data = self.data
        title = f"{data.name}, setting 1"
        folder = "cifar10-1" if data.real else "digits-1"
        return Part(title, folder, data.source, data.setting1, methods, bits, features, paper, data.real)

    @cached_property
    def deep(self) -> tuple[str, ...]:
        """All methods that train a network, those of table 1 first."""
        return tuple(dict.fromkeys([*DEEP_TABLE1, *(name for name, m in METHODS.items() if m.takes == "images")]))

    @cached_property
    def shallow(self) -> tuple[str, ...]:
        others = [name for name, m in METHODS.items() if m.takes == "features"] if self.scale.every_method else []
        return tuple(dict.fromkeys([*SHALLOW, *others]))

    def table1(self) -> list[Part | Absent]:
        """Networks, and methods on hand-crafted features."""
        bits, methods = self.scale.bits, self.asked((*self.deep, *SHALLOW))
        return [
            self.setting1(methods, bits, (GIST,), "cifar10-1"),
            *self.multi_label(methods, bits, (NUSWIDE_FEATURES,), (GIST,)),
        ]

    def table2(self) -> list[Part | Absent]:
        """DTSH, and methods on the features of a network that is not trained for them."""
        bits, methods, learnt = self.scale.bits, self.asked(("dtsh", *self.shallow)), (self.scale.learnt,)
        first = self.setting1(methods, bits, learnt, "cifar10-1")
        return [first, *self.multi_label(methods, bits, learnt, learnt)]

    def table3(self) -> list[Part | Absent]:
        """Networks learnt from the whole database."""
        data, bits, methods = self.data, self.scale.bits_table3, self.asked(DEEP_TABLE3)
        folder = "cifar10-2" if data.real else "digits-2"
        part = Part(
            f"{data.name}, setting 2", folder, data.source, data.setting2, methods, bits, (), "cifar10-2", data.real
        )
        source = data.nuswide
        title = "NUS-WIDE, setting 2"
        if isinstance(source, str):
            return [part, Absent(title, "nuswide-2", methods, bits, (), source)]
        split = make_protocol(source, "nuswide-2")
        return [part, Part(title, "nuswide-2", source, split, methods, bits, (), "nuswide-2")]

    def multi_label(
        self, methods: Sequence[str], bits: tuple[int, ...], features: tuple[str, ...], stand_in: tuple[str, ...]
    ) -> list[Part | Absent]:
        """NUS-WIDE, setting 1, and MIRFLICKR-25K where it is there."""
        parts: list[Part | Absent] = []
        source, title = self.data.nuswide, "NUS-WIDE, setting 1"
        if isinstance(source, Source):
            split = make_protocol(source, "nuswide-1")
            parts.append(Part(title, "nuswide-1", source, split, methods, bits, features, "nuswide-1"))
        else:
            printed = tuple(kind if kind == NUSWIDE_FEATURES else "cnn-f" for kind in features)
            paper = [method for method in methods if method in (*DEEP_TABLE1, *SHALLOW)]
            parts.append(Absent(title, "nuswide-1", paper, bits, printed, source))
        other = self.data.mirflickr
        if isinstance(other, Source):
            split = make_protocol(other, "mirflickr")
            # NUS-WIDE's numbers are of other pictures and other labels, so none is beside these
            parts.append(Part(STAND_IN, "mirflickr", other, split, methods, bits, stand_in))
        return parts

    def alphas(self) -> Part:
        scale = self.scale
        return self.setting1([self.alpha(x) for x in scale.alphas], (scale.alpha_bits,))

    def alpha(self, value: float) -> str | Variant:
        default = value == self.scale.alpha_bits / 2
        return "dtsh" if default else Variant(f"dtsh-alpha-{value:g}", "dtsh", {"alpha": float(value)})

    def lambdas(self) -> Part:
        return self.setting1([self.lambda_(x) for x in self.scale.lambdas], self.scale.lambda_bits)

    def lambda_(self, value: float) -> str | Variant:
        return "dtsh" if value == 100 else Variant(f"dtsh-lambda-{value:g}", "dtsh", {"lambda_": float(value)})

    def sizes(self) -> dict[int, Part]:
        parts = {}
        for n in self.scale.sizes:
            part = self.setting1(["dtsh"], (self.scale.size_bits,))
            if n != len(part.protocol.train):
                split = self.data.training_size(n)
                title = f"{self.data.name}, {n:,} training pictures"
                part = Part(title, f"{part.folder}-train-{n}", part.source, split, part.methods, part.bits)
            parts[n] = part
        return parts

    def examples(self) -> Part:
        return self.setting1(("dtsh", "dpsh"), (self.scale.examples_bits,))

    def port(self) -> Part:
        from hashlens.hashers.deep.dtsh_port import DTSHPort, port_settings

        scale, n_train = self.scale, len(self.data.setting1.train)
        variants = [
            Variant(name, DTSHPort, port_settings(changed, scale.port_bits, n_train, scale.port_epochs))
            for name, changed in PORT.items()
        ]
        return self.setting1(variants, (scale.port_bits,))

    def unseen(self) -> Part:
        data = self.data
        folder = "cifar10-unseen" if data.real else "digits-unseen"
        title = f"{data.name}, unseen classes"
        methods = self.asked(UNSEEN)
        return Part(title, folder, data.source, data.unseen, methods, self.scale.bits, (self.scale.learnt,))


# the released code, each difference of the port by itself, and all; 5 has no meaning without 4
PORT: dict[str, tuple[int, ...]] = {
    "dtsh-released": (),
    **{f"dtsh-port-{number}": (number,) for number in (1, 2, 3, 4)},
    "dtsh-port-4-5": (4, 5),
    "dtsh-port-6": (6,),
    "dtsh-port": (1, 2, 3, 4, 5, 6),
}


def parts_of(target: str, plan: Plan) -> list[Part]:
    """What a target runs, for the estimate of its time."""
    lists: dict[str, Callable[[], Sequence[Part | Absent]]] = {
        "table1": plan.table1,
        "table2": plan.table2,
        "table3": plan.table3,
        "alpha": lambda: [plan.alphas()],
        "lambda": lambda: [plan.lambdas()],
        "train-size": lambda: list(plan.sizes().values()),
        "examples": lambda: [plan.examples()],
        "port": lambda: [plan.port()],
        "unseen": lambda: [plan.unseen()],
    }
    return [part for part in lists[target]() if isinstance(part, Part)]


def run_table(target: str, title: str, parts: Sequence[Part | Absent], runner: Runner, notes: list[str]) -> Section:
    """One table for each part; those without data say so."""
    tables, outcomes, splits = [], [], []
    for part in parts:
        done: Done | Absent = part if isinstance(part, Absent) else runner.run(part)
        table = map_table(done) if isinstance(done, Done) else absent_table(done)
        place = part.folder if isinstance(part, Part) else part.paper
        named = NamedTable(f"{target}-{place}", f"{title}: {part.title}", table)
        write_table(runner.out, named, [done])
        tables.append(named)
        if isinstance(done, Done):
            outcomes.append(_of(done, target, leads("DTSH", our_maps(done), done.p_against("dtsh"))))
            if done.part.genuine and done.part.paper:
                outcomes.append(_of(done, target, reaches(printed_maps(done), our_maps(done))))
            splits.append(_split(done))
    return Section(target, title, runner.scale.name, outcomes, tables, [], notes, splits)


def table1(plan: Plan, runner: Runner) -> Section:
    return run_table("table1", "Table 1, networks and hand-crafted features", plan.table1(), runner, _missing(plan))


def table2(plan: Plan, runner: Runner) -> Section:
    title = "Table 2, methods on features of a network"
    notes = [f"features: {plan.scale.learnt}; the paper's are of CNN-F"]
    return run_table("table2", title, plan.table2(), runner, [*notes, *_missing(plan)])


def table3(plan: Plan, runner: Runner) -> Section:
    title = "Table 3, networks learnt from the whole database"
    return run_table("table3", title, plan.table3(), runner, [])


def alpha(plan: Plan, runner: Runner) -> Section:
    scale = plan.scale
    done = runner.run(plan.alphas())
    names = {x: _name(plan.alpha(x)) for x in scale.alphas}
    points = _points(done, names, scale.alpha_bits)
    claim = f"a larger margin alpha is better after the same number of epochs ({scale.alpha_bits} bits)"
    outcome = more_is_better(claim, [(x, y) for x, y, _ in points])
    title = f"Margin alpha, {scale.alpha_bits} bits"
    lines = {f"{scale.alpha_bits} bits": points}
    return _ablation("alpha", title, "alpha, bits", lines, [outcome], done, names, runner)


def lambda_(plan: Plan, runner: Runner) -> Section:
    scale = plan.scale
    done = runner.run(plan.lambdas())
    names = {x: _name(plan.lambda_(x)) for x in scale.lambdas}
    lines = {f"{n} bits": _points(done, names, n) for n in scale.lambda_bits}
    ends = f"{min(scale.lambdas):g} and {max(scale.lambdas):g}"
    outcomes = [
        falls_at_ends(f"MAP is lower at lambda {ends} than at 100 ({line})", [(x, y) for x, y, _ in points], 100)
        for line, points in lines.items()
    ]
    title = "Weight lambda of the quantisation term"
    return _ablation("lambda", title, "lambda", lines, outcomes, done, names, runner, log_x=True)


def train_size(plan: Plan, runner: Runner) -> Section:
    scale = plan.scale
    all_done = {n: runner.run(part) for n, part in plan.sizes().items()}
    points = [point for n, done in all_done.items() for point in _points(done, {n: "dtsh"}, scale.size_bits)]
    claim = f"more training pictures are better ({scale.size_bits} bits)"
    outcome = more_is_better(claim, [(x, y) for x, y, _ in points])
    title = f"Number of training pictures, {scale.size_bits} bits"
    named = NamedTable("train-size", title, sizes_table(all_done, str(scale.size_bits)))
    write_table(runner.out, named, list(all_done.values()))
    drawings = []
    if points:
        line = {f"{scale.size_bits} bits": points}
        drawings.append(ablation_drawing(runner.out, "train-size", title, "training pictures", line, log_x=True))
    notes = [
        "the same queries and database for all; smaller training sets are part of larger ones",
        "few pictures are seen in more epochs than many, unless --epochs is given",
    ]
    splits = [_split(done) for done in all_done.values()]
    return Section("train-size", title, scale.name, [outcome], [named], drawings, notes, splits)


def examples(plan: Plan, runner: Runner) -> Section:
    """The first query of each of the first classes, whatever its score, and what DTSH and DPSH find."""
    part = plan.examples()
    done = runner.run(part)
    found = {}
    for method in ("dtsh", "dpsh"):
        row = done.row(method)
        cells = done.cells(row, str(part.bits[0]))
        if not cells:
            reasons = [f"no figure: {sentence}" for sentence in row["lengths"][str(part.bits[0])]["errors"]]
            return Section("examples", "Retrieval examples", plan.scale.name, notes=reasons)
        kept = kept_codes(done.folder, cells[0])
        rows = nearest(kept.query, kept.database, part.source, part.protocol)
        found[method.upper()] = rows[: plan.scale.examples]
    title = f"{part.title}, {part.bits[0]} bits: what DTSH and DPSH find"
    drawing = examples_drawing(runner.out, "examples", title, found)
    note = "queries are the first of each class in the split's order, not chosen; seed 0"
    return Section("examples", "Retrieval examples", plan.scale.name, [], [], [drawing], [note], [_split(done)])


def port(plan: Plan, runner: Runner) -> Section:
    """What each of the six differences between the released DTSH and its port does to MAP."""
    from hashlens.hashers.deep.dtsh_port import DIFFERENCES

    done = runner.run(plan.port())
    n = str(plan.scale.port_bits)
    labels = {"dtsh-released": "the authors' released code", "dtsh-port": "differences 1 to 6 together"}
    for name, changed in PORT.items():
        if name not in labels:
            labels[name] = f"difference {' and '.join(map(str, changed))}: {DIFFERENCES[changed[-1]]}"
    base = done.row("dtsh-released")
    outcomes = []
    for row in done.rows:
        if row is base or None in (row["lengths"][n]["map"], base["lengths"][n]["map"]):
            continue
        test = done.test(row, base, n)
        detail = f"{signed(test.difference)} MAP, 95 % of resampled queries {signed(test.low)} to {signed(test.high)}"
        claim = f"MAP changes with the port's {labels[row['method']]}"
        outcomes.append(Outcome(claim, test.different, f"{detail}, p = {test.p:.2g}"))
    named = NamedTable("port", "DTSH and its well-known port, one difference at a time", map_table(done, labels))
    write_table(runner.out, named, [done])
    notes = [
        "both on the network of these runs, without its frozen blocks, not on the whole of CNN-F or AlexNet",
        "the port's clamp of T to [-100, 50], outside of which it has no gradient, is not among the six",
    ]
    return Section("port", "The port's six differences", plan.scale.name, outcomes, [named], [], notes, [_split(done)])


def unseen(plan: Plan, runner: Runner) -> Section:
    """Retrieval among classes that were not learnt."""
    part = plan.unseen()
    done = runner.run(part)
    named = NamedTable("unseen", part.title, map_table(done))
    write_table(runner.out, named, [done])
    maps = our_maps(done)
    both = {name: lengths for name, lengths in maps.items() if name in ("DTSH", "ClassifierCode")}
    carries = leads("DTSH", both, done.p_against("dtsh"))
    claim = "on unseen classes DTSH is above the code of a classifier"
    lead = leads("DTSH", maps, done.p_against("dtsh"))
    outcomes = [_of(done, "unseen", lead), Outcome(claim, carries.holds, carries.detail)]
    labels = part.source.labels[part.protocol.query]
    chance = float(((labels.counts() / len(labels)) ** 2).sum())
    notes = [
        part.protocol.description,
        f"a random order has MAP {chance:.2f} or so",
        "methods without labels learn from the database, that is from pictures of these classes; the others do not",
    ]
    return Section("unseen", "Unseen classes", plan.scale.name, outcomes, [named], [], notes, [_split(done)])


TARGETS: dict[str, Callable[[Plan, Runner], Section]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "alpha": alpha,
    "lambda": lambda_,
    "train-size": train_size,
    "examples": examples,
    "port": port,
    "unseen": unseen,
}


def _ablation(
    target: str,
    title: str,
    x_label: str,
    lines: dict[str, Line],
    outcomes: list[Outcome],
    done: Done,
    names: dict[float, str],
    runner: Runner,
    log_x: bool = False,
) -> Section:
    """One setting of DTSH changed, all on one split."""
    labels = {name: f"{target} {x:g}" for x, name in names.items()}
    named = NamedTable(target, title, map_table(done, labels))
    write_table(runner.out, named, [done])
    drawings = []
    drawn = {line: points for line, points in lines.items() if points}
    if drawn:
        drawings.append(ablation_drawing(runner.out, target, title, x_label, drawn, log_x))
    return Section(target, title, runner.scale.name, outcomes, [named], drawings, [], [_split(done)])


def _points(done: Done, names: dict[float, str], n_bits: int) -> Line:
    found = []
    for x, name in names.items():
        at = done.row(name)["lengths"][str(n_bits)]
        if at["map"] is not None:
            found.append((float(x), at["map"], at["map_deviation"] or 0.0))
    return found


def _name(method: str | Variant) -> str:
    return method if isinstance(method, str) else method.name


def _of(done: Done, target: str, outcome: Outcome) -> Outcome:
    return Outcome(f"{target}, {done.part.title}: {outcome.claim}", outcome.holds, outcome.detail)


def _split(done: Done) -> dict[str, object]:
    return {"data": done.result["source"], **protocol_facts(done.part.protocol)}


def _missing(plan: Plan) -> list[str]:
    """Why a stand-in is not there."""
    return [plan.data.mirflickr] if isinstance(plan.data.mirflickr, str) else []
