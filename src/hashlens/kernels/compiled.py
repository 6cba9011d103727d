"""The compiled kernels: the functions of core.c, called with arrays instead of pointers."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, addressof, c_char, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from hashlens.kernels import LANES, Rows, View
from hashlens.kernels.build import library

FIRST_ROOM = 4_096  # hits within a radius that fit at the first attempt
KINDS = {"i": c_int, "n": c_int64, "p": c_void_p}
ARGUMENTS = {  # argument types of the functions in core.c
    "nearest": "ipnpniipiinnnpp",
    "within": "ippiinpp",
    "histogram": "ipnnpiip",
    "rank": "ipnpniippnipnnpppp",
    "look_up": "ppiipippppnpp",
    "group": "pnnpp",
    "arrange": "pnnp",
    "across": "ipnnppnnpn",
    "down": "ipnppnnp",
}


class TreeStruct(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("blocks", "values", "masks", "top_values", "top_masks")),
        *((name, c_void_p) for name in ("starts", "places", "weights")),
        ("n_distinct", c_int64),
    )


class RowsStruct(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("blocks", "alive", "ids")),
        ("first", c_int64),
        ("n", c_int64),
        ("tree", POINTER(TreeStruct)),
        ("second", c_void_p),
    )


@cache
def _core() -> Any:
    """The library, or None if it was not compiled."""
    try:
        core = ctypes.CDLL(str(library()))
    except OSError:
        return None
    for name, kinds in ARGUMENTS.items():
        function = getattr(core, f"hashlens_{name}")
        function.argtypes, function.restype = [KINDS[kind] for kind in kinds], c_int64
    core.hashlens_level.restype = c_char_p
    return core


@cache
def levels() -> dict[str, int]:
    """Names and numbers of the levels that this processor supports, fastest last."""
    core = _core()
    if core is None:
        return {}
    found, number = {}, 0
    while (name := core.hashlens_level(number)) is not None:
        if core.hashlens_runs(number):
            found[name.decode()] = number
        number += 1
    return found


def _address(array: np.ndarray) -> int:
    """The address of an array, which the caller must keep alive."""
    flags = array.flags
    if not flags.c_contiguous:  # C would read beyond the array
        raise ValueError("the kernels take arrays in C order")
    if flags.writeable and array.size:  # a fifth of the other way's time, which matters as a search takes microseconds
        buffer: Any = array
        return addressof(c_char.from_buffer(buffer))
    return array.__array_interface__["data"][0]


def _call(name: str, *given: Any) -> int:
    values = [_address(value) if isinstance(value, np.ndarray) else value for value in given]
    return _done(getattr(_core(), f"hashlens_{name}")(*values))


def _done(result: int) -> int:
    if result < 0:
        raise MemoryError("there is not enough memory to search")
    return result


class Structs:
    """The C structures of some rows, and the arrays that they point to."""

    def __init__(self, rows: list[Any], trees: tuple[bool, ...]):
        self.array = (RowsStruct * len(rows))()
        self._kept: list[Any] = []
        for struct, one, use_tree in zip(self.array, rows, trees, strict=True):
            bits = None
            if one.alive is not None:
                padded = np.zeros(-(-one.n // LANES) * LANES, bool)
                padded[: one.n] = one.alive
                bits = np.packbits(padded, bitorder="little").view(np.uint64)
            own_ids = None if isinstance(one._ids, int) else np.ascontiguousarray(one._ids, np.int64)
            kept = (one.blocks, bits, own_ids, one.second)
            struct.blocks, struct.alive, struct.ids, struct.second = map(self._keep, kept)
            struct.first, struct.n = one._ids if own_ids is None else 0, one.n
            if use_tree and one.tree is not None:
                weights = None if one.alive is None else one.tree.weights(one.alive)
                tree = TreeStruct(*map(self._keep, (*one.tree.arrays, weights)), one.tree.n_distinct)
                struct.tree = ctypes.pointer(tree)
                self._kept.append(tree)

    def _keep(self, array: np.ndarray | None) -> int | None:
        self._kept.append(array)
        return None if array is None else _address(array)


class Compiled:
    """The kernels at one level; see core.c."""

    def __init__(self, name: str):
        self.name = name
        self._level = levels()[name]
        self._nearest = _core().hashlens_nearest

    def nearest(
        self,
        view: View,
        queries: np.ndarray,
        n_bits: int,
        distances: np.ndarray,
        ids: np.ndarray,
        share: int = 0,
        n_shares: int = 1,
        seconds: np.ndarray | None = None,
        second_bits: int = 0,
    ) -> int:
        rows, (n, k) = view.structs.array, distances.shape
        found = _address(distances), _address(ids)
        second = (None, 0, 0) if seconds is None else (_address(seconds), seconds.shape[1], second_bits)
        asked = _address(queries), n, queries.shape[1], n_bits, *second, k, share, n_shares
        return _done(self._nearest(self._level, rows, len(rows), *asked, *found))

    def within(self, rows: Rows, query: np.ndarray, n_bits: int, radius: int) -> tuple[np.ndarray, np.ndarray]:
        structs = Structs([rows], (rows.tree is not None and radius <= rows.tree.radius,))
        return _found("within", self._level, structs.array, query, len(query), radius)

    def histogram(self, rows: Rows, begin: int, end: int, query: np.ndarray, counts: np.ndarray) -> None:
        structs = Structs([rows], (False,))
        _call("histogram", self._level, structs.array, begin, end, query, len(query), len(counts) - 1, counts)

    def rank(
        self,
        blocks: np.ndarray,
        n: int,
        queries: np.ndarray,
        query_labels: np.ndarray,
        labels: np.ndarray,
        label_sets: bool,
        cutoffs: np.ndarray,
        topk: int,
        items: np.ndarray,
        hits: np.ndarray,
        found: np.ndarray,
        precision_sum: np.ndarray,
    ) -> None:
        codes = (blocks, n, queries, *queries.shape, items.shape[1] - 1)
        relevant = (query_labels, labels, len(labels), label_sets)
        cuts = (cutoffs, len(cutoffs), topk)
        _call("rank", self._level, *codes, *relevant, *cuts, items, hits, found, precision_sum)

    def look_up(
        self,
        rows: Rows,
        query: np.ndarray,
        radius: int,
        radii: np.ndarray,
        masks: np.ndarray,
        ends: np.ndarray,
        starts: np.ndarray,
        places: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        structs = Structs([rows], (False,))
        tables = (radii, len(radii), masks, ends, starts, places)
        return _found("look_up", structs.array, query, len(query), radius, *tables)

    def across(self, pixels: int, width: int, rows: np.ndarray, first: np.ndarray, weights: np.ndarray) -> None:
        """Fill rows (n, a multiple of 4, 4) by scaling n rows of pixels at an address; see data/resize.py."""
        given = len(rows), width, first, weights, weights.shape[1], len(first)
        _call("across", self._level, pixels, *given, rows, rows.shape[1])

    def down(self, rows: np.ndarray, image: np.ndarray, first: np.ndarray, weights: np.ndarray) -> None:
        """Fill the image (size, size, 3) from the output of `across`."""
        _call("down", self._level, rows, rows[0].nbytes, first, weights, weights.shape[1], len(first), image)


def grouped(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For rows of words: the number of each row's group of equal rows, (n,) uint32, and where each group begins."""
    groups, firsts = np.empty(len(words), np.uint32), np.empty(len(words), np.uint32)
    n = _call("group", words, *words.shape, groups, firsts)
    return groups, firsts[:n].copy()


def arrange(words: np.ndarray) -> np.ndarray:
    """Sort rows of words in place, so that rows with many common bits are adjacent; returns their former positions."""
    order = np.arange(len(words), dtype=np.uint32)
    _call("arrange", words, *words.shape, order)
    return order


def _found(name: str, *given: Any) -> tuple[np.ndarray, np.ndarray]:
    """The results of a search of unknown size, repeated if there are more than expected."""
    room = FIRST_ROOM
    while True:
        distances, ids = np.empty(room, np.uint16), np.empty(room, np.int64)
        n = _call(name, *given, room, distances, ids)
        if n <= room - LANES:
            return distances[:n], ids[:n]
        room = n + LANES
