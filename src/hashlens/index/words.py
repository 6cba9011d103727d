"""One query: words of 64 bits in, the smallest distance in a run of 128 codes out; for x86 with AVX2.

The bits of 32 bytes are counted by looking up their nibbles. Numba's own loop does the same, but reads at two thirds of
the speed of memory: here the minimum is kept in 16 bits, where the vector unit has one, and the processor is told ahead
what will be read, line by line and not in bursts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hashlens.index.nibbles import AVAILABLE, RUN

LONGEST = 31  # words: the counts of a byte must fit in a byte
AHEAD = 2_048  # bytes between what is read and what is asked for
TOGETHER = 8  # vectors of four codes

_BYTE, _HALF, _NUMBER, _WORD = (ir.IntType(n) for n in (8, 16, 32, 64))
_BYTES, _HALVES, _WORDS = (ir.VectorType(kind, 256 // kind.width) for kind in (_BYTE, _HALF, _WORD))
_NIBBLE = ir.Constant(_BYTES, [15] * 32)
_N_ONES = ir.Constant(_BYTES, [nibble.bit_count() for nibble in range(16)] * 2)


def _smallest(typing: Any, database: Any, start: Any, query: Any) -> Any:
    """The smallest distance between query (n_words,) and database[:, start : start + RUN] (n_words, n)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes, words = (
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[::2], arguments[::2], strict=True)
        )
        n_words = cgutils.unpack_tuple(builder, words.shape)[0]
        row_size = cgutils.unpack_tuple(builder, codes.strides)[0]
        first = builder.gep(builder.bitcast(codes.data, _BYTE.as_pointer()), [builder.shl(arguments[1], _word(3))])

        def instruction(name: str, result: Any, *kinds: Any) -> Any:
            return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, kinds), name)

        look_up = instruction("llvm.x86.avx2.pshuf.b", _BYTES, _BYTES, _BYTES)
        sum_of_eight = instruction("llvm.x86.avx2.psad.bw", _WORDS, _BYTES, _BYTES)
        smaller = instruction("llvm.umin.v16i16", _HALVES, _HALVES, _HALVES)
        prefetch = instruction("llvm.prefetch.p0i8", ir.VoidType(), _BYTE.as_pointer(), _NUMBER, _NUMBER, _NUMBER)
        to_read, to_keep, data = (ir.Constant(_NUMBER, value) for value in (0, 3, 1))
        nothing = ir.Constant(_BYTES, [0] * 32)

        def differing(words_of_four: Any, own: Any) -> Any:
            """In how many bits each byte differs."""
            bits = builder.xor(words_of_four, own)
            shifted = builder.lshr(builder.bitcast(bits, _HALVES), ir.Constant(_HALVES, [4] * 16))
            low, high = builder.and_(bits, _NIBBLE), builder.and_(builder.bitcast(shifted, _BYTES), _NIBBLE)
            return builder.add(builder.call(look_up, [_N_ONES, low]), builder.call(look_up, [_N_ONES, high]))

        def differing_of(word: Any, step: Any, place: int) -> Any:
            """The same of four codes: vector `place` of a step."""
            own = builder.bitcast(_all(builder, builder.load(builder.gep(words.data, [word]))), _BYTES)
            offset = builder.add(builder.mul(word, row_size), builder.mul(step, _word(32 * TOGETHER)))
            at = builder.gep(first, [builder.add(offset, _word(32 * place))])
            if place % 2 == 0:  # a line of memory is two vectors
                builder.call(prefetch, [builder.gep(at, [_word(AHEAD)]), to_read, to_keep, data])
            four = builder.load(builder.bitcast(at, _BYTES.as_pointer()))
            four.align = 1
            return differing(four, own)

        least = cgutils.alloca_once_value(builder, ir.Constant(_HALVES, [2**16 - 1] * 16))

        def lower_least(total: Any) -> None:
            distances = builder.bitcast(builder.call(sum_of_eight, [total, nothing]), _HALVES)
            builder.store(builder.call(smaller, [builder.load(least), distances]), least)

        n_steps = _word(RUN // (4 * TOGETHER))
        with builder.if_else(builder.icmp_unsigned("==", n_words, _word(1))) as (one_word, several):
            with one_word, cgutils.for_range(builder, n_steps) as loop:
                for place in range(TOGETHER):
                    lower_least(differing_of(_word(0), loop.index, place))
            with several, cgutils.for_range(builder, n_steps) as loop:
                sums = [cgutils.alloca_once(builder, _BYTES) for _ in range(TOGETHER)]
                for total in sums:
                    builder.store(nothing, total)
                with cgutils.for_range(builder, n_words) as inner:
                    for place, total in enumerate(sums):
                        more = differing_of(inner.index, loop.index, place)
                        builder.store(builder.add(builder.load(total), more), total)
                for total in sums:
                    lower_least(builder.load(total))
        # of each word of `least` the lowest 16 bits are a distance, the others are 0
        found = builder.bitcast(builder.load(least), _WORDS)
        smallest = _word(2**16 - 1)
        for place in range(4):
            one = builder.extract_element(found, ir.Constant(_NUMBER, place))
            smallest = builder.select(builder.icmp_unsigned("<", one, smallest), one, smallest)
        return smallest

    return types.int64(database, types.int64, query), generate


def _word(value: int) -> Any:
    return ir.Constant(_WORD, value)


def _all(builder: Any, value: Any) -> Any:
    """A word in each of four places."""
    one = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), value, ir.Constant(_NUMBER, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_NUMBER, 4), [0] * 4))


@njit(nogil=True, cache=True)
def _unknown(database: np.ndarray, start: int, query: np.ndarray) -> int:
    """Where there are no such instructions it is not called."""
    return 0


smallest: Any = intrinsic(_smallest) if AVAILABLE else _unknown
