"""Tune: training rows and a method in, the settings that best retrieve held-out training rows, and all tries, out.

OUT/
  tries.jsonl     one line per try: its settings, how it ended, its MAP, seconds
  tuning.json     what the tries depend on, and how long they took

Each setting declares its range for tuning (`search=`). The first try has the defaults; Optuna proposes the others (TPE)
and stops bad ones early (successive halving). A try is scored by the tie-aware MAP of held-out rows as queries against
the rows it learned from: first on one fold (networks before that with a third of the usual epochs), then, if among the
best third so far, on all folds. The score counts only if all folds were computed. The defaults stay unless the best try
exceeds them by more than chance: by the standard error of a gain over the folds, times sqrt(2 ln n) after n scored
tries besides the defaults, which is about what the luckiest of n equally good tries gains.

A proposal depends only on the seed and earlier tries: rerunning the same command continues, with the same result as one
long run. The search sees only `TrainingRows`, which hold no queries.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from hashlens.data import Source, make_protocol, open_source, readable
from hashlens.data.folds import TrainingRows
from hashlens.data.images import Images, as_images
from hashlens.data.labels import Labels, require_differences
from hashlens.data.protocols import Protocol
from hashlens.errors import DataError, HashlensError, MismatchError, Stopped, UsageError, require
from hashlens.features.extractor import image_features, is_features
from hashlens.files import write_json, write_text
from hashlens.hashers.base import Hasher, as_rows
from hashlens.hashers.methods import hasher_class
from hashlens.progress import Progress, counted, duration, seconds_of
from hashlens.results.metrics import DEFINITIONS, evaluate_ranking
from hashlens.schema import SHA256, conform, optional, parse_json, whole
from hashlens.settings import Setting, apply, changed, checked, describe, to_json

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

TRIES, MOST, FOLDS = 20, 200, 3  # MOST tries if only the time is limited
THIRD = 3  # one third of tries continues, with three times the work
RANDOM = 6  # random tries before TPE starts
DIGITS = 3  # significant digits of tried numbers, short enough to type
LIMITS = [
    Setting("tries", None, "", low=1, types=(int,)),
    Setting("time", None, "", above=0, types=(float,)),
    Setting("folds", None, "", low=2, types=(int,)),
    Setting("seed", None, "", low=0, high=2**32 - 1, types=(int,)),  # what scikit-learn takes
]
REAL = (float, whole())
ASKED = {"method": str, "settings": dict, "search": dict, "folds": whole(2), "seed": whole(), "images": SHA256}


@dataclass(frozen=True, eq=False)
class Tuning:
    """The result of tuning: `hasher` has the best settings; `tries` are the lines of tries.jsonl."""

    hasher: Hasher
    tries: list[dict[str, Any]]

    @property
    def best(self) -> dict[str, Any] | None:
        """The try with the highest score, or the first (the defaults) if the gain may be chance.

        None if there was not enough time for any.
        """
        scored = [one for one in self.tries if one["state"] == "complete"]
        if len(scored) < 2:
            return scored[0] if scored else None
        first, *others = scored
        gains = np.subtract([one["folds"] for one in others], first["folds"])  # (tries, folds)
        best = int(gains.mean(1).argmax())  # the first of equal ones
        n_others = sum(one["score"] is not None for one in self.tries) - 1
        return others[best] if gains[best].mean() > _luck(gains, n_others) else first

    @property
    def settings(self) -> dict[str, Any]:
        """The best values of the searched settings."""
        return self.best["settings"] if self.best else {}

    def summary(self) -> dict[str, Any]:
        """The best settings, their score and that of the defaults, and the cost."""
        first = self.tries[0] if self.tries else {}
        return {
            "settings": self.settings,
            "score": self.best and self.best["score"],
            "default_score": first.get("score"),
            "n_tries": len(self.tries),
            "seconds": round(sum(one["seconds"] for one in self.tries), 2),
        }

    def __str__(self) -> str:
        if self.best is None:
            return "no try was finished; the defaults stay"
        found, tries = f"MAP {self.best['score']:.4f} on held-out training rows", counted(len(self.tries), "try")
        if len(self.tries) == 1:
            return f"the defaults stay   {found}; only they were tried, so allow more tries or time"
        if self.best["number"] == 0:
            return f"the defaults stay   {found}; of {tries}, none is better by more than chance"
        return f"{as_options(self.settings)}   {found}, {self.tries[0]['score']:.4f} with the defaults, best of {tries}"


def _luck(gains: np.ndarray, n_tries: int) -> float:
    """About how much the luckiest of `n_tries` gains if all are as good as the defaults; tries stopped early count too.

    The standard error of a gain comes from the `gains` (tries, folds) of all tries together: that of a single one, from
    three folds, is often far too small. The expected maximum of n draws is about sqrt(2 ln n) standard errors.
    """
    error = math.sqrt(gains.var(axis=1, ddof=1).mean() / gains.shape[1])
    return error * max(1.0, math.sqrt(2 * math.log(n_tries)))


def tune(
    data: Source | TrainingRows | str | Path | tuple[Any, Any],
    method: str | type[Hasher] | Hasher = "dtsh",
    *,
    tries: int | None = None,
    time: float | str | None = None,
    folds: int = FOLDS,
    seed: int = 0,
    protocol: str | Protocol | None = None,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Tuning:
    """Choose the settings of a method on folds of the training rows, and fit it with them on all training rows.

    `data` are (X, y) with images or features X, all to learn from, or a source by name, path or object, whose training
    rows `protocol` gives. Settings of an instance that differ from the defaults stay as they are.
    At most `tries` (20, or 200 with `time`) are made within `time`, in seconds or as "10m"; fitting comes on top.
    With `out` every try is recorded there, a later call continues, and the model is saved as OUT/model.

    >>> tune((X, y), KSH(48), tries=12).hasher.encode(X)
    """
    progress = Progress.of(progress)
    time = _budget(tries, time, folds, seed)  # before any work
    rows = _training_rows(data, protocol, seed)
    found = search(
        rows, as_hasher(method), tries=tries, time=time, folds=folds, seed=seed,
        out=None if out is None else Path(out), progress=progress, stop=stop,
    )  # fmt: skip
    found.hasher.fit(rows.images, rows.labels, progress=progress, stop=stop)
    if out is not None:
        found.hasher.save(Path(out) / "model")
    return found


def as_hasher(method: str | type[Hasher] | Hasher) -> Hasher:
    cls = hasher_class(method) if isinstance(method, str) else method
    return cls() if isinstance(cls, type) else clone(cls)


def _training_rows(
    data: Source | TrainingRows | str | Path | tuple[Any, Any], protocol: str | Protocol | None, seed: int
) -> TrainingRows:
    if isinstance(data, TrainingRows):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        if protocol is not None:
            raise UsageError(
                "protocol is for a source; with (X, y) all rows are learned from, so pass only training rows"
            )
        X = as_rows(data[0])
        arrays = Source("arrays", X if is_features(X) else as_images(X), Labels.of(data[1]))  # one label each
        return TrainingRows(arrays.name, arrays.images, arrays.labels)
    if not isinstance(data, Source | str | os.PathLike):
        raise UsageError(f"pass (X, y), or a source by name, path or object, not {type(data).__name__}")
    source = data if isinstance(data, Source) else readable(open_source(data))
    split = protocol if isinstance(protocol, Protocol) else make_protocol(source, protocol, seed)
    return TrainingRows.of(source, split)


def search(
    rows: TrainingRows,
    hasher: Hasher,
    *,
    fixed: Collection[str] | None = None,
    tries: int | None = None,
    time: float | str | None = None,
    folds: int = FOLDS,
    seed: int = 0,
    out: Path | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Tuning:
    """The search of `tune`, without the final fit; `fixed` names settings not to search, by default changed ones."""
    require("optuna", why="tuning")
    progress = progress or Progress(quiet=True)
    budget = _budget(tries, time, folds, seed)
    tries, folds, seed = limit(tries, budget), int(folds), int(seed)  # JSON has no numbers of numpy
    space = searched(hasher, rows.images, changed(hasher) if fixed is None else fixed)
    require_differences(rows.labels)
    cuts = rows.folds(folds, seed)
    record = _Record(out, _identity(rows, hasher, space, folds, seed), type(hasher))
    done = record.tries
    progress.say(
        f"tuning {', '.join(space)} of {hasher.name} on {counted(folds, 'fold')} of"
        f" {counted(len(rows.labels), 'training image')}"
        + (f"; {counted(len(done), 'try')} already made" if done else "")
    )
    trial = _Trials(rows, hasher, space, cuts, seed, progress)
    budget = math.inf if budget is None else budget
    while len(done) < tries and record.seconds < budget:
        started = monotonic()
        try:
            one = trial.run(done, partial(_over, stop, started + budget - record.seconds))
        except Stopped as error:
            if not stop():
                record.save(budget)
                break
            kept = f", kept in {out}; rerun the same command to continue" if out and done else ""
            raise Stopped(f"stopped after {counted(len(done), 'try')}{kept}") from error
        one["seconds"] = round(monotonic() - started, 3)
        done.append(one)
        record.save(record.seconds + one["seconds"])
        progress.say(_line(one, tries))
    if len(done) < tries:
        progress.say(f"the time is up after {counted(len(done), 'try')}")
    found = Tuning(hasher, done)
    apply(hasher, found.settings)
    return found


def _budget(tries: int | None, time: float | str | None, folds: int, seed: int) -> float | None:
    """The time in seconds, after checking all limits."""
    budget = seconds_of(time) if isinstance(time, str) else time
    for one, value in zip(LIMITS, (tries, budget, folds, seed), strict=True):
        if value is not None:
            one.require(value)
    return budget


def _over(stop: Callable[[], bool], end: float) -> bool:
    return stop() or monotonic() > end


def limit(tries: int | None, time: float | None) -> int:
    return tries if tries is not None else TRIES if time is None else MOST


def finished(out: Path, tries: int | None, time: float | None) -> bool:
    """Whether a record in `out` leaves nothing to try."""
    record = _Record(out)
    return len(record.tries) >= limit(tries, time) or (time is not None and record.seconds >= time)


def searched(hasher: Hasher, images: Any, fixed: Collection[str] = ()) -> dict[str, Setting]:
    """The settings of a method that tuning may change."""
    # `lr` is the learning rate of the blocks below the hash layer, which features do not have
    idle = {"lr"} if is_features(images) and hasher.takes == "images" else set()
    known = {one.name: one for one in describe(type(hasher)) if one.search}
    space = {name: one for name, one in known.items() if name not in idle | set(fixed)}
    if not space:
        if known:
            raise UsageError(f"all settings of {hasher.name} that can be tuned are set ({', '.join(known)}); omit some")
        raise UsageError(f"{hasher.name} has no settings to tune; choose another method")
    return space


def as_options(settings: Mapping[str, Any]) -> str:
    """The settings as options of `hashlens train`."""
    return " ".join(f"--set {name}={'none' if value is None else value}" for name, value in settings.items())


class _Record:
    """The tries so far, and the folder they are kept in, if any; `asked` must match that in the folder.

    `cls` is the method that they are tries of.
    """

    def __init__(self, out: Path | None, asked: dict[str, Any] | None = None, cls: type[Hasher] | None = None):
        self.out, self.asked, self.seconds = out, json.loads(json.dumps(asked)), 0.0
        self.tries: list[dict[str, Any]] = []
        if out is None or not (out / "tuning.json").exists():
            return
        try:
            before = conform(parse_json((out / "tuning.json").read_bytes()), {"asked": ASKED, "seconds": REAL})
            self.seconds, known = before["seconds"], before["asked"]
            if asked and (different := [key for key in self.asked if known[key] != self.asked[key]]):
                others = ", ".join(different)
                raise MismatchError(f"the tries in {out} were made with other {others}; choose another --out")
            lines = (out / "tries.jsonl").read_text(encoding="utf-8").splitlines()
            self.tries = [_conforming(parse_json(line), number, known) for number, line in enumerate(lines)]
            if cls:
                for one in self.tries:
                    checked(cls, one["settings"])
        except (OSError, ValueError) as error:
            raise DataError(f"the tries in {out} are damaged ({error}); choose another --out") from error

    def save(self, seconds: float) -> None:
        self.seconds = round(seconds, 3)
        if self.out is not None:
            write_text(self.out / "tries.jsonl", "".join(json.dumps(one) + "\n" for one in self.tries))
            write_json(self.out / "tuning.json", {"asked": self.asked, "seconds": self.seconds})


def _conforming(line: Any, number: int, asked: dict[str, Any]) -> dict[str, Any]:
    """A line of tries.jsonl, checked; the first has the defaults, which are never stopped early."""
    n = asked["folds"]
    ends: dict[str, dict[str, Any]] = {
        "complete": {"score": REAL, "folds": [REAL] * n},
        "pruned": {"score": REAL, "folds": [REAL]},
        "failed": {"score": None, "folds": [REAL], "reason": str},
    }
    state = conform(conform(line, dict).get("state"), tuple(ends) if number else "complete", "state")
    schema: dict[Any, Any] = {
        "number": number,
        "settings": {name: (str, bool, None, int, float) for name in asked["search"]},
        "state": state,
        "steps": {optional(str(step)): REAL for step in (1, THIRD, THIRD * n)},
        "rungs": {optional(f"completed_rung_{rung}"): REAL for rung in range(n + 2)},
        "seconds": REAL,
    }
    return conform(line, schema | ends[state])


def _identity(
    rows: TrainingRows, hasher: Hasher, space: Mapping[str, Setting], folds: int, seed: int
) -> dict[str, Any]:
    """Everything that the scores depend on."""
    images = rows.images
    digest = hashlib.sha256(images.tobytes() if is_features(images) else images.fingerprint().encode())
    digest.update(np.ascontiguousarray(rows.labels.values).tobytes())
    return {
        "method": hasher.name,
        "settings": to_json(hasher),
        "search": {name: list(one.search or []) for name, one in space.items()},
        "folds": folds,
        "seed": seed,
        "images": digest.hexdigest(),
    }


@dataclass
class _Trials:
    """Makes one try after another."""

    rows: TrainingRows
    hasher: Hasher
    space: dict[str, Setting]
    cuts: list[tuple[np.ndarray, np.ndarray]]
    seed: int
    progress: Progress
    features: np.ndarray | None = None

    def run(self, done: list[dict[str, Any]], stop: Callable[[], bool]) -> dict[str, Any]:
        """The next try, as a line of the record without its seconds."""
        from optuna import TrialPruned

        study = self._study(done)
        space = {name: _distribution(one) for name, one in self.space.items()}
        first = not done
        if first:  # the defaults, even those outside the searched range
            defaults = self._defaults()
            space = {name: space[name] for name, value in defaults.items() if _within(self.space[name], value)}
            study.enqueue_trial({name: defaults[name] for name in space})
        trial = study.ask(space)
        settings = defaults if first else {name: _short(value) for name, value in trial.params.items()}
        one: dict[str, Any] = {"number": len(done), "settings": settings, "state": "complete", "score": None}
        scores: list[float] = []
        try:
            for step, share, n_folds in self._rungs():
                if share < 1:
                    score = self._fold(settings, 0, share, stop)
                else:
                    scores += [self._fold(settings, fold, 1, stop) for fold in range(len(scores), n_folds)]
                    score = float(np.mean(scores))
                one["score"] = score
                trial.report(score, step)
                if trial.should_prune() and n_folds < len(self.cuts):
                    raise TrialPruned
        except TrialPruned:
            one["state"] = "pruned"
        except (HashlensError, np.linalg.LinAlgError) as error:
            if first or isinstance(error, Stopped):  # a failure with the defaults would repeat
                raise
            one |= {"state": "failed", "reason": str(error), "score": None}
        kept = study.trials[-1]
        # the record includes the pruner's state of a try, so that a later run makes the same decisions
        rungs = {key: value for key, value in kept.system_attrs.items() if key.startswith("completed_rung")}
        return one | {"folds": scores, "steps": kept.intermediate_values, "rungs": rungs}

    def _study(self, done: list[dict[str, Any]]) -> Study:
        """The tries so far as an Optuna study, with a sampler whose draws depend on the seed and their number."""
        import optuna
        from optuna.trial import TrialState, create_trial

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        state = np.random.SeedSequence([self.seed, len(done)]).generate_state(1)
        study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=int(state[0]), n_startup_trials=RANDOM),
            pruner=optuna.pruners.SuccessiveHalvingPruner(self._rungs()[0][0], THIRD),
        )
        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        for one in done:
            known = {name: v for name, v in one["settings"].items() if _within(self.space[name], v)}
            study.add_trial(
                create_trial(
                    state=states[one["state"]],
                    value=one["score"],
                    params=known,
                    distributions={name: _distribution(self.space[name]) for name in known},
                    intermediate_values={int(step): score for step, score in one["steps"].items()},
                    system_attrs=one["rungs"],
                )
            )
        return study

    def _rungs(self) -> list[tuple[int, float, int]]:
        """The work before each pruning decision: (total work in thirds of a fit, share of the usual epochs, folds).

        The usual epochs are those of `Training.n_epochs`; the recipe of a method may have more.
        """
        n = len(self.cuts)
        start = [(1, 1 / THIRD, 1)] if hasattr(self.hasher, "training") else []
        return [*start, (THIRD, 1.0, 1), (THIRD * n, 1.0, n)]

    def _defaults(self) -> dict[str, Any]:
        holders = {
            name: getattr(self.hasher, one.part) if one.part else self.hasher for name, one in self.space.items()
        }
        return {name: getattr(holder, name) for name, holder in holders.items()}

    def _fold(self, settings: Mapping[str, Any], fold: int, share: float, stop: Callable[[], bool]) -> float:
        """MAP of the held-out rows of one fold."""
        if stop():
            raise Stopped("stopped between folds")
        learned, held = self.cuts[fold]
        hasher: Any = apply(clone(self.hasher), {**settings, "second_bits": 0})  # no score depends on a second code
        if share < 1:
            apply(hasher, {"epochs": max(1, round(share * hasher.training.n_epochs(len(learned))))})
        progress = self.progress
        self.progress = Progress(quiet=True)  # only the first fit, which computes features, shows its progress
        X, labels = self._inputs(progress), self.rows.labels
        parts = [X.part(which) if isinstance(X, Images) else X[which] for which in (learned, held)]
        hasher.fit(parts[0], labels[learned], progress=progress, stop=stop)
        database, query = (hasher.encode(part, progress=progress, shared=True) for part in parts)
        ranking = evaluate_ranking(query, database, labels[held], labels[learned])
        return ranking.mean_average_precision(DEFINITIONS["tie-aware"])

    def _inputs(self, progress: Progress) -> Any:
        """Images, or the features of all images, computed once for all folds."""
        images = self.rows.images
        if is_features(images) or self.hasher.takes == "images":
            return images
        if self.features is None:
            self.features = image_features(images, self.hasher.features, progress=progress)  # type: ignore[attr-defined]
        return self.features


def _distribution(one: Setting) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(one.search, list):
        return CategoricalDistribution(one.search)
    assert one.search is not None
    low, high = one.search
    log = 0 < 10 * low <= high
    return FloatDistribution(low, high, log) if float in one.types else IntDistribution(int(low), int(high), log)


def _within(one: Setting, value: Any) -> bool:
    """Whether tuning could propose this value."""
    if isinstance(one.search, list) or value is None:
        return value in (one.search or ())
    assert one.search is not None
    return one.search[0] <= value <= one.search[1]


def _short(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _line(one: dict[str, Any], tries: int) -> str:
    ends = {
        "complete": f"MAP {{score:.4f}} over {len(one['folds'])} folds",
        "pruned": f"fold 1{'' if one['folds'] else ', few epochs'}: {{score:.4f}}, stopped early",
        "failed": "failed: {reason}",
    }
    tried = " ".join(f"{name}={_short(value)}" for name, value in one["settings"].items())
    end = ends[one["state"]].format(**one)
    return f"try {one['number'] + 1}/{tries}: {end}, {duration(one['seconds'])}, {tried}"
