"""Tables of a comparison: its result in; the table for the screen, CSV, Markdown, LaTeX and the report out.

What stands in the table is decided here once (`map_table`, `numbers_table`); the four ways to write it only lay it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any

from hashlens.hashers import METHODS
from hashlens.published import NOT_COMPARABLE, PAPER

MARK = "†"  # at a printed number that is not comparable
RECALLS = (0.1, 0.25, 0.5, 0.75)  # where precision is put into words


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


def map_table(result: dict[str, Any]) -> Table:
    """A row for each method and kind of features, a column for each length and, where there are any, printed MAP."""
    bits = [str(n) for n in result["bits"]]
    printed = [n for n in bits if any(row["lengths"][n]["printed"] for row in result["rows"])]
    best = {n: max((_shown(row["lengths"][n]["map"]) for row in result["rows"]), default="") for n in bits}
    columns = ["features", "method", "learns from"]
    for n in bits:
        columns += [length_name(n)] + ["printed"] * (n in printed)

    def entries(row: dict[str, Any]) -> Iterator[Entry]:
        yield from (Entry(row["features"]), Entry(method_name(row["method"])), Entry(learns_from(row)))
        for n in bits:
            at = row["lengths"][n]
            yield Entry(_map_text(at), best=at["map"] is not None and _shown(at["map"]) == best[n])
            if n in printed:
                number = at["printed"]
                yield Entry(f"{number['map']:.3f}", marked=not number["comparable"]) if number else Entry("")
        yield Entry(seconds_text(row["fit_seconds"]))

    groups = [[list(entries(row)) for row in rows] for rows in _by_features(result["rows"])]
    return Table([*columns, "train, s"], groups, 3, notes(result))


def numbers_table(result: dict[str, Any]) -> Table:
    """A row for each method, kind of features and length, with everything that was measured."""
    columns = ["features", "method", "bits", "seeds", "MAP", "deviation", "tie-aware MAP", "precision, radius 2"]
    columns += ["nothing there", "train, s", "encode, s"]

    def entries(row: dict[str, Any], n: str, at: dict[str, Any]) -> list[Entry]:
        shares = ("map", "map_deviation", "map_tie_aware", "precision_radius_2", "empty_radius_2")
        words = [row["features"], method_name(row["method"]), n, str(at["n_seeds"])]
        words += [_shown(at[name]) or "–" for name in shares]
        return [Entry(word) for word in [*words, *(seconds_text(at["seconds"][name]) for name in ("fit", "encode"))]]

    groups = [
        [entries(row, n, at) for row in rows for n, at in row["lengths"].items()]
        for rows in _by_features(result["rows"])
    ]
    return Table(columns, groups, 2)


def notes(result: dict[str, Any]) -> list[str]:
    """What has to be known to read the table."""
    said = [result["definition"]] if result["definition"] else []
    n_seeds = len(result["seeds"])
    if n_seeds > 1:
        said.append(f"mean ± standard deviation over {n_seeds} seeds of the methods; the split is the same for all")
    said.append("train: seconds of learning, mean over lengths and seeds; computing fixed features is not counted")
    numbers = [at["printed"] for row in result["rows"] for at in row["lengths"].values() if at["printed"]]
    if numbers:
        # the sources of several lengths differ only in numbers that stand beside, which are in table.csv
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
            where = f"{method_name(row['method'])} on {row['features']} at {', '.join(lengths)} bits"
            said.append(f"failed: {where}: {sentence}")
    return said


def title(result: dict[str, Any]) -> str:
    split = result["protocol"]
    return (
        f"{result['source']}, protocol {split['name']}, seed {split['seed']}: {split['n_train']:,} training,"
        f" {split['n_query']:,} queries, {split['n_database']:,} database"
    )


def as_text(result: dict[str, Any]) -> str:
    """For a terminal or a log: each kind of features under its name, a star at the best."""
    table = map_table(result)

    def shown(entry: Entry) -> str:
        return entry.text + ("*" if entry.best else MARK if entry.marked else " ")

    # Features are a line of their own and what a method learns from is left to the files: 80 columns for two lengths.
    # The blank after the name of a column stands over the signs.
    kept = slice(1, 2), slice(table.n_words, None)
    head = [f"{column} " for part in kept for column in table.columns[part]]
    groups = {
        group[0][0].text: [[shown(entry) for part in kept for entry in row[part]] for row in group]
        for group in table.groups
    }
    widths = [max(map(len, column)) for column in zip(head, *chain.from_iterable(groups.values()), strict=True)]

    def line(cells: Sequence[str]) -> str:
        numbers = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
        return " ".join([cells[0].ljust(widths[0]), *numbers]).rstrip()

    lines = [title(result), "", line(head)]
    for features, rows in groups.items():
        lines += [features, *(line(row) for row in rows), ""]
    return "\n".join([*lines, "* best of its length", *table.notes])


def as_markdown(result: dict[str, Any]) -> str:
    return table_markdown(map_table(result), title(result))


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


def as_latex(result: dict[str, Any]) -> str:
    return table_latex(map_table(result), title(result))


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
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape_latex(title)}}}",
            rf"\begin{{tabular}}{{{places}}}",
            r"\toprule",
            line([escape_latex(column) for column in table.columns]),
            r"\midrule",
            "\n\\midrule\n".join(groups),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {below}}}",
            r"\end{table}",
            "",
        ]
    )


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


CSV_COLUMNS = [
    "features",
    "method",
    "learns_from",
    "bits",
    "seeds",
    "map",
    "map_deviation",
    "map_tie_aware",
    "precision_radius_2",
    "empty_radius_2",
    "fit_seconds",
    "encode_seconds",
    "printed_map",
    "printed_source",
    "printed_comparable",
    "error",
]


def csv_rows(result: dict[str, Any]) -> Iterator[list[str]]:
    """One row for each method, kind of features and length, in the order of CSV_COLUMNS; what is missing is empty."""
    for row in result["rows"]:
        for n, at in row["lengths"].items():
            printed = at["printed"] or {"map": None, "source": "", "comparable": ""}
            measured = [at[name] for name in CSV_COLUMNS[5:10]]
            numbers = [*measured, at["seconds"]["fit"], at["seconds"]["encode"], printed["map"]]
            yield [
                row["features"],
                row["method"],
                learns_from(row),
                n,
                str(at["n_seeds"]),
                *("" if number is None else f"{number:.6g}" for number in numbers),
                printed["source"],
                str(printed["comparable"]).lower(),
                "; ".join(at["errors"]),
            ]


def map_rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: MAP of each method by length."""
    columns = ["features", "method", *(length_name(str(n)) for n in result["bits"])]
    rows = [
        [row["features"], method_name(row["method"]), *map(_map_text, row["lengths"].values())]
        for row in result["rows"]
    ]
    return columns, rows


def precision_rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: the precision of each curve where its recall first reaches some levels."""
    columns = ["features", "method", "bits", *(f"precision at recall {level:.0%}" for level in RECALLS)]
    rows = []
    for row in result["rows"]:
        for n, at in row["lengths"].items():
            if at["pr_curve"]:
                points = list(zip(at["pr_curve"]["recall"], at["pr_curve"]["precision"], strict=True))
                reached = [next((p for r, p in points if r >= level), None) for level in RECALLS]
                rows.append([row["features"], method_name(row["method"]), n, *(_shown(p) or "–" for p in reached)])
    return columns, rows


def method_name(method: str) -> str:
    """The method in the capitals of its paper; the name of a variant as it is."""
    return METHODS[method].path.partition(":")[2] if method in METHODS else method


def learns_from(row: dict[str, Any]) -> str:
    method = METHODS.get(row["method"])  # a variant has none
    takes, supervised = (method.takes, method.supervised) if method else (row["takes"], row["supervised"])
    return ("pictures" if takes == "images" else "features") + ", labels" * supervised


def length_name(n: str) -> str:
    return "1 bit" if n == "1" else f"{n} bits"


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.2g}" if seconds < 9.5 else f"{seconds:,.0f}"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _map_text(at: dict[str, Any]) -> str:
    if at["map"] is None:
        return "failed" if at["errors"] else "–"
    deviation = "" if at["map_deviation"] is None else f" ±{at['map_deviation']:.3f}"
    return _shown(at["map"]) + deviation


def _by_features(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [list(group) for _, group in groupby(rows, key=lambda row: row["features"])]
