"""The log of the HTTP port for problems caused by clients, with a bound on its lines.

The first problem of a kind is logged at once. Further ones of that kind are counted, and the count
is logged every few seconds. So a client that sends bad requests in a loop cannot fill the disk with
log lines.
"""

import asyncio
import logging

__all__ = ["LimitedLog", "printable"]

KINDS_MAX = 100  # kinds counted separately; more are counted together
TEXT_MAX = 300  # longer texts are cut to this number of characters


class LimitedLog:
    """A logger for problems, by kind (see the module). Must be used in the event loop's thread."""

    def __init__(self, log: logging.Logger, name: str, every_ns: int) -> None:
        """`name` is the node's name, with which each line begins."""
        self.log = log
        self.name = name
        self.every_s = every_ns / 1e9
        self._held: dict[str, str] = {}  # kind → the last text that was only counted
        self._counts: dict[str, int] = {}  # kind → texts counted since the kind was last logged
        self._timers: dict[str, asyncio.TimerHandle] = {}  # kind → the timer that logs its count

    def tell(self, kind: str, text: str, problem: BaseException | None = None) -> None:
        """Log `text`, with the traceback of `problem` if there is one. Only count it if its kind
        was logged within the last `every_ns`."""
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
        """Log the count of a kind. If it is 0, forget the kind: its next text is logged at once."""
        del self._timers[kind]
        if self._log_count(kind):
            self._counts[kind] = 0
            self._wait(kind)
        else:
            del self._counts[kind]

    def _log_count(self, kind: str) -> bool:
        """Log how many texts of this kind were counted; False if there were none."""
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
