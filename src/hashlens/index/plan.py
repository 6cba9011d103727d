"""Plan: a number of images and a code length in, the memory and disk that each way of searching needs out."""

from typing import Any

from hashlens.errors import UsageError
from hashlens.index.radius import is_cheaper, table_bytes
from hashlens.kernels import LANES

ITEM_BYTES = 76  # of a usual path with its share of Arrow's offsets, and of size and mtime
FEATURES = 4096  # values of the CNN feature that a code replaces, 4 bytes each


def plan(n: int, n_bits: int) -> dict[str, Any]:
    """Bytes of memory and disk for n codes, and what to use at that size."""
    if n < 1 or n_bits < 1:
        raise UsageError(f"n and bits must be >= 1, got {n:,} and {n_bits}")
    n_bytes = -(-n_bits // 8)
    codes, tables, floats = -(-n // LANES) * LANES * n_bytes, table_bytes(n, n_bits), n * FEATURES * 4
    farthest = next(radius for radius in range(-1, n_bits + 1) if not is_cheaper(n, n_bytes, radius + 1))
    faster = f"up to radius {farthest}, tables are faster" if farthest >= 0 else "tables are never faster at this size"
    ways = {
        name: {"memory": n_bytes, "disk": n_bytes + n * ITEM_BYTES, "note": note}
        for name, n_bytes, note in (
            ("scan", codes, "every query reads all codes; memory-mapped"),
            ("scan + tables", codes + tables, f"--radius-tables: {faster}; memory-mapped"),
            ("floats", floats, f"for comparison: {FEATURES:,} floats per image, without hashing"),
        )
    }
    return {"n": n, "n_bits": n_bits, "code_bytes": -(-n_bits // 8), "ways": ways, "advice": _advice(n)}


def describe_plan(found: dict[str, Any]) -> str:
    lines = [f"{found['n']:,} images x {found['n_bits']} bits, {found['code_bytes']} bytes per code"]
    for name, way in found["ways"].items():
        memory, disk = readable(way["memory"]), readable(way["disk"])
        lines.append(f"  {name:<14} {memory:>9} of memory {disk:>9} on disk   {way['note']}")
    return "\n".join([*lines, found["advice"]])


def _advice(n: int) -> str:
    if n <= 10_000_000:
        return "use the exact scan in one process: hashlens index build, hashlens serve"
    if n <= 300_000_000:
        return "use the exact scan over memory-mapped codes; encode on several machines with --part i/n"
    return "use a distributed engine with the same commands (--engine milvus or pgvector); encode with --part i/n"


def readable(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if n_bytes >= 100 or unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.1f} TB"


def fitted(rows): return {}
def folder_at(*a): return {}
