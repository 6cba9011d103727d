"""Data: the name of a scale and folders in, its contents, sources and splits out.

smoke runs every method, table and figure on part of scikit-learn's digits: it shows that everything works, but its
numbers are meaningless. small is real data with few lengths, one seed and short training. full is everything. Sources
are opened once, when first needed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.data import Source, make_protocols, open_source, readable
from hashlens.data.protocols import Protocol, with_training_size
from hashlens.errors import DataError, UsageError

DIGITS = 600  # images of the smoke scale
DIGITS_TRAIN = 300  # training images in setting 1: enough for triplets from outside a batch of 128


@dataclass(frozen=True)
class Scale:
    """The contents of the targets, by default at full scale; lengths are in bits."""

    name: str = "full"
    data: str = "cifar10"  # or digits
    bits: tuple[int, ...] = (12, 24, 32, 48)  # of tables 1 and 2, and of unseen classes
    bits_table3: tuple[int, ...] = (16, 24, 32, 48)
    seeds: int = 3
    splits: int = 1  # random splits, with the seeds 0, 1, ...
    epochs: int | None = None  # of every network; None: the method's own
    network: str = "efficientnet-lite0"  # whose features replace those of CNN-F
    every_method: bool = True  # including those that are not in the paper's tables
    alphas: tuple[float, ...] = (0, 2, 4, 8, 16)
    alpha_bits: int = 32
    lambdas: tuple[float, ...] = (0.1, 1, 10, 100, 1000)
    lambda_bits: tuple[int, ...] = (12, 32)
    sizes: tuple[int, ...] = (1_000, 2_500, 5_000, 10_000, 25_000, 50_000)
    size_bits: int = 12
    port_bits: int = 32
    port_epochs: int = 100  # of the released code; the port trains 1.5 times as long
    examples_bits: int = 48
    examples: int = 5  # queries in the retrieval figure


FULL = Scale()
SMALL = replace(FULL, name="small", bits=(12, 48), bits_table3=(16,), seeds=1, epochs=3, every_method=False)
SMALL = replace(SMALL, alphas=(0, 4, 16), lambdas=(0.1, 100, 1000), lambda_bits=(12,), sizes=(1_000, 5_000, 25_000))
SMALL = replace(SMALL, port_epochs=10)
SMOKE = replace(FULL, name="smoke", data="digits", network="small-cnn", bits=(12,), bits_table3=(16,), seeds=1)
SMOKE = replace(SMOKE, alphas=(0, 6), alpha_bits=12, lambdas=(0.1, 100, 1000), lambda_bits=(12,), sizes=(100, 300))
SMOKE = replace(SMOKE, epochs=6, port_bits=12, port_epochs=1, examples_bits=12, examples=3)
SCALES = {scale.name: scale for scale in (SMOKE, SMALL, FULL)}


def choose_scale(
    name: str,
    bits: Sequence[int] | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    splits: int = 1,
) -> Scale:
    """The scale of that name, with other lengths of the tables, seeds, epochs or splits if given."""
    if name not in SCALES:
        raise UsageError(f"there is no scale '{name}'; choose one of {', '.join(SCALES)}")
    changes: dict[str, Any] = {"splits": splits}
    if bits:
        changes |= {"bits": tuple(bits), "bits_table3": tuple(bits), "examples_bits": max(bits)}
    if seeds is not None:
        changes["seeds"] = seeds
    if epochs is not None:
        changes |= {"epochs": epochs, "port_epochs": epochs}
    return replace(SCALES[name], **changes)


@dataclass(frozen=True, eq=False)
class Data:
    scale: Scale
    nuswide_folder: Path | None = None
    mirflickr_folder: Path | None = None
    from_file: Path | None = None
    say: Callable[[str], object] = lambda text: None

    @property
    def real(self) -> bool:
        return self.scale.data == "cifar10"

    @property
    def name(self) -> str:
        return "CIFAR-10" if self.real else "Digits in place of CIFAR-10"

    @cached_property
    def source(self) -> Source:
        """CIFAR-10, or some digits for the smoke scale."""
        if self.real:
            return open_source("cifar10", from_file=self.from_file, progress=self.say)
        whole = open_source("digits")
        return Source("digits", whole.images[:DIGITS], whole.labels[np.arange(DIGITS)])

    @cached_property
    def setting1(self) -> list[Protocol]:
        """One or several splits."""
        if self.real:
            return self.splits(self.source, "cifar10-1")
        return [with_training_size(split, self.source.labels, DIGITS_TRAIN) for split in self.setting2]

    @cached_property
    def setting2(self) -> list[Protocol]:
        return self.splits(self.source, "cifar10-2" if self.real else "split")

    def splits(self, source: Source, protocol: str) -> list[Protocol]:
        return make_protocols(source, protocol, splits=self.scale.splits)

    @cached_property
    def nuswide(self) -> Source | str:
        """The source, or why there is none."""
        missing = "not run: images not found; give their folder with --nuswide"
        return self._optional("nuswide", "NUS-WIDE", self.nuswide_folder, missing)

    @cached_property
    def mirflickr(self) -> Source | str:
        missing = "MIRFLICKR-25K can stand in for NUS-WIDE; give its folder with --mirflickr"
        return self._optional("mirflickr", "MIRFLICKR-25K", self.mirflickr_folder, missing)

    def _optional(self, kind: str, name: str, folder: Path | None, missing: str) -> Source | str:
        if not self.real:
            return "not run: the smoke scale has digits only"
        if folder is None:
            return missing
        if not import_module(f"hashlens.data.kinds.{kind}").KIND.matches(str(folder), folder):
            raise UsageError(f"{folder} is not {name} as published; check --{kind}")
        try:
            return readable(open_source(folder, progress=self.say), self.say)
        except DataError as error:
            return f"not run: {error.message}"
