"""Worker processes, from outside: start them, ask them, end them.

    with Crew(folder) as crew:
        crew.start("east", "server", document)
        crew.ready()
        crew.ask("east", "look")

A worker that ends by itself is a fault: the next question raises what its log says last.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from surecast.bench import worker
from surecast.errors import SurecastError

__all__ = ["Crew"]

ANSWER_S = 60.0  # a worker that does not answer for so long is broken
END_S = 30.0  # ... and one that does not end is killed
LOOK_S = 0.02  # how often a condition is looked at
LAST_WORDS = 3_000  # characters of a log that are shown
PRELOAD = ["surecast.bench.worker", "surecast.bench.roles", "surecast.bench.client_roles"]


class Crew:
    """Workers by name. They end when this does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, Any] = {}
        self._pipes: dict[str, Any] = {}
        self._ready: set[str] = set()
        # Forked from a server that has everything imported: milliseconds each, and no compiled
        # kernel is loaded twice.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOAD)

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, name: str, role: str, *args: Any) -> None:
        """Begin; `ready` waits for all that have begun."""
        if name in self.processes:
            raise SurecastError(f"there is a worker {name!r} already")
        self._pipes[name], theirs = self._context.Pipe()
        self.processes[name] = self._context.Process(
            target=worker.run, args=(role, args, str(self._log(name)), theirs), daemon=True
        )
        self.processes[name].start()
        theirs.close()

    def ready(self) -> None:
        for name in self.processes:
            if name not in self._ready:
                self._hear(name)
                self._ready.add(name)

    def ask(self, name: str, verb: str, *args: Any) -> Any:
        self._say(name, verb, *args)
        return self._hear(name)

    def ask_all(self, names: Iterable[str], verb: str, *args: Any) -> dict[str, Any]:
        """All at once, so that the answers are of about one moment."""
        asked = list(names)
        for name in asked:
            self._say(name, verb, *args)
        return {name: self._hear(name) for name in asked}

    def wait(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        limit = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > limit:
                raise SurecastError(
                    f"{what}: waited {within_s:g} s in vain; the workers' logs are in {self.folder}"
                )
            time.sleep(LOOK_S)

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self.processes.items()}

    def end(self, names: Iterable[str]) -> None:
        """Orderly: a worker ends when its pipe does."""
        ended = list(names)
        for name in ended:
            self._pipes.pop(name).close()
        for name in ended:
            process = self.processes.pop(name)
            self._ready.discard(name)
            process.join(END_S)
            if process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                process.join()

    def close(self) -> None:
        self.end(list(self.processes))

    # ------------------------------------------------------------ inside

    def _log(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '.')}.log"

    def _say(self, name: str, verb: str, *args: Any) -> None:
        try:
            self._pipes[name].send((verb, *args))
        except OSError:
            raise SurecastError(self._last_words(name)) from None

    def _hear(self, name: str) -> Any:
        try:
            if self._pipes[name].poll(ANSWER_S):
                return self._pipes[name].recv()
        except (EOFError, OSError):
            raise SurecastError(self._last_words(name)) from None
        raise SurecastError(f"worker {name} has not answered for {ANSWER_S:g} s")

    def _last_words(self, name: str) -> str:
        self.processes[name].join(END_S)
        path = self._log(name)
        said = path.read_text(errors="replace")[-LAST_WORDS:] if path.exists() else ""
        code = self.processes[name].exitcode
        return f"worker {name} has ended, exit code {code}; the end of {path}:\n{said}"
