"""Plan: a number of images and a code length in, memory, disk, time, machines and cost per query of each engine out.

The model of the index folder has a handful of constants, which `fitted` derives from measurements at two sizes by
benchmarks/big.py; those of Milvus and PostgreSQL are from benchmarks/engine_costs.py. Times are seconds of one core of
the measuring machine, so they can be compared with each other and scaled. A plan states by what factor it exceeds the
largest measured size.

Only the query time of trained codes in the folder does not follow from smaller sizes: most queries immediately find k
images with exactly their code, the others make trees read on, and there are fewer of those with more images. So it is a
line through the two largest sizes, bounded by the time of a query that reads all codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hashlens.errors import UsageError
from hashlens.index.merging import FAN, FULL
from hashlens.index.radius import is_cheaper, table_bytes
from hashlens.kernels import LANES
from hashlens.progress import counted, duration

FEATURES = 4096  # values of the CNN feature that a code replaces, 4 bytes each
SHARD = 65_536  # images that `encode` writes, and `index` adds, at once
MOST = 10**12  # images; plans beyond are meaningless
MACHINE = {"memory": 64e9, "disk": 2e12, "cores": 16}  # the machine assumed by plans
LARGEST = 1.1e12  # memory of a machine for indexes that cannot be divided
USABLE = 0.75  # usable share of a machine's memory
KEY_BYTES = 9  # per key, with its share of the filter
MEASURED_BYTES = 6  # per code in the measurements
Row = Mapping[str, Any]


def fitted(rows: Sequence[Row]) -> dict[str, float]:
    """The constants of the folder, from the two largest of these sizes; see `folder_at` for what they mean.

    The cost of merging follows from the two largest sizes of at most one full part; beyond, only lookups grow.
    """
    rows = sorted(rows, key=lambda row: row["n"])
    a, b = rows[-2:]
    merged = [row for row in rows if row["n"] <= FULL][-2:]
    first, last = (row["build"]["cpu"] / row["n"] for row in merged)
    step = max(0.0, (last - first) / max(1e-9, _steps(merged[1]["n"]) - _steps(merged[0]["n"])))
    add, lookup = last - step * _steps(merged[1]["n"]), b["new_keys"] / SHARD / b["parts"]
    if b["n"] > FULL:
        lookup = (b["build"]["cpu"] / b["n"] - add - step * _steps(b["n"])) / (b["n"] / FULL / 2)
    beyond = [row["disk"]["tree"] / row["n"] - 4 for row in (a, b)]  # 4 bytes are each image's position
    checked = [row["disk"]["blocks"] + row["disk"]["tree"] for row in (a, b)]
    resident = max(b[when]["all"] for when in ("memory_searched", "memory_scanned")) - b["memory_before"]["all"]
    return {
        "measured_to": b["n"],
        "add_seconds": add,
        "merge_seconds": step,
        "lookup_seconds": lookup,
        "item_bytes": b["disk"]["items"] / b["n"],
        "tree_bytes": beyond[1],
        "tree_power": math.log(beyond[1] / beyond[0]) / math.log(b["n"] / a["n"]),
        "open_seconds": b["open"]["cpu"] / checked[1],
        "memory_base": b["memory_before"]["all"],
        "memory_share": resident / checked[1],
        "scan_seconds": (b["scan"] - a["query"]) / b["disk"]["blocks"],
        "query_base": a["query"],
        "query_seconds": max(0.0, b["query"] - a["query"]) / b["n"],
    }


# the result of `fitted` on benchmarks/results/big.json; a test compares them
FOLDER: dict[str, float] = {
    "measured_to": 100000000.0,
    "add_seconds": 1.448e-06,
    "merge_seconds": 5.215e-07,
    "lookup_seconds": 6.409e-08,
    "item_bytes": 83.42,
    "tree_bytes": 0.3574,
    "tree_power": -0.2355,
    "open_seconds": 2.517e-10,
    "memory_base": 150700000.0,
    "memory_share": 0.5968,
    "scan_seconds": 4.916e-11,
    "query_base": 0.0002047,
    "query_seconds": 7.138e-13,
}
# for 48-bit codes, from benchmarks/results/engines.json; a test compares them
ENGINES: dict[str, dict[str, float]] = {
    "milvus": {
        "measured_to": 1000000.0,
        "insert_seconds": 0.0002214,
        "query_base": 0.007258,
        "query_seconds": 2.065e-08,
        "memory_base": 251100000.0,
        "memory": 588.0,
        "disk": 353.5,
        "approximate_at": 100000.0,
        "recall": 1.0,
        "faster": 1.664,
    },
    "pgvector": {
        "measured_to": 1000000.0,
        "insert_seconds": 1.913e-05,
        "query_base": 0.003429,
        "query_seconds": 1.275e-07,
        "memory_base": 31780000.0,
        "memory": 95.21,
        "disk": 248.7,
        "approximate_at": 1000000.0,
        "recall": 0.33,
        "faster": 80.09,
    },
}
REMARKS = {
    "folder": "exact; trained codes repeat, so a query reads few of them; a random code reads all",
    "milvus": "exact (BIN_FLAT), all codes in memory",
    "pgvector": "exact, by a sequential scan; one server",
}
APPROXIMATE = {"milvus": "ivf", "pgvector": "hnsw"}


def engine_constants(sizes: Sequence[Row]) -> dict[str, float]:
    """The constants of an engine: query times from the two largest sizes, the rest per image at the largest.

    Memory and disk exclude those of the empty engine. The approximate index may have been measured at smaller sizes.
    """
    a, b = sorted(sizes, key=lambda row: row["n"])[-2:]
    n, before = b["n"], b["before"]
    near = max((row for row in sizes if "approximate" in row), key=lambda row: row["n"])
    each = (b["query"]["cpu"] - a["query"]["cpu"]) / (n - a["n"])
    return {
        "measured_to": n,
        "insert_seconds": b["insert"]["cpu"] / n,
        "query_base": max(0.0, a["query"]["cpu"] - each * a["n"]),
        "query_seconds": each,
        "memory_base": before["memory"],
        "memory": (b["memory"] - before["memory"]) / n,
        "disk": (b["disk"] - before["disk"]) / n,
        "approximate_at": near["n"],
        "recall": near["approximate"]["recall"],
        "faster": near["query"]["cpu"] / near["approximate"]["query"]["cpu"],  # than exact search at that size
    }


def plan(n: int, n_bits: int, second_bits: int = 0) -> dict[str, Any]:
    """The costs of n images in the index folder, in Milvus and in PostgreSQL, and which of them to use."""
    if n < 1 or n_bits < 1:
        raise UsageError(f"n and bits must be >= 1, got {n:,} and {n_bits}")
    if n > MOST:
        raise UsageError(f"n must be <= {MOST:.0e}, got {n:.0e}; that is too far beyond anything that was measured")
    if second_bits < 0:
        raise UsageError(f"second-bits must be >= 0, got {second_bits}")
    folder = folder_at(n, n_bits, second_bits, FOLDER)
    second = blocks_bytes(n, second_bits)  # engines were measured without second codes
    wide = _bytes(n_bits) / MEASURED_BYTES
    ways: dict[str, dict[str, Any]] = {"folder": folder | {"measured_to": FOLDER["measured_to"]}}
    for name, each in ENGINES.items():
        more = n * (_bytes(n_bits) - MEASURED_BYTES) + second
        held = n * each["disk"] + more
        query = each["query_base"] + n * each["query_seconds"] * wide
        ways[name] = {
            # PostgreSQL needs little memory itself, but scans are only fast if the system caches the table
            "memory": each["memory_base"] + (held if name == "pgvector" else n * each["memory"] + more),
            "disk": held,
            "build_seconds": n * each["insert_seconds"],
            "query_seconds": query,
            "scan_seconds": query,
            "measured_to": each["measured_to"],
        }
    for name, way in ways.items():
        way["machines"], way["machine_memory"] = _machines(name, way)
        # one core reads a folder at about memory speed; servers compute more, and their cores share the memory
        cores = 1 if name == "folder" else MACHINE["cores"] * (way["machines"] or 0)
        way["shared_seconds"] = way["scan_seconds"] / cores if cores else None
        way["beyond"] = max(1.0, n / way["measured_to"])
    tables, code_bytes = table_bytes(n, n_bits), _bytes(n_bits)
    radius = next(radius for radius in range(-1, n_bits + 1) if not is_cheaper(n, code_bytes, radius + 1))
    return {
        "n": n,
        "n_bits": n_bits,
        "second_bits": second_bits,
        "bytes": {
            "codes": blocks_bytes(n, n_bits),
            "second": blocks_bytes(n, second_bits),
            "radius_tables": tables,
            "floats": n * FEATURES * 4,
        },
        "tables_to_radius": radius,
        "machine": MACHINE,
        "ways": ways,
        "advice": _advice(n, ways),
    }


def describe_plan(found: Mapping[str, Any]) -> str:
    size = found["bytes"]
    second = f" and a second code of {found['second_bits']}" if found["second_bits"] else ""
    lines = [
        f"{found['n']:,} images with codes of {found['n_bits']} bits{second}: {readable(size['codes'])}"
        + (f" and {readable(size['second'])}" if second else "")
        + f"; as {FEATURES:,} floats each they would be {readable(size['floats'])}",
        f"  {'':<9} {'memory':>9} {'disk':>9} {'build':>12} {'machines':>12} {'query':>12} {'reading all':>12}"
        f" {'shared':>12}",
    ]
    for name, way in found["ways"].items():
        lines.append(
            f"  {name:<9} {readable(way['memory']):>9} {readable(way['disk']):>9} {brief(way['build_seconds']):>12}"
            f" {machines_of(way):>12} {brief(way['query_seconds']):>12} {brief(way['scan_seconds']):>12}"
            f" {shared_of(way):>12}".rstrip()
        )
    lines += [f"  {name:<9} {REMARKS[name]}{_approximate(name)}" for name in found["ways"]]
    if found["second_bits"]:
        lines.append(
            "  milvus by both codes also fetches all images that are as near as the last hit; --by first does not"
        )
    reach = found["tables_to_radius"]
    tables = f"faster up to radius {reach}" if reach >= 0 else "never faster at this size"
    lines.append(f"  --radius-tables: {readable(size['radius_tables'])} more, {tables}")
    machine = found["machine"]
    lines.append(
        f"times are of one core, 'shared' is reading all by all cores of a server's machines; machines have"
        f" {machine['cores']} cores, {readable(machine['memory'])} of memory and {readable(machine['disk'])} of disk"
    )
    beyond = [
        f"{name} {way['beyond']:,.0f} times beyond {way['measured_to']:,.0f}"
        for name, way in found["ways"].items()
        if way["beyond"] > 1
    ]
    if beyond:
        lines.append(f"extrapolated: {', '.join(beyond)} images, the most that were measured")
    return "\n".join([*lines, found["advice"]])


def machines_of(way: Mapping[str, Any]) -> str:
    if way["machines"] is None:
        return "too big"
    larger = way["machine_memory"] > MACHINE["memory"]
    return f"{way['machines']:,}" + (f" of {way['machine_memory'] / 1e9:,.0f} GB" if larger else "")


def shared_of(way: Mapping[str, Any]) -> str:
    return "" if way["shared_seconds"] is None else brief(way["shared_seconds"])


def _approximate(name: str) -> str:
    if name not in ENGINES:
        return ""
    each = ENGINES[name]
    return (
        f"; --index {APPROXIMATE[name]} was {each['faster']:.1f} times as fast at {each['approximate_at']:,.0f} and"
        f" found {each['recall']:.0%} of the nearest"
    )


def _machines(name: str, way: Mapping[str, Any]) -> tuple[int | None, float]:
    """The number of machines and their memory; None if one is too small and the engine cannot be divided."""
    memory = MACHINE["memory"]
    if name == "milvus":
        return max(1, math.ceil(way["memory"] / (USABLE * memory))), memory
    while way["memory"] > USABLE * memory:
        memory *= 2
    return (1 if way["disk"] <= MACHINE["disk"] and memory <= LARGEST else None), memory


def _advice(n: int, ways: Mapping[str, Any]) -> str:
    folder, milvus = ways["folder"], ways["milvus"]
    if n <= 10_000_000:
        return "use the index folder: hashlens index build, hashlens serve"
    if n <= 300_000_000 and folder["machines"]:
        return "use the index folder on one machine; encode on several with --part i/n"
    server = f"--engine milvus on {counted(milvus['machines'], 'machine')}, with the same commands"
    if folder["machines"]:
        larger = folder["machine_memory"] > MACHINE["memory"]
        size = f" of {folder['machine_memory'] / 1e9:,.0f} GB" if larger else ""
        server = f"the index folder on one machine{size}, or {server}"
    return f"use {server}; encode on several with --part i/n"


def brief(seconds: float) -> str:
    if seconds >= 1:
        return duration(seconds)
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.01 else f"{1e3 * seconds:.2f} ms"


def folder_at(n: int, n_bits: int, second_bits: int, found: Mapping[str, float]) -> dict[str, float]:
    """The costs of an index folder of n images by these constants: bytes, and seconds of one core."""
    size = _bytes(n_bits) / MEASURED_BYTES
    codes, second = blocks_bytes(n, n_bits), blocks_bytes(n, second_bits)
    part = min(n, FULL)  # each full part has its own tree
    tree = n * (4 + found["tree_bytes"] * size * (part / found["measured_to"]) ** found["tree_power"])
    checked = codes + second + tree
    full = n / FULL / 2  # parts to look up keys in: on average half of the final number
    build = found["add_seconds"] + found["merge_seconds"] * _steps(n) + found["lookup_seconds"] * full
    return {
        "memory": found["memory_base"] + found["memory_share"] * (codes + tree) + second,
        "disk": checked + n * (KEY_BYTES + found["item_bytes"]),
        "build_seconds": n * build,
        "open_seconds": found["open_seconds"] * checked,
        "query_seconds": found["query_base"] + found["query_seconds"] * size * n,
        "scan_seconds": found["query_base"] + found["scan_seconds"] * codes,
    }


def blocks_bytes(n: int, n_bits: int) -> int:
    return -(-n // LANES) * LANES * _bytes(n_bits)


def _bytes(n_bits: int) -> int:
    return -(-n_bits // 8)


def _steps(n: int) -> float:
    """How often merging has rewritten a code in an index of n."""
    return max(0.0, math.log(min(n, FULL) / SHARD, FAN))


def readable(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if n_bytes >= 100 or unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"
