"""Programs of a test at full load (`stall.py`): a publisher that runs at full speed, and readers.

Each program runs in its own process and uses only the public API. The stream has one publisher. It
writes into each event the position that the event will get, and position `n` has the key
`n % KEYS`. So a reader can check its deliveries without the publisher's log, even if the stream
keeps only the latest event of each key: each event must contain its own position, positions must
rise, and at the end the reader must have the last event of every key. If so, every event that it
did not get was replaced by a later one.
"""

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt

from surecast.client import connect
from surecast.client.rules import keep_all, latest_per_key
from surecast.client.stream import Stream

__all__ = ["KEYS", "Gauge", "Pump", "User"]

KEYS = 1000
ROWS = 16_000  # per call: several batches, so that some are in flight while others are built
RETAIN = {"all": keep_all, "latest": latest_per_key}


class User:
    """A client of a region, and the background task in which it publishes or reads."""

    def __init__(self, args: dict[str, Any]) -> None:
        self.args = args
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.client = connect(args["url"], mesh=args.get("mesh", False))

    async def start(self) -> None:
        await self.client.open()
        self.task = asyncio.create_task(self.work())
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and not self.over.done():
            self.over.set_exception(task.exception() or AssertionError)

    async def work(self) -> None:
        raise NotImplementedError

    async def open_stream(self) -> Stream:
        return await self.client.stream(self.args["stream"], retain=RETAIN[self.args["retain"]]())

    async def stop(self) -> None:
        self.task.cancel()
        await self.client.close()

    def failures(self) -> list[asyncio.Future[None]]:
        return [self.over]


class Pump(User):
    """Publishes as fast as the region accepts events; `args`: url, stream, retain."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self.published = 0  # events that are published and acknowledged
        self.faults: list[str] = []
        self.on = True

    async def work(self) -> None:
        stream = await self.open_stream()
        while self.on:
            first = self.published + 1
            seqs = await stream.publish_many(_table(first, ROWS))
            if (seqs.first, seqs.last, len(seqs)) != (first, first + ROWS - 1, ROWS):
                self.faults.append(
                    f"{ROWS} events from position {first} on were acknowledged at {seqs!r}"
                )
            self.published += ROWS

    def quiet(self) -> None:
        """Stop publishing after the current call."""
        self.on = False

    def status(self) -> dict[str, Any]:
        quiet = self.task.done()
        return {"published": self.published, "quiet": quiet, "faults": self.faults}


class Gauge(User):
    """Reads from the first position on; `hold` pauses reading. `args`: those of `Pump`, and
    mesh."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self.position = 1  # the next position to read
        self.events = 0
        self.last = np.zeros(KEYS, np.int64)  # by key: the last position delivered
        self.faults: list[str] = []
        self.flowing = asyncio.Event()
        self.flowing.set()

    async def work(self) -> None:
        stream = await self.open_stream()
        async with stream.subscribe(start="earliest") as subscription:
            async for batch in subscription.batches():
                self._take(batch)
                await self.flowing.wait()

    def _take(self, batch: Any) -> None:
        seqs = batch.column("seq").to_numpy()
        expected = _numbers(batch.column("value"))
        keys = _numbers(batch.column("key"))
        if seqs[0] < self.position or (np.diff(seqs) <= 0).any():
            self.faults.append(f"[{seqs[0]}, {seqs[-1]}] was delivered at {self.position}")
        if (expected != seqs).any() or (keys != seqs % KEYS).any():
            self.faults.append(
                f"[{seqs[0]}, {seqs[-1]}] has other events than were published there"
            )
        self.last[seqs % KEYS] = seqs  # if a key occurs several times, numpy keeps the last
        self.position = int(seqs[-1]) + 1
        self.events += len(seqs)

    def hold(self) -> None:
        """Stop taking batches, while the process continues to run."""
        self.flowing.clear()

    def go_on(self) -> None:
        self.flowing.set()

    def status(self) -> dict[str, Any]:
        return {"position": self.position, "events": self.events, "faults": self.faults[:5]}

    def missing(self, end: int) -> list[int]:
        """Positions of the last event of a key before `end` that were not delivered."""
        wanted = np.arange(max(1, end - KEYS), end)
        found: list[int] = wanted[self.last[wanted % KEYS] != wanted].tolist()
        return found


def _table(first: int, rows: int) -> Any:
    import pyarrow as pa

    numbers = np.arange(first, first + rows, dtype=np.int64)

    def column(values: npt.NDArray[np.int64]) -> Any:
        buffer = pa.py_buffer(values.astype(">i8").tobytes())
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), rows, [None, buffer]).cast(
            pa.binary()
        )

    return pa.table({"value": column(numbers), "key": column(numbers % KEYS)})


def _numbers(column: Any) -> npt.NDArray[np.int64]:
    """A column of 8-byte numbers."""
    import pyarrow as pa

    fixed = column.cast(pa.binary(8))
    found = np.frombuffer(fixed.buffers()[1], ">i8", len(fixed), 8 * fixed.offset)
    return found.astype(np.int64)
