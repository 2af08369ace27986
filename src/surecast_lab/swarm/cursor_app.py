"""A test application that reads by named subscriptions and records its deliveries.

The process swarms (`process_cluster.py`) kill and restart it. It uses the public API, writes
deliveries to a file, its delivery log, and acknowledges the events that it has written. The region
stores the acknowledged position (the *cursor* of the subscription), and after a restart the program
continues there. This position may be before the end of the delivery log, because the last
acknowledgements may be lost, but never after it. It is never before a position whose
acknowledgement was confirmed. Events that are delivered again must be the same as before; they are
not recorded twice.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from surecast.client import connect
from surecast.client.connection import Client
from surecast.client.events import Event
from surecast.client.subscription import Subscription
from surecast.columns.batch import REASON_NAMES, Batch
from surecast.core.types import LogId
from surecast.errors import ConnectError
from surecast_lab.swarm.delivery_log import DeliveryLog

__all__ = ["CursorApp", "as_batches", "connected"]

WRITE_S = 0.02  # how often deliveries are recorded and acknowledged
RECONNECT_S = 0.2
REASONS = {name: reason for reason, name in REASON_NAMES.items()}


class CursorApp:
    """`args`: url, name, streams (name → id as hex), stored (the file of confirmed positions)."""

    def __init__(self, args: dict[str, Any], delivery_log: Path) -> None:
        self.args = args
        self.delivery_log = DeliveryLog(delivery_log)
        self.faults: list[str] = []
        self.stored = _Stored(Path(args["stored"]))
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        self.task = asyncio.create_task(self._work())
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self.over.done():
            self.over.set_exception(task.exception() or AssertionError("the program ended"))

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    def failures(self) -> list[asyncio.Future[None]]:
        return [self.over]

    async def _work(self) -> None:
        async with await connected(self.args["url"]) as client, asyncio.TaskGroup() as group:
            for name, stream in self.args["streams"].items():
                group.create_task(self._read(client, name, bytes.fromhex(stream)))

    async def _read(self, client: Client, name: str, stream: LogId) -> None:
        opened = await client.stream(name)
        me = f"{self.args['name']}.{name}"
        recorder = _StreamDeliveries(self, stream)
        named = opened.subscribe("earliest", voids=True, name=me, ack="manual")
        async with named as subscription, asyncio.TaskGroup() as group:
            group.create_task(recorder.write_periodically())
            group.create_task(recorder.acknowledge(subscription))
            async for event in subscription:
                recorder.take(event)

    # ------------------------------------------------------------ commands

    def status(self) -> dict[str, Any]:
        return {"positions": dict(self.delivery_log.positions)}

    def results(self) -> dict[str, Any]:
        return {"failed": self.faults, "counters": {}}


async def connected(url: str, mesh: bool = False) -> Client:
    """Connect, and retry while no server answers: all may be down when a program starts."""
    while True:
        try:
            return await connect(url, mesh=mesh).open()
        except ConnectError:
            await asyncio.sleep(RECONNECT_S)


class _StreamDeliveries:
    """The deliveries of one stream: events are collected, written to the log, and acknowledged."""

    def __init__(self, app: CursorApp, stream: LogId) -> None:
        self.app, self.stream = app, stream
        self.next = app.delivery_log.positions.get(stream, 1)
        self.pending: list[Event] = []
        self.written: Event | None = None  # the last event in the delivery log
        self.news = asyncio.Event()
        self.began = False

    def take(self, event: Event) -> None:
        first, stored = event.range.start, self.app.stored.positions.get(self.stream, 1)
        if not self.began and first < stored:
            self.app.faults.append(f"stored up to {stored}, but it continues at {first}")
        self.began = True
        if event.seq >= self.next:
            self.pending.append(event)

    async def write_periodically(self) -> None:
        while True:
            await asyncio.sleep(WRITE_S)
            events, self.pending = self.pending, []
            if events:
                batches = tuple(as_batches(self.stream, events, self.next))
                self.app.delivery_log.take(self.stream, batches)
                self.next = batches[-1].hi
                self.written = events[-1]
                self.news.set()

    async def acknowledge(self, subscription: Subscription) -> None:
        """Acknowledge recorded events. An acknowledgement may wait while the region cannot write;
        reading continues in another task."""
        while True:
            await self.news.wait()
            self.news.clear()
            event = self.written
            assert event is not None
            await subscription.ack(event)
            self.app.stored.note(self.stream, event.seq + 1)


def as_batches(stream: LogId, events: list[Event], start: int) -> list[Batch]:
    """Make batches of delivered events: adjacent events with the same time share a batch.

    `start` is the first position that the delivery log lacks. A void range that begins before it is
    shortened.
    """
    found: list[Batch] = []
    run: list[Event] = []
    for event in [*events, None]:
        if run and (event is None or event.kind == "void" or not _joins(run[-1], event)):
            batch = Batch.of(stream, [e.value for e in run], [e.key for e in run])
            found.append(batch.sequenced(run[0].seq, run[0].time_ns, 1))
            run = []
        if event is None:
            break
        if event.kind == "event":
            run.append(event)
        else:
            lo = max(event.range.start, start) if not found else event.range.start
            found.append(Batch.void(stream, lo, event.seq + 1, REASONS[event.reason]))
    return found


def _joins(one: Event, other: Event) -> bool:
    return one.time_ns == other.time_ns and one.seq + 1 == other.seq


class _Stored:
    """The confirmed positions, in a file: each line has a stream and a position."""

    def __init__(self, path: Path) -> None:
        whole = path.read_text() if path.exists() else ""
        whole = whole[: whole.rfind("\n") + 1]  # the last line may be torn
        lines = [line.split() for line in whole.splitlines()]
        self.positions = {bytes.fromhex(stream): int(position) for stream, position in lines}
        self.file = path.open("ab", buffering=0)
        self.file.truncate(len(whole))

    def note(self, stream: LogId, position: int) -> None:
        self.positions[stream] = position
        self.file.write(f"{stream.hex()} {position}\n".encode())
