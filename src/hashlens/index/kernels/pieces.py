"""One query: pieces of 16 bits in, distances out, or only the smallest of a run of 128 codes.

On x86 with AVX2 the smallest is found by hand-written instructions. The bits of 32 bytes, 16 pieces, are counted by
looking up their nibbles. Numba's loop does the same, but the vector unit and memory wait for each other: here the
processor is told in advance what will be read, line by line and not in bursts. Since the pieces of a code lie in
separate rows, several lines are loaded at the same time.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hashlens.codes.hamming import popcount
from hashlens.index.kernels.nibbles import AVAILABLE, RUN

LONGEST = 31  # pieces: the count per byte must fit in a byte
AHEAD = 2_048  # bytes between what is read and what is prefetched
TOGETHER = RUN // 16  # vectors of 16 codes

_BYTE, _HALF, _NUMBER, _WORD = (ir.IntType(n) for n in (8, 16, 32, 64))
_BYTES, _HALVES = ir.VectorType(_BYTE, 32), ir.VectorType(_HALF, 16)
_EIGHT = ir.VectorType(_HALF, 8)
_NIBBLE = ir.Constant(_BYTES, [15] * 32)
_N_ONES = ir.Constant(_BYTES, [nibble.bit_count() for nibble in range(16)] * 2)


@njit(nogil=True, cache=True)
def distances_of(query: np.ndarray, database: np.ndarray, start: int, stop: int, distances: np.ndarray) -> None:
    """Distances of database[:, start:stop] from query (n_pieces,), into the first places of uint16 `distances`."""
    for p in range(len(query)):
        row, own = database[p][start:stop], query[p]
        if p == 0:
            for j in range(len(row)):
                distances[j] = popcount(np.uint64(own ^ row[j]))
        else:
            for j in range(len(row)):
                distances[j] += popcount(np.uint64(own ^ row[j]))


def _by_look_up(typing: Any, database: Any, start: Any, query: Any) -> Any:
    """`smallest`, as instructions."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, own = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[::2], arguments[::2], strict=True)
        )
        n_pieces = cgutils.unpack_tuple(builder, own.shape)[0]
        row_size = cgutils.unpack_tuple(builder, codes.strides)[0]
        first = builder.gep(builder.bitcast(codes.data, _BYTE.as_pointer()), [builder.shl(arguments[1], _word(1))])

        def instruction(name: str, result: Any, *kinds: Any) -> Any:
            return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, kinds), name)

        look_up = instruction("llvm.x86.avx2.pshuf.b", _BYTES, _BYTES, _BYTES)
        add_neighbours = instruction("llvm.x86.avx2.pmadd.ub.sw", _HALVES, _BYTES, _BYTES)
        smaller = instruction("llvm.umin.v16i16", _HALVES, _HALVES, _HALVES)
        smaller_of_eight = instruction("llvm.umin.v8i16", _EIGHT, _EIGHT, _EIGHT)
        smallest_first = instruction("llvm.x86.sse41.phminposuw", _EIGHT, _EIGHT)
        prefetch = instruction("llvm.prefetch.p0i8", ir.VoidType(), _BYTE.as_pointer(), _NUMBER, _NUMBER, _NUMBER)
        to_read, to_keep, data = (ir.Constant(_NUMBER, value) for value in (0, 3, 1))

        def differing(piece: Any, place: int) -> Any:
            """In how many bits the bytes of 16 codes, vector `place` of the run, differ from the query's."""
            at = builder.gep(first, [builder.add(builder.mul(piece, row_size), _word(32 * place))])
            if place % 2 == 0:  # a line of memory is two vectors
                builder.call(prefetch, [builder.gep(at, [_word(AHEAD)]), to_read, to_keep, data])
            sixteen = builder.load(builder.bitcast(at, _BYTES.as_pointer()))
            sixteen.align = 1
            wanted = _sixteen_times(builder, builder.load(builder.gep(own.data, [piece])))
            bits = builder.xor(sixteen, builder.bitcast(wanted, _BYTES))
            shifted = builder.lshr(builder.bitcast(bits, _HALVES), ir.Constant(_HALVES, [4] * 16))
            low, high = builder.and_(bits, _NIBBLE), builder.and_(builder.bitcast(shifted, _BYTES), _NIBBLE)
            return builder.add(builder.call(look_up, [_N_ONES, low]), builder.call(look_up, [_N_ONES, high]))

        sums = [cgutils.alloca_once_value(builder, differing(_word(0), place)) for place in range(TOGETHER)]
        with cgutils.for_range_slice(builder, _word(1), n_pieces, _word(1)) as (piece, _):
            for place, total in enumerate(sums):
                builder.store(builder.add(builder.load(total), differing(piece, place)), total)
        ones, least = ir.Constant(_BYTES, [1] * 32), None
        for total in sums:
            distances = builder.call(add_neighbours, [builder.load(total), ones])
            least = distances if least is None else builder.call(smaller, [least, distances])
        halves = [
            builder.shuffle_vector(least, least, ir.Constant(ir.VectorType(_NUMBER, 8), [*range(n, n + 8)]))
            for n in (0, 8)
        ]
        found = builder.call(smallest_first, [builder.call(smaller_of_eight, halves)])
        smallest = builder.zext(builder.extract_element(found, ir.Constant(_NUMBER, 0)), _WORD)
        return smallest

    return types.int64(database, types.int64, query), generate


def _word(value: int) -> Any:
    return ir.Constant(_WORD, value)


def _sixteen_times(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_HALVES, ir.Undefined), value, ir.Constant(_NUMBER, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_NUMBER, 16), [0] * 16))


@njit(nogil=True, cache=True)
def _by_counting(database: np.ndarray, start: int, query: np.ndarray) -> int:
    """The same on any machine, and for codes of any length."""
    distances = np.empty(RUN, np.uint16)
    distances_of(query, database, start, start + RUN, distances)
    least = distances[0]
    for j in range(1, RUN):
        least = min(least, distances[j])
    return np.int64(least)  # type: ignore[return-value]  # compiled


_quickest: Any = intrinsic(_by_look_up) if AVAILABLE else _by_counting


@njit(nogil=True, cache=True, inline="always")
def smallest(database: np.ndarray, start: int, query: np.ndarray) -> int:
    """The smallest distance between query (n_pieces,) and database[:, start : start + RUN] (n_pieces, n), C order."""
    return _quickest(database, start, query) if len(query) <= LONGEST else _by_counting(database, start, query)
