"""Shows progress on stderr: a bar on a terminal, otherwise a plain line every few seconds."""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from surecast.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_EVERY_S = 5.0  # without a terminal: time between two lines


def writable(folder: Path) -> Path:
    """Create the folder, test that files can be written to it, and return it.

    Subcommands call it before long work, so that they do not fail at the end of it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".surecast-writes-here"
        probe.touch()
        probe.unlink()
    except OSError as error:
        why = f"cannot write to {folder}: {error.strerror}; choose another --out"
        raise UsageError(why) from None
    return folder


class Bar:
    """`with Bar("sim sprinkler", total) as bar: ... bar.update(done, "0 violations")`."""

    def __init__(
        self,
        title: str,
        total: float,
        stream: TextIO | None = None,
        line_every_s: float = LINE_EVERY_S,
    ) -> None:
        """`total` is the value of `done` at the end; 0: not known. `stream` is stderr if None."""
        self.title = title
        self.total = total
        self.line_every_s = line_every_s
        self.stream = stream if stream is not None else sys.stderr
        self._rich: Progress | None = None
        self._line_at = 0.0  # the time (monotonic) before which no further plain line is printed
        self._last = ""  # the last plain line
        self._ended = False  # whether a plain line has shown that all is done

    def __enter__(self) -> "Bar":
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._rich = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=Console(file=self.stream),
                transient=True,
            )
            self._task = self._rich.add_task(self.title, total=self.total, note="")
            self._rich.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._rich is not None:
            self._rich.stop()

    def update(self, done: float, note: str = "", total: float | None = None) -> None:
        """Show that `done` of `total` is done; a new `total` replaces the old."""
        self.total = total if total is not None else self.total
        if self._rich is not None:
            self._rich.update(self._task, completed=done, total=self.total, note=note)
            return
        now = time.monotonic()
        is_end = bool(self.total) and done >= self.total
        if now < self._line_at and (not is_end or self._ended):
            return
        # The first line that shows the end is printed at once, without waiting for `_line_at`.
        self._ended = is_end
        self._line_at = now + self.line_every_s
        count = f"{_count(done)}/{_count(self.total)}" if self.total else _count(done)
        line = f"{self.title}: {count}" + (f", {note}" if note else "")
        if line != self._last:
            self._last = line
            print(line, file=self.stream, flush=True)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self._rich is not None:
            self._rich.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self.stream, flush=True)


def _count(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:g}"
