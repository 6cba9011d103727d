"""The cells of a comparison: methods, lengths, features and seeds in; what to compute, and what is finished, out.

A cell is a method on features with a length and a seed. Its file says what its numbers depend on, so that numbers made
otherwise are never taken for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.codes import Codes
from hashlens.comparison.summary import summarise_seeds
from hashlens.errors import MismatchError, UsageError
from hashlens.features import DEEP, GIST, backbone_of
from hashlens.files import replacing, sha256
from hashlens.hashers import hasher_class
from hashlens.progress import Progress

if TYPE_CHECKING:
    from hashlens.data import Source
    from hashlens.data.images import Images
    from hashlens.data.protocols import Protocol
    from hashlens.hashers.base import Hasher

NUSWIDE = "nuswide-1134"  # features that are read from the data set's own files, not computed from pictures


@dataclass(frozen=True, eq=False)
class Variant:
    """A method with settings of its own under a name of its own: a point of an ablation."""

    name: str
    method: str | type[Hasher]  # a row of METHODS, or a class that has none
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hasher_class(self) -> type[Hasher]:
        return hasher_class(self.method) if isinstance(self.method, str) else self.method


@dataclass(frozen=True)
class Cell:
    features: str
    method: str
    n_bits: int
    seed: int

    @property
    def name(self) -> str:
        """Of its file; the name of a Hugging Face model may hold a slash."""
        return re.sub(r"[^\w.-]+", "_", f"{self.features}-{self.method}-{self.n_bits}-{self.seed}")

    def __str__(self) -> str:
        return f"{self.method} on {self.features}, {self.n_bits} bits, seed {self.seed}"


def variants_by_name(methods: Sequence[str | Variant]) -> dict[str, Variant]:
    """By name, each once; a method as it is is a variant without settings."""
    variants: dict[str, Variant] = {}
    for given in methods:
        variant = given if isinstance(given, Variant) else Variant(given, given)
        unknown = [name for name in variant.settings if name not in signature(variant.hasher_class).parameters]
        if unknown:
            raise UsageError(f"{variant.name} has no setting '{unknown[0]}'; leave it out")
        variants[variant.name] = variant
    return variants


def plan_cells(
    images: Images,
    variants: Mapping[str, Variant],
    bits: Sequence[int],
    features: Sequence[str],
    seeds: int,
    settings: Mapping[str, Any],
) -> dict[Cell, Hasher]:
    """Every cell with its hasher, those that share features together; wrong use is found here, before any work."""
    kinds = list(dict.fromkeys(backbone_of(kind) for kind in features))
    classes = {name: variant.hasher_class for name, variant in variants.items()}
    parameters = {method: signature(cls).parameters for method, cls in classes.items()}
    on_features = [method for method, cls in classes.items() if cls.takes == "features"]
    if not classes:
        raise UsageError("there is nothing to compare; name methods, such as --methods itq,ksh")
    if on_features and not kinds:
        raise UsageError(f"{on_features[0]} learns from features; name them, such as --features gist,deep")
    if not bits or min(bits) < 1:
        raise UsageError(f"lengths must be whole numbers from 1 up, not {', '.join(map(str, bits)) or 'none'}")
    if seeds < 1:
        raise UsageError(f"the number of seeds must be 1 or more, not {seeds}")
    for name in settings:
        if all(name not in known for known in parameters.values()):
            raise UsageError(f"none of {', '.join(classes)} has the option --{name.strip('_').replace('_', '-')}")
    for kind in kinds if on_features else ():
        _require_features(kind)

    plan: dict[Cell, Hasher] = {}
    chosen = [(kind, method) for kind in kinds for method in on_features]
    chosen += [("", method) for method in classes if method not in on_features]
    for kind, method in chosen:
        for n_bits in dict.fromkeys(bits):
            for seed in range(seeds):
                params = {name: value for name, value in settings.items() if name in parameters[method]}
                params |= variants[method].settings
                params |= {"n_bits": n_bits, "random_state": seed} | ({"features": kind} if kind else {})
                hasher: Any = classes[method](**params)
                # a network that is left to the method depends on the pictures
                plan[Cell(kind or hasher._choose_backbone(images), method, n_bits, seed)] = hasher
    return plan


def _require_features(kind: str) -> None:
    from hashlens.features.deep import feature_size
    from hashlens.networks import NETWORKS

    try:
        if kind not in (GIST, NUSWIDE):
            feature_size(kind)
    except UsageError as error:
        raise UsageError(
            f"there are no features '{kind}'; choose {GIST}, deep (which is {DEEP}), {NUSWIDE}, or one of"
            f" {', '.join(NETWORKS)}, also with a size such as resnet50@112"
        ) from error


def identity_of(cell: Cell, hasher: Hasher, shared: dict[str, str]) -> dict[str, Any]:
    """What a cell's numbers depend on."""
    asked = {"method": cell.method, "features": cell.features, "n_bits": cell.n_bits, "seed": cell.seed}
    params = json.loads(json.dumps(hasher._params_as_json()))  # as it will be read again
    weights = getattr(hasher, "weights", None)
    known = {"weights_sha256": sha256(Path(weights))} if weights is not None and Path(weights).is_file() else {}
    return asked | shared | {"params": params} | known


def data_hash(source: Source) -> str:
    """Of pictures and labels: the split knows rows only."""
    digest = hashlib.sha256(source.images.fingerprint().encode())
    digest.update(np.ascontiguousarray(source.labels.values).tobytes())
    return digest.hexdigest()


def cell_path(out: Path, cell: Cell) -> Path:
    return out / "cells" / f"{cell.name}.json"


def codes_path(out: Path, cell: Cell) -> Path:
    return out / "codes" / f"{cell.name}.safetensors"


@dataclass(frozen=True, eq=False)
class Kept:
    """What is left of a cell beside its numbers."""

    query: Codes
    database: Codes
    average_precision: np.ndarray  # (q,) float64, NaN where a query is left out


def kept_codes(out: Path, cell: Cell) -> Kept:
    """What a comparison with `keep` left of a finished cell in `out`."""
    from safetensors.numpy import load_file

    arrays = load_file(codes_path(out, cell))
    query, database = (Codes(arrays[role], cell.n_bits) for role in ("query", "database"))
    return Kept(query, database, arrays["average_precision"])


def save_codes(path: Path, query: Codes, database: Codes, source: Source, split: Protocol) -> None:
    from safetensors.numpy import save_file

    from hashlens.metrics import average_precisions

    asked, searched = (source.labels[rows] for rows in (split.query, split.database))
    arrays = {
        "query": query.packed,
        "database": database.packed,
        "average_precision": average_precisions(query, database, asked, searched, split.topk),
    }
    with replacing(path) as temporary:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary)


def load_cell(
    out: Path, cell: Cell, identity: dict[str, Any], topk: int | None, progress: Progress
) -> dict[str, Any] | None:
    """The finished cell; None if there is none or its file is damaged."""
    path = cell_path(out, cell)
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        before = {key: saved[key] for key in identity} | {"topk": saved["metrics"]["topk"]}
        summarise_seeds([saved])  # it has all that is needed
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        progress.say(f"note: {path} is damaged; {cell} is computed again")
        return None
    identity = identity | {"topk": topk}
    if before != identity:
        raise MismatchError(
            f"{path} was made otherwise ({'; '.join(_differences(before, identity))}); choose another --out or remove"
            " that file"
        )
    return saved


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*now, *before]):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new)
        elif old != new:
            old, new = (f"{str(value)[:12]}…" if key.endswith("_hash") else value for value in (old, new))
            yield f"{key} was {old}, now {new}"
