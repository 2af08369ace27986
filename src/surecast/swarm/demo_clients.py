"""The demo's publisher and its subscribers: programs as users write them, each in its own process.

They know nothing but the client library. What they were told and given goes into a ledger
(ledger.py), which is all that the audit will look at. Orders come as JSON lines on stdin, and the
end of stdin is the end; how far they are goes as JSON lines to stdout.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import surecast
from surecast.columns.batch import Batch
from surecast.parts.workload import Zipf
from surecast.runtime.run import run as run_loop
from surecast.swarm.ledger import (
    WIDTH,
    Int64s,
    Marks,
    OfferedEvents,
    ReadEvents,
    Words,
    numbers,
    save,
)

__all__ = ["STREAM", "ClientSpec", "Publishing", "Reading", "command"]

STREAM = "cache.invalidate"
KEYS, SKEW = 100_000, 1.1
IN_FLIGHT_MAX = 32  # batches; below what a chain takes from one publisher
SAY_S = 0.1  # how often they say how far they are


class ClientSpec(msgspec.Struct, frozen=True):
    """What a client process is told at its start, as its only argument."""

    role: str  # publisher, reader
    name: str
    url: str
    ledger: str  # the file to write
    mesh: bool = False
    voids: bool = False  # read event by event, and have void ranges told
    events: int = 0  # of a publisher, in all ...
    batch_rows: int = 1  # ... and in each batch
    seed: int = 0


def command(spec: ClientSpec) -> list[str]:
    return [sys.executable, "-m", __name__, msgspec.json.encode(spec).decode()]


def keys_and_values(events: int, seed: int) -> tuple[bytes, bytes]:
    """All keys and all values, side by side: u0000042 by Zipf's law; 00000001, 00000002, …

    No two values are alike, as the audit needs it, up to 99,999,999 of them.
    """
    ranks = Zipf(KEYS, SKEW).sample(np.random.default_rng(seed), events)
    names = b"".join(b"u%07d" % rank for rank in range(KEYS + 1))
    values = b"".join(b"%08d" % number for number in range(1, events + 1))
    return np.frombuffer(names, f"S{WIDTH}")[ranks].tobytes(), values


def say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


class Orders(asyncio.Protocol):
    """Lines of stdin. When it ends, whoever started us is gone or done with us."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._unread = b""

    async def listen(self) -> None:
        await asyncio.get_running_loop().connect_read_pipe(lambda: self, sys.stdin)

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self.queue.put_nowait(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(1)


# ---------------------------------------------------------------- publishing


class Publishing:
    """Publishes so many events within so many seconds, as often as it is told to."""

    def __init__(self, spec: ClientSpec) -> None:
        self.spec = spec
        keys, values = keys_and_values(spec.events, spec.seed)
        self.key, self.value = numbers(keys), numbers(values)
        self.seq: Int64s = np.zeros(spec.events, np.int64)
        self.offered_ns: Int64s = np.zeros(spec.events, np.int64)
        self.offered = self.acked = 0
        self.raw_bytes = 0  # of the frames that were offered
        self.marks: list[tuple[int, int]] = []
        self._buffers = (pa.py_buffer(keys), pa.py_buffer(values))
        self._room = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def run(self, orders: Orders) -> None:
        async with surecast.connect(self.spec.url) as client:
            stream = await client.stream(STREAM, retain=surecast.latest_per_key())
            talking = asyncio.create_task(_talk(self._say))
            say(ready=True)
            while "events" in (order := await orders.queue.get()):
                await self._publish(stream, order["events"], order["seconds"])
                self._say()
            talking.cancel()
        ledger = OfferedEvents(self.key, self.value, self.seq, _marks(self.marks), self.offered_ns)
        save(Path(self.spec.ledger), ledger)

    async def _publish(self, stream: surecast.Stream, events: int, seconds: float) -> None:
        """Offer them evenly over `seconds`; 0: as fast as they are acknowledged."""
        first, end, began = self.offered, self.offered + events, time.monotonic()
        async with asyncio.TaskGroup() as group:
            while self.offered < end:
                due_s = seconds * (self.offered - first) / events
                await asyncio.sleep(max(0.0, began + due_s - time.monotonic()))
                await self._room.acquire()
                lo, hi = self.offered, min(self.offered + self.spec.batch_rows, end)
                self.offered = hi
                group.create_task(self._publish_batch(stream, lo, hi))

    async def _publish_batch(self, stream: surecast.Stream, lo: int, hi: int) -> None:
        table = self._table(lo, hi)
        self.raw_bytes += Batch.from_arrow(bytes(16), table).nbytes
        self.offered_ns[lo:hi] = time.monotonic_ns()
        seqs = await stream.publish_many(table)
        self.seq[lo:hi] = np.fromiter(seqs, np.int64, hi - lo)
        self.acked += hi - lo
        self.marks.append((time.monotonic_ns(), self.acked))
        self._room.release()

    def _table(self, lo: int, hi: int) -> pa.RecordBatch:
        """Events [lo, hi), without a Python object for any of them."""
        columns = [
            pa.Array.from_buffers(pa.binary(WIDTH), hi - lo, [None, data], offset=lo)
            for data in self._buffers
        ]
        return pa.RecordBatch.from_arrays([c.cast(pa.binary()) for c in columns], ["key", "value"])

    def _say(self) -> None:
        say(offered=self.offered, acked=self.acked, raw_bytes=self.raw_bytes)


# ---------------------------------------------------------------- reading


class Reading:
    """Reads the stream from its beginning, and writes down what it is given."""

    def __init__(self, spec: ClientSpec) -> None:
        self.spec = spec
        self.position = 1
        self.malformed = 0
        self.marks: list[tuple[int, int]] = []
        self.parts: list[tuple[Int64s, Int64s, Words, Words]] = []  # seq, time, key, value
        self.parts_ns: list[tuple[int, int]] = []  # when each part came, and how many events it had
        self.events: list[tuple[int, int, bytes, bytes, int]] = []  # the same, and when it came
        self.voids: list[tuple[int, int, int]] = []  # lo, hi, how many events had come before

    async def run(self, orders: Orders) -> None:
        async with surecast.connect(self.spec.url, mesh=self.spec.mesh) as client:
            read = self._read_events if self.spec.voids else self._read_batches
            reading = asyncio.create_task(read(client))
            talking = asyncio.create_task(_talk(self._say))
            finish = asyncio.create_task(orders.queue.get())  # the only order there is
            say(ready=True)
            await asyncio.wait({reading, finish}, return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, talking):
                task.cancel()
            await asyncio.wait({reading, talking})
            if not reading.cancelled():
                reading.result()  # it never ends by itself: this raises why it did
        save(Path(self.spec.ledger), self._ledger())

    async def _read_batches(self, client: surecast.Client) -> None:
        async for batch in client.subscribe(STREAM, start="earliest").batches():
            seqs = batch.column("seq").to_numpy()
            times = (
                batch.column("timestamp")
                .cast(pa.timestamp("us", "UTC"))
                .cast(pa.int64())
                .to_numpy()
            )
            try:
                key, value = (_words(batch.column(name)) for name in ("key", "value"))
            except pa.ArrowInvalid:
                self.malformed += batch.num_rows
            else:
                self.parts.append((seqs, times, key, value))
                self.parts_ns.append((time.monotonic_ns(), seqs.size))
            self.position = int(seqs[-1]) + 1

    async def _read_events(self, client: surecast.Client) -> None:
        async for event in client.subscribe(STREAM, start="earliest", voids=True):
            if event.kind == "void":
                self.voids.append((event.range.start, event.range.stop, len(self.events)))
            elif event.key is None or (len(event.key), len(event.value)) != (WIDTH, WIDTH):
                self.malformed += 1
            else:
                at_ns = time.monotonic_ns()
                row = (event.seq, event.time_ns // 1000, event.key, event.value, at_ns)
                self.events.append(row)
            self.position = event.seq + 1

    def _ledger(self) -> ReadEvents:
        rows = zip(*self.events, strict=True) if self.events else ((),) * 5
        seqs, times, keys, values, came_ns = rows
        single = (
            np.array(seqs, np.int64),
            np.array(times, np.int64),
            numbers(b"".join(keys)),
            numbers(b"".join(values)),
        )
        columns: Any = zip(single, *self.parts, strict=True)  # a reader has one or the other
        seq, time_us, key, value = (np.concatenate(column) for column in columns)
        at_ns, counts = np.array(self.parts_ns, np.int64).reshape(-1, 2).T
        got_ns = np.concatenate((np.array(came_ns, np.int64), np.repeat(at_ns, counts)))
        voids = np.array(self.voids, np.int64).reshape(-1, 3) if self.spec.voids else None
        return ReadEvents(
            self.spec.name, seq, time_us, key, value,
            None if voids is None else voids[:, :2], self.malformed, _marks(self.marks),
            got_ns, None if voids is None else voids[:, 2],
        )  # fmt: skip

    def _say(self) -> None:
        self.marks.append((time.monotonic_ns(), self.position))
        say(position=self.position)


def _words(column: Any) -> Words:
    """A column of byte strings of eight bytes each; ArrowInvalid if they are not."""
    fixed = column.cast(pa.binary(WIDTH))
    if fixed.null_count:
        raise pa.ArrowInvalid("an event without a key")
    data = memoryview(fixed.buffers()[1])
    return numbers(data[fixed.offset * WIDTH : (fixed.offset + len(fixed)) * WIDTH])


def _marks(rows: list[tuple[int, int]]) -> Marks:
    at_ns, position = np.array(rows, np.int64).reshape(-1, 2).T
    return Marks(at_ns, position)


async def _talk(say_it: Any) -> None:
    while True:
        say_it()
        await asyncio.sleep(SAY_S)


def main(spec_json: str) -> None:
    spec = msgspec.json.decode(spec_json.encode(), type=ClientSpec)
    client: Publishing | Reading

    async def live() -> None:
        nonlocal client
        orders = Orders()
        await orders.listen()
        client = Publishing(spec) if spec.role == "publisher" else Reading(spec)
        await client.run(orders)
        say(saved=True)

    run_loop(live())


if __name__ == "__main__":
    main(sys.argv[1])
