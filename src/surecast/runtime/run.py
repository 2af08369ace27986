"""Runs the event loop of a process that runs nodes: with uvloop if it is installed, and with fewer
runs of the garbage collector."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

__all__ = ["run"]

# A node holds many objects, such as batches and positions, but none of them are in reference
# cycles. With Python's default thresholds the collector takes a third of a busy server's time.
GC_THRESHOLDS = (50_000, 20, 200)


def run(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run`, with uvloop if it is installed."""
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()  # imported modules are never collected
    with asyncio.Runner(loop_factory=_fastest()) as runner:
        runner.run(main)


def _fastest() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
