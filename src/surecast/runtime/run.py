"""The event loop of a process that runs nodes: the fastest there is, and a quiet collector."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

__all__ = ["run"]

# What a node keeps (batches, positions) has no cycles, and there is a lot of it: looking for cycles
# among it as often as Python does by default takes a third of a busy server's time.
GC_THRESHOLDS = (50_000, 20, 200)


def run(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` with uvloop, where that is installed."""
    gc.set_threshold(*GC_THRESHOLDS)
    gc.freeze()  # what was imported stays
    with asyncio.Runner(loop_factory=_fastest()) as runner:
        runner.run(main)


def _fastest() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
