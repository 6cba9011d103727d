"""Merging: the sizes of an index's parts in, which of them to join out (log-structured merging).

Every addition makes a new part. Eight parts of about the same size are joined, together with any smaller ones, so that
there are at most 7 of each size: their number grows with the logarithm of the index size, and a code is rewritten once
per factor of 8. A part of 16 million codes is full and never rewritten, which bounds the time and memory of every
addition, and of building its tree.
"""

from __future__ import annotations

from collections.abc import Sequence

FAN = 8
FULL = 1 << 24  # codes; a joined part has fewer than twice as many


def parts_to_join(sizes: Sequence[int]) -> slice | None:
    """The first parts to join, as if all had been added one after the other; None if there are none."""
    for end in range(2, len(sizes) + 1):
        first = _first_to_join(sizes[:end])
        if first < end - 1:
            return slice(first, end)
    return None


def _first_to_join(sizes: Sequence[int]) -> int:
    """The first of the parts to join with the last one."""
    first = len(sizes) - 1
    total = sizes[first]
    while first and total < FULL and sizes[first - 1] < FULL:
        before = first
        if _step(sizes[first - 1]) < _step(total):
            before -= 1
        else:
            while before and sizes[before - 1] < FULL and _step(sizes[before - 1]) == _step(total):
                before -= 1
            if first - before + 1 < FAN and sum(sizes[before:]) < FULL:
                break
            while sum(sizes[before + 1 :]) >= FULL:
                before += 1
        first = before
        total = sum(sizes[first:])
    return first


def _step(n: int) -> int:
    return (n.bit_length() - 1) // (FAN.bit_length() - 1)
