"""Client processes of a run: started, talked to, and gone when it ends.

A child says how far it is as JSON objects on stdout, a line each, which `listen` merges into its
`state`; it is told what to do by lines on its stdin; its stderr is a log file. It ends with its
stdin, so none outlives the run, however that ends. Each is in a session of its own: a Ctrl-C in the
terminal is for the run alone.
"""

import json
import os
import selectors
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from surecast.errors import SurecastError

__all__ = ["Child", "ChildEnded", "Children"]

READ_BYTES = 1 << 16
END_S = 10.0  # what a child whose stdin has ended may take; then it is killed
LAST_WORDS = 1500  # characters of a log


class ChildEnded(SurecastError):
    """A process ended that should not have; the message has the end of its log."""


class Child:
    """One process. `Children` makes and ends it."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self.state: dict[str, Any] = {}
        self._unread = b""
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def tell(self, **words: Any) -> None:
        try:
            self.stdin.write(json.dumps(words).encode() + b"\n")
            self.stdin.flush()
        except OSError:
            raise ChildEnded(self.last_words()) from None

    def hear(self) -> bool:
        """Take what it has said; False: it says no more."""
        data = os.read(self.stdout.fileno(), READ_BYTES)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self.state.update(json.loads(line))
        return bool(data)

    def last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        said = self.log.read_text(errors="replace")[-LAST_WORDS:].strip()
        code = self.process.returncode
        return f"{self.name} ended, and was not asked to (exit code {code}):\n{said or '(silent)'}"


class Children:
    """All client processes of a run; a context that ends them."""

    def __init__(self) -> None:
        self.all: dict[str, Child] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "Children":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        children = list(self.all.values())
        for child in children:
            with suppress(OSError):
                child.stdin.close()
        for child in children:
            try:
                child.process.wait(END_S if error is None else 0.5)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            child.stdout.close()
        self._selector.close()

    def start(self, name: str, command: list[str], log: Path) -> Child:
        child = self.all[name] = Child(name, command, log)
        self._selector.register(child.stdout, selectors.EVENT_READ, child)
        return child

    def listen(self, seconds: float) -> None:
        """Take what they say for a while; raises ChildEnded if one has ended unfinished."""
        for key, _ in self._selector.select(seconds):
            child: Child = key.data
            if not child.hear():
                self._selector.unregister(child.stdout)
                if not child.state.get("saved"):
                    raise ChildEnded(child.last_words())

    def every(self, word: str) -> bool:
        """Has each of them said this?"""
        return all(child.state.get(word) for child in self.all.values())
