"""Compare: images or features with labels, methods, lengths, splits and seeds in, a Comparison and maybe a folder out.

OUT/
  cells/                  per finished cell (a method on features with a length, a seed and a split) its numbers, as
                          JSON, and its codes with the average precision of each query
  split.json              the rows used for training, as queries and as database, with their hash; split-1.json and so
                          on for more splits
  table.csv, .md, .tex    mean and deviation over splits and seeds, beside the printed numbers
  map.png, .svg           MAP against the number of bits
  precision-recall.png, .svg
  report.html             everything in one file
  result.json             the same as JSON
  model/, codes/          with `keep`: the cell with the highest MAP, as a model that encodes images, and its codes
  skipped.csv             images that could not be read, each with its reason

A finished cell is not computed again, so rerunning the same command resumes, and a longer list of methods, lengths,
splits or seeds adds to the finished ones. Seeds are the hashers' `random_state` 0, 1, ...: with one split, the
deviation over seeds is the method's own, and 0 if it draws nothing at random. Several splits, the same for all methods,
add the deviation of other queries and training images; paired tests are then over the queries of all splits.

Methods on features learn from arrays that are computed once per kind of features for the whole source. Methods that
learn from images are trained once, and their `features` are the network they train. A method that fails is reported
with its error and does not stop the others.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.data import Source, make_protocols, open_source, readable
from hashlens.data.images import Images, as_images
from hashlens.data.labels import Labels
from hashlens.data.protocols import Protocol
from hashlens.errors import HashlensError, Stopped, StorageError, UsageError
from hashlens.features.extractor import image_features, is_features
from hashlens.features.nuswide import NUSWIDE
from hashlens.files import require_room, storage_errors, write_csv, write_json
from hashlens.hashers.base import Hasher
from hashlens.machine import machine, versions
from hashlens.progress import Progress, counted, duration
from hashlens.results import figures, report, tables
from hashlens.results.compare.cells import GIVEN, Cell, Variant, cell_codes, identify, load_cell, plan_cells, save_cell
from hashlens.results.compare.comparison import Comparison, find_row, rows_of, summarise
from hashlens.results.metrics import evaluate_with_ranking
from hashlens.results.runs import learning_rows, save_codes

__all__ = ["GIVEN", "Cell", "Comparison", "Variant", "cell_codes", "compare"]


def compare(
    data: Source | str | Path | tuple[Any, Any],
    methods: Sequence[str | Variant | type[Hasher] | Hasher] | str | type[Hasher] | Hasher,
    bits: Sequence[int] | int = (48,),
    *,
    features: Sequence[str] = ("deep",),
    seeds: int = 1,
    splits: int = 1,
    protocol: str | Protocol | Sequence[Protocol] | None = None,
    split_seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    against: str | None = None,
    out: str | Path | None = None,
    keep: bool = False,
    share: bool = False,
    report: bool = True,
    commands: Sequence[str] = (),
    progress: Progress | bool | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Train every method at every length with every seed and score it, on one split or several.

    `data` are (X, y) with images or features X, or a source by name, path or object. Methods are names, classes (your
    own too) or instances, whose n_bits and random_state are replaced. `features` are for methods on features of
    images, `settings` for all methods that have them; a variant's own come first. `splits` are those of the protocol of
    that name with the seeds `split_seed`, `split_seed` + 1, ...; or `protocol` is the splits themselves. `against`
    names the method that the paired tests compare with, by default the best. Without `out` nothing is written. `keep`
    saves the best model of the first split.
    `share` caches the outputs of frozen blocks even if only one network needs them, for other comparisons.
    `commands` are the commands that repeat the comparison. Without `report`, tables, plots and report are not written.

    >>> compare((X, y), [DTSH(), ITQ(), Mine()], bits=[16, 48], seeds=3)
    """
    progress = Progress.of(progress)
    source = _source(data)
    if isinstance(protocol, str | None):
        made: Sequence[Protocol] = make_protocols(source, protocol, split_seed, splits)
    elif splits > 1:
        raise UsageError("splits needs the name of a protocol; pass that, or a list of protocols without splits")
    else:
        made = [protocol] if isinstance(protocol, Protocol) else protocol
    for split in made:
        split.check(len(source.images))
    if not len(made[0].query):
        raise UsageError(f"{source.name} has no labels, so there is nothing to score; pass images with labels")
    folder = None if out is None else Path(out)
    if folder and (folder / "config.json").exists():
        raise UsageError(f"{folder} is a run folder; choose another --out")
    if keep and folder is None:
        raise UsageError("keep needs a folder for the model; pass out")
    variants = Variant.by_name([methods] if isinstance(methods, str | type | Hasher) else methods)
    bits = [bits] if isinstance(bits, int) else bits
    hashers = plan_cells(source.images, variants, bits, features, seeds, len(made), len(made[0].train), settings or {})
    if against:
        find_row(rows_of(hashers, variants), against)  # refuses unknown and ambiguous names
    identities = identify(hashers, source, made)
    finished: dict[Cell, dict[str, Any]] = {}
    average_precisions: dict[Cell, np.ndarray] = {}
    if folder:
        for cell, identity in identities.items():
            if found := load_cell(folder, cell, identity, made[cell.split].topk, progress):
                finished[cell], average_precisions[cell] = found
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        require_room(folder, 20_000_000, "a comparison")
        for number, split in enumerate(made):
            split.save(folder / (f"split-{number}.json" if number else "split.json"))
        write_csv(folder / "skipped.csv", ["path", "reason"], source.skipped)

    missing = [cell for cell in hashers if cell not in finished]
    where = f" → {folder}/" if folder else ""
    progress.say(f"{counted(len(hashers), 'cell')}, {len(finished):,} already finished{where}")
    # counted over all cells, so that a cell does not depend on which ones are finished
    share = share or sum(hasher.takes == "images" for hasher in hashers.values()) > 1
    work = _Work(source, made, folder, share, progress, stop)
    failed: dict[Cell, str] = {}
    best: tuple[Cell, Hasher] | None = None
    stopped = False
    for number, cell in enumerate(missing, start=1):
        if stopped := stop():
            break
        hasher = hashers.pop(cell)  # frees its memory afterwards
        which = f"{number}/{len(missing)} {cell}"
        training = None if folder is None else folder / "training" / cell.name
        if training and (own := identities[cell].get("backbone_hash")):  # checkpoints only have its class name
            training = training.with_name(f"{cell.name}-{own[:8]}")
        try:
            numbers, arrays = work.run(cell, hasher, training)
        except StorageError:
            raise  # the other cells could not be written either
        except Stopped:
            stopped = True
            break
        except (HashlensError, MemoryError) as error:
            few = "not enough memory; compare fewer images or use a machine with more"
            failed[cell] = error.message if isinstance(error, HashlensError) else few
            progress.say(f"{which}: failed: {failed[cell]}")
            continue
        finished[cell] = identities[cell] | numbers
        average_precisions[cell] = arrays["average_precision"]
        if folder:
            save_cell(folder, cell, finished[cell], arrays)
        if keep and cell == _winner(finished):
            best = cell, hasher
        progress.say(f"{which}: MAP {numbers['map']:.4f}, trained in {duration(numbers['seconds']['fit'])}")

    result = summarise(list(identities), finished, failed, variants, source.name, made)
    comparison = Comparison(result | {"n_skipped": len(source.skipped)}, average_precisions, folder)
    comparison.add_p_values(against)
    if folder and finished and report:
        _write(folder, comparison.result, commands)
    if stopped:
        kept = f", which are kept in {folder}; rerun the same command to resume" if folder else ""
        raise Stopped(f"stopped with {len(finished):,} of {len(identities):,} cells finished{kept}")
    if keep and (winner := _winner(finished)):
        work.keep(winner, best[1] if best and best[0] == winner else hashers[winner])
    return comparison


def _source(data: Source | str | Path | tuple[Any, Any]) -> Source:
    if isinstance(data, tuple):
        X, y = data
        images: Any = X if is_features(X) else as_images(X)
        return Source("arrays", images, Labels.of(y))
    return data if isinstance(data, Source) else readable(open_source(data))


def _winner(finished: Mapping[Cell, Mapping[str, Any]]) -> Cell | None:
    """The best cell of the first split, because MAPs of different queries are not comparable."""
    return max((cell for cell in finished if not cell.split), key=lambda cell: finished[cell]["map"], default=None)


@dataclass
class _Work:
    """Computes cells; keeps the features of the whole source for one kind at a time."""

    source: Source
    splits: Sequence[Protocol]
    out: Path | None
    share: bool
    progress: Progress
    stop: Callable[[], bool]
    kind: tuple[str, int] = ("", 0)
    array: np.ndarray | None = None
    error: HashlensError | None = None

    def run(self, cell: Cell, hasher: Hasher, training: Path | None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Numbers, and codes with average precisions; stopping the training of a network leaves a checkpoint."""
        source, split = self.source, self.splits[cell.split]
        X: Any = self.features(cell.features, cell.split) if hasher.takes == "features" else source.images
        rows = learning_rows(hasher, split)
        learned, labels = X[rows], source.labels[rows]
        clock = time.perf_counter()
        hasher.fit(learned, labels, run=training, progress=self.progress, stop=self.stop)
        fitted = time.perf_counter() - clock
        del learned
        both = split.query, split.database
        # values shared by several splits and lengths are computed for all images at once
        parts = [X.part(rows) if self.share and isinstance(X, Images) else X[rows] for rows in both]
        clock = time.perf_counter()
        query, database = (hasher.encode(part, progress=self.progress, shared=self.share) for part in parts)
        seconds = {"fit": round(fitted, 4), "encode": round(time.perf_counter() - clock, 4)}
        given = query, database, source.labels[split.query], source.labels[split.database]
        scores, ranking = evaluate_with_ranking(given, split.topk, split.learned)
        if training:
            shutil.rmtree(training, ignore_errors=True)  # no longer needed
        numbers = {"map": scores["map"], "metrics": scores, "seconds": seconds}
        arrays = {"query": query.packed, "database": database.packed, "average_precision": ranking.average_precision()}
        return numbers | {"versions": versions(), "machine": machine()}, arrays

    def keep(self, cell: Cell, hasher: Hasher) -> None:
        """Save the hasher as OUT/model; one that learned from features of images is fitted again on the images."""
        from sklearn.base import clone

        assert self.out is not None
        self.progress.say(
            f"keeping {cell} in {self.out / 'model'}: it was best on these queries, so expect a little less on others"
        )
        arrays = cell.features in (GIVEN, NUSWIDE)
        if not hasher.is_fitted() or (hasher.takes == "features" and not arrays):
            X: Any = self.features(cell.features) if arrays else self.source.images
            rows = learning_rows(hasher, self.splits[0])
            hasher = clone(hasher).fit(X[rows], self.source.labels[rows], progress=self.progress, stop=self.stop)
        hasher.save(self.out / "model")
        if cell.features != GIVEN:
            save_codes(self.out, *cell_codes(self.out, cell), self.source, self.splits[0])

    def features(self, kind: str, split: int = 0) -> Any:
        """Features of a kind; failures are not retried. Only NUS-WIDE's are scaled by the training rows of a split."""
        images: Any = self.source.images
        if kind == GIVEN:
            return images
        wanted = kind, split if kind == NUSWIDE else 0
        if wanted != self.kind:
            self.kind, self.array, self.error = wanted, None, None
            self.progress.say(f"{kind} features of {counted(len(images), 'image')}")
            try:
                compute = partial(self._nuswide, split) if kind == NUSWIDE else partial(image_features, images, kind)
                self.array = compute(progress=self.progress)
            except HashlensError as error:
                self.error = error
        if self.error is not None:
            raise self.error
        return self.array

    def _nuswide(self, split: int, progress: Progress) -> np.ndarray:
        from hashlens.features.nuswide import nuswide_features

        images: Any = self.source.images
        if not hasattr(images, "root"):
            raise UsageError(f"{NUSWIDE} features are files that come with NUS-WIDE; compare methods on its folder")
        return nuswide_features(images.root, images.names, self.splits[split].train, progress=progress)


def _write(out: Path, result: dict[str, Any], commands: Sequence[str]) -> None:
    table = tables.map_table(result)
    tables.write_tables(out / "table", table, tables.title_of(result), result)
    asked = {"Methods": result["methods"], "Bits": result["bits"], "Seeds": result["seeds"]}
    if len(result["splits"]) > 1:
        asked["Split seeds"] = [split["seed"] for split in result["splits"]]
    report.write_page(
        out / "report.html",
        "comparison.html.j2",
        title=f"Methods compared on {result['source']}",
        table=table,
        numbers=tables.numbers_table(result),
        table_html=tables.table_html,
        plots=figures.write_figures(out, result),
        settings=[*report.settings_of(result), *report.flat(asked)],
        environment=report.environment_of(result),
        commands=commands,
    )
    write_json(out / "result.json", result)
