"""The tables of README and docs, made from benchmarks/results.

python -m benchmarks.tables           print them
python -m benchmarks.tables --write   write them between their markers, and draw the figures of docs/comparison.md; the
                                      tests fail when a table is out of date
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from hashlens.index.plan import brief, describe_plan, machines_of, plan, readable, shared_of
from hashlens.progress import counted, duration
from hashlens.results.figures import map_figure, save_figure
from hashlens.results.tables import map_table, method_name, table_markdown, title_of

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("[hsc]*/*.md"))]

FIGURES = ("cifar10-gist", "mirflickr-shallow", "mirflickr-networks")  # comparisons that are drawn
VARIANTS = ("-vit", "-resnet50", "-triplets")  # how the names of other runs than the usual ones end
SETTINGS = {"cifar10-1": "CIFAR-10, setting 1", "cifar10-2": "CIFAR-10, setting 2"}


def load() -> dict[str, dict[str, Any]]:
    paths = sorted(RESULTS.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def dtsh() -> str:
    """Every committed run of DTSH with EfficientNet-Lite and labels on CIFAR-10, beside the paper's number."""
    rows = [
        "| protocol | bits | network | pixels | MAP | over splits | tie-aware | paper (CNN-F) | time, cores |"
        " command |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    repeated = _over_splits()
    own = [r for name, r in load().items() if name.startswith("cifar10-") and not name.endswith(VARIANTS)]
    for result in sorted(own, key=lambda r: (r["protocol"]["name"], r["image_size"], r["n_bits"])):
        paper = f"{result['paper']['map']:.3f}" if result["paper"] else "–"
        rows.append(
            f"| {SETTINGS[result['protocol']['name']]} | {result['n_bits']} |"
            f" {result['backbone'].removeprefix('efficientnet-')} | {result['image_size']} |"
            f" **{result['map']:.3f}** | {repeated.get(result['command'], '–')} |"
            f" {result['metrics']['map_tie_aware']:.3f} | {paper} | {_time(result)} | `{result['command']}` |"
        )
    return "\n".join(rows)


def _over_splits() -> dict[str, str]:
    """Mean and deviation of the default recipe on CIFAR-10 where it was run on several splits, by its command."""
    found = {}
    for path in sorted((RESULTS / "comparison").glob("cifar10-images*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        for row in result["rows"]:
            for n, at in row["lengths"].items():
                if row["method"] == "dtsh" and at["map_deviation"]:
                    text = f"{at['map']:.3f} ±{at['map_deviation']:.3f} ({at['n_splits']})"
                    found[f"hashlens train cifar10 --bits {n}"] = text
    return found


def variants() -> str:
    """Setting 1 at 32 bits with another network, or with triplets instead of labels."""
    names = ["cifar10-1-dtsh-32", *(f"cifar10-1-dtsh-32{variant}" for variant in VARIANTS)]
    rows = [
        "| network | pixels | learned from | MAP | tie-aware | time, cores | command |",
        "|---|---:|---|---:|---:|---:|---|",
    ]
    results = load()
    for result in (results[name] for name in names if name in results):
        learned_from = "triplets" if "triplets" in result["config"] else "labels"
        rows.append(
            f"| {result['backbone']} | {result['image_size']} | {learned_from} | {result['map']:.3f} |"
            f" {result['metrics']['map_tie_aware']:.3f} | {_time(result)} | `{result['command']}` |"
        )
    return "\n".join(rows)


def features() -> str:
    """MAP of fixed features by cosine similarity, before any hashing."""
    found = json.loads((RESULTS / "features" / "mirflickr.json").read_text(encoding="utf-8"))
    rows = [f"| network | MAP@{found['topk']} by cosine similarity |", "|---|---:|"]
    return "\n".join([*rows, *(f"| {network} | {value:.3f} |" for network, value in found["map"].items())])


def comparison(name: str) -> str:
    """A comparison of methods: the result.json of `hashlens compare`, committed under this name."""
    result = json.loads((RESULTS / "comparison" / f"{name}.json").read_text(encoding="utf-8"))
    return table_markdown(map_table(result), title_of(result)).rstrip()


def own(name: str) -> str:
    """All methods on images of a user's own: networks trained on images, then methods on fixed features."""
    kinds = ("images", "features", "features-slow", "features-fasth", "features-semantic")
    paths = {kind: RESULTS / "comparison" / f"{name}-{kind}.json" for kind in kinds}
    found = {kind: json.loads(path.read_text(encoding="utf-8")) for kind, path in paths.items() if path.exists()}
    fixed = [row | {"features": "fixed"} for kind in kinds[1:] if kind in found for row in found[kind]["rows"]]
    rows = found["images"]["rows"] if "images" in found else []
    rows = rows + sorted(fixed, key=lambda row: -row["lengths"]["48"]["map"])
    if len(found) > 1:  # tests within one of several comparisons are not against the best of all
        rows = [row | {"lengths": {n: at | {"p": None} for n, at in row["lengths"].items()}} for row in rows]
    first = next(iter(found.values())) | {"source": name, "rows": rows}
    table = map_table(first)
    if any(len(result["splits"]) == 1 for result in found.values()):
        table.notes.insert(2, "rows without a deviation are of the first split alone, because they take long to train")
    return table_markdown(table, title_of(first)).rstrip()


def tuned() -> str:
    """What `python -m benchmarks.tuned` found."""
    rows = [
        "| data | method | splits | settings found, first split | tuning, fitting once | defaults | tuned | unlearned:"
        " defaults | tuned |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for name, found in json.loads((RESULTS / "tuned.json").read_text(encoding="utf-8")).items():
        data, method = name.split("-")
        settings = ", ".join(f"{key} {value:g}" for key, value in found[0]["settings"].items())
        cost = [duration(np.mean([one[key] for one in found])) for key in ("seconds", "default_seconds")]
        maps = [
            _mean_text([one[which][key] for one in found])
            for key in ("map", "map_unlearned")
            for which in ("default", "tuned")
        ]
        cells = [data, method_name(method), f"{len(found)}", settings, ", ".join(cost), *maps]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def orders() -> str:
    """What `python -m benchmarks.orders` found on classes cut from training classes."""
    found = json.loads((RESULTS / "tuning" / "orders.json").read_text(encoding="utf-8"))
    names = list(next(iter(found.values()))[0]["unseen"])
    rows = [f"| data | classes | {' | '.join(names)} |", "|---|---|" + "---:|" * len(names)]
    for data, draws in found.items():
        for kind in ("unseen", "seen"):
            means = [f"{np.mean([draw[kind][name] for draw in draws]):.3f}" for name in names]
            rows.append(f"| {data} | {kind} | {' | '.join(means)} |")
    return "\n".join(rows)


def spare() -> str:
    """What `python -m benchmarks.spare` found: means, and differences within draws with their standard errors."""
    rows = [
        "| data | draws | way | unseen | minus itq | minus dtsh | seen | minus dtsh |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for data, draws in json.loads((RESULTS / "tuning" / "spare.json").read_text(encoding="utf-8")).items():
        maps = {
            kind: {name: np.array([draw[kind][name] for draw in draws]) for name in draws[0][kind]}
            for kind in ("unseen", "seen")
        }
        for name in draws[0]["unseen"]:
            unseen, seen = maps["unseen"], maps["seen"]
            gaps = (unseen[name] - unseen["itq"], unseen[name] - unseen["dtsh"], seen[name] - seen["dtsh"])
            over_itq, over, cost = (f"{d.mean():+.3f} ±{d.std(ddof=1) / len(d) ** 0.5:.3f}" for d in gaps)
            cells = [f"{unseen[name].mean():.3f}", over_itq, over, f"{seen[name].mean():.3f}", cost]
            rows.append(f"| {data} | {len(draws)} | {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _mean_text(values: list[float]) -> str:
    deviation = f" ±{np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{deviation}"


def tie_aware(name: str, *chosen: str) -> str:
    """Some methods of a comparison: MAP as the paper defines it and tie-aware MAP in brackets."""
    result = json.loads((RESULTS / "comparison" / f"{name}.json").read_text(encoding="utf-8"))
    lengths = [str(n) for n in result["bits"]]
    rows = [
        "| method | network | " + " | ".join(f"{n} bits" for n in lengths) + " |",
        "|---|---|" + "---:|" * len(lengths),
    ]
    for row in sorted((r for r in result["rows"] if r["method"] in chosen), key=lambda r: chosen.index(r["method"])):
        cells = [f"{row['lengths'][n]['map']:.3f} ({row['lengths'][n]['map_tie_aware']:.3f})" for n in lengths]
        rows.append(f"| {method_name(row['method'])} | {row['features']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def speed() -> str:
    """What `python -m benchmarks.search_bench --write` measured."""
    rows = ["| what | ours | the usual way | times as fast | |", "|---|---:|---:|---:|---|"]
    for found in json.loads((RESULTS / "speed" / "search.json").read_text(encoding="utf-8")).values():
        ratio = "" if found["ratio"] is None else f"**{found['ratio']:,.1f}**"
        rows.append(f"| {found['what']} | {found['ours']} | {found['usual']} | {ratio} | {found['remark']} |")
    return "\n".join(rows)


def search_table(kind: str) -> str:
    """What `python -m benchmarks.search_table` measured for one kind of codes: how many times as fast as faiss."""
    cells = _search_cells(kind)
    asked = sorted({(q, k) for _, _, q, k in cells})
    titles = [f"{q:,} x {k:,}" for q, k in asked]
    rows = [f"| bits | codes | {' | '.join(titles)} |", "|---:|---:|" + "---:|" * len(titles)]
    for n, n_bits in sorted({(n, n_bits) for n_bits, n, _, _ in cells}):
        ratios = [_ratio(cells.get((n_bits, n, q, k))) for q, k in asked]
        rows.append(f"| {n_bits} | {n:,} | {' | '.join(ratios)} |")
    return "\n".join(rows)


def search_summary() -> str:
    """How many cells of the table reach what."""
    found = json.loads((RESULTS / "speed" / "search-table.json").read_text(encoding="utf-8"))
    ratios = [cell["faiss"] / cell["ours"] for cell in found["exact"].values()]
    full = sum(
        ratio < 2 and _share_of_limit(name, cell) >= 0.9
        for ratio, (name, cell) in zip(ratios, found["exact"].items(), strict=True)
    )
    slower = [cell["scan"] / cell["ours"] for cell in found["exact"].values()]
    return (
        f"{len(ratios)} cells: {sum(r >= 2 for r in ratios)} at least twice as fast as faiss, of the others {full} at"
        f" 90 % of the memory bandwidth or more, {sum(r < 1 for r in ratios)} slower than faiss. Against our own scan:"
        f" {sum(r < 0.9 for r in slower)} cells below 0.9, {sum(r >= 2 for r in slower)} above 2, at most"
        f" {max(slower):,.0f}. Kernels: {found['machine']['kernels']}, {found['machine']['cpu']}."
    )


def trees() -> str:
    """What the tree over distinct codes saves: our own scan against it, one query at a time."""
    rows = [
        "| codes | bits | number | distinct | k = 1 | k = 10 | k = 100 | k = 1,000 | built in |",
        "|---|" + "---:|" * 8,
    ]
    for kind in ("dtsh", "itq", "random"):
        cells = _search_cells(kind)
        for n, n_bits in sorted({(n, n_bits) for n_bits, n, _, _ in cells}):
            own = {k: cells[n_bits, n, 1, k] for k in (1, 10, 100, 1_000) if (n_bits, n, 1, k) in cells}
            first = next(iter(own.values()))
            if not first["distinct"]:
                continue
            saved = " | ".join(
                f"{own[k]['scan'] / own[k]['ours']:.1f}" if k in own else "" for k in (1, 10, 100, 1_000)
            )
            rows.append(f"| {kind} | {n_bits} | {n:,} | {first['distinct']:.1%} | {saved} | {first['build']:.1f} s |")
    return "\n".join(rows)


def approximate() -> str:
    """faiss's approximate indexes: recall, and how many times as long as our exact search they take."""
    found = json.loads((RESULTS / "speed" / "search-table.json").read_text(encoding="utf-8"))["approximate"]
    titles = list(next(iter(found.values()))["rivals"]) if found else []
    rows = [f"| codes | ours, exact | {' | '.join(titles)} |", "|---|---:|" + "---:|" * len(titles)]
    for name, cell in found.items():
        each = [
            f"{rival['seconds'] * 1e6:,.0f} µs ({rival['seconds'] / cell['ours']:.1f} x), recall {rival['recall']:.2f}"
            for rival in cell["rivals"].values()
        ]
        rows.append(f"| {name} | {cell['ours'] * 1e6:,.0f} µs | {' | '.join(each)} |")
    return "\n".join(rows)


def start() -> str:
    """What `python -m benchmarks.start --write` measured."""
    found = json.loads((RESULTS / "speed" / "start.json").read_text(encoding="utf-8"))
    above = found["search"] - found["bare"]
    return "\n".join(
        [
            "| imports of numpy, onnxruntime, Pillow | `hashlens --help` | `hashlens search` | above the imports |",
            "|---:|---:|---:|---:|",
            f"| {found['bare']:.2f} s | {found['help']:.2f} s | {found['search']:.2f} s | {above:.2f} s |",
        ]
    )


def bench() -> str:
    """What `python -m benchmarks.bench metrics loss --write` measured."""
    found = json.loads((RESULTS / "speed" / "bench.json").read_text(encoding="utf-8"))
    lines = ["| what | ours | the usual way | times as fast | |", "|---|---:|---:|---:|---|"]
    for row in found.values():
        note = ""
        if "softplus" in row:
            times_as_long = row["ours"] / row["softplus"]
            note = f"{times_as_long:.1f} times as long as the {row['triplets']:,} softplus and their gradient alone"
        times = f"{1000 * row['ours']:,.1f} ms | {row['usual way']}: {1000 * row['usual']:,.1f} ms"
        lines.append(f"| {row['what']} | {times} | **{row['usual'] / row['ours']:.0f}** | {note} |")
    return "\n".join(lines)


def encoding() -> str:
    """What `python -m benchmarks.encoding speed` measured."""
    found = json.loads((RESULTS / "speed" / "encoding.json").read_text(encoding="utf-8"))["speed"]
    lines = [
        "| pixels | codes, int8 | codes, float32 | network alone, int8 | network alone, float32 | reading alone |"
        " DataLoader, eager torch | int8 / DataLoader | float32 / DataLoader |",
        "|---:|" + "---:|" * 8,
    ]
    for size, row in sorted(found.items(), key=lambda item: int(item[0])):
        rate = row["per_second"]
        names = ["codes, int8", "codes, float", "network, int8", "network, float", "read", "DataLoader, eager torch"]
        cells = [f"{rate[name]:.0f}" for name in names]
        cells += [f"**{rate[name] / rate['DataLoader, eager torch']:.1f}**" for name in names[:2]]
        lines.append(f"| {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def int8() -> str:
    """What `python -m benchmarks.encoding map` measured."""
    found = json.loads((RESULTS / "speed" / "encoding.json").read_text(encoding="utf-8"))["map"]
    lines = [
        "| data | model | queries, database | MAP, float32 | MAP, int8 | difference | equal bits |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in found.items():
        maps = " | ".join(f"{row[kind]['map_tie_aware']:.4f}" for kind in ("float", "int8"))
        model = f"{row['method'].upper()}, {row['n_bits']} bits, {row['size']} pixels"
        sizes = f"{row['n_query']:,}, {row['n_database']:,}"
        gap = f"{row['difference']:+.4f} ± {row['standard_error']:.4f}"
        lines.append(f"| {name} | {model} | {sizes} | {maps} | {gap} | {row['bits_equal']:.1%} |")
    return "\n".join(lines)


def _search_cells(kind: str) -> dict[tuple[int, ...], dict[str, float]]:
    """Bits, codes, queries, k: what was measured."""
    found = json.loads((RESULTS / "speed" / "search-table.json").read_text(encoding="utf-8"))["exact"]
    own = {name: cell for name, cell in found.items() if name.split()[0] == kind}
    return {tuple(int(number) for number in re.findall(r"=(\d+)", name)): cell for name, cell in own.items()}


def _share_of_limit(name: str, cell: dict[str, float]) -> float:
    """For one query: the time to read all codes and nothing else, in shares of ours."""
    return cell["read"] / cell["ours"] if cell["read"] else 0.0


def _ratio(cell: dict[str, float] | None) -> str:
    if cell is None:
        return ""
    ratio = cell["faiss"] / cell["ours"]
    text = f"{ratio:.1f}" if ratio < 10 else f"{ratio:,.0f}"
    return f"**{text}**" if ratio >= 2 else text


def load_test() -> str:
    """What `python -m benchmarks.load --write` measured."""
    found = json.loads((RESULTS / "speed" / "load.json").read_text(encoding="utf-8"))
    before, after = (round(found[f"memory_{when}"] / 1e6) for when in ("before", "after"))
    rows = [
        "| images | clients | answers | per second | half within | 99 % within | errors | memory before, after |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
        f"| {found['n']:,} | {found['clients']} | {found['answers']:,} | {found['per_second']:.0f} |"
        f" {found['p50_ms']:.0f} ms | {found['p99_ms']:.0f} ms | {found['errors']} | {before} MB, {after} MB |",
    ]
    return "\n".join(rows)


def soak() -> str:
    """What `python -m benchmarks.soak --write` counted and measured."""
    found = json.loads((RESULTS / "speed" / "soak.json").read_text(encoding="utf-8"))
    counts = found["counts"]
    before, after = (round(found[f"memory_{when}"] / 1e6) for when in ("before", "after"))
    written = sum(counts.get(name, 0) for name in ("add 200", "add 201", "remove 204"))
    hostile = sum(n for name, n in counts.items() if name.startswith("hostile"))
    rows = {
        "duration, clients, images": f"{duration(found['seconds'])}, {found['clients']}, {found['images']:,}",
        "searches answered": f"{counts['search 200']:,}",
        "of them wrong": f"**{found['wrong']}**",
        "additions and removals acknowledged": f"{written:,}",
        "`index sync` and `index promote`": f"{counts.get('sync done', 0)} and {counts.get('promote done', 0)} times",
        "acknowledged changes that were lost": f"**{found['lost']}**",
        "hostile images, slow connections": f"{hostile:,}, {counts['slow connections']:,}",
        "server killed, disk filled": f"{found['kills']} times, {found['disk_filled']} times",
        "99 % of searches by id within": f"{found['by_id']['p99_ms']:.0f} ms, {found['p99_ratio']} times the"
        f" {found['idle']['p99_ms']:.0f} ms of an idle server",
        "99 % of searches by image within": f"{found['by_image']['p99_ms']:.0f} ms",
        "memory before, after": f"{before} MB, {after} MB",
        "stopped within": f"{found['seconds_to_stop']} s",
        "load of the two cores before, after": f"{found['load'][0]}, {found['load'][1]}",
    }
    return _facts(rows)


def faults() -> str:
    """What `python -m benchmarks.faults --out` found so far."""
    found = json.loads((RESULTS / "faults.json").read_text(encoding="utf-8"))
    rows = {
        "faults": f"{found['faults']:,}",
        "noticed, with the name of the file": f"{found['detected, file named']:,}",
        "without effect: a copy, or a cache that is computed again": f"{found['same answer']:,}",
        "noticed, without the name": f"**{found['file not named']}**",
        "wrong answers, tracebacks, crashes": ", ".join(
            f"**{found[what]}**" for what in ("silent differences", "tracebacks", "crashes")
        ),
    }
    return _facts(rows)


def fuzz() -> str:
    """What `python -m benchmarks.parsers` tried so far."""
    record = json.loads((RESULTS / "fuzz.json").read_text(encoding="utf-8")).values()
    files, seconds = (sum(one[name] for one in record) for name in ("examples", "seconds"))
    least, most = (pick(one["seconds"] for one in record) for pick in (min, max))
    rows = {
        "parsers": f"{len(record)}",
        "changed files": f"{files:,}, from {sum(one['seeds'] for one in record):,} seeds",
        "time on a core": f"{duration(seconds)}",
        "of each parser": f"{duration(least)} to {duration(most)}",
        "tracebacks and crashes, all fixed since": f"{sum(len(one['found']) for one in record)}",
    }
    return _facts(rows)


def general() -> str:
    """What `python -m benchmarks.general DATA measure` measured."""
    found = json.loads((RESULTS / "general.json").read_text(encoding="utf-8"))
    lines = ["| images | how many | by the codes | by cosine of floats | share |", "|---|---:|---:|---:|---:|"]
    for name, row in found["precision_at_8"].items():
        scores = f"{row['general']:.3f} | {row['float_cosine']:.3f} | {row['ratio']:.2f}"
        lines.append(f"| {name} | {row['n']:,} | {scores} |")
    faster = found["speed"]["times_as_fast"]["from_files"]
    lines += ["", f"From files to codes it is {faster:.1f} times as fast as the float network."]
    return "\n".join(lines)


def nuswide() -> str:
    """What `python -m benchmarks.nuswide --write` counted and measured."""
    found = json.loads((RESULTS / "speed" / "nuswide.json").read_text(encoding="utf-8"))
    counts = [f"{found[key]:,}" for key in ("images", "queries", "searched", "training")]
    maps = [f"{found[f'map_at_{k}']:.3f} in {found[f'map_at_{k}_seconds']:.1f} s" for k in (5_000, 50_000)]
    rows = [
        "| images with one of the 21 concepts | queries | searched | training | MAP@5000 | MAP@50000 |",
        "|---:|---:|---:|---:|---:|---:|",
        f"| {' | '.join([*counts, *maps])} |",
    ]
    return "\n".join(rows)


def copies() -> str:
    """What `python -m benchmarks.copies` found: recall per kind of copy, ours and each peer's."""
    found = json.loads((RESULTS / "copies.json").read_text(encoding="utf-8"))["methods"]
    rows = ["| copy | " + " | ".join(found) + " |", "|---|" + "---:|" * len(found)]
    for kind in found["hashlens"]["recall"]:
        values = [method["recall"][kind] for method in found.values()]
        cells = [f"**{value:.3f}**" if value == max(values) else f"{value:.3f}" for value in values]
        rows.append(f"| {kind} | {' | '.join(cells)} |")
    means = [sum(method["recall"].values()) / len(method["recall"]) for method in found.values()]
    rows.append("| **all kinds** | " + " | ".join(f"**{mean:.3f}**" for mean in means) + " |")
    for title, key, form in (
        ("false groups per 1,000 photos", "false_groups", "{:.2f}"),
        ("groups among 300 dark and uniform images", "dark_groups", "{}"),
        ("seconds per 1,000 photos", "seconds", "{:.1f}"),
    ):
        rows.append(f"| {title} | " + " | ".join(form.format(method[key]) for method in found.values()) + " |")
    return "\n".join(rows)


def copies_tuning() -> str:
    """What `python -m benchmarks.copies --tune` found on other photos."""
    found = json.loads((RESULTS / "tuning" / "copies.json").read_text(encoding="utf-8"))
    rows = [
        "| correlation at least | recall, all kinds | false groups per 1,000 photos | exposures taken for copies |",
        "|---:|---:|---:|---:|",
    ]
    for row in found["limits"]:
        chosen = "**" if row["correlation"] == found["chosen"] else ""
        cells = (f"{row['correlation']:.2f}", f"{row['mean']:.4f}", f"{row['false_groups']:.2f}")
        cells += (f"{row['exposures_as_copies']} pairs",)
        rows.append("| " + " | ".join(f"{chosen}{cell}{chosen}" for cell in cells) + " |")
    return "\n".join(rows)


def groups() -> str:
    """Ways to choose the number of groups of a folder, by how far the groups agree with the classes."""
    rows = [
        "| images | classes | √(n/2) groups | agreement | by silhouette | agreement | best number | agreement |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in json.loads((RESULTS / "groups.json").read_text(encoding="utf-8"))["rows"]:
        cells = [f"{one['n']} | {one['agreement']:.2f}" for one in row["chosen"].values()]
        rows.append(f"| {row['data']}, {row['n_images']:,} | {row['n_classes']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def refine() -> str:
    """What `python -m benchmarks.refine DATA measure` found."""
    found = json.loads((RESULTS / "refine.json").read_text(encoding="utf-8"))["data"]
    rows = [
        "| images | clicks | before | replaced | mean gain | least gain | gain if never checked |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, own in found.items():
        for n, result in own["by_triplets"].items():
            trials = result["trials"]
            before = sum(trial["before"] for trial in trials) / len(trials)
            replaced = sum(trial["replaced"] for trial in trials)
            unchecked = [trial["gain_unchecked"] for trial in trials]
            rows.append(
                f"| {name} | {int(n):,} | {before:.3f} | {replaced} of {len(trials)} | {result['mean_gain']:+.4f} |"
                f" {result['worst_gain']:+.4f} | {min(unchecked):+.4f} … {max(unchecked):+.4f} |"
            )
    return "\n".join(rows)


def second() -> str:
    """What `python -m benchmarks.second --write` measured."""
    found = json.loads((RESULTS / "speed" / "second.json").read_text(encoding="utf-8"))
    lines = ["| distinct first codes | by first | by both | by second | both / first |", "|---:|---:|---:|---:|---:|"]
    for cell in found["cells"]:
        times = " | ".join(f"{cell[by]:.2f} ms" for by in ("first", "both", "second"))
        lines.append(f"| {cell['distinct']:,} | {times} | {cell['both'] / cell['first']:.1f} |")
    return "\n".join(lines)


def ties() -> str:
    """What `python -m benchmarks.ties` measured."""
    found = json.loads((RESULTS / "ties.json").read_text(encoding="utf-8"))
    columns = ["map", "map_both", "map_second", "map_itq", "map_itq_database"]
    names = ["DTSH by first", "by both", "by second", "ITQ", "ITQ of the database"]
    lines = ["| data | classes | " + " | ".join(names) + " |", "|---|---|" + "---:|" * len(names)]
    sets = [data for data, runs in found.items() if isinstance(runs, dict)]
    for data, classes in itertools.product(sets, ("seen", "unseen")):
        values = np.array([[split[column] for column in columns] for split in found[data][classes]])
        cells = [
            f"{mean:.3f} ±{spread:.3f}" for mean, spread in zip(values.mean(0), values.std(0, ddof=1), strict=True)
        ]
        lines.append(f"| {data} | {classes} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def few() -> str:
    """What `python -m benchmarks.few` measured."""
    found = json.loads((RESULTS / "few.json").read_text(encoding="utf-8"))
    numbers = list(next(iter(next(iter(found.values())).values())))
    lines = [
        "| data | method | " + " | ".join(f"{n} per class" for n in numbers) + " |",
        "|---|---|" + "---:|" * len(numbers),
    ]
    for data, methods in found.items():
        for method, runs in methods.items():
            cells = [f"{np.mean(maps):.3f} ±{np.std(maps, ddof=1):.3f}" for maps in runs.values()]
            lines.append(f"| {data} | {method_name(method)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def margin() -> str:
    """What `python -m benchmarks.margin` measured."""
    found = json.loads((RESULTS / "margin.json").read_text(encoding="utf-8"))
    lines = ["| regime | score | " + " | ".join(f"alpha {alpha}" for alpha in found["paper"]) + " |"]
    lines.append("|---|---|" + "---:|" * len(found["paper"]))
    names = {"paper": "the paper's", "network": "the paper's, two blocks trained", "ours": "ours"}
    for regime, name in names.items():
        runs = found.get(regime, {})
        if len(runs) < 2:  # one margin by itself says nothing
            continue
        epochs = next(iter(runs.values()))["map"][-1][0]
        for column, score in (("map", f"MAP after {epochs} epochs"), ("gradient", "mean gradient then")):
            cells = [f"{runs[alpha][column][-1][1]:.3f}" if alpha in runs else "" for alpha in found["paper"]]
            lines.append(f"| {name} | {score} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def big() -> str:
    """How `python -m benchmarks.big` grew an index: what an image and a query cost at each size."""
    lines = [
        "| images | added, each | parts | disk | opened in | resident | one query | reading all codes | 100 queries |"
        " 1,000 known images are skipped in |",
        "|---:|" + "---:|" * 9,
    ]
    for row in _big()["sizes"].values():
        cells = [
            f"{row['n']:,}",
            f"{row['build']['cpu'] / row['n'] * 1e6:.2f} µs",
            f"{row['parts']}",
            readable(sum(row["disk"].values())),
            f"{row['open']['cpu'] * 1e3:,.0f} ms",
            readable(_resident(row)),
            *(f"{row[name] * 1e3:,.2f} ms" for name in ("query", "scan", "queries_100")),
            f"{row['known_1000']['cpu'] * 1e3:,.0f} ms",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def big_predicted() -> str:
    """What the plan said of the largest size before it was measured."""
    found = _big()
    n = found["predicted"]["n"]
    row = found["sizes"].get(str(n))
    measured = row and {
        "build_seconds": row["build"]["cpu"],
        "disk": sum(row["disk"].values()),
        "memory": _resident(row),
        "open_seconds": row["open"]["cpu"],
        "query_seconds": row["query"],
        "scan_seconds": row["scan"],
    }
    names = {
        "build_seconds": "building",
        "disk": "disk",
        "memory": "resident memory",
        "open_seconds": "opening",
        "query_seconds": "one query",
        "scan_seconds": "one query that reads all codes",
    }
    lines = [f"| {n:,} images | said before | measured | |", "|---|---:|---:|---:|"]
    for name, title in names.items():
        said, show = found["predicted"][name], brief if name.endswith("seconds") else readable
        was = f"{show(measured[name])} | {measured[name] / said - 1:+.0%}" if measured else "not yet | "
        lines.append(f"| {title} | {show(said)} | {was} |")
    return "\n".join(lines)


def big_before() -> str:
    """How additions grew before parts were joined, measured in the same way."""
    first, *_, last = _big()["before"]
    return (
        f"Before, each addition read all codes again: it took {first['add_us']:.1f} µs per image in the first part and"
        f" {last['add_us']:.1f} µs at {last['n']:,} images in {last['parts']} parts, and `index add` began by hashing"
        " every path that it knew."
    )


def big_said() -> str:
    """Sentences about the largest index whose figures are measured."""
    sizes = _big()["sizes"].values()
    row, each = max(sizes, key=lambda row: row["n"]), [row["build"]["cpu"] / row["n"] for row in sizes]
    build = row["build"]
    return (
        f"{row['n']:,} images are added in {duration(build['cpu'])} of one core ({duration(build['wall'])} on a machine"
        f" that others used), with at most {readable(build['peak_memory'])} resident, most of it mapped files. The most"
        f" that an image costs at any size is {max(each) / min(each):.2f} times the least."
    )


def plan_of(n: str, bits: str) -> str:
    """What `hashlens index plan` prints."""
    text = describe_plan(plan(int(float(n)), int(bits), 128))
    return f"```text\n$ hashlens index plan --n {n} --bits {bits}\n{text}\n```"


def plan_sizes() -> str:
    """What to use at each size and what it costs there."""
    lines = [
        "| images | use | memory | disk | building | machines | one query | reading all | shared |",
        "|---:|---|" + "---:|" * 7,
    ]
    for n, bits in ((10**5, 48), (10**7, 48), (10**9, 48), (10**10, 64)):
        found = plan(n, bits, 0)
        ways = found["ways"]
        names = ["folder"] if n <= 10**8 else [name for name in ("folder", "milvus") if ways[name]["machines"]]
        for name in names:
            way = ways[name]
            use = {"folder": "index folder", "milvus": "Milvus"}[name]
            times = [brief(way["query_seconds"]), brief(way["scan_seconds"]), shared_of(way)]
            cells = [
                readable(way["memory"]),
                readable(way["disk"]),
                brief(way["build_seconds"]),
                machines_of(way),
                *times,
            ]
            lines.append(f"| {n:,} of {bits} bits | {use} | {' | '.join(cells)} |")
    return "\n".join(lines)


def engine_costs() -> str:
    """What `python -m benchmarks.engine_costs` measured: an image, an exact query, and one with an index."""
    found = json.loads((RESULTS / "engines.json").read_text(encoding="utf-8"))
    lines = [
        "| | images | added, each | memory | disk | exact query | searches for it | index | query with it | finds |",
        "|---|" + "---:|" * 6 + "---|---:|---:|",
    ]
    for name, title in (("pgvector", "PostgreSQL"), ("milvus", "Milvus")):
        for row in sorted(found[name].values(), key=lambda row: row["n"]):
            exact, near = row["query"], row.get("approximate")
            cells = [
                f"{row['n']:,}",
                f"{row['insert']['cpu'] / row['n'] * 1e6:,.0f} µs",
                readable(row["memory"]),
                readable(row["disk"]),
                brief(exact["cpu"]),
                f"{exact.get('searches', 1):.1f}",
                *([near["index_kind"], brief(near["query"]["cpu"]), f"{near['recall']:.0%}"] if near else [""] * 3),
            ]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def engine_load() -> str:
    """Both engines under load, killed and started again."""
    found = json.loads((RESULTS / "engine-load.json").read_text(encoding="utf-8"))
    lines = [
        "| | minutes | clients | pause | searches | wrong | writes | lost | killed | back after | search p50 | p99 |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, title in (("pgvector", "PostgreSQL"), ("milvus", "Milvus")):
        if (row := found.get(name)) is None:
            continue
        counts, ms = row["counts"], row["ms"]["search"]
        searches = counts["search done"] + counts["serve done"]
        after = ", ".join(f"{seconds:.0f} s" for seconds in row["outages"])
        lines.append(
            f"| {title} | {row['seconds'] / 60:.0f} | {row['clients']} | {row['pause']:g} s | {searches:,} |"
            f" {row['wrong']} | {row['acknowledged']:,} | {row['lost']} | {len(row['outages'])} | {after} |"
            f" {ms['p50']:.0f} ms | {ms['p99']:.0f} ms |"
        )
    return "\n".join(lines)


def remote() -> str:
    """What `python -m benchmarks.remote` found: images in S3 behind a network that fails."""
    found = json.loads((RESULTS / "remote.json").read_text(encoding="utf-8"))
    assert found["codes_equal_to_disk"] and found["images_equal_to_disk"]
    requests = found["requests"]
    spoiled, n = sum(requests[what] for what in ("500", "dropped", "cut")), sum(requests.values())
    return (
        f"{found['images']:,} images in a real S3 server, through a proxy that spoiled {spoiled:,} of {n:,} requests,"
        f" reads and writes ({requests['500']} answers of 500, {requests['dropped']} dropped connections,"
        f" {requests['cut']} answers cut in half): {found['files_equal']} of {found['files']} files of the codes"
        " folder are, byte for byte, those of the same run without errors. All codes are those of the same images on"
        " disk, with the same names, labels, sizes and hashes (`python -m benchmarks.remote SCRATCH`)."
    )


def on_ray() -> str:
    """What `python -m benchmarks.on_ray` found: a cluster whose actors, nodes and driver are killed."""
    sentences = []
    for found in json.loads((RESULTS / "on-ray.json").read_text(encoding="utf-8"))["sizes"].values():
        assert found["files_equal"] == found["files"] and not found["other_files"]
        times = Counter(one["what"] for one in found["killed"])
        titles = {"actor": "an actor", "driver": "the command itself", "node": "a node with all its processes"}
        killed = ", ".join(f"{title} {counted(times[what], 'time')}" for what, title in titles.items() if times[what])
        sentences.append(
            f"{found['images']:,} images, {found['actors']} actors on a real cluster, killed: {killed}. All"
            f" {found['files']} files of the codes folder are, byte for byte, those of one process."
        )
    return " ".join([*sentences, "(`python -m benchmarks.on_ray SCRATCH`)"])


def ranks() -> str:
    """MAP and speed of two ranks and of one process, by `python -m benchmarks.ranks`."""
    measured = json.loads((RESULTS / "ranks.json").read_text(encoding="utf-8"))
    found = measured["map"]
    some = f", searched among {n:,} images of its database" if (n := found["one"].get("database")) else ""
    fixed, shared = (measured["speed"][sampling] for sampling in ("class-codes", "in-batch"))
    wall, cpu = "ratio_of_seconds_per_step", "ratio_of_cpu_seconds_per_step"
    apart = f" ({measured['hosts']['map']:.4f} in two network namespaces)"
    return (
        f"On CIFAR-10, setting 1 at 32 bits{some}, one process reaches a MAP of {found['one']['map']:.4f} and two ranks"
        f" {found['two']['map']:.4f}{apart} (`python -m benchmarks.ranks map`, `hosts`): the steps differ by"
        " rounding in bfloat16. With"
        f" {fixed['batch']} images in a batch, two ranks of one thread take a step {fixed[wall]:.2f} times as fast as"
        f" one process of one thread where batch norms keep their statistics (`sampling=class-codes`; each rank spends"
        f" {fixed[cpu]:.2f} times less CPU time), and {shared[wall]:.2f} times ({shared[cpu]:.2f}) where they use those"
        " of the whole batch (`in-batch`), for which ranks meet at every batch norm (`python -m benchmarks.ranks"
        " speed`). Costs that do not depend on the batch size, such as the optimizer step, are not divided, so small"
        " batches gain less."
    )


def _facts(rows: dict[str, str]) -> str:
    """A table of names and values, without a heading."""
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _big() -> dict[str, Any]:
    return json.loads((RESULTS / "big.json").read_text(encoding="utf-8"))


def _resident(row: dict[str, Any]) -> int:
    """The most that a process needed that has searched, by trees and by reading all codes."""
    return max(row[when]["all"] for when in ("memory_searched", "memory_scanned"))


def _time(result: dict[str, Any]) -> str:
    return f"{duration(result['seconds']['total'])}, {result['machine']['threads']}"


TABLES = {
    "dtsh": dtsh,
    "variants": variants,
    "features": features,
    "comparison": comparison,
    "own": own,
    "margin": margin,
    "few": few,
    "tuned": tuned,
    "orders": orders,
    "spare": spare,
    "tie-aware": tie_aware,
    "speed": speed,
    "search-table": search_table,
    "search-summary": search_summary,
    "trees": trees,
    "approximate": approximate,
    "start": start,
    "bench": bench,
    "encoding": encoding,
    "int8": int8,
    "load-test": load_test,
    "soak": soak,
    "faults": faults,
    "fuzz": fuzz,
    "general": general,
    "nuswide": nuswide,
    "copies": copies,
    "copies-tuning": copies_tuning,
    "groups": groups,
    "refine": refine,
    "second": second,
    "ties": ties,
    "remote": remote,
    "on-ray": on_ray,
    "ranks": ranks,
    "big": big,
    "big-predicted": big_predicted,
    "big-said": big_said,
    "big-before": big_before,
    "plan": plan_of,
    "plan-sizes": plan_sizes,
    "engine-costs": engine_costs,
    "engine-load": engine_load,
}


def filled(text: str) -> str:
    """`text` with every table between `<!-- table NAME … -->` and `<!-- end -->` replaced."""

    def table(match: re.Match[str]) -> str:
        name, *arguments = match[1].split()
        return f"<!-- table {match[1]} -->\n{TABLES[name](*arguments)}\n<!-- end -->"

    return re.sub(r"<!-- table ([^>]+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def draw(name: str) -> None:
    """MAP against the number of bits of a comparison, as docs/figures/NAME.svg."""
    result = json.loads((RESULTS / "comparison" / f"{name}.json").read_text(encoding="utf-8"))
    save_figure(map_figure(result), ROOT / "docs" / "figures" / f"{name}.svg")


if __name__ == "__main__":
    if "--write" in sys.argv:
        for name in FIGURES:
            draw(name)
    for page in PAGES:
        if "--write" in sys.argv:
            page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            print(filled(page.read_text(encoding="utf-8")))
