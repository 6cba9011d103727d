"""Tables: the result of a comparison in; its table for a terminal, CSV, Markdown, LaTeX and HTML out.

What a table contains is decided once (`map_table`, `numbers_table`, `records`); the rest is layout. In each column the
best is bold, and a sign marks those that a paired test over the queries cannot tell from it.
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
    """A row per method and kind of features; per length MAP and, where there is one, the printed MAP.

    `labels` are names for methods, such as those of an ablation.
    """
    bits = [str(n) for n in result["bits"]]
    printed = [n for n in bits if any(row["lengths"][n]["printed"] for row in result["rows"])]
    best = {n: max((_shown(row["lengths"][n]["map"]) for row in result["rows"]), default="") for n in bits}
    columns = ["features", "method", "learns from"]
    for n in bits:
        columns += [length_name(n)] + ["printed", "difference"] * (n in printed)

    def entries(row: Mapping[str, Any]) -> Iterator[Entry]:
        name = (labels or {}).get(row["method"], method_name(row["method"]))
        yield from (Entry(row["features"]), Entry(name), Entry(learns_from(row)))
        for n in bits:
            at = row["lengths"][n]
            alike = f" {ALIKE}" if (at.get("p") or 0) > LEVEL else ""
            yield Entry(map_text(at) + alike, best=at["map"] is not None and _shown(at["map"]) == best[n])
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
                "seeds": at["n_seeds"],
                **{key: at.get(key) for key in columns_of_metrics()},
                "map_deviation": at["map_deviation"],
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
    """What a reader of the table has to know."""
    said = [result["definition"]] if result["definition"] else []
    n_seeds = len(result["seeds"])
    if n_seeds > 1:
        said.append(f"mean ± standard deviation over {n_seeds} seeds of the methods; the split is the same for all")
    if any(at.get("p") is not None for row in result["rows"] for at in row["lengths"].values()):
        against = method_name(result["against"]) if result.get("against") else "the best"
        said.append(
            f"{ALIKE} not different from {against} (p > {LEVEL:g} in a paired permutation test over the queries,"
            f" {DRAWS:,} draws, means over the seeds, not corrected for the number of rows)"
        )
    said.append("train: seconds of training, mean over lengths and seeds; computing fixed features is not counted")
    numbers = [at["printed"] for row in result["rows"] for at in row["lengths"].values() if at["printed"]]
    if numbers:
        # the sources of several lengths differ only in numbers printed beside, which are in table.csv
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
    return f"{result['source']}, {split_text(result['protocol'])}"


def split_text(split: Mapping[str, Any]) -> str:
    queries = counted(split["n_query"], "query")
    return (
        f"protocol {split['name']}, seed {split['seed']}: {split['n_train']:,} training, {queries},"
        f" {split['n_database']:,} database"
    )


def as_text(result: Mapping[str, Any]) -> str:
    """For a terminal or a log: each kind of features under its name, a star at the best."""
    table = map_table(result)

    def shown(entry: Entry) -> str:
        return entry.text + ("*" if entry.best else MARK if entry.marked else " ")

    # Features are a line of their own; what a method learns from and differences are only in the files: two lengths
    # fit into 80 columns. The blank after a column's name is above the signs.
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
    return "\n".join([*lines, "* best of its length", *table.notes])


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
    """A table for a paper that loads the package booktabs."""

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
    """The class name, with the capitals of the paper; the name of a variant as it is."""
    return METHODS[method].path.partition(":")[2] if method in METHODS else method


def row_label(row: Mapping[str, Any]) -> str:
    """A method, with the features where it learns from fixed ones."""
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


def map_text(at: Mapping[str, Any]) -> str:
    if at["map"] is None:
        return "failed" if at["errors"] else "–"
    deviation = "" if at["map_deviation"] is None else f" ±{at['map_deviation']:.3f}"
    return _shown(at["map"]) + deviation


def signed(ours: float, theirs: float = 0.0) -> str:
    """The difference of two numbers as they are shown, so that a reader's own subtraction agrees."""
    return f"{round(ours, 3) - round(theirs, 3):+.3f}".replace("-", "−")


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
