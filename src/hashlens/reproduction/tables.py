"""Tables: parts that were run in; tables with the paper's number, ours and the difference out, as text and as CSV.

In each column the highest mean is bold, and a sign marks those that a paired test over the queries cannot tell from
it. The test is made between two methods on one split; it is not corrected for the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hashlens.comparison.tables import (
    MARK,
    Entry,
    Table,
    learns_from,
    length_name,
    method_name,
    table_latex,
    table_markdown,
)
from hashlens.files import write_csv, write_text
from hashlens.published import NOT_COMPARABLE, PAPER, published
from hashlens.reproduction.parts import Absent, Done, row_label
from hashlens.reproduction.sections import NamedTable
from hashlens.significance import DRAWS, LEVEL, compare_queries

ALIKE = "≈"  # not different from the best
NOT_RUN = "not run"
CSV_COLUMNS = [
    *("data", "protocol", "n_train", "features", "method", "learns_from", "bits", "seeds", "ours", "deviation"),
    *("paper", "difference", "comparable", "paper_source", "best", "p_against_best", "note"),
]


def map_table(done: Done, labels: dict[str, str] | None = None) -> Table:
    """A row for each method; for each length ours and, where there is one, the paper's MAP and the difference.

    `labels` are names for the rows of variants.
    """
    bits = [str(n) for n in done.part.bits]
    printed = {(row["method"], row["features"], n): _printed(done, row, n) for row in done.rows for n in bits}
    with_paper = any(printed.values())
    columns = ["method", "learns from", "features"]
    for n in bits:
        columns += [length_name(n)] + ["paper", "difference"] * with_paper
    best = {n: best_row(done, n) for n in bits}

    def entries(row: dict[str, Any]) -> Iterator[Entry]:
        name = (labels or {}).get(row["method"], method_name(row["method"]))
        yield from (Entry(name), Entry(learns_from(row)), Entry(row["features"]))
        for n in bits:
            at = row["lengths"][n]
            yield Entry(_ours(at) + _sign(done, row, best[n], n), best=row is best[n])
            if with_paper:
                yield from _paper_entries(printed[row["method"], row["features"], n], at["map"])

    notes = _notes(done, with_paper, any(not number["comparable"] for number in printed.values() if number))
    return Table(columns, [[list(entries(row)) for row in done.rows]], 3, notes)


def absent_table(absent: Absent) -> Table:
    """The paper's numbers, and that ours were not run."""
    bits = [str(n) for n in absent.bits]
    columns = ["method", "features"]
    for n in bits:
        columns += [length_name(n), "paper"]
    rows = []
    for method in absent.methods:
        for features in _kinds(absent, method):
            row = [Entry(method_name(method)), Entry(features if features in absent.features else "its own")]
            for n in bits:
                number = published(absent.paper, method, int(n), features)
                row += [Entry(NOT_RUN), Entry(f"{number['map']:.3f}" if number else "–")]
            rows.append(row)
    return Table(columns, [rows], 2, [absent.reason, f"paper: {PAPER}"])


def sizes_table(parts: dict[int, Done], n: str) -> Table:
    """A row for each number of training pictures; queries and database are the same, so the test is paired too."""
    rows = {size: (done, done.rows[0]) for size, done in parts.items()}
    known = {size: row["lengths"][n]["map"] for size, (_, row) in rows.items() if row["lengths"][n]["map"] is not None}
    best = max(known, key=lambda size: known[size], default=None)
    entries = []
    for size, (_, row) in rows.items():
        sign = ""
        if best not in (None, size) and size in known:
            first, second = (done.average_precision(row, n) for done, row in (rows[best], rows[size]))
            sign = "" if compare_queries(first, second).different else f" {ALIKE}"
        entries.append([Entry(f"{size:,}"), Entry(_ours(row["lengths"][n]) + sign, best=size == best)])
    notes = _notes(next(iter(parts.values())), False, False)
    return Table(["training pictures", length_name(n)], [entries], 1, notes)


def write_table(out: Path, named: NamedTable, parts: list[Done | Absent]) -> None:
    """tables/NAME.md, .tex and .csv."""
    write_text(out / "tables" / f"{named.name}.md", table_markdown(named.table, named.title))
    write_text(out / "tables" / f"{named.name}.tex", table_latex(named.table, named.title))
    rows = [row for part in parts for row in (csv_rows(part) if isinstance(part, Done) else absent_rows(part))]
    write_csv(out / "tables" / f"{named.name}.csv", CSV_COLUMNS, rows)


def csv_rows(done: Done) -> Iterator[list[str]]:
    for row in done.rows:
        for n, at in row["lengths"].items():
            best = best_row(done, n)
            number = _printed(done, row, n) or {"map": None, "comparable": "", "source": ""}
            p = None if best is None or best is row or at["map"] is None else done.test(best, row, n).p
            difference = None if None in (number["map"], at["map"]) else at["map"] - number["map"]
            yield [
                done.result["source"],
                done.part.protocol.name,
                str(len(done.part.protocol.train)),
                row["features"],
                row["method"],
                learns_from(row),
                n,
                str(at["n_seeds"]),
                _plain(at["map"]),
                _plain(at["map_deviation"]),
                _plain(number["map"]),
                _plain(difference),
                str(number["comparable"]).lower(),
                number["source"],
                "" if len(done.rows) == 1 else str(row is best).lower(),  # alone, it is nothing
                _plain(p),
                "; ".join(at["errors"]),
            ]


def absent_rows(absent: Absent) -> Iterator[list[str]]:
    for method in absent.methods:
        for features in _kinds(absent, method):
            for n in absent.bits:
                number = published(absent.paper, method, n, features)
                if number:
                    row = ["", absent.paper, "", features, method, "", str(n), "0", "", "", _plain(number["map"]), ""]
                    yield [*row, "", number["source"], "", "", absent.reason]


def best_row(done: Done, n: str) -> dict[str, Any] | None:
    """The row with the highest mean MAP at a length."""
    rows = [row for row in done.rows if row["lengths"][n]["map"] is not None]
    return max(rows, key=lambda row: row["lengths"][n]["map"], default=None)


def printed_maps(done: Done) -> dict[str, dict[str, tuple[float, bool]]]:
    """By method and length, of the methods as they are: MAP, and whether it can be compared."""
    found: dict[str, dict[str, tuple[float, bool]]] = {}
    for row in done.rows:
        for n in row["lengths"]:
            if number := _printed(done, row, n):
                found.setdefault(row_label(row), {})[n] = number["map"], number["comparable"]
    return found


def our_maps(done: Done) -> dict[str, dict[str, float]]:
    return {
        row_label(row): {n: at["map"] for n, at in row["lengths"].items() if at["map"] is not None} for row in done.rows
    }


def _printed(done: Done, row: dict[str, Any], n: str) -> dict[str, Any] | None:
    if done.part.paper is None:
        return None
    n_searched = len(done.part.protocol.database) if done.part.genuine else None
    number = published(done.part.paper, row["method"], int(n), row["features"], n_searched)
    return number and number | {"comparable": number["comparable"] and done.part.genuine}


def _kinds(absent: Absent, method: str) -> list[str]:
    """A network, or each kind of fixed features."""
    from hashlens.hashers import METHODS

    return ["cnn-f"] if METHODS[method].takes == "images" else list(absent.features)


def _ours(at: dict[str, Any]) -> str:
    if at["map"] is None:
        return "failed" if at["errors"] else "–"
    deviation = "" if at["map_deviation"] is None else f" ±{at['map_deviation']:.3f}"
    return f"{at['map']:.3f}{deviation}"


def _sign(done: Done, row: dict[str, Any], best: dict[str, Any] | None, n: str) -> str:
    if best is None or row is best or row["lengths"][n]["map"] is None:
        return ""
    return "" if done.test(best, row, n).different else f" {ALIKE}"


def _paper_entries(number: dict[str, Any] | None, ours: float | None) -> Iterator[Entry]:
    if number is None:
        yield from (Entry("–"), Entry(""))
        return
    yield Entry(f"{number['map']:.3f}", marked=not number["comparable"])
    # of the numbers as they are shown, so that a reader's own subtraction agrees
    yield Entry("" if ours is None else signed(round(ours, 3) - round(number["map"], 3)))


def signed(difference: float) -> str:
    return f"{difference:+.3f}".replace("-", "−")


def _notes(done: Done, with_paper: bool, some_differ: bool) -> list[str]:
    said = [done.result["definition"]] if done.result["definition"] else []
    n_seeds = len(done.result["seeds"])
    if n_seeds > 1:
        said.append(f"mean ± standard deviation over {n_seeds} seeds; the split is the same for all")
    said.append(
        f"bold: the highest; {ALIKE} not different from it (p > {LEVEL:g} in a paired permutation test over the"
        f" queries, {DRAWS:,} draws, averages over the seeds, not corrected for the number of rows)"
    )
    if with_paper:
        said.append(f"paper: {PAPER}")
    if with_paper and some_differ:
        but = NOT_COMPARABLE if done.part.genuine else "other pictures than here: not comparable"
        said.append(f"{MARK} printed for {but}")
    for row in done.rows:
        for n, at in row["lengths"].items():
            said += [f"failed: {row_label(row)} at {n} bits: {sentence}" for sentence in at["errors"]]
    return said


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
