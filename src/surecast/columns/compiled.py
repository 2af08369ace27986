"""How kernels (loops compiled by numba) are compiled: the only module that sets numba's options.

These rules keep kernels fast and predictable:

* Every kernel has one explicit signature of contiguous arrays, so no call compiles anything. Input
  arrays are declared read-only, because numba passes writable arrays to read-only parameters at no
  cost, but not the reverse.
* Machine code is cached on disk (numba_cache.py defines where).
* Kernels release the GIL.
* The parameters of kernels are arrays and numbers. A kernel returns a number, and writes other
  results into arrays that the caller has allocated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba import types

from surecast.numba_cache import compiled, expect

__all__ = [
    "BOOLS",
    "BOOLS_OUT",
    "BYTES",
    "INT32S",
    "INT64S",
    "INT64S_OUT",
    "KERNELS",
    "WORDS",
    "WORDS_OUT",
    "Kernel",
    "helper",
    "kernel",
]

KERNELS = 14  # how many kernels kernels.py and runs.py have, for log lines about the progress
expect(KERNELS)

Kernel = Callable[..., Any]
_njit: Any = numba.njit  # numba's own types leave out some of its options


def _in(item: Any) -> Any:
    """The type of an array parameter that a kernel only reads."""
    return types.Array(item, 1, "C", readonly=True)


def _out(item: Any) -> Any:
    """The type of an array parameter that a kernel also writes."""
    return types.Array(item, 1, "C")


INT32S, INT64S, BYTES, BOOLS, WORDS = (
    _in(types.int32),
    _in(types.int64),
    _in(types.uint8),
    _in(types.boolean),
    _in(types.uint64),
)
WORDS_OUT, INT64S_OUT, BOOLS_OUT = _out(types.uint64), _out(types.int64), _out(types.boolean)


# No kernel allocates memory. So numba's reference counting (`_nrt`), which would cost more than
# the loops themselves, is switched off.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "boundscheck": False,
    "error_model": "numpy",
    "_nrt": False,
}


def kernel(signature: Any) -> Callable[[Kernel], Kernel]:
    """Decorator: compile a function for this signature, or load it from the cache on disk."""

    def compile_function(function: Kernel) -> Kernel:
        made: Kernel = compiled(function, signature, **_OPTIONS)
        return made

    return compile_function


def helper(function: Kernel) -> Kernel:
    """Decorator: make a function that kernels can call."""
    # Always inlined, because a call would push seven words for each array that it passes.
    made: Kernel = _njit(forceinline=True, **_OPTIONS)(function)
    return made
