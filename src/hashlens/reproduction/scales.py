"""Scales: the name of a scale in; what is run at it, on which data and for how long out.

smoke runs every method, table and figure on a part of scikit-learn's digits: it shows that all of it works, and its
numbers mean nothing. small is real data with few lengths, one seed and short training. full is everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hashlens.errors import UsageError


@dataclass(frozen=True)
class Scale:
    """What the targets are made of; lengths are in bits."""

    name: str
    data: str  # digits or cifar10
    bits: tuple[int, ...]  # of tables 1 and 2, and of unseen classes
    bits_table3: tuple[int, ...]
    seeds: int
    epochs: int | None  # of every network; None: the method's own
    learnt: str  # the features that stand for the paper's of CNN-F
    every_method: bool  # also those that the paper's tables do not have
    alphas: tuple[float, ...]
    alpha_bits: int
    lambdas: tuple[float, ...]
    lambda_bits: tuple[int, ...]
    sizes: tuple[int, ...]
    size_bits: int
    port_bits: int
    port_epochs: int  # of the released code; the port has half as many again
    examples_bits: int
    examples: int  # queries in the retrieval figure


SCALES = {
    "smoke": Scale(
        name="smoke",
        data="digits",
        bits=(12,),
        bits_table3=(16,),
        seeds=1,
        epochs=6,
        learnt="small-cnn",
        every_method=True,
        alphas=(0, 6),
        alpha_bits=12,
        lambdas=(0.1, 100, 1000),
        lambda_bits=(12,),
        sizes=(100, 300),
        size_bits=12,
        port_bits=12,
        port_epochs=1,
        examples_bits=12,
        examples=3,
    ),
    "small": Scale(
        name="small",
        data="cifar10",
        bits=(12, 48),
        bits_table3=(16,),
        seeds=1,
        epochs=3,
        learnt="efficientnet-lite0",
        every_method=False,
        alphas=(0, 4, 16),
        alpha_bits=32,
        lambdas=(0.1, 100, 1000),
        lambda_bits=(12,),
        sizes=(1_000, 5_000, 25_000),
        size_bits=12,
        port_bits=32,
        port_epochs=10,
        examples_bits=48,
        examples=5,
    ),
    "full": Scale(
        name="full",
        data="cifar10",
        bits=(12, 24, 32, 48),
        bits_table3=(16, 24, 32, 48),
        seeds=3,
        epochs=None,
        learnt="efficientnet-lite0",
        every_method=True,
        alphas=(0, 2, 4, 8, 16),
        alpha_bits=32,
        lambdas=(0.1, 1, 10, 100, 1000),
        lambda_bits=(12, 32),
        sizes=(1_000, 2_500, 5_000, 10_000, 25_000, 50_000),
        size_bits=12,
        port_bits=32,
        port_epochs=100,
        examples_bits=48,
        examples=5,
    ),
}


def choose_scale(
    name: str, bits: Sequence[int] | None = None, seeds: int | None = None, epochs: int | None = None
) -> Scale:
    """The scale of that name with the lengths of the tables, the seeds and the epochs that are given instead."""
    if name not in SCALES:
        raise UsageError(f"there is no scale '{name}'; choose one of {', '.join(SCALES)}")
    changes: dict[str, Any] = {}
    if bits:
        changes |= {"bits": tuple(bits), "bits_table3": tuple(bits), "examples_bits": max(bits)}
    if seeds is not None:
        changes["seeds"] = seeds
    if epochs is not None:
        changes |= {"epochs": epochs, "port_epochs": epochs}
    return replace(SCALES[name], **changes)


# Seconds measured on two cores of a small server (no bfloat16); only good for "minutes or hours".
STEP = 0.0036  # a picture in an epoch of EfficientNet-Lite0's last blocks
FROZEN = 1 / 316  # the frozen blocks of a picture, once
LAST = 0.0013  # the last blocks of a picture, to encode it
FIT = {  # a method on 512 or 1,280 features of CIFAR-10, setting 1, at 48 bits
    "lsh": 1,
    "sikh": 13,
    "sh": 2,
    "itq": 10,
    "isohash": 3,
    "agh": 17,
    "sgh": 12,
    "ccaitq": 1,
    "lfh": 8,
    "splh": 240,
    "mlh": 110,
}
FIT_OTHER = 100
SMALL_CELL = 0.7  # anything on a few hundred digits


def rough_seconds(method: str, takes: str, n_train: int, n_coded: int, epochs: int, tiny: bool) -> float:
    """How long a cell may take."""
    if tiny:
        return SMALL_CELL
    if takes == "images":
        return epochs * n_train * STEP + n_coded * LAST
    return FIT.get(method, FIT_OTHER) + 3
