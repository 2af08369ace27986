"""Users at full load, in processes of their own: one publishes all it can, the others read.

Both use nothing but the public API. The only publisher of a stream puts into each event the
position that the event will get, and gives position `n` the key `n % KEYS`. So a reader can judge
by itself, whatever it skips: each event must carry its own position, positions must rise, and at
the end it must hold the last of every key. Then all that it did not get had been replaced by
something that it did get.
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
ROWS = 16_000  # a call: several batches, so that some are under way while others are made
RETAIN = {"all": keep_all, "latest": latest_per_key}


class User:
    """A client of a region and what it does in the background."""

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
    """Publishes as fast as it is let; `args`: url, stream, retain."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self.published = 0  # and acknowledged
        self.faults: list[str] = []
        self.on = True

    async def work(self) -> None:
        stream = await self.open_stream()
        while self.on:
            first = self.published + 1
            seqs = await stream.publish_many(_table(first, ROWS))
            if (seqs.first, seqs.last, len(seqs)) != (first, first + ROWS - 1, ROWS):
                self.faults.append(f"{ROWS} events from {first} on stand at {seqs!r}")
            self.published += ROWS

    def quiet(self) -> None:
        """After the call under way no more."""
        self.on = False

    def status(self) -> dict[str, Any]:
        quiet = self.task.done()
        return {"published": self.published, "quiet": quiet, "faults": self.faults}


class Gauge(User):
    """Reads all from the first position on, unless it holds; `args`: those of a pump, mesh."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self.position = 1  # next
        self.events = 0
        self.last = np.zeros(KEYS, np.int64)  # by key: the last position that it got
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
        said = _numbers(batch.column("value"))
        keys = _numbers(batch.column("key"))
        if seqs[0] < self.position or (np.diff(seqs) <= 0).any():
            self.faults.append(f"at {self.position} came [{seqs[0]}, {seqs[-1]}]")
        if (said != seqs).any() or (keys != seqs % KEYS).any():
            self.faults.append(
                f"[{seqs[0]}, {seqs[-1]}] has other events than were published there"
            )
        self.last[seqs % KEYS] = seqs  # of several with one key, the last stays
        self.position = int(seqs[-1]) + 1
        self.events += len(seqs)

    def hold(self) -> None:
        """Live on, but ask for nothing more."""
        self.flowing.clear()

    def go_on(self) -> None:
        self.flowing.set()

    def status(self) -> dict[str, Any]:
        return {"position": self.position, "events": self.events, "faults": self.faults[:5]}

    def missing(self, end: int) -> list[int]:
        """Keys whose last event before `end` it has not got, as their positions."""
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
