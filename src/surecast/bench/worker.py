"""A worker process, from inside: one role, steered over a pipe, which it does not outlive."""

import asyncio
import logging
import os
import signal
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Protocol

from surecast.runtime.run import run as run_loop

__all__ = ["ROLES", "Role", "run"]

# Imported on use: a process has one role.
ROLES = {
    "server": "surecast.bench.roles:Server",
    "driver": "surecast.bench.roles:Driver",
    "reader": "surecast.bench.roles:Reader",
    "publisher": "surecast.bench.client_roles:Publisher",
    "subscriber": "surecast.bench.client_roles:Subscriber",
    "crowd": "surecast.bench.client_roles:Crowd",
    "nats-source": "surecast.bench.nats:Source",
    "nats-sink": "surecast.bench.nats:Sink",
    "jetstream": "surecast.bench.jetstream:Pusher",
}


class Role(Protocol):
    """Its public methods are what may be asked of it."""

    failed: asyncio.Future[None] | None  # done if it cannot go on

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def run(role: str, args: tuple[Any, ...], log: str, control: Connection) -> None:
    """Live until whoever started us is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    sys.stderr = open(log, "a", buffering=1)  # noqa: SIM115  for as long as we live
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(message)s")
    module, _, name = ROLES[role].partition(":")
    run_loop(_live(getattr(import_module(module), name)(*args), control))


async def _live(role: Role, control: Connection) -> None:
    await role.start()
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def on_command() -> None:
        os.set_blocking(control.fileno(), True)  # the loop makes it what it likes
        try:
            verb, *args = control.recv()
            control.send(getattr(role, verb)(*args))
        except (EOFError, OSError):
            over.set_result(None)
        except Exception as problem:
            over.set_exception(problem)
        if over.done():
            loop.remove_reader(control.fileno())

    loop.add_reader(control.fileno(), on_command)
    control.send("ready")
    ends = [over] if role.failed is None else [over, role.failed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(control.fileno())
    await role.stop()
    for end in ends:
        if end.done():
            end.result()  # what went wrong ends the process, and stands in its log
