"""Comparison: a source, methods, lengths and kinds of features in; a folder with tables, plots and a report out.

OUT/
  cells/                  one JSON file for each finished cell: a method on features with a length and a seed
  split.json              the rows used for training, as queries and as database, with their hash
  table.csv, .md, .tex    mean and deviation over the seeds, beside the printed numbers
  map.png, .svg           MAP against the number of bits
  precision-recall.png, .svg
  report.html             everything in one file
  result.json             the same as JSON
  codes/                  if asked for: codes and each query's average precision of each cell
  skipped.csv             pictures that could not be read, each with its reason

A cell that has its file is not computed again, so the same command goes on where it was stopped, and a longer list of
methods, lengths or seeds adds to what is there. Seeds are the hashers' `random_state` 0, 1, ... alone; the split is the
same for all, so the deviation is that of the method, and 0 where it draws nothing at random.

Methods on features learn from arrays that are computed once for the whole source, with every kind of features. Methods
that learn from pictures are trained once, and their `features` are the network they train. A method that fails is
reported with its sentence and does not stop the others. A method with settings of its own is a `Variant` and has a
name of its own: that is how ablations are made of comparisons.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.codes import Codes
from hashlens.data import make_protocol
from hashlens.data.protocols import Protocol
from hashlens.errors import HashlensError, MismatchError, Stopped, StorageError, UsageError
from hashlens.features import DEEP, GIST, backbone_of, picture_features
from hashlens.files import replacing, require_room, storage_errors, write_csv, write_json, write_text
from hashlens.hashers import hasher_class
from hashlens.progress import Progress, duration
from hashlens.published import published
from hashlens.runs import learning_rows, machine, protocol_facts, score, versions

if TYPE_CHECKING:
    from hashlens.data import Source
    from hashlens.data.images import Images
    from hashlens.hashers.base import Hasher
    from hashlens.report import Plot

NUSWIDE = "nuswide-1134"  # features that are read from the data set's own files, not computed from pictures
MEANS = ("map", "map_tie_aware", "precision_radius_2", "empty_radius_2")


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


def compare(
    source: Source,
    protocol: str | Protocol | None,
    methods: Sequence[str | Variant],
    bits: Sequence[int],
    features: Sequence[str],
    seeds: int,
    out: Path,
    *,
    split_seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    commands: Sequence[str] = (),
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    keep: bool = False,
    report: bool = True,
) -> dict[str, Any]:
    """Compute the cells that are missing and write tables, plots and the report of all that were asked for to `out`.

    `settings` are parameters for the methods that have them, such as backbone or training; a variant's own come before
    them. `commands` is what to type to get the same again. With `keep` the codes and the average precisions of the
    queries are kept (`kept_codes`). The outputs of frozen blocks are kept in the cache where several networks share
    them, now or, with `keep`, in other comparisons. Without `report`, no tables, plots and report are written.
    """
    progress = progress or Progress(quiet=True)
    split = protocol if isinstance(protocol, Protocol) else make_protocol(source, protocol, split_seed)
    split.check(len(source.images))
    if not len(split.query):
        raise UsageError(f"{source.name} has no labels, so there is nothing to score; give pictures with labels")
    if (out / "config.json").exists():
        raise UsageError(f"{out} is the folder of a run; choose another --out")
    variants = _variants(methods)
    hashers = _plan(source.images, variants, bits, features, seeds, settings or {})
    shared = {"source": source.name, "split_hash": split.fingerprint(), "data_hash": _data_hash(source)}
    identities = {cell: _identity(cell, hasher, shared) for cell, hasher in hashers.items()}
    found = {cell: _load(out, cell, identity, progress) for cell, identity in identities.items()}
    usable = [cell for cell in found if not keep or _codes_path(out, cell).exists()]
    finished = {cell: saved for cell in usable if (saved := found[cell]) is not None}
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    require_room(out, 20_000_000, "a comparison")
    split.save(out / "split.json")
    write_csv(out / "skipped.csv", ["path", "reason"], source.skipped)

    missing = [cell for cell in hashers if cell not in finished]
    progress.say(f"{len(hashers):,} cells, {len(finished):,} of them finished before → {out}/")
    arrays = _Arrays(source.images, split, progress)
    share = keep or sum(hashers[cell].takes == "images" for cell in missing) > 1
    failed: dict[Cell, str] = {}
    stopped = False
    for number, cell in enumerate(missing, start=1):
        stopped = stop()
        if stopped:
            break
        hasher = hashers.pop(cell)  # what it learns is not kept
        where = f"{number}/{len(missing)} {cell}"
        try:
            scores, seconds = _compute(cell, hasher, source, split, arrays, out, keep, share, progress, stop)
        except StorageError:
            raise  # the others would not be written either
        except HashlensError as error:
            stopped = error.exit_code == Stopped.exit_code
            if stopped:
                break
            failed[cell] = error.message
            progress.say(f"{where}: failed: {error.message}")
            continue
        except MemoryError:
            failed[cell] = "not enough memory; compare fewer pictures or use a machine with more"
            progress.say(f"{where}: failed: {failed[cell]}")
            continue
        finished[cell] = {
            **identities[cell],
            "map": scores["map"],
            "metrics": scores,
            "seconds": seconds,
            "versions": versions(),
            "machine": machine(),
        }
        write_json(_path(out, cell), finished[cell])
        progress.say(f"{where}: MAP {scores['map']:.4f}, trained in {duration(seconds['fit'])}")

    result = _summarise(list(identities), finished, failed, variants, source, split)
    if finished and report:
        _write(out, result, commands)
    if stopped:
        raise Stopped(
            f"stopped with {len(finished):,} of {len(identities):,} cells finished, which are kept in {out};"
            " go on with the same command"
        )
    return result


def _variants(methods: Sequence[str | Variant]) -> dict[str, Variant]:
    """By name, each once; a method as it is is a variant without settings."""
    variants: dict[str, Variant] = {}
    for given in methods:
        variant = given if isinstance(given, Variant) else Variant(given, given)
        unknown = [name for name in variant.settings if name not in signature(variant.hasher_class).parameters]
        if unknown:
            raise UsageError(f"{variant.name} has no setting '{unknown[0]}'; leave it out")
        variants[variant.name] = variant
    return variants


def _plan(
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


def _identity(cell: Cell, hasher: Hasher, shared: dict[str, str]) -> dict[str, Any]:
    """What a cell's numbers depend on."""
    asked = {"method": cell.method, "features": cell.features, "n_bits": cell.n_bits, "seed": cell.seed}
    params = json.loads(json.dumps(hasher._params_as_json()))  # as it will be read again
    return asked | shared | {"params": params}


def _data_hash(source: Source) -> str:
    """Of pictures and labels: the split knows rows only."""
    digest = hashlib.sha256(source.images.fingerprint().encode())
    digest.update(np.ascontiguousarray(source.labels.values).tobytes())
    return digest.hexdigest()


def _path(out: Path, cell: Cell) -> Path:
    return out / "cells" / f"{cell.name}.json"


def _codes_path(out: Path, cell: Cell) -> Path:
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

    arrays = load_file(_codes_path(out, cell))
    query, database = (Codes(arrays[role], cell.n_bits) for role in ("query", "database"))
    return Kept(query, database, arrays["average_precision"])


def _save_codes(path: Path, query: Codes, database: Codes, source: Source, split: Protocol) -> None:
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


def _load(out: Path, cell: Cell, identity: dict[str, Any], progress: Progress) -> dict[str, Any] | None:
    """The finished cell; None if there is none or its file is damaged."""
    path = _path(out, cell)
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        before = {key: saved[key] for key in identity}
        _summarise_seeds([saved])  # it has all that is needed
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        progress.say(f"note: {path} is damaged; {cell} is computed again")
        return None
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


class _Arrays:
    """Features of the whole source, one kind at a time; a kind that cannot be had is not tried again."""

    def __init__(self, images: Images, split: Protocol, progress: Progress):
        self.images, self.split, self.progress = images, split, progress
        self.kind, self.array = "", np.empty(0)
        self.error: HashlensError | None = None

    def __call__(self, kind: str) -> np.ndarray:
        if kind != self.kind:
            self.kind, self.array, self.error = kind, np.empty(0), None
            self.progress.say(f"{kind} of {len(self.images):,} pictures")
            try:
                self.array = self._features(kind)
            except HashlensError as error:
                self.error = error
        if self.error is not None:
            raise self.error
        return self.array

    def _features(self, kind: str) -> np.ndarray:
        if kind != NUSWIDE:
            return picture_features(self.images, kind, progress=self.progress)
        from hashlens.features.nuswide import nuswide_features

        if not hasattr(self.images, "root"):
            raise UsageError(f"{NUSWIDE} are files that come with NUS-WIDE; compare methods on its folder")
        return nuswide_features(self.images.root, self.images.names, self.split.train, progress=self.progress)


def _compute(
    cell: Cell,
    hasher: Hasher,
    source: Source,
    split: Protocol,
    arrays: _Arrays,
    out: Path,
    keep: bool,
    share: bool,
    progress: Progress,
    stop: Callable[[], bool],
) -> tuple[dict[str, Any], dict[str, float]]:
    """Scores and seconds; a network that is stopped in training leaves a checkpoint, from which it goes on."""
    X: Any = arrays(cell.features) if hasher.takes == "features" else source.images
    rows, training = learning_rows(hasher, split), out / "training" / cell.name
    learnt, labels = X[rows], source.labels[rows]
    clock = time.perf_counter()
    hasher.fit(learnt, labels, run=training, progress=progress, stop=stop)
    seconds = {"fit": time.perf_counter() - clock}
    del learnt
    parts = [X[split.query], X[split.database]]
    how = {"keep": True} if share and hasher.takes == "images" else {}
    clock = time.perf_counter()
    query, database = (hasher.encode(part, progress=progress, **how) for part in parts)
    seconds["encode"] = time.perf_counter() - clock
    scores = score(query, database, source, split)
    if keep:
        _save_codes(_codes_path(out, cell), query, database, source, split)
    shutil.rmtree(training, ignore_errors=True)  # its work is done
    return scores, {name: round(value, 4) for name, value in seconds.items()}


def _summarise(
    cells: Sequence[Cell],
    finished: Mapping[Cell, dict[str, Any]],
    failed: Mapping[Cell, str],
    variants: Mapping[str, Variant],
    source: Source,
    split: Protocol,
) -> dict[str, Any]:
    """The table as JSON: rows by kind of features, and the best mean MAP first within each."""
    rows: list[dict[str, Any]] = []
    for features, method in dict.fromkeys((cell.features, cell.method) for cell in cells):
        lengths = {}
        for n_bits in dict.fromkeys(cell.n_bits for cell in cells):
            seeds = [c for c in cells if (c.features, c.method, c.n_bits) == (features, method, n_bits)]
            lengths[str(n_bits)] = {
                **_summarise_seeds([finished[cell] for cell in seeds if cell in finished]),
                "errors": list(dict.fromkeys(failed[cell] for cell in seeds if cell in failed)),
                "printed": published(split.name, method, n_bits, features),
            }
        maps = [at["map"] for at in lengths.values() if at["map"] is not None]
        fits = [finished[c]["seconds"]["fit"] for c in finished if (c.features, c.method) == (features, method)]
        rows.append(
            {
                "features": features,
                "method": method,
                "supervised": variants[method].hasher_class.supervised,
                "takes": variants[method].hasher_class.takes,
                "mean_map": _mean(maps),
                "fit_seconds": _mean(fits),
                "lengths": lengths,
            }
        )
    kinds = list(dict.fromkeys(row["features"] for row in rows))
    rows.sort(key=lambda row: (kinds.index(row["features"]), -(row["mean_map"] or 0)))
    return {
        "source": source.name,
        "definition": next((cell["metrics"]["definition"] for cell in finished.values()), None),
        "methods": list(variants),
        "features": kinds,
        "bits": list(dict.fromkeys(cell.n_bits for cell in cells)),
        "seeds": list(dict.fromkeys(cell.seed for cell in cells)),
        "rows": rows,
        "n_cells": len(cells),
        "n_finished": len(finished),
        "n_failed": len(failed),
        "n_skipped": len(source.skipped),
        "protocol": protocol_facts(split),
        "versions": versions(),
        "machine": machine(),
    }


def _summarise_seeds(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the cells of one length, and the deviation of MAP where there are two or more."""
    metrics = [cell["metrics"] for cell in cells]
    maps = [scores["map"] for scores in metrics]
    curves = [[scores["pr_curve"][name] for scores in metrics] for name in ("precision", "recall")]
    precision, recall = (np.mean(curve, axis=0).tolist() if curve else [] for curve in curves)
    return {
        "n_seeds": len(cells),
        **{name: _mean([scores[name] for scores in metrics]) for name in MEANS},
        "map_deviation": float(np.std(maps, ddof=1)) if len(maps) > 1 else None,
        "pr_curve": {"precision": precision, "recall": recall} if cells else None,
        "seconds": {name: _mean([cell["seconds"][name] for cell in cells]) for name in ("fit", "encode")},
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _write(out: Path, result: dict[str, Any], commands: Sequence[str]) -> None:
    from hashlens import comparison_tables as tables
    from hashlens.report import write_comparison

    write_csv(out / "table.csv", tables.CSV_COLUMNS, tables.csv_rows(result))
    write_text(out / "table.md", tables.as_markdown(result))
    write_text(out / "table.tex", tables.as_latex(result))
    write_comparison(
        out / "report.html",
        title=f"Methods compared on {result['source']}",
        result=result,
        table=tables.map_table(result),
        numbers=tables.numbers_table(result),
        mark=tables.MARK,
        plots=_draw(out, result),
        commands=commands,
    )
    write_json(out / "result.json", result)


def _draw(out: Path, result: dict[str, Any]) -> list[Plot]:
    """Write the figures as files, and give them as plots for the report."""
    from hashlens import comparison_figures as figures
    from hashlens import comparison_tables as tables
    from hashlens.figures import INK, PAGE_INK, save_png, svg_element, svg_style, svg_text
    from hashlens.report import Plot

    drawings = {
        "map": (
            "MAP against the number of bits",
            figures.map_figure,
            figures.map_words(result),
            *tables.map_rows(result),
        ),
        "precision-recall": (
            "Precision and recall over the Hamming radius",
            figures.precision_recall_figure,
            "Precision against recall of every method at each length; the numbers follow.",
            *tables.precision_rows(result),
        ),
    }
    plots = []
    for name, (title, draw, words, columns, rows) in drawings.items():
        with svg_style():
            figure = draw(result, INK)
            save_png(figure, out / f"{name}.png")
            write_text(out / f"{name}.svg", svg_text(figure))
            plots.append(Plot(title, svg_element(draw(result, PAGE_INK), name, words), columns, rows))
    return plots
