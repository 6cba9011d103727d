"""Plan: a number of pictures and a code length in, the memory that each way of searching needs out, before any work."""

from __future__ import annotations

from typing import Any

from hashlens.errors import UsageError
from hashlens.index.pieces import PIECE

PATH_BYTES = 60  # of a usual path with its share of Arrow's offsets
FEATURES = 4096  # values of the CNN feature that a code replaces, 4 bytes each


def plan(n: int, n_bits: int) -> dict[str, Any]:
    """Bytes of memory and disk for n codes, and what to use at that size."""
    if n < 1 or n_bits < 1:
        raise UsageError(f"plan for at least one picture and one bit, not {n:,} pictures and {n_bits} bits")
    n_pieces = -(-n_bits // PIECE)
    scan = n * n_pieces * PIECE // 8
    tables = n_pieces * (4 * n + 8 * (1 << PIECE))
    ways = {
        "scan": {"memory": scan, "exact": True, "note": "every query reads all codes; mapped, not copied"},
        "scan + tables": {
            "memory": scan + tables,
            "exact": True,
            "note": "small radii look up a few codes instead of reading all",
        },
        "floats": {
            "memory": n * FEATURES * 4,
            "exact": True,
            "note": f"for comparison: {FEATURES:,} floats a picture, without hashing",
        },
    }
    return {
        "n": n,
        "n_bits": n_bits,
        "code_bytes": -(-n_bits // 8),
        "disk": scan + n * PATH_BYTES,
        "ways": ways,
        "advice": _advice(n),
    }


def describe_plan(found: dict[str, Any]) -> str:
    lines = [
        f"{found['n']:,} pictures x {found['n_bits']} bits: {found['code_bytes']} bytes a code,"
        f" about {readable(found['disk'])} on disk with paths"
    ]
    for name, way in found["ways"].items():
        lines.append(f"  {name:<14} {readable(way['memory']):>9} of memory   {way['note']}")
    return "\n".join([*lines, found["advice"]])


def _advice(n: int) -> str:
    if n <= 10_000_000:
        return "one process and the exact scan: hashlens index build, hashlens serve"
    if n <= 300_000_000:
        return "the exact scan over memory-mapped codes; encode on several machines with --part i/n"
    return "a distributed engine behind the same commands (--engine milvus or pgvector); encode with --part i/n"


def readable(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if n_bytes >= 100 or unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"
