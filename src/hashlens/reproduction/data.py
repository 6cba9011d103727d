"""Data: a scale and folders in; the sources and splits of the targets out, each opened once and when first needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hashlens.data import Source, open_source
from hashlens.data.protocols import (
    PROTOCOLS,
    Protocol,
    cifar10_setting1,
    cifar10_setting2,
    folder_split,
    unseen_classes,
    with_training_size,
)
from hashlens.errors import DataError, UsageError
from hashlens.reproduction.scales import Scale

DIGITS = 600  # pictures of the smoke scale
DIGITS_TRAIN = 300  # of them, for its setting 1: enough for triplets from outside a batch of 128
NOT_FOUND = "not run: pictures not found"


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
            return cifar10_setting1(self.source.labels)
        return with_training_size(folder_split(self.source.labels), self.source.labels, DIGITS_TRAIN)

    @cached_property
    def setting2(self) -> Protocol:
        return cifar10_setting2(self.source.labels) if self.real else folder_split(self.source.labels)

    @cached_property
    def unseen(self) -> Protocol:
        return unseen_classes(self.source.labels)

    def training_size(self, n: int) -> Protocol:
        return with_training_size(self.setting1, self.source.labels, n)

    @cached_property
    def nuswide(self) -> Source | str:
        """The source, or why there is none."""
        folder = self.nuswide_folder
        if not self.real:
            return "not run: the smoke scale has digits only"
        if folder is None:
            return f"{NOT_FOUND}; give their folder with --nuswide"
        from hashlens.data.nuswide import is_nuswide, list_pictures

        if not is_nuswide(folder):
            raise UsageError(f"{folder} is not NUS-WIDE: it has no Groundtruth/AllLabels; check --nuswide")
        listing = list_pictures(folder, self.say)
        if not listing.found:
            return f"{NOT_FOUND} below {listing.folder}; of the labels alone: {nuswide_counts(folder)}"
        return open_source(folder, progress=self.say)

    @cached_property
    def mirflickr(self) -> Source | str:
        folder = self.mirflickr_folder
        if not self.real:
            return "not run: the smoke scale has digits only"
        if folder is None:
            return "MIRFLICKR-25K can stand in for NUS-WIDE; give its folder with --mirflickr"
        from hashlens.data.mirflickr import is_mirflickr

        if not is_mirflickr(folder):
            raise UsageError(f"{folder} is not MIRFLICKR-25K: it has no im1.jpg and annotations; check --mirflickr")
        return open_source(folder, progress=self.say)


def nuswide_counts(folder: Path) -> str:
    """The sizes of the paper's two settings on NUS-WIDE, from its ground truth alone."""
    from hashlens.data.nuswide import read_ground_truth

    labels, _ = read_ground_truth(folder)
    try:
        first, second = (PROTOCOLS[name](labels, 0) for name in ("nuswide-1", "nuswide-2"))
    except DataError as error:
        return error.message
    n = int(labels.values.any(axis=1).sum())
    return (
        f"{n:,} pictures with one of {labels.n_classes} concepts; {len(first.query):,} queries,"
        f" {len(first.database):,} searched, {len(first.train):,} training in setting 1 and {len(second.train):,} in"
        " setting 2"
    )
