"""Outcomes: measured numbers in, whether the paper's statements about them hold here, in words, out.

A difference smaller than `SLACK` does not count: the MAP of a method differs by about that much from seed to seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hashlens.progress import counted
from hashlens.results.published import OTHERS
from hashlens.results.significance import LEVEL

SLACK = 0.005

Points = Sequence[tuple[float, float]]  # the value that was changed, and MAP


@dataclass(frozen=True)
class Outcome:
    """A statement and whether it holds; None if there is too little to tell."""

    claim: str
    holds: bool | None
    detail: str

    def __str__(self) -> str:
        verdict = {True: "holds here", False: "does not hold here", None: "cannot be told here"}[self.holds]
        return f"{self.claim}: {verdict} ({self.detail})"


def more_is_better(claim: str, points: Points) -> Outcome:
    """Holds if the last point is above the first by more than SLACK, and no step lowers MAP by more than that."""
    points = sorted(points)
    detail = _listed(points)
    if len(points) < 2:
        return Outcome(claim, None, detail or "no numbers")
    rises = points[-1][1] - points[0][1] > SLACK
    falls = [
        f"falls by {before[1] - after[1]:.3f} from {before[0]:g} to {after[0]:g}"
        for before, after in pairwise(points)
        if before[1] - after[1] > SLACK
    ]
    if not rises and not falls:
        falls = [f"differs by {points[-1][1] - points[0][1]:+.3f} only from end to end".replace("-", "−")]
    return Outcome(claim, rises and not falls, "; ".join([detail, *falls]))


def falls_at_ends(claim: str, points: Points, good: float) -> Outcome:
    """Holds if MAP at both ends is lower than at `good` by more than SLACK."""
    points = sorted(points)
    at = dict(points)
    detail = _listed(points)
    if good not in at or points[0][0] >= good or points[-1][0] <= good:
        return Outcome(claim, None, detail or "no numbers")
    kept = [x for x in (points[0][0], points[-1][0]) if at[good] - at[x] <= SLACK]
    costs = {x: at[good] - at[x] for x in kept}
    reasons = [f"{x:g} {'costs' if c >= 0 else 'gains'} {abs(c):.3f} against {good:g}" for x, c in costs.items()]
    return Outcome(claim, not kept, "; ".join([detail, *reasons]))


def leads(
    method: str,
    maps: Mapping[str, Mapping[str, float]],
    p: Callable[[str, str], float] | None = None,
    where: str = "",
) -> Outcome:
    """Whether a method has the highest MAP at every length; `maps` are by method and length.

    `p(other, length)` is p of the paired test between the two, reported for methods above, and for methods below whose
    difference is not significant.
    """
    claim = f"{where}{method} is above all other methods at every length"
    own = maps.get(method, {})
    others = {name: lengths for name, lengths in maps.items() if name != method}
    if not own or not any(others.values()):
        return Outcome(claim, None, "no numbers to compare")
    ahead, alike = [], []
    for n, value in own.items():
        rivals = {name: lengths[n] for name, lengths in others.items() if n in lengths}
        better = {name: rival for name, rival in rivals.items() if rival > value}
        if better:
            ranked = sorted(better.items(), key=lambda item: -item[1])
            named = [f"{name} {x:.3f}" + (f" (p = {p(name, n):.2g})" if p else "") for name, x in ranked]
            ahead.append(f"at {n} bits {', '.join(named)} against {value:.3f}")
        close = [name for name in rivals if name not in better and p and p(name, n) > LEVEL]
        if close:
            alike.append(f"at {n} bits not different from it: {', '.join(close)}")
    summary = [f"{counted(len(own), 'length')}, {counted(len(others), 'other')}"] if not ahead else []
    return Outcome(claim, not ahead, "; ".join([*summary, *ahead, *alike]))


def reaches(
    printed: Mapping[str, Mapping[str, Mapping[str, Any]]], maps: Mapping[str, Mapping[str, float]], where: str = ""
) -> Outcome:
    """Whether every method has at least its printed MAP at every length that was run.

    `printed` says of each MAP whether it is comparable; the number of those that are not is reported.
    """
    claim = f"{where}every method has at least its printed MAP"
    pairs = [
        (name, n, value, printed[name][n])
        for name, lengths in maps.items()
        for n, value in lengths.items()
        if n in printed.get(name, {})
    ]
    if not pairs:
        return Outcome(claim, None, "no printed numbers")
    below = [
        f"{name} {value:.3f} for {theirs['map']:.3f} at {n} bits"
        for name, n, value, theirs in pairs
        if value < theirs["map"]
    ]
    unlike = sum(not theirs["comparable"] for *_, theirs in pairs)
    total = counted(len(pairs), "number") + (f", {unlike} of them printed for {OTHERS}" if unlike else "")
    return Outcome(claim, not below, "; ".join([*below, total]))


def _listed(points: Points) -> str:
    return ", ".join(f"{value:.3f} at {x:g}" for x, value in points)
