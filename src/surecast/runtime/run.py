"""Runs the event loop of a process with nodes. It uses uvloop if that is installed, and makes
Python's garbage collector run less often."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

__all__ = ["run"]

# A node holds many objects, such as batches and positions, but none of them are in reference
# cycles, so the collector would find nothing. With Python's default thresholds it takes a third of
# a busy server's time.
GC_THRESHOLDS = (50_000, 20, 200)


def run(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run`, with uvloop if it is installed."""
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()  # the collector ignores the objects that exist now, such as imported modules
    with asyncio.Runner(loop_factory=_fastest()) as runner:
        runner.run(main)


def _fastest() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
