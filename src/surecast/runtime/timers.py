"""The timers of a node's state machine, and the detection of changes of the wall clock.

Each timer has one scheduled call in the event loop. Many timers are time-outs that are postponed
with each message. Postponing changes only a number: the scheduled call stays as it is. If the call
then comes before the timer is due, it is scheduled for the new time.
"""

import time
from asyncio import AbstractEventLoop, Handle
from collections.abc import Callable

from surecast.core.types import SECOND, ClockSet, TimerFired, TimerKey

__all__ = ["ClockWatch", "Timers"]


class _Timer:
    """A timer that is set, and its scheduled call."""

    __slots__ = ("at_ns", "call_ns", "handle")

    def __init__(self, at_ns: int, handle: Handle) -> None:
        self.at_ns = at_ns  # when the timer is due
        self.call_ns = at_ns  # when the event loop will call `_due`
        self.handle = handle  # of that call


class Timers:
    """The timers of one state machine, by key. When a timer is due, `fire` is called with the
    input for the machine."""

    def __init__(self, loop: AbstractEventLoop, fire: Callable[[TimerFired], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._timers: dict[TimerKey, _Timer] = {}

    def set(self, key: TimerKey, at_ns: int) -> None:
        """Set a timer; a timer with the same key is replaced. `at_ns` is a monotonic time."""
        timer = self._timers.get(key)
        if timer is not None:
            if at_ns >= timer.call_ns:
                timer.at_ns = at_ns  # `_due` will schedule the call again
                return
            timer.handle.cancel()
        self._timers[key] = _Timer(at_ns, self._call(key, at_ns))

    def cancel(self, key: TimerKey) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.handle.cancel()

    def cancel_all(self) -> None:
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()

    def _call(self, key: TimerKey, at_ns: int) -> Handle:
        delay_ns = at_ns - time.monotonic_ns()
        if delay_ns <= 0:
            return self._loop.call_soon(self._due, key)
        return self._loop.call_later(delay_ns / SECOND, self._due, key)

    def _due(self, key: TimerKey) -> None:
        timer = self._timers[key]
        # Either the timer was postponed, or uvloop has called too early, because it counts in
        # milliseconds.
        if time.monotonic_ns() < timer.at_ns:
            timer.call_ns = timer.at_ns
            timer.handle = self._call(key, timer.at_ns)
            return
        del self._timers[key]
        self._fire(TimerFired(key))


class ClockWatch:
    """Detects when the wall clock has moved against the monotonic clock, at once or gradually."""

    def __init__(self, jump_ns: int, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self._jump_ns = jump_ns
        self._wall_ns = wall_ns
        # Wall clock minus monotonic clock, when the machine last got the time of the wall clock.
        self._offset_ns = 0

    def start(self) -> int:
        """The time of the wall clock, for the machine's Start."""
        wall_ns = self._wall_ns()
        self._offset_ns = wall_ns - time.monotonic_ns()
        return wall_ns

    def look(self) -> ClockSet | None:
        """A ClockSet if the wall clock has changed by `jump_ns` or more since the last ClockSet,
        else None."""
        wall_ns = self._wall_ns()
        offset_ns = wall_ns - time.monotonic_ns()
        if abs(offset_ns - self._offset_ns) < self._jump_ns:
            return None
        self._offset_ns = offset_ns
        return ClockSet(wall_ns)
