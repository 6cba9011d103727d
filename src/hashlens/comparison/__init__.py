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

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.comparison.cells import (
    NUSWIDE,
    Cell,
    Variant,
    cell_path,
    codes_path,
    data_hash,
    identity_of,
    kept_codes,
    load_cell,
    plan_cells,
    save_codes,
    variants_by_name,
)
from hashlens.comparison.summary import summarise
from hashlens.data import make_protocol
from hashlens.data.protocols import Protocol
from hashlens.errors import HashlensError, Stopped, StorageError, UsageError
from hashlens.features import picture_features
from hashlens.files import require_room, storage_errors, write_csv, write_json, write_text
from hashlens.progress import Progress, duration
from hashlens.runs import learning_rows, machine, score, versions

if TYPE_CHECKING:
    from hashlens.data import Source
    from hashlens.data.images import Images
    from hashlens.hashers.base import Hasher

__all__ = ["Cell", "Variant", "compare", "kept_codes"]


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
    variants = variants_by_name(methods)
    hashers = plan_cells(source.images, variants, bits, features, seeds, settings or {})
    shared = {"source": source.name, "split_hash": split.fingerprint(), "data_hash": data_hash(source)}
    identities = {cell: identity_of(cell, hasher, shared) for cell, hasher in hashers.items()}
    found = {cell: load_cell(out, cell, identity, split.topk, progress) for cell, identity in identities.items()}
    usable = [cell for cell in found if not keep or codes_path(out, cell).exists()]
    finished = {cell: saved for cell in usable if (saved := found[cell]) is not None}
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    require_room(out, 20_000_000, "a comparison")
    split.save(out / "split.json")
    write_csv(out / "skipped.csv", ["path", "reason"], source.skipped)

    missing = [cell for cell in hashers if cell not in finished]
    progress.say(f"{len(hashers):,} cells, {len(finished):,} of them finished before → {out}/")
    arrays = _Arrays(source.images, split, progress)
    # asked of all cells, finished or not: a cell must not depend on what is left to do
    share = keep or sum(hasher.takes == "images" for hasher in hashers.values()) > 1
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
        write_json(cell_path(out, cell), finished[cell])
        progress.say(f"{where}: MAP {scores['map']:.4f}, trained in {duration(seconds['fit'])}")

    result = summarise(list(identities), finished, failed, variants, source, split)
    if finished and report:
        _write(out, result, commands)
    if stopped:
        raise Stopped(
            f"stopped with {len(finished):,} of {len(identities):,} cells finished, which are kept in {out};"
            " go on with the same command"
        )
    return result


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
        save_codes(codes_path(out, cell), query, database, source, split)
    shutil.rmtree(training, ignore_errors=True)  # its work is done
    return scores, {name: round(value, 4) for name, value in seconds.items()}


def _write(out: Path, result: dict[str, Any], commands: Sequence[str]) -> None:
    from hashlens.comparison import tables
    from hashlens.comparison.figures import write_figures
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
        plots=write_figures(out, result),
        commands=commands,
    )
    write_json(out / "result.json", result)
