"""A test application that reads all streams that match a pattern, and records its deliveries.

Fault tests with real processes use it (`process_cluster.py`). It reads through the public API and
writes to a file, its delivery log. After a restart it reads every stream from its first position,
and records only events after the end of its delivery log. The client library leaves out streams
that its version cannot read and logs a warning; `status` returns these warnings.
"""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from surecast.client.connection import Client
from surecast.client.events import Event
from surecast.core.types import LogId
from surecast_lab.swarm.cursor_app import as_batches, connected
from surecast_lab.swarm.delivery_log import DeliveryLog
from surecast_lab.swarm.session_report import SessionReport, report

__all__ = ["PatternReader"]

WRITE_S = 0.02  # how often deliveries are recorded
WARNINGS_MAX = 1000


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.messages) < WARNINGS_MAX:
            self.messages.append(record.getMessage())


class PatternReader:
    """`args`: url, pattern, mesh."""

    def __init__(self, args: dict[str, Any], delivery_log: Path) -> None:
        self.args = args
        self.delivery_log = DeliveryLog(delivery_log)
        self.client: Client | None = None
        self.ids: dict[str, LogId] = {}
        self.pending: dict[str, list[Event]] = {}
        self.faults: list[str] = []
        self.warnings = _Warnings()
        logging.getLogger("surecast.client").addHandler(self.warnings)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        self.task = asyncio.create_task(self._work())
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self.over.done():
            self.over.set_exception(task.exception() or AssertionError("the reader ended"))

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        if self.client is not None:
            await self.client.close()

    def failures(self) -> list[asyncio.Future[None]]:
        """Futures that are done when the reader has failed (see `testing/workers.py`)."""
        return [self.over]

    async def _work(self) -> None:
        self.client = client = await connected(self.args["url"], self.args["mesh"])
        subscription = client.subscribe(self.args["pattern"], start="earliest", voids=True)
        async with subscription, asyncio.TaskGroup() as group:
            group.create_task(self._write_periodically(client))
            async for event in subscription:
                self.pending.setdefault(event.stream, []).append(event)

    async def _write_periodically(self, client: Client) -> None:
        while True:
            await asyncio.sleep(WRITE_S)
            pending, self.pending = self.pending, {}
            for name, events in pending.items():
                if name not in self.ids:
                    self.ids[name] = (await client.streams(name))[0].stream_id
                self._write(name, self.ids[name], events)

    def _write(self, name: str, stream: LogId, events: list[Event]) -> None:
        start = self.delivery_log.positions.get(stream, 1)
        for lost in [event for event in events if event.kind == "lost"]:
            self.faults.append(f"{name}: {lost.range} is lost: {lost.reason}")
        news = [event for event in events if event.seq >= start and event.kind != "lost"]
        if news:
            self.delivery_log.take(stream, tuple(as_batches(stream, news, start)))

    # ------------------------------------------------------------ commands of the parent process

    def status(self) -> dict[str, Any]:
        return {
            "positions": dict(self.delivery_log.positions),
            "warnings": list(self.warnings.messages),
        }

    def results(self) -> dict[str, Any]:
        return {"failed": self.faults, "counters": {}}

    def sessions(self) -> SessionReport:
        link = self.client._endpoint.link if self.client is not None else None
        return report([node for node in link.nodes if node.running] if link is not None else [])
