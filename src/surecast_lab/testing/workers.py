"""Supervises worker processes: starts them, calls their methods, kills, restarts and ends them.

Benchmarks, the demo and the process swarms use it:

    with Workers(folder) as workers:
        workers.start("east-1", Server, document)  # in the new process: Server(document)
        workers.ready()
        workers.ask("east-1", "look")  # calls its method `look`

A worker process runs a `Service`: an object of any class that can be imported. Its methods are
called over a pipe; each call gets one answer. On SIGTERM, or when the pipe is closed, the worker
stops its service and ends, so no worker outlives its parent. Its stderr is a log file. If a worker
ends by itself, the next call to it, and `wait`, raise an error with the last lines of its log.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from surecast.errors import SurecastError, UsageError
from surecast.runtime.run import run as run_loop

__all__ = ["Service", "Worker", "Workers", "end"]

ANSWER_S = 60.0  # a running worker that does not answer within this time counts as failed
END_S = 30.0  # a worker that does not end within this time is killed
FAILED_END_S = 0.5  # the same, after an error
LOOK_S = 0.02  # how often a condition is checked
LOG_CHARACTERS = 3_000  # length of the end of the log in an error


class Service(Protocol):
    """The object that runs in a worker. Its other methods can be called over the pipe."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def failures(self) -> list[asyncio.Future[None]]:
        """Futures that are done when the service has failed."""
        ...


# ---------------------------------------------------------------- in the parent process


class Worker:
    """One process, the pipe to it, and the arguments to start it again."""

    def __init__(self, folder: Path, name: str, make: Callable[..., Service], *args: Any) -> None:
        self.name, self.make, self.args = name, make, args
        # A name may contain an address: east/c3@127.0.0.1:41234
        self.log = folder / f"{name.partition('@')[0].replace('/', '.')}.log"
        self._start()

    def _start(self) -> None:
        self.started = False
        self.stopped = False  # suspended by `stop` (SIGSTOP)
        self.killed = False  # ended on purpose, by `kill` or `finish`
        # Workers are forked from a server process that has imported their module: this takes
        # milliseconds, and compiled kernels are loaded once.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, self.make.__module__])
        self.control, theirs = context.Pipe()
        job = (self.make, self.args, str(self.log), theirs)
        self.process = context.Process(target=_run, args=job, daemon=True)
        self.process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    @property
    def crashed(self) -> bool:
        return not self.killed and not self.alive

    def ready(self) -> None:
        """Wait until its service has started."""
        answer = self.receive()
        assert answer == "ready", answer
        self.started = True

    def ask(self, verb: str, *args: Any) -> Any:
        self.send(verb, *args)
        return self.receive()

    def send(self, verb: str, *args: Any) -> None:
        if self.stopped:
            raise UsageError(f"{self.name} is stopped: it cannot answer before `cont`")
        try:
            self.control.send((verb, *args))
        except OSError:
            raise SurecastError(self.last_lines()) from None

    def receive(self) -> Any:
        try:
            if self.control.poll(ANSWER_S):
                return self.control.recv()
        except (EOFError, OSError):
            raise SurecastError(self.last_lines()) from None
        self.process.kill()  # a late answer would be mistaken for the answer to the next call
        raise SurecastError(f"no answer for {ANSWER_S:.0f} s, killed: {self.last_lines()}")

    def last_lines(self) -> str:
        """The worker's exit code and the last lines of its log."""
        self.process.join(END_S)
        text = self.log.read_text(errors="replace")[-LOG_CHARACTERS:] if self.log.exists() else ""
        return f"{self.name} has ended, exit code {self.process.exitcode}; " + (
            f"{self.log} ends with:\n{text}" if text else f"its log, {self.log}, is empty"
        )

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        if self.alive:  # otherwise another process may have its pid by now
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
        self.process.kill()  # SIGKILL also ends a suspended process
        self.process.join()
        self.stopped = False

    def finish(self) -> None:
        """Send SIGTERM, and wait for the end."""
        if not self.alive or self.stopped:
            raise UsageError(f"{self.name} is not running, so SIGTERM cannot end it")
        self.killed = True
        self.signal(signal.SIGTERM)
        self.process.join(END_S)
        if self.process.exitcode != 0:
            self.process.kill()
            raise SurecastError(f"SIGTERM did not end it without an error: {self.last_lines()}")

    def begin(self, *args: Any) -> None:
        """Start the worker again, with other arguments if any are given."""
        if self.alive:
            raise UsageError(f"{self.name} is running: `kill` it before it can start again")
        self.control.close()
        self.args = args or self.args
        self._start()

    def memory_bytes(self) -> int:
        """Resident memory without mapped files; 0 if it has ended."""
        try:
            with open(f"/proc/{self.process.pid}/status") as file:
                words = next(line.split() for line in file if line.startswith("RssAnon"))
        except (OSError, StopIteration):
            return 0
        return int(words[1]) << 10


class Workers(dict[str, Worker]):
    """Workers by name, with their logs in `folder`. They end when this context does."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        end(self.values(), END_S if error is None else FAILED_END_S)

    def start(self, name: str, make: Callable[..., Service], *args: Any) -> None:
        """Start a worker; `ready` waits for all workers that were started."""
        if name in self:
            raise SurecastError(f"a worker {name!r} exists already")
        self[name] = Worker(self.folder, name, make, *args)

    def ready(self) -> None:
        for worker in self.values():
            if not (worker.started or worker.killed):
                worker.ready()

    def ask(self, name: str, verb: str, *args: Any) -> Any:
        return self[name].ask(verb, *args)

    def ask_all(self, names: Iterable[str], verb: str, *args: Any) -> dict[str, Any]:
        """Call all workers at once, so that the answers are from about the same moment."""
        asked = list(names)
        for name in asked:
            self[name].send(verb, *args)
        return {name: self[name].receive() for name in asked}

    def check(self) -> None:
        """Raise if a worker has ended by itself."""
        for worker in self.values():
            if worker.crashed:
                raise SurecastError(worker.last_lines())

    def wait(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        limit = time.monotonic() + within_s
        while not condition():
            self.check()
            if time.monotonic() > limit:
                raise SurecastError(
                    f"{what}: not done after {within_s:g} s; the workers' logs are in {self.folder}"
                )
            time.sleep(LOOK_S)

    def pids(self) -> dict[str, int]:
        return {name: worker.process.pid or 0 for name, worker in self.items()}

    def end(self, names: Iterable[str]) -> None:
        """End these workers and remove them."""
        end([self.pop(name) for name in names])

    def close(self) -> None:
        end(self.values())


def end(workers: Iterable[Worker], within_s: float = END_S) -> None:
    """End all workers at the same time: with SIGTERM first, by SIGKILL if that takes too long."""
    workers = list(workers)
    for worker in workers:
        worker.cont()
        worker.control.close()  # the worker ends when its pipe is closed
    limit = time.monotonic() + within_s
    for worker in workers:
        worker.process.join(max(0.0, limit - time.monotonic()))
        worker.kill()


# ---------------------------------------------------------------- in the worker process


def _run(
    make: Callable[..., Service], args: tuple[Any, ...], log: str, control: Connection
) -> None:
    """Run a worker until SIGTERM, or until the parent process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    sys.stderr = open(log, "a", buffering=1)  # noqa: SIM115  open as long as the process lives
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    run_loop(_live(make, args, control))


async def _live(make: Callable[..., Service], args: tuple[Any, ...], control: Connection) -> None:
    service = make(*args)
    await service.start()
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def on_call() -> None:
        os.set_blocking(control.fileno(), True)  # the loop may have changed it
        try:
            verb, *arguments = control.recv()
            control.send(getattr(service, verb)(*arguments))
        except (EOFError, OSError):
            on_end()
        except Exception as problem:
            on_end(problem)

    def on_end(problem: Exception | None = None) -> None:
        loop.remove_reader(control.fileno())
        if over.done():
            return
        if problem is None:
            over.set_result(None)
        else:
            over.set_exception(problem)

    loop.add_reader(control.fileno(), on_call)
    loop.add_signal_handler(signal.SIGTERM, on_end)
    control.send("ready")
    ends = (over, *service.failures())
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(control.fileno())
    async with asyncio.timeout(END_S):  # if the parent has ended, nobody else kills the worker
        await service.stop()
    for end in ends:
        if end.done():
            end.result()  # an error ends the process with a traceback in its log
