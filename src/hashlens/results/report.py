"""Reports: the result of a run, a comparison or a reproduction in, one HTML file that needs no network out.

All selection and formatting is done here and in the tables; templates only do the layout.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL.Image import Image

from hashlens.files import write_text
from hashlens.progress import duration
from hashlens.results.figures import CURVES, Drawing, curve, svg_line
from hashlens.results.metrics import titled
from hashlens.results.published import NOT_COMPARABLE
from hashlens.results.retrieval import Neighbours
from hashlens.results.tables import map_text, signed

TRIPLETS = "Share of held-out triplets whose positive is nearer than the negative; a tie counts half."
SETTINGS = {"method": "Method", "n_bits": "Bits", "source": "Data", "backbone": "Backbone", "image_size": "Image size"}
PROTOCOL = {
    "name": "Protocol",
    "n_train": "Training images",
    "n_query": "Queries",
    "n_database": "Database images",
    "split_hash": "Split hash",
    "seed": "Split seed",
    "notes": "Notes",
}
MAX_ROWS = 20  # in the table below a plot
Points = Sequence[tuple[float, float]]


def write_report(
    path: Path,
    *,
    title: str,
    result: Mapping[str, Any],
    neighbours: Sequence[Neighbours] = (),
    history: Sequence[Mapping[str, Any]] = (),
    commands: Sequence[str] = (),
) -> None:
    """Write the report of one run: its result.json, example queries, the rows of metrics.csv and the commands."""
    scores = result["metrics"]
    write_page(
        path,
        "report.html.j2",
        title=title,
        headline=_headline(result),
        definition=scores.get("definition"),
        scores=[*_split_scores(result), *_scores(scores)],
        plots=list(_result_plots(scores)),
        classes=sorted(scores.get("per_class_map", {}).items(), key=lambda item: -item[1]),
        training=list(_training_plots(history)),
        neighbours=neighbours,
        settings=[*settings_of(result), *flat(result["config"])],
        seconds=[(name, duration(seconds)) for name, seconds in result["seconds"].items()],
        environment=environment_of(result),
        commands=commands,
    )


def write_page(path: Path, template: str, **parts: Any) -> None:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hashlens.results"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["data_uri"] = _data_uri
    write_text(path, environment.get_template(template).render(parts) + "\n")


def settings_of(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for names, part in ((SETTINGS, result), (PROTOCOL, result["protocol"])):
        yield from flat({name: part.get(key) for key, name in names.items()})


def environment_of(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [*flat(result["versions"]), *flat(result["machine"])]


def flat(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested names joined with dots, each with its value as text."""
    for key, value in part.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
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


def _headline(result: Mapping[str, Any]) -> dict[str, str] | None:
    ours, paper = result["metrics"].get("map"), result.get("paper")
    if ours is None:
        return None
    headline = {"ours": f"{ours:.3f}"}
    if paper:
        but = "" if paper["comparable"] else f" ({NOT_COMPARABLE})"
        headline |= {
            "paper": f"{paper['map']:.3f}",
            "source": paper["source"] + but,
            "difference": signed(ours, paper["map"]),
        }
    return headline


def _split_scores(result: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Means over several splits, if there are several."""
    over, n = result.get("over_splits"), len(result.get("splits", ()))
    for key, title in {"map": "MAP", "map_unlearned": "MAP, unlearned"}.items():
        if over and over[key] is not None:
            yield (
                f"{title}, {n} splits",
                map_text(over, key),
                "Mean ± standard deviation; the rest is from the first split.",
            )


def _scores(scores: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Title, value and explanation of every score except the headline."""
    if "triplets_right" in scores:
        yield "Held-out triplets right", f"{scores['triplets_right']:.3f}", TRIPLETS
    for key, metric, title, explained in titled(scores):
        if metric.key not in ("map", "precision_at"):  # the headline, and a plot
            yield title, f"{scores[key]:.3f}", explained


def _result_plots(scores: Mapping[str, Any]) -> Iterator[Drawing]:
    if curves := scores.get("pr_curve"):
        # ordered by radius, because several radii may have the same recall
        points = list(zip(curves["recall"], curves["precision"], strict=True))
        yield _plot("pr-curve", "Precision and recall", "recall", "precision", points, "unit")
    at = [(int(key.rpartition("_")[2]), scores[key]) for key, m, *_ in titled(scores) if m.key == "precision_at"]
    if at:
        yield _plot("precision-at", "Precision among the N nearest images", "N", "precision", sorted(at), "log")


def _training_plots(history: Sequence[Mapping[str, Any]]) -> Iterator[Drawing]:
    for column, title in CURVES.items():
        points = list(zip(*curve(history, column), strict=True))
        if points:
            yield _plot(f"training-{column}", title, "epoch", title.lower(), points, "epochs")


def _plot(name: str, title: str, x_name: str, y_name: str, points: Points, scale: str) -> Drawing:
    text = f"{title}: {_ends(y_name, x_name, points)}"
    x, y = zip(*points, strict=True)
    svg = svg_line(name, x, y, x_name, y_name, text, scale)
    last = max(1, len(points) - 1)
    thin = points if len(points) <= MAX_ROWS else [points[round(i * last / (MAX_ROWS - 1))] for i in range(MAX_ROWS)]
    return Drawing(title, svg, [x_name, y_name], [[f"{x:.4g}", f"{y:.4g}"] for x, y in thin])


def _ends(y_name: str, x_name: str, points: Points) -> str:
    """The line in words: where it starts and ends, and its extremes if they lie between."""
    (first_x, first), (last_x, last) = points[0], points[-1]
    if len(points) == 1:
        return f"{y_name} {first:.3g} at {x_name} {first_x:.4g}."
    words = f"{y_name} {first:.3g} at {x_name} {first_x:.4g}, {last:.3g} at {x_name} {last_x:.4g}"
    for name, choose in (("highest", max), ("lowest", min)):
        x, y = choose(points, key=lambda point: point[1])
        if y not in (first, last):
            words += f", {name} {y:.3g} at {x_name} {x:.4g}"
    return words + "."


def _data_uri(image: Image, size: int = 192) -> str:
    """The image as text for `src`, at most twice the size shown."""
    image = image.convert("RGB")
    # small images keep every pixel; photographs as PNG would make the page several times larger
    kind, options = ("png", {}) if max(image.size) <= 64 else ("jpeg", {"quality": 85})
    image.thumbnail((size, size))
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return f"data:image/{kind};base64," + base64.b64encode(file.getvalue()).decode("ascii")
