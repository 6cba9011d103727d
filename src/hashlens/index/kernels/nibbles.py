"""Many queries: codes by nibble in, whether a run of 128 of them has one near enough out; for x86 with AVX2.

The bits in which a nibble of a query differs from each of the 16 possible nibbles fit into one vector register. So the
distances of 32 codes grow by one nibble with two instructions, a look-up and an addition: half of what counting the
bits of pieces takes. Numba has no such look-up, hence the instructions here.
"""

import os
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

RUN = 128  # codes examined together
LONGEST = 127  # bits: a distance less a limit must fit in a signed byte


def _has_avx2() -> bool:
    """Not where a user has told numba to compile for other machines."""
    if os.environ.get("NUMBA_CPU_NAME") or os.environ.get("NUMBA_CPU_FEATURES"):
        return False
    try:
        return bool(binding.get_host_cpu_features().get("avx2"))
    except RuntimeError:  # LLVM cannot tell here
        return False


AVAILABLE = _has_avx2()


@njit(nogil=True, cache=True)
def transpose(database: np.ndarray, start: int, planes: np.ndarray) -> None:
    """planes[r, i, j] becomes nibble i of code start + r * RUN + j; the database is (n_pieces, n) uint16."""
    for i in range(planes.shape[1]):
        shift = np.uint16(4 * (i % 4))
        for r in range(len(planes)):
            pieces, plane = database[i // 4][start + r * RUN : start + (r + 1) * RUN], planes[r, i]
            for j in range(len(pieces)):
                plane[j] = np.uint8(pieces[j] >> shift) & np.uint8(15)


@njit(nogil=True, cache=True)
def look_ups(queries: np.ndarray, tables: np.ndarray) -> None:
    """tables[q, i, v] becomes the number of bits in which nibble i of a query differs from v."""
    for q in range(tables.shape[0]):
        for i in range(tables.shape[1]):
            own = (queries[q, i // 4] >> (4 * (i % 4))) & 15
            for v in range(16):
                differing = own ^ v
                tables[q, i, v] = (differing & 1) + ((differing >> 1) & 1) + ((differing >> 2) & 1) + (differing >> 3)


def _any_below(typing: Any, planes: Any, run: Any, tables: Any, query: Any, limit: Any) -> Any:
    """Whether a code of this run is nearer to this query than the limit."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[:3:2], arguments[:3:2], strict=True)
        ]
        n_nibbles = cgutils.unpack_tuple(builder, arrays[0].shape)[1]
        word, byte = ir.IntType(64), ir.IntType(8)
        whole, half = ir.VectorType(byte, 32), ir.VectorType(byte, 16)
        firsts = []  # of the run and of the query's tables
        for array, number, size in zip(arrays, arguments[1:4:2], (RUN, 16), strict=True):
            offset = builder.mul(builder.mul(number, n_nibbles), ir.Constant(word, size))
            firsts.append(builder.gep(builder.bitcast(array.data, byte.as_pointer()), [offset]))

        def load(first: Any, offset: Any, kind: Any) -> Any:
            value = builder.load(builder.bitcast(builder.gep(first, [offset]), kind.as_pointer()))
            value.align = 1
            return value

        look_up = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(whole, [whole, whole]), "llvm.x86.avx2.pshuf.b"
        )
        sums = [cgutils.alloca_once_value(builder, ir.Constant(whole, [0] * 32)) for _ in range(RUN // 32)]
        with cgutils.for_range(builder, n_nibbles) as loop:
            table = load(firsts[1], builder.mul(loop.index, ir.Constant(word, 16)), half)
            twice = builder.shuffle_vector(
                table, table, ir.Constant(ir.VectorType(ir.IntType(32), 32), [*range(16), *range(16)])
            )
            start = builder.mul(loop.index, ir.Constant(word, RUN))
            for place, total in enumerate(sums):
                nibbles = load(firsts[0], builder.add(start, ir.Constant(word, 32 * place)), whole)
                builder.store(builder.add(builder.load(total), builder.call(look_up, [twice, nibbles])), total)
        # a distance less the limit is negative where it is near enough: the signs of all, or-ed
        less = builder.insert_element(
            ir.Constant(whole, ir.Undefined), builder.trunc(arguments[4], byte), ir.Constant(ir.IntType(32), 0)
        )
        less = builder.shuffle_vector(less, less, ir.Constant(ir.VectorType(ir.IntType(32), 32), [0] * 32))
        found = ir.Constant(whole, [0] * 32)
        for total in sums:
            found = builder.or_(found, builder.sub(builder.load(total), less))
        signs = builder.bitcast(found, ir.VectorType(word, 4))
        joined = ir.Constant(word, 0)
        for place in range(4):
            joined = builder.or_(joined, builder.extract_element(signs, ir.Constant(ir.IntType(32), place)))
        joined = builder.and_(joined, ir.Constant(word, 0x8080808080808080))
        return builder.icmp_unsigned("!=", joined, ir.Constant(word, 0))

    return types.boolean(planes, types.uint64, tables, types.uint64, types.int64), generate


@njit(nogil=True, cache=True)
def _look(planes: np.ndarray, run: int, tables: np.ndarray, query: int, limit: int) -> bool:
    """Without that instruction, every run must be examined."""
    return True


any_below: Any = intrinsic(_any_below) if AVAILABLE else _look
