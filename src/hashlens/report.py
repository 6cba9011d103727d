"""Reports: the result of a run or of a comparison comes in, one HTML file that needs no network goes out.

Every part of a run's result is optional: what is missing is left out of the page, so an old or a half-finished run
still gives a report. All choosing and formatting is done here; the templates only lay the parts out.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashlens.figures import CURVES, Neighbours, curve, svg_line
from hashlens.files import write_text
from hashlens.published import NOT_COMPARABLE

if TYPE_CHECKING:
    from PIL.Image import Image

    from hashlens.comparison.tables import Table


@dataclass(frozen=True)
class Plot:
    """A drawing with its numbers; `svg` is markup that is safe to put in as it is."""

    title: str
    svg: str
    columns: list[str]
    rows: list[list[str]]


def write_report(
    path: Path,
    *,
    title: str,
    result: Mapping[str, Any],
    neighbours: Sequence[Neighbours] = (),
    best: Sequence[Neighbours] = (),
    worst: Sequence[Neighbours] = (),
    metrics: Sequence[Mapping[str, Any]] = (),
    commands: Sequence[str] = (),
) -> None:
    """Write the report of one run.

    `result` is the JSON of the run, `metrics` the rows of its metrics.csv, `commands` what to type to get the
    same run again. `best` and `worst` are queries to show beside the ordinary examples in `neighbours`.
    """
    examples = {"Examples": neighbours, "Best queries": best, "Worst queries": worst}
    write_page(
        path,
        "report.html.j2",
        title=title,
        headline=_headline(result),
        definition=_part(result, "metrics").get("definition"),
        scores=list(_scores(_part(result, "metrics"))),
        plots=list(_result_plots(_part(result, "metrics"))),
        classes=_classes(result),
        training=list(_training_plots(metrics)),
        examples={name: rows for name, rows in examples.items() if rows},
        settings=list(_settings(result)),
        seconds=_seconds(result),
        environment=[*_flat(_part(result, "versions")), *_flat(_part(result, "machine"))],
        commands=commands,
    )


def write_comparison(
    path: Path,
    *,
    title: str,
    result: Mapping[str, Any],
    table: Table,
    numbers: Table,
    mark: str,
    plots: Sequence[Plot],
    commands: Sequence[str] = (),
) -> None:
    """Write the report of a comparison from its tables and plots; `mark` is that of printed numbers that differ."""
    asked = {"Methods": result.get("methods"), "Bits": result.get("bits"), "Seeds": result.get("seeds")}
    write_page(
        path,
        "comparison.html.j2",
        title=title,
        table=table,
        numbers=numbers,
        mark=mark,
        plots=plots,
        settings=[*_settings(result), *_flat(asked)],
        environment=[*_flat(_part(result, "versions")), *_flat(_part(result, "machine"))],
        commands=commands,
    )


def write_reproduction(
    path: Path,
    *,
    title: str,
    paper: str,
    scales: Sequence[str],
    sections: Sequence[Mapping[str, Any]],
    environment: Mapping[str, Any],
    mark: str,
    commands: Sequence[str] = (),
) -> None:
    """Write the page of a reproduction.

    A section has target, title, scale, outcomes, tables (each with title and table), notes, plots, and pictures (each
    with title, words and uri).
    """
    outcomes = [outcome for section in sections for outcome in section["outcomes"]]
    write_page(
        path,
        "reproduction.html.j2",
        title=title,
        paper=paper,
        scales=scales,
        sections=sections,
        outcomes=outcomes,
        environment=[*_flat(_part(environment, "versions")), *_flat(_part(environment, "machine"))],
        mark=mark,
        commands=commands,
    )


def write_page(path: Path, template: str, **parts: Any) -> None:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hashlens"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["data_uri"] = _data_uri
    write_text(path, environment.get_template(template).render(parts) + "\n")


def _part(result: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    return result.get(key) or {}


def _number(value: Any) -> float | None:
    """The value as a finite number, or None when there is none to show."""
    return float(value) if value is not None and math.isfinite(value) else None


def _headline(result: Mapping[str, Any]) -> dict[str, str] | None:
    ours = _number(_part(result, "metrics").get("map"))
    if ours is None:
        return None
    headline = {"ours": f"{ours:.3f}"}
    paper = _part(result, "paper")
    theirs = _number(paper.get("map"))
    if theirs is not None:
        # The difference of the numbers as they are shown, so that a reader's own subtraction agrees.
        difference = round(ours, 3) - round(theirs, 3)
        but = f" ({NOT_COMPARABLE})" if paper.get("comparable") is False else ""
        headline |= {
            "paper": f"{theirs:.3f}",
            "source": str(paper.get("source") or "the paper") + but,
            "difference": f"{difference:+.3f}".replace("-", "−"),
        }
    return headline


def _scores(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Name, value and one sentence of explanation of every score beside the headline."""
    triplets = _number(metrics.get("triplets_right"))
    if triplets is not None:
        note = "Share of triplets held out of training whose positive is nearer than the negative; a tie counts half."
        yield "Held-out triplets right", f"{triplets:.3f}", note
    tie_aware = _number(metrics.get("map_tie_aware"))
    if tie_aware is not None:
        yield "Tie-aware MAP", f"{tie_aware:.3f}", "Expected MAP over all orders of equal distances."
    worst, best = _number(metrics.get("map_worst")), _number(metrics.get("map_best"))
    if worst is not None and best is not None:
        yield "Bounds by ties", f"{worst:.3f} to {best:.3f}", "MAP with ties in the worst and the best order."
    within = _number(metrics.get("precision_radius_2"))
    if within is not None:
        note = "Share of right pictures among those at most 2 bits away."
        empty = _number(metrics.get("empty_radius_2"))
        if empty is not None:
            note += f" {empty:.1%} of the queries have none there and count as 0."
        yield "Precision within radius 2", f"{within:.3f}", note


def _result_plots(metrics: Mapping[str, Any]) -> Iterator[Plot]:
    both = _part(metrics, "pr_curve")
    # In the order given, which is that of growing radius: several radii may have the same recall.
    points = _finite(zip(both.get("recall", []), both.get("precision", []), strict=True))
    if points:
        recall, precision = zip(*points, strict=True)
        yield Plot(
            "Precision and recall",
            svg_line(
                "pr-curve",
                recall,
                precision,
                x_label="recall",
                y_label="precision",
                text="Precision over recall: " + _ends("precision", "recall", points),
                unit_square=True,
            ),
            ["recall", "precision"],
            [[f"{x:.3f}", f"{y:.3f}"] for x, y in _thin(points)],
        )
    points = sorted(_finite((int(n), value) for n, value in _part(metrics, "precision_at").items()))
    if points:
        numbers, precision = zip(*points, strict=True)
        yield Plot(
            "Precision at N",
            svg_line(
                "precision-at",
                numbers,
                precision,
                x_label="N, nearest pictures looked at",
                y_label="precision",
                text="Precision among the N nearest pictures: " + _ends("precision", "N", points),
                log_x=True,
            ),
            ["N", "precision"],
            [[f"{x:,.0f}", f"{y:.3f}"] for x, y in _thin(points)],
        )


def _training_plots(metrics: Sequence[Mapping[str, Any]]) -> Iterator[Plot]:
    for column, title in CURVES.items():
        epochs, values = curve(metrics, column)
        points = list(zip(epochs, values, strict=True))
        if points:
            yield Plot(
                title,
                svg_line(
                    f"training-{column}",
                    epochs,
                    values,
                    x_label="epoch",
                    y_label=title.lower(),
                    text=f"{title} over the epochs: " + _ends(title.lower(), "epoch", points),
                    epochs=True,
                ),
                ["epoch", title.lower()],
                [[f"{x:g}", f"{y:.4g}"] for x, y in _thin(points)],
            )


def _finite(points: Any) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if _number(x) is not None and _number(y) is not None]


def _ends(y_name: str, x_name: str, points: Sequence[tuple[float, float]]) -> str:
    """What the line does, in words: where it starts, where it ends, and its extremes if they lie between."""
    (first_x, first), (last_x, last) = points[0], points[-1]
    if len(points) == 1:
        return f"{y_name} {first:.3g} at {x_name} {first_x:.4g}."
    words = f"{y_name} {first:.3g} at {x_name} {first_x:.4g}, {last:.3g} at {x_name} {last_x:.4g}"
    for name, (x, y) in (
        ("highest", max(points, key=lambda point: point[1])),
        ("lowest", min(points, key=lambda point: point[1])),
    ):
        if y not in (first, last):
            words += f", {name} {y:.3g} at {x_name} {x:.4g}"
    return words + "."


def _thin(points: Sequence[tuple[float, float]], limit: int = 20) -> list[tuple[float, float]]:
    """At most `limit` points, evenly chosen, with the first and the last."""
    if len(points) <= limit:
        return list(points)
    return [points[round(i * (len(points) - 1) / (limit - 1))] for i in range(limit)]


def _classes(result: Mapping[str, Any]) -> list[tuple[str, float]]:
    values = _part(_part(result, "metrics"), "per_class_map").items()
    kept = [(name, value) for name, value in values if _number(value) is not None]
    return sorted(kept, key=lambda item: -item[1])


SETTINGS = {
    "method": "Method",
    "n_bits": "Bits",
    "source": "Data",
    "backbone": "Backbone",
    "image_size": "Picture size",
}
PROTOCOL = {
    "name": "Protocol",
    "n_train": "Training pictures",
    "n_query": "Queries",
    "n_database": "Database pictures",
    "split_hash": "Split hash",
    "seed": "Seed of the split",
}


def _settings(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for keys, part in ((SETTINGS, result), (PROTOCOL, _part(result, "protocol"))):
        yield from _flat({name: part.get(key) for key, name in keys.items()})
    yield from _flat(_part(result, "config"))


def _flat(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested names joined with dots, each with its value as text."""
    for key, value in part.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(item) for item in value)
    return str(value)


def _seconds(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, _duration(seconds)) for name, seconds in _part(result, "seconds").items() if _number(seconds) is not None
    ]


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def _data_uri(image: Image, size: int = 192) -> str:
    """The picture as text for `src`, at most twice as large as it is shown."""
    image = image.convert("RGB")
    # A small picture is kept dot for dot; a photograph as PNG would make the page several times larger.
    kind, options = ("png", {}) if max(image.size) <= 64 else ("jpeg", {"quality": 85})
    image.thumbnail((size, size))
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return f"data:image/{kind};base64," + base64.b64encode(file.getvalue()).decode("ascii")
