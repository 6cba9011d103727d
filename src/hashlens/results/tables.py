"""Tables: the result of a comparison in, its table for a terminal, CSV, Markdown, LaTeX and HTML out.

What a table contains is decided once (`map_table`, `numbers_table`, `records`); the rest is layout. In each column the
best is bold, and a sign marks entries that a paired test over the queries cannot distinguish from it.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from hashlens.files import write_csv, write_text
from hashlens.hashers.methods import METHODS
from hashlens.progress import counted
from hashlens.results.metrics import columns_of_metrics
from hashlens.results.published import NOT_COMPARABLE, PAPER
from hashlens.results.significance import DRAWS, LEVEL

MARK = "†"  # at a printed number that is not comparable
ALIKE = "≈"  # not significantly different


@dataclass(frozen=True)
class Entry:
    """One entry of a table; `marked` is a printed number that is not comparable."""

    text: str
    best: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Table:
    columns: list[str]
    groups: list[list[list[Entry]]]  # the rows of each kind of features
    n_words: int  # leading columns that are words; the others are numbers
    notes: list[str] = field(default_factory=list)


def map_table(result: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> Table:
    """A row per method and kind of features; for each length MAP, MAP among unlearned images, and the printed MAP.

    `labels` are names for methods, such as those of an ablation.
    """
    bits = [str(n) for n in result["bits"]]
    printed = [n for n in bits if any(row["lengths"][n]["printed"] for row in result["rows"])]
    unlearned = _any_unlearned(result)
    maps = ["map", "map_unlearned"] if unlearned else ["map"]

    def shown(row: Mapping[str, Any], n: str, key: str) -> str:
        return _shown(row["lengths"][n].get(key))

    best = {(n, key): max((shown(row, n, key) for row in result["rows"]), default="") for n in bits for key in maps}
    columns = ["features", "method", "learns from"]
    for n in bits:
        columns += [length_name(n)] + ["unlearned"] * unlearned + ["printed", "difference"] * (n in printed)

    def entries(row: Mapping[str, Any]) -> Iterator[Entry]:
        name = (labels or {}).get(row["method"], method_name(row["method"]))
        yield from (Entry(row["features"]), Entry(name), Entry(learns_from(row)))
        for n in bits:
            at = row["lengths"][n]
            alike = f" {ALIKE}" if (at.get("p") or 0) > LEVEL else ""
            for key, sign in zip(maps, (alike, ""), strict=False):
                yield Entry(map_text(at, key) + sign, best=shown(row, n, key) == best[n, key] != "")
            if n in printed:
                number = at["printed"]
                yield Entry(f"{number['map']:.3f}", marked=not number["comparable"]) if number else Entry("")
                yield Entry(signed(at["map"], number["map"]) if number and at["map"] is not None else "")
        yield Entry(seconds_text(row["fit_seconds"]))

    kinds = groupby(result["rows"], key=lambda row: row["features"])
    groups = [[list(entries(row)) for row in rows] for _, rows in kinds]
    return Table([*columns, "train, s"], groups, 3, notes(result))


def numbers_table(result: Mapping[str, Any]) -> Table:
    """Everything that was measured, as in the CSV file."""
    columns, rows = csv_table(result)
    return Table(columns, [[[Entry(text) for text in row] for row in rows]], 6)


def records(result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One flat record per method, kind of features and length: the columns of CSV files and data frames."""
    split = result["protocol"]
    for row in result["rows"]:
        for n, at in row["lengths"].items():
            printed = at["printed"] or {"map": None, "source": None, "comparable": None}
            yield {
                "source": result["source"],
                "protocol": split["name"],
                "n_train": row.get("n_train", split["n_train"]),
                "features": row["features"],
                "method": row["method"],
                "learns_from": learns_from(row),
                "bits": int(n),
                "splits": at.get("n_splits", 1),
                "seeds": at["n_seeds"],
                **{key: at.get(key) for key in columns_of_metrics()},
                "map_deviation": at["map_deviation"],
                "map_unlearned_deviation": at.get("map_unlearned_deviation"),
                "p": at.get("p"),
                "fit_seconds": at["seconds"]["fit"],
                "encode_seconds": at["seconds"]["encode"],
                "printed_map": printed["map"],
                "difference": None if None in (at["map"], printed["map"]) else at["map"] - printed["map"],
                "printed_source": printed["source"],
                "printed_comparable": printed["comparable"],
                "error": "; ".join(at["errors"]) or None,
            }


def csv_table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the records; missing values are empty."""

    def text(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)

    rows = [{key: text(value) for key, value in record.items()} for record in records(result)]
    return list(rows[0]), [list(row.values()) for row in rows]


def notes(result: Mapping[str, Any]) -> list[str]:
    """Notes that a reader of the table needs."""
    said = [result["definition"]] if result["definition"] else []
    said += result["protocol"].get("notes", [])
    n_seeds, n_splits = len(result["seeds"]), len(result.get("splits", [0]))
    each = f", {n_seeds} seeds of the methods on each" * (n_seeds > 1)
    if n_splits > 1:
        said.append(f"mean ± standard deviation over {n_splits} splits, the same for all methods{each}")
    elif n_seeds > 1:
        said.append(f"mean ± standard deviation over {n_seeds} seeds of the methods; the split is the same for all")
    if chance := _chance(result, "map_random"):
        said.append(f"a random ranking has a MAP of {chance}")
    if _any_unlearned(result):
        said.append(
            "unlearned: tie-aware MAP among images whose labels were not used in training: the other queries and the"
            f" rest of the database; a random ranking of these has {_chance(result, 'map_unlearned_random')}"
        )
    if any(at.get("p") is not None for row in result["rows"] for at in row["lengths"].values()):
        against = method_name(result["against"]) if result.get("against") else "the best"
        said.append(
            f"{ALIKE} not different from {against} (p > {LEVEL:g} in a paired permutation test over the queries"
            f"{' of all splits' * (n_splits > 1)}, {DRAWS:,} draws, means over the seeds, not corrected for the number"
            " of rows)"
        )
    over = "lengths, splits and seeds" if n_splits > 1 else "lengths and seeds"
    said.append(f"train: seconds of training, mean over {over}; computing fixed features is not counted")
    numbers = [at["printed"] for row in result["rows"] for at in row["lengths"].values() if at["printed"]]
    if numbers:
        # for several lengths, sources differ only in the printed numbers, which are in table.csv
        sources = sorted({number["source"].split(";")[0] for number in numbers})
        said.append(f"printed: {PAPER}; " + "; ".join(sources))
    if any(not number["comparable"] for number in numbers):
        said.append(f"{MARK} printed for {NOT_COMPARABLE}")
    for row in result["rows"]:
        failed: dict[str, list[str]] = {}
        for n, at in row["lengths"].items():
            for sentence in at["errors"]:
                failed.setdefault(sentence, []).append(n)
        for sentence, lengths in failed.items():
            said.append(f"failed: {row_label(row)} at {', '.join(lengths)} bits: {sentence}")
    return said


def title_of(result: Mapping[str, Any]) -> str:
    return f"{result['source']}, {split_text(result['protocol'], len(result.get('splits', [0])))}"


def split_text(split: Mapping[str, Any], n_splits: int = 1) -> str:
    queries, last = counted(split["n_query"], "query"), split["seed"] + n_splits - 1
    seeds = f"seed {last}" if n_splits == 1 else f"{n_splits} splits, seeds {split['seed']} to {last}"
    return (
        f"protocol {split['name']}, {seeds}: {split['n_train']:,} training, {queries}, {split['n_database']:,} database"
    )


def as_text(result: Mapping[str, Any]) -> str:
    """The table for a terminal or a log: each kind of features under its name, a star at the best."""
    table = map_table(result)

    def shown(entry: Entry) -> str:
        return entry.text + ("*" if entry.best else MARK if entry.marked else " ")

    # Features get a separate line, and some columns are only in the files, so that two lengths fit into 80 columns. The
    # blank after a column's name is above the signs.
    kept = [i for i, column in enumerate(table.columns) if column not in ("features", "learns from", "difference")]
    head = [f"{table.columns[i]} " for i in kept]
    groups = {group[0][0].text: [[shown(row[i]) for i in kept] for row in group] for group in table.groups}
    widths = [max(map(len, column)) for column in zip(head, *chain.from_iterable(groups.values()), strict=True)]

    def line(cells: Sequence[str]) -> str:
        numbers = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return " ".join([cells[0].ljust(widths[0]), *numbers]).rstrip()

    lines = [title_of(result), "", line(head)]
    for features, rows in groups.items():
        lines += [features, *(line(row) for row in rows), ""]
    return "\n".join([*lines, "* best at its length", *table.notes])


def write_tables(stem: Path, table: Table, title: str, result: Mapping[str, Any]) -> None:
    """STEM.md and .tex with the table, STEM.csv with everything that was measured."""
    write_text(stem.with_name(f"{stem.name}.md"), table_markdown(table, title))
    write_text(stem.with_name(f"{stem.name}.tex"), table_latex(table, title))
    write_csv(stem.with_name(f"{stem.name}.csv"), *csv_table(result))


def table_markdown(table: Table, title: str) -> str:
    def shown(entry: Entry) -> str:
        text = entry.text.replace("|", "\\|")
        return (f"**{text}**" if entry.best else text) + MARK * entry.marked

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = ["---"] * table.n_words + ["---:"] * (len(table.columns) - table.n_words)
    rows = [line([shown(entry) for entry in row]) for group in table.groups for row in group]
    below = [f"- {note}" for note in table.notes]
    return "\n".join([f"**{title}**", "", line(table.columns), line(rule), *rows, "", *below]) + "\n"


def table_latex(table: Table, title: str) -> str:
    """A LaTeX table, for the package booktabs."""

    def shown(entry: Entry) -> str:
        text = escape_latex(entry.text)
        return (rf"\textbf{{{text}}}" if entry.best else text) + r"$^\dagger$" * entry.marked

    def line(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\"

    groups = ["\n".join(line([shown(entry) for entry in row]) for row in group) for group in table.groups]
    places = "l" * table.n_words + "r" * (len(table.columns) - table.n_words)
    below = "\\par\n".join(escape_latex(note) for note in table.notes)
    rule = "\n\\midrule\n"
    return (
        "% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n"
        rf"\caption{{{escape_latex(title)}}}" "\n"
        rf"\begin{{tabular}}{{{places}}}" "\n\\toprule\n"
        f"{line([escape_latex(column) for column in table.columns])}{rule}{rule.join(groups)}\n"
        "\\bottomrule\n\\end{tabular}\n"
        rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {below}}}" "\n\\end{table}\n"
    )  # fmt: skip


LATEX: dict[str, str | int | None] = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    MARK: r"$^\dagger$",
    "–": "--",
    "…": r"\dots{}",
    "≈": r"$\approx$",
    "−": r"$-$",
    "·": r"$\cdot$",
}


def escape_latex(text: str) -> str:
    return text.translate(str.maketrans(LATEX))


def table_html(table: Table, caption: str) -> str:
    """A `<table>` for reports and notebooks."""

    def shown(entry: Entry, is_word: bool) -> str:
        text = html.escape(entry.text)
        if is_word:
            return f'<th scope="row" class="words">{text}</th>'
        text = f"<strong>{text}</strong>" if entry.best else text
        return f'<td class="number">{text}{f"<sup>{MARK}</sup>" if entry.marked else ""}</td>'

    def line(row: Sequence[Entry]) -> str:
        return "<tr>" + "".join(shown(entry, i < table.n_words) for i, entry in enumerate(row)) + "</tr>"

    heads = (
        f'<th scope="col" class="{"words" if i < table.n_words else "number"}">{html.escape(column)}</th>'
        for i, column in enumerate(table.columns)
    )
    bodies = ("<tbody>\n" + "\n".join(map(line, group)) + "\n</tbody>" for group in table.groups)
    return "\n".join(
        [
            f'<div class="wide"><table class="results"><caption>{html.escape(caption)}</caption>',
            f"<thead><tr>{''.join(heads)}</tr></thead>",
            *bodies,
            "</table></div>",
        ]
    )


def method_name(method: str) -> str:
    """The class name, with the capitals of the paper; the name of a variant unchanged."""
    return METHODS[method].path.partition(":")[2] if method in METHODS else method


def row_label(row: Mapping[str, Any]) -> str:
    """A method, with its features if it learns from fixed ones."""
    name = method_name(row["method"])
    return name if row["takes"] == "images" else f"{name} on {row['features']}"


def learns_from(row: Mapping[str, Any]) -> str:
    return row["takes"] + ", labels" * row["supervised"]


def length_name(n: Any) -> str:
    return "1 bit" if int(n) == 1 else f"{n} bits"


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.2g}" if seconds < 9.5 else f"{seconds:,.0f}"


def map_text(at: Mapping[str, Any], key: str = "map") -> str:
    if at.get(key) is None:
        return "failed" if at["errors"] and at["map"] is None else "–"
    deviation = at.get(f"{key}_deviation")
    return _shown(at[key]) + ("" if deviation is None else f" ±{deviation:.3f}")


def _any_unlearned(result: Mapping[str, Any]) -> bool:
    """Whether there are such scores: not if no two queries share a label, nor in results of older versions."""
    return any(at.get("map_unlearned") is not None for row in result["rows"] for at in row["lengths"].values())


def _chance(result: Mapping[str, Any], key: str) -> str:
    """MAP of a random ranking: it depends on the labels only, so all cells of a split have the same."""
    return next((_shown(at[key]) for row in result["rows"] for at in row["lengths"].values() if at.get(key)), "")


def signed(ours: float, theirs: float = 0.0) -> str:
    """The difference of two numbers as shown (rounded), so that a reader's own subtraction agrees."""
    return f"{round(ours, 3) - round(theirs, 3):+.3f}".replace("-", "−")


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
