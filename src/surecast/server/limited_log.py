"""A log for problems caused by clients: one line per kind, then a count every few seconds.

A client that sends bad requests in a loop must not fill the disk that holds the log.
"""

import asyncio
import logging

__all__ = ["LimitedLog", "printable"]

KINDS_MAX = 100  # kinds counted separately; more are counted together
TEXT_MAX = 300  # characters of a line


class LimitedLog:
    """Must be used in the event loop's thread."""

    def __init__(self, log: logging.Logger, name: str, every_ns: int) -> None:
        self.log = log
        self.name = name
        self.every_s = every_ns / 1e9
        self._held: dict[str, str] = {}  # kind → the last line that was not logged
        self._counts: dict[str, int] = {}  # kind → lines not logged since the last logged one
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def tell(self, kind: str, text: str, problem: BaseException | None = None) -> None:
        """Log `text` with the traceback of `problem`; only count it if its kind was logged within
        the last `every_ns`."""
        if kind not in self._counts and len(self._counts) >= KINDS_MAX:
            kind = "other"
        if kind in self._counts:
            self._counts[kind] += 1
            self._held[kind] = text
            return
        self._counts[kind] = 0
        level = logging.WARNING if problem is None else logging.ERROR
        self.log.log(level, "%s: HTTP: %s", self.name, printable(text), exc_info=problem)
        self._wait(kind)

    def close(self) -> None:
        """Log the remaining counts."""
        for kind in list(self._timers):
            self._timers.pop(kind).cancel()
            self._log_count(kind)
        self._counts.clear()

    def _wait(self, kind: str) -> None:
        loop = asyncio.get_running_loop()
        self._timers[kind] = loop.call_later(self.every_s, self._on_timer, kind)

    def _on_timer(self, kind: str) -> None:
        del self._timers[kind]
        if self._log_count(kind):
            self._counts[kind] = 0
            self._wait(kind)
        else:
            del self._counts[kind]

    def _log_count(self, kind: str) -> bool:
        count = self._counts[kind]
        if count:
            last = printable(self._held.pop(kind))
            text = f"{count} more of this kind in the last {self.every_s:g} s: {last}"
            self.log.warning("%s: HTTP: %s", self.name, text)
        return bool(count)


def printable(text: str) -> str:
    """One line without control characters, cut to a bounded length."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:TEXT_MAX])
    return shown + ("..." if len(text) > TEXT_MAX else "")
