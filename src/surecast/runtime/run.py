"""The event loop of a process that runs nodes: uvloop if installed, garbage collection rarely."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

__all__ = ["run"]

# A node holds many objects (batches, positions), none of them in reference cycles. With Python's
# default thresholds the collector takes a third of a busy server's time.
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
