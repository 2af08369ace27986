"""`timeout=` of the public calls: seconds or a timedelta, and an error that says what was awaited.

A call that times out is cancelled. Its request may still be carried out by the region; the error of
a publish says so (`maybe_taken`).
"""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from types import TracebackType
from typing import Final, NamedTuple

from surecast.errors import TimedOut, UsageError

__all__ = ["Deadline", "Timeout", "deadline_of", "seconds_of", "timed_out", "within"]

Timeout = float | timedelta | None  # None: wait for as long as it takes

FOREVER_S: Final = 1e9  # thirty years; a longer timeout means no limit


class Deadline(NamedTuple):
    """When a wait ends, by the clock of the event loop, and how long it was to last."""

    at: float
    seconds: float


def seconds_of(timeout: Timeout) -> float | None:
    """A timeout in seconds; None if there is no limit. Raises UsageError if it is not valid."""
    if timeout is None:
        return None
    seconds = math.nan
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, int | float) and not isinstance(timeout, bool):
        seconds = math.inf if timeout > FOREVER_S else float(timeout)
    if not seconds >= 0:
        raise UsageError(
            f"timeout is a number of seconds from 0 on, a timedelta or None, not {timeout!r}"
        )
    return None if seconds > FOREVER_S else seconds


def deadline_of(seconds: float | None) -> Deadline | None:
    """The end of a wait that begins now."""
    if seconds is None:
        return None
    return Deadline(asyncio.get_running_loop().time() + seconds, seconds)


def timed_out(seconds: float, what: str, *, maybe_taken: bool = False) -> TimedOut:
    """The error of a timeout; `what`, which follows "for", is what was waited for."""
    return TimedOut(f"waited {seconds:g} s for {what}", maybe_taken=maybe_taken)


class within:
    """`async with within(timeout, "the region to open stream 'a'"): …` raises TimedOut."""

    def __init__(self, timeout: Timeout, what: str, *, maybe_taken: bool = False) -> None:
        self.seconds = seconds_of(timeout)
        self.what = what  # may be changed while it waits
        self.maybe_taken = maybe_taken
        self._scope: asyncio.Timeout | None = None

    async def __aenter__(self) -> within:
        if self.seconds is not None:
            self._scope = asyncio.timeout(self.seconds)
            await self._scope.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._scope is None or self.seconds is None:
            return
        try:
            await self._scope.__aexit__(kind, problem, trace)
        except TimeoutError:  # of this scope; a TimeoutError from the block itself is not caught
            raise timed_out(self.seconds, self.what, maybe_taken=self.maybe_taken) from None
