"""Implements the argument `timeout=` of the client's calls: a number of seconds or a timedelta.

A call that takes longer raises TimedOut, with a message that says what it waited for. The region
may still carry out the request. If the call was a publish, `maybe_taken` of the error says whether
the events may still be published.
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
    """The end of a wait that has a limit."""

    at: float  # the end, by the clock of the event loop
    seconds: float  # the length of the wait, for the error message


def seconds_of(timeout: Timeout) -> float | None:
    """A timeout in seconds; None: there is no limit. Raises UsageError if it is not valid."""
    if timeout is None:
        return None
    seconds = math.nan  # stays NaN, which is refused below, if `timeout` has another type
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
    """The end of a wait of this length that begins now; None: the wait has no limit."""
    if seconds is None:
        return None
    return Deadline(asyncio.get_running_loop().time() + seconds, seconds)


def timed_out(seconds: float, what: str, *, maybe_taken: bool = False) -> TimedOut:
    """The error after a timeout. `what` is what the call waited for; in the message it follows the
    word "for"."""
    return TimedOut(f"waited {seconds:g} s for {what}", maybe_taken=maybe_taken)


class within:
    """`async with within(timeout, "the region to open stream 'a'"): …` limits the time of a block.

    If the block takes longer than `timeout`, it is cancelled and TimedOut is raised.
    """

    def __init__(self, timeout: Timeout, what: str, *, maybe_taken: bool = False) -> None:
        self.seconds = seconds_of(timeout)
        self.what = what  # what the block waits for; may be changed inside the block
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
        except TimeoutError:  # raised by this scope; those of the block itself are not caught here
            raise timed_out(self.seconds, self.what, maybe_taken=self.maybe_taken) from None
