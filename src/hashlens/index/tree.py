"""A tree over distinct codes: codes in, arrays out for finding the nearest codes without reading all.

Trained codes repeat, and distinct ones form few clusters. Equal codes are kept once, with the positions where they
occur. Distinct codes are ordered so that codes with many common bits are adjacent: all are split by the bit that halves
them best, then each half, until 64 are left. For each block of 64 codes, and for each 64 blocks, the bits common to all
are stored. The number of these bits that differ from a query is a lower bound of all distances in the block, so blocks
beyond the k-th nearest so far are not read. The answers equal those of a scan, including ties and ids.

An index folder stores a tree as one array of bytes, the arrays of `Tree` one after the other, with the results of
trying it, which other machines need not repeat.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import product
from typing import Any

import numpy as np

from hashlens.kernels import LANES, Rows, View, kernels, to_blocks
from hashlens.kernels.compiled import arrange, grouped, levels
from hashlens.machine import blocks

FEWEST = 20_000  # codes; with fewer, a tree is not worth building
MOST = 2**32 - 1  # codes; positions have 32 bits
SAMPLE = 16  # codes to search for when trying a tree
STEPS = (1, 10, 100, 1_000)  # numbers of results to try
MANY = 16  # queries at once; a scan reads codes for all of them while they are in the cache
ROUNDS = 7
FASTER = 0.7  # required share of a scan's time, below 1 so that noise does not select a slower tree
WAYS = tuple(product(range(len(STEPS)), (False, True)))  # cases to try: steps, and whether for many queries
LATER = 0.9  # share of a scan's time up to which a chosen tree stays in use


class Tree:
    """The arrays that `climb` in core.c reads."""

    def __init__(self, arrays: list[np.ndarray], n_distinct: int):
        self.arrays = arrays  # blocks, values, masks, top values, top masks, starts, places
        self.n_distinct = n_distinct
        # where it is faster than a scan: {(step, whether for many queries): blocks per query up to which it is}
        self.most: dict[tuple[int, bool], float] = {}
        self.radius = -1  # largest radius at which it is faster than a scan

    @classmethod
    def build(cls, rows: Rows) -> Tree:
        n, n_bytes = len(rows), rows.blocks.shape[1]
        packed = np.zeros((n, -(-n_bytes // 8) * 8), np.uint8)
        packed[:, :n_bytes] = rows.blocks.transpose(0, 2, 1).reshape(-1, n_bytes)[:n]
        groups, firsts = grouped(packed.view(np.uint64))
        words = packed.view(np.uint64)[firsts]
        del packed
        order = arrange(words)
        distinct = words.view(np.uint8)[:, :n_bytes]

        place_of = np.empty(len(order), np.uint32)  # position of each group in the tree
        place_of[order] = np.arange(len(order), dtype=np.uint32)
        owner = place_of[groups]
        starts = np.zeros(len(order) + 1, np.uint32)
        np.cumsum(np.bincount(owner, minlength=len(order)), out=starts[1:])
        places = np.argsort(owner, kind="stable").astype(np.uint32)

        last = np.repeat(distinct[-1:], -len(distinct) % LANES, axis=0)  # pads the last block, keeping its common bits
        of_block = np.concatenate([distinct, last]).reshape(-1, LANES, n_bytes)
        low, high = np.bitwise_and.reduce(of_block, axis=1), np.bitwise_or.reduce(of_block, axis=1)
        inner = [to_blocks(low), to_blocks(~(low ^ high))]
        edges = np.arange(0, len(low), LANES)
        low, high = np.bitwise_and.reduceat(low, edges), np.bitwise_or.reduceat(high, edges)
        return cls(
            [to_blocks(distinct), *inner, to_blocks(low), to_blocks(~(low ^ high)), starts, places], len(distinct)
        )

    def weights(self, alive: np.ndarray) -> np.ndarray:
        """How often each distinct code occurs, without removed ones."""
        starts, places = self.arrays[-2:]
        return np.add.reduceat(alive[places], starts[:-1], dtype=np.uint32)

    def try_out(self, rows: Rows, n_bits: int) -> bool:
        """Measure with some of the codes where the tree is faster than a scan; returns whether it is anywhere."""
        places = np.unique(np.linspace(0, len(rows) - 1, SAMPLE).astype(np.int64))
        queries = rows.codes(places)
        with_tree = Rows(rows.blocks, rows.n, rows._ids)
        with_tree.alive, with_tree.tree = rows.alive, self
        ways = View([rows], trees=False), View([with_tree])
        for step, k in enumerate(STEPS):
            shape = len(queries), k + 1  # one more, as each finds itself too
            distances, ids = np.empty(shape, np.int32), np.empty(shape, np.int64)

            def ask(
                view: View, size: int, distances: np.ndarray = distances, ids: np.ndarray = ids
            ) -> tuple[float, int]:
                start, n_read = time.thread_time(), 0
                for some in blocks(len(queries), size):
                    n_read += kernels().nearest(view, queries[some], n_bits, distances[some], ids[some])
                return time.thread_time() - start, n_read

            for many in (False, True):
                size = len(queries) if many else 1
                taken = [[ask(view, size) for view in ways] for _ in range(ROUNDS)]  # in turns, to cancel drift
                (of_scan, _), (of_tree, n_read) = np.min(taken, axis=0)
                if of_tree < FASTER * of_scan:
                    self.most[step, many] = float(n_read / len(queries) * LATER * of_scan / of_tree)
            if (step, False) in self.most:
                self.radius = int(distances[:, -1].mean())
        return bool(self.most)

    def flat(self) -> np.ndarray:
        """All arrays as one array of bytes, each aligned to a cache line."""
        sizes = [array.nbytes for array in self.arrays]
        flat = np.zeros(sum(map(_lines, sizes)), np.uint8)
        for array, room in zip(self.arrays, _cut(flat, sizes), strict=True):
            room[:] = array.reshape(-1).view(np.uint8)
        return flat

    def facts(self) -> dict[str, Any]:
        most = [round(self.most.get(way, 0)) for way in WAYS]
        return {"n_distinct": self.n_distinct, "most": most, "radius": self.radius if self.radius >= 0 else None}

    @classmethod
    def from_flat(cls, flat: np.ndarray, n: int, n_bits: int, facts: dict[str, Any]) -> Tree:
        """The tree described by `flat` and `facts`; a ValueError if it is not safe for the kernels."""
        kinds = _kinds(n, -(-n_bits // 8), facts["n_distinct"])
        pairs = zip(_cut(flat, _sizes(kinds)), kinds, strict=True)
        tree = cls([room.view(dtype).reshape(shape) for room, (shape, dtype) in pairs], facts["n_distinct"])
        starts, places = tree.arrays[-2:]
        if starts[0] or starts[-1] != n or np.any(starts[1:] <= starts[:-1]) or np.any(places >= n):
            raise ValueError("it points outside of the codes")
        codes, values, _, top_values, _ = tree.arrays[:5]
        if n_bits % 8 and any(np.any(array[:, -1] & (0xFF >> n_bits % 8)) for array in (codes, values, top_values)):
            raise ValueError(f"it has bits past bit {n_bits}")
        tree.most = {way: most for way, most in zip(WAYS, facts["most"], strict=True) if most}
        tree.radius = -1 if facts["radius"] is None else facts["radius"]
        return tree

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


def tree_bytes(n: int, n_bits: int, n_distinct: int) -> int:
    """The length of `Tree.flat`."""
    return sum(map(_lines, _sizes(_kinds(n, -(-n_bits // 8), n_distinct))))


def step_of(k: int) -> int:
    """The index of the step that applies to k results; beyond all steps, where trees are never used, the last."""
    return bisect_left(STEPS, k)


def best_tree(rows: Rows, n_bits: int) -> Tree | None:
    """A tree over these codes, if it is faster than a scan."""
    tree = Tree.build(rows)
    return tree if tree.try_out(rows, n_bits) else None


def can_build(n: int) -> bool:
    """Whether a tree can help: enough codes and compiled kernels."""
    return FEWEST <= n <= MOST and bool(levels()) and kernels().name != "numpy"


def _kinds(n: int, n_bytes: int, n_distinct: int) -> list[tuple[tuple[int, ...], type]]:
    """Shape and type of the arrays of a tree."""
    n_blocks = -(-n_distinct // LANES)
    n_groups = -(-n_blocks // LANES)
    n_tops = -(-n_groups // LANES)
    lengths = (n_blocks, n_groups, n_groups, n_tops, n_tops)
    return [*(((m, n_bytes, LANES), np.uint8) for m in lengths), ((n_distinct + 1,), np.uint32), ((n,), np.uint32)]


def _sizes(kinds: list[tuple[tuple[int, ...], type]]) -> list[int]:
    return [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in kinds]


def _lines(size: int) -> int:
    """The size rounded up to whole cache lines."""
    return -(-size // LANES) * LANES


def _cut(flat: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Consecutive pieces of these sizes, each aligned to a cache line."""
    starts = np.cumsum([0, *map(_lines, sizes)])
    return [flat[start : start + size] for start, size in zip(starts, sizes, strict=False)]
