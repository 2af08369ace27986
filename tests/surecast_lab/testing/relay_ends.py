"""Helpers for tests of the relay: connections through it, and the event loop of a test."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from surecast_lab.testing.relay import Relay, Shape

HERE = "127.0.0.1"
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in an event loop of its own; an exception in a callback fails it, too."""
    problems: list[dict[str, Any]] = []

    async def watched() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        await asyncio.wait_for(test(), 60)

    asyncio.run(watched())
    assert problems == []


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


class Target:
    """A TCP server; `came` has its accepted connections."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[Ends] = asyncio.Queue()

    async def __aenter__(self) -> "Target":
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.came.put_nowait((reader, writer))

        self.server = await asyncio.start_server(accept, HERE, 0)
        self.address: tuple[str, int] = self.server.sockets[0].getsockname()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def join(self, address: tuple[str, int]) -> tuple[Ends, Ends]:
        """Both ends of a new connection to `address`."""
        near = await asyncio.open_connection(*address)
        return near, await self.came.get()


async def first_byte(address: tuple[str, int]) -> bytes:
    reader, _ = await asyncio.open_connection(*address)
    return await reader.read(1)


@asynccontextmanager
async def joined(relay: Relay, **how: Any) -> AsyncIterator[tuple[Ends, Ends]]:
    """A link called "x" and both ends of a connection through it."""
    async with Target() as target:
        yield await target.join(relay.add("x", target.address, **how))


async def say(frm: Ends, to: Ends, words: bytes) -> None:
    frm[1].write(words)
    assert await to[0].readexactly(len(words)) == words


async def round_trips(relay: Relay, count: int, delay_ns: int = 0) -> None:
    """Make round trips over a healthy link, so that the tested link has time to fail."""
    async with Target() as target:
        shape = Shape(delay_ns=delay_ns)
        name = f"healthy{len(relay.addresses)}"
        near, far = await target.join(relay.add(name, target.address, forward=shape, back=shape))
        for _ in range(count):
            await say(near, far, b"ping")
            await say(far, near, b"pong")


def silent(end: Ends) -> bool:
    """Whether nothing arrived: no bytes, no end, no reset."""
    reader: Any = end[0]
    return not reader._buffer and not reader.at_eof() and reader.exception() is None


def reset_by(end: Ends) -> None:
    sock = end[1].get_extra_info("socket")
    if sock.fileno() < 0:
        return  # closed already by the other side
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end[1].transport.abort()
