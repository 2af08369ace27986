"""Measures NATS for comparison, through its raw protocol, if `nats-server` is installed.

Publisher and subscriber do as little work as possible, so that the result shows the best case of
the server: the publisher (`Source`) prepares its PUB lines in advance, and the subscriber (`Sink`)
counts bytes instead of messages, because all messages have the same size.
"""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from surecast.errors import SurecastError
from surecast_lab.bench.client_roles import STAMP, TURN_S
from surecast_lab.testing.ports import HOST, free_ports
from surecast_lab.testing.workers import Workers

__all__ = [
    "MISSING",
    "PING",
    "PONG",
    "START_S",
    "Sink",
    "Source",
    "connect",
    "fanout",
    "installed",
    "latency",
    "server",
]

MISSING = (
    "NATS WAS NOT MEASURED: there is no nats-server on this machine. Install it (apt-get install "
    "nats-server) for the ratio in the same run."
)
SUBJECT = b"bench"
START_S = 10.0
WAIT_S = 120.0
CHUNK = 1_000  # messages joined into one write
PING, PONG = b"PING\r\n", b"PONG\r\n"


def installed() -> str | None:
    return shutil.which("nats-server")


@contextmanager
def server(folder: Path, *flags: str) -> Iterator[int]:
    """A nats-server on loopback; yields its port."""
    program = installed()
    assert program is not None
    (port,) = free_ports(1)
    words = [program, "-a", HOST, "-p", str(port), "-l", str(folder / "nats.log"), *flags]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection((HOST, port), 1).close()
                break
            except OSError:
                if time.monotonic() > limit or process.poll() is not None:
                    raise SurecastError(
                        f"nats-server does not start: see {folder}/nats.log"
                    ) from None
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(START_S)


def fanout(folder: Path, subscribers: int, events: int, nbytes: int) -> float | None:
    """Events delivered per second, summed over all subscribers; None if NATS is not installed."""
    if installed() is None:
        return None
    with server(folder) as port, Workers(folder) as workers:
        sinks = [f"nats-sink-{number}" for number in range(subscribers)]
        for sink in sinks:
            workers.start(sink, Sink, port, nbytes, False)
        workers.start("nats-source", Source, port)
        workers.ready()
        workers.ask("nats-source", "blast", events, nbytes)
        workers.wait(
            lambda: all(
                look["received"] >= events for look in workers.ask_all(sinks, "status").values()
            ),
            WAIT_S, "NATS delivers everything",
        )  # fmt: skip
        began = workers.ask("nats-source", "status")["began_at"]
        ended = max(look["at"] for look in workers.ask_all(sinks, "status").values())
        return float(subscribers * events / (ended - began))


def latency(folder: Path, rate: float, count: int) -> list[int] | None:
    """Nanoseconds from publish to delivery of each event; None if NATS is not installed."""
    if installed() is None:
        return None
    with server(folder) as port, Workers(folder) as workers:
        workers.start("nats-sink", Sink, port, STAMP.size, True)
        workers.start("nats-source", Source, port)
        workers.ready()
        workers.ask("nats-source", "paced", rate, count)
        workers.wait(
            lambda: workers.ask("nats-sink", "status")["received"] >= count,
            WAIT_S, "NATS delivers everything",
        )  # fmt: skip
        found: list[int] = workers.ask("nats-sink", "results")
        return found


# ---------------------------------------------------------------- source and sink


class _Wire(asyncio.Protocol):
    """A connection. After CONNECT and the answer to a PING, received bytes go to `take`."""

    def __init__(self, greeting: bytes, take: Callable[[bytes], None]) -> None:
        self.greeting, self.take = greeting, take
        self.ready = asyncio.get_running_loop().create_future()
        self.writable = asyncio.Event()
        self.writable.set()
        self._before = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self.transport.write(b'CONNECT {"verbose":false}\r\n' + self.greeting + PING)

    def data_received(self, data: bytes) -> None:
        if self.ready.done():
            self.take(data)
            return
        self._before += data
        _, found, rest = self._before.partition(PONG)
        if found:
            self.ready.set_result(None)
            if rest:
                self.take(rest)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()


async def connect(port: int, greeting: bytes, take: Callable[[bytes], None]) -> _Wire:
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(lambda: _Wire(greeting, take), HOST, port)
    await asyncio.wait_for(wire.ready, START_S)
    return wire


class Source:
    """Publishes as fast as possible, or at a rate."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.began_at = 0.0

    async def start(self) -> None:
        self.wire = await connect(self.port, b"", lambda _data: None)

    async def stop(self) -> None:
        self.wire.transport.close()

    def failures(self) -> list[asyncio.Future[None]]:
        return []

    def status(self) -> dict[str, Any]:
        return {"began_at": self.began_at}

    def blast(self, events: int, nbytes: int) -> None:
        self.began_at = time.monotonic()
        self._load = asyncio.create_task(self._blast(events, nbytes))

    def paced(self, rate: float, count: int) -> None:
        self._load = asyncio.create_task(self._paced(rate, count))

    async def _blast(self, events: int, nbytes: int) -> None:
        one = b"PUB %s %d\r\n%s\r\n" % (SUBJECT, nbytes, bytes(nbytes))
        chunk = one * CHUNK
        for _ in range(events // CHUNK):
            await self.wire.writable.wait()
            self.wire.transport.write(chunk)
        self.wire.transport.write(one * (events % CHUNK))

    async def _paced(self, rate: float, count: int) -> None:
        began = time.monotonic_ns()
        head = b"PUB %s %d\r\n" % (SUBJECT, STAMP.size)
        for number in range(count):
            due = began + int(number * 1e9 / rate)
            while time.monotonic_ns() < due:
                await asyncio.sleep(TURN_S)
            stamp = STAMP.pack(time.monotonic_ns(), number)
            self.wire.transport.write(head + stamp + b"\r\n")


class Sink:
    """Counts messages of one size; with `stamped` it records the latency of each."""

    def __init__(self, port: int, nbytes: int, stamped: bool) -> None:
        self.port, self.stamped = port, stamped
        self.head = b"MSG %s 1 %d\r\n" % (SUBJECT, nbytes)
        self.size = len(self.head) + nbytes + 2
        self.nbytes = 0
        self.at = 0.0
        self.taken_ns: list[int] = []
        self._rest = b""

    async def start(self) -> None:
        self.wire = await connect(self.port, b"SUB %s 1\r\n" % SUBJECT, self._take)

    async def stop(self) -> None:
        self.wire.transport.close()

    def failures(self) -> list[asyncio.Future[None]]:
        return []

    def status(self) -> dict[str, Any]:
        return {"received": self.nbytes // self.size, "at": self.at}

    def results(self) -> list[int]:
        return self.taken_ns

    def _take(self, data: bytes) -> None:
        now = time.monotonic_ns()
        self.at = now / 1e9
        if not self.stamped:
            # Messages contain no letter P, so each P is from a PING of the server.
            pings = data.count(b"P")
            self.nbytes += len(data) - pings * len(PING)
            if pings:
                self.wire.transport.write(PONG)
            return
        data = self._rest + data
        at = 0
        while len(data) - at >= len(PING):
            if data.startswith(PING, at):
                self.wire.transport.write(PONG)
                at += len(PING)
                continue
            if len(data) - at < self.size:
                break
            began, _number = STAMP.unpack_from(data, at + len(self.head))
            self.taken_ns.append(now - began)
            self.nbytes += self.size
            at += self.size
        self._rest = data[at:]
