"""Kernels: blocks of codes in, nearest codes, codes within a radius and counts by distance out; and image scaling.

core.c is compiled when hashlens is installed and chooses instructions for the processor at run time (compiled.py).
Without a compiler, numpy does the same, more slowly (in_numpy.py); tests compare the two. HASHLENS_KERNELS=numpy,
plain, avx2, avx512 or neon forces one of them.

A block holds 64 codes, byte by byte: (n_blocks, n_bytes, 64) uint8, so that one vector instruction handles all of them.
The last block is padded with zeros.
"""

from __future__ import annotations

import os
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hashlens.errors import UsageError

if TYPE_CHECKING:
    from hashlens.index.tree import Tree
    from hashlens.kernels.compiled import Compiled
    from hashlens.kernels.in_numpy import Numpy

LANES = 64  # codes per block
VARIABLE = "HASHLENS_KERNELS"


class Rows:
    """Codes in the layout of the kernels: blocks, which codes were not removed, and their ids."""

    def __init__(self, blocks: np.ndarray, n: int, ids: np.ndarray | int):
        self.blocks = np.ascontiguousarray(blocks)  # a memory map stays one
        self.n = n
        self._ids = ids  # ascending, or the first of consecutive ids
        self.alive: np.ndarray | None = None  # (n,) bool; None: all
        self.tree: Tree | None = None
        self.second: np.ndarray | None = None  # blocks of a second code of the same items

    def __len__(self) -> int:
        return self.n

    def ids(self, places: np.ndarray) -> np.ndarray:
        return places + self._ids if isinstance(self._ids, int) else self._ids[places]

    def codes(self, places: np.ndarray) -> np.ndarray:
        """The packed codes at these positions, (len(places), n_bytes) uint8."""
        return from_blocks(self.blocks, places)


class View:
    """Several `Rows` with ascending ids, and their cached description for the compiled kernels."""

    def __init__(self, rows: list[Any], trees: bool | tuple[bool, ...] = True):
        self.rows = rows
        self.trees = trees if isinstance(trees, tuple) else (trees,) * len(rows)  # whether each one's tree is used
        self.most = 0.0  # blocks per query above which trees do not pay off
        self.n_asked = self.n_read = 0  # queries, and blocks read by trees for them

    @cached_property
    def structs(self) -> Any:
        from hashlens.kernels.compiled import Structs

        return Structs(self.rows, self.trees)

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of codes read per query, not counting trees."""
        return sum(
            rows.blocks.nbytes for rows, tree in zip(self.rows, self.trees, strict=True) if not (tree and rows.tree)
        )


def to_blocks(packed: np.ndarray) -> np.ndarray:
    """Convert (n, n_bytes) uint8 to blocks."""
    n, n_bytes = packed.shape
    # aligned to cache lines, so that no row of a block lies in two of them
    memory = np.zeros((-(-n // LANES) * n_bytes + 1) * LANES, np.uint8)
    blocks = memory[-memory.ctypes.data % LANES :][: len(memory) - LANES].reshape(-(-n // LANES), n_bytes, LANES)
    whole = n // LANES
    blocks[:whole] = packed[: whole * LANES].reshape(whole, LANES, n_bytes).transpose(0, 2, 1)
    if whole < len(blocks):
        blocks[whole, :, : n - whole * LANES] = packed[whole * LANES :].T
    return blocks


def from_blocks(blocks: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The packed codes at these positions, (len(places), n_bytes) uint8."""
    return np.ascontiguousarray(blocks[places // LANES, :, places % LANES])


def joined_blocks(parts: list[tuple[np.ndarray, int]]) -> np.ndarray:
    """Several arrays of blocks, each with its number of codes, as one."""
    if not any(n % LANES for _, n in parts[:-1]):
        return np.concatenate([blocks for blocks, _ in parts])
    packed = [blocks.transpose(0, 2, 1).reshape(-1, blocks.shape[1])[:n] for blocks, n in parts]
    return to_blocks(np.concatenate(packed))


def kernels() -> Compiled | Numpy:
    """The fastest kernels for this machine, or those named by HASHLENS_KERNELS."""
    return _load(os.environ.get(VARIABLE))


def available() -> list[str]:
    """The valid names for HASHLENS_KERNELS on this machine, fastest last."""
    from hashlens.kernels.compiled import levels

    return ["numpy", *levels()]


@cache
def _load(wanted: str | None) -> Compiled | Numpy:
    from hashlens.kernels.compiled import Compiled
    from hashlens.kernels.in_numpy import Numpy

    names = available()
    name = names[-1] if wanted is None else wanted
    if name not in names:
        raise UsageError(f"{VARIABLE} must be one of {', '.join(names)} on this machine, got {name!r}")
    return Numpy() if name == "numpy" else Compiled(name)
