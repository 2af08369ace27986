"""Functions for kernels (compiled loops): load eight bytes at once, hash them, prefetch memory.

After a change of this file, also touch the files of the kernels that use it: numba recompiles a
kernel in its disk cache only if the kernel's own file has changed.
"""

# Parameters have no annotations: numba takes their types from the kernels that call the function.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types

from surecast.columns.compiled import Kernel, helper

__all__ = ["MUL", "PHI", "mix", "prefetch", "stir", "tail", "word_at"]

# Odd constants with which hashes are multiplied.
PHI = np.uint64(0x9E3779B97F4A7C15)
MUL = np.uint64(0xD6E8FEB86659FD93)
_U = np.uint64


def _intrinsic(function: Kernel) -> Kernel:
    made: Kernel = extending.intrinsic(function)  # type: ignore[assignment, unused-ignore]
    return made


@_intrinsic
def word_at(typing_context: Any, data: Any, index: Any) -> Any:
    """Eight bytes of a byte array from any index, as one unaligned load."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        word = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        word.align = 1
        return word

    return types.uint64(data, index), generate


@_intrinsic
def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Start loading array[index] into the cache, for writing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(made.data, [arguments[1]])
        place = builder.bitcast(place, ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        call = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        # For writing; into the cache nearest to the processor; as data.
        builder.call(call, [place, number(1), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


@helper
def tail(data, start, length):
    """`length` (at most 8) bytes from `start` as a little-endian number, padded with zeros; never
    reads past the data. Used for the last bytes of a string, and for short prefixes."""
    if length == 0:
        return _U(0)
    if start + 8 <= data.size:
        return word_at(data, start) & (~_U(0) >> _U(64 - 8 * length))
    word = _U(0)
    for index in range(length):
        word |= _U(data[start + index]) << _U(8 * index)
    return word


@helper
def mix(word):
    """The last step of a hash, which spreads differences between words over all bits."""
    word = (word ^ (word >> _U(32))) * PHI
    word = (word ^ (word >> _U(29))) * MUL
    return word ^ (word >> _U(32))


@helper
def stir(digest, data, start, length):
    """The hash `digest`, with `length` bytes from `start` mixed in. The last word is padded with
    zeros, so the caller must mix in the length, too."""
    stop = start + length
    while start + 8 <= stop:
        digest = (digest ^ word_at(data, start)) * PHI
        digest ^= digest >> _U(32)
        start += 8
    if start < stop:
        digest = (digest ^ tail(data, start, stop - start)) * PHI
        digest ^= digest >> _U(32)
    return digest
