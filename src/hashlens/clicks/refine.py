"""Refine: an index and clicks on its results in, the same index with codes that agree better with the clicks out.

Only the hash layer learns. It always starts from the model that the index was built with, so that clicks count once and
`undo` restores exactly these codes. Beside the files of the index (index/folder.py) there are

  clicks.csv           the clicks (file.py)
  outputs.npy, .json   the model's outputs for each image, which give new codes at once (outputs.py)
  refined.json         the model that the index was built with
  NAME-refined-N/      the refined model: a copy of that model with a new hash layer

The new model is complete before the index switches to it and its codes in one step.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.checksums import write_sealed
from hashlens.clicks.file import Triplet, read_clicks
from hashlens.clicks.learning import geometry, held_back, is_better, learn
from hashlens.clicks.outputs import outputs_of
from hashlens.codes import Codes
from hashlens.codes.encoder import Encoder
from hashlens.codes.hash_layer import write_changed
from hashlens.codes.model import REFINED, ModelFolder, built_with
from hashlens.data.triplets import clean_triplets
from hashlens.errors import UsageError
from hashlens.files import alone_in
from hashlens.index.folder import IndexFolder, read_facts
from hashlens.machine import blocks
from hashlens.progress import Progress, counted
from hashlens.search import open_index

FEWEST = 20  # clicks to learn from; with fewer, the gain cannot be checked
FEWEST_QUERIES = 5
MOST = 5_000  # only the newest clicks count
AT_ONCE = 4_096  # images per block of new codes
LOCK = ".hashlens-refine.lock"


@dataclass
class Refined:
    """What was learned, and whether the index was changed."""

    source: str
    index: str
    changed: bool
    model: str  # the index's current model
    sentence: str
    n_images: int
    n_clicks: int = 0  # usable clicks
    n_queries: int = 0
    n_left_out: int = 0  # repeated, contradictory, or about images that are gone
    right_before: float | None = None  # share of held-back clicks whose "more" is nearer than its "less"
    right_after: float | None = None
    bits_nearer: float | None = None  # by which held-back "more" came nearer than "less", on average

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def refine(
    source: str | os.PathLike[str],
    model: Path | str | None = None,
    *,
    undo: bool = False,
    at: Path | str | None = None,
    images: Path | None = None,
    progress: Progress | bool | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Refined:
    """Learn from the clicks on an index, or on a folder of images, if that makes its codes better.

    Parameters
    ----------
    source : an index, or images whose index `hashlens search` and `serve` keep.
    model : the model that the index was built with, if the index cannot find it.
    undo : go back to the codes of that model; clicks are kept.
    at : folder that the index of the images is kept in, instead of the cache.
    images : folder that the images of an index were moved to.

    >>> hashlens.refine("photos").sentence
    """
    shows = Progress.of(progress)
    index = open_index(os.fspath(source), model, at=at, progress=shows, stop=stop)
    if not isinstance(index, IndexFolder):
        raise UsageError(f"{source} has codes but no index; build one with hashlens index build, and search there")
    with alone_in(index.path, LOCK):
        work = _Work(os.fspath(source), index, model, shows, stop, images)
        return work.undo() if undo else work.learn()


class _Work:
    def __init__(
        self,
        source: str,
        index: IndexFolder,
        model: Path | str | None,
        progress: Progress,
        stop: Callable[[], bool],
        images: Path | None,
    ):
        self.source, self.index, self.progress, self.stop, self.images = source, index, progress, stop, images
        self.built_with = built_with(index.path, index.model)
        self.given = model

    def learn(self) -> Refined:
        clicks = read_clicks(self.index.path)[-MOST:]
        if not clicks or not len(self.index):
            return self._unchanged("there are no clicks yet; mark results on the page of hashlens serve")
        present = (part.items().column("path").take(part.still()) for part in self.index.parts)
        paths = {path for column in present for path in column.to_pylist()}
        known = [triplet for triplet in clicks if paths.issuperset(triplet)]
        triplets = _cleaned(known, self.progress)
        facts: dict[str, Any] = {"n_clicks": len(triplets), "n_queries": len({query for query, _, _ in triplets})}
        facts["n_left_out"] = len(clicks) - len(triplets)
        if len(triplets) < FEWEST or facts["n_queries"] < FEWEST_QUERIES:
            said = f"{counted(len(triplets), 'click')} on {counted(facts['n_queries'], 'query')}"
            few = f"{said} are too few to learn from; {FEWEST} on {FEWEST_QUERIES} queries are needed"
            return self._unchanged(few, **facts)
        ids, u, names = self._outputs()
        row_of = {name: row for row, name in enumerate(names)}
        rows = np.array([[row_of[name] for name in triplet] for triplet in triplets], np.int64)
        self.progress.say(f"learn   from {counted(len(rows), 'click')} on {counted(facts['n_queries'], 'query')}")
        within = geometry(u)
        before, after = held_back(u, rows, within)
        facts |= {"right_before": _right(before), "right_after": _right(after)}
        facts["bits_nearer"] = round(float((after - before).mean()), 3)
        found = (
            f"of {counted(len(rows), 'click')}, held out in turn, {facts['right_before']:.0%} were right before and"
            f" {facts['right_after']:.0%} after ({facts['bits_nearer']:+.1f} bits)"
        )
        if not is_better(rows, before, after):
            return self._unchanged(f"{found}: not clearly better, so nothing was changed", **facts)
        A = learn(u, rows, within)
        codes = [Codes.from_relaxed(u[some].astype(np.float64) @ A) for some in blocks(len(u), AT_ONCE)]
        self._replace(ids, Codes.concatenate(codes), A)
        changed = f"{found}: {counted(len(ids), 'image')} have new codes"
        return self._result(True, changed, **facts)

    def undo(self) -> Refined:
        if self.built_with is None:
            return self._unchanged("this index was not refined, so there is nothing to undo")
        ids, u, _ = self._outputs()
        self.index.recode(ids, Codes.from_relaxed(u), self.built_with)
        (self.index.path / REFINED).unlink(missing_ok=True)
        self._delete_models()
        name = self.built_with["name"]
        return self._result(True, f"{counted(len(ids), 'image')} have the codes of {name} again; the clicks are kept")

    def _outputs(self) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Ids, outputs and paths, for the model that the index was built with."""
        original = self._original()
        loaded: list[Encoder] = []

        def encoder() -> Encoder:
            if not loaded:
                loaded.append(Encoder.load(original.path))
            return loaded[0]

        fingerprint = original.describe()["fingerprint"]
        return outputs_of(self.index, encoder, fingerprint, self.progress, self.stop, self.images)

    def _original(self) -> ModelFolder:
        facts = self.built_with or self.index.model
        if self.given is None:
            return ModelFolder.find(facts, self.index.path)
        found = ModelFolder.resolve(self.given)
        ModelFolder.require_same(facts, found.describe(), self.index.path)
        return found

    def _replace(self, ids: np.ndarray, codes: Codes, A: np.ndarray) -> None:
        """Write the model first, then the index that names it; processes with the index open load both."""
        original = self._original()
        facts = self.built_with or self.index.model
        numbers = [int(path.name.rpartition("-")[2]) for path in self._models()]
        name = f"{facts['name']}-refined-{max(numbers, default=0) + 1}"
        place = self.index.path / name
        try:
            new = write_changed(original, A, place)
            write_sealed(self.index.path / REFINED, {"model": facts})
            self.index.recode(ids, codes, new.describe())
        except BaseException:
            if read_facts(self.index.path)["model"]["name"] != name:  # it may have failed after the replacement
                shutil.rmtree(place, ignore_errors=True)
            raise
        self._delete_models(but=name)

    def _models(self) -> list[Path]:
        return [path for path in self.index.path.iterdir() if re.fullmatch(r".+-refined-\d{1,9}", path.name)]

    def _delete_models(self, but: str = "") -> None:
        for path in self._models():
            if path.name != but:
                shutil.rmtree(path, ignore_errors=True)

    def _unchanged(self, why: str, **facts: Any) -> Refined:
        return self._result(False, why, **facts)

    def _result(self, changed: bool, sentence: str, **facts: Any) -> Refined:
        name = self.index.model["name"]
        return Refined(self.source, str(self.index.path), changed, name, sentence, len(self.index), **facts)


def _cleaned(triplets: Sequence[Triplet], progress: Progress) -> list[Triplet]:
    """Triplets that do not repeat or contradict others."""
    names = sorted({name for triplet in triplets for name in triplet})
    if not names:
        return []
    row_of = {name: row for row, name in enumerate(names)}
    rows = np.array([[row_of[name] for name in triplet] for triplet in triplets], np.int64)
    try:
        kept, _ = clean_triplets(rows, len(names))
    except ValueError:  # none are left
        return []
    return [(names[query], names[more], names[less]) for query, more, less in kept.tolist()]


def _right(gaps: np.ndarray) -> float:
    return round(float(np.mean((gaps > 0) + 0.5 * (gaps == 0))), 4)
