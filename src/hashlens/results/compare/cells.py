"""Cells of a comparison: methods, lengths, features, splits and seeds in, what to compute and what is finished out.

A cell is a method on features with a length, a seed and a split. Its file records everything its numbers depend on, so
that numbers from other settings are never mistaken for it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from hashlens.codes import Codes
from hashlens.data import Source
from hashlens.data.protocols import Protocol
from hashlens.errors import MismatchError, UsageError
from hashlens.features.extractor import DEEP, GIST, Extractor, backbone_of, feature_size, is_features
from hashlens.features.networks import NETWORKS, OWN, build_blocks
from hashlens.features.nuswide import NUSWIDE
from hashlens.files import replacing, sha256, write_json
from hashlens.hashers.base import Hasher
from hashlens.hashers.methods import hasher_class
from hashlens.progress import Progress
from hashlens.schema import parse_json
from hashlens.settings import apply, changed, describe, to_json

GIVEN = "given"  # name of features given as an array
NAME_BYTES = 150  # of a file name, which may have 255 including temporary suffixes


@dataclass(frozen=True, eq=False)
class Variant:
    """A method with its own settings and name, such as a point of an ablation."""

    name: str
    method: str | type[Hasher]  # a row of METHODS, or a class
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None  # base of the settings, as in Hasher.preset

    @property
    def hasher_class(self) -> type[Hasher]:
        return hasher_class(self.method) if isinstance(self.method, str) else self.method

    @classmethod
    def of(cls, method: str | Variant | type[Hasher] | Hasher) -> Variant:
        """A variant of a method's name, a class, or an instance, whose settings except length and seed are taken."""
        if isinstance(method, Variant):
            return method
        if isinstance(method, str):
            return cls(method, method)
        if isinstance(method, type) and issubclass(method, Hasher):
            return cls(getattr(method, "name", method.__name__), method)
        if not isinstance(method, Hasher):
            raise UsageError(f"cannot compare {method!r}; give names of methods, classes of hashers or hashers")
        words = {key: value for key, value in changed(method).items() if key not in ("n_bits", "random_state")}
        given = _flat(method.get_params(deep=False))
        name = cls.of(type(method)).name
        if words:
            name += f"({', '.join(f'{key}={value}' for key, value in words.items())})"
        return cls(name, type(method), {key: given[key] for key in words})

    @classmethod
    def by_name(cls, methods: Iterable[str | Variant | type[Hasher] | Hasher]) -> dict[str, Variant]:
        """Variants by name, without repeats; different ones with the same name, as for own backbones, get a number."""
        found: dict[str, Variant] = {}
        for one in map(cls.of, methods):
            name, number, asked = one.name, 1, (one.hasher_class, one.settings, one.preset)
            while name in found and (found[name].hasher_class, found[name].settings, found[name].preset) != asked:
                number += 1
                name = f"{one.name} #{number}"
            found[name] = replace(one, name=name)
        return found


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the fields of `training` in its place."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= {one.name: getattr(value, one.name) for one in fields(value)} if is_dataclass(value) else {name: value}
    return found


@dataclass(frozen=True)
class Cell:
    features: str
    method: str
    n_bits: int
    seed: int
    split: int = 0  # index of the split

    @property
    def name(self) -> str:
        """The name of its files; slashes in names of Hugging Face models are replaced, and long names are cut."""
        split = f"-split-{self.split}" if self.split else ""
        whole = f"{self.features}-{self.method}-{self.n_bits}-{self.seed}{split}"
        name = re.sub(r"[^\w.-]+", "_", whole)
        if len(name.encode()) <= NAME_BYTES:
            return name
        start = name.encode()[: NAME_BYTES - 17].decode(errors="ignore")
        return f"{start}-{hashlib.sha256(whole.encode()).hexdigest()[:16]}"

    def __str__(self) -> str:
        split = f", split {self.split}" if self.split else ""
        return f"{self.method} on {self.features}, {self.n_bits} bits, seed {self.seed}{split}"


def plan_cells(
    images: Any,
    variants: Mapping[str, Variant],
    bits: Sequence[int],
    features: Sequence[str],
    seeds: int,
    splits: int,
    n_train: int,
    settings: Mapping[str, Any],
) -> dict[Cell, Hasher]:
    """Every cell with its hasher, grouped by features; usage errors are raised here, before any work."""
    settings = _flat(settings)
    classes = {name: variant.hasher_class for name, variant in variants.items()}
    known = {name: [one.name for one in describe(cls)] for name, cls in classes.items()}
    given = is_features(images)
    on_features = [name for name, cls in classes.items() if given or cls.takes == "features"]
    kinds_of: dict[str, list[str]] = {}
    for name in on_features:
        own = variants[name].settings.get("features")  # takes precedence over the comparison's features
        kinds_of[name] = [GIVEN] if given else [backbone_of(kind) for kind in ([own] if own else features)]
    kinds = list(dict.fromkeys(kind for kinds in kinds_of.values() for kind in kinds))
    if not classes:
        raise UsageError("there is nothing to compare; name methods, such as --methods itq,ksh")
    if not all(kinds_of.values()):
        raise UsageError(f"{on_features[0]} learns from features; name them, such as --features gist,deep")
    if not bits or not all(isinstance(n, int | np.integer) and n >= 1 for n in bits):
        raise UsageError(f"bits must be integers >= 1, got {', '.join(map(str, bits)) or 'none'}")
    if seeds < 1:
        raise UsageError(f"seeds must be >= 1, got {seeds}")
    for name in settings:
        if all(name not in names for names in known.values()):
            raise UsageError(f"none of {', '.join(classes)} has the setting '{name}'; omit it")
    for kind in () if given else kinds:
        _require_features(kind)

    plan: dict[Cell, Hasher] = {}
    chosen = [(kind, method) for kind in kinds for method in on_features if kind in kinds_of[method]]
    chosen += [("", method) for method in classes if method not in on_features]
    for kind, method in chosen:
        shared = {name: value for name, value in settings.items() if name in known[method]}
        shared |= _flat(variants[method].settings) | ({"features": kind} if kind and not given else {})
        for n_bits in dict.fromkeys(bits):
            for split, seed in product(range(splits), range(seeds)):
                hasher: Any = classes[method].preset(variants[method].preset, n_bits, n_train)
                apply(hasher, {"random_state": seed, **shared})
                # the default network of a method depends on the images
                plan[Cell(kind or hasher._choose_backbone(images), method, n_bits, seed, split)] = hasher
    return plan


def _require_features(kind: str) -> None:
    try:
        if kind not in (GIST, NUSWIDE):
            feature_size(kind)
    except UsageError as error:
        raise UsageError(
            f"there are no features '{kind}'; choose {GIST}, deep (which is {DEEP}), {NUSWIDE}, or one of"
            f" {', '.join(NETWORKS)}, also with a size such as resnet50@112"
        ) from error


def identify(hashers: Mapping[Cell, Hasher], source: Source, splits: Sequence[Protocol]) -> dict[Cell, dict[str, Any]]:
    """Everything that the numbers of each cell depend on."""
    images: Any = source.images
    digest = hashlib.sha256(images.tobytes() if is_features(images) else images.fingerprint().encode())
    digest.update(np.ascontiguousarray(source.labels.values).tobytes())  # splits only contain rows
    shared = {"source": source.name, "data_hash": digest.hexdigest()}
    hashes = [split.fingerprint() for split in splits]
    found = {}
    for cell, hasher in hashers.items():
        params = json.loads(json.dumps(to_json(hasher)))  # as it will be when read again
        found[cell] = asdict(cell) | shared | {"split_hash": hashes[cell.split], "params": params}
        weights = getattr(hasher, "weights", None)
        if weights is not None and Path(weights).is_file():
            found[cell]["weights_sha256"] = sha256(Path(weights))
        if cell.features.startswith(OWN):
            found[cell]["backbone_hash"] = _hash_of(hasher)
    return found


def _hash_of(hasher: Any) -> str:
    """A hash of the layers, weights and outputs of a user's backbone; settings only have its class name."""
    try:
        return Extractor.of_network(build_blocks(hasher.backbone).eval(), hasher.image_size, device="cpu").key
    except Exception:  # then training fails too, with a message
        return ""


def save_cell(out: Path, cell: Cell, saved: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """cells/NAME.safetensors with the codes and each query's average precision, then cells/NAME.json."""
    with replacing(cell_path(out, cell, "safetensors")) as temporary:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, temporary)
    write_json(cell_path(out, cell), saved)


def cell_path(out: Path, cell: Cell, suffix: str = "json") -> Path:
    return out / "cells" / f"{cell.name}.{suffix}"


def cell_codes(out: Path, cell: Cell) -> tuple[Codes, Codes]:
    """Codes of the queries and of the database of a finished cell in `out`."""
    arrays = load_file(cell_path(out, cell, "safetensors"))
    return Codes(arrays["query"], cell.n_bits), Codes(arrays["database"], cell.n_bits)


def load_cell(
    out: Path, cell: Cell, identity: dict[str, Any], topk: int | None, progress: Progress
) -> tuple[dict[str, Any], np.ndarray] | None:
    """The finished cell and its average precisions; None if there is none or a file is damaged."""
    from hashlens.results.compare.comparison import summarise_cells

    path = cell_path(out, cell)
    try:
        saved = parse_json(path.read_bytes())
        before = {key: saved[key] for key in identity} | {"topk": saved["metrics"]["topk"]}
        summarise_cells([saved])  # raises if anything is missing
        with safe_open(cell_path(out, cell, "safetensors"), "numpy") as file:
            average_precision = file.get_tensor("average_precision")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        progress.say(f"note: {path} is damaged or from an older version; {cell} is computed again")
        return None
    identity = identity | {"topk": topk}
    if before != identity:
        raise MismatchError(
            f"{path} was made with different settings ({'; '.join(_differences(before, identity))}); choose another"
            " --out or remove that file"
        )
    return saved, average_precision


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for key in dict.fromkeys([*now, *before]):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new)
        elif old != new:
            old, new = (f"{str(value)[:12]}…" if key.endswith("_hash") else value for value in (old, new))
            yield f"{key} was {old}, now {new}"
