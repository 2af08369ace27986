"""A region of one server in a thread, with an HTTP port and small files, that can be restarted.

with Served(tmp_path / "data") as region:
    region.publish("orders", [b"1", b"2"])
    spark.read.format("surecast").options(url=region.url, subscribe="orders").load()
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from surecast import sync
from surecast.client.sync import Loop
from surecast.columns.rules import Policy
from surecast.core.streams import Forfeit
from surecast.core.types import Command
from surecast.server.config import build
from surecast.server.files import files_of
from surecast.server.http import HttpPort
from surecast.server.region import RegionServer
from surecast.server.status import not_ready
from tests.ports import free_ports

__all__ = ["Served", "wait_for"]

WAIT_S = 60.0


def wait_for(what: Callable[[], Any], why: str = "") -> Any:
    """Call `what` until its result is true; returns the result. Fails after a minute."""
    deadline = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < deadline, f"waited in vain: {why}"
        time.sleep(0.02)
    return found


class Served:
    """The region: a context manager. Tests may stop, start, wipe, copy, restore and damage it."""

    def __init__(
        self,
        data: Path | None,
        *,
        token: str = "",
        http: bool = True,
        journal: int = 1 << 16,
        advertised: str = "",  # the address it reports to clients, if not its own
    ) -> None:
        self.data = data
        data_port, http_port = free_ports(2)
        self.url = f"surecast://127.0.0.1:{data_port}"
        self.token = token
        listen = f"127.0.0.1:{data_port}"
        self.config = build(
            {
                "node": {
                    "name": "local-1",
                    "region": "local",
                    "data_dir": "" if data is None else str(data),
                    "listen": listen,
                    "http": f"127.0.0.1:{http_port}" if http else "",
                    "token": token,
                },
                "regions": {"local": {"replicas": {"local-1": advertised or listen}}},
                "storage": {
                    "journal_bytes_max": journal,
                    "inline_bytes_max": min(journal, 1 << 14),
                    "run_bytes_min": 0,
                },
                "streams": {"compact_ns": 100_000_000, "piece_rows_max": 1 << 12},
            }
        )
        self.server: RegionServer | None = None
        self._loop = Loop()
        self._http: HttpPort | None = None

    def __enter__(self) -> Served:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.stop()

    def start(self) -> None:
        self._loop.call(self._start())

    async def _start(self) -> None:
        server = RegionServer(self.config)
        await server.start()
        self.server = server
        if self.config.node.http:
            self._http = HttpPort(server)
            await self._http.start()
        while not_ready(server):
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        if self.server is not None:
            self._loop.call(self._stop())

    async def _stop(self) -> None:
        assert self.server is not None
        await self.server.drain()
        if self._http is not None:
            await self._http.stop()
        self.server = None

    def wipe(self) -> None:
        """Restart it with an empty data folder."""
        assert self.data is not None
        self.stop()
        shutil.rmtree(self.data)
        self.start()

    def back_up(self, at: Path) -> None:
        """Copy its data folder to `at`."""
        assert self.data is not None
        self.stop()
        shutil.copytree(self.data, at)
        self.start()

    def restore(self, at: Path) -> None:
        """Replace its data folder by the copy at `at`."""
        assert self.data is not None
        self.stop()
        shutil.rmtree(self.data)
        shutil.copytree(at, self.data)
        self.start()

    def damage(self, name: str) -> list[tuple[int, int]]:
        """Flip a bit of its first segment; returns the ranges of a stream that it cannot read."""
        assert self.data is not None
        wait_for(lambda: self.segments() > 0, "nothing left the journal")
        self.stop()
        path = min((self.data / "log").glob("segment-*"))
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 4]))
        self.start()
        assert self.server is not None
        service = self.server.streams
        wait_for(lambda: service.named(name), "the stream is back")
        info = service.named(name)
        assert info is not None
        return service.disk.holes(info.stream_id)

    def forfeit(self, name: str, lo: int, hi: int, why: str) -> None:
        """Declare these positions lost, like a layer above the stream service."""
        assert self.server is not None
        replica, info = self.server.replica, self.server.streams.named(name)
        assert replica is not None
        assert info is not None
        command = Command("streams", Forfeit(info.stream_id, lo, hi, why))

        async def give() -> None:
            replica.give(command)

        self._loop.call(give())

    # ------------------------------------------------------------ its streams

    def client(self) -> sync.Client:
        return sync.connect(self.url, token=self.token)

    def publish(
        self,
        name: str,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None = None,
        tags: Sequence[bytes | None] | None = None,
        retain: Policy | None = None,
    ) -> None:
        with self.client() as client:
            stream = client.stream(name, retain=retain)
            if values:
                stream.publish_many(list(values), keys=keys, tags=tags)

    def force_new_stream(self, name: str) -> bytes:
        """Give up the history of a stream, like an operator; returns its old id."""
        assert self.server is not None
        by_name = self.server.streams.directory.by_name
        before = by_name[name].stream_id
        query = f"yes-i-know-what-is-lost=true&stream={name}"
        url = f"http://{self.config.node.http}/v1/admin/force-new-stream?{query}"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        urlopen(Request(url, b"", headers)).close()
        wait_for(lambda: by_name[name].stream_id != before, "no new stream")
        return before

    def segments(self) -> int:
        """The number of segment files, which hold batches moved out of the journal."""
        assert self.data is not None
        return len(list((self.data / "log").glob("segment-*")))

    def positions_in_files(self, name: str) -> int:
        """How many positions of a stream a task can read from segment files now."""
        assert self.server is not None
        server = self.server

        async def count() -> int:
            answer = files_of(server, name, 1, 1 << 60)
            return 0 if answer is None else sum(e.hi - e.lo for e in answer.extents)

        return int(self._loop.call(count()))

    def seen_by_retention(self, name: str) -> int:
        """The position up to which retention has processed a stream."""
        assert self.server is not None
        service = self.server.streams
        info = service.named(name)
        return 1 if info is None else service.streams[info.stream_id].index.end
