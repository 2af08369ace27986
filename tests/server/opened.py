"""A region of one replica in this process, with an HTTP port."""

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from surecast.server.config import build
from surecast.server.http import HttpPort, Pages
from surecast.server.region import RegionServer
from surecast.server.status import not_ready
from tests.ports import free_ports
from tests.server.processes import ask, get

__all__ = ["Open", "Talk", "run", "two_replicas", "until"]


async def until(what: Callable[[], Any]) -> None:
    while not what():
        await asyncio.sleep(0.01)


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())


class Talk:
    """One connection, for requests of any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, Any]:
        """Status and body of the next answer; status 0 if the connection was closed without one."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode().lower().split("\r\n")
            fields = dict(line.split(": ", 1) for line in lines[1:] if line)
            body = await self.reader.readexactly(int(fields["content-length"]))
            is_json = "json" in fields["content-type"]
            return int(lines[0].split()[1]), json.loads(body) if is_json else body
        return 0, None

    async def is_closed(self) -> bool:
        """Wait for the other side to close; skip what it sends before."""
        with suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass
        return True

    def reset(self) -> None:
        """Close with a TCP reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Open:
    """A region of one replica with an HTTP port; started as a context manager."""

    def __init__(
        self,
        http: dict[str, Any] | None = None,
        streams: dict[str, Any] | None = None,
        **node: Any,
    ) -> None:
        node = {
            "name": "e-1", "region": "e", "data_dir": "",
            "listen": "127.0.0.1:0", "http": "127.0.0.1:0", **node,
        }  # fmt: skip
        regions = {"e": {"replicas": {"e-1": "127.0.0.1:0"}}}
        limits = {"body_bytes_max": 1000, "streams_max": 2, **(http or {})}
        sections = {"node": node, "regions": regions, "http": limits, "streams": streams or {}}
        self.server = RegionServer(build(sections))
        self.port = HttpPort(self.server)

    async def __aenter__(self) -> "Open":
        await self.server.start()
        await self.port.start()
        await until(lambda: not not_ready(self.server))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.drain()
        await self.port.stop()

    async def get(self, path: str, token: str = "", **headers: str) -> tuple[int, Any]:
        return await asyncio.to_thread(get, self.where(path), token, **headers)

    async def post(
        self, path: str, body: bytes | None, token: str = "", **headers: str
    ) -> tuple[int, Any]:
        return await asyncio.to_thread(ask, self.where(path), body, token, **headers)

    def streams(self) -> list[Any]:
        return list(self.server.streams.streams.values())

    async def talk(self, host: str = "127.0.0.1") -> Talk:
        """A connection from this address."""
        assert self.port.address is not None
        return Talk(*await asyncio.open_connection(*self.port.address, local_addr=(host, 0)))

    async def said(self, data: bytes) -> tuple[int, Any]:
        """Send these bytes over a new connection; returns status and body of the answer."""
        talk = await self.talk()
        talk.send(data)
        return await talk.answer()

    def pages(self) -> Pages:
        pages = self.port.app.state.pages
        assert isinstance(pages, Pages)
        return pages

    def requests(self) -> Counter[str]:
        """The number of requests in progress, by address."""
        return self.pages().requests

    def where(self, path: str) -> str:
        assert self.port.address is not None
        return f"http://127.0.0.1:{self.port.address[1]}{path}"


@asynccontextmanager
async def two_replicas(**chain: Any) -> AsyncIterator[list[RegionServer]]:
    """Head and tail of one region, with a witness; all in memory."""
    ports = free_ports(3)
    places = [f"127.0.0.1:{port}" for port in ports]
    region = {"replicas": {"e-1": places[0], "e-2": places[1]}, "witness": places[2]}
    nodes = [
        {"name": "e-1", "listen": places[0]},
        {"name": "e-2", "listen": places[1]},
        {"role": "witness", "listen": places[2]},
    ]
    servers = []
    async with AsyncExitStack() as stack:
        for node in nodes:
            mine = {"region": "e", "data_dir": "", "http": "", **node}
            server = RegionServer(build({"node": mine, "regions": {"e": region}, "chain": chain}))
            await server.start()
            stack.push_async_callback(server.stop)
            servers.append(server)
        await until(lambda: not any(map(not_ready, servers)))
        yield sorted(servers[:2], key=lambda server: not server.chain().is_head)
