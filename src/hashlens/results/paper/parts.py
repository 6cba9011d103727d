"""Parts: a plan in, the comparisons that make up its targets out. Parts on the same split share their cells."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.data import Source
from hashlens.data.protocols import Protocol, with_training_size
from hashlens.errors import UsageError
from hashlens.features.extractor import GIST
from hashlens.features.nuswide import NUSWIDE
from hashlens.hashers.methods import METHODS
from hashlens.progress import Progress
from hashlens.results.compare import Cell, Comparison, Variant, compare
from hashlens.results.compare.comparison import summarise
from hashlens.results.paper.data import Data, Scale
from hashlens.results.published import printed_numbers, published

UNSEEN = ("dtsh", "dpsh", "dlbhc", "classifier", "ccaitq", "sdh", "itq", "lsh")
# the released code, each difference of the port on its own, and all; 5 has no meaning without 4
PORT: dict[str, tuple[int, ...]] = {
    "dtsh-released": (),
    **{f"dtsh-port-{number}": (number,) for number in (1, 2, 3, 4)},
    "dtsh-port-4-5": (4, 5),
    "dtsh-port-6": (6,),
    "dtsh-port": (1, 2, 3, 4, 5, 6),
}


@dataclass(frozen=True, eq=False)
class Part:
    """One comparison of a target: methods on the same splits."""

    title: str
    folder: str  # folder of its cells
    source: Source | str  # or the reason why the data are missing
    splits: Sequence[Protocol]  # empty if the data are missing
    methods: Sequence[str | Variant]
    bits: tuple[int, ...]
    features: tuple[str, ...] = ()
    paper: str | None = None  # the protocol of the printed numbers
    genuine: bool = True  # whether the data are those of the printed numbers

    @property
    def protocol(self) -> Protocol | None:
        return self.splits[0] if self.splits else None

    @property
    def variants(self) -> list[Variant]:
        """Variants of the methods; those on features have the settings behind their papers' printed numbers."""
        found = [Variant.of(method) for method in self.methods]
        return [replace(one, preset="published") if one.hasher_class.takes == "features" else one for one in found]

    def printed(self, row: Mapping[str, Any], n: int) -> dict[str, Any] | None:
        """The number in the paper, comparable only if the data are the same."""
        if self.paper is None:
            return None
        n_searched = len(self.protocol.database) if self.protocol and self.genuine else None
        number = published(self.paper, row["method"], n, row["features"], n_searched)
        return number and number | {"comparable": number["comparable"] and self.genuine}


@dataclass(frozen=True, eq=False)
class Plan:
    """The parts of the targets at a scale, and how to run them.

    `only` restricts the tables to these methods; with `strict`, a table must have all of them.
    """

    data: Data
    scale: Scale
    only: Sequence[str] = ()
    strict: bool = False
    out: Path = Path()
    settings: Mapping[str, Any] | None = None  # for methods that train a network
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    stop: Callable[[], bool] = lambda: False

    def table1(self) -> list[Part]:
        """Networks, and methods on hand-crafted features."""
        networks = [*_methods("images", "cifar10-1"), *_methods("images")]
        methods = self._asked([*networks, *_methods("features", "cifar10-1")])
        return [
            self._setting1(methods, self.scale.bits, (GIST,), "cifar10-1"),
            *self._multi_label(methods, (NUSWIDE,), (GIST,)),
        ]

    def table2(self) -> list[Part]:
        """DTSH, and methods on the features of a network that is not trained for them."""
        others = _methods("features") if self.scale.every_method else []
        methods = self._asked(["dtsh", *_methods("features", "cifar10-1"), *others])
        features = (self.scale.network,)
        first = self._setting1(methods, self.scale.bits, features, "cifar10-1")
        return [first, *self._multi_label(methods, features, features)]

    def table3(self) -> list[Part]:
        """Networks trained on the whole database."""
        data, methods, bits = self.data, self._asked(_methods("images", "cifar10-2")), self.scale.bits_table3
        return [
            self._part("setting 2", "2", data.setting2, methods, bits, paper="cifar10-2"),
            self._nuswide("nuswide-2", "NUS-WIDE, setting 2", methods, bits),
        ]

    def alpha(self) -> list[Part]:
        variants = _changed("alpha", self.scale.alphas, self.scale.alpha_bits / 2)
        return [self._setting1(variants, (self.scale.alpha_bits,))]

    def lambda_(self) -> list[Part]:
        return [self._setting1(_changed("lambda_", self.scale.lambdas, 100), self.scale.lambda_bits)]

    def sizes(self) -> list[Part]:
        usual, labels = self._setting1(["dtsh"], (self.scale.size_bits,)), self.data.source.labels
        others = {n: [with_training_size(split, labels, n) for split in usual.splits] for n in self.scale.sizes}
        return [
            usual
            if n == len(usual.splits[0].train)
            else replace(usual, title=f"{n:,} training images", folder=f"{usual.folder}-train-{n}", splits=splits)
            for n, splits in others.items()
        ]

    def examples(self) -> list[Part]:
        return [self._setting1(["dtsh", "dpsh"], (self.scale.examples_bits,))]

    def port(self) -> list[Part]:
        from hashlens.hashers.deep.dtsh_port import DTSHPort, port_settings

        how = self.scale.port_bits, len(self.data.setting1[0].train), self.scale.port_epochs
        variants = [Variant(name, DTSHPort, port_settings(changed, *how)) for name, changed in PORT.items()]
        return [self._setting1(variants, (self.scale.port_bits,))]

    def unseen(self) -> list[Part]:
        splits, features = self.data.splits(self.data.source, "unseen"), (self.scale.network,)
        return [self._part("unseen classes", "unseen", splits, self._asked(UNSEEN), self.scale.bits, features)]

    def _part(
        self,
        title: str,
        folder: str,
        splits: Sequence[Protocol],
        methods: Sequence[str | Variant],
        bits: tuple[int, ...],
        features: tuple[str, ...] = (),
        paper: str | None = None,
    ) -> Part:
        data = self.data
        title, folder = f"{data.name}, {title}", f"{data.scale.data}-{folder}"
        return Part(title, folder, data.source, splits, methods, bits, features, paper, data.real)

    def _setting1(self, methods: Sequence[str | Variant], bits: tuple[int, ...], *more: Any) -> Part:
        return self._part("setting 1", "1", self.data.setting1, methods, bits, *more)

    def _nuswide(
        self, protocol: str, title: str, methods: Sequence[str], bits: tuple[int, ...], features: tuple[str, ...] = ()
    ) -> Part:
        source = self.data.nuswide
        if isinstance(source, Source):
            splits = self.data.splits(source, protocol)
            return Part(title, protocol, source, splits, methods, bits, features, protocol)
        methods = [method for method in methods if method in printed_numbers()[protocol]]
        kinds = tuple(kind if kind == NUSWIDE else "cnn-f" for kind in features)
        return Part(title, protocol, source, (), methods, bits, kinds, protocol)

    def _multi_label(self, methods: Sequence[str], features: tuple[str, ...], stand_in: tuple[str, ...]) -> list[Part]:
        """NUS-WIDE, setting 1, and MIRFLICKR-25K if its folder is given."""
        bits, other = self.scale.bits, self.data.mirflickr
        parts = [self._nuswide("nuswide-1", "NUS-WIDE, setting 1", methods, bits, features)]
        if isinstance(other, Source):
            # no printed numbers: those of NUS-WIDE are for other images and labels
            title, splits = "MIRFLICKR-25K in place of NUS-WIDE", self.data.splits(other, "mirflickr")
            parts.append(Part(title, "mirflickr", other, splits, methods, bits, stand_in))
        return parts

    def _asked(self, methods: Sequence[str]) -> list[str]:
        """The requested methods of a target, without repeats."""
        methods = list(dict.fromkeys(methods))
        others = [method for method in self.only if method not in methods]
        if others and (self.strict or len(others) == len(self.only)):
            raise UsageError(f"this target has no {', '.join(others)}; it has {', '.join(methods)}")
        return [method for method in methods if not self.only or method in self.only]

    def run(self, part: Part) -> Comparison:
        """The comparison with the paper's numbers, rows in the requested order; without data, only these numbers."""
        if isinstance(part.source, str) or part.protocol is None:
            done = not_run(part)
        else:
            self.progress.say(f"{part.title}: {part.protocol.description}")
            done = compare(
                part.source,
                part.variants,
                part.bits,
                features=part.features,
                seeds=self.scale.seeds,
                protocol=part.splits,
                settings=self.settings_of(part),
                out=self.out / "comparisons" / f"{self.scale.name}-{part.folder}",
                share=True,
                report=False,
                progress=self.progress,
                stop=self.stop,
            )
        places = {name: place for place, name in enumerate(done.result["methods"])}
        done.result["rows"].sort(key=lambda row: (row["takes"] != "images", row["features"], places[row["method"]]))
        for row in done.result["rows"]:
            for n, at in row["lengths"].items():
                at["printed"] = part.printed(row, int(n))
        return done

    def settings_of(self, part: Part) -> dict[str, Any]:
        """The settings that one of the methods has; a part with only methods on features has none."""
        if not any(variant.hasher_class.takes == "images" for variant in part.variants):
            return {}
        dtsh = any(variant.hasher_class.name == "dtsh" for variant in part.variants)
        paper = {"sampling": "in-batch"} if dtsh else {}  # the paper's triplets for any number of classes
        return {**paper, **(self.settings or {}), **({"epochs": self.scale.epochs} if self.scale.epochs else {})}


def _methods(takes: str, protocol: str = "") -> list[str]:
    """All methods, or those with printed numbers, in the order of the paper's tables."""
    names = printed_numbers()[protocol] if protocol else METHODS
    return [name for name in names if METHODS[name].takes == takes]


def _changed(setting: str, values: Sequence[float], usual: float) -> list[Variant]:
    """DTSH with each value of a setting; the usual value is plain DTSH, as in the tables."""
    name = f"dtsh-{setting.rstrip('_')}"
    others = [Variant(f"{name}-{value:g}", "dtsh", {setting: float(value)}) for value in values]
    return [Variant.of("dtsh") if value == usual else other for value, other in zip(values, others, strict=True)]


def not_run(part: Part) -> Comparison:
    """Rows without numbers, and why they were not run."""
    variants = {variant.name: variant for variant in part.variants}
    cells = [
        Cell(kind, method, n, 0)
        for method in variants
        for kind in (["cnn-f"] if METHODS[method].takes == "images" else part.features)
        for n in part.bits
    ]
    nothing = np.array([])
    result = summarise(cells, {}, {}, variants, part.title, [Protocol(part.paper or "", nothing, nothing, nothing)])
    return Comparison(result | {"definition": part.source}, {})


def merge(comparisons: Mapping[str, Comparison]) -> Comparison:
    """Comparisons of one method on splits with the same queries and database, as named rows of one comparison."""
    rows: list[dict[str, Any]] = []
    average_precisions: dict[Cell, np.ndarray] = {}
    for name, done in comparisons.items():
        n_train = done.result["protocol"]["n_train"]
        rows += [row | {"method": name, "n_train": n_train} for row in done.result["rows"]]
        average_precisions |= {replace(cell, method=name): ap for cell, ap in done.average_precisions.items()}
    first = next(iter(comparisons.values())).result
    merged = Comparison(first | {"rows": rows, "methods": list(comparisons)}, average_precisions)
    merged.add_p_values()
    return merged
