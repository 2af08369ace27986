"""A process that is asked things over a pipe, stopped, killed and started again."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from surecast.errors import SurecastError, UsageError
from surecast.swarm import process
from surecast.swarm.process import ProcessSpec

__all__ = ["Worker", "end"]

ANSWER_S = 60.0  # a live process that does not answer for so long is broken
END_S = 30.0  # ... and one that does not end is killed


class Worker:
    """A process, its pipe, and what it takes to start it again."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self._start()

    def _start(self) -> None:
        self.stopped = False  # by SIGSTOP
        self.killed = False  # by us, so that it is no surprise
        # Forked from a server that has everything imported: milliseconds, and no compiled kernel
        # is loaded twice.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([process.__name__])
        self.control, theirs = context.Pipe()
        self.process = context.Process(target=process.run, args=(self.spec, theirs), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    @property
    def crashed(self) -> bool:
        return not self.killed and not self.alive

    def ready(self) -> None:
        """Wait until it runs; it says so by itself."""
        said = self._hear()
        assert said == "ready", said

    def ask(self, verb: str, *args: Any) -> Any:
        if self.stopped:
            raise UsageError(f"{self.spec.name} is stopped: it cannot answer before `cont`")
        try:
            self.control.send((verb, *args))
        except OSError:
            raise SurecastError(self.last_words()) from None
        return self._hear()

    def _hear(self) -> Any:
        try:
            if self.control.poll(ANSWER_S):
                return self.control.recv()
        except (EOFError, OSError):
            raise SurecastError(self.last_words()) from None
        self.process.kill()  # what it may still say would be taken for another answer
        raise SurecastError(f"no answer for {ANSWER_S:.0f} s, killed: {self.last_words()}")

    def last_words(self) -> str:
        """How it ended, and what it logged last."""
        self.process.join(END_S)
        log = process.log_path(self.spec)
        words = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        return f"{self.spec.name} has ended, exit code {self.process.exitcode}; " + (
            f"{log} ends with:\n{words}" if words else f"nothing in its log, {log}"
        )

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        if self.alive:  # else the number may be another's by now
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def stop(self) -> None:
        self.stopped = True
        self.signal(signal.SIGSTOP)

    def cont(self) -> None:
        self.signal(signal.SIGCONT)
        self.stopped = False

    def kill(self) -> None:
        self.killed = True
        self.process.kill()  # works on a stopped one, too
        self.process.join()
        self.stopped = False

    def restart(self) -> None:
        """Start it again and wait until it is ready."""
        self.begin()
        self.ready()

    def begin(self) -> None:
        if self.alive:
            raise UsageError(f"{self.spec.name} is running: `kill` it before it can start again")
        self.control.close()
        self.spec = msgspec.structs.replace(self.spec, life=self.spec.life + 1)
        self._start()

    def finish(self) -> None:
        """SIGTERM, as a rolling restart does it, and wait for the end."""
        if not self.alive or self.stopped:
            raise UsageError(f"{self.spec.name} does not run: it cannot end in order")
        self.killed = True
        self.signal(signal.SIGTERM)
        self.process.join(END_S)
        if self.process.exitcode != 0:
            self.process.kill()
            raise SurecastError(f"it did not end in order: {self.last_words()}")

    def upgrade(self) -> None:
        """Start what has ended with all protocols there are, and wait until it is ready."""
        self.spec = msgspec.structs.replace(self.spec, without=())
        self.restart()

    def memory_bytes(self) -> int:
        """What it holds in memory of its own, mapped files not counted; 0 if it has ended."""
        try:
            with open(f"/proc/{self.process.pid}/status") as file:
                words = next(line.split() for line in file if line.startswith("RssAnon"))
        except (OSError, StopIteration):
            return 0
        return int(words[1]) << 10


def end(workers: Iterable[Worker]) -> None:
    """End processes, all at once: in order if they can, else by force."""
    workers = list(workers)
    for worker in workers:
        worker.cont()
        worker.control.close()  # it ends when it sees that
    limit = time.monotonic() + END_S
    for worker in workers:
        worker.process.join(max(0.0, limit - time.monotonic()))
        worker.kill()
