"""Graph cuts: pair weights in, signs of low energy out; each block of points that should agree is solved exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

LARGEST_FLOW = 2**29  # scipy's capacities are int32, and what is left of one may be twice as much
TOLERANCE = 1e-12  # an energy is lower if it is by this part of all weights


def sweep(A: Any, z: np.ndarray, blocks: Sequence[np.ndarray]) -> None:
    """Lower sum over pairs i < j of a_ij z_i z_j over one block of z after another, in place; it never rises.

    A is sparse, symmetric, (n, n), and no a_ij within a block is positive.
    """
    for block in blocks:
        rows = A[block]
        inside, old = rows[:, block], z[block]
        unary = rows @ z - inside @ old
        new = best_signs(inside, unary)
        all_weights = np.abs(unary).sum() + np.abs(inside.data).sum()
        if energy(inside, unary, new) < energy(inside, unary, old) - TOLERANCE * all_weights:  # else the old bits stay
            z[block] = new


def energy(A: Any, unary: np.ndarray, z: np.ndarray) -> float:
    """sum_i unary_i z_i + sum over pairs i < j of a_ij z_i z_j."""
    return float(unary @ z + z @ (A @ z) / 2)


def best_signs(A: Any, unary: np.ndarray) -> np.ndarray:
    """The signs of least energy where no a_ij is positive: a minimum cut, +1 on the side of the source.

    A point with unary < 0 is connected to the source and one with unary > 0 to the sink, with capacity |unary|; i and
    j with |a_ij|. Capacities are rounded to integers, 2^29 in total.
    """
    n = len(unary)
    if (unary <= 0).all() or (unary >= 0).all():
        return np.full(n, 1.0 if unary.sum() <= 0 else -1.0)
    A = A.tocoo()
    source, sink = n, n + 1
    to_source, to_sink = np.flatnonzero(unary < 0), np.flatnonzero(unary > 0)
    total = np.abs(unary).sum()
    strength = np.concatenate([-unary[to_source], unary[to_sink], np.minimum(-A.data, total)])  # no flow is larger
    starts = np.concatenate([np.full(len(to_source), source), to_sink, A.row])
    ends = np.concatenate([to_source, np.full(len(to_sink), sink), A.col])
    capacity = np.rint(strength * (LARGEST_FLOW / total)).astype(np.int32)
    graph = sparse.csr_array((capacity, (starts, ends)), shape=(n + 2, n + 2))
    rest = graph - csgraph.maximum_flow(graph, source, sink).flow  # keeps no zeros, which would count as edges
    reached = csgraph.breadth_first_order(rest, source, return_predecessors=False)
    signs = np.full(n + 2, -1.0)
    signs[reached] = 1
    return signs[:n]
