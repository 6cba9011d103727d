"""Data: a scale and folders in; the sources and splits of the targets out, each opened once, when first needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path

import numpy as np

from hashlens.data import Source, make_protocol, open_source, readable
from hashlens.data.protocols import Protocol, with_training_size
from hashlens.errors import DataError, UsageError
from hashlens.results.paper.scales import Scale

DIGITS = 600  # images of the smoke scale
DIGITS_TRAIN = 300  # of them in its setting 1: enough for triplets from outside a batch of 128


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
    def setting1(self) -> Protocol:
        if self.real:
            return make_protocol(self.source, "cifar10-1")
        return with_training_size(self.setting2, self.source.labels, DIGITS_TRAIN)

    @cached_property
    def setting2(self) -> Protocol:
        return make_protocol(self.source, "cifar10-2" if self.real else "split")

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
